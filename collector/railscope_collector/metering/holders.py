"""Holders of each slot over time.

A claim is in force from its start to its own end; no other claim ends it. Holders at a time depend
only on the claims in force then, in descending precedence: higher authority, later start, larger id,
larger source. An exclusive claim takes the remainder of its device (a GPU or a MIG instance).
Neighbouring shared claims of one authority on one device are a group: each gets its share of the device
or, if the shares exceed the remainder, its part of that; claims without a share divide the rest
equally.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from railscope.claim_terms import ClaimAuthority
from railscope_collector.metering import timeline, units
from railscope_collector.metering.evidence import Evidence, MeteredClaim, NodeStay

_RUN = re.compile(r"([0-9]+)|([^0-9]+)", re.ASCII)

Precedence = tuple[ClaimAuthority, int, tuple[tuple[bool, int, str], ...], bytes, str]


class HeldSlots(NamedTuple):
    """Slots that a claim holds at a time."""

    slots: units.CapacityRange
    claim: MeteredClaim


def natural_sort_key(text: str) -> tuple[tuple[bool, int, str], ...]:
    """Sort key that orders runs of digits by value: digits before text, a prefix first."""
    runs = ((digits.lstrip("0"), other) for digits, other in _RUN.findall(text))
    return tuple(
        # By the number of digits, then as text: the order of the numbers without a conversion.
        (bool(other), 0, other) if other else (False, len(digits), digits)
        for digits, other in runs
    )


def claim_order(claim: MeteredClaim) -> Precedence:
    """Sort key of claims; the greatest takes slots first."""
    # Ids such as 7 and 07 have the same natural order: the bytes make it total.
    id_bytes = claim.id.encode(errors="surrogatepass")
    return claim.authority, claim.start_ns, natural_sort_key(claim.id), id_bytes, claim.source


def resolve_stays(evidence: Evidence) -> list[timeline.TimePiece[NodeStay]]:
    """Return the node in which the GPU was, without overlap."""
    return timeline.resolve_overlaps(
        timeline.TimePiece(stay.start_ns, stay.end_ns, stay) for stay in evidence.stays
    )


def claims_in_force(evidence: Evidence) -> list[timeline.TimePiece[MeteredClaim]]:
    """Return the time in which each claim is in force, with its actual end; in order.

    A claim is in force while the GPU is in its node, or in any node if it names none; it keeps its
    reported start, which decides its precedence. If the start of one id was reported more than
    once, each report holds from its own start.
    """
    ends: dict[str, int] = {}
    for claim in evidence.claims:
        # The earliest end counts, in whatever order the reports arrive.
        ends[claim.id] = min(claim.end_ns, ends.get(claim.id, claim.end_ns))
    for release in evidence.releases:
        if release.claim in ends:
            ends[release.claim] = min(release.timestamp_ns, ends[release.claim])
    places = resolve_stays(evidence)
    pieces: set[timeline.TimePiece[MeteredClaim]] = set()
    for claim in evidence.claims:
        ended_claim = msgspec.structs.replace(claim, end_ns=ends[claim.id])
        own_stays = (place for place in places if claim.node in {"", place.value.node})
        spans = (
            (max(ended_claim.begins_ns, stay.start_ns), min(ended_claim.ceases_ns, stay.end_ns))
            for stay in own_stays
        )
        pieces |= {
            timeline.TimePiece(start, end, ended_claim) for start, end in spans if start < end
        }
    return sorted(pieces, key=lambda piece: (_claim_order(piece.value), piece.start_ns))


def _claim_order(claim: MeteredClaim) -> tuple[Precedence, int, str, str, str]:
    return claim_order(claim), claim.end_ns, claim.tenant, claim.workload, repr(claim)


def allocations(
    claims: Sequence[timeline.TimePiece[MeteredClaim]], tiling: units.Tiling
) -> Iterator[tuple[int, int, Sequence[MeteredClaim], list[HeldSlots]]]:
    """Yield spans in which no claim begins or ends, with claims in force (greatest first) and held slots.

    `claims` are in ascending precedence, as `claims_in_force` returns them.
    """
    begins: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for rank, piece in enumerate(claims):
        # Negative ranks, so that the ascending list has the highest precedence first.
        begins.setdefault(piece.start_ns, []).append(-rank)
        ends.setdefault(piece.end_ns, []).append(-rank)
    active: list[int] = []
    for now, until in pairwise(sorted({*begins, *ends})):
        # Ends before starts: intervals are half-open, so a claim that ends now does not hold.
        for rank in ends.get(now, ()):
            del active[bisect_left(active, rank)]
        for rank in begins.get(now, ()):
            insort(active, rank)
        if active:
            in_force = _ClaimsInForce(claims, active)
            yield now, until, in_force, allocate(in_force, tiling)


class _ClaimsInForce(Sequence[MeteredClaim]):
    """View of claims by their ranks, without a copy: the first of many claims often takes all slots."""

    def __init__(
        self, claims: Sequence[timeline.TimePiece[MeteredClaim]], ranks: Sequence[int]
    ) -> None:
        self._claims, self._ranks = claims, ranks

    def __len__(self) -> int:
        return len(self._ranks)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._claims[-rank].value for rank in self._ranks[index]]
        return self._claims[-self._ranks[index]].value


def allocate(in_force: Sequence[MeteredClaim], tiling: units.Tiling) -> list[HeldSlots]:
    """Return the slots held by claims in force, which are given in descending precedence."""
    free = [units.WHOLE]
    allocated: list[HeldSlots] = []
    waiting: deque[MeteredClaim] = deque()
    """Claims of the current authority that are not in the group."""
    position = 0
    # Claims after the last free slot hold nothing, however many there are.
    while free and (waiting or position < len(in_force)):
        if not waiting:
            waiting.append(in_force[position])
            position += 1
        claim = waiting.popleft()
        if claim.exclusive:
            taken, free = _take_slots(free, claim.slots(tiling))
            allocated += (HeldSlots(slots, claim) for slots in taken)
            continue
        # All of this authority: members of the claim's group may stand below exclusive claims.
        while position < len(in_force) and in_force[position].authority is claim.authority:
            waiting.append(in_force[position])
            position += 1
        group, waiting = _group(claim, waiting, tiling)
        free = _divide_group(group, tiling, free, allocated)
    return allocated


def _group(
    first: MeteredClaim, following: Iterable[MeteredClaim], tiling: units.Tiling
) -> tuple[list[MeteredClaim], deque[MeteredClaim]]:
    """Return the group of a shared claim among those of its authority, and the other claims.

    An exclusive claim ends a group on its own slots: it does not divide claims on another instance.
    """
    group, remaining, taken = [first], deque[MeteredClaim](), set[units.CapacityRange]()
    for claim in following:
        slots = claim.slots(tiling)
        if claim.exclusive or any(slots_intersect(slots, other) for other in taken):
            remaining.append(claim)
        else:
            group.append(claim)
        if claim.exclusive:
            taken.add(slots)
    return group, remaining


def slots_intersect(slots: units.CapacityRange, other: units.CapacityRange) -> bool:
    """True if two ranges of slots have slots in common."""
    return max(slots.low, other.low) < min(slots.high, other.high)


def _divide_group(
    group: Sequence[MeteredClaim],
    tiling: units.Tiling,
    free: list[units.CapacityRange],
    allocated: list[HeldSlots],
) -> list[units.CapacityRange]:
    """Divide the remainder of each device of a group; instances before the GPU that contains them.

    Shares take the lowest free slots, so another claim in force moves holders and frees no slot
    that was held: a share that it displaces takes a slot above, up to the end of the device's
    remainder.
    """
    devices = sorted({claim.slots(tiling) for claim in group}, key=lambda s: (s.high - s.low, s))
    for device in devices:
        members = [claim for claim in group if claim.slots(tiling) == device]
        left, free = _take_slots(free, device)
        sizes = shared_sizes(members, device, total_size(left))
        # Oldest first from the lowest slot: a later claim moves none of those that held before it.
        for claim in reversed(members):
            taken, left = _take_lowest(left, sizes[claim])
            allocated += (HeldSlots(slots, claim) for slots in taken)
        free = sorted([*free, *left])
    return free


def shared_sizes(
    members: Sequence[MeteredClaim], device: units.CapacityRange, left: units.Units
) -> dict[MeteredClaim, units.Units]:
    """Return the size that each shared claim gets of the remainder of a device."""
    size = device.high - device.low
    requested_sizes = {c: Fraction(size) * c.share for c in members if c.share is not None}
    total = sum(requested_sizes.values(), Fraction(0))
    scale = Fraction(left) / total if total > left else Fraction(1)
    sizes: dict[MeteredClaim, units.Units] = {
        claim: units.exact(want * scale) for claim, want in requested_sizes.items()
    }
    rest = left - total * scale
    without_share = [claim for claim in members if claim.share is None]
    return sizes | {
        claim: units.exact(Fraction(rest) / len(without_share)) for claim in without_share
    }


def total_size(slots: Iterable[units.CapacityRange]) -> units.Units:
    """Return the sum of the sizes of disjoint slots."""
    return units.exact(sum((Fraction(slot.high - slot.low) for slot in slots), Fraction(0)))


def _take_slots(
    free: Sequence[units.CapacityRange], requested_slots: units.CapacityRange
) -> tuple[list[units.CapacityRange], list[units.CapacityRange]]:
    """Return the free slots within the requested ones, and the free slots that remain."""
    taken: list[units.CapacityRange] = []
    rest: list[units.CapacityRange] = []
    for slots in free:
        low, high = max(slots.low, requested_slots.low), min(slots.high, requested_slots.high)
        if low >= high:
            rest.append(slots)
            continue
        taken.append(units.CapacityRange(low, high))
        sides = (units.CapacityRange(slots.low, low), units.CapacityRange(high, slots.high))
        rest += (side for side in sides if side.low < side.high)
    return taken, rest


def _take_lowest(
    free: Sequence[units.CapacityRange], size: units.Units
) -> tuple[list[units.CapacityRange], list[units.CapacityRange]]:
    """Return the lowest free slots of a size, and the rest."""
    taken: list[units.CapacityRange] = []
    rest: list[units.CapacityRange] = []
    for slots in free:
        cut = units.exact(min(slots.high, slots.low + size))
        size -= cut - slots.low
        if slots.low < cut:
            taken.append(units.CapacityRange(slots.low, cut))
        if cut < slots.high:
            rest.append(units.CapacityRange(cut, slots.high))
    return taken, rest


def divide_claims(
    claims: Sequence[timeline.TimePiece[MeteredClaim]], tiling: units.Tiling
) -> list[timeline.TimePiece[tuple[HeldSlots, ...]]]:
    """Return the held slots over time, in ascending slots; time without claims is omitted."""
    pieces: list[timeline.TimePiece[tuple[HeldSlots, ...]]] = []
    for now, until, _, held_slots in allocations(claims, tiling):
        timeline.append_piece(
            pieces, timeline.TimePiece(now, until, tuple(_join_slots(held_slots)))
        )
    return pieces


def _join_slots(held_slots: Iterable[HeldSlots]) -> list[HeldSlots]:
    """Return held slots in ascending order; neighbouring slots of one claim are joined."""
    joined: list[HeldSlots] = []
    for slots, claim in sorted(held_slots, key=lambda part: part.slots):
        if joined and joined[-1].claim is claim and joined[-1].slots.high == slots.low:
            slots = units.CapacityRange(joined.pop().slots.low, slots.high)  # noqa: PLW2901 - they are one
        joined.append(HeldSlots(slots, claim))
    return joined


def fill_free_slots(
    held_slots: Iterable[HeldSlots],
) -> Iterator[tuple[units.CapacityRange, MeteredClaim | None]]:
    """Yield all slots of a GPU in order, with the claim that holds them; None for free slots."""
    next_slot: units.Units = units.WHOLE.low
    for slots, claim in held_slots:
        if next_slot < slots.low:
            yield units.CapacityRange(next_slot, slots.low), None
        yield slots, claim
        next_slot = slots.high
    if next_slot < units.WHOLE.high:
        yield units.CapacityRange(next_slot, units.WHOLE.high), None
