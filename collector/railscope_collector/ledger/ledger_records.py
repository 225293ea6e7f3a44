"""Records about a ledger's database, to compare them with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from railscope.audit import record

HEAD, RESTORE = "billing.head", "admin.restore"
OUTBOX_ROW = "outbox-row/"
"""Prefix of the last reference: identity of the database, number of the row, and hash of its content."""
ROW, ROW_HASH = "row", "rows_sha256"
"""Keys of a record's data: the database row that it is about, and the hash of it and its dependent rows."""
ROW_RECORD_TYPES = frozenset({
    "billing.price", "billing.close", "billing.issue", "billing.adjust", "billing.void",
    "billing.opening",
    "billing.import", "evidence.archive", "evidence.delete", "evidence.restore",
})  # fmt: skip
MAX_NAMED = 100
"""Limit of listed differences; further ones are only counted."""
T = TypeVar("T")


class RecordedRow(NamedTuple):
    """A record about a row of the database."""

    record: int
    hash: str
    source: str
    """Reference to the row of the outbox."""


@dataclass(slots=True)
class LedgerRecords:
    """All records about a ledger's database in an audit log or an outbox, to compare them with it."""

    log: str = ""
    """Hash of the log's first record; empty for an outbox."""
    rows: dict[str, RecordedRow] = field(default_factory=dict)
    heads: dict[tuple[str, int], RecordedRow] = field(default_factory=dict)
    sources: dict[str, int] = field(default_factory=dict)
    """References to rows of the outbox, with their records."""
    restores: dict[str, record.RecordData] = field(default_factory=dict)
    """Data of the records about accepted older copies, by the identity that each replaced."""
    repeated: list[str] = field(default_factory=list)

    def add(self, new: record.AuditRecord) -> None:
        """Process the next record of the log."""
        source = new.ref[-1] if new.ref else ""
        if source.startswith(OUTBOX_ROW):
            self.sources[source] = new.seq
            self.add_data(new.type, new.data, new.seq, source)
        # Such a record claims a change of the database without a row in its outbox: it was not written with the change.
        elif new.type in ROW_RECORD_TYPES and not new.ref[:1] and len(self.repeated) < MAX_NAMED:
            self.repeated.append(f"record {new.seq}: {new.type} without a source row in a database")

    def add_data(self, kind: str, data: record.RecordData, number: int, source: str) -> None:
        """Add the data of a record."""
        if kind == HEAD:
            database, n = str(data.get("database")), data.get("n")
            key = (database, n if isinstance(n, int) else -1)
            self._add_row(self.heads, key, RecordedRow(number, str(data.get("head")), source))
        elif kind == RESTORE:
            self.restores[str(data.get("continues"))] = data
        elif kind in ROW_RECORD_TYPES and isinstance(name := data.get(ROW), str):
            self._add_row(self.rows, name, RecordedRow(number, str(data.get(ROW_HASH)), source))

    def _add_row(self, into: dict[T, RecordedRow], key: T, row: RecordedRow) -> None:
        before = into.get(key)
        # After an older copy was accepted, rows of the lost part may be written again.
        if before and not self.is_lost(before.source) and len(self.repeated) < MAX_NAMED:
            self.repeated.append(f"record {row.record}: {key} was already recorded")
        into[key] = row

    def is_lost(self, source: str) -> bool:
        """True if a row was lost with a database that an accepted older copy replaced."""
        database, number = _parse_reference(source)
        restored = self.restores.get(database)
        last = restored.get("outbox") if restored else None
        return isinstance(last, int) and number > last


def _parse_reference(source: str) -> tuple[str, int]:
    """Return the database and number in a reference to a row of the outbox."""
    parts = source.removeprefix(OUTBOX_ROW).split("/")
    number = record.parse_number(parts[1]) if len(parts) > 1 else None
    return parts[0], -1 if number is None else number
