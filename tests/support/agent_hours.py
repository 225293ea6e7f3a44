"""Hours of a simulated node in seconds: the metrics of a real agent at every scrape.

Agent and node share a clock that a test moves; no task waits for it in real time, except for a call that hangs.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Collection

from support.clock import NS, ManualClock
from support.machine import FakeHost
from support.sampling import lanes_of

from railscope.exposition import TextFormat
from railscope.frame import NodeTimestamp
from railscope_agent.config import AgentSettings, BudgetSettings, BurstSettings
from railscope_agent.host.recorded_host import RecordedHost
from railscope_agent.service import Agent
from railscope_simulator import NodeSpec, simulate

SCRAPE_SECONDS = 30
"""Twice the interval of deploy/prometheus: rules hold for it as well, with half the reads."""
UP_SECONDS = 1200
"""Uptime of nodes at the start: no rule treats them as just booted."""
RARELY_NS = 600 * NS
"""Interval between probes where no device appears or leaves: they take half of the CPU time."""
_SAMPLE = re.compile(r"(?P<name>\w+)(?:\{(?P<labels>.*)\})?")

Samples = list[str | None]


def node_of_1970(node: str, scenario: str = "training", **more: object) -> NodeSpec:
    """Return a node that booted in 1970, where promtool begins to count its time."""
    up_ns = UP_SECONDS * NS
    return NodeSpec(
        node,
        scenario=scenario,
        started_wall_ns=up_ns,
        started_boot_ns=up_ns,
        **more,  # type: ignore[arg-type]
    )


def _settings() -> AgentSettings:
    """The defaults, but without reads between scrapes, and without burst sampling."""
    return AgentSettings(
        period_seconds={
            source.name: SCRAPE_SECONDS
            for source in Agent(AgentSettings(), FakeHost()).sampler.sources
            if source.period_seconds < SCRAPE_SECONDS and source.name != "nic_burst"
        },
        bursts=BurstSettings(enabled=False),
        budget=BudgetSettings(cpu_ratio=0, memory_bytes=0),
    )


async def pages(
    spec: NodeSpec, minutes: int, first: int = 0, reprobe_ns: int = RARELY_NS
) -> AsyncIterator[str]:
    """Yield the agent's metrics at every scrape; the agent starts at the minute `first`."""
    seconds, skipped = minutes * 60, first * 60
    capture = simulate(spec, seconds, SCRAPE_SECONDS)
    clock = ManualClock(
        NodeTimestamp(spec.started_wall_ns + skipped * NS, spec.started_boot_ns + skipped * NS)
    )
    over = asyncio.Event()

    def offset_ns() -> int:
        # At last the recording starts again: reads of the hung driver return.
        return 0 if over.is_set() else clock.now().boot_ns - spec.started_boot_ns

    host = RecordedHost(capture, clock, offset_ns)
    agent = Agent(_settings(), host, spec.node, reprobe_ns=reprobe_ns)
    task = asyncio.create_task(agent.sampler.run())
    try:
        for scrape in range((seconds - skipped) // SCRAPE_SECONDS + 1):
            if scrape:
                clock.advance(SCRAPE_SECONDS)
            await clock.asleep(lanes_of(agent.sampler.sources))
            yield agent.endpoint.text(TextFormat.PROMETHEUS)
    finally:
        over.set()
        task.cancel()
        await asyncio.wait({task})


async def scraped_series(
    spec: NodeSpec,
    minutes: int,
    metrics: Collection[str],
    first: int = 0,
    reprobe_ns: int = RARELY_NS,
) -> dict[str, Samples]:
    """Return Prometheus' series of a node after some minutes: one sample per scrape.

    There are no samples before the minute `first`, in which the agent starts.
    """
    scrapes = minutes * 60 // SCRAPE_SECONDS + 1
    scrape = first * 60 // SCRAPE_SECONDS
    target = f'node="{spec.node}",job="railscope-agent",instance="{spec.node}:9469"'
    up: Samples = [None] * scrape + ["1"] * (scrapes - scrape)
    series = {f"up{{{target}}}": up}
    known: dict[str, Samples | None] = {}
    """Samples by the text before their values; None for metrics that are not requested."""
    async for page in pages(spec, minutes, first, reprobe_ns):
        for line in page.splitlines():
            text, _, value = line.rpartition(" ")
            if text not in known:
                name = _series_name(text, target, metrics)
                known[text] = series.setdefault(name, [None] * scrapes) if name else None
            if samples := known[text]:
                samples[scrape] = value
        scrape += 1
    assert scrape == scrapes
    return series


def _series_name(text: str, target: str, metrics: Collection[str]) -> str:
    """Return a series' name with the labels of its target; empty for a comment or another metric."""
    if text.partition(" ")[0].partition("{")[0] not in metrics:
        return ""
    sample = _SAMPLE.fullmatch(text)
    assert sample, text
    labels = f"{sample['labels']},{target}" if sample["labels"] else target
    return f"{sample['name']}{{{labels}}}"
