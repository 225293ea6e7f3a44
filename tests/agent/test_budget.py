"""The budget: an expensive source is read less often, and metrics report its period."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.budgeted import POWER, CostedDevices, period_factor_by_source, run_budgeted, state_of
from support.clock import NS
from support.gpus import add_gpus
from support.machine import FakeHost
from support.metering import MIB
from support.metric_samples import sample
from support.reading import ORIGIN, at_period
from support.sampling import run_sampler

from railscope.catalog.agent import GOVERNOR_EVENT
from railscope.http_server import HttpServerRequest
from railscope.settings import SettingsError, load
from railscope_agent.config import PREFIX, AgentSettings, BudgetSettings
from railscope_agent.endpoint.metrics_endpoint import MetricsEndpoint
from railscope_agent.sampling.budget_keeper import BudgetKeeper
from railscope_agent.sampling.hang_guard import MAX_HUNG_CALLS, HungCall
from railscope_agent.sampling.sampler import ReadLimits, Sampler
from railscope_agent.sampling.source import LONGEST_PERIOD_SECONDS, longest_period_seconds
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sampling.status import FAILED, OK, SourceState
from railscope_agent.service import Agent
from railscope_agent.sources.node import HostSource
from railscope_agent.sources.nvidia.gpu_devices import GpuSource
from railscope_agent.sources.rdma import RdmaSource
from railscope_agent.streams.kernel_log import KernelLogStream

POWER_ON_PAGE = sample("railscope_gpu_power_watts", gpu="GPU-0")
SHORT = 0.3


def of_gpu(logs: Sequence[Mapping[str, Any]]) -> list[tuple[float, float, str]]:
    """Return every logged change of period, all of which must be of the GPU source."""
    changes = [entry for entry in logs if entry["event"] == "period_changed"]
    assert {entry["source"] for entry in changes} <= {"gpu"}
    return [(entry["before_seconds"], entry["after_seconds"], entry["reason"]) for entry in changes]


async def test_a_source_that_becomes_a_hundred_times_as_expensive_is_read_less_often() -> None:
    machine = CostedDevices()
    with capture_logs() as logs:
        async with run_budgeted(machine) as budgeted:
            gpu, rdma = budgeted.status("gpu"), budgeted.status("rdma")
            page = budgeted.page
            assert period_factor_by_source(page) == {"gpu": 1, "rdma": 1, "agent": 1}
            assert state_of(page, "cpu") == "within"
            assert page[sample("railscope_agent_cpu_use_ratio")] == pytest.approx(0.0015, abs=1e-4)
            assert page[sample("railscope_agent_cpu_budget_ratio")] == 0.01
            assert page[sample("railscope_source_period_seconds", source="gpu")] == 1

            machine.gpu_cpu_ms *= 100
            assert await budgeted.until(lambda: gpu.period_factor > 1, within=10) <= 4
            used_before = gpu.cpu_ns / NS
            rdma_reads, gpu_reads, frames = rdma.reads, gpu.reads, len(budgeted.run.of("gpu"))
            for _ in range(48):
                await budgeted.second()
                assert POWER_ON_PAGE in budgeted.page, (
                    "what is read less often is not stale between"
                )
            assert (rdma.reads - rdma_reads, rdma.missed_ticks) == (48, 0)
            assert (gpu.reads - gpu_reads, gpu.missed_ticks) == (6, 0)
            instants = [frame.timestamp.boot_ns for frame in budgeted.run.of("gpu")[frames:]]
            assert {instant % (8 * NS) for instant in instants} == {0}, (
                "on the grid: no new wake-up"
            )
            # The agent's own state may have been read before the GPU in the second of its last read.
            await budgeted.second()
            page = budgeted.page
            assert period_factor_by_source(page) == {"gpu": 8, "rdma": 1, "agent": 1}
            assert state_of(page, "cpu") == "stretching"
            assert page[sample("railscope_source_period_seconds", source="gpu")] == 8
            used = page[sample("railscope_source_cpu_seconds_total", source="gpu")] - used_before
            assert used == pytest.approx(6 * 0.05)

            machine.gpu_cpu_ms /= 100
            await budgeted.until(lambda: gpu.period_factor == 1, within=600)
            await budgeted.seconds(2)
            assert state_of(budgeted.page, "cpu") == "within"
    changes = of_gpu(logs)
    assert changes[0] == (1, 8, "processor time")
    assert {why for _, _, why in changes[1:]} == {"within budget"}
    assert changes[-1][1] == 1


async def test_a_source_that_only_waits_is_read_less_often() -> None:
    """A slow firmware: no processor time, but other sources of the thread wait."""
    machine = CostedDevices()
    with capture_logs() as logs:
        async with run_budgeted(machine) as budgeted:
            gpu, rdma = budgeted.status("gpu"), budgeted.status("rdma")
            machine.gpu_wall_seconds = 0.9
            await budgeted.until(lambda: gpu.period_factor == 4, within=10)
            assert (rdma.state, rdma.period_factor, rdma.missed_ticks) == (OK, 1, 0)
            await budgeted.seconds(2)
            page = budgeted.page
            assert period_factor_by_source(page) == {"gpu": 4, "rdma": 1, "agent": 1}
            assert state_of(page, "cpu") == "stretching"
            machine.gpu_wall_seconds = 0.0
            await budgeted.until(lambda: gpu.period_factor == 1, within=600)
    changes = of_gpu(logs)
    assert changes[0] == (1, 4, "blocks its thread")
    assert changes[-1][1:] == (1, "within budget")


async def test_the_change_travels_as_an_event() -> None:
    machine = CostedDevices()
    async with run_budgeted(machine) as budgeted:
        machine.gpu_cpu_ms *= 100
        await budgeted.until(lambda: budgeted.status("gpu").period_factor > 1, within=10)
        await budgeted.seconds(2)
        events = [event for frame in budgeted.run.of("agent") for event in frame.events]
        (event,) = [event for event in events if event.event_class is GOVERNOR_EVENT]
        assert event.entity.key == ("gpu",)
        assert event.facts == {"before": "1 s", "after": "8 s", "why": "processor time"}


async def test_a_budget_that_periods_cannot_keep_is_reported_as_exceeded() -> None:
    machine = CostedDevices(gpu_cpu_ms=2.0)
    async with run_budgeted(machine) as budgeted:
        machine.gpu_cpu_ms = 400.0
        await budgeted.until(lambda: budgeted.status("gpu").period_factor > 1, within=10)
        await budgeted.seconds(70)
        page = budgeted.page
        assert period_factor_by_source(page) == {"gpu": 8, "rdma": 1, "agent": 1}
        assert state_of(page, "cpu") == "at_limit"
        use = page[sample("railscope_agent_cpu_use_ratio")]
        assert use > page[sample("railscope_agent_cpu_budget_ratio")]


async def test_without_a_budget_every_source_keeps_its_period() -> None:
    machine = CostedDevices(gpu_cpu_ms=300.0)
    async with run_budgeted(machine, BudgetSettings(cpu_ratio=0, memory_bytes=0)) as budgeted:
        page = budgeted.page
        assert set(period_factor_by_source(page).values()) == {1}
        names = {name for name, _ in page}
        assert "railscope_agent_cpu_use_ratio" in names
        assert not names & {
            "railscope_governor_state",
            "railscope_agent_cpu_budget_ratio",
            "railscope_agent_memory_budget_bytes",
        }


class SlowCall:
    """A call that exceeds its deadline and returns when the test permits it."""

    def __init__(self, answer: int) -> None:
        self.answer = answer
        self.entered = 0
        self.permits = threading.Semaphore(0)

    def __call__(self) -> int:
        self.entered += 1
        assert self.permits.acquire(timeout=60), "the test forgot to let the call return"
        return self.answer


async def test_reads_that_come_too_late_lengthen_the_period_until_they_are_in_time() -> None:
    """A deadline is at least a period: a slow source that answers is read again.

    The same holds if no further thread may be abandoned to a hung call.
    """
    machine = CostedDevices()
    host, slow = machine.host, SlowCall(500_000)
    quick = host.calls[POWER]
    sources = [GpuSource.load(), RdmaSource()]
    keeper = BudgetKeeper(
        BudgetSettings(cpu_ratio=0.01, memory_bytes=64 << 20), sources, machine.meter
    )

    def prepare(sampler: Sampler) -> None:
        sampler.keeper = keeper

    async with run_sampler(host, sources, SHORT, prepare=prepare) as run:
        gpu, rdma = run.sampler.statuses["gpu"], run.sampler.statuses["rdma"]
        await run.step()
        await run.step()
        host.calls[POWER] = slow
        run.sampler.hung.by_device |= {
            f"net/eth{place}": HungCall(f"net/eth{place}", "ethtool.statistics", 0)
            for place in range(MAX_HUNG_CALLS)
        }

        async def two_second_call() -> None:
            entered = slow.entered
            await run.until(lambda: slow.entered > entered)
            assert (gpu.state, gpu.is_overdue) == (FAILED, True)
            await run.step()
            slow.permits.release()

        for _ in range(5):
            if gpu.period_factor > 1:
                break
            await two_second_call()
        host.calls[POWER] = quick
        slow.permits.release(8)
        await run.until(lambda: gpu.period_factor == 8)
        await run.until(lambda: gpu.state == OK)
        assert (rdma.state, rdma.period_factor) == (OK, 1)
        assert run.sampler.limits.deadline_seconds(gpu) == SHORT
        assert ReadLimits(1.0, 1.0).deadline_seconds(gpu) == 8


def test_a_source_read_less_often_stays_fresh_for_as_many_periods() -> None:
    host = FakeHost()
    add_gpus(host, 1)
    status = SourceState(GpuSource.load())
    status.frame = SourceReader(status.source, host, ORIGIN).run().frame
    read_ns = host.clock.now().boot_ns
    assert status.fresh_frame(read_ns + 5 * NS)
    assert not status.fresh_frame(read_ns + 6 * NS)
    status.period_factor = 8
    assert status.fresh_frame(read_ns + 24 * NS)
    assert not status.fresh_frame(read_ns + 25 * NS)


def test_sources_state_their_longest_period() -> None:
    agent = Agent(AgentSettings(), FakeHost(), "node-1")
    longest = {source.name: longest_period_seconds(source) for source in agent.sampler.sources}
    assert longest["kernel"] == longest["gpu_event"] == 5
    assert longest["gpu"] == longest["rdma"] == 10
    assert longest["gpu_activity"] == longest["nic"] == longest["gpu_verdict"] == 20
    assert longest["agent"] == 5
    assert longest["host"] == LONGEST_PERIOD_SECONDS
    assert longest_period_seconds(at_period(KernelLogStream(), 30.0)) == 30, "as configured"
    assert longest_period_seconds(at_period(HostSource(), 600.0)) == 600


def test_the_budget_is_a_setting_like_any_other(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text("[budget]\ncpu_ratio = 0.02\nmemory_bytes = 50_000_000\n")
    environment = {"RAILSCOPE_AGENT_BUDGET__CPU_RATIO": "0.03"}
    loaded = load(AgentSettings, file=file, environment=environment, prefix=PREFIX)
    agent = Agent(loaded, FakeHost(), "node-1")
    assert agent.sampler.keeper is agent.keeper
    assert agent.keeper.governor.cpu_ratio == 0.03
    assert agent.keeper.memory.budget_bytes == 50_000_000
    assert set(agent.keeper.governor.loads) == set(agent.sampler.statuses)
    assert AgentSettings().budget == BudgetSettings(cpu_ratio=0.03, memory_bytes=96 * MIB)
    with pytest.raises(SettingsError, match=r"invalid cpu_ratio in the command line \[budget\]"):
        load(
            AgentSettings, file=None, environment={}, prefix=PREFIX, flags={"budget.cpu_ratio": -1}
        )


# The landing page ---------------------------------------------------------------------------------


async def test_the_landing_page_lists_lengthened_periods() -> None:
    machine = CostedDevices()
    async with run_budgeted(machine) as budgeted:
        machine.gpu_cpu_ms *= 100
        await budgeted.until(lambda: budgeted.status("gpu").period_factor > 1, within=10)
        statuses = budgeted.run.sampler.statuses
        page = MetricsEndpoint("n", statuses.values, lambda: 0, "", budgeted.keeper.describe_use)
        body = page.respond(HttpServerRequest("/", {})).body.decode()
    assert "<b>8 s</b>, not 1 s" in body
    assert "budget 1 %: stretching" in body
