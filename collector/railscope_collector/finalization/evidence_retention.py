"""Periodic archiving of usage evidence, and deletion of archived evidence, off the event loop.

Of the collectors of a database, the holder of a lease does both. Nothing depends on that: an interrupted or
concurrent round repeats what another one did, and changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import structlog
from sqlalchemy import Connection, func, select

from railscope.catalog import collector as c
from railscope.service import run_in_thread
from railscope.timestamps import DAY_NS, FOREVER_NS, SECOND_NS
from railscope_collector import archive_stores, clock as collector_clock, config, work_limits
from railscope_collector.billing.billing_store import BillingStore
from railscope_collector.evidence import (
    archive_files,
    claim_archive,
    evidence_archive,
    evidence_store,
    evidence_tables,
)
from railscope_collector.fleet.view_cells import ViewCell
from railscope_collector.ledger import leases
from railscope_collector.ledger.database import Database, UnusableLedgerError, call_database
from railscope_collector.ledger.ledger_store import Ledger

log = structlog.get_logger(__name__)

LEASE = "archive"
_MARGIN_NS = 300 * SECOND_NS
"""Maximum delay until facts recorded by another collector become visible."""


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


def find_nodes(connection: Connection) -> dict[str, int]:
    """Return all nodes with intervals, and the start of the oldest of each."""
    found: dict[str, int] = {}
    intervals = evidence_tables.evidence_intervals.c
    node = connection.execute(select(func.min(intervals.node))).scalar()
    while node is not None:  # one step in the index per node
        oldest = select(func.min(intervals.start_ns)).where(intervals.node == node)
        found[node] = connection.execute(oldest).scalar_one()
        following = select(func.min(intervals.node)).where(intervals.node > node)
        node = connection.execute(following).scalar()
    return found


def _find_read_days(archive: evidence_archive.EvidenceArchive, node: str, days: range) -> range:
    """Return the days of a node whose reports metering of some days and of those beside them may read."""
    before_ns = (days.start - 1) * DAY_NS - evidence_tables.CONTEXT_NS
    after_ns = (days.stop + 1) * DAY_NS + evidence_tables.CONTEXT_NS
    start_ns = archive.find_report(node, after_ns, is_before=False)
    end_ns = FOREVER_NS if start_ns is None else start_ns
    return range(archive.find_last_kept_day(node, before_ns) or 0, end_ns // DAY_NS + 1)


def _find_deletable(
    archive: evidence_archive.EvidenceArchive, nodes: Mapping[str, int], end_day: int
) -> tuple[dict[str, list[int]], dict[str, frozenset[str]]]:
    """Return by node the days before a day that can be deleted, and the parts of them that stay."""
    before_ns = end_day * DAY_NS - evidence_tables.CONTEXT_NS
    deletable: dict[str, list[int]] = {}
    kept_parts: dict[str, frozenset[str]] = {}
    for node, oldest_ns in nodes.items():
        last_day = archive.find_last_kept_day(node, before_ns) if oldest_ns < before_ns else None
        if last_day is not None:
            kept_parts[node] = archive.find_last_parts(node, before_ns)
            days = archive.find_deletable_days(node, min(last_day, end_day), kept_parts[node])
            deletable |= {node: days} if days else {}
    return deletable, kept_parts


def _write_claims(claims: claim_archive.ClaimArchive, day: int, now_ns: int) -> Iterator[str]:
    for count in claims.write_day(day, now_ns):
        yield f"{evidence_archive.format_day(day)}: claims of {count:,} nodes archived"


@dataclass(slots=True)
class EvidenceRetention:
    """Archives and deletes evidence. `open` blocks; it raises UnusableLedgerError."""

    settings: config.CollectorSettings
    open: Callable[[], Database]
    clock: collector_clock.CollectorClock | None = None
    """Clock of a running collector: while it is suspect, nothing is archived or deleted."""
    check: Callable[[], object] = lambda: None
    """Raises UnusableLedgerError if the database is not the one used before."""
    wall_ns: Callable[[], int] = time.time_ns
    kept_reports: int = evidence_archive.KEPT_REPORTS
    max_file_bytes: int = evidence_archive.MAX_FILE_BYTES
    archived: int = 0
    deleted: int = 0
    failures: int = 0
    archived_until: int | None = None
    """First day that is not archived completely; None before the first round."""
    problem: str = ""
    """Reason why the last round failed, also in part; empty if it did not."""
    idle_reason: str = ""
    """Reason for which the last round did nothing; empty if there was none."""
    missing_days: int = 0
    """GPU-days that the ledger does not have, and whose evidence is kept though it is due to be deleted."""
    _processed: tuple[int, int] | None = None
    """Epoch of the lease, and time up to which this process has archived what was recorded."""
    _store: archive_stores.ArchiveStore | None = field(init=False)
    _lease: leases.Lease = field(default_factory=lambda: leases.Lease(LEASE))

    def __post_init__(self) -> None:
        """Check the settings. Raises SettingsError."""
        if self.clock is not None:
            self.wall_ns = self.clock.now_ns
        chosen = self.settings.archive
        self._store = archive_stores.open_archive_store(chosen)
        archive_files.compile_pod_pattern(chosen.pod_pattern)

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
            expected = (UnusableLedgerError, archive_stores.ArchiveError)
            problem = str(fault)
            if not isinstance(fault, expected):
                problem = f"{type(fault).__name__}: {fault}"
            if problem != self.problem:
                advice = "evidence stays in the database, and is archived later"
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
        now_ns, database, chosen = self.wall_ns(), self.open(), self.settings.archive
        term = self._lease.take(database)
        if term is None:
            self.idle_reason = "another collector of the database archives"
            return
        epoch, processed_ns = self._processed or (0, None)
        seen_ns = processed_ns if epoch == term.epoch else term.processed_ns
        pattern = archive_files.compile_pod_pattern(chosen.pod_pattern)
        archive = evidence_archive.EvidenceArchive(
            database,
            self._store,
            pattern,
            kept_reports=self.kept_reports,
            max_file_bytes=self.max_file_bytes,
            failures=archive_stores.FileFailures(self._store),
        )
        with database.transaction() as connection:
            nodes = find_nodes(connection)
        end_day = now_ns // DAY_NS - chosen.archive_after_days
        claims = claim_archive.ClaimArchive(archive)
        oldest_day = min(nodes.values(), default=now_ns) // DAY_NS
        days = archive.find_due_days(range(oldest_day, end_day), seen_ns)
        first_day = now_ns // DAY_NS - self.settings.metering.max_revision_age_days - 2
        claim_days = claims.find_due_days(days, range(first_day, end_day), seen_ns)
        self.archived_until = min(days, default=end_day)
        failures = archive.failures.problems
        for day in sorted({*days, *claim_days}):
            nodes_of_day = nodes if day in days else {}
            for line in self._archive(
                claims, nodes_of_day, day, now_ns, has_claims=day in claim_days
            ):
                yield line
                # The lease is renewed between two days, as a round may last longer than it.
                if self._lease.take(database) != term or self._is_held():
                    return
            if failures:
                # Later days are not searched for what was recorded before: first of all, this one is.
                self._store_progress(database, term, 0)
            elif day in days:
                self.archived_until = day + 1
        # With the margin: facts become visible after the time at which they were recorded.
        processed_ns = 0 if failures else now_ns - _MARGIN_NS
        if not failures:
            self.archived_until = end_day
        yield from self._delete(claims, nodes, now_ns)
        self._lease.take(database)
        self._store_progress(database, term, processed_ns)
        archive.failures.check()

    def _store_progress(
        self, database: Database, term: leases.LeaseTerm, processed_ns: int
    ) -> None:
        try:
            term.store_progress(database, processed_ns)
            self._processed = (term.epoch, processed_ns)
        except leases.LostLeaseError:
            log.info("archive_progress_not_stored", advice="the holder does the same again")

    def _archive(
        self,
        claims: claim_archive.ClaimArchive,
        nodes: Mapping[str, int],
        day: int,
        now_ns: int,
        *,
        has_claims: bool,
    ) -> Iterator[str]:
        """Archive a day of nodes; the claims last, and not if a file failed: with claims, a day is complete."""
        failures = len(claims.archive.failures.problems)
        for count in claims.archive.write_day(day, nodes, now_ns):
            self.archived += count
            yield f"{evidence_archive.format_day(day)}: {count:,} facts archived"
        if has_claims and len(claims.archive.failures.problems) == failures:
            yield from _write_claims(claims, day, now_ns)

    def _is_held(self) -> bool:
        return bool(self.clock and self.clock.hold_reason)

    def _delete(
        self, claims: claim_archive.ClaimArchive, nodes: dict[str, int], now_ns: int
    ) -> Iterator[str]:
        """Delete archived evidence that is no longer needed, the oldest day first.

        A day can no longer be revised then: its claims are archived once more, as far as they are new.
        """
        archive = claims.archive
        keep_days = self.settings.archive.delete_after_days
        if not keep_days:
            return
        needed = find_first_needed_day(archive.database, self.settings.metering, now_ns)
        end_day = min(needed, now_ns // DAY_NS - keep_days)
        deletable, kept_parts = _find_deletable(archive, nodes, end_day)
        oldest_day = min(nodes.values(), default=now_ns) // DAY_NS
        missing_periods = (
            self._find_missing(archive, range(oldest_day, end_day)) if deletable else {}
        )
        by_day: dict[int, list[str]] = {}
        for node, days in deletable.items():
            missing = missing_periods.get(node, ())
            periods = [_find_read_days(archive, node, period) for period in missing]
            for period in missing:
                edge_ns = period.start * DAY_NS - evidence_tables.CONTEXT_NS
                kept_parts[node] |= archive.find_last_parts(node, edge_ns)
            for day in days:
                # A day that the ledger lacks may still be metered: all that it would read stays.
                if not any(day in period for period in periods):
                    by_day.setdefault(day, []).append(node)
        for day, members in sorted(by_day.items()):
            failures = len(archive.failures.problems)
            # Before the intervals are deleted: the day must be computable from the archive alone.
            yield from _write_claims(claims, day, now_ns)
            if len(archive.failures.problems) > failures:
                continue
            kept_on_day = {node: kept_parts[node] for node in members}
            for count in archive.delete_day(day, kept_on_day, now_ns):
                self.deleted += count
                yield f"{evidence_archive.format_day(day)}: {count:,} facts deleted"

    def _find_missing(
        self, archive: evidence_archive.EvidenceArchive, days: range
    ) -> dict[str, list[range]]:
        """Return the days that the ledger does not have of some GPU, by node; log their number when it changes."""
        with archive.database.transaction(is_snapshot=True) as connection:
            homes = evidence_store.read_homes(connection)
        missing = Ledger(archive.database).missing_days(homes, days)
        if missing and len(missing) != self.missing_days:
            first = f"{missing[0].gpu} on {evidence_archive.format_day(missing[0].day)}"
            advice = "their evidence is not deleted; the log of the collector that finalizes has the problem"
            log.warning("missing_days_found", count=len(missing), first=first, advice=advice)
        self.missing_days = len(missing)
        missing_periods: dict[str, list[range]] = {}
        for key in missing:  # in order of the days
            for node in homes[key.gpu]:
                periods = missing_periods.setdefault(node, [])
                if periods and key.day <= periods[-1].stop:
                    periods[-1] = range(periods[-1].start, key.day + 1)
                else:
                    periods.append(range(key.day, key.day + 1))
        return missing_periods

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
