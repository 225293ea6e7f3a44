"""Time limits of calls on a node where the agent itself does not run."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st
from support.machine import FakeHost
from support.rdma_nics import add_nic
from support.reading import ORIGIN
from support.sampling import PATIENCE_SECONDS

from railscope.frame import Frame
from railscope_agent.sampling.call_time import SLICE_SECONDS, CallTime
from railscope_agent.sampling.sampler import ReadLimits, Sampler
from railscope_agent.sampling.status import OK
from railscope_agent.sources.rdma import RdmaSource
from tests.agent.test_hung_call import BlockedAnswer

STALL_SECONDS = 30.0
CALL_SECONDS = 2.0


class StallingNode:
    """A monotonic clock on which every wait of the event loop ends half a minute late."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stalls = 0

    def stall(self, time: CallTime, seconds: float) -> None:
        """End one wait late."""
        expected = self.now + min(seconds, SLICE_SECONDS)
        self.now = expected + STALL_SECONDS
        time.note_wait(expected, self.now)
        self.stalls += 1


class StallingCallTime(CallTime):
    """A call time on such a node; a call returns after a number of waits of the event loop."""

    def __init__(self, node: StallingNode, stuck: BlockedAnswer, waits: int) -> None:
        super().__init__(lambda: node.now)
        self._node, self._stuck, self._waits = node, stuck, waits

    async def wait(self, future: asyncio.Future[None], seconds: float) -> None:
        while not self._stuck.callers:  # noqa: ASYNC110 - what a thread does has no event here
            await asyncio.sleep(0.01)
        self._node.stall(self, seconds)
        if self._node.stalls >= self._waits:
            self._stuck.released.set()
            await asyncio.wait({future}, timeout=PATIENCE_SECONDS)


async def read(waits: int) -> tuple[list[Frame], Sampler]:
    """Read a NIC with a file that has no content before a number of waits of the event loop."""
    host, node, stuck, frames = FakeHost(), StallingNode(), BlockedAnswer(), list[Frame]()
    add_nic(host)
    path = next(p for p in host.files if p.endswith("port_xmit_packets"))
    host.files[path] = lambda: str(stuck())
    time = StallingCallTime(node, stuck, waits)
    limits = ReadLimits(0, CALL_SECONDS)
    sampler = Sampler(host, ORIGIN, [RdmaSource()], frames.append, limits, call_time=time)
    await sampler.once()
    stuck.released.set()
    return frames, sampler


async def test_a_call_that_a_stall_of_the_agent_prolonged_does_not_hang() -> None:
    frames, sampler = await read(waits=5)
    assert (len(frames), sampler.statuses["rdma"].state) == (1, OK)
    assert not sampler.hung.by_device


async def test_a_call_hangs_also_on_a_node_that_stalls() -> None:
    _, sampler = await read(waits=round(CALL_SECONDS / SLICE_SECONDS) * 4)
    assert set(sampler.hung.by_device) == {"infiniband/mlx5_0"}
    assert sampler.statuses["rdma"].state != OK


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=20))
def test_the_stopwatch_never_falls_between_noted_waits(waits: list[tuple[float, float]]) -> None:
    """Overlapping delays count once, and the paused time never exceeds the elapsed time."""
    now = 0.0
    time = CallTime(lambda: now)
    readings = [0.0]
    for step, delay in waits:
        now += step + delay
        time.note_wait(now - delay, now)
        readings.append(time.seconds())
    assert all(later >= earlier - 1e-6 for earlier, later in pairwise(readings))
    assert readings[-1] <= sum(step for step, _ in waits) + 1e-6


def test_a_delay_that_prolonged_several_waits_counts_once() -> None:
    now = 40.0
    time = CallTime(lambda: now)
    for expected in (10.1, 10.05, 10.0):
        time.note_wait(expected, 40.0)
    assert time.seconds() == pytest.approx(10.1)


async def test_a_wait_ends_with_the_future_or_after_a_slice() -> None:
    time = CallTime()
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    await time.wait(done, SLICE_SECONDS / 10)
    assert not done.done()
    done.set_result(None)
    before = time.seconds()
    await time.wait(done, PATIENCE_SECONDS)
    assert time.seconds() - before < PATIENCE_SECONDS
