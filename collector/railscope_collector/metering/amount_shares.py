"""Amounts by holder, from counters of the GPU; they add up to the total of each counter.

An increment between two readings is attributed to a holder that held the slot from one to the
other. If the holder changed in between, or the counter was reset, the increment is unattributed:
nothing is estimated. So is use of a GPU that was only assumed, or under a claim under review. An
increment counts in the window that contains its later reading, so windows add up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from fractions import Fraction

import msgspec
import numpy as np
from numpy.typing import NDArray

from railscope.claim_terms import GPU_CAPACITY
from railscope_collector.metering import units
from railscope_collector.metering.counter_increments import Column, CounterIncrements
from railscope_collector.metering.slot_owners import OwnedSlots, SlotOwners


class AmountAttribution(StrEnum):
    """Attribution of an amount."""

    ATTRIBUTED = "attributed"
    IDLE = "idle"
    UNATTRIBUTED = "unattributed"


class AmountShare(msgspec.Struct, frozen=True, order=True, gc=False):
    """An amount of slots [lo, hi) in [t0, t1). A shared GPU's is divided by compute slots."""

    t0_ns: int
    t1_ns: int
    slot_lo: units.Units
    slot_hi: units.Units
    use: AmountAttribution
    amount: int
    tenant: str = ""
    workload: str = ""
    claim: str = ""


_MAX = np.iinfo(np.int64).max
# Negative, unlike the index of a tenure: the same owner held only a part of the slots throughout.
_PART_OF_A_TENURE = -1
_CHANGED = OwnedSlots(units.WHOLE, None, -2)


def attribute_shares(
    owned: SlotOwners, counted: CounterIncrements, start_ns: int, end_ns: int
) -> list[AmountShare]:
    """Return the amounts of readings after the start and up to the end of a window, in order.

    There is one share per tenure; for an increment across a change, one share per owner that did
    not change and one per run of slots with a changed owner.
    """
    window = (start_ns, end_ns)
    # By the later reading only, so that adjacent windows count each increment once.
    within = (counted.ends_ns > start_ns) & (counted.ends_ns <= end_ns)
    picked = CounterIncrements(
        counted.starts_ns[within],
        counted.ends_ns[within],
        counted.amounts[within],
        counted.same[within],
    )
    piece = np.searchsorted(owned.starts_ns, picked.starts_ns, "right") - 1
    # The usual case is added up by column; a loop over the rest remains.
    unchanged = picked.same & (picked.ends_ns <= owned.ends_ns[piece])
    sums: Counter[OwnedSlots] = Counter()
    for piece_number, amounts in _group_amounts(piece[unchanged], picked.amounts[unchanged]):
        for part, size in _divide_amounts(owned.pieces[piece_number].value, amounts):
            sums[part] += size
    attributed: list[AmountShare] = []
    rest = ~unchanged & (picked.amounts > 0)
    columns = (piece, picked.starts_ns, picked.ends_ns, picked.amounts, picked.same)
    for piece_number, start, end, amount, same in zip(
        *(column[rest].tolist() for column in columns), strict=True
    ):
        parts = _find_lasting_owners(owned, piece_number, end) if same else [_CHANGED]
        amounts = np.array([amount], np.int64)
        for part, size in _divide_amounts(parts, amounts):
            if part.tenure >= 0:
                sums[part] += size
            elif size and part.tenure == _CHANGED.tenure:
                attributed.append(
                    AmountShare(start, end, *part.slots, AmountAttribution.UNATTRIBUTED, size)
                )
            elif size:
                attributed.append(_build_share(part, (start, end), window, size))
    attributed += (
        _build_share(part, owned.tenures[part.tenure], window, n) for part, n in sums.items() if n
    )
    return sorted(attributed)


def _group_amounts(keys: NDArray[np.intp], amounts: Column) -> Iterator[tuple[int, Column]]:
    """Yield the amounts of each key."""
    order = np.argsort(keys, kind="stable")
    groups, first = np.unique(keys[order], return_index=True)
    return zip(groups.tolist(), np.split(amounts[order], first[1:]), strict=False)


def _find_lasting_owners(owned: SlotOwners, piece_number: int, end_ns: int) -> list[OwnedSlots]:
    """Return all slots with their common owner from one piece up to a time in a later piece."""
    parts = list(owned.pieces[piece_number].value)
    while owned.ends_ns[piece_number] < end_ns:
        piece_number += 1
        parts = list(_intersect_owners(parts, owned.pieces[piece_number].value))
    common_owners: list[OwnedSlots] = []
    for part in parts:
        if common_owners and part.tenure == common_owners[-1].tenure == _CHANGED.tenure:
            common_owners[-1] = OwnedSlots(
                units.CapacityRange(common_owners[-1].slots.low, part.slots.high), *_CHANGED[1:]
            )
        else:
            common_owners.append(part)
    return common_owners


def _intersect_owners(
    parts: Iterable[OwnedSlots], later: Sequence[OwnedSlots]
) -> Iterator[OwnedSlots]:
    """Yield slots with the owner that both have; and the tenure, if it is the same."""
    following = iter(later)
    other = next(following)
    for part in parts:
        next_slot = part.slots.low
        while next_slot < part.slots.high:
            while other.slots.high <= next_slot:
                other = next(following)
            high = min(part.slots.high, other.slots.high)
            slots, next_slot = units.CapacityRange(next_slot, high), high
            if part.tenure == other.tenure:
                yield part
            # The slots of an owner changed around these, which it held from one reading to the other.
            elif part.claim == other.claim and part.tenure != _CHANGED.tenure:
                yield OwnedSlots(slots, part.claim, _PART_OF_A_TENURE)
            else:
                yield OwnedSlots(slots, None, _CHANGED.tenure)


def _divide_amounts(
    parts: Sequence[OwnedSlots], amounts: Column
) -> Iterator[tuple[OwnedSlots, int]]:
    """Divide amounts among parts: each is cut at the edges of slots, so that the sum is preserved."""
    # Differences of sums up to each edge: rounding each part separately would lose units of the total.
    below = {units.WHOLE.low: 0, units.WHOLE.high: _exact_sum(amounts)}
    for part in parts:
        for edge in part.slots:
            if edge not in below:
                below[edge] = _exact_sum(_scale_amounts(amounts, edge))
        yield part, below[part.slots.high] - below[part.slots.low]


def _scale_amounts(amounts: Column, slots: units.Units) -> Column:
    """Return `amounts * slots // GPU_CAPACITY`, where the product could exceed 64 bits."""
    share = Fraction(slots) / GPU_CAPACITY
    # numpy wraps silently: products that may exceed 64 bits are computed with Python's integers.
    if int(amounts.max(initial=0)) * share.numerator <= _MAX >= share.denominator:
        return amounts * share.numerator // share.denominator
    parts = (amount * share.numerator // share.denominator for amount in amounts.tolist())
    return np.fromiter(parts, np.int64, len(amounts))


def _exact_sum(amounts: Column) -> int:
    """Return the exact sum, of any size."""
    if int(amounts.max(initial=0)) * len(amounts) <= _MAX:
        return int(amounts.sum())
    return sum(amounts.tolist())


def _build_share(
    part: OwnedSlots, span: tuple[int, int], window: tuple[int, int], amount: int
) -> AmountShare:
    """Return the share of one owner, or of free slots, within the window."""
    t0, t1 = max(span[0], window[0]), min(span[1], window[1])
    claim = part.claim
    if claim is None:
        return AmountShare(t0, t1, *part.slots, AmountAttribution.IDLE, amount)
    # The GPU or the claim is not certain, so the amount has no holder.
    if claim.assumed or claim.review:
        return AmountShare(t0, t1, *part.slots, AmountAttribution.UNATTRIBUTED, amount)
    owner = (claim.tenant, claim.workload, claim.id)
    return AmountShare(t0, t1, *part.slots, AmountAttribution.ATTRIBUTED, amount, *owner)
