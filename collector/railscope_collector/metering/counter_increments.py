"""Increments of a counter of a GPU, from its readings in all boots."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from railscope.timestamps import HOUR_NS

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


MAX_INTERLEAVED_NS = HOUR_NS
"""Time up to which a reading continues one of its boot and driver although another boot was read between them.

Without a limit, an increment would depend on the days that are loaded and metered together.
"""


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
    # Position -1 also selects a reading, the last one: it is excluded here.
    continues = (own_reading >= 0) & ((own_reading == before) | is_near)
    before = np.where(continues, own_reading, before)
    starts = readings.timestamps_ns[before]
    counters = readings.counters[1:]
    risen = counters - readings.counters[before]
    # The boot began before the reading of the other boot, so its counter contains an unknown earlier part.
    is_older = (readings.boots[before] != readings.boots[1:]) & (
        ends - readings.ages_ns[1:] <= starts
    )
    same = continues & (risen >= 0)
    # After a reset the value itself is the increment: the counter began at zero.
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
    # Sorted only if needed: readings of one boot are usually in order.
    if np.any(timestamps_ns[1:] <= timestamps_ns[:-1]):
        table = table[:, np.lexsort((counters, epoch_numbers, timestamps_ns))]
    return _OrderedReadings(*table)


def _find_previous_of_epoch(epochs: Column) -> Column:
    """Return the position of the previous reading of the same epoch, -1 for the first."""
    # Stable, so that the readings of an epoch keep their order in time.
    by_epoch = np.argsort(epochs, kind="stable")
    previous = np.full(len(epochs), -1, np.int64)
    same = epochs[by_epoch[1:]] == epochs[by_epoch[:-1]]
    previous[by_epoch[1:][same]] = by_epoch[:-1][same]
    return previous
