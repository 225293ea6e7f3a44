"""Current readings of the GPUs of jobs, and of the ports on their rails.

Readings are gathered as arrays, block by block, while frames are received, and added up on request, possibly in
another thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from railscope.catalog.declare import Rollup
from railscope.reading import PRESENT, REASONS, Absent
from railscope_collector.fleet import shape_columns
from railscope_collector.workloads.fleet_positions import PositionTable
from railscope_collector.workloads.job_roster import NO_JOB, Numbers

# Not a code of `Absent`.
_STALE = 255
"""No fresh frame contains the column."""
Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.uint8]


class GpuReadings(NamedTuple):
    """Readings and reasons, each with its position and the number of its key."""

    positions: Numbers
    keys: Numbers
    values: Floats
    reasons: Codes


@dataclass(slots=True)
class GatheredReadings:
    """All readings of one refresh."""

    keys: dict[shape_columns.ColumnKey, int] = field(default_factory=dict)
    _parts: list[GpuReadings] = field(default_factory=list)

    def add(self, table: PositionTable, rows: npt.NDArray[np.intp]) -> None:
        """Add the fresh rows of a block, of the nodes with jobs."""
        block, columns = table.block, table.columns
        rows = rows[(table.positions[rows] >= 0).any(axis=1)]
        if not len(rows):
            return
        positions = table.positions[rows]
        cells = np.ix_(rows, columns.columns)
        values = block.values_at(rows, columns.columns).astype(np.float64)
        codes = block.reasons
        reasons = np.zeros(values.shape, np.uint8) if codes is None else codes[cells]
        if len(columns.counters):
            rates = block.rates[np.ix_(rows, columns.rates)]
            values[:, columns.counters] = rates
            # A rate needs two readings: after the first one, it is not known yet.
            unknown = np.isnan(rates) & (reasons[:, columns.counters] == PRESENT)
            reasons[:, columns.counters] = np.where(
                unknown, Absent.NOT_DUE.value, reasons[:, columns.counters]
            )
        numbers = np.array([self.keys.setdefault(key, len(self.keys)) for key in columns.keys])
        is_used = positions >= 0
        keys = np.broadcast_to(numbers.astype(np.int32), positions.shape)
        self.add_readings(
            GpuReadings(positions[is_used], keys[is_used], values[is_used], reasons[is_used])
        )

    def add_readings(self, readings: GpuReadings) -> None:
        """Add readings; the numbers of their keys are those of `keys`."""
        self._parts.append(readings)

    def concatenate(self) -> GpuReadings:
        """Return all readings."""
        if not self._parts:
            return GpuReadings(
                np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0), np.empty(0, np.uint8)
            )
        if len(self._parts) > 1:
            parts = zip(*self._parts, strict=True)
            self._parts = [GpuReadings(*(np.concatenate(part) for part in parts))]
        return self._parts[0]


class JobTotals(NamedTuple):
    """Sums of one key, by the numbers of jobs."""

    sums: Floats
    counts: Floats
    highest: Floats
    lowest: Floats

    def total(self, rollup: Rollup, job: int) -> float | None:
        """Return a roll-up over a job in stored steps, or the number of readings; None without any."""
        if not self.counts[job]:
            return None
        if rollup is Rollup.SUM:
            return float(self.sums[job])
        if rollup is Rollup.MEAN:
            return float(self.sums[job] / self.counts[job])
        if rollup is Rollup.COUNT:
            return float(self.counts[job])
        return float((self.highest if rollup is Rollup.MAX else self.lowest)[job])


def job_totals(
    readings: GpuReadings,
    keys: Mapping[shape_columns.ColumnKey, int],
    job_of_position: Numbers,
    jobs: int,
) -> dict[shape_columns.ColumnKey, JobTotals]:
    """Return roll-ups over the GPUs that jobs hold exclusively; `jobs` exceeds every job number."""
    job = job_of_position[readings.positions]
    is_present = (job != NO_JOB) & (readings.reasons == PRESENT)
    group = readings.keys[is_present].astype(np.intp) * jobs + job[is_present]
    values, size = readings.values[is_present], len(keys) * jobs
    highest, lowest = np.full(size, -np.inf), np.full(size, np.inf)
    np.maximum.at(highest, group, values)
    np.minimum.at(lowest, group, values)
    columns = (
        np.bincount(group, values, size),
        np.bincount(group, minlength=size).astype(np.float64),
        highest,
        lowest,
    )
    shaped = [column.reshape(len(keys), jobs) for column in columns]
    return {key: JobTotals(*(column[number] for column in shaped)) for key, number in keys.items()}


@dataclass(slots=True)
class GpuValues:
    """One key by position: the reading, or the reason for its absence."""

    values: Floats
    """NaN for none; several ports of a rail are added up."""
    reasons: Codes

    def absence_reason(self, position: int) -> str:
        """Return the absence reason of a position: `stale` if no fresh frame contains it."""
        code = int(self.reasons[position])
        if code == PRESENT:
            return ""
        return "stale" if code == _STALE else REASONS.get(code, Absent.ERROR).label


def gpu_values(readings: GpuReadings, number: int | None, positions: int) -> GpuValues:
    """Return one key by position; `number` is that of the key, None if no node reports it."""
    chosen = np.flatnonzero(readings.keys == (-1 if number is None else number))
    reasons = np.full(positions, _STALE, np.uint8)
    reasons[readings.positions[chosen]] = readings.reasons[chosen]
    present = chosen[readings.reasons[chosen] == PRESENT]
    present_positions = readings.positions[present]
    values = np.bincount(present_positions, readings.values[present], positions)
    has_value = np.bincount(present_positions, minlength=positions) > 0
    # One port of a rail with a value is enough, whatever was written for the others.
    reasons[has_value] = PRESENT
    return GpuValues(np.where(has_value, values, np.nan), reasons)
