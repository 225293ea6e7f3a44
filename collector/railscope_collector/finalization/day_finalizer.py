"""Periodic writing of facts to the database and of days to the ledger, off the event loop.

Each round stores files and facts, meters the days that these have marked, and updates the account, a few days of nodes
between two writes of facts. A day is marked first
once it is over and its delay has passed; it is written again as a new revision if later facts change it. While the
database is unavailable everything waits on disk, and is retried.

Any collector of a database meters any marked day: a day of a node is one transaction under a lock of the database, which
reads all facts that were committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from railscope.service import run_in_thread
from railscope.timestamps import DAY_NS, SECOND_NS, format_timestamp
from railscope_collector import config, work_limits
from railscope_collector.account.live_account import LiveAccount
from railscope_collector.evidence import (
    evidence_records,
    fact_store,
    file_versions,
    node_intervals,
    open_quarters,
    usage_facts,
    waiting_evidence,
)
from railscope_collector.finalization import fact_writer, marked_days, open_days
from railscope_collector.ledger import database, leases, ledger_store

log = structlog.get_logger(__name__)

_AT_ONCE = 64
"""Days of nodes that are metered before facts are stored again."""


class MeteringStores(NamedTuple):
    """The open database: its ledger, facts and files."""

    ledger: ledger_store.Ledger
    facts: fact_store.FactStore
    files: file_versions.FileStore


@dataclass(slots=True)
class FinalizerCounters:
    """Counters since the start."""

    intervals: int = 0
    days: int = 0
    revisions: int = 0
    failures: int = 0


@dataclass(slots=True)
class DayFinalizer:
    """Updates database and ledger from memory. `open` blocks; it raises UnusableLedgerError."""

    book: open_quarters.OpenQuarters
    waiting: waiting_evidence.WaitingEvidence
    """Facts on disk."""
    live: LiveAccount
    open: Callable[[], MeteringStores]
    texts: Callable[[], Mapping[str, str] | None]
    """Content of administrators' files; None while one of them could never be read."""
    settings: config.MeteringSettings
    wall_ns: Callable[[], int] = time.time_ns
    hold_reason: Callable[[], str] = lambda: ""
    """The reason for which nothing may be stored or finalized now, or an empty text."""
    check: Callable[[], object] = lambda: None
    """Raises UnusableLedgerError if the database is not the one used before."""
    counts: FinalizerCounters = field(default_factory=FinalizerCounters)
    rejected_files: dict[str, str] = field(default_factory=dict)
    """Text of an administrators' file that the database does not accept, by kind."""
    rejected_days: dict[open_days.NodeDay, str] = field(default_factory=dict)
    """Days of nodes that could not be written, and the problem of each: each round tries again."""
    is_failing: bool = False
    _is_disk_full: bool = False
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _stores: MeteringStores | None = None
    _open_days: open_days.OpenDays = field(default_factory=open_days.OpenDays)
    _writer: fact_writer.FactWriter = field(init=False)
    _problems: list[evidence_records.EvidenceProblem] = field(default_factory=list)
    _written: dict[str, str] = field(default_factory=dict)
    """Content of files when they were last written: another collector's files may differ."""
    _begun: int | None = None
    """First day that was not marked as over."""

    def __post_init__(self) -> None:
        """Create the parts."""
        self._writer = fact_writer.FactWriter(
            self.book, self.waiting, self._find_changeable_days, self._record_stored
        )
        self.book.problems.listeners.append(self._problems.append)

    @property
    def rejected(self) -> set[int]:
        """Return the numbers of the facts on disk that the database rejected since the start."""
        return self._writer.rejected

    def _record_stored(self) -> None:
        self.counts.intervals += 1

    async def run(self) -> None:
        """Run until cancelled."""
        small = asyncio.create_task(self._keep_memory_small())
        try:
            while True:
                await self.attempt()
                await run_in_thread(work_limits.return_free_memory)
                await asyncio.sleep(self.settings.period_seconds)
        finally:
            small.cancel()

    async def _keep_memory_small(self) -> None:
        """Move evidence to disk while the database does not keep up, until cancelled.

        A write that waits for a standby may last longer than a round should.
        """
        while True:
            await asyncio.sleep(self.settings.period_seconds)
            await self.move_to_disk()

    async def move_to_disk(self, *, everything: bool = False) -> None:
        """Move evidence to disk that is ready, or all."""
        if self.hold_reason():
            return  # facts in memory may still be placed differently
        quiet_ns = self.wall_ns() - round(self.settings.quiet_seconds * SECOND_NS)
        try:
            await self._writer.move(None if everything else quiet_ns)
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
    def waiting_intervals(self) -> int:
        """Return the number of intervals that the database does not have."""
        return len(self.book.quarters) + self.waiting.quarters

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
                    intervals=self.waiting_intervals,
                    advice="it stays on disk, and is written later",
                )
            self.is_failing = True
            return False
        if self.is_failing:
            log.info("evidence_writes_resumed")
        self.is_failing = False
        return True

    async def round(self, *, everything: bool = False) -> None:
        """Store evidence that is ready (or all), finalize marked days, update the account."""
        tried: set[open_days.NodeDay] = set()
        async with self._turn:
            while stores := await self.store_all(everything=everything):
                is_final = await self._finalize(stores, tried)
                is_metered = await self._meter_open_days(stores, tried)
                await self._update_account(stores, is_complete=is_metered)
                if is_final and is_metered:
                    break

    # Storing -----------------------------------------------------------------------------------

    async def store_all(self, *, everything: bool) -> MeteringStores | None:
        """Store files and evidence; return the database, or None if nothing may be finalized now."""
        await database.call_database(self.check)
        if self._stores is None:
            self._stores = await database.call_database(self.open)
        stores = self._stores
        # First, and also while nothing may be finalized: a problem may be the reason for that.
        await self._write_problems(stores.files)
        texts = self.texts()
        is_complete = texts is not None and await self._store_files(stores, texts)
        # Checked again after each step: the clock may become suspect while the database is waited for.
        if self.hold_reason():
            return None
        await self.move_to_disk(everything=everything)
        # Another collector of the group is active: agents send it what is not stored.
        with contextlib.suppress(leases.LostLeaseError):
            await self._writer.upload(stores.facts)
        return stores if is_complete and not self.hold_reason() else None

    async def _write_problems(self, files: file_versions.FileStore) -> None:
        """Record new problems in the audit log, each once, but not those that the database rejects."""
        # Taken before the call: problems that are found meanwhile stay for the next write.
        waiting, self._problems[:] = [list(self._problems)], []
        while waiting:
            problems = waiting.pop()
            try:
                await database.call_database(files.record_problems, problems)
            except database.RejectedValueError as error:
                # Halves: one rejected row of many is found in a logarithmic number of transactions.
                middle = len(problems) // 2
                if middle:
                    waiting += [problems[:middle], problems[middle:]]
                else:
                    node, kind = problems[0].node, problems[0].kind
                    log.error("evidence_problem_rejected", node=node, kind=kind, problem=str(error))
            except BaseException:
                self._problems.extend(each for few in [problems, *waiting] for each in few)
                raise

    async def _store_files(self, stores: MeteringStores, texts: Mapping[str, str]) -> bool:
        """Store new versions of files; false if no version of one of them is in the database."""
        is_complete = True
        for kind, text in texts.items():
            if self._written.get(kind) != text:
                try:
                    # With today: another collector may finalize a day before this write has its lock.
                    days = range(self._window.start, self.wall_ns() // DAY_NS + 1)
                    await database.call_database(stores.files.write, kind, text, self.wall_ns, days)
                except (database.RejectedValueError, ValueError) as error:
                    earlier = await database.call_database(stores.files.read, kind)
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

    # Finalizing --------------------------------------------------------------------------------

    @property
    def _window(self) -> range:
        """Return the days that may be written now: they are over, and not too old to change."""
        end_day = (
            self.wall_ns() - round(self.settings.finalize_delay_seconds * SECOND_NS)
        ) // DAY_NS
        return range(end_day - self.settings.max_revision_age_days, end_day)

    def _find_changeable_days(self) -> range:
        """Return the days that are over, also those that may not be written yet, and not too old to change."""
        return range(self._window.start, self.wall_ns() // DAY_NS)

    async def _finalize(self, stores: MeteringStores, tried: set[open_days.NodeDay]) -> bool:
        """Mark the days that are over since the last round, and meter some marked days; true if none is left."""
        window = self._window
        first_day = window.start if self._begun is None else max(window.start, self._begun)
        facts = usage_facts.UsageFacts(stores.facts, stores.files)
        days = range(first_day, window.stop)
        await database.call_database(marked_days.mark_missing, facts, stores.ledger, days)
        self._begun = max(first_day, window.stop)
        # Newest first: a file that changes two months delays no recent day.
        marked = await database.call_database(stores.facts.marked_days, window)
        # Another collector may have metered a day that this one could not.
        for node_day in self.rejected_days.keys() - marked:
            if node_day[1] < window.stop:
                del self.rejected_days[node_day]
        waiting = [node_day for node_day in reversed(marked) if node_day not in tried]
        for node_day in waiting[:_AT_ONCE]:
            if self.hold_reason():
                return True
            tried.add(node_day)
            async with self._isolate(stores, node_day):
                written = await database.call_database(
                    marked_days.finalize_day,
                    stores.facts,
                    stores.files.read_in,
                    node_day,
                    self.wall_ns(),
                )
                if written is None:
                    return True  # another collector meters
                self.rejected_days.pop(node_day, None)
                self.counts.days += len(written)
                self.counts.revisions += sum(each.added and each.revision > 1 for each in written)
        return len(waiting) <= _AT_ONCE

    @contextlib.asynccontextmanager
    async def _isolate(
        self, stores: MeteringStores, node_day: open_days.NodeDay
    ) -> AsyncIterator[None]:
        """A day of a node that cannot be metered prevents no other; an unavailable database prevents all."""
        try:
            yield
        except database.RejectedValueError as fault:
            self._reject(node_day, fault)
        except database.UnusableLedgerError as fault:
            # A server ends a transaction that pauses, as that of a day with very many claims: it then still answers.
            await database.call_database(stores.facts.has_any)
            self._reject(node_day, fault)
        except OSError:
            raise
        except Exception as fault:  # noqa: BLE001 - all other days continue
            self._reject(node_day, fault)

    def _reject(self, node_day: open_days.NodeDay, fault: Exception) -> None:
        """Log a day that could not be written, once: the text of a problem may contain a time."""
        self.counts.failures += 1
        problem = f"{type(fault).__name__}: {fault}"
        if node_day not in self.rejected_days:
            date = format_timestamp(node_day[1] * DAY_NS)[:10]
            log.error("day_write_failed", node=node_day[0], day=date, problem=problem)
        self.rejected_days[node_day] = problem

    # Account -----------------------------------------------------------------------------------

    async def _meter_open_days(self, stores: MeteringStores, tried: set[open_days.NodeDay]) -> bool:
        """Meter some open days whose facts have changed; true if none is left."""
        files = await database.call_database(stores.files.read_all)
        days = range(self._window.stop, self.wall_ns() // DAY_NS + 1)
        found = await database.call_database(self._open_days.find_stale, stores.facts, files, days)
        stale = [each for each in found if each[0] not in tried]
        for node_day, version in stale[:_AT_ONCE]:
            tried.add(node_day)
            async with self._isolate(stores, node_day):
                await database.call_database(
                    self._open_days.meter, stores.facts, files, node_day, version
                )
                self.rejected_days.pop(node_day, None)
        return len(stale) <= _AT_ONCE

    async def _update_account(self, stores: MeteringStores, *, is_complete: bool) -> None:
        """Update the account; the first one only once all open days are known."""
        if is_complete or self.live.is_ready:
            documents = self._open_days.documents()
            await self.live.update(stores.ledger, documents, self.wall_ns(), self._lag_ns)

    @property
    def _lag_ns(self) -> int:
        """Return the time after which a running node's facts are in the database."""
        seconds = self.settings.quiet_seconds + 2 * self.settings.period_seconds
        return node_intervals.INTERVAL_NS + round(seconds * SECOND_NS)
