"""Memory beyond the budget is released or reported, and the real memory meter."""

from __future__ import annotations

import threading

from support.budgeted import CostedDevices, period_factor_by_source, run_budgeted, state_of
from support.metering import MIB, FakeMeter
from support.metric_samples import sample

from railscope_agent.sampling.budget_keeper import MemoryKeeper
from railscope_agent.sampling.meter import ProcessMeter


def memory(meter: FakeMeter, dropped: list[int]) -> MemoryKeeper:
    def release_memory() -> None:
        dropped.append(meter.resident)
        meter.release_memory()

    return MemoryKeeper(64 * MIB, meter.resident_bytes, release_memory)


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
