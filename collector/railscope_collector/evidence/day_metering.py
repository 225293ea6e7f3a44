"""A day of a GPU as a pure function of facts and files: who held how much of it when, in which state, and what it counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np

from railscope.catalog import gpu as gpu_metrics
from railscope.claim_terms import GPU_CAPACITY, MAX_NODE_AUTHORITY, ClaimAuthority, parse_share
from railscope.timestamps import DAY_NS, FOREVER_NS, HOUR_NS, SECOND_NS
from railscope_collector.evidence import day_facts
from railscope_collector.evidence.claim_events import ReportedClaim
from railscope_collector.evidence.gpu_evidence import AdministratorInputs
from railscope_collector.evidence.node_intervals import (
    GRID_NS,
    MAX_AGE_NS,
    EvidenceInterval,
    SampleSpan,
    add_spans,
)
from railscope_collector.fleet.shape_columns import AGENT_MEASURES, CounterSubject
from railscope_collector.metering import holders, metered_day
from railscope_collector.metering.counter_increments import (
    CountedQuantity,
    CounterIncrements,
    CounterReadings,
    compute_increments,
)
from railscope_collector.metering.evidence import (
    GpuOutage,
    MeteredClaim,
    NodeEvidence,
    SlotReservation,
)
from railscope_collector.metering.metered_day import CountedAmount, DayClaim, DayPart, MeteredDay
from railscope_collector.metering.observation import BootSampleSpan, observation_gaps
from railscope_collector.metering.tiling import SlotState
from railscope_collector.metering.timeline import (
    TimePiece,
    align_timelines,
    append_piece,
    resolve_overlaps,
    subtract_spans,
)
from railscope_collector.metering.units import WHOLE, CapacityRange, Tiling, Units, exact

MAX_BILLED_GAP_NS = HOUR_NS
"""A held gap up to this length is billed if there is a sign of the node."""

_MAX_PER_SECOND = {
    CountedQuantity.ENERGY: gpu_metrics.GPU_POWER.valid_steps[-1],
    CountedQuantity.USED: SECOND_NS,
    CountedQuantity.MEMORY: int(gpu_metrics.GPU_MEMORY_USED.valid_steps[-1] / gpu_metrics.GPU_MEMORY_USED_TIME.scale),
}  # fmt: skip
"""Highest increment of a GPU's counter, by the bound of the gauge that it sums."""
_SLACK_SECONDS = 60
"""Maximum age of a value when it is read: two of the longest samples that an agent adds up."""

Stays: TypeAlias = Sequence[TimePiece[str]]
"""The node of a GPU over time."""
ClaimPieces: TypeAlias = Sequence[TimePiece[MeteredClaim]]
"""The time in which each claim is in force, in ascending precedence."""
_Sizes: TypeAlias = dict[MeteredClaim, Units]


def meter_day(
    gpu: str, day: int, found: day_facts.DayFacts, files: AdministratorInputs
) -> MeteredDay:
    """Meter a day of a GPU."""
    return _DayMeter(gpu, day, found, files).meter()


@dataclass(slots=True)
class _DayMeter:
    gpu: str
    day: int
    found: day_facts.DayFacts
    files: AdministratorInputs

    @property
    def start_ns(self) -> int:
        return self.day * DAY_NS

    @property
    def end_ns(self) -> int:
        return (self.day + 1) * DAY_NS

    def meter(self) -> MeteredDay:
        stays = day_facts.spans_of(self.found.nodes.get(self.gpu, []))
        nodes = sorted({stay.value for stay in stays})
        quarters = [each for node in nodes for each in self.found.quarters.get(node, ())]
        claims = list(self._find_claims(nodes))
        service = self._find_service(stays)
        in_force = _find_pieces(claims, service)
        places = [(stay.start_ns, stay.end_ns, stay.value) for stay in stays]
        held = _divide_claims(in_force)
        outages = resolve_overlaps(
            TimePiece(each.start_ns, each.end_ns, each)
            for each in self.files.calendar.outages(self.gpu, places)
        )
        reservations = resolve_overlaps(
            TimePiece(each.begins_ns, each.end_ns, each)
            for each in self.files.calendar.reservations(self.gpu, places)
        )
        timelines: list[Sequence[TimePiece[Any]]] = [
            service,
            held,
            outages,
            self._find_gaps(quarters, stays, in_force),
            reservations,
            self._find_signs(quarters, stays, in_force),
            _find_stranded(self.found.layouts.get(self.gpu, [])),
        ]
        pieces: list[TimePiece[tuple[str, tuple[DayPart, ...]]]] = []
        for now, until, (node, *conditions) in align_timelines(
            timelines, self.start_ns, self.end_ns
        ):
            if node:
                parts = tuple(_build_parts(*conditions))
                append_piece(pieces, TimePiece(now, until, (node, parts)))
        models = day_facts.spans_of(self.found.models.get(self.gpu, []))
        known = (model.value[1] for model in reversed(models) if model.start_ns < self.end_ns)
        counted = _count_increments(self.gpu, quarters, stays, models)
        return MeteredDay(
            gpu=self.gpu,
            day=self.day,
            sku=next(known, ""),
            pieces=tuple(
                metered_day.DayPiece(piece.start_ns, piece.end_ns, *piece.value) for piece in pieces
            ),
            amounts=tuple(_attribute(counted, held, outages, (self.start_ns, self.end_ns))),
            claims=tuple(sorted(self._describe_claims(in_force))),
            unmetered=tuple(sorted(self._find_unmetered(claims, stays))),
        )

    # Where it was --------------------------------------------------------------------------------

    def _find_service(self, stays: Stays) -> list[TimePiece[str]]:
        """Return the stays in nodes, without the time in which the GPU is retired or its node is not in the inventory."""
        retired = [
            (row.start_ns, row.end_ns) for row in self.files.retired.by_gpu.get(self.gpu, ())
        ]
        expected = self.files.inventory.by_node
        service: list[TimePiece[str]] = []
        for stay in stays:
            taken = list(retired)
            if expected:
                listed = [
                    (row.start_ns, row.end_ns)
                    for row in expected.get(stay.value, ())
                    if row.gpus != 0
                ]
                whole = TimePiece(-FOREVER_NS, FOREVER_NS, stay.value)
                taken += [(piece.start_ns, piece.end_ns) for piece in subtract_spans(whole, listed)]
            service += subtract_spans(stay, taken)
        return service

    def _find_gaps(
        self, quarters: Sequence[EvidenceInterval], stays: Stays, in_force: ClaimPieces
    ) -> list[TimePiece[int]]:
        """Return for all time the length of the gap that contains it, 0 where the GPU was observed.

        A day knows what is dated up to an hour after it, whenever it is metered.
        """
        spans = [
            BootSampleSpan(
                quarter.boot,
                max(span.first_ns, stay.start_ns),
                min(span.last_ns, stay.end_ns),
                span.uncertainty_ns,
                span.skew_ns,
            )
            for quarter in quarters
            if self.gpu in quarter.gpus
            for span in quarter.gpus[self.gpu].spans
            for stay in stays
            if stay.value == quarter.node
            and span.first_ns < stay.end_ns
            and stay.start_ns <= span.last_ns
            and span.first_ns < self.end_ns + day_facts.CONTEXT_NS
        ]
        edges = {edge for piece in in_force for edge in (piece.value.start_ns, piece.value.end_ns)}
        return observation_gaps(spans, sorted(edges))

    def _find_signs(
        self, quarters: Sequence[EvidenceInterval], stays: Stays, in_force: ClaimPieces
    ) -> list[TimePiece[NodeEvidence]]:
        """Return the time in which there is a sign of the node other than samples of the GPU.

        Signs are its other reports, and a claim of the scheduler, until its end or the last report of its node.
        """
        spans: dict[str, list[SampleSpan]] = {}
        last_ns: dict[str, int] = {}
        for quarter in quarters:
            of_node = spans.setdefault(quarter.node, [])
            for span in sorted(quarter.reports):
                add_spans(of_node, [SampleSpan(span.first_ns, span.last_ns)])
            reported_ns = (
                span.last_ns
                for span in quarter.report_spans()
                if span.first_ns < self.end_ns + day_facts.CONTEXT_NS
            )
            last_ns[quarter.node] = max([last_ns.get(quarter.node, 0), *reported_ns])
        signs = [
            TimePiece(
                max(span.first_ns, stay.start_ns),
                min(span.last_ns, stay.end_ns),
                NodeEvidence.NODE_READY,
            )
            for stay in stays
            for span in spans.get(stay.value, ())
        ]
        for start_ns, until_ns, claim in in_force:
            # Only the scheduler observes the node itself: other providers report what its agent observed.
            if claim.authority is ClaimAuthority.SCHEDULER:
                known_ns = until_ns if claim.end_ns < FOREVER_NS else last_ns.get(claim.node, 0)
                end_ns = min(until_ns, known_ns)
                signs.append(TimePiece(start_ns, end_ns, NodeEvidence.SCHEDULER))
        return resolve_overlaps(signs)

    # Who had it ----------------------------------------------------------------------------------

    def _find_claims(self, nodes: Sequence[str]) -> Iterator[MeteredClaim]:
        """Yield the claims on the GPU with their ends, divided where their owner has another tenant."""
        yield from self.files.claims.claims_on_gpu(self.gpu, nodes)
        by_claim = {
            key: reports
            for key, reports in day_facts.group_reports(self.found.claims.get(self.gpu, ())).items()
            if reports[0].start_ns < self.end_ns
        }
        names = Counter(name for _, name in by_claim)
        for (node, name), reports in by_claim.items():
            first = reports[0]
            begins_ns = max(first.start_ns, first.received_ns - MAX_AGE_NS)
            end_ns = min(
                self.found.ends.get((node, self.gpu, name), FOREVER_NS),
                _find_ending_boot(reports, self.found.boots.get(node, {})),
            )
            owners = [TimePiece(first.start_ns, end_ns, first.tenant)]
            if not first.tenant and first.start_ns < end_ns:
                owners = self.files.tenants.timeline(
                    first.source, first.owner, first.start_ns, end_ns
                )
            # Two nodes may choose one id: these are two claims.
            own_name = name if names[name] == 1 else f"{name}@{node}"
            for since_ns, until_ns, tenant in owners:
                if max(since_ns, begins_ns) < until_ns:
                    from_ns = max(since_ns, begins_ns)
                    yield _build_claim(first, own_name, tenant, from_ns, until_ns)

    def _describe_claims(self, in_force: ClaimPieces) -> Iterator[DayClaim]:
        """Yield the claims in force on the day."""
        reports = {
            (report.node, report.id): report
            for of_claim in day_facts.group_reports(self.found.claims.get(self.gpu, ())).values()
            for report in of_claim[:1]
        }
        within = [
            piece
            for piece in in_force
            if piece.start_ns < self.end_ns and self.start_ns < piece.end_ns
        ]
        within.sort(key=lambda piece: (piece.value.id, piece.start_ns))
        for name, pieces in groupby(within, key=lambda piece: piece.value.id):
            requested: Units = 0
            for start_ns, end_ns, claim in pieces:
                size = claim.compute.high - claim.compute.low
                length_ns = min(end_ns, self.end_ns) - max(start_ns, self.start_ns)
                share = 1 if claim.exclusive else claim.share or 0
                requested = exact(requested + size * share * length_ns)
            report = reports.get((claim.node, name.removesuffix(f"@{claim.node}")))
            profile = report.profile if report else ""
            # A shared claim on the whole GPU with a profile: its instance was not found.
            is_found = claim.compute != WHOLE or claim.exclusive or claim.share is not None
            yield DayClaim(
                name,
                claim.start_ns,
                claim.end_ns if claim.end_ns <= self.end_ns else None,
                profile,
                size if profile and is_found else 0,
                requested,
            )

    def _find_unmetered(
        self, claims: Sequence[MeteredClaim], stays: Stays
    ) -> Iterator[metered_day.UnmeteredClaim]:
        """Yield the time of the day in which nodes report claims on the GPU without having it."""
        first_ns = min((stay.start_ns for stay in stays), default=FOREVER_NS)
        for claim in claims:
            if not claim.node or claim.authority is ClaimAuthority.ADMINISTRATOR:
                continue
            start_ns, end_ns = max(claim.begins_ns, self.start_ns), min(claim.end_ns, self.end_ns)
            here = [(stay.start_ns, stay.end_ns) for stay in stays if stay.value == claim.node]
            elsewhere = [
                (max(start_ns, first_ns), end_ns, metered_day.ELSEWHERE),
                (start_ns, min(end_ns, first_ns), metered_day.BEFORE_FIRST_REPORT),
            ]
            for low_ns, high_ns, reason in elsewhere:
                if low_ns < high_ns:
                    for piece in subtract_spans(TimePiece(low_ns, high_ns, claim), here):
                        yield metered_day.UnmeteredClaim(
                            piece.start_ns,
                            piece.end_ns,
                            claim.id,
                            claim.tenant,
                            reason,
                            claim.workload,
                        )


def _find_pieces(claims: Iterable[MeteredClaim], service: Stays) -> list[TimePiece[MeteredClaim]]:
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


def _find_ending_boot(reports: Sequence[ReportedClaim], boots: Mapping[str, int]) -> int:
    """Return the start of the first later boot that does not report a claim: its processes ended before."""
    reported = {report.boot for report in reports}
    if not any(reported):
        return FOREVER_NS
    last_ns = max(report.reported_ns for report in reports)
    later = (ns for boot, ns in boots.items() if boot not in reported and ns > last_ns)
    return min(later, default=FOREVER_NS)


def _build_claim(
    report: ReportedClaim, name: str, tenant: str, from_ns: int, end_ns: int
) -> MeteredClaim:
    return MeteredClaim(
        min(report.authority, MAX_NODE_AUTHORITY),
        report.start_ns,
        name,
        tenant,
        end_ns,
        report.workload,
        report.node,
        CapacityRange(*report.compute),
        exclusive=report.exclusive,
        system=report.system,
        source=report.source,
        share=parse_share(report.share) if report.share else None,
        from_ns=from_ns,
    )


def _divide_claims(in_force: ClaimPieces) -> list[TimePiece[_Sizes]]:
    """Return the size that each claim holds over time."""
    pieces: list[TimePiece[_Sizes]] = []
    for now, until, _, slots in holders.allocations(in_force, Tiling.COMPUTE):
        sizes: _Sizes = {}
        for (low, high), claim in slots:
            sizes[claim] = exact(sizes.get(claim, 0) + high - low)
        append_piece(pieces, TimePiece(now, until, sizes))
    return pieces


# Its parts ------------------------------------------------------------------------------------------


def _find_stranded(layouts: Sequence[day_facts.DatedValue]) -> list[TimePiece[Units]]:
    """Return the size that no further MIG instance can use, over time: what is left if all memory is used."""
    found: list[TimePiece[Units]] = []
    for start_ns, end_ns, instances in day_facts.spans_of(layouts):
        compute, memory = (
            sum(high - low for low, high in (instance[at] for instance in instances))
            for at in (0, 1)
        )
        stranded = GPU_CAPACITY - compute if instances and memory == GPU_CAPACITY else 0
        found.append(TimePiece(start_ns, end_ns, stranded))
    return found


def _build_parts(  # noqa: PLR0913, PLR0917 - all conditions of a time
    held: _Sizes | None,
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


# What it counted ------------------------------------------------------------------------------------


def _count_increments(
    gpu: str,
    quarters: Sequence[EvidenceInterval],
    stays: Stays,
    models: Sequence[TimePiece[Any]],
) -> dict[CountedQuantity, CounterIncrements]:
    """Return the increments of the counters of a GPU, and of those of the ports on its rail.

    A node's readings count while the GPU is in it: no increment is from a time without the GPU.
    """
    with_rdma = {
        (quarter.node, quarter.boot, quarter.number, counter.measure, counter.rail)
        for quarter in quarters
        for series in quarter.series.values()
        for counter in series.counters
        if counter.rdma
    }
    readings: dict[tuple[CounterSubject, str, int], dict[tuple[str, str], list[Any]]] = {}
    for quarter in quarters:
        here = [
            (stay, model)
            for stay in stays
            for model in models
            if stay.value == quarter.node
            and stay.start_ns < model.end_ns
            and model.start_ns < stay.end_ns
        ]
        for series in quarter.series.values():
            cells = list(series.cells.values())
            times = np.array([(cell.boot_ns, cell.timestamp_ns) for cell in cells], np.int64)
            values = np.frombuffer(b"".join(cell.values for cell in cells), "<i8").reshape(
                len(cells), -1
            )
            for column, counter in enumerate(series.counters):
                key = (quarter.node, quarter.boot, quarter.number, counter.measure, counter.rail)
                # Of the ports of a rail those of RDMA count, or the interfaces if there are none.
                if counter.gpu != gpu and (counter.gpu or counter.rdma != (key in with_rdma)):
                    continue
                run = series.run if counter.measure in AGENT_MEASURES else ""
                for stay, model in here:
                    if counter.gpu or counter.rail == model.value[0]:
                        low_ns = max(stay.start_ns, model.start_ns)
                        high_ns = min(stay.end_ns, model.end_ns)
                        is_here = (times[:, 1] >= low_ns) & (times[:, 1] < high_ns)
                        counts = is_here & (values[:, column] >= 0)
                        table = np.column_stack((times, values[:, column]))[counts]
                        of_stay = readings.setdefault((counter, quarter.node, stay.start_ns), {})
                        of_stay.setdefault((quarter.boot, run), []).append(table)
    found: dict[CountedQuantity, list[CounterIncrements]] = {}
    for (counter, *_), runs in sorted(readings.items()):
        increments = _join_readings(runs, _MAX_PER_SECOND.get(counter.measure))
        found.setdefault(counter.measure, []).append(increments)
    names = ("starts_ns", "ends_ns", "amounts", "same")
    return {
        measure: CounterIncrements(
            *(np.concatenate([getattr(each, name) for each in parts]) for name in names)
        )
        for measure, parts in found.items()
    }


def _join_readings(
    runs: Mapping[tuple[str, str], Sequence[Any]], max_per_second: int | None
) -> CounterIncrements:
    """Return the increments between the first readings of each cell of the grid.

    One that the device cannot have made is an error of a reading: a counter that jumps, or returns from a jump.
    """
    readings = []
    for (boot, run), tables in runs.items():
        table = np.concatenate(tables)
        table = table[np.lexsort((table[:, 2], table[:, 1], table[:, 0]))]
        table = table[np.unique(table[:, 0] // GRID_NS, return_index=True)[1]]
        # The boot clock determines the order; transport delays may make wall timestamps decrease.
        times_ns = np.maximum.accumulate(table[:, 1])
        columns = (times_ns, table[:, 2].copy(), run, table[:, 0].copy())
        readings.append(CounterReadings(boot, *columns))
    found = compute_increments(readings)
    if max_per_second is None:
        return found
    # In floating point: this is a bound of plausibility, and no amount.
    seconds = (found.ends_ns - found.starts_ns) / SECOND_NS + _SLACK_SECONDS
    is_possible = found.amounts <= max_per_second * seconds
    return CounterIncrements(
        found.starts_ns[is_possible],
        found.ends_ns[is_possible],
        found.amounts[is_possible],
        found.same[is_possible],
    )


def _attribute(
    counted: Mapping[CountedQuantity, CounterIncrements],
    held: Sequence[TimePiece[_Sizes]],
    outages: Sequence[TimePiece[GpuOutage]],
    span: tuple[int, int],
) -> Iterator[CountedAmount]:
    """Yield what was counted up to readings of a day, by the claims that held the same size from reading to reading."""
    owners: list[TimePiece[_Sizes]] = []
    for now, until, (sizes, outage) in align_timelines((held, outages), -FOREVER_NS, FOREVER_NS):
        append_piece(owners, TimePiece(now, until, {} if outage else sizes or {}))
    starts_ns = np.array([piece.start_ns for piece in owners], np.int64)
    for measure in CountedQuantity:
        increments = counted.get(measure)
        within = (
            (increments.ends_ns > span[0]) & (increments.ends_ns <= span[1]) if increments else None
        )
        if increments is None or within is None or not within.any():
            if measure is CountedQuantity.ENERGY:
                yield CountedAmount(measure, 0, reason=metered_day.ABSENT)
            continue
        within &= increments.amounts > 0
        firsts, lasts = (
            np.searchsorted(starts_ns, edges[within], "right") - 1
            for edges in (increments.starts_ns, increments.ends_ns - 1)
        )
        groups = np.column_stack((firsts, lasts, increments.same[within]))
        keys, group = np.unique(groups, axis=0, return_inverse=True)
        amounts: Counter[tuple[str, str, str]] = Counter()
        for number, (first, last, same) in enumerate(keys.tolist()):
            lasting = _find_lasting([piece.value for piece in owners[first : last + 1]], same)
            total = sum(increments.amounts[within][group == number].tolist())
            below, size_below = 0, Fraction(0)
            for claim, size in sorted(lasting.items(), key=lambda each: each[0].id):
                # Cumulative, so that the parts of a GPU add up without a rounding difference.
                size_below += size
                up_to = total * size_below.numerator // (size_below.denominator * GPU_CAPACITY)
                amounts[claim.tenant, claim.id, ""] += up_to - below
                below = up_to
            reason = metered_day.IDLE if same and last == first else metered_day.UNATTRIBUTED
            amounts["", "", reason] += total - below
        yield from sorted(
            CountedAmount(measure, amount, *key) for key, amount in amounts.items() if amount
        )


def _find_lasting(sizes: Sequence[_Sizes], same: int) -> _Sizes:
    """Return the size that each claim held all the time; no claim has what was counted over a reset."""
    lasting = dict(sizes[0]) if same else {}
    for others in sizes[1:]:
        lasting = {claim: min(size, others.get(claim, 0)) for claim, size in lasting.items()}
    return lasting
