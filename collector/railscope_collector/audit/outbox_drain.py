"""Transfer of outbox rows to the audit log.

Rows are transferred in order, each exactly once, across any crash. A batch is assigned to the log
(committed), recorded, signed if that is possible, and its record numbers are stored (committed). If the
last commit was lost, the log itself shows the state: the last reference of each record is its outbox row.
Batches are sequential, so records that were appended but not noted come after all noted ones.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from railscope.audit import record
from railscope_collector.audit import (
    AuditLogError,
    LogWriteError,
    SigningPostponedError,
    log_writer,
)
from railscope_collector.ledger import audit_outbox, ledger_records, record_draft
from railscope_collector.ledger.database import Database, UnusableLedgerError, call_database

log = structlog.get_logger(__name__)

MAX_BATCH_ROWS = 256
POLL_SECONDS = 1.0
COUNT_SECONDS = 60.0
"""Maximum period between two full counts: a row may be committed after a later one."""
RETRY_SECONDS = 10.0


@dataclass(slots=True)
class OutboxDrain:
    """Writes pending outbox rows of a database to a log; `run` it while the log runs."""

    database: Callable[[], Database]
    """Raises UnusableLedgerError while the database is unavailable."""
    audit: log_writer.AuditLog
    poll_seconds: float = POLL_SECONDS
    retry_seconds: float = RETRY_SECONDS
    waiting_rows: int = 0
    """Rows that are in no log yet, as of the last poll."""
    stop_signing: Callable[[str], None] = lambda _problem: None
    """Called before anything else if the ledger refers to records that the log does not have."""
    on_heads_recorded: Callable[[], None] = lambda: None
    """Called after ledger heads were recorded, to refresh the newest known head. Blocking."""
    problem: str = ""
    """Reason why draining is blocked; empty if it is not."""
    _log: str = ""
    _newest_id: int = -1
    """Number of the last row when nothing was pending; -1 if it must be determined."""
    _counted_seconds: float = 0.0
    _sequences: dict[str, int] = field(default_factory=dict)

    async def run(self) -> None:
        """Drain until cancelled. A failure is logged once and retried."""
        while True:
            try:
                full = await self.drain_batch()
            except (AuditLogError, UnusableLedgerError, record.RecordError, OSError) as error:
                if str(error) != self.problem:
                    log.error("audit_outbox_delayed", problem=str(error))
                self.problem = str(error)
                # Events after the last commit are reconstructed from the log.
                self._log, self._newest_id = "", -1
                await asyncio.sleep(self.retry_seconds)
                continue
            self.problem = ""
            if not full:
                await asyncio.sleep(self.poll_seconds)

    async def drain_batch(self) -> bool:
        """Drain one batch; return True if more rows may be pending.

        Raises UnusableLedgerError, LogWriteError, RecordError, TileError, OSError.
        """
        database = await call_database(self.database)
        if not self._log:
            await call_database(self._find_unnoted_records, database)
        batch = await call_database(self._take_rows, database)
        positions = await self._append_rows(batch)
        await call_database(self._store, database, positions)
        for row in batch:
            self._sequences.pop(row.reference)
        if any(row.draft.type == ledger_records.HEAD for row in batch):
            await call_database(self.on_heads_recorded)
        return len(batch) == MAX_BATCH_ROWS

    def _find_unnoted_records(self, database: Database) -> None:
        """Find records that were appended and not noted."""
        name = self.audit.genesis()
        if not name:
            message = f"invalid audit log {self.audit.directory}: expected a genesis record"
            raise LogWriteError(message)
        with database.transaction() as connection:
            last = audit_outbox.find_last_recorded(connection, name)
            expected = audit_outbox.find_reference(connection, last.id) if last else ""
        self._sequences = {}
        later_records = self.audit.records(last.leaf if last else 0)
        # The last noted record must be where it was noted: signing must not continue on an older copy.
        if last and row_reference(next(later_records, None)) != expected:
            message = (
                f"record {last.leaf} is in the ledger and missing in this log: an older copy of"
                " the log was restored, or its end is lost"
            )
            self.stop_signing(message)
            raise LogWriteError(message)
        for raw in later_records:
            if reference := row_reference(raw):
                self._sequences[reference] = record.decode_audit_record(raw).seq
        self._log = name

    def _take_rows(self, database: Database) -> list[audit_outbox.OutboxRow]:
        now_seconds = time.monotonic()
        with database.transaction() as connection:
            newest = audit_outbox.newest_number(connection)
            # A cheap query, as the outbox is empty most of the time.
            if newest == self._newest_id and now_seconds < self._counted_seconds + COUNT_SECONDS:
                return []
            self.waiting_rows = audit_outbox.count_unrecorded(connection)
            self._newest_id, self._counted_seconds = newest, now_seconds
        if not self.waiting_rows:
            return []
        # More rows are assumed to be pending until a batch comes back empty.
        self._newest_id = -1
        with database.transaction(writes=True) as connection:
            return audit_outbox.take_rows(connection, self._log, MAX_BATCH_ROWS)

    async def _append_rows(
        self, batch: list[audit_outbox.OutboxRow]
    ) -> list[audit_outbox.LogPosition]:
        """Append the rows that the log does not have yet, in order; return the position of each."""
        # A row whose record was appended before a crash is only noted.
        new_rows = [row for row in batch if row.reference not in self._sequences]
        # All are encoded first: a row that cannot be recorded stops the batch before anything is appended.
        for row in new_rows:
            candidate = record_draft.build_record(row.draft, self.audit.source, self.audit.size)
            record.encode_audit_record(candidate)
        appended = [self.audit.append(row.draft) for row in new_rows]
        leaves = await asyncio.gather(*appended)
        self._sequences.update(zip((row.reference for row in new_rows), leaves, strict=True))
        signed = await self._sign() if batch else 0
        return [
            audit_outbox.LogPosition(row.id, leaf, signed if leaf < signed else None)
            for row in batch
            for leaf in (self._sequences[row.reference],)
        ]

    async def _sign(self) -> int:
        """Sign if that is possible now; return the number of signed records."""
        try:
            await self.audit.sign()
        except SigningPostponedError:
            pass  # signed soon, with the remaining records
        # The records are durable: their positions can be noted without a checkpoint.
        except (AuditLogError, OSError) as error:
            log.warning("audit_signing_postponed", problem=str(error))
        return self.audit.signed.size

    def _store(self, database: Database, positions: list[audit_outbox.LogPosition]) -> None:
        if not positions:
            return
        with database.transaction(writes=True) as connection:
            audit_outbox.store_positions(connection, self._log, positions)
        self.waiting_rows -= len(positions)


def row_reference(raw: bytes | None) -> str:
    """Return the outbox row that a record was made from; empty if there is no record or no row."""
    references = record.decode_audit_record(raw).ref if raw is not None else []
    last = references[-1] if references else ""
    return last if last.startswith(ledger_records.OUTBOX_ROW) else ""
