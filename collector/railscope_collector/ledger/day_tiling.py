"""One GPU on one UTC day: the unit that is written to the ledger atomically."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from hashlib import sha256
from itertools import pairwise
from math import lcm
from typing import Any

import msgspec
from msgspec.structs import replace

from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import DAY_NS
from railscope_collector.ledger import LedgerError
from railscope_collector.metering import amount_shares, counter_increments
from railscope_collector.metering.evidence import ClockDoubt, Evidence
from railscope_collector.metering.overlaps import Overlap
from railscope_collector.metering.tiling import SlotState, TilingEntry
from railscope_collector.metering.units import Tiling, Units, exact

_MAX_INTEGER = (1 << 63) - 1
CAPACITY_UNITS = 84_000
"""4 x lcm(840, 1000): MIG slices, 1/840, 1/1000, percents and 1/32 are whole."""
# Slots are stored as 64-bit integers.
MAX_CAPACITY_UNITS = 1 << 62
# A multiple of the usual units: only slots that are not whole in those are rounded.
ROUNDED_CAPACITY_UNITS = CAPACITY_UNITS << 40
_OPTIONAL_OF_ENTRY = {"reason", "assumed", "counted"}
_ROOT_NAME_OF_UNCLAIMED = "rogue"
"""Name of `SlotState.UNCLAIMED` in content roots."""


class TilingError(LedgerError, ValueError):
    """The entries do not cover the day of a GPU completely and exactly once."""


class MeasuredShare(msgspec.Struct, frozen=True, order=True, gc=False):
    """A counted amount and its holder."""

    measure: counter_increments.CountedQuantity
    share: amount_shares.AmountShare


class HeldClaim(msgspec.Struct, frozen=True, order=True, gc=False):
    """A claim in force on the day: its span, rank and MIG profile, and its request.

    `requested` is capacity times time of the day, in GPU-nanoseconds, by tiling (compute, memory), as exact
    fractions in text; empty if a shared claim requested no share.
    """

    id: str
    start_ns: int
    mig_profile: str = ""
    end_ns: int | None = None
    rank: int | None = None
    requested: tuple[str, str] = ("", "")
    instance: str = ""
    """Compute of its MIG instance, as a fraction of the GPU in text; empty if unknown."""


class DayTiling(msgspec.Struct, frozen=True):
    """Both tilings of a GPU on a day, and the counted amounts of that day, in any order.

    `day` counts UTC days from the epoch. `evidence_root` (see the function), `engine_version` and
    `computed_ns` identify the input, the version and the time of the computation. `sku` is the model of the
    GPU as used in price books, empty if unknown.
    """

    gpu: str
    day: int
    entries: tuple[TilingEntry, ...]
    evidence_root: str
    engine_version: str
    computed_ns: int
    sku: str = ""
    shares: tuple[MeasuredShare, ...] = ()
    claims: tuple[HeldClaim, ...] = ()
    overlaps: tuple[Overlap, ...] = ()
    clock_suspect: tuple[ClockDoubt, ...] = ()
    """Mark of evidence that was received while the collector's clock was suspect; empty for none."""
    capacity_units: int = 0
    """Units that slots are stored in; 0 before the tiling is written (see `find_capacity_units`)."""

    @property
    def start_ns(self) -> int:
        """Start of the day."""
        return self.day * DAY_NS

    @property
    def end_ns(self) -> int:
        """End of the day."""
        return (self.day + 1) * DAY_NS


def _encoded_fields(struct: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a struct by their encoded names, which roots contain."""
    return dict(zip(struct.__struct_encode_fields__, msgspec.structs.astuple(struct), strict=True))


def evidence_root(evidence: Evidence) -> str:
    """Return SHA-256 in hex over the evidence as JSON, every fact once and in order."""
    layouts = {
        msgspec.structs.replace(layout, instances=tuple(sorted(layout.instances)))
        for layout in evidence.layouts
    }
    fields = _encoded_fields(evidence).items()
    # Order and repetition of facts do not change the result, so they must not change its root.
    facts = {name: sorted(set(value)) for name, value in fields if isinstance(value, tuple)}
    document = {**facts, "gpu": evidence.gpu, "layouts": sorted(layouts)}
    return sha256(msgspec.json.encode(document, order="deterministic", enc_hook=str)).hexdigest()


def find_capacity_units(day_tiling: DayTiling) -> int:
    """Return the capacity units in which every slot of a tiling is an integer: 84,000 if that suffices.

    If they would exceed `MAX_CAPACITY_UNITS`, slots are rounded down to `ROUNDED_CAPACITY_UNITS`.
    """
    if day_tiling.capacity_units:
        return day_tiling.capacity_units
    edges = [edge for entry in day_tiling.entries for edge in (entry.slot_lo, entry.slot_hi)]
    edges += [edge for row in day_tiling.shares for edge in (row.share.slot_lo, row.share.slot_hi)]
    sizes = [overlap.units for overlap in day_tiling.overlaps]
    denominators = {value.denominator for value in (*edges, *sizes)}
    units = lcm(CAPACITY_UNITS, *(GPU_CAPACITY * number for number in denominators))
    return units if units <= MAX_CAPACITY_UNITS else ROUNDED_CAPACITY_UNITS


def to_revision_units(value: Units, units: int) -> int:
    """Convert a slot or size of the 840 of a GPU to the capacity units of a revision."""
    return int(value * units // GPU_CAPACITY)


def from_revision_units(value: int, units: int) -> Units:
    """Convert a slot or size of a revision to the 840 of a GPU."""
    return exact(Fraction(value * GPU_CAPACITY, units))


def round_tiling(day_tiling: DayTiling) -> DayTiling:
    """Return the tiling as written: with its capacity units, and slots that are whole in them."""
    units = find_capacity_units(day_tiling)
    day_tiling = msgspec.structs.replace(day_tiling, capacity_units=units)
    if units != ROUNDED_CAPACITY_UNITS:
        return day_tiling

    def cut(value: Units) -> Units:
        return from_revision_units(to_revision_units(value, units), units)

    entries = (
        replace(row, slot_lo=cut(row.slot_lo), slot_hi=cut(row.slot_hi))
        for row in day_tiling.entries
    )
    shares = (
        replace(
            row,
            share=replace(
                row.share, slot_lo=cut(row.share.slot_lo), slot_hi=cut(row.share.slot_hi)
            ),
        )
        for row in day_tiling.shares
    )
    overlaps = (replace(row, units=cut(row.units)) for row in day_tiling.overlaps)
    return replace(
        day_tiling,
        # A slot thinner than one unit is empty after rounding; the database rejects empty slots.
        entries=tuple(row for row in entries if row.slot_lo < row.slot_hi),
        shares=tuple(row for row in shares if row.share.slot_lo < row.share.slot_hi),
        overlaps=tuple(overlaps),
    )


def sort_entries(entries: Iterable[TilingEntry]) -> list[TilingEntry]:
    """Sort entries: compute before memory, each by time and slot, the order of metering."""
    return sorted(entries, key=_place)


def _place(entry: TilingEntry) -> tuple[str, int, int, Units]:
    return entry.tiling, entry.t0_ns, entry.t1_ns, entry.slot_lo


def revision_root(day_tiling: DayTiling, units: int) -> str:
    """Return the content root of a tiling in a revision of these capacity units."""
    return content_root(replace(day_tiling, capacity_units=units))


def content_root(day_tiling: DayTiling) -> str:
    """Return SHA-256 in hex over the content, as ordered JSON: equal for equal contents only."""
    # Slots as integers of the revision: a fraction has no unique form in JSON.
    units = find_capacity_units(day_tiling)
    overlaps = [
        {**msgspec.structs.asdict(row), "units": to_revision_units(row.units, units)}
        for row in sorted(day_tiling.overlaps)
    ]
    content: tuple[Any, ...] = (
        day_tiling.sku,
        [_entry(entry, units) for entry in sort_entries(day_tiling.entries)],
        [
            {"measure": row.measure, "share": _slots(msgspec.structs.asdict(row.share), units)}
            for row in sorted(day_tiling.shares)
        ],
        [_claim(claim) for claim in sorted(day_tiling.claims)],
        units,
        overlaps,
    )
    # Only if present: the roots of days without a mark do not depend on this member.
    if day_tiling.clock_suspect:
        content += ({"clock_suspect": sorted(day_tiling.clock_suspect)},)
    return sha256(msgspec.json.encode(content, enc_hook=str)).hexdigest()


def _slots(fields: dict[str, Any], units: int) -> dict[str, Any]:
    low, high = (to_revision_units(fields[name], units) for name in ("slot_lo", "slot_hi"))
    return {**fields, "slot_lo": low, "slot_hi": high}


def _entry(entry: TilingEntry, units: int) -> dict[str, Any]:
    """Return the fields of an entry; optional ones only if they are set."""
    fields = _slots(_encoded_fields(entry), units)
    # All written days have this name in their roots, which must stay valid.
    if entry.state is SlotState.UNCLAIMED:
        fields["state"] = _ROOT_NAME_OF_UNCLAIMED
    fields["counted"] = entry.counted and not entry.assumed  # an assumed entry is counted
    return {
        name: value for name, value in fields.items() if name not in _OPTIONAL_OF_ENTRY or value
    }


def _claim(claim: HeldClaim) -> dict[str, Any]:
    fields = msgspec.structs.asdict(claim)
    # Absent if empty: the roots of days without it do not depend on this field.
    return fields if fields["instance"] else {n: v for n, v in fields.items() if n != "instance"}


def check_tiling(day_tiling: DayTiling) -> None:
    """Check that every slot has one entry at each time at which the GPU was in a node.

    Raises TilingError.
    """
    _check_entries(day_tiling)
    _check_rest(day_tiling)
    compute, memory = (_check_coverage(day_tiling, tiling) for tiling in Tiling)
    if compute != memory:
        message = f"invalid entries of {day_tiling.gpu}: compute covers {compute}: expected {memory}, as memory"
        raise TilingError(message)


def _check_rest(day_tiling: DayTiling) -> None:
    """Check counted amounts and claims for values that a database could not store."""
    texts = [day_tiling.gpu, day_tiling.sku]
    for measured in day_tiling.shares:
        share = measured.share
        # An increment without a holder starts at the previous reading, possibly on an earlier day.
        if share.t0_ns > share.t1_ns or not day_tiling.start_ns < share.t1_ns <= day_tiling.end_ns:
            message = (
                f"invalid {measured.measure} of {day_tiling.gpu}: ({share.t0_ns}, {share.t1_ns}]: expected"
                f" times within day {day_tiling.day}"
            )
            raise TilingError(message)
        if not 0 < share.amount <= _MAX_INTEGER:
            message = f"invalid {measured.measure} of {day_tiling.gpu}: {share.amount}: expected 1 to {_MAX_INTEGER}"
            raise TilingError(message)
        texts += (share.tenant, share.workload, share.claim)
    for claim in day_tiling.claims:
        texts += (claim.id, claim.mig_profile)
    if len({claim.id for claim in day_tiling.claims}) != len(day_tiling.claims):
        message = (
            f"duplicate claims on {day_tiling.gpu}: expected one start and one profile per claim"
        )
        raise TilingError(message)
    # PostgreSQL stores no NUL in texts, SQLite does: both ledgers must accept the same days.
    if any("\0" in text for text in texts):
        message = f"invalid names of {day_tiling.gpu}: {texts}: expected no NUL characters"
        raise TilingError(message)


def _check_entries(day_tiling: DayTiling) -> None:
    start, end = day_tiling.start_ns, day_tiling.end_ns
    for entry in day_tiling.entries:
        if entry.gpu != day_tiling.gpu:
            message = (
                f"invalid entry: GPU {entry.gpu}: expected the GPU of its tiling, {day_tiling.gpu}"
            )
            raise TilingError(message)
        if not start <= entry.t0_ns < entry.t1_ns <= end:
            message = f"invalid entry of {day_tiling.gpu}: [{entry.t0_ns}, {entry.t1_ns}): expected times within day {day_tiling.day}"
            raise TilingError(message)
        texts = (entry.gpu, entry.node, entry.tenant, entry.workload, entry.claim, entry.layout)
        if any("\0" in text for text in texts):
            message = f"invalid names of {day_tiling.gpu}: {texts}: expected no NUL characters"
            raise TilingError(message)


def _check_coverage(day_tiling: DayTiling, tiling: Tiling) -> list[tuple[int, int]]:
    """Return the time that a tiling covers, with all slots of the GPU at each point in time."""
    entries = [entry for entry in sort_entries(day_tiling.entries) if entry.tiling is tiling]
    edges = sorted({edge for entry in entries for edge in (entry.t0_ns, entry.t1_ns)})
    covered: list[tuple[int, int]] = []
    alive: list[TilingEntry] = []
    position = 0
    for now, until in pairwise(edges):
        # Ends before starts: intervals are half-open.
        alive = [entry for entry in alive if entry.t1_ns > now]
        while position < len(entries) and entries[position].t0_ns <= now:
            alive.append(entries[position])
            position += 1
        if not alive:
            continue
        slots = sorted((entry.slot_lo, entry.slot_hi) for entry in alive)
        whole = [(0, 0), *slots, (GPU_CAPACITY, GPU_CAPACITY)]
        adjacent = all(before[1] == after[0] for before, after in pairwise(whole))
        if not adjacent or any(low >= high for low, high in slots):
            message = f"invalid {tiling} slots of {day_tiling.gpu} at {now}: {slots}: expected each slot once"
            raise TilingError(message)
        if covered and covered[-1][1] == now:
            now = covered.pop()[0]  # noqa: PLW2901 - extends the previous interval
        covered.append((now, until))
    return covered
