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
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import FOREVER_NS, HOUR_NS
from railscope_collector.metering import holders, timeline, units
from railscope_collector.metering.evidence import Evidence, MeteredClaim

Column = NDArray[np.int64]


class CountedQuantity(StrEnum):
    """A quantity that a counter of a GPU counts, with the unit of its amounts."""

    ENERGY = "energy"
    """Energy in millijoules."""
    USED = "used"
    """Nanoseconds in which the GPU computed."""
    MEMORY = "memory"
    """KiB of memory in use, times seconds."""
    RECEIVED = "received"
    """Bytes received by the GPU's port of the rail."""
    TRANSMITTED = "transmitted"
    """Bytes transmitted by it."""


class AmountAttribution(StrEnum):
    """Attribution of an amount."""

    ATTRIBUTED = "attributed"
    IDLE = "idle"
    UNATTRIBUTED = "unattributed"


class CounterReadings(msgspec.Struct, frozen=True, eq=False):
    """Readings of one counter in one boot, in any order. Raises ValueError for negative counters.

    `driver` identifies the cause of a reset other than the boot: the loading of the driver for a
    counter that the device keeps, the run of the agent for one that the agent keeps.
    `ages_ns` is the time from the boot to each reading; without it, the boot starts after all
    readings of earlier boots.
    """

    boot: str
    timestamps_ns: Column
    counters: Column
    driver: str = ""
    ages_ns: Column | None = None

    def __post_init__(self) -> None:
        """Reject readings that cannot be added up exactly."""
        counters = self.counters
        columns = {"counters": counters, "ages": self.ages_ns}
        for name, column in columns.items():
            if column is not None and len(column) != len(self.timestamps_ns):
                message = f"invalid readings: {len(column)} {name}: expected {len(self.timestamps_ns)}, one per time"
                raise ValueError(message)
        if len(counters) and counters.min() < 0:
            message = f"invalid readings: counter {counters.min()}: expected 0 or more"
            raise ValueError(message)


class CounterRestart(msgspec.Struct, frozen=True, order=True, gc=False):
    """Reset of a counter: its increments after the last reading before the reset are lost."""

    last_ns: int
    first_ns: int


class CounterIncrements(msgspec.Struct, frozen=True, eq=False):
    """Increments of a counter between consecutive readings, never negative, in order of their ends.

    `same` is true if both readings are of one boot and driver and the counter was not reset.
    """

    starts_ns: Column
    ends_ns: Column
    amounts: Column
    same: NDArray[np.bool_]

    def resets(self) -> list[CounterRestart]:
        """Return the resets of the counter."""
        over = ~self.same
        pairs = zip(self.starts_ns[over].tolist(), self.ends_ns[over].tolist(), strict=True)
        return sorted(CounterRestart(start, end) for start, end in pairs)


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


MAX_INTERLEAVED_NS = HOUR_NS
"""Time up to which a reading continues one of its boot and driver although another boot was read between them."""


def compute_increments(runs: Iterable[CounterReadings]) -> CounterIncrements:
    """Return the increments of all readings of a GPU, from the first reading on.

    After a boot, a load of the driver or a lower value, counting restarts from zero. Boots of one
    node overlap if two hosts report under its name: each continues its own counter. Only readings
    of the time since the one before, and of `MAX_INTERLEAVED_NS`, determine an increment, so it
    does not depend on the days that are metered together. For a boot that is older than a reading
    of another one, and has none in that time, the increment is unknown and counts as zero.
    """
    readings = _order_readings(runs)
    if not readings.epochs.size:
        nothing = np.zeros(0, np.int64)
        return CounterIncrements(nothing, nothing, nothing, np.zeros(0, np.bool_))
    ends = readings.timestamps_ns[1:]
    before = np.arange(len(ends))
    own_reading = _find_previous_of_epoch(readings.epochs)[1:]
    is_near = ends - readings.timestamps_ns[own_reading] <= MAX_INTERLEAVED_NS
    continues = (own_reading >= 0) & ((own_reading == before) | is_near)
    before = np.where(continues, own_reading, before)
    starts = readings.timestamps_ns[before]
    counters = readings.counters[1:]
    risen = counters - readings.counters[before]
    is_older = (readings.boots[before] != readings.boots[1:]) & (
        ends - readings.ages_ns[1:] <= starts
    )
    same = continues & (risen >= 0)
    amounts = np.where(same, risen, np.where(is_older, 0, counters))
    return CounterIncrements(starts, ends, amounts, same)


class _OrderedReadings(NamedTuple):
    """Readings of all epochs of a counter by time: an epoch is a boot with one driver."""

    timestamps_ns: Column
    counters: Column
    ages_ns: Column
    epochs: Column
    boots: Column


def _order_readings(runs: Iterable[CounterReadings]) -> _OrderedReadings:
    """Return all readings by time, those of one time by boot, driver and value."""
    sorted_runs = sorted(runs, key=lambda run: (run.boot, run.driver))
    boots = {run.boot: number for number, run in enumerate(sorted_runs)}
    epochs = {(run.boot, run.driver): number for number, run in enumerate(sorted_runs)}
    rows = [np.zeros((5, 0), np.int64)]
    for run in sorted_runs:
        size = len(run.timestamps_ns)
        ages_ns = np.zeros(size, np.int64) if run.ages_ns is None else run.ages_ns
        epoch, boot = epochs[run.boot, run.driver], boots[run.boot]
        columns = (
            run.timestamps_ns,
            run.counters,
            ages_ns,
            np.full(size, epoch),
            np.full(size, boot),
        )
        rows.append(np.stack(columns))
    table = np.concatenate(rows, axis=1)
    timestamps_ns, counters, _, epoch_numbers, _ = table
    if np.any(timestamps_ns[1:] <= timestamps_ns[:-1]):
        table = table[:, np.lexsort((counters, epoch_numbers, timestamps_ns))]
    return _OrderedReadings(*table)


def _find_previous_of_epoch(epochs: Column) -> Column:
    """Return the position of the previous reading of the same epoch, -1 for the first."""
    by_epoch = np.argsort(epochs, kind="stable")
    previous = np.full(len(epochs), -1, np.int64)
    same = epochs[by_epoch[1:]] == epochs[by_epoch[:-1]]
    previous[by_epoch[1:][same]] = by_epoch[:-1][same]
    return previous


class OwnedSlots(NamedTuple):
    """Slots with their owner (None if free), and the index of the tenure without a change."""

    slots: units.CapacityRange
    claim: MeteredClaim | None
    tenure: int


_MAX = np.iinfo(np.int64).max
_PART_OF_A_TENURE = -1
_CHANGED = OwnedSlots(units.WHOLE, None, -2)


class SlotOwners(msgspec.Struct, frozen=True, eq=False):
    """Owners of all compute slots of a GPU, over all time."""

    pieces: list[timeline.TimePiece[tuple[OwnedSlots, ...]]]
    """Complete in time and slots."""
    tenures: list[tuple[int, int]]
    """Start and end of each time in which slots have one owner without a change."""
    starts_ns: Column
    ends_ns: Column


def find_owners(evidence: Evidence) -> SlotOwners:
    """Return the owners of a GPU. Outages have no owner, even within a claim."""
    outages = timeline.resolve_overlaps(
        timeline.TimePiece(o.start_ns, o.end_ns, o) for o in evidence.outages
    )
    claim_pieces = holders.divide_claims(holders.claims_in_force(evidence), units.Tiling.COMPUTE)
    pieces: list[timeline.TimePiece[tuple[OwnedSlots, ...]]] = []
    tenures: list[tuple[int, int]] = []
    before: dict[tuple[units.CapacityRange, MeteredClaim | None], int] = {}
    for start, end, (held_slots, outage) in timeline.align_timelines(
        (claim_pieces, outages), -FOREVER_NS, FOREVER_NS
    ):
        present: dict[tuple[units.CapacityRange, MeteredClaim | None], int] = {}
        for part in holders.fill_free_slots(() if outage else held_slots or ()):
            if part in before:
                tenure = before[part]
                tenures[tenure] = (tenures[tenure][0], end)
            else:
                tenure = len(tenures)
                tenures.append((start, end))
            present[part] = tenure
        pieces.append(
            timeline.TimePiece(
                start, end, tuple(OwnedSlots(*part, at) for part, at in present.items())
            )
        )
        before = present
    return SlotOwners(
        pieces,
        tenures,
        np.array([piece.start_ns for piece in pieces], np.int64),
        np.array([piece.end_ns for piece in pieces], np.int64),
    )


def attribute_shares(
    owned: SlotOwners, counted: CounterIncrements, start_ns: int, end_ns: int
) -> list[AmountShare]:
    """Return the amounts of readings after the start and up to the end of a window, in order.

    There is one share per tenure; for an increment across a change, one share per owner that did
    not change and one per run of slots with a changed owner.
    """
    window = (start_ns, end_ns)
    within = (counted.ends_ns > start_ns) & (counted.ends_ns <= end_ns)
    picked = CounterIncrements(
        counted.starts_ns[within],
        counted.ends_ns[within],
        counted.amounts[within],
        counted.same[within],
    )
    piece = np.searchsorted(owned.starts_ns, picked.starts_ns, "right") - 1
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
            elif part.claim == other.claim and part.tenure != _CHANGED.tenure:
                yield OwnedSlots(slots, part.claim, _PART_OF_A_TENURE)
            else:
                yield OwnedSlots(slots, None, _CHANGED.tenure)


def _divide_amounts(
    parts: Sequence[OwnedSlots], amounts: Column
) -> Iterator[tuple[OwnedSlots, int]]:
    """Divide amounts among parts: each is cut at the edges of slots, so that the sum is preserved."""
    below = {units.WHOLE.low: 0, units.WHOLE.high: _exact_sum(amounts)}
    for part in parts:
        for edge in part.slots:
            if edge not in below:
                below[edge] = _exact_sum(_scale_amounts(amounts, edge))
        yield part, below[part.slots.high] - below[part.slots.low]


def _scale_amounts(amounts: Column, slots: units.Units) -> Column:
    """Return `amounts * slots // GPU_CAPACITY`, where the product could exceed 64 bits."""
    share = Fraction(slots) / GPU_CAPACITY
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
    if claim.assumed or claim.review:
        return AmountShare(t0, t1, *part.slots, AmountAttribution.UNATTRIBUTED, amount)
    owner = (claim.tenant, claim.workload, claim.id)
    return AmountShare(t0, t1, *part.slots, AmountAttribution.ATTRIBUTED, amount, *owner)
