"""When each GPU was observed, and in which node.

A GPU is observed between two samples of one boot of one node that lie at most `GAP_NS` apart.
Samples may come late, twice and in any order; the result is the same.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

import msgspec

GAP_NS = 30_000_000_000


class Presence(msgspec.Struct):
    """A GPU in one boot of one node: stretches of samples with no gap inside, first and last."""

    node: str
    boot_id: str
    stretches: list[tuple[int, int]] = []

    def add(self, first_ns: int, last_ns: int) -> None:
        """Add a stretch, joining it with those that are near enough."""
        if self.stretches:
            newest_first, newest_last = self.stretches[-1]
            if newest_first <= first_ns <= newest_last + GAP_NS:
                if last_ns > newest_last:
                    self.stretches[-1] = (newest_first, last_ns)
                return
        low = bisect_left(self.stretches, first_ns - GAP_NS, key=lambda stretch: stretch[1])
        high = low
        while high < len(self.stretches) and self.stretches[high][0] <= last_ns + GAP_NS:
            first_ns = min(first_ns, self.stretches[high][0])
            last_ns = max(last_ns, self.stretches[high][1])
            high += 1
        self.stretches[low:high] = [(first_ns, last_ns)]

    def touches(self, first_ns: int, last_ns: int) -> bool:
        """Whether a stretch lies within a gap of these samples."""
        at = bisect_left(self.stretches, first_ns - GAP_NS, key=lambda stretch: stretch[1])
        return at < len(self.stretches) and self.stretches[at][0] <= last_ns + GAP_NS


class Coverage(msgspec.Struct):
    """Everything that was seen of one GPU."""

    presences: list[Presence] = []

    @property
    def since_ns(self) -> int:
        """The first evidence of the GPU."""
        return min(presence.stretches[0][0] for presence in self.presences)

    def add(self, node: str, boot_id: str, first_ns: int, last_ns: int) -> bool:
        """Add samples; false, and nothing added, if another node had the GPU at that time."""
        found: Presence | None = None
        for presence in self.presences:
            if presence.node == node:
                found = presence if presence.boot_id == boot_id else found
            elif presence.touches(first_ns, last_ns):
                return False
        if found is None:
            found = Presence(node, boot_id, [])
            self.presences.append(found)
        found.add(first_ns, last_ns)
        return True

    def observed_until(self, until_ns: int) -> list[tuple[int, int]]:
        """Disjoint observed intervals [start, end), in order, cut off at an instant."""
        intervals: list[tuple[int, int]] = []
        for first_ns, last_ns in sorted(s for p in self.presences for s in p.stretches):
            start, end = first_ns, min(last_ns, until_ns)
            if intervals:
                start = max(start, intervals[-1][1])
            if start < end:
                intervals.append((start, end))
        return intervals

    def stays_until(self, until_ns: int) -> list[tuple[int, int, str]]:
        """Where the GPU was: [start, end) and node, without a hole from the first evidence on.

        A GPU stays in a node until it is seen in another one.
        """
        seen = sorted((first, p.node) for p in self.presences for first, _ in p.stretches)
        moves = [seen[0], *(after for before, after in pairwise(seen) if before[1] != after[1])]
        ends = [*(start for start, _ in moves[1:]), until_ns]
        return [
            (start, min(end, until_ns), node)
            for (start, node), end in zip(moves, ends, strict=True)
            if start < until_ns
        ]
