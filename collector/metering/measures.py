"""Quantities by holder, from counters of the GPU; they add up to what each counter counted.

An increment between two readings belongs to a holder who held the slot from the one to the other.
Where that changed in between, or the counter started over, it is unattributed: nothing is guessed.
An increment counts in the window that its later reading lies in, so windows add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from fractions import Fraction

import msgspec
import numpy as np
from numpy.typing import NDArray

from collector.metering.evidence import Claim, Evidence
from collector.metering.holders import bands, claims_in_force
from collector.metering.timeline import Piece, aligned, extend, prevailing
from collector.metering.units import FOREVER_NS, GPU_CAPACITY, Slots, Tiling, Units

Column = NDArray[np.int64]


class Measure(StrEnum):
    """A quantity that a counter counts for a GPU, and the unit that its amounts are in."""

    ENERGY = "energy"
    """Millijoules."""
    USED = "used"
    """Nanoseconds in which the GPU computed."""
    MEMORY = "memory"
    """KiB of memory in use, times seconds."""
    RECEIVED = "received"
    """Bytes that the GPU's port of the rail received."""
    TRANSMITTED = "transmitted"
    """Bytes that it sent."""


class Use(StrEnum):
    """Whose an amount is."""

    ATTRIBUTED = "attributed"
    IDLE = "idle"
    UNATTRIBUTED = "unattributed"


class Readings(msgspec.Struct, frozen=True, eq=False):
    """Readings of one counter in one boot, in any order. Raises ValueError for negative counters.

    `driver` names whatever the counter starts over with besides the boot: the loading of the driver
    for one that the device keeps, the run of the agent for one that the agent keeps.
    """

    boot: str
    instants_ns: Column
    counters: Column
    driver: str = ""

    def __post_init__(self) -> None:
        """Refuse what could not be added up exactly."""
        counters = self.counters
        if len(counters) != len(self.instants_ns):
            message = f"{len(self.instants_ns)} instants have {len(counters)} counters"
            raise ValueError(message)
        if len(counters) and counters.min() < 0:
            message = f"a counter of {counters.min()} counts nothing"
            raise ValueError(message)


class Reset(msgspec.Struct, frozen=True, order=True, gc=False):
    """The counter started over: what it counted after the last reading before it is lost."""

    last_ns: int
    first_ns: int


class Increments(msgspec.Struct, frozen=True, eq=False):
    """What the counter counted between each two readings, never negative.

    `same` says that both readings are of one boot and driver and the counter did not start over.
    """

    starts_ns: Column
    ends_ns: Column
    amounts: Column
    same: NDArray[np.bool_]

    def resets(self) -> list[Reset]:
        """Where the counter started over."""
        over = ~self.same
        pairs = zip(self.starts_ns[over].tolist(), self.ends_ns[over].tolist(), strict=True)
        return sorted(Reset(start, end) for start, end in pairs)


class Share(msgspec.Struct, frozen=True, order=True, gc=False):
    """An amount of slots [lo, hi) in [t0, t1). A shared GPU's is divided by compute slots."""

    t0_ns: int
    t1_ns: int
    slot_lo: Units
    slot_hi: Units
    use: Use
    amount: int
    tenant: str = ""
    workload: str = ""
    claim: str = ""


def increments(runs: Iterable[Readings]) -> Increments:
    """The increments of all readings of a GPU; the very first reading is where counting begins.

    A boot, a driver that was loaded again or a lower value begins to count from zero. Boots follow
    one another by their first reading.
    """
    epochs: dict[tuple[str, str], list[Readings]] = {}
    for run in runs:
        if len(run.instants_ns):
            epochs.setdefault((run.boot, run.driver), []).append(run)
    columns = sorted(
        ((*_in_order(epoch), key) for key, epoch in epochs.items()),
        key=lambda epoch: (int(epoch[0][0]), epoch[2]),
    )
    if not columns:
        nothing = np.zeros(0, np.int64)
        return Increments(nothing, nothing, nothing, np.zeros(0, np.bool_))
    instants = np.concatenate([column[0] for column in columns])
    counters = np.concatenate([column[1] for column in columns])
    same = np.ones(len(instants), np.bool_)
    same[np.cumsum([len(column[0]) for column in columns])[:-1]] = False
    risen = np.diff(counters)
    same = same[1:] & (risen >= 0)
    ends = instants[1:]
    starts = np.minimum(instants[:-1], ends)
    return Increments(starts, ends, np.where(same, risen, counters[1:]), same)


def _in_order(epoch: Sequence[Readings]) -> tuple[Column, Column]:
    """The readings of one epoch by time, each once."""
    instants = np.concatenate([run.instants_ns for run in epoch])
    counters = np.concatenate([run.counters for run in epoch])
    order = np.lexsort((counters, instants))
    return instants[order], counters[order]


class Owners(msgspec.Struct, frozen=True, eq=False):
    """Whose the use of a band of compute slots is, over all time."""

    slots: Slots
    timeline: list[Piece[Claim | None]]
    starts_ns: Column
    ends_ns: Column


def owners(evidence: Evidence) -> list[Owners]:
    """For all compute slots of a GPU. Outages are no one's, even within a claim."""
    outages = prevailing(Piece(o.start_ns, o.end_ns, o) for o in evidence.outages)
    found = []
    for band in bands(claims_in_force(evidence), Tiling.COMPUTE):
        timeline: list[Piece[Claim | None]] = []
        for start, end, (claim, outage) in aligned(
            (band.holders, outages), -FOREVER_NS, FOREVER_NS
        ):
            extend(timeline, Piece(start, end, None if outage else claim))
        starts = np.array([piece.start_ns for piece in timeline], np.int64)
        ends = np.array([piece.end_ns for piece in timeline], np.int64)
        found.append(Owners(band.slots, timeline, starts, ends))
    return found


def shares(owned: Iterable[Owners], counted: Increments, start_ns: int, end_ns: int) -> list[Share]:
    """All that was counted in readings after the start and up to the end of a window, in order."""
    within = (counted.ends_ns > start_ns) & (counted.ends_ns <= end_ns)
    picked = Increments(
        counted.starts_ns[within],
        counted.ends_ns[within],
        counted.amounts[within],
        counted.same[within],
    )
    return sorted(share for band in owned for share in _of_band(band, picked, (start_ns, end_ns)))


def _of_band(band: Owners, counted: Increments, window: tuple[int, int]) -> Iterator[Share]:
    """The shares of a band: one of each holder's tenure, one of each increment without an owner."""
    low, high = band.slots
    amounts = _part(counted.amounts, high) - _part(counted.amounts, low)
    owner = np.searchsorted(band.starts_ns, counted.starts_ns, "right") - 1
    unchanged = counted.same & (counted.ends_ns <= band.ends_ns[owner])
    for at, amount in _summed(owner[unchanged], amounts[unchanged]):
        yield _share(band.slots, band.timeline[at], window, amount)
    rest = ~unchanged & (amounts > 0)
    for start, end, amount in zip(
        counted.starts_ns[rest].tolist(),
        counted.ends_ns[rest].tolist(),
        amounts[rest].tolist(),
        strict=True,
    ):
        yield Share(start, end, low, high, Use.UNATTRIBUTED, amount)


def _part(amounts: Column, slots: Units) -> Column:
    """`amounts * slots // GPU_CAPACITY`, whose product could be beyond 64 bits."""
    if isinstance(slots, Fraction):
        whole_slots = slots.denominator * GPU_CAPACITY
        exact_parts = (amount * slots.numerator // whole_slots for amount in amounts.tolist())
        return np.fromiter(exact_parts, np.int64, len(amounts))
    whole, rest = np.divmod(amounts, GPU_CAPACITY)
    part: Column = whole * slots + rest * slots // GPU_CAPACITY
    return part


def _summed(owner: NDArray[np.intp], amounts: Column) -> Iterator[tuple[int, int]]:
    """What each owner has, where it is not nothing; exact, however large."""
    if not len(owner):
        return
    size = int(owner.max()) + 1
    high, low = np.zeros(size, np.int64), np.zeros(size, np.int64)
    np.add.at(high, owner, amounts >> 32)
    np.add.at(low, owner, amounts & 0xFFFF_FFFF)
    for at in np.flatnonzero(high | low).tolist():
        yield at, (int(high[at]) << 32) + int(low[at])


def _share(slots: Slots, piece: Piece[Claim | None], window: tuple[int, int], amount: int) -> Share:
    """What one holder or none has, in its part of the window."""
    t0, t1 = max(piece.start_ns, window[0]), min(piece.end_ns, window[1])
    claim = piece.value
    if claim is None:
        return Share(t0, t1, *slots, Use.IDLE, amount)
    if claim.assumed:
        return Share(t0, t1, *slots, Use.UNATTRIBUTED, amount)
    who = (claim.tenant, claim.workload, claim.id)
    return Share(t0, t1, *slots, Use.ATTRIBUTED, amount, *who)
