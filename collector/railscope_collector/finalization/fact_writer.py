"""Writing of facts from memory to the database.

A quarter is removed from memory once the database has it. If the database rejects a value, the
facts are divided until all but the rejected ones are written. Those stay in memory and in snapshots, or on disk, are not
stored in the sense of acknowledgements, and are written again after the next start.

While the database does not keep up, intervals wait on disk (`railscope_collector.evidence.waiting_evidence`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import structlog

from railscope import service
from railscope_collector.evidence import (
    claim_events,
    evidence_records,
    fact_store,
    gpu_states,
    node_intervals,
    open_quarters,
    quarter_memory,
    waiting_evidence,
)
from railscope_collector.ledger import database

log = structlog.get_logger(__name__)

_AT_ONCE = 256
"""Quarters of one transaction."""
_YIELD_EVERY = 16


@dataclass(slots=True)
class FactWriter:
    """Writes the facts of a book. Its methods raise UnusableLedgerError, LostLeaseError."""

    book: open_quarters.OpenQuarters
    changeable_days: Callable[[], range]
    """Returns the days that are over, and that facts may still change."""
    on_stored: Callable[[], None]
    """Called for each interval that was written."""
    waiting: waiting_evidence.WaitingEvidence | None = None
    """Intervals that wait on disk; None if all wait in memory."""
    _queued: set[Hashable] = field(default_factory=set)
    """Keys of intervals that are selected for the present write: they stay in memory."""
    rejected: set[Hashable] = field(default_factory=set)
    """Facts that the database rejected: keys of intervals (on disk marked), claims, contacts by node and GPU."""
    _rejected_rows: set[int] = field(default_factory=set)
    """Numbers of intervals on disk that the database rejected."""

    def _reject(self, node: str, fact: Hashable, error: database.RejectedValueError) -> None:
        """Report a fact that the database rejects, which is not written again before the next start."""
        self.rejected.add(fact)
        advice = (
            "it is kept, and not written before the next start; correct the database, then restart"
        )
        log.error("evidence_rejected", node=node, problem=str(error), advice=advice)

    async def write_evidence(self, store: fact_store.FactStore, quiet_ns: int | None) -> None:
        """Write claims, and the intervals that are due at a time; all of them if it is None."""
        claims = [fact for fact in self.book.unwritten if fact not in self.rejected]
        intervals: list[quarter_memory.QuarterInMemory] = []
        by_key = self.book.quarters.by_key
        try:
            for keys in _group_items(list(by_key)):
                await asyncio.sleep(0)  # there may be 50,000 of them
                for key in keys:
                    interval = by_key.get(key)
                    if interval and interval.is_due(quiet_ns) and key not in self.rejected:
                        intervals.append(interval)
                        self._queued.add(key)
            # One write without intervals, if there are only claims.
            for fact_group in list(_group_items(intervals)) or [[]]:
                await self._write_accepted(store, fact_group, claims)
                # With the first group only.
                claims = []
        finally:
            self._queued.clear()

    async def move_to_disk(self, quiet_ns: int) -> None:
        """Move intervals to disk that are due at a time, if a node has more than half of its share in memory.

        Raises OSError, WaitingEvidenceError: they stay in memory then.
        """
        memory, waiting = self.book.quarters, self.waiting
        if waiting is None:
            return
        share = memory.share_of_node(waiting.limits.pending_evidence_intervals)
        movable = memory.counts.keys() - waiting.full
        if max((memory.counts[node] for node in movable), default=0) <= share // 2:
            return
        for keys in _group_items(list(memory.by_key)):
            await asyncio.sleep(0)  # there may be 50,000 of them
            group = [
                interval
                for key in keys
                if (interval := memory.by_key.get(key)) and interval.is_due(quiet_ns)
                if key not in self._queued and key not in self.rejected
                if interval.interval.node not in waiting.full
            ]
            for interval in group:
                interval.stored = True  # so that no write begins with it
            nodes = [interval.interval.node for interval in group]
            if not group:
                continue
            try:
                contents = [content async for _, content in self._encode(group)]
                node_count = len(memory.counts.keys() | memory.on_disk.keys())
                fits = await service.run_in_thread(waiting.write, nodes, contents, node_count)
            except BaseException:
                for interval in group:
                    interval.stored = False
                raise
            for interval, is_fitting in zip(group, fits, strict=True):
                interval.stored = interval.stored and is_fitting
            memory.move_to_disk(compress(group, fits))

    async def write_waiting(self, store: fact_store.FactStore) -> None:
        """Write the intervals that wait on disk, oldest first; a damaged or rejected one delays no other."""
        waiting, last = self.waiting, 0
        while waiting and (rows := await service.run_in_thread(waiting.read, last)):
            last = rows[-1].number
            intervals = {
                row.number: quarter_memory.QuarterInMemory(row.interval)
                for row in rows
                if row.interval is not None and row.number not in self._rejected_rows
            }
            await self._write_accepted(store, list(intervals.values()), (), quarter_memory.ON_DISK)
            is_rejected = {
                number: (quarter_memory.ON_DISK, *interval.key) in self.rejected
                for number, interval in intervals.items()
            }
            self._rejected_rows.update(number for number in intervals if is_rejected[number])
            stored = [number for number in intervals if not is_rejected[number]]
            # If this fails, they are written again in the next round, which changes nothing.
            await service.run_in_thread(waiting.delete, stored)
            nodes = Counter(intervals[number].interval.node for number in stored)
            self.book.quarters.leave_disk(nodes)
        if waiting:
            waiting.full.clear()
            if last:
                await service.run_in_thread(waiting.store.shrink)

    async def _write_accepted(
        self,
        store: fact_store.FactStore,
        intervals: Sequence[quarter_memory.QuarterInMemory],
        claims: Sequence[claim_events.ClaimFact],
        *mark: str,
    ) -> None:
        """Write evidence but not the facts that the database rejects; a mark is before the keys of these intervals."""
        try:
            await self._write(store, intervals, claims)
        except database.RejectedValueError as error:
            if len(intervals) + len(claims) == 1:
                for interval in intervals:
                    self._reject(interval.interval.node, (*mark, *interval.key), error)
                for fact in claims:
                    self._reject(fact.node, fact, error)
                return
            # Rounded up for one and down for the other, so that one interval and one claim are separated as well.
            of_intervals, of_claims = (len(intervals) + 1) // 2, len(claims) // 2
            await self._write_accepted(store, intervals[:of_intervals], claims[:of_claims], *mark)
            await self._write_accepted(store, intervals[of_intervals:], claims[of_claims:], *mark)

    async def _write(
        self,
        store: fact_store.FactStore,
        intervals: Sequence[quarter_memory.QuarterInMemory],
        claims: Sequence[claim_events.ClaimFact],
    ) -> None:
        """Write evidence with the time of the write: changes are later searched by that timestamp."""
        if not (intervals or claims):
            return
        try:
            with self._writing() as unstored:
                for fact in claims:
                    unstored.begin_write(fact.node, fact)
                written = [content async for _, content in self._encode(intervals, unstored)]
                contests = await database.call_database(
                    _write_decoded, store, written, claims, self.changeable_days()
                )
        except BaseException:
            # Whatever the reason, cancellation included: the intervals stay in memory and are written again.
            for interval in intervals:
                interval.stored = False
            raise
        for gpu, node, holder, since_ns in contests:
            facts = {"stands": holder, "refused": node}
            problem = evidence_records.EvidenceProblem("seen_twice", gpu, node, since_ns, facts)
            self.book.problems.report(problem)
        # Only now, after the commit: until then memory and snapshots have the only copy.
        self.book.leave_memory(claims)
        for interval in intervals:
            self.on_stored()
            # Added to during the write: it stays for the next one.
            if interval.stored and self._is_in_memory(interval):
                self.book.quarters.release(interval)

    def _is_in_memory(self, interval: quarter_memory.QuarterInMemory) -> bool:
        return self.book.quarters.by_key.get(interval.key) is interval

    async def _encode(
        self,
        intervals: Sequence[quarter_memory.QuarterInMemory],
        unstored: quarter_memory.UnstoredFacts | None = None,
    ) -> AsyncIterator[tuple[quarter_memory.QuarterInMemory, bytes]]:
        """Yield intervals with their encoding, yielding to the event loop periodically.

        `unstored` is given if they are written to the database.
        """
        for number, interval in enumerate(intervals):
            interval.stored = True
            if unstored is not None and self._is_in_memory(interval):
                unstored.begin_write(interval.interval.node, interval.key)
            yield interval, node_intervals.encode_interval(interval.interval)
            if number % _YIELD_EVERY == 0:
                await asyncio.sleep(0)

    @contextmanager
    def _writing(self) -> Iterator[quarter_memory.UnstoredFacts]:
        """Record the end of a write of facts, and its success."""
        unstored = self.book.quarters.unstored
        try:
            yield unstored
        # Also for a cancellation: the commit may have succeeded, but that is not known.
        except BaseException:
            unstored.end_write(is_stored=False)
            raise
        unstored.end_write(is_stored=True)


def _write_decoded(
    store: fact_store.FactStore,
    contents: Sequence[bytes],
    claims: Sequence[claim_events.ClaimFact],
    days: range,
) -> list[gpu_states.Contest]:
    """Write quarters as they were when they were encoded: those in memory may change meanwhile. Blocking."""
    return store.write([node_intervals.decode_interval(each) for each in contents], claims, days)


def _group_items(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    """Divide items into groups of one transaction."""
    return (items[at : at + _AT_ONCE] for at in range(0, len(items), _AT_ONCE))
