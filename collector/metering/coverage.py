"""When each GPU was observed.

A GPU is observed between two samples of one boot that lie at most `GAP_NS` apart. Samples may come
late, twice and in any order; the result is the same.
"""

from __future__ import annotations

from bisect import bisect_left

import msgspec

GAP_NS = 30_000_000_000


class Stretch(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Samples of one boot with no gap between them: the first and the last."""

    first_ns: int
    last_ns: int
    boot_id: str


class Coverage(msgspec.Struct):
    """The stretches in which one GPU was observed, in order, and the node it is in."""

    node: str
    stretches: list[Stretch] = []

    @property
    def since_ns(self) -> int:
        """The first evidence of the GPU."""
        return self.stretches[0].first_ns

    def add(self, first_ns: int, last_ns: int, boot_id: str) -> None:
        """Add a stretch, joining it with those of the same boot that are near enough."""
        if self.stretches:
            newest = self.stretches[-1]
            if newest.boot_id == boot_id and newest.first_ns <= first_ns <= newest.last_ns + GAP_NS:
                if last_ns > newest.last_ns:
                    self.stretches[-1] = Stretch(newest.first_ns, last_ns, boot_id)
                return
        # Boots do not overlap in time but their edges may, by clock noise: look a gap to each side.
        low = bisect_left(self.stretches, first_ns - GAP_NS, key=lambda s: s.last_ns)
        high = low
        apart: list[Stretch] = []
        while high < len(self.stretches) and self.stretches[high].first_ns <= last_ns + GAP_NS:
            near = self.stretches[high]
            if near.boot_id == boot_id:
                first_ns, last_ns = min(first_ns, near.first_ns), max(last_ns, near.last_ns)
            else:
                apart.append(near)
            high += 1
        self.stretches[low:high] = sorted([*apart, Stretch(first_ns, last_ns, boot_id)])

    def observed_until(self, until_ns: int) -> list[tuple[int, int]]:
        """Disjoint observed intervals [start, end), cut off at an instant."""
        intervals: list[tuple[int, int]] = []
        for stretch in self.stretches:
            start, end = stretch.first_ns, min(stretch.last_ns, until_ns)
            if intervals and start < intervals[-1][1]:
                start = intervals[-1][1]
            if start < end:
                intervals.append((start, end))
        return intervals
