"""Parts of the evidence beyond a window that affect the days in it, however far away they are.

Before the window these are the last parts that list a GPU, its last MIG layout, and the last readings of counters that
have a reading in the window. After it, it is the next part that lists the GPU. The index of contents has the days of
all of them, so no other part is read.

Of a GPU that several nodes reported, parts are read back to a time at which one of the nodes listed it and no other
had it: earlier reports do not affect where it is after that time. That is before the start of each claim in the window:
time under review divides a claim, and its parts have names by their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from railscope.timestamps import FOREVER_NS
from railscope_collector.evidence import (
    evidence_tables,
    gpu_node_history,
    node_intervals,
    node_parts,
    review_rules,
)
from railscope_collector.fleet import shape_columns
from railscope_collector.metering.observation import GAP_NS


@dataclass(slots=True, eq=False)
class _NodeSearch:
    """Search of a node's parts on one side of a window for those that list a GPU."""

    gpu: str
    further: node_parts.NodeParts
    intervals: node_parts.IntervalsByPart
    """All that are known."""
    edge_ns: int = 0
    is_complete: bool = False
    """All parts were visited."""
    added: node_parts.IntervalsByPart = field(default_factory=dict)
    _steps: Iterator[tuple[int, node_parts.IntervalsByPart]] = field(init=False)

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


class FurtherFacts(NamedTuple):
    """Parts beyond a window by node, and the time from which claims on the GPU affect the window."""

    by_node: dict[str, node_parts.IntervalsByPart]
    since_ns: int


@dataclass(slots=True)
class BeyondWindow:
    """Search of parts beyond a window that affect its GPUs."""

    source: node_parts.PartSource
    window: tuple[int, int]
    parts: Mapping[str, node_parts.IntervalsByPart]
    """The parts of each node in and around the window."""
    contacts: node_intervals.Contacts
    decisions: review_rules.ReviewDecisions
    counts_ns: Mapping[str, int]
    """Time by node since which placement of its claims without a device is to be exact."""
    starts_ns: Mapping[str, int]
    """First start of the claims in the window, by GPU of several nodes."""
    _before: dict[str, node_parts.NodeParts] = field(default_factory=dict)
    _after: dict[str, node_parts.NodeParts] = field(default_factory=dict)
    _before_window: dict[str, node_parts.NodeParts] = field(default_factory=dict)
    """All parts before the window, also those next to it."""
    _first_ns: dict[str, dict[shape_columns.CounterSubject, int]] = field(default_factory=dict)
    """The first reading of each counter in and around the window, by node."""

    def __post_init__(self) -> None:
        """Find the edges of the parts."""
        low_ns, high_ns = self.window
        for node, parts in self.parts.items():
            self._before_window[node] = node_parts.NodeParts(
                self.source, node, low_ns, is_before=True
            )
            ends = (i.end_ns for i in parts.values() if i.start_ns < low_ns)
            starts = (i.start_ns for i in parts.values() if i.end_ns > high_ns)
            first_ns, last_ns = min(ends, default=low_ns), max(starts, default=high_ns)
            self._before[node] = node_parts.NodeParts(self.source, node, first_ns, is_before=True)
            self._after[node] = node_parts.NodeParts(self.source, node, last_ns, is_before=False)

    def find(self, gpu: str, nodes: set[str]) -> FurtherFacts:
        """Return further parts by node: all that affects the window about a GPU of these nodes.

        Nodes whose reports of the GPU were rejected count only if all were.
        """
        kind = review_rules.ReviewKind.GPU
        rejected = {node for node in nodes if self.decisions.find(kind, node, gpu) is False}
        counted = sorted(nodes - rejected or nodes)
        found: dict[str, node_parts.IntervalsByPart] = {node: {} for node in counted}
        since_ns = self.window[0]
        for node in counted:
            found[node] |= self._find_layout(gpu, node)
            readings = self._before_window[node].find_nearest(self._find_continued(gpu, node))
            found[node] |= readings
            since_ns = min([since_ns, *(part.start_ns for part in readings.values())])
        low_ns = self.window[0]
        if len(nodes) > 1:
            low_ns = min(since_ns, self.starts_ns.get(gpu, since_ns))
        searches = self._search_before(gpu, counted, low_ns)
        since_ns = min([since_ns, *(self.counts_ns.get(node, since_ns) for node in counted)])
        if len(nodes) == 1 and since_ns < self.window[0]:
            (node,) = nodes
            found[node] |= node_parts.find_first_listing(self.source, gpu, node)
        for search in (*searches, *self._search_after(gpu, counted)):
            found[search.further.node] |= search.added
        return FurtherFacts(found, since_ns)

    @property
    def _start_ns(self) -> int:
        """The start of the days: the window has a context before it."""
        return self.window[0] + evidence_tables.CONTEXT_NS

    def _find_layout(self, gpu: str, node: str) -> node_parts.IntervalsByPart:
        """Return the last part with a layout of a GPU before the window, if none is in the context of the days."""
        layouts = (i.layouts.get(gpu, ()) for i in self._parts_of_window(node))
        starts = (span.first_ns for each in layouts for layout in each for span in layout.spans)
        if any(self.window[0] <= first_ns <= self._start_ns for first_ns in starts):
            return {}
        return self._before_window[node].find_first(lambda contents: gpu in contents.layouts)

    def _find_continued(self, gpu: str, node: str) -> frozenset[shape_columns.CounterSubject]:
        """Return the counters of a GPU, and of ports, that are read in the days and not in the context before."""
        if node not in self._first_ns:
            first_ns = self._first_ns[node] = {}
            for interval in self._parts_of_window(node):
                for counter, timestamp_ns in node_intervals.read_times(interval):
                    if timestamp_ns >= self.window[0]:
                        first_ns[counter] = min(timestamp_ns, first_ns.get(counter, timestamp_ns))
        return frozenset(
            counter
            for counter, timestamp_ns in self._first_ns[node].items()
            if counter.gpu in {"", gpu} and timestamp_ns > self._start_ns
        )

    def _parts_of_window(self, node: str) -> Iterator[node_intervals.EvidenceInterval]:
        low_ns, high_ns = self.window
        for interval in self.parts[node].values():
            if interval.end_ns >= low_ns and interval.start_ns <= high_ns:
                yield interval

    def _search_before(self, gpu: str, nodes: Sequence[str], low_ns: int) -> list[_NodeSearch]:
        """Search until the GPU is listed and, of several nodes, no earlier part affects which of them has it.

        That is before `low_ns`.
        """
        searches = [_NodeSearch(gpu, self._before[node], dict(self.parts[node])) for node in nodes]
        remaining, listed, next_size = searches, 0, 0
        sole_ns = FOREVER_NS if len(nodes) == 1 else None
        is_changed = True
        while True:
            if is_changed:
                earlier = [i for search in searches for i in search.reported_beyond(low_ns)]
                listed = sum(gpu in interval.gpus for interval in earlier)
                # At growing distances, as each check costs all parts found so far.
                if len(nodes) > 1 and len(earlier) >= next_size:
                    sole_ns = self._find_sole_ns(gpu, searches, low_ns)
                    next_size = len(earlier) + len(earlier) // 4 + 1
            edge_ns = max((search.edge_ns for search in remaining), default=-FOREVER_NS)
            is_settled = sole_ns is not None and sole_ns > edge_ns + GAP_NS
            if not remaining or (listed and is_settled):
                return searches
            # The search that is least far back: all nodes are known from the same time on.
            nearest = max(remaining, key=lambda search: search.edge_ns)
            is_changed = nearest.advance()
            if nearest.is_complete:
                remaining, next_size = [s for s in remaining if s is not nearest], 0

    def _find_sole_ns(self, gpu: str, searches: Sequence[_NodeSearch], low_ns: int) -> int | None:
        """Return the latest known time up to `low_ns` at which one node listed a GPU and no other had it."""
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
        return gpu_node_history.find_sole_listing(listings, low_ns)

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
