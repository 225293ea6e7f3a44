"""Rows of the ledger's tables from what was found, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Row

from collector.ledger.tiling import DayTiling, HeldClaim, MeasuredShare, in_order
from collector.metering.evidence import Witness
from collector.metering.measures import Measure, Share, Use
from collector.metering.tiling import Entry, State
from collector.metering.units import Tiling

_WITNESSES = {witness: witness.name.lower() for witness in Witness}

Values = dict[str, object]


class GpuDay(NamedTuple):
    """A GPU on a UTC day."""

    gpu: str
    day: int


def revision_row(found: DayTiling, root: str, before: int | None) -> Values:
    """The row of the revision that follows another."""
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
    }


def entry_rows(found: DayTiling, revision: int) -> Iterator[Values]:
    """The rows of the entries; `entry_of` is the way back."""
    for position, entry in enumerate(in_order(found.entries)):
        yield {
            "gpu_uuid": found.gpu,
            "day": found.day,
            "revision": revision,
            "entry": position,
            "tiling": entry.tiling.value,
            "slot_lo": entry.slot_lo,
            "slot_hi": entry.slot_hi,
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
            "qty_capns": entry.quantity,
        }


def share_rows(found: DayTiling, revision: int) -> Iterator[Values]:
    """The rows of what counters counted; `share_of` is the way back."""
    for position, (measure, share) in enumerate((s.measure, s.share) for s in sorted(found.shares)):
        yield {
            "gpu_uuid": found.gpu,
            "day": found.day,
            "revision": revision,
            "share": position,
            "measure": measure.value,
            "use": share.use.value,
            "slot_lo": share.slot_lo,
            "slot_hi": share.slot_hi,
            "t0_ns": share.t0_ns,
            "t1_ns": share.t1_ns,
            "amount": share.amount,
            "tenant_id": share.tenant,
            "workload_id": share.workload,
            "claim_id": share.claim,
        }


def claim_rows(found: DayTiling, revision: int) -> Iterator[Values]:
    """The rows of what is known of claims; `claim_of` is the way back."""
    for claim in found.claims:
        yield {
            "gpu_uuid": found.gpu,
            "day": found.day,
            "revision": revision,
            "claim_id": claim.id,
            "start_ns": claim.start_ns,
            "mig_profile": claim.mig_profile,
        }


def entry_of(row: Row[Any]) -> Entry:
    """The entry of a row."""
    return Entry(
        gpu=row.gpu_uuid,
        tiling=Tiling(row.tiling),
        t0_ns=row.t0_ns,
        slot_lo=row.slot_lo,
        slot_hi=row.slot_hi,
        t1_ns=row.t1_ns,
        node=row.node,
        state=State(row.state),
        witness=None if row.witness is None else Witness[row.witness.upper()],
        silence_ns=row.silence_ns,
        tenant=row.tenant_id,
        workload=row.workload_id,
        claim=row.claim_id,
        layout=row.layout_id,
    )


def share_of(row: Row[Any]) -> MeasuredShare:
    """The share of a row."""
    who = (row.tenant_id, row.workload_id, row.claim_id)
    span = (row.t0_ns, row.t1_ns, row.slot_lo, row.slot_hi)
    return MeasuredShare(Measure(row.measure), Share(*span, Use(row.use), row.amount, *who))


def claim_of(row: Row[Any]) -> HeldClaim:
    """The claim of a row."""
    return HeldClaim(row.claim_id, row.start_ns, row.mig_profile)


def tiling_of(head: Row[Any], parts: Mapping[str, Iterable[Row[Any]]]) -> DayTiling:
    """What was written, from the row of its revision and those of its parts in order."""
    return DayTiling(
        gpu=head.gpu_uuid,
        day=head.day,
        entries=tuple(map(entry_of, parts["entries"])),
        evidence_root=head.evidence_root,
        engine_version=head.engine_version,
        computed_ns=head.computed_ns,
        sku=head.sku,
        shares=tuple(map(share_of, parts["shares"])),
        claims=tuple(map(claim_of, parts["claims"])),
    )
