"""State of the collector, and bounds on the cost of one envelope to it.

Live ingest and the replay of the frame log after a restart change the state by the same function,
with the same arguments, so that a restart restores the same state.

The cost of an envelope is checked before it is made durable. The size of frames does not bound
their size as evidence: a few bytes of frames with large distances are many spans of samples, times
the GPUs of the node. The costs counted here are those of `railscope_collector.evidence`; work and memory are
linear in them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import structlog

from railscope import log_output
from railscope.device_names import Names
from railscope.wire import BYTES_PER_VALUE, Batch, Envelope, WireEntity
from railscope_collector import config
from railscope_collector.evidence import evidence_book, first_receipts, node_intervals
from railscope_collector.fleet import fleet as fleets
from railscope_collector.fleet.schemas import KnownSchema, StoredSchemas
from railscope_collector.framelog import received_frames, segment_files
from railscope_collector.metering.evidence import GAP_NS

log = structlog.get_logger(__name__)

_EVENTS_PER_STEP = 256


Digest = bytes


@dataclass(slots=True)
class IngestCounts:
    """Counters of ingest since the start."""

    envelopes: int = 0
    frames: int = 0
    switch_frames: int = 0
    """Those of switches."""
    duplicates: int = 0
    copies: int = 0
    """Frames of live copies."""
    values: int = 0
    bytes: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    unknown_schemas: set[Digest] = field(default_factory=set)
    """Missing schemas that durable frames refer to."""

    def reject(self, reason: str) -> None:
        """Count a rejected envelope."""
        self.rejected[reason] = self.rejected.get(reason, 0) + 1


@dataclass(slots=True)
class CollectorState:
    """Fleet, received sequences, evidence and recent events."""

    schemas: StoredSchemas
    fleet: fleets.Fleet = field(default_factory=fleets.Fleet)
    received: received_frames.ReceivedFrames = field(default_factory=received_frames.ReceivedFrames)
    evidence: evidence_book.EvidenceBook = field(default_factory=evidence_book.EvidenceBook)
    receipts: first_receipts.ReceiptSigner = field(default_factory=first_receipts.ReceiptSigner)
    gpus_by_node: dict[str, Mapping[int, str]] = field(default_factory=dict)
    """UUID of the GPU on each rail, by node."""
    events: fleets.RecentEvents = field(default_factory=fleets.RecentEvents)
    log_limit: log_output.LogRateLimit = field(default_factory=log_output.LogRateLimit)
    counts: IngestCounts = field(default_factory=IngestCounts)
    listeners: list[Callable[[fleets.SeenEvent], None]] = field(default_factory=list)
    """Called with every event of a new frame.

    Also if an earlier frame reported it, and again when a restart reads the frame.
    """
    on_envelope: list[Callable[[segment_files.FrameRecord, Envelope], None]] = field(
        default_factory=list
    )
    """Called with every envelope, before its events."""
    on_new_batches: list[Callable[[segment_files.FrameRecord, Envelope, Sequence[Batch]], None]] = (
        field(default_factory=list)
    )
    """Called with the batches of an envelope that have new frames."""
    on_copy: list[Callable[[segment_files.FrameRecord, Envelope], None]] = field(
        default_factory=list
    )
    """Called with every live copy of an envelope."""
    is_draining: bool = False
    """True if no frames are accepted, so that agents send to another collector."""

    def count_new_frames(self, envelope: Envelope) -> int:
        """Return the number of frames of an envelope that have not been received before."""
        streams = self.received.run_streams(envelope.node, envelope.run)
        return sum([_count_new(streams, batch) for batch in envelope.batches])

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
        """Apply a durable envelope to the state. Frames received before change nothing."""
        for _ in self.steps(record, envelope):
            pass

    def steps(self, record: segment_files.FrameRecord, envelope: Envelope) -> Iterator[None]:
        """Apply a durable envelope in steps, between which other work may run.

        A fault is logged and counted, and affects this envelope only: it is in the frame log, and
        must not end the collector at every start.
        """
        yield from self._guard(envelope, self._steps(record, envelope))

    def copy_steps(
        self, record: segment_files.FrameRecord, envelope: Envelope, *, is_shown: bool
    ) -> Iterator[None]:
        """Apply a live copy in steps: only to the current readings, of a node that is shown or on standby.

        Evidence, claims and events follow from the frames that the primary collector receives, or that are sent again
        when this collector has become the primary one.
        """
        yield from self._guard(envelope, self._copy_steps(record, envelope, is_shown=is_shown))

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

    def _copy_steps(
        self, record: segment_files.FrameRecord, envelope: Envelope, *, is_shown: bool
    ) -> Iterator[None]:
        if is_shown:
            self.show_node(envelope.node)
            shown = self.fleet.get_or_add_node(envelope.node)
            shown.agent_version = shown.agent_version or envelope.agent_version
        for listener in self.on_copy:
            listener(record, envelope)
        nodes = self.fleet.nodes if is_shown else self.fleet.standby
        for batch in envelope.batches:
            schema, node = self.schemas.get(batch.schema), nodes.get(envelope.node)
            streams: Collection[str] = node.rows if node else ()
            is_new = batch.stream not in streams
            if schema and not (is_new and len(streams) >= received_frames.MAX_STREAMS):
                self._apply_last_frame(record, envelope, batch, schema, is_standby=not is_shown)
                self.counts.copies += batch.rows
            yield

    def show_node(self, name: str) -> None:
        """Show a node of which this collector has only received copies."""
        copied = self.fleet.standby.get(name)
        for row in copied.rows.values() if copied else ():
            schema = self.schemas.get(row.schema)
            if schema and schema.gpus:
                self.gpus_by_node[name] = schema.gpus_by_rail
        self.fleet.show(name)

    def _steps(self, record: segment_files.FrameRecord, envelope: Envelope) -> Iterator[None]:
        self.show_node(envelope.node)
        node = self.fleet.get_or_add_node(envelope.node)
        node.agent_version = envelope.agent_version
        node.clock_offset_ns = record.sent.wall_ns - record.received_wall_ns
        self.counts.envelopes += 1
        self.counts.bytes += len(record.body)
        for listener in self.on_envelope:
            listener(record, envelope)
        if envelope.ended:
            self.received.record_end(envelope.node, envelope.ended.run, envelope.ended.streams)
        self.received.record_delivered(envelope.node, envelope.delivered)
        known_batches: list[tuple[Batch, KnownSchema]] = []
        for batch in envelope.batches:
            schema = self.schemas.get(batch.schema)
            if schema is None:
                self.counts.unknown_schemas.add(batch.schema)
                continue
            known_batches.append((batch, schema))
        self.schemas.record_uses(envelope.node, [schema.digest for _, schema in known_batches])
        for batch, schema in known_batches:
            # A checkpoint contains its sequence, but not its content for the current state.
            self._apply_last_frame(record, envelope, batch, schema)
            yield
        streams = self.received.run_streams(envelope.node, envelope.run)
        fresh_batches = [pair for pair in known_batches if _count_new(streams, pair[0])]
        yield from self._record_evidence(record, envelope, fresh_batches)
        counts = self.counts
        for batch, schema in known_batches:
            streams = self.received.run_streams(envelope.node, envelope.run)
            new_frames, rows = _count_new(streams, batch), batch.rows
            counts.duplicates += rows - new_frames
            if not new_frames:
                continue
            counts.frames += new_frames
            counts.switch_frames += new_frames * envelope.node.startswith(fleets.SWITCH_PREFIX)
            counts.values += new_frames * schema.layout.columns
            if batch.events:
                yield from self._record_events(record, envelope, batch)
            # Last: a checkpoint made between two steps must not record frames as received before
            # they are applied.
            self.received.add(
                envelope.node,
                envelope.run,
                schema.layout.stream,  # shared by all nodes, unlike the equal text of the batch
                batch.first_sequence,
                batch.first_sequence + rows - 1,
                record.received_wall_ns,
            )
        if envelope.node not in self.fleet.switches:
            self.evidence.receive(record.as_first_received, envelope)
        yield

    def _record_evidence(
        self,
        record: segment_files.FrameRecord,
        envelope: Envelope,
        batches: Sequence[tuple[Batch, KnownSchema]],
    ) -> Iterator[None]:
        """Pass new batches to their listeners and to the evidence; switches have no GPUs to meter."""
        for take_batches in self.on_new_batches:
            take_batches(record, envelope, [batch for batch, _ in batches])
        if envelope.node not in self.fleet.switches:
            yield from self.evidence.steps(record.as_first_received, envelope, batches)

    def _apply_last_frame(
        self,
        record: segment_files.FrameRecord,
        envelope: Envelope,
        batch: Batch,
        schema: KnownSchema,
        *,
        is_standby: bool = False,
    ) -> None:
        """Apply the last frame of a batch to the current state, unless that is as new or newer."""
        age_ns = record.sent.age_ns(envelope.boot_id, batch.wall_ns[-1], batch.boot_ns[-1])
        newest_ns = record.received_wall_ns - age_ns
        sender = (envelope.node, envelope.run, envelope.boot_id)
        update = fleets.NodeUpdate(*sender, schema.layout, batch, newest_ns)
        applied = self.fleet.apply(update, is_standby=is_standby)
        if schema.gpus and applied and not is_standby:
            self.gpus_by_node[envelope.node] = schema.gpus_by_rail

    def _record_events(
        self, record: segment_files.FrameRecord, envelope: Envelope, batch: Batch
    ) -> Iterator[None]:
        """Record the claims and other events of a batch."""
        yield from self.evidence.claim_steps(record.as_first_received, envelope, batch)
        for number, event in enumerate(fleets.seen_events(record, envelope, batch)):
            if number % _EVENTS_PER_STEP == _EVENTS_PER_STEP - 1:
                yield
            for listener in self.listeners:
                listener(event)
            self.add_event(event)

    def add_event(self, seen_event: fleets.SeenEvent) -> None:
        """Add an event, each once: an agent that restarts reads the kernel log from its beginning."""
        self.events.add(seen_event)

    def names_of_gpu(self, node: str, uuid: str) -> Names:
        """Return names of a GPU of a node; those that the node does not report are empty."""
        return fleets.gpu_names(self.schemas, self.fleet.nodes.get(node), uuid)

    def names_of(self, node: str, entity: WireEntity) -> Names | None:
        """Return names of the GPU or NIC that contains an entity; None for other entities."""
        return fleets.names_of(self.schemas, self.fleet.nodes.get(node), entity.kind, entity.key)

    def gpus_by_rail(self, node: str) -> Mapping[int, str]:
        """Return the GPU on each rail of a node."""
        return self.gpus_by_node.get(node, {})


def _count_new(streams: Mapping[str, received_frames.SequenceRanges], batch: Batch) -> int:
    """Return the number of frames of a batch that its run's streams do not contain."""
    ranges = streams.get(batch.stream)
    rows = len(batch.wall_ns)
    if ranges is None or not ranges.ends or batch.first_sequence > ranges.ends[-1]:
        return rows
    return ranges.count_new(batch.first_sequence, rows)


REPLAY_FACTOR = 4
"""Factor on the bounds at a restart: they may have been wider before."""
_ROWS_PER_SPAN = 32
"""Number of individually processed frames of a GPU that cost as much as one span."""
WORK_UNIT = 200
"""Spans, events, frames or stated ends that count as one more request."""


class EnvelopeCost(NamedTuple):
    """Cost of an envelope as evidence."""

    batches: int = 0
    frames: int = 0
    events: int = 0
    sample_spans: int = 0
    """Spans of samples, times their GPUs and MIG layouts."""
    counter_bytes: int = 0
    """Bytes of the stored readings of counters."""
    ends: int = 0
    """Streams for which the end of an earlier run is stated."""

    @property
    def requests(self) -> int:
        """Return the number of requests that the envelope counts as."""
        return 1 + (self.frames + self.events + self.sample_spans + self.ends) // WORK_UNIT


def envelope_cost(envelope: Envelope, schemas: Iterable[KnownSchema | None]) -> EnvelopeCost:
    """Return the cost of an envelope; `schemas` are those of its batches. Linear in its frames."""
    sample_spans = counter_bytes = frames = events = 0
    for batch, schema in zip(envelope.batches, schemas, strict=True):
        frames += len(batch.wall_ns)
        events += len(batch.events)
        if schema is not None:
            sample_spans += _count_spans(batch, schema)
            counters = len(schema.metered.counters)
            if counters:
                cells = len({boot_ns // node_intervals.GRID_NS for boot_ns in batch.boot_ns})
                counter_bytes += cells * counters * BYTES_PER_VALUE
    ends = len(envelope.ended.streams) if envelope.ended else 0
    return EnvelopeCost(len(envelope.batches), frames, events, sample_spans, counter_bytes, ends)


def _count_spans(batch: Batch, schema: KnownSchema) -> int:
    boot_ns = batch.boot_ns
    first_ns, last_ns = boot_ns[0], boot_ns[-1]
    length_ns = last_ns - first_ns
    interval_ns = node_intervals.INTERVAL_NS
    if length_ns <= GAP_NS and first_ns // interval_ns == last_ns // interval_ns:
        sample_spans = 1
    else:
        sample_spans = 1 + sum(
            after - before > GAP_NS
            or after // node_intervals.INTERVAL_NS != before // node_intervals.INTERVAL_NS
            for before, after in pairwise(boot_ns)
        )
    cells = 0
    if len(batch.reasons) > schema.layout.columns:
        # A GPU may be absent in some rows: then its samples have more gaps than the frames.
        sample_spans = min(batch.rows, sample_spans + length_ns // GAP_NS)
        cells = batch.rows * len(schema.gpus) // _ROWS_PER_SPAN
    return sample_spans * max(1, len(schema.gpus) + len(schema.metered.layouts)) + cells


def find_exceeded_bounds(
    cost: EnvelopeCost, limits: config.IngestLimits, factor: int = 1
) -> Iterator[str]:
    """Yield a text for each bound that is exceeded."""
    for count, limit, unit in (
        (cost.batches, limits.batches_per_envelope, "batches"),
        (cost.frames, limits.frames_per_envelope, "frames"),
        (cost.events, limits.events_per_envelope, "events"),
        (cost.sample_spans, limits.sample_spans_per_envelope, "spans of samples of GPUs"),
        (cost.counter_bytes, limits.counter_bytes_per_envelope, "bytes of counter readings"),
    ):
        if count > factor * limit:
            yield f"{count} {unit}: expected at most {factor * limit}"


def open_empty_state(directory: Path) -> CollectorState:
    """Return a state without nodes; schemas of an earlier term are deleted. Blocking; raises OSError."""
    shutil.rmtree(directory / "schemas", ignore_errors=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    core = CollectorState(StoredSchemas(directory / "schemas"))
    core.schemas.open()
    return core
