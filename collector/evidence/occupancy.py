"""Time of a GPU that several nodes report: the node that has it, and the nodes under review.

A node has a GPU from its first report of it until it has left: until the node has reported for
`LEFT_NS` without listing the GPU. Neither a gap in the reports nor a device that is listed without
a value is a departure. Another node that lists the GPU meanwhile is pending review, so a stale node
loses nothing to a node that lists its GPU. Of two periods the earlier one counts, and no period
begins before the collector received it, whatever timestamps its frames have.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from collector.evidence.chunk import Span
from collector.metering.observation import GAP_NS
from collector.metering.timeline import Piece, prevailing
from collector.metering.units import FOREVER_NS

LEFT_NS = 120_000_000_000
"""A node that reports for this time without a GPU does not have it: drivers start in less."""
Period = tuple[int, int]
Periods = list[Period]


class NodeListing(NamedTuple):
    """Reports of one node that concern a GPU."""

    node: str
    heard_ns: int
    """First receipt of the GPU from the node."""
    listed: Sequence[Span]
    """Time in which the node listed the GPU, with a value or without."""
    reports: Sequence[Span] = ()
    """Time in which the node reported anything."""
    verdict: bool | None = None
    """Decision of a person about the GPU in the node."""
    excess: Sequence[Period] = ()
    """Time in which the GPU exceeds the number expected of the node: it has no precedence then."""


class Occupancy(NamedTuple):
    """Time in which each node has the GPU, and in which its reports are under review."""

    believed: Mapping[str, Periods]
    waiting: Mapping[str, Periods]


def occupancy(listings: Iterable[NodeListing]) -> Occupancy:
    """Divide the time of one GPU among the nodes that reported it.

    An accepted node has the GPU wherever it lists it; of two accepted nodes, the one received
    first.
    """
    nodes = sorted(
        (one for one in listings if one.verdict is not False), key=lambda n: (n.heard_ns, n.node)
    )
    believed: dict[str, Periods] = {one.node: [] for one in nodes}
    accepted = [one for one in nodes if one.verdict]
    others = [one for one in nodes if not one.verdict]
    taken: Periods = []
    for one in accepted:
        near = union((span.first_ns - GAP_NS, span.last_ns + GAP_NS) for span in one.listed)
        believed[one.node] = minus(near, taken)
        taken = union([*taken, *near])
    taken = union(taken + [period for one in accepted for period in _periods(one)])
    claims = sorted(
        (is_excess, max(start, one.heard_ns), one.heard_ns, one.node, start, end)
        for one in others
        for is_excess, periods in enumerate(_by_expectation(one))
        for start, end in periods
    )
    ranked = (
        Piece(start, end, (-rank, node)) for rank, (*_, node, start, end) in enumerate(claims)
    )
    for start, end, (_, node) in prevailing(ranked):
        believed[node].append((start, end))
    for one in others:
        believed[one.node] = minus(union(believed[one.node]), taken)
    waiting = {one.node: minus(_until_last(one), believed[one.node]) for one in others}
    return Occupancy(believed, {node: found for node, found in waiting.items() if found})


def has_left(reports: Periods, since_ns: int, until_ns: int) -> bool:
    """True if a node reported long enough without a GPU between two times at which it listed it."""
    low, high = since_ns + GAP_NS, until_ns - GAP_NS
    first = bisect_left(reports, low, key=itemgetter(1))
    last = bisect_right(reports, high, key=itemgetter(0)) - 1
    if first > last:
        return False
    return min(high, reports[last][1]) - max(low, reports[first][0]) >= LEFT_NS


def union(periods: Iterable[Period]) -> Periods:
    """Return the time that is in any of the periods, in order."""
    found: Periods = []
    for start, end in sorted(periods):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        elif start < end:
            found.append((start, end))
    return found


def closed(spans: Iterable[Span]) -> Periods:
    """Return the time of spans; a single report lasts a nanosecond."""
    return union((span.first_ns, span.last_ns + 1) for span in spans)


def minus(periods: Iterable[Period], taken: Sequence[Period]) -> Periods:
    """Return the time in the periods that is in none of `taken`; both in order and disjoint."""
    found: Periods = []
    at = 0
    for start, end in periods:
        now = start
        at = bisect_right(taken, now, lo=at, key=itemgetter(1))
        ahead = at
        while ahead < len(taken) and taken[ahead][0] < end:
            if now < taken[ahead][0]:
                found.append((now, taken[ahead][0]))
            now = max(now, taken[ahead][1])
            ahead += 1
        at = max(at, ahead - 1)
        if now < end:
            found.append((now, end))
    return found


def common(periods: Sequence[Period], others: Sequence[Period]) -> Periods:
    """Return the time that is in both; both in order and disjoint."""
    return minus(periods, minus(periods, others))


def _periods(one: NodeListing) -> Periods:
    """Return the time in which a node has the GPU by its own reports, including gaps in them."""
    near = union((span.first_ns, span.last_ns + GAP_NS + 1) for span in one.listed)
    reports = closed(one.reports)
    found: Periods = []
    for at, (first_ns, end_ns) in enumerate(near):
        until_ns = near[at + 1][0] if at + 1 < len(near) else FOREVER_NS
        left = has_left(reports, end_ns - GAP_NS - 1, until_ns)
        found.append((first_ns, end_ns if left else until_ns))
    return union(found)


def _until_last(one: NodeListing) -> Periods:
    """Return the same time, up to the last report of the GPU."""
    last_ns = max((span.last_ns for span in one.listed), default=-FOREVER_NS) + 1
    return [(start, min(end, last_ns)) for start, end in _periods(one) if start < last_ns]


def _by_expectation(one: NodeListing) -> tuple[Periods, Periods]:
    periods = _periods(one)
    return minus(periods, one.excess), common(periods, one.excess)
