"""Index of what the evidence of a node contains, by day: it names the day on which something was last reported.

Metering of a day needs the newest report of a GPU, of its MIG layout and of its counters, however long ago that was.
The index has the days of each different content of a node's parts: a few rows per node and day. It follows from the
parts, is written with them, and is added for parts that were recorded without it. Its rows are never deleted, so
that a report that is only in the archive is missed and not overlooked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import NamedTuple, Protocol

import msgspec
import sqlalchemy as sa

from railscope.timestamps import DAY_NS, FOREVER_NS, format_timestamp
from railscope_collector.evidence import (
    EvidenceError,
    evidence_records,
    evidence_tables,
    node_intervals,
)
from railscope_collector.fleet import shape_columns
from railscope_collector.ledger import schema
from railscope_collector.ledger.database import Database, UnusableLedgerError

contents_table = sa.Table(
    "evidence_contents",
    schema.metadata,
    sa.Column("contents", sa.Text, primary_key=True),
    sa.Column("subjects", sa.Text, nullable=False),
)
"""Contents of parts, by their hash."""
content_days = sa.Table(
    "evidence_contents_day",
    schema.metadata,
    sa.Column("node", sa.Text, primary_key=True),
    sa.Column("contents", sa.Text, primary_key=True),
    *schema.key_numbers("start_day", "end_day"),
)
"""Days on which parts of a node with some contents start and end.

Without contents: all parts of the node are in the index, or those of all nodes.
"""
for _table in (contents_table, content_days):
    schema.make_append_only(_table)
_ALL_NODES = ""
_MAX_KNOWN = 100_000


class PartContents(msgspec.Struct, frozen=True, array_like=True):
    """Subjects of the facts of a part."""

    gpus: frozenset[str] = frozenset()
    """GPUs that it lists with a value."""
    valueless: frozenset[str] = frozenset()
    layouts: frozenset[str] = frozenset()
    counters: frozenset[shape_columns.CounterSubject] = frozenset()
    """Counters with a reading in it."""

    @classmethod
    def collect(cls, interval: node_intervals.EvidenceInterval) -> PartContents:
        """Return the contents of a part."""
        return cls(
            frozenset(interval.gpus),
            frozenset(interval.valueless),
            frozenset(interval.layouts),
            frozenset(node_intervals.read_counters(interval)),
        )

    def mentions(self, gpu: str) -> bool:
        """True if there are facts about where a GPU was, or its layout."""
        return gpu in self.gpus or gpu in self.valueless or gpu in self.layouts

    def encode(self) -> str:
        """Return a text that is equal for equal contents."""
        return msgspec.json.encode(list(map(sorted, msgspec.structs.astuple(self)))).decode()


NO_CONTENTS = PartContents()


class KnownContents:
    """Contents of parts, so that a part without facts about a GPU is decoded once."""

    def __init__(self) -> None:
        self._by_part: dict[str, PartContents] = {}
        self._equal: dict[PartContents, PartContents] = {}

    def find(self, part: str) -> PartContents | None:
        """Return the contents of a part; None if it was not read."""
        return self._by_part.get(part)

    def record(self, part: str, interval: node_intervals.EvidenceInterval | None) -> None:
        """Record a part that was read; None if it is damaged."""
        # Cleared as a whole: the contents are read again where they are needed.
        if len(self._by_part) >= _MAX_KNOWN:
            self._by_part.clear()
            self._equal.clear()
        contents = NO_CONTENTS
        if interval:
            contents = PartContents.collect(interval)
        self._by_part[part] = self._equal.setdefault(contents, contents)


class IndexedPart(Protocol):
    """A part that is to be in the index."""

    @property
    def node(self) -> str:
        """Its node."""
        ...

    @property
    def start_ns(self) -> int:
        """Its start."""
        ...

    @property
    def end_ns(self) -> int:
        """Its end."""
        ...

    @property
    def contents(self) -> str:
        """Its contents, encoded."""
        ...


class _ReadPart(NamedTuple):
    node: str
    start_ns: int
    end_ns: int
    contents: str

    @classmethod
    def collect(cls, interval: node_intervals.EvidenceInterval) -> _ReadPart:
        """Return the row of a part in the index: parts of one day with the same contents are equal."""
        start_ns, end_ns = (
            edge // DAY_NS * DAY_NS for edge in (interval.start_ns, interval.end_ns)
        )
        return cls(interval.node, start_ns, end_ns, PartContents.collect(interval).encode())


class ContentsIndex:
    """The index of one database, and what is remembered of it."""

    def __init__(self) -> None:
        self._subjects: dict[str, PartContents] = {}
        self._recorded: set[tuple[str, str, int, int]] = set()
        self._complete: set[str] = set()

    def begin(self, connection: sa.Connection) -> None:
        """Mark the index as complete in a database without evidence, before the first part is added."""
        part = evidence_tables.evidence_intervals.c.part
        if not self._complete and connection.execute(sa.select(part).limit(1)).first() is None:
            _insert_mark(connection, _ALL_NODES)

    def record(self, connection: sa.Connection, parts: Iterable[IndexedPart]) -> Callable[[], None]:
        """Add parts; return a call that remembers them, after the transaction."""
        texts: dict[str, str] = {}
        new: set[tuple[str, str, int, int]] = set()
        for part in parts:
            name = sha256(part.contents.encode()).hexdigest()[:32]
            key = (part.node, name, part.start_ns // DAY_NS, part.end_ns // DAY_NS)
            if key not in self._recorded:
                texts[name] = part.contents
                new.add(key)
        insert = evidence_tables.insert_new_rows
        named = [{"contents": name, "subjects": text} for name, text in texts.items()]
        insert(connection, contents_table, named)
        columns = [column.name for column in content_days.c]
        insert(connection, content_days, [dict(zip(columns, key, strict=True)) for key in new])

        def remember() -> None:
            if len(self._recorded) > _MAX_KNOWN:
                self._recorded.clear()
            self._recorded.update(new)

        # After the commit only: a transaction that failed has added nothing.
        return remember

    def complete(
        self,
        database: Database,
        nodes: Iterable[str],
        decode: Callable[[str, bytes], node_intervals.EvidenceInterval | None],
    ) -> None:
        """Add the parts of nodes that were recorded without the index, such as by an earlier release."""
        if _ALL_NODES in self._complete:
            return
        unknown = sorted({*nodes} - self._complete)
        if not unknown:
            return
        marked = sa.select(content_days.c.node).where(content_days.c.contents == "")
        with database.transaction() as connection:
            for few in evidence_tables.group_items([_ALL_NODES, *unknown]):
                rows = connection.execute(marked.where(content_days.c.node.in_(few)))
                self._complete.update(rows.scalars())
        for node in unknown:
            if not self._complete & {node, _ALL_NODES}:
                self._add_node(database, node, decode)

    def _add_node(
        self,
        database: Database,
        node: str,
        decode: Callable[[str, bytes], node_intervals.EvidenceInterval | None],
    ) -> None:
        of = evidence_tables.evidence_intervals.c
        with database.transaction(writes=True) as connection:
            query = sa.select(of.part, of.content).where(of.node == node)
            rows = connection.execute(query.execution_options(yield_per=_ROWS_AT_ONCE))
            intervals = (decode(row.part, row.content) for row in rows)
            self.record(connection, {_ReadPart.collect(each) for each in intervals if each})
            # In the same transaction as the parts: an interrupted addition leaves no mark.
            _insert_mark(connection, node)
        self._complete.add(node)

    def find_nearest_days(
        self, connection: sa.Connection, node: str, day: int, *, is_before: bool
    ) -> Mapping[PartContents, int]:
        """Return the contents of a node's parts, with the nearest day on which they end up to a day, or start from it on."""
        of = content_days.c
        edge = of.end_day if is_before else of.start_day
        nearest = sa.func.max(edge) if is_before else sa.func.min(edge)
        is_beyond = edge <= day if is_before else edge >= day
        query = sa.select(of.contents, nearest.label("day"))
        query = query.where(of.node == node, of.contents != "", is_beyond).group_by(of.contents)
        days = {row.contents: row.day for row in connection.execute(query)}
        if len(self._subjects) > _MAX_KNOWN:
            self._subjects.clear()
        for few in evidence_tables.group_items(sorted(days.keys() - self._subjects.keys())):
            rows = sa.select(contents_table).where(contents_table.c.contents.in_(few))
            for row in connection.execute(rows):
                self._subjects[row.contents] = msgspec.json.decode(row.subjects, type=PartContents)
        return {self._subjects[name]: nearest_day for name, nearest_day in days.items()}


def record_rows(connection: sa.Connection, rows: Iterable[tuple[str, bytes]]) -> None:
    """Add restored parts, by name and content, which an earlier release may have deleted."""
    quarantine = evidence_records.EvidenceQuarantine()
    found = (quarantine.interval(*row) for row in rows)
    ContentsIndex().record(connection, {_ReadPart.collect(each) for each in found if each})


_ROWS_AT_ONCE = 256


def _insert_mark(connection: sa.Connection, node: str) -> None:
    row = {"node": node, "contents": "", "start_day": 0, "end_day": 0}
    evidence_tables.insert_new_rows(connection, content_days, [row])


# Evidence that is only in the archive ----------------------------------------------------------


class ArchivedEvidenceError(EvidenceError, UnusableLedgerError):
    """Evidence that is only in the archive; the message names its node, days and the remedy."""


def check_present(
    connection: sa.Connection,
    node: str,
    intervals: Iterable[node_intervals.EvidenceInterval],
    span: tuple[int, int],
) -> None:
    """Check that the intervals in and nearest to a window are all that were ever recorded.

    Raises ArchivedEvidenceError if others were deleted from the database.
    """
    present = list(intervals)
    first_ns = max((i.end_ns for i in present if i.end_ns < span[0]), default=0)
    last_ns = min((i.start_ns for i in present if i.start_ns > span[1]), default=FOREVER_NS)
    check_days(
        connection, node, ((first_ns - evidence_tables.CONTEXT_NS) // DAY_NS, last_ns // DAY_NS)
    )


def check_days(connection: sa.Connection, node: str, days: tuple[int, int]) -> None:
    """Check that no intervals of these days were deleted. Raises ArchivedEvidenceError."""
    archives, removals = evidence_tables.archives, evidence_tables.removals
    query = sa.select(removals, archives.c.day).join(archives)
    query = query.where(archives.c.day.between(*days)).order_by(removals.c.number)
    missing: dict[int, int] = {}
    for row in connection.execute(query):
        # In order of the numbers, so that the last removal of each file decides.
        if node in msgspec.json.decode(row.nodes, type=list[str]):
            missing.pop(row.archive, None)
            if row.action == evidence_tables.DELETED:
                missing[row.archive] = row.day
    if missing:
        dates = [format_timestamp(day * DAY_NS)[:10] for day in missing.values()]
        period = f"{min(dates)}..{max(dates)}"
        message = (
            f"usage evidence of {node} from {period} is only in the archive; fix: "
            f"railscope collector archive restore {period} --node {node}"
        )
        raise ArchivedEvidenceError(message)
