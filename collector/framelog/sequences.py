"""Which frames have been received: the memory that makes sending twice harmless.

A frame's identity is (node, run, stream, sequence). For each (run, stream) of a node the received
sequences are kept as disjoint ranges, one range as long as nothing is missing. Ranges do not care in
which order frames come.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

MAX_RUNS = 1000
"""Of one node's agent that are remembered; frames of older ones would count as new."""
MAX_STREAMS = 256
"""Streams of one run: as many as the statement of its end may name."""
MAX_RANGES = 1 << 16
"""Ranges of one node; beyond it the oldest runs are forgotten. About 60 streams in each of its runs."""
MAX_LOST_AT_END = 30 * 86_400 * 50
"""Frames of one stream by which a run may end beyond the last that was received.

An agent that restarts has lost what its spool held. No frame in it is older than 30 days (the default of
`limits.oldest_frame_days`), and no source has a period of less than 20 ms.
"""
MAX_MISSING = 10**9
"""Missing frames that one node adds to the figure of the cluster, which stays exact as a float."""


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
    ended: dict[str, int] = {}
    """The last sequence that the run made of a stream, as stated by the run after it."""

    def extent(self, stream: str) -> int:
        """Sequences from the first that was received to the last that was received or made."""
        ranges = self.streams.get(stream)
        if ranges is None or not ranges.starts:
            return 0
        return max(ranges.ends[-1], self.ended.get(stream, 0)) - ranges.starts[0] + 1

    @property
    def missing(self) -> int:
        """Missing frames of all streams. Linear in the ranges: for whole runs that come or go."""
        return sum(
            self.extent(stream) - ranges.width + ranges.holes
            for stream, ranges in self.streams.items()
        )

    @property
    def size(self) -> int:
        """Ranges of all streams."""
        return sum(len(ranges.starts) for ranges in self.streams.values())


class Received(msgspec.Struct):
    """Everything received, by node and run, with running totals for each node."""

    nodes: dict[str, dict[str, Run]] = {}
    missing: Counter[str] = msgspec.field(default_factory=Counter)
    """Missing frames by node."""
    sizes: Counter[str] = msgspec.field(default_factory=Counter)
    """Ranges by node."""
    ignored: Counter[str] = msgspec.field(default_factory=Counter)
    """Stated ends that were not accepted, by reason."""

    def ranges(self, node: str, run: str, stream: str) -> Ranges:
        """What has been received of one stream of one run."""
        found = self.nodes.get(node, {}).get(run)
        return (found.streams.get(stream) if found else None) or Ranges()

    def streams(self, node: str, run: str) -> Mapping[str, Ranges]:
        """Streams of which a run has frames."""
        found = self.nodes.get(node, {}).get(run)
        return found.streams if found else {}

    def add(self, node: str, run: str, stream: str, first: int, last: int, now_ns: int) -> None:  # noqa: PLR0913, PLR0917 - one identity
        """Remember first .. last of a stream."""
        runs = self.nodes.setdefault(node, {})
        entry = runs.setdefault(run, Run())
        entry.last_received_ns = max(entry.last_received_ns, now_ns)
        ranges = entry.streams.setdefault(stream, Ranges())
        extent, size = entry.extent(stream), len(ranges.starts)
        fresh = sum(b - a + 1 for a, b in ranges.missing_in(first, last))
        ranges.add(first, last)
        self.missing[node] += entry.extent(stream) - extent - fresh
        self.sizes[node] += len(ranges.starts) - size
        while len(runs) > 1 and (len(runs) > MAX_RUNS or self.sizes[node] > MAX_RANGES):
            others = (name for name in runs if name != run)
            self._drop(node, min(others, key=lambda name: runs[name].last_received_ns))

    def end(self, node: str, run: str, streams: Mapping[str, int]) -> None:
        """Take the last sequences that a run made; what did not come of them is missing.

        The first statement of a stream is final. Nothing is known of the end of a run or stream
        without frames here: they may have gone to another collector.
        """
        entry = self.nodes.get(node, {}).get(run)
        if entry is None:
            return
        for stream, last in streams.items():
            ranges = entry.streams.get(stream)
            if ranges is None:
                self.ignored["stream"] += 1
            elif stream in entry.ended:
                if entry.ended[stream] != last:
                    self.ignored["repeated"] += 1
            elif last - ranges.ends[-1] > MAX_LOST_AT_END:
                self.ignored["distance"] += 1
            else:
                extent = entry.extent(stream)
                entry.ended[stream] = last
                self.missing[node] += entry.extent(stream) - extent

    def put(self, node: str, runs: dict[str, Run]) -> None:
        """Know of a node what was known of it before, within the same bounds.

        An earlier version kept a stream without frames, of which only an end was stated, as one
        whose sequence 0 was received: it is left out.
        """
        for entry in runs.values():
            entry.streams = {
                stream: ranges
                for stream, ranges in entry.streams.items()
                if ranges.ends and ranges.ends[0] > 0
            }
            entry.ended = {
                stream: last
                for stream, last in entry.ended.items()
                if stream in entry.streams
                and last - entry.streams[stream].ends[-1] <= MAX_LOST_AT_END
            }
        newest = sorted(runs, key=lambda name: runs[name].last_received_ns, reverse=True)
        size = 0
        kept: dict[str, Run] = {}
        for name in newest[:MAX_RUNS]:
            size += runs[name].size
            if size > MAX_RANGES:
                break
            kept[name] = runs[name]
        if kept:
            self.nodes[node] = kept
            self.missing[node] = sum(entry.missing for entry in kept.values())
            self.sizes[node] = sum(entry.size for entry in kept.values())

    def forget(self, node: str, before_ns: int) -> None:
        """Forget runs of a node that were heard of last before an instant: too old to come again."""
        runs = self.nodes.get(node, {})
        gone = [run for run, entry in runs.items() if entry.last_received_ns < before_ns]
        for run in gone:
            self._drop(node, run)
        if gone and not runs:
            del self.nodes[node], self.missing[node], self.sizes[node]

    def _drop(self, node: str, run: str) -> None:
        entry = self.nodes[node].pop(run)
        self.missing[node] -= entry.missing
        self.sizes[node] -= entry.size

    def missing_of_nodes(self) -> Iterator[tuple[str, int]]:
        """Missing frames of each node that has such, at most MAX_MISSING."""
        return ((node, min(count, MAX_MISSING)) for node, count in self.missing.items() if count)

    def holes(self) -> int:
        """Missing frames of all runs, of each node at most MAX_MISSING."""
        return sum(count for _, count in self.missing_of_nodes())
