"""Audit records of database changes, written in the same transaction as the change.

A component that changes the database calls `put` in the transaction of the change, so there is no change
without its record and no record without its change. The running collector transfers the rows to its log in
order (`drain`), and notes the position of each:

    audit_outbox   content of the record, by an id that its writer chooses
    audit_taken    log that records it: several collectors may share a database, and one takes it
    audit_placed   number of its record, and the size of a checkpoint that covers it
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    ForeignKey,
    Integer,
    Row,
    Select,
    Table,
    Text,
    exists,
    func,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite

from collector.ledger.draft import Draft, record_of
from collector.ledger.ledger_records import OUTBOX_ROW as ROW
from collector.ledger.schema import make_append_only, metadata
from railscope.audit.record import MAX_RECORD_BYTES, Actor, Data, RecordError, Source, Subject
from railscope.audit.record import encode as encode_record

REFERENCE = "outbox/"
"""Prefix of the first reference of a record, which names its row."""
_ID = re.compile(r"[!-~]{1,200}")
_PLACE_BYTES = 1024
"""Part of a record's size that is reserved for its source, number and identity."""

outbox = Table(
    "audit_outbox",
    metadata,
    Column(
        "number",
        BigInteger().with_variant(Integer, "sqlite"),
        primary_key=True,
        autoincrement=True,
    ),
    Column("id", Text, nullable=False, unique=True),
    Column("recorded_ns", BigInteger, nullable=False),
    Column("type", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("uncertainty_ms", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("data", Text, nullable=False),
    Column("refs", Text, nullable=False),
    Column("commitments", Text, nullable=False),
)
taken = Table(
    "audit_taken",
    metadata,
    Column("id", Text, ForeignKey("audit_outbox.id"), primary_key=True),
    Column("log", Text, nullable=False),
)
placed_rows = Table(
    "audit_placed",
    metadata,
    Column("id", Text, ForeignKey("audit_outbox.id"), primary_key=True),
    Column("log", Text, nullable=False),
    Column("leaf", BigInteger, nullable=False),
    Column("checkpoint_size", BigInteger),
)
for _table in (outbox, taken, placed_rows):
    make_append_only(_table)


_HASHED = (
    "id", "recorded_ns", "type", "outcome", "uncertainty_ms", "actor", "subject", "data", "refs",
    "commitments",
)  # fmt: skip


class OutboxError(ValueError):
    """A draft that cannot be put into the outbox; the message states the reason."""


class Waiting(NamedTuple):
    """A row that a log has taken and not placed yet."""

    id: str
    draft: Draft
    """Draft in the form in which it is recorded."""

    @property
    def reference(self) -> str:
        """The row, by identity of its database, number and hash."""
        return self.draft.references[-1]


class Place(NamedTuple):
    """Position of a row in its log; without a checkpoint if none could be signed at that time."""

    id: str
    leaf: int
    checkpoint_size: int | None


def put(connection: Connection, id_: str, draft: Draft) -> None:
    """Record a draft if, and only if, this transaction is committed.

    Repeating it with the same id and content changes nothing. Raises OutboxError for a draft that the log
    could not accept, and for an id with other content.
    """
    row = _row(id_, draft)
    added = connection.execute(_insert(connection, outbox).values(row).returning(outbox.c.number))
    if added.first() is None:
        there = connection.execute(select(outbox).where(outbox.c.id == id_)).one()
        if any(there._mapping[name] != value for name, value in row.items()):  # noqa: SLF001 - its name in SQLAlchemy
            message = f"something else is in the outbox as {id_!r} already"
            raise OutboxError(message)


def placed(connection: Connection, id_: str) -> int | None:
    """Return the number of the record in the audit log; None if it is not recorded yet."""
    query = select(placed_rows.c.leaf).where(placed_rows.c.id == id_)
    return connection.execute(query).scalar_one_or_none()


def unplaced(connection: Connection) -> int:
    """Return the number of rows that are in no log yet."""
    put_, told = (
        connection.execute(select(func.count()).select_from(table)).scalar_one()
        for table in (outbox, placed_rows)
    )
    return put_ - told


def newest_number(connection: Connection) -> int:
    """Return the number of the latest row; 0 if there is none."""
    return connection.execute(select(func.max(outbox.c.number))).scalar_one() or 0


def take(connection: Connection, log: str, most: int) -> list[Waiting]:
    """Return the rows that this log records next, in order; rows that it has taken before come first.

    A row that is taken belongs to this log permanently.
    """
    mine = connection.execute(_untold(taken.c.log == log).limit(most)).all()
    if len(mine) < most:
        free = _untold(taken.c.id.is_(None)).limit(most - len(mine))
        ids = [{"id": row.id, "log": log} for row in connection.execute(free)]
        if ids:
            connection.execute(_insert(connection, taken), ids)
        mine = connection.execute(_untold(taken.c.log == log).limit(most)).all()
    known = identities(connection)
    return [Waiting(row.id, _referring(row, reference(row, known))) for row in mine]


def identities(connection: Connection) -> list[tuple[int, str]]:
    """Return the identities of the database, newest first, each with the last row before it."""
    # Not through its table: `heads` declares it, and imports this module.
    query = "SELECT outbox, database_id FROM ledger_database ORDER BY number DESC"
    return [(row.outbox, row.database_id) for row in connection.execute(text(query))]


def reference(row: Row[Any], known: Sequence[tuple[int, str]]) -> str:
    """Return the reference of a record to its row: an older copy has another row, or none."""
    identity = next((name for before, name in known if before < row.number), "")
    content = {name: getattr(row, name) for name in _HASHED}
    return f"{ROW}{identity}/{row.number}/{sha256(_json(content).encode()).hexdigest()}"


def reference_of(connection: Connection, id_: str) -> str:
    """Return the reference to the row of this id; empty if there is none."""
    row = connection.execute(select(outbox).where(outbox.c.id == id_)).first()
    return reference(row, identities(connection)) if row else ""


def place(connection: Connection, log: str, places: list[Place]) -> None:
    """Store the positions of recorded rows."""
    rows = [{**one._asdict(), "log": log} for one in places]
    if rows:
        connection.execute(_insert(connection, placed_rows), rows)


def last_placed(connection: Connection, log: str) -> Place | None:
    """Return the last row that is noted for this log; None if there is none."""
    known = select(placed_rows).where(placed_rows.c.log == log)
    found = connection.execute(known.order_by(placed_rows.c.leaf.desc()).limit(1)).first()
    return Place(found.id, found.leaf, found.checkpoint_size) if found else None


def _untold(condition: ColumnElement[bool]) -> Select[Any]:
    told = exists().where(placed_rows.c.id == outbox.c.id)
    joined = outbox.outerjoin(taken, taken.c.id == outbox.c.id)
    return select(outbox).select_from(joined).where(~told, condition).order_by(outbox.c.number)


def _insert(connection: Connection, table: Table) -> sqlite.Insert | postgresql.Insert:
    """Return an insert that does not change existing rows."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing()
    return sqlite.insert(table).on_conflict_do_nothing()


def _row(id_: str, draft: Draft) -> dict[str, object]:
    if not _ID.fullmatch(id_):
        message = f"{id_[:100]!r} is no id: 1 to 200 printable characters of ASCII, no spaces"
        raise OutboxError(message)
    if draft.source is not None:
        message = "only what the collector tells itself goes through the outbox"
        raise OutboxError(message)
    _check(replace(draft, references=(REFERENCE + id_, *draft.references, ROW + "0" * 120)))
    return {
        "id": id_,
        "recorded_ns": draft.time_ns,
        "type": draft.type,
        "outcome": draft.outcome,
        "uncertainty_ms": draft.uncertainty_milliseconds,
        "actor": _json(draft.actor),
        "subject": _json(draft.subject),
        "data": _json(draft.data),
        "refs": _json(list(draft.references)),
        "commitments": _json(draft.commitments),
    }


def _referring(row: Row[Any], of_row: str) -> Draft:
    """Return the draft as recorded: its first reference is the row's id, its last one the row itself."""
    draft = _draft(row)
    references = (REFERENCE + row.id, *draft.references, of_row)
    return replace(draft, references=references)


def _check(draft: Draft) -> None:
    """Check that the log accepts a draft at any position. Raises OutboxError."""
    try:
        size = len(encode_record(record_of(draft, Source("collector", "", "", 0), 0)))
    except RecordError as error:
        raise OutboxError(str(error)) from error
    if size > MAX_RECORD_BYTES - _PLACE_BYTES:
        message = f"{draft.type}: {size} bytes are too many for a record: refer by hash to more"
        raise OutboxError(message)


def _draft(row: Row[Any]) -> Draft:
    return Draft(
        row.type,
        msgspec.json.decode(row.actor, type=Actor),
        row.recorded_ns,
        row.outcome,
        msgspec.json.decode(row.subject, type=Subject),
        msgspec.json.decode(row.data, type=Data),
        tuple(msgspec.json.decode(row.refs, type=list[str])),
        row.uncertainty_ms,
        commitments=msgspec.json.decode(row.commitments, type=dict[str, str]),
    )


def _json(value: object) -> str:
    return msgspec.json.encode(value, order="sorted").decode()
