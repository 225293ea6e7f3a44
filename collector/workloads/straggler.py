"""The GPU of each job that is furthest below the median of the job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from collector.workloads.gathered import Floats, PerSeat
from collector.workloads.roster import NO_JOB, Job, Numbers

FEWEST = 2
ONE_GPU, SHARED, IDLE = "one GPU", "shared", "idle"
"""Reasons for no straggler: no other GPU; GPUs partly held by other jobs; a median of 0."""


class Straggler(NamedTuple):
    """A GPU by its seat; values in stored steps."""

    seat: int
    value: float
    median: float

    @property
    def deviation(self) -> float:
        """Relative deviation from the median, at most 0: the value is the lowest."""
        return self.value / self.median - 1


@dataclass(frozen=True, slots=True)
class Compared:
    """One measure, by the numbers of jobs: the lowest, the median, and the number of values."""

    told: PerSeat
    lowest: Numbers
    """The seat; meaningless without values."""
    medians: Floats
    counts: Numbers

    def of(self, job: Job) -> Straggler | str:
        """Return the GPU of a job that is furthest behind, or the reason for its absence."""
        number = job.number
        if len(job.places) < FEWEST:
            return ONE_GPU
        if self.counts[number] < FEWEST:
            return self._why(job)
        median = float(self.medians[number])
        if median <= 0:
            return IDLE
        seat = int(self.lowest[number])
        return Straggler(seat, float(self.told.values[seat]), median)

    def _why(self, job: Job) -> str:
        """Return the most frequent reason of the GPUs without a value."""
        reasons = [SHARED if not p.alone else self.told.why(p.seat) for p in job.places]
        known = [reason for reason in reasons if reason]
        return max(sorted(set(known)), key=known.count)


def compare(told: PerSeat, job_of_seat: Numbers, jobs: int) -> Compared:
    """Compare the GPUs that jobs hold exclusively; `jobs` exceeds every job number."""
    at = np.flatnonzero((job_of_seat != NO_JOB) & ~np.isnan(told.values))
    values, job = told.values[at], job_of_seat[at]
    order = np.lexsort((values, job))
    at, values, job = at[order], values[order], job[order]
    numbers = np.arange(jobs)
    starts = np.searchsorted(job, numbers)
    counts = np.searchsorted(job, numbers, side="right") - starts
    here = counts > 0
    lowest, medians = np.full(jobs, -1, np.int32), np.full(jobs, np.nan)
    lowest[here] = at[starts[here]]
    middle = (starts + (counts - 1) // 2)[here], (starts + counts // 2)[here]
    medians[here] = (values[middle[0]] + values[middle[1]]) / 2
    return Compared(told, lowest, medians, counts.astype(np.int32))
