"""A sampler within a budget, over a GPU and a NIC with read costs set by the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from support.clock import NS
from support.gpus import add_gpus
from support.machine import FakeHost
from support.metering import FakeMeter
from support.metric_samples import Sample, samples
from support.rdma_nics import INFINIBAND, add_nic
from support.sampling import RunningSampler, run_sampler

from railscope.exposition import TextFormat
from railscope.frame import Event
from railscope_agent.config import BudgetSettings
from railscope_agent.endpoint.metrics_endpoint import MetricsEndpoint
from railscope_agent.sampling.budget_keeper import BudgetKeeper
from railscope_agent.sampling.sampler import Sampler
from railscope_agent.sampling.shipping_stats import ShippingStats
from railscope_agent.sampling.status import SourceState
from railscope_agent.sources.agent_metrics import SelfMetricsSource
from railscope_agent.sources.nvidia.gpu_devices import GpuSource
from railscope_agent.sources.rdma import RdmaSource

POWER = "nvml.nvmlDeviceGetPowerUsage(0)"
COUNTER = f"{INFINIBAND}/mlx5_0/ports/1/counters/port_xmit_packets"
WARM_UP_SECONDS = 61


@dataclass
class CostedDevices:
    """A GPU and a NIC with read costs set by the test."""

    host: FakeHost = field(default_factory=FakeHost)
    meter: FakeMeter = field(default_factory=FakeMeter)
    gpu_cpu_ms: float = 0.5
    gpu_wall_seconds: float = 0.0
    nic_cpu_ms: float = 1.0

    def __post_init__(self) -> None:
        add_gpus(self.host, 1)
        add_nic(self.host)
        power, packets = self.host.calls[POWER], self.host.files[COUNTER]

        def ask_power() -> int:
            self.meter.spend(self.gpu_cpu_ms)
            if self.gpu_wall_seconds:
                self.host.clock.advance(self.gpu_wall_seconds)
            return int(power)

        def count_packets() -> str:
            self.meter.spend(self.nic_cpu_ms)
            return str(packets)

        self.host.calls[POWER] = ask_power
        self.host.files[COUNTER] = count_packets


@dataclass
class BudgetedSampler:
    """A sampler with a keeper, stepped from second to second."""

    run: RunningSampler
    keeper: BudgetKeeper

    @property
    def page(self) -> dict[Sample, float]:
        """Return the metrics that a scrape would return now."""
        clock, statuses = self.run.clock, self.run.sampler.statuses
        page = MetricsEndpoint("node-1", statuses.values, lambda: clock.now().boot_ns, "")
        return samples(page.text(TextFormat.PROMETHEUS))

    def status(self, name: str) -> SourceState:
        return self.run.sampler.statuses[name]

    async def second(self) -> None:
        """Advance to the next whole second."""
        await self.run.step(1 - self.run.clock.now().boot_ns % NS / NS)

    async def seconds(self, count: int) -> None:
        for _ in range(count):
            await self.second()

    async def until(self, condition: Callable[[], bool], *, within: int) -> int:
        """Return the seconds until a condition holds; it must hold within a limit."""
        for passed in range(within):
            if condition():
                return passed
            await self.second()
        pytest.fail(f"not so within {within} s: {self.page}")


@asynccontextmanager
async def run_budgeted(
    machine: CostedDevices, budget: BudgetSettings | None = None
) -> AsyncIterator[BudgetedSampler]:
    """Run GPU, NIC and the agent's own state, sampled within a budget."""
    made: list[Sampler] = []

    def take_events() -> list[Event]:
        return made[0].take_events()

    def prepare(sampler: Sampler) -> None:
        sampler.keeper = keeper
        made.append(sampler)

    own = SelfMetricsSource(
        lambda: made[0].statuses, ShippingStats(), take_events, keeper=lambda: keeper
    )
    sources = [GpuSource.load(), RdmaSource(), own]
    keeper = BudgetKeeper(
        budget or BudgetSettings(cpu_ratio=0.01, memory_bytes=64 << 20), sources, machine.meter
    )
    async with run_sampler(machine.host, sources, prepare=prepare) as run:
        one = BudgetedSampler(run, keeper)
        await one.seconds(WARM_UP_SECONDS)
        yield one


def period_factor_by_source(page: dict[Sample, float]) -> dict[str, float]:
    name = "railscope_source_stretch_ratio"
    return {dict(labels)["source"]: value for (n, labels), value in page.items() if n == name}


def state_of(page: dict[Sample, float], resource: str) -> str:
    (state,) = [
        dict(labels)["state"]
        for (name, labels), value in page.items()
        if name == "railscope_governor_state" and value and dict(labels)["resource"] == resource
    ]
    return state
