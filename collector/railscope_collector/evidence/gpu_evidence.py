"""Facts about one GPU, assembled in the form that metering reads."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import sha256

import msgspec

from railscope import claim_terms
from railscope.timestamps import FOREVER_NS
from railscope_collector.evidence import (
    claim_events,
    gpu_counters,
    gpu_node_history,
    node_claims,
    node_intervals,
    review_rules,
)
from railscope_collector.files.calendar_file import Calendar
from railscope_collector.files.claims_file import FileClaims
from railscope_collector.files.inventory_file import DeviceInventory
from railscope_collector.files.retirements_file import RetiredGpus
from railscope_collector.files.tenants_file import TenantMappings
from railscope_collector.fleet.shape_columns import ReportedMigInstance
from railscope_collector.ledger import day_metering
from railscope_collector.metering import (
    counter_increments,
    evidence as usage_evidence,
    placement,
    timeline,
    units,
)


@dataclass(frozen=True, slots=True)
class AdministratorInputs:
    """Administrators' files, and decisions of people."""

    claims: FileClaims = field(default_factory=FileClaims)
    tenants: TenantMappings = field(default_factory=TenantMappings)
    calendar: Calendar = field(default_factory=Calendar)
    retired: RetiredGpus = field(default_factory=RetiredGpus)
    inventory: DeviceInventory = field(default_factory=DeviceInventory)
    """An inventory without rows counts as none."""
    decisions: review_rules.ReviewDecisions = field(default_factory=review_rules.ReviewDecisions)

    @property
    def expected(self) -> review_rules.ExpectedGpus:
        """Return the expected GPUs."""
        return review_rules.ExpectedGpus(self.inventory, self.retired, self.decisions)


class AssembledGpu(msgspec.Struct, frozen=True):
    """Evidence of a GPU, increments of its counters, and its models."""

    evidence: usage_evidence.Evidence
    counted: dict[counter_increments.CountedQuantity, counter_increments.CounterIncrements]
    skus: day_metering.SkuHistory = ()
    profiles: dict[str, str] = {}
    """The MIG profiles of claims that have one."""
    places: gpu_node_history.GpuNodeHistory = gpu_node_history.GpuNodeHistory((), ())

    def meter(self) -> day_metering.MeteredGpu:
        """Return the GPU over all time, for metering of its days."""
        return day_metering.MeteredGpu.compute(
            self.evidence, self.counted, self.skus, self.profiles
        )


def collect_facts(
    gpu: str,
    intervals: Iterable[node_intervals.EvidenceInterval],
    claims: Iterable[claim_events.ReportedClaim],
    ended: Iterable[claim_events.ReportedEnd],
    contacts: node_intervals.Contacts | None = None,
) -> node_claims.GpuFacts:
    """Collect the facts about a GPU from intervals and claims."""
    presences: list[gpu_node_history.GpuPresence] = []
    layouts: list[node_intervals.LayoutSpans] = []
    reports: dict[str, list[node_intervals.SampleSpan]] = {}
    valueless: dict[str, list[node_intervals.SampleSpan]] = {}
    report_spans: dict[str, list[node_intervals.SampleSpan]] = {}
    all_intervals = list(intervals)
    is_shared = len({interval.node for interval in all_intervals if gpu in interval.gpus}) > 1
    for interval in all_intervals:
        if sighted := interval.gpus.get(gpu):
            sighted_fields = (sighted.received_ns, sighted.spans, sighted.trusted_start_ns)
            presences.append(
                gpu_node_history.GpuPresence(interval.node, interval.boot, *sighted_fields)
            )
        layouts += interval.layouts.get(gpu, ())
        reports.setdefault(interval.node, []).extend(interval.reports)
        # Only several nodes compete for a GPU: of one node, these facts change nothing and cost time.
        if is_shared:
            valueless.setdefault(interval.node, []).extend(interval.valueless.get(gpu, ()))
            report_spans.setdefault(interval.node, []).extend(interval.report_spans())
    by_node = (contacts or {}, valueless, report_spans)
    return node_claims.GpuFacts(
        gpu, presences, tuple(claims), tuple(ended), layouts, reports, *by_node
    )


def _find_profiles(
    reported: Iterable[claim_events.ReportedClaim], claims: Iterable[usage_evidence.MeteredClaim]
) -> dict[str, str]:
    """Return the MIG profiles of claims that have one, each as its own node reported it first.

    An administrator's claim has none, whatever names nodes give to their claims.
    """
    profiles: dict[str, dict[str, str]] = {}
    # In reverse, so that the dictionary keeps the profile of the first report, which is the one that counts.
    for report in sorted(reported, key=claim_events.first_report_key, reverse=True):
        profiles.setdefault(report.node, {})[report.id] = report.profile
    if not any(any(of_node.values()) for of_node in profiles.values()):
        return {}
    found: dict[str, str] = {}
    for claim in claims:
        if claim.authority is not claim_terms.ClaimAuthority.ADMINISTRATOR:
            of_node = profiles.get(claim.node, {})
            if profile := of_node.get(node_claims.reported_id(claim.id, of_node)):
                found[claim.id] = profile
    return found


def build_evidence(
    facts: node_claims.GpuFacts, files: AdministratorInputs
) -> tuple[usage_evidence.Evidence, gpu_node_history.GpuNodeHistory]:
    """Return the evidence of a GPU for metering, and its places."""
    placed = node_claims.find_reviewed_history(facts, files.expected)
    history = placed.history
    ends = claim_events.find_ends(facts.claims, facts.ended, facts.boots)
    nodes = {stay.node for stay in history.stays}
    active_claims = list(files.claims.claims_on_gpu(facts.gpu, nodes))
    home = find_first_node(facts, history)
    reported = _select_claims(facts, nodes | {home} | history.under_review.keys(), placed)
    reserved = {claim.id for claim in active_claims}
    parts = node_claims.resolve_claims(reported, ends, files.tenants, files.expected, reserved)
    shown = node_claims.claimed_time_under_review(parts, history, active_claims)
    served = node_claims.find_service(facts.gpu, history.stays, placed.excess, files.expected)
    served = gpu_node_history.subtract_stays(served, shown)
    extra = (
        *gpu_node_history.subtract_stays(
            node_claims.find_claimed_absence(parts, history.stays, served, home), shown
        ),
        *shown,
    )
    pieces = (piece for claim in active_claims for piece in files.retired.clip(facts.gpu, claim))
    claims = [part.claim for part in parts]
    claims += (
        piece
        for claim in pieces
        for piece in (node_claims.clip_claim(claim, served) if extra else (claim,))
    )
    stays = [(stay.start_ns, stay.end_ns, stay.node) for stay in served]
    evidence = usage_evidence.Evidence(
        gpu=facts.gpu,
        stays=files.retired.service_stays(facts.gpu, sorted((*served, *extra))),
        claims=tuple(sorted(set(claims))),
        sample_spans=tuple(sorted(history.sample_spans)),
        layouts=tuple(_build_layouts(facts.layouts)),
        outages=tuple(files.calendar.outages(facts.gpu, stays)),
        reservations=tuple(files.calendar.reservations(facts.gpu, stays)),
        sightings=tuple(sorted(set(_find_sightings(facts, ends, history, home)))),
    )
    return evidence, history


def find_first_node(facts: node_claims.GpuFacts, history: gpu_node_history.GpuNodeHistory) -> str:
    """Return the node that reported a GPU first."""
    receipts = (
        (gpus[facts.gpu].received_ns, n) for n, gpus in facts.contacts.items() if facts.gpu in gpus
    )
    stays = ((stay.start_ns, stay.node) for stay in history.stays)
    return min(receipts, default=min(stays, default=(0, "")))[1]


def _select_claims(
    facts: node_claims.GpuFacts, nodes: Container[str], placed: node_claims.ReviewedHistory
) -> node_claims.GpuFacts:
    """Return the facts with the claims of these nodes only: the GPU was not in the others.

    Of a node in which it was at another time, the names of claims count.
    """
    claims = [claim for claim in facts.claims if claim.node in nodes]
    homes = {node for node, gpus in facts.contacts.items() if facts.gpu in gpus} - placed.rejected
    namesakes = [claim for claim in facts.claims if claim.node in homes and claim.node not in nodes]
    return msgspec.structs.replace(
        facts, claims=claims, namesakes=namesakes, disputed=placed.disputed
    )


def find_claims_under_review(
    facts: node_claims.GpuFacts, files: AdministratorInputs
) -> list[node_claims.ClaimPart]:
    """Return the parts of claims on a GPU that are pending review."""
    ends = claim_events.find_ends(facts.claims, facts.ended, facts.boots)
    reported = facts
    if claim_events.is_gpu(facts.gpu):
        placed = node_claims.find_reviewed_history(facts, files.expected)
        nodes = {stay.node for stay in placed.history.stays} | placed.history.under_review.keys()
        reported = _select_claims(facts, nodes | {find_first_node(facts, placed.history)}, placed)
    parts = node_claims.resolve_claims(reported, ends, files.tenants, files.expected)
    return [part for part in parts if part.claim.review]


def find_nodes_under_review(
    facts: node_claims.GpuFacts, files: AdministratorInputs, now_ns: int
) -> list[str]:
    """Return the nodes that list a GPU of another node, which a person may decide about."""
    waiting = node_claims.find_reviewed_history(facts, files.expected).history.under_review
    return sorted(node for node, periods in waiting.items() if periods[0][0] < now_ns)


def assemble_gpu(
    facts: node_claims.GpuFacts,
    intervals: Sequence[node_intervals.EvidenceInterval],
    files: AdministratorInputs,
    placed: tuple[usage_evidence.Evidence, gpu_node_history.GpuNodeHistory] | None = None,
) -> AssembledGpu:
    """Assemble everything about a GPU: evidence (with placed claims), counters, model."""
    evidence, history = placed or build_evidence(facts, files)
    return AssembledGpu(
        evidence,
        gpu_counters.counter_increments(facts.gpu, intervals, history.stays),
        tuple(gpu_node_history.find_skus(facts.gpu, intervals, history.stays)),
        _find_profiles(facts.claims, evidence.claims),
        history,
    )


# Claims -----------------------------------------------------------------------------------------


def find_deviceless_claims(
    facts: node_claims.GpuFacts,
    ends: claim_events.Ends,
    tenants: TenantMappings,
    decisions: review_rules.ReviewDecisions,
) -> list[placement.UnplacedClaim]:
    """Return a node's claims without a device, from the facts stored under the node's key."""
    parts = node_claims.resolve_claims(
        facts, ends, tenants, review_rules.ExpectedGpus(decisions=decisions)
    )
    firsts = claim_events.select_first_reports(facts.claims)
    return [
        placement.UnplacedClaim(
            piece.authority,
            piece.start_ns,
            piece.id,
            piece.tenant,
            piece.end_ns,
            piece.workload,
            piece.node,
            firsts[subject.node, subject.name].count,
            piece.share or Fraction(1),
            piece.system,
            piece.source,
            piece.review,
            piece.from_ns,
            subject.name,
        )
        for piece, subject, _ in parts
    ]


# Layouts, node evidence -------------------------------------------------------------------------


def _build_layouts(
    layouts: Iterable[node_intervals.LayoutSpans],
) -> Iterator[usage_evidence.PartitionLayout]:
    """Yield each layout, from the first frame that shows it."""
    starts = sorted((span.first_ns, layout.parts) for layout in layouts for span in layout.spans)
    last: tuple[ReportedMigInstance, ...] | None = None
    for start_ns, parts in starts:
        # A layout lasts until another one is shown: gaps between frames do not end it.
        if parts != last:
            slots = (
                map(units.CapacityRange._make, (instance.compute, instance.memory))
                for instance in parts
            )
            instances = tuple(usage_evidence.MigInstanceSlots(*pair) for pair in slots)
            yield usage_evidence.PartitionLayout(start_ns, layout_id(parts), instances)
        last = parts


def layout_id(parts: Sequence[ReportedMigInstance]) -> str:
    """Return a short id of a MIG layout; empty for a GPU that is not partitioned."""
    return sha256(msgspec.json.encode(parts)).hexdigest()[:12] if parts else ""


def _find_sightings(
    facts: node_claims.GpuFacts,
    ends: claim_events.Ends,
    history: gpu_node_history.GpuNodeHistory,
    home: str,
) -> Iterator[usage_evidence.NodeSighting]:
    """Yield independent evidence that the node was running.

    The sources are other streams of the node, and the scheduler: its claim counts for as long as it
    lasted, or, without a reported end, until the last report of the node that reported it. It counts
    while the GPU is in the node, and in `home` also before that.
    """
    last_reports: dict[str, int] = {}
    for node, spans in facts.reports.items():
        joined: list[node_intervals.SampleSpan] = []
        for span in spans:
            node_intervals.add_span(joined, node_intervals.SampleSpan(span.first_ns, span.last_ns))
        last_reports[node] = max((span.last_ns for span in joined), default=-FOREVER_NS)
        for stay in history.stays:
            if stay.node == node:
                yield from _sample_sightings(stay, joined)
    for presence in facts.presences:
        last = max((span.last_ns for span in presence.spans), default=-FOREVER_NS)
        last_reports[presence.node] = max(last, last_reports.get(presence.node, -FOREVER_NS))
    gaps = claim_events.find_gaps(facts.claims, facts.boots)
    for claim in facts.claims:
        # A late report proves nothing about the time before it.
        start_ns = max(claim.start_ns, claim.trusted_from_ns)
        # Only the scheduler watches the node itself: other providers report what the agent of this node observed.
        if claim.authority is claim_terms.ClaimAuthority.SCHEDULER:
            until = ends.get((claim.node, claim.id), last_reports.get(claim.node, claim.start_ns))
            free = [(gap.trusted_ns, gap.until_ns) for gap in gaps.get((claim.node, claim.id), ())]
            free += _find_absence(history.stays, claim.node, home)
            if start_ns < until:
                held_time = timeline.TimePiece(
                    start_ns, until, usage_evidence.NodeEvidence.SCHEDULER
                )
                for start, end, node_evidence in timeline.subtract_spans(held_time, free):
                    yield usage_evidence.NodeSighting(node_evidence, start, end)


def _find_absence(
    stays: Sequence[usage_evidence.NodeStay], node: str, home: str
) -> gpu_node_history.Periods:
    """Return the time in which a GPU is not in a node; before the first stay it is in its home."""
    first_ns = min((stay.start_ns for stay in stays), default=FOREVER_NS)
    there = [(stay.start_ns, stay.end_ns) for stay in stays if stay.node == node]
    there += [(-FOREVER_NS, first_ns)] if node == home else []
    return gpu_node_history.subtract_periods(
        [(-FOREVER_NS, FOREVER_NS)], gpu_node_history.unite_periods(there)
    )


def _sample_sightings(
    stay: usage_evidence.NodeStay, spans: Iterable[node_intervals.SampleSpan]
) -> Iterator[usage_evidence.NodeSighting]:
    for span in spans:
        start, end = max(stay.start_ns, span.first_ns), min(stay.end_ns, span.last_ns)
        if start < end:
            yield usage_evidence.NodeSighting(usage_evidence.NodeEvidence.NODE_READY, start, end)
