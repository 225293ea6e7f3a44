"""Tables of the ledger.

Rows are only added, never changed; database triggers enforce this. The tables of revisions and their parts have the
days of releases up to 0.3: no row is added to them. Their slots are integers of the revision's capacity units (84,000,
or more if claims held other fractions).

Other packages declare tables of the same database on `metadata` in modules of their own, which
`railscope_collector.tables` imports, and make them append-only.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.types import TypeEngine

from railscope_collector.metering.units import Period

VERSION = 8
DOCUMENTS_VERSION = 7
"""Version with GPU-days as documents, whose facts are those of release 0.3.0."""
ROWS_VERSION = 6
"""Version of releases that wrote GPU-days as rows of slots; `ledger_day` continues their revisions."""
_INTEGER = re.compile("0|-?[1-9][0-9]{0,59}")
"""An integer of up to 60 digits, in canonical form."""

_COLUMNS = {
    "gpu": "gpu_uuid", "tenant": "tenant_id", "workload": "workload_id", "claim": "claim_id",
    "layout": "layout_id", "other": "other_claim_id", "other_tenant": "other_tenant_id",
    "node_evidence": "witness", "gap_ns": "silence_ns",
}  # fmt: skip
"""Columns with another name than the attribute that they store."""
_ATTRIBUTES = {column: name for name, column in _COLUMNS.items()} | {
    "period_start_ns": "period.start_ns",
    "period_end_ns": "period.end_ns",
}
RecordT = TypeVar("RecordT")

metadata = sa.MetaData()


@cache
def _getters(table: sa.Table) -> dict[str, attrgetter[Any]]:
    """Return the attribute of each column."""
    return {name: attrgetter(_ATTRIBUTES.get(name, name)) for name in table.columns.keys()}  # noqa: SIM118 - its iteration yields columns


def to_row(table: sa.Table, value: object, /, **columns: object) -> dict[str, Any]:
    """Return the row of a value: the given columns, and its attributes in all others."""
    for name, attribute_of in _getters(table).items():
        if name not in columns:
            attribute = attribute_of(value)
            columns[name] = attribute.value if isinstance(attribute, Enum) else attribute
    return columns


def insert_new(connection: sa.Connection, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """Return an insert that does not change existing rows."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing()
    return sqlite.insert(table).on_conflict_do_nothing()


def from_row(kind: type[RecordT], row: sa.Row[Any], /, **attributes: object) -> RecordT:
    """Return the value of a row: the given attributes, its period, and its columns in all others."""
    for name in cast("Any", kind).__match_args__:  # the fields of dataclasses and structs
        if name not in attributes:
            attributes[name] = (
                Period(row.period_start_ns, row.period_end_ns)
                if name == "period"
                else getattr(row, _COLUMNS.get(name, name))
            )
    return kind(**attributes)


def texts(*names: str) -> list[sa.Column[str]]:
    """Columns of texts that are not NULL."""
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def integers(*names: str) -> list[sa.Column[int]]:
    """Columns of 64-bit integers that are not NULL."""
    return [sa.Column(name, sa.BigInteger, nullable=False) for name in names]


def key_texts(*names: str) -> list[sa.Column[str]]:
    """Columns of texts that are part of the primary key."""
    return [sa.Column(name, sa.Text, primary_key=True) for name in names]


def key_numbers(*names: str) -> list[sa.Column[int]]:
    """Columns of numbers that are part of the primary key."""
    return [sa.Column(n, sa.BigInteger, primary_key=True, autoincrement=False) for n in names]


schema_version = sa.Table(
    "ledger_schema", metadata, sa.Column("version", sa.BigInteger, primary_key=True)
)

revisions = sa.Table(
    "ledger_revision",
    metadata,
    sa.Column("gpu_uuid", sa.Text, primary_key=True),
    *key_numbers("day", "revision"),
    sa.Column("supersedes", sa.BigInteger),
    *texts("sku", "content_root", "evidence_root", "engine_version"),
    sa.Column("computed_ns", sa.BigInteger, nullable=False),
    sa.Column("capacity_units", sa.BigInteger, nullable=False, server_default="840"),
    sa.Column("clock_suspect", sa.Text),
    sa.CheckConstraint(
        "revision = 1 AND supersedes IS NULL OR revision > 1 AND supersedes = revision - 1",
        name="revision_follows",
    ),
    sa.Index("ledger_revision_day", "day"),
)


class ExactInteger(sa.TypeDecorator[int | str]):
    """An exact integer beyond 64 bits: NUMERIC in PostgreSQL, TEXT in SQLite.

    Damaged text is returned unchanged: the comparison with heads reports its row.
    """

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        """Return the type of the column."""
        wide = dialect.name == "postgresql"
        return dialect.type_descriptor(sa.Numeric(60, 0) if wide else sa.Text())

    def process_bind_param(self, value: int | str | None, dialect: sa.Dialect) -> Any:
        """Convert a value for writing."""
        return value if dialect.name == "postgresql" or value is None else str(value)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> int | str | None:  # noqa: ARG002 - as it is called
        """Convert a value that was read."""
        if isinstance(value, str):
            # Only the canonical form: 007 or +7 was not written by this program, and would have another hash.
            return int(value) if _INTEGER.fullmatch(value) else value
        if isinstance(value, bytes):
            return repr(value)
        return None if value is None else int(value)


def _part_table(name: str, *items: sa.Column[Any] | sa.CheckConstraint) -> sa.Table:
    """Table of the parts of a revision, with its key."""
    uuid, numbers = sa.Column("gpu_uuid", sa.Text, primary_key=True), key_numbers("day", "revision")
    names = ["gpu_uuid", "day", "revision"]
    revision = sa.ForeignKeyConstraint(names, [f"ledger_revision.{column}" for column in names])
    return sa.Table(name, metadata, uuid, *numbers, *items, revision)


entries = _part_table(
    "ledger_entry",
    *key_numbers("entry"),
    sa.Column("tiling", sa.Text, nullable=False),
    *integers("slot_lo", "slot_hi", "t0_ns", "t1_ns"),
    *texts("node", "state"),
    sa.Column("witness", sa.Text),
    sa.Column("silence_ns", sa.BigInteger, nullable=False),
    *texts("tenant_id", "workload_id", "claim_id", "layout_id"),
    sa.Column("qty_capns", ExactInteger(), nullable=False),
    sa.Column("reason", sa.Text, nullable=False, server_default=""),
    sa.Column("placement", sa.Text, nullable=False, server_default=""),
    sa.CheckConstraint("tiling IN ('compute', 'memory')", name="tiling_known"),
    sa.CheckConstraint("0 <= slot_lo AND slot_lo < slot_hi", name="slots_exist"),
    sa.CheckConstraint("t0_ns < t1_ns", name="time_passes"),
)

shares = _part_table(
    "ledger_share",
    *key_numbers("share"),
    *texts("measure", "use"),
    *integers("slot_lo", "slot_hi", "t0_ns", "t1_ns", "amount"),
    *texts("tenant_id", "workload_id", "claim_id"),
    sa.CheckConstraint("amount > 0", name="amount_is_positive"),
    sa.CheckConstraint("t0_ns <= t1_ns", name="time_passes"),
    sa.CheckConstraint("0 <= slot_lo AND slot_lo < slot_hi", name="slots_exist"),
)
"""Counted amounts by holder, in the unit of the measure."""

claims = _part_table(
    "ledger_claim",
    sa.Column("claim_id", sa.Text, primary_key=True),
    sa.Column("start_ns", sa.BigInteger, nullable=False),
    sa.Column("mig_profile", sa.Text, nullable=False),
    sa.Column("end_ns", sa.BigInteger),
    sa.Column("rank", sa.BigInteger),
    sa.Column("requested_compute", sa.Text, nullable=False, server_default=""),
    sa.Column("requested_memory", sa.Text, nullable=False, server_default=""),
    sa.Column("instance", sa.Text),
)
"""Attributes of the claims in a revision's entries that the entries do not contain."""

overlaps = _part_table(
    "ledger_overlap",
    *key_numbers("overlap"),
    sa.Column("tiling", sa.Text, nullable=False),
    *integers("t0_ns", "t1_ns"),
    *texts("claim_id", "tenant_id", "other_claim_id", "other_tenant_id", "kind"),
    sa.Column("units", sa.BigInteger, nullable=False),
    sa.Column("ratio", sa.Text, nullable=False),
    sa.CheckConstraint("t0_ns < t1_ns", name="time_passes"),
    sa.CheckConstraint("kind IN ('conflict', 'override', 'oversubscribed')", name="kind_known"),
)
"""Capacity that claims requested and did not hold, in the revision's capacity units."""

_APPEND_ONLY_FUNCTION = """
CREATE FUNCTION ledger_is_append_only() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'the ledger is append-only'; END $$
"""


def _run(target: sa.Table | sa.MetaData, when: str, statement: str, dialect: str) -> None:
    ddl: Any = sa.DDL  # the types of DDL are not declared
    sa.event.listen(target, when, ddl(statement).execute_if(dialect=dialect))


def make_append_only(table: sa.Table) -> None:
    """Prevent any change or deletion of the table's rows."""
    # SQLite has no TRUNCATE, and a trigger is for one event.
    for change in ("UPDATE", "DELETE"):
        trigger = f"CREATE TRIGGER {table.name}_no_{change.lower()} BEFORE {change} ON {table.name}"
        action = "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
        _run(table, "after_create", f"{trigger} {action}", "sqlite")
    trigger = f"CREATE TRIGGER {table.name}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE"
    action = "FOR EACH STATEMENT EXECUTE FUNCTION ledger_is_append_only()"
    _run(table, "after_create", f"{trigger} ON {table.name} {action}", "postgresql")


def permit_deletion(table: sa.Table, condition: str, created: sa.Table) -> None:
    """Permit the deletion of rows of an append-only table that satisfy an SQL condition about `OLD`.

    The triggers are replaced when `created` is created, also in the database of an earlier release.
    """
    name, function = table.name, f"{table.name}_deletion"
    rejected = "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
    body = f"IF NOT ({condition}) THEN RAISE EXCEPTION 'the ledger is append-only'; END IF; RETURN OLD;"
    delete, change = f"BEFORE DELETE ON {name}", f"BEFORE UPDATE OR TRUNCATE ON {name}"
    always = "FOR EACH STATEMENT EXECUTE FUNCTION ledger_is_append_only()"
    sqlite_statements = (
        f"DROP TRIGGER {name}_no_delete",
        f"CREATE TRIGGER {name}_no_delete {delete} WHEN NOT ({condition}) {rejected}",
    )
    postgresql_statements = (
        f"CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$",
        f"DROP TRIGGER {name}_append_only ON {name}",
        f"CREATE TRIGGER {name}_append_only {change} {always}",
        f"CREATE TRIGGER {name}_no_delete {delete} FOR EACH ROW EXECUTE FUNCTION {function}()",
    )
    if created is not table:
        created.add_is_dependent_on(table)
    for dialect, each in (("sqlite", sqlite_statements), ("postgresql", postgresql_statements)):
        for statement in each:
            _run(created, "after_create", statement, dialect)


class CoveredTable(NamedTuple):
    """A table of rows that heads commit to, and the tables of its dependent rows."""

    table: sa.Table
    parts: tuple[sa.Table, ...]


covered_tables: dict[str, CoveredTable] = {}
"""Covered tables by kind of row; a part has the columns of the table's primary key."""


def cover_table(kind: str, table: sa.Table, *parts: sa.Table) -> None:
    """Make heads cover the rows of a table, each with its parts (`railscope_collector.ledger.head_chain`)."""
    covered_tables[kind] = CoveredTable(table, parts)


cover_table("revision", revisions, entries, shares, claims, overlaps)
_run(metadata, "before_create", _APPEND_ONLY_FUNCTION, "postgresql")
for _table in (schema_version, revisions, entries, shares, claims, overlaps):
    make_append_only(_table)
