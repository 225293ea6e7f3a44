"""A day of a GPU as a pure function of facts and files: who held how much of it when, in which state, and what it counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from msgspec.structs import replace

from railscope.claim_terms import MAX_NODE_AUTHORITY, ClaimAuthority, parse_share
from railscope.timestamps import DAY_NS, FOREVER_NS
from railscope_collector.evidence import counter_readings, day_facts
from railscope_collector.evidence.claim_events import ReportedClaim
from railscope_collector.evidence.file_versions import AdministratorInputs
from railscope_collector.evidence.node_intervals import (
    MAX_AGE_NS,
    EvidenceInterval,
    SampleSpan,
    add_spans,
)
from railscope_collector.metering import gpu_timeline, metered_day
from railscope_collector.metering.counter_increments import (
    CountedQuantity,
    CounterIncrements,
)
from railscope_collector.metering.evidence import (
    MeteredClaim,
    NodeEvidence,
)
from railscope_collector.metering.metered_day import MeteredDay
from railscope_collector.metering.observation import BootSampleSpan, observation_gaps
from railscope_collector.metering.timeline import (
    TimePiece,
    subtract_spans,
)
from railscope_collector.metering.units import CapacityRange, exact


@dataclass(frozen=True, slots=True)
class DayMeter:
    """Meters the GPUs that some facts are about."""

    day: int
    found: day_facts.DayFacts
    files: AdministratorInputs
    counters: counter_readings.DayCounters

    @classmethod
    def of_facts(cls, day: int, found: day_facts.DayFacts, files: AdministratorInputs) -> Self:
        """Return the meter of a day; all GPUs share the readings of counters."""
        return cls(day, found, files, counter_readings.DayCounters.of_quarters(found.quarters))

    def meter(self, gpu: str) -> MeteredDay:
        """Meter a day of a GPU."""
        return self._meter(gpu, self._increments(gpu))

    def recount(self, gpu: str) -> tuple[MeteredDay, dict[CountedQuantity, int]]:
        """Meter a day of a GPU; return also what its counters counted up to their readings of the day, in any node."""
        sums: dict[CountedQuantity, int] = {}
        counted = self._increments(gpu)
        first_ns, last_ns = self.day * DAY_NS, (self.day + 1) * DAY_NS
        for measure, increments in counted.items():
            within = (increments.ends_ns > first_ns) & (increments.ends_ns <= last_ns)
            # With Python's integers: the sum of a day may exceed 64 bits.
            sums[measure] = sum(increments.amounts[within].tolist())
        return self._meter(gpu, counted), sums

    def _meter(self, gpu: str, counted: Mapping[CountedQuantity, CounterIncrements]) -> MeteredDay:
        return _GpuMeter(gpu, self.day, self.found, self.files).meter(counted)

    def _increments(self, gpu: str) -> dict[CountedQuantity, CounterIncrements]:
        stays, models = (
            day_facts.spans_of(of.get(gpu, [])) for of in (self.found.nodes, self.found.models)
        )
        return self.counters.increments(gpu, stays, models)


def find_service(
    gpu: str, stays: gpu_timeline.Stays, files: AdministratorInputs
) -> list[TimePiece[str]]:
    """Return the stays in nodes, without the time in which the GPU is retired or its node is not in the inventory."""
    retired = [(row.start_ns, row.end_ns) for row in files.retired.by_gpu.get(gpu, ())]
    expected = files.inventory.by_node
    service: list[TimePiece[str]] = []
    for stay in stays:
        taken = list(retired)
        if expected:
            listed = [
                (row.start_ns, row.end_ns) for row in expected.get(stay.value, ()) if row.gpus != 0
            ]
            whole = TimePiece(-FOREVER_NS, FOREVER_NS, stay.value)
            taken += [(piece.start_ns, piece.end_ns) for piece in subtract_spans(whole, listed)]
        service += subtract_spans(stay, taken)
    return service


def claims_in_force(
    gpu: str, found: day_facts.DayFacts, files: AdministratorInputs, now_ns: int
) -> tuple[list[MeteredClaim], bool, list[int]]:
    """Return the claims in force on a GPU at a time, in descending precedence; and if it is out of service then.

    The last part are the times at which any of that begins or ends.
    """
    meter = _GpuMeter(gpu, now_ns // DAY_NS, found, files)
    stays = day_facts.spans_of(found.nodes.get(gpu, []))
    service = find_service(gpu, stays, files)
    claims = list(meter.find_claims(sorted({stay.value for stay in stays})))
    pieces = gpu_timeline.place_claims(claims, service)
    places = [(stay.start_ns, stay.end_ns, stay.value) for stay in stays]
    outages = list(files.calendar.outages(gpu, places))
    edges = [edge for piece in pieces for edge in (piece.start_ns, piece.end_ns)]
    edges += [edge for each in outages for edge in (each.start_ns, each.end_ns)]
    edges += [edge for claim in claims for edge in (claim.begins_ns, claim.end_ns)]
    present = [piece.value for piece in pieces if piece.start_ns <= now_ns < piece.end_ns]
    is_down = any(each.start_ns <= now_ns < each.end_ns for each in outages)
    return present[::-1], is_down, edges


@dataclass(slots=True)
class _GpuMeter:
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

    def meter(self, counted: Mapping[CountedQuantity, CounterIncrements]) -> MeteredDay:
        stays = day_facts.spans_of(self.found.nodes.get(self.gpu, []))
        nodes = sorted({stay.value for stay in stays})
        quarters = [each for node in nodes for each in self.found.quarters.get(node, ())]
        claims = list(self.find_claims(nodes))
        service = find_service(self.gpu, stays, self.files)
        in_force = gpu_timeline.place_claims(claims, service)
        places = [(stay.start_ns, stay.end_ns, stay.value) for stay in stays]
        models = day_facts.spans_of(self.found.models.get(self.gpu, []))
        timeline = gpu_timeline.GpuTimeline(
            self.gpu,
            service,
            in_force,
            self._find_gaps(quarters, stays, in_force),
            self._find_signs(quarters, stays, in_force),
            self.files.calendar.outages(self.gpu, places),
            self.files.calendar.reservations(self.gpu, places),
            gpu_timeline.find_stranded(day_facts.spans_of(self.found.layouts.get(self.gpu, []))),
            [TimePiece(model.start_ns, model.end_ns, model.value[1]) for model in models],
            counted,
        )
        unmetered = tuple(sorted(self._find_unmetered(claims, stays, service)))
        return replace(timeline.meter(self.day), unmetered=unmetered)

    # Where it was --------------------------------------------------------------------------------

    def _find_gaps(
        self,
        quarters: Sequence[EvidenceInterval],
        stays: gpu_timeline.Stays,
        in_force: gpu_timeline.ClaimPieces,
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
        self,
        quarters: Sequence[EvidenceInterval],
        stays: gpu_timeline.Stays,
        in_force: gpu_timeline.ClaimPieces,
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
        return signs

    # Who had it ----------------------------------------------------------------------------------

    def find_claims(self, nodes: Sequence[str]) -> Iterator[MeteredClaim]:
        """Yield the claims on the GPU with their ends, divided where their owner has another tenant."""
        yield from self.files.claims.claims_on_gpu(self.gpu, nodes)
        by_claim = {
            key: reports
            for key, reports in day_facts.group_reports(self.found.claims.get(self.gpu, ())).items()
            if reports[0].start_ns < self.end_ns
        }
        for (node, name), reports in by_claim.items():
            first = reports[0]
            begins_ns = max(first.start_ns, first.received_ns - MAX_AGE_NS)
            end_ns = min(
                self.found.ends.get((node, self.gpu, name), FOREVER_NS),
                find_ending_boot(reports, self.found.boots.get(node, {})),
            )
            owners = [TimePiece(first.start_ns, end_ns, first.tenant)]
            if not first.tenant and first.start_ns < end_ns:
                owners = self.files.tenants.timeline(
                    first.source, first.owner, first.start_ns, end_ns
                )
            for since_ns, until_ns, tenant in owners:
                if max(since_ns, begins_ns) < until_ns:
                    from_ns = max(since_ns, begins_ns)
                    # A later tenant has a claim of its own: it pays no minimum of the former one.
                    own_name = name if since_ns == first.start_ns else f"{name}#{since_ns}"
                    yield _build_claim(first, own_name, tenant, from_ns, until_ns)

    def _find_unmetered(
        self,
        claims: Sequence[MeteredClaim],
        stays: gpu_timeline.Stays,
        service: gpu_timeline.Stays,
    ) -> Iterator[metered_day.UnmeteredClaim]:
        """Yield the time of the day in which nodes report claims on the GPU without having it in service."""
        first_ns = min((stay.start_ns for stay in stays), default=FOREVER_NS)
        served = [(piece.start_ns, piece.end_ns) for piece in service]
        for claim in claims:
            if not claim.node or claim.authority is ClaimAuthority.ADMINISTRATOR:
                continue
            start_ns, end_ns = max(claim.begins_ns, self.start_ns), min(claim.end_ns, self.end_ns)
            here = [(stay.start_ns, stay.end_ns) for stay in stays if stay.value == claim.node]
            spans = [
                (max(start_ns, first_ns), end_ns, here, metered_day.ELSEWHERE),
                (start_ns, min(end_ns, first_ns), here, metered_day.BEFORE_FIRST_REPORT),
            ]
            spans += [
                (max(start_ns, low_ns), min(end_ns, high_ns), served, metered_day.OUT_OF_SERVICE)
                for low_ns, high_ns in here
            ]
            for low_ns, high_ns, taken, reason in spans:
                if low_ns < high_ns:
                    for piece in subtract_spans(TimePiece(low_ns, high_ns, claim), taken):
                        yield metered_day.UnmeteredClaim(
                            piece.start_ns,
                            piece.end_ns,
                            claim.id,
                            claim.tenant,
                            reason,
                            claim.workload,
                            exact(claim.compute.high - claim.compute.low) * (claim.share or 1),
                        )


def find_ending_boot(reports: Sequence[ReportedClaim], boots: Mapping[str, int]) -> int:
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
        profile=report.profile,
    )
