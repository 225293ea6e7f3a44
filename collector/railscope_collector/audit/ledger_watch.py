"""Monitor of the ledger's database: detects that it was replaced by an older copy or another one.

The newest known head, from a file at the start and from the database since, must still exist. If
it does not, the database is marked: nothing is billed, imported or finalized with it, by this
collector or by any command, until the newest database is restored or the copy is accepted.

The collector stores the newest known head in a file beside its state. Every command that writes the
ledger compares the database with it, in the same transaction as the write.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog
from sqlalchemy import Connection, inspect, select

from railscope import durable_files, untrusted_text
from railscope.audit.record import RecordData
from railscope_collector.audit import AuditLogError
from railscope_collector.audit.audit_trail import AuditTrail
from railscope_collector.ledger import database as databases, head_chain

KNOWN_HEAD_FILE = "ledger.known"
"""Name of the file in the collector's state directory."""


def read_known_head(path: Path) -> head_chain.ChainHead | None:
    """Return the head in a file; None if there is no file, or this user may not read it.

    Raises ValueError for a damaged file.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=head_chain.ChainHead)
    # Commands of other users may write the ledger too: they compare it with its own heads only.
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except untrusted_text.DECODING_ERRORS as error:
        message = f"damaged file {path}: {error}"
        raise ValueError(message) from error


def find_head_difference(connection: Connection, known_head: head_chain.ChainHead | None) -> str:
    """Return the reason why a database is not the one of a known head; empty if it is."""
    if known_head is None:
        return ""
    if not _continues(connection, known_head):
        identity = head_chain.database_id(connection)
        return f"its identity is {identity}: expected {known_head.database}, of which heads are recorded"
    if not known_head.n:
        return ""
    table, heads = head_chain.databases, head_chain.heads
    same = (heads.c.n == known_head.n, heads.c.database_id == known_head.database)
    row = connection.execute(select(heads).where(*same)).first()
    if row is not None:
        is_same = row.head == known_head.head
        return "" if is_same else f"its head {known_head.n} does not match the recorded one"
    # Heads after the accepted copy were lost with the replaced database, by a decision.
    accepted = table.c.continues == known_head.database, table.c.head < known_head.n
    is_accepted = connection.execute(select(table).where(*accepted)).first() is not None
    return "" if is_accepted else f"recorded head {known_head.n} is missing"


def compare_before_writes(database: databases.Database, directory: Path | None) -> None:
    """Make each transaction that writes a database fail if the database is an older copy.

    `directory` is the collector's state directory, if the database is the one that the collector is
    configured with. Any other database is compared with the file beside it, if that file is about this
    database.
    """
    is_of_collector = directory is not None
    if directory is None and database.file is not None:
        directory = database.file.parent
    if directory is None:
        return
    path = directory / KNOWN_HEAD_FILE

    def compare(connection: Connection) -> None:
        """Raise OlderLedgerError for an older copy, and for another database than the collector's."""
        try:
            known_head = read_known_head(path)
        except ValueError as error:
            message = f"{error}; fix: restart the collector, which writes the file again"
            raise head_chain.OlderLedgerError(message) from error
        if known_head is None or not (is_of_collector or _continues(connection, known_head)):
            return
        if problem := find_head_difference(connection, known_head):
            message = f"the ledger is read-only: {problem}; {head_chain.REMEDY}"
            raise head_chain.OlderLedgerError(message)

    database.before_writing = compare


def _continues(connection: Connection, known_head: head_chain.ChainHead) -> bool:
    """True if the database is the one of a head, or a copy of it that was accepted."""
    table = head_chain.databases
    query = select(table.c.number).where(table.c.database_id == known_head.database)
    return connection.execute(query).first() is not None


PERIOD_SECONDS = 60.0

log = structlog.get_logger(__name__)


class OlderCopyError(AuditLogError, databases.UnusableLedgerError):
    """The database is not the one that was recorded; the message states what is missing."""


@dataclass(slots=True)
class LedgerWatch:
    """Checks the database; `run` it, and `check` before anything is finalized."""

    database: Callable[[], databases.Database]
    trail: AuditTrail
    head_file: Path
    """File that stores the newest known head across restarts."""
    period_seconds: float = PERIOD_SECONDS
    known_head: head_chain.ChainHead | None = None
    """Newest head that was read; number 0 stands for a database without one."""
    problem: str = ""
    """Reason why the database is an older copy; empty if it is not."""
    _is_stored: bool = False
    """True once this process has written the file: a damaged file is written again."""
    _reported: str = ""
    _checking: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Initialize from the head in the state file. Raises OSError."""
        try:
            self.known_head = read_known_head(self.head_file)
        except ValueError as error:
            log.error(
                "state_file_damaged",
                file=str(self.head_file),
                problem=str(error),
                advice="the newest head is read from the database, and the file written again",
            )

    async def run(self) -> None:
        """Check once per period, until cancelled."""
        while True:
            try:
                await databases.call_database(self.check)
            except OlderCopyError as error:
                await self._report(str(error))
            except databases.UnusableLedgerError:
                pass  # every user of the database reports that it is unavailable
            else:
                self._reported = ""
            await asyncio.sleep(self.period_seconds)

    def check(self) -> None:
        """Compare the database with the known head. Blocking; raises OlderCopyError, UnusableLedgerError."""
        with self._checking:
            try:
                database = self.database()
                # A file that was replaced is not noticed by open connections.
                database.follow_file()
            except databases.NoLedgerError as error:
                self.problem = (
                    f"missing ledger: {error}: expected the one of which heads are recorded"
                )
                raise OlderCopyError(self.problem) from error
            with database.transaction() as connection:
                has_tables = inspect(connection).has_table(head_chain.stops.name)
                problem = "missing ledger tables: expected a database written by railscope"
                if has_tables:
                    problem = find_head_difference(connection, self.known_head)
                if not problem:
                    newest = head_chain.newest_head(connection) or head_chain.ChainHead(
                        head_chain.database_id(connection), 0, ""
                    )
            self.problem = problem
            # After the comparison: the head of a wrong database must not replace the known one.
            if not problem and (newest != self.known_head or not self._is_stored):
                self._store_known_head(newest)
            if problem:
                if has_tables:
                    # In the database itself, so that commands and other collectors see it.
                    with database.transaction(writes=True) as connection:
                        head_chain.mark_older_copy(connection, problem, self.trail.wall_ns())
                message = f"the ledger {database.name} is not the recorded one: {problem}"
                raise OlderCopyError(message)

    def _store_known_head(self, newest: head_chain.ChainHead) -> None:
        self.known_head = newest
        try:
            durable_files.write_durably(self.head_file, msgspec.json.encode(newest))
            self._is_stored = True
        except OSError as error:
            log.warning("state_file_write_failed", file=str(self.head_file), problem=str(error))

    async def _report(self, problem: str) -> None:
        """Report a problem once, in the system log and in the audit log."""
        if problem == self._reported:
            return
        self._reported = problem
        log.error(
            "ledger_replaced",
            problem=problem,
            advice="finalizing and billing are stopped; restore the newest database",
        )
        data: RecordData = {"what": "ledger", "problem": problem}
        await self.trail.append(self.trail.draft("evidence.gap", data, outcome="failed"))
