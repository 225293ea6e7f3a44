"""Write probe of the ledger's database."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from railscope_collector.ledger.database import Database, UnusableLedgerError

PROBE_TABLE = sa.Table(
    "write_probe",
    # Metadata of its own: the tables of the ledger are append-only, and this row changes.
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("writes", sa.BigInteger, nullable=False),
)
"""One row that counts its own writes. It is outside the ledger's schema and its audit."""


def commit_probe(database: Database) -> None:
    """Commit one write. Blocking; raises UnusableLedgerError.

    Only a commit detects a full disk, a read-only file system, a missing privilege or a standby server;
    opening the database and reading from it succeed with all of these.
    """
    with database.transaction(writes=True) as connection:
        if not sa.inspect(connection).has_table(PROBE_TABLE.name):
            PROBE_TABLE.create(connection)
        changed = connection.execute(sa.update(PROBE_TABLE).values(writes=PROBE_TABLE.c.writes + 1))
        if not changed.rowcount:
            connection.execute(sa.insert(PROBE_TABLE).values(id=1, writes=1))


def find_ledger_problem(open_database: Callable[[], Database]) -> str:
    """Return the reason why the ledger cannot be written; empty if it can. Blocking."""
    try:
        commit_probe(open_database())
    except UnusableLedgerError as error:
        return str(error)
    return ""
