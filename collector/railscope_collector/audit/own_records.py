"""Records of this collector in `state.sqlite`: those that wait for the log, and the newest ones of the log.

    audit_waiting   records that are acknowledged and not in the log yet, in order
    audit_tail      the newest records of the log, with their numbers
    audit_own       identity of this outbox, and the checkpoint over the tail

The tail is for a ledger database that was restored: what an older copy lacks is added again, the same bytes under the checkpoint
that was signed then.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from railscope_collector.framelog.log_follower import LogPosition
from railscope_collector.state_store import StateStore

POSITION = "recorded frames"
"""Document with the position in the frame log up to which the events of agents are recorded."""
MAX_TAIL = 100_000
"""Records of the tail: more than a database loses between two backups, below 100 MB."""
_WAITING = "audit_waiting (id INTEGER PRIMARY KEY AUTOINCREMENT, content BLOB NOT NULL)"
_TAIL = "audit_tail (number INTEGER PRIMARY KEY, content BLOB NOT NULL)"
_ENDS = "SELECT coalesce(min(number), 0), coalesce(max(number) + 1, 0) FROM audit_tail"
_ADD_WAITING = "INSERT INTO audit_waiting (content) VALUES (?)"
_DELETE_WAITING = "DELETE FROM audit_waiting WHERE id <= ?"
_OWN = """
audit_own (
    one INTEGER PRIMARY KEY CHECK (one = 1), collector TEXT NOT NULL, log TEXT NOT NULL, note TEXT NOT NULL,
    imported INTEGER NOT NULL
)
"""


@dataclass(slots=True)
class OwnRecords:
    """Waiting records and the tail of one log. Blocking; raises OSError."""

    store: StateStore
    log: str
    """Name of the log."""
    collector: str = ""
    """Identity of this outbox, by which the log counts what it has of it."""
    note: str = ""
    """Checkpoint over the tail; empty without one."""
    first: int = 0
    end: int = 0
    """Numbers of the records in the tail: from `first` to below `end`."""
    waiting: int = 0
    max_tail: int = MAX_TAIL
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def open(self) -> None:
        """Create the tables, and read what they have."""
        self.store.create(
            *(f"CREATE TABLE IF NOT EXISTS {table} STRICT" for table in (_WAITING, _TAIL, _OWN))
        )
        with self.store.transaction() as connection:
            row = (1, secrets.token_hex(16), self.log, "", 0)
            connection.execute("INSERT OR IGNORE INTO audit_own VALUES (?, ?, ?, ?, ?)", row)
            # Another key, and so another log: it has none of the records of the former one.
            if connection.execute("SELECT log FROM audit_own").fetchone() != (self.log,):
                connection.execute("DELETE FROM audit_tail")
                connection.execute("UPDATE audit_own SET log = ?, note = ''", (self.log,))
        ((self.collector, self.note),) = self.store.read("SELECT collector, note FROM audit_own")
        self._count()

    def _count(self) -> None:
        ((self.first, self.end),) = self.store.read(_ENDS)
        ((self.waiting,),) = self.store.read("SELECT count(*) FROM audit_waiting")

    def add_waiting(self, raws: Sequence[bytes], position: LogPosition | None = None) -> None:
        """Store records that are to be added to the log, durable on return, with the position after the frames they are of."""
        with self.store.transaction() as connection:
            connection.executemany(_ADD_WAITING, [(raw,) for raw in raws])
            if position is not None:
                self.store.put_document(connection, POSITION, msgspec.json.encode(position))
        self._add_to_waiting(len(raws))

    def read_position(self) -> LogPosition | None:
        """Return the position up to which the frame log is recorded; None before the first one."""
        content = self.store.document(POSITION)
        return msgspec.json.decode(content, type=LogPosition) if content else None

    def import_waiting(self, raws: Sequence[bytes]) -> None:
        """Store the records of an earlier release that are not signed yet, once."""
        with self.store.transaction() as connection:
            if connection.execute("UPDATE audit_own SET imported = 1 WHERE imported = 0").rowcount:
                connection.executemany(_ADD_WAITING, [(raw,) for raw in raws])
        self._count()

    def read_waiting(self, max_records: int) -> list[tuple[int, bytes]]:
        """Return the oldest waiting records with their ids; all for -1."""
        query = "SELECT id, content FROM audit_waiting ORDER BY id LIMIT ?"
        return [(id_, content) for id_, content in self.store.read(query, (max_records,))]

    def delete_waiting(self, last: int) -> None:
        """Delete the waiting records up to an id: they are in the log, or in the outbox of the database."""
        with self.store.transaction() as connection:
            deleted = connection.execute(_DELETE_WAITING, (last,)).rowcount
        self._add_to_waiting(-deleted)

    def drop_waiting(self, is_present: Callable[[bytes], bool]) -> None:
        """Delete the waiting records that the log has from another collector."""
        with self.store.transaction() as connection:
            rows = connection.execute("SELECT id, content FROM audit_waiting").fetchall()
            present = [(id_,) for id_, content in rows if is_present(content)]
            connection.executemany("DELETE FROM audit_waiting WHERE id = ?", present)
        self._add_to_waiting(-len(present))

    def move(self, last: int, first: int, raws: Iterable[bytes], note: str) -> None:
        """Add records of the log to the tail under a checkpoint, and delete the waiting ones up to an id."""
        with self.store.transaction() as connection:
            deleted = connection.execute(_DELETE_WAITING, (last,)).rowcount
            if first != self.end:  # no part of the log may be missing in the tail
                connection.execute("DELETE FROM audit_tail")
            connection.executemany("INSERT INTO audit_tail VALUES (?, ?)", enumerate(raws, first))
            connection.execute(
                "DELETE FROM audit_tail WHERE number <= (SELECT max(number) FROM audit_tail) - ?",
                (self.max_tail,),
            )
            connection.execute("UPDATE audit_own SET note = ?", (note,))
            ends = connection.execute(_ENDS).fetchone()
        self._add_to_waiting(-deleted)
        self.first, self.end = ends
        self.note = note

    def tail_from(self, number: int) -> Iterator[bytes]:
        """Yield the records of the tail from a number on."""
        while rows := self.store.read(
            "SELECT number, content FROM audit_tail WHERE number >= ? ORDER BY number LIMIT 1000",
            (number,),
        ):
            yield from (content for _, content in rows)
            number = rows[-1][0] + 1

    def _add_to_waiting(self, records: int) -> None:
        # Not counted again: that would read every waiting record for each group.
        with self._lock:
            self.waiting += records
