"""Node, model and MIG layout of GPUs over time, as quarters show them.

They follow from quarters in the order of their start, and are decided again from one that comes late.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa

from railscope.timestamps import FOREVER_NS, HOUR_NS, SECOND_NS
from railscope_collector.evidence.day_facts import DatedValue
from railscope_collector.evidence.fact_tables import (
    CONTESTED,
    KINDS,
    LAYOUT,
    MODEL,
    NODE,
    PLACES,
    encode,
    insert,
    mark_since,
    quarters,
    read_states,
    states,
)
from railscope_collector.evidence.node_intervals import (
    MAX_AGE_NS,
    TOLERANCE_NS,
    EvidenceInterval,
    SampleSpan,
)
from railscope_collector.evidence.stored_quarters import StoredQuarters

LEFT_NS = 120 * SECOND_NS
"""A node that reports for this time without a GPU does not have it: an agent lists its GPUs every 30 seconds."""
SILENT_NS = HOUR_NS
"""A GPU that another node lists leaves a node that does not report for this long: a longer gap is not billed."""


class Contest(NamedTuple):
    """A GPU that another node lists than the one that has it, since a time."""

    gpu: str
    node: str
    holder: str
    since_ns: int


_GpuStates: TypeAlias = dict[str, list[DatedValue]]
"""Dated values of one GPU, by kind."""


@dataclass(slots=True)
class GpuStates:
    """States of GPUs in a transaction that stores quarters."""

    connection: sa.Connection
    stored: StoredQuarters
    days: range
    """Days whose marks a change adds: those that may still change, and today."""
    contests: list[Contest] = field(default_factory=list)
    """GPUs that a second node has begun to list."""

    def record(self, interval: EvidenceInterval) -> None:
        """Record what a quarter changes.

        If later ones are stored, a state that differs is decided again in the order of quarters.
        """
        gpus = sorted({*interval.gpus, *interval.layouts})
        if not gpus:
            return
        known = {kind: read_states(self.connection, gpus, kind) for kind in KINDS}
        nodes = _find_nodes(
            interval, *(known[kind].get(gpu, ()) for kind in PLACES for gpu in gpus)
        )
        start_ns, node = by_start(interval)
        later = sa.or_(
            quarters.c.start_ns > start_ns,
            sa.and_(quarters.c.start_ns == start_ns, quarters.c.node > node),
        )
        stored = sa.select(quarters.c.quarter).where(quarters.c.node.in_(nodes), later).limit(1)
        is_late = self.connection.execute(stored).first() is not None
        for gpu in gpus:
            of_gpu = {kind: known[kind].setdefault(gpu, []) for kind in KINDS}
            if not is_late:
                self._record_gpu(of_gpu, interval, gpu)
            elif not _agrees(of_gpu, interval, gpu):
                self._record_again(of_gpu, interval, gpu)

    def _record_gpu(
        self,
        known: _GpuStates,
        interval: EvidenceInterval,
        gpu: str,
    ) -> None:
        listed, places = interval.gpus.get(gpu), known[NODE]
        since_ns: int | None = None
        if listed:
            since_ns = _first_ns(interval, gpu)
            if places and places[-1].value != interval.node:
                since_ns = self._find_move(gpu, places[-1], interval)
            if since_ns is None:
                self._record_contest(known, interval, gpu)
        if listed and since_ns is not None:
            left = places[-1].value if places else interval.node
            if _record(self.connection, places, (gpu, NODE), since_ns, interval.node):
                if left != interval.node:
                    _end_contest(self.connection, known[CONTESTED], gpu, since_ns)
                for node in sorted({interval.node, left}):
                    mark_since(self.connection, node, since_ns, self.days)
            model = [listed.rail, listed.sku]
            if _record(self.connection, known[MODEL], (gpu, MODEL), since_ns, model):
                mark_since(self.connection, interval.node, since_ns, self.days)
        _record_layouts(self.connection, known[LAYOUT], interval, gpu, self.days)

    def _record_contest(self, known: _GpuStates, interval: EvidenceInterval, gpu: str) -> None:
        """Record that a node lists a GPU of another one."""
        first_ns, holder = _first_ns(interval, gpu), known[NODE][-1].value
        if _record(self.connection, known[CONTESTED], (gpu, CONTESTED), first_ns, interval.node):
            self.contests.append(Contest(gpu, interval.node, holder, first_ns))

    def _record_again(
        self,
        known: _GpuStates,
        interval: EvidenceInterval,
        gpu: str,
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
        self.connection.execute(sa.delete(states).where(states.c.gpu == gpu, is_later))
        for rows in known.values():
            rows[:] = [each for each in rows if each.since_ns < since_ns]
        later = [each for node in nodes for each in self.stored.read(node, since_ns, FOREVER_NS)]
        for each in sorted(later, key=by_start):
            if gpu in each.gpus or gpu in each.layouts:
                self._record_gpu(known, each, gpu)
        for node in nodes:
            mark_since(self.connection, node, since_ns, self.days)

    def _find_move(self, gpu: str, place: DatedValue, interval: EvidenceInterval) -> int | None:
        """Return since when a GPU is in the node of an interval, which lists it; None while it is in its old node.

        Only quarters that began by then count, also if the move is decided again after later ones were stored.
        """
        until_ns = interval.start_ns + 1
        listed_ns = reported_ns = place.since_ns
        for each in self.stored.read_backwards(place.value, until_ns):
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
                for each in self.stored.read(interval.node, listed_ns, until_ns)
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


def by_start(interval: EvidenceInterval) -> tuple[int, str]:
    """Order in which quarters decide states."""
    return interval.start_ns, interval.node


def _first_ns(interval: EvidenceInterval, gpu: str) -> int:
    """Return the first sample of a GPU in an interval; one long before its first receipt does not count."""
    listed = interval.gpus[gpu]
    return max(listed.spans[0].first_ns, listed.received_ns - TOLERANCE_NS)


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
            mark_since(connection, interval.node, first_ns, days)


def _agrees(known: _GpuStates, interval: EvidenceInterval, gpu: str) -> bool:
    """True if the states of a GPU are already as a quarter shows them."""
    shown = [(LAYOUT, since_ns, parts) for since_ns, parts in _shown_layouts(interval, gpu)]
    if listed := interval.gpus.get(gpu):
        first_ns = _first_ns(interval, gpu)
        shown += [(NODE, first_ns, interval.node), (MODEL, first_ns, [listed.rail, listed.sku])]
    for kind, since_ns, value in shown:
        before = (each.value for each in reversed(known[kind]) if each.since_ns <= since_ns)
        if encode(next(before, None)) != encode(value):
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
    text = encode(value)
    if not known or (since_ns > known[-1].since_ns and encode(known[-1].value) != text):
        known.append(DatedValue(since_ns, value))
    elif since_ns < known[0].since_ns and encode(known[0].value) == text:
        known.insert(0, DatedValue(since_ns, value))
    else:
        return False
    gpu, kind = key
    row = {"gpu": gpu, "kind": kind, "since_ns": since_ns, "value": text}
    return insert(connection, states, row)
