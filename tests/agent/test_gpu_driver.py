"""The driver and its GPUs change under a running agent: reload, reset, hot-unplug, mismatch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support.gpus import add_gpus, host_with_gpus, of_gpu
from support.machine import FakeHost
from support.reading import at_period, readings
from support.sampling import RunningSampler, run_sampler

from railscope.catalog.gpu_health import GPU_CHANGE_EVENT
from railscope.reading import Absent, Reading
from railscope_agent.gpus.inventory import GpuInventory
from railscope_agent.host import NvmlError
from railscope_agent.sampling.source import Source
from railscope_agent.sampling.status import FAILED, OK
from railscope_agent.sources.nvidia.activity import GpuActivitySource
from railscope_agent.sources.nvidia.gpu_devices import GpuSource
from railscope_agent.sources.nvidia.nvlink import NvLinkSource

COUNT = "nvml.nvmlDeviceGetCount()"
ENERGY = "railscope_gpu_energy_joules_total"
POWER = "railscope_gpu_power_watts"


def sources() -> list[Source]:
    shared = GpuInventory()
    return [
        GpuSource.load(gpus=shared),
        GpuActivitySource(gpus=shared),
        at_period(GpuSource.health(shared), 1.0),
    ]


def last(run: RunningSampler, stream: str, metric: str) -> dict[str, Reading]:
    found = readings(run.of(stream)[-1])
    return {key[0]: reading for (name, key), reading in found.items() if name == metric}


def changes(run: RunningSampler) -> list[Mapping[str, str]]:
    events = [event for frame in run.frames for event in frame.events]
    return [event.facts for event in events if event.event_class is GPU_CHANGE_EVENT]


def fail(host: FakeHost, keys: list[str], code: int) -> dict[str, Any]:
    """Make these calls fail; return their previous answers."""
    before = {key: host.calls[key] for key in keys}
    host.calls |= dict.fromkeys(before, NvmlError(code))
    return before


async def test_a_driver_reload_with_another_version() -> None:
    """Calls fail during the reload; then all sources probe again and counters restart."""
    host = host_with_gpus(2)
    host.calls["nvml.nvmlDeviceGetPowerUsage(0)"] = NvmlError(3)
    async with run_sampler(host, sources()) as run:
        assert last(run, "gpu", POWER)["GPU-0"] is Absent.UNSUPPORTED
        before = fail(host, [key for key in host.calls if key.startswith("nvml.")], 9)
        await run.step()
        assert last(run, "gpu", ENERGY) == {"GPU-0": Absent.ERROR, "GPU-1": Absent.ERROR}
        await run.step(5)
        assert run.sampler.statuses["gpu"].state == FAILED
        assert "9" in run.sampler.statuses["gpu"].problem
        host.calls |= before
        host.calls["nvml.nvmlSystemGetDriverVersion()"] = "595.80"
        host.calls["nvml.nvmlDeviceGetPowerUsage(0)"] = 71_000
        host.calls["nvml.nvmlDeviceGetFieldValues(0,83)"] = [0, 12]
        await run.step()
        assert last(run, "gpu", POWER)["GPU-0"] == 71_000
        assert last(run, "gpu", ENERGY)["GPU-0"] == 12
        assert {status.state for status in run.sampler.statuses.values()} == {OK}
        assert [facts["after"] for facts in changes(run)] == ["driver: 590.48.01 -> 595.80"] * 2


async def test_a_gpu_reset_takes_one_gpu_away_for_a_while() -> None:
    host = host_with_gpus(2)
    async with run_sampler(host, sources()) as run:
        before = fail(host, of_gpu(host, 1), 15)
        await run.step()
        assert last(run, "gpu", ENERGY) == {"GPU-0": 10**12, "GPU-1": Absent.GONE}
        assert last(run, "gpu_activity", "railscope_gpu_sm_activity_ratio")["GPU-0"] == 200_000
        host.calls |= before
        host.calls["nvml.nvmlDeviceGetFieldValues(1,83)"] = [0, 5]
        await run.step(5)
        assert last(run, "gpu", ENERGY) == {"GPU-0": 10**12, "GPU-1": 5}
        assert changes(run) == []


async def test_a_gpu_that_is_unplugged_and_another_that_is_plugged_in() -> None:
    host = host_with_gpus(3)
    async with run_sampler(host, sources()) as run:
        fail(host, of_gpu(host, 2), 15)
        host.calls[COUNT] = 2
        await run.step()
        assert last(run, "gpu", POWER)["GPU-2"] is Absent.GONE
        await run.step(5)
        assert set(last(run, "gpu", POWER)) == {"GPU-0", "GPU-1"}
        add_gpus(host, 3)
        host.calls["nvml.nvmlDeviceGetUUID(2)"] = "GPU-new"
        await run.step(60)
        assert set(last(run, "gpu", POWER)) == {"GPU-0", "GPU-1", "GPU-new"}
        assert set(last(run, "gpu_activity", "railscope_gpu_sm_activity_ratio")) == {
            "GPU-0",
            "GPU-1",
            "GPU-new",
        }
        assert [(f["change"], f["gpu"]) for f in changes(run)] == [
            ("removed", "GPU-2"),
            ("added", "GPU-new"),
        ]


async def test_a_gpu_that_runs_into_timeouts_is_still_there() -> None:
    host = host_with_gpus(2)
    async with run_sampler(host, sources()) as run:
        before = fail(host, of_gpu(host, 1), 10)
        await run.step()
        await run.step(61)
        assert last(run, "gpu", POWER) == {"GPU-0": 500_000, "GPU-1": Absent.TIMEOUT}
        host.calls |= before
        await run.step()
        assert last(run, "gpu", POWER)["GPU-1"] == 500_001
        assert changes(run) == []


async def test_a_library_that_does_not_fit_the_driver_is_named_and_tried_again() -> None:
    host = host_with_gpus(1)
    before = fail(host, [key for key in host.calls if key.startswith("nvml.")], 18)
    async with run_sampler(host, sources()) as run:
        status = run.sampler.statuses["gpu"]
        assert status.state == FAILED
        assert status.problem == "NVML error 18"
        (finding,) = status.findings
        assert "updated" in finding.remedy
        host.calls |= before
        await run.step()
        assert {status.state for status in run.sampler.statuses.values()} == {OK}


async def test_a_driver_that_rejects_is_tried_once_a_tick_and_not_by_every_source() -> None:
    host = host_with_gpus(1)
    host.calls[COUNT] = NvmlError(9, "Driver Not Loaded")
    async with run_sampler(host, sources()) as run:
        assert host.asked[COUNT] == 1
        await run.step()
        assert host.asked[COUNT] == 2
        assert {status.state for status in run.sampler.statuses.values()} == {FAILED}


async def test_a_lost_permission_affects_only_readings_that_need_it() -> None:
    host = host_with_gpus(1)
    async with run_sampler(host, sources()) as run:
        before = fail(host, ["nvml.nvmlDeviceGetPowerUsage(0)"], 4)
        await run.step()
        assert last(run, "gpu", POWER)["GPU-0"] is Absent.DENIED
        assert last(run, "gpu", ENERGY)["GPU-0"] == 10**12
        host.calls |= before
        await run.step()
        assert last(run, "gpu", POWER)["GPU-0"] == 500_000


async def test_one_change_is_seen_by_every_source_of_the_driver() -> None:
    """Only the load is probed in time; the others follow at their next read."""
    host = host_with_gpus(1)
    shared = GpuInventory()
    slow = NvLinkSource.traffic(shared)
    async with run_sampler(host, [GpuSource.load(gpus=shared), slow]) as run:
        assert run.of("nvlink") == []
        host.calls["nvml.nvmlDeviceGetFieldValues(0,91)"] = [0, 1]
        host.calls["nvml.nvmlDeviceGetFieldValues(0,164:0)"] = [0, 26_562]
        shared.record_change()
        await run.step(60)
        assert len(run.of("nvlink")) == 1
