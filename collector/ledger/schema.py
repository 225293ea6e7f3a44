"""Tables of the ledger, and the migration of the ledgers of earlier releases in place.

Rows are only added, never changed; database triggers enforce this. A row belongs to one day. Slots
are integers of the revision's capacity units (84,000, or more if claims hold other fractions; 840
in ledgers of earlier releases). A GPU-day of 84,000 units is 7.3e18 cap-unit-nanoseconds, which is
within 64 bits; larger products are not, and sums over many days are computed outside the database.

Other packages have tables in the same database: they declare them on `metadata` in modules of
their own, which `collector.tables` imports, and make them append-only.

Migration: version 2 stored slots as 840ths of a GPU and their product in 64 bits. Its revisions
keep their slots: each revision states its capacity units, and 840 is the default. Version 3 did
not store the size of the MIG instance of a claim, version 4 no mark of revisions
(`clock_suspect`): these columns are empty in migrated rows.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from sqlalchemy import (
    DDL,
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    Dialect,
    ForeignKeyConstraint,
    Index,
    MetaData,
    Numeric,
    Table,
    Text,
    TypeDecorator,
    event,
    text,
)
from sqlalchemy.types import TypeEngine

VERSION = 5
_INTEGER = re.compile("0|-?[1-9][0-9]{0,59}")
"""An integer of up to 60 digits, in canonical form."""

metadata = MetaData()


def texts(*names: str) -> list[Column[str]]:
    """Columns of texts that are not NULL."""
    return [Column(name, Text, nullable=False) for name in names]


def integers(*names: str) -> list[Column[int]]:
    """Columns of 64-bit integers that are not NULL."""
    return [Column(name, BigInteger, nullable=False) for name in names]


schema_version = Table("ledger_schema", metadata, Column("version", BigInteger, primary_key=True))

revisions = Table(
    "ledger_revision",
    metadata,
    Column("gpu_uuid", Text, primary_key=True),
    Column("day", BigInteger, primary_key=True, autoincrement=False),
    Column("revision", BigInteger, primary_key=True, autoincrement=False),
    Column("supersedes", BigInteger),
    *texts("sku", "content_root", "evidence_root", "engine_version"),
    Column("computed_ns", BigInteger, nullable=False),
    Column("capacity_units", BigInteger, nullable=False, server_default="840"),
    Column("clock_suspect", Text),
    CheckConstraint(
        "revision = 1 AND supersedes IS NULL OR revision > 1 AND supersedes = revision - 1",
        name="revision_follows",
    ),
    Index("ledger_revision_day", "day"),
)


class ExactInteger(TypeDecorator[int | str]):
    """An exact integer beyond 64 bits: NUMERIC in PostgreSQL, TEXT in SQLite.

    Damaged text is returned unchanged: the comparison with heads reports its row.
    """

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the type of the column."""
        wide = dialect.name == "postgresql"
        return dialect.type_descriptor(Numeric(60, 0) if wide else Text())

    def process_bind_param(self, value: int | str | None, dialect: Dialect) -> Any:
        """Convert a value for writing."""
        return value if dialect.name == "postgresql" or value is None else str(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> int | str | None:  # noqa: ARG002 - as it is called
        """Convert a value that was read."""
        if isinstance(value, str):
            return int(value) if _INTEGER.fullmatch(value) else value
        if isinstance(value, bytes):
            return repr(value)
        return None if value is None else int(value)


def _revision_foreign_key() -> ForeignKeyConstraint:
    key = ("gpu_uuid", "day", "revision")
    return ForeignKeyConstraint(key, [f"ledger_revision.{name}" for name in key])


entries = Table(
    "ledger_entry",
    metadata,
    Column("gpu_uuid", Text, primary_key=True),
    Column("day", BigInteger, primary_key=True, autoincrement=False),
    Column("revision", BigInteger, primary_key=True, autoincrement=False),
    Column("entry", BigInteger, primary_key=True, autoincrement=False),
    Column("tiling", Text, nullable=False),
    *integers("slot_lo", "slot_hi", "t0_ns", "t1_ns"),
    *texts("node", "state"),
    Column("witness", Text),
    Column("silence_ns", BigInteger, nullable=False),
    *texts("tenant_id", "workload_id", "claim_id", "layout_id"),
    Column("qty_capns", ExactInteger(), nullable=False),
    Column("reason", Text, nullable=False, server_default=""),
    Column("placement", Text, nullable=False, server_default=""),
    _revision_foreign_key(),
    CheckConstraint("tiling IN ('compute', 'memory')", name="tiling_known"),
    CheckConstraint("0 <= slot_lo AND slot_lo < slot_hi", name="slots_exist"),
    CheckConstraint("t0_ns < t1_ns", name="time_passes"),
)

shares = Table(
    "ledger_share",
    metadata,
    Column("gpu_uuid", Text, primary_key=True),
    Column("day", BigInteger, primary_key=True, autoincrement=False),
    Column("revision", BigInteger, primary_key=True, autoincrement=False),
    Column("share", BigInteger, primary_key=True, autoincrement=False),
    *texts("measure", "use"),
    *integers("slot_lo", "slot_hi", "t0_ns", "t1_ns", "amount"),
    *texts("tenant_id", "workload_id", "claim_id"),
    _revision_foreign_key(),
    CheckConstraint("amount > 0", name="amount_is_positive"),
    CheckConstraint("t0_ns <= t1_ns", name="time_passes"),
    CheckConstraint("0 <= slot_lo AND slot_lo < slot_hi", name="slots_exist"),
)
"""Counted amounts by holder, in the unit of the measure."""

claims = Table(
    "ledger_claim",
    metadata,
    Column("gpu_uuid", Text, primary_key=True),
    Column("day", BigInteger, primary_key=True, autoincrement=False),
    Column("revision", BigInteger, primary_key=True, autoincrement=False),
    Column("claim_id", Text, primary_key=True),
    Column("start_ns", BigInteger, nullable=False),
    Column("mig_profile", Text, nullable=False),
    Column("end_ns", BigInteger),
    Column("rank", BigInteger),
    Column("requested_compute", Text, nullable=False, server_default=""),
    Column("requested_memory", Text, nullable=False, server_default=""),
    Column("instance", Text),
    _revision_foreign_key(),
)
"""Attributes of the claims in a revision's entries that the entries do not contain."""

overlaps = Table(
    "ledger_overlap",
    metadata,
    Column("gpu_uuid", Text, primary_key=True),
    Column("day", BigInteger, primary_key=True, autoincrement=False),
    Column("revision", BigInteger, primary_key=True, autoincrement=False),
    Column("overlap", BigInteger, primary_key=True, autoincrement=False),
    Column("tiling", Text, nullable=False),
    *integers("t0_ns", "t1_ns"),
    *texts("claim_id", "tenant_id", "other_claim_id", "other_tenant_id", "kind"),
    Column("units", BigInteger, nullable=False),
    Column("ratio", Text, nullable=False),
    _revision_foreign_key(),
    CheckConstraint("t0_ns < t1_ns", name="time_passes"),
    CheckConstraint("kind IN ('conflict', 'override', 'oversubscribed')", name="kind_known"),
)
"""Capacity that claims requested and did not hold, in the revision's capacity units."""

LEDGER_VIEW = """
CREATE VIEW ledger AS SELECT
    e.gpu_uuid || '/' || e.day || '/' || e.revision || '/' || e.entry AS entry_id,
    e.revision, e.gpu_uuid, r.sku, e.day, e.node, e.tiling,
    CASE e.tiling WHEN 'compute' THEN e.slot_lo END AS slot_lo,
    CASE e.tiling WHEN 'compute' THEN e.slot_hi END AS slot_hi,
    CASE e.tiling WHEN 'memory' THEN e.slot_lo END AS mem_lo,
    CASE e.tiling WHEN 'memory' THEN e.slot_hi END AS mem_hi,
    e.t0_ns, e.t1_ns, e.state, e.witness, e.silence_ns,
    e.tenant_id, e.workload_id, e.claim_id, e.layout_id, e.qty_capns,
    e.reason, e.placement, r.capacity_units, r.clock_suspect,
    r.evidence_root, r.engine_version, r.computed_ns, r.supersedes
FROM ledger_entry e JOIN ledger_revision r
    ON r.gpu_uuid = e.gpu_uuid AND r.day = e.day AND r.revision = e.revision
"""
"""The ledger in the form for people and tools: each entry with its revision."""

_REFUSE = """
CREATE FUNCTION ledger_is_append_only() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'the ledger is append-only'; END $$
"""


def _run(target: Table | MetaData, when: str, statement: str, dialect: str) -> None:
    ddl: Any = DDL  # the types of DDL are not declared
    event.listen(target, when, ddl(statement).execute_if(dialect=dialect))


def make_append_only(table: Table) -> None:
    """Prevent any change or deletion of the table's rows."""
    for change in ("UPDATE", "DELETE"):
        trigger = f"CREATE TRIGGER {table.name}_no_{change.lower()} BEFORE {change} ON {table.name}"
        refuse = "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
        _run(table, "after_create", f"{trigger} {refuse}", "sqlite")
    trigger = f"CREATE TRIGGER {table.name}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE"
    refuse = "FOR EACH STATEMENT EXECUTE FUNCTION ledger_is_append_only()"
    _run(table, "after_create", f"{trigger} ON {table.name} {refuse}", "postgresql")


class CoveredTable(NamedTuple):
    """A table of rows that heads commit to, and the tables of its dependent rows."""

    table: Table
    parts: tuple[Table, ...]


covered_tables: dict[str, CoveredTable] = {}
"""Covered tables by kind of row; a part has the columns of the table's primary key."""


def cover_table(kind: str, table: Table, *parts: Table) -> None:
    """Make heads cover the rows of a table, each with its parts (`collector.ledger.head_chain`)."""
    covered_tables[kind] = CoveredTable(table, parts)


cover_table("revision", revisions, entries, shares, claims, overlaps)
_run(metadata, "before_create", _REFUSE, "postgresql")
for _table in (schema_version, revisions, entries, shares, claims, overlaps):
    make_append_only(_table)
for _dialect in ("sqlite", "postgresql"):
    _run(metadata, "after_create", LEDGER_VIEW, _dialect)


_ADDED = {
    "ledger_revision": ("capacity_units BIGINT NOT NULL DEFAULT 840",),
    "ledger_claim": (
        "end_ns BIGINT",
        "rank BIGINT",
        "requested_compute TEXT NOT NULL DEFAULT ''",
        "requested_memory TEXT NOT NULL DEFAULT ''",
    ),
}


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
