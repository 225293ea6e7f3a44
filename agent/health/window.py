"""Increase of counters over the last minutes, in bounded memory.

Increases are summed as readings arrive, and every half minute the sums are stored as one array. The sums
before a counter decreased are no longer valid for the device and are dropped.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from agent.health.facts import MINUTE_NS, Change

WINDOW_NS = 10 * MINUTE_NS
STEP_NS = MINUTE_NS // 2
Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _Counter:
    """Last value of a counter, the time since which it is followed, and its increase since then."""

    last: int | None = None
    since_ns: int = 0
    seen_ns: int = 0
    total: int = 0

    def take(self, value: int, boot_ns: int) -> bool:
        """Process a reading; return True if the counter has decreased."""
        fell_back = self.last is not None and value < self.last
        if self.last is None:
            self.since_ns = boot_ns
        elif fell_back:
            self.since_ns, self.total = self.seen_ns, value
        else:
            self.total += value - self.last
        self.last, self.seen_ns = value, boot_ns
        return fell_back


@dataclass(slots=True)
class _Mark:
    """Sums of all counters at one time."""

    boot_ns: int
    totals: array[int]


@dataclass(slots=True)
class Window(Generic[Key]):
    """Increase of counters by key; totals are unsigned 64-bit integers, as counters are."""

    length_ns: int = WINDOW_NS
    step_ns: int = STEP_NS
    _places: dict[Key, int] = field(default_factory=dict)
    _counters: list[_Counter] = field(default_factory=list)
    _marks: deque[_Mark] = field(default_factory=deque)
    _recent: _Mark | None = None
    """The last mark that is at least a minute old, else the first."""

    def follow(self, keys: Sequence[Key]) -> None:
        """Follow exactly these counters; those that were followed before keep their sums."""
        before, counters, marks = self._places, self._counters, self._marks
        kept = [before.get(key) for key in keys]
        self._places = {key: place for place, key in enumerate(keys)}
        self._counters = [_Counter() if place is None else counters[place] for place in kept]
        self._marks = deque(
            _Mark(
                mark.boot_ns,
                array("Q", [0 if place is None else mark.totals[place] for place in kept]),
            )
            for mark in marks
        )
        self._recent = None

    def take(self, boot_ns: int, values: Mapping[Key, int]) -> None:
        """Process the readings of one time; counters without one are unchanged."""
        for key, value in values.items():
            place = self._places[key]
            if self._counters[place].take(value, boot_ns):
                for mark in self._marks:
                    mark.totals[place] = 0
        if not self._marks or boot_ns - self._marks[-1].boot_ns >= self.step_ns:
            totals = array("Q", [counter.total for counter in self._counters])
            self._marks.append(_Mark(boot_ns, totals))
        while len(self._marks) > 1 and boot_ns - self._marks[1].boot_ns >= self.length_ns:
            self._marks.popleft()
        minute_ago = boot_ns - MINUTE_NS
        older = (mark for mark in reversed(self._marks) if mark.boot_ns <= minute_ago)
        self._recent = next(older, self._marks[0])

    def change(self, key: Key) -> Change | None:
        """Return the increase of a counter; None if it has been read at most once."""
        place = self._places.get(key)
        if place is None or self._recent is None:
            return None
        counter = self._counters[place]
        if counter.seen_ns <= counter.since_ns:
            return None
        return Change(
            *self._growth(place, counter, self._marks[0]),
            *self._growth(place, counter, self._recent),
        )

    @staticmethod
    def _growth(place: int, counter: _Counter, mark: _Mark) -> tuple[int, int]:
        """Return the increase since a mark, and the nanoseconds that it covers."""
        since_ns = max(mark.boot_ns, counter.since_ns)
        return counter.total - mark.totals[place], counter.seen_ns - since_ns

    @property
    def marks(self) -> int:
        """Number of stored marks."""
        return len(self._marks)
