"""Claims of nodes on a GPU for metering, with their tenants.

They are divided where a part of them is pending review. A node that lists the GPU of another one is
pending review (`occupancy`), and so are its claims there. Where it also reports claims, those of
the other node are under review too: either of them may be invented.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from railscope.claim_terms import MAX_NODE_AUTHORITY, ClaimAuthority, parse_share
from railscope.timestamps import DAY_NS, FOREVER_NS
from railscope_collector.evidence import (
    claim_events,
    gpu_node_history,
    node_intervals,
    review_rules,
)
from railscope_collector.evidence.boot_starts import BootStart
from railscope_collector.files.tenants_file import TenantMappings
from railscope_collector.metering import evidence, timeline, units

_PART = re.compile(r"(?:#-?[0-9]+)+\Z")
"""End of the name of a part of a claim: the start of the part."""
MAX_BEFORE_NS = 62 * DAY_NS
"""Maximum time that a claim under review holds before the first contact with its GPU."""


class GpuFacts(msgspec.Struct, frozen=True):
    """Facts about one GPU from frames and events."""

    gpu: str
    presences: Sequence[gpu_node_history.GpuPresence]
    claims: Sequence[claim_events.ReportedClaim] = ()
    ended: Sequence[claim_events.ReportedEnd] = ()
    layouts: Sequence[node_intervals.LayoutSpans] = ()
    reports: Mapping[str, Sequence[node_intervals.SampleSpan]] = {}
    """Time by node in which it reported anything but GPUs."""
    contacts: node_intervals.Contacts = {}
    """Contacts of all GPUs of the nodes that reported this one."""
    valueless: Mapping[str, Sequence[node_intervals.SampleSpan]] = {}
    """Time by node in which it listed the GPU without a value."""
    report_spans: Mapping[str, Sequence[node_intervals.SampleSpan]] = {}
    """Time by node in which it reported anything."""
    namesakes: Sequence[claim_events.ReportedClaim] = ()
    """Claims that hold nothing, and whose names no other claim has: of nodes in which the GPU was at another time."""
    disputed: Mapping[str, Sequence[timeline.TimePiece[str]]] = {}
    """Time by node in which claims are under review because several nodes report the GPU."""
    further_boots: Sequence[BootStart] = ()
    """Starts of boots that may have no presence here."""

    @property
    def boots(self) -> list[BootStart]:
        """Return the starts of all boots."""
        return [*BootStart.collect(self.presences), *self.further_boots]


class ClaimPart(NamedTuple):
    """A part of a claim for metering; `subject` is what a person decides about, if it is under review."""

    claim: evidence.MeteredClaim
    subject: review_rules.ReviewSubject
    contact_ns: int
    """Before it, the part is metered although the GPU is not in service."""


def resolve_claims(
    facts: GpuFacts,
    ends: claim_events.Ends,
    tenants: TenantMappings,
    expected: review_rules.ExpectedGpus,
    reserved: Iterable[str] = (),
) -> list[ClaimPart]:
    """Return claims with their ends and tenants, divided at each change of the owner's tenant.

    Each part has a unique name, which is none of `reserved`: equal names are one claim with one
    end, and a node must not be able to end the claim of another node by its choice of an id.
    """
    gaps = claim_events.find_gaps(facts.claims, facts.boots)
    freed = claim_events.find_untrusted_ends(facts.claims, facts.ended, facts.boots, ends)
    excess: dict[str, list[timeline.TimePiece[str]]] = {}
    names = ClaimNames(reserved)
    all_parts: list[ClaimPart] = []
    reported = claim_events.select_first_reports([*facts.claims, *facts.namesakes])
    absent = {claim.node for claim in facts.namesakes}
    # In order of the reports, so that names are given out in the same order wherever they are computed.
    for report, key in sorted((claim, key) for key, claim in reported.items()):
        if report.node in absent:
            # Its name is taken although it holds nothing: else the names on a day would depend on the nodes of that
            # day.
            names.free(report.id, report.node)
            continue
        if report.node not in excess:
            more = expected.excess(facts.gpu, report.node, facts.contacts)
            excess[report.node] = _add_disputed(more, facts.disputed.get(report.node, ()))
        end = (ends.get(key, FOREVER_NS), freed.get(key, FOREVER_NS))
        pieces = _divide_by_decisions(facts, report, end, expected)
        cut = _subtract_gaps(pieces, report, gaps.get(key, ()), expected)
        subject = review_rules.ReviewSubject(review_rules.ReviewKind.GPU, report.node, facts.gpu)
        reviewed = list(review_rules.divide_at_reviews(cut, excess[report.node], subject))
        claims = _split_by_tenant(report, names, reviewed, tenants)
        contact_ns = _contact_ns(facts, report.node)
        all_parts += (ClaimPart(claim, subject, contact_ns) for claim, subject in claims)
    return all_parts


def _add_disputed(
    excess: Sequence[timeline.TimePiece[str]], disputed: Iterable[timeline.TimePiece[str]]
) -> list[timeline.TimePiece[str]]:
    """Return the times of review for either reason, in order; `excess` prevails where both apply."""
    spans = [(start, end) for start, end, _ in excess]
    divided = (timeline.subtract_spans(piece, spans) for piece in disputed)
    return sorted([*excess, *(piece for pieces in divided for piece in pieces)])


class ClaimNames:
    """Unique names of claims on one GPU; `reserved` are those of other claims, which may be divided into parts."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._reserved = frozenset(reserved)
        self._names: set[str] = set()

    def free(self, name: str, node: str) -> str:
        """Return an unused name: `name`, with the node appended as often as necessary."""
        while name in self._names or _PART.sub("", name) in self._reserved:
            name = f"{name}@{node}"
        self._names.add(name)
        return name


def _contact_ns(facts: GpuFacts, node: str) -> int:
    if not claim_events.is_gpu(facts.gpu):
        # A claim without a device: that of the first GPU of the node.
        return node_intervals.node_floor_ns(facts.contacts, node)
    receipts = [p.received_ns for p in facts.presences if p.node == node]
    return node_intervals.floor_ns(facts.contacts, facts.gpu, node, receipts)


def _divide_by_decisions(
    facts: GpuFacts,
    claim: claim_events.ReportedClaim,
    end: tuple[int, int],
    expected: review_rules.ExpectedGpus,
) -> Iterator[review_rules.ReviewedPart]:
    """Yield the parts of one claim that remain after people's decisions."""
    end_ns, freed_ns = end
    decided = expected.decisions.find(review_rules.ReviewKind.END, claim.node, claim.id)
    if decided is not None:
        end_ns, freed_ns = min(end_ns, freed_ns) if decided else end_ns, FOREVER_NS
    if claim.authority <= ClaimAuthority.PROCESS:
        freed_ns = FOREVER_NS  # it is never billed: no decision is needed, the horizon applies
    contact_ns = _contact_ns(facts, claim.node)
    trusted_ns = max(claim.start_ns, claim.trusted_from_ns)
    subject = review_rules.ReviewSubject(review_rules.ReviewKind.CLAIM, claim.node, claim.id)
    # A node that invents an old start could otherwise fill the review with years.
    start_ns = max(claim.start_ns, contact_ns - MAX_BEFORE_NS)
    span, contact_and_trust = (start_ns, end_ns), (contact_ns, trusted_ns)
    reason = review_rules.ALLOCATED_TWICE if claim.allocated_twice else ""
    for part in review_rules.divide_claim(subject, span, contact_and_trust, freed_ns, reason):
        verdict = expected.decisions.find(review_rules.ReviewKind.CLAIM, claim.node, claim.id)
        if not part.reason or part.subject != subject or verdict is None:
            yield part
        elif verdict:
            yield part._replace(reason="")


def _subtract_gaps(
    parts: Iterable[review_rules.ReviewedPart],
    claim: claim_events.ReportedClaim,
    gaps: Iterable[claim_events.ClaimGap],
    expected: review_rules.ExpectedGpus,
) -> Iterator[review_rules.ReviewedPart]:
    """Yield the parts without the gaps; time that a boot reported late would free is under review too."""
    subject = review_rules.ReviewSubject(review_rules.ReviewKind.END, claim.node, claim.id)
    is_billed = claim.authority > ClaimAuthority.PROCESS
    verdict = expected.decisions.find(*subject) if is_billed else False
    for gap in gaps:
        late = timeline.TimePiece(
            gap.first_ns, min(gap.trusted_ns, gap.until_ns), review_rules.LATE_END
        )
        if verdict is None and late.start_ns < late.end_ns:
            parts = list(review_rules.divide_at_reviews(parts, [late], subject))
        start_ns = gap.first_ns if verdict else gap.trusted_ns
        if start_ns < gap.until_ns:
            free = [(start_ns, gap.until_ns)]
            parts = [
                part._replace(start_ns=start, end_ns=end)
                for part in parts
                for start, end, _ in timeline.subtract_spans(
                    timeline.TimePiece(part.start_ns, part.end_ns, part), free
                )
            ]
    yield from parts


def _split_by_tenant(
    report: claim_events.ReportedClaim,
    names: ClaimNames,
    cut: Sequence[review_rules.ReviewedPart],
    tenants: TenantMappings,
) -> Iterator[tuple[evidence.MeteredClaim, review_rules.ReviewSubject]]:
    """Yield the parts by tenant; consecutive parts without a review are joined."""
    joined: list[review_rules.ReviewedPart] = []
    for part in cut:
        if joined and not (joined[-1].reason or part.reason) and joined[-1].end_ns == part.start_ns:
            joined[-1] = joined[-1]._replace(end_ns=part.end_ns)
        else:
            joined.append(part)
    if not joined:
        return
    end_ns = joined[-1].end_ns
    stated = [timeline.TimePiece(report.start_ns, end_ns, report.tenant)]
    owners = (
        stated
        if report.tenant
        else tenants.timeline(report.source, report.owner, report.start_ns, end_ns)
    )
    name = names.free(report.id, report.node)
    for since, until, tenant in owners:
        base = name if since == report.start_ns else names.free(f"{name}#{since}", report.node)
        is_named = False
        for part in joined:
            start, end = max(since, part.start_ns), min(until, part.end_ns)
            if start >= end or (part.reason and report.authority <= ClaimAuthority.PROCESS):
                continue
            is_first = not (part.reason or is_named)
            is_named |= is_first
            own_name = base if is_first else names.free(f"{base}#{start}", report.node)
            claim = replace(_build_claim(report, own_name, tenant, part.reason), end_ns=end)
            # The start stays that of the claim, which decides its precedence: another name of its tenant moves no time
            # between claims.
            is_later = start > report.start_ns
            yield replace(claim, from_ns=start) if is_later else claim, part.subject


def reported_id(name: str, names: Container[str]) -> str:
    """Return the id in `known` that a part of a claim was reported with; empty if there is none."""
    while name and name not in names:
        name = name[: max(name.rfind("#"), name.rfind("@"), 0)]
    return name


def _build_claim(
    claim: claim_events.ReportedClaim, name: str, tenant: str, review: str
) -> evidence.MeteredClaim:
    return evidence.MeteredClaim(
        authority=ClaimAuthority.REVIEW
        if review not in review_rules.KEEPS_AUTHORITY
        else min(claim.authority, MAX_NODE_AUTHORITY),
        start_ns=claim.start_ns,
        id=name,
        tenant=tenant,
        workload=claim.workload,
        node=claim.node,
        compute=units.CapacityRange(*claim.compute),
        memory=units.CapacityRange(*claim.memory),
        exclusive=claim.exclusive,
        system=claim.system,
        source=claim.source,
        share=parse_share(claim.share) if claim.share else None,
        review=review,
    )


def find_service(
    gpu: str,
    stays: Iterable[evidence.NodeStay],
    excess: Mapping[str, Sequence[timeline.TimePiece[str]]],
    expected: review_rules.ExpectedGpus,
) -> tuple[evidence.NodeStay, ...]:
    """Return the stays of a GPU without the time that it was under review or rejected."""
    service_stays: list[evidence.NodeStay] = []
    for stay in stays:
        if expected.decisions.find(review_rules.ReviewKind.GPU, stay.node, gpu) is False:
            continue
        pending_spans = [(piece.start_ns, piece.end_ns) for piece in excess.get(stay.node, ())]
        for start, end, _ in timeline.subtract_spans(
            timeline.TimePiece(stay.start_ns, stay.end_ns, stay), pending_spans
        ):
            service_stays.append(evidence.NodeStay(start, stay.node, end))
    return tuple(service_stays)


def find_claimed_absence(
    parts: Iterable[ClaimPart],
    stays: Sequence[evidence.NodeStay],
    served: Sequence[evidence.NodeStay],
    home: str,
) -> tuple[evidence.NodeStay, ...]:
    """Return the time outside of service that claims hold nevertheless: only claims are metered in it.

    It is the time before first contact with `home`, the node that reported the GPU first, and the
    time in which a GPU is under review in the node that it is in.
    """
    first_ns = min((stay.start_ns for stay in stays), default=FOREVER_NS)
    spans = [(stay.start_ns, stay.end_ns) for stay in served]
    extra: set[evidence.NodeStay] = set()
    for part in parts:
        claim = part.claim
        if claim.authority == ClaimAuthority.PROCESS:
            continue
        places = [(s.start_ns, s.end_ns) for s in stays if s.node == claim.node and claim.review]
        if claim.node == home:
            places.append((-FOREVER_NS, min(first_ns, part.contact_ns)))
        for start, end in places:
            low, high = max(start, claim.begins_ns), min(end, claim.end_ns)
            if low < high:
                left = timeline.subtract_spans(timeline.TimePiece(low, high, claim.node), spans)
                extra.update(evidence.NodeStay(a, node, b) for a, b, node in left)
    return tuple(sorted(extra))


def clip_claim(
    claim: evidence.MeteredClaim, served: Iterable[evidence.NodeStay]
) -> Iterator[evidence.MeteredClaim]:
    """Yield an administrator's claim, limited to the time in service."""
    is_first = True
    for stay in sorted(served):
        start, end = max(claim.begins_ns, stay.start_ns), min(claim.end_ns, stay.end_ns)
        if start < end:
            name = claim.id if is_first else f"{claim.id}#{start}"
            yield replace(claim, id=name, from_ns=start, end_ns=end)
            is_first = False


def find_early_claims(
    facts: Iterable[claim_events.ClaimFact], receipts: Mapping[str, node_intervals.NodeReceipts]
) -> dict[tuple[str, str], int]:
    """Return the start of claims that began before first contact with their GPU, by GPU and node."""
    starts: dict[tuple[str, str], int] = {}
    for fact in facts:
        node = receipts.get(fact.node)
        if node is None or not isinstance(fact, claim_events.ReportedClaim):
            continue
        if fact.authority <= ClaimAuthority.PROCESS:
            continue
        for gpu in (fact.gpu,) if claim_events.is_gpu(fact.gpu) else node.gpus:
            contact = node.gpus.get(gpu)
            contact_ns = (
                contact.received_ns - node_intervals.TOLERANCE_NS if contact else fact.start_ns
            )
            if fact.start_ns < contact_ns:
                start_ns = max(fact.start_ns, contact_ns - MAX_BEFORE_NS)
                starts[gpu, fact.node] = min(start_ns, starts.get((gpu, fact.node), start_ns))
    return starts


class ReviewedHistory(NamedTuple):
    """Places of a GPU, and by node the periods of review of the GPU or its claims, with reasons."""

    history: gpu_node_history.GpuNodeHistory
    excess: Mapping[str, Sequence[timeline.TimePiece[str]]]
    """The GPU exceeds the number expected of the node."""
    disputed: Mapping[str, Sequence[timeline.TimePiece[str]]]
    """Several nodes report the GPU."""
    rejected: AbstractSet[str] = frozenset()
    """Nodes whose reports of the GPU were rejected."""


def find_reviewed_history(facts: GpuFacts, expected: review_rules.ExpectedGpus) -> ReviewedHistory:
    """Return the places of a GPU from reports of nodes, expectations and decisions."""
    gpu, contacts = facts.gpu, facts.contacts
    nodes = sorted({presence.node for presence in facts.presences})
    excess = {node: expected.excess(gpu, node, contacts) for node in nodes}
    verdicts = {
        node: expected.decisions.find(review_rules.ReviewKind.GPU, node, gpu) for node in nodes
    }
    node_reports = gpu_node_history.NodeReports(
        facts.valueless, facts.report_spans, verdicts, excess
    )
    history = gpu_node_history.find_node_history(facts.presences, gpu, contacts, node_reports)
    rejected = {
        node
        for node in contacts
        if expected.decisions.find(review_rules.ReviewKind.GPU, node, gpu) is False
    }
    if not history.under_review:
        return ReviewedHistory(history, excess, {}, rejected)
    claimed = {
        node: gpu_node_history.subtract_periods(periods, _times(excess[node]))
        for node, periods in _claimed_under_review(facts, history).items()
    }
    disputed: dict[str, list[timeline.TimePiece[str]]] = {}
    for node in nodes:
        pending_periods = history.under_review.get(node, [])
        other_claims = gpu_node_history.unite_periods(
            p for other, node_periods in claimed.items() if other != node for p in node_periods
        )
        contested = (
            []
            if verdicts[node]
            else gpu_node_history.subtract_periods(other_claims, pending_periods)
        )
        review_pieces = [
            timeline.TimePiece(*period, review_rules.MOVED) for period in pending_periods
        ]
        disputed[node] = sorted(
            [
                *review_pieces,
                *(timeline.TimePiece(*period, review_rules.CONTESTED) for period in contested),
            ]
        )
    times = {node: _times(pieces) for node, pieces in disputed.items()}
    return ReviewedHistory(replace(history, disputed=times), excess, disputed, rejected)


def claimed_time_under_review(
    parts: Sequence[ClaimPart],
    history: gpu_node_history.GpuNodeHistory,
    administered: Iterable[evidence.MeteredClaim],
) -> tuple[evidence.NodeStay, ...]:
    """Return the time held only by claims of a node under review: metered there, in state `review`."""
    claimed_stays: list[evidence.NodeStay] = []
    taken: gpu_node_history.Periods = []
    for node, periods in sorted(history.under_review.items()):
        claims = (
            p.claim for p in parts if p.claim.node == node and p.claim.review == review_rules.MOVED
        )
        other_claims = [p.claim for p in parts if p.claim.node != node]
        other_claims += (claim for claim in administered if claim.node != node)
        busy = gpu_node_history.unite_periods(
            [*taken, *((claim.begins_ns, claim.ceases_ns) for claim in other_claims)]
        )
        claimed = gpu_node_history.unite_periods(
            (claim.begins_ns, claim.ceases_ns) for claim in claims
        )
        free = gpu_node_history.subtract_periods(
            gpu_node_history.intersect_periods(periods, claimed), busy
        )
        taken = gpu_node_history.unite_periods([*taken, *free])
        claimed_stays += (evidence.NodeStay(start, node, end) for start, end in free)
    return tuple(claimed_stays)


def _claimed_under_review(
    facts: GpuFacts, history: gpu_node_history.GpuNodeHistory
) -> dict[str, gpu_node_history.Periods]:
    """By node under review, return the time of its claims that would be billed."""
    ends = claim_events.find_ends(facts.claims, facts.ended, facts.boots)
    periods_by_node: dict[str, gpu_node_history.Periods] = {}
    for key, claim in claim_events.select_first_reports(facts.claims).items():
        start_ns = max(claim.start_ns, claim.trusted_from_ns)
        if claim.authority > ClaimAuthority.PROCESS and claim.node in history.under_review:
            periods_by_node.setdefault(claim.node, []).append((start_ns, ends.get(key, FOREVER_NS)))
    return {
        node: gpu_node_history.intersect_periods(
            history.under_review[node], gpu_node_history.unite_periods(periods)
        )
        for node, periods in periods_by_node.items()
    }


def _times(pieces: Iterable[timeline.TimePiece[str]]) -> gpu_node_history.Periods:
    return gpu_node_history.unite_periods((start, end) for start, end, _ in pieces)
