"""Readings of the GPUs of jobs, and of the ports on their rails: current values and recent means.

A table for each block of the fleet contains the position of the GPU of each column, as the roster
assigns it; only the rows of nodes with changed jobs or schemas are computed again. Readings are
gathered as arrays, block by block, while frames are received, and added up on request, possibly in
another thread.

Steps of a job last for seconds, and nodes are not sampled at the same time: at any time some GPUs
compute while others exchange. So GPUs are compared by means over about a minute, in which older
readings have lower weights. For a GPU that another job takes, or that has no reading, the mean
restarts.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from railscope import frame, timestamps
from railscope.catalog.account import STRAGGLER_MEASURES
from railscope.catalog.declare import Rollup
from railscope.reading import PRESENT, REASONS, Absent
from railscope_collector.fleet import schema_columns, schemas, sheets
from railscope_collector.fleet.fleet import FleetNode
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.workloads.job_roster import NO_JOB, NO_POSITION, JobRoster, Numbers


@dataclass(slots=True)
class PositionTable:
    """The columns of a block that are used for jobs, and their positions, row by row."""

    block: sheets.SheetBlock
    columns: schema_columns.JobColumns
    positions: Numbers


@dataclass(slots=True)
class FleetPositions:
    """The positions of all blocks."""

    core: CollectorState
    roster: JobRoster
    _tables: dict[int, PositionTable] = field(default_factory=dict)

    def find(self, block: sheets.SheetBlock) -> PositionTable | None:
        """Return the positions of a block; None if its stream has no columns for jobs."""
        table = self._tables.get(id(block))
        return table if table and table.block is block else None

    def select_unchanged(
        self, block: sheets.SheetBlock, rows: schema_columns.Positions
    ) -> schema_columns.Positions:
        """Return the rows with the nodes and schemas of the last refresh."""
        touched = self.core.fleet.touched
        if not touched:
            return rows
        return np.array([row for row in rows if block.nodes[row] not in touched], np.intp)

    async def refresh(self, offer: Callable[[], Awaitable[None]]) -> None:
        """Process changes, awaiting `offer` between nodes to yield to other tasks."""
        fleet, roster = self.core.fleet, self.roster
        touched = fleet.touched | roster.touched
        fleet.touched, roster.touched = set(), set()
        alive = {id(block) for block in fleet.blocks()}
        for gone in self._tables.keys() - alive:
            del self._tables[gone]
        for name in touched:
            node = fleet.nodes.get(name)
            if node:
                self._update_node(node)
            await offer()

    def _update_node(self, node: FleetNode) -> None:
        by_gpu = self.roster.positions.get(node.name, {})
        by_rail = self._of_rails(node, by_gpu)
        for row in node.rows.values():
            schema = self.core.schemas.get(row.schema)
            if schema is None or schema.jobs is None:
                continue
            table = self._tables.get(id(row.block))
            if table is None:
                if not by_gpu:
                    continue  # most blocks of a fleet without claims have no jobs
                free = np.full(
                    (len(row.block.nodes), len(schema.jobs.columns)), NO_POSITION, np.int32
                )
                table = self._tables[id(row.block)] = PositionTable(row.block, schema.jobs, free)
            table.positions[row.index] = schema.jobs.positions(
                schema.job_gpus, by_gpu, by_rail, NO_POSITION
            )

    def _of_rails(self, node: FleetNode, by_gpu: Mapping[str, int]) -> dict[int, int]:
        """Return for each rail a position of the only job with GPUs on it; rails with two jobs are omitted."""
        rail_positions: dict[int, int] = {}
        jobs = self.roster.job_of_position
        for gpu in self.gpus(node):
            position = by_gpu.get(gpu.uuid, NO_POSITION)
            if gpu.rail == frame.NO_RAIL or position == NO_POSITION:
                continue
            before = rail_positions.setdefault(gpu.rail, position)
            if before != NO_POSITION and jobs[before] != jobs[position]:
                rail_positions[gpu.rail] = NO_POSITION
        return {
            rail: s for rail, s in rail_positions.items() if s != NO_POSITION and jobs[s] != NO_JOB
        }

    def gpus(self, node: FleetNode) -> tuple[schemas.SchemaGpu, ...]:
        """Return the GPUs of a node by the schema of its latest frame."""
        row = node.rows.get(schemas.GPU_STREAM)
        schema = self.core.schemas.get(row.schema) if row else None
        return schema.gpus if schema else ()


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

    keys: dict[schema_columns.ColumnKey, int] = field(default_factory=dict)
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
    keys: Mapping[schema_columns.ColumnKey, int],
    job_of_position: Numbers,
    jobs: int,
) -> dict[schema_columns.ColumnKey, JobTotals]:
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
    reasons[has_value] = PRESENT
    return GpuValues(np.where(has_value, values, np.nan), reasons)


DEFAULT_TIME_CONSTANT_SECONDS = 60.0
"""Default of `straggler_time_constant_seconds`."""


@dataclass(slots=True)
class MeasureAverage:
    """One measure by position: weighted sums of readings, and the weights."""

    sums: Floats = field(default_factory=lambda: np.zeros(0))
    weights: Floats = field(default_factory=lambda: np.zeros(0))

    def update(
        self, now: GpuValues, same: Numbers, seconds: float, time_constant_seconds: float
    ) -> GpuValues:
        """Return the means including `now`; `same` are the positions of the same job as before."""
        decayed = np.zeros((2, len(now.values)))
        decayed[:, same] = self.sums[same], self.weights[same]
        decayed *= math.exp(-seconds / time_constant_seconds)
        has_value = ~np.isnan(now.values)
        self.sums = np.where(has_value, decayed[0] + now.values * seconds, 0.0)
        self.weights = np.where(has_value, decayed[1] + seconds, 0.0)
        means = np.full(len(has_value), np.nan)
        np.divide(self.sums, self.weights, out=means, where=has_value)
        return GpuValues(means, now.reasons)


@dataclass(slots=True)
class MeasureAverages:
    """All measures, across refreshes."""

    time_constant_seconds: float = DEFAULT_TIME_CONSTANT_SECONDS
    _averages: dict[str, MeasureAverage] = field(
        default_factory=lambda: {name: MeasureAverage() for name in STRAGGLER_MEASURES}
    )
    _jobs: Numbers = field(default_factory=lambda: np.zeros(0, np.int32))
    _at_ns: int = 0

    def update(
        self, gathered: GatheredReadings, job_of_position: Numbers, now_ns: int
    ) -> dict[str, GpuValues]:
        """Return the means by measure, including the current readings."""
        seconds = max((now_ns - self._at_ns) / timestamps.SECOND_NS, 1e-3) if self._at_ns else 1.0
        before = self._jobs
        present = job_of_position[: len(before)]
        same = np.flatnonzero((before == present) & (present != NO_JOB)).astype(np.int32)
        self._jobs, self._at_ns = job_of_position, now_ns
        read = gathered.concatenate()
        averages = {}
        for name, measure in STRAGGLER_MEASURES.items():
            number = gathered.keys.get((measure.metric, measure.part))
            now = gpu_values(read, number, len(job_of_position))
            averages[name] = self._averages[name].update(
                now, same, seconds, self.time_constant_seconds
            )
        return averages
