"""Memory beyond the budget is released or reported, and the real memory meter."""

from __future__ import annotations

import resource
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from support.budgeted import CostedDevices, period_factor_by_source, run_budgeted, state_of
from support.machine import FakeHost
from support.metering import MIB, FakeMeter
from support.metric_samples import sample
from support.rdma_nics import add_nic
from support.reading import ORIGIN

from railscope.exposition import TextFormat
from railscope_agent.config import AgentSettings
from railscope_agent.sampling.budget_keeper import MEMORY_POLL_NS, RELEASE_EVERY_NS, MemoryKeeper
from railscope_agent.sampling.governor import AT_LIMIT, WITHIN
from railscope_agent.sampling.meter import ProcessMeter
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.service import Agent
from railscope_agent.sources.rdma import RdmaSource


def memory(meter: FakeMeter, dropped: list[int]) -> MemoryKeeper:
    def release_memory() -> None:
        dropped.append(meter.resident)
        meter.release_memory()

    return MemoryKeeper(64 * MIB, meter.resident_bytes, release_memory)


def test_memory_within_its_budget_is_left_alone() -> None:
    dropped: list[int] = []
    keeper = memory(FakeMeter(64 * MIB), dropped)
    for poll in range(100):
        keeper.update(poll * MEMORY_POLL_NS)
    assert (keeper.state, dropped) == (WITHIN, [])


def test_too_much_memory_releases_spare_memory() -> None:
    dropped: list[int] = []
    meter = FakeMeter(70 * MIB)
    meter.spare = 10 * MIB
    keeper = memory(meter, dropped)
    with capture_logs() as logs:
        for poll in range(10):
            keeper.update(poll * MEMORY_POLL_NS)
    assert (keeper.state, dropped) == (WITHIN, [70 * MIB])
    assert [(e["event"], e["resident_bytes"]) for e in logs] == [("memory_released", 60 * MIB)]


def test_memory_that_cannot_be_released_is_reported_and_retried_rarely() -> None:
    dropped: list[int] = []
    meter = FakeMeter(70 * MIB)
    keeper = memory(meter, dropped)
    with capture_logs() as logs:
        for poll in range(2 * RELEASE_EVERY_NS // MEMORY_POLL_NS):
            keeper.update(poll * MEMORY_POLL_NS)
        assert (keeper.state, len(dropped)) == (AT_LIMIT, 2)
        meter.spare = 10 * MIB
        keeper.update(2 * RELEASE_EVERY_NS)
        assert keeper.state == WITHIN
    events = [entry["event"] for entry in logs]
    assert events.count("memory_budget_exceeded") == events.count("memory_budget_restored") == 1


def test_memory_that_cannot_be_measured_changes_nothing() -> None:
    dropped: list[int] = []
    meter = FakeMeter(70 * MIB)
    meter.unreadable = PermissionError(13, "Permission denied")
    keeper = memory(meter, dropped)
    keeper.update(0)
    assert (keeper.state, dropped) == (WITHIN, [])


async def test_metrics_report_too_much_resident_memory() -> None:
    machine = CostedDevices()
    machine.meter.resident = 80 * MIB
    async with run_budgeted(machine) as budgeted:
        page = budgeted.page
        assert state_of(page, "memory") == "at_limit"
        assert state_of(page, "cpu") == "within"
        assert page[sample("railscope_agent_resident_memory_bytes")] == 80 * MIB
        assert page[sample("railscope_agent_memory_budget_bytes")] == 64 * MIB
        assert set(period_factor_by_source(page).values()) == {1}, "periods do not help memory"


def test_an_agent_over_its_memory_drops_its_caches() -> None:
    host = FakeHost()
    add_nic(host)
    agent = Agent(AgentSettings(), host, "node-1", meter=FakeMeter(100 * MIB))
    status = agent.sampler.statuses["rdma"]
    status.frame = SourceReader(RdmaSource(), host, ORIGIN).run().frame
    before = agent.endpoint.text(TextFormat.PROMETHEUS)
    agent.keeper.update(host.clock.now().boot_ns)
    assert agent.meter.times_given_back == 1  # type: ignore[attr-defined] # the fake of above
    assert agent.endpoint.text(TextFormat.PROMETHEUS) == before


# The meter ----------------------------------------------------------------------------------------


def test_the_real_meter_counts_the_work_of_its_own_thread() -> None:
    meter = ProcessMeter()
    thread_ns, process_ns = meter.thread_cpu_ns(), meter.process_cpu_ns()
    others: list[int] = []

    def work() -> None:
        while meter.thread_cpu_ns() < 20 * 1_000_000:
            sum(range(1000))
        others.append(meter.thread_cpu_ns())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert others[0] >= 20 * 1_000_000
    assert meter.process_cpu_ns() - process_ns >= 20 * 1_000_000
    assert meter.thread_cpu_ns() - thread_ns < 20 * 1_000_000
    assert MIB < meter.resident_bytes() < 1 << 40
    meter.release_memory()


@pytest.mark.parametrize("factor", [1, 4, 16])
def test_memory_is_counted_in_pages_of_the_kernel(factor: int) -> None:
    page_bytes = resource.getpagesize()
    ratio = ProcessMeter(page_bytes * factor).resident_bytes() / ProcessMeter().resident_bytes()
    assert ratio == pytest.approx(factor, rel=0.1)
    status = Path("/proc/self/status").read_text()
    resident = int(status.partition("VmRSS:")[2].split()[0]) * 1024
    assert ProcessMeter().resident_bytes() == pytest.approx(resident, rel=0.1)
