"""Periodic writing of facts to the database and of days to the ledger, off the event loop.

An interval of the evidence is removed from memory once the database has it. A day is written once it is
over and its delay has passed, and again as a new revision if later facts change it. While the
database is unavailable everything stays in memory and in the checkpoint, and is retried.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from collector import config, work_limits
from collector.account.live_account import LiveAccount
from collector.evidence import (
    claim_events,
    evidence_book,
    evidence_memory,
    evidence_records,
    evidence_store,
    evidence_tables,
    node_claims,
    node_intervals,
    review_rules,
)
from collector.finalization import ledger_days
from collector.ledger import database, row_conversion
from railscope.durable_files import write_durably
from railscope.service import run_in_thread
from railscope.timestamps import DAY_NS, FOREVER_NS, SECOND_NS

log = structlog.get_logger(__name__)

_MARGIN_NS = 300 * SECOND_NS
"""Maximum delay until facts recorded by another collector become visible."""
_MEANWHILE_NS = 3 * DAY_NS
"""Period of changes that a collector without a state file reads."""
_YIELD_EVERY = 16


@dataclass(slots=True)
class FinalizerCounters:
    """Counters since the start."""

    intervals: int = 0
    days: int = 0
    revisions: int = 0
    failures: int = 0


@dataclass(slots=True)
class DayFinalizer:
    """Updates database and ledger from the book. `open` blocks; it raises UnusableLedgerError."""

    book: evidence_book.EvidenceBook
    live: LiveAccount
    open: Callable[[], ledger_days.MeteringStores]
    texts: Callable[[], Mapping[str, str] | None]
    """Content of administrators' files; None while one of them could never be read."""
    settings: config.MeteringSettings
    state: Path
    """File with the timestamp up to which changes of the database have been processed."""
    wall_ns: Callable[[], int] = time.time_ns
    hold_reason: Callable[[], str] = lambda: ""
    """The reason for which nothing may be stored or finalized now, or an empty text."""
    check: Callable[[], object] = lambda: None
    """Raises UnusableLedgerError if the database is not the one used before."""
    decided: Callable[[review_rules.ReviewDecisions], None] = lambda _decisions: None
    """Called with the decisions of people about evidence under review."""
    counts: FinalizerCounters = field(default_factory=FinalizerCounters)
    is_failing: bool = False
    _problems: list[evidence_records.EvidenceProblem] = field(default_factory=list)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _stores: ledger_days.MeteringStores | None = None
    _open_days: ledger_days.OpenDayCounter = field(init=False)
    _written: dict[str, str] = field(default_factory=dict)
    """Content of files when they were last written: another collector's files may differ."""
    _handled: set[evidence_tables.EvidenceChange] = field(default_factory=set)
    _late: set[evidence_tables.EvidenceChange] = field(default_factory=set)
    _counted: dict[row_conversion.GpuDay, int] = field(default_factory=dict)
    """The revisions included in the finalized sums, of the days that may still change."""
    _accounted: set[str] = field(default_factory=set)
    """GPUs with their finalized days in the account."""
    _requested: set[str] = field(default_factory=set)
    """GPUs with their claims read from the database."""

    def __post_init__(self) -> None:
        """Subscribe to problems of the evidence."""
        self.book.problems.listeners.append(self._problems.append)
        self._open_days = ledger_days.OpenDayCounter(self.book, self.live)

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self.attempt()
            await run_in_thread(work_limits.return_free_memory)
            await asyncio.sleep(self.settings.period_seconds)

    def close(self) -> None:
        """Close the database."""
        if self._stores is not None:
            self._stores.ledger.close()
            self._stores = None

    async def attempt(self) -> bool:
        """Run one round; false if it failed, which is logged once.

        Any exception is caught: the collector must continue to receive frames.
        """
        try:
            await self.round()
        except Exception as fault:  # noqa: BLE001 - see above
            self.counts.failures += 1
            if not self.is_failing:
                is_expected = isinstance(fault, (database.UnusableLedgerError, OSError))
                problem = str(fault) if is_expected else f"{type(fault).__name__}: {fault}"
                log.error(
                    "evidence_write_failed",
                    problem=problem,
                    intervals=len(self.book.intervals.by_key),
                    advice="it stays in memory and in the checkpoint, and is written later",
                )
            self.is_failing = True
            return False
        if self.is_failing:
            log.info("evidence_writes_resumed")
        self.is_failing = False
        return True

    async def round(self, *, everything: bool = False) -> None:
        """Store evidence that is ready (or all), count the open days, finalize days that are due."""
        async with self._turn:
            await self._round(everything=everything)

    async def _round(self, *, everything: bool) -> None:
        await run_in_thread(self.check)
        if self._stores is None:
            self._stores = await run_in_thread(self.open)
        stores = self._stores
        await self._notify_auditors(stores)
        now_ns = self.wall_ns()
        await self._load_sums(stores, now_ns)
        texts = self.texts()
        for kind, text in (texts or {}).items():
            if self._written.get(kind) != text:
                await run_in_thread(stores.store.write_file, kind, text, now_ns)
                self._written[kind] = text
        if self.hold_reason():
            return  # facts in memory may still be placed differently
        await self._exchange_contacts(stores)
        if self.hold_reason():
            return
        await self._store(stores, now_ns, everything=everything)
        if texts is None or self.hold_reason():
            return
        files = await run_in_thread(stores.store.files)
        self.decided(files.decisions)
        homes = await run_in_thread(stores.store.homes)
        homes = {gpu: homes[gpu] for gpu in self._accounted & homes.keys()}
        await self._finalize(stores, homes, now_ns)
        await self._open_days.count_new(stores, files, homes)

    async def _notify_auditors(self, stores: ledger_days.MeteringStores) -> None:
        """Record new problems in the audit log, each once."""
        problems, self._problems[:] = list(self._problems), []
        try:
            await run_in_thread(stores.store.record_problems, problems)
        except BaseException:
            self._problems.extend(problems)
            raise

    async def _load_sums(self, stores: ledger_days.MeteringStores, now_ns: int) -> None:
        """Load the ledger's sums of GPUs that are new here, and late facts about them.

        The previous collector of these GPUs may have stopped before it processed those facts.
        """
        new = self.book.gpus.keys() - self._accounted
        if not new and self.live.is_ready:
            return
        oldest_day = self._end_day(now_ns) - self.settings.max_revision_age_days
        finalized = await run_in_thread(ledger_days.read_finalized, stores.ledger, new, oldest_day)
        if self._accounted or await run_in_thread(self._seen_ns) is None:
            homes = await run_in_thread(stores.store.homes)
            finalized_homes = {gpu: homes[gpu] for gpu in finalized.days.keys() & homes.keys()}
            condition = evidence_tables.LateCondition(oldest_day * DAY_NS, self._delay_ns)
            self._late |= set(await run_in_thread(stores.store.late, finalized_homes, condition))
        async with self.live.lock:
            self.live.finalized.add_gpus(finalized.sums, finalized.days, finalized.clock_suspect)
            self.live.amounts.add_gpus(finalized.amounts)
            for gpu in finalized.days:
                self.book.changed.add(gpu)
                self.book.forget(gpu, self.live.finalized.open_ns(gpu))
            self.live.is_ready = True
        self._counted |= finalized.numbers
        self._open_days.stale |= new
        self._accounted |= new

    @property
    def _delay_ns(self) -> int:
        return round(self.settings.finalize_delay_seconds * SECOND_NS)

    def _end_day(self, now_ns: int) -> int:
        """Return the first day that is not to be finalized yet."""
        return (now_ns - self._delay_ns) // DAY_NS

    def _apply(self, day: ledger_days.WrittenDay) -> None:
        self._counted[row_conversion.GpuDay(day.gpu, day.day)] = day.revision
        self.live.finalized.finalize(day.gpu, day.day, day.new, day.old)
        self.live.amounts.finalize(day.gpu, day.day, day.new.amounts, day.old.amounts)
        self.book.changed.add(day.gpu)
        if day.gpu in self.book.gpus:
            nodes = self.book.nodes_of(day.gpu)
            self.book.forget(day.gpu, self.live.finalized.open_ns(day.gpu))
            for key in map(claim_events.unplaced_key, nodes):
                if key in self.book.gpus:
                    self.book.forget(key, self._open_ns(key))

    # Storing -----------------------------------------------------------------------------------

    async def _store(
        self, stores: ledger_days.MeteringStores, now_ns: int, *, everything: bool
    ) -> None:
        quiet_ns = now_ns - round(self.settings.quiet_seconds * SECOND_NS)
        intervals = [
            interval
            for interval in self.book.intervals.by_key.values()
            if not interval.stored and (everything or interval.touched_ns <= quiet_ns)
        ]
        claims = list(self.book.unwritten)
        for fact_group in list(evidence_tables.group_items(intervals)) or [[]]:
            await self._write(stores, fact_group, claims)
            claims = []

    async def _exchange_contacts(self, stores: ledger_days.MeteringStores) -> None:
        """Exchange first receipts with the database, before any evidence that depends on them."""
        contacts = await run_in_thread(stores.store.contacts)
        self.book.merge_contacts(contacts)
        new = self.book.find_new_contacts(contacts)
        if new:
            await run_in_thread(stores.store.write_contacts, new)

    async def _write(
        self,
        stores: ledger_days.MeteringStores,
        intervals: Sequence[evidence_memory.IntervalInMemory],
        claims: Sequence[claim_events.ClaimFact],
    ) -> None:
        """Write evidence with the time of the write: changes are later searched by that timestamp."""
        if not (intervals or claims):
            return
        try:
            written = [
                evidence_store.compress_interval(
                    interval.interval, content, self.book.contacts_of(interval.interval.node)
                )
                async for interval, content in _encode_intervals(intervals)
            ]
            early = node_claims.find_early_claims(claims, self.book.receipts)
            await run_in_thread(stores.store.write, written, claims, self.wall_ns(), early)
        except BaseException:
            for interval in intervals:
                interval.stored = False
            raise
        for fact in claims:
            self.book.unwritten.pop(fact, None)
        self.counts.intervals += len(written)
        for interval in intervals:
            self._open_days.record_stored(interval.interval)
            if interval.stored:
                self.book.intervals.release(interval)

    # Finalizing --------------------------------------------------------------------------------

    async def _finalize(
        self, stores: ledger_days.MeteringStores, homes: ledger_days.GpuNodes, now_ns: int
    ) -> None:
        end_day = self._end_day(now_ns)
        seen_ns = await run_in_thread(self._seen_ns)
        if seen_ns is None:
            seen_ns = now_ns - _MEANWHILE_NS
        changes = self._late | set(await run_in_thread(stores.store.changes, seen_ns))
        new = changes - self._handled
        if any(not (change.node or change.gpu) for change in new):
            self.book.late.update(self.book.gpus)  # a file may name other tenants now
        self.book.late.update(self.book.gpus.keys() & {change.gpu for change in new})
        for change in new:
            if change.gpu and not claim_events.is_gpu(change.gpu):
                self.book.late.update(self.book.gpus_in(claim_events.node_of_key(change.gpu)))
        await self._read_claims(stores, new)
        oldest_day = end_day - self.settings.max_revision_age_days
        window = range(oldest_day, end_day)
        finalized_days = dict(self.live.finalized.days)
        new = await run_in_thread(stores.store.spread, new, homes)
        due = await run_in_thread(ledger_days.due_days, homes, finalized_days, window, new)
        for due_group in ledger_days.group_due_days(due, homes):
            days = await run_in_thread(
                ledger_days.write_days, stores, homes, due_group, self._counted, now_ns
            )
            async with self.live.lock:
                for day in days:
                    self._apply(day)
            self.counts.days += len(days)
            self.counts.revisions += sum(
                day.revision > 1 and day.old.times != day.new.times for day in days
            )
        self._handled = changes
        self._late = set()
        if due:
            for gpu_day in [
                gpu_day_counted
                for gpu_day_counted in self._counted
                if gpu_day_counted.day < oldest_day
            ]:
                del self._counted[gpu_day]
        seen_ns = now_ns - _MARGIN_NS
        await run_in_thread(write_durably, self.state, str(seen_ns).encode())

    async def _read_claims(
        self, stores: ledger_days.MeteringStores, changes: Iterable[evidence_tables.EvidenceChange]
    ) -> None:
        """Read claims that other collectors recorded, of GPUs in the book."""
        changed_gpus = {change.gpu for change in changes if change.gpu}
        fresh = self._accounted - self._requested
        changed_gpus |= fresh | {
            claim_events.unplaced_key(node) for gpu in fresh for node in self.book.nodes_of(gpu)
        }
        affected = set(self._accounted)
        by_start: dict[int, list[str]] = {}
        for gpu in sorted(changed_gpus):
            if gpu in self.book.gpus or not claim_events.is_gpu(gpu):
                by_start.setdefault(max(0, self._open_ns(gpu)), []).append(gpu)
        for start_ns, gpus in by_start.items():
            self.book.add_claims(await run_in_thread(stores.store.claim_facts, gpus, start_ns))
        self._requested |= affected

    def _open_ns(self, gpu: str) -> int:
        """Return the start of the time that is not in the ledger: of a GPU, or of any GPU of a node."""
        if claim_events.is_gpu(gpu):
            return self.live.finalized.open_ns(gpu)
        gpus = self.book.gpus_in(claim_events.node_of_key(gpu))
        return min((self.live.finalized.open_ns(name) for name in gpus), default=-FOREVER_NS)

    def _seen_ns(self) -> int | None:
        try:
            return int(self.state.read_text())
        except (FileNotFoundError, ValueError):
            return None


async def _encode_intervals(
    intervals: Sequence[evidence_memory.IntervalInMemory],
) -> AsyncIterator[tuple[evidence_memory.IntervalInMemory, bytes]]:
    """Yield intervals with their encoding, yielding to the event loop periodically."""
    for number, interval in enumerate(intervals):
        interval.stored = True
        yield interval, node_intervals.encode_interval(interval.interval)
        if number % _YIELD_EVERY == 0:
            await asyncio.sleep(0)
