"""MIG devices created and removed while the agent runs, and their readings."""

from __future__ import annotations

import pytest
from support.gpus import host_with_gpus
from support.mig import GIBIBYTE, cut, disable_mig
from support.reading import numbers, readings
from support.sampling import RunningSampler, run_sampler

from railscope.catalog.gpu_health import GPU_CHANGE_EVENT
from railscope.frame import Event, Frame
from railscope.reading import Absent
from railscope_agent.gpus.inventory import GpuInventory
from railscope_agent.host import NvmlError
from railscope_agent.sampling.status import OK
from railscope_agent.sources.nvidia.activity import GpuActivitySource
from railscope_agent.sources.nvidia.gpu_devices import GpuSource
from railscope_agent.sources.nvidia.mig_devices import MigSource

UTILIZATION = "nvml.nvmlDeviceGetUtilizationRates(0)"
RATIO = ("railscope_gpu_utilization_ratio", ("GPU-0",))


def devices(frame: Frame) -> set[str]:
    return {key[1] for (name, key) in readings(frame) if name == "railscope_mig_memory_used_bytes"}


def mig_events(run: RunningSampler) -> list[Event]:
    return [e for frame in run.frames for e in frame.events if e.event_class is GPU_CHANGE_EVENT]


async def test_a_gpu_that_is_not_cut_has_no_mig_devices() -> None:
    async with run_sampler(host_with_gpus(2), [MigSource()]) as run:
        assert numbers(run.frames[-1]) == {
            ("railscope_gpu_mig_devices", (f"GPU-{index}",)): 0 for index in range(2)
        }


async def test_a_device_reports_its_memory_and_size() -> None:
    host = host_with_gpus(2)
    small, large = cut(host, 0, ["1g.10gb", "3g.40gb"])
    async with run_sampler(host, [MigSource()]) as run:
        found = numbers(run.frames[-1])
        assert found["railscope_gpu_mig_devices", ("GPU-0",)] == 2
        assert found["railscope_mig_memory_size_bytes", ("GPU-0", large)] == 30 * GIBIBYTE
        assert found["railscope_mig_memory_used_bytes", ("GPU-0", small)] == GIBIBYTE
        assert found["railscope_mig_multiprocessors", ("GPU-0", large)] == 48
        entities = run.frames[-1].schema.entities
        facts = {e.key[1]: dict(e.facts) for e in entities if e.kind.name == "mig"}
        assert facts[large] == {
            "profile": "3g.40gb", "gpu_instance": "2", "compute_instance": "0", "mig_index": "1",
            "compute_slots": "480-840", "memory_slots": "420-840",
        }  # fmt: skip


async def test_devices_come_and_go_within_two_reads() -> None:
    host = host_with_gpus(2)
    shared = GpuInventory()
    async with run_sampler(host, [GpuSource.load(gpus=shared), MigSource(gpus=shared)]) as run:
        made = set(cut(host, 0, ["1g.10gb", "1g.10gb", "3g.40gb"]))
        await run.step(5)
        await run.step(5)
        assert devices(run.of("mig")[-1]) == made
        changed = set(cut(host, 0, ["7g.80gb"]))
        await run.step(5)
        await run.step(5)
        assert devices(run.of("mig")[-1]) == changed
        disable_mig(host, 0)
        await run.step(5)
        await run.step(5)
        assert devices(run.of("mig")[-1]) == set()
        assert [e.facts["change"] for e in mig_events(run)] == [
            "mig_mode",
            "mig_devices",
            "mig_mode",
        ]
        assert mig_events(run)[1].facts["after"] == " ".join(changed)
        assert run.sampler.statuses["mig"].state == OK


@pytest.mark.parametrize("answer", [[0xFFFFFFFF, 0], [255, 0], NvmlError(999, "Unknown Error")])
async def test_a_gpu_without_a_valid_mig_mode_keeps_its_devices(answer: object) -> None:
    host = host_with_gpus(1)
    made = set(cut(host, 0, ["1g.10gb", "3g.40gb"]))
    shared = GpuInventory()
    async with run_sampler(host, [GpuSource.load(gpus=shared), MigSource(gpus=shared)]) as run:
        host.calls["nvml.nvmlDeviceGetMigMode(0)"] = answer
        shared.record_change()
        for _ in range(3):
            await run.step(5)
        generation = shared.generation
        await run.step(5)
        found = readings(run.of("mig")[-1])
        assert found["railscope_gpu_mig_devices", ("GPU-0",)] is Absent.ERROR
        assert devices(run.of("mig")[-1]) == made
        assert (mig_events(run), shared.generation) == ([], generation)


async def test_support_of_the_whole_gpu_is_probed_again_after_partitioning() -> None:
    host = host_with_gpus(1)
    shared = GpuInventory()
    healthy = host.calls[UTILIZATION]
    async with run_sampler(host, [GpuSource.load(gpus=shared), MigSource(gpus=shared)]) as run:
        cut(host, 0, ["1g.10gb"])
        host.calls[UTILIZATION] = NvmlError(3, "Not Supported")
        await run.step(5)
        assert readings(run.of("gpu")[-1])[RATIO] is Absent.UNSUPPORTED
        disable_mig(host, 0)
        host.calls[UTILIZATION] = healthy
        await run.step(5)
        await run.step(1)
        assert readings(run.of("gpu")[-1])[RATIO] == 40


async def test_a_device_that_is_taken_away_under_a_read_is_gone_and_then_no_more() -> None:
    host = host_with_gpus(1)
    cut(host, 0, ["1g.10gb"])
    async with run_sampler(host, [MigSource()]) as run:
        for key in [key for key in host.calls if "MIG-" in key]:
            host.calls[key] = NvmlError(2, "Invalid Argument")
        host.calls["nvml.nvmlDeviceGetMigDevices(0)"] = []
        await run.step(5)
        found = readings(run.frames[-1])
        assert {r for (name, _), r in found.items() if "_mig_memory" in name} == {Absent.GONE}
        await run.step(5)
        assert devices(run.frames[-1]) == set()


async def test_activity_is_reported_for_each_device() -> None:
    host = host_with_gpus(1)
    small, large = cut(host, 0, ["1g.10gb", "3g.40gb"])
    async with run_sampler(host, [GpuActivitySource()]) as run:
        found = numbers(run.frames[-1])
        assert found["railscope_mig_sm_activity_ratio", ("GPU-0", small)] == 0.2
        assert found["railscope_mig_sm_activity_ratio", ("GPU-0", large)] == 0.6
        assert found["railscope_gpu_sm_activity_ratio", ("GPU-0",)] == 0.2


async def test_a_gpu_whose_devices_cannot_be_listed_keeps_its_other_readings() -> None:
    host = host_with_gpus(2)
    async with run_sampler(host, [MigSource()]) as run:
        host.calls["nvml.nvmlDeviceGetMigMode(0)"] = NvmlError(15, "GPU is lost")
        await run.step(5)
        found = readings(run.frames[-1])
        assert found["railscope_gpu_mig_devices", ("GPU-0",)] is Absent.GONE
        assert found["railscope_gpu_mig_devices", ("GPU-1",)] == 0
