"""Activity of a GPU's SMs and memory during a span, and the cycle counters.

The job determines SM utilization; its division into pipes is that of mixed-precision training.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from simulator.job import Demand
from simulator.span import Span

_OCCUPANCY, _TENSOR, _INTEGER, _FP32, _FP16 = 0.31, 0.62, 0.24, 0.21, 0.09
"""Fractions of an SM's busy time."""

_DRAM = 0.85
"""Memory that is in use all the time moves this share of its peak bandwidth."""

_NS_PER_US = 1000
_USUAL = Demand(present=1.0, occupied=1.0, activity=0.6, memory_activity=0.4)


@dataclass(frozen=True, slots=True)
class Activity:
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


def activity(demand: Demand, ripple: float) -> Activity:
    """Return the activity of a GPU under the job's demand, times a factor for this GPU's own load."""
    sm = min(demand.activity * ripple, 1.0)
    return Activity(
        graphics=min(demand.occupied, 1.0),
        sm=sm,
        occupancy=_OCCUPANCY * sm,
        tensor=_TENSOR * sm,
        integer=_INTEGER * sm,
        fp32=_FP32 * sm,
        fp16=_FP16 * sm,
        dram=_DRAM * min(demand.memory_activity * ripple, 1.0),
    )


@dataclass(slots=True)
class Cycles:
    """Cycles of all SMs since the GPU's last reset: elapsed, and those in which a pipe was busy."""

    elapsed: int = 0
    sm: int = 0
    tensor: int = 0
    integer: int = 0
    fp32: int = 0
    fp16: int = 0

    @classmethod
    def usual(cls, uptime_ns: int, megahertz: int, multiprocessors: int) -> Cycles:
        """Return the counters of a GPU that has been under normal load since boot."""
        cycles = cls()
        usual = activity(_USUAL, 1.0)
        cycles.advance(Span(0, uptime_ns), megahertz, multiprocessors, usual)
        return cycles

    def advance(self, span: Span, megahertz: int, multiprocessors: int, seen: Activity) -> None:
        """Count cycles for a span at one clock."""
        elapsed = megahertz * multiprocessors * span.length_ns // _NS_PER_US
        self.elapsed += elapsed
        for pipe in fields(self)[1:]:
            counted = getattr(self, pipe.name) + round(elapsed * getattr(seen, pipe.name))
            setattr(self, pipe.name, counted)
