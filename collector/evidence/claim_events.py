"""Facts from the claim events that agents send (railscope.catalog.tenancy).

A node reports claims of the GPUs that are in it: a claim holds only while the GPU is there. Starts
and ends are placed by the boot clock of the node where the event has it, else by its wall clock. Of
several reports of one claim `first_report` selects one, in whatever order they arrived.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from collector.metering.evidence import Level
from collector.metering.units import FOREVER_NS
from railscope.catalog.tenancy import (
    CLAIM_END_EVENT,
    CLAIM_START_EVENT,
    UNCLAIMED_END_EVENT,
    UNCLAIMED_START_EVENT,
)
from railscope.shares import MAX_COUNT, ShareError, parse_share, share_text
from railscope.wire import WireEvent

STARTS = frozenset({CLAIM_START_EVENT.name, UNCLAIMED_START_EVENT.name})
ENDS = frozenset({CLAIM_END_EVENT.name, UNCLAIMED_END_EVENT.name})
MAX_LEVEL = Level.SCHEDULER
"""The highest authority that an event from a node can have."""
_LEVELS = {
    "process": Level.PROCESS,
    "node_plugin": Level.NODE_PLUGIN,
    "scheduler": Level.SCHEDULER,
    "administrator": Level.ADMINISTRATOR,
}
WIRE_CAPACITY = 840
"""Slots of a GPU on the wire and in stored facts, whatever unit metering computes in."""
_WHOLE = (0, WIRE_CAPACITY)
_SLOTS = re.compile(r"(\d{1,3})-(\d{1,3})", re.ASCII)
_INSTANT = re.compile(r"\d{1,19}", re.ASCII)
_COUNT = re.compile(r"[1-9]\d{0,3}", re.ASCII)
_KEY_WORDS = 2
MAX_CHARACTERS = 400
"""Maximum length of a name: a database cannot index much longer ones."""


_UNPLACED = "@"

_READ = frozenset({
    "level", "source", "owner", "tenant", "workload", "start_ns", "start_boot_ns", "end_ns",
    "end_boot_ns", "uncertainty_ns", "compute", "memory", "exclusive", "share", "count", "system",
    "profile",
})  # fmt: skip


def unplaced_in(node: str) -> str:
    """Return the key for a node's claims without a device, in mappings by GPU."""
    return _UNPLACED + node


def node_of(key: str) -> str:
    """Return the node of a key from `unplaced_in`."""
    return key.removeprefix(_UNPLACED)


def is_gpu(key: str) -> bool:
    """True for a GPU, false for a key from `unplaced_in`."""
    return not key.startswith(_UNPLACED)


class ToldError(ValueError):
    """Event that is not a valid claim; the message gives the reason."""


class Told(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """A claim that a node reported; without a device, `gpu` is `unplaced_in` its node."""

    start_ns: int
    gpu: str
    node: str
    id: str
    level: Level
    source: str = ""
    owner: str = ""
    tenant: str = ""
    workload: str = ""
    compute: tuple[int, int] = _WHOLE
    memory: tuple[int, int] = _WHOLE
    exclusive: bool = True
    system: bool = False
    uncertainty_ns: int = 0
    profile: str = ""
    boot: str = ""
    """Boot of the node in which it was reported, and the time of its first report in that boot."""
    told_ns: int = 0
    share: str = ""
    """The fraction of the device, or of each device; empty for none (`exclusive` applies then)."""
    count: int = 0
    start_boot_ns: int = -1
    """The start on the boot clock, by which `start_ns` was placed; -1 where the event has none."""
    end_ns: int = 0
    """The end by the wall clock, of a claim that ended in an earlier boot than the event's; else 0."""
    trusted_from_ns: int = 0
    """Horizon of the report: the part of the claim before it was reported late. 0 for no limit."""
    received_ns: int = 0
    """Receipt of the report by a collector, which gives the order of reports; 0 where not recorded."""


class Ended(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """End of a claim as reported by a node. It may be received before the claim is."""

    instant_ns: int
    gpu: str
    node: str
    id: str
    trusted_from_ns: int = 0
    """Horizon of the report: the time before it that the end frees is under review. 0 for no limit."""

    @property
    def believed_ns(self) -> int:
        """The end as it counts until a person accepts it."""
        return max(self.instant_ns, self.trusted_from_ns)


class Teller(NamedTuple):
    """A node in one of its boots, and the start of the boot on the collector's clock."""

    node: str
    boot: str
    since_boot_ns: int


def told(teller: Teller, event: WireEvent) -> Told | Ended:
    """Parse a claim event. Raises ToldError."""
    device, claim, facts = _words(event)
    gpu = device or unplaced_in(teller.node)
    if event.name in ENDS:
        end_ns = _placed(teller, facts, "end", event.wall_ns)
        return Ended(end_ns, gpu, teller.node, claim)
    if facts.get("level") not in _LEVELS:
        expected = ", ".join(_LEVELS)
        message = f"claim {claim!r}: invalid level {facts.get('level')!r}: expected {expected}"
        raise ToldError(message)
    unclaimed = event.name == UNCLAIMED_START_EVENT.name
    compute, share = _slots(facts, "compute"), _share(facts)
    return Told(
        start_ns=_placed(teller, facts, "start", event.wall_ns),
        gpu=gpu,
        node=teller.node,
        id=claim,
        level=Level.PROCESS if unclaimed else _LEVELS[facts["level"]],
        source=facts.get("source", ""),
        owner=facts.get("owner", ""),
        tenant=facts.get("tenant", ""),
        workload=facts.get("workload", ""),
        compute=compute,
        memory=_slots(facts, "memory") if facts.get("memory") else compute,
        exclusive=_is_exclusive(claim, facts) and not share,
        system=facts.get("system") == "true",
        uncertainty_ns=_instant(facts, "uncertainty_ns", 0),
        profile=facts.get("profile", ""),
        boot=teller.boot,
        told_ns=teller.since_boot_ns + event.boot_ns,
        share=share,
        count=_count(device, claim, facts),
        start_boot_ns=_instant(facts, "start_boot_ns", -1),
        end_ns=_instant(facts, "end_ns", 0),
    )


def dated(fact: Told | Ended, horizon_ns: int, received_ns: int) -> Told | Ended:
    """Return the fact with the receipt and the horizon of its envelope, overriding stated values."""
    if isinstance(fact, Ended):
        return msgspec.structs.replace(fact, trusted_from_ns=horizon_ns)
    return msgspec.structs.replace(
        fact,
        told_ns=max(fact.told_ns, horizon_ns),
        trusted_from_ns=horizon_ns,
        received_ns=received_ns,
    )


def first_report(one: Told) -> tuple[int, int, bool, Told]:
    """Sort key of the reports of one claim: the first one received counts, and no other.

    Of those in one envelope it is the first by the node's clocks, and of equal times the one by a
    boot clock: the report nearest to the start, where two clocks have drifted apart least. Only the
    receipt is beyond the control of the node, so a later report cannot precede an earlier one.
    """
    return one.received_ns, one.told_ns, one.start_boot_ns < 0, one


def first_reports(reports: Iterable[Told]) -> dict[tuple[str, str], Told]:
    """Return the report of each claim that counts, by node and id."""
    ordered = sorted(reports, key=first_report, reverse=True)
    return {(one.node, one.id): one for one in ordered}


def repeats(one: Told, other: Told) -> bool:
    """True if another report adds nothing: agents report claims in force repeatedly."""
    if one.told_ns > other.told_ns or one.received_ns > other.received_ns:
        return False
    is_same_start = one.start_boot_ns >= 0 and one.boot == other.boot
    is_same_start &= one.start_boot_ns == other.start_boot_ns
    start_ns = one.start_ns if is_same_start else other.start_ns
    same = {
        "told_ns": one.told_ns,
        "start_ns": start_ns,
        "trusted_from_ns": one.trusted_from_ns,
        "received_ns": one.received_ns,
    }
    is_same = msgspec.structs.replace(other, **same) == one
    return is_same and one.trusted_from_ns <= other.trusted_from_ns


def _words(event: WireEvent) -> tuple[str, str, dict[str, str]]:
    """Return the GPU (empty for none), the claim id and the supported facts. Raises ToldError."""
    key = event.entity.key
    if len(key) != _KEY_WORDS or not key[1] or not is_gpu(key[0]):
        message = f"invalid key of a claim {key}: expected a GPU, which may be empty, and an id"
        raise ToldError(message)
    gpu, claim = key
    facts = {name: word for name, word in event.facts.items() if name in _READ}
    if any("\0" in word or len(word) > MAX_CHARACTERS for word in (gpu, claim, *facts.values())):
        message = f"claim {claim[:MAX_CHARACTERS]!r} has words that no ledger can keep"
        raise ToldError(message)
    return gpu, claim, facts


def _placed(teller: Teller, facts: dict[str, str], edge: str, otherwise: int) -> int:
    """Return the start or end of a claim on the collector's clock.

    It is placed by the boot clock, or else by the wall clock. Raises ToldError.
    """
    boot_ns = _instant(facts, f"{edge}_boot_ns", -1)
    if boot_ns < 0:
        return _instant(facts, f"{edge}_ns", otherwise)
    placed_ns = teller.since_boot_ns + boot_ns
    if not 0 <= placed_ns < FOREVER_NS:
        message = f"invalid {edge}_boot_ns {boot_ns}: expected a time within this boot"
        raise ToldError(message)
    return placed_ns


def _instant(facts: dict[str, str], name: str, otherwise: int) -> int:
    text = facts.get(name, "")
    if not text:
        return otherwise
    if not _INSTANT.fullmatch(text) or int(text) >= FOREVER_NS:
        message = f"invalid {name} {text!r}: expected nanoseconds"
        raise ToldError(message)
    return int(text)


def _count(gpu: str, claim: str, facts: dict[str, str]) -> int:
    """Return the number of GPUs of a claim without a device; 0 for one with a device."""
    text = facts.get("count", "")
    if gpu and not text:
        return 0
    if gpu or not _COUNT.fullmatch(text) or int(text) > MAX_COUNT:
        message = (
            f"claim {claim!r}: invalid count {text!r}: expected 1 to {MAX_COUNT} without a GPU"
        )
        raise ToldError(message)
    return int(text)


def _is_exclusive(claim: str, facts: dict[str, str]) -> bool:
    """True unless the event has `exclusive=false`. Raises ToldError."""
    text = facts.get("exclusive", "")
    if text not in {"", "true", "false"}:
        message = f"claim {claim!r}: invalid exclusive {text!r}: expected true or false"
        raise ToldError(message)
    return text != "false"


def _share(facts: dict[str, str]) -> str:
    """Return the fraction in lowest terms; empty for none. Raises ToldError."""
    text = facts.get("share", "")
    try:
        return share_text(parse_share(text)) if text else ""
    except ShareError as error:
        raise ToldError(*error.args) from error


def _slots(facts: dict[str, str], name: str) -> tuple[int, int]:
    text = facts.get(name, "")
    if not text:
        return _WHOLE
    match = _SLOTS.fullmatch(text)
    low, high = (int(match[1]), int(match[2])) if match else _WHOLE
    if match is None or not low < high <= WIRE_CAPACITY:
        message = f"invalid {name} {text!r}: expected slots START-END such as 0-840"
        raise ToldError(message)
    return low, high
