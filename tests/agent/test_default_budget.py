"""The default budget fits a server with eight GPUs: no period is lengthened.

A cost model replaces the processor, so that the speed of the machine has no influence: every
answer of a driver or file has the same price, including what the agent computes from it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable

import pytest
from support.clock import ManualClock
from support.metering import MIB
from support.sampling import lanes_of

from railscope.capture import Capture
from railscope_agent.config import AgentSettings
from railscope_agent.host import Clock, Json
from railscope_agent.host.recorded_host import RecordedHost
from railscope_agent.sampling.meter import ProcessMeter
from railscope_agent.service import Agent
from railscope_simulator import NodeSpec, simulate

SECONDS = 80
"""Longer than the period of probes, and than the governor needs to estimate the cost of a source."""
ANSWER_NS = 20_000
MAX_ANSWERS_PER_SECOND = 1_300


class CountingHost(RecordedHost):
    """A recorded node that counts the answers that each thread received; a batch is one."""

    def __init__(self, capture: Capture, clock: Clock, offset_ns: Callable[[], int]) -> None:
        super().__init__(capture, clock, offset_ns)
        self.answers: Counter[int] = Counter()

    def read(self, path: str) -> bytes:
        self.answers[threading.get_ident()] += 1
        return super().read(path)

    def names(self, path: str) -> list[str]:
        self.answers[threading.get_ident()] += 1
        return super().names(path)

    def resolve(self, path: str) -> str:
        self.answers[threading.get_ident()] += 1
        return super().resolve(path)

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        self.answers[threading.get_ident()] += 1
        return super().call(host_interface, function, *arguments)


class AnswerMeter(ProcessMeter):
    """Processor time of the agent, as a price for each answer."""

    def __init__(self, answers: Counter[int]) -> None:
        super().__init__()
        self._answers = answers

    def thread_cpu_ns(self) -> int:
        return self._answers[threading.get_ident()] * ANSWER_NS

    def process_cpu_ns(self) -> int:
        return sum(list(self._answers.values())) * ANSWER_NS

    def resident_bytes(self) -> int:
        return 50 * MIB

    def release_memory(self) -> None:
        """Do nothing: no memory is cached."""


@pytest.mark.thorough
async def test_default_settings_lengthen_no_period_of_eight_gpus() -> None:
    capture, clock = simulate(NodeSpec("n1"), SECONDS + 1, 1.0), ManualClock()
    began_ns = clock.now().boot_ns
    host = CountingHost(capture, clock, lambda: clock.now().boot_ns - began_ns)
    agent = Agent(AgentSettings(), host, "n1", meter=AnswerMeter(host.answers))
    statuses = agent.sampler.statuses
    task = asyncio.create_task(agent.sampler.run())
    try:
        for second in range(SECONDS + 1):
            if second:
                clock.advance(1.0)
            await clock.asleep(lanes_of(agent.sampler.sources))
            assert {name for name, status in statuses.items() if status.period_factor > 1} == set()
    finally:
        task.cancel()
        await asyncio.wait({task})
    assert statuses["gpu"].reads >= SECONDS / statuses["gpu"].source.period_seconds
    assert 0 < sum(host.answers.values()) <= MAX_ANSWERS_PER_SECOND * SECONDS
