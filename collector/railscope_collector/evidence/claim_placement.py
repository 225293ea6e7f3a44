"""Claims of a node without a device, placed on its GPUs: equally for live accounts and ledger days.

A placement concerns all GPUs of a node, so the evidence of one of them depends on the claims and
stays of the others. For a node without such claims nothing of this is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from msgspec.structs import replace

from railscope.claim_terms import ClaimAuthority
from railscope.timestamps import FOREVER_NS
from railscope_collector.evidence import (
    claim_events,
    gpu_evidence,
    gpu_node_history,
    node_claims,
    node_intervals,
    review_rules,
)
from railscope_collector.metering import holders, placement, timeline
from railscope_collector.metering.evidence import Evidence, MeteredClaim, NodeStay


class NodeFacts(Protocol):
    """Facts about GPUs, and the GPUs that were in a node."""

    @property
    def version(self) -> int:
        """A number that changes with every change."""
        ...

    def facts(self, gpu: str) -> node_claims.GpuFacts:
        """Return the facts about a GPU, or under a key from `unplaced_in`."""
        ...

    def gpus_in(self, node: str) -> Iterable[str]:
        """Return the GPUs that were ever seen in a node."""
        ...

    def has_unplaced(self, node: str) -> bool:
        """True if the node has a claim without a device."""
        ...


BuiltEvidence: TypeAlias = tuple[Evidence, gpu_node_history.GpuNodeHistory]
_SpansByNode: TypeAlias = Mapping[str, Sequence[node_intervals.SampleSpan]]


class _CommonFacts(NamedTuple):
    """Facts about a GPU without claims in one node, which the other GPUs of the node usually share."""

    node: str
    received_ns: int | None
    presences: Sequence[gpu_node_history.GpuPresence]
    layouts: Sequence[node_intervals.LayoutSpans]
    valueless: _SpansByNode
    reports: _SpansByNode
    report_spans: _SpansByNode
    excess: Sequence[timeline.TimePiece[str]]

    def copy(self) -> _CommonFacts:
        """Return a copy that later frames do not change."""
        return self._replace(
            presences=[
                replace(presence, spans=_copy_spans(presence.spans)) for presence in self.presences
            ],
            layouts=[replace(layout, spans=_copy_spans(layout.spans)) for layout in self.layouts],
            valueless={node: _copy_spans(spans) for node, spans in self.valueless.items()},
            reports={node: _copy_spans(spans) for node, spans in self.reports.items()},
            report_spans={node: _copy_spans(spans) for node, spans in self.report_spans.items()},
        )


def _copy_spans(spans: Iterable[node_intervals.SampleSpan]) -> list[node_intervals.SampleSpan]:
    return [replace(span) for span in spans]


@dataclass(slots=True)
class ClaimPlacer:
    """Evidence with the placed claims of nodes; each node is placed once for all of its GPUs."""

    source: NodeFacts
    files: gpu_evidence.AdministratorInputs
    _version: int = -1
    _placements: dict[str, placement.Placement] = field(default_factory=dict)
    _evidence: dict[str, BuiltEvidence] = field(default_factory=dict)
    _by_node: dict[str, tuple[_CommonFacts, BuiltEvidence]] = field(default_factory=dict)
    """Facts and evidence of the last GPU of each node."""
    _named_gpus: set[str] = field(init=False)
    """Names in administrators' files and decisions."""
    _expected: review_rules.ExpectedGpus = field(init=False)

    def __post_init__(self) -> None:
        """Collect the names in the files."""
        files = self.files
        self._expected = files.expected
        self._named_gpus = {entry.target for entry in files.calendar.entries}
        self._named_gpus.update(files.claims.by_target, files.retired.by_gpu)
        self._named_gpus.update(subject.name for subject in files.decisions.by_subject)

    def evidence(self, gpu: str) -> tuple[Evidence, gpu_node_history.GpuNodeHistory]:
        """Return the evidence of a GPU, including claims of its nodes that were placed on it."""
        if self._version != self.source.version:
            self._version = self.source.version
            self._placements.clear()
            self._evidence.clear()
            self._by_node.clear()
        built, history = self._evidence_and_history(gpu)
        nodes = {stay.node for stay in built.stays}
        extra = [
            claim
            for node in sorted(nodes)
            if self.source.has_unplaced(node)
            for claim in self._placement(node).claims.get(gpu, ())
        ]
        if not extra:
            return built, history
        extra = _assign_unique_names(extra, built.claims)
        extended = replace(built, claims=tuple(sorted({*built.claims, *extra})))
        early = {
            NodeStay(max(start, claim.begins_ns), claim.node, min(end, claim.ceases_ns))
            for claim in extra
            for start, end in self._early(built, history, claim.node)
            if max(start, claim.begins_ns) < min(end, claim.ceases_ns)
        }
        if early:
            stays = sorted({*built.stays, *early})
            extended = replace(extended, stays=self.files.retired.service_stays(gpu, stays))
        return extended, history

    def _early(
        self, built: Evidence, history: gpu_node_history.GpuNodeHistory, node: str
    ) -> list[tuple[int, int]]:
        """Return the time before first contact in which the node had this GPU if a person accepts that."""
        facts = self.source.facts(built.gpu)
        first_ns = min((stay.start_ns for stay in history.stays), default=FOREVER_NS)
        served = any(s.node == node and s.start_ns <= first_ns < s.end_ns for s in built.stays)
        if not served or gpu_evidence.find_first_node(facts, history) != node:
            return []
        until_ns = min(first_ns, node_intervals.node_floor_ns(facts.contacts, node))
        stay_periods = [(stay.start_ns, stay.end_ns) for stay in built.stays]
        return [
            (a, b)
            for a, b, _ in timeline.subtract_spans(
                timeline.TimePiece(-FOREVER_NS, until_ns, node), stay_periods
            )
        ]

    def excess(self, node: str) -> Sequence[placement.ClaimExcess]:
        """Return the node's claims that exceed its GPUs."""
        return self._placement(node).excess if self.source.has_unplaced(node) else ()

    def _evidence_and_history(self, gpu: str) -> tuple[Evidence, gpu_node_history.GpuNodeHistory]:
        if gpu not in self._evidence:
            self._evidence[gpu] = self._build(self.source.facts(gpu))
        return self._evidence[gpu]

    def _build(self, facts: node_claims.GpuFacts) -> BuiltEvidence:
        """Build the evidence of a GPU: once for the GPUs of a node with the same facts."""
        common = self._common_facts(facts)
        if common is None:
            return gpu_evidence.build_evidence(facts, self.files)
        previous, built = self._by_node.get(common.node, (None, None))
        if built is None or previous != common:
            built = gpu_evidence.build_evidence(facts, self.files)
            # A copy, as spans in memory grow: the comparison would be with itself.
            self._by_node[common.node] = common.copy(), built
        return replace(built[0], gpu=facts.gpu), built[1]

    def _common_facts(self, facts: node_claims.GpuFacts) -> _CommonFacts | None:
        """Return all facts on which the evidence of a GPU depends; None if its own name matters."""
        nodes = {presence.node for presence in facts.presences}
        if len(nodes) != 1 or facts.claims or facts.ended or facts.gpu in self._named_gpus:
            return None
        (node,) = nodes
        contact = facts.contacts.get(node, {}).get(facts.gpu)
        return _CommonFacts(
            node,
            contact.received_ns if contact else None,
            facts.presences,
            facts.layouts,
            facts.valueless,
            facts.reports,
            facts.report_spans,
            self._expected.excess(facts.gpu, node, facts.contacts),
        )

    def _placement(self, node: str) -> placement.Placement:
        cached = self._placements.get(node)
        if cached is None:
            gpus = sorted(set(self.source.gpus_in(node)), key=lambda gpu: self._position(gpu, node))
            node_gpus = [self._evidence_and_history(gpu) for gpu in gpus]
            boots = [b for gpu in gpus for b in self.source.facts(gpu).boots if b.node == node]
            unplaced = self.source.facts(claim_events.unplaced_key(node))
            facts = replace(unplaced, further_boots=boots)
            ends = claim_events.find_ends(facts.claims, facts.ended, facts.boots)
            counts = gpu_evidence.find_deviceless_claims(
                facts, ends, self.files.tenants, self.files.decisions
            )
            placed = []
            for built, history in node_gpus:
                spans = [*self._early(built, history, node), *self._spans(built, history, node)]
                claims = [
                    replace(claim, start_ns=start_ns, end_ns=end_ns)
                    for start_ns, end_ns, claim in holders.claims_in_force(built)
                ]
                placed.append(placement.PlacementGpu(built.gpu, spans, claims))
            cached = placement.place_counts(placed, counts)
            self._placements[node] = cached = cached._replace(
                excess=_clip_to_contact(cached.excess, node_gpus)
            )
        return cached

    def _spans(
        self, built: Evidence, history: gpu_node_history.GpuNodeHistory, node: str
    ) -> Iterator[tuple[int, int]]:
        """Yield the time that a GPU is in service in a node, and not claimed by another node that lists it.

        A claim on a GPU under review is metered there, and no further claim is placed on it.
        """
        expected = self.files.expected
        if expected.decisions.find(review_rules.ReviewKind.GPU, node, built.gpu) is False:
            return
        first_ns = min((stay.start_ns for stay in history.stays), default=FOREVER_NS)
        waits = [
            (max(start, first_ns), end)
            for start, end, _ in expected.excess(
                built.gpu, node, self.source.facts(built.gpu).contacts
            )
            if end > first_ns
        ]
        for stay in holders.resolve_stays(built):
            if stay.value.node == node:
                service_periods = gpu_node_history.subtract_periods(
                    [(stay.start_ns, stay.end_ns)], history.disputed.get(node, [])
                )
                yield from gpu_node_history.subtract_periods(service_periods, waits)

    def _position(self, gpu: str, node: str) -> tuple[bool, str, str]:
        """Sort key of GPUs: by PCI address; GPUs without one follow, by UUID."""
        contact = self.source.facts(gpu).contacts.get(node, {}).get(gpu)
        # Drivers write the domain with 4 or 8 digits: padded, addresses are in one order.
        address = contact.pci.upper().rjust(_ADDRESS_LENGTH, "0") if contact and contact.pci else ""
        return not address, address, gpu


_ADDRESS_LENGTH = len("00000000:00:00.0")


def _clip_to_contact(
    found: Sequence[placement.ClaimExcess],
    there: Sequence[tuple[Evidence, gpu_node_history.GpuNodeHistory]],
) -> list[placement.ClaimExcess]:
    """Return the excess after the first GPU of the node, without claims under review."""
    first_ns = min((s.start_ns for _, history in there for s in history.stays), default=-FOREVER_NS)
    return [
        claim
        for claim in found
        if claim.end_ns > first_ns and claim.authority is not ClaimAuthority.REVIEW
    ]


def _assign_unique_names(
    extra: Iterable[MeteredClaim], own_claims: Iterable[MeteredClaim]
) -> list[MeteredClaim]:
    """Rename placed claims so that no claim on the GPU itself has the same name."""
    names, new_names = (
        node_claims.ClaimNames(claim.id for claim in own_claims),
        dict[tuple[str, str], str](),
    )
    renamed = []
    for claim in extra:
        key = claim.node, claim.id
        if key not in new_names:
            new_names[key] = names.free(claim.id, claim.node)
        renamed.append(replace(claim, id=new_names[key]))
    return renamed
