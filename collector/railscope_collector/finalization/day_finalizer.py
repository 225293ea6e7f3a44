"""Periodic writing of facts to the database and of days to the ledger, off the event loop.

A day is written once it is over and its delay has passed, and again as a new revision if later facts
change it. While the database is unavailable everything stays in memory and in snapshots, and is retried.

Each collector stores its evidence. Days of all GPUs in the database are written by the holder of the lease
`finalization`; all collectors read the days that were added to the ledger, in the order of its heads,
and include those of their GPUs in their accounts.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from railscope.service import run_in_thread
from railscope.timestamps import DAY_NS, FOREVER_NS, SECOND_NS, format_timestamp
from railscope_collector import config, work_limits
from railscope_collector.account.live_account import LiveAccount
from railscope_collector.evidence import (
    claim_events,
    evidence_book,
    evidence_tables,
    node_intervals,
    review_rules,
    waiting_evidence,
)
from railscope_collector.finalization import (
    accounted_days,
    day_writes,
    due_days,
    evidence_writer,
    finalized_sums,
    open_days,
)
from railscope_collector.ledger import database, leases
from railscope_collector.ledger.day_documents import GpuDay

log = structlog.get_logger(__name__)

_MEANWHILE_NS = 3 * DAY_NS
"""Period of changes that the first holder of the lease reads."""


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
    open: Callable[[], day_writes.MeteringStores]
    texts: Callable[[], Mapping[str, str] | None]
    """Content of administrators' files; None while one of them could never be read."""
    settings: config.MeteringSettings
    state: Path
    """File in which earlier releases stored the time up to which this collector processed changes."""
    wall_ns: Callable[[], int] = time.time_ns
    hold_reason: Callable[[], str] = lambda: ""
    """The reason for which nothing may be stored or finalized now, or an empty text."""
    check: Callable[[], object] = lambda: None
    """Raises UnusableLedgerError if the database is not the one used before."""
    decided: Callable[[review_rules.ReviewDecisions], None] = lambda _decisions: None
    """Called with the decisions of people about evidence under review."""
    waiting: waiting_evidence.WaitingEvidence | None = None
    """Evidence that waits on disk."""
    counts: FinalizerCounters = field(default_factory=FinalizerCounters)
    rejected_files: dict[str, str] = field(default_factory=dict)
    """Text of an administrators' file that the database does not accept, by kind."""
    lease: leases.Lease = field(default_factory=lambda: leases.Lease(leases.FINALIZATION))
    is_failing: bool = False
    _is_disk_full: bool = False
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _stores: day_writes.MeteringStores | None = None
    _open_days: open_days.OpenDayCounter = field(init=False)
    _writer: evidence_writer.EvidenceWriter = field(init=False)
    _written: dict[str, str] = field(default_factory=dict)
    """Content of files when they were last written: another collector's files may differ."""
    _handled: set[evidence_tables.EvidenceChange] = field(default_factory=set)
    _late: set[evidence_tables.EvidenceChange] = field(default_factory=set)
    _days: accounted_days.AccountedDays = field(default_factory=accounted_days.AccountedDays)
    _since_ns: int = FOREVER_NS
    """Time from which changes are read."""
    _epoch: int = 0
    """Epoch of the lease in the last round; 0 without it."""
    _last_days: dict[str, int] = field(default_factory=dict)
    """Last day in the ledger of each GPU in the database, during one term of the lease."""
    rejected_days: dict[GpuDay, str] = field(default_factory=dict)
    """Days that could not be written, and the problem of each, during one term of the lease: each round tries again."""
    _requested: set[str] = field(default_factory=set)
    """GPUs with their claims read from the database."""

    def __post_init__(self) -> None:
        """Create the parts."""
        self._open_days = open_days.OpenDayCounter(self.book, self.live)
        self._writer = evidence_writer.EvidenceWriter(
            self.book, self.wall_ns, self._record_stored, self.waiting
        )

    @property
    def rejected(self) -> set[Hashable]:
        """Return the facts that the database rejected since the start."""
        return self._writer.rejected

    def _record_stored(self, interval: node_intervals.EvidenceInterval) -> None:
        self.counts.intervals += 1
        self._open_days.record_stored(interval.gpus, interval.start_ns)

    async def run(self) -> None:
        """Run until cancelled."""
        tasks = [
            asyncio.create_task(work) for work in (self.lease.run(), self._keep_memory_small())
        ]
        try:
            while True:
                await self.attempt()
                await run_in_thread(work_limits.return_free_memory)
                await asyncio.sleep(self.settings.period_seconds)
        finally:
            for task in tasks:
                task.cancel()
            # Else no other collector could finalize before the lease expires.
            await database.call_database(self.lease.release)

    async def _keep_memory_small(self) -> None:
        """Move evidence to disk while the database does not keep up, until cancelled.

        A write that waits for a standby may last longer than a round should.
        """
        while True:
            await asyncio.sleep(self.settings.period_seconds)
            await self.move_to_disk()

    async def move_to_disk(self) -> None:
        """Move evidence to disk that two rounds have not stored, if much waits in memory."""
        if self.hold_reason():
            return  # facts in memory may still be placed differently
        late_seconds = self.settings.quiet_seconds + 2 * self.settings.period_seconds
        quiet_ns = self.wall_ns() - round(late_seconds * SECOND_NS)
        try:
            await self._writer.move_to_disk(quiet_ns)
        except (OSError, waiting_evidence.WaitingEvidenceError) as error:
            if not self._is_disk_full:
                log.error(
                    "evidence_move_failed",
                    problem=str(error),
                    advice="it stays in memory; beyond its share of it, an agent keeps its frames",
                )
            self._is_disk_full = True
        else:
            self._is_disk_full = False

    @property
    def waiting_bytes(self) -> int:
        """Return the size of the evidence that waits on disk."""
        return self.waiting.size_bytes if self.waiting else 0

    def close(self) -> None:
        """Release the lease and close the database."""
        self.lease.release()
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
                    advice="it stays in memory and in snapshots, and is written later",
                )
            self.is_failing = True
            await database.call_database(
                self.lease.release
            )  # another collector may be able to finalize
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
        stores = await self._store_all(everything=everything)
        if stores is None:
            await database.call_database(
                self.lease.release
            )  # another collector may be able to finalize
            return
        files = await database.call_database(stores.store.files)
        self.decided(files.decisions)
        await self._finalize(stores, self.wall_ns())
        counted = (self._open_days.stale | self.book.late) & self._days.gpus
        homes = await database.call_database(stores.store.homes, counted)
        await self._open_days.count_new(stores, files, homes)

    async def _store_all(self, *, everything: bool) -> day_writes.MeteringStores | None:
        """Store files and evidence; return the database, or None if nothing may be finalized now."""
        await database.call_database(self.check)
        if self._stores is None:
            self._stores = await database.call_database(self.open)
        stores = self._stores
        # First, and also while nothing may be finalized: a problem may be the reason for that.
        await self._writer.write_problems(stores.store)
        now_ns = self.wall_ns()
        await self._load_sums(stores, now_ns)
        texts = self.texts()
        is_complete = texts is not None and await self._store_files(stores, texts)
        # Checked again after each step: the clock may become suspect while the database is waited for.
        if self.hold_reason():
            return None  # facts in memory may still be placed differently
        quiet_ns = now_ns - round(self.settings.quiet_seconds * SECOND_NS)
        # Another collector of the group is active: agents send it what is not stored.
        with contextlib.suppress(leases.LostLeaseError):
            await self._writer.exchange_receipts(stores.store)
            if self.hold_reason():
                return None
            await self._writer.write_evidence(stores.store, None if everything else quiet_ns)
            # After the evidence in memory, so that an outage does not delay what is received now.
            await self._writer.write_waiting(stores.store)
        return stores if is_complete and not self.hold_reason() else None

    async def _store_files(
        self, stores: day_writes.MeteringStores, texts: Mapping[str, str]
    ) -> bool:
        """Store new versions of files; false if no version of one of them is in the database."""
        is_complete = True
        for kind, text in texts.items():
            if self._written.get(kind) != text:
                try:
                    await database.call_database(stores.store.write_file, kind, text, self.wall_ns)
                except (database.RejectedValueError, ValueError) as error:
                    earlier = await database.call_database(stores.store.file, kind)
                    # Without any version, a day would be metered as if the file were empty, and later be revised.
                    is_complete = is_complete and earlier is not None
                    if self.rejected_files.get(kind) != text:
                        log.error(
                            "file_version_rejected",
                            kind=kind,
                            problem=str(error),
                            advice="days are metered by the last stored version, and not without one",
                        )
                    self.rejected_files[kind] = text
                    continue
                self._written[kind] = text
            self.rejected_files.pop(kind, None)
        return is_complete

    async def _load_sums(self, stores: day_writes.MeteringStores, now_ns: int) -> None:
        """Load the ledger's sums once, and record the GPUs that are new here."""
        new = self.book.gpus.keys() - self._days.gpus
        if not self._days.is_read:
            oldest_day = self._end_day(now_ns) - self.settings.max_revision_age_days
            finalized = await database.call_database(
                finalized_sums.read_finalized, stores.ledger, oldest_day
            )
            # The lock keeps a view from showing a GPU's open days without its finalized ones.
            async with self.live.lock:
                self.live.add_finalized(finalized)
            self._days.begin(finalized)
        async with self.live.lock:
            self.live.release_finalized(new)
        self._days.gpus |= new
        self._open_days.stale |= new

    @property
    def _delay_ns(self) -> int:
        return round(self.settings.finalize_delay_seconds * SECOND_NS)

    def _end_day(self, now_ns: int) -> int:
        """Return the first day that is not to be finalized yet."""
        return (now_ns - self._delay_ns) // DAY_NS

    def _apply(self, day: accounted_days.WrittenDay) -> None:
        self._days.revisions[GpuDay(day.gpu, day.day)] = day.revision
        self.live.finalized.finalize(day.gpu, day.day, day.new, day.old)
        self.live.amounts.finalize(day.gpu, day.day, day.new.amounts, day.old.amounts)
        self.book.changed.add(day.gpu)
        if day.gpu in self.book.gpus:
            nodes = self.book.nodes_of(day.gpu)
            self.book.forget(day.gpu, self.live.finalized.open_ns(day.gpu))
            for key in map(claim_events.unplaced_key, nodes):
                if key in self.book.gpus:
                    self.book.forget(key, self._open_ns(key))

    # Finalizing --------------------------------------------------------------------------------

    async def _finalize(self, stores: day_writes.MeteringStores, now_ns: int) -> None:
        """Write the days that are due, with the lease, and include new days of the ledger in the account."""
        term = await database.call_database(self.lease.take, stores.ledger.database)
        # Before changes are read: a term begins with all that the previous holder wrote.
        await self._follow(stores)
        if term is None or term.epoch != self._epoch:
            self.rejected_days.clear()
        self._since_ns = min(self._since_ns, now_ns - evidence_writer.MARGIN_NS)
        if term is not None and term.epoch != self._epoch:
            # Days that this collector handled without the lease were not written by it.
            self._handled = set()
            self._last_days.clear()
            first_ns = await run_in_thread(self._read_state) or now_ns - _MEANWHILE_NS
            self._since_ns = min(self._since_ns, term.processed_ns or first_ns)
        changes = set(await database.call_database(stores.store.changes, self._since_ns))
        # Read after the changes, to contain the nodes of the GPUs in them.
        homes = await database.call_database(stores.store.homes) if term else {}
        if term is not None:
            await self._read_last_days(stores, term, homes, now_ns)
        self._epoch = term.epoch if term else 0
        changes |= self._late
        # The periods of two rounds overlap by the margin, as facts become visible after the time at which they were
        # recorded.
        new = changes - self._handled
        self._open_days.record_changes(new)
        await self._read_claims(stores, new)
        if term is not None:
            try:
                await self._write_due(stores, term, homes, new, now_ns)
            # Another collector took the lease: it writes these days, so this is no failure of the round.
            except leases.LostLeaseError as error:
                await database.call_database(self.lease.lose, str(error))
                self._epoch = 0
        await self._follow(stores)
        self._handled, self._late = changes, set()
        # The beginning of this round and not its end: what was recorded meanwhile is read by the next one.
        self._since_ns = now_ns - evidence_writer.MARGIN_NS
        oldest_day = self._end_day(now_ns) - self.settings.max_revision_age_days
        self._days.forget_revisions(oldest_day)

    async def _read_last_days(
        self,
        stores: day_writes.MeteringStores,
        term: leases.LeaseTerm,
        homes: due_days.GpuNodes,
        now_ns: int,
    ) -> None:
        """Read last days of new GPUs, at the start of a term days that were not written, in the first one late facts."""
        unread = homes.keys() - self._last_days.keys()
        self._last_days |= await database.call_database(stores.ledger.last_days, unread)
        if term.epoch != self._epoch:
            first = self._end_day(now_ns) - self.settings.max_revision_age_days
            days = range(first, self._end_day(now_ns))
            for key in await database.call_database(stores.ledger.missing_days, homes, days):
                if key.day < self._last_days.get(key.gpu, key.day):
                    self.rejected_days[key] = ""
        if term.processed_ns is None and term.epoch != self._epoch:  # an earlier release finalized
            finalized_homes = {gpu: homes[gpu] for gpu in self._last_days.keys() & homes.keys()}
            oldest_day = self._end_day(now_ns) - self.settings.max_revision_age_days
            condition = evidence_tables.LateCondition(oldest_day * DAY_NS, self._delay_ns)
            self._late = set(
                await database.call_database(stores.store.late, finalized_homes, condition)
            )

    async def _write_due(
        self,
        stores: day_writes.MeteringStores,
        term: leases.LeaseTerm,
        homes: due_days.GpuNodes,
        changes: Iterable[evidence_tables.EvidenceChange],
        now_ns: int,
    ) -> None:
        """Write the days that are due, of all GPUs in the database. Raises LostLeaseError."""
        end_day = self._end_day(now_ns)
        window = range(end_day - self.settings.max_revision_age_days, end_day)
        # Each transaction checks the lease: a collector that was paused must not write what it metered before.
        fenced = stores._replace(check=term.check)
        changes = await database.call_database(stores.store.spread, changes, homes)
        due = await database.call_database(
            due_days.find_due, homes, self._last_days, window, changes, [*self.rejected_days]
        )
        for due_group in due_days.group_due(due, homes):
            days, rejected = await database.call_database(
                day_writes.write_days, fenced, homes, due_group, self._days.revisions, now_ns
            )
            self._record_rejected(rejected)
            for day in days:
                self.rejected_days.pop(GpuDay(day.gpu, day.day), None)
                self._last_days[day.gpu] = max(day.day, self._last_days.get(day.gpu, day.day))
            async with self.live.lock:
                for day in days:
                    self._apply(day)
            self.counts.days += len(days)
            self.counts.revisions += sum(
                day.revision > 1 and day.old.times != day.new.times for day in days
            )
        # After the last day: a crash before makes the next holder read the same changes again.
        await database.call_database(
            term.store_progress, stores.ledger.database, now_ns - evidence_writer.MARGIN_NS
        )

    def _record_rejected(self, rejected: Mapping[GpuDay, str]) -> None:
        """Log days that could not be written, each once: the text of a problem may contain a time."""
        for key, problem in rejected.items():
            if not self.rejected_days.get(key):
                date = format_timestamp(key.day * DAY_NS)[:10]
                log.error("day_write_failed", gpu=key.gpu, day=date, problem=problem)
            self.rejected_days[key] = problem
        self.counts.failures += len(rejected)

    async def _follow(self, stores: day_writes.MeteringStores) -> None:
        """Include in the account the days that other collectors have added to the ledger."""
        while self._days.is_read:
            added = await database.call_database(self._days.read_added, stores.ledger)
            if added is None:
                return
            async with self.live.lock:
                for day in added.days:
                    self._apply(day)
                self._days.head = added.head

    async def _read_claims(
        self, stores: day_writes.MeteringStores, changes: Iterable[evidence_tables.EvidenceChange]
    ) -> None:
        """Read claims that other collectors recorded, of GPUs in the book."""
        changed_gpus = {change.gpu for change in changes if change.gpu}
        fresh = self._days.gpus - self._requested
        changed_gpus |= fresh | {
            claim_events.unplaced_key(node) for gpu in fresh for node in self.book.nodes_of(gpu)
        }
        affected = set(self._days.gpus)
        by_start: dict[int, list[str]] = {}
        for gpu in sorted(changed_gpus):
            if gpu in self.book.gpus or not claim_events.is_gpu(gpu):
                by_start.setdefault(max(0, self._open_ns(gpu)), []).append(gpu)
        for start_ns, gpus in by_start.items():
            self.book.add_claims(
                await database.call_database(stores.store.claim_facts, gpus, start_ns)
            )
        self._requested |= affected

    def _open_ns(self, gpu: str) -> int:
        """Return the start of the time that is not in the ledger: of a GPU, or of any GPU of a node."""
        if claim_events.is_gpu(gpu):
            return self.live.finalized.open_ns(gpu)
        gpus = self.book.gpus_in(claim_events.node_of_key(gpu))
        return min((self.live.finalized.open_ns(name) for name in gpus), default=-FOREVER_NS)

    def _read_state(self) -> int | None:
        try:
            return int(self.state.read_text())
        except (FileNotFoundError, ValueError):
            return None
