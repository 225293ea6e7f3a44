"""Increases of counters over the last minute, ten minutes and hour."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, count, repeat
from operator import le, ne, sub
from typing import Generic, TypeVar

from railscope.reading import Absent, Reading
from railscope_agent.health.health_facts import HOUR_NS, MINUTE_NS, CounterIncrease

WINDOW_NS = 10 * MINUTE_NS
STEP_NS = MINUTE_NS // 2
HOUR_STEP_NS = 5 * MINUTE_NS
CounterKeyT = TypeVar("CounterKeyT", bound=Hashable)


@dataclass(slots=True)
class _WindowMark:
    """Sums of all counters at one time."""

    boot_ns: int
    totals: array[int]


class CounterWindow(Generic[CounterKeyT]):
    """Increase of counters by key; totals are unsigned 64-bit integers, as counters are.

    Increases are summed as readings arrive, and every half minute the sums are stored as one array, and every
    five minutes for the hour, so memory is bounded. The sums before a counter decreased are no longer valid and are dropped. A counter that
    falls to at most half of its value was reset and has grown since; one that falls less was corrected by
    device or driver, and has not: growth that may not have happened is never counted.

    Each list has one entry per counter: its last value, the time since which it is followed, the time of
    its last value, and its increase since it is followed. Most counters stand still most of the time.
    """

    def __init__(self) -> None:
        self._places: dict[CounterKeyT, int] = {}
        self._last: list[int | None] = []
        self._since_ns: list[int] = []
        self._seen_ns: list[int] = []
        self._totals = array("Q")
        self._marks: deque[_WindowMark] = deque()
        self._hour_marks: deque[_WindowMark] = deque()
        self._recent: _WindowMark | None = None
        """The newest mark that is at least a minute old, else the first."""
        self._increases: list[CounterIncrease | None] | None = None
        """Increases up to the last readings; None before they are computed."""

    def set_keys(self, keys: Sequence[CounterKeyT]) -> None:
        """Follow exactly these counters; those that were followed before keep their sums."""
        values = [self._places.get(key) for key in keys]
        self._places = {key: place for place, key in enumerate(keys)}
        self._last = [None if place is None else self._last[place] for place in values]
        self._since_ns = [0 if place is None else self._since_ns[place] for place in values]
        self._seen_ns = [0 if place is None else self._seen_ns[place] for place in values]
        self._totals = _picked_totals(self._totals, values)
        # Marks have the order of the keys as well: the same counters keep their places in all of them.
        for mark in (*self._marks, *self._hour_marks):
            mark.totals = _picked_totals(mark.totals, values)
        self._recent = self._increases = None

    def add(self, boot_ns: int, values: Sequence[Reading]) -> None:
        """Process the readings of one time, in the order of the keys; a counter without one is unchanged."""
        self._increases = None
        last = self._last
        for place in compress(range(len(last)), map(ne, values, last)):
            value = values[place]
            if not isinstance(value, Absent):
                self._add_change(boot_ns, place, value)
        if Absent not in set(map(type, values)):
            self._seen_ns = [boot_ns] * len(last)
        else:
            pairs = zip(values, self._seen_ns, strict=True)
            self._seen_ns = [
                last_seen_ns if isinstance(v, Absent) else boot_ns for v, last_seen_ns in pairs
            ]
        for marks, step_ns, window_ns in (
            (self._marks, STEP_NS, WINDOW_NS),
            (self._hour_marks, HOUR_STEP_NS, HOUR_NS),
        ):
            if not marks or boot_ns - marks[-1].boot_ns >= step_ns:
                marks.append(_WindowMark(boot_ns, self._totals[:]))
            # The first mark is the newest one that is older than the window: its sums are the begin of the
            # window.
            while len(marks) > 1 and boot_ns - marks[1].boot_ns >= window_ns:
                marks.popleft()
        minute_ago = boot_ns - MINUTE_NS
        older = (mark for mark in reversed(self._marks) if mark.boot_ns <= minute_ago)
        self._recent = next(older, self._marks[0])

    def _add_change(self, boot_ns: int, place: int, value: int) -> None:
        last = self._last[place]
        self._last[place] = value
        # A first reading is no increase: the counter may have counted for days.
        if last is None:
            self._since_ns[place] = boot_ns
        elif value >= last:
            self._totals[place] += value - last
        else:
            is_reset = value <= last // 2
            # From the last reading before the reset: the growth since then belongs to the time from there.
            self._since_ns[place] = self._seen_ns[place]
            self._totals[place] = value if is_reset else 0
            # The sums before the decrease are those of another counter: an increase since then counts from
            # zero.
            for mark in (*self._marks, *self._hour_marks):
                mark.totals[place] = 0

    def increases(self, places: slice) -> Sequence[CounterIncrease | None]:
        """Return the increases of the counters at these positions of the keys; None for one that was read at most once."""
        if self._increases is None:
            self._increases = self._compute_increases()
        return self._increases[places]

    def _compute_increases(self) -> list[CounterIncrease | None]:
        """Compute all at once, in C: most counters of a device are asked for together."""
        if self._recent is None:
            return [None] * len(self._last)
        grown = list[Iterable[int]]()
        for mark in (self._marks[0], self._recent, self._hour_marks[0]):
            begun_ns = map(max, self._since_ns, repeat(mark.boot_ns))
            grown += map(sub, self._totals, mark.totals), map(sub, self._seen_ns, begun_ns)
        found: list[CounterIncrease | None] = list(map(CounterIncrease, *grown))
        for place in compress(count(), map(le, self._seen_ns, self._since_ns)):
            found[place] = None
        return found


def _picked_totals(totals: array[int], places: Iterable[int | None]) -> array[int]:
    return array("Q", [0 if place is None else totals[place] for place in places])
