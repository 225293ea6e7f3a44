"""The collector's state, and the one way in which an accepted envelope changes it.

Live ingest and the replay of the frame log after a restart go through the same function, with the
same arguments, so that a restart leaves the state as it was.
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
    """What has come in since the start."""

    envelopes: int = 0
    frames: int = 0
    duplicates: int = 0
    values: int = 0
    bytes: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    unknown_schemas: set[Digest] = field(default_factory=set)
    """Those that durable frames refer to and that are not there any more."""

    def reject(self, reason: str) -> None:
        """Count a refused envelope."""
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
    """Each is called with every event of a new frame, also if another frame has told it before, and
    again where a restart reads the frame anew."""
    on_envelope: list[Callable[[Record, Envelope], None]] = field(default_factory=list)
    """Each is called with every envelope, before its events."""

    def fresh_frames(self, envelope: Envelope) -> int:
        """How many frames of an envelope have not been received before."""
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
        """What of the received sequences of the envelope's run is beyond the bounds, each as a text."""
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
        """Take a durable envelope into the state. Frames that were here before change nothing."""
        for _ in self.steps(record, envelope):
            pass

    def steps(self, record: Record, envelope: Envelope) -> Iterator[None]:
        """The same in steps, between which other work may run.

        A fault is logged and counted, and costs this envelope only: it is in the frame log, and
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
            # A checkpoint knows that it has come, and not what it says of the present.
            self._show(record, envelope, batch, known)
            if not fresh:
                continue
            self.counts.frames += fresh
            self.counts.values += fresh * known.layout.columns
            yield from self._take(record, envelope, batch, known)
            # Last: a checkpoint made between two steps must not call received what is not taken yet.
            self.received.add(
                envelope.node, envelope.run, batch.stream, batch.first_sequence,
                batch.first_sequence + batch.rows - 1, record.received_wall_ns,
            )  # fmt: skip
            yield
        self.evidence.receive(record, envelope)

    def _show(self, record: Record, envelope: Envelope, batch: Batch, known: Known) -> None:
        """Make the last frame of a batch the present state, unless it is that already or older."""
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
        """Keep an event once: an agent that starts anew reads the kernel log from its beginning."""
        self.events.add(seen)

    def names_of_gpu(self, node: str, uuid: str) -> Names:
        """Names of a GPU of a node; those that the node does not state are empty."""
        return gpu_names(self.schemas, self.fleet.nodes.get(node), uuid)

    def names_of(self, node: str, entity: WireEntity) -> Names | None:
        """Names of the GPU or NIC that an entity is or is a part of; None for other entities."""
        return names_of(self.schemas, self.fleet.nodes.get(node), entity.kind, entity.key)

    def holders_of(self, node: str) -> dict[int, str]:
        """The GPU on each rail of a node."""
        return self.gpus_of.get(node, {})


def _by_rail(gpus: Sequence[Gpu]) -> dict[int, str]:
    """GPUs by rail; those without one, or with one that is taken, get a place of no rail."""
    found: dict[int, str] = {}
    for position, gpu in enumerate(gpus):
        taken = gpu.rail < 0 or gpu.rail in found
        found[-1 - position if taken else gpu.rail] = gpu.uuid
    return found
