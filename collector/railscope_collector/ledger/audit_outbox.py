"""Audit records of database changes, written in the same transaction as the change.

A draft is the content of a record before the log has assigned its position. A component that
changes the database calls `put_record` in the transaction of the change, so there is no change
without its record and no record without its change. The writer of the audit log moves the rows
in order, and stores the position of each in the transaction that adds the record to the log:

    audit_outbox   content of the record, by an id that its writer chooses
    audit_placed   log and number of its record, and the size of the checkpoint that covers it
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from railscope.audit import record
from railscope.audit.record import RecordSource, encode_audit_record as encode_record
from railscope_collector.ledger import LedgerError
from railscope_collector.ledger.ledger_records import OUTBOX_ROW
from railscope_collector.ledger.record_draft import RecordDraft, build_record
from railscope_collector.ledger.schema import insert_new, make_append_only, metadata, texts

REFERENCE = "outbox/"
"""Prefix of the first reference of a record, which names its row."""
_ID = re.compile(r"[!-~]{1,200}")
_PLACE_BYTES = 1024
"""Part of a record's size that is reserved for its source, number and identity."""

outbox_rows = sa.Table(
    "audit_outbox",
    metadata,
    sa.Column(
        "number",
        sa.BigInteger().with_variant(sa.Integer, "sqlite"),
        primary_key=True,
        autoincrement=True,
    ),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("recorded_ns", sa.BigInteger, nullable=False),
    *texts("type", "outcome"),
    sa.Column("uncertainty_ms", sa.BigInteger, nullable=False),
    *texts("actor", "subject", "data", "refs", "commitments"),
)
placed_rows = sa.Table(
    "audit_placed",
    metadata,
    sa.Column("id", sa.Text, sa.ForeignKey("audit_outbox.id"), primary_key=True),
    sa.Column("log", sa.Text, nullable=False),
    sa.Column("leaf", sa.BigInteger, nullable=False),
    sa.Column("checkpoint_size", sa.BigInteger),
)
for _table in (outbox_rows, placed_rows):
    make_append_only(_table)


_HASHED = (
    "id", "recorded_ns", "type", "outcome", "uncertainty_ms", "actor", "subject", "data", "refs",
    "commitments",
)  # fmt: skip


class OutboxError(LedgerError, ValueError):
    """A draft that cannot be put into the outbox; the message states the reason."""


class OutboxRow(NamedTuple):
    """A row that is in no log yet."""

    id: str
    draft: RecordDraft
    """Draft in the form in which it is recorded."""

    @property
    def reference(self) -> str:
        """The row, by identity of its database, number and hash."""
        return self.draft.references[-1]


class LogPosition(NamedTuple):
    """Position of a row in its log; a log of release 0.3.0 or earlier may state no checkpoint."""

    id: str
    leaf: int
    checkpoint_size: int | None


def put_record(connection: sa.Connection, id_: str, draft: RecordDraft) -> None:
    """Record a draft if, and only if, this transaction is committed.

    Repeating it with the same id and content changes nothing. Raises OutboxError for a draft that the log
    could not accept, and for an id with other content.
    """
    row = _row(id_, draft)
    added = connection.execute(
        insert_new(connection, outbox_rows).values(row).returning(outbox_rows.c.number)
    )
    # The id exists: a caller that repeats a commit with an unknown result must not record it twice.
    if added.first() is None:
        existing = connection.execute(sa.select(outbox_rows).where(outbox_rows.c.id == id_)).one()
        if any(existing._mapping[name] != value for name, value in row.items()):  # noqa: SLF001 - its name in SQLAlchemy
            message = (
                f"duplicate record ID {id_!r}: expected the content of the first record with it"
            )
            raise OutboxError(message)


def recorded_position(connection: sa.Connection, id_: str) -> LogPosition | None:
    """Return the position of a record in the audit log; None if it is not recorded yet."""
    found = connection.execute(sa.select(placed_rows).where(placed_rows.c.id == id_)).first()
    return LogPosition(found.id, found.leaf, found.checkpoint_size) if found else None


def count_unrecorded(connection: sa.Connection) -> int:
    """Return the number of rows that are in no log yet."""
    put_, recorded = (
        connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
        for table in (outbox_rows, placed_rows)
    )
    return put_ - recorded


def newest_number(connection: sa.Connection) -> int:
    """Return the number of the latest row; 0 if there is none."""
    return connection.execute(sa.select(sa.func.max(outbox_rows.c.number))).scalar_one() or 0


def read_unrecorded(connection: sa.Connection, max_rows: int) -> list[OutboxRow]:
    """Return the rows that are in no log yet, in order."""
    recorded = sa.exists().where(placed_rows.c.id == outbox_rows.c.id)
    query = sa.select(outbox_rows).where(~recorded).order_by(outbox_rows.c.number)
    rows = connection.execute(query.limit(max_rows)).all()
    identities_of_ledger = identities(connection) if rows else []
    return [
        OutboxRow(row.id, _referring(row, reference(row, identities_of_ledger))) for row in rows
    ]


def identities(connection: sa.Connection) -> list[tuple[int, str]]:
    """Return the identities of the database, newest first, each with the last row before it."""
    # Not through its table: `heads` declares it, and imports this module.
    query = "SELECT outbox, database_id FROM ledger_database ORDER BY number DESC"
    return [(row.outbox, row.database_id) for row in connection.execute(sa.text(query))]


def reference(row: sa.Row[Any], identities: Sequence[tuple[int, str]]) -> str:
    """Return the reference of a record to its row: an older copy has another row, or none."""
    # The identity that was the newest one when the row was added: later ones continue after its number.
    identity = next((name for before, name in identities if before < row.number), "")
    content = {name: getattr(row, name) for name in _HASHED}
    return f"{OUTBOX_ROW}{identity}/{row.number}/{sha256(_json(content).encode()).hexdigest()}"


def store_positions(connection: sa.Connection, log: str, places: list[LogPosition]) -> None:
    """Store the positions of recorded rows."""
    rows = [{**position._asdict(), "log": log} for position in places]
    if rows:
        connection.execute(insert_new(connection, placed_rows), rows)


def restore_positions(
    connection: sa.Connection, log: str, records: Iterable[record.AuditRecord], size: int
) -> None:
    """Store the positions of records that are added to a log again, as far as this database has their rows."""
    identities_of_ledger = identities(connection)
    places = []
    for added in records:
        if not added.ref or not added.ref[-1].startswith(OUTBOX_ROW):
            continue
        id_ = added.ref[0].removeprefix(REFERENCE)
        row = connection.execute(sa.select(outbox_rows).where(outbox_rows.c.id == id_)).first()
        # An older copy of the database may have another row of this id, or none.
        if row is not None and reference(row, identities_of_ledger) == added.ref[-1]:
            places.append(LogPosition(id_, added.seq, size))
    store_positions(connection, log, places)


def _row(id_: str, draft: RecordDraft) -> dict[str, object]:
    if not _ID.fullmatch(id_):
        message = (
            f"invalid ID {id_[:100]!r}: expected 1 to 200 printable ASCII characters without spaces"
        )
        raise OutboxError(message)
    if draft.source is not None:
        message = "invalid source: expected none, as the outbox is for records of the collector"
        raise OutboxError(message)
    # With references of the maximum length: the log cannot reject the record once the transaction is committed.
    _check(replace(draft, references=(REFERENCE + id_, *draft.references, OUTBOX_ROW + "0" * 120)))
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


def _referring(row: sa.Row[Any], of_row: str) -> RecordDraft:
    """Return the draft as recorded: its first reference is the row's id, its last one the row itself."""
    draft = _draft(row)
    references = (REFERENCE + row.id, *draft.references, of_row)
    return replace(draft, references=references)


def _check(draft: RecordDraft) -> None:
    """Check that the log accepts a draft at any position. Raises OutboxError."""
    try:
        size = len(encode_record(build_record(draft, RecordSource("collector", "", "", 0), 0)))
    except record.RecordError as error:
        raise OutboxError(str(error)) from error
    if size > record.MAX_RECORD_BYTES - _PLACE_BYTES:
        message = (
            f"record too large: {draft.type}: {size} bytes: expected at most "
            f"{record.MAX_RECORD_BYTES - _PLACE_BYTES}; fix: refer to larger content by its hash"
        )
        raise OutboxError(message)


def _draft(row: sa.Row[Any]) -> RecordDraft:
    return RecordDraft(
        row.type,
        msgspec.json.decode(row.actor, type=record.RecordActor),
        row.recorded_ns,
        row.outcome,
        msgspec.json.decode(row.subject, type=record.RecordSubject),
        msgspec.json.decode(row.data, type=record.RecordData),
        tuple(msgspec.json.decode(row.refs, type=list[str])),
        row.uncertainty_ms,
        commitments=msgspec.json.decode(row.commitments, type=dict[str, str]),
    )


def _json(value: object) -> str:
    return msgspec.json.encode(value, order="sorted").decode()
