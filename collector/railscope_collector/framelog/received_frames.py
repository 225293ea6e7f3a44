"""Received frames: sequence ranges that make repeated sending harmless.

A frame's identity is (node, run, stream, sequence). For each (run, stream) of a node the received
sequences are stored as disjoint ranges, one range as long as nothing is missing. Ranges do not
depend on the order of frames.

Missing frames are counted from the first one received of a stream; after another collector was active, from the first one since.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import msgspec

from railscope.wire import Batch

MAX_RUNS = 1000
"""Maximum remembered runs of one node's agent; frames of older ones would count as new."""
MAX_STREAMS = 256
"""Streams of one run: as many as the statement of its end may name."""
MAX_RANGES = 1 << 16
"""Ranges of one node, about 60 streams in each of its runs; above it the oldest runs are dropped."""
MAX_LOST_AT_END = 30 * 86_400 * 50
"""Maximum frames of one stream between the last received frame and the end of the run.

An agent that restarts has lost the content of its spool. No frame in it is older than 30 days (the
default of `limits.max_frame_age_days`), and no source has a period of less than 20 ms.
"""
MAX_MISSING = 10**9
"""Maximum missing frames of one node in the sum of the cluster, which stays exact as a float."""


NEXT = -1
"""Missing frames are counted from the next one received on."""
Span: TypeAlias = tuple[int, int]


class SequenceRanges(msgspec.Struct, gc=False, omit_defaults=True):
    """Disjoint, sorted, inclusive ranges of sequence numbers: starts[i] .. ends[i]."""

    starts: list[int] = []
    ends: list[int] = []
    counted_from: int = 0
    """Sequence from which on missing ones are counted, if it is after the first; `NEXT` until one is received."""

    @property
    def first_counted(self) -> int:
        """Return the sequence from which on missing ones are counted."""
        return max(self.starts[0], self.counted_from)

    def missing_in(self, first: int, last: int) -> list[Span]:
        """Return the parts of first .. last that have not been received."""
        # The usual case: a search in the ranges is not needed.
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

    def count_new(self, first: int, count: int) -> int:
        """Return how many sequences from `first` on have not been received."""
        if not self.ends or first > self.ends[-1]:
            return count
        return sum(end - start + 1 for start, end in self.missing_in(first, first + count - 1))

    def add(self, first: int, last: int) -> None:
        """Add first .. last, joining adjacent ranges."""
        if self.ends and first == self.ends[-1] + 1:
            self.ends[-1] = last
            return
        # One less and one more than the range, so that adjacent ranges are joined and their number stays small.
        left = bisect_left(self.ends, first - 1)
        right = bisect_right(self.starts, last + 1)
        if left < right:
            first = min(first, self.starts[left])
            last = max(last, self.ends[right - 1])
        self.starts[left:right] = [first]
        self.ends[left:right] = [last]

    def count_missing(self, last: int) -> int:
        """Return the number of missing sequences from the first that counts to `last`. Linear in the ranges up to it."""
        if not self.starts or self.counted_from == NEXT:
            return 0
        missing, position = 0, self.first_counted
        for start, end in zip(self.starts, self.ends, strict=True):
            if start > last:
                break
            missing += max(0, start - position)
            position = max(position, end + 1)
        return missing + max(0, last + 1 - position)


class ReceivedRun(msgspec.Struct):
    """One run of a node's agent: its received sequences, and the time of the last receipt."""

    last_received_ns: int = 0
    run_streams: dict[str, SequenceRanges] = msgspec.field(default_factory=dict, name="streams")
    ended: dict[str, int] = {}
    """The last sequence of each stream of the run, as stated by the next run."""

    def extent(self, stream: str) -> int:
        """Return the number of sequences from the first that counts to the last received or stated."""
        ranges = self.run_streams.get(stream)
        if ranges is None or not ranges.starts:
            return 0
        last = max(ranges.ends[-1], self.ended.get(stream, 0))
        return max(0, last - ranges.first_counted + 1)

    def count_missing(self, stream: str) -> int:
        """Return the missing frames of a stream. Linear in its ranges."""
        ranges = self.run_streams.get(stream)
        if ranges is None or not ranges.starts:
            return 0
        last = max(ranges.ends[-1], self.ended.get(stream, 0))
        return ranges.count_missing(last)

    @property
    def missing(self) -> int:
        """Missing frames of all streams. Linear in the ranges: for whole runs that are added or dropped."""
        return sum(map(self.count_missing, self.run_streams))

    @property
    def size(self) -> int:
        """Ranges of all streams."""
        return sum(len(ranges.starts) for ranges in self.run_streams.values())


class ReceivedFrames(msgspec.Struct):
    """All received sequences, by node and run, with running totals for each node."""

    nodes: dict[str, dict[str, ReceivedRun]] = {}
    missing: Counter[str] = msgspec.field(default_factory=Counter)
    """Missing frames by node."""
    sizes: Counter[str] = msgspec.field(default_factory=Counter)
    """Number of ranges by node."""
    ignored: Counter[str] = msgspec.field(default_factory=Counter)
    """Stated ends that were not accepted, by reason."""

    def run_streams(self, node: str, run: str) -> Mapping[str, SequenceRanges]:
        """Return the streams with frames of a run."""
        received_run = self.nodes.get(node, {}).get(run)
        return received_run.run_streams if received_run else {}

    def add(self, node: str, run: str, stream: str, first: int, last: int, now_ns: int) -> None:  # noqa: PLR0913, PLR0917 - one identity
        """Add first .. last of a stream."""
        runs = self.nodes.get(node)
        if runs is None:
            runs = self.nodes[node] = {}
        entry = runs.get(run)
        if entry is None:
            entry = runs[run] = ReceivedRun()
        # A replay must not make the run look older.
        entry.last_received_ns = max(entry.last_received_ns, now_ns)
        ranges = entry.run_streams.get(stream)
        if ranges is None:
            ranges = entry.run_streams[stream] = SequenceRanges()
        if ranges.counted_from == NEXT:
            ranges.counted_from = first
            self.missing[node] += entry.count_missing(stream)
        if ranges.ends and first == ranges.ends[-1] + 1 and not entry.ended:
            ranges.ends[-1] = last  # the usual case: nothing is missing, and no range is new
            return
        size = len(ranges.starts)
        # By the difference of extents, whose cost does not depend on the number of ranges as that of `count_missing`
        # does.
        extent = entry.extent(stream)
        counted = ranges.missing_in(max(first, ranges.counted_from), last)
        new_frames = sum(b - a + 1 for a, b in counted)
        ranges.add(first, last)
        self.missing[node] += entry.extent(stream) - extent - new_frames
        self.sizes[node] += len(ranges.starts) - size
        # Never the run of this frame: its frames would be counted again as new.
        while len(runs) > 1 and (len(runs) > MAX_RUNS or self.sizes[node] > MAX_RANGES):
            other_runs = (name for name in runs if name != run)
            self._drop(node, min(other_runs, key=lambda name: runs[name].last_received_ns))

    def record_end(self, node: str, run: str, streams: Mapping[str, int]) -> None:
        """Record the last sequences of a run as stated; those that were not received are missing.

        The first statement of a stream is final. Statements about a run or stream without frames
        here are ignored: its frames may have gone to another collector.
        """
        entry = self.nodes.get(node, {}).get(run)
        if entry is None:
            return
        for stream, last in streams.items():
            ranges = entry.run_streams.get(stream)
            if ranges is None:
                self.ignored["stream"] += 1
            elif stream in entry.ended:
                if entry.ended[stream] != last:
                    self.ignored["repeated"] += 1
            # More frames than a run can have lost: the statement is wrong, and would be reported as a huge loss.
            elif last - ranges.ends[-1] > MAX_LOST_AT_END:
                self.ignored["distance"] += 1
            else:
                missing = entry.count_missing(stream)
                entry.ended[stream] = last
                self.missing[node] += entry.count_missing(stream) - missing

    def begin_term(self) -> None:
        """Count missing frames from the next one of each stream on: another collector may have received those before."""
        for runs in self.nodes.values():
            for entry in runs.values():
                for ranges in entry.run_streams.values():
                    ranges.counted_from = NEXT
        self.missing.clear()

    def restore_runs(self, node: str, runs: dict[str, ReceivedRun]) -> None:
        """Restore the runs of a node, within the same bounds.

        An earlier version stored a stream without frames, of which only an end was stated, as one
        with sequence 0 received: it is omitted.
        """
        for entry in runs.values():
            streams = entry.run_streams.items()
            entry.run_streams = {
                name: ranges_of_stream
                for name, ranges_of_stream in streams
                if ranges_of_stream.ends and ranges_of_stream.ends[0] > 0
            }
            for stream, last in list(entry.ended.items()):
                ranges = entry.run_streams.get(stream)
                if ranges is None or last - ranges.ends[-1] > MAX_LOST_AT_END:
                    del entry.ended[stream]
        # Newest first: an agent sends again only frames of recent runs.
        newest = sorted(runs, key=lambda name: runs[name].last_received_ns, reverse=True)
        size = 0
        restored: dict[str, ReceivedRun] = {}
        for name in newest[:MAX_RUNS]:
            size += runs[name].size
            if size > MAX_RANGES:
                break
            restored[name] = runs[name]
        if restored:
            self.nodes[node] = restored
            self.missing[node] = sum(entry.missing for entry in restored.values())
            self.sizes[node] = sum(entry.size for entry in restored.values())

    def clear(self) -> None:
        """Forget all received frames."""
        for by_node in (self.nodes, self.missing, self.sizes):
            by_node.clear()

    def drop_old_runs(self, node: str, before_ns: int) -> None:
        """Drop runs of a node without receipts since a timestamp: they are too old to be sent again."""
        runs = self.nodes.get(node, {})
        old_runs = [run for run, entry in runs.items() if entry.last_received_ns < before_ns]
        for run in old_runs:
            self._drop(node, run)
        if old_runs and not runs:
            del self.nodes[node], self.missing[node], self.sizes[node]

    def _drop(self, node: str, run: str) -> None:
        entry = self.nodes[node].pop(run)
        self.missing[node] -= entry.missing
        self.sizes[node] -= entry.size

    def missing_of_nodes(self) -> Iterator[tuple[str, int]]:
        """Yield missing frames of each node that has any, at most MAX_MISSING."""
        return ((node, min(count, MAX_MISSING)) for node, count in self.missing.items() if count)

    def count_missing(self) -> int:
        """Return missing frames of all runs, at most MAX_MISSING per node."""
        return sum(count for _, count in self.missing_of_nodes())


def count_new(streams: Mapping[str, SequenceRanges], batch: Batch) -> int:
    """Return the number of frames of a batch that its run's streams do not contain."""
    ranges = streams.get(batch.stream)
    rows = len(batch.wall_ns)
    if ranges is None or not ranges.ends or batch.first_sequence > ranges.ends[-1]:
        return rows
    return ranges.count_new(batch.first_sequence, rows)
