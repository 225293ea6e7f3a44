"""The newest events of all nodes, within bounds that no node can use up for the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Generic, Protocol, TypeAlias, TypeVar

from railscope.wire import WireEvent

MAX_EVENTS, MAX_CHARACTERS = 10_000, 8 << 20
"""Of all nodes."""
NODE_SHARE = 8
"""One node holds at most this fraction (1/n) of each bound."""
_MAX_KEYS = 2 * MAX_EVENTS
EventKey: TypeAlias = tuple[str, str, str, tuple[str, ...], int]


class NodeEvent(Protocol):
    """An event with its node."""

    @property
    def node(self) -> str:
        """Return the node of the event."""

    @property
    def event(self) -> WireEvent:
        """Return the event."""

    @property
    def key(self) -> EventKey:
        """Return the identity of the event."""


Seen = TypeVar("Seen", bound=NodeEvent)


def characters_of(event: WireEvent) -> int:
    """Return the characters of an event's key and facts, which are nearly all of its memory."""
    facts = sum(len(name) + len(text) for name, text in event.facts.items())
    return facts + sum(map(len, event.entity.key)) + len(event.name)


@dataclass(slots=True)
class _Node:
    order: deque[int] = field(default_factory=deque)
    characters: int = 0


@dataclass(slots=True)
class RecentEvents(Generic[Seen]):
    """Recent events in the order of their arrival, without duplicates."""

    _events: dict[int, Seen] = field(default_factory=dict)
    _nodes: dict[str, _Node] = field(default_factory=dict)
    _keys: dict[bytes, None] = field(default_factory=dict)
    _characters: int = 0
    _next: int = 0

    def add(self, seen: Seen) -> None:
        """Add an event unless it is a duplicate; above a bound drop the oldest of its node or of all."""
        key = blake2b(repr(seen.key).encode(errors="surrogatepass"), digest_size=16).digest()
        if key in self._keys:
            return
        self._keys[key] = None
        if len(self._keys) > _MAX_KEYS:
            del self._keys[next(iter(self._keys))]
        node = self._nodes.setdefault(seen.node, _Node())
        characters = characters_of(seen.event)
        self._events[self._next] = seen
        node.order.append(self._next)
        node.characters += characters
        self._characters += characters
        self._next += 1
        while (
            len(node.order) > MAX_EVENTS // NODE_SHARE
            or node.characters > MAX_CHARACTERS // NODE_SHARE
        ):
            self._drop(node.order[0])
        while len(self._events) > MAX_EVENTS or self._characters > MAX_CHARACTERS:
            self._drop(next(iter(self._events)))

    def _drop(self, number: int) -> None:
        seen = self._events.pop(number)
        node, characters = self._nodes[seen.node], characters_of(seen.event)
        node.order.popleft()  # the oldest of all is the oldest of its node
        node.characters -= characters
        self._characters -= characters
        if not node.order:
            del self._nodes[seen.node]

    def __iter__(self) -> Iterator[Seen]:
        """Iterate from the oldest to the newest."""
        return iter(list(self._events.values()))

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self._events)
