"""Mean cost of the reads of a source, robust against single outliers. Times are those of the boot clock."""

from __future__ import annotations

from dataclasses import dataclass

SPAN_NS = 30_000_000_000
"""Approximate memory of the mean."""
MAX_WEIGHT = 0.25
"""Maximum weight of a value that arrives long after the one before."""
MAX_GROWTH = 2.0
MIN_VALUES = 3


@dataclass(slots=True)
class CostTrend:
    """Mean over time that follows each value by its share of `SPAN_NS`.

    A single outlier does not move it far: a garbage collection or a page fault makes one read a hundred
    times more expensive and must not change a period; a faulty driver makes every read so and must change
    it within a few reads. One value at most doubles the mean, but it is never below the minimum of the
    last three: three consecutive values are a real change. Of the first three the minimum counts, as
    some are measured with cold caches.
    """

    mean: float = 0.0
    count: int = 0
    _at_ns: int = 0
    _last: tuple[float, ...] = ()

    @property
    def estimate(self) -> float:
        """Mean; zero while there are too few values."""
        return self.mean if self.count >= MIN_VALUES else 0.0

    def add(self, value: float, at_ns: int) -> None:
        """Record a value measured at a time of the boot clock."""
        self.count += 1
        self._last = (*self._last, value)[-MIN_VALUES:]
        if self.count <= MIN_VALUES:
            self.mean = min(self._last)
        else:
            elapsed_ns = at_ns - self._at_ns
            weight = min(elapsed_ns / (SPAN_NS + elapsed_ns), MAX_WEIGHT)
            # The first values have the weight of a plain mean: by time alone, the very first one would count
            # too long.
            weight = max(weight, 1 / (self.count - 1))
            followed = self.mean + weight * (value - self.mean)
            # The bound of growth ignores one outlier; the minimum of the last three follows a real change at
            # once.
            self.mean = max(min(followed, self.mean * MAX_GROWTH), min(self._last))
        self._at_ns = at_ns
