"""The collector's state, and the only function by which an accepted envelope changes it.

Live ingest and the replay of the frame log after a restart call the same function, with the same
arguments, so that a restart restores the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import structlog

from collector.evidence.book import EvidenceBook
from collector.fleet.device_names import gpu_names, names_of
from collector.fleet.fleet import Fleet, Update
from collector.fleet.recent_events import RecentEvents
from collector.fleet.schemas import Gpu, Known, Schemas
from collector.fleet.seen_event import SeenEvent, seen_events
from collector.framelog.segments import Record
from collector.framelog.sequences import MAX_RANGES, MAX_STREAMS, Received
from collector.log_limit import LogLimit
from railscope.device_names import Names
from railscope.wire import Batch, Envelope, WireEntity

log = structlog.get_logger(__name__)

_EVENTS_A_STEP = 256


Digest = bytes


@dataclass(slots=True)
class Counts:
    """Counters of ingest since the start."""

    envelopes: int = 0
    frames: int = 0
    duplicates: int = 0
    values: int = 0
    bytes: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    unknown_schemas: set[Digest] = field(default_factory=set)
    """Missing schemas that durable frames refer to."""

    def reject(self, reason: str) -> None:
        """Count a rejected envelope."""
        self.rejected[reason] = self.rejected.get(reason, 0) + 1


@dataclass(slots=True)
class Core:
    """Fleet, received sequences, evidence and recent events."""

    schemas: Schemas
    fleet: Fleet = field(default_factory=Fleet)
    received: Received = field(default_factory=Received)
    evidence: EvidenceBook = field(default_factory=EvidenceBook)
    gpus_of: dict[str, dict[int, str]] = field(default_factory=dict)
    """For each node, the UUID of the GPU on each rail."""
    events: RecentEvents[SeenEvent] = field(default_factory=RecentEvents)
    lines: LogLimit = field(default_factory=LogLimit)
    counts: Counts = field(default_factory=Counts)
    listeners: list[Callable[[SeenEvent], None]] = field(default_factory=list)
    """Called with every event of a new frame.

    Also if an earlier frame reported it, and again when a restart reads the frame.
    """
    on_envelope: list[Callable[[Record, Envelope], None]] = field(default_factory=list)
    """Called with every envelope, before its events."""

    def fresh_frames(self, envelope: Envelope) -> int:
        """Return the number of frames of an envelope that have not been received before."""
        return sum(
            last - first + 1
            for batch in envelope.batches
            for first, last in self._missing(envelope, batch)
        )

    def _missing(self, envelope: Envelope, batch: Batch) -> list[tuple[int, int]]:
        ranges = self.received.ranges(envelope.node, envelope.run, batch.stream)
        return ranges.missing_in(batch.first_sequence, batch.first_sequence + batch.rows - 1)

    def sequence_problems(
        self, envelope: Envelope, max_gaps: int, factor: int = 1
    ) -> Iterator[str]:
        """Yield a text for each bound that the received sequences of the envelope's run exceed."""
        known = self.received.streams(envelope.node, envelope.run)
        sent = {batch.stream for batch in envelope.batches}
        gaps = max((len(known[stream].starts) for stream in sent if stream in known), default=0)
        ranges = sum(len(one.starts) for one in known.values()) + len(envelope.batches)
        for count, limit, what in (
            (gaps, factor * max_gaps, "holes in a stream"),
            (len(sent | known.keys()), factor * MAX_STREAMS, "streams of a run"),
            (ranges if sent else 0, factor * MAX_RANGES, "ranges of sequences of a run"),
        ):
            if count > limit:
                yield f"{count} {what}, more than {limit}"

    def accept(self, record: Record, envelope: Envelope) -> None:
        """Apply a durable envelope to the state. Frames received before change nothing."""
        for _ in self.steps(record, envelope):
            pass

    def steps(self, record: Record, envelope: Envelope) -> Iterator[None]:
        """Apply a durable envelope in steps, between which other work may run.

        A fault is logged and counted, and affects this envelope only: it is in the frame log, and
        must not end the collector at every start.
        """
        try:
            yield from self._steps(record, envelope)
        except Exception as fault:  # noqa: BLE001 - see above
            self.counts.reject("fault")
            repeated = self.lines.due(envelope.node)
            if repeated is not None:
                log.error("envelope_not_taken", node=envelope.node, repeated=repeated,
                          problem=f"{type(fault).__name__}: {fault}")  # fmt: skip

    def _steps(self, record: Record, envelope: Envelope) -> Iterator[None]:
        node = self.fleet.node(envelope.node)
        node.agent_version = envelope.agent_version
        node.clock_offset_ns = record.sent.wall_ns - record.received_wall_ns
        self.counts.envelopes += 1
        self.counts.bytes += len(record.body)
        for hear in self.on_envelope:
            hear(record, envelope)
        if envelope.ended:
            self.received.end(envelope.node, envelope.ended.run, envelope.ended.streams)
        for batch in envelope.batches:
            known = self.schemas.get(batch.schema)
            if known is None:
                self.counts.unknown_schemas.add(batch.schema)
                continue
            self.schemas.use(envelope.node, batch.schema)
            missing = self._missing(envelope, batch)
            fresh = sum(last - first + 1 for first, last in missing)
            self.counts.duplicates += batch.rows - fresh
            # A checkpoint contains its sequence, but not its content for the current state.
            self._show(record, envelope, batch, known)
            if not fresh:
                continue
            self.counts.frames += fresh
            self.counts.values += fresh * known.layout.columns
            yield from self._take(record, envelope, batch, known)
            # Last: a checkpoint made between two steps must not record frames as received before
            # they are applied.
            self.received.add(
                envelope.node, envelope.run, batch.stream, batch.first_sequence,
                batch.first_sequence + batch.rows - 1, record.received_wall_ns,
            )  # fmt: skip
            yield
        self.evidence.receive(record, envelope)

    def _show(self, record: Record, envelope: Envelope, batch: Batch, known: Known) -> None:
        """Apply the last frame of a batch to the current state, unless that is as new or newer."""
        age_ns = record.sent.age_ns(envelope.boot_id, batch.wall_ns[-1], batch.boot_ns[-1])
        newest_ns = record.received_wall_ns - age_ns
        applied = self.fleet.apply(
            Update(envelope.node, envelope.run, envelope.boot_id, known.layout, batch, newest_ns)
        )
        if known.gpus and applied:
            self.gpus_of[envelope.node] = _by_rail(known.gpus)

    def _take(
        self, record: Record, envelope: Envelope, batch: Batch, known: Known
    ) -> Iterator[None]:
        yield from self.evidence.steps(record, envelope, batch, known)
        yield from self.evidence.hear(record, envelope, batch)
        for number, seen in enumerate(seen_events(record, envelope, batch)):
            if number % _EVENTS_A_STEP == _EVENTS_A_STEP - 1:
                yield
            for listener in self.listeners:
                listener(seen)
            self.see(seen)

    def see(self, seen: SeenEvent) -> None:
        """Add an event, each once: an agent that restarts reads the kernel log from its beginning."""
        self.events.add(seen)

    def names_of_gpu(self, node: str, uuid: str) -> Names:
        """Return names of a GPU of a node; those that the node does not report are empty."""
        return gpu_names(self.schemas, self.fleet.nodes.get(node), uuid)

    def names_of(self, node: str, entity: WireEntity) -> Names | None:
        """Return names of the GPU or NIC that contains an entity; None for other entities."""
        return names_of(self.schemas, self.fleet.nodes.get(node), entity.kind, entity.key)

    def holders_of(self, node: str) -> dict[int, str]:
        """Return the GPU on each rail of a node."""
        return self.gpus_of.get(node, {})


def _by_rail(gpus: Sequence[Gpu]) -> dict[int, str]:
    """Return GPUs by rail; those without a rail, or with one already used, get a negative key."""
    found: dict[int, str] = {}
    for position, gpu in enumerate(gpus):
        taken = gpu.rail < 0 or gpu.rail in found
        found[-1 - position if taken else gpu.rail] = gpu.uuid
    return found
