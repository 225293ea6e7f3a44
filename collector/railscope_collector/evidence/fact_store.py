"""Facts of nodes in the ledger's database, and the days that each of them changes.

    fact_quarter     what a node's frames of 15 minutes show; several rows if several collectors received them
    fact_claim       first report of a claim in each boot of its node
    fact_claim_end   ends of claims that were reported
    fact_boot        first report of each boot of a node
    gpu_state        node of a GPU, another one that lists it, its rail and SKU, and its MIG layout, from a time on:
                     one row for each change
    marked_day       days of nodes that are to be metered, added in the transaction of the fact that changes them

Quarters, claims and ends are added and never changed; a fact that is written again changes nothing. `gpu_state`
follows from quarters, and is made again from a quarter that comes late. All calls block, and raise
UnusableLedgerError.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, TypeAlias

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
from railscope_collector.ledger import schema, transactions
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
KINDS = NODE, CONTESTED, MODEL, LAYOUT = ("node", "contested", "model", "layout")

metadata = sa.MetaData()
"""Apart from the tables of the ledger, which no collector fills with facts yet."""
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

_GpuStates: TypeAlias = dict[str, list[DatedValue]]
"""Dated values of one GPU, by kind."""


class FactStore:
    """Facts of all collectors of a database."""

    def __init__(self, database: Database, quarantine: EvidenceQuarantine | None = None) -> None:
        self.database = database
        self.quarantine = quarantine or EvidenceQuarantine()

    # Writing -----------------------------------------------------------------------------------

    def write(
        self, intervals: Sequence[EvidenceInterval], facts: Sequence[ClaimFact], now_day: int
    ) -> None:
        """Add facts as `write_in`, in a transaction of their own."""
        with self.database.transaction(writes=True) as connection:
            self.write_in(connection, intervals, facts, now_day)

    def write_in(
        self,
        connection: sa.Connection,
        intervals: Sequence[EvidenceInterval],
        facts: Sequence[ClaimFact],
        now_day: int,
    ) -> None:
        """Add facts, the changes of GPU states that they show, and marks of the days that they change.

        `now_day` is the first day that is not over: it and later ones are marked when they are over.
        """
        # What a quarter changes depends on those stored before: collectors store one after another.
        transactions.lock(connection, _LOCK)
        for interval in sorted(intervals, key=_by_start):
            self._write_quarter(connection, interval, now_day)
        for fact in facts:
            if is_gpu(fact.gpu):
                _write_claim(connection, fact, now_day)

    def _write_quarter(
        self, connection: sa.Connection, interval: EvidenceInterval, now_day: int
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
        _record_boot(connection, interval, now_day)
        self._record_states(connection, interval, now_day)
        _mark_quarter(connection, interval)

    # States of GPUs ----------------------------------------------------------------------------

    def _record_states(
        self, connection: sa.Connection, interval: EvidenceInterval, now_day: int
    ) -> None:
        """Record what a quarter changes.

        If later ones are stored, a state that differs is decided again in the order of quarters.
        """
        gpus = sorted({*interval.gpus, *interval.layouts})
        if not gpus:
            return
        known = {kind: _read_states(connection, gpus, kind) for kind in KINDS}
        nodes = {interval.node, *(each.value for rows in known[NODE].values() for each in rows)}
        latest = sa.select(sa.func.max(quarters.c.start_ns)).where(quarters.c.node.in_(nodes))
        is_late = connection.execute(latest).scalar_one() > interval.start_ns
        for gpu in gpus:
            of_gpu = {kind: known[kind].setdefault(gpu, []) for kind in KINDS}
            if not is_late:
                self._record_gpu(connection, of_gpu, interval, gpu, now_day)
            elif not _agrees(of_gpu, interval, gpu):
                self._record_again(connection, of_gpu, interval, gpu, now_day)

    def _record_gpu(
        self,
        connection: sa.Connection,
        known: _GpuStates,
        interval: EvidenceInterval,
        gpu: str,
        now_day: int,
    ) -> None:
        listed, places = interval.gpus.get(gpu), known[NODE]
        since_ns: int | None = None
        if listed:
            since_ns = _first_ns(interval, gpu)
            if places and places[-1].value != interval.node:
                since_ns = self._find_move(connection, gpu, places[-1], interval)
            if since_ns is None:
                _record(
                    connection,
                    known[CONTESTED],
                    (gpu, CONTESTED),
                    _first_ns(interval, gpu),
                    interval.node,
                )
        if listed and since_ns is not None:
            left = places[-1].value if places else interval.node
            days = range(since_ns // DAY_NS, now_day)
            if _record(connection, places, (gpu, NODE), since_ns, interval.node):
                for node in sorted({interval.node, left}):
                    _mark(connection, node, days)
            model = [listed.rail, listed.sku]
            if _record(connection, known[MODEL], (gpu, MODEL), since_ns, model):
                _mark(connection, interval.node, days)
        for first_ns, parts in _shown_layouts(interval, gpu):
            if _record(connection, known[LAYOUT], (gpu, LAYOUT), first_ns, parts):
                _mark(connection, interval.node, range(first_ns // DAY_NS, now_day))

    def _record_again(
        self,
        connection: sa.Connection,
        known: _GpuStates,
        interval: EvidenceInterval,
        gpu: str,
        now_day: int,
    ) -> None:
        """Record the states of a GPU again since a quarter that was stored after later ones."""
        nodes = sorted({interval.node, *(each.value for each in known[NODE])})
        is_later = states.c.since_ns >= interval.start_ns
        connection.execute(sa.delete(states).where(states.c.gpu == gpu, is_later))
        for rows in known.values():
            rows[:] = [each for each in rows if each.since_ns < interval.start_ns]
        later = [
            each
            for node in nodes
            for each in self._read_quarters(connection, node, interval.start_ns, FOREVER_NS)
        ]
        for each in sorted(later, key=_by_start):
            if gpu in each.gpus or gpu in each.layouts:
                self._record_gpu(connection, known, each, gpu, now_day)
        for node in nodes:
            _mark(connection, node, range(interval.start_ns // DAY_NS, now_day))

    def _find_move(
        self, connection: sa.Connection, gpu: str, place: DatedValue, interval: EvidenceInterval
    ) -> int | None:
        """Return since when a GPU is in the node of an interval, which lists it; None while it is in its old node."""
        recent = self._read_quarters(
            connection, place.value, interval.start_ns - MAX_AGE_NS, interval.end_ns
        )
        listings = (s.last_ns for each in recent for s in _listing_spans(each, gpu))
        listed_ns = max(listings, default=place.since_ns)
        reports = (s.last_ns for each in recent for s in each.report_spans())
        reported_ns = max(reports, default=listed_ns)
        arrived = min(
            (
                (
                    span.last_ns if span.first_ns <= listed_ns else span.first_ns,
                    each.gpus[gpu].received_ns,
                )
                for each in self._read_quarters(
                    connection, interval.node, listed_ns, interval.end_ns
                )
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
        values = {kind: _read_states(connection, gpus, kind, end_ns + CONTEXT_NS) for kind in KINDS}
        nodes, contested = (
            {span.value for rows in values[kind].values() for span in spans_on(rows, day)}
            for kind in (NODE, CONTESTED)
        )
        found = {
            node: self._read_quarters(
                connection, node, start_ns - CONTEXT_NS, end_ns + CONTEXT_NS, nearest=True
            )
            for node in sorted(nodes)
        }
        starts_ns = (each.start_ns for of_node in found.values() for each in of_node)
        since_ns = min(start_ns - CONTEXT_NS, *starts_ns, start_ns)
        ends: dict[tuple[str, str, str], int] = {}
        for row in connection.execute(sa.select(claim_ends).where(claim_ends.c.gpu.in_(gpus))):
            key = (row.node, row.gpu, row.claim)
            ends[key] = min(row.end_ns, ends.get(key, FOREVER_NS))
        reported: dict[str, list[ReportedClaim]] = {gpu: [] for gpu in gpus}
        is_here = sa.and_(claims.c.gpu.in_(gpus), claims.c.node.in_(sorted(nodes | contested)))
        begun = sa.select(claims.c.claim).where(is_here, claims.c.start_ns < end_ns)
        # All reports of these claims: one with a later start may be the first one, which counts.
        for row in connection.execute(sa.select(claims).where(is_here, claims.c.claim.in_(begun))):
            if ends.get((row.node, row.gpu, row.claim), FOREVER_NS) >= since_ns:
                report = self.quarantine.claim(row.report, row.content, claims.name)
                reported[row.gpu] += [report] if report else []
        booted: dict[str, dict[str, int]] = {node: {} for node in nodes | contested}
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

    # Marked days -------------------------------------------------------------------------------

    def begin_day(self, day: int) -> None:
        """Mark a day that is over, of all nodes that had GPUs by then."""
        with self.database.transaction(writes=True) as connection:
            is_known = sa.and_(states.c.kind == NODE, states.c.since_ns < (day + 1) * DAY_NS)
            query = sa.select(states.c.value).where(is_known).distinct()
            for node in connection.execute(query).scalars().all():
                _mark(connection, msgspec.json.decode(node), [day])

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
    places = _read_states(connection, gpus, NODE)
    return sorted(
        gpu for gpu in gpus if any(span.value == node for span in spans_on(places[gpu], day))
    )


def clear_marks(connection: sa.Connection, node: str, day: int) -> None:
    """Remove the marks of a day, before its facts are read: a mark that is committed later stays."""
    is_day = sa.and_(marked_days.c.node == node, marked_days.c.day == day)
    connection.execute(sa.delete(marked_days).where(is_day))


def _by_start(interval: EvidenceInterval) -> tuple[int, str]:
    return interval.start_ns, interval.node


def _first_ns(interval: EvidenceInterval, gpu: str) -> int:
    """Return the first sample of a GPU in an interval; one long before its first receipt does not count."""
    listed = interval.gpus[gpu]
    return max(listed.spans[0].first_ns, listed.received_ns - TOLERANCE_NS)


def _record_boot(connection: sa.Connection, interval: EvidenceInterval, now_day: int) -> None:
    """Record the first report of a boot, which ends the claims that the boot does not report.

    Only quarters with GPUs show the receipt of a boot, which bounds how long ago it began.
    """
    if not interval.gpus:
        return
    trusted_ns = min(listed.trusted_start_ns for listed in interval.gpus.values())
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
    _mark(connection, interval.node, range(first_ns // DAY_NS, now_day))


def _write_claim(connection: sa.Connection, fact: ClaimFact, now_day: int) -> None:
    key = {"gpu": fact.gpu, "node": fact.node, "claim": fact.id}
    if isinstance(fact, ReportedEnd):
        start_ns = fact.trusted_end_ns
        is_new = _insert(connection, claim_ends, key | {"end_ns": start_ns})
    else:
        content = msgspec.msgpack.encode(fact)
        start_ns = max(fact.start_ns, fact.received_ns - MAX_AGE_NS)
        row = {
            "boot": fact.boot,
            "report": sha256(content).hexdigest(),
            "start_ns": fact.start_ns,
            "content": content,
        }
        is_new = _insert(connection, claims, key | row)
        if fact.end_ns:
            end_ns = max(fact.end_ns, fact.trusted_from_ns)
            is_new |= _insert(connection, claim_ends, key | {"end_ns": end_ns})
    if is_new:
        _mark(connection, fact.node, range((start_ns - CONTEXT_NS) // DAY_NS, now_day))


def _mark_quarter(connection: sa.Connection, interval: EvidenceInterval) -> None:
    """Mark the days of a quarter, and of the one after it, whose gap and increments begin with it."""
    first_day = (interval.start_ns - CONTEXT_NS) // DAY_NS
    days = {*range(first_day, (interval.end_ns + CONTEXT_NS) // DAY_NS + 1)}
    is_later = sa.and_(quarters.c.node == interval.node, quarters.c.start_ns > interval.end_ns)
    next_ns = connection.execute(
        sa.select(sa.func.min(quarters.c.start_ns)).where(is_later)
    ).scalar()
    _mark(connection, interval.node, sorted(days | ({next_ns // DAY_NS} if next_ns else set())))


def _shown_layouts(interval: EvidenceInterval, gpu: str) -> list[tuple[int, Any]]:
    return sorted(
        (span.first_ns, each.parts) for each in interval.layouts.get(gpu, ()) for span in each.spans
    )


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


def _read_states(
    connection: sa.Connection, gpus: Sequence[str], kind: str, end_ns: int = FOREVER_NS
) -> DatedValues:
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


def _mark(connection: sa.Connection, node: str, days: Iterable[int]) -> None:
    """Mark days of a node. Plain inserts: a mark that is committed while a day is metered stays."""
    rows = [{"node": node, "day": day} for day in days]
    if rows:
        connection.execute(sa.insert(marked_days), rows)
