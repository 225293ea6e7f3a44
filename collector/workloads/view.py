"""Jobs as of one timestamp: added up on request, in the thread of the caller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np

from collector.fleet.cell import Cell
from collector.fleet.device_names import NamesOfGpu
from collector.fleet.job_columns import Key
from collector.metering.units import GPU_CAPACITY
from collector.workloads.gathered import Gathered, PerSeat, Totals, per_seat, totals
from collector.workloads.roster import Job, Numbers, Place
from collector.workloads.straggler import SHARED, Compared, Straggler, compare
from railscope.catalog import jobs as catalog
from railscope.catalog import rollups
from railscope.catalog.declare import Metric, Rollup
from railscope.catalog.rollup import derived_name

NS = 1_000_000_000


def _nobody() -> Numbers:
    return np.empty(0, np.int32)


@dataclass(frozen=True)
class Jobs:
    """The reported jobs, and the readings of their GPUs."""

    instant_ns: int = 0
    jobs: tuple[Job, ...] = ()
    left_out: int = 0
    """Number of further jobs."""
    gathered: Gathered = field(default_factory=Gathered)
    job_of_seat: Numbers = field(default_factory=_nobody)
    numbers: int = 0
    """Exceeds every number of a job."""
    fresh: frozenset[str] = frozenset()
    """The nodes with fresh frames."""
    told: Mapping[str, PerSeat] = field(default_factory=dict)
    """Measures that GPUs are compared by: means over the last minute."""

    @cached_property
    def _totals(self) -> Mapping[Key, Totals]:
        read = self.gathered.whole()
        return totals(read, self.gathered.keys, self.job_of_seat, self.numbers)

    @cached_property
    def _compared(self) -> dict[str, Compared]:
        stale = per_seat(Gathered().whole(), None, len(self.job_of_seat))
        return {
            name: compare(self.told.get(name, stale), self.job_of_seat, self.numbers)
            for name in catalog.STRAGGLER_MEASURES
        }

    def of(self, tenant: str) -> tuple[Job, ...]:
        """Return the jobs of one tenant."""
        return tuple(job for job in self.jobs if job.key.tenant == tenant)

    # As metrics ----------------------------------------------------------------------------------

    def cells(self, tenant: str | None = None) -> Iterator[Cell]:
        """Yield all cells of jobs; of one tenant's jobs, if one is named."""
        for job in self.jobs if tenant is None else self.of(tenant):
            yield from self._of_job(job)
            yield from self._stragglers(job)
            for place in job.places:
                key, labels = job.key, (place.holding.node, place.gpu)
                yield Cell(catalog.HOLDER_INFO, (*labels, *key[1:], key.tenant), 1)

    def _of_job(self, job: Job) -> Iterator[Cell]:
        for metric, value in self._counts(job):
            yield Cell(metric, job.key, value)
        for metric, part, value in self._rollups(job):
            yield Cell(metric, (*job.key, *part), value)

    def _counts(self, job: Job) -> Iterator[tuple[Metric, float]]:
        places = job.places
        nodes = {place.holding.node for place in places}
        yield catalog.JOB_GPUS, float(sum(place.holding.units for place in places) / GPU_CAPACITY)
        yield catalog.JOB_NODES, len(nodes)
        stale = sum(place.holding.node not in self.fresh for place in places)
        yield catalog.JOB_STALE_GPUS, stale
        yield catalog.JOB_SHARED_GPUS, sum(not place.alone for place in places)
        yield catalog.JOB_START, job.start_ns / NS

    def _rollups(self, job: Job) -> Iterator[tuple[Metric, tuple[str, ...], float]]:
        for (metric, part), found in self._totals.items():
            for rollup in catalog.BY_JOB.get(metric, ()):
                value = found.of(rollup, job.number)
                if value is not None:
                    yield _derived(metric, rollup), part, scaled(metric, value)

    def _stragglers(self, job: Job) -> Iterator[Cell]:
        for name, compared in self._compared.items():
            found = compared.of(job)
            if isinstance(found, Straggler):
                place = next(place for place in job.places if place.seat == found.seat)
                where = name, place.holding.node, place.gpu
                yield Cell(catalog.STRAGGLER_DEVIATION, (*job.key, *where), found.deviation)

    # As JSON -------------------------------------------------------------------------------------

    def to_json(self, job: Job, names_of: NamesOfGpu) -> dict[str, Any]:
        """Return a job: its holdings, roll-ups over its GPUs, and its stragglers."""
        counts = {metric.name: value for metric, value in self._counts(job)}
        return {
            **job.key._asdict(),
            "start_ns": job.start_ns,
            "gpus": counts[catalog.JOB_GPUS.name],
            "nodes": counts[catalog.JOB_NODES.name],
            "stale_gpus": counts[catalog.JOB_STALE_GPUS.name],
            "shared_gpus": counts[catalog.JOB_SHARED_GPUS.name],
            "rollups": [
                {
                    "metric": metric.name,
                    "labels": dict(zip(metric.about.labels[len(job.key) :], part, strict=True)),
                    "value": value,
                }
                for metric, part, value in self._rollups(job)
            ],
            "stragglers": [
                {"measure": name, **self._straggler(job, name, compared, names_of)}
                for name, compared in self._compared.items()
            ],
        }

    def _straggler(
        self, job: Job, name: str, compared: Compared, names_of: NamesOfGpu
    ) -> dict[str, Any]:
        found = compared.of(job)
        if isinstance(found, str):
            return {"unknown": found}
        place = next(place for place in job.places if place.seat == found.seat)
        metric = catalog.STRAGGLER_MEASURES[name].metric
        return {
            **_where(place, names_of),
            "value": scaled(metric, found.value),
            "median": scaled(metric, found.median),
            "deviation_ratio": found.deviation,
        }

    def places(self, job: Job, names_of: NamesOfGpu) -> list[dict[str, Any]]:
        """Return the GPUs of a job, each with its readings or the reasons for their absence."""
        return [
            {
                **_where(place, names_of),
                "held_ratio": float(place.holding.units / GPU_CAPACITY),
                "start_ns": place.holding.start_ns,
                "readings": [
                    {"measure": name, **_reading(job, place, name, compared)}
                    for name, compared in self._compared.items()
                ],
            }
            for place in sorted(job.places, key=lambda place: (place.holding.node, place.gpu))
        ]


def _where(place: Place, names_of: NamesOfGpu) -> dict[str, str]:
    node, uuid = place.holding.node, place.gpu
    names = names_of(node, uuid)
    return {
        "node": node,
        "gpu": uuid,
        "index": names["index"],
        "pci_address": names["pci_address"],
    }


def _reading(job: Job, place: Place, name: str, compared: Compared) -> dict[str, Any]:
    if not place.alone:
        return {"absent": SHARED}
    if why := compared.told.why(place.seat):
        return {"absent": why}
    value, median = float(compared.told.values[place.seat]), float(compared.medians[job.number])
    found = {"value": scaled(catalog.STRAGGLER_MEASURES[name].metric, value)}
    return found | ({"deviation_ratio": value / median - 1} if median > 0 else {})


def scaled(metric: Metric, value: float) -> float:
    """Return a value in base units."""
    return value * metric.scale.numerator / metric.scale.denominator


@cache
def _derived(metric: Metric, rollup: Rollup) -> Metric:
    return rollups()[derived_name(metric, "job", rollup)].metric
