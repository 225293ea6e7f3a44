"""Facts in memory from frames and events about each GPU, until the database contains them.

The core passes it every batch that contains a fresh frame. All of it is part of snapshots, so
nothing is lost between the frame log and the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from sys import intern

from msgspec.structs import replace

from railscope import claim_terms
from railscope.catalog.tenancy import SOURCES
from railscope.wire import Batch, Envelope
from railscope_collector.evidence import (
    batch_facts,
    claim_events,
    evidence_memory,
    evidence_records,
    gpu_node_history,
    node_claims,
    node_intervals,
)
from railscope_collector.fleet import shape_columns
from railscope_collector.fleet.names import KnownSchema
from railscope_collector.framelog.segment_files import FrameRecord
from railscope_collector.metering.observation import QUARANTINE_NS

FLAGGED_NS = 2_000_000_000
"""Clock offset of a node above which its samples are flagged; above a minute they are not used."""


@dataclass(slots=True)
class EvidenceBook:
    """All facts in memory.

    `changed` has the GPUs with changes other than the continuation of their last samples.
    """

    gpus: dict[str, evidence_memory.GpuMemory] = field(default_factory=dict)
    intervals: evidence_memory.IntervalMemory = field(
        default_factory=evidence_memory.IntervalMemory
    )
    unwritten: dict[claim_events.ClaimFact, None] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)
    """GPUs with new facts from before the end of their open amounts."""
    newest_spans: dict[str, node_intervals.SampleSpan] = field(default_factory=dict)
    """The newest samples of each GPU, as the account counts them."""
    problems: evidence_memory.ProblemReports = field(default_factory=evidence_memory.ProblemReports)
    receipts: dict[str, node_intervals.NodeReceipts] = field(default_factory=dict)
    """Receipts of frames, by node."""
    first_age_ns: int = node_intervals.MAX_AGE_NS
    """Trusted age of reports in the first envelope of a node: less until the reports of other collectors are merged."""
    rejected_claims: int = 0
    version: int = 0
    """Incremented by each claim and each new presence of a GPU."""
    claims: batch_facts.ClaimIndex = field(default_factory=batch_facts.ClaimIndex)
    aged_rows: int = 0
    """Rows that were too old at their receipt to be evidence."""
    excess_gpus: int = 0
    """Sightings of GPUs beyond the maximum of a node."""
    excess_spans: int = 0
    """Spans of samples beyond the maximum of a GPU or a node."""
    spans: batch_facts.SpanCounts = field(default_factory=batch_facts.SpanCounts)
    _by_node: dict[str, list[str]] = field(default_factory=dict)
    """GPUs that were ever seen in each node."""
    _layouts_by_node: dict[str, set[str]] = field(default_factory=dict)
    """GPUs of which each node reported a MIG layout."""

    # Frames ------------------------------------------------------------------------------------

    def steps(
        self,
        record: FrameRecord,
        envelope: Envelope,
        batches: Sequence[tuple[Batch, KnownSchema]],
    ) -> Iterator[None]:
        """Record the facts of batches of an envelope, one interval of a batch per step."""
        skew_ns = self._skew(record, envelope.node)
        receipts = self.node(envelope.node)
        horizon_ns = receipts.horizon_ns(record.received_wall_ns, self.first_age_ns)
        times = evidence_memory.BootTimes.of_batches(batches)
        # The usual case: one span for all batches of an envelope, in place of one for each.
        is_joined = bool(batches) and times.are_joined(record, envelope)
        if is_joined:
            spans = times.report_spans(record, skew_ns)
            self.intervals.record_reports(record, envelope, times, spans)
            receipts.record_reports(spans[:1])
        for batch, schema in batches:
            if is_joined and not schema.has_facts:
                continue
            since_boot_ns = _since_boot_ns(record, envelope, batch)
            oldest_ns = record.received_wall_ns - node_intervals.MAX_AGE_NS - since_boot_ns
            uncertainty_ns = batch_facts.uncertainty_of(batch)
            taking = batch_facts.BatchFacts(
                self,
                record,
                envelope,
                batch,
                schema,
                since_boot_ns,
                skew_ns,
                uncertainty_ns,
                horizon_ns,
                is_joined,
            )
            recent: Sequence[int] = range(batch.rows)
            # Frames older than this would change days that were finalized long ago.
            if min(batch.boot_ns) < oldest_ns:
                recent = [row for row in recent if batch.boot_ns[row] >= oldest_ns]
                self.aged_rows += batch.rows - len(recent)
            for number, rows in batch_facts.group_by_interval(batch.boot_ns, recent):
                self.intervals.record_rows(taking, number, rows)
                if not is_joined:
                    receipts.record_reports(taking.join_spans(rows))
                yield

    def _skew(self, record: FrameRecord, node: str) -> int:
        """Return the clock error of the node in three steps, so that small changes have no effect.

        0 while the collector's own clock is suspect: the error cannot be measured then.
        """
        if record.doubted_since_ns:
            return 0
        skew_ns = abs(record.sent.wall_ns - record.received_wall_ns)
        if skew_ns <= FLAGGED_NS:
            return 0
        if skew_ns <= QUARANTINE_NS:
            # One value for a range: a skew that varied with each envelope would divide the samples into spans.
            return FLAGGED_NS + 1
        facts = {"skew_ns": str(record.sent.wall_ns - record.received_wall_ns)}
        self._report("quarantine", node, record.received_wall_ns, facts)
        return QUARANTINE_NS + 1

    def _report(self, kind: str, node: str, timestamp_ns: int, facts: dict[str, str]) -> None:
        """Report a problem of a node's envelope."""
        self.problems.report(evidence_records.EvidenceProblem(kind, "", node, timestamp_ns, facts))

    def gpu(self, uuid: str) -> evidence_memory.GpuMemory:
        """Return the facts about a GPU, created if absent."""
        memory = self.gpus.get(uuid)
        if memory is None:
            memory = self.gpus[uuid] = evidence_memory.GpuMemory()
        return memory

    def node(self, name: str) -> node_intervals.NodeReceipts:
        """Return the receipts of a node."""
        receipts = self.receipts.get(name)
        if receipts is None:
            receipts = self.receipts[name] = node_intervals.NodeReceipts(0, {})
        return receipts

    def receive(self, record: FrameRecord, envelope: Envelope) -> None:
        """Record an envelope, after its content was recorded."""
        node = self.node(envelope.node)
        node.receive(record.received_wall_ns, record.sent, envelope)
        # The reports of a node decide whether it still has a GPU that other nodes list.
        shared = [gpu for gpu in node.gpus if gpu in self.gpus and self.is_shared(gpu)]
        self.changed.update(shared)

    def merge_contacts(self, contacts: node_intervals.Contacts) -> None:
        """Merge first contacts from the database, perhaps of another collector."""
        for node, gpus in contacts.items():
            receipts = self.node(node)
            earlier = [
                gpu for gpu, contact in gpus.items() if receipts.record_contact(gpu, contact)
            ]
            if earlier:
                self.changed |= receipts.gpus.keys() & self.gpus.keys()
                self.version += 1

    def await_reports(self) -> None:
        """Trust younger reports only, until those of other collectors are merged."""
        self.first_age_ns = node_intervals.LATE_NS

    def merge_reports(self, ends_ns: Mapping[str, int]) -> None:
        """Merge the ends of the newest reports of nodes in the database, perhaps of another collector."""
        for node, end_ns in ends_ns.items():
            receipts = self.node(node)
            receipts.current_ns = max(receipts.current_ns, end_ns)
        self.first_age_ns = node_intervals.MAX_AGE_NS

    def contacts_of(self, node: str) -> node_intervals.Contacts:
        """Return the first receipts of the GPUs of a node."""
        return {node: self.node(node).gpus}

    def record_presence(
        self, uuid: str, presence: gpu_node_history.GpuPresence, pci: str
    ) -> int | None:
        """Record a GPU in a node; return its first receipt in that boot.

        None if it is rejected: the node reported too many GPUs or spans. `presence` may be shared:
        it is copied.
        """
        receipts = self.node(presence.node)
        contact = receipts.gpus.get(uuid)
        # Also for an equal or earlier receipt, which lowers the first contact; later ones change nothing.
        if contact is None or presence.received_ns <= contact.received_ns:
            if not receipts.accepts(uuid):
                self._reject_gpu(presence.node, presence.received_ns)
                return None
            contact = node_intervals.FirstContact(
                presence.received_ns, pci[: node_intervals.MAX_PCI_CHARACTERS]
            )
            if receipts.record_contact(uuid, contact):
                self.intervals.unstored.add(presence.node, evidence_memory.CONTACTS)
                self.changed |= receipts.gpus.keys() & self.gpus.keys()
                self.version += 1
        presences = self.gpu(uuid).presences
        key = intern(f"{presence.node}\n{presence.boot}")
        existing = presences.get(key)
        new = batch_facts.max_new_spans(existing.spans if existing else (), presence.spans)
        if problem := self.spans.limit_exceeded(presence.node, uuid, new):
            self.excess_spans += new
            facts = {"problem": problem}
            self._report("too_many_spans", presence.node, presence.received_ns, facts)
            return None
        before = len(existing.spans) if existing else 0
        received_ns = self._add_presence(uuid, presence, key)
        if added := len(presences[key].spans) - before:
            self.spans.add(presence.node, uuid, added)
        return received_ns

    def _reject_gpu(self, node: str, received_ns: int) -> None:
        self.excess_gpus += 1
        facts = {"max": str(node_intervals.MAX_GPUS)}
        self._report("too_many_gpus", node, received_ns, facts)

    def _add_presence(self, uuid: str, presence: gpu_node_history.GpuPresence, key: str) -> int:
        """Add a presence to those of a GPU; return its first receipt."""
        presences = self.gpu(uuid).presences
        existing = presences.get(key)
        if existing is None:
            presences[key] = replace(presence, spans=[replace(span) for span in presence.spans])
            self._record_node(presence.node, uuid)
            self.changed.add(uuid)
            self.version += 1
            # A new GPU may take a claim from another one of the node.
            if self.has_unplaced(presence.node):
                self.changed.update(self.gpus_in(presence.node))
            return presence.received_ns
        only_grew = presence.received_ns >= existing.received_ns
        first_ns = presence.spans[0].first_ns
        trusted_start_ns = presence.trusted_start_ns or first_ns
        existing.trusted_start_ns = node_intervals.trusted_start(
            existing.spans, existing.trusted_start_ns, trusted_start_ns, first_ns
        )
        existing.received_ns = min(existing.received_ns, presence.received_ns)
        only_grew &= node_intervals.add_spans(existing.spans, presence.spans)
        # The account counts the newest span as it grows; any other change needs a new computation.
        if not only_grew or self.newest_spans.get(uuid) is not existing.spans[-1]:
            self.changed.add(uuid)
        return existing.received_ns

    def list_valueless(
        self, node: str, uuid: str, spans: Sequence[node_intervals.SampleSpan]
    ) -> bool:
        """Record that a node listed a GPU without a value; false if that is rejected.

        A GPU that the node never reported with a value is rejected.
        """
        # A node could otherwise dispute a GPU that it never had, by listing it.
        if uuid not in self.node(node).gpus or uuid not in self.gpus:
            return False
        spans_in_memory = self.gpus[uuid].valueless.setdefault(node, [])
        new = batch_facts.max_new_spans(spans_in_memory, spans)
        if self.spans.limit_exceeded(node, uuid, new):
            self.excess_spans += new
            return False
        before = len(spans_in_memory)
        node_intervals.add_spans(spans_in_memory, node_intervals.copy_times(spans))
        self.spans.add(node, uuid, len(spans_in_memory) - before)
        if self.is_shared(uuid):
            self.changed.add(uuid)
        return True

    def is_shared(self, uuid: str) -> bool:
        """True if more than one node reported a GPU."""
        return len(self.gpus[uuid].presences) > 1 and len(self.nodes_of(uuid)) > 1

    def accepts_layout(self, node: str, uuid: str, received_ns: int) -> bool:
        """True if a node may report the MIG layout of a GPU: by a name of a GPU, up to their maximum.

        The readings of the GPU are no condition: they may arrive later, and the order of frames must not count.
        """
        if not claim_events.is_gpu_name(uuid):
            return False
        names = self._layouts_by_node.setdefault(node, set())
        if uuid not in names and len(names) >= node_intervals.MAX_GPUS:
            self._reject_gpu(node, received_ns)
            return False
        names.add(uuid)
        return True

    def record_layout(
        self,
        uuid: str,
        parts: tuple[shape_columns.ReportedMigInstance, ...],
        span: node_intervals.SampleSpan,
    ) -> None:
        """Record the MIG layout of a GPU in a span, which may be shared: it is copied."""
        if self.gpu(uuid).add_layout(parts, span):
            self.changed.add(uuid)

    # Events ------------------------------------------------------------------------------------

    def claim_steps(self, record: FrameRecord, envelope: Envelope, batch: Batch) -> Iterator[None]:
        """Record the claims of a batch, `_CLAIMS_PER_STEP` per step."""
        events = [
            e for e in batch.events if e.name in claim_events.STARTS or e.name in claim_events.ENDS
        ]
        if not events:
            return
        since_boot_ns = _since_boot_ns(record, envelope, batch)
        horizon_ns = self.node(envelope.node).horizon_ns(record.received_wall_ns, self.first_age_ns)
        reporter = claim_events.ReportingBoot(envelope.node, envelope.boot_id, since_boot_ns)
        for number, event in enumerate(events):
            if number % _CLAIMS_PER_STEP == 0:
                yield
            try:
                # No event is later than its frame.
                boot_ns = min(event.boot_ns, batch.boot_ns[event.row])
                fact = claim_events.parse_claim_event(reporter, replace(event, boot_ns=boot_ns))
            except claim_events.ClaimEventError as error:
                self._reject(record, str(error))
                continue
            if problem := self.claims.limit_exceeded(fact):
                self._reject(record, problem)
                continue
            if isinstance(fact, claim_events.ReportedClaim):
                fact = self._limit_authority(record, fact)
            fact = claim_events.with_receipt(fact, horizon_ns, record.received_wall_ns)
            if self._add_fact(fact):
                self.unwritten[fact] = None
                self.intervals.unstored.add(envelope.node, fact)
                self._mark_changed(fact)
                if record.is_marked:
                    frame_ns = batch.boot_ns[event.row]
                    frame = (frame_ns, since_boot_ns + frame_ns)
                    self.intervals.mark_suspect_claim(record, envelope, fact, frame)

    def _reject(self, record: FrameRecord, problem: str) -> None:
        self.rejected_claims += 1
        facts = {"problem": problem}
        self._report("rejected_claim", record.node, record.received_wall_ns, facts)

    def _limit_authority(
        self, record: FrameRecord, claim: claim_events.ReportedClaim
    ) -> claim_events.ReportedClaim:
        """Return the claim with its authority limited to the maximum of the node's token."""
        if claim.authority <= record.max_authority:
            return claim
        limit = claim_terms.ClaimAuthority(record.max_authority)
        source = claim.source if claim.source in SOURCES else "other"
        levels = {"source": source, "reported": claim.authority.name, "accepted": limit.name}
        facts = {name: value.lower() for name, value in levels.items()}
        self._report("rank_lowered", record.node, record.received_wall_ns, facts)
        return replace(claim, authority=limit)

    def add_claims(self, facts: Iterable[claim_events.ClaimFact]) -> None:
        """Add claims from the database, perhaps of another collector."""
        for fact in facts:
            is_known = fact.gpu in self.gpus or not claim_events.is_gpu(fact.gpu)
            if is_known and self._add_fact(fact):
                self._mark_changed(fact)

    def _mark_changed(self, fact: claim_events.ClaimFact) -> None:
        """Mark the GPU of a claim as changed; all GPUs of its node if that has claims without a device."""
        concerned = {fact.gpu}
        if self.has_unplaced(fact.node):
            concerned.update(self.gpus_in(fact.node))
        self.changed |= concerned
        self.late |= concerned
        self.version += 1

    def _add_fact(self, fact: claim_events.ClaimFact) -> bool:
        """Add a claim or its end; true if it is new."""
        memory = self.gpu(fact.gpu)
        if isinstance(fact, claim_events.ReportedClaim):
            new = not any(
                claim_events.is_repetition(start, fact) for start in self.claims.starts(fact)
            )
            if new:
                memory.claims.append(fact)
        else:
            new = not any(
                replace(fact, trusted_from_ns=end.trusted_from_ns) == end
                and end.trusted_from_ns <= fact.trusted_from_ns
                for end in self.claims.ends(fact)
            )
            if new:
                memory.ended.append(fact)
        if new:
            self.claims.add(fact)
        return new

    # Nodes -----------------------------------------------------------------------------------

    def gpus_in(self, node: str) -> list[str]:
        """Return the GPUs that were seen in a node."""
        gpus = self._by_node.get(node, ())
        return [gpu for gpu in gpus if gpu in self.gpus and node in self.gpus[gpu].nodes]

    def _record_node(self, node: str, gpu: str) -> None:
        gpus = self._by_node.setdefault(node, [])
        if gpu not in gpus:
            gpus.append(gpu)

    def nodes_of(self, gpu: str) -> set[str]:
        """Return the nodes in which a GPU was seen."""
        return self.gpu(gpu).nodes

    def has_unplaced(self, node: str) -> bool:
        """True if a claim of the node names no device."""
        memory = self.gpus.get(claim_events.unplaced_key(node))
        return memory is not None and bool(memory.claims)

    # Facts ---------------------------------------------------------------------------------------

    def facts(self, uuid: str) -> node_claims.GpuFacts:
        """Return the facts about a GPU's time; node evidence is in the database only."""
        memory = self.gpus[uuid]
        presences = list(memory.presences.values())
        nodes = {presence.node for presence in presences} | {claim.node for claim in memory.claims}
        contacts = {node: self.node(node).gpus for node in nodes}
        report_spans = {node: self.node(node).reports for node in nodes}
        return node_claims.GpuFacts(
            uuid,
            presences,
            memory.claims,
            memory.ended,
            memory.layouts,
            contacts=contacts,
            valueless=memory.valueless,
            report_spans=report_spans,
        )

    def forget(self, uuid: str, before_ns: int) -> None:
        """Remove facts that ended before a timestamp, except those that define the state at it."""
        memory = self.gpus[uuid]
        # The database does not have these claims yet: this is their only copy.
        unwritten = {(fact.node, fact.id) for fact in self.unwritten}
        gone = memory.forget(before_ns, unwritten)
        self.spans.count(uuid, memory.presences.values(), memory.valueless)
        self.claims.remove((uuid, node, claim) for node, claim in gone)

    # Snapshots ---------------------------------------------------------------------------------

    def restore(
        self,
        gpus: dict[str, evidence_memory.GpuMemory],
        intervals: Iterable[evidence_memory.IntervalInMemory],
        unwritten: Iterable[claim_events.ClaimFact],
    ) -> None:
        """Restore from a snapshot."""
        self.gpus = gpus
        self.intervals.restore(intervals)
        for uuid, memory in gpus.items():
            self.spans.count(uuid, memory.presences.values(), memory.valueless)
            for node in memory.nodes:
                self._record_node(node, uuid)
        self.unwritten = dict.fromkeys(unwritten)
        self.claims = batch_facts.ClaimIndex()
        for memory in gpus.values():
            facts: list[claim_events.ClaimFact] = [*memory.claims, *memory.ended]
            for fact in facts:
                self.claims.add(fact)
        # Everything is computed again: a snapshot has the facts and no results.
        self.changed = set(self.gpus)
        self.late = set(self.gpus)


def _since_boot_ns(record: FrameRecord, envelope: Envelope, batch: Batch) -> int:
    """Return the zero of the node's boot clock, on the collector's clock."""
    age_ns = record.sent.age_ns(envelope.boot_id, batch.wall_ns[-1], batch.boot_ns[-1])
    return record.received_wall_ns - age_ns - batch.boot_ns[-1]


_CLAIMS_PER_STEP = 256
