"""Recent cost of an operation, as a mean that a single outlier does not move far.

A garbage collection or a page fault makes one read a hundred times more expensive; a faulty driver makes
every read so. The first must not change a period, the second must do so within a few reads.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

SPAN_NS = 30_000_000_000
"""Approximate memory of the mean."""
MAX_WEIGHT = 0.25
"""Maximum weight of a value that arrives long after the one before."""
MAX_GROWTH = 2.0
SETTLED_AFTER = 3


@dataclass(slots=True)
class Trend:
    """Mean over time that follows each value by its share of `SPAN_NS`.

    One value at most doubles it, but it is never below the least of the last three: three in a row are no
    accident. Of the first three the least counts, because some are made with cold caches.
    """

    settled_after: int = SETTLED_AFTER
    mean: float = 0.0
    _count: int = 0
    _at_ns: int = 0
    _last: deque[float] = field(default_factory=lambda: deque(maxlen=SETTLED_AFTER))

    @property
    def settled(self) -> float:
        """Mean; zero while there are too few values."""
        return self.mean if self._count >= self.settled_after else 0.0

    def add(self, value: float, at_ns: int) -> None:
        """Record a value measured at a time of the boot clock."""
        self._count += 1
        self._last.append(value)
        if self._count <= SETTLED_AFTER:
            self.mean = min(self._last)
        else:
            elapsed_ns = at_ns - self._at_ns
            weight = min(elapsed_ns / (SPAN_NS + elapsed_ns), MAX_WEIGHT)
            weight = max(weight, 1 / (self._count - 1))
            followed = self.mean + weight * (value - self.mean)
            self.mean = max(min(followed, self.mean * MAX_GROWTH), min(self._last))
        self._at_ns = at_ns
