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

from railscope.claim_terms import ClaimAuthority
from railscope_collector.metering import timeline, units
from railscope_collector.metering.evidence import MeteredClaim

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


def allocations(
    claims: Sequence[timeline.TimePiece[MeteredClaim]],
) -> Iterator[tuple[int, int, list[HeldSlots]]]:
    """Yield spans in which no claim begins or ends, with the held slots; `claims` are in ascending precedence."""
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
            yield now, until, allocate(_ClaimsInForce(claims, active))


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


def allocate(in_force: Sequence[MeteredClaim]) -> list[HeldSlots]:
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
            taken, free = _take_slots(free, claim.compute)
            allocated += (HeldSlots(slots, claim) for slots in taken)
            continue
        # All of this authority: members of the claim's group may stand below exclusive claims.
        while position < len(in_force) and in_force[position].authority is claim.authority:
            waiting.append(in_force[position])
            position += 1
        group, waiting = _group(claim, waiting)
        free = _divide_group(group, free, allocated)
    return allocated


def _group(
    first: MeteredClaim, following: Iterable[MeteredClaim]
) -> tuple[list[MeteredClaim], deque[MeteredClaim]]:
    """Return the group of a shared claim among those of its authority, and the other claims.

    An exclusive claim ends a group on its own slots: it does not divide claims on another instance.
    """
    group, remaining, taken = [first], deque[MeteredClaim](), set[units.CapacityRange]()
    for claim in following:
        slots = claim.compute
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
    free: list[units.CapacityRange],
    allocated: list[HeldSlots],
) -> list[units.CapacityRange]:
    """Divide the remainder of each device of a group; instances before the GPU that contains them.

    Shares take the lowest free slots, so another claim in force moves holders and frees no slot
    that was held: a share that it displaces takes a slot above, up to the end of the device's
    remainder.
    """
    devices = sorted({claim.compute for claim in group}, key=lambda s: (s.high - s.low, s))
    for device in devices:
        members = [claim for claim in group if claim.compute == device]
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
