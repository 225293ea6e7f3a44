"""Newest events of all nodes, within bounds that no node can use up for the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeAlias

import msgspec

from railscope.wire import Batch, Envelope, WireEvent
from railscope_collector.framelog.segment_files import FrameRecord

MAX_EVENTS, MAX_CHARACTERS = 10_000, 8 << 20
"""Limits of the events of all nodes."""
NODE_SHARE = 8
"""One node holds at most this fraction (1/n) of each bound."""
# More keys than events: a repetition is recognized after its event was dropped.
_MAX_KEYS = 2 * MAX_EVENTS
EventKey: TypeAlias = tuple[str, str, str, tuple[str, ...], int]


class EventPosition(msgspec.Struct, frozen=True, array_like=True):
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
    position: EventPosition | None = None

    @property
    def key(self) -> EventKey:
        """Identity of the event, equal if it is received again."""
        event = self.event
        return self.node, self.boot_id, event.name, event.entity.key, event.boot_ns

    def to_json(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"node": self.node, **msgspec.to_builtins(self.event)}


def characters_of(event: WireEvent) -> int:
    """Return the characters of an event's key and facts, which are nearly all of its memory."""
    facts = sum(len(name) + len(text) for name, text in event.facts.items())
    return facts + sum(map(len, event.entity.key)) + len(event.name)


@dataclass(slots=True)
class _NodeEvents:
    order: deque[int] = field(default_factory=deque)
    characters: int = 0


@dataclass(slots=True)
class RecentEvents:
    """Recent events in the order of their arrival, without duplicates."""

    _events: dict[int, SeenEvent] = field(default_factory=dict)
    _nodes: dict[str, _NodeEvents] = field(default_factory=dict)
    _keys: dict[bytes, None] = field(default_factory=dict)
    _characters: int = 0
    _next: int = 0

    def add(self, seen_event: SeenEvent) -> None:
        """Add an event unless it is a duplicate; above a bound drop the oldest of its node or of all."""
        # A hash of 16 bytes in place of texts, which a node may make long.
        key = blake2b(repr(seen_event.key).encode(errors="surrogatepass"), digest_size=16).digest()
        if key in self._keys:
            return
        self._keys[key] = None
        if len(self._keys) > _MAX_KEYS:
            del self._keys[next(iter(self._keys))]
        node = self._nodes.setdefault(seen_event.node, _NodeEvents())
        characters = characters_of(seen_event.event)
        self._events[self._next] = seen_event
        node.order.append(self._next)
        node.characters += characters
        self._characters += characters
        self._next += 1
        # The node's own share first, so that its events do not displace those of others.
        while (
            len(node.order) > MAX_EVENTS // NODE_SHARE
            or node.characters > MAX_CHARACTERS // NODE_SHARE
        ):
            self._drop(node.order[0])
        while len(self._events) > MAX_EVENTS or self._characters > MAX_CHARACTERS:
            self._drop(next(iter(self._events)))

    def _drop(self, number: int) -> None:
        seen_event = self._events.pop(number)
        node, characters = self._nodes[seen_event.node], characters_of(seen_event.event)
        node.order.popleft()  # the oldest of all is the oldest of its node
        node.characters -= characters
        self._characters -= characters
        if not node.order:
            del self._nodes[seen_event.node]

    def __iter__(self) -> Iterator[SeenEvent]:
        """Iterate from the oldest to the newest."""
        return iter(list(self._events.values()))

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self._events)


def seen_events(record: FrameRecord, envelope: Envelope, batch: Batch) -> Iterator[SeenEvent]:
    """Yield the events of one batch of an envelope."""
    for index, event in enumerate(batch.events):
        sequence, received_ns = batch.first_sequence + event.row, record.received_wall_ns
        position = EventPosition(envelope.run, batch.stream, sequence, index, received_ns)
        yield SeenEvent(envelope.node, envelope.boot_id, event, position)
