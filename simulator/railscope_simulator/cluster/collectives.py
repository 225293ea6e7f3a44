"""Collectives of a simulated job: which of them its ranks have launched and ended, and how long each rank took.

Everything follows from the steps of the job: the ranks that wait are those that compute faster than the slowest one, and collectives
end as fast as the fabric moves their data. The collectives of an iteration alternate with its computing, so a slow rank is late at each
of them. In a hang no collective ends; the hosts launch those of the iteration, except for a rank that never starts one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from railscope.timestamps import SECOND_NS
from railscope_simulator import node_hardware
from railscope_simulator.cluster.cluster_model import ClusterModel
from railscope_simulator.cluster.job_model import ClusterJob, JobProgress, waiting_share
from railscope_simulator.spec import TimeSpan

_CALLS_PER_SECOND, _MIN_CALLS = 3.0, 4
"""Collectives of an undisturbed job; real ones have more, which carry less each."""
_USUAL_LATENESS = 0.012
"""Mean time by which a rank is late by chance, relative to the computing before a collective."""
_HICCUP_SHARE, _HICCUP_LATENESS = 0.01, 0.2
"""Share of the collectives at which a rank is much later: an interrupt, a collection of garbage."""
_FIRST_RANK_LATENESS = 0.05
"""Lateness of rank 0 at the first collective of an iteration: it writes the log of the job."""
_MAX_CALLS = 4096
"""Collectives of a step that have times of their own."""
_STORED_BYTES = 1 << 16


class TimedCall(NamedTuple):
    """A collective that has ended, with the time that the kernel of each rank took."""

    kind: str
    sequence: int
    size: int
    seconds: list[float]


class _PhaseTimes(NamedTuple):
    """Iterations of a step, and the seconds that its exchange and its computing took."""

    iterations: float
    exchange: float
    computing: float


@dataclass(slots=True)
class _Communicator:
    """Communicator of all ranks of a job, from one start of its processes to the next."""

    number: int
    identity: str
    launched: list[int]
    """Number of all-reduces that the host of each rank has launched."""
    position: float = 0.0
    """Number of all-reduces that have ended, with a share of the next one."""
    stored: int = 0
    """Number of checkpoints, after each of which rank 0 sends a broadcast."""
    storing_seconds: float = 0.0
    steps: deque[_PhaseTimes] = field(default_factory=deque)
    """Last steps, with at least one iteration: a step may have one phase only."""
    hung_ns: int | None = None
    unreachable_ns: dict[int, int] = field(default_factory=dict)
    """Offset since which the processes of a node do not respond, by the node's position in the job."""


class JobCollectives:
    """Collectives of a job after its last step; `calls` are those that ended in it."""

    def __init__(self, model: ClusterModel, job: ClusterJob) -> None:
        self.job, self._model = job, model
        self.specs = [model.specs[node] for node in job.plan.nodes]
        first = self.specs[0]
        self._rng = first.shared_stream(f"collectives of {job.plan.name}")
        self.per_iteration = max(_MIN_CALLS, round(_CALLS_PER_SECOND * job.iteration_seconds))
        self.ranks = len(self.specs) * first.gpus
        port = node_hardware.build_node_hardware(first).ports[0]
        moved = port.bytes_per_second * job.plan.rate * job.plan.exchange * job.iteration_seconds
        self.bytes = max(int(moved * first.gpus / self.per_iteration / self.bus_factor), 1 << 13)
        self.calls: list[TimedCall] = []
        self.is_present = False
        self.now = self._begin(0)

    @property
    def bus_factor(self) -> float:
        """Bytes that a link of an all-reduce moves, relative to its message."""
        return 2 * (self.ranks - 1) / self.ranks

    @property
    def user(self) -> int:
        """User of the processes: containers run as root."""
        return 0 if self.specs[0].scheduler == "kubernetes" else 1000

    @property
    def _progress(self) -> JobProgress:
        return self._model.progress[self._model.jobs.index(self.job)]

    def _begin(self, number: int) -> _Communicator:
        return _Communicator(number, f"0x{self._rng.getrandbits(63):x}", [0] * self.ranks)

    def advance(self, span: TimeSpan) -> None:
        """Take the last step of the job's model."""
        progress, self.calls = self._progress, []
        if progress.present <= 0:
            self.is_present = False
            return
        if not self.is_present and span.start_ns:
            # Processes that start again create a new communicator, with numbers from 0.
            self.now = self._begin(self.now.number + 1)
        self.is_present, now = True, self.now
        self._find_unreachable(span)
        if progress.checkpoint > 0:
            now.storing_seconds += progress.checkpoint * span.seconds
        elif now.storing_seconds:
            now.stored += 1
            waits = [0.0, *[now.storing_seconds] * (self.ranks - 1)]
            self.calls.append(self._stored_call(now.stored, waits))
            now.storing_seconds = 0.0
        if self.job.is_hung and progress.iterations <= 0:
            if now.hung_ns is None:
                self._hang(span.start_ns)
            return
        now.hung_ns = None
        first = int(now.position)
        now.position += progress.iterations * self.per_iteration
        self.calls += self._timed_calls(first, span)
        now.launched = [
            max(count, int(now.position) + self._rng.randrange(2)) for count in now.launched
        ]

    def _find_unreachable(self, span: TimeSpan) -> None:
        off = {
            node
            for fault in self._model.scenario.faults
            if "off" in fault.effects() and fault.acts(span.end_ns / SECOND_NS)
            for node in fault.nodes
        }
        before = self.now.unreachable_ns
        self.now.unreachable_ns = {
            place: before.get(place, span.start_ns)
            for place, node in enumerate(self.job.plan.nodes)
            if node in off
        }

    def _hang(self, since_ns: int) -> None:
        """Launch the other collectives of the iteration, on all hosts but those that start none."""
        now = self.now
        now.hung_ns = since_ns
        last = (max(now.launched) // self.per_iteration + 1) * self.per_iteration
        launches = self._model.conditions.launches[self.job.plan.nodes].ravel()
        is_held = (launches == 0).tolist()
        now.launched = [
            count if waits else last for count, waits in zip(now.launched, is_held, strict=True)
        ]
        # What all hosts have launched can end; without a rank that launches nothing, the collective itself
        # stands still.
        if any(is_held):
            now.position = float(min(now.launched))

    def _stored_call(self, sequence: int, waits: Iterable[float]) -> TimedCall:
        seconds = [wait + self._rng.uniform(1e-4, 2e-4) for wait in waits]
        return TimedCall("Broadcast", sequence, _STORED_BYTES, seconds)

    def _phase_times(self, span: TimeSpan) -> tuple[float, float]:
        """Return the seconds of a collective and of the computing before it, as means of the last iteration."""
        progress, steps = self._progress, self.now.steps
        busy_seconds = (progress.computing + progress.updating) * span.seconds
        steps.append(
            _PhaseTimes(progress.iterations, progress.exchange * span.seconds, busy_seconds)
        )
        while sum(step.iterations for step in steps) - steps[0].iterations >= 1:
            steps.popleft()
        iterations, exchange, computing = map(sum, zip(*steps, strict=True))
        calls = iterations * self.per_iteration
        shortest = self.job.plan.exchange * self.job.iteration_seconds / self.per_iteration
        # A step without a phase of exchange would result in collectives that take no time.
        return max(exchange / calls, shortest), computing / calls

    def _timed_calls(self, first: int, span: TimeSpan) -> Iterator[TimedCall]:
        """Yield the all-reduces that ended in a step, after the first ones."""
        if self._progress.iterations <= 0 or "inspector" not in self.job.plan.collectives:
            return
        exchange, computing = self._phase_times(span)
        last = min(int(self.now.position), first + _MAX_CALLS)
        waits = [computing * share for share in self._waiting_shares()]
        for sequence in range(first + 1, last + 1):
            late = [self._lateness(computing) for _ in waits]
            if sequence % self.per_iteration == 1:
                late[0] += _FIRST_RANK_LATENESS * computing
            # A rank that waits for the slowest one arrives earlier than that by its waiting time.
            arrivals = [chance - wait for chance, wait in zip(late, waits, strict=True)]
            latest = max(arrivals)
            seconds = [exchange + latest - arrival for arrival in arrivals]
            yield TimedCall("AllReduce", sequence, self.bytes, seconds)

    def _lateness(self, computing: float) -> float:
        mean = _HICCUP_LATENESS if self._rng.random() < _HICCUP_SHARE else _USUAL_LATENESS
        return self._rng.expovariate(1.0) * mean * computing

    def _waiting_shares(self) -> Iterator[float]:
        """Yield the share of the computing for which each rank waits for the slowest one."""
        conditions = self._model.conditions
        for node in self.job.plan.nodes:
            delay = float(conditions.delay[node])
            for busy in conditions.busy_shares(self.job, node):
                yield waiting_share(busy, delay)
