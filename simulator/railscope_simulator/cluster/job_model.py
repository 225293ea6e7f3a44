"""Iterations of a synchronous job: compute, exchange, update; checkpoints and input.

All ranks do the same work. A slow GPU makes the others wait in the exchange that follows, where they
spin in a kernel: their utilization stays at 100 %, their activity and power fall. Everything that
varies between jobs follows from the plan and a named random stream.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from railscope_simulator.cluster.scenario import JobPlan
from railscope_simulator.spec import DriftNoise, TimeSpan, seconds_to_ns
from railscope_simulator.training_job import JobDemand

_UPDATE = 0.08
"""Share of an iteration in which weights are updated; the rest is computing and the exchange."""

_COMPUTE_MEMORY, _EXCHANGE_MEMORY, _UPDATE_MEMORY = 0.48, 0.3, 0.72
_EXCHANGE_ACTIVITY, _UPDATE_ACTIVITY = 0.55, 0.6
_SPIN_ACTIVITY = 0.15
"""Activity of a GPU that waits in a collective: a kernel on a few tens of multiprocessors."""

_CHECKPOINT_ACTIVITY = 0.3
_EVALUATED_OCCUPANCY, _EVALUATED_ACTIVITY, _EVALUATED_EXCHANGE = 0.9, 0.6, 0.3
"""An evaluation computes forward only: relative to training."""

_LOAD_DRIFT, _MIN_LOAD = 0.15, 0.1
_MIN_REMAINING_SECONDS = 1e-9
_FETCH_PERIOD_SECONDS, _FETCH_SECONDS = 60.0, 3.0


@dataclass(slots=True)
class JobProgress:
    """Demand of a job during a span, as shares of its time.

    `computing` is the time in which the slowest GPU computes; faster ones finish earlier and wait.
    """

    present: float = 0.0
    computing: float = 0.0
    exchange: float = 0.0
    exchanged: float = 0.0
    updating: float = 0.0
    starving: float = 0.0
    checkpoint: float = 0.0
    fetch: float = 0.0
    evaluating: float = 0.0
    iterations: float = 0.0

    def add(self, progress: JobProgress, weight: float) -> None:
        """Add the progress of a part of the span; shares of time are weighted, iterations are not."""
        for name in self.__slots__:
            amount = getattr(progress, name) * (1.0 if name == "iterations" else weight)
            setattr(self, name, getattr(self, name) + amount)


class ClusterJob:
    """A job and its position in the iteration, which takes `iteration_seconds` if nothing disturbs it."""

    def __init__(self, plan: JobPlan, rng: random.Random) -> None:
        self.plan = plan
        self._position = rng.random()
        self.iteration_seconds = plan.iteration_seconds * rng.uniform(0.97, 1.03)
        compute = 1.0 - plan.exchange - min(_UPDATE, 1.0 - plan.exchange)
        self._ends = (compute, compute + plan.exchange, 1.0)
        period_ns = seconds_to_ns(plan.checkpoint_period_seconds)
        first_ns = rng.randrange(period_ns // 3, period_ns) if period_ns else 0
        self._checkpoint_period_ns = period_ns
        self._checkpoint = TimeSpan(
            first_ns, first_ns + min(seconds_to_ns(plan.checkpoint_seconds), period_ns)
        )
        offset_ns = seconds_to_ns(rng.uniform(0.0, _FETCH_PERIOD_SECONDS))
        self._fetch = TimeSpan(offset_ns, offset_ns + seconds_to_ns(_FETCH_SECONDS))
        period_ns = seconds_to_ns(plan.evaluation_period_seconds)
        first_ns = rng.randrange(period_ns // 3, period_ns) if period_ns else 0
        self._evaluation_period_ns = period_ns
        self._evaluation = TimeSpan(first_ns, first_ns + seconds_to_ns(plan.evaluation_seconds))
        self._load_drift = DriftNoise(rng, 20.0)
        self._load = plan.load
        self.is_hung = False
        """True in an exchange that makes no progress: no rank gets as far as a checkpoint, an evaluation or new input."""
        self._breaks = [
            TimeSpan(seconds_to_ns(begin), seconds_to_ns(begin + length))
            for begin, length in plan.breaks
        ]

    def work_share(self, node: int) -> float:
        """Return the computing of a node, relative to the node with the most."""
        nodes = self.plan.nodes
        return 1.0 - self.plan.uneven * nodes.index(node) / max(len(nodes) - 1, 1)

    def _phase(self) -> int:
        return next((index for index, end in enumerate(self._ends) if self._position < end), 2)

    def working_share(self, span: TimeSpan) -> float:
        """Return the share of a span in which the job neither pauses nor writes a checkpoint."""
        present = 1.0 - sum(span.share_in(job_break) for job_break in self._breaks)
        return max(present - self._checkpoint_share(span), 0.0) * self._load

    def exchanges(self, span: TimeSpan) -> bool:
        """True if the job is in its exchange at the start of a span."""
        return self._phase() == 1 and self.working_share(span) > 0

    def _checkpoint_share(self, span: TimeSpan) -> float:
        if not self._checkpoint_period_ns or self.is_hung:
            return 0.0
        return span.share_recurring(self._checkpoint, self._checkpoint_period_ns)

    def advance(
        self, span: TimeSpan, pace: float, speed: float, supply: float, present: float
    ) -> JobProgress:
        """Advance by a span at the pace of the slowest GPU, and at a speed of the exchange.

        `supply` is the share of the input that arrives in time; `present` is the share of the span in which
        the processes run.
        """
        if self.plan.load < 1.0:
            drift = _LOAD_DRIFT * self._load_drift.advance(span.seconds)
            self._load = min(max(self.plan.load + drift, _MIN_LOAD), 1.0)
        # Before the checkpoint: a job that hangs does not reach it.
        self.is_hung = pace <= 0 or (speed <= 0 and self._phase() == 1)
        checkpoint = self._checkpoint_share(span) * present
        work = self.working_share(span) * present
        progress = JobProgress(
            present=work / self._load + checkpoint,
            checkpoint=checkpoint,
        )
        if not self.is_hung:
            progress.fetch = work * span.share_recurring(
                self._fetch, seconds_to_ns(_FETCH_PERIOD_SECONDS)
            )
            if self._evaluation_period_ns:
                progress.evaluating = span.share_recurring(
                    self._evaluation, self._evaluation_period_ns
                )
        self._work(span.seconds, work, (pace * supply, speed, pace), progress)
        progress.starving = progress.computing * (1.0 - supply)
        progress.computing -= progress.starving
        return progress

    def _work(
        self, length: float, share: float, speeds: tuple[float, float, float], progress: JobProgress
    ) -> None:
        """Go through the phases for a share of a time in seconds, and add up their demand."""
        remaining = length * share
        while remaining > _MIN_REMAINING_SECONDS:
            phase = self._phase()
            speed, end = speeds[phase], self._ends[phase]
            needed = (
                (end - self._position) * self.iteration_seconds / speed if speed > 0 else math.inf
            )
            spent = min(remaining, needed)
            remaining -= spent
            moved = spent * speed / self.iteration_seconds
            # The end exactly: a sum that is rounded down would remain in the phase.
            self._position = end if spent == needed else self._position + moved
            self._position %= 1.0
            progress.iterations += moved
            if phase == 1:
                progress.exchange += spent / length
                progress.exchanged += spent * speed / length
            elif phase == 0:
                progress.computing += spent / length
            else:
                progress.updating += spent / length

    def traffic_share(self, progress: JobProgress) -> float:
        """Return the share of an exchange's traffic that a job sends: less in an evaluation."""
        present = max(progress.present, _MIN_REMAINING_SECONDS)
        return 1.0 - (1.0 - _EVALUATED_EXCHANGE) * progress.evaluating / present

    def demand(self, progress: JobProgress, busy: Sequence[float], delay: float) -> list[JobDemand]:
        """Return the demand on each GPU of a node.

        `busy` (GPUs,) is the share of the computing time in which a GPU computes; it waits for the slowest one in
        the rest. `delay` is the share in which the host launches no work.
        """
        occupied = (
            progress.computing * (1.0 - delay)
            + progress.exchange
            + progress.updating
            + _CHECKPOINT_ACTIVITY * progress.checkpoint
        )
        evaluating = progress.evaluating / max(progress.present, _MIN_REMAINING_SECONDS)
        occupied *= 1.0 - evaluating * (1.0 - _EVALUATED_OCCUPANCY)
        less = 1.0 - evaluating * (1.0 - _EVALUATED_ACTIVITY)
        speed = progress.exchanged / progress.exchange if progress.exchange else 1.0
        demands = []
        for share in busy:
            waits = (progress.computing + progress.updating) * waiting_share(share, delay)
            spinning = _SPIN_ACTIVITY * (progress.exchange + waits)
            activity = (
                self.plan.activity * progress.computing * share
                + progress.exchange * (_EXCHANGE_ACTIVITY - _SPIN_ACTIVITY) * speed
                + _UPDATE_ACTIVITY * progress.updating * share
                + _CHECKPOINT_ACTIVITY * progress.checkpoint
            ) * less + spinning
            memory = (
                _COMPUTE_MEMORY * progress.computing * share
                + _EXCHANGE_MEMORY * progress.exchanged
                + _UPDATE_MEMORY * progress.updating * share
                + _CHECKPOINT_ACTIVITY * progress.checkpoint
            )
            demands.append(
                JobDemand(
                    present=progress.present,
                    occupied=occupied,
                    activity=activity,
                    memory_activity=memory,
                    exchange=progress.exchange,
                    exchanged=progress.exchanged,
                    checkpoint=progress.checkpoint,
                    fetch=progress.fetch,
                    spinning=spinning,
                )
            )
        return demands


def waiting_share(busy: float, delay: float) -> float:
    """Return the share of the computing time in which a GPU waits in a collective for the slowest one."""
    return max(1.0 - busy - delay, 0.0)
