"""Activity of the multiprocessors and the memory of a GPU.

The job determines SM utilization; its division into pipes is that of mixed-precision training.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from railscope.timestamps import MICROSECOND_NS
from railscope_simulator import training_job
from railscope_simulator.spec import TimeSpan

_OCCUPANCY = 0.31
_PIPES = {"tensor": 0.62, "integer": 0.24, "fp32": 0.21, "fp16": 0.09}
"""Fractions of an SM's busy time."""

_DRAM = 0.85
"""Memory that is in use all the time moves this share of its peak bandwidth."""

_USUAL = training_job.JobDemand(present=1.0, occupied=1.0, activity=0.6, memory_activity=0.4)


@dataclass(frozen=True, slots=True)
class ActivityShares:
    """Shares of a span: of its time, of all SMs, or of the memory's bandwidth.

    All work of the tensor pipes is in half precision; none is in double precision.
    """

    graphics: float = 0.0
    sm: float = 0.0
    occupancy: float = 0.0
    tensor: float = 0.0
    integer: float = 0.0
    fp32: float = 0.0
    fp16: float = 0.0
    dram: float = 0.0


def activity_shares(demand: training_job.JobDemand, ripple: float) -> ActivityShares:
    """Return the activity of a GPU under the job's demand, times a factor for this GPU's own load."""
    sm = min(demand.activity * ripple, 1.0)
    # Kernels that wait occupy multiprocessors, but use no pipes.
    computing = max(sm - demand.spinning, 0.0)
    return ActivityShares(
        graphics=min(demand.occupied, 1.0),
        sm=sm,
        occupancy=_OCCUPANCY * sm,
        **{pipe: share * computing for pipe, share in _PIPES.items()},
        dram=_DRAM * min(demand.memory_activity * ripple, 1.0),
    )


@dataclass(slots=True)
class SmCycles:
    """Cycles of all SMs since the GPU's last reset: elapsed, and those in which a pipe was busy."""

    elapsed: int = 0
    sm: int = 0
    tensor: int = 0
    integer: int = 0
    fp32: int = 0
    fp16: int = 0

    @classmethod
    def usual(cls, uptime_ns: int, megahertz: int, multiprocessors: int) -> SmCycles:
        """Return the counters of a GPU that has been under normal load since boot."""
        cycles = cls()
        usual = activity_shares(_USUAL, 1.0)
        cycles.advance(TimeSpan(0, uptime_ns), megahertz, multiprocessors, usual)
        return cycles

    def advance(
        self, span: TimeSpan, megahertz: int, multiprocessors: int, shares: ActivityShares
    ) -> None:
        """Count cycles for a span at one clock."""
        elapsed = megahertz * multiprocessors * span.length_ns // MICROSECOND_NS
        self.elapsed += elapsed
        for pipe in fields(self)[1:]:
            counted = getattr(self, pipe.name) + round(elapsed * getattr(shares, pipe.name))
            setattr(self, pipe.name, counted)
