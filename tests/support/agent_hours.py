"""Hours of a simulated server in seconds: what a real agent has on its page all the while.

Agent and server share a clock that a test moves; nobody waits for it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Collection

import msgspec
from support.clock import NS, ManualClock
from support.sampling import families

from agent.config import AgentSettings, Budget, Bursts, Periods
from agent.host.recorded import RecordedHost
from agent.service import Agent
from railscope.exposition import Format
from railscope.frame import Instant
from railscope.simulator import NodeSpec, simulate

SCRAPE_SECONDS = 15
UP_SECONDS = 1200
"""How long servers have been up when we first look: no rule thinks that they have just booted."""
_SAMPLE = re.compile(r"(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")

Samples = list[str | None]


def server(node: str, scenario: str = "training", **more: object) -> NodeSpec:
    """A server that booted in 1970: there, promtool begins to count its time."""
    up_ns = UP_SECONDS * NS
    return NodeSpec(
        node, scenario=scenario, started_wall_ns=up_ns, started_boot_ns=up_ns,
        **more,  # type: ignore[arg-type]
    )  # fmt: skip


def _settings() -> AgentSettings:
    """As by default, but nothing is read between scrapes, and nothing in the fast lane."""
    periods = msgspec.structs.asdict(Periods())
    return AgentSettings(
        periods=Periods(**{name: max(one, float(SCRAPE_SECONDS)) for name, one in periods.items()}),
        bursts=Bursts(enabled=False),
        budget=Budget(cpu_ratio=0, memory_bytes=0),
        deadline_seconds=5,
    )


async def pages(spec: NodeSpec, minutes: int) -> AsyncIterator[str]:
    """The agent's page at every scrape."""
    seconds = minutes * 60
    capture = simulate(spec, seconds, SCRAPE_SECONDS)
    clock = ManualClock(Instant(spec.started_wall_ns, spec.started_boot_ns))
    over = asyncio.Event()

    def offset_ns() -> int:
        # At last the recording starts over: what waits for a driver that is stuck comes back.
        return 0 if over.is_set() else clock.now().boot_ns - spec.started_boot_ns

    host = RecordedHost(capture, clock, offset_ns)
    agent = Agent(_settings(), host, spec.node)
    task = asyncio.create_task(agent.sampler.run())
    try:
        for scrape in range(seconds // SCRAPE_SECONDS + 1):
            if scrape:
                clock.advance(SCRAPE_SECONDS)
            await clock.asleep(families(agent.sampler.sources))
            yield agent.page.text(Format.PROMETHEUS)
    finally:
        over.set()
        task.cancel()
        await asyncio.wait({task})


async def watched(spec: NodeSpec, minutes: int, metrics: Collection[str]) -> dict[str, Samples]:
    """The series that Prometheus has of a server after some minutes: one sample a scrape."""
    scrapes = minutes * 60 // SCRAPE_SECONDS + 1
    target = f'node="{spec.node}",job="railscope-agent",instance="{spec.node}:9469"'
    series: dict[str, Samples] = {f"up{{{target}}}": ["1"] * scrapes}
    scrape = 0
    async for page in pages(spec, minutes):
        for line in page.splitlines():
            sample = _SAMPLE.fullmatch(line)
            if sample and sample["name"] in metrics:
                labels = f"{sample['labels']},{target}" if sample["labels"] else target
                samples = series.setdefault(f"{sample['name']}{{{labels}}}", [None] * scrapes)
                samples[scrape] = sample["value"]
        scrape += 1
    assert scrape == scrapes
    return series
