"""Parts of a node beyond a timestamp, found by what they contain, however far away they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa

from railscope.timestamps import DAY_NS
from railscope_collector.evidence import (
    evidence_contents,
    evidence_records,
    evidence_tables,
    node_intervals,
)
from railscope_collector.fleet import shape_columns

MAX_PARTS = 1344
"""Maximum number of parts that are visited for a GPU and a node beyond a window: of two weeks."""
NEAREST_PARTS = 4
"""Parts next to a window that are visited in any case: of an hour."""
# Parts that are read ahead: a query for each part would cost more than decoding those that are not needed.
_MAX_AT_ONCE = 64

IntervalsByPart = dict[str, node_intervals.EvidenceInterval]
"""Intervals by the names of their parts."""
_HasSubject = Callable[[evidence_contents.PartContents], bool]


class PartSource(NamedTuple):
    """The open database, and what is remembered of its parts."""

    connection: sa.Connection
    quarantine: evidence_records.EvidenceQuarantine
    contents: evidence_contents.KnownContents
    days: evidence_contents.ContentsIndex
    is_partial: bool = False
    """Parts that are only in the archive are left out."""


@dataclass(slots=True)
class NodeParts:
    """Parts of a node that end before a timestamp, or start after it, the nearest first."""

    source: PartSource
    node: str
    edge_ns: int
    is_before: bool
    _nearest: list[tuple[str, int]] | None = None
    _by_day: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    _days: dict[int, Mapping[evidence_contents.PartContents, int]] = field(default_factory=dict)
    """The nearest day with each contents, from a day on."""
    _read: dict[str, node_intervals.EvidenceInterval | None] = field(default_factory=dict)
    """The parts that were read last."""

    def visit(self, gpu: str) -> Iterator[tuple[int, IntervalsByPart]]:
        """Yield the edge of each part, and the intervals to use.

        These are the parts with facts about a GPU, each with the one visited before it, and the first and the last
        ones, which show that the GPU left the node.
        """
        previous = ""
        for position, (part, edge_ns) in enumerate(self._find_names(gpu)):
            if self._find_contents(part, edge_ns).mentions(gpu):
                used, previous = [previous, part], ""
            elif position < NEAREST_PARTS:
                used, previous = [part], ""
            else:
                used, previous = [], part
            yield edge_ns, self._select(used)
        # The last part that was visited has no later one to be used with.
        if previous:
            yield edge_ns, self._select([previous])

    def find_nearest(self, counters: frozenset[shape_columns.CounterSubject]) -> IntervalsByPart:
        """Return the nearest parts that have a reading of each of some counters, and those with a later one.

        Parts of several boots or collectors may overlap: one that ends earlier may have the last reading.
        """
        found: IntervalsByPart = {}
        remaining = counters
        if not counters:
            return found

        def has_subject(contents: evidence_contents.PartContents) -> bool:
            return not remaining.isdisjoint(contents.counters)

        for part in self._find_parts(has_subject):
            contents = self.source.contents.find(part) or evidence_contents.NO_CONTENTS
            found |= self._select([part])
            if interval := found.get(part):
                found |= self._find_overlapping(interval, remaining & contents.counters)
            remaining -= contents.counters
            if not remaining:
                break
        return found

    def _find_overlapping(
        self,
        interval: node_intervals.EvidenceInterval,
        counters: frozenset[shape_columns.CounterSubject],
    ) -> IntervalsByPart:
        """Return the parts that end at or after the last reading of some counters in an interval and have one of them."""
        last_ns: dict[shape_columns.CounterSubject, int] = {}
        for counter, timestamp_ns in node_intervals.read_times(interval):
            if counter in counters:
                last_ns[counter] = max(timestamp_ns, last_ns.get(counter, timestamp_ns))
        since_ns = min(last_ns.values(), default=interval.end_ns)
        within = self._edge.between(since_ns, interval.end_ns)
        beside = [
            part
            for part, edge_ns in self._query_names(within)
            if not counters.isdisjoint(self._find_contents(part, edge_ns).counters)
        ]
        return self._select(beside)

    def find_first(self, has_subject: _HasSubject) -> IntervalsByPart:
        """Return the nearest part with contents that satisfy a condition."""
        part = next(self._find_parts(has_subject), None)
        return self._select([part]) if part else {}

    def find_all_contents(self) -> Iterable[evidence_contents.PartContents]:
        """Return all different contents of the parts."""
        self._find_day(self._first_day(), lambda _: False)
        return self._days[self._first_day()]

    def _find_parts(self, has_subject: _HasSubject) -> Iterator[str]:
        """Yield the parts with contents that satisfy a condition, which may change meanwhile."""
        day = self._first_day()
        while (nearest_day := self._find_day(day, has_subject)) is not None:
            names = self._find_names_of_day(nearest_day)
            is_found = False
            for part, edge_ns in names:
                if has_subject(self._find_contents(part, edge_ns)):
                    is_found = True
                    yield part
            # The index has the day, and no part of it is present: it is only in the archive.
            if not is_found:
                self._check_day(nearest_day)
            day = self._next_day(nearest_day)

    def _first_day(self) -> int:
        return self.edge_ns // DAY_NS

    def _next_day(self, day: int) -> int:
        return day - 1 if self.is_before else day + 1

    def _find_day(self, day: int, has_subject: _HasSubject) -> int | None:
        """Return the nearest day from a day on, on which a part has contents that satisfy a condition."""
        if day not in self._days:
            self._days[day] = self.source.days.find_nearest_days(
                self.source.connection, self.node, day, is_before=self.is_before
            )
        found = [nearest for contents, nearest in self._days[day].items() if has_subject(contents)]
        return (max if self.is_before else min)(found, default=None)

    def _check_day(self, day: int) -> None:
        """Check that the parts of a day are not only in the archive."""
        if not self.source.is_partial:
            days = (day - self.is_before, day + (not self.is_before))
            evidence_contents.check_days(self.source.connection, self.node, days)

    def _find_names(self, gpu: str) -> Iterator[tuple[str, int]]:
        """Yield the nearest parts, then those of the days with facts about a GPU, each after the one next to them."""

        def has_gpu(contents: evidence_contents.PartContents) -> bool:
            return contents.mentions(gpu)

        if self._nearest is None:
            self._nearest = self._query_names(None, NEAREST_PARTS)
        yield from self._nearest
        visited = {part for part, _ in self._nearest}
        day = self._nearest[-1][1] // DAY_NS if self._nearest else None
        while day is not None and len(visited) < MAX_PARTS:
            nearest_day = self._find_day(day, has_gpu)
            if nearest_day is None:
                return
            names = self._find_names_of_day(nearest_day)
            if not names:
                self._check_day(nearest_day)
            beside = self._find_beside(nearest_day) if nearest_day != day else []
            for part, edge_ns in (*beside, *names):
                if part not in visited:
                    visited.add(part)
                    yield part, edge_ns
            day = self._next_day(nearest_day)

    @property
    def _edge(self) -> Any:
        of = evidence_tables.evidence_intervals.c
        return of.end_ns if self.is_before else of.start_ns

    def _find_names_of_day(self, day: int) -> list[tuple[str, int]]:
        if day not in self._by_day:
            within = sa.and_(self._edge >= day * DAY_NS, self._edge < (day + 1) * DAY_NS)
            self._by_day[day] = self._query_names(within)
        return self._by_day[day]

    def _find_beside(self, day: int) -> list[tuple[str, int]]:
        """Return the part that follows those of a day, towards the window."""
        edge = self._edge
        is_nearer = edge >= (day + 1) * DAY_NS if self.is_before else edge < day * DAY_NS
        return self._query_names(is_nearer, 1, is_nearest_first=False)

    def _query_names(
        self, condition: Any = None, count: int | None = None, *, is_nearest_first: bool = True
    ) -> list[tuple[str, int]]:
        of, edge = evidence_tables.evidence_intervals.c, self._edge
        beyond = edge < self.edge_ns if self.is_before else edge > self.edge_ns
        query = sa.select(of.part, edge).where(of.node == self.node, beyond).limit(count)
        if condition is not None:
            query = query.where(condition)
        is_descending = self.is_before == is_nearest_first
        # Then by name, so that equal times give the same order in both engines.
        query = query.order_by(edge.desc() if is_descending else edge, of.part)
        return [(row[0], row[1]) for row in self.source.connection.execute(query)]

    def _find_contents(self, part: str, edge_ns: int) -> evidence_contents.PartContents:
        """Return the contents of a part; if it was not read, read it and some beyond it on its day."""
        known_contents = self.source.contents
        contents = known_contents.find(part)
        if contents is None:
            ahead = [name for name, _ in self._by_day.get(edge_ns // DAY_NS, ())]
            ahead = ahead[ahead.index(part) :] if part in ahead else [part]
            unknown = [name for name in ahead if known_contents.find(name) is None]
            self._read_parts(unknown[:_MAX_AT_ONCE])
            contents = known_contents.find(part)
        return contents or evidence_contents.NO_CONTENTS

    def _select(self, parts: Sequence[str]) -> IntervalsByPart:
        self._read_parts([part for part in parts if part and part not in self._read], keep=True)
        found = {part: self._read.get(part) for part in parts}
        return {part: interval for part, interval in found.items() if interval}

    def _read_parts(self, parts: Sequence[str], *, keep: bool = False) -> None:
        of = evidence_tables.evidence_intervals.c
        query = sa.select(of.part, of.content).where(of.part.in_(parts))
        rows = self.source.connection.execute(query) if parts else ()
        read = {part: self.source.quarantine.interval(part, content) for part, content in rows}
        for part, interval in read.items():
            self.source.contents.record(part, interval)
        self._read = (self._read if keep else {}) | read


def find_first_listing(source: PartSource, gpu: str, node: str) -> IntervalsByPart:
    """Return the first part of a node that lists a GPU."""
    return NodeParts(source, node, 0, is_before=False).find_first(partial(_lists, gpu))


def find_last_parts(source: PartSource, node: str, before_ns: int) -> set[str]:
    """Return the parts of a node that metering of any day from a timestamp on may read from before it, of any age.

    The first part that lists a GPU is one of them.
    """
    before = NodeParts(source, node, before_ns, is_before=True)
    all_contents = before.find_all_contents()
    counters = frozenset(counter for each in all_contents for counter in each.counters)
    gpus = {gpu for each in all_contents for gpu in each.gpus}
    readings = before.find_nearest(counters)
    found = set(readings)
    for gpu in gpus:
        found |= before.find_first(partial(_lists, gpu)).keys()
        found |= before.find_first(partial(_has_layout, gpu)).keys()
        found |= find_first_listing(source, gpu, node).keys()
    return found


def _lists(gpu: str, contents: evidence_contents.PartContents) -> bool:
    return gpu in contents.gpus


def _has_layout(gpu: str, contents: evidence_contents.PartContents) -> bool:
    return gpu in contents.layouts
