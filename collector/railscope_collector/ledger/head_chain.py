"""The chain of heads: each transaction of ledger or billing commits to all rows before it.

    head_n = SHA-256(head_(n-1) || hash of each row that the transaction added)

A row is hashed together with its dependent rows: a closing with its revisions and undecided rows, an
invoice with its charges, a ledger day with its entries. Each head is a row itself and is recorded in the
audit log as `billing.head`, through the outbox of the same transaction. So a row that was changed, added or
removed contradicts its head, and a database that lacks a recorded head is an older copy. Heads are numbered
from 1 across all accepted copies (`accept_copy`).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, NamedTuple
from unicodedata import normalize

from sqlalchemy import BigInteger, Column, Connection, Row, Table, Text, func, select, tuple_

from railscope.audit.record import RecordActor, RecordData
from railscope_collector.ledger import (
    LedgerError,
    audit_outbox,
    ledger_records,
    record_draft,
    schema,
    transactions,
)

REMEDY = "fix: restore the newest database, or, if it is lost, run `railscope bill accept-copy`"
# ASCII "railhead".
_LOCK = 0x7261_696C_6865_6164
_ROWS_AT_ONCE = 400

databases = Table(
    "ledger_database",
    schema.metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("database_id", Text, nullable=False, unique=True),
    Column("created_ns", BigInteger, nullable=False),
    Column("continues", Text, nullable=False),
    *schema.integers("head", "outbox"),
    Column("reason", Text, nullable=False),
)
"""Identity of the database: the newest row applies. `head`, `outbox`: last rows that it continues."""

heads = Table(
    "ledger_head",
    schema.metadata,
    Column("n", BigInteger, primary_key=True, autoincrement=False),
    *schema.texts("database_id", "previous", "rows", "head"),
    Column("recorded_ns", BigInteger, nullable=False),
)
"""`rows` is JSON: kind, key and hash of each row that the transaction added."""

stops = Table(
    "ledger_stop",
    schema.metadata,
    Column("database_id", Text, primary_key=True),
    Column("since_ns", BigInteger, nullable=False),
    Column("problem", Text, nullable=False),
)
"""A database that a collector found to be an older copy: nothing is billed with it."""

for _table in (databases, heads, stops):
    schema.make_append_only(_table)


DAY_KINDS = ("revision", "ledger day")
"""Kinds of rows of a day: of earlier releases, and of this one."""


class OlderLedgerError(LedgerError, RuntimeError):
    """The database is an older copy; the message states why, and the remedy."""


class HashedRow(NamedTuple):
    """A row with its dependent rows: kind, key, and hash of all."""

    kind: str
    key: str
    hash: str

    @property
    def name(self) -> str:
        """Name of the row, as in messages and records."""
        return f"{self.kind} {self.key}"


class ChainHead(NamedTuple):
    """A head of the chain."""

    database: str
    n: int
    head: str


def hash_row(
    kind: str, row: Mapping[str, Any], parts: Mapping[str, Iterable[Mapping[str, Any]]]
) -> HashedRow:
    """Return the item of a row as written or as read, with its dependent rows by table name."""
    table = schema.covered_tables[kind].table
    content = {table.name: [_plain(row)]}
    for name, rows in parts.items():
        # Without empty lists: a table of parts that is added later changes no hash.
        if plain_rows := sorted(map(_plain, rows), key=_canonical):
            content[name] = plain_rows
    key = "/".join(str(row[column.name]) for column in table.primary_key.columns)
    return HashedRow(kind, key, sha256(_canonical(content).encode()).hexdigest())


def append_head(
    connection: Connection, items: Sequence[HashedRow], recorded_ns: int
) -> ChainHead | None:
    """Commit to rows that this transaction has added; call it last in the transaction.

    None if there are no items. Raises OlderLedgerError if the database is an older copy.
    """
    if not items:
        return None
    # Held until the commit: heads are numbered without gaps, and each contains the one before it.
    transactions.lock(connection, _LOCK)
    database = database_id(connection)
    # Under the lock: a mark that another collector commits meanwhile is seen here.
    check_not_older_copy(connection, database)
    before = newest_head(connection)
    # The first head depends on the identity, so that chains of two databases differ from the start.
    previous = before.head if before else sha256(database.encode()).hexdigest()
    n = before.n + 1 if before else 1
    head = ChainHead(database, n, next_head(previous, items))
    rows = json.dumps([list(item) for item in items], separators=(",", ":"))
    connection.execute(
        heads.insert().values(
            n=n,
            database_id=database,
            previous=previous,
            rows=rows,
            head=head.head,
            recorded_ns=recorded_ns,
        )
    )
    data: RecordData = {"database": database, "n": n, "head": head.head, "rows": len(items)}
    draft = record_draft.RecordDraft(
        ledger_records.HEAD, RecordActor("ledger", database), recorded_ns, "done", data=data
    )
    # The head is part of the id: a head of the same number in an older copy is another record, and not a repetition.
    audit_outbox.put_record(connection, f"{ledger_records.HEAD}/{database}/{n}/{head.head}", draft)
    return head


def next_head(previous: str, items: Iterable[HashedRow]) -> str:
    """Return the head that follows another, in hexadecimal. Raises ValueError for an invalid hash."""
    return sha256(
        bytes.fromhex(previous) + b"".join(bytes.fromhex(item.hash) for item in items)
    ).hexdigest()


def newest_head(connection: Connection) -> ChainHead | None:
    """Return the newest head; None if there is none yet."""
    row = connection.execute(select(heads).order_by(heads.c.n.desc()).limit(1)).first()
    return ChainHead(row.database_id, row.n, row.head) if row else None


def database_id(connection: Connection) -> str:
    """Return the identity of the database."""
    query = select(databases.c.database_id).order_by(databases.c.number.desc()).limit(1)
    return str(connection.execute(query).scalar_one())


def begin_chain(connection: Connection, now_ns: int) -> None:
    """Assign an identity to a new database."""
    _identify(connection, secrets.token_hex(16), now_ns, "", 0, "created")


def accept_copy(connection: Connection, reason: str, actor: RecordActor, now_ns: int) -> str:
    """Continue with an older copy under a new identity, recorded permanently; return the identity."""
    before, last = database_id(connection), newest_head(connection)
    identity, n = secrets.token_hex(16), last.n if last else 0
    _identify(connection, identity, now_ns, before, n, reason)
    data: RecordData = {
        "database": identity,
        "continues": before,
        "head": n,
        "outbox": audit_outbox.newest_number(connection),
        "reason": reason,
    }
    draft = record_draft.RecordDraft(ledger_records.RESTORE, actor, now_ns, "done", data=data)
    audit_outbox.put_record(connection, f"{ledger_records.RESTORE}/{identity}", draft)
    return identity


def _identify(  # noqa: PLR0913, PLR0917 - the columns of one row
    connection: Connection, identity: str, now_ns: int, continues: str, head: int, reason: str
) -> None:
    number = connection.execute(select(func.max(databases.c.number))).scalar_one() or 0
    connection.execute(
        databases.insert().values(
            number=number + 1,
            database_id=identity,
            created_ns=now_ns,
            continues=continues,
            head=head,
            outbox=audit_outbox.newest_number(connection),
            reason=reason,
        )
    )


def mark_older_copy(connection: Connection, problem: str, now_ns: int) -> None:
    """Mark the database as an older copy; nothing is billed with it from now on."""
    database = database_id(connection)
    recorded_stops = connection.execute(
        select(stops.c.problem).where(stops.c.database_id == database)
    )
    # The first problem found stays: later ones may be its consequences.
    if recorded_stops.first() is None:
        row = {"database_id": database, "since_ns": now_ns, "problem": problem}
        connection.execute(stops.insert().values(row))


def check_not_older_copy(connection: Connection, database: str) -> None:
    """Raise OlderLedgerError if a collector has found the database to be an older copy."""
    query = select(stops.c.problem).where(stops.c.database_id == database)
    problem = connection.execute(query).scalar_one_or_none()
    if problem is not None:
        message = f"the ledger is read-only: {problem}; {REMEDY}"
        raise OlderLedgerError(message)


def read_back(connection: Connection, kind: str, *key: object) -> HashedRow:
    """Return a row that this transaction has written, as read from the database."""
    covered = schema.covered_tables[kind]
    keys = list(covered.table.primary_key.columns)
    query = select(covered.table)
    for column, value in zip(keys, key, strict=True):
        query = query.where(column == value)
    # As read and not as written: the database may convert values, and a later check reads them again.
    return next(_items(connection, kind, connection.execute(query).all()))


def record_row(
    connection: Connection, kind: str, key: object, draft: record_draft.RecordDraft, id_: str = ""
) -> HashedRow:
    """Record in the audit log a row that this transaction has written; pass the result to `append_head`.

    The id of the record in the outbox is its type with `id_`, by default with the key of the row.
    """
    row = read_back(connection, kind, key)
    data: RecordData = {
        ledger_records.ROW: row.name,
        ledger_records.ROW_HASH: row.hash,
        **draft.data,
    }
    # The log accepts only NFC (a canonical form), while the row keeps the name as it was entered.
    normalized = {
        name: normalize("NFC", value) if isinstance(value, str) else value
        for name, value in data.items()
    }
    audit_outbox.put_record(
        connection, f"{draft.type}/{id_ or row.key}", replace(draft, data=normalized)
    )
    return row


def read_rows(connection: Connection, kind: str, days: range | None = None) -> Iterator[HashedRow]:
    """Yield all rows of a kind as read from the database; `days` restricts ledger days."""
    covered: schema.CoveredTable = schema.covered_tables[kind]
    keys = list(covered.table.primary_key.columns)
    query = select(covered.table).order_by(*keys)
    if days is not None and kind in DAY_KINDS:
        query = query.where(covered.table.c.day >= days.start, covered.table.c.day < days.stop)
    yield from _items(connection, kind, connection.execute(query).all())


def _items(connection: Connection, kind: str, rows: Sequence[Row[Any]]) -> Iterator[HashedRow]:
    covered = schema.covered_tables[kind]
    keys = list(covered.table.primary_key.columns)
    for offset in range(0, len(rows), _ROWS_AT_ONCE):
        batch = rows[offset : offset + _ROWS_AT_ONCE]
        parts = {part.name: _parts(connection, part, keys, batch) for part in covered.parts}
        for row in batch:
            key = tuple(getattr(row, column.name) for column in keys)
            of_row = {name: rows_of.get(key, ()) for name, rows_of in parts.items()}
            yield hash_row(kind, row._asdict(), of_row)


def _parts(
    connection: Connection, table: Table, keys: Sequence[Column[Any]], rows: Sequence[Row[Any]]
) -> dict[tuple[Any, ...], list[Mapping[str, Any]]]:
    names = [column.name for column in keys]
    keys_of_rows = [tuple(getattr(row, name) for name in names) for row in rows]
    rows_by_key: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    if len(names) == 1:
        query = select(table).where(table.c[names[0]].in_([key[0] for key in keys_of_rows]))
    else:
        query = select(table).where(tuple_(*(table.c[name] for name in names)).in_(keys_of_rows))
    for row in connection.execute(query):
        mapping = row._asdict()
        rows_by_key.setdefault(tuple(mapping[name] for name in names), []).append(mapping)
    return rows_by_key


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row without its empty columns: a column that is added later changes no hash."""
    return {name: value for name, value in row.items() if value is not None}


def _canonical(content: object) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), default=_invalid_value)


def _invalid_value(value: object) -> str:
    """Represent a value that the type of its column does not allow, after a manual change."""
    return f"{type(value).__name__}: {value!r}"
