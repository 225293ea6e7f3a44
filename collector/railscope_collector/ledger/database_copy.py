"""Copy of a ledger from SQLite to an empty PostgreSQL database, in one transaction of the latter.

The tables are created, filled, read back and checked in the transaction that commits them: an interrupted copy leaves
an empty database, and other collectors see either nothing or all of it. The copy has the identity of the
original, so that audit log, heads and outbox continue. Rows are read and written in batches.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import sqlalchemy as sa

from railscope_collector.ledger import database, schema

_AT_ONCE = 500
_DIGESTS = 1 << 256


@dataclass(slots=True)
class TableContent:
    """Number and digest of the rows of a table, whatever their order."""

    name: str
    rows: int = 0
    digest: int = 0
    """Sum of the SHA-256 of all rows: each engine sorts texts in its own order."""

    def __str__(self) -> str:
        """Text for people."""
        return f"{self.name}: {self.rows:,} rows, sum of SHA-256 {self.digest:064x}"

    def add(self, row: sa.Row[Any]) -> None:
        """Add a row."""
        self.rows += 1
        # By the values of Python: both engines return equal ones, while they store them differently.
        digest = sha256(repr(tuple(row)).encode(errors="surrogatepass")).digest()
        self.digest = (self.digest + int.from_bytes(digest, "big")) % _DIGESTS


def copy_database(
    source: database.Database,
    url: str,
    tables: sa.MetaData,
    check: Callable[[sa.Connection], None],
    report: Callable[[TableContent], None] = lambda _: None,
) -> database.Database:
    """Copy all rows to the empty database of a URL, and return it. Blocking; raises UnusableLedgerError.

    No other program may write the source meanwhile. `check` is called with the complete copy before it is committed;
    an exception leaves the database empty.
    """
    if not url.startswith("postgres"):
        message = f"cannot copy {source.name}: ledger.url: expected postgresql://USER:PASSWORD@HOST/DATABASE"
        raise database.UnusableLedgerError(message)

    def fill(connection: sa.Connection) -> None:
        # Between two statements, the source is read, and rows are hashed.
        connection.execute(sa.text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        contents = _copy_rows(source, tables, connection)
        for table in tables.sorted_tables:
            content = contents[table.name]
            copied = _read_content(connection, table)
            if copied != content:
                message = f"the copy differs: {copied}: expected {content}, as in {source.name}"
                raise database.UnusableLedgerError(message)
            # After the comparison, in the same transaction: the next row of a collector would collide otherwise.
            _continue_numbers(connection, table)
            report(content)
        check(connection)

    return database.Database(url, tables, fill=fill)


def _copy_rows(
    source: database.Database, tables: sa.MetaData, into: sa.Connection
) -> dict[str, TableContent]:
    contents = {name: TableContent(name) for name in tables.tables}
    # Ends the transaction on the source also if the target fails.
    with closing(_read_batches(source, tables)) as batches:
        for table, rows in batches:
            for row in rows:
                contents[table.name].add(row)
            if table is not schema.schema_version:  # created with the tables
                into.execute(sa.insert(table), [dict(row._mapping) for row in rows])  # noqa: SLF001 - its name in SQLAlchemy
    return contents


def _read_batches(
    source: database.Database, tables: sa.MetaData
) -> Generator[tuple[sa.Table, list[sa.Row[Any]]]]:
    """Yield the rows of all tables, as of one moment; rows follow those that they refer to."""
    with source.transaction(is_snapshot=True) as connection:
        for table in tables.sorted_tables:
            query = sa.select(table).execution_options(yield_per=_AT_ONCE)
            for rows in connection.execute(query).partitions():
                yield table, list(rows)


def _read_content(connection: sa.Connection, table: sa.Table) -> TableContent:
    content = TableContent(table.name)
    for row in connection.execute(sa.select(table).execution_options(yield_per=_AT_ONCE)):
        content.add(row)
    return content


def _continue_numbers(connection: sa.Connection, table: sa.Table) -> None:
    """Let the numbers that the database assigns continue after those of the copied rows."""
    column = table.autoincrement_column
    if column is not None and table is not schema.schema_version:
        sequence = sa.func.pg_get_serial_sequence(table.name, column.name)
        following = sa.func.coalesce(sa.func.max(column), 0) + 1
        connection.execute(sa.select(sa.func.setval(sequence, following, False)))  # noqa: FBT003 - as in SQL
