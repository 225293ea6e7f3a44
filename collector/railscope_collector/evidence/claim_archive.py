"""Archive of what metering of a day reads besides intervals: claims, first contacts, files and decisions.

With it, an archived day can be computed again from the archive alone. A file of claims has a row for each node: all
claims that may have been in force on the day, with their ends, and the GPUs and first contacts of the node. The row
with the administrators' files and decisions is written last, in a file of its own: a day without it is not complete.

A day is written again when it was revised, and before its intervals are deleted. Rows only become more complete: an
end excludes a claim from the days after it only if it was recorded before them. So the rows of a node and day
together are what metering reads, however often the day was written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from railscope.timestamps import DAY_NS, HOUR_NS
from railscope_collector import archive_stores
from railscope_collector.evidence import (
    archive_files,
    claim_events,
    evidence_archive,
    evidence_tables,
)
from railscope_collector.ledger.day_documents import ledger_days

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

FILES_NODE = ""
"""Node of the row with files and decisions."""
_REVISION_MARGIN_NS = HOUR_NS
"""Maximum time from the computation of a ledger day until it is in the database."""
CLAIM_TABLES = {
    table.name: table
    for table in (
        evidence_tables.reported_claims,
        evidence_tables.claim_ends,
        evidence_tables.claim_end_trust,
    )
}
TABLES = CLAIM_TABLES | {
    table.name: table
    for table in (
        evidence_tables.gpu_nodes,
        evidence_tables.first_contacts,
        evidence_tables.review_decisions,
        evidence_tables.file_versions,
    )
}
_archives, _facts = evidence_archive.archives, evidence_archive.archived_facts


class NodeClaims(msgspec.Struct, frozen=True):
    """Content of a row: rows of tables, about a node on a day."""

    day: int
    node: str
    tables: dict[str, list[dict[str, Any]]]

    def insert(self, connection: sa.Connection, tables: Mapping[str, sa.Table] = TABLES) -> None:
        """Insert the rows of tables that do not exist yet."""
        for name, table in tables.items():
            evidence_tables.insert_new_rows(connection, table, self.tables.get(name, ()))

    @property
    def homes(self) -> Iterator[tuple[str, str]]:
        """Each GPU that was in the node, with each node that it was in."""
        for row in self.tables.get(evidence_tables.gpu_nodes.name, ()):
            yield row["gpu_uuid"], row["node"]


def decode_row(row: archive_files.EvidenceRow) -> NodeClaims:
    """Decode a row. Raises ArchiveError."""
    try:
        return msgspec.msgpack.decode(zstd.decompress(row.content), type=NodeClaims)
    except (msgspec.MsgspecError, zstd.ZstdError) as error:
        message = f"invalid claims of {row.node} in the archive: {error}"
        raise archive_stores.ArchiveError(message) from error


def _encode_row(day: int, node: str, tables: dict[str, Sequence[Any]]) -> archive_files.EvidenceRow:
    """Return rows of tables as a row of a file; equal facts give equal rows."""
    plain = {
        name: sorted(
            (dict(row._mapping) for row in rows),  # noqa: SLF001 - its name in SQLAlchemy
            key=lambda row: [row[column.name] for column in TABLES[name].primary_key],
        )
        for name, rows in tables.items()
    }
    recorded = (
        row["recorded_ns"] for rows in plain.values() for row in rows if "recorded_ns" in row
    )
    # Of its rows and not the present time: a day that is written again must give the same row.
    recorded_ns = max(recorded, default=0)
    content = msgspec.msgpack.encode(NodeClaims(day, node, plain), order="deterministic")
    return archive_files.EvidenceRow(
        sha256(content).hexdigest(),
        node,
        day * DAY_NS,
        (day + 1) * DAY_NS,
        recorded_ns,
        zstd.compress(content),
    )


def _read_all(connection: sa.Connection, query: Any, keys: Iterable[Any]) -> list[sa.Row[Any]]:
    """Return the rows of a query by groups of keys."""
    return [
        row
        for group in evidence_tables.group_items(sorted(keys))
        for row in connection.execute(query(group))
    ]


class ClaimArchive(NamedTuple):
    """Files of claims of one archive. Calls block, and raise ArchiveError and UnusableLedgerError."""

    archive: evidence_archive.EvidenceArchive

    def find_due_days(self, days: Iterable[int], window: range, seen_ns: int | None) -> set[int]:
        """Return the days that are to be written: of `days` and all archived ones, those that are not complete.

        Also the complete days of a window that were revised after `seen_ns`; if that time is not known, all
        complete days of the window.
        """
        archived = sa.select(_archives.c.day).distinct()
        written = ledger_days.c
        revised = sa.select(written.day).distinct()
        revised = revised.where(written.day.between(window.start, window.stop - 1))
        if seen_ns is not None:
            # The margin covers days that were computed before the last round and committed after it.
            revised = revised.where(written.recorded_ns > seen_ns - _REVISION_MARGIN_NS)
        with self.archive.database.transaction() as connection:
            archived_days = set(connection.execute(archived).scalars())
            complete = self._read_complete_days(connection)
            again = set(connection.execute(revised).scalars()) & complete
        return ({*days, *archived_days} - complete) | again

    def is_complete(self, day: int) -> bool:
        """True if a day was archived: intervals and claims of all nodes, then files and decisions."""
        with self.archive.database.transaction() as connection:
            return day in self._read_complete_days(connection)

    @staticmethod
    def _read_complete_days(connection: sa.Connection) -> set[int]:
        last = (_archives.c.kind == evidence_archive.CLAIMS, _archives.c.nodes == '[""]')
        return set(connection.execute(sa.select(_archives.c.day).where(*last)).scalars())

    def write_day(self, day: int, now_ns: int) -> Iterator[int]:
        """Archive the claims of a day that are in no file yet; yield the nodes of each file."""
        homes = evidence_tables.gpu_nodes.c
        query = sa.select(homes.node, homes.gpu_uuid).distinct()
        gpus: dict[str, list[str]] = {}
        with self.archive.database.transaction() as connection:
            for row in connection.execute(query.where(homes.since_ns < (day + 1) * DAY_NS)):
                gpus.setdefault(row.node, []).append(row.gpu_uuid)
        kind = evidence_archive.CLAIMS

        def read_node(node: str, day: int) -> list[archive_files.EvidenceRow]:
            # A snapshot: claims and ends of one row must be of one moment.
            with self.archive.database.transaction(is_snapshot=True) as connection:
                return _read_new(
                    connection, day, node, _read_node(connection, day, node, gpus[node])
                )

        failures = len(self.archive.failures.problems)
        yield from self.archive.write_files(kind, day, gpus, read_node, now_ns)
        if len(self.archive.failures.problems) > failures:
            return  # without the last row the day is not complete, and is written again

        def read_files(node: str, day: int) -> list[archive_files.EvidenceRow]:
            with self.archive.database.transaction(is_snapshot=True) as connection:
                return _read_new(connection, day, node, _read_files(connection))

        yield from self.archive.write_files(kind, day, [FILES_NODE], read_files, now_ns)


def _read_new(
    connection: sa.Connection, day: int, node: str, tables: dict[str, Sequence[Any]]
) -> list[archive_files.EvidenceRow]:
    """Return a row if it is in no file yet."""
    row = _encode_row(day, node, tables)
    archived = sa.select(_facts.c.fact).where(_facts.c.fact == row.part)
    return [] if connection.execute(archived).first() else [row]


def _read_node(
    connection: sa.Connection, day: int, node: str, gpus: Sequence[str]
) -> dict[str, Sequence[Any]]:
    """Return what metering of the GPUs of a node on a day reads, as `EvidenceStore.load` does."""
    of = evidence_tables
    contacts = connection.execute(
        sa.select(of.first_contacts).where(of.first_contacts.c.node == node)
    ).all()
    gpus_of_node = {*gpus, *(row.gpu_uuid for row in contacts)}
    homes = _read_all(
        connection,
        lambda few: sa.select(of.gpu_nodes).where(of.gpu_nodes.c.gpu_uuid.in_(few)),
        gpus_of_node,
    )
    span = day * DAY_NS, (day + 1) * DAY_NS
    claims = _read_all(
        connection,
        # By the knowledge at the start of the day: an end that was recorded later must not exclude a claim from an
        # archived day.
        lambda few: of.select_claims(few, *span, known_ns=span[0]).with_only_columns(
            *of.reported_claims.c
        ),
        {*gpus_of_node, claim_events.unplaced_key(node)},
    )
    claims = _read_all(
        connection,
        lambda few: of.select_reports(few).with_only_columns(*of.reported_claims.c),
        {(row.gpu_uuid, row.claim_id) for row in claims},
    )
    named = {(row.gpu_uuid, row.node, row.claim_id) for row in claims}
    key = sa.tuple_(of.claim_ends.c.gpu_uuid, of.claim_ends.c.node, of.claim_ends.c.claim_id)
    ends = _read_all(connection, lambda few: sa.select(of.claim_ends).where(key.in_(few)), named)
    trust = _read_all(
        connection,
        lambda few: sa.select(of.claim_end_trust).where(of.claim_end_trust.c.fact.in_(few)),
        {row.fact for row in ends},
    )
    return {
        of.gpu_nodes.name: homes,
        of.first_contacts.name: contacts,
        of.reported_claims.name: claims,
        of.claim_ends.name: ends,
        of.claim_end_trust.name: trust,
    }


def _read_files(connection: sa.Connection) -> dict[str, Sequence[Any]]:
    """Return the newest version of each administrators' file, and all decisions."""
    newest = (evidence_tables.newest_file(connection, kind) for kind in evidence_tables.PARSERS)
    decisions = connection.execute(sa.select(evidence_tables.review_decisions)).all()
    return {
        evidence_tables.file_versions.name: [row for row in newest if row],
        evidence_tables.review_decisions.name: decisions,
    }
