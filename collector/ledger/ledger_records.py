"""Records of an audit log about the ledger's database, gathered for a comparison with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from railscope.audit.record import Data, Record

HEAD, RESTORE = "billing.head", "admin.restore"
OUTBOX_ROW = "outbox-row/"
"""Prefix of the last reference: identity of the database, number of the row, and hash of its content."""
ROW, ROW_HASH = "row", "rows_sha256"
"""Keys of a record's data: the database row that it is about, and the hash of it and its dependent rows."""
KINDS = frozenset({
    "billing.price", "billing.close", "billing.issue", "billing.adjust", "billing.void",
    "billing.opening",
    "billing.import",
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
    """All records about a ledger's database in an audit log or an outbox."""

    log: str = ""
    """Hash of the log's first record; empty for an outbox."""
    rows: dict[str, RecordedRow] = field(default_factory=dict)
    heads: dict[tuple[str, int], RecordedRow] = field(default_factory=dict)
    sources: dict[str, int] = field(default_factory=dict)
    """References to rows of the outbox, with their records."""
    restores: dict[str, Data] = field(default_factory=dict)
    """Data of the records about accepted older copies, by the identity that each replaced."""
    repeated: list[str] = field(default_factory=list)

    def add(self, record: Record) -> None:
        """Process the next record of the log."""
        source = record.ref[-1] if record.ref else ""
        if source.startswith(OUTBOX_ROW):
            self.sources[source] = record.seq
            self.take(record.type, record.data, record.seq, source)
        elif record.type in KINDS and not record.ref[:1] and len(self.repeated) < MAX_NAMED:
            self.repeated.append(f"record {record.seq}: {record.type} that no database has caused")

    def take(self, kind: str, data: Data, number: int, source: str) -> None:
        """Add the data of a record."""
        if kind == HEAD:
            database, n = str(data.get("database")), data.get("n")
            key = (database, n if isinstance(n, int) else -1)
            self._put(self.heads, key, RecordedRow(number, str(data.get("head")), source))
        elif kind == RESTORE:
            self.restores[str(data.get("continues"))] = data
        elif kind in KINDS and isinstance(name := data.get(ROW), str):
            self._put(self.rows, name, RecordedRow(number, str(data.get(ROW_HASH)), source))

    def _put(self, into: dict[T, RecordedRow], key: T, found: RecordedRow) -> None:
        before = into.get(key)
        if before and not self.lost(before.source) and len(self.repeated) < MAX_NAMED:
            self.repeated.append(f"record {found.record}: {key} was recorded before")
        into[key] = found

    def lost(self, source: str) -> bool:
        """True if a row was lost with a database that an accepted older copy replaced."""
        database, number = _identity(source)
        restored = self.restores.get(database)
        last = restored.get("outbox") if restored else None
        return isinstance(last, int) and number > last


def _identity(source: str) -> tuple[str, int]:
    """Return the database and number in a reference to a row of the outbox."""
    parts = source.removeprefix(OUTBOX_ROW).split("/")
    number = parts[1] if len(parts) > 1 and parts[1].isdigit() else "-1"
    return parts[0], int(number)
