"""Time of a GPU that several nodes report: the claims that are pending review, and the metered time.

A node that lists the GPU of another one is pending review (`occupancy`), and so are its claims
there. Where it also reports claims, those of the other node are under review too: either of them
may be invented.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from collector.evidence.chunk import Span
from collector.evidence.claim_events import first_reports
from collector.evidence.ends import ends_of
from collector.evidence.node_claims import ClaimPart, Reported
from collector.evidence.occupancy import Periods, common, minus, union
from collector.evidence.places import Attendance, Places, places
from collector.evidence.review import CONTESTED, MOVED, Expectation, What
from collector.metering.evidence import Claim, Level, Stay
from collector.metering.timeline import Piece
from collector.metering.units import FOREVER_NS


class Placed(NamedTuple):
    """Places of a GPU, and by node the periods of review of the GPU or its claims, with reasons."""

    where: Places
    excess: Mapping[str, Sequence[Piece[str]]]
    """The GPU exceeds the number expected of the node."""
    disputed: Mapping[str, Sequence[Piece[str]]]
    """Several nodes report the GPU."""


def placed_of(
    reported: Reported,
    silent: Mapping[str, Sequence[Span]],
    attended: Mapping[str, Sequence[Span]],
    expected: Expectation,
) -> Placed:
    """Return the places of a GPU from reports of nodes, expectations and decisions."""
    gpu, contacts = reported.gpu, reported.contacts
    nodes = sorted({one.node for one in reported.presences})
    excess = {node: expected.excess(gpu, node, contacts) for node in nodes}
    verdicts = {node: expected.decisions.of(What.GPU, node, gpu) for node in nodes}
    attendance = Attendance(silent, attended, verdicts, excess)
    where = places(reported.presences, gpu, contacts, attendance)
    if not where.waiting:
        return Placed(where, excess, {})
    claimed = {
        node: minus(periods, _times(excess[node]))
        for node, periods in _claimed_while_waiting(reported, where).items()
    }
    disputed: dict[str, list[Piece[str]]] = {}
    for node in nodes:
        waits = where.waiting.get(node, [])
        others = union(p for other, some in claimed.items() if other != node for p in some)
        contested = [] if verdicts[node] else minus(others, waits)
        found = [Piece(*period, MOVED) for period in waits]
        disputed[node] = sorted([*found, *(Piece(*period, CONTESTED) for period in contested)])
    times = {node: _times(pieces) for node, pieces in disputed.items()}
    return Placed(replace(where, disputed=times), excess, disputed)


def shown_waiting(
    parts: Sequence[ClaimPart], where: Places, administered: Iterable[Claim]
) -> tuple[Stay, ...]:
    """Return the time held only by claims of a node under review: metered there, in state `review`."""
    found: list[Stay] = []
    taken: Periods = []
    for node, periods in sorted(where.waiting.items()):
        held = (p.claim for p in parts if p.claim.node == node and p.claim.review == MOVED)
        others = [p.claim for p in parts if p.claim.node != node]
        others += (claim for claim in administered if claim.node != node)
        busy = union([*taken, *((claim.begins_ns, claim.ceases_ns) for claim in others)])
        own = union((claim.begins_ns, claim.ceases_ns) for claim in held)
        free = minus(common(periods, own), busy)
        taken = union([*taken, *free])
        found += (Stay(start, node, end) for start, end in free)
    return tuple(found)


def outside_of(stays: Iterable[Stay], shown: Iterable[Stay]) -> tuple[Stay, ...]:
    """Return stays without the time of others."""
    gone = union((stay.start_ns, stay.end_ns) for stay in shown)
    return tuple(
        Stay(start, stay.node, end)
        for stay in stays
        for start, end in minus([(stay.start_ns, stay.end_ns)], gone)
    )


def _claimed_while_waiting(reported: Reported, where: Places) -> dict[str, Periods]:
    """By node under review, return the time of its claims that would be billed."""
    ends = ends_of(reported.told, reported.ended, reported.presences)
    found: dict[str, Periods] = {}
    for key, one in first_reports(reported.told).items():
        start_ns = max(one.start_ns, one.trusted_from_ns)
        if one.level > Level.PROCESS and one.node in where.waiting:
            found.setdefault(one.node, []).append((start_ns, ends.get(key, FOREVER_NS)))
    return {node: common(where.waiting[node], union(periods)) for node, periods in found.items()}


def _times(pieces: Iterable[Piece[str]]) -> Periods:
    return union((start, end) for start, end, _ in pieces)
