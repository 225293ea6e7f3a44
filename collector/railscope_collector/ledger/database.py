"""The database of a ledger: SQLite or PostgreSQL, by URL.

`SharedDatabase` is one database that all components of a collector share, opened on first use.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError

from railscope.listen_address import MAX_PORT
from railscope.service import Parameters, ResultT, run_to_end
from railscope_collector.ledger import (
    LedgerError,
    day_documents,
    head_chain,
    schema,
    transactions,
)

_BUSY_SECONDS = 60
_CONNECTION = {
    "client_encoding": "utf8",
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
"""Parameters of connections to PostgreSQL, unless the URL has them. A server whose machine or network is gone closes
nothing: by its defaults, the kernel waits for it for up to two hours.
"""
_SCHEMA_LOCK = 0x7261_696C_6C65_6467  # "railledg" in ASCII
_SECRETS = ("password", "sslpassword")
_threads = ThreadPoolExecutor(16, thread_name_prefix="database")
"""More threads than components that use a database: each of them has one call at a time."""


async def call_database(
    work: Callable[Parameters, ResultT], *arguments: Parameters.args, **named: Parameters.kwargs
) -> ResultT:
    """Run a call to a database as `run_in_thread` does, in threads for such calls only.

    A commit that waits for a standby may take hours: files are written by other threads meanwhile.
    """
    loop = asyncio.get_running_loop()
    return await run_to_end(loop.run_in_executor(_threads, lambda: work(*arguments, **named)))


class UnusableLedgerError(LedgerError):
    """The ledger cannot be used; the message names it, the reason and the remedy."""


def check_url(url: str) -> None:
    """Raise UnusableLedgerError unless the URL names a database that this installation can open."""
    parsed = _parse_url(url)
    try:
        parsed.get_dialect().import_dbapi()
    except ImportError as error:
        message = (
            f"cannot load psycopg, which the ledger {_without_secrets(parsed)} requires: "
            f"{error}; fix: install railscope[postgresql]"
        )
        raise UnusableLedgerError(message) from error


class RejectedValueError(UnusableLedgerError):
    """The database does not accept a value; it would reject the same value again."""


class NoLedgerError(UnusableLedgerError):
    """The database contains no ledger."""


class FormerLedgerError(UnusableLedgerError):
    """The ledger is one of release 0.3.0, which its collectors may still write; a collector raises it at its start."""


class Database:
    """A database with the tables of the ledger. Raises UnusableLedgerError from every method.

    `tables` are all tables of the product (`railscope_collector.tables.metadata`). They are created in an empty
    database, and missing ones in that of release 0.3.0, unless `make` is false. `fill` adds their rows in the same
    transaction; it is for a database that must be empty.
    """

    def __init__(
        self,
        url: str,
        tables: sa.MetaData,
        *,
        make: bool = True,
        fill: Callable[[sa.Connection], None] | None = None,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        check_url(url)
        self._tables = tables
        self._fill = fill
        self._wall_ns = wall_ns
        self._url = _parse_url(url)
        self.name = _without_secrets(self._url)
        self._make = make
        file = self._url.database if self._url.get_backend_name() == "sqlite" else None
        plain = file and file != ":memory:" and not file.startswith("file:")
        self.file = Path(file) if file and plain else None
        """File of the database; None for a database server, or in memory."""
        self._inode: tuple[int, int] | None = None
        # SQLite would create an empty file for a mistyped path.
        if file and not make and not Path(file).exists():
            raise NoLedgerError(self._missing_ledger())
        self.before_writing: Callable[[sa.Connection], None] | None = None
        """Called at the beginning of each transaction that writes; OlderLedgerError aborts it."""
        self.engine = self._engine()
        try:
            with self.transaction(writes=True) as connection:
                self._prepare(connection)
            self.follow_file()
        # Also for a cancelled thread or an interrupt: the pool has an open connection.
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def follow_file(self) -> None:
        """Switch to the file that is now at the path, if the file was replaced.

        Open connections would continue with the previous file. Raises NoLedgerError if there is no file.
        """
        if self.file is None:
            return
        try:
            now = self.file.stat()
        except FileNotFoundError as error:
            raise NoLedgerError(self._missing_ledger()) from error
        # A file that was restored from a backup has another inode under the same name.
        if self._inode not in {None, (now.st_dev, now.st_ino)}:
            self.engine.dispose()
        self._inode = now.st_dev, now.st_ino

    @contextmanager
    def transaction(
        self, *, writes: bool = False, is_snapshot: bool = False
    ) -> Iterator[sa.Connection]:
        """Context manager of an atomic transaction; all reads of a snapshot are of one moment."""
        try:
            with self.engine.connect() as plain:
                connection = plain.execution_options(writes=writes)
                if is_snapshot and connection.dialect.name == "postgresql":
                    # Every transaction of SQLite is one.
                    connection = connection.execution_options(isolation_level="REPEATABLE READ")
                with connection.begin():
                    # Inside the transaction: the check and the write see the same state of the database.
                    if writes and self.before_writing is not None:
                        self.before_writing(connection)
                    yield connection
        except head_chain.OlderLedgerError as error:
            message = f"the ledger {self.name} is an older copy: {error}"
            raise UnusableLedgerError(message) from error
        except OverflowError as error:  # of an integer, in the driver of SQLite
            message = f"the ledger {self.name} rejects a value: {error}"
            raise RejectedValueError(message) from error
        except DBAPIError as error:
            if _is_rejection(error):
                message = f"the ledger {self.name} rejects a value: {_reason(error)}"
                raise RejectedValueError(message) from error
            state = getattr(error.orig, "sqlstate", None)
            if state == _READ_ONLY:
                self.engine.dispose()  # another server of the URL may accept writes now
            message = (
                f"cannot use the ledger {self.name}: {_reason(error)}; fix: {self._advice(error)}"
            )
            raise UnusableLedgerError(message) from error

    def _engine(self) -> sa.Engine:
        if self._url.get_backend_name() == "sqlite":
            engine = sa.create_engine(self._url, connect_args={"timeout": _BUSY_SECONDS})
            sa.event.listen(engine, "connect", _plain_sqlite)
            sa.event.listen(engine, "begin", _begin_sqlite)
            return engine
        return sa.create_engine(
            self._url,
            # Each statement sees what was committed before it, such as the rows for which `lock` waited.
            isolation_level="READ COMMITTED",
            # After a restart of the server, pooled connections are replaced before use.
            pool_pre_ping=True,
            connect_args={
                name: value for name, value in _CONNECTION.items() if name not in self._url.query
            },
        )

    def _prepare(self, connection: sa.Connection) -> None:
        """Create the tables, or check that they are those of this version."""
        # Several collectors may start with an empty database at once.
        transactions.lock(connection, _SCHEMA_LOCK)
        present = set(sa.inspect(connection).get_table_names())
        if schema.schema_version.name not in present:
            if strangers := sorted(present & set(self._tables.tables)):
                message = (
                    f"cannot use the database {self.name}: foreign tables: {', '.join(strangers)}: expected an empty"
                    " database or a ledger; fix: use a database of its own for the ledger"
                )
                raise UnusableLedgerError(message)
            if not self._make:
                raise NoLedgerError(self._missing_ledger())
            # Fails if another program creates a table of this name meanwhile.
            self._tables.create_all(connection, checkfirst=False)
            connection.execute(schema.schema_version.insert().values(version=schema.VERSION))
            if self._fill is None:
                head_chain.begin_chain(connection, self._wall_ns())
            else:
                self._fill(connection)
            return
        if self._fill is not None:
            message = (
                f"the database {self.name} contains a ledger: expected an empty database; fix: stop the collectors"
                " that use it, and create another database"
            )
            raise UnusableLedgerError(message)
        self._upgrade(connection, present)

    def _upgrade(self, connection: sa.Connection, present: set[str]) -> None:
        """Add the tables that a ledger of release 0.3.0 lacks, and the sums of its days."""
        version = connection.execute(
            sa.select(sa.func.max(schema.schema_version.c.version))
        ).scalar_one()
        if version not in {schema.VERSION, schema.DOCUMENTS_VERSION, schema.ROWS_VERSION}:
            message = (
                f"the ledger {self.name} has schema version {version}: expected {schema.VERSION}; fix:"
                " run the version of Railscope that wrote it, or use another database"
            )
            raise UnusableLedgerError(message)
        if version == schema.ROWS_VERSION and not self._make:
            message = (
                f"the ledger {self.name} has schema version {version}: expected {schema.VERSION}; fix: start a collector"
                " of this release, or import a job list: each raises it"
            )
            raise FormerLedgerError(message)
        for table in self._tables.sorted_tables:
            if table.name not in present:  # created by an earlier release
                table.create(connection)
        if version == schema.ROWS_VERSION:
            day_documents.add_row_totals(connection)
            new = schema.schema_version.insert()
            connection.execute(new.values(version=schema.DOCUMENTS_VERSION))

    def _missing_ledger(self) -> str:
        return (
            f"no ledger in {self.name}: a collector creates it when it starts; fix: name another one by"
            " --ledger sqlite:////PATH, or the collector's settings by --config"
        )

    def _advice(self, error: DBAPIError) -> str:
        # The primary code: the extended codes of one reason share their lowest byte (sqlite.org/rescode.html).
        code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_BUSY:
            return "run it again when the program that is writing the ledger has finished"
        if code in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
            return "name the file of a ledger, or restore this one from a backup"
        if self._url.get_backend_name() == "sqlite":
            return "check that its directory exists, has space, and is writable by this user"
        return "check that the server runs, and that this user may connect and create tables"


@contextmanager
def open_read_only(url: str) -> Iterator[Callable[[], AbstractContextManager[sa.Connection]]]:
    """Context manager of a database that is only read, without a check of its tables: yields what begins a transaction.

    All reads of a transaction are of one moment. Its file may be a copy that this user cannot write. Raises UnusableLedgerError, also while it is read.
    """
    check_url(url)
    parsed = _parse_url(url)
    file = Path(parsed.database or "") if parsed.get_backend_name() == "sqlite" else None
    if file is None:
        engine = sa.create_engine(
            parsed,
            isolation_level="REPEATABLE READ",
            connect_args=_CONNECTION,
            poolclass=sa.NullPool,
        )
    elif not file.is_file():
        message = f"missing database {file}"
        raise NoLedgerError(message)
    else:
        place = f"{file.absolute().as_uri()}?mode=ro"
        engine = sa.create_engine(
            "sqlite://",
            creator=lambda: sqlite3.connect(
                place, timeout=_BUSY_SECONDS, isolation_level=None, uri=True
            ),
            poolclass=sa.NullPool,
        )
        sa.event.listen(engine, "begin", _begin_sqlite)

    @contextmanager
    def transaction() -> Iterator[sa.Connection]:
        with engine.connect() as connection:
            yield connection

    try:
        yield transaction
    except sa.exc.OperationalError as error:
        message = f"cannot read {_without_secrets(parsed)}: {_reason(error)}"
        raise UnusableLedgerError(message) from error
    finally:
        engine.dispose()


def _parse_url(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:  # ValueError: an invalid port
        message = (
            "invalid ledger URL: expected sqlite:////PATH or"
            " postgresql://USER:PASSWORD@HOST/DATABASE"
        )
        # The URL may contain a password, and so may the error.
        raise UnusableLedgerError(message) from error
    if "\0" in url or (parsed.port is not None and not 0 < parsed.port <= MAX_PORT):
        message = f"invalid ledger URL: expected no NUL, and a port from 1 to {MAX_PORT}"
        raise UnusableLedgerError(message)
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "postgresql+psycopg"):
        message = (
            f"invalid ledger URL {_without_secrets(parsed)}: expected sqlite:////PATH or "
            "postgresql://USER:PASSWORD@HOST/DATABASE"
        )
        raise UnusableLedgerError(message)
    return parsed


def _without_secrets(url: URL) -> str:
    hidden = {name: "***" for name in _SECRETS if name in url.query}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)


def _reason(error: DBAPIError) -> str:
    """Return the driver's message, on one line and without the statement."""
    return " ".join(str(error.orig).split()).rstrip(".")


_READ_ONLY = "25006"  # also of a former primary that keeps its connections
_REJECTIONS = {"22", "23", "54"}
"""Classes of errors of PostgreSQL: data exception, violated constraint, exceeded limit of the program."""


def _is_rejection(error: DBAPIError) -> bool:
    """True if the database rejects a value, rather than the connection or the transaction."""
    state = getattr(error.orig, "sqlstate", None)
    # By class: a serialization failure (40) or a lost connection (08) may succeed when repeated.
    return state[:2] in _REJECTIONS if state else isinstance(error, (DataError, IntegrityError))


def _plain_sqlite(connection: Any, _record: object) -> None:
    """Configure a connection: explicit transactions, and commits that are durable when they return."""
    connection.isolation_level = None
    # Without recursive triggers, REPLACE deletes rows and fires no trigger (sqlite.org/lang_conflict.html):
    # the tables would not be append-only.
    for pragma in ("foreign_keys = ON", "synchronous = FULL", "recursive_triggers = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: sa.Connection) -> None:
    """Take a writer's lock at once, because upgrading a read lock may fail."""
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@dataclass(slots=True)
class SharedDatabase:
    """The database of a URL. Any thread may open it; each call fails while it is unavailable."""

    url: str
    tables: sa.MetaData
    _database: Database | None = None
    _opening: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_embedded(self) -> bool:
        """True for a file that one collector uses; false for a server, which several may share."""
        return make_url(self.url).get_backend_name() == "sqlite"

    def open(self) -> Database:
        """Return the database, with its tables. Blocking; raises UnusableLedgerError."""
        # One of several threads opens it: opening creates tables.
        with self._opening:
            if self._database is None:
                self._database = Database(self.url, self.tables)
            return self._database

    def close(self) -> None:
        """Close all connections."""
        with self._opening:
            if self._database is not None:
                self._database.close()
            self._database = None
