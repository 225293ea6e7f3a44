"""Writing of facts from memory to the database, and exchange of receipts with other collectors of it.

An interval of the evidence is removed from memory once the database has it. If the database rejects a value, the
facts are divided until all but the rejected ones are written. Those stay in memory and in snapshots, or on disk, are not
stored in the sense of acknowledgements, and are written again after the next start.

While the database does not keep up, intervals wait on disk (`railscope_collector.evidence.waiting_evidence`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import compress

import structlog

from railscope import service, timestamps
from railscope_collector.evidence import (
    claim_events,
    evidence_book,
    evidence_memory,
    evidence_records,
    evidence_store,
    evidence_tables,
    node_claims,
    node_intervals,
    waiting_evidence,
)
from railscope_collector.ledger import database

log = structlog.get_logger(__name__)

MARGIN_NS = 300 * timestamps.SECOND_NS
"""Maximum delay until facts recorded by another collector become visible."""
_YIELD_EVERY = 16


@dataclass(slots=True)
class EvidenceWriter:
    """Writes the facts of a book. Its methods raise UnusableLedgerError, LostLeaseError."""

    book: evidence_book.EvidenceBook
    wall_ns: Callable[[], int]
    on_stored: Callable[[node_intervals.EvidenceInterval], None]
    """Called with each interval that was written."""
    waiting: waiting_evidence.WaitingEvidence | None = None
    """Intervals that wait on disk; None if all wait in memory."""
    _queued: set[Hashable] = field(default_factory=set)
    """Keys of intervals that are selected for the present write: they stay in memory."""
    rejected: set[Hashable] = field(default_factory=set)
    """Facts that the database rejected: keys of intervals (on disk marked), claims, contacts by node and GPU."""
    _rejected_rows: set[int] = field(default_factory=set)
    """Numbers of intervals on disk that the database rejected."""
    _problems: list[evidence_records.EvidenceProblem] = field(default_factory=list)
    _contacts: int = -1
    """Number of first contacts in the database when they were last read: those of all collectors."""
    _merged_ns: int = 0
    """Time up to which reports of other collectors were merged."""

    def __post_init__(self) -> None:
        """Subscribe to problems of the evidence."""
        self.book.problems.listeners.append(self._problems.append)

    async def write_problems(self, store: evidence_store.EvidenceStore) -> None:
        """Record new problems in the audit log, each once."""
        # Taken before the call: problems that are found meanwhile stay for the next write.
        problems, self._problems[:] = list(self._problems), []
        try:
            await self._record_problems(store, problems)
        except BaseException:
            self._problems.extend(problems)
            raise

    async def _record_problems(
        self,
        store: evidence_store.EvidenceStore,
        problems: Sequence[evidence_records.EvidenceProblem],
    ) -> None:
        """Record problems, but not those that the database rejects: a node can choose their texts."""
        try:
            await database.call_database(store.record_problems, problems)
        except database.RejectedValueError as error:
            if len(problems) == 1:
                node, kind = problems[0].node, problems[0].kind
                log.error("evidence_problem_rejected", node=node, kind=kind, problem=str(error))
                return
            # Halves: one rejected row of many is found in a logarithmic number of transactions.
            middle = len(problems) // 2
            await self._record_problems(store, problems[:middle])
            await self._record_problems(store, problems[middle:])

    async def exchange_receipts(self, store: evidence_store.EvidenceStore) -> None:
        """Exchange receipts with the database, before any evidence that depends on them."""
        unstored = self.book.intervals.unstored
        if unstored.log:  # other collectors may write to the database
            await self._merge_reports(store)
        count = await database.call_database(store.count_contacts)
        if count == self._contacts and not unstored.has_contacts:
            return
        contacts = await database.call_database(store.contacts)
        self.book.merge_contacts(contacts)
        new = node_intervals.find_new_contacts(self.book.receipts, contacts)
        pairs = [(node, gpu) for node, gpus in new.items() for gpu in gpus]
        accepted = [pair for pair in pairs if pair not in self.rejected]
        is_awaited = bool(unstored.log) and unstored.has_contacts
        with self._writing():
            unstored.begin_contacts()
            # Those that the database has may be missing on its standby: a write without rows waits for it too.
            if accepted or is_awaited:
                await self._write_contacts(store, new, accepted)
            for node, gpu in pairs:
                if (node, gpu) in self.rejected:
                    unstored.keep(node, evidence_memory.CONTACTS)
        self._contacts = count

    async def _write_contacts(
        self,
        store: evidence_store.EvidenceStore,
        new: node_intervals.Contacts,
        pairs: Sequence[tuple[str, str]],
    ) -> None:
        """Write some of the new first contacts, but not those that the database rejects."""
        contacts: dict[str, dict[str, node_intervals.FirstContact]] = {}
        for node, gpu in pairs:
            contacts.setdefault(node, {})[gpu] = new[node][gpu]
        try:
            await database.call_database(store.write_contacts, contacts)
        except database.RejectedValueError as error:
            if len(pairs) == 1:
                self._reject(pairs[0][0], pairs[0], error)
                return
            middle = len(pairs) // 2
            await self._write_contacts(store, new, pairs[:middle])
            await self._write_contacts(store, new, pairs[middle:])

    def _reject(self, node: str, fact: Hashable, error: database.RejectedValueError) -> None:
        """Report a fact that the database rejects, which is not written again before the next start."""
        self.rejected.add(fact)
        advice = (
            "it is kept, and not written before the next start; correct the database, then restart"
        )
        log.error("evidence_rejected", node=node, problem=str(error), advice=advice)

    async def _merge_reports(self, store: evidence_store.EvidenceStore) -> None:
        now_ns = self.wall_ns()
        merged_ns = max(self._merged_ns, now_ns - node_intervals.MAX_AGE_NS)
        ends_ns = await database.call_database(store.newest_ends, None, merged_ns - MARGIN_NS)
        self.book.merge_reports(ends_ns)
        self._merged_ns = now_ns

    async def write_evidence(
        self, store: evidence_store.EvidenceStore, quiet_ns: int | None
    ) -> None:
        """Write claims, and the intervals that are due at a time; all of them if it is None."""
        claims = [fact for fact in self.book.unwritten if fact not in self.rejected]
        intervals: list[evidence_memory.IntervalInMemory] = []
        by_key = self.book.intervals.by_key
        try:
            for keys in evidence_tables.group_items(list(by_key)):
                await asyncio.sleep(0)  # there may be 50,000 of them
                for key in keys:
                    interval = by_key.get(key)
                    if interval and interval.is_due(quiet_ns) and key not in self.rejected:
                        intervals.append(interval)
                        self._queued.add(key)
            # One write without intervals, if there are only claims.
            for fact_group in list(evidence_tables.group_items(intervals)) or [[]]:
                await self._write_accepted(store, fact_group, claims)
                # With the first group only.
                claims = []
        finally:
            self._queued.clear()

    async def move_to_disk(self, quiet_ns: int) -> None:
        """Move intervals to disk that are due at a time, if a node has more than half of its share in memory.

        Raises OSError, WaitingEvidenceError: they stay in memory then.
        """
        memory, waiting = self.book.intervals, self.waiting
        if waiting is None:
            return
        share = memory.share_of_node(waiting.limits.pending_evidence_intervals)
        movable = memory.counts.keys() - waiting.full
        if max((memory.counts[node] for node in movable), default=0) <= share // 2:
            return
        for keys in evidence_tables.group_items(list(memory.by_key)):
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

    async def write_waiting(self, store: evidence_store.EvidenceStore) -> None:
        """Write the intervals that wait on disk, oldest first; a damaged or rejected one delays no other."""
        waiting, last = self.waiting, 0
        while waiting and (rows := await service.run_in_thread(waiting.read, last)):
            last = rows[-1].number
            intervals = {
                row.number: evidence_memory.IntervalInMemory(row.interval)
                for row in rows
                if row.interval is not None and row.number not in self._rejected_rows
            }
            await self._write_accepted(store, list(intervals.values()), (), evidence_memory.ON_DISK)
            is_rejected = {
                number: (evidence_memory.ON_DISK, *interval.key) in self.rejected
                for number, interval in intervals.items()
            }
            self._rejected_rows.update(number for number in intervals if is_rejected[number])
            stored = [number for number in intervals if not is_rejected[number]]
            # If this fails, they are written again in the next round, which changes nothing.
            await service.run_in_thread(waiting.delete, stored)
            nodes = Counter(intervals[number].interval.node for number in stored)
            self.book.intervals.leave_disk(nodes)
        if waiting:
            waiting.full.clear()
            if last:
                await service.run_in_thread(waiting.store.shrink)

    async def _write_accepted(
        self,
        store: evidence_store.EvidenceStore,
        intervals: Sequence[evidence_memory.IntervalInMemory],
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
        store: evidence_store.EvidenceStore,
        intervals: Sequence[evidence_memory.IntervalInMemory],
        claims: Sequence[claim_events.ClaimFact],
    ) -> None:
        """Write evidence with the time of the write: changes are later searched by that timestamp."""
        if not (intervals or claims):
            return
        try:
            with self._writing() as unstored:
                for fact in claims:
                    unstored.begin_write(fact.node, fact)
                written = [
                    evidence_store.compress_interval(
                        interval.interval, content, self.book.contacts_of(interval.interval.node)
                    )
                    async for interval, content in self._encode(intervals, unstored)
                ]
                early = node_claims.find_early_claims(claims, self.book.receipts)
                await database.call_database(store.write, written, claims, self.wall_ns, early)
        except BaseException:
            # Whatever the reason, cancellation included: the intervals stay in memory and are written again.
            for interval in intervals:
                interval.stored = False
            raise
        # Only now, after the commit: until then memory and snapshots have the only copy.
        for fact in claims:
            self.book.unwritten.pop(fact, None)
        for interval in intervals:
            self.on_stored(interval.interval)
            # Added to during the write: it stays for the next one.
            if interval.stored and self._is_in_memory(interval):
                self.book.intervals.release(interval)

    def _is_in_memory(self, interval: evidence_memory.IntervalInMemory) -> bool:
        return self.book.intervals.by_key.get(interval.key) is interval

    async def _encode(
        self,
        intervals: Sequence[evidence_memory.IntervalInMemory],
        unstored: evidence_memory.UnstoredFacts | None = None,
    ) -> AsyncIterator[tuple[evidence_memory.IntervalInMemory, bytes]]:
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
    def _writing(self) -> Iterator[evidence_memory.UnstoredFacts]:
        """Record the end of a write of facts, and its success."""
        unstored = self.book.intervals.unstored
        try:
            yield unstored
        # Also for a cancellation: the commit may have succeeded, but that is not known.
        except BaseException:
            unstored.end_write(is_stored=False)
            raise
        unstored.end_write(is_stored=True)
