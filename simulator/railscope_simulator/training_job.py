"""The synchronous training job of a node.

An iteration of the job computes forward, then backward while gradients are exchanged, then updates
the weights. The slowest GPU limits computing, the slowest rail limits the exchange; outside of the
exchange rails are idle. At intervals the job writes a checkpoint, and it reads its data in
portions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from railscope_simulator.conditions import JobConditions
from railscope_simulator.spec import NodeSpec, TimeSpan, seconds_to_ns

EXCHANGE_RATE = 0.78
"""Share of the line rate that a rail carries while gradients are exchanged."""

CHECKPOINT = TimeSpan(seconds_to_ns(150), seconds_to_ns(175))
CHECKPOINT_PERIOD_NS = seconds_to_ns(300)
CHECKPOINT_RATE = 0.30
FETCH = TimeSpan(seconds_to_ns(20), seconds_to_ns(23))
FETCH_PERIOD_NS = seconds_to_ns(60)
FETCH_RATE = 0.15

_HUNG_ACTIVITY = 0.12
_CHECKPOINT_ACTIVITY = 0.3
_WAITING_POWER = 0.45
_NO_TIME = 1e-12


@dataclass(frozen=True, slots=True)
class IterationPhase:
    """Phase of the iteration: its end, and the activity of GPUs and their memory in it."""

    end: float
    activity: float
    memory_activity: float
    exchange: bool = False


PHASES = (
    IterationPhase(0.38, 1.0, 0.48),
    IterationPhase(0.83, 0.94, 0.55, exchange=True),
    IterationPhase(1.0, 0.6, 0.72),
)


@dataclass(slots=True)
class JobDemand:
    """Demand of the job during a span, as shares of its time; `exchanged` is a share of volume.

    `spinning` is the part of `activity` in kernels that wait, which use no pipes of the multiprocessors.
    """

    present: float = 0.0
    occupied: float = 0.0
    activity: float = 0.0
    memory_activity: float = 0.0
    exchange: float = 0.0
    exchanged: float = 0.0
    checkpoint: float = 0.0
    fetch: float = 0.0
    spinning: float = 0.0

    @property
    def resident(self) -> bool:
        """True if the job occupies memory."""
        return self.present > 0


class TrainingJob:
    """Position of the job in its iteration."""

    def __init__(self, spec: NodeSpec) -> None:
        shared = spec.shared_stream("job")
        self._iteration_seconds = shared.uniform(11.0, 13.0)
        self._place = shared.random()

    def advance(self, span: TimeSpan, conditions: JobConditions, slowest_gpu: float) -> JobDemand:
        """Advance by a span, as fast as the slowest GPU and the conditions allow."""
        present = conditions.present
        if present <= 0:
            return JobDemand()
        if conditions.hung:
            return JobDemand(present=present, occupied=present, activity=_HUNG_ACTIVITY * present)
        checkpoint = span.share_recurring(CHECKPOINT, CHECKPOINT_PERIOD_NS) * present
        work = present - checkpoint
        demand = JobDemand(
            present=present,
            occupied=work + _CHECKPOINT_ACTIVITY * checkpoint,
            activity=_CHECKPOINT_ACTIVITY * checkpoint,
            memory_activity=_CHECKPOINT_ACTIVITY * checkpoint,
            checkpoint=checkpoint,
            fetch=span.share_recurring(FETCH, FETCH_PERIOD_NS) * present,
        )
        self._work(span.seconds, work, (slowest_gpu, conditions.exchange_speed), demand)
        return demand

    def _work(
        self, length: float, share: float, speeds: tuple[float, float], demand: JobDemand
    ) -> None:
        """Go through the phases for a share of a time in seconds, and add up their demand."""
        remaining_seconds = length * share
        while remaining_seconds > _NO_TIME:
            phase = next(phase for phase in PHASES if self._place < phase.end)
            speed = speeds[phase.exchange]
            to_end = (phase.end - self._place) * self._iteration_seconds
            needed = to_end / speed if speed > 0 else math.inf
            spent = min(remaining_seconds, needed)
            remaining_seconds -= spent
            place = self._place + spent * speed / self._iteration_seconds
            # The end exactly: a sum that is rounded down would remain in the phase.
            self._place = (phase.end if spent == needed else place) % 1.0
            waiting = _WAITING_POWER + (1.0 - _WAITING_POWER) * speed
            demand.activity += phase.activity * waiting * spent / length
            demand.memory_activity += phase.memory_activity * speed * spent / length
            if phase.exchange:
                demand.exchange += spent / length
                demand.exchanged += speed * spent / length
