"""Files of the active collector in the database, which the next active one continues with."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from railscope import durable_files
from railscope_collector.ledger import leases, schema
from railscope_collector.ledger.database import Database

stored_files = sa.Table(
    "collector_head_file",
    schema.metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("content", sa.LargeBinary, nullable=False),
)
"""Files of the diagnosis; the table has the name of earlier releases."""
FILES = ("incidents", "baselines", "decisions")
MAX_FILE_BYTES = 256 << 20


def read_files(database: Database, group: str, directory: Path) -> None:
    """Replace the files of a directory by those that the previous active collector of the group stored.

    Blocking; raises UnusableLedgerError, OSError.
    """
    with database.transaction() as connection:
        found = connection.execute(sa.select(stored_files)).all()
    durable_files.make_directory(directory)
    stored = {row.name: row.content for row in found}
    contents = {name: stored[key] for name in FILES if (key := f"{group}/{name}") in stored}
    for name, content in contents.items():
        durable_files.write_durably(directory / name, content)
    for (
        name
    ) in FILES:  # of an earlier term here, which the previous active collector did not continue
        if contents and name not in contents:
            (directory / name).unlink(missing_ok=True)


def store_files(
    database: Database,
    group: str,
    term: leases.LeaseTerm,
    directory: Path,
    stored: dict[str, int],
) -> None:
    """Store the files of a directory that have changed for a group; `stored` are the times of those that were stored.

    Blocking; raises LostLeaseError, UnusableLedgerError, OSError.
    """
    for name in FILES:
        path = directory / name
        if not path.exists():
            continue
        details = path.stat()
        if details.st_mtime_ns == stored.get(name) or details.st_size > MAX_FILE_BYTES:
            continue
        content = path.read_bytes()
        with database.transaction(writes=True) as connection:
            # A collector that lost the lease must not replace what the next one has stored.
            term.check(connection)
            key = f"{group}/{name}"
            connection.execute(sa.delete(stored_files).where(stored_files.c.name == key))
            connection.execute(sa.insert(stored_files).values(name=key, content=content))
        stored[name] = details.st_mtime_ns
