"""Migration of the ledgers of earlier releases to the current tables, in place.

Version 2 stored slots as 840ths of a GPU and their product in 64 bits. Its revisions keep their slots: each
revision states its capacity units, and 840 is the default. Version 3 did not store the size of the MIG
instance of a claim, version 4 no mark of revisions (`clock_suspect`): these columns are empty in migrated
rows.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

from collector.ledger.schema import (
    LEDGER_VIEW,
    VERSION,
    entries,
    schema_version,
    shares,
)

_ADDED = {
    "ledger_revision": ("capacity_units BIGINT NOT NULL DEFAULT 840",),
    "ledger_claim": (
        "end_ns BIGINT", "rank BIGINT",
        "requested_compute TEXT NOT NULL DEFAULT ''", "requested_memory TEXT NOT NULL DEFAULT ''",
    ),
}  # fmt: skip


def migrate(connection: Connection, version: int) -> bool:
    """Migrate a ledger to this version; return False for an unsupported version."""
    if version not in {2, 3, 4}:
        return version == VERSION
    connection.execute(text("DROP VIEW IF EXISTS ledger"))
    if version == 2:  # noqa: PLR2004 - the schema version
        _from_version_2(connection)
    if version <= 3:  # noqa: PLR2004 - the schema version
        connection.execute(text("ALTER TABLE ledger_claim ADD COLUMN instance TEXT"))
    connection.execute(text("ALTER TABLE ledger_revision ADD COLUMN clock_suspect TEXT"))
    connection.execute(text(LEDGER_VIEW))
    connection.execute(schema_version.insert().values(version=VERSION))
    return True


def _from_version_2(connection: Connection) -> None:
    """Add capacity units, finer slots, and the requests of claims."""
    for table, columns in _ADDED.items():
        for column in columns:
            connection.execute(text(f"ALTER TABLE {table} ADD COLUMN {column}"))
    if connection.dialect.name == "postgresql":
        _alter(connection)
    else:
        _copy(connection)


def _alter(connection: Connection) -> None:
    """Change columns and constraints in place (PostgreSQL)."""
    statements = (
        (
            "ALTER TABLE ledger_entry DROP CONSTRAINT slots_exist, DROP CONSTRAINT quantity_is_exact,"
            " ADD CONSTRAINT slots_exist CHECK (0 <= slot_lo AND slot_lo < slot_hi),"
            " ALTER COLUMN qty_capns TYPE NUMERIC(60, 0),"
            " ADD COLUMN reason TEXT NOT NULL DEFAULT '', ADD COLUMN placement TEXT NOT NULL DEFAULT ''"
        ),
        (
            "ALTER TABLE ledger_share DROP CONSTRAINT slots_exist,"
            " ADD CONSTRAINT slots_exist CHECK (0 <= slot_lo AND slot_lo < slot_hi)"
        ),
    )
    for statement in statements:
        connection.execute(text(statement))


def _copy(connection: Connection) -> None:
    """Copy the rows to new tables with all their values: SQLite cannot drop a constraint."""
    for table in (entries, shares):
        old = f"{table.name}_of_version_2"
        connection.execute(text(f"ALTER TABLE {table.name} RENAME TO {old}"))
        for change in ("update", "delete"):
            connection.execute(text(f"DROP TRIGGER IF EXISTS {table.name}_no_{change}"))
        table.create(connection)
        present = {row[1] for row in connection.execute(text(f"PRAGMA table_info({old})"))}
        columns = ", ".join(column.name for column in table.columns if column.name in present)
        copied = f"INSERT INTO {table.name} ({columns}) SELECT {columns} FROM {old}"  # noqa: S608 - names of our own tables
        connection.execute(text(copied))
        connection.execute(text(f"DROP TABLE {old}"))
