"""Who holds each slot at each instant.

The highest level wins, then the latest start, then the id. Of two claims of one level on one slot,
of which one at least is exclusive, the earlier ends where the later begins, and a conflict names
both. So no slot has two holders at any instant, and nothing is billed twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import msgspec

from collector.metering.evidence import Claim, Evidence, Level, Stay
from collector.metering.timeline import Piece, prevailing
from collector.metering.units import WHOLE, Slots, Tiling


class Conflict(msgspec.Struct, frozen=True, order=True, gc=False):
    """Two claims of one level held one slot in [start, end): the earlier ended at its start."""

    start_ns: int
    end_ns: int
    earlier: str
    later: str


class Band(msgspec.Struct, frozen=True):
    """Slots that always had one holder, and who it was."""

    slots: Slots
    holders: tuple[Piece[Claim], ...]


def stays(evidence: Evidence) -> list[Piece[Stay]]:
    """In which node the GPU was, without overlap."""
    return prevailing(Piece(stay.start_ns, stay.end_ns, stay) for stay in evidence.stays)


def claims_in_force(evidence: Evidence) -> list[Claim]:
    """The claims with the ends they really had, in order; those that never began are left out.

    A claim on a node begins when the GPU enters that node and ends when it leaves.
    """
    ends: dict[str, int] = {}
    for claim in evidence.claims:
        ends[claim.id] = min(claim.end_ns, ends.get(claim.id, claim.end_ns))
    for release in evidence.releases:
        if release.claim in ends:
            ends[release.claim] = min(release.instant_ns, ends[release.claim])
    places = stays(evidence)
    found: set[Claim] = set()
    for claim in evidence.claims:
        spans = [(claim.start_ns, ends[claim.id])]
        if claim.node:
            spans = [
                (max(claim.start_ns, place.start_ns), min(ends[claim.id], place.end_ns))
                for place in places
                if place.value.node == claim.node
            ]
        for start, end in spans:
            if start < end:
                found.add(msgspec.structs.replace(claim, start_ns=start, end_ns=end))
    return sorted(found)


def bands(claims: Iterable[Claim], tiling: Tiling, edges: Iterable[int] = ()) -> list[Band]:
    """All slots of a GPU, cut wherever claims (and further edges) cut them, with their holders."""
    claims = sorted(claims)
    cuts = {*WHOLE, *edges, *(edge for claim in claims for edge in claim.slots(tiling))}
    found = []
    for low, high in pairwise(sorted(cuts)):
        slots = Slots(low, high)
        tenures = (tenure for tenure, _ in _tenures(_within(claims, tiling, slots)))
        found.append(Band(slots, tuple(prevailing(tenures))))
    return found


def conflicts(evidence: Evidence) -> list[Conflict]:
    """Every pair of claims of which one had to end for the other, in order."""
    claims = claims_in_force(evidence)
    found: set[Conflict] = set()
    for tiling in Tiling:
        cuts = {*WHOLE, *(edge for claim in claims for edge in claim.slots(tiling))}
        for slots in pairwise(sorted(cuts)):
            for tenure, successor in _tenures(_within(claims, tiling, Slots(*slots))):
                claim = tenure.value
                if successor and successor.start_ns < claim.end_ns:
                    end = min(claim.end_ns, successor.end_ns)
                    found.add(Conflict(successor.start_ns, end, claim.id, successor.id))
    return sorted(found)


def _within(claims: Sequence[Claim], tiling: Tiling, slots: Slots) -> list[Claim]:
    """The claims that hold all of these slots."""
    held = ((claim, claim.slots(tiling)) for claim in claims)
    return [claim for claim, has in held if has.low <= slots.low and slots.high <= has.high]


def _tenures(claims: Sequence[Claim]) -> Iterator[tuple[Piece[Claim], Claim | None]]:
    """Claims on one slot, in order, each until its end or until the next one that ends it."""
    level: Level | None = None
    following: Claim | None = None
    exclusive: Claim | None = None
    for claim in reversed(claims):
        if claim.level is not level:
            level, following, exclusive = claim.level, None, None
        successor = following if claim.exclusive else exclusive
        end = min(claim.end_ns, successor.start_ns) if successor else claim.end_ns
        yield Piece(claim.start_ns, end, claim), successor
        following = claim
        exclusive = claim if claim.exclusive else exclusive
