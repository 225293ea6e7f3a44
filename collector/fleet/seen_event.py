"""Events with the node they happened on, and the frame that carried each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from collector.fleet.recent_events import EventKey
from collector.framelog.segments import Record
from railscope.wire import Batch, Envelope, WireEvent


class Position(msgspec.Struct, frozen=True, array_like=True):
    """The frame that carried an event, the event's position in it, and its receipt."""

    run: str
    stream: str
    sequence: int
    index: int
    """Among the events of its batch."""
    received_ns: int


@dataclass(frozen=True, slots=True)
class SeenEvent:
    """An event with the node it happened on."""

    node: str
    boot_id: str
    event: WireEvent
    position: Position | None = None

    @property
    def key(self) -> EventKey:
        """Identity of the event, equal if it is received again."""
        event = self.event
        return self.node, self.boot_id, event.name, event.entity.key, event.boot_ns

    def to_json(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"node": self.node, **msgspec.to_builtins(self.event)}


def events_of(record: Record, envelope: Envelope) -> Iterator[SeenEvent]:
    """Yield all events of an envelope, including those received before."""
    for batch in envelope.batches:
        yield from seen_events(record, envelope, batch)


def seen_events(record: Record, envelope: Envelope, batch: Batch) -> Iterator[SeenEvent]:
    """Yield the events of one batch of an envelope."""
    for index, event in enumerate(batch.events):
        sequence, received_ns = batch.first_sequence + event.row, record.received_wall_ns
        position = Position(envelope.run, batch.stream, sequence, index, received_ns)
        yield SeenEvent(envelope.node, envelope.boot_id, event, position)
