"""Readiness of the ledger: a write that is committed, repeated at most every few seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from sqlalchemy import BigInteger, Column, Integer, MetaData, Table, insert, inspect, update

from collector.ledger.database import Database, LedgerError

log = structlog.get_logger(__name__)

REUSE_SECONDS = 5.0
_UNWRITABLE = "the ledger cannot be written; the collector's log has the reason"

_table = Table(
    "write_probe",
    MetaData(),
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("writes", BigInteger, nullable=False),
)
"""One row that counts its own writes. It is outside the ledger's schema and its audit."""


def write(database: Database) -> None:
    """Commit one write. Blocking; raises LedgerError.

    Only a commit detects a full disk, a read-only file system, a missing privilege or a standby server;
    opening the database and reading from it succeed with all of these.
    """
    with database.transaction(writes=True) as connection:
        if not inspect(connection).has_table(_table.name):
            _table.create(connection)
        changed = connection.execute(update(_table).values(writes=_table.c.writes + 1))
        if not changed.rowcount:
            connection.execute(insert(_table).values(id=1, writes=1))


@dataclass(slots=True)
class LedgerProbe:
    """Result of the newest write, for any number of concurrent callers."""

    open: Callable[[], Database]
    monotonic: Callable[[], float] = time.monotonic
    wait_seconds: float = 5.0
    _running: asyncio.Task[str] | None = None
    _problem: str = ""
    _ended: float | None = None

    async def problem(self) -> str:
        """Return the reason why the ledger cannot be written; empty if there is none.

        A database that does not respond within `wait_seconds` counts as unwritable; the write continues,
        and later callers wait for the same one. The database's own message, which may contain hosts and
        files, is logged and not returned: readiness is served without a credential.
        """
        if self._ended is not None and self.monotonic() - self._ended < REUSE_SECONDS:
            return _UNWRITABLE if self._problem else ""
        if self._running is None:
            self._running = asyncio.create_task(asyncio.to_thread(self._write))
            self._running.add_done_callback(self._finished)
        done, _ = await asyncio.wait({self._running}, timeout=self.wait_seconds)
        if not done:
            return f"the ledger has not answered a write for {self.wait_seconds:g} s"
        return _UNWRITABLE if self._problem else ""

    def _write(self) -> str:
        try:
            write(self.open())
        except LedgerError as error:
            return str(error)
        return ""

    def _finished(self, task: asyncio.Task[str]) -> None:
        self._running = None
        if not task.cancelled():
            fault = task.exception()
            before = self._problem
            self._problem = f"{type(fault).__name__}: {fault}" if fault else task.result()
            self._ended = self.monotonic()
            if self._problem and not before:
                log.error("ledger_unwritable", problem=self._problem)
