"""One GPU on one UTC day: what is written to the ledger at once, or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from itertools import pairwise

import msgspec

from collector.metering.evidence import Evidence
from collector.metering.measures import Measure, Share
from collector.metering.tiling import Entry
from collector.metering.units import GPU_CAPACITY, Tiling

DAY_NS = 86_400 * 1_000_000_000
_GREATEST = (1 << 63) - 1


class TilingError(ValueError):
    """Entries are not all that is true of a GPU on a day, each thing once."""


class MeasuredShare(msgspec.Struct, frozen=True, order=True, gc=False):
    """Whose a part of what a counter counted is."""

    measure: Measure
    share: Share


class HeldClaim(msgspec.Struct, frozen=True, order=True, gc=False):
    """When a claim among the entries starts, and its MIG profile where that is known."""

    id: str
    start_ns: int
    mig_profile: str = ""


class DayTiling(msgspec.Struct, frozen=True):
    """Both tilings of a GPU on a day, and what its counters counted on it, in whatever order.

    `day` counts UTC days from the epoch. `evidence_root` (see the function) and `engine_version`
    say what it was computed from and by what, `computed_ns` when. `sku` is the model of the GPU as
    prices name it, empty if unknown.
    """

    gpu: str
    day: int
    entries: tuple[Entry, ...]
    evidence_root: str
    engine_version: str
    computed_ns: int
    sku: str = ""
    shares: tuple[MeasuredShare, ...] = ()
    claims: tuple[HeldClaim, ...] = ()

    @property
    def start_ns(self) -> int:
        """When the day starts."""
        return self.day * DAY_NS

    @property
    def end_ns(self) -> int:
        """When the day ends."""
        return (self.day + 1) * DAY_NS


def evidence_root(evidence: Evidence) -> str:
    """SHA-256 in hex over the evidence as JSON, every fact once and in order."""
    layouts = {
        msgspec.structs.replace(layout, instances=tuple(sorted(layout.instances)))
        for layout in evidence.layouts
    }
    facts = {
        name: sorted(set(value))
        for name, value in msgspec.structs.asdict(evidence).items()
        if isinstance(value, tuple)
    }
    document = {**facts, "gpu": evidence.gpu, "layouts": sorted(layouts)}
    return sha256(msgspec.json.encode(document, order="deterministic")).hexdigest()


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """Compute before memory, each by time and slot: the order that metering gives them in."""
    return sorted(entries, key=_place)


def _place(entry: Entry) -> tuple[str, int, int, int]:
    return entry.tiling, entry.t0_ns, entry.t1_ns, entry.slot_lo


def content_root(found: DayTiling) -> str:
    """SHA-256 in hex over what was found, as JSON in order: equal for equal contents only."""
    content = (found.sku, in_order(found.entries), sorted(found.shares), sorted(found.claims))
    return sha256(msgspec.json.encode(content)).hexdigest()


def check(found: DayTiling) -> None:
    """Whether every slot has one entry at each instant that the GPU was in a node.

    Raises TilingError.
    """
    _check_entries(found)
    _check_rest(found)
    compute, memory = (_covered(found, tiling) for tiling in Tiling)
    if compute != memory:
        message = f"compute of {found.gpu} covers {compute}, but memory {memory}"
        raise TilingError(message)


def _check_rest(found: DayTiling) -> None:
    """What counters counted and claims, for what a database could not keep as it is."""
    texts = [found.gpu, found.sku]
    for one in found.shares:
        share = one.share
        # An increment that is no one's began with the reading before, perhaps on an earlier day.
        if share.t0_ns > share.t1_ns or not found.start_ns < share.t1_ns <= found.end_ns:
            message = f"{one.measure} counted in ({share.t0_ns}, {share.t1_ns}] is not of the day"
            raise TilingError(message)
        if not 0 < share.amount <= _GREATEST:
            message = f"{one.measure} of {found.gpu}: nothing counts {share.amount} in a day"
            raise TilingError(message)
        texts += (share.tenant, share.workload, share.claim)
    for claim in found.claims:
        texts += (claim.id, claim.mig_profile)
    if len({claim.id for claim in found.claims}) != len(found.claims):
        message = f"a claim on {found.gpu} has two starts or profiles"
        raise TilingError(message)
    if any("\0" in text for text in texts):
        message = f"a name with a NUL character has no place in a database: {texts}"
        raise TilingError(message)


def _check_entries(found: DayTiling) -> None:
    start, end = found.start_ns, found.end_ns
    for entry in found.entries:
        if entry.gpu != found.gpu:
            message = f"an entry of {entry.gpu} is no part of a tiling of {found.gpu}"
            raise TilingError(message)
        if not start <= entry.t0_ns < entry.t1_ns <= end:
            message = f"[{entry.t0_ns}, {entry.t1_ns}) is not within day {found.day}"
            raise TilingError(message)
        texts = (entry.gpu, entry.node, entry.tenant, entry.workload, entry.claim, entry.layout)
        if any("\0" in text for text in texts):
            message = f"a name with a NUL character has no place in a database: {texts}"
            raise TilingError(message)


def _covered(found: DayTiling, tiling: Tiling) -> list[tuple[int, int]]:
    """The time that a tiling covers, with all slots of the GPU at each instant."""
    entries = [entry for entry in in_order(found.entries) if entry.tiling is tiling]
    edges = sorted({edge for entry in entries for edge in (entry.t0_ns, entry.t1_ns)})
    covered: list[tuple[int, int]] = []
    alive: list[Entry] = []
    at = 0
    for now, until in pairwise(edges):
        alive = [entry for entry in alive if entry.t1_ns > now]
        while at < len(entries) and entries[at].t0_ns <= now:
            alive.append(entries[at])
            at += 1
        if not alive:
            continue
        slots = sorted((entry.slot_lo, entry.slot_hi) for entry in alive)
        whole = [(0, 0), *slots, (GPU_CAPACITY, GPU_CAPACITY)]
        if any(low >= high for low, high in slots) or any(
            before[1] != after[0] for before, after in pairwise(whole)
        ):
            message = f"{tiling} slots of {found.gpu} at {now} are {slots}, not each slot once"
            raise TilingError(message)
        if covered and covered[-1][1] == now:
            now = covered.pop()[0]  # noqa: PLW2901 - the interval before goes on
        covered.append((now, until))
    return covered
