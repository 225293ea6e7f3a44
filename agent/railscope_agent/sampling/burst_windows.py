"""Windows of burst sampling: a histogram of the values between samples.

Time is divided into windows of one length, on a grid of the boot clock. The value between two samples
counts once for each window that ended between them. So windows add up to time, whatever the interval of the
samples, and no window is lost because a sample is slightly late or early.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from railscope.catalog.declare import SUM, Metric
from railscope.frame import Entity
from railscope.reading import Absent
from railscope_agent.sampling.probe_result import ColumnBuilder
from railscope_agent.sampling.row_builder import RowBuilder

MAX_WINDOWS = 4
"""Maximum windows between two samples: with more, single windows are unknown and not counted."""


class WindowGrid:
    """Ends of windows on the boot clock."""

    def __init__(self, window_ns: int) -> None:
        self.window_ns = window_ns

    def count_windows(self, since_ns: int, until_ns: int) -> int:
        """Return the number of windows that ended between two times."""
        # Windows are counted by their ends on the grid, so no window is counted twice or lost between two
        # samples.
        return until_ns // self.window_ns - since_ns // self.window_ns

    def reports_each_window(self, since_ns: int, until_ns: int) -> bool:
        """True if two times are near enough that their difference is valid for every window."""
        # A clock that stands still or a long gap: the mean of the gap would hide the bursts within.
        return 0 < until_ns - since_ns <= MAX_WINDOWS * self.window_ns


class WindowMeans:
    """Mean values of windows, from values that each cover the time since the previous one.

    A window covered by several values has their mean over time.
    """

    def __init__(self, grid: WindowGrid) -> None:
        self._window_ns = grid.window_ns
        self._covered_ns = self._weighted = 0

    def forget(self) -> None:
        """Reset: the current window has no values."""
        self._covered_ns = self._weighted = 0

    def add_value(self, since_ns: int, until_ns: int, value: int) -> Iterator[tuple[int, int]]:
        """Process a value; yield numbers of windows that end in its time, and their value."""
        begun_ns = until_ns - until_ns % self._window_ns
        # No window ended: the value is a part of the mean of the window that is still open.
        if begun_ns <= since_ns:
            self._covered_ns += until_ns - since_ns
            self._weighted += value * (until_ns - since_ns)
            return
        first_ns = since_ns - since_ns % self._window_ns + self._window_ns
        covered_ns = self._covered_ns + first_ns - since_ns
        yield 1, (self._weighted + value * (first_ns - since_ns)) // covered_ns
        # Windows that lie entirely between two samples have the value of the whole time: nothing better is
        # known.
        if more := (begun_ns - first_ns) // self._window_ns:
            yield more, value
        self._covered_ns, self._weighted = until_ns - begun_ns, value * (until_ns - begun_ns)


class WindowHistogram:
    """One histogram: number of windows by value, and the sum of the values."""

    def __init__(self, metric: Metric, key: Sequence[str]) -> None:
        self._metric = metric
        self._key = tuple(key)
        denominator = metric.scale.denominator
        # Bounds in units of the stored values; a fractional bound lies between two of them.
        self._bounds = [int(bound * denominator) for bound in metric.bounds]
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0
        self._start = 0

    def count(self, windows: int, value: int) -> None:
        """Count windows with a value, in steps of the metric's scale."""
        # Buckets of Prometheus include their upper bound (le), so a value at a bound belongs below it.
        self._counts[bisect_left(self._bounds, value)] += windows
        self._sum += windows * value

    def add_columns(self, columns: ColumnBuilder) -> None:
        """Add a column for each bucket, and one for the sum."""
        parts = (*self._metric.buckets, SUM)
        self._start = len(columns.columns)
        for part in parts:
            columns.add(self._metric, Entity(self._metric.about, (*self._key, part)))

    def put(self, into: RowBuilder, problem: Absent | None) -> None:
        """Fill the columns, or set them absent for a problem.

        They are not due before the first window.
        """
        # A histogram of zeros would be a statement that no window was busy.
        if problem or not any(self._counts):
            into.put_none(self._start, len(self._counts) + 1, problem or Absent.NOT_DUE)
            return
        into.put_all(self._start, [*accumulate(self._counts), self._sum])
