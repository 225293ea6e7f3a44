"""Quarters of nodes in memory, the facts that a shared database lacks, and reports of problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
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
    """An interval in memory, with its last change; `stored` if the database has it or is writing it."""

    interval: node_intervals.EvidenceInterval = msgspec.field(name="chunk")
    touched_ns: int = 0
    stored: bool = False
    size_bytes: int = 0
    """Approximate memory use."""
    since_ns: int = 0
    """Receipt of the first addition that no write contains."""

    @property
    def interval_count(self) -> int:
        """Return the weight of the interval, in intervals of usual size."""
        return 1 + self.size_bytes // INTERVAL_BYTES

    def is_due(self, quiet_ns: int | None) -> bool:
        """True if it is to be written: nothing was added since `quiet_ns`, or it would have ended before that.

        A node that sends old frames again and again would otherwise never be quiet.
        """
        if self.stored or quiet_ns is None:
            return not self.stored
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
class UnstoredFacts:
    """Facts that a shared database does not have, with the positions of the acknowledgements that wait for them.

    Each acknowledgement has a position, which only increases. The facts of its envelope were recorded at that
    position or before, so the database has all of them once every fact that it lacks is of a later one. A fact that
    is added to keeps its position until it is stored. While a fact is being written, it is not stored, and additions
    to it are a further fact.
    """

    log: str = ""
    """Identity of the state directory; empty if evidence is as safe in the frame log as in the database."""
    position: int = 0
    """Position of the next acknowledgement."""
    applied: int = 0
    """Position of the acknowledgement whose facts are recorded now; 0: the next one."""
    _waiting: dict[str, dict[Hashable, int]] = field(default_factory=dict)
    """Positions by node and fact."""
    _writing: dict[str, dict[Hashable, int]] = field(default_factory=dict)

    def add(self, node: str, fact: Hashable) -> None:
        """Record that a fact of a node was recorded or changed."""
        if self.log:
            # The earliest position: a fact that is added to is stored as a whole.
            facts, position = self._waiting.setdefault(node, {}), self.applied or self.position
            facts[fact] = min(position, facts.get(fact, position))

    def begin_write(self, node: str, fact: Hashable) -> None:
        """Record that a fact is as of now about to be written."""
        position = self._waiting.get(node, {}).pop(fact, None)
        if position is not None:
            self._writing.setdefault(node, {})[fact] = position

    def move_to_disk(self, node: str, fact: Hashable) -> None:
        """Record that a fact which is not stored is on disk, among others of its node."""
        position = self._waiting.get(node, {}).pop(fact, None)
        if position is not None:
            on_disk = self._waiting[node].get(ON_DISK, position)
            # The earliest position: the database has all of a node's file at once, or nothing of it.
            self._waiting[node][ON_DISK] = min(position, on_disk)

    def leave_disk(self, node: str) -> None:
        """Record that all facts of a node which were on disk are stored."""
        self._waiting.get(node, {}).pop(ON_DISK, None)

    def end_write(self, *, is_stored: bool) -> None:
        """Record the end of a write: the transaction was committed, or may not have been."""
        if not is_stored:
            for node, positions in self._writing.items():
                self._waiting[node].update(positions)  # these are earlier than those of additions
        self._writing.clear()

    def end_apply(self, node: str, position: int) -> None:
        """Record that all facts of an acknowledgement were recorded."""
        if position:
            self._waiting.get(node, {}).pop(position, None)

    def acknowledge(self, node: str, *, is_applied: bool = True) -> dict[str, str | int]:
        """Return the position of an acknowledgement, and that up to which all facts of the node are stored.

        Until `end_apply`, an acknowledgement that is not applied yet is a fact itself.
        """
        if not self.log:
            return {}
        position, self.position = self.position, self.position + 1
        if not is_applied:
            self._waiting.setdefault(node, {})[position] = position
        facts = (by_node.get(node, {}).values() for by_node in (self._waiting, self._writing))
        # Facts being written count as missing: the transaction may fail.
        first = min(chain.from_iterable(facts), default=self.position)
        return {"log": self.log, "position": position, "stored": first - 1}


ON_DISK = "on disk"
"""The intervals of a node that wait on disk, as one fact."""


@dataclass(slots=True)
class QuarterMemory:
    """All intervals in memory, by node, boot and number."""

    by_key: dict[tuple[str, str, int], QuarterInMemory] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    """Number of usual intervals in memory, by node."""
    on_disk: Counter[str] = field(default_factory=Counter)
    """Number of intervals that wait on disk, by node."""
    unstored: UnstoredFacts = field(default_factory=UnstoredFacts)
    """These intervals, and the other facts that are to be written to the database."""

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
                node_intervals.EvidenceInterval(*key, *span)
            )
            self.counts[key[0]] += interval.interval_count
        interval.interval.cover(*span)
        if interval.stored or not interval.since_ns:
            interval.since_ns = record.received_wall_ns
        interval.touched_ns = max(interval.touched_ns, record.received_wall_ns)
        # Also while it is being written: that write does not contain the addition.
        interval.stored = False
        self.unstored.add(key[0], key)
        return interval

    def share_of_node(self, max_intervals: int) -> int:
        """Return the maximum weight of the intervals of one node in memory, of that of all nodes."""
        return min(
            max(1, max_intervals // max(1, len(self.counts))), MAX_PENDING_INTERVALS_PER_NODE
        )

    def move_to_disk(self, intervals: Iterable[QuarterInMemory]) -> None:
        """Remove intervals that were written to disk, unless they were added to meanwhile."""
        for interval in intervals:
            self.on_disk[interval.interval.node] += 1
            if interval.stored:
                self.unstored.move_to_disk(interval.interval.node, interval.key)
                self.release(interval)

    def leave_disk(self, nodes: Mapping[str, int]) -> None:
        """Record that the database has a file, with the number of intervals of each node."""
        for node, number in nodes.items():
            self.on_disk[node] -= number
            if self.on_disk[node] <= 0:
                del self.on_disk[node]
                self.unstored.leave_disk(node)

    def release(self, interval: QuarterInMemory) -> None:
        """Remove an interval that is stored in the database."""
        node = interval.interval.node
        del self.by_key[interval.key]
        self.counts[node] -= interval.interval_count
        if not self.counts[node]:
            del self.counts[node]

    def restore(self, intervals: Iterable[QuarterInMemory]) -> None:
        """Add the intervals of a snapshot."""
        for interval in intervals:
            interval.stored = False  # its write may have been in progress
            self.by_key[interval.key] = interval
            self.counts[interval.interval.node] += interval.interval_count


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
