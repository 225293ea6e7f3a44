"""Overlaps: capacity that claims request of a GPU and do not hold, and the claims that hold it instead."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from fractions import Fraction
from operator import itemgetter
from typing import NamedTuple

import msgspec

from railscope.claim_terms import ClaimAuthority
from railscope_collector.metering import holders, timeline
from railscope_collector.metering.evidence import Evidence, MeteredClaim
from railscope_collector.metering.units import CapacityRange, Tiling, Units, exact


class OverlapKind(StrEnum):
    """Reason for which a claim holds less than it requests."""

    CONFLICT = "conflict"
    """A claim of the same authority holds it."""
    OVERRIDE = "override"
    """A claim of a higher authority holds it."""
    OVERSUBSCRIBED = "oversubscribed"
    """The shares of the group exceed the device."""


class Overlap(msgspec.Struct, frozen=True, order=True, gc=False):
    """A claim requested `units` of the GPU more than it held in [start, end): `other` had them.

    For an oversubscribed group `other` is its highest other claim, and `ratio` is the sum of the
    requested shares divided by the capacity of the group.
    """

    start_ns: int
    end_ns: int
    tiling: Tiling
    claim: str
    tenant: str
    other: str
    other_tenant: str
    kind: OverlapKind
    units: Units
    ratio: Fraction = Fraction(1)

    @property
    def quantity(self) -> Units:
        """Capacity times time, in cap-unit-nanoseconds."""
        return exact(self.units * (self.end_ns - self.start_ns))


def find_overlaps(evidence: Evidence) -> list[Overlap]:
    """Return the capacity that each claim requested and did not hold, by the claim that held it; in order.

    The capacity that an exclusive claim lacks depends only on the held slots: such claims are processed
    where the held slots change, and not wherever any claim begins or ends.
    """
    claims = holders.claims_in_force(evidence)
    exclusive = [piece for piece in claims if piece.value.exclusive]
    all_overlaps: list[Overlap] = []
    for tiling in Tiling:
        runs: dict[tuple[object, ...], Overlap] = {}
        divided: list[timeline.TimePiece[tuple[holders.HeldSlots, ...]]] = []
        for now, until, in_force, held_slots in holders.allocations(claims, tiling):
            timeline.append_piece(divided, timeline.TimePiece(now, until, tuple(held_slots)))
            # Without shared claims there are no groups.
            if len(exclusive) < len(claims):
                all_overlaps += _join_overlaps(
                    runs, _find_group_overlaps(now, until, in_force, held_slots, tiling)
                )
        for piece in exclusive:
            all_overlaps += _join_overlaps(runs, _find_claim_overlaps(piece, divided, tiling))
        all_overlaps += runs.values()
    return sorted(all_overlaps)


def _join_overlaps(
    runs: dict[tuple[object, ...], Overlap], overlapped: Iterable[Overlap]
) -> Iterator[Overlap]:
    """Extend overlaps that continue unchanged; yield those that have ended."""
    for overlap in overlapped:
        key = (overlap.claim, overlap.other, overlap.kind, overlap.units, overlap.ratio)
        last = runs.get(key)
        goes_on = last is not None and last.end_ns == overlap.start_ns
        if last is not None and not goes_on:
            yield last
        begins_ns = last.start_ns if last is not None and goes_on else overlap.start_ns
        runs[key] = msgspec.structs.replace(overlap, start_ns=begins_ns)


def _find_claim_overlaps(
    piece: timeline.TimePiece[MeteredClaim],
    divided: Sequence[timeline.TimePiece[tuple[holders.HeldSlots, ...]]],
    tiling: Tiling,
) -> Iterator[Overlap]:
    """Yield the overlaps of an exclusive claim: requested = held + moved."""
    claim = piece.value
    low, high = claim.slots(tiling)
    first = bisect_right(divided, piece.start_ns, key=itemgetter(1))
    for position in range(first, len(divided)):
        start_ns, end_ns, held_slots = divided[position]
        if start_ns >= piece.end_ns:
            return
        own_slots = sum(slots.high - slots.low for slots, holder in held_slots if holder is claim)
        span = max(start_ns, piece.start_ns), min(end_ns, piece.end_ns)
        missing = exact(Fraction(high - low - own_slots))
        yield from _overlap(claim, missing, _ShareGroup((claim,), held_slots), tiling, span)


def _find_group_overlaps(
    now: int,
    until: int,
    in_force: Sequence[MeteredClaim],
    held_slots: Sequence[holders.HeldSlots],
    tiling: Tiling,
) -> Iterator[Overlap]:
    """Yield the overlaps of shared claims in one span: requested = held + moved, for every claim."""
    sizes: dict[MeteredClaim, Units] = {}
    for slots, claim in held_slots:
        sizes[claim] = sizes.get(claim, 0) + slots.high - slots.low
    for claim, group in _groups(in_force, sizes, held_slots, tiling).items():
        units = requested_size(claim, claim.slots(tiling))
        missing = units - sizes.get(claim, 0) if units is not None else 0
        yield from _overlap(claim, missing, group, tiling, (now, until))


def _overlap(
    claim: MeteredClaim, missing: Units, group: _ShareGroup, tiling: Tiling, span: tuple[int, int]
) -> Iterator[Overlap]:
    """Yield the overlaps of a claim that lacks `missing` units in a span."""
    if missing > 0:
        for other, kind, units, ratio in _find_holders(claim, missing, group, tiling):
            names = (claim.id, claim.tenant, other.id, other.tenant)
            yield Overlap(*span, tiling, *names, kind, exact(units), ratio)


class _ShareGroup(NamedTuple):
    """Claims that divide a device, greatest first, and the slots that other claims on the GPU hold."""

    claims: Sequence[MeteredClaim]
    other_slots: Sequence[holders.HeldSlots]
    ratio: Fraction = Fraction(0)
    """The sum of the requested shares divided by the held capacity; 0 if nothing is held."""


def _groups(
    in_force: Iterable[MeteredClaim],
    sizes: Mapping[MeteredClaim, Units],
    held_slots: Sequence[holders.HeldSlots],
    tiling: Tiling,
) -> dict[MeteredClaim, _ShareGroup]:
    """Return the group of each shared claim; each is computed once, however many claims it has."""
    share_groups: list[list[MeteredClaim]] = []
    current: dict[CapacityRange, list[MeteredClaim]] = {}
    level: ClaimAuthority | None = None
    for claim in in_force:
        if claim.authority is not level:
            current, level = {}, claim.authority
        slots = claim.slots(tiling)
        if claim.exclusive:
            current = {
                device: group
                for device, group in current.items()
                if not holders.slots_intersect(device, slots)
            }
        elif slots in current:
            current[slots].append(claim)
        else:
            share_groups.append([claim])
            current[slots] = share_groups[-1]
    groups: dict[MeteredClaim, _ShareGroup] = {}
    for claims in share_groups:
        group_claims = set(claims)
        units = (Fraction(requested_size(claim, claim.slots(tiling)) or 0) for claim in claims)
        had = sum((Fraction(sizes.get(claim, 0)) for claim in claims), Fraction(0))
        ratio = sum(units, Fraction(0)) / had if had else Fraction(0)
        group = _ShareGroup(
            claims, [part for part in held_slots if part.claim not in group_claims], ratio
        )
        groups |= dict.fromkeys(claims, group)
    return groups


def requested_size(claim: MeteredClaim, device: CapacityRange) -> Units | None:
    """Return the size that a claim requests of its device; None for a shared claim without a share."""
    size = device.high - device.low
    if claim.exclusive:
        return size
    return None if claim.share is None else exact(size * claim.share)


def _find_holders(
    claim: MeteredClaim, missing: Units, group: _ShareGroup, tiling: Tiling
) -> Iterator[tuple[MeteredClaim, OverlapKind, Units, Fraction]]:
    """Yield the claims that hold the missing units, greatest slots first, up to the exact amount."""
    device = claim.slots(tiling)
    for slots, other in group.other_slots:
        within = min(slots.high, device.high) - max(slots.low, device.low)
        if other is claim or within <= 0 or missing <= 0:
            continue
        kind = OverlapKind.CONFLICT if other.authority is claim.authority else OverlapKind.OVERRIDE
        units = min(within, missing)
        missing -= units
        yield other, kind, units, Fraction(1)
    if missing > 0:
        # Nothing else holds the rest: the group's own shares exceed the device.
        other = next((holder for holder in group.claims if holder is not claim), claim)
        yield other, OverlapKind.OVERSUBSCRIBED, missing, group.ratio
