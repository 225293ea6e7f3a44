"""Records of another collector as they are applied to a state (see `railscope_collector.state.record_feed`).

The data came from nodes, through another program: each name, number, time and cost has a bound that is checked before
it is stored. What is invalid or beyond a bound is left out and counted with its node, as the others are not affected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np

from railscope import claim_terms, envelopes, service, timestamps, wire
from railscope_collector import config, work_limits
from railscope_collector.access.credentials import MAX_AUTHORITY
from railscope_collector.evidence import batch_facts, claim_events, gpu_node_history, node_intervals
from railscope_collector.fleet import (
    fleet,
    recent_events,
    schema_columns,
    schema_templates,
    schemas,
    sheets,
)
from railscope_collector.framelog.segment_files import FrameRecord
from railscope_collector.state import collector_state, envelope_cost, record_feed, state_checkpoint

CLOCK_TOLERANCE_NS = 2 * timestamps.SECOND_NS
"""Difference of two collectors' clocks up to which times are left as they are."""
MAX_AHEAD_NS = timestamps.HOUR_NS
"""Time after the present one of the sender that a receipt may have: its clock may have been set back."""
MAX_NODES = 65_536
"""Nodes of one collector."""
# Bounds the memory: a defective sender may invent names.
_MAX_REJECTED_NODES = 10_000
_MAX_GPUS = 10**wire.RAIL_DIGITS


class ReceivedCopies(NamedTuple):
    """The collector that passed on the last copy, and the number of copies."""

    collector: str
    copies: int


@dataclass(slots=True)
class FeedFollower:
    """Applies the parts of one feed to a state."""

    core: collector_state.CollectorState
    limits: config.IngestLimits
    name: str = ""
    """Collector that sends them."""
    owners: dict[str, str] = field(default_factory=dict)
    """Collector that reported each node last."""
    lead_ns: Callable[[], int] = lambda: 0
    """Returns the lead of this collector's clock over the sender's, measured without the delay of the records."""
    copies: dict[str, ReceivedCopies] = field(default_factory=dict)
    """Copies of frames of each node since the last record of it."""
    shift_ns: int = 0
    """The lead, 0 if the clocks agree."""
    sender_ns: int = 0
    """Time that the sender stated last; it has sent all of its records before that."""
    rejected: int = 0
    """Parts and facts that were not applied."""
    problem: str = ""
    """Reason why the last of these was not applied."""
    rejected_nodes: Counter[str] = field(default_factory=Counter)
    """Parts and facts that were not applied, by node."""
    nodes: set[str] = field(default_factory=set)
    is_complete: bool = False
    """True after the snapshot."""

    def set_clock(self, sender_ns: int) -> None:
        """Set the time of the sender, and follow the difference of both clocks. Raises FeedError."""
        self.sender_ns, lead_ns = _checked_time(sender_ns), self.lead_ns()
        # Changed only beyond the tolerance: times must not follow the jitter of the measurement.
        if abs(lead_ns - self.shift_ns) > CLOCK_TOLERANCE_NS:
            self.shift_ns = lead_ns if abs(lead_ns) > CLOCK_TOLERANCE_NS else 0

    async def apply(self, part: record_feed.FeedPart, slices: work_limits.TimeSlices) -> None:
        """Apply a part. Raises FeedError if the feed cannot be continued, and OSError."""
        match part:
            case record_feed.FeedHeader() | record_feed.SenderTime():
                self.set_clock(part.wall_ns)
            case record_feed.SchemasPart():
                await self._attempt_slowly(part)
            case record_feed.RecordPart() | record_feed.CopyPart():
                record = part.record
                begin = (
                    self._steps if isinstance(part, record_feed.RecordPart) else self._copy_steps
                )
                for _ in self._attempt(record.node, lambda: begin(record)) or ():
                    await slices.yield_if_due()
            case record_feed.OmittedPart():
                self.reject(part.node, part.problem)
            case _:
                self._apply_snapshot(part)
        await slices.yield_if_due()

    def _apply_snapshot(self, part: record_feed.SnapshotPart) -> None:
        match part:
            case state_checkpoint.NodePart():
                self._attempt(part.name, lambda: self._merge_node(part))
            case state_checkpoint.GpuPart():
                self._merge_gpu(part)
            case state_checkpoint.EventsPart():
                for node, boot_id, event in part.events:
                    self._attempt(node, lambda: self._add_event(node, boot_id, event))  # noqa: B023 - called at once
            case record_feed.ReadingsPart():
                self._attempt(part.node, lambda: self._apply_readings(part))
            case record_feed.SnapshotEnd():
                self.is_complete = True

    def reject(self, node: str, problem: str) -> None:
        """Count a part or a fact that is left out."""
        self.rejected += 1
        # The name is from the sender and not checked yet: it may have any length.
        self.problem = f"{node[: wire.MAX_NAME]}: {problem}" if node else problem
        if node in self.rejected_nodes or len(self.rejected_nodes) < _MAX_REJECTED_NODES:
            self.rejected_nodes[node[: wire.MAX_NAME]] += 1

    def _attempt(
        self, node: str, work: Callable[[], Iterator[None] | None]
    ) -> Iterator[None] | None:
        """Do a part; what is invalid is left out and counted."""
        try:
            return work()
        # The errors of invalid content. Any other is a defect of the program, and ends the feed.
        except (ValueError, LookupError, ArithmeticError) as error:
            self.reject(node, str(error))
            return None

    async def _attempt_slowly(self, part: record_feed.SchemasPart) -> None:
        try:
            # In a thread: schemas are written to files.
            await service.run_in_thread(self._put_schemas, part)
        except (ValueError, LookupError, ArithmeticError) as error:
            self.reject(part.node, f"invalid schema: {error}")

    def _check_receipt(self, *times_ns: int) -> None:
        """Check times that are not after the present. Raises FeedError."""
        for time_ns in times_ns:
            if _checked_time(time_ns) > self.sender_ns + MAX_AHEAD_NS:
                message = f"time {time_ns}: expected at most that of the sender, {self.sender_ns}"
                raise record_feed.FeedError(message)

    def _check_spans(self, spans: Sequence[node_intervals.SampleSpan], limit: int) -> None:
        """Check spans of samples. Raises FeedError."""
        _check_count("spans of samples", len(spans), limit)
        first_ns = 0
        for span in spans:
            if not (first_ns <= span.first_ns <= span.last_ns):
                message = f"span from {span.first_ns} to {span.last_ns}: expected spans in order"
                raise record_feed.FeedError(message)
            self._check_receipt(span.last_ns)
            _checked_time(span.uncertainty_ns)
            _checked_time(span.skew_ns)
            first_ns = span.first_ns

    # Records and schemas ------------------------------------------------------------------------

    def _put_schemas(self, part: record_feed.SchemasPart) -> None:
        recognized: list[schema_templates.EncodedSchema] = []
        for content in part.contents:
            _check_count("bytes of a schema", len(content), envelopes.MAX_SCHEMA_BYTES)
            schema = self.core.schemas.recognize(content)
            schema.check(self.limits.columns_per_schema)
            recognized.append(schema)
        self.core.schemas.put_all(recognized)

    def _schema(self, digest: bytes) -> schemas.KnownSchema:
        schema = self.core.schemas.get(digest)
        if schema is None:
            message = f"unknown schema {digest[: wire.HASH_BYTES].hex()}"
            raise record_feed.FeedError(message)
        return schema

    def _add_node(self, name: str) -> None:
        """Add a node to those of the collector. Raises FeedError."""
        _check_names(wire.MAX_NAME, name)
        if not name:
            message = "node without a name"
            raise record_feed.FeedError(message)
        if name not in self.nodes:
            _check_count("nodes of a collector", len(self.nodes) + 1, MAX_NODES)
            self.nodes.add(name)

    def _steps(self, record: FrameRecord) -> Iterator[None]:
        """Check a record, and return the steps that apply it. Raises ValueError."""
        shifted, envelope = self._check(record)
        self.owners[record.node] = self.name
        return self._record_steps(shifted, envelope)

    def _record_steps(self, record: FrameRecord, envelope: wire.Envelope) -> Iterator[None]:
        yield from self.core.steps(record, envelope)
        # A record proves that the node sends to this collector again: copies from another one are obsolete. After the
        # steps, as a copy of the same frames may arrive between two of them.
        self.copies.pop(record.node, None)

    def _copy_steps(self, record: FrameRecord) -> Iterator[None]:
        """As `_steps`, for a live copy: the node remains one of the collector that reported it last."""
        shifted, envelope = self._check(record)
        # Two feeds have no order: a copy that arrives after the record of its frames is no sign of a missing record.
        if self.core.count_new_frames(envelope):
            earlier = self.copies.get(record.node)
            count = earlier.copies + 1 if earlier else 1
            self.copies[record.node] = ReceivedCopies(self.name, count)
        return self.core.copy_steps(shifted, envelope, is_shown=True)

    def _check(self, record: FrameRecord) -> tuple[FrameRecord, wire.Envelope]:
        """Return a record by the own clock, with its envelope. Raises ValueError."""
        # The bounds of ingest, as another program checked them: its limits may be wider, or it may be defective.
        opened = envelopes.open_body(record.body, self.limits.decompressed_bytes)
        envelope = opened.decode_envelope()
        if envelope.node != record.node:
            message = f"envelope of node {envelope.node!r}: expected that of its record"
            raise record_feed.FeedError(message)
        used = [self._schema(batch.schema) for batch in envelope.batches]
        for batch, schema in zip(envelope.batches, used, strict=True):
            sheets.check_batch(batch, schema.layout.columns, self.limits.frames_per_batch)
            if batch.stream != schema.layout.stream:
                message = f"batch of {batch.stream!r}: invalid schema"
                raise record_feed.FeedError(message)
        cost = envelope_cost.envelope_cost(envelope, used)
        problems = [
            *envelope_cost.find_exceeded_bounds(cost, self.limits),
            *self.core.find_sequence_problems(envelope, self.limits.gaps_per_stream),
        ]
        if problems:
            raise record_feed.FeedError("; ".join(problems))
        self._check_receipt(record.received_wall_ns, record.first_received_ns)
        _checked_time(record.doubted_since_ns)
        for sent in (record.sent, record.first_sent or record.sent):
            _check_names(wire.MAX_NAME, sent.boot_id)
            _checked_time(sent.wall_ns)
            _checked_time(sent.boot_ns)
        shifted = msgspec.structs.replace(
            record,
            received_wall_ns=record.received_wall_ns + self.shift_ns,
            max_authority=min(record.max_authority, MAX_AUTHORITY),
        )
        self._add_node(record.node)
        return shifted, envelope

    def _apply_readings(self, part: record_feed.ReadingsPart) -> None:
        """Set the current readings of a stream, unless newer ones are present."""
        schema = self._schema(part.schema)
        layout = schema.layout
        self._check_receipt(part.timestamp_ns)
        _checked_time(part.last_ns)
        # One frame as a batch, so that the same checks as for received frames apply. Its sequence is not recorded.
        stamps = (part.timestamp_ns,), (part.boot_ns,)
        unchanged = bytes((layout.columns + 7) // 8)
        batch = wire.Batch(
            layout.stream, part.schema, 1, *stamps, part.values, unchanged, b"", part.reasons
        )
        sheets.check_batch(batch, layout.columns, 1)
        rates = np.frombuffer(part.rates, "<f4")
        if len(rates) != len(layout.counters):
            message = f"{len(rates)} rates: expected {len(layout.counters)}"
            raise record_feed.FeedError(message)
        self._add_node(part.node)
        sender = (part.node, part.run, part.boot_id)
        at_ns = part.timestamp_ns + self.shift_ns
        update = fleet.NodeUpdate(*sender, layout, batch, at_ns)
        if self.core.fleet.apply(update):
            row = self.core.fleet.get_or_add_node(part.node).rows[layout.stream]
            row.block.set_rates(row.index, rates, part.last_ns)
            if schema.gpus:
                self.core.gpus_by_node[part.node] = schema.gpus_by_rail
        self.core.schemas.record_uses(part.node, [part.schema])

    # Other parts of the snapshot ----------------------------------------------------------------

    def _add_event(self, node: str, boot_id: str, event: wire.WireEvent) -> None:
        _check_names(wire.MAX_NAME, node, boot_id)
        envelopes.check_event(event)
        _checked_time(event.wall_ns)
        _checked_time(event.boot_ns)
        self.core.add_event(recent_events.SeenEvent(node, boot_id, event))

    def _merge_node(self, part: state_checkpoint.NodePart) -> None:
        """Add a node; of one that two collectors have, the newest report counts."""
        memory, received, shift_ns = part.memory, part.receipts, self.shift_ns
        if memory:
            self._check_memory(memory)
        self._check_receipt(received.current_ns)
        _check_count("GPUs of a node", len(received.gpus), node_intervals.MAX_GPUS)
        _check_gpu_names(*received.gpus)
        for contact in received.gpus.values():
            self._check_receipt(contact.received_ns)
            _check_names(node_intervals.MAX_PCI_CHARACTERS, contact.pci)
        self._check_spans(received.reports, node_intervals.MAX_REPORT_SPANS)
        self._add_node(part.name)
        node = self.core.fleet.get_or_add_node(part.name)
        # The newest report counts: after a failover, two collectors have the node in their snapshots.
        if memory and memory.timestamp_ns + shift_ns >= node.timestamp_ns:
            self.owners[part.name] = self.name
            node.agent_version, node.clock_offset_ns = memory.agent_version, memory.clock_offset_ns
            node.timestamp_ns = memory.timestamp_ns + shift_ns
            if memory.gpus:
                self.core.gpus_by_node[part.name] = memory.gpus
        self.owners.setdefault(part.name, self.name)
        for stream, timestamp_ns in (memory.stream_timestamps_ns if memory else {}).items():
            known_ns = node.stream_timestamps_ns.get(stream, 0)
            node.stream_timestamps_ns[stream] = max(known_ns, timestamp_ns + shift_ns)
        receipts = self.core.evidence.node(part.name)
        receipts.current_ns = max(receipts.current_ns, received.current_ns)
        receipts.record_reports(received.reports)
        self.core.evidence.merge_contacts({part.name: received.gpus})

    def _check_memory(self, memory: state_checkpoint.NodeMemory) -> None:
        streams = memory.stream_timestamps_ns
        _check_count("streams of a node", len(streams), record_feed.MAX_STREAMS)
        _check_count("GPUs of a node", len(memory.gpus), _MAX_GPUS)
        _check_names(wire.MAX_NAME, memory.agent_version, *streams)
        _check_names(envelopes.MAX_TEXT, *memory.gpus.values())
        self._check_receipt(memory.timestamp_ns, *streams.values())
        _checked_time(abs(memory.clock_offset_ns))
        if not all(0 <= rail < _MAX_GPUS for rail in memory.gpus):
            message = f"invalid rail: expected numbers below {_MAX_GPUS}"
            raise record_feed.FeedError(message)

    def _merge_gpu(self, part: state_checkpoint.GpuPart) -> None:
        """Add the facts about a GPU's time, within the bounds of each node that the feed contains."""
        book, uuid, memory = self.core.evidence, part.uuid, part.memory
        for presence in memory.presences.values():
            if presence.node in self.nodes:
                self._attempt(presence.node, lambda: self._add_presence(uuid, presence))  # noqa: B023 - called at once
        # Claim by claim: an invalid fact must not separate a start from its end.
        for facts in record_feed.group_claims(memory):
            if facts[0].node in self.nodes:
                self._attempt(facts[0].node, lambda: self._add_claim(uuid, facts))  # noqa: B023 - called at once
        if uuid not in book.gpus:
            return
        nodes = ", ".join(sorted(book.nodes_of(uuid)))
        self._attempt(nodes, lambda: self._add_layouts(uuid, memory.layouts))
        for node, spans in memory.valueless.items():
            if node in self.nodes and spans:
                self._attempt(node, lambda: self._add_valueless(node, uuid, spans))  # noqa: B023 - called at once

    def _add_presence(self, uuid: str, presence: gpu_node_history.GpuPresence) -> None:
        _check_gpu_names(uuid)
        _check_names(wire.MAX_NAME, presence.boot)
        self._check_receipt(presence.received_ns, presence.trusted_start_ns)
        self._check_spans(presence.spans, batch_facts.MAX_OF_A_GPU)
        book = self.core.evidence
        if presence.spans:
            contact = book.node(presence.node).gpus.get(uuid)
            book.record_presence(uuid, presence, contact.pci if contact else "")

    def _add_valueless(
        self, node: str, uuid: str, spans: Sequence[node_intervals.SampleSpan]
    ) -> None:
        self._check_spans(spans, batch_facts.MAX_OF_A_GPU)
        self.core.evidence.list_valueless(node, uuid, spans)

    def _add_layouts(self, uuid: str, layouts: Iterable[node_intervals.LayoutSpans]) -> None:
        for layout in layouts:
            _check_gpu_names(uuid)
            self._check_spans(layout.spans, record_feed.MAX_PART_SPANS)
            _check_count("MIG instances", len(layout.parts), wire.MAX_COLUMNS)
            for instance in layout.parts:
                _check_instance(instance)
            for span in layout.spans:
                self.core.evidence.record_layout(uuid, layout.parts, span)

    def _add_claim(self, uuid: str, facts: Sequence[claim_events.ClaimFact]) -> None:
        """Add the reports of one claim and of its end. Raises FeedError for the first invalid one."""
        book = self.core.evidence
        is_ended = {type(fact) for fact in facts} == {
            claim_events.ReportedClaim,
            claim_events.ReportedEnd,
        }
        for fact in facts:
            _check_claim(uuid, fact)
            if fact in book.claims:
                continue
            if problem := book.claims.limit_exceeded(fact, is_ended=is_ended):
                raise record_feed.FeedError(problem)
            book.gpu(uuid)
            book.add_claims([fact])


def _check_claim(uuid: str, fact: claim_events.ClaimFact) -> None:
    """Check a claim or an end as in ingest. Raises FeedError, ShareError."""
    if fact.gpu != uuid or not (
        claim_events.is_gpu_name(uuid) or uuid == claim_events.unplaced_key(fact.node)
    ):
        message = f"claim on {fact.gpu[: wire.MAX_NAME]!r}: expected the GPU of its part, by a name of a GPU"
        raise record_feed.FeedError(message)
    _check_names(claim_events.MAX_CHARACTERS, fact.gpu.removeprefix("@"), fact.id)
    _checked_time(fact.trusted_from_ns)
    if isinstance(fact, claim_events.ReportedEnd):
        _checked_time(fact.timestamp_ns)
        return
    texts = (fact.source, fact.owner, fact.tenant, fact.workload, fact.profile, fact.share)
    _check_names(claim_events.MAX_CHARACTERS, fact.boot, *texts)
    for time_ns in (fact.start_ns, fact.reported_ns, fact.end_ns, fact.received_ns):
        _checked_time(time_ns)
    _checked_time(fact.uncertainty_ns)
    # One more, as -1 is the value for an unknown start.
    _checked_time(fact.start_boot_ns + 1)
    _check_count("GPUs of a claim", fact.count, claim_terms.MAX_COUNT)
    _check_count("authority of a claim", fact.authority, MAX_AUTHORITY)
    for low, high in (fact.compute, fact.memory):
        if not 0 <= low < high <= claim_terms.GPU_CAPACITY:
            message = (
                f"invalid slot range {low}-{high}: expected at most {claim_terms.GPU_CAPACITY}"
            )
            raise record_feed.FeedError(message)
    if fact.share:
        claim_terms.parse_share(fact.share)


def _check_instance(instance: schema_columns.ReportedMigInstance) -> None:
    for low, high in (instance.compute, instance.memory):
        if not 0 <= low <= high <= claim_terms.GPU_CAPACITY:
            message = (
                f"invalid MIG instance {low}-{high}: expected at most {claim_terms.GPU_CAPACITY}"
            )
            raise record_feed.FeedError(message)


def _check_names(max_characters: int, *names: str) -> None:
    for name in names:
        _check_count("characters of a name", len(name), max_characters)
        if not name.isprintable():
            message = f"invalid name {name!r}: expected printable characters"
            raise record_feed.FeedError(message)


def _check_gpu_names(*names: str) -> None:
    _check_names(claim_events.MAX_CHARACTERS, *names)
    for name in names:
        if not claim_events.is_gpu_name(name):
            message = f"invalid GPU {name!r}: expected a name that a node reports"
            raise record_feed.FeedError(message)


def _check_count(subject: str, count: int, limit: int) -> None:
    if not 0 <= count <= limit:
        message = f"{count} {subject}: expected at most {limit}"
        raise record_feed.FeedError(message)


def _checked_time(time_ns: int) -> int:
    """Return a time if it is one. Raises FeedError."""
    if not 0 <= time_ns <= timestamps.FOREVER_NS:
        message = f"invalid time {time_ns}: expected nanoseconds since 1970"
        raise record_feed.FeedError(message)
    return time_ns
