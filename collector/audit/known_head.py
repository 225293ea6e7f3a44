"""The newest known head of a ledger, stored in a file beside the collector's state.

A database that lacks it, or has another one in its place, is an older copy or another database. The
collector writes the file; every command that writes the ledger compares the database with it, in the same
transaction as the write.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import Connection, select

from collector.ledger import heads
from collector.ledger.heads import REMEDY, Head, StoppedError

if TYPE_CHECKING:
    from collector.ledger.database import Database

FILE = "ledger.known"
"""Name of the file in the collector's state directory."""


def read(path: Path) -> Head | None:
    """Return the head in a file; None if there is no file, or this user may not read it.

    Raises ValueError for a damaged file.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Head)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"damaged file: {path}: {error}"
        raise ValueError(message) from error


def difference(connection: Connection, known: Head | None) -> str:
    """Return the reason why a database is not the one of a known head; empty if it is."""
    if known is None:
        return ""
    if not _continues(connection, known):
        here = heads.database_id(connection)
        return f"its identity is {here}, and heads of {known.database} are recorded"
    if not known.n:
        return ""
    table = heads.databases
    row = connection.execute(
        select(heads.heads).where(
            heads.heads.c.n == known.n, heads.heads.c.database_id == known.database
        )
    ).first()
    accepted = table.c.continues == known.database, table.c.head < known.n
    if row is None and connection.execute(select(table).where(*accepted)).first() is not None:
        return ""
    if row is None:
        return f"it lacks head {known.n}, which was recorded"
    return "" if row.head == known.head else f"its head {known.n} is not the recorded one"


def compare_writes(database: Database, directory: Path | None) -> None:
    """Make each transaction that writes a database fail if the database is an older copy.

    `directory` is the collector's state directory, if the database is the one that the collector is
    configured with. Any other database is compared with the file beside it, if that file is about this
    database.
    """
    if directory is not None:
        database.before_writing = _comparison(directory / FILE, only=True)
    elif database.file is not None:
        database.before_writing = _comparison(database.file.parent / FILE, only=False)


def _comparison(path: Path, *, only: bool) -> Callable[[Connection], None]:
    """Return a check that raises StoppedError for an older copy and, with `only`, for another database."""

    def compare(connection: Connection) -> None:
        try:
            known = read(path)
        except ValueError as error:
            message = f"{error}; fix: restart the collector, which writes the file again"
            raise StoppedError(message) from error
        if known is None or (not only and not _continues(connection, known)):
            return
        if problem := difference(connection, known):
            message = f"nothing may be written: {problem}; {REMEDY}"
            raise StoppedError(message)

    return compare


def _continues(connection: Connection, known: Head) -> bool:
    """True if the database is the one of a head, or a copy of it that was accepted."""
    table = heads.databases
    query = select(table.c.number).where(table.c.database_id == known.database)
    return connection.execute(query).first() is not None
