"""Parts of a cluster that several processes simulate in step.

Every process simulates the jobs and the fabric of the whole cluster, which cost little, and the nodes of its part.
After each step the processes exchange the clocks of their GPUs: the jobs and the fabric depend on nothing else
of a node. The result does not depend on the number of processes.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context
from threading import BrokenBarrierError
from typing import Any, TypeVar

import numpy as np

from railscope.child_process import end_with_parent
from railscope_simulator.cluster.topology import ClusterTopology, FloatArray

_MIN_NODES = 16
"""Nodes per process: for fewer, the start of a process takes longer than the simulation."""
_STEP_TIMEOUT_SECONDS = 600.0
"""Maximum wait for the step of another process, which has been stopped or killed."""

_PlanT = TypeVar("_PlanT")


@dataclass(slots=True)
class ClusterPart:
    """Part `number` of `count` equal parts of a cluster; all of it by default.

    `buffers` have the clocks of all GPUs, shape (2, nodes, rails), in shared memory. The steps use them in turn: a
    process writes to one while others still read the other one.
    """

    number: int = 0
    count: int = 1
    buffers: FloatArray = field(default_factory=lambda: np.zeros((2, 0, 0)))
    wait: Callable[[], object] = int
    """Waits until all processes have called it."""
    _turn: int = 0

    @property
    def is_first(self) -> bool:
        """True for the part that writes what belongs to the whole cluster."""
        return not self.number

    def numbers(self, nodes: int) -> range:
        """Return the numbers of this part's nodes."""
        return range(nodes * self.number // self.count, nodes * (self.number + 1) // self.count)

    def exchange(self, clocks: FloatArray, numbers: range) -> None:
        """Replace the clocks of other parts' nodes. Raises BrokenBarrierError if another process has failed."""
        if self.count == 1:
            return
        buffer = self.buffers[self._turn]
        self._turn ^= 1
        buffer[numbers] = clocks[numbers]
        self.wait()
        clocks[:] = buffer


WHOLE_CLUSTER = ClusterPart()


def count_processes(nodes: int) -> int:
    """Return the number of processes for a cluster: one per core, each with enough nodes."""
    return max(1, min(len(os.sched_getaffinity(0)), nodes // _MIN_NODES))


def run_parts(
    work: Callable[[_PlanT, ClusterPart], None], plan: _PlanT, topology: ClusterTopology, count: int
) -> None:
    """Run the work for each part of a cluster in a process of its own. Raises what the work raises."""
    if count == 1:
        work(plan, WHOLE_CLUSTER)
        return
    context = get_context("spawn")
    shared = context.RawArray("d", 2 * topology.nodes * topology.rails)
    barrier = context.Barrier(count)
    # A process that is spawned has the defaults, with which searches for cycles take a quarter of its time.
    state = os.getpid(), shared, barrier, gc.get_threshold()
    # Each part waits for all others, so that no process runs two of them.
    with ProcessPoolExecutor(count, context, _prepare_process, state) as pool:
        parts = [
            pool.submit(_run_part, work, plan, topology, (number, count)) for number in range(count)
        ]
        done, _ = wait(parts, return_when=FIRST_EXCEPTION)
        if any(part.exception() for part in done):
            # The other processes would wait for this one until their timeout.
            barrier.abort()
    errors = [error for part in parts if (error := part.exception())]
    # The cause first: a broken barrier is what it becomes in the other processes.
    for error in sorted(errors, key=lambda error: isinstance(error, BrokenBarrierError)):
        raise error


_shared: dict[str, Any] = {}
"""Shared memory and barrier of a process that simulates a part."""


def _prepare_process(
    parent: int, shared: Sequence[float], barrier: Any, threshold: tuple[int, int, int]
) -> None:
    end_with_parent(parent)
    _shared.update(buffers=shared, barrier=barrier)
    gc.set_threshold(*threshold)


def _run_part(
    work: Callable[[_PlanT, ClusterPart], None],
    plan: _PlanT,
    topology: ClusterTopology,
    place: tuple[int, int],
) -> None:
    shape = 2, topology.nodes, topology.rails
    buffers = np.frombuffer(_shared["buffers"]).reshape(shape)
    barrier = _shared["barrier"]
    work(plan, ClusterPart(*place, buffers, lambda: barrier.wait(_STEP_TIMEOUT_SECONDS)))
