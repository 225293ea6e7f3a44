"""Quarters of nodes in memory, and reports of problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import structlog

from railscope.timestamps import FOREVER_NS
from railscope.wire import Batch, Envelope
from railscope_collector.evidence import (
    batch_facts,
    evidence_records,
    node_intervals,
)
from railscope_collector.fleet.names import KnownSchema
from railscope_collector.framelog.segment_files import FrameRecord
from railscope_collector.metering.observation import GAP_NS

log = structlog.get_logger(__name__)

INTERVAL_BYTES = 64 << 10
"""Usual size of a node's evidence of 15 minutes."""
MAX_PENDING_INTERVALS_PER_NODE = 2048
"""Three weeks of evidence of one node, pending for the database."""
_MAX_REMEMBERED, _MAX_REPORTED = 10_000, 200
"""Maximum number of remembered problems, and of those reported individually per kind and node."""


class QuarterInMemory(msgspec.Struct):
    """An interval in memory, with its last change."""

    interval: node_intervals.EvidenceInterval = msgspec.field(name="chunk")
    touched_ns: int = 0
    size_bytes: int = 0
    """Approximate memory use."""
    since_ns: int = 0
    """Receipt of the first addition."""
    position: int = 0
    """Position of the frame log from which on it was added to."""

    @property
    def interval_count(self) -> int:
        """Return the weight of the interval, in intervals of usual size."""
        return 1 + self.size_bytes // INTERVAL_BYTES

    def is_due(self, quiet_ns: int | None) -> bool:
        """True if it is to be written: nothing was added since `quiet_ns`, or it would have ended before that.

        A node that sends old frames again and again would otherwise never be quiet.
        """
        if quiet_ns is None:
            return True
        return self.touched_ns <= quiet_ns or self.since_ns <= quiet_ns - node_intervals.INTERVAL_NS

    @property
    def key(self) -> tuple[str, str, int]:
        """Return its node, boot and number."""
        return self.interval.node, self.interval.boot, self.interval.number


class BootTimes(NamedTuple):
    """First and last sample of an envelope's batches on the boot clock, and of those without GPUs."""

    first_ns: int
    last_ns: int
    other_first_ns: int
    other_last_ns: int
    uncertainty_ns: int
    """The largest of the batches without GPUs."""

    @classmethod
    def of_batches(cls, batches: Sequence[tuple[Batch, KnownSchema]]) -> BootTimes:
        """Return the times of batches."""
        first_ns = other_first_ns = FOREVER_NS
        last_ns = other_last_ns = uncertainty_ns = 0
        for batch, schema in batches:
            low, high = min(batch.boot_ns), max(batch.boot_ns)
            if schema.gpus:
                first_ns, last_ns = min(first_ns, low), max(last_ns, high)
                continue
            other_first_ns = min(other_first_ns, low)
            other_last_ns = max(other_last_ns, high)
            if batch.uncertainty_ns:
                uncertainty_ns = max(uncertainty_ns, batch_facts.uncertainty_of(batch))
        first_ns, last_ns = min(first_ns, other_first_ns), max(last_ns, other_last_ns)
        return cls(first_ns, last_ns, other_first_ns, other_last_ns, uncertainty_ns)

    @property
    def interval(self) -> int:
        """Return the number of the first interval."""
        return self.first_ns // node_intervals.INTERVAL_NS

    def are_joined(self, record: FrameRecord, envelope: Envelope) -> bool:
        """True if all samples are one span of one interval, at ages by the boot clock.

        Their spans then need not be joined batch by batch.
        """
        sent = record.sent
        return (
            envelope.boot_id == sent.boot_id != ""
            and self.last_ns - self.first_ns <= GAP_NS
            and self.last_ns <= sent.boot_ns
            and sent.boot_ns - self.first_ns <= node_intervals.MAX_AGE_NS
            and self.interval == self.last_ns // node_intervals.INTERVAL_NS
        )

    def report_spans(self, record: FrameRecord, skew_ns: int) -> list[node_intervals.SampleSpan]:
        """Return the spans of all batches, and of those without GPUs if there are any."""
        since_boot_ns = record.received_wall_ns - record.sent.boot_ns
        times = [(self.first_ns, self.last_ns), (self.other_first_ns, self.other_last_ns)]
        return [
            node_intervals.SampleSpan(
                since_boot_ns + first_ns, since_boot_ns + last_ns, self.uncertainty_ns, skew_ns
            )
            for first_ns, last_ns in times
            if first_ns <= last_ns
        ]


@dataclass(slots=True)
class QuarterMemory:
    """All intervals in memory."""

    by_key: dict[tuple[str, str, int], QuarterInMemory] = field(default_factory=dict)
    """Those that are added to, by node, boot and number."""
    leaving: list[QuarterInMemory] = field(default_factory=list)
    """Those that are being moved to disk: what is added later is a further interval."""
    counts: Counter[str] = field(default_factory=Counter)
    """Number of usual intervals in memory, by node."""
    positions: dict[str, dict[int, int]] = field(default_factory=dict)
    """Positions of the intervals of each node, by their identity."""
    applied: int = 0
    """Position of the frame log up to which all records are applied: what is recorded now is of a later one."""

    def __len__(self) -> int:
        """Return the number of intervals."""
        return len(self.by_key) + len(self.leaving)

    def record_rows(self, taking: batch_facts.BatchFacts, number: int, rows: Sequence[int]) -> None:
        """Record the rows of a batch that belong in one interval."""
        envelope, batch, record = taking.envelope, taking.batch, taking.record
        first_ns = taking.since_boot_ns + batch.boot_ns[rows[0]]
        last_ns = taking.since_boot_ns + batch.boot_ns[rows[-1]]
        key = (envelope.node, envelope.boot_id, number)
        interval = self._extend(key, record, (first_ns, last_ns))
        before = interval.interval_count
        interval.size_bytes += taking.record_rows(interval.interval, rows)
        self.counts[envelope.node] += interval.interval_count - before

    def record_reports(
        self,
        record: FrameRecord,
        envelope: Envelope,
        times: BootTimes,
        spans: Sequence[node_intervals.SampleSpan],
    ) -> None:
        """Record the time of an envelope in one interval; the second of the spans is without GPUs."""
        first_ns, last_ns = spans[0].first_ns, spans[0].last_ns
        key = (envelope.node, envelope.boot_id, times.interval)
        interval = self._extend(key, record, (first_ns, last_ns))
        before = interval.interval_count
        interval.size_bytes += batch_facts.add_reports(interval.interval, spans[1:])
        self.counts[envelope.node] += interval.interval_count - before

    def _extend(
        self, key: tuple[str, str, int], record: FrameRecord, span: tuple[int, int]
    ) -> QuarterInMemory:
        """Return the interval of a node's 15 minutes, extended by a span."""
        interval = self.by_key.get(key)
        if interval is None:
            interval = self.by_key[key] = QuarterInMemory(
                node_intervals.EvidenceInterval(*key, *span),
                since_ns=record.received_wall_ns,
                position=self.applied + 1,
            )
            self._count(interval)
        interval.interval.cover(*span)
        interval.touched_ns = max(interval.touched_ns, record.received_wall_ns)
        return interval

    def share_of_node(self, max_intervals: int) -> int:
        """Return the maximum weight of the intervals of one node in memory, of that of all nodes."""
        return min(
            max(1, max_intervals // max(1, len(self.counts))), MAX_PENDING_INTERVALS_PER_NODE
        )

    def begin_leaving(self, keys: Iterable[tuple[str, str, int]], quiet_ns: int | None) -> None:
        """Let intervals leave that are due at a time; all of them if it is None."""
        for key in keys:
            if self.by_key[key].is_due(quiet_ns):
                self.leaving.append(self.by_key.pop(key))

    def release(self, intervals: Sequence[QuarterInMemory]) -> None:
        """Remove intervals that are on disk."""
        on_disk = set(map(id, intervals))
        self.leaving = [each for each in self.leaving if id(each) not in on_disk]
        for each in intervals:
            node = each.interval.node
            self.counts[node] -= each.interval_count
            del self.positions[node][id(each)]
            if not self.positions[node]:
                del self.counts[node], self.positions[node]

    def _count(self, interval: QuarterInMemory) -> None:
        node = interval.interval.node
        self.counts[node] += interval.interval_count
        self.positions.setdefault(node, {})[id(interval)] = interval.position

    def restore(self, intervals: Iterable[QuarterInMemory]) -> None:
        """Add the intervals of a snapshot."""
        for interval in intervals:
            # Of two with one key, one was being moved to disk.
            if interval.key in self.by_key:
                self.leaving.append(interval)
            else:
                self.by_key[interval.key] = interval
            self._count(interval)


@dataclass(slots=True)
class ProblemReports:
    """Problems of the evidence, each reported once: logged and passed to the listeners."""

    listeners: list[Callable[[evidence_records.EvidenceProblem], None]] = field(
        default_factory=list
    )
    suppressed: int = 0
    """Problems of one kind and node beyond those that are reported individually."""
    _reported: set[tuple[str, ...]] = field(default_factory=set)
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def report(self, problem: evidence_records.EvidenceProblem) -> None:
        """Log a new problem once, and pass it to the listeners."""
        kind, gpu, node, facts = problem.kind, problem.gpu, problem.node, problem.facts
        key = (kind, gpu, node, *sorted(facts.values()))
        # Without the skew, which differs in each envelope: a node is reported once.
        if kind == "quarantine":
            key = key[:3]
        if key in self._reported:
            return
        if len(self._reported) >= _MAX_REMEMBERED:
            self._reported.clear()
            self._counts.clear()
        # By kind and node, so that one node cannot suppress the reports about others.
        if self._counts[kind, node] >= _MAX_REPORTED:
            self.suppressed += 1
            return
        self._reported.add(key)
        self._counts[kind, node] += 1
        log.warning("evidence_problem_found", kind=kind, gpu=gpu, node=node, facts=facts)
        for listener in self.listeners:
            listener(problem)
