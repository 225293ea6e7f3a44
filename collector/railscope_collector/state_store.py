"""Durable state of a collector beside its frame log: the SQLite database `state.sqlite` in the state directory.

Each owner creates its own tables with `create`, bounds them, and changes them in transactions, which are durable when they end.
A database that is damaged is moved aside and a new one begun; `problem` states it. All methods block, and may be called by
several threads.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import structlog

from railscope import durable_files

log = structlog.get_logger(__name__)

FILE = "state.sqlite"
FORMAT = 1
"""Version of the tables of all owners, in `user_version` of the file."""
DAMAGED = ".damaged"
"""Suffix of a database that could not be read; the next one replaces it."""
MAX_WAL_BYTES = 64 << 20
"""Size to which the file of recent transactions is cut after a large one."""
_DOCUMENTS = (
    "CREATE TABLE IF NOT EXISTS documents (name TEXT PRIMARY KEY, content BLOB NOT NULL) STRICT"
)
Row: TypeAlias = tuple[Any, ...]


class StateStoreError(OSError):
    """The database cannot be read or written; the message states the reason."""


@dataclass(slots=True)
class StateStore:
    """The database of one state directory; call `open` first. Methods raise StateStoreError."""

    directory: Path
    problem: str = ""
    """Reason for which the content of the database is lost; empty if it is not."""
    is_read_only: bool = False
    _connection: sqlite3.Connection | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def path(self) -> Path:
        """Return the path of the database."""
        return self.directory / FILE

    def open(self, *, is_expected: bool = False) -> None:
        """Open the database, or create it; `is_expected` is true if a missing one is a loss."""
        with self._named_errors("opening"):
            if not self.path.exists():
                self.problem = "missing file" if is_expected else ""
            elif problem := self._find_damage():
                self.problem = problem
                self._move_aside()
            if self.problem:
                log.error("state_database_lost", file=str(self.path), problem=self.problem)
            # Created with its mode first: SQLite gives the files beside it the same one.
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600))
            durable_files.sync_directory(self.directory)
            self._connection = _connect(self.path)
            # Before the first table: what is deleted in an outage of the ledger can be given back to the file system.
            self._connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("PRAGMA foreign_keys = ON")
            self._connection.execute(f"PRAGMA journal_size_limit = {MAX_WAL_BYTES}")
            self._connection.execute(_DOCUMENTS)
            if self._connection.execute("PRAGMA user_version").fetchone() != (FORMAT,):
                self._connection.execute(f"PRAGMA user_version = {FORMAT}")

    def open_read_only(self) -> None:
        """Open the database on a full disk: nothing is written, and what is missing or damaged is empty."""
        self.is_read_only = True
        with self._named_errors("opening"):
            if self.path.exists():
                wal = self.path.with_name(FILE + "-wal")
                is_closed = not wal.exists() or not wal.stat().st_size
                connection = _connect(
                    f"{self.path.absolute().as_uri()}?immutable=1" if is_closed else self.path
                )
                # Without it, SQLite would need a file of shared memory, which a full disk cannot have.
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                if not self._find_damage_in(connection):
                    connection.execute("PRAGMA query_only = ON")
                    self._connection = connection
                    return
                connection.close()
            self._connection = _connect(":memory:")

    def create(self, *statements: str) -> None:
        """Create the tables of an owner, by statements `CREATE ... IF NOT EXISTS`; on a full disk, missing tables are empty."""
        if self.is_read_only:
            return
        with self.transaction() as connection:
            for statement in statements:
                connection.execute(statement)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Begin a transaction, durable on exit; an error undoes it. Other threads wait meanwhile."""
        with self._lock, self._named_errors("writing"):
            connection = self._opened()
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
            finally:
                # Also after a failed commit, or an error of the caller.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def read(self, query: str, parameters: Sequence[object] = ()) -> list[Row]:
        """Return the rows of a query."""
        with self._lock, self._named_errors("reading"):
            try:
                return self._opened().execute(query, parameters).fetchall()
            except sqlite3.OperationalError as error:
                if self.is_read_only and str(error).startswith("no such table"):
                    return []
                raise

    def document(self, name: str) -> bytes | None:
        """Return the content of a small document; None if there is none."""
        rows = self.read("SELECT content FROM documents WHERE name = ?", (name,))
        return rows[0][0] if rows else None

    def put_document(self, connection: sqlite3.Connection, name: str, content: bytes) -> None:
        """Store a small document in a transaction, in place of the former one. Raises sqlite3.Error."""
        connection.execute("INSERT OR REPLACE INTO documents VALUES (?, ?)", (name, content))

    def shrink(self) -> None:
        """Give the space of deleted rows back to the file system."""
        with self._lock, self._named_errors("writing"):
            self._opened().execute("PRAGMA incremental_vacuum").fetchall()

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            message = f"using {self.path} failed: it is closed"
            raise StateStoreError(message)
        return self._connection

    def _find_damage(self) -> str:
        connection = _connect(self.path)
        try:
            return self._find_damage_in(connection)
        finally:
            connection.close()

    def _find_damage_in(self, connection: sqlite3.Connection) -> str:
        """Return why the content cannot be read; empty if it can. Raises StateStoreError for a newer version."""
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version <= FORMAT:
                (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
                return "" if result == "ok" else f"damaged: {result}"
        except sqlite3.OperationalError:  # the disk or the permissions, not the content
            raise
        except sqlite3.DatabaseError as error:
            return f"damaged: {error}"
        message = (
            f"invalid format {version} of {self.path}: expected at most {FORMAT};"
            " fix: install the version of Railscope that wrote it, or a newer one"
        )
        raise StateStoreError(message)

    def _move_aside(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            path = self.path.with_name(FILE + suffix)
            if path.exists():
                path.replace(path.with_name(FILE + DAMAGED + suffix))

    @contextmanager
    def _named_errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            message = f"{action} {self.path} failed: {error}"
            raise StateStoreError(message) from error


def _connect(path: Path | str) -> sqlite3.Connection:
    # Without implicit transactions; the lock of the store, not SQLite, excludes concurrent threads.
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, uri=True)
