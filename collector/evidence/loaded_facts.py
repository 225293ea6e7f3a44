"""Facts of GPUs as read from the database: those of a window, and those beyond it that affect it.

A day of the ledger must not depend on the days that are metered with it. Its window is read with an hour on both
sides and the nearest interval of each node beyond. If these do not list a GPU, because the node stopped reporting it,
further intervals are read until they do; of those that do not list it, most are not decoded again.

Of a GPU that several nodes reported, they are read back to a time at which one of the nodes listed it and no other
had it: earlier reports do not affect where it is after that time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa

from collector.evidence import (
    claim_events,
    claim_placement,
    evidence_records,
    evidence_tables,
    gpu_evidence,
    gpu_node_history,
    node_claims,
    node_intervals,
    review_rules,
)
from collector.fleet import schema_columns
from collector.metering.evidence import GAP_NS
from railscope.timestamps import FOREVER_NS

MAX_PARTS = 1344
"""Parts of 15 minutes in two weeks: the furthest that is read beyond a window."""
LISTED_PARTS = 4
"""Parts before a window that list a GPU: of an hour, so that they contain what its node reports less often."""
_MAX_AT_ONCE = 64
_MAX_REMEMBERED_PARTS = 100_000


class LoadedFacts(NamedTuple):
    """All facts about the GPUs of some nodes in a window."""

    intervals: dict[str, list[node_intervals.EvidenceInterval]]
    claims: dict[str, list[claim_events.ReportedClaim]]
    ended: dict[str, list[claim_events.ReportedEnd]]
    homes: dict[str, set[str]]
    quarantine: evidence_records.EvidenceQuarantine
    version: int = 0
    contacts: node_intervals.Contacts = node_intervals.NO_CONTACTS

    def assemble(
        self, gpu: str, files: gpu_evidence.AdministratorInputs
    ) -> gpu_evidence.AssembledGpu:
        """Return everything about one of the GPUs."""
        intervals = self._intervals(gpu)
        placed = None
        if any(self.has_unplaced(node) for node in self.homes.get(gpu, ())):
            placed = claim_placement.ClaimPlacer(self, files).evidence(gpu)
        return gpu_evidence.assemble_gpu(self.facts(gpu), intervals, files, placed)

    def facts(self, gpu: str) -> node_claims.GpuFacts:
        """Return the facts about one of the GPUs, or about other GPUs of their nodes."""
        claims, ended = self.claims.get(gpu, ()), self.ended.get(gpu, ())
        return gpu_evidence.collect_facts(gpu, self._intervals(gpu), claims, ended, self.contacts)

    def gpus_in(self, node: str) -> set[str]:
        """Return the GPUs that were seen in a node."""
        return {gpu for interval in self.intervals.get(node, ()) for gpu in interval.gpus}

    def has_unplaced(self, node: str) -> bool:
        """True if a claim of the node names no device."""
        return bool(self.claims.get(claim_events.unplaced_key(node)))

    def read_claims(
        self, connection: sa.Connection, gpus: Sequence[str], span: tuple[int, int]
    ) -> None:
        """Add the claims of GPUs that may have been in force in a window, and their ends.

        Also those since the last reading of a GPU's counters before the window: it is the start of an increment in
        the window, whose amount belongs to a claim only if that lasted.
        """
        by_start: dict[int, list[str]] = {}
        for gpu in gpus:
            by_start.setdefault(self._first_claims_ns(gpu, span[0]), []).append(gpu)
        for start_ns, keys in by_start.items():
            for few in evidence_tables.group_items(keys):
                self._read_claims(connection, few, (start_ns, span[1]))

    def _first_claims_ns(self, key: str, start_ns: int) -> int:
        """Return the start of the window of claims that is read for a GPU, or for the claims without a device of a node."""
        usual_ns = start_ns - evidence_tables.CONTEXT_NS
        gpus = [key]
        if not claim_events.is_gpu(key):
            node = claim_events.node_of_key(key)
            gpus = [gpu for gpu, nodes in self.homes.items() if node in nodes]
        first_ns = start_ns
        for gpu in gpus:
            intervals = self._intervals(gpu)
            listed = sorted(
                (i.end_ns, i.start_ns) for i in intervals if gpu in i.gpus and i.start_ns < usual_ns
            )
            first_ns = min([first_ns, *(since_ns for _, since_ns in listed[-LISTED_PARTS:])])
        return usual_ns if first_ns >= usual_ns - evidence_tables.CONTEXT_NS else first_ns

    def _read_claims(
        self, connection: sa.Connection, gpu_group: Sequence[str], span: tuple[int, int]
    ) -> None:
        for row in connection.execute(evidence_tables.select_claims(gpu_group, *span)):
            if claim := self.quarantine.claim(row.fact, row.content):
                self.claims.setdefault(claim.gpu, []).append(claim)
        self._read_namesakes(connection, gpu_group)
        pairs = [
            (claim.gpu, claim.node, claim.id)
            for gpu in gpu_group
            for claim in self.claims.get(gpu, ())
        ]
        for few in evidence_tables.group_items(pairs):
            for row in connection.execute(evidence_tables.select_ends(few)):
                key = (row.instant_ns, row.gpu_uuid, row.node, row.claim_id)
                end = claim_events.ReportedEnd(*key, row.trusted_from_ns)
                self.ended.setdefault(end.gpu, []).append(end)

    def _read_namesakes(self, connection: sa.Connection, gpus: Sequence[str]) -> None:
        """Add claims of any time with the ids of those that were read, on GPUs of several nodes: names depend on them."""
        shared = [gpu for gpu in gpus if len(self.homes.get(gpu, ())) > 1]
        ids = sorted({(gpu, claim.id) for gpu in shared for claim in self.claims.get(gpu, ())})
        for few in evidence_tables.group_items(ids):
            for row in connection.execute(evidence_tables.select_namesakes(few)):
                claim = self.quarantine.claim(row.fact, row.content)
                if claim and claim not in self.claims[claim.gpu]:
                    self.claims[claim.gpu].append(claim)

    def _intervals(self, gpu: str) -> list[node_intervals.EvidenceInterval]:
        return [c for node in sorted(self.homes.get(gpu, ())) for c in self.intervals.get(node, ())]


IntervalsByPart = dict[str, node_intervals.EvidenceInterval]
"""Intervals by the names of their parts."""


class PartContents(NamedTuple):
    """GPUs of which a part has facts, and its counters of ports."""

    gpus: frozenset[str]
    ports: frozenset[schema_columns.CounterSubject]


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
        if len(self._by_part) >= _MAX_REMEMBERED_PARTS:
            self._by_part.clear()
            self._equal.clear()
        contents = _NO_CONTENTS
        if interval:
            counters = (c for series in interval.series.values() for c in series.counters)
            gpus = frozenset((*interval.gpus, *interval.valueless, *interval.layouts))
            contents = PartContents(gpus, frozenset(c for c in counters if not c.gpu))
        self._by_part[part] = self._equal.setdefault(contents, contents)


_NO_CONTENTS = PartContents(frozenset(), frozenset())


class PartSource(NamedTuple):
    """The open database, and what is remembered of its parts."""

    connection: sa.Connection
    quarantine: evidence_records.EvidenceQuarantine
    contents: KnownContents


@dataclass(slots=True)
class _FurtherParts:
    """Parts of a node that end before a timestamp, or start after it, the nearest first."""

    source: PartSource
    node: str
    edge_ns: int
    is_before: bool
    _names: list[tuple[str, int]] | None = None
    _read: dict[str, node_intervals.EvidenceInterval | None] = field(default_factory=dict)
    """The parts that were read last."""

    def visit(self, gpu: str) -> Iterator[tuple[int, IntervalsByPart]]:
        """Yield the edge of each part, and the intervals to use.

        These are the parts with facts about a GPU, each with the one visited before it, and the first and the last
        ones, which show that the GPU left the node; and those with counters of ports that no other one has.
        """
        previous, ports = "", frozenset[schema_columns.CounterSubject]()
        for position, (part, edge_ns) in enumerate(self._find_names()):
            contents = self._find_contents(position)
            if gpu in contents.gpus:
                used, previous = [previous, part], ""
            elif position < LISTED_PARTS or not contents.ports <= ports:
                used, previous = [part], ""
            else:
                used, previous = [], part
            ports |= contents.ports
            yield edge_ns, self._select(used)
        if previous:
            yield edge_ns, self._select([previous])

    def _find_names(self) -> list[tuple[str, int]]:
        if self._names is None:
            of = evidence_tables.evidence_intervals.c
            edge: Any = of.end_ns if self.is_before else of.start_ns
            beyond = edge < self.edge_ns if self.is_before else edge > self.edge_ns
            query = sa.select(of.part, edge).where(of.node == self.node, beyond).limit(MAX_PARTS)
            nearest_first = query.order_by(edge.desc() if self.is_before else edge, of.part)
            self._names = [
                (row[0], row[1]) for row in self.source.connection.execute(nearest_first)
            ]
        return self._names

    def _find_contents(self, position: int) -> PartContents:
        """Return the contents of a part; if it was not read, read it and some beyond it."""
        names, known_contents = self._find_names(), self.source.contents
        contents = known_contents.find(names[position][0])
        if contents is None:
            count = min(max(position, LISTED_PARTS), _MAX_AT_ONCE)
            ahead = [part for part, _ in names[position : position + count]]
            self._read_parts([part for part in ahead if known_contents.find(part) is None])
            contents = known_contents.find(names[position][0])
        return contents or _NO_CONTENTS

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


@dataclass(slots=True, eq=False)
class _NodeSearch:
    """Search of a node's parts on one side of a window for those that list a GPU."""

    gpu: str
    further: _FurtherParts
    intervals: IntervalsByPart
    """All that are known."""
    edge_ns: int = 0
    is_complete: bool = False
    """All parts were visited."""
    added: IntervalsByPart = field(default_factory=dict)
    _steps: Iterator[tuple[int, IntervalsByPart]] = field(init=False)

    def __post_init__(self) -> None:
        """Start at the edge."""
        self.edge_ns = self.further.edge_ns
        self._steps = self.further.visit(self.gpu)

    def advance(self) -> bool:
        """Visit the next part; true if more is known."""
        step = next(self._steps, None)
        if step is None:
            self.is_complete = True
            return True
        self.edge_ns, found = step
        self.added |= found
        self.intervals |= found
        return bool(found)

    def reported_beyond(self, edge_ns: int) -> list[node_intervals.EvidenceInterval]:
        """Return the known intervals that reach beyond an edge of the window."""
        if self.further.is_before:
            return [i for i in self.intervals.values() if i.start_ns < edge_ns]
        return [i for i in self.intervals.values() if i.end_ns > edge_ns]


@dataclass(slots=True)
class BeyondWindow:
    """Search of parts beyond a window for those that list its GPUs."""

    source: PartSource
    window: tuple[int, int]
    parts: Mapping[str, IntervalsByPart]
    """The parts of each node in and around the window."""
    contacts: node_intervals.Contacts
    decisions: review_rules.ReviewDecisions
    _before: dict[str, _FurtherParts] = field(default_factory=dict)
    _after: dict[str, _FurtherParts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find the edges of the parts."""
        low_ns, high_ns = self.window
        for node, parts in self.parts.items():
            ends = (i.end_ns for i in parts.values() if i.start_ns < low_ns)
            starts = (i.start_ns for i in parts.values() if i.end_ns > high_ns)
            first_ns, last_ns = min(ends, default=low_ns), max(starts, default=high_ns)
            self._before[node] = _FurtherParts(self.source, node, first_ns, is_before=True)
            self._after[node] = _FurtherParts(self.source, node, last_ns, is_before=False)

    def find(self, gpu: str, nodes: set[str]) -> dict[str, IntervalsByPart]:
        """Return further parts by node: all that affects the window about a GPU of these nodes.

        Nodes whose reports of the GPU were rejected count only if all were.
        """
        kind = review_rules.ReviewKind.GPU
        rejected = {node for node in nodes if self.decisions.find(kind, node, gpu) is False}
        counted = sorted(nodes - rejected or nodes)
        found: dict[str, IntervalsByPart] = {node: {} for node in counted}
        for search in (*self._search_before(gpu, counted), *self._search_after(gpu, counted)):
            found[search.further.node] |= search.added
        return found

    def _search_before(self, gpu: str, nodes: Sequence[str]) -> list[_NodeSearch]:
        """Search until the GPU is listed and, of several nodes, no earlier part affects which of them has it."""
        searches = [_NodeSearch(gpu, self._before[node], dict(self.parts[node])) for node in nodes]
        remaining, listed, next_size = searches, 0, 0
        sole_ns = FOREVER_NS if len(nodes) == 1 else None
        is_changed = True
        while True:
            if is_changed:
                earlier = [i for search in searches for i in search.reported_beyond(self.window[0])]
                listed = sum(gpu in interval.gpus for interval in earlier)
                if len(nodes) > 1 and len(earlier) >= next_size:
                    sole_ns = self._find_sole_ns(gpu, searches)
                    next_size = len(earlier) + len(earlier) // 4 + 1
            edge_ns = max((search.edge_ns for search in remaining), default=-FOREVER_NS)
            is_settled = sole_ns is not None and sole_ns > edge_ns + GAP_NS
            if not remaining or (listed >= LISTED_PARTS and is_settled):
                return searches
            nearest = max(remaining, key=lambda search: search.edge_ns)
            is_changed = nearest.advance()
            if nearest.is_complete:
                remaining, next_size = [s for s in remaining if s is not nearest], 0

    def _find_sole_ns(self, gpu: str, searches: Sequence[_NodeSearch]) -> int | None:
        """Return the latest known time before the window at which one node listed a GPU and no other had it."""
        listings = [
            gpu_node_history.KnownListing.collect(
                gpu,
                search.further.node,
                search.intervals.values(),
                self.contacts,
                is_complete=search.is_complete,
            )
            for search in searches
        ]
        return gpu_node_history.find_sole_listing(listings, self.window[0])

    def _search_after(self, gpu: str, nodes: Sequence[str]) -> list[_NodeSearch]:
        """Search until each node lists the GPU again, or shows that it has left and does not list it before another node."""
        searches = [_NodeSearch(gpu, self._after[node], dict(self.parts[node])) for node in nodes]
        is_changed, next_ns, undecided = True, FOREVER_NS, searches
        while True:
            if is_changed:
                later = [search.reported_beyond(self.window[1]) for search in searches]
                listed = [[i.start_ns for i in each if gpu in i.gpus] for each in later]
                next_ns = max((min(each) for each in listed if each), default=FOREVER_NS)
                undecided = [
                    search
                    for search, each in zip(searches, later, strict=True)
                    if gpu_node_history.is_undecided(gpu, each)
                ]
            remaining = [
                search
                for search in searches
                if not search.is_complete and (search in undecided or search.edge_ns < next_ns)
            ]
            if not remaining:
                return searches
            is_changed = min(remaining, key=lambda search: search.edge_ns).advance()
