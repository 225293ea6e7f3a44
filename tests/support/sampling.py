"""A sampler on a manual clock: every step is one period, done when all sources sleep again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from support.clock import ManualClock
from support.machine import FakeHost
from support.reading import ORIGIN, at_period

from railscope.frame import Frame
from railscope_agent.commands.read_once import CaptureWalk
from railscope_agent.config import AgentSettings
from railscope_agent.machine_sources import machine_sources
from railscope_agent.sampling.sampler import ReadLimits, Sampler
from railscope_agent.sampling.source import Source
from railscope_agent.service import Agent

COLLECTIVE_SOURCES = frozenset(
    [
        "collective_rank",
        "flight_recorder",
        "gpu_sharing",
        "nccl_rank",
        "nccl_ras",
        "tenancy",
    ]
)
"""Sources of collectives, and of the GPUs and claims that they name."""


PATIENCE_SECONDS = 60


@dataclass
class RunningSampler:
    """A running sampler and its published frames."""

    sampler: Sampler
    clock: ManualClock
    frames: list[Frame] = field(default_factory=list)

    def of(self, name: str) -> list[Frame]:
        """Return the frames of one source."""
        return [frame for frame in self.frames if frame.schema.stream == name]

    async def step(self, seconds: float = 1.0) -> None:
        """Let time pass, and wait until all due work is done."""
        self.clock.advance(seconds)
        await self.clock.asleep(
            lanes_of(status.source for status in self.sampler.statuses.values())
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        """Step in seconds until a condition holds."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                await self.step()


def lanes_of(sources: Iterable[Source]) -> int:
    """Return the number of lanes: each sleeps until its next read."""
    return len({source.lane for source in sources})


@asynccontextmanager
async def run_sampler(
    host: FakeHost,
    sources: Sequence[Source],
    deadline_seconds: float = PATIENCE_SECONDS,
    deadline_periods: float = 0,
    prepare: Callable[[Sampler], None] = lambda _: None,
) -> AsyncIterator[RunningSampler]:
    """Run a sampler; the first read of every source is done when the block begins."""
    frames: list[Frame] = []
    limits = ReadLimits(deadline_periods, deadline_seconds)
    sampler = Sampler(host, ORIGIN, sources, frames.append, limits)
    prepare(sampler)
    task = asyncio.create_task(sampler.run())
    try:
        await host.clock.asleep(lanes_of(sources))
        yield RunningSampler(sampler, host.clock, frames)
    finally:
        task.cancel()
        await asyncio.wait({task}, timeout=PATIENCE_SECONDS)
        assert task.done(), "the sampler does not stop"
        if not task.cancelled():
            task.result()


def source_of(name: str) -> Source:
    """Return the source of a name that an agent with default settings has, read every second."""
    every = machine_sources(AgentSettings(node="node-1"))
    return at_period(next(source for source in every if source.name == name), 1.0)


def read_sources(walk: CaptureWalk, agent: Agent, names: Container[str]) -> None:
    """Have an agent read some sources at each moment: to probe all of them takes most of the time of a test."""
    agent.sampler.sources = [s for s in agent.sampler.sources if s.name in names]
    asyncio.run(walk.read(agent))
