"""The database of a ledger: SQLite or PostgreSQL, by URL."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, MetaData, create_engine, event, func, inspect, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from collector.ledger import heads
from collector.ledger.heads import StoppedError
from collector.ledger.migration import migrate
from collector.ledger.schema import VERSION, schema_version
from railscope.listen import MAX_PORT

_BUSY_SECONDS = 60
_SCHEMA_LOCK = 0x7261_696C_6C65_6467
_SECRETS = ("password", "sslpassword")


class LedgerError(Exception):
    """The ledger cannot be used; the message names it, the reason and the remedy."""


def check_url(url: str) -> None:
    """Raise LedgerError unless the URL names a database that this installation can open."""
    parsed = _parsed(url)
    try:
        parsed.get_dialect().import_dbapi()
    except ImportError as error:
        message = (
            f"the ledger {_without_secrets(parsed)} needs the PostgreSQL driver psycopg, which "
            f"cannot be loaded ({error}): install railscope[postgresql]"
        )
        raise LedgerError(message) from error


class NoLedgerError(LedgerError):
    """There is no ledger in the database."""


class Database:
    """A database with the tables of the ledger. Raises LedgerError from every method.

    `tables` are all tables of the product (`collector.tables.metadata`). They are created in an empty
    database, unless `make` is false.
    """

    def __init__(
        self,
        url: str,
        tables: MetaData,
        *,
        make: bool = True,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        check_url(url)
        self._tables = tables
        self._wall_ns = wall_ns
        self._url = _parsed(url)
        self.name = _without_secrets(self._url)
        self._make = make
        file = self._url.database if self._url.get_backend_name() == "sqlite" else None
        plain = file and file != ":memory:" and not file.startswith("file:")
        self._file = Path(file) if file and plain else None
        self._inode: tuple[int, int] | None = None
        if file and not make and not Path(file).exists():
            raise NoLedgerError(self._nothing())
        self.before_writing: Callable[[Connection], None] | None = None
        """Called at the beginning of each transaction that writes; StoppedError aborts it."""
        self.engine = self._engine()
        try:
            with self.transaction(writes=True) as connection:
                self._prepare(connection)
            self.follow_file()
        except LedgerError:
            self.close()
            raise

    @property
    def file(self) -> Path | None:
        """File of the database; None for a database server."""
        return self._file

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def follow_file(self) -> None:
        """Switch to the file that is now at the path, if the file was replaced.

        Open connections would continue with the previous file. Raises NoLedgerError if there is no file.
        """
        if self._file is None:
            return
        try:
            now = self._file.stat()
        except FileNotFoundError as error:
            raise NoLedgerError(self._nothing()) from error
        if self._inode not in {None, (now.st_dev, now.st_ino)}:
            self.engine.dispose()
        self._inode = now.st_dev, now.st_ino

    @contextmanager
    def transaction(self, *, writes: bool = False) -> Iterator[Connection]:
        """Context manager of an atomic transaction."""
        try:
            with self.engine.connect() as plain:
                connection = plain.execution_options(writes=writes)
                with connection.begin():
                    if writes and self.before_writing is not None:
                        self.before_writing(connection)
                    yield connection
        except StoppedError as error:
            message = f"the ledger {self.name} is an older copy: {error}"
            raise LedgerError(message) from error
        except DBAPIError as error:
            message = f"the ledger {self.name} cannot be used: {_reason(error)}. {self._advice()}"
            raise LedgerError(message) from error

    def _engine(self) -> Engine:
        if self._url.get_backend_name() == "sqlite":
            engine = create_engine(self._url, connect_args={"timeout": _BUSY_SECONDS})
            event.listen(engine, "connect", _plain_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
            return engine
        return create_engine(
            self._url,
            isolation_level="READ COMMITTED",
            pool_pre_ping=True,
            connect_args={"client_encoding": "utf8", "connect_timeout": _BUSY_SECONDS},
        )

    def _prepare(self, connection: Connection) -> None:
        """Create the tables, or check that they are those of this version."""
        if self._url.get_backend_name() == "postgresql":
            connection.execute(select(func.pg_advisory_xact_lock(_SCHEMA_LOCK)))
        present = set(inspect(connection).get_table_names())
        if schema_version.name not in present:
            if strangers := sorted(present & set(self._tables.tables)):
                message = (
                    f"{self.name} has tables named {', '.join(strangers)} that are no Railscope "
                    "ledger: give the ledger a database of its own"
                )
                raise LedgerError(message)
            if not self._make:
                raise NoLedgerError(self._nothing())
            self._tables.create_all(connection, checkfirst=False)
            connection.execute(schema_version.insert().values(version=VERSION))
            heads.begin(connection, self._wall_ns())
            return
        for table in self._tables.sorted_tables:
            if table.name not in present:  # created by an earlier release
                table.create(connection)
        version = connection.execute(select(func.max(schema_version.c.version))).scalar_one()
        if not migrate(connection, version):
            message = (
                f"the ledger {self.name} has schema version {version}, this program works with "
                f"version {VERSION}: run the Railscope that wrote it, or give it another database"
            )
            raise LedgerError(message)
        if heads.heads.name not in present:
            heads.begin(connection, self._wall_ns())

    def _nothing(self) -> str:
        return f"there is no ledger in {self.name}; a collector makes it when it starts"

    def _advice(self) -> str:
        if self._url.get_backend_name() == "sqlite":
            return "Check that its directory exists, has space, and may be written by this user"
        return "Check that the server runs, and that this user may connect and make tables"


def _parsed(url: str) -> URL:
    try:
        found = make_url(url)
    except (ArgumentError, ValueError) as error:  # ValueError: an invalid port
        message = (
            "the ledger's URL is not a database URL: write sqlite:////PATH or "
            "postgresql://USER:PASSWORD@HOST/DATABASE"
        )
        # The URL may contain a password, and so may the error.
        raise LedgerError(message) from error
    if "\0" in url or (found.port is not None and not 0 < found.port <= MAX_PORT):
        message = f"invalid ledger URL: expected no NUL, and a port from 1 to {MAX_PORT}"
        raise LedgerError(message)
    if found.drivername in ("postgresql", "postgres"):
        found = found.set(drivername="postgresql+psycopg")
    if found.drivername not in ("sqlite", "postgresql+psycopg"):
        message = (
            f"invalid ledger URL {_without_secrets(found)}: expected sqlite:////PATH or "
            "postgresql://USER:PASSWORD@HOST/DATABASE"
        )
        raise LedgerError(message)
    return found


def _without_secrets(url: URL) -> str:
    hidden = {name: "***" for name in _SECRETS if name in url.query}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)


def _reason(error: DBAPIError) -> str:
    """Return the driver's message, on one line and without the statement."""
    return " ".join(str(error.orig).split()).rstrip(".")


def _plain_sqlite(connection: Any, _record: object) -> None:
    """Configure a connection: explicit transactions, and commits that are durable when they return."""
    connection.isolation_level = None
    for pragma in ("foreign_keys = ON", "synchronous = FULL", "recursive_triggers = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    """Take a writer's lock at once, because upgrading a read lock may fail."""
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
