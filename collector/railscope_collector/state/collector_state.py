"""State of the collector.

Live ingest and the replay of the frame log after a restart change the state by the same function,
with the same arguments, so that a restart restores the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from sys import intern

import structlog
from msgspec.structs import replace

from railscope import log_output
from railscope.device_names import Names
from railscope.wire import Batch, Envelope, WireEntity
from railscope_collector.evidence import first_receipts, open_quarters
from railscope_collector.fleet import fleet as fleets, recent_events
from railscope_collector.fleet.names import KnownSchema
from railscope_collector.fleet.schemas import StoredSchemas
from railscope_collector.framelog import received_frames, segment_files

log = structlog.get_logger(__name__)

_EVENTS_PER_STEP = 256
"""Events of a batch after which other work may run: one envelope may have thousands."""


Digest = bytes


@dataclass(slots=True)
class IngestCounts:
    """Counters of ingest since the start."""

    envelopes: int = 0
    frames: int = 0
    switch_frames: int = 0
    """Those of switches."""
    duplicates: int = 0
    values: int = 0
    bytes: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    unknown_schemas: set[Digest] = field(default_factory=set)
    """Missing schemas that durable frames refer to."""

    def reject(self, reason: str) -> None:
        """Count a rejected envelope; not a request for a schema, with which the protocol continues."""
        if reason == "unknown_schema":
            return
        self.rejected[reason] = self.rejected.get(reason, 0) + 1


@dataclass(slots=True)
class CollectorState:
    """Fleet, received sequences, evidence and recent events."""

    schemas: StoredSchemas
    fleet: fleets.Fleet = field(default_factory=fleets.Fleet)
    received: received_frames.ReceivedFrames = field(default_factory=received_frames.ReceivedFrames)
    evidence: open_quarters.OpenQuarters = field(default_factory=open_quarters.OpenQuarters)
    receipts: first_receipts.ReceiptSigner = field(default_factory=first_receipts.ReceiptSigner)
    gpus_by_node: dict[str, Mapping[int, str]] = field(default_factory=dict)
    """UUID of the GPU on each rail, by node."""
    events: recent_events.RecentEvents = field(default_factory=recent_events.RecentEvents)
    log_limit: log_output.LogRateLimit = field(default_factory=log_output.LogRateLimit)
    counts: IngestCounts = field(default_factory=IngestCounts)
    on_envelope: list[Callable[[segment_files.FrameRecord, Envelope], None]] = field(
        default_factory=list
    )
    """Called with every envelope, before its events."""
    draining: str = ""
    """Reason why no frames are accepted, so that agents send to another collector; empty if they are."""

    def count_new_frames(self, envelope: Envelope) -> int:
        """Return the number of frames of an envelope that have not been received before."""
        streams = self.received.run_streams(envelope.node, envelope.run)
        return sum([received_frames.count_new(streams, batch) for batch in envelope.batches])

    def find_sequence_problems(
        self, envelope: Envelope, max_gaps: int, factor: int = 1
    ) -> Iterator[str]:
        """Yield a text for each bound that the received sequences of the envelope's run exceed."""
        by_stream = self.received.run_streams(envelope.node, envelope.run)
        sent = {batch.stream for batch in envelope.batches}
        gaps = max(
            [len(by_stream[stream].starts) for stream in sent if stream in by_stream], default=0
        )
        ranges = sum([len(stream.starts) for stream in by_stream.values()]) + len(envelope.batches)
        for count, limit, unit in (
            (gaps, factor * max_gaps, "gaps in a stream"),
            (
                len(sent | by_stream.keys()),
                factor * received_frames.MAX_STREAMS,
                "streams of a run",
            ),
            (
                ranges if sent else 0,
                factor * received_frames.MAX_RANGES,
                "ranges of sequences of a run",
            ),
        ):
            if count > limit:
                yield f"{count} {unit}: expected at most {limit}"

    def accept(self, record: segment_files.FrameRecord, envelope: Envelope) -> None:
        """Record the frames of a durable envelope as received, and apply it in one step.

        A record of release 0.3.0 does not state which of its frames were new: those that were not received before it.
        """
        if record.accepted is None:
            record = replace(
                record,
                run=envelope.run,
                accepted=self.accepted_batches(envelope),
                has_statements=bool(envelope.ended),
            )
        self.record_durable(record, envelope if record.has_statements else None)
        for _ in self.steps(record, envelope):
            pass

    def steps(self, record: segment_files.FrameRecord, envelope: Envelope) -> Iterator[None]:
        """Apply a durable envelope, whose frames were recorded as received, in steps, between which other work may run.

        A fault is logged and counted, and affects this envelope only: it is in the frame log, and
        must not end the collector at every start.
        """
        yield from self._guard(envelope, self._steps(record, envelope))

    def _guard(self, envelope: Envelope, steps: Iterator[None]) -> Iterator[None]:
        try:
            yield from steps
        except Exception as fault:  # noqa: BLE001 - see above
            self.counts.reject("fault")
            repetitions = self.log_limit.count_repetitions(envelope.node)
            if repetitions is not None:
                log.error(
                    "envelope_processing_failed",
                    node=envelope.node,
                    repetitions=repetitions,
                    problem=f"{type(fault).__name__}: {fault}",
                )

    def _steps(self, record: segment_files.FrameRecord, envelope: Envelope) -> Iterator[None]:
        node = self.fleet.get_or_add_node(envelope.node)
        node.agent_version = envelope.agent_version
        node.clock_offset_ns = record.sent.wall_ns - record.received_wall_ns
        self.counts.envelopes += 1
        self.counts.bytes += len(record.body)
        for listener in self.on_envelope:
            listener(record, envelope)
        known_batches: list[tuple[Batch, KnownSchema]] = []
        for batch in envelope.batches:
            schema = self.schemas.get(batch.schema)
            if schema is None:
                # Ingest accepts no such batch: the row was lost since, which a restart reports.
                self.counts.unknown_schemas.add(batch.schema)
                continue
            known_batches.append((batch, schema))
        self.schemas.record_uses(envelope.node, (schema for _, schema in known_batches))
        for batch, schema in known_batches:
            # Also if its sequence was received before: a snapshot contains that, but not the content for the current state.
            self._apply_last_frame(record, envelope, batch, schema)
            yield
        accepted = zip(envelope.batches, record.accepted or (), strict=True)
        new_by_batch = {id(batch): counts.new for batch, counts in accepted}
        fresh_batches = [pair for pair in known_batches if new_by_batch[id(pair[0])]]
        yield from self._record_evidence(record, envelope, fresh_batches)
        yield from self._record_frames(record, envelope, known_batches, new_by_batch)
        yield

    def _record_frames(
        self,
        record: segment_files.FrameRecord,
        envelope: Envelope,
        known_batches: Sequence[tuple[Batch, KnownSchema]],
        new_by_batch: Mapping[int, int],
    ) -> Iterator[None]:
        """Count the frames of an envelope, and record the events of new ones."""
        counts = self.counts
        for batch, schema in known_batches:
            new_frames, rows = new_by_batch[id(batch)], batch.rows
            counts.duplicates += rows - new_frames
            if not new_frames:
                continue
            counts.frames += new_frames
            counts.switch_frames += new_frames * envelope.node.startswith(fleets.SWITCH_PREFIX)
            counts.values += new_frames * schema.layout.columns
            if batch.events:
                yield from self._record_events(record, envelope, batch)

    def accepted_batches(self, envelope: Envelope) -> tuple[segment_files.AcceptedBatch, ...]:
        """Return the sequences of an envelope, with the number of new frames of each batch."""
        streams = self.received.run_streams(envelope.node, envelope.run)
        return tuple(
            segment_files.AcceptedBatch(
                batch.stream,
                batch.first_sequence,
                batch.rows,
                received_frames.count_new(streams, batch),
            )
            for batch in envelope.batches
        )

    def record_durable(self, record: segment_files.FrameRecord, envelope: Envelope | None) -> None:
        """Record the frames of a durable record as received; `envelope` is needed for the end that it states only."""
        if envelope is not None and envelope.ended:
            self.received.record_end(envelope.node, envelope.ended.run, envelope.ended.streams)
        for stream, first, rows, new in record.accepted or ():
            if new:
                self.received.add(
                    record.node,
                    record.run,
                    intern(stream),
                    first,
                    first + rows - 1,
                    record.received_wall_ns,
                )

    def _record_evidence(
        self,
        record: segment_files.FrameRecord,
        envelope: Envelope,
        batches: Sequence[tuple[Batch, KnownSchema]],
    ) -> Iterator[None]:
        """Pass new batches to the evidence; switches have no GPUs to meter."""
        if envelope.node not in self.fleet.switches:
            yield from self.evidence.steps(record.as_first_received, envelope, batches)

    def _apply_last_frame(
        self,
        record: segment_files.FrameRecord,
        envelope: Envelope,
        batch: Batch,
        schema: KnownSchema,
    ) -> None:
        """Apply the last frame of a batch to the current state, unless that is as new or newer."""
        # Placed by its age at sending and the collector's clock: the node's wall clock may be wrong.
        age_ns = record.sent.age_ns(envelope.boot_id, batch.wall_ns[-1], batch.boot_ns[-1])
        newest_ns = record.received_wall_ns - age_ns
        sender = (envelope.node, envelope.run, envelope.boot_id)
        update = fleets.NodeUpdate(*sender, schema, batch, newest_ns)
        applied = self.fleet.apply(update)
        if schema.gpus and applied:
            self.gpus_by_node[envelope.node] = schema.gpus_by_rail

    def _record_events(
        self, record: segment_files.FrameRecord, envelope: Envelope, batch: Batch
    ) -> Iterator[None]:
        """Record the claims and other events of a batch."""
        yield from self.evidence.claim_steps(record.as_first_received, envelope, batch)
        for number, event in enumerate(recent_events.seen_events(record, envelope, batch)):
            if number % _EVENTS_PER_STEP == _EVENTS_PER_STEP - 1:
                yield
            self.add_event(event)

    def add_event(self, seen_event: recent_events.SeenEvent) -> None:
        """Add an event, each once: an agent that restarts reads the kernel log from its beginning."""
        self.events.add(seen_event)

    def names_of_gpu(self, node: str, uuid: str) -> Names:
        """Return names of a GPU of a node; those that the node does not report are empty."""
        return fleets.gpu_names(self.fleet.nodes.get(node), uuid)

    def names_of(self, node: str, entity: WireEntity) -> Names | None:
        """Return names of the GPU or NIC that contains an entity; None for other entities."""
        return fleets.names_of(self.fleet.nodes.get(node), entity.kind, entity.key)

    def gpus_by_rail(self, node: str) -> Mapping[int, str]:
        """Return the GPU on each rail of a node."""
        return self.gpus_by_node.get(node, {})
