"""Archive of the evidence's intervals: Parquet files by day and pod, their verification, and restoring.

A file is written once and read back. Only if each of its rows equals that of the database, the
database records the file (`evidence_archive`, with a head and an audit record) and its facts
(`evidence_archived_fact`): only those can be deleted, as triggers enforce. Names of files contain the
hash of their content, so an interrupted or concurrent round writes the same file again. A fact that is
recorded later is in a further file of its day.

`evidence_removal` has the nodes whose facts of a file were deleted, and those that were restored.
Files of claims (`claim_archive`) are written in the same way; their facts stay in the database.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import quote

import sqlalchemy as sa

from railscope.audit.record import RecordActor, RecordData
from railscope.timestamps import DAY_NS, HOUR_NS, format_timestamp
from railscope_collector import archive_stores
from railscope_collector.evidence import (
    archive_files,
    evidence_contents,
    evidence_records,
    evidence_tables,
    node_parts,
)
from railscope_collector.ledger import head_chain, record_draft, schema, transactions
from railscope_collector.ledger.database import Database

MAX_FILE_BYTES = 8 << 20
"""Content of one file; a day of a larger pod is divided. Memory is about ten times as much meanwhile."""
KEPT_REPORTS = 1346
"""Newest intervals of a node that stay in the database: the reports of two weeks, which metering may read
before a window (`EvidenceStore.load`), and those at its edges. Of older ones the last with each GPU, layout and
counter stay.
"""
RESTORED_NS = 30 * DAY_NS
"""Restored evidence is not deleted again for this long."""
DELETED, RESTORED = evidence_tables.DELETED, evidence_tables.RESTORED
INTERVALS, CLAIMS = "intervals", "claims"
# ASCII "railarch".
_LOCK = 0x7261_696C_6172_6368
_intervals = evidence_tables.evidence_intervals
archives, removals = evidence_tables.archives, evidence_tables.removals
archived_facts = evidence_tables.archived_facts

_IS_ARCHIVED = archived_facts.c.fact == _intervals.c.part
_IS_LATE = sa.exists().where(evidence_tables.claim_end_trust.c.fact == _intervals.c.part)


class EvidenceFile(NamedTuple):
    """A verified file of the archive."""

    number: int
    name: str
    kind: str
    day: int
    pod: str
    nodes: tuple[str, ...]
    location: str
    sha256: str
    size_bytes: int
    facts: int
    verified_ns: int


class NodeRemoval(NamedTuple):
    """Newest removal of the facts of a node in a file."""

    action: str
    recorded_ns: int


def format_day(day: int) -> str:
    """Return the date of a day."""
    return format_timestamp(day * DAY_NS)[:10]


def _of_day(node: str, day: int) -> sa.ColumnElement[bool]:
    start_ns = _intervals.c.start_ns
    within = (start_ns >= day * DAY_NS, start_ns < (day + 1) * DAY_NS)
    return sa.and_(_intervals.c.node == node, *within)


class EvidenceArchive:
    """Archive of one database. Calls block, and raise ArchiveError and UnusableLedgerError."""

    def __init__(  # noqa: PLR0913, PLR0917 - its bounds
        self,
        database: Database,
        store: archive_stores.ArchiveStore | None,
        pod_pattern: re.Pattern[str] | None = None,
        actor: RecordActor | None = None,
        kept_reports: int = KEPT_REPORTS,
        max_file_bytes: int = MAX_FILE_BYTES,
        failures: archive_stores.FileFailures | None = None,
    ) -> None:
        self.database, self._store = database, store
        self.failures = failures or archive_stores.FileFailures()
        self._pod_pattern = pod_pattern
        self._kept_reports, self._max_file_bytes = kept_reports, max_file_bytes
        self._actor = actor or RecordActor("collector", "archive")
        self._quarantine = evidence_records.EvidenceQuarantine()
        self._contents = evidence_contents.KnownContents()
        self._index = evidence_contents.ContentsIndex()

    @property
    def store(self) -> archive_stores.ArchiveStore:
        """The store. Raises ArchiveError without one."""
        if self._store is None:
            message = "no archive: expected archive.url in the collector's settings"
            raise archive_stores.ArchiveError(message)
        return self._store

    def pod_of(self, node: str) -> str:
        """Return the pod of a node as a part of a path; `none` where the pattern does not match."""
        if self._pod_pattern is None:
            return "all"
        match = self._pod_pattern.fullmatch(node)
        return quote((match and match["pod"]) or "none", safe="")

    # Writing -----------------------------------------------------------------------------------

    def write_day(self, day: int, nodes: Iterable[str], now_ns: int) -> Iterator[int]:
        """Archive a day's facts of these nodes that are in no file yet; yield the facts of each file."""
        return self.write_files(INTERVALS, day, nodes, self._read_unarchived, now_ns)

    def write_files(
        self,
        kind: str,
        day: int,
        nodes: Iterable[str],
        read_new: Callable[[str, int], list[archive_files.EvidenceRow]],
        now_ns: int,
    ) -> Iterator[int]:
        """Archive what `read_new` returns for each node and the day; yield the facts of each file."""
        by_pod: dict[str, list[str]] = {}
        for node in sorted(nodes):
            by_pod.setdefault(self.pod_of(node), []).append(node)
        for pod, members in sorted(by_pod.items()):
            rows: list[archive_files.EvidenceRow] = []
            size = 0
            for node in members:
                new = read_new(node, day)
                rows += new
                size += sum(len(row.content) for row in new)
                # After a whole node: the facts of a node on a day are in one file, if they were recorded by then.
                if size >= self._max_file_bytes:
                    with self.failures.isolate():
                        yield self._write_file(kind, day, pod, rows, now_ns)
                    rows, size = [], 0
            if rows:
                with self.failures.isolate():
                    yield self._write_file(kind, day, pod, rows, now_ns)

    def find_due_days(self, days: range, seen_ns: int | None) -> list[int]:
        """Return those of the days that may have facts in no file, in order.

        Facts that were recorded up to `seen_ns` are in files, as far as their day was due then; None if
        that time is not known.
        """
        newest = sa.select(sa.func.max(archives.c.day)).where(archives.c.kind == INTERVALS)
        with self.database.transaction() as connection:
            last = connection.execute(newest).scalar() if seen_ns is not None else None
            if last is None:
                return list(days)
            day = (_intervals.c.start_ns // DAY_NS).label("day")
            is_late = (_intervals.c.recorded_ns > seen_ns, _intervals.c.start_ns < last * DAY_NS)
            late = connection.execute(sa.select(day).where(*is_late).distinct()).scalars()
            return sorted({*late, *range(last, days.stop)})

    def _read_unarchived(self, node: str, day: int) -> list[archive_files.EvidenceRow]:
        """Return a day's facts of a node that are in no file; damaged ones stay in the database only."""
        query = sa.select(*(_intervals.c[name] for name in archive_files.EvidenceRow._fields))
        query = query.where(_of_day(node, day), ~sa.exists().where(_IS_ARCHIVED))
        with self.database.transaction() as connection:
            rows = [
                archive_files.EvidenceRow(*row)
                for row in connection.execute(
                    query.order_by(_intervals.c.start_ns, _intervals.c.part)
                )
            ]
        # A damaged row must not be recorded as archived, as it could then be deleted with the original.
        return [row for row in rows if row.is_intact]

    def _write_file(
        self,
        kind: str,
        day: int,
        pod: str,
        rows: Sequence[archive_files.EvidenceRow],
        now_ns: int,
    ) -> int:
        """Publish a file, verify it, and record it and its facts; return the number of facts."""
        written = archive_files.encode_file(rows)
        digest = sha256(written).hexdigest()
        name = f"day={format_day(day)}/pod={pod}/{kind}-{digest[:32]}.parquet"
        self.store.create(name, written)
        # Twice the size is enough for a correct answer: a store may return anything.
        content = self.store.read(name, 2 * len(written))
        archive_files.check_written(f"{self.store.location}/{name}", content, written, rows)
        file = {
            "name": name,
            "kind": kind,
            "day": day,
            "pod": pod,
            "nodes": archive_files.encode_nodes({row.node for row in rows}),
            "location": self.store.location,
            "sha256": digest,
            "size_bytes": len(written),
            "facts": len(rows),
            "verified_ns": now_ns,
        }
        with self.database.transaction(writes=True) as connection:
            transactions.lock(connection, _LOCK)
            if connection.execute(sa.select(archives).where(archives.c.name == name)).first():
                return 0  # by another collector
            number = _next_number(connection, archives)
            connection.execute(archives.insert().values(number=number, **file))
            members = [{"fact": row.part, "archive": number} for row in rows]
            evidence_tables.insert_new_rows(connection, archived_facts, members)
            data: RecordData = {
                "file": name,
                "location": self.store.location,
                "sha256": digest,
                "facts": len(rows),
                "bytes": len(written),
            }
            self._record(connection, "evidence archive", number, "evidence.archive", data, now_ns)
        return len(rows)

    def _record(  # noqa: PLR0913, PLR0917 - the parts of one record
        self,
        connection: sa.Connection,
        kind: str,
        number: int,
        record_type: str,
        data: RecordData,
        now_ns: int,
    ) -> None:
        """Record a row in the audit log, and commit to it by a head."""
        draft = record_draft.RecordDraft(record_type, self._actor, now_ns, "done", data=data)
        row = head_chain.record_row(connection, kind, number, draft)
        head_chain.append_head(connection, [row], now_ns)

    # Deleting ----------------------------------------------------------------------------------

    def find_last_kept_day(self, node: str, before_ns: int) -> int | None:
        """Return the oldest day of a node that stays in the database; None if all of them do.

        The newest reports before `before_ns` stay, as metering of later days may read them.
        """
        end_ns = self.find_report(node, before_ns, is_before=True)
        return None if end_ns is None else (end_ns - HOUR_NS) // DAY_NS

    def find_report(self, node: str, edge_ns: int, *, is_before: bool) -> int | None:
        """Return the edge of the nearest report of a node beyond those that metering may read from a timestamp."""
        edge = _intervals.c.end_ns if is_before else _intervals.c.start_ns
        is_beyond = edge < edge_ns if is_before else edge > edge_ns
        query = sa.select(edge).distinct().where(_intervals.c.node == node, is_beyond)
        query = query.order_by(edge.desc() if is_before else edge)
        with self.database.transaction() as connection:
            return connection.execute(query.offset(self._kept_reports).limit(1)).scalar()

    def find_last_parts(self, node: str, before_ns: int) -> frozenset[str]:
        """Return the parts of a node that stay in the database for any later day, however old they are."""
        self._index.complete(self.database, [node], self._quarantine.interval)
        with self.database.transaction() as connection:
            source = node_parts.PartSource(
                connection, self._quarantine, self._contents, self._index, is_partial=True
            )
            return frozenset(node_parts.find_last_parts(source, node, before_ns))

    def find_deletable_days(
        self, node: str, end_day: int, kept_parts: Iterable[str] = ()
    ) -> list[int]:
        """Return the days of a node before `end_day` with archived facts that can be deleted, other than some parts."""
        day = _intervals.c.start_ns // DAY_NS
        is_before = (_intervals.c.node == node, _intervals.c.start_ns < end_day * DAY_NS)
        query = (
            sa.select(day.label("day"))
            .distinct()
            .join_from(_intervals, archived_facts, _IS_ARCHIVED)
        )
        with self.database.transaction() as connection:
            is_kept = _intervals.c.part.in_(sorted(kept_parts))
            return sorted(
                connection.execute(query.where(*is_before, ~_IS_LATE, ~is_kept)).scalars()
            )

    def delete_day(
        self, day: int, nodes: Mapping[str, Iterable[str]], now_ns: int
    ) -> Iterator[int]:
        """Delete a day's archived facts of these nodes other than some parts; yield the facts of each step.

        Each file is read again first: the store may have lost or changed it since. Intervals with starts of
        boots that were reported late stay: they may wait for a decision.
        """
        files = {file.number: file for file in self.files(day, day + 1, kind=INTERVALS)}
        for number, facts in sorted(self._find_deletable(day, nodes).items()):
            with self.failures.isolate():
                # Before each deletion and not only after writing: the archive is the only copy from then on.
                self.read(files[number])
                yield from self._delete_of_file(number, facts, now_ns)

    def _delete_of_file(
        self, number: int, facts: dict[str, list[str]], now_ns: int
    ) -> Iterator[int]:
        recent_ns = now_ns - RESTORED_NS
        with self.database.transaction(writes=True) as connection:
            transactions.lock(connection, _LOCK)
            removed = read_removals(connection, number)
            for node, removal in removed.items():
                if removal.action == RESTORED and removal.recorded_ns > recent_ns:
                    facts.pop(node, None)
            new = [n for n in facts if n not in removed or removed[n].action != DELETED]
            if new:
                # Recorded before the first row is deleted: after a crash in between, a day that lacks facts is known
                # to.
                self._record_removal(connection, number, DELETED, new, now_ns)
        for node, parts in facts.items():
            for group in evidence_tables.group_items(parts):
                yield self._delete_facts(number, node, group)

    def _find_deletable(
        self, day: int, nodes: Mapping[str, Iterable[str]]
    ) -> dict[int, dict[str, list[str]]]:
        """Return a day's archived facts by file and node."""
        found: dict[int, dict[str, list[str]]] = {}
        query = sa.select(archived_facts.c.archive, _intervals.c.part)
        query = query.join_from(_intervals, archived_facts, _IS_ARCHIVED)
        for node, kept_parts in sorted(nodes.items()):
            is_kept = _intervals.c.part.in_(sorted(kept_parts))
            with self.database.transaction() as connection:
                of_day = query.where(_of_day(node, day), ~_IS_LATE, ~is_kept)
                for row in connection.execute(of_day):
                    found.setdefault(row.archive, {}).setdefault(node, []).append(row.part)
        return found

    def _delete_facts(self, archive: int, node: str, parts: Sequence[str]) -> int:
        with self.database.transaction(writes=True) as connection:
            transactions.lock(connection, _LOCK)
            if read_removals(connection, archive)[node].action != DELETED:
                return 0  # restored meanwhile
            # Intervals first: their deletion is permitted while the archived fact exists, the fact's while the interval
            # does not.
            for column in (_intervals.c.part, archived_facts.c.fact):
                connection.execute(column.table.delete().where(column.in_(parts)))
        return len(parts)

    def _record_removal(
        self,
        connection: sa.Connection,
        archive: int,
        action: str,
        nodes: Sequence[str],
        now_ns: int,
    ) -> None:
        number = _next_number(connection, removals)
        row = {"archive": archive, "action": action, "nodes": archive_files.encode_nodes(nodes)}
        connection.execute(removals.insert().values(number=number, recorded_ns=now_ns, **row))
        name = connection.execute(
            sa.select(archives.c.name).where(archives.c.number == archive)
        ).scalar_one()
        record_type = "evidence.delete" if action == DELETED else "evidence.restore"
        data: RecordData = {"file": name, "nodes": len(nodes)}
        self._record(connection, "evidence removal", number, record_type, data, now_ns)

    # Reading back ------------------------------------------------------------------------------

    def files(
        self, start_day: int, end_day: int, node: str = "", kind: str = ""
    ) -> list[EvidenceFile]:
        """Return the files of days, of all nodes or one, and of all kinds or one, by day."""
        query = sa.select(archives).where(archives.c.day >= start_day, archives.c.day < end_day)
        if kind:
            query = query.where(archives.c.kind == kind)
        with self.database.transaction() as connection:
            found = [
                schema.from_row(
                    EvidenceFile, row, nodes=tuple(archive_files.decode_nodes(row.nodes))
                )
                for row in connection.execute(query.order_by(archives.c.day, archives.c.number))
            ]
        return [file for file in found if not node or node in file.nodes]

    def deleted_nodes(self, file: EvidenceFile) -> list[str]:
        """Return the nodes whose facts of a file are not in the database."""
        with self.database.transaction() as connection:
            return _find_deleted(connection, file)

    def read(self, file: EvidenceFile) -> list[archive_files.EvidenceRow]:
        """Return the facts of a file. Raises ArchiveError if it is missing or was changed."""
        try:
            content = self.store.read(file.name)
        except archive_stores.ArchiveError as error:
            if file.location == self.store.location:
                raise
            message = f"{error}; it was written to {file.location}; fix: set archive.url to that, or copy its files"
            raise archive_stores.ArchiveError(message) from error
        found = sha256(content).hexdigest()
        if found != file.sha256:
            message = (
                f"{self.store.location}/{file.name} was changed: SHA-256 {found}: expected "
                f"{file.sha256}, as recorded; fix: restore the file from a copy"
            )
            raise archive_stores.ArchiveError(message)
        rows = archive_files.decode_file(content)
        if len(rows) != file.facts or not all(row.is_intact for row in rows):
            message = (
                f"{self.store.location}/{file.name} contains facts that do not match their names"
            )
            raise archive_stores.ArchiveError(message)
        return rows

    def restore(self, file: EvidenceFile, now_ns: int) -> int:
        """Insert the intervals of a file that are not in the database; return their number."""
        rows = self.read(file)
        if file.kind != INTERVALS:
            return 0  # claims are never deleted
        intervals = [row._asdict() for row in rows]
        members = [{"fact": row.part, "archive": file.number} for row in rows]
        with self.database.transaction(writes=True) as connection:
            transactions.lock(connection, _LOCK)
            evidence_tables.insert_new_rows(connection, _intervals, intervals)
            evidence_contents.record_rows(connection, ((row.part, row.content) for row in rows))
            evidence_tables.insert_new_rows(connection, archived_facts, members)
            deleted = _find_deleted(connection, file)
            if deleted:
                self._record_removal(connection, file.number, RESTORED, deleted, now_ns)
        return len(rows) if deleted else 0


def read_removals(connection: sa.Connection, archive: int) -> dict[str, NodeRemoval]:
    """Return the newest removal of each node in a file."""
    query = sa.select(removals).where(removals.c.archive == archive).order_by(removals.c.number)
    return {
        node: NodeRemoval(row.action, row.recorded_ns)
        for row in connection.execute(query)
        for node in archive_files.decode_nodes(row.nodes)
    }


def _find_deleted(connection: sa.Connection, file: EvidenceFile) -> list[str]:
    removed = read_removals(connection, file.number)
    return [node for node in file.nodes if node in removed and removed[node].action == DELETED]


def _next_number(connection: sa.Connection, table: sa.Table) -> int:
    query = sa.select(sa.func.max(table.c.number))
    return int(connection.execute(query).scalar() or 0) + 1
