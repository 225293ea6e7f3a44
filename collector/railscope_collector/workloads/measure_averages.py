"""Recent means of the readings of the GPUs of jobs.

Steps of a job last for seconds, and nodes are not sampled at the same time: at any time some GPUs
compute while others exchange. So GPUs are compared by means over about a minute, in which older
readings have lower weights. For a GPU that another job takes, or that has no reading, the mean
restarts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from railscope import timestamps
from railscope.catalog.account import STRAGGLER_MEASURES
from railscope_collector.workloads.job_readings import (
    Floats,
    GatheredReadings,
    GpuValues,
    gpu_values,
)
from railscope_collector.workloads.job_roster import NO_JOB, HoldingNumbers, Numbers

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
    _holdings: HoldingNumbers = field(default_factory=lambda: np.zeros(0, np.int64))
    _at_ns: int = 0

    def update(
        self, gathered: GatheredReadings, holding_of_position: HoldingNumbers, now_ns: int
    ) -> dict[str, GpuValues]:
        """Return the means by measure, including the current readings."""
        # The clock may have been set back.
        seconds = max((now_ns - self._at_ns) / timestamps.SECOND_NS, 1e-3) if self._at_ns else 1.0
        before = self._holdings
        present = holding_of_position[: len(before)]
        same = np.flatnonzero((before == present) & (present != NO_JOB)).astype(np.int32)
        self._holdings, self._at_ns = holding_of_position, now_ns
        read = gathered.concatenate()
        averages = {}
        for name, measure in STRAGGLER_MEASURES.items():
            number = gathered.keys.get((measure.metric, measure.part))
            now = gpu_values(read, number, len(holding_of_position))
            averages[name] = self._averages[name].update(
                now, same, seconds, self.time_constant_seconds
            )
        return averages
