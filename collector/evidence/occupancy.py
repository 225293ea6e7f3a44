"""Which of several nodes that report one GPU has it, and when the report of another one waits.

A node has a GPU from its first report of it until it has left: until the node has reported for
`LEFT_NS` and did not list the GPU. A silence is no departure, and neither is a device that is listed
without a value. Another node that lists the GPU meanwhile waits for a person, so a stale node loses
nothing to whoever lists its GPU. Of two periods the one that began first counts, and none begins before
the collector received it, whatever times its frames have.
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
"""A node that reported for so long without a GPU does not have it: drivers start in less."""
Period = tuple[int, int]
Periods = list[Period]


class NodeListing(NamedTuple):
    """Reports of one node that concern a GPU."""

    node: str
    heard_ns: int
    """First receipt of the GPU from the node."""
    listed: Sequence[Span]
    """When the node listed the GPU, with a value or without."""
    reports: Sequence[Span] = ()
    """When the node reported anything."""
    verdict: bool | None = None
    """Decision of a person about the GPU in the node."""
    excess: Sequence[Period] = ()
    """When the GPU is more than is expected of the node: it has no precedence then."""


class Occupancy(NamedTuple):
    """Time in which each node is believed to have the GPU, and in which its reports wait."""

    believed: Mapping[str, Periods]
    waiting: Mapping[str, Periods]


def occupancy(listings: Iterable[NodeListing]) -> Occupancy:
    """Divide the time of one GPU among the nodes that reported it.

    An accepted node is believed wherever it lists the GPU; of two, the one received first.
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
    """True if a node that listed a GPU at two instants, and not between, reported without it there."""
    low, high = since_ns + GAP_NS, until_ns - GAP_NS
    first = bisect_left(reports, low, key=itemgetter(1))
    last = bisect_right(reports, high, key=itemgetter(0)) - 1
    if first > last:
        return False
    return min(high, reports[last][1]) - max(low, reports[first][0]) >= LEFT_NS


def union(periods: Iterable[Period]) -> Periods:
    """Time that is in any of the periods, in order."""
    found: Periods = []
    for start, end in sorted(periods):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        elif start < end:
            found.append((start, end))
    return found


def closed(spans: Iterable[Span]) -> Periods:
    """Time of spans; a single report lasts a nanosecond."""
    return union((span.first_ns, span.last_ns + 1) for span in spans)


def minus(periods: Iterable[Period], taken: Sequence[Period]) -> Periods:
    """Time in the periods that is in none of the others; both in order and disjoint."""
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
    """Time that is in both; both in order and disjoint."""
    return minus(periods, minus(periods, others))


def _periods(one: NodeListing) -> Periods:
    """Time in which a node has the GPU by its own reports: silences belong to it."""
    near = union((span.first_ns, span.last_ns + GAP_NS + 1) for span in one.listed)
    reports = closed(one.reports)
    found: Periods = []
    for at, (first_ns, end_ns) in enumerate(near):
        until_ns = near[at + 1][0] if at + 1 < len(near) else FOREVER_NS
        left = has_left(reports, end_ns - GAP_NS - 1, until_ns)
        found.append((first_ns, end_ns if left else until_ns))
    return union(found)


def _until_last(one: NodeListing) -> Periods:
    """The same, up to the last report of the GPU."""
    last_ns = max((span.last_ns for span in one.listed), default=-FOREVER_NS) + 1
    return [(start, min(end, last_ns)) for start, end in _periods(one) if start < last_ns]


def _by_expectation(one: NodeListing) -> tuple[Periods, Periods]:
    periods = _periods(one)
    return minus(periods, one.excess), common(periods, one.excess)
