"""View of the running jobs at one timestamp, as metrics and as JSON, with the straggler of each.

The straggler is the GPU of a job that is furthest below the median of the job. Readings are added
up on request, in the thread of the caller.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from railscope import api
from railscope.catalog import account as catalog, declare, derived_metric
from railscope.catalog.rollup import is_of_last_minute
from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import SECOND_NS
from railscope_collector.fleet import fleet, shape_columns, view_cells
from railscope_collector.fleet.minute_window import WINDOW_NS
from railscope_collector.workloads import job_readings, job_roster

MIN_COMPARED_GPUS = 2
ONE_GPU, SHARED, IDLE = "one GPU", "shared", "idle"
"""Reasons for no straggler: no other GPU; GPUs partly held by other jobs; a median of 0."""


class Straggler(NamedTuple):
    """A GPU by its position; values in stored steps."""

    position: int
    value: float
    median: float

    @property
    def deviation(self) -> float:
        """Relative deviation from the median, at most 0: the value is the lowest."""
        return self.value / self.median - 1


@dataclass(frozen=True, slots=True)
class MeasureComparison:
    """One measure, by the numbers of jobs: the lowest, the median, and the number of values."""

    means: job_readings.GpuValues
    lowest: job_roster.Numbers
    """The position; meaningless without values."""
    medians: job_readings.Floats
    counts: job_roster.Numbers

    def straggler(self, job: job_roster.RunningJob) -> Straggler | str:
        """Return the GPU of a job that is furthest behind, or the reason for its absence."""
        number = job.number
        if len(job.places) < MIN_COMPARED_GPUS:
            return ONE_GPU
        if self.counts[number] < MIN_COMPARED_GPUS:
            return self._absence_reason(job)
        median = float(self.medians[number])
        if median <= 0:
            return IDLE
        position = int(self.lowest[number])
        return Straggler(position, float(self.means.values[position]), median)

    def _absence_reason(self, job: job_roster.RunningJob) -> str:
        """Return the most frequent reason of the GPUs without a value."""
        reasons = [
            SHARED if not p.is_alone else self.means.absence_reason(p.position) for p in job.places
        ]
        given_reasons = [reason for reason in reasons if reason]
        return max(sorted(set(given_reasons)), key=given_reasons.count)


def compare_gpus(
    means: job_readings.GpuValues, job_of_position: job_roster.Numbers, jobs: int
) -> MeasureComparison:
    """Compare the GPUs that jobs hold exclusively; `jobs` exceeds every job number."""
    compared_positions = np.flatnonzero(
        (job_of_position != job_roster.NO_JOB) & ~np.isnan(means.values)
    )
    values, job = means.values[compared_positions], job_of_position[compared_positions]
    # By job, then by value: the lowest is the first of each job, the median is in its middle.
    order = np.lexsort((values, job))
    compared_positions, values, job = compared_positions[order], values[order], job[order]
    numbers = np.arange(jobs)
    starts = np.searchsorted(job, numbers)
    counts = np.searchsorted(job, numbers, side="right") - starts
    here = counts > 0
    lowest, medians = np.full(jobs, -1, np.int32), np.full(jobs, np.nan)
    lowest[here] = compared_positions[starts[here]]
    middle = (starts + (counts - 1) // 2)[here], (starts + counts // 2)[here]
    medians[here] = (values[middle[0]] + values[middle[1]]) / 2
    return MeasureComparison(means, lowest, medians, counts.astype(np.int32))


@dataclass(frozen=True)
class RunningJobs:
    """The reported jobs, and the readings of their GPUs."""

    timestamp_ns: int = 0
    jobs: tuple[job_roster.RunningJob, ...] = ()
    suppressed: int = 0
    """Number of further jobs."""
    gathered: job_readings.GatheredReadings = field(default_factory=job_readings.GatheredReadings)
    job_of_position: job_roster.Numbers = field(default_factory=lambda: np.empty(0, np.int32))
    numbers: int = 0
    """Exceeds every number of a job."""
    fresh_nodes: frozenset[str] = frozenset()
    """The nodes with fresh frames."""
    means: Mapping[str, job_readings.GpuValues] = field(default_factory=dict)
    """Measures that GPUs are compared by: means over the last minute."""

    @cached_property
    def _totals(self) -> Mapping[shape_columns.ColumnKey, job_readings.JobTotals]:
        read = self.gathered.concatenate()
        return job_readings.job_totals(read, self.gathered.keys, self.job_of_position, self.numbers)

    @cached_property
    def _comparisons(self) -> dict[str, MeasureComparison]:
        stale = job_readings.gpu_values(
            job_readings.GatheredReadings().concatenate(), None, len(self.job_of_position)
        )
        return {
            name: compare_gpus(self.means.get(name, stale), self.job_of_position, self.numbers)
            for name in catalog.STRAGGLER_MEASURES
        }

    @cached_property
    def stale_gpus(self) -> Mapping[job_roster.JobKey, int]:
        """Number of GPUs of each job that are on nodes without fresh frames."""
        fresh = self.fresh_nodes
        return {
            job.key: sum(place.holding.node not in fresh for place in job.places)
            for job in self.jobs
        }

    # As metrics ----------------------------------------------------------------------------------

    def cells(self, tenant: str | None = None) -> Iterator[view_cells.ViewCell]:
        """Yield all cells of jobs; of one tenant's jobs, if one is named."""
        for job in self.jobs:
            if tenant not in {None, job.key.tenant}:
                continue
            yield from self._of_job(job)
            yield from self._stragglers(job)
            for place in job.places:
                key, labels = job.key, (place.holding.node, place.gpu)
                yield view_cells.ViewCell(catalog.HOLDER_INFO, (*labels, *key[1:], key.tenant), 1)

    def _of_job(self, job: job_roster.RunningJob) -> Iterator[view_cells.ViewCell]:
        for metric, value in self._counts(job):
            yield view_cells.ViewCell(metric, job.key, value)
        for metric, part, value in self._rollups(job):
            yield view_cells.ViewCell(metric, (*job.key, *part), value)

    def _counts(self, job: job_roster.RunningJob) -> Iterator[tuple[declare.Metric, float]]:
        places = job.places
        nodes = {place.holding.node for place in places}
        yield catalog.JOB_GPUS, float(sum(place.holding.units for place in places) / GPU_CAPACITY)
        yield catalog.JOB_NODES, len(nodes)
        yield catalog.JOB_STALE_GPUS, self.stale_gpus[job.key]
        yield catalog.JOB_SHARED_GPUS, sum(not place.is_alone for place in places)
        yield catalog.JOB_START, job.start_ns / SECOND_NS

    def _rollups(
        self, job: job_roster.RunningJob
    ) -> Iterator[tuple[declare.Metric, tuple[str, ...], float]]:
        newest_ns = max(place.holding.start_ns for place in job.places)
        for (metric, part), totals in self._totals.items():
            # Earlier, the readings of the last minute are also those of the holder before.
            if is_of_last_minute(metric) and newest_ns > self.timestamp_ns - WINDOW_NS:
                continue
            for rollup in catalog.BY_JOB.get(metric, ()):
                value = totals.total(rollup, job.number)
                if value is not None:
                    derived = derived_metric(metric, "job", rollup)
                    yield derived, part, to_base_units(derived, value)

    def _stragglers(self, job: job_roster.RunningJob) -> Iterator[view_cells.ViewCell]:
        for name, compared in self._comparisons.items():
            straggler = compared.straggler(job)
            if isinstance(straggler, Straggler):
                place = next(place for place in job.places if place.position == straggler.position)
                device = name, place.holding.node, place.gpu
                yield view_cells.ViewCell(
                    catalog.STRAGGLER_DEVIATION, (*job.key, *device), straggler.deviation
                )

    # As JSON -------------------------------------------------------------------------------------

    def to_job(self, job: job_roster.RunningJob, names_of: fleet.NamesOfGpu) -> api.Job:
        """Return a job: its holdings, roll-ups over its GPUs, and its stragglers."""
        counts = dict(self._counts(job))
        return api.Job(
            *job.key,
            job.start_ns,
            counts[catalog.JOB_GPUS],
            int(counts[catalog.JOB_NODES]),
            stale_gpus=int(counts[catalog.JOB_STALE_GPUS]),
            shared_gpus=int(counts[catalog.JOB_SHARED_GPUS]),
            rollups=tuple(
                api.MetricValue(
                    metric.name,
                    dict(zip(metric.about.labels[len(job.key) :], part, strict=True)),
                    value,
                )
                for metric, part, value in self._rollups(job)
            ),
            stragglers=tuple(
                self._straggler(job, name, compared, names_of)
                for name, compared in self._comparisons.items()
            ),
        )

    def _straggler(
        self,
        job: job_roster.RunningJob,
        name: str,
        compared: MeasureComparison,
        names_of: fleet.NamesOfGpu,
    ) -> api.JobStraggler:
        straggler = compared.straggler(job)
        if isinstance(straggler, str):
            return api.JobStraggler(name, straggler)
        place = next(place for place in job.places if place.position == straggler.position)
        metric = catalog.STRAGGLER_MEASURES[name].metric
        return api.JobStraggler(
            name,
            "",
            *_node_and_gpu(place, names_of),
            to_base_units(metric, straggler.value),
            to_base_units(metric, straggler.median),
            straggler.deviation,
        )

    def places_of(
        self, job: job_roster.RunningJob, names_of: fleet.NamesOfGpu
    ) -> tuple[api.JobPlace, ...]:
        """Return the GPUs of a job, each with its readings or the reasons for their absence."""
        return tuple(
            api.JobPlace(
                *_node_and_gpu(place, names_of),
                float(place.holding.units / GPU_CAPACITY),
                place.holding.start_ns,
                tuple(
                    _reading(job, place, name, compared)
                    for name, compared in self._comparisons.items()
                ),
            )
            for place in sorted(job.places, key=lambda place: (place.holding.node, place.gpu))
        )


def _node_and_gpu(
    place: job_roster.JobGpu, names_of: fleet.NamesOfGpu
) -> tuple[str, str, str, str]:
    node, uuid = place.holding.node, place.gpu
    names = names_of(node, uuid)
    return node, uuid, names["index"], names["pci_address"]


def _reading(
    job: job_roster.RunningJob, place: job_roster.JobGpu, name: str, compared: MeasureComparison
) -> api.JobReading:
    if not place.is_alone:
        return api.JobReading(name, SHARED)
    if why := compared.means.absence_reason(place.position):
        return api.JobReading(name, why)
    value, median = (
        float(compared.means.values[place.position]),
        float(compared.medians[job.number]),
    )
    deviation = value / median - 1 if median > 0 else None
    metric = catalog.STRAGGLER_MEASURES[name].metric
    return api.JobReading(name, "", to_base_units(metric, value), deviation)


def to_base_units(metric: declare.Metric, value: float) -> float:
    """Return a value in base units."""
    return value * metric.scale.numerator / metric.scale.denominator
