"""Comparison of the ledger's database with its audit records: detects any row changed, added or removed.

Every row that heads cover is hashed again and compared with its head. Heads and the actions of
people (price books, closings, invoices, credits, voids) are compared with their records, in both
directions. The records come from the audit log, or from the outbox of the database itself if there
are none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, inspect, or_, select

from railscope.audit.record import RecordData
from railscope_collector.ledger import audit_outbox, head_chain, ledger_records, schema
from railscope_collector.ledger.database import UnusableLedgerError

RECORDED = frozenset({
    "price book", "closing", "invoice", "adjustment", "void", "opening", "job list",
    "evidence archive", "evidence removal",
})  # fmt: skip
"""Kinds of rows that have a record of their own: actions of people, and of the archive."""


@dataclass(slots=True)
class LedgerComparison:
    """Outcome of a comparison."""

    differences: list[str] = field(default_factory=list)
    unrecorded: list[str] = field(default_factory=list)
    """Rows that are still to be recorded, or were lost when an older copy was accepted."""
    rows: Counter[str] = field(default_factory=Counter)
    """Number of compared rows, by kind."""
    unlisted: int = 0

    def add(self, difference: str) -> None:
        """Add a difference."""
        if len(self.differences) < ledger_records.MAX_NAMED:
            self.differences.append(difference)
        else:
            self.unlisted += 1


def read_outbox_records(connection: Connection) -> ledger_records.LedgerRecords:
    """Return the records in the outbox of a database, for use without a log."""
    records = ledger_records.LedgerRecords()
    identities = audit_outbox.identities(connection)
    kinds = (ledger_records.HEAD, ledger_records.RESTORE, *ledger_records.ROW_RECORD_TYPES)
    query = select(audit_outbox.outbox_rows).where(audit_outbox.outbox_rows.c.type.in_(kinds))
    for row in connection.execute(query.order_by(audit_outbox.outbox_rows.c.number)):
        try:
            data = msgspec.json.decode(row.data, type=RecordData)
        except msgspec.MsgspecError:
            records.repeated.append(f"cannot read outbox row {row.number}")
            continue
        records.add_data(row.type, data, row.number, audit_outbox.reference(row, identities))
    return records


def compare_ledger(
    connection: Connection, records: ledger_records.LedgerRecords, days: range | None = None
) -> LedgerComparison:
    """Compare a database with its records; `days` restricts the ledger days that are compared."""
    comparison = LedgerComparison()
    missing = sorted(schema.metadata.tables.keys() - set(inspect(connection).get_table_names()))
    if missing:
        comparison.add(f"tables {', '.join(missing)} are missing")
        return comparison
    for problem in records.repeated:
        comparison.add(problem)
    waiting = _find_waiting_rows(connection, records.log)
    check = _LedgerCheck(connection, records, days, comparison, waiting)
    check.check_heads()
    check.rows()
    check.check_records()
    check.check_sources()
    return comparison


@dataclass(slots=True)
class _LedgerCheck:
    """Both sides of a comparison, and its differences."""

    connection: Connection
    records: ledger_records.LedgerRecords
    days: range | None
    result: LedgerComparison
    waiting: Mapping[str, str]
    committed: dict[str, head_chain.HashedRow] = field(default_factory=dict)
    """Every row that heads commit to, by name."""

    def check_heads(self) -> None:
        """Check the chain of heads."""
        previous: Row[Any] | None = None
        last: dict[str, int] = {}
        for row in self.connection.execute(select(head_chain.heads).order_by(head_chain.heads.c.n)):
            self.result.rows["head"] += 1
            last[row.database_id] = row.n
            if problem := _find_chain_defect(row, previous):
                self.result.add(f"head {row.n}: {problem}")
            else:
                for item in _items(row.rows):
                    if item.name in self.committed:
                        self.result.add(f"head {row.n}: {item.name} was added by an earlier head")
                    self.committed[item.name] = item
            recorded = self.records.heads.get((row.database_id, row.n))
            if recorded is None and f"head {row.n}" not in self.waiting:
                self.result.add(f"head {row.n} has no record")
            if recorded is not None and recorded.hash != row.head:
                self.result.add(f"head {row.n} does not match record {recorded.record}")
            previous = row
        self._check_missing_heads(last)

    def _check_missing_heads(self, last: Mapping[str, int]) -> None:
        """Check that each recorded head exists: a database that lacks one is an older copy."""
        query = select(head_chain.databases.c.database_id)
        databases = set(self.connection.execute(query).scalars())
        for (database, n), recorded in self.records.heads.items():
            if database not in databases:
                problem = f"belongs to another database, {database}"
            elif n > last.get(database, 0):
                expected = "expected every recorded head; the database is an older copy"
                problem = f"is missing in the database: {expected}"
            else:
                continue
            self._report(recorded.source, f"head {n} of record {recorded.record}", problem)

    def _report(self, source: str, subject: str, problem: str) -> None:
        """Report a row that does not exist, unless it was lost with a replaced database."""
        if self.records.is_lost(source):
            self.result.unrecorded.append(f"{subject} was lost with its database")
        else:
            self.result.add(f"{subject} {problem}")

    def rows(self) -> None:
        """Check every row against its head and its record; then report the rows that no longer exist."""
        missing_rows = {name for name, head in self.committed.items() if _in_days(head, self.days)}
        for kind in schema.covered_tables:
            for row in head_chain.read_rows(self.connection, kind, self.days):
                self.result.rows[kind] += 1
                missing_rows.discard(row.name)
                for problem in self._differences(row):
                    self.result.add(f"{row.name}: {problem}")
                if row.name in self.waiting and row.name not in self.records.rows:
                    self.result.unrecorded.append(f"{row.name} {self.waiting[row.name]}")
        for name in sorted(missing_rows):
            self.result.add(f"{name} was removed")

    def _differences(self, row: head_chain.HashedRow) -> Iterator[str]:
        head = self.committed.get(row.name)
        if head is None:
            yield "no head covers it: it was added by hand"
        elif head.hash != row.hash:
            yield "it does not match its head: it was changed by hand"
        if row.kind in RECORDED:
            recorded = self.records.rows.get(row.name)
            if recorded is None and row.name not in self.waiting:
                yield "it has no record"
            elif recorded is not None and recorded.hash != row.hash:
                yield f"it does not match record {recorded.record}"

    def check_records(self) -> None:
        """Check that each record has its row."""
        for name, recorded in self.records.rows.items():
            if name not in self.committed:
                self._report(recorded.source, f"{name} of record {recorded.record}", "is missing")

    def check_sources(self) -> None:
        """Check that the outbox contains the rows that records were made from."""
        if not self.records.sources:
            return
        identities = audit_outbox.identities(self.connection)
        rows = self.connection.execute(select(audit_outbox.outbox_rows))
        references = {audit_outbox.reference(row, identities) for row in rows}
        for source, number in self.records.sources.items():
            if source not in references:
                subject = f"record {number}: its source row"
                self._report(source, subject, "is missing in the outbox")


def _find_chain_defect(row: Row[Any], before: Row[Any] | None) -> str:
    """Return the reason why a head does not follow its predecessor; empty if it does."""
    try:
        items = _items(row.rows)
        n = before.n + 1 if before else 1
        previous = before.head if before else sha256(row.database_id.encode()).hexdigest()
        if row.n != n:
            return f"head {n} is missing"
        if row.previous != previous:
            return "it does not follow the previous head"
        if head_chain.next_head(previous, items) != row.head:
            return "it does not match the hash of its rows"
    except (ValueError, TypeError, AttributeError, msgspec.MsgspecError) as error:
        return f"its content is invalid: {error}"
    return ""


def _items(rows: str) -> list[head_chain.HashedRow]:
    return [
        head_chain.HashedRow(*item)
        for item in msgspec.json.decode(rows, type=list[tuple[str, str, str]])
    ]


def _find_waiting_rows(connection: Connection, log: str) -> dict[str, str]:
    """Return the rows that have a record only in the outbox so far, or in another log: reason by name."""
    rows, placed = audit_outbox.outbox_rows, audit_outbox.placed_rows.c
    elsewhere = or_(placed.id.is_(None), placed.log != log)
    kinds = (ledger_records.HEAD, *ledger_records.ROW_RECORD_TYPES)
    query = (
        select(rows.c.data, placed.log, placed.leaf)
        .select_from(rows.outerjoin(audit_outbox.placed_rows, placed.id == rows.c.id))
        .where(elsewhere, rows.c.type.in_(kinds))
    )
    waiting: dict[str, str] = {}
    for row in connection.execute(query):
        try:
            data = msgspec.json.decode(row.data, type=RecordData)
        except msgspec.MsgspecError:
            continue  # its row then has no record, which is reported
        name = str(data.get(ledger_records.ROW, f"head {data.get('n')}"))
        other = f"is recorded in another log, {str(row.log)[:16]}, as record {row.leaf}"
        waiting[name] = "is not recorded yet" if row.leaf is None else other
    return waiting


def _in_days(row: head_chain.HashedRow, days: range | None) -> bool:
    if days is None or row.kind not in head_chain.DAY_KINDS:
        return True
    parts = row.key.rsplit("/", 2)
    return len(parts) > 2 and parts[1].isdigit() and int(parts[1]) in days  # noqa: PLR2004 - as `item` writes it


def summarize_differences(comparison: LedgerComparison) -> str:
    """Return all differences on one line."""
    more = (f"and {comparison.unlisted} more",) if comparison.unlisted else ()
    return "; ".join([*comparison.differences, *more])


def check_outbox(connection: Connection) -> None:
    """Compare a database with the records in its own outbox. Raises UnusableLedgerError for differences."""
    comparison = compare_ledger(connection, read_outbox_records(connection))
    if comparison.differences:
        message = (
            f"the ledger does not match its records: {summarize_differences(comparison)}: expected a ledger without"
            " differences; fix: restore the newest database"
        )
        raise UnusableLedgerError(message)
