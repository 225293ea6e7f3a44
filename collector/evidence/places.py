"""Nodes in which a GPU was, and its observed time there.

Of several nodes that report a GPU, `occupancy` determines the one that has it; the samples of the
others do not count meanwhile, and their reports of the GPU are under review. Samples from before
the first contact with a GPU in a node do not count.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

import msgspec

from collector.evidence.chunk import Chunk, Span, add_spans
from collector.evidence.contacts import NO_CONTACTS, TOLERANCE_NS, Contacts, floor_ns
from collector.evidence.occupancy import (
    NodeListing,
    Occupancy,
    Periods,
    closed,
    common,
    has_left,
    occupancy,
    union,
)
from collector.metering.evidence import Stay, Stretch
from collector.metering.timeline import Piece
from collector.metering.units import FOREVER_NS


class Presence(msgspec.Struct, array_like=True):
    """A GPU in one boot of one node: its first receipt, and its samples."""

    node: str
    boot: str
    heard_ns: int
    spans: list[Span] = []
    believed_ns: int = 0
    """The trusted start of the boot; 0: its first sample."""


class Attendance(NamedTuple):
    """Facts by node that decide between several nodes that report one GPU."""

    silent: Mapping[str, Sequence[Span]] = {}
    """Time in which the node listed the GPU without a value."""
    reports: Mapping[str, Sequence[Span]] = {}
    """Time in which the node reported anything."""
    verdicts: Mapping[str, bool | None] = {}
    """Decisions of people about the GPU in the node."""
    excess: Mapping[str, Sequence[Piece[str]]] = {}
    """Time in which the GPU exceeds the number expected of the node."""


class Places(msgspec.Struct, frozen=True):
    """Nodes in which a GPU was, its observed time, and the nodes with unused reports."""

    stays: tuple[Stay, ...]
    stretches: tuple[Stretch, ...]
    refused: tuple[tuple[str, str], ...] = ()
    """Pairs of nodes: the one that has the GPU, and the one that reported it at the same time."""
    waiting: Mapping[str, Periods] = {}
    """By node, when it listed the GPU while another node has it: under review."""
    disputed: Mapping[str, Periods] = {}
    """The same, and when another node under review claims the GPU."""


def places(
    presences: Iterable[Presence],
    gpu: str = "",
    contacts: Contacts = NO_CONTACTS,
    attendance: Attendance = Attendance(),  # noqa: B008 - immutable
) -> Places:
    """Combine the presences of one GPU into its places."""
    joined = _joined(presences)
    heard = {
        node: floor_ns(contacts, gpu, node, (p.heard_ns for p in joined if p.node == node))
        for node in {presence.node for presence in joined}
    }
    since = [
        msgspec.structs.replace(p, spans=_since(heard[p.node], p.spans))
        for p in sorted(joined, key=lambda p: (p.heard_ns, p.node, p.boot))
    ]
    believed = [presence for presence in since if presence.spans]
    divided = Occupancy({}, {})
    if len({presence.node for presence in believed}) > 1:
        divided = _divided(believed, heard, attendance)
        clipped = (
            msgspec.structs.replace(p, spans=_within(p.spans, divided.believed.get(p.node, ())))
            for p in believed
        )
        believed = [presence for presence in clipped if presence.spans]
    refused = {
        (stands, node)
        for node, waiting in divided.waiting.items()
        for stands, periods in divided.believed.items()
        if common(periods, waiting)
    }
    stretches = tuple(
        Stretch(p.boot, span.first_ns, span.last_ns, span.uncertainty_ns, span.skew_ns)
        for p in believed
        for span in p.spans
    )
    return Places(_stays(believed), stretches, tuple(sorted(refused)), divided.waiting)


def is_undecided(gpu: str, chunks: Iterable[Chunk]) -> bool:
    """True if chunks of a node neither list a GPU nor show that it has left the node."""
    reports: list[Span] = []
    for chunk in chunks:
        if gpu in chunk.gpus or gpu in chunk.silent:
            return False
        reports += chunk.attended()
    return not has_left(closed(reports), -FOREVER_NS, FOREVER_NS)


def _divided(
    believed: Sequence[Presence], floors: Mapping[str, int], attendance: Attendance
) -> Occupancy:
    """Divide the time of a GPU among the nodes that reported it."""
    verdicts = {node: attendance.verdicts.get(node) for node in floors}
    if all(verdict is False for verdict in verdicts.values()):
        verdicts = {}
    listings = []
    for node in sorted({presence.node for presence in believed}):
        listed = [span for p in believed if p.node == node for span in p.spans]
        listed += _since(floors[node], attendance.silent.get(node, ()))
        reports = attendance.reports.get(node, ())
        excess = union((start, end) for start, end, _ in attendance.excess.get(node, ()))
        listings.append(
            NodeListing(
                node, floors[node] + TOLERANCE_NS, listed, reports, verdicts.get(node), excess
            )
        )
    return occupancy(listings)


def _joined(presences: Iterable[Presence]) -> list[Presence]:
    found: dict[tuple[str, str], Presence] = {}
    for one in presences:
        key = (one.node, one.boot)
        if key not in found:
            found[key] = Presence(one.node, one.boot, one.heard_ns, [])
        found[key].heard_ns = min(found[key].heard_ns, one.heard_ns)
        add_spans(found[key].spans, one.spans)
    return list(found.values())


def _since(floor_ns: int, spans: Sequence[Span]) -> list[Span]:
    """Return the samples from `floor_ns` on."""
    return [
        span if span.first_ns >= floor_ns else msgspec.structs.replace(span, first_ns=floor_ns)
        for span in spans
        if span.last_ns >= floor_ns
    ]


def _within(spans: Sequence[Span], periods: Periods | tuple[()]) -> list[Span]:
    """Return the samples within periods, which are in order and disjoint."""
    found: list[Span] = []
    for span in spans:
        at = max(bisect_right(periods, span.first_ns, key=itemgetter(0)) - 1, 0)
        while at < len(periods) and periods[at][0] <= span.last_ns:
            first_ns = max(span.first_ns, periods[at][0])
            last_ns = min(span.last_ns, periods[at][1] - 1)
            if first_ns <= last_ns:
                found.append(msgspec.structs.replace(span, first_ns=first_ns, last_ns=last_ns))
            at += 1
    return found


def _stays(believed: Iterable[Presence]) -> tuple[Stay, ...]:
    """Return the stays of a GPU: it stays in a node until it is seen in another one."""
    seen = sorted((span.first_ns, p.node) for p in believed for span in p.spans)
    if not seen:
        return ()
    moves = [seen[0], *(after for before, after in pairwise(seen) if before[1] != after[1])]
    ends = [*(start for start, _ in moves[1:]), FOREVER_NS]
    return tuple(Stay(start, node, end) for (start, node), end in zip(moves, ends, strict=True))
