"""Windows: what was seen between two looks, counted in a histogram by how much it was.

Time is cut into windows of one length, on a grid of the boot clock. What was seen between two looks
counts once for each window that ended between them. So windows add up to time, whatever the looks'
own rhythm, and a look that comes a little late or early costs none.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from agent.sampling.source import Columns, Table
from railscope.catalog.declare import SUM, Metric
from railscope.entity import Entity
from railscope.reading import Absent

MAX_WINDOWS = 4
"""A look back over more windows than this says nothing of each: they are unseen."""


class Grid:
    """The ends of windows on the boot clock."""

    def __init__(self, window_ns: int) -> None:
        self.window_ns = window_ns

    def between(self, since_ns: int, until_ns: int) -> int:
        """How many windows ended between two instants."""
        return until_ns // self.window_ns - since_ns // self.window_ns

    def tells_of_each(self, since_ns: int, until_ns: int) -> bool:
        """Whether two instants are near enough that their difference speaks of every window."""
        return 0 < until_ns - since_ns <= MAX_WINDOWS * self.window_ns


class Averaged:
    """What was seen in windows, from values that each speak of the time since the one before.

    A window that several values speak of has their mean over time.
    """

    def __init__(self, grid: Grid) -> None:
        self._window_ns = grid.window_ns
        self._spoken_ns = self._weighed = 0

    def forget(self) -> None:
        """Nothing is known of the window that has begun."""
        self._spoken_ns = self._weighed = 0

    def ended(self, since_ns: int, until_ns: int, value: int) -> Iterator[tuple[int, int]]:
        """Take a value. The windows that end in its time, and what was seen in them."""
        begun_ns = until_ns - until_ns % self._window_ns
        if begun_ns <= since_ns:
            self._spoken_ns += until_ns - since_ns
            self._weighed += value * (until_ns - since_ns)
            return
        first_ns = since_ns - since_ns % self._window_ns + self._window_ns
        spoken_ns = self._spoken_ns + first_ns - since_ns
        yield 1, (self._weighed + value * (first_ns - since_ns)) // spoken_ns
        if more := (begun_ns - first_ns) // self._window_ns:
            yield more, value
        self._spoken_ns, self._weighed = until_ns - begun_ns, value * (until_ns - begun_ns)


class Windows:
    """One histogram: how many windows by what was seen in them, and the sum of it."""

    def __init__(self, metric: Metric, key: Sequence[str]) -> None:
        self._metric = metric
        self._key = tuple(key)
        denominator = metric.scale.denominator
        # Bounds in the steps that values come in; what is not whole lies between two of them.
        self._bounds = [int(bound * denominator) for bound in metric.bounds]
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0
        self._start = 0

    def see(self, windows: int, value: int) -> None:
        """Count windows in which so much was seen, in steps of the metric's scale."""
        self._counts[bisect_left(self._bounds, value)] += windows
        self._sum += windows * value

    def add_columns(self, columns: Columns) -> None:
        """A column for each bucket, and one for the sum."""
        parts = (*self._metric.buckets, SUM)
        self._start = len(columns.columns)
        for part in parts:
            columns.add(self._metric, Entity(self._metric.about, (*self._key, part)))

    def tell(self, into: Table, problem: Absent | None) -> None:
        """Fill the columns, where no problem keeps them from growing.

        There is nothing to tell before the first window.
        """
        if problem or not any(self._counts):
            into.put_none(self._start, len(self._counts) + 1, problem or Absent.NOT_DUE)
            return
        into.put_all(self._start, [*accumulate(self._counts), self._sum])
