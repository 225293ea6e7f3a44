"""Periodic archiving of days, and deletion of facts that no open day reads, off the event loop.

Of the collectors of a database, the holder of a lease does both. Nothing depends on that: an interrupted or
concurrent round repeats what another one did, and changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import structlog

from railscope.catalog import collector as c
from railscope.service import run_in_thread
from railscope.timestamps import DAY_NS, SECOND_NS
from railscope_collector import archive_stores, clock as collector_clock, config, work_limits
from railscope_collector.billing.billing_store import BillingStore
from railscope_collector.evidence import archive_files
from railscope_collector.evidence.day_archive import DayArchive, format_day
from railscope_collector.evidence.fact_store import FactStore
from railscope_collector.fleet.view_cells import ViewCell
from railscope_collector.ledger import leases
from railscope_collector.ledger.database import Database, UnusableLedgerError, call_database

log = structlog.get_logger(__name__)

LEASE = "archive"


def find_first_needed_day(
    database: Database, metering: config.MeteringSettings, now_ns: int
) -> int:
    """Return the first day whose evidence may still be needed, apart from days that the ledger does not have.

    A day is not needed once it can no longer be revised, and is in a closed period or before the opening date
    (any day, where nothing is billed).
    """
    delay_ns = round(metering.finalize_delay_seconds * SECOND_NS)
    day = (now_ns - delay_ns) // DAY_NS - metering.max_revision_age_days
    billing = BillingStore(database)
    closings, opening = billing.closings(), billing.opening()
    # Without a closing, the first one may still begin at the opening date; without either, any day may be billed.
    if closings:
        day = min(day, max(closing.period.end_ns for closing in closings) // DAY_NS)
    elif opening:
        day = min(day, opening.opening_ns // DAY_NS)
    elif billing.book():
        return 0
    # The day before is read as well, so that the edges of a window do not affect its result.
    return day - 1


@dataclass(slots=True)
class DayRetention:
    """Archives days and deletes facts. `open` blocks; it raises UnusableLedgerError."""

    settings: config.CollectorSettings
    open: Callable[[], FactStore]
    clock: collector_clock.CollectorClock | None = None
    """Clock of a running collector: while it is suspect, nothing is archived or deleted."""
    check: Callable[[], object] = lambda: None
    """Raises UnusableLedgerError if the database is not the one used before."""
    wall_ns: Callable[[], int] = time.time_ns
    archived: int = 0
    """Files written."""
    deleted: int = 0
    """Facts deleted."""
    failures: int = 0
    archived_until: int | None = None
    """First day that may not be archived completely; None before the first complete round."""
    problem: str = ""
    """Reason why the last round failed, also in part; empty if it did not."""
    idle_reason: str = ""
    """Reason for which the last round did nothing; empty if there was none."""
    _store: archive_stores.ArchiveStore | None = field(init=False)
    _lease: leases.Lease = field(default_factory=lambda: leases.Lease(LEASE))

    def __post_init__(self) -> None:
        """Check the settings. Raises SettingsError."""
        if self.clock is not None:
            self.wall_ns = self.clock.now_ns
        self._store = archive_stores.open_archive_store(self.settings.archive)
        archive_files.compile_pod_pattern(self.settings.archive.pod_pattern)

    async def run(self) -> None:
        """Run until cancelled; return at once if no archive is configured."""
        try:
            while self._store is not None:
                await self.attempt()
                await run_in_thread(work_limits.return_free_memory)
                await asyncio.sleep(self.settings.archive.period_seconds)
        finally:
            await call_database(self.close)

    async def attempt(self) -> bool:
        """Archive and delete what is due; false if it failed, which is logged when the problem changes.

        Any exception is caught: the collector must continue to receive frames.
        """
        steps = self.steps()
        try:
            while await call_database(next, steps, None) is not None:
                pass
        except Exception as fault:  # noqa: BLE001 - see above
            self.failures += 1
            problem = str(fault)
            if not isinstance(fault, (UnusableLedgerError, archive_stores.ArchiveError)):
                problem = f"{type(fault).__name__}: {fault}"
            if problem != self.problem:
                advice = "facts stay in the database, and are archived later"
                log.error("evidence_archive_failed", problem=problem, advice=advice)
            self.problem = problem
            return False
        if self.problem:
            log.info("evidence_archive_resumed")
        self.problem = ""
        return True

    def close(self) -> None:
        """Let another collector take over. Blocking."""
        self._lease.release()

    def steps(self) -> Iterator[str]:
        """Archive what is due, then delete what is due; yield the result of each file or transaction.

        A file that fails stops no other one: its facts stay, and the next round tries it again. Raises ArchiveError at
        the end for these files, or at once if the store cannot be used.
        """
        self.idle_reason = ""
        if self._store is None or self._is_held():
            self.idle_reason = "no archive is configured, or the clock is suspect"
            return
        self.check()
        now_ns, store, chosen = self.wall_ns(), self.open(), self.settings.archive
        term = self._lease.take(store.database)
        if term is None:
            self.idle_reason = "another collector of the database archives"
            return
        pattern = archive_files.compile_pod_pattern(chosen.pod_pattern)
        archive = DayArchive(store, self._store, pattern, is_isolating=True)
        for line in self._archive(archive, now_ns):
            yield line
            # The lease is renewed between two files, as a round may last longer than it.
            if self._lease.take(store.database) != term or self._is_held():
                return
        archive.failures.check()
        self.archived_until = now_ns // DAY_NS - chosen.archive_after_days

    def _archive(self, archive: DayArchive, now_ns: int) -> Iterator[str]:
        today, chosen = now_ns // DAY_NS, self.settings.archive
        for file in archive.write_due(today - chosen.archive_after_days, now_ns):
            self.archived += 1
            yield f"{format_day(file.day)}: {file.gpus:,} GPU-days of pod {file.pod} archived"
        if not chosen.delete_after_days:
            return
        needed = find_first_needed_day(archive.database, self.settings.metering, now_ns)
        end_day = min(needed, today - chosen.delete_after_days)
        for count in archive.close_days(end_day, now_ns):
            self.deleted += count
            yield f"before {format_day(end_day)}: {count:,} facts deleted"

    def _is_held(self) -> bool:
        return bool(self.clock and self.clock.hold_reason)

    def cells(self) -> list[ViewCell]:
        """Return the metrics of the archive; none if no archive is configured."""
        if self._store is None:
            return []
        numbers = [
            (c.EVIDENCE_ARCHIVED, self.archived),
            (c.EVIDENCE_DELETED, self.deleted),
            (c.EVIDENCE_ARCHIVE_FAILURES, self.failures),
        ]
        if self.archived_until is not None:
            due = self.wall_ns() // DAY_NS - self.settings.archive.archive_after_days
            numbers.append((c.EVIDENCE_UNARCHIVED_DAYS, max(0, due - self.archived_until)))
        return [ViewCell(metric, (), value) for metric, value in numbers]
