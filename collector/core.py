"""The collector's state, and the one way in which an accepted envelope changes it.

Live ingest and the replay of the frame log after a restart go through the same function, with the
same arguments, so that a restart leaves the state as it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import numpy as np

from collector import decode
from collector.fleet import Fleet, Update
from collector.framelog import Record
from collector.metering.coverage import GAP_NS, Coverage
from collector.schemas import Known, Schemas
from collector.sequences import Received
from railscope.reading import PRESENT
from railscope.wire import Batch, Envelope, WireEvent

MOST_EVENTS = 10_000
EventKey: TypeAlias = tuple[str, str, str, tuple[str, ...], int]


class Checkpoint(msgspec.Struct):
    """What must survive the deletion of old segments; everything else is in the later ones."""

    first_segment: int
    received: Received
    coverages: dict[str, Coverage]


@dataclass(frozen=True, slots=True)
class SeenEvent:
    """An event with the node it happened on."""

    node: str
    event: WireEvent

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"node": self.node, **msgspec.to_builtins(self.event)}


@dataclass(slots=True)
class Counts:
    """What has come in since the start."""

    envelopes: int = 0
    frames: int = 0
    duplicates: int = 0
    values: int = 0
    bytes: int = 0
    rejected: dict[str, int] = field(default_factory=dict)

    def reject(self, reason: str) -> None:
        """Count a refused envelope."""
        self.rejected[reason] = self.rejected.get(reason, 0) + 1


@dataclass(slots=True)
class Core:
    """Fleet, received sequences, coverage and recent events."""

    schemas: Schemas
    fleet: Fleet = field(default_factory=Fleet)
    received: Received = field(default_factory=Received)
    coverages: dict[str, Coverage] = field(default_factory=dict)
    gpus_of: dict[str, dict[int, str]] = field(default_factory=dict)
    """For each node, the UUID of the GPU on each rail."""
    events: deque[SeenEvent] = field(default_factory=lambda: deque(maxlen=MOST_EVENTS))
    _event_keys: dict[EventKey, None] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)

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

    def accept(self, record: Record, envelope: Envelope) -> None:
        """Take a durable envelope into the state. Frames that were here before change nothing."""
        node = self.fleet.node(envelope.node)
        node.agent_version = envelope.agent_version
        node.clock_offset_ns = record.sent.wall_ns - record.received_wall_ns
        self.counts.envelopes += 1
        self.counts.bytes += len(record.body)
        for batch in envelope.batches:
            known = self.schemas.get(batch.schema)
            if known is None:
                continue
            missing = self._missing(envelope, batch)
            fresh = sum(last - first + 1 for first, last in missing)
            self.counts.duplicates += batch.rows - fresh
            if not fresh:
                continue
            self.counts.frames += fresh
            self.counts.values += fresh * known.layout.columns
            self.received.add(
                envelope.node, envelope.run, batch.stream, batch.first_sequence,
                batch.first_sequence + batch.rows - 1, record.received_wall_ns,
            )  # fmt: skip
            self._take(record, envelope, batch, known)

    def _take(self, record: Record, envelope: Envelope, batch: Batch, known: Known) -> None:
        columns = known.layout.columns

        def instant_ns(row: int) -> int:
            """When a frame was made, on the collector's clock."""
            age_ns = record.sent.age_ns(envelope.boot_id, batch.wall_ns[row], batch.boot_ns[row])
            return record.received_wall_ns - age_ns

        self.fleet.apply(
            Update(
                envelope.node, envelope.run, envelope.boot_id, batch.schema, known.layout,
                decode.first_row(batch), batch.boot_ns[0], decode.last_row(batch, columns),
                batch.boot_ns[-1], decode.last_reasons(batch, columns), instant_ns(-1),
            )
        )  # fmt: skip
        if known.gpus:
            self._observe(envelope, batch, known, instant_ns)
        for event in batch.events:
            self._see(envelope, event)

    def _see(self, envelope: Envelope, event: WireEvent) -> None:
        """Keep an event once: an agent that starts anew reads the kernel log from its beginning."""
        key = (envelope.node, envelope.boot_id, event.name, event.entity.key, event.boot_ns)
        if key in self._event_keys:
            return
        self._event_keys[key] = None
        if len(self._event_keys) > 2 * MOST_EVENTS:
            del self._event_keys[next(iter(self._event_keys))]
        self.events.append(SeenEvent(envelope.node, event))

    def _observe(
        self, envelope: Envelope, batch: Batch, known: Known, instant_ns: Callable[[int], int]
    ) -> None:
        self.gpus_of[envelope.node] = {gpu.lane: gpu.uuid for gpu in known.gpus}
        codes = decode.reasons(batch, known.layout.columns) if batch.reasons else None
        everywhere = list(_stretches(range(batch.rows), batch.boot_ns))
        for gpu in known.gpus:
            stretches = everywhere
            if codes is not None:
                rows = np.flatnonzero((codes[:, gpu.columns] == PRESENT).any(axis=1))
                stretches = list(_stretches(rows.tolist(), batch.boot_ns))
            for first, last in stretches:
                coverage = self.coverages.setdefault(gpu.uuid, Coverage(envelope.node))
                coverage.node = envelope.node
                coverage.add(instant_ns(first), instant_ns(last), envelope.boot_id)

    def holders_of(self, node: str) -> dict[int, str]:
        """The GPU on each rail of a node."""
        return self.gpus_of.get(node, {})


def _stretches(rows: Iterable[int], boot_ns: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Runs of rows that lie at most a gap apart, as first and last row."""
    first = last = None
    for row in rows:
        if first is None or last is None:
            first = row
        elif boot_ns[row] - boot_ns[last] > GAP_NS:
            yield first, last
            first = row
        last = row
    if first is not None and last is not None:
        yield first, last
