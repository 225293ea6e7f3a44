"""Facts of nodes in the ledger's database (`fact_tables`), and the days that each of them changes.

Quarters, claims and ends are added and never changed; a fact that is written again changes nothing. `claim_span` and
`gpu_state` follow from them; states are made again from a quarter that comes late. All calls block, and raise
UnusableLedgerError.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Any

import msgspec
import sqlalchemy as sa

from railscope.timestamps import DAY_NS, FOREVER_NS
from railscope_collector.evidence.claim_events import (
    ClaimFact,
    ReportedClaim,
    ReportedEnd,
    is_gpu,
)
from railscope_collector.evidence.day_facts import (
    CONTEXT_NS,
    DayFacts,
    spans_of,
    spans_on,
)
from railscope_collector.evidence.evidence_records import EvidenceQuarantine
from railscope_collector.evidence.fact_tables import (
    CONTESTED,
    KINDS,
    LAYOUT,
    MODEL,
    NODE,
    PLACES,
    boots,
    claim_ends,
    claim_spans,
    claims,
    encode,
    insert,
    mark_days,
    mark_since,
    marked_days,
    quarters,
    read_states,
    states,
)
from railscope_collector.evidence.gpu_states import Contest, GpuStates, by_start
from railscope_collector.evidence.node_intervals import (
    MAX_AGE_NS,
    EvidenceInterval,
    encode_interval,
)
from railscope_collector.evidence.stored_quarters import StoredQuarters
from railscope_collector.ledger import day_documents, transactions
from railscope_collector.ledger.database import Database

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_LOCK = 0x7261_696C_6661_6374  # "railfact" in ASCII
_LEVEL = 6


class FactStore:
    """Facts of all collectors of a database."""

    def __init__(
        self,
        database: Database,
        quarantine: EvidenceQuarantine | None = None,
        check_term: Callable[[sa.Connection], None] = lambda _connection: None,
    ) -> None:
        """`check_term` raises LostLeaseError in a transaction that stores facts if another collector is active."""
        self.database, self._check_term = database, check_term
        self.quarantine = quarantine or EvidenceQuarantine()

    # Writing -----------------------------------------------------------------------------------

    def write(
        self, intervals: Sequence[EvidenceInterval], facts: Sequence[ClaimFact], days: range
    ) -> list[Contest]:
        """Add facts as `write_in`, in a transaction of their own, and remove marks that were not taken in time.

        No collector meters their days again, and a bill would wait for them.
        """
        with self.database.transaction(writes=True) as connection:
            contests = self.write_in(connection, intervals, facts, days)
            connection.execute(sa.delete(marked_days).where(marked_days.c.day < days.start))
        return contests

    def write_in(
        self,
        connection: sa.Connection,
        intervals: Sequence[EvidenceInterval],
        facts: Sequence[ClaimFact],
        days: range,
    ) -> list[Contest]:
        """Add facts, the changes of GPU states that they show, and marks of the days that they change.

        `days` are over, and may still change: earlier ones are never marked, and later ones when they are over. Return
        the GPUs that a second node has begun to list.
        """
        self._check_term(connection)
        # What a quarter changes depends on those stored before: collectors store one after another.
        transactions.lock(connection, _LOCK)
        # With today: the open day of a node that has lost a GPU changes with no further quarter of it.
        changeable = range(days.start, days.stop + 1)
        gpus = GpuStates(connection, StoredQuarters(connection, self.quarantine), changeable)
        for interval in sorted(intervals, key=by_start):
            if _write_quarter(connection, interval):
                _record_boot(connection, interval, days)
                gpus.record(interval)
                _mark_quarter(connection, interval, days)
        for fact in facts:
            if is_gpu(fact.gpu):
                _write_claim(connection, fact, days)
        # Agents delete their frames after this commit, so it must be on the standby as well.
        transactions.await_standby(connection)
        return gpus.contests

    # Reading -----------------------------------------------------------------------------------

    def read_day(self, connection: sa.Connection, gpus: Sequence[str], day: int) -> DayFacts:
        """Return all facts about GPUs on a day."""
        start_ns, end_ns = day * DAY_NS, (day + 1) * DAY_NS
        values = {kind: read_states(connection, gpus, kind, end_ns + CONTEXT_NS) for kind in KINDS}
        nodes, contested = (
            {span.value for rows in values[kind].values() for span in spans_on(rows, day)} - {""}
            for kind in PLACES
        )
        stored = StoredQuarters(connection, self.quarantine)
        found = {
            node: stored.read(node, start_ns - CONTEXT_NS, end_ns + CONTEXT_NS, nearest=True)
            for node in sorted(nodes)
        }
        starts_ns = (each.start_ns for of_node in found.values() for each in of_node)
        since_ns = min(start_ns - CONTEXT_NS, *starts_ns, start_ns)
        span = claim_spans.c
        # A claim may end when its GPU has left its node: a bill needs the end.
        former = sorted({each.value for rows in values[NODE].values() for each in rows})
        ends_now = sa.and_(span.node.in_(former), span.end_ns > start_ns, span.end_ns <= end_ns)
        is_read = sa.or_(span.node.in_(sorted(nodes | contested)), ends_now)
        within = sa.and_(span.start_ns < end_ns, span.end_ns >= since_ns)
        reported, ends = self._read_claims(connection, gpus, sa.and_(is_read, within))
        reporting = {each.node for of_gpu in reported.values() for each in of_gpu}
        booted: dict[str, dict[str, int]] = {n: {} for n in nodes | contested | reporting}
        is_early = boots.c.first_ns < end_ns + CONTEXT_NS
        for row in connection.execute(
            sa.select(boots).where(boots.c.node.in_(sorted(booted)), is_early)
        ):
            booted[row.node][row.boot] = row.first_ns
        return DayFacts(
            values[NODE],
            values[CONTESTED],
            values[MODEL],
            values[LAYOUT],
            found,
            reported,
            ends,
            booted,
        )

    def _read_claims(
        self,
        connection: sa.Connection,
        gpus: Sequence[str],
        is_read: sa.ColumnElement[bool],
    ) -> tuple[dict[str, list[ReportedClaim]], dict[tuple[str, str, str], int]]:
        """Return all reports, and the lowest ends, of claims whose span fulfils a condition.

        All reports of a claim: one with a later start may be the first one, which counts.
        """
        key = ("gpu", "node", "claim")
        query = (
            sa.select(claims, claim_spans.c.end_ns)
            .join(claim_spans, sa.and_(*(claims.c[name] == claim_spans.c[name] for name in key)))
            .where(claim_spans.c.gpu.in_(gpus), is_read)
        )
        reported: dict[str, list[ReportedClaim]] = {gpu: [] for gpu in gpus}
        ends: dict[tuple[str, str, str], int] = {}
        for row in connection.execute(query):
            report = self.quarantine.claim(row.report, row.content, claims.name)
            reported[row.gpu] += [report] if report else []
            if row.end_ns < FOREVER_NS:
                ends[row.node, row.gpu, row.claim] = row.end_ns
        return reported, ends

    def has_any(self) -> bool:
        """True if any node ever reported a GPU."""
        with self.database.transaction() as connection:
            return connection.execute(sa.select(states.c.gpu).limit(1)).first() is not None

    def nodes(self) -> list[str]:
        """Return all nodes that ever had a GPU."""
        with self.database.transaction() as connection:
            query = sa.select(states.c.value).where(states.c.kind == NODE).distinct()
            return sorted(map(msgspec.json.decode, connection.execute(query).scalars()))

    # Marked days -------------------------------------------------------------------------------

    def mark_gpus(self, gpu_days: Iterable[tuple[str, int]]) -> None:
        """Mark days of the nodes that had GPUs on them."""
        days: dict[str, set[int]] = {}
        for gpu, day in gpu_days:
            days.setdefault(gpu, set()).add(day)
        found: dict[str, set[int]] = {}
        with self.database.transaction(writes=True) as connection:
            for few in day_documents.split_items(sorted(days)):
                for gpu, places in read_states(connection, few, NODE).items():
                    for day in days[gpu]:
                        for span in spans_on(places, day):
                            found.setdefault(span.value, set()).add(day)
            for node, of_node in sorted(found.items()):
                mark_days(connection, node, sorted(of_node))

    def mark_versions(self, days: range) -> dict[tuple[str, int], tuple[int, int]]:
        """Return a version of the facts of each marked day of a node: another one if further facts change it."""
        number = marked_days.c.number
        with self.database.transaction() as connection:
            # With the count: of two transactions, the one with the smaller number may be committed later.
            query = (
                sa.select(
                    marked_days.c.node, marked_days.c.day, sa.func.max(number), sa.func.count()
                )
                .where(marked_days.c.day >= days.start, marked_days.c.day < days.stop)
                .group_by(marked_days.c.node, marked_days.c.day)
            )
            return {
                (node, day): (newest, count)
                for node, day, newest, count in connection.execute(query)
            }

    def marked_days(self, days: range) -> list[tuple[str, int]]:
        """Return node and day of all marks in a window, the oldest day first."""
        with self.database.transaction() as connection:
            query = (
                sa.select(marked_days.c.node, marked_days.c.day)
                .where(marked_days.c.day >= days.start, marked_days.c.day < days.stop)
                .distinct()
                .order_by(marked_days.c.day, marked_days.c.node)
            )
            return [(row.node, row.day) for row in connection.execute(query)]


def _write_quarter(connection: sa.Connection, interval: EvidenceInterval) -> bool:
    """Add a quarter; true if it is new."""
    content = encode_interval(interval)
    row = {
        "quarter": sha256(content).hexdigest(),
        "node": interval.node,
        "start_ns": interval.start_ns,
        "end_ns": interval.end_ns,
        "content": zstd.compress(content, _LEVEL),
    }
    return insert(connection, quarters, row)


def gpus_on(connection: sa.Connection, node: str, day: int) -> list[str]:
    """Return the GPUs that were in a node on a day."""
    was_there = sa.and_(states.c.kind == NODE, states.c.value == encode(node))
    gpus = connection.execute(sa.select(states.c.gpu).distinct().where(was_there)).scalars().all()
    places = read_states(connection, gpus, NODE)
    return sorted(
        gpu for gpu in gpus if any(span.value == node for span in spans_on(places[gpu], day))
    )


def find_first_day(connection: sa.Connection) -> int:
    """Return the day of the first quarter; 0 if there is none."""
    first_ns = connection.execute(sa.select(sa.func.min(quarters.c.start_ns))).scalar()
    return (first_ns or 0) // DAY_NS


def clear_marks(connection: sa.Connection, node: str, day: int) -> None:
    """Remove the marks of a day, before its facts are read: a mark that is committed later stays."""
    is_day = sa.and_(marked_days.c.node == node, marked_days.c.day == day)
    connection.execute(sa.delete(marked_days).where(is_day))


def mark_difference(connection: sa.Connection, about: Any, days: range) -> None:
    """Mark the days of a window that a difference of a file (node, GPU, start, end) changes."""
    query = sa.select(states.c.value).where(states.c.kind == NODE).distinct()
    if about.gpu:
        query = query.where(states.c.gpu == about.gpu)
    if about.node:
        query = query.where(states.c.value == encode(about.node))
    first = max(days.start, (about.start_ns - CONTEXT_NS) // DAY_NS)
    last = min(days.stop - 1, (about.end_ns + CONTEXT_NS) // DAY_NS)
    for node in connection.execute(query).scalars().all():
        mark_days(connection, msgspec.json.decode(node), range(first, last + 1))


def _record_boot(connection: sa.Connection, interval: EvidenceInterval, days: range) -> None:
    """Record the first report of a boot, which ends the claims that the boot does not report."""
    reported_ns = min((span.first_ns for span in interval.report_spans()), default=None)
    if reported_ns is None:
        return
    trusted_ns = min((each.trusted_start_ns for each in interval.gpus.values()), default=0)
    first_ns = max(trusted_ns, reported_ns)
    is_boot = sa.and_(boots.c.node == interval.node, boots.c.boot == interval.boot)
    known_ns = connection.execute(sa.select(boots.c.first_ns).where(is_boot)).scalar()
    if known_ns is None:
        row = {"node": interval.node, "boot": interval.boot, "first_ns": first_ns}
        connection.execute(boots.insert().values(row))
    elif first_ns < known_ns:
        connection.execute(boots.update().where(is_boot).values(first_ns=first_ns))
    else:
        return
    mark_since(connection, interval.node, first_ns, days)


def _write_claim(connection: sa.Connection, fact: ClaimFact, days: range) -> None:
    key = {"gpu": fact.gpu, "node": fact.node, "claim": fact.id}
    if isinstance(fact, ReportedEnd):
        since_ns = fact.trusted_end_ns
        is_new = _write_claim_end(connection, key, since_ns)
    else:
        content = msgspec.msgpack.encode(fact)
        since_ns = max(fact.start_ns, fact.received_ns - MAX_AGE_NS)
        row = {
            "boot": fact.boot,
            "report": sha256(content).hexdigest(),
            "start_ns": fact.start_ns,
            "content": content,
        }
        is_new = insert(connection, claims, key | row)
        if is_new:
            _lower_span(connection, key, start_ns=fact.start_ns)
        if fact.end_ns:
            end_ns = max(fact.end_ns, fact.trusted_from_ns)
            is_new |= _write_claim_end(connection, key, end_ns)
    if is_new:
        places = spans_of(read_states(connection, [fact.gpu], NODE).get(fact.gpu, ()))
        nodes = {fact.node}
        # A GPU may have left the node of the claim, which had it.
        if any(stay.value == fact.node for stay in places):
            nodes |= {stay.value for stay in places if stay.end_ns > since_ns}
        for node in sorted(nodes):
            mark_since(connection, node, since_ns - CONTEXT_NS, days)


def _write_claim_end(connection: sa.Connection, key: dict[str, str], end_ns: int) -> bool:
    """Add an end of a claim; true if it is new."""
    is_new = insert(connection, claim_ends, key | {"end_ns": end_ns})
    if is_new:
        _lower_span(connection, key, end_ns=end_ns)
    return is_new


def _lower_span(
    connection: sa.Connection,
    key: dict[str, str],
    *,
    start_ns: int = FOREVER_NS,
    end_ns: int = FOREVER_NS,
) -> None:
    """Lower the start and the end of a claim's span to those of a fact."""
    edges = {"start_ns": start_ns, "end_ns": end_ns}
    if insert(connection, claim_spans, key | edges):
        return
    is_claim = sa.and_(*(claim_spans.c[name] == text for name, text in key.items()))
    for name, edge_ns in edges.items():
        is_later = claim_spans.c[name] > edge_ns
        connection.execute(claim_spans.update().where(is_claim, is_later).values({name: edge_ns}))


def _mark_quarter(connection: sa.Connection, interval: EvidenceInterval, days: range) -> None:
    """Mark the days of a quarter, and of the one after it, whose gap and increments begin with it."""
    first_day = (interval.start_ns - CONTEXT_NS) // DAY_NS
    changed = {*range(first_day, (interval.end_ns + CONTEXT_NS) // DAY_NS + 1)}
    is_later = sa.and_(quarters.c.node == interval.node, quarters.c.start_ns > interval.end_ns)
    next_ns = connection.execute(
        sa.select(sa.func.min(quarters.c.start_ns)).where(is_later)
    ).scalar()
    changed |= {next_ns // DAY_NS} if next_ns else set()
    # Also a day that is not over: the clock of another collector, which marks days when they are over, may be ahead.
    mark_days(connection, interval.node, sorted(day for day in changed if day >= days.start))
