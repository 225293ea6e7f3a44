"""The budget: an expensive source is read less often, and metrics report its period."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.budgeted import CostedDevices, period_factor_by_source, run_budgeted, state_of
from support.clock import NS
from support.metering import MIB
from support.metric_samples import sample

from railscope_agent.config import BudgetSettings

POWER_ON_PAGE = sample("railscope_gpu_power_watts", gpu="GPU-0")


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
            # Two windows of ten seconds beyond the budget for each doubling.
            assert await budgeted.until(lambda: gpu.period_factor > 1, within=40) >= 10
            assert state_of(budgeted.page, "cpu") in {"within", "stretching"}
            await budgeted.until(lambda: gpu.period_factor == 8, within=120)
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
            await budgeted.seconds(5)
            page = budgeted.page
            assert period_factor_by_source(page) == {"gpu": 8, "rdma": 1, "agent": 1}
            assert state_of(page, "cpu") == "stretching"
            assert page[sample("railscope_source_period_seconds", source="gpu")] == 8
            used = page[sample("railscope_source_cpu_seconds_total", source="gpu")] - used_before
            assert used == pytest.approx(6 * 0.05, abs=0.051)

            machine.gpu_cpu_ms /= 100
            await budgeted.until(lambda: gpu.period_factor == 1, within=600)
            await budgeted.seconds(15)
            assert state_of(budgeted.page, "cpu") == "within"
    changes = of_gpu(logs)
    assert changes == [
        *((period, 2 * period, "processor time") for period in (1, 2, 4)),
        *((period, period / 2, "within budget") for period in (8, 4, 2)),
    ]


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


async def test_metrics_report_too_much_resident_memory() -> None:
    machine = CostedDevices()
    machine.meter.resident = 80 * MIB
    async with run_budgeted(machine) as budgeted:
        page = budgeted.page
        assert state_of(page, "memory") == "at_limit"
        assert page[sample("railscope_agent_resident_memory_bytes")] == 80 * MIB
        assert page[sample("railscope_agent_memory_budget_bytes")] == 64 * MIB
        assert set(period_factor_by_source(page).values()) == {1}, "periods do not help memory"
