"""Conversion between metering results and rows of the ledger's tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace
from sqlalchemy import Row

from collector.ledger import day_tiling
from collector.metering.evidence import ClockDoubt, NodeWitness
from collector.metering.measures import AmountAttribution, AmountShare, CountedQuantity
from collector.metering.overlaps import Overlap, OverlapKind
from collector.metering.tiling import SlotState, TilingEntry
from collector.metering.units import Tiling

ASSUMED = "assumed"
COUNTED = "counted"
_WITNESSES = {witness: witness.name.lower() for witness in NodeWitness}

RowValues = dict[str, object]


class GpuDay(NamedTuple):
    """A GPU on a UTC day."""

    gpu: str
    day: int


def revision_row(found: day_tiling.DayTiling, root: str, before: int | None) -> RowValues:
    """Return the row of the revision that supersedes another."""
    return {
        "gpu_uuid": found.gpu,
        "day": found.day,
        "revision": (before or 0) + 1,
        "supersedes": before,
        "sku": found.sku,
        "content_root": root,
        "evidence_root": found.evidence_root,
        "engine_version": found.engine_version,
        "computed_ns": found.computed_ns,
        "capacity_units": found.capacity_units,
        "clock_suspect": _suspect_text(found.clock_suspect),
    }


def _suspect_text(doubts: Iterable[ClockDoubt]) -> str | None:
    """Return the mark of a revision as JSON; None if it has none."""
    found = sorted(set(doubts))
    return msgspec.json.encode(found).decode() if found else None


def clock_suspect_of(text: str | None) -> tuple[ClockDoubt, ...]:
    """Parse the mark of a revision. Raises ValueError."""
    if text is None:
        return ()
    try:
        return msgspec.json.decode(text, type=tuple[ClockDoubt, ...])
    except msgspec.MsgspecError as error:
        message = f"invalid clock_suspect {text[:40]!r}: {error}"
        raise ValueError(message) from error


def entry_rows(found: day_tiling.DayTiling, revision: int) -> Iterator[RowValues]:
    """Yield the rows of the entries; `entry_of` is the inverse."""
    units = found.capacity_units
    for position, entry in enumerate(day_tiling.sort_entries(found.entries)):
        yield {
            "gpu_uuid": found.gpu,
            "day": found.day,
            "revision": revision,
            "entry": position,
            "tiling": entry.tiling.value,
            "slot_lo": day_tiling.to_revision_units(entry.slot_lo, units),
            "slot_hi": day_tiling.to_revision_units(entry.slot_hi, units),
            "t0_ns": entry.t0_ns,
            "t1_ns": entry.t1_ns,
            "node": entry.node,
            "state": entry.state.value,
            "witness": None if entry.witness is None else _WITNESSES[entry.witness],
            "silence_ns": entry.silence_ns,
            "tenant_id": entry.tenant,
            "workload_id": entry.workload,
            "claim_id": entry.claim,
            "layout_id": entry.layout,
            "qty_capns": (
                day_tiling.to_revision_units(entry.slot_hi, units)
                - day_tiling.to_revision_units(entry.slot_lo, units)
            )
            * (entry.t1_ns - entry.t0_ns),
            "reason": entry.reason,
            "placement": ASSUMED if entry.assumed else COUNTED if entry.counted else "",
        }


def share_rows(found: day_tiling.DayTiling, revision: int) -> Iterator[RowValues]:
    """Yield the rows of the counted amounts; `share_of` is the inverse."""
    units = found.capacity_units
    for position, (measure, share) in enumerate((s.measure, s.share) for s in sorted(found.shares)):
        yield {
            "gpu_uuid": found.gpu,
            "day": found.day,
            "revision": revision,
            "share": position,
            "measure": measure.value,
            "use": share.use.value,
            "slot_lo": day_tiling.to_revision_units(share.slot_lo, units),
            "slot_hi": day_tiling.to_revision_units(share.slot_hi, units),
            "t0_ns": share.t0_ns,
            "t1_ns": share.t1_ns,
            "amount": share.amount,
            "tenant_id": share.tenant,
            "workload_id": share.workload,
            "claim_id": share.claim,
        }


def claim_rows(found: day_tiling.DayTiling, revision: int) -> Iterator[RowValues]:
    """Yield the rows of the claims; `claim_of` is the inverse."""
    for claim in found.claims:
        yield {
            "gpu_uuid": found.gpu,
            "day": found.day,
            "revision": revision,
            "claim_id": claim.id,
            "start_ns": claim.start_ns,
            "mig_profile": claim.mig_profile,
            "end_ns": claim.end_ns,
            "rank": claim.rank,
            "requested_compute": claim.requested[0],
            "requested_memory": claim.requested[1],
            "instance": claim.instance or None,
        }


def overlap_rows(found: day_tiling.DayTiling, revision: int) -> Iterator[RowValues]:
    """Yield the rows of capacity that claims requested and did not hold; `overlap_of` is the inverse."""
    for position, one in enumerate(sorted(found.overlaps)):
        yield {
            "gpu_uuid": found.gpu,
            "day": found.day,
            "revision": revision,
            "overlap": position,
            "tiling": one.tiling.value,
            "t0_ns": one.start_ns,
            "t1_ns": one.end_ns,
            "claim_id": one.claim,
            "tenant_id": one.tenant,
            "other_claim_id": one.other,
            "other_tenant_id": one.other_tenant,
            "kind": one.kind.value,
            "units": day_tiling.to_revision_units(one.units, found.capacity_units),
            "ratio": str(one.ratio),
        }


def overlap_of(row: Row[Any], units: int) -> Overlap:
    """Return the overlap of a row."""
    return Overlap(
        row.t0_ns, row.t1_ns, Tiling(row.tiling), row.claim_id, row.tenant_id, row.other_claim_id,
        row.other_tenant_id, OverlapKind(row.kind), day_tiling.from_revision_units(row.units, units),
        Fraction(row.ratio),
    )  # fmt: skip


def entry_of(row: Row[Any], units: int) -> TilingEntry:
    """Return the entry of a row of a revision with these capacity units. Raises ValueError, TypeError."""
    if not isinstance(row.qty_capns, int):
        message = f"invalid qty_capns {str(row.qty_capns)[:40]!r} of entry {row.entry}: expected an integer"
        raise TypeError(message)
    return TilingEntry(
        gpu=row.gpu_uuid,
        tiling=Tiling(row.tiling),
        t0_ns=row.t0_ns,
        slot_lo=day_tiling.from_revision_units(row.slot_lo, units),
        slot_hi=day_tiling.from_revision_units(row.slot_hi, units),
        t1_ns=row.t1_ns,
        node=row.node,
        state=SlotState(row.state),
        witness=None if row.witness is None else NodeWitness[row.witness.upper()],
        silence_ns=row.silence_ns,
        tenant=row.tenant_id,
        workload=row.workload_id,
        claim=row.claim_id,
        layout=row.layout_id,
        reason=row.reason,
        assumed=row.placement == ASSUMED,
        counted=bool(row.placement),
    )


def share_of(row: Row[Any], units: int) -> day_tiling.MeasuredShare:
    """Return the share of a row."""
    owner = (row.tenant_id, row.workload_id, row.claim_id)
    slots = (
        day_tiling.from_revision_units(row.slot_lo, units),
        day_tiling.from_revision_units(row.slot_hi, units),
    )
    span = (row.t0_ns, row.t1_ns, *slots)
    return day_tiling.MeasuredShare(
        CountedQuantity(row.measure),
        AmountShare(*span, AmountAttribution(row.use), row.amount, *owner),
    )


def claim_of(row: Row[Any]) -> day_tiling.HeldClaim:
    """Return the claim of a row."""
    requested = (row.requested_compute, row.requested_memory)
    return day_tiling.HeldClaim(
        row.claim_id,
        row.start_ns,
        row.mig_profile,
        row.end_ns,
        row.rank,
        requested,
        row.instance or "",
    )


def tiling_of(head: Row[Any], parts: Mapping[str, Iterable[Row[Any]]]) -> day_tiling.DayTiling:
    """Return the written tiling, from the row of its revision and the ordered rows of its parts."""
    units = head.capacity_units
    found = day_tiling.DayTiling(
        gpu=head.gpu_uuid,
        day=head.day,
        entries=tuple(entry_of(row, units) for row in parts["entries"]),
        evidence_root=head.evidence_root,
        engine_version=head.engine_version,
        computed_ns=head.computed_ns,
        sku=head.sku,
        shares=tuple(share_of(row, units) for row in parts["shares"]),
        claims=tuple(map(claim_of, parts["claims"])),
        overlaps=tuple(overlap_of(row, units) for row in parts["overlaps"]),
        clock_suspect=clock_suspect_of(head.clock_suspect),
    )
    return found if day_tiling.units_of(found) == units else replace(found, capacity_units=units)
