"""Tables of the evidence in the ledger's database, the SQL statements for them, and late facts.

Rows are added and never changed. Late facts were added since the last poll, and may change
finalized days.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from railscope.timestamps import DAY_NS, FOREVER_NS
from railscope_collector.evidence import boot_starts, claim_events, node_intervals, review_rules
from railscope_collector.files import (
    calendar_file,
    claims_file,
    inventory_file,
    retirements_file,
    tenants_file,
)
from railscope_collector.ledger import schema
from railscope_collector.ledger.schema import (
    insert_new,
    integers,
    make_append_only,
    metadata,
    texts,
    to_row,
)
from railscope_collector.metering import counter_increments

evidence_intervals = sa.Table(
    "evidence_part",
    metadata,
    sa.Column("part", sa.Text, primary_key=True),
    sa.Column("node", sa.Text, nullable=False),
    *integers("start_ns", "end_ns", "recorded_ns"),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sa.Index("evidence_part_ends", "node", "end_ns"),
    sa.Index("evidence_part_starts", "node", "start_ns"),
    sa.Index("evidence_part_recorded", "recorded_ns"),
)
"""Facts from a node's frames of 15 minutes (`interval`); the key is the SHA-256 of the content."""

gpu_nodes = sa.Table(
    "evidence_gpu",
    metadata,
    sa.Column("gpu_uuid", sa.Text, primary_key=True),
    sa.Column("node", sa.Text, primary_key=True),
    sa.Column("since_ns", sa.BigInteger, primary_key=True),
)
"""Nodes that have reported a GPU, with the time of the first report; the lowest time counts."""

first_contacts = sa.Table(
    "evidence_contact",
    metadata,
    sa.Column("node", sa.Text, primary_key=True),
    sa.Column("gpu_uuid", sa.Text, primary_key=True),
    sa.Column("heard_ns", sa.BigInteger, primary_key=True),
    sa.Column("pci", sa.Text, primary_key=True),
)
"""First receipts of GPUs from nodes (`first_contacts`): the lowest value counts."""

reported_claims = sa.Table(
    "evidence_claim",
    metadata,
    sa.Column("fact", sa.Text, primary_key=True),
    *texts("gpu_uuid", "node", "claim_id"),
    *integers("start_ns", "recorded_ns"),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sa.Index("evidence_claim_gpu", "gpu_uuid", "start_ns"),
    sa.Index("evidence_claim_recorded", "recorded_ns"),
)
claim_ends = sa.Table(
    "evidence_release",
    metadata,
    sa.Column("fact", sa.Text, primary_key=True),
    *texts("gpu_uuid", "node", "claim_id"),
    *integers("instant_ns", "recorded_ns"),
    sa.Index("evidence_release_gpu", "gpu_uuid", "instant_ns"),
    sa.Index("evidence_release_recorded", "recorded_ns"),
)
"""Claims and their ends as reported; the key is the SHA-256 of the content."""

claim_end_trust = sa.Table(
    "evidence_release_trust",
    metadata,
    sa.Column("fact", sa.Text, primary_key=True),
    sa.Column("trusted_from_ns", sa.BigInteger, nullable=False),
)
"""Ends, and intervals with starts of boots, that were reported late, and claims on devices allocated twice, by name.

The time before `trusted_from_ns` is pending review.
"""

review_decisions = sa.Table(
    "evidence_decision",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    *texts("what", "node", "name"),
    *integers("accepted", "start_ns", "end_ns", "recorded_ns"),
    sa.Column("content", sa.Text, nullable=False),
    sa.Index("evidence_decision_recorded", "recorded_ns"),
)
"""Decisions of people about evidence under review, as events (CloudEvents): the newest counts."""

file_versions = sa.Table(
    "evidence_file",
    metadata,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("recorded_ns", sa.BigInteger, primary_key=True),
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("content", sa.Text, nullable=False),
)
"""Versions of administrators' files: the newest of each kind counts."""

archives = sa.Table(
    "evidence_archive",
    metadata,
    *schema.key_numbers("number"),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    *texts("kind", "pod", "location", "sha256", "nodes"),
    *integers("day", "size_bytes", "facts", "verified_ns"),
    sa.Index("evidence_archive_day", "day"),
)
"""Verified files: `nodes` is a JSON list, `location` the store that the file was written to."""

archived_facts = sa.Table(
    "evidence_archived_fact",
    metadata,
    sa.Column("fact", sa.Text, primary_key=True),
    sa.Column("archive", sa.BigInteger, sa.ForeignKey(archives.c.number), nullable=False),
)
"""Facts of the database that a verified file contains."""

removals = sa.Table(
    "evidence_removal",
    metadata,
    *schema.key_numbers("number"),
    sa.Column("archive", sa.BigInteger, sa.ForeignKey(archives.c.number), nullable=False),
    *texts("action", "nodes"),
    sa.Column("recorded_ns", sa.BigInteger, nullable=False),
    sa.Index("evidence_removal_archive", "archive"),
)
"""Nodes whose facts of a file were deleted, or restored; of each node, the newest row applies."""
DELETED, RESTORED = "deleted", "restored"

for _table in (
    archives,
    archived_facts,
    removals,
    evidence_intervals,
    gpu_nodes,
    first_contacts,
    reported_claims,
    claim_ends,
    claim_end_trust,
    review_decisions,
    file_versions,
):
    make_append_only(_table)
schema.permit_deletion(
    evidence_intervals,
    "EXISTS (SELECT 1 FROM evidence_archived_fact WHERE fact = OLD.part)",
    archived_facts,
)
schema.permit_deletion(
    archived_facts,
    "NOT EXISTS (SELECT 1 FROM evidence_part WHERE part = OLD.fact)",
    archived_facts,
)
schema.cover_table("evidence archive", archives)
schema.cover_table("evidence removal", removals)


CONTEXT_NS = counter_increments.MAX_INTERLEAVED_NS
"""Time around a window that is read too, so that the window's edges do not affect the result."""
_AT_ONCE = 500
PARSERS: dict[str, Callable[[str], Any]] = {
    "claims": claims_file.parse_claims,
    "tenants": tenants_file.parse_tenants,
    "calendar": calendar_file.parse_calendar,
    "retired": retirements_file.parse_retirements,
    "inventory": inventory_file.parse_inventory,
}
"""Parser of each kind of file that metering depends on."""


def read_intervals(
    connection: sa.Connection, node: str, start_ns: int, end_ns: int
) -> list[tuple[str, bytes]]:
    """Return intervals in and around a window, and the nearest beyond on both sides."""
    is_of_node = evidence_intervals.c.node == node
    low, high = start_ns - CONTEXT_NS, end_ns + CONTEXT_NS
    last = sa.select(sa.func.max(evidence_intervals.c.end_ns))
    before = connection.execute(last.where(is_of_node, evidence_intervals.c.end_ns < low)).scalar()
    first = sa.select(sa.func.min(evidence_intervals.c.start_ns))
    after = connection.execute(
        first.where(is_of_node, evidence_intervals.c.start_ns > high)
    ).scalar()
    within = sa.and_(evidence_intervals.c.end_ns >= low, evidence_intervals.c.start_ns <= high)
    is_selected = sa.or_(
        within, evidence_intervals.c.end_ns == before, evidence_intervals.c.start_ns == after
    )
    query = (
        sa.select(evidence_intervals.c.part, evidence_intervals.c.content)
        .where(is_of_node, is_selected)
        .order_by(evidence_intervals.c.part)
    )
    return [(row.part, row.content) for row in connection.execute(query)]


def select_claims(
    gpus: Sequence[str], start_ns: int, end_ns: int, known_ns: int | None = None
) -> Any:
    """Return a query for claims of GPUs that may have been in force in or around a window.

    With `known_ns`, only ends that were recorded before it show that a claim was not.
    """
    late = sa.exists().where(
        claim_end_trust.c.fact == claim_ends.c.fact,
        claim_end_trust.c.trusted_from_ns >= start_ns - CONTEXT_NS,
    )
    is_known = () if known_ns is None else (claim_ends.c.recorded_ns < known_ns,)
    over = sa.exists().where(
        ~late,
        *is_known,
        claim_ends.c.gpu_uuid == reported_claims.c.gpu_uuid,
        claim_ends.c.node == reported_claims.c.node,
        claim_ends.c.claim_id == reported_claims.c.claim_id,
        claim_ends.c.instant_ns < start_ns - CONTEXT_NS,
    )
    return sa.select(reported_claims.c.fact, reported_claims.c.content).where(
        reported_claims.c.gpu_uuid.in_(gpus),
        reported_claims.c.start_ns < end_ns + CONTEXT_NS,
        ~over,
    )


def select_reports(ids: Sequence[tuple[str, str]]) -> Any:
    """Return a query for all reports of claims with some ids, by GPU and id."""
    key = sa.tuple_(reported_claims.c.gpu_uuid, reported_claims.c.claim_id)
    return sa.select(reported_claims.c.fact, reported_claims.c.content).where(key.in_(ids))


def select_ends(pairs: Sequence[tuple[str, str, str]]) -> Any:
    """Return a query for the ends of claims, by GPU, node and id."""
    key = sa.tuple_(claim_ends.c.gpu_uuid, claim_ends.c.node, claim_ends.c.claim_id)
    trusted = sa.func.coalesce(claim_end_trust.c.trusted_from_ns, 0).label("trusted_from_ns")
    joined = claim_ends.outerjoin(claim_end_trust, claim_end_trust.c.fact == claim_ends.c.fact)
    return sa.select(claim_ends, trusted).select_from(joined).where(key.in_(pairs))


def newest_file(
    connection: sa.Connection, kind: str, before_ns: int = FOREVER_NS
) -> sa.Row[Any] | None:
    """Return the newest version of a file that was recorded before a timestamp; None without one."""
    conditions = (file_versions.c.kind == kind, file_versions.c.recorded_ns < before_ns)
    newest_first = file_versions.c.recorded_ns.desc()
    query = sa.select(file_versions).where(*conditions).order_by(newest_first).limit(1)
    return connection.execute(query).first()


def find_differences(kind: str, before: str, after: str) -> list[tuple[str, str, int, int]]:
    """Return the node, GPU (empty for any) and time of each difference between two versions of a file."""
    if kind not in PARSERS:
        return []
    entries = [set(PARSERS[kind](text)) if text else set() for text in (before, after)]
    different = entries[0] ^ entries[1]
    if kind == "retired":
        return sorted({("", entry.gpu, entry.start_ns, entry.end_ns) for entry in different})
    # Row by row only between two inventories: the first one, or its removal, changes what is expected of all nodes.
    if kind == "inventory" and before and after:
        return sorted({(entry.node, "", entry.start_ns, entry.end_ns) for entry in different})
    if not different:
        return []
    start_ns, end_ns = (
        min(entry.start_ns for entry in different),
        max(entry.end_ns for entry in different),
    )
    return [("", "", start_ns, end_ns)]


def find_new_homes(
    connection: sa.Connection, since: dict[tuple[str, str], int]
) -> list[dict[str, Any]]:
    """Return rows for the GPUs that were not recorded in their nodes as early as in `since`."""
    earliest_ns: dict[tuple[str, str], int] = {}
    for gpu_group in group_items(sorted({gpu for gpu, _ in since})):
        query = sa.select(gpu_nodes).where(gpu_nodes.c.gpu_uuid.in_(gpu_group))
        for row in connection.execute(query):
            key = (row.gpu_uuid, row.node)
            earliest_ns[key] = min(row.since_ns, earliest_ns.get(key, row.since_ns))
    return [
        {"gpu_uuid": gpu, "node": node, "since_ns": first_ns}
        for (gpu, node), first_ns in since.items()
        if first_ns < earliest_ns.get((gpu, node), FOREVER_NS)
    ]


def read_contacts(
    connection: sa.Connection, nodes: Sequence[str] | None = None
) -> dict[str, dict[str, node_intervals.FirstContact]]:
    """Return the first receipts of the GPUs of some nodes, or of all."""
    contacts: dict[str, dict[str, node_intervals.FirstContact]] = {}
    query = sa.select(first_contacts)
    queries = [query]
    if nodes is not None:
        queries = [
            query.where(first_contacts.c.node.in_(node_group)) for node_group in group_items(nodes)
        ]
    for contact_query in queries:
        for row in connection.execute(contact_query):
            contact = node_intervals.FirstContact(row.heard_ns, row.pci)
            gpus = contacts.setdefault(row.node, {})
            # Rows are only added: the lowest receipt counts.
            gpus[row.gpu_uuid] = min(contact, gpus.get(row.gpu_uuid, contact))
    return contacts


def contact_rows(found: node_intervals.Contacts) -> list[dict[str, Any]]:
    """Return first receipts as rows."""
    return [
        to_row(first_contacts, contact, node=node, gpu_uuid=gpu, heard_ns=contact.received_ns)
        for node, gpus in found.items()
        for gpu, contact in gpus.items()
    ]


def claim_row(fact: claim_events.ClaimFact, recorded_ns: int) -> dict[str, Any]:
    """Return a claim or its end as a row; its name is the hash of its content."""
    content = msgspec.msgpack.encode(fact)
    key = {"fact": sha256(content).hexdigest(), "claim_id": fact.id, "recorded_ns": recorded_ns}
    if isinstance(fact, claim_events.ReportedClaim):
        return to_row(reported_claims, fact, **key, content=content)
    return to_row(claim_ends, fact, **key, instant_ns=fact.timestamp_ns)


def read_decisions(connection: sa.Connection) -> review_rules.ReviewDecisions:
    """Return the decisions of people; of two decisions the later one counts."""
    # By time and then by id, so that all collectors select the same one of two simultaneous decisions.
    query = sa.select(review_decisions).order_by(
        review_decisions.c.recorded_ns, review_decisions.c.id
    )
    decisions: dict[review_rules.ReviewSubject, bool] = {}
    for row in connection.execute(query):
        decisions[
            review_rules.ReviewSubject(review_rules.ReviewKind(row.what), row.node, row.name)
        ] = bool(row.accepted)
    return review_rules.ReviewDecisions(decisions)


def insert_new_rows(
    connection: sa.Connection, table: sa.Table, rows: Sequence[dict[str, Any]]
) -> None:
    """Insert rows that do not exist yet, in the order of their keys.

    So transactions with the same rows wait for each other, without a deadlock.
    """
    keys = [column.name for column in table.primary_key]
    for row_group in group_items(sorted(rows, key=lambda row: [row[name] for name in keys])):
        connection.execute(insert_new(connection, table), row_group)


def group_items(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    """Divide items into groups small enough for one statement."""
    return (items[at : at + _AT_ONCE] for at in range(0, len(items), _AT_ONCE))


class EvidenceChange(NamedTuple):
    """A new fact in the database, about a node or a GPU between `start_ns` and `end_ns`."""

    fact: str
    """Its name: another fact about the same time is another change."""
    node: str
    gpu: str
    start_ns: int
    end_ns: int


class LateCondition(NamedTuple):
    """Condition for late facts: recorded more than `delay_ns` after the day that they concern.

    Only facts about days since `since_ns`.
    """

    since_ns: int
    delay_ns: int

    def late_condition(self, start_ns: Any, recorded_ns: Any) -> Any:
        """Return the condition for a fact with this start and this time of recording."""
        return recorded_ns > (start_ns // DAY_NS + 1) * DAY_NS + self.delay_ns


def find_facts_recorded_after(
    connection: sa.Connection, timestamp_ns: int
) -> Iterator[EvidenceChange]:
    """Yield the facts that were recorded after a timestamp, with their node or GPU and time."""
    yield from _find_interval_changes(connection, evidence_intervals.c.recorded_ns > timestamp_ns)
    for since in _SINCE:
        is_new = since.table.c.recorded_ns > timestamp_ns
        yield from _find_gpu_changes(connection, since, is_new)
    new_files = sa.select(file_versions).where(file_versions.c.recorded_ns > timestamp_ns)
    for version in connection.execute(new_files).all():
        last_one = newest_file(connection, version.kind, version.recorded_ns)
        before_it = last_one.content if last_one else ""
        name = f"{version.kind} {version.recorded_ns} {version.digest}"
        for about in find_differences(version.kind, before_it, version.content):
            yield EvidenceChange(name, *about)
    new_decisions = sa.select(review_decisions).where(review_decisions.c.recorded_ns > timestamp_ns)
    for row in connection.execute(new_decisions):
        yield EvidenceChange(row.id, row.node, "", row.start_ns, row.end_ns)


def find_late_facts(
    connection: sa.Connection, gpus: Sequence[str], nodes: Sequence[str], condition: LateCondition
) -> Iterator[EvidenceChange]:
    """Yield the late facts about some GPUs and the nodes that they were in."""
    intervals = evidence_intervals.c
    for node_group in group_items(nodes):
        is_of_node = sa.and_(intervals.node.in_(node_group), intervals.end_ns >= condition.since_ns)
        is_late = condition.late_condition(intervals.start_ns, intervals.recorded_ns)
        yield from _find_interval_changes(connection, sa.and_(is_of_node, is_late))
    for gpu_group in group_items(gpus):
        for since in _SINCE:
            is_late = condition.late_condition(since, since.table.c.recorded_ns)
            is_of_gpu = since.table.c.gpu_uuid.in_(gpu_group)
            yield from _find_gpu_changes(connection, since, sa.and_(is_of_gpu, is_late))


def _find_interval_changes(connection: sa.Connection, condition: Any) -> Iterator[EvidenceChange]:
    """Yield changes by intervals; one that ends a gap in the reports concerns all of the gap."""
    earlier = evidence_intervals.alias()
    before = sa.select(sa.func.max(earlier.c.end_ns)).where(
        earlier.c.node == evidence_intervals.c.node,
        earlier.c.end_ns < evidence_intervals.c.start_ns,
    )
    last = before.scalar_subquery().label("last")
    columns = (evidence_intervals.c[name] for name in ("part", "node", "start_ns", "end_ns"))
    for row in connection.execute(sa.select(*columns, last).where(condition)):
        # The gap before it is metered as a gap between two samples: its length changes with this interval.
        start_ns = row.start_ns if row.last is None else row.last
        yield EvidenceChange(row.part, row.node, "", start_ns, row.end_ns)


_SINCE = (reported_claims.c.start_ns, claim_ends.c.instant_ns, boot_starts.boot_starts.c.first_ns)
"""Times from which claims, their ends, and boots that end claims change the days of a GPU."""


def _find_gpu_changes(
    connection: sa.Connection, since: sa.Column[int], condition: Any
) -> Iterator[EvidenceChange]:
    """Yield changes by the rows of a table about GPUs, each from the time in a column on."""
    query = sa.select(since.table.c.fact, since.table.c.gpu_uuid, since).where(condition)
    for fact, gpu, since_ns in connection.execute(query):
        yield EvidenceChange(fact, "", gpu, since_ns, FOREVER_NS)
