"""Facts of release 0.3.0 and its archive: tables to which nothing is added.

The facts of days that may still change are copied once to those of `fact_store`, in order of their start. What the ledger
has of these days stays as it was billed; only later facts change it. All calls block, and raise UnusableLedgerError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import sqlalchemy as sa
import structlog

from railscope.timestamps import DAY_NS
from railscope_collector.evidence import claim_events, day_facts, evidence_records, fact_store
from railscope_collector.evidence.node_intervals import MAX_AGE_NS, EvidenceInterval
from railscope_collector.ledger import day_documents, schema
from railscope_collector.ledger.database import Database

log = structlog.get_logger(__name__)

parts = sa.Table(
    "evidence_part",
    schema.metadata,
    *schema.key_texts("part"),
    *schema.texts("node"),
    *schema.integers("start_ns", "end_ns", "recorded_ns"),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sa.Index("evidence_part_starts", "node", "start_ns"),
)
claims = sa.Table(
    "evidence_claim",
    schema.metadata,
    *schema.key_texts("fact"),
    *schema.texts("gpu_uuid", "node", "claim_id"),
    *schema.integers("start_ns", "recorded_ns"),
    sa.Column("content", sa.LargeBinary, nullable=False),
)
ends = sa.Table(
    "evidence_release",
    schema.metadata,
    *schema.key_texts("fact"),
    *schema.texts("gpu_uuid", "node", "claim_id"),
    *schema.integers("instant_ns", "recorded_ns"),
)
trust = sa.Table(
    "evidence_release_trust",
    schema.metadata,
    *schema.key_texts("fact"),
    *schema.integers("trusted_from_ns"),
)
archives = sa.Table(
    "evidence_archive",
    schema.metadata,
    *schema.key_numbers("number"),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    *schema.texts("kind", "pod", "location", "sha256", "nodes"),
    *schema.integers("day", "size_bytes", "facts", "verified_ns"),
)
removals = sa.Table(
    "evidence_removal",
    schema.metadata,
    *schema.key_numbers("number"),
    sa.Column("archive", sa.BigInteger, sa.ForeignKey(archives.c.number), nullable=False),
    *schema.texts("action", "nodes"),
    *schema.integers("recorded_ns"),
)
for _table in (parts, claims, ends, trust, archives, removals):
    schema.make_append_only(_table)
schema.cover_table("evidence archive", archives)
schema.cover_table("evidence removal", removals)

_AT_ONCE = 256
_CLAIM = ("gpu_uuid", "node", "claim_id")


def copy_once(
    database: Database, quarantine: evidence_records.EvidenceQuarantine, days: range
) -> None:
    """Copy the facts that days of a window read, unless that was done."""
    version = sa.func.max(schema.schema_version.c.version)
    with database.transaction() as connection:
        if connection.execute(sa.select(version)).scalar_one() >= schema.VERSION:
            return
    store, copied = fact_store.FactStore(database, quarantine), 0
    for write in _copies(store, days):
        copied += write()
    if copied:
        log.info("former_facts_copied", facts=copied)
    with database.transaction(writes=True) as connection:
        new = schema.insert_new(connection, schema.schema_version)
        connection.execute(new.values(version=schema.VERSION))


def _copies(store: fact_store.FactStore, days: range) -> Iterator[Callable[[], int]]:
    """Yield the writes of all facts that the window reads, each of one transaction."""
    since_ns = days.start * DAY_NS - day_facts.CONTEXT_NS
    ended = _find_ended(since_ns)
    with store.database.transaction() as connection:
        names = connection.execute(_find_parts(since_ns)).scalars().all()
        claim_names, end_names = (
            connection.execute(
                sa.select(table.c.fact)
                .outerjoin(ended, sa.and_(*(table.c[name] == ended.c[name] for name in _CLAIM)))
                .where(ended.c.claim_id.is_(None))
            )
            .scalars()
            .all()
            for table in (claims, ends)
        )

    def write(
        intervals: Sequence[EvidenceInterval], facts: Sequence[claim_events.ClaimFact]
    ) -> int:
        with store.database.transaction(writes=True) as connection:
            # No day is marked before today: the ledger has what follows from these facts.
            store.write_in(connection, intervals, facts, range(days.stop, days.stop))
        return len(intervals) + len(facts)

    def write_parts(few: list[str]) -> int:
        with store.database.transaction() as connection:
            rows = connection.execute(sa.select(parts).where(parts.c.part.in_(few))).all()
        found = (store.quarantine.interval(row.part, row.content, parts.name) for row in rows)
        return write([interval for interval in found if interval], ())

    def write_claims(few: list[str]) -> int:
        with store.database.transaction() as connection:
            rows = connection.execute(sa.select(claims).where(claims.c.fact.in_(few))).all()
        reports: list[claim_events.ReportedClaim] = []
        for row in rows:
            report = store.quarantine.claim(row.fact, row.content, claims.name)
            if report and not 0 < report.end_ns < since_ns:
                received_ns = report.received_ns or row.recorded_ns
                trusted_ns = _trusted_from(report.trusted_from_ns, received_ns)
                reports.append(msgspec.structs.replace(report, trusted_from_ns=trusted_ns))
        return write((), reports)

    def write_ends(few: list[str]) -> int:
        trusted = sa.func.coalesce(trust.c.trusted_from_ns, 0).label("trusted_from_ns")
        joined = ends.outerjoin(trust, trust.c.fact == ends.c.fact)
        query = sa.select(ends, trusted).select_from(joined).where(ends.c.fact.in_(few))
        with store.database.transaction() as connection:
            rows = connection.execute(query).all()
        facts = [
            claim_events.ReportedEnd(
                row.instant_ns,
                row.gpu_uuid,
                row.node,
                row.claim_id,
                _trusted_from(row.trusted_from_ns, row.recorded_ns),
            )
            for row in rows
        ]
        return write((), facts)

    for names_of, write_few in (
        (names, write_parts),
        (claim_names, write_claims),
        (end_names, write_ends),
    ):
        for few in day_documents.split_items(names_of, _AT_ONCE):
            yield partial(write_few, few)


def _trusted_from(former_ns: int, received_ns: int) -> int:
    """Return the time from which a late end counts: 0.3.0 left what is more than an hour before its receipt to people."""
    return min(former_ns, received_ns - MAX_AGE_NS)


def _find_parts(since_ns: int) -> sa.Select[Any]:
    """Select the parts since a timestamp, and of each node the last one before: it has the GPUs of a silent node."""
    last = (
        sa.select(parts.c.node, sa.func.max(parts.c.end_ns).label("end_ns"))
        .where(parts.c.end_ns < since_ns)
        .group_by(parts.c.node)
        .subquery()
    )
    is_read = sa.or_(parts.c.end_ns >= since_ns, parts.c.end_ns == last.c.end_ns)
    joined = parts.outerjoin(last, last.c.node == parts.c.node)
    return sa.select(parts.c.part).select_from(joined).where(is_read).order_by(parts.c.start_ns)


def _find_ended(since_ns: int) -> sa.Subquery:
    """Select the claims that ended before a timestamp."""
    key = [ends.c[name] for name in _CLAIM]
    is_late = trust.c.trusted_from_ns > ends.c.instant_ns
    end_ns = sa.case((is_late, trust.c.trusted_from_ns), else_=ends.c.instant_ns)
    joined = ends.outerjoin(trust, trust.c.fact == ends.c.fact)
    query = sa.select(*key).select_from(joined).group_by(*key)
    return query.having(sa.func.min(end_ns) < since_ns).subquery()
