"""GPM: the activity of SMs, pipes and links, where supported and permitted."""

from __future__ import annotations

from support.gpus import host_with_gpus
from support.machine import FakeHost
from support.reading import numbers, read_once, readings
from support.sampling import run_sampler

from railscope.reading import Absent
from railscope_agent.host import NvmlError
from railscope_agent.sampling.status import FAILED, OK
from railscope_agent.sources.nvidia.activity import GpuActivitySource

SM = ("railscope_gpu_sm_activity_ratio", ("GPU-0",))


def gpm(host: FakeHost) -> list[str]:
    return [key for key in host.calls if "GpmMetricsGet(0" in key]


def test_percent_and_mebibytes_become_ratios_and_bytes() -> None:
    host = host_with_gpus()
    host.calls |= {
        "nvml.nvmlGpmMetricsGet(0,2)": [0, 43.25],
        "nvml.nvmlGpmMetricsGet(0,7)": [0, 99.9999],
        "nvml.nvmlGpmMetricsGet(0,33)": [0, 12.5],
        "nvml.nvmlGpmMetricsGet(0,61)": [0, 1.5],
        "nvml.nvmlGpmMetricsGet(0,248)": [0, 2.0**52],
        "nvml.nvmlGpmMetricsGet(0,162)": [0, 75.0],
    }
    found = numbers(read_once(GpuActivitySource(), host).frame)
    assert found[SM] == 0.4325
    assert found["railscope_gpu_pipe_activity_ratio", ("GPU-0", "tensor_hmma")] == 0.999999
    assert found["railscope_gpu_engine_activity_ratio", ("GPU-0", "decoder3")] == 0.125
    assert found["railscope_gpu_nvlink_transmit_bytes_per_second", ("GPU-0",)] == 1.5 * 2**20
    assert found["railscope_gpu_sm_cycles_total", ("GPU-0", "elapsed")] == 2**52
    assert found["railscope_gpu_cache_access_ratio", ("GPU-0", "peer", "hit")] == 0.75


def test_a_driver_without_the_newest_metrics_reports_the_others() -> None:
    """It may reject a whole request that contains one of them."""
    host = host_with_gpus()
    recent = [f"nvml.nvmlGpmMetricsGet(0,{n})" for n in (*range(160, 170), *range(248, 261))]
    host.calls |= dict.fromkeys(recent, NvmlError(2, "Invalid Argument"))
    outcome = read_once(GpuActivitySource(), host)
    found = readings(outcome.frame)
    assert found[SM] == 200_000
    assert outcome.missing_count == 0
    assert not [name for name, _ in found if "cycles" in name or "cache" in name]


def test_before_hopper_there_is_none_and_it_is_not_called_again() -> None:
    host = host_with_gpus()
    asked = gpm(host)
    host.calls |= dict.fromkeys(asked, NvmlError(3, "Not Supported"))
    frame = read_once(GpuActivitySource(), host).frame
    assert set(readings(frame).values()) == {Absent.UNSUPPORTED}


async def test_not_due_before_the_second_sample() -> None:
    host = host_with_gpus()
    healthy = {key: host.calls[key] for key in gpm(host)}
    host.calls |= dict.fromkeys(healthy, NvmlError(27, "Not Ready"))
    async with run_sampler(host, [GpuActivitySource()]) as run:
        assert readings(run.frames[-1])[SM] is Absent.NOT_DUE
        assert run.sampler.statuses["gpu_activity"].state == OK
        host.calls |= healthy
        await run.step()
        assert readings(run.frames[-1])[SM] == 200_000


async def test_permission_that_is_lost_is_denied_and_may_come_back() -> None:
    """Unprivileged containers lose it after some minutes (NVIDIA/DCGM#214)."""
    host = host_with_gpus()
    healthy = {key: host.calls[key] for key in gpm(host)}
    async with run_sampler(host, [GpuActivitySource()]) as run:
        host.calls |= dict.fromkeys(healthy, NvmlError(4, "Insufficient Permissions"))
        await run.step()
        found = readings(run.frames[-1])
        assert found[SM] is Absent.DENIED
        assert (
            run.sampler.statuses["gpu_activity"].state == FAILED or Absent.DENIED in found.values()
        )
        host.calls |= healthy
        await run.step()
        assert readings(run.frames[-1])[SM] == 200_000
        assert run.sampler.statuses["gpu_activity"].state == OK
