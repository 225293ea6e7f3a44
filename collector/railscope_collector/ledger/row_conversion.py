"""Conversion between metering results and rows of the ledger's tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace
from sqlalchemy import Row

from railscope_collector.ledger import day_tiling, schema
from railscope_collector.metering import (
    amount_shares,
    counter_increments,
    evidence,
    overlaps,
    tiling,
)
from railscope_collector.metering.units import Tiling, Units

ASSUMED = "assumed"
COUNTED = "counted"
_NODE_EVIDENCE = {kind: kind.name.lower() for kind in evidence.NodeEvidence}

RowValues = dict[str, Any]


class GpuDay(NamedTuple):
    """A GPU on a UTC day."""

    gpu: str
    day: int


def revision_row(metered_day: day_tiling.DayTiling, root: str, before: int | None) -> RowValues:
    """Return the row of the revision that supersedes another."""
    doubts = sorted(set(metered_day.clock_suspect))
    return schema.to_row(
        schema.revisions,
        metered_day,
        revision=(before or 0) + 1,
        supersedes=before,
        content_root=root,
        clock_suspect=msgspec.json.encode(doubts).decode() if doubts else None,
    )


def parse_clock_suspect(text: str | None) -> tuple[evidence.ClockDoubt, ...]:
    """Parse the mark of a revision. Raises ValueError."""
    if text is None:
        return ()
    try:
        return msgspec.json.decode(text, type=tuple[evidence.ClockDoubt, ...])
    except msgspec.MsgspecError as error:
        message = f"invalid clock_suspect {text[:40]!r}: {error}"
        raise ValueError(message) from error


def _key(found: day_tiling.DayTiling, revision: int) -> RowValues:
    return {"gpu_uuid": found.gpu, "day": found.day, "revision": revision}


def _slots(row: tiling.TilingEntry | amount_shares.AmountShare, units: int) -> RowValues:
    """Return the slots of an entry or share in capacity units."""
    low, high = (day_tiling.to_revision_units(edge, units) for edge in (row.slot_lo, row.slot_hi))
    return {"slot_lo": low, "slot_hi": high}


def _parse_slots(row: Row[Any], units: int) -> dict[str, Units]:
    """Return the slots of a row; inverse of `_slots`."""
    low, high = (day_tiling.from_revision_units(edge, units) for edge in (row.slot_lo, row.slot_hi))
    return {"slot_lo": low, "slot_hi": high}


def entry_rows(metered_day: day_tiling.DayTiling, revision: int) -> Iterator[RowValues]:
    """Yield the rows of the entries; `parse_entry` is the inverse."""
    key = _key(metered_day, revision)
    for position, entry in enumerate(day_tiling.sort_entries(metered_day.entries)):
        slots = _slots(entry, metered_day.capacity_units)
        yield schema.to_row(
            schema.entries,
            entry,
            **key,
            **slots,
            entry=position,
            witness=None if entry.node_evidence is None else _NODE_EVIDENCE[entry.node_evidence],
            qty_capns=(slots["slot_hi"] - slots["slot_lo"]) * (entry.t1_ns - entry.t0_ns),
            placement=ASSUMED if entry.assumed else COUNTED if entry.counted else "",
        )


def share_rows(metered_day: day_tiling.DayTiling, revision: int) -> Iterator[RowValues]:
    """Yield the rows of the counted amounts; `parse_share` is the inverse."""
    key = _key(metered_day, revision)
    for position, (measure, share) in enumerate(
        (s.measure, s.share) for s in sorted(metered_day.shares)
    ):
        slots = _slots(share, metered_day.capacity_units)
        yield schema.to_row(
            schema.shares, share, **key, **slots, share=position, measure=measure.value
        )


def claim_rows(metered_day: day_tiling.DayTiling, revision: int) -> Iterator[RowValues]:
    """Yield the rows of the claims; `parse_claim` is the inverse."""
    key = _key(metered_day, revision)
    for claim in metered_day.claims:
        compute, memory = claim.requested
        yield schema.to_row(
            schema.claims,
            claim,
            **key,
            claim_id=claim.id,
            # NULL and not an empty text: empty columns are not hashed, so heads of earlier rows stay valid.
            instance=claim.instance or None,
            requested_compute=compute,
            requested_memory=memory,
        )


def overlap_rows(metered_day: day_tiling.DayTiling, revision: int) -> Iterator[RowValues]:
    """Yield the rows of capacity that claims requested and did not hold; `parse_overlap` is the inverse."""
    key = _key(metered_day, revision)
    for position, overlap in enumerate(sorted(metered_day.overlaps)):
        units = day_tiling.to_revision_units(overlap.units, metered_day.capacity_units)
        yield schema.to_row(
            schema.overlaps,
            overlap,
            **key,
            overlap=position,
            t0_ns=overlap.start_ns,
            t1_ns=overlap.end_ns,
            units=units,
            ratio=str(overlap.ratio),
        )


def parse_overlap(row: Row[Any], units: int) -> overlaps.Overlap:
    """Return the overlap of a row."""
    return schema.from_row(
        overlaps.Overlap,
        row,
        start_ns=row.t0_ns,
        end_ns=row.t1_ns,
        tiling=Tiling(row.tiling),
        kind=overlaps.OverlapKind(row.kind),
        units=day_tiling.from_revision_units(row.units, units),
        ratio=Fraction(row.ratio),
    )


def parse_entry(row: Row[Any], units: int) -> tiling.TilingEntry:
    """Return the entry of a row of a revision with these capacity units. Raises ValueError, TypeError."""
    # The column returns damaged text unchanged, so that a comparison with heads can report it.
    if not isinstance(row.qty_capns, int):
        message = f"invalid qty_capns {str(row.qty_capns)[:40]!r} of entry {row.entry}: expected an integer"
        raise TypeError(message)
    return schema.from_row(
        tiling.TilingEntry,
        row,
        **_parse_slots(row, units),
        tiling=Tiling(row.tiling),
        state=tiling.SlotState(row.state),
        node_evidence=None if row.witness is None else evidence.NodeEvidence[row.witness.upper()],
        assumed=row.placement == ASSUMED,
        counted=bool(row.placement),
    )


def parse_share(row: Row[Any], units: int) -> day_tiling.MeasuredShare:
    """Return the share of a row."""
    share = schema.from_row(
        amount_shares.AmountShare,
        row,
        **_parse_slots(row, units),
        use=amount_shares.AmountAttribution(row.use),
    )
    return day_tiling.MeasuredShare(counter_increments.CountedQuantity(row.measure), share)


def parse_claim(row: Row[Any]) -> day_tiling.HeldClaim:
    """Return the claim of a row."""
    requested = (row.requested_compute, row.requested_memory)
    instance = row.instance or ""
    return schema.from_row(
        day_tiling.HeldClaim, row, id=row.claim_id, requested=requested, instance=instance
    )


def parse_tiling(head: Row[Any], parts: Mapping[str, Iterable[Row[Any]]]) -> day_tiling.DayTiling:
    """Return the written tiling, from the row of its revision and the ordered rows of its parts."""
    units = head.capacity_units
    parsed = schema.from_row(
        day_tiling.DayTiling,
        head,
        capacity_units=0,
        entries=tuple(parse_entry(row, units) for row in parts["entries"]),
        shares=tuple(parse_share(row, units) for row in parts["shares"]),
        claims=tuple(map(parse_claim, parts["claims"])),
        overlaps=tuple(parse_overlap(row, units) for row in parts["overlaps"]),
        clock_suspect=parse_clock_suspect(head.clock_suspect),
    )
    return (
        parsed
        # Kept only if it does not follow from the slots, so that an unchanged tiling equals the computed one.
        if day_tiling.find_capacity_units(parsed) == units
        else replace(parsed, capacity_units=units)
    )
