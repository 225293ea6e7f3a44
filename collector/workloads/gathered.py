"""Readings of the GPUs of jobs and of the ports on their rails, as arrays.

Gathered block by block while frames are received; added up later on request, possibly in another
thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collector.fleet.job_columns import Key
from collector.workloads.roster import NO_JOB, Numbers
from collector.workloads.seating import Table
from railscope.catalog.declare import Rollup
from railscope.reading import PRESENT, REASONS, Absent

_STALE = 255
"""No fresh frame contains the column."""
Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.uint8]


class Readings(NamedTuple):
    """Readings and reasons, each with its seat and the number of its key."""

    seats: Numbers
    keys: Numbers
    values: Floats
    reasons: Codes


@dataclass(slots=True)
class Gathered:
    """All readings of one refresh."""

    keys: dict[Key, int] = field(default_factory=dict)
    _parts: list[Readings] = field(default_factory=list)

    def add(self, table: Table, rows: npt.NDArray[np.intp]) -> None:
        """Add the fresh rows of a block."""
        if not len(rows):
            return
        block, told = table.block, table.told
        seats = table.seats[rows]
        at = np.ix_(rows, told.columns)
        values = block.values[at].astype(np.float64)
        reasons = block.reasons[at]
        if len(told.counters):
            rates = block.rates[np.ix_(rows, told.rates)]
            values[:, told.counters] = rates
            unknown = np.isnan(rates) & (reasons[:, told.counters] == PRESENT)
            reasons[:, told.counters] = np.where(
                unknown, Absent.NOT_DUE.value, reasons[:, told.counters]
            )
        numbers = np.array([self.keys.setdefault(key, len(self.keys)) for key in told.keys])
        held = seats >= 0
        keys = np.broadcast_to(numbers.astype(np.int32), seats.shape)
        self.take(Readings(seats[held], keys[held], values[held], reasons[held]))

    def take(self, readings: Readings) -> None:
        """Add readings; the numbers of their keys are those of `keys`."""
        self._parts.append(readings)

    def whole(self) -> Readings:
        """Return all readings."""
        if not self._parts:
            return Readings(
                np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0), np.empty(0, np.uint8)
            )
        if len(self._parts) > 1:
            parts = zip(*self._parts, strict=True)
            self._parts = [Readings(*(np.concatenate(part) for part in parts))]
        return self._parts[0]


class Totals(NamedTuple):
    """Sums of one key, by the numbers of jobs."""

    sums: Floats
    counts: Floats
    highest: Floats
    lowest: Floats

    def of(self, rollup: Rollup, job: int) -> float | None:
        """Return a roll-up over a job in stored steps; None without readings."""
        if not self.counts[job]:
            return None
        if rollup is Rollup.SUM:
            return float(self.sums[job])
        if rollup is Rollup.MEAN:
            return float(self.sums[job] / self.counts[job])
        return float((self.highest if rollup is Rollup.MAX else self.lowest)[job])


def totals(
    readings: Readings, keys: Mapping[Key, int], job_of_seat: Numbers, jobs: int
) -> dict[Key, Totals]:
    """Return roll-ups over the GPUs that jobs hold exclusively; `jobs` exceeds every job number."""
    job = job_of_seat[readings.seats]
    told = (job != NO_JOB) & (readings.reasons == PRESENT)
    group = readings.keys[told].astype(np.intp) * jobs + job[told]
    values, size = readings.values[told], len(keys) * jobs
    highest, lowest = np.full(size, -np.inf), np.full(size, np.inf)
    np.maximum.at(highest, group, values)
    np.minimum.at(lowest, group, values)
    columns = (
        np.bincount(group, values, size), np.bincount(group, minlength=size).astype(np.float64),
        highest, lowest,
    )  # fmt: skip
    shaped = [column.reshape(len(keys), jobs) for column in columns]
    return {key: Totals(*(column[number] for column in shaped)) for key, number in keys.items()}


@dataclass(slots=True)
class PerSeat:
    """One key by seat: the reading, or the reason for its absence."""

    values: Floats
    """NaN for none; several ports of a rail are added up."""
    reasons: Codes

    def why(self, seat: int) -> str:
        """Return the absence reason of a seat: `stale` if no fresh frame contains it."""
        code = int(self.reasons[seat])
        if code == PRESENT:
            return ""
        return "stale" if code == _STALE else REASONS.get(code, Absent.ERROR).word


def per_seat(readings: Readings, number: int | None, seats: int) -> PerSeat:
    """Return one key by seat; `number` is that of the key, None if no node reports it."""
    chosen = np.flatnonzero(readings.keys == (-1 if number is None else number))
    reasons = np.full(seats, _STALE, np.uint8)
    reasons[readings.seats[chosen]] = readings.reasons[chosen]
    present = chosen[readings.reasons[chosen] == PRESENT]
    at = readings.seats[present]
    values = np.bincount(at, readings.values[present], seats)
    told = np.bincount(at, minlength=seats) > 0
    reasons[told] = PRESENT
    return PerSeat(np.where(told, values, np.nan), reasons)
