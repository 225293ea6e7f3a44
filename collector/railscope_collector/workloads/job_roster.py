"""Running jobs and the GPUs that they hold, updated GPU by GPU.

Each GPU that is held has a position, which is its index in the arrays of readings. Returned jobs
are not changed afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from railscope_collector.metering.units import Units


class JobKey(NamedTuple):
    """Identity of a job across nodes."""

    tenant: str
    source: str
    workload: str


class JobHolding(NamedTuple):
    """Share of a GPU's compute (of 840 units) that a job holds in a node, since a timestamp."""

    job: JobKey
    node: str
    units: Units
    start_ns: int


NO_JOB = -1
NO_POSITION = -1
_FIRST_POSITIONS = 64
Numbers: TypeAlias = npt.NDArray[np.int32]
HoldingNumbers: TypeAlias = npt.NDArray[np.int64]


class JobGpu(NamedTuple):
    """A GPU of a job: its position, and the job's holding of it."""

    gpu: str
    position: int
    holding: JobHolding
    is_alone: bool
    """True if no other job holds a part of the GPU."""


class RunningJob(NamedTuple):
    """A job and its GPUs."""

    key: JobKey
    number: int
    places: tuple[JobGpu, ...]

    @property
    def start_ns(self) -> int:
        """Start of the first of its claims."""
        return min(place.holding.start_ns for place in self.places)


MAX_JOBS_OF_A_NODE = 256
"""Reported jobs of one node: without a limit, thousands that one node invents would hide those of all others."""


def fair_selection(jobs: Sequence[RunningJob], max_jobs: int) -> list[RunningJob]:
    """Return the jobs to report if there are too many, in their order.

    Nodes take turns: first one job of each, then a second one. So a node that invents thousands of
    jobs hides none of another node, and never exceeds its own bound.
    """
    taken: Counter[str] = Counter()
    ranks = []
    for job in jobs:
        nodes = {place.holding.node for place in job.places}
        ranks.append(min((taken[node] for node in nodes), default=0))
        taken.update(nodes)
    within = [index for index, rank in enumerate(ranks) if rank < MAX_JOBS_OF_A_NODE]
    chosen = sorted(within, key=ranks.__getitem__)[:max_jobs]
    return [jobs[index] for index in sorted(chosen)]


@dataclass(slots=True)
class _OpenJob:
    """A job with a changing set of GPUs."""

    number: int
    places: dict[str, JobGpu] = field(default_factory=dict)
    running: RunningJob | None = None


@dataclass(slots=True)
class JobRoster:
    """Jobs; positions by node and GPU; for each position the number of the job that holds the GPU exclusively."""

    positions: dict[str, Mapping[str, int]] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)
    """Nodes with GPUs that changed holders since a reader last emptied this set."""
    job_of_position: Numbers = field(
        default_factory=lambda: np.full(_FIRST_POSITIONS, NO_JOB, np.int32)
    )
    holding_of_position: HoldingNumbers = field(
        default_factory=lambda: np.full(_FIRST_POSITIONS, NO_JOB, np.int64)
    )
    """For each position the number of the exclusive holding: unlike positions and jobs, never used again."""
    holdings: int = 0
    """Number of exclusive holdings so far."""
    numbers: int = 0
    """Exceeds every number of a job."""
    _jobs: dict[JobKey, _OpenJob] = field(default_factory=dict)
    _holdings: dict[str, tuple[int, tuple[JobHolding, ...]]] = field(default_factory=dict)
    _free_positions: list[int] = field(default_factory=lambda: list(range(_FIRST_POSITIONS)))
    _free_numbers: list[int] = field(default_factory=list)

    def jobs(self) -> list[RunningJob]:
        """Return all jobs, in the order of their first appearance."""
        for key, job in self._jobs.items():
            if job.running is None:
                job.running = RunningJob(key, job.number, tuple(job.places.values()))
        return [job.running for job in self._jobs.values() if job.running]

    def set_holdings(self, gpu: str, holdings: Sequence[JobHolding]) -> None:
        """Set the current holdings of a GPU: each job once."""
        position, before = self._holdings.get(gpu, (NO_POSITION, ()))
        now = tuple(holdings)
        if now == before:
            return
        position = self._take_position() if position == NO_POSITION else position
        alone = len(now) == 1
        for holding in now:
            self._enter(JobGpu(gpu, position, holding, alone))
        for job in {holding.job for holding in before} - {holding.job for holding in now}:
            self._leave(gpu, job)
        nodes = before[0].node if before else "", now[0].node if now else ""
        self._move(gpu, position, *nodes)
        self.touched |= {*nodes} - {""}
        self._holdings[gpu] = position, now
        self.job_of_position[position] = self._jobs[now[0].job].number if alone else NO_JOB
        if [holding.job for holding in now] != [holding.job for holding in before]:
            self.holding_of_position[position] = self.holdings if alone else NO_JOB
            self.holdings += alone
        if not now:
            del self._holdings[gpu]
            self._free_positions.append(position)

    def _enter(self, place: JobGpu) -> None:
        key = place.holding.job
        if key not in self._jobs:
            self._jobs[key] = _OpenJob(self._take_number())
        self._jobs[key].places[place.gpu] = place
        self._jobs[key].running = None

    def _leave(self, gpu: str, key: JobKey) -> None:
        job = self._jobs[key]
        del job.places[gpu]
        job.running = None
        if not job.places:
            del self._jobs[key]
            # Used again: arrays have an element for each number up to the highest.
            self._free_numbers.append(job.number)

    def _move(self, gpu: str, position: int, before: str, now: str) -> None:
        """Move a position between nodes; empty for none."""
        if before == now:
            return
        if before:
            left = {name: taken for name, taken in self.positions[before].items() if name != gpu}
            self.positions[before] = left
            if not left:
                del self.positions[before]
        if now:
            self.positions[now] = {**self.positions.get(now, {}), gpu: position}

    def _take_number(self) -> int:
        if self._free_numbers:
            return self._free_numbers.pop()
        self.numbers += 1
        return self.numbers - 1

    def _take_position(self) -> int:
        if not self._free_positions:
            size = len(self.job_of_position)
            self.job_of_position = np.concatenate(
                [self.job_of_position, np.full(size, NO_JOB, np.int32)]
            )
            self.holding_of_position = np.concatenate(
                [self.holding_of_position, np.full(size, NO_JOB, np.int64)]
            )
            self._free_positions.extend(range(size, 2 * size))
        return self._free_positions.pop()
