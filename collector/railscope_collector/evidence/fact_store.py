"""Facts of nodes in the ledger's database, and the days that each of them changes.

    fact_quarter     what a node's frames of 15 minutes show; several rows if several collectors received them
    fact_claim       first report of a claim in each boot of its node
    fact_claim_end   ends of claims that were reported
    fact_boot        first report of each boot of a node
    claim_span       first start and lowest end of each claim
    gpu_state        node of a GPU, another one that lists it, its rail and SKU, and its MIG layout, from a time on:
                     one row for each change
    marked_day       days of nodes that are to be metered, added in the transaction of the fact that changes them

Quarters, claims and ends are added and never changed; a fact that is written again changes nothing. `claim_span` and
`gpu_state` follow from them; states are made again from a quarter that comes late. All calls block, and raise
UnusableLedgerError.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import count
from typing import Any, NamedTuple, TypeAlias

import msgspec
import sqlalchemy as sa

from railscope.timestamps import DAY_NS, FOREVER_NS, HOUR_NS, SECOND_NS
from railscope_collector.evidence.claim_events import (
    ClaimFact,
    ReportedClaim,
    ReportedEnd,
    is_gpu,
)
from railscope_collector.evidence.day_facts import (
    CONTEXT_NS,
    DatedValue,
    DatedValues,
    DayFacts,
    spans_of,
    spans_on,
)
from railscope_collector.evidence.evidence_records import EvidenceQuarantine
from railscope_collector.evidence.node_intervals import (
    MAX_AGE_NS,
    TOLERANCE_NS,
    EvidenceInterval,
    SampleSpan,
    encode_interval,
)
from railscope_collector.ledger import day_documents, schema, transactions
from railscope_collector.ledger.database import Database

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LEFT_NS = 120 * SECOND_NS
"""A node that reports for this time without a GPU does not have it: an agent lists its GPUs every 30 seconds."""
SILENT_NS = HOUR_NS
"""A GPU that another node lists leaves a node that does not report for this long: a longer gap is not billed."""

_LOCK = 0x7261_696C_6661_6374  # "railfact" in ASCII
_LEVEL = 6
_AT_ONCE = 16
"""Quarters that are read backwards in one statement: usually the newest one is enough."""
KINDS = NODE, CONTESTED, MODEL, LAYOUT = ("node", "contested", "model", "layout")
PLACES = NODE, CONTESTED

metadata = schema.metadata
quarters = sa.Table(
    "fact_quarter",
    metadata,
    sa.Column("quarter", sa.Text, primary_key=True),
    sa.Column("node", sa.Text, nullable=False),
    *schema.integers("start_ns", "end_ns"),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sa.Index("fact_quarter_ends", "node", "end_ns"),
    sa.Index("fact_quarter_starts", "node", "start_ns"),
)
"""The key is the SHA-256 of the content before compression."""
claims = sa.Table(
    "fact_claim",
    metadata,
    *schema.key_texts("gpu", "node", "claim", "boot", "report"),
    sa.Column("start_ns", sa.BigInteger, nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
)
"""`report` is the SHA-256 of the content."""
claim_ends = sa.Table(
    "fact_claim_end",
    metadata,
    *schema.key_texts("gpu", "node", "claim"),
    *schema.key_numbers("end_ns"),
)
claim_spans = sa.Table(
    "claim_span",
    metadata,
    *schema.key_texts("gpu", "node", "claim"),
    *schema.integers("start_ns", "end_ns"),
    sa.Index("claim_span_end", "node", "gpu", "end_ns"),
)
"""Of claims that ended before a day, which become more with time, the reading of the day reads none.

An end without a claim has a start of FOREVER_NS, and a claim without an end has such an end.
"""
boots = sa.Table(
    "fact_boot",
    metadata,
    *schema.key_texts("node", "boot"),
    sa.Column("first_ns", sa.BigInteger, nullable=False),
)
states = sa.Table(
    "gpu_state",
    metadata,
    *schema.key_texts("gpu", "kind"),
    *schema.key_numbers("since_ns"),
    sa.Column("value", sa.Text, nullable=False),
    sa.Index("gpu_state_value", "kind", "value"),
)
"""`value` is JSON."""
marked_days = sa.Table(
    "marked_day",
    metadata,
    sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("node", sa.Text, nullable=False),
    sa.Column("day", sa.BigInteger, nullable=False),
    sa.Index("marked_day_day", "day", "node"),
)
for _table in (quarters, claims, claim_ends):
    schema.make_append_only(_table)


class Contest(NamedTuple):
    """A GPU that another node lists than the one that has it, since a time."""

    gpu: str
    node: str
    holder: str
    since_ns: int


_GpuStates: TypeAlias = dict[str, list[DatedValue]]
"""Dated values of one GPU, by kind."""


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
        self._contests: list[Contest] = []

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
        self._contests = []
        self._check_term(connection)
        # What a quarter changes depends on those stored before: collectors store one after another.
        transactions.lock(connection, _LOCK)
        for interval in sorted(intervals, key=_by_start):
            self._write_quarter(connection, interval, days)
        for fact in facts:
            if is_gpu(fact.gpu):
                _write_claim(connection, fact, days)
        # Agents delete their frames after this commit, so it must be on the standby as well.
        transactions.await_standby(connection)
        return self._contests

    def _write_quarter(
        self, connection: sa.Connection, interval: EvidenceInterval, days: range
    ) -> None:
        content = encode_interval(interval)
        row = {
            "quarter": sha256(content).hexdigest(),
            "node": interval.node,
            "start_ns": interval.start_ns,
            "end_ns": interval.end_ns,
            "content": zstd.compress(content, _LEVEL),
        }
        if not _insert(connection, quarters, row):
            return
        _record_boot(connection, interval, days)
        self._record_states(connection, interval, days)
        _mark_quarter(connection, interval, days)

    # States of GPUs ----------------------------------------------------------------------------

    def _record_states(
        self, connection: sa.Connection, interval: EvidenceInterval, days: range
    ) -> None:
        """Record what a quarter changes.

        If later ones are stored, a state that differs is decided again in the order of quarters.
        """
        gpus = sorted({*interval.gpus, *interval.layouts})
        if not gpus:
            return
        known = {kind: read_states(connection, gpus, kind) for kind in KINDS}
        nodes = _find_nodes(
            interval, *(known[kind].get(gpu, ()) for kind in PLACES for gpu in gpus)
        )
        latest = sa.select(sa.func.max(quarters.c.start_ns)).where(quarters.c.node.in_(nodes))
        is_late = connection.execute(latest).scalar_one() > interval.start_ns
        for gpu in gpus:
            of_gpu = {kind: known[kind].setdefault(gpu, []) for kind in KINDS}
            if not is_late:
                self._record_gpu(connection, of_gpu, interval, gpu, days)
            elif not _agrees(of_gpu, interval, gpu):
                self._record_again(connection, of_gpu, interval, gpu, days)

    def _record_gpu(
        self,
        connection: sa.Connection,
        known: _GpuStates,
        interval: EvidenceInterval,
        gpu: str,
        days: range,
    ) -> None:
        listed, places = interval.gpus.get(gpu), known[NODE]
        since_ns: int | None = None
        if listed:
            since_ns = _first_ns(interval, gpu)
            if places and places[-1].value != interval.node:
                since_ns = self._find_move(connection, gpu, places[-1], interval)
            if since_ns is None:
                self._record_contest(connection, known, interval, gpu)
        if listed and since_ns is not None:
            left = places[-1].value if places else interval.node
            if _record(connection, places, (gpu, NODE), since_ns, interval.node):
                if left != interval.node:
                    _end_contest(connection, known[CONTESTED], gpu, since_ns)
                for node in sorted({interval.node, left}):
                    _mark_since(connection, node, since_ns, days)
            model = [listed.rail, listed.sku]
            if _record(connection, known[MODEL], (gpu, MODEL), since_ns, model):
                _mark_since(connection, interval.node, since_ns, days)
        _record_layouts(connection, known[LAYOUT], interval, gpu, days)

    def _record_contest(
        self, connection: sa.Connection, known: _GpuStates, interval: EvidenceInterval, gpu: str
    ) -> None:
        """Record that a node lists a GPU of another one."""
        first_ns, holder = _first_ns(interval, gpu), known[NODE][-1].value
        if _record(connection, known[CONTESTED], (gpu, CONTESTED), first_ns, interval.node):
            self._contests.append(Contest(gpu, interval.node, holder, first_ns))

    def _record_again(
        self,
        connection: sa.Connection,
        known: _GpuStates,
        interval: EvidenceInterval,
        gpu: str,
        days: range,
    ) -> None:
        """Record the states of a GPU again since a quarter that was stored after later ones.

        A move that began before it may follow from later ones: it is decided again as well.
        """
        moves = (each.since_ns for each in known[NODE][1:] if each.since_ns < interval.start_ns)
        since_ns = max(moves, default=interval.start_ns)
        # A quarter is stored at most 72 hours late: an earlier move was decided before.
        if since_ns < interval.start_ns - MAX_AGE_NS:
            since_ns = interval.start_ns
        nodes = _find_nodes(interval, *(known[kind] for kind in PLACES))
        is_later = states.c.since_ns >= since_ns
        connection.execute(sa.delete(states).where(states.c.gpu == gpu, is_later))
        for rows in known.values():
            rows[:] = [each for each in rows if each.since_ns < since_ns]
        later = [
            each
            for node in nodes
            for each in self._read_quarters(connection, node, since_ns, FOREVER_NS)
        ]
        for each in sorted(later, key=_by_start):
            if gpu in each.gpus or gpu in each.layouts:
                self._record_gpu(connection, known, each, gpu, days)
        for node in nodes:
            _mark_since(connection, node, since_ns, days)

    def _find_move(
        self, connection: sa.Connection, gpu: str, place: DatedValue, interval: EvidenceInterval
    ) -> int | None:
        """Return since when a GPU is in the node of an interval, which lists it; None while it is in its old node.

        Only quarters that began by then count, also if the move is decided again after later ones were stored.
        """
        until_ns = interval.start_ns + 1
        listed_ns = reported_ns = place.since_ns
        for each in self._read_backwards(connection, place.value, until_ns):
            if each.end_ns <= listed_ns:
                break  # earlier quarters contain no later listing, and no later report
            listed_ns = max([listed_ns, *(s.last_ns for s in _listing_spans(each, gpu))])
            reported_ns = max([reported_ns, *(s.last_ns for s in each.report_spans())])
        reported_ns = max(reported_ns, listed_ns)
        arrived = min(
            (
                (
                    span.last_ns if span.first_ns <= listed_ns else span.first_ns,
                    each.gpus[gpu].received_ns,
                )
                for each in self._read_quarters(connection, interval.node, listed_ns, until_ns)
                if gpu in each.gpus
                for span in each.gpus[gpu].spans
                if span.last_ns > listed_ns
            ),
            default=None,
        )
        if arrived is None:
            return None
        last_ns = max(span.last_ns for span in interval.gpus[gpu].spans)
        has_left = reported_ns >= listed_ns + LEFT_NS or last_ns >= reported_ns + SILENT_NS
        return max(arrived[0], arrived[1] - TOLERANCE_NS) if has_left else None

    # Reading -----------------------------------------------------------------------------------

    def read_day(self, connection: sa.Connection, gpus: Sequence[str], day: int) -> DayFacts:
        """Return all facts about GPUs on a day."""
        start_ns, end_ns = day * DAY_NS, (day + 1) * DAY_NS
        values = {kind: read_states(connection, gpus, kind, end_ns + CONTEXT_NS) for kind in KINDS}
        nodes, contested = (
            {span.value for rows in values[kind].values() for span in spans_on(rows, day)} - {""}
            for kind in PLACES
        )
        found = {
            node: self._read_quarters(
                connection, node, start_ns - CONTEXT_NS, end_ns + CONTEXT_NS, nearest=True
            )
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

    def _read_quarters(
        self,
        connection: sa.Connection,
        node: str,
        start_ns: int,
        end_ns: int,
        *,
        nearest: bool = False,
    ) -> list[EvidenceInterval]:
        """Return the quarters of a node in a span; with `nearest` also the last one before it."""
        is_of_node, edge = quarters.c.node == node, quarters.c.end_ns
        if nearest:
            last = sa.select(sa.func.max(edge)).where(is_of_node, edge < start_ns)
            before_ns = connection.execute(last).scalar()
            start_ns = start_ns if before_ns is None else before_ns - CONTEXT_NS
        query = (
            sa.select(quarters.c.quarter, quarters.c.content)
            .where(is_of_node, edge >= start_ns, quarters.c.start_ns < end_ns)
            .order_by(quarters.c.quarter)
        )
        found = (
            self.quarantine.interval(row.quarter, row.content, quarters.name)
            for row in connection.execute(query)
        )
        return [interval for interval in found if interval]

    def _read_backwards(
        self, connection: sa.Connection, node: str, until_ns: int
    ) -> Iterator[EvidenceInterval]:
        """Yield the quarters of a node that began before a timestamp, the latest end first."""
        query = (
            sa.select(quarters.c.quarter, quarters.c.content)
            .where(quarters.c.node == node, quarters.c.start_ns < until_ns)
            .order_by(quarters.c.end_ns.desc(), quarters.c.quarter)
            .limit(_AT_ONCE)
        )
        for first in count(0, _AT_ONCE):
            rows = connection.execute(query.offset(first)).all()
            for row in rows:
                if interval := self.quarantine.interval(row.quarter, row.content, quarters.name):
                    yield interval
            if len(rows) < _AT_ONCE:
                return

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


def gpus_on(connection: sa.Connection, node: str, day: int) -> list[str]:
    """Return the GPUs that were in a node on a day."""
    was_there = sa.and_(states.c.kind == NODE, states.c.value == _encode(node))
    gpus = connection.execute(sa.select(states.c.gpu).distinct().where(was_there)).scalars().all()
    places = read_states(connection, gpus, NODE)
    return sorted(
        gpu for gpu in gpus if any(span.value == node for span in spans_on(places[gpu], day))
    )


def read_places(connection: sa.Connection) -> DatedValues:
    """Return the nodes of all GPUs over time."""
    known = sa.select(states.c.gpu).distinct().where(states.c.kind == NODE)
    gpus = connection.execute(known).scalars().all()
    found: DatedValues = {}
    for few in day_documents.split_items(gpus):
        found |= read_states(connection, few, NODE)
    return found


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
        query = query.where(states.c.value == _encode(about.node))
    first = max(days.start, (about.start_ns - CONTEXT_NS) // DAY_NS)
    last = min(days.stop - 1, (about.end_ns + CONTEXT_NS) // DAY_NS)
    for node in connection.execute(query).scalars().all():
        mark_days(connection, msgspec.json.decode(node), range(first, last + 1))


def _by_start(interval: EvidenceInterval) -> tuple[int, str]:
    return interval.start_ns, interval.node


def _first_ns(interval: EvidenceInterval, gpu: str) -> int:
    """Return the first sample of a GPU in an interval; one long before its first receipt does not count."""
    listed = interval.gpus[gpu]
    return max(listed.spans[0].first_ns, listed.received_ns - TOLERANCE_NS)


def _record_boot(connection: sa.Connection, interval: EvidenceInterval, days: range) -> None:
    """Record the first report of a boot, which ends the claims that the boot does not report."""
    trusted_ns = min((each.trusted_start_ns for each in interval.gpus.values()), default=0)
    first_ns = max(trusted_ns, min(span.first_ns for span in interval.report_spans()))
    is_boot = sa.and_(boots.c.node == interval.node, boots.c.boot == interval.boot)
    known_ns = connection.execute(sa.select(boots.c.first_ns).where(is_boot)).scalar()
    if known_ns is None:
        row = {"node": interval.node, "boot": interval.boot, "first_ns": first_ns}
        connection.execute(boots.insert().values(row))
    elif first_ns < known_ns:
        connection.execute(boots.update().where(is_boot).values(first_ns=first_ns))
    else:
        return
    _mark_since(connection, interval.node, first_ns, days)


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
        is_new = _insert(connection, claims, key | row)
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
            _mark_since(connection, node, since_ns - CONTEXT_NS, days)


def _write_claim_end(connection: sa.Connection, key: dict[str, str], end_ns: int) -> bool:
    """Add an end of a claim; true if it is new."""
    is_new = _insert(connection, claim_ends, key | {"end_ns": end_ns})
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
    if _insert(connection, claim_spans, key | edges):
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


def _shown_layouts(interval: EvidenceInterval, gpu: str) -> list[tuple[int, Any]]:
    return sorted(
        (span.first_ns, each.parts) for each in interval.layouts.get(gpu, ()) for span in each.spans
    )


def _record_layouts(
    connection: sa.Connection,
    known: list[DatedValue],
    interval: EvidenceInterval,
    gpu: str,
    days: range,
) -> None:
    for first_ns, parts in _shown_layouts(interval, gpu):
        if _record(connection, known, (gpu, LAYOUT), first_ns, parts):
            _mark_since(connection, interval.node, first_ns, days)


def _agrees(known: _GpuStates, interval: EvidenceInterval, gpu: str) -> bool:
    """True if the states of a GPU are already as a quarter shows them."""
    shown = [(LAYOUT, since_ns, parts) for since_ns, parts in _shown_layouts(interval, gpu)]
    if listed := interval.gpus.get(gpu):
        first_ns = _first_ns(interval, gpu)
        shown += [(NODE, first_ns, interval.node), (MODEL, first_ns, [listed.rail, listed.sku])]
    for kind, since_ns, value in shown:
        before = (each.value for each in reversed(known[kind]) if each.since_ns <= since_ns)
        if _encode(next(before, None)) != _encode(value):
            return False
    return True


def _find_nodes(interval: EvidenceInterval, *places: Iterable[DatedValue]) -> list[str]:
    """Return the node of a quarter, and all that had or listed its GPUs."""
    found = {interval.node, *(each.value for values in places for each in values)}
    return sorted(found - {""})


def _end_contest(
    connection: sa.Connection, known: list[DatedValue], gpu: str, since_ns: int
) -> None:
    """Record that no other node lists a GPU which has moved; a later listing by its old node is a new contest."""
    is_later = states.c.since_ns >= since_ns
    of_gpu = (states.c.gpu == gpu, states.c.kind == CONTESTED)
    connection.execute(sa.delete(states).where(*of_gpu, is_later))
    known[:] = [each for each in known if each.since_ns < since_ns]
    if known:
        _record(connection, known, (gpu, CONTESTED), since_ns, "")


def _listing_spans(interval: EvidenceInterval, gpu: str) -> list[SampleSpan]:
    listed = interval.gpus.get(gpu)
    return [*(listed.spans if listed else ()), *interval.valueless.get(gpu, ())]


def _record(
    connection: sa.Connection,
    known: list[DatedValue],
    key: tuple[str, str],
    since_ns: int,
    value: Any,
) -> bool:
    """Record a value of a GPU and kind if it is a change: later than the newest one, or an earlier start of the first."""
    text = _encode(value)
    if not known or (since_ns > known[-1].since_ns and _encode(known[-1].value) != text):
        known.append(DatedValue(since_ns, value))
    elif since_ns < known[0].since_ns and _encode(known[0].value) == text:
        known.insert(0, DatedValue(since_ns, value))
    else:
        return False
    gpu, kind = key
    row = {"gpu": gpu, "kind": kind, "since_ns": since_ns, "value": text}
    return _insert(connection, states, row)


def read_states(
    connection: sa.Connection, gpus: Sequence[str], kind: str, end_ns: int = FOREVER_NS
) -> DatedValues:
    """Return the values of a kind of GPUs, from before a timestamp."""
    query = sa.select(states).where(
        states.c.gpu.in_(gpus), states.c.kind == kind, states.c.since_ns < end_ns
    )
    found: DatedValues = {}
    for row in connection.execute(query.order_by(states.c.gpu, states.c.since_ns)):
        value = DatedValue(row.since_ns, msgspec.json.decode(row.value))
        found.setdefault(row.gpu, []).append(value)
    return found


def _insert(connection: sa.Connection, table: sa.Table, row: dict[str, Any]) -> bool:
    """Insert a row unless it exists; true if it is new."""
    new = schema.insert_new(connection, table).values(row).returning(*table.primary_key)
    return connection.execute(new).first() is not None


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _mark_since(connection: sa.Connection, node: str, since_ns: int, days: range) -> None:
    """Mark those of some days that a change since a timestamp affects."""
    mark_days(connection, node, range(max(since_ns // DAY_NS, days.start), days.stop))


def mark_days(connection: sa.Connection, node: str, days: Iterable[int]) -> None:
    """Mark days of a node. Plain inserts: a mark that is committed while a day is metered stays."""
    rows = [{"node": node, "day": day} for day in days]
    if rows:
        connection.execute(sa.insert(marked_days), rows)
