"""Watch over the ledger's database, which must be the one that the audit log has recorded.

The newest known head, from the log at the start and from the database since, must still exist. If it does
not, the database is marked: nothing is billed, imported or finalized with it, by this collector or by any
command, until the newest database is restored or the copy is accepted.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog
from sqlalchemy import inspect

from collector.audit.known_head import difference, read
from collector.audit.log import AuditError, AuditLog
from collector.ledger import heads
from collector.ledger.database import Database, LedgerError, NoLedgerError
from collector.ledger.draft import Draft
from collector.ledger.heads import Head
from railscope.audit.record import Actor, Data
from railscope.durable_files import write_durably

PERIOD_SECONDS = 60.0

log = structlog.get_logger(__name__)


class OlderCopyError(LedgerError):
    """The database is not the one that was recorded; the message states what is missing."""


@dataclass(slots=True)
class LedgerWatch:
    """Checks the database; `run` it, and `check` before anything is finalized."""

    database: Callable[[], Database]
    audit: AuditLog
    wall_ns: Callable[[], int]
    state: Path
    """File that stores the newest known head across restarts."""
    period_seconds: float = PERIOD_SECONDS
    known: Head | None = None
    """Newest head that was recorded or read; number 0 stands for a database without one."""
    problem: str = ""
    """Reason why the database is an older copy; empty if it is not."""
    checked: bool = False
    _kept: bool = False
    """True once this process has written the file: a damaged file is written again."""
    _reported: str = ""
    _checking: threading.Lock = field(default_factory=threading.Lock)

    def start(self, recorded: Head | None) -> None:
        """Initialize from the head in the audit log and the head in the state file. Raises OSError."""
        seen = None
        try:
            seen = read(self.state)
        except ValueError as error:
            log.error("state_file_damaged", file=str(self.state), problem=str(error),
                      advice="the audit log has the same, but for the last minute")  # fmt: skip
        known = [one for one in (recorded, seen) if one]
        self.known = max(known, key=lambda one: one.n, default=None)

    async def run(self) -> None:
        """Check once per period, until cancelled."""
        while True:
            try:
                await asyncio.to_thread(self.check)
            except OlderCopyError as error:
                await self._report(str(error))
            except LedgerError:
                pass  # every user of the database reports that it is unavailable
            else:
                self._reported = ""
            await asyncio.sleep(self.period_seconds)

    def check(self) -> None:
        """Compare the database with the known head. Blocking; raises OlderCopyError, LedgerError."""
        with self._checking:
            try:
                database = self.database()
                database.follow_file()
            except NoLedgerError as error:
                self.problem = f"{error}, and heads of one are recorded"
                raise OlderCopyError(self.problem) from error
            with database.transaction() as connection:
                begun = inspect(connection).has_table(heads.stops.name)
                problem = (
                    difference(connection, self.known) if begun else "it has no tables of a ledger"
                )
                if not problem:
                    newest = heads.newest(connection) or Head(heads.database_id(connection), 0, "")
            self.checked, self.problem = True, problem
            if not problem and (newest != self.known or not self._kept):
                self._remember(newest)
            if problem:
                if begun:
                    with database.transaction(writes=True) as connection:
                        heads.stop(connection, problem, self.wall_ns())
                message = f"the ledger {database.name} is not the one that was recorded: {problem}"
                raise OlderCopyError(message)

    def _remember(self, newest: Head) -> None:
        self.known = newest
        try:
            write_durably(self.state, msgspec.json.encode(newest))
            self._kept = True
        except OSError as error:
            log.warning("state_file_not_written", file=str(self.state), problem=str(error))

    def current(self) -> Database:
        """Return the database, after checking that it is the one that was recorded. Blocking.

        Raises OlderCopyError, LedgerError.
        """
        if self.problem or not self.checked:
            self.check()
        return self.database()

    async def _report(self, problem: str) -> None:
        """Report a problem once, in the system log and in the audit log."""
        if problem == self._reported:
            return
        self._reported = problem
        log.error("ledger_replaced", problem=problem,
                  advice="nothing is finalized or billed; restore the newest database")  # fmt: skip
        data: Data = {"what": "ledger", "problem": problem}
        actor = Actor("collector", self.audit.source.id)
        draft = Draft("evidence.gap", actor, self.wall_ns(), "failed", data=data)
        try:
            await self.audit.append(draft)
        except (AuditError, ValueError) as error:
            log.error("audit_record_lost", type=draft.type, data=data, problem=str(error))
