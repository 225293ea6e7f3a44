"""Recent means of the measures by which the GPUs of a job are compared.

Steps of a job last for seconds, and nodes are not sampled at the same time: at any time some GPUs
compute while others exchange. So GPUs are compared by means over about a minute, in which older
readings have lower weights. For a GPU that another job takes, or that has no reading, the mean
restarts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from collector.workloads.gathered import Floats, Gathered, PerSeat, per_seat
from collector.workloads.roster import NO_JOB, Numbers
from railscope.catalog.jobs import STRAGGLER_MEASURES

NS = 1_000_000_000
OVER_SECONDS = 60.0
"""Default of `straggler_seconds`."""


@dataclass(slots=True)
class Average:
    """One measure by seat: weighted sums of readings, and the weights."""

    sums: Floats = field(default_factory=lambda: np.zeros(0))
    weights: Floats = field(default_factory=lambda: np.zeros(0))

    def follow(self, now: PerSeat, same: Numbers, seconds: float, over_seconds: float) -> PerSeat:
        """Return the means including `now`; `same` are the seats of the same job as before."""
        kept = np.zeros((2, len(now.values)))
        kept[:, same] = self.sums[same], self.weights[same]
        kept *= math.exp(-seconds / over_seconds)
        told = ~np.isnan(now.values)
        self.sums = np.where(told, kept[0] + now.values * seconds, 0.0)
        self.weights = np.where(told, kept[1] + seconds, 0.0)
        means = np.full(len(told), np.nan)
        np.divide(self.sums, self.weights, out=means, where=told)
        return PerSeat(means, now.reasons)


@dataclass(slots=True)
class Averages:
    """All measures, across refreshes."""

    over_seconds: float = OVER_SECONDS
    _of: dict[str, Average] = field(
        default_factory=lambda: {name: Average() for name in STRAGGLER_MEASURES}
    )
    _jobs: Numbers = field(default_factory=lambda: np.zeros(0, np.int32))
    _at_ns: int = 0

    def follow(self, gathered: Gathered, job_of_seat: Numbers, now_ns: int) -> dict[str, PerSeat]:
        """Return the means by measure, including the current readings."""
        seconds = max((now_ns - self._at_ns) / NS, 1e-3) if self._at_ns else 1.0
        before = self._jobs
        present = job_of_seat[: len(before)]
        same = np.flatnonzero((before == present) & (present != NO_JOB)).astype(np.int32)
        self._jobs, self._at_ns = job_of_seat, now_ns
        read = gathered.whole()
        found = {}
        for name, measure in STRAGGLER_MEASURES.items():
            number = gathered.keys.get((measure.metric, measure.part))
            now = per_seat(read, number, len(job_of_seat))
            found[name] = self._of[name].follow(now, same, seconds, self.over_seconds)
        return found
