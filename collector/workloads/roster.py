"""The jobs of all GPUs, updated GPU by GPU.

Each GPU that is held has a seat: a number, which is its index in the arrays of readings. Returned
jobs are not changed afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from collector.workloads.holding import Holding, JobKey

NO_JOB = -1
NO_SEAT = -1
_FIRST_SEATS = 64
Numbers: TypeAlias = npt.NDArray[np.int32]


class Place(NamedTuple):
    """A GPU of a job: its seat, and the job's holding of it."""

    gpu: str
    seat: int
    holding: Holding
    alone: bool
    """True if no other job holds a part of the GPU."""


class Job(NamedTuple):
    """A job and its GPUs."""

    key: JobKey
    number: int
    places: tuple[Place, ...]

    @property
    def start_ns(self) -> int:
        """Start of the first of its claims."""
        return min(place.holding.start_ns for place in self.places)


MAX_JOBS_OF_A_NODE = 256


def fair_selection(jobs: Sequence[Job], max_jobs: int) -> list[Job]:
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
    within = [at for at, rank in enumerate(ranks) if rank < MAX_JOBS_OF_A_NODE]
    chosen = sorted(within, key=ranks.__getitem__)[:max_jobs]
    return [jobs[at] for at in sorted(chosen)]


@dataclass(slots=True)
class _Open:
    """A job with a changing set of GPUs."""

    number: int
    places: dict[str, Place] = field(default_factory=dict)
    told: Job | None = None


@dataclass(slots=True)
class Roster:
    """Jobs; seats by node and GPU; for each seat the number of the job that holds the GPU exclusively."""

    seats: dict[str, Mapping[str, int]] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)
    """Nodes with GPUs that changed holders since a reader last emptied this set."""
    job_of_seat: Numbers = field(default_factory=lambda: np.full(_FIRST_SEATS, NO_JOB, np.int32))
    numbers: int = 0
    """Exceeds every number of a job."""
    _jobs: dict[JobKey, _Open] = field(default_factory=dict)
    _held: dict[str, tuple[int, tuple[Holding, ...]]] = field(default_factory=dict)
    _free_seats: list[int] = field(default_factory=lambda: list(range(_FIRST_SEATS)))
    _free_numbers: list[int] = field(default_factory=list)

    def jobs(self) -> list[Job]:
        """Return all jobs, in the order of their first appearance."""
        for key, job in self._jobs.items():
            if job.told is None:
                job.told = Job(key, job.number, tuple(job.places.values()))
        return [job.told for job in self._jobs.values() if job.told]

    def put(self, gpu: str, holdings: Sequence[Holding]) -> None:
        """Set the current holdings of a GPU: each job once."""
        seat, before = self._held.get(gpu, (NO_SEAT, ()))
        now = tuple(holdings)
        if now == before:
            return
        seat = self._take_seat() if seat == NO_SEAT else seat
        alone = len(now) == 1
        for holding in now:
            self._enter(Place(gpu, seat, holding, alone))
        for job in {one.job for one in before} - {one.job for one in now}:
            self._leave(gpu, job)
        nodes = before[0].node if before else "", now[0].node if now else ""
        self._sit(gpu, seat, *nodes)
        self.touched |= {*nodes} - {""}
        self._held[gpu] = seat, now
        self.job_of_seat[seat] = self._jobs[now[0].job].number if alone else NO_JOB
        if not now:
            del self._held[gpu]
            self._free_seats.append(seat)

    def _enter(self, place: Place) -> None:
        key = place.holding.job
        if key not in self._jobs:
            self._jobs[key] = _Open(self._take_number())
        self._jobs[key].places[place.gpu] = place
        self._jobs[key].told = None

    def _leave(self, gpu: str, key: JobKey) -> None:
        job = self._jobs[key]
        del job.places[gpu]
        job.told = None
        if not job.places:
            del self._jobs[key]
            self._free_numbers.append(job.number)

    def _sit(self, gpu: str, seat: int, before: str, now: str) -> None:
        """Move a seat between nodes; empty for none."""
        if before == now:
            return
        if before:
            left = {name: taken for name, taken in self.seats[before].items() if name != gpu}
            self.seats[before] = left
            if not left:
                del self.seats[before]
        if now:
            self.seats[now] = {**self.seats.get(now, {}), gpu: seat}

    def _take_number(self) -> int:
        if self._free_numbers:
            return self._free_numbers.pop()
        self.numbers += 1
        return self.numbers - 1

    def _take_seat(self) -> int:
        if not self._free_seats:
            size = len(self.job_of_seat)
            self.job_of_seat = np.concatenate([self.job_of_seat, np.full(size, NO_JOB, np.int32)])
            self._free_seats.extend(range(size, 2 * size))
        return self._free_seats.pop()
