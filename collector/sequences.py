"""Which frames have been received: the memory that makes sending twice harmless.

A frame's identity is (node, run, stream, sequence). For each (run, stream) of a node the received
sequences are kept as disjoint ranges, one range as long as nothing is missing. Ranges do not care in
which order frames come.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping

import msgspec

MAX_RUNS = 1000
"""Of one node's agent that are remembered; frames of older ones would count as new."""


class Ranges(msgspec.Struct):
    """Disjoint, sorted, inclusive ranges of sequence numbers: starts[i] .. ends[i]."""

    starts: list[int] = []
    ends: list[int] = []

    def missing_in(self, first: int, last: int) -> list[tuple[int, int]]:
        """The parts of first .. last that are not here yet."""
        if not self.ends or first > self.ends[-1]:
            return [(first, last)]
        gaps = []
        position = first
        index = bisect_left(self.ends, first)
        while position <= last:
            if index >= len(self.starts) or self.starts[index] > last:
                gaps.append((position, last))
                break
            if self.starts[index] > position:
                gaps.append((position, self.starts[index] - 1))
            position = self.ends[index] + 1
            index += 1
        return gaps

    def add(self, first: int, last: int) -> None:
        """Add first .. last, joining what touches it."""
        if self.ends and first == self.ends[-1] + 1:
            self.ends[-1] = last
            return
        left = bisect_left(self.ends, first - 1)
        right = bisect_right(self.starts, last + 1)
        if left < right:
            first = min(first, self.starts[left])
            last = max(last, self.ends[right - 1])
        self.starts[left:right] = [first]
        self.ends[left:right] = [last]

    @property
    def width(self) -> int:
        """How many sequences lie from the first to the last that came."""
        return self.ends[-1] - self.starts[0] + 1 if self.starts else 0

    @property
    def holes(self) -> int:
        """How many sequences are missing between the first and the last that came."""
        if len(self.starts) < 2:  # noqa: PLR2004 - one range has none, and is the usual case
            return 0
        return sum(s - e - 1 for s, e in zip(self.starts[1:], self.ends, strict=False))


class Run(msgspec.Struct):
    """One run of a node's agent: what came of it, and when the last of it came."""

    last_received_ns: int = 0
    streams: dict[str, Ranges] = {}


class Received(msgspec.Struct):
    """Everything received, by node and run."""

    nodes: dict[str, dict[str, Run]] = {}
    missing: int = 0

    def ranges(self, node: str, run: str, stream: str) -> Ranges:
        """What has been received of one stream of one run."""
        found = self.nodes.get(node, {}).get(run)
        return (found.streams.get(stream) if found else None) or Ranges()

    def add(self, node: str, run: str, stream: str, first: int, last: int, now_ns: int) -> None:  # noqa: PLR0913, PLR0917 - one identity
        """Remember first .. last of a stream."""
        runs = self.nodes.setdefault(node, {})
        entry = runs.get(run)
        if entry is None:
            entry = runs[run] = Run()
            if len(runs) > MAX_RUNS:
                oldest = min(
                    (name for name in runs if name != run),
                    key=lambda name: runs[name].last_received_ns,
                )
                self.missing -= _holes([runs.pop(oldest)])
        entry.last_received_ns = max(entry.last_received_ns, now_ns)
        ranges = entry.streams.get(stream)
        if ranges is None:
            ranges = entry.streams[stream] = Ranges()
        before = ranges.width
        fresh = sum(b - a + 1 for a, b in ranges.missing_in(first, last))
        ranges.add(first, last)
        self.missing += ranges.width - before - fresh

    def end(self, node: str, run: str, streams: Mapping[str, int]) -> None:
        """Take the last sequences that a run made; what did not come of them is missing.

        The sequence behind the last counts as received, so that the range of missing ones has an
        end, and closes where they come after all. A run that was never heard of stays unknown: its
        frames may have gone to another collector.
        """
        entry = self.nodes.get(node, {}).get(run)
        if entry is None:
            return
        for stream, last in streams.items():
            ranges = entry.streams.get(stream)
            if ranges is None:
                ranges = entry.streams[stream] = Ranges([0], [0])
            before = ranges.holes
            ranges.add(last + 1, last + 1)
            self.missing += ranges.holes - before

    def put(self, node: str, runs: dict[str, Run]) -> None:
        """Know of a node what was known of it before."""
        if runs:
            self.nodes[node] = runs
            self.missing += _holes(runs.values())

    def forget(self, node: str, before_ns: int) -> None:
        """Forget runs of a node that were heard of last before an instant: too old to come again."""
        runs = self.nodes.get(node, {})
        gone = [run for run, entry in runs.items() if entry.last_received_ns < before_ns]
        for run in gone:
            self.missing -= _holes([runs.pop(run)])
        if gone and not runs:
            del self.nodes[node]

    def holes(self) -> int:
        """Missing frames of all runs."""
        return self.missing


def _holes(runs: Iterable[Run]) -> int:
    return sum(ranges.holes for run in runs for ranges in run.streams.values())
