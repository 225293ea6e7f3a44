"""Nodes in which a GPU was, and its observed time in each.

A node has a GPU from its first report of it until it has left: until the node has reported for
`LEFT_NS` without listing the GPU. Neither a gap in the reports nor a device that is listed without
a value is a departure. Another node that lists the GPU meanwhile is pending review, so a stale node
loses nothing to a node that lists its GPU. Of two periods the earlier one counts, and no period
begins before the collector received it, whatever timestamps its frames have.

Of several nodes that report a GPU, `divide_occupancy` determines the one that has it; the samples of the
others do not count meanwhile, and their reports of the GPU are under review. Samples from before
the first contact with a GPU in a node do not count.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

import msgspec

from railscope.timestamps import FOREVER_NS
from railscope_collector.evidence import node_intervals
from railscope_collector.evidence.node_intervals import NO_CONTACTS, SampleSpan, floor_ns
from railscope_collector.metering import evidence, observation, timeline

LEFT_NS = 120_000_000_000
"""A node that reports for this time without a GPU does not have it: drivers start in less."""
Period = tuple[int, int]
Periods = list[Period]


class NodeListing(NamedTuple):
    """Reports of one node that concern a GPU."""

    node: str
    received_ns: int
    """First receipt of the GPU from the node."""
    listed: Sequence[SampleSpan]
    """Time in which the node listed the GPU, with a value or without."""
    reports: Sequence[SampleSpan] = ()
    """Time in which the node reported anything."""
    verdict: bool | None = None
    """Decision of a person about the GPU in the node."""
    excess: Sequence[Period] = ()
    """Time in which the GPU exceeds the number expected of the node: it has no precedence then."""


class GpuOccupancy(NamedTuple):
    """Time in which each node has the GPU, and in which its reports are under review."""

    occupied: Mapping[str, Periods]
    under_review: Mapping[str, Periods]


def divide_occupancy(listings: Iterable[NodeListing]) -> GpuOccupancy:
    """Divide the time of one GPU among the nodes that reported it.

    An accepted node has the GPU wherever it lists it; of two accepted nodes, the one received
    first.
    """
    # By first receipt, which a node cannot choose, and then by name, so that the result has one order.
    nodes = sorted(
        (listing for listing in listings if listing.verdict is not False),
        key=lambda n: (n.received_ns, n.node),
    )
    occupied: dict[str, Periods] = {listing.node: [] for listing in nodes}
    accepted = [listing for listing in nodes if listing.verdict]
    unaccepted = [listing for listing in nodes if not listing.verdict]
    taken: Periods = []
    for listing in accepted:
        near = unite_periods(
            (span.first_ns - observation.GAP_NS, span.last_ns + observation.GAP_NS)
            for span in listing.listed
        )
        occupied[listing.node] = subtract_periods(near, taken)
        taken = unite_periods([*taken, *near])
    taken = unite_periods(
        taken + [period for listing in accepted for period in _owned_periods(listing)]
    )
    claims = sorted(
        (is_excess, max(start, listing.received_ns), listing.received_ns, listing.node, start, end)
        for listing in unaccepted
        for is_excess, periods in enumerate(_split_by_expectation(listing))
        for start, end in periods
    )
    ranked = (
        timeline.TimePiece(start, end, (-rank, node))
        for rank, (*_, node, start, end) in enumerate(claims)
    )
    for start, end, (_, node) in timeline.resolve_overlaps(ranked):
        occupied[node].append((start, end))
    for listing in unaccepted:
        occupied[listing.node] = subtract_periods(unite_periods(occupied[listing.node]), taken)
    under_review = {
        listing.node: subtract_periods(_reported_periods(listing), occupied[listing.node])
        for listing in unaccepted
    }
    return GpuOccupancy(occupied, {node: found for node, found in under_review.items() if found})


class KnownListing(NamedTuple):
    """Reports of one node that concern a GPU, of which earlier ones may be unknown."""

    listing: NodeListing
    observed: Sequence[SampleSpan]
    """Time in which the node listed the GPU with a value."""
    is_complete: bool
    """No earlier report is unknown."""

    @classmethod
    def collect(
        cls,
        gpu: str,
        node: str,
        intervals: Iterable[node_intervals.EvidenceInterval],
        contacts: node_intervals.Contacts,
        *,
        is_complete: bool,
    ) -> KnownListing:
        """Collect them from intervals of the node."""
        known_intervals = list(intervals)
        sighted = [interval.gpus[gpu] for interval in known_intervals if gpu in interval.gpus]
        floor = floor_ns(contacts, gpu, node, (each.received_ns for each in sighted))
        observed = _clip_start(floor, [span for each in sighted for span in each.spans])
        valueless = [span for each in known_intervals for span in each.valueless.get(gpu, ())]
        reports = [span for each in known_intervals for span in each.report_spans()]
        listed = [*observed, *_clip_start(floor, valueless)]
        return cls(NodeListing(node, floor, listed, reports), observed, is_complete)

    def occupied(self) -> Periods:
        """Return the time in which the node may have the GPU by its own reports."""
        first_ns = min((span.first_ns for span in self.listing.listed), default=FOREVER_NS)
        owned = _owned_periods(self.listing)
        if self.is_complete or has_left(join_spans(self.listing.reports), -FOREVER_NS, first_ns):
            return owned
        return unite_periods([(-FOREVER_NS, first_ns), *owned])


def find_sole_listing(listings: Iterable[KnownListing], until_ns: int) -> int | None:
    """Return the latest time up to a limit at which one node listed a GPU and no other node may have it."""
    occupied = [(each, each.occupied()) for each in listings]
    sole_ns = []
    for each, _ in occupied:
        other_periods = unite_periods(
            period for other, periods in occupied if other is not each for period in periods
        )
        earlier = (span for span in each.observed if span.first_ns <= until_ns)
        times = {t for span in earlier for t in (span.first_ns, min(span.last_ns, until_ns))}
        sole_ns += [t for t in times if not _contains(other_periods, t)]
    return max(sole_ns, default=None)


def _contains(periods: Periods, timestamp_ns: int) -> bool:
    position = bisect_right(periods, timestamp_ns, key=itemgetter(0))
    return position > 0 and timestamp_ns < periods[position - 1][1]


def has_left(reports: Periods, since_ns: int, until_ns: int) -> bool:
    """True if a node reported long enough without a GPU between two times at which it listed it."""
    low, high = since_ns + observation.GAP_NS, until_ns - observation.GAP_NS
    first = bisect_left(reports, low, key=itemgetter(1))
    last = bisect_right(reports, high, key=itemgetter(0)) - 1
    if first > last:
        return False
    return min(high, reports[last][1]) - max(low, reports[first][0]) >= LEFT_NS


def unite_periods(periods: Iterable[Period]) -> Periods:
    """Return the time that is in any of the periods, in order."""
    united: Periods = []
    for start, end in sorted(periods):
        if united and start <= united[-1][1]:
            united[-1] = united[-1][0], max(end, united[-1][1])
        elif start < end:
            united.append((start, end))
    return united


def join_spans(spans: Iterable[SampleSpan]) -> Periods:
    """Return the time of spans; a single report lasts a nanosecond."""
    return unite_periods((span.first_ns, span.last_ns + 1) for span in spans)


def subtract_periods(periods: Iterable[Period], taken: Sequence[Period]) -> Periods:
    """Return the time in the periods that is in none of `taken`; both in order and disjoint."""
    remaining: Periods = []
    position = 0
    for start, end in periods:
        now = start
        position = bisect_right(taken, now, lo=position, key=itemgetter(1))
        ahead = position
        while ahead < len(taken) and taken[ahead][0] < end:
            if now < taken[ahead][0]:
                remaining.append((now, taken[ahead][0]))
            now = max(now, taken[ahead][1])
            ahead += 1
        # The last period may also reach into the next one of `periods`.
        position = max(position, ahead - 1)
        if now < end:
            remaining.append((now, end))
    return remaining


def subtract_stays(
    stays: Iterable[evidence.NodeStay], shown: Iterable[evidence.NodeStay]
) -> tuple[evidence.NodeStay, ...]:
    """Return `stays` minus the time covered by `shown`."""
    gone = unite_periods((stay.start_ns, stay.end_ns) for stay in shown)
    return tuple(
        evidence.NodeStay(start, stay.node, end)
        for stay in stays
        for start, end in subtract_periods([(stay.start_ns, stay.end_ns)], gone)
    )


def intersect_periods(periods: Sequence[Period], other_periods: Sequence[Period]) -> Periods:
    """Return the time that is in both; both in order and disjoint."""
    return subtract_periods(periods, subtract_periods(periods, other_periods))


def _owned_periods(listing: NodeListing) -> Periods:
    """Return the time in which a node has the GPU by its own reports, including gaps in them."""
    near = unite_periods(
        (span.first_ns, span.last_ns + observation.GAP_NS + 1) for span in listing.listed
    )
    reports = join_spans(listing.reports)
    owned: Periods = []
    for position, (first_ns, end_ns) in enumerate(near):
        until_ns = near[position + 1][0] if position + 1 < len(near) else FOREVER_NS
        left = has_left(reports, end_ns - observation.GAP_NS - 1, until_ns)
        owned.append((first_ns, end_ns if left else until_ns))
    return unite_periods(owned)


def _reported_periods(listing: NodeListing) -> Periods:
    """Return the same time, of each period up to the last report of the GPU in it."""
    ends = sorted(span.last_ns + 1 for span in listing.listed)
    return [(start, ends[bisect_right(ends, end) - 1]) for start, end in _owned_periods(listing)]


def _split_by_expectation(listing: NodeListing) -> tuple[Periods, Periods]:
    periods = _owned_periods(listing)
    return subtract_periods(periods, listing.excess), intersect_periods(periods, listing.excess)


class GpuPresence(msgspec.Struct, array_like=True):
    """A GPU in one boot of one node: its first receipt, and its samples."""

    node: str
    boot: str
    received_ns: int
    spans: list[SampleSpan] = []
    trusted_start_ns: int = 0
    """The trusted start of the boot; 0: its first sample."""


class NodeReports(NamedTuple):
    """Facts by node that decide between several nodes that report one GPU."""

    valueless: Mapping[str, Sequence[SampleSpan]] = {}
    """Time in which the node listed the GPU without a value."""
    reports: Mapping[str, Sequence[SampleSpan]] = {}
    """Time in which the node reported anything."""
    verdicts: Mapping[str, bool | None] = {}
    """Decisions of people about the GPU in the node."""
    excess: Mapping[str, Sequence[timeline.TimePiece[str]]] = {}
    """Time in which the GPU exceeds the number expected of the node."""


class GpuNodeHistory(msgspec.Struct, frozen=True):
    """Nodes in which a GPU was, its observed time, and the nodes with unused reports."""

    stays: tuple[evidence.NodeStay, ...]
    sample_spans: tuple[observation.BootSampleSpan, ...] = msgspec.field(name="stretches")
    rejected: tuple[tuple[str, str], ...] = ()
    """Pairs of nodes: the one that has the GPU, and the one that reported it at the same time."""
    under_review: Mapping[str, Periods] = {}
    """Periods by node in which it listed the GPU while another node has it: under review."""
    disputed: Mapping[str, Periods] = {}
    """The same, and when another node under review claims the GPU."""


def find_node_history(
    presences: Iterable[GpuPresence],
    gpu: str = "",
    contacts: node_intervals.Contacts = NO_CONTACTS,
    node_reports: NodeReports = NodeReports(),  # noqa: B008 - immutable
) -> GpuNodeHistory:
    """Combine the presences of one GPU into its places."""
    joined = _join_by_boot(presences)
    floors = {
        node: floor_ns(contacts, gpu, node, (p.received_ns for p in joined if p.node == node))
        for node in {presence.node for presence in joined}
    }
    from_floor = [
        msgspec.structs.replace(p, spans=_clip_start(floors[p.node], p.spans))
        for p in sorted(joined, key=lambda p: (p.received_ns, p.node, p.boot))
    ]
    observed = [presence for presence in from_floor if presence.spans]
    divided = GpuOccupancy({}, {})
    if len({presence.node for presence in observed}) > 1:
        divided = _divide_time(observed, floors, node_reports)
        clipped = (
            msgspec.structs.replace(
                p, spans=_clip_to_periods(p.spans, divided.occupied.get(p.node, ()))
            )
            for p in observed
        )
        observed = [presence for presence in clipped if presence.spans]
    rejected = {
        (holding_node, node)
        for node, under_review in divided.under_review.items()
        for holding_node, periods in divided.occupied.items()
        if intersect_periods(periods, under_review)
    }
    sample_spans = tuple(
        observation.BootSampleSpan(
            p.boot, span.first_ns, span.last_ns, span.uncertainty_ns, span.skew_ns
        )
        for p in observed
        for span in p.spans
    )
    return GpuNodeHistory(
        _build_stays(observed), sample_spans, tuple(sorted(rejected)), divided.under_review
    )


class GpuDescription(NamedTuple):
    """Rail and model of a GPU as a node reported them in an interval, from its first sample of the GPU on."""

    first_ns: int
    rail: int
    sku: str


def find_descriptions(
    gpu: str, intervals: Iterable[node_intervals.EvidenceInterval]
) -> dict[str, list[GpuDescription]]:
    """Return the descriptions of a GPU by node, in order: one for each interval, also if it has several parts."""
    found: dict[tuple[str, str, int], GpuDescription] = {}
    for interval in intervals:
        if (reported := interval.gpus.get(gpu)) and reported.spans:
            key = interval.node, interval.boot, interval.number
            part = GpuDescription(reported.spans[0].first_ns, reported.rail, reported.sku)
            other = found.get(key, part)
            first_ns = min(part.first_ns, other.first_ns)
            # Parts of one interval may differ: the larger value does not depend on their order.
            rail, sku = max(part.rail, other.rail), max(part.sku, other.sku)
            found[key] = GpuDescription(first_ns, rail, sku)
    by_node: dict[str, list[GpuDescription]] = {}
    for (node, *_), description in sorted(found.items(), key=itemgetter(1)):
        by_node.setdefault(node, []).append(description)
    return by_node


def find_skus(
    gpu: str,
    intervals: Iterable[node_intervals.EvidenceInterval],
    stays: Iterable[evidence.NodeStay],
) -> list[tuple[int, str]]:
    """Return the models of a GPU, each with its start: as last reported by the node that has it, or else as next."""
    described = find_descriptions(gpu, intervals)
    skus: list[tuple[int, str]] = []
    for stay in stays:
        models = [(first_ns, sku) for first_ns, _, sku in described.get(stay.node, ())]
        start = bisect_right(models, stay.start_ns, key=itemgetter(0))
        skus += ((stay.start_ns, sku) for _, sku in models[max(start - 1, 0) : max(start, 1)])
        skus += (model for model in models[start:] if model[0] < stay.end_ns)
    return skus


def is_undecided(gpu: str, intervals: Iterable[node_intervals.EvidenceInterval]) -> bool:
    """True if intervals of a node neither list a GPU nor show that it has left the node."""
    reports: list[SampleSpan] = []
    for interval in intervals:
        if gpu in interval.gpus or gpu in interval.valueless:
            return False
        reports += interval.report_spans()
    return not has_left(join_spans(reports), -FOREVER_NS, FOREVER_NS)


def _divide_time(
    presences: Sequence[GpuPresence], floors: Mapping[str, int], node_reports: NodeReports
) -> GpuOccupancy:
    """Divide the time of a GPU among the nodes that reported it."""
    verdicts = {node: node_reports.verdicts.get(node) for node in floors}
    # A GPU that was rejected in all nodes is still somewhere: as if there were no decisions.
    if all(verdict is False for verdict in verdicts.values()):
        verdicts = {}
    listings = []
    for node in sorted({presence.node for presence in presences}):
        listed = [span for p in presences if p.node == node for span in p.spans]
        listed += _clip_start(floors[node], node_reports.valueless.get(node, ()))
        reports = node_reports.reports.get(node, ())
        excess = unite_periods((start, end) for start, end, _ in node_reports.excess.get(node, ()))
        since_ns, verdict = floors[node] + node_intervals.TOLERANCE_NS, verdicts.get(node)
        listings.append(NodeListing(node, since_ns, listed, reports, verdict, excess))
    return divide_occupancy(listings)


def _join_by_boot(presences: Iterable[GpuPresence]) -> list[GpuPresence]:
    joined: dict[tuple[str, str], GpuPresence] = {}
    for presence in presences:
        key = (presence.node, presence.boot)
        if key not in joined:
            joined[key] = GpuPresence(presence.node, presence.boot, presence.received_ns, [])
        joined[key].received_ns = min(joined[key].received_ns, presence.received_ns)
        node_intervals.add_spans(joined[key].spans, presence.spans)
    return list(joined.values())


def _clip_start(floor_ns: int, spans: Sequence[SampleSpan]) -> list[SampleSpan]:
    """Return the samples from `floor_ns` on."""
    return [
        span if span.first_ns >= floor_ns else msgspec.structs.replace(span, first_ns=floor_ns)
        for span in spans
        if span.last_ns >= floor_ns
    ]


def _clip_to_periods(spans: Sequence[SampleSpan], periods: Periods | tuple[()]) -> list[SampleSpan]:
    """Return the samples within periods, which are in order and disjoint."""
    clipped: list[SampleSpan] = []
    for span in spans:
        position = max(bisect_right(periods, span.first_ns, key=itemgetter(0)) - 1, 0)
        while position < len(periods) and periods[position][0] <= span.last_ns:
            first_ns = max(span.first_ns, periods[position][0])
            last_ns = min(span.last_ns, periods[position][1] - 1)
            if first_ns <= last_ns:
                clipped.append(msgspec.structs.replace(span, first_ns=first_ns, last_ns=last_ns))
            position += 1
    return clipped


def _build_stays(presences: Iterable[GpuPresence]) -> tuple[evidence.NodeStay, ...]:
    """Return the stays of a GPU: it stays in a node until it is seen in another one."""
    observed = sorted((span.first_ns, p.node) for p in presences for span in p.spans)
    if not observed:
        return ()
    moves = [observed[0], *(after for before, after in pairwise(observed) if before[1] != after[1])]
    ends = [*(start for start, _ in moves[1:]), FOREVER_NS]
    return tuple(
        evidence.NodeStay(start, node, end) for (start, node), end in zip(moves, ends, strict=True)
    )
