"""One GPU over time: what is known about it, and the day that follows from that.

At each time the sizes of all parts add up to the GPU. Which claim holds how much follows from the claims in force
(`railscope_collector.metering.holders`), in which state from outages, samples, reservations and MIG layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, TypeAlias

from railscope.claim_terms import GPU_CAPACITY, ClaimAuthority
from railscope.timestamps import DAY_NS, FOREVER_NS, HOUR_NS
from railscope_collector.metering import counted_amounts, holders
from railscope_collector.metering.counter_increments import CountedQuantity, CounterIncrements
from railscope_collector.metering.evidence import (
    GpuOutage,
    MeteredClaim,
    NodeEvidence,
    SlotReservation,
)
from railscope_collector.metering.metered_day import (
    CountedAmount,
    DayClaim,
    DayPart,
    DayPiece,
    MeteredDay,
)
from railscope_collector.metering.slot_state import SlotState
from railscope_collector.metering.timeline import (
    TimePiece,
    align_timelines,
    append_piece,
    resolve_overlaps,
)
from railscope_collector.metering.units import WHOLE, Units, exact

MAX_BILLED_GAP_NS = HOUR_NS
"""A held gap up to this length is billed if there is a sign of the node."""

Stays: TypeAlias = Sequence[TimePiece[str]]
"""The node of a GPU over time."""
ClaimPieces: TypeAlias = Sequence[TimePiece[MeteredClaim]]
"""The time in which each claim is in force, in ascending precedence."""


@dataclass(frozen=True)
class GpuTimeline:
    """All that is known about a GPU, each over all time; what several days need of it is computed once."""

    gpu: str
    service: Stays
    """Time in which it is in service, and its node."""
    claims: ClaimPieces
    gaps: Sequence[TimePiece[int]]
    """For all time the length of the gap between samples that contains it; 0 where the GPU was observed."""
    signs: Sequence[TimePiece[NodeEvidence]] = ()
    """Signs of the node other than samples of the GPU."""
    outages: Sequence[GpuOutage] = ()
    reservations: Sequence[SlotReservation] = ()
    stranded: Sequence[TimePiece[Units]] = ()
    """Size that no further MIG instance can use."""
    skus: Sequence[TimePiece[str]] = ()
    counted: Mapping[CountedQuantity, CounterIncrements] | None = None
    """None if nothing counts, as for job lists."""

    def meter(self, day: int, source: str = "") -> MeteredDay:
        """Return a UTC day, counted from the epoch."""
        start_ns, end_ns = day * DAY_NS, (day + 1) * DAY_NS
        known = (piece.value for piece in reversed(self.skus) if piece.start_ns < end_ns)
        return MeteredDay(
            gpu=self.gpu,
            day=day,
            sku=next(known, ""),
            pieces=self.pieces(start_ns, end_ns),
            amounts=tuple(self.amounts(start_ns, end_ns)),
            claims=tuple(sorted(self._describe_claims(start_ns, end_ns))),
            source=source,
        )

    def pieces(self, start_ns: int, end_ns: int) -> tuple[DayPiece, ...]:
        """Return the parts of the GPU over some time; time without service is omitted."""
        reservations = resolve_overlaps(
            TimePiece(each.begins_ns, each.end_ns, each) for each in self.reservations
        )
        timelines: list[Sequence[TimePiece[Any]]] = [
            self.service,
            self._held,
            self._down,
            self.gaps,
            reservations,
            resolve_overlaps(self.signs),
            self.stranded,
        ]
        found: list[TimePiece[tuple[str, tuple[DayPart, ...]]]] = []
        for now, until, (node, *conditions) in align_timelines(timelines, start_ns, end_ns):
            if node:
                parts = tuple(_build_parts(*conditions))
                append_piece(found, TimePiece(now, until, (node, parts)))
        return tuple(DayPiece(piece.start_ns, piece.end_ns, *piece.value) for piece in found)

    def amounts(self, start_ns: int, end_ns: int) -> list[CountedAmount]:
        """Return what was counted up to readings in (start, end], by claim."""
        if self.counted is None:
            return []
        timelines = (self._held, self._down)
        owners = (
            # During an outage no claim can have used the GPU.
            TimePiece(now, until, {} if outage else sizes or {})
            for now, until, (sizes, outage) in align_timelines(timelines, -FOREVER_NS, FOREVER_NS)
        )
        return list(counted_amounts.attribute(self.counted, owners, (start_ns, end_ns)))

    @cached_property
    def _held(self) -> list[TimePiece[counted_amounts.Sizes]]:
        return divide_claims(self.claims)

    @cached_property
    def _down(self) -> list[TimePiece[GpuOutage]]:
        return resolve_overlaps(
            TimePiece(each.start_ns, each.end_ns, each) for each in self.outages
        )

    def _describe_claims(self, start_ns: int, end_ns: int) -> Iterator[DayClaim]:
        """Yield the claims in force on a day, and those that end on it after they lost the GPU."""
        within = [
            piece
            for piece in self.claims
            if piece.start_ns < end_ns
            and (start_ns < piece.end_ns or start_ns < piece.value.end_ns <= end_ns)
        ]
        within.sort(key=lambda piece: (piece.value.id, piece.value.end_ns, piece.start_ns))
        for name, pieces in groupby(within, key=lambda piece: piece.value.id):
            requested: Units = 0
            for begins_ns, ceases_ns, claim in pieces:
                size = claim.compute.high - claim.compute.low
                length_ns = max(0, min(ceases_ns, end_ns) - max(begins_ns, start_ns))
                share = 1 if claim.exclusive else claim.share or 0
                requested = exact(requested + size * share * length_ns)
            # A shared claim on the whole GPU with a profile: its instance was not found.
            is_found = claim.compute != WHOLE or claim.exclusive or claim.share is not None
            yield DayClaim(
                name,
                claim.start_ns,
                # A later end may still change.
                claim.end_ns if claim.end_ns <= end_ns and not claim.is_open else None,
                claim.profile,
                exact(claim.compute.high - claim.compute.low) if claim.profile and is_found else 0,
                requested,
                claim.counted,
            )


def place_claims(claims: Iterable[MeteredClaim], service: Stays) -> list[TimePiece[MeteredClaim]]:
    """Return the time in which each claim is in force: while the GPU is in its node, or in any if it names none."""
    pieces = [
        TimePiece(low, high, claim)
        for claim in claims
        for stay in service
        if claim.node in {"", stay.value}
        and (low := max(claim.begins_ns, stay.start_ns)) < (high := min(claim.end_ns, stay.end_ns))
    ]
    return sorted(
        pieces,
        key=lambda piece: (
            holders.claim_order(piece.value),
            piece.value.end_ns,
            repr(piece.value),
            piece.start_ns,
        ),
    )


def divide_claims(in_force: ClaimPieces) -> list[TimePiece[counted_amounts.Sizes]]:
    """Return the size that each claim holds over time."""
    pieces: list[TimePiece[counted_amounts.Sizes]] = []
    for now, until, slots in holders.allocations(in_force):
        sizes: counted_amounts.Sizes = {}
        for (low, high), claim in slots:
            sizes[claim] = exact(sizes.get(claim, 0) + high - low)
        append_piece(pieces, TimePiece(now, until, sizes))
    return pieces


def find_stranded(layouts: Iterable[TimePiece[Any]]) -> list[TimePiece[Units]]:
    """Return the size that no further MIG instance can use, over time: what is left if all memory is used.

    A layout is a list of instances, each with [low, high) of compute and of memory.
    """
    found: list[TimePiece[Units]] = []
    for start_ns, end_ns, instances in layouts:
        compute, memory = (
            sum(high - low for low, high in (instance[at] for instance in instances))
            for at in (0, 1)
        )
        stranded = GPU_CAPACITY - compute if instances and memory == GPU_CAPACITY else 0
        found.append(TimePiece(start_ns, end_ns, stranded))
    return found


def _build_parts(  # noqa: PLR0913, PLR0917 - all conditions of a time
    held: counted_amounts.Sizes | None,
    outage: GpuOutage | None,
    gap_ns: int,
    reservation: SlotReservation | None,
    sign: NodeEvidence | None,
    stranded: Units | None,
) -> Iterator[DayPart]:
    """Yield the parts of a GPU at a time."""
    down = None
    if outage:
        down = SlotState.MAINTENANCE if outage.announced else SlotState.DOWN
    free: Units = GPU_CAPACITY
    sizes: dict[DayPart, Units] = {}
    for claim, size in (held or {}).items():
        free = exact(free - size)
        part = _build_held_part(claim, down, gap_ns, sign)
        sizes[part] = exact(sizes.get(part, 0) + size)
    yield from sorted(
        DayPart(
            size,
            part.state,
            part.tenant,
            part.workload,
            part.claim,
            part.gap_ns,
            part.node_evidence,
        )
        for part, size in sizes.items()
    )
    useless = 0 if down else min(free, stranded or 0)
    if useless:
        yield DayPart(useless, SlotState.STRANDED)
    rest = exact(free - useless)
    if rest and down:
        yield DayPart(rest, down)
    elif rest and reservation:
        yield DayPart(rest, SlotState.RESERVED, reservation.tenant, "", reservation.id)
    elif rest:
        yield DayPart(rest, SlotState.UNKNOWN if gap_ns else SlotState.IDLE)


def _build_held_part(
    claim: MeteredClaim, down: SlotState | None, gap_ns: int, sign: NodeEvidence | None
) -> DayPart:
    """Return the part of a claim, without its size."""
    names = (claim.tenant, claim.workload, claim.id)
    if down or claim.system:
        return DayPart(0, down or SlotState.SYSTEM, *names)
    if claim.authority is ClaimAuthority.PROCESS:
        return DayPart(0, SlotState.UNCLAIMED, *names)
    if not gap_ns:
        return DayPart(0, SlotState.OBSERVED, *names)
    # Of a longer gap neither length nor sign is stated: they would change with facts of days after this one.
    if gap_ns > MAX_BILLED_GAP_NS:
        return DayPart(0, SlotState.INFERRED, *names, FOREVER_NS)
    return DayPart(0, SlotState.INFERRED, *names, gap_ns, sign or NodeEvidence.NONE)
