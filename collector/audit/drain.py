"""Transfer of the outbox into the audit log: in order, each row exactly once, across any crash.

A batch is taken on (committed), recorded, signed if that is possible, and its record numbers are noted
(committed). If the last commit was lost, the log itself shows the state: the last reference of each record
is its outbox row. Batches are sequential, so records that were appended but not noted come after all noted
ones.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from collector.audit.housekeeping import HousekeepingError
from collector.audit.journal import JournalError
from collector.audit.log import AuditError, AuditLog
from collector.audit.publisher import WaitingError
from collector.audit.tiles import TileError
from collector.ledger.database import Database, LedgerError
from collector.ledger.draft import record_of
from collector.ledger.ledger_records import HEAD, OUTBOX_ROW
from collector.ledger.outbox import (
    Place,
    Waiting,
    last_placed,
    newest_number,
    place,
    reference_of,
    take,
    unplaced,
)
from railscope.audit.merkle import leaf_hash
from railscope.audit.record import RecordError, decode, encode

MAX_IN_A_BATCH = 256
LOOK_SECONDS = 1.0
COUNT_SECONDS = 60.0
"""Maximum period between two full counts: a row may be committed after a later one."""
RETRY_SECONDS = 10.0

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Drain:
    """Writes pending outbox rows of a database to a log; `run` it while the log runs."""

    database: Callable[[], Database]
    """Raises LedgerError while the database is unavailable."""
    audit: AuditLog
    look_seconds: float = LOOK_SECONDS
    retry_seconds: float = RETRY_SECONDS
    waiting: int = 0
    """Rows that are in no log yet, as of the last poll."""
    refuse: Callable[[str], None] = lambda _problem: None
    """Called before anything else if the ledger refers to records that the log does not have."""
    recorded: Callable[[], None] = lambda: None
    """Called after ledger heads were recorded, to refresh the newest known head. Blocking."""
    problem: str = ""
    """Reason why draining is blocked; empty if it is not."""
    _log: str = ""
    _newest: int = -1
    """Number of the last row when nothing was pending; -1 if it must be determined."""
    _counted: float = 0.0
    _found: dict[str, int] = field(default_factory=dict)

    async def run(self) -> None:
        """Drain until cancelled. A failure is logged once and retried."""
        while True:
            try:
                full = await self.step()
            except (LedgerError, AuditError, RecordError, TileError, OSError) as error:
                if str(error) != self.problem:
                    log.error("audit_outbox_waits", problem=str(error))
                self.problem = str(error)
                # Events after the last commit are reconstructed from the log.
                self._log, self._newest = "", -1
                await asyncio.sleep(self.retry_seconds)
                continue
            self.problem = ""
            if not full:
                await asyncio.sleep(self.look_seconds)

    async def step(self) -> bool:
        """Drain one batch; return True if more rows may be pending.

        Raises LedgerError, AuditError, RecordError, TileError, OSError.
        """
        database = await asyncio.to_thread(self.database)
        if not self._log:
            await asyncio.to_thread(self._look_back, database)
        batch = await asyncio.to_thread(self._take, database)
        places = await self._recorded(batch)
        await asyncio.to_thread(self._place, database, places)
        for one in batch:
            self._found.pop(one.reference)
        if any(one.draft.type == HEAD for one in batch):
            await asyncio.to_thread(self.recorded)
        return len(batch) == MAX_IN_A_BATCH

    def _look_back(self, database: Database) -> None:
        """Find records that were appended and not noted."""
        genesis = next(self.audit.records(0), None)
        if genesis is None:
            message = f"{self.audit.directory}: the log has not begun"
            raise AuditError(message)
        name = leaf_hash(genesis).hex()
        with database.transaction() as connection:
            last = last_placed(connection, name)
            expected = reference_of(connection, last.id) if last else ""
        self._found = {}
        behind = self.audit.records(last.leaf if last else 0)
        if last and row_reference(next(behind, None)) != expected:
            message = (
                f"the ledger knows of record {last.leaf} of this log, which is not there: "
                "an older copy of the log was put back, or its end is lost"
            )
            self.refuse(message)
            raise AuditError(message)
        for raw in behind:
            if reference := row_reference(raw):
                self._found[reference] = decode(raw).seq
        self._log = name

    def _take(self, database: Database) -> list[Waiting]:
        now = time.monotonic()
        with database.transaction() as connection:
            newest = newest_number(connection)
            if newest == self._newest and now < self._counted + COUNT_SECONDS:
                return []
            self.waiting = unplaced(connection)
            self._newest, self._counted = newest, now
        if not self.waiting:
            return []
        # More rows are assumed to be pending until a batch comes back empty.
        self._newest = -1
        with database.transaction(writes=True) as connection:
            return take(connection, self._log, MAX_IN_A_BATCH)

    async def _recorded(self, batch: list[Waiting]) -> list[Place]:
        """Append the rows that the log does not have yet, in order; return the position of each."""
        fresh = [one for one in batch if one.reference not in self._found]
        for one in fresh:
            encode(record_of(one.draft, self.audit.source, self.audit.size))
        appended = [self.audit.append(one.draft) for one in fresh]
        leaves = await asyncio.gather(*appended)
        self._found.update(zip((one.reference for one in fresh), leaves, strict=True))
        signed = await self._signed() if batch else 0
        return [Place(one.id, leaf, signed if leaf < signed else None) for one in batch
                for leaf in (self._found[one.reference],)]  # fmt: skip

    async def _signed(self) -> int:
        """Sign if that is possible now; return the number of signed records."""
        try:
            await self.audit.sign()
        except WaitingError:
            pass  # signed soon, with the remaining records
        except (AuditError, JournalError, HousekeepingError, OSError) as error:
            log.warning("audit_outbox_not_signed", problem=str(error))
        return self.audit.signed.size

    def _place(self, database: Database, places: list[Place]) -> None:
        if not places:
            return
        with database.transaction(writes=True) as connection:
            place(connection, self._log, places)
        self.waiting -= len(places)


def row_reference(raw: bytes | None) -> str:
    """Return the outbox row that a record was made from; empty if there is no record or no row."""
    references = decode(raw).ref if raw is not None else []
    return references[-1] if references and references[-1].startswith(OUTBOX_ROW) else ""
