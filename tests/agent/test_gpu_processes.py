"""Processes and virtual GPUs: the users of a GPU, bounded in number, and its sharing."""

from __future__ import annotations

from typing import Any

import pytest
from support.gpus import add_gpus
from support.machine import FakeHost
from support.mig import cut
from support.reading import at_period, numbers, read_once, readings
from support.sampling import run_sampler

from railscope.catalog.gpu_sharing import GPU_SHARING
from railscope.exposition import TextFormat
from railscope.frame import Frame, Schema
from railscope.reading import Absent
from railscope_agent.config import AgentSettings
from railscope_agent.host import NvmlError
from railscope_agent.service import Agent, is_shipped
from railscope_agent.sources.nvidia.gpu_sharing import GpuSharingSource
from railscope_agent.sources.nvidia.processes import GpuProcessSource

COMPUTE = "nvml.nvmlDeviceGetComputeRunningProcesses(0)"
MPS = "nvml.nvmlDeviceGetMPSComputeRunningProcesses(0)"
USE = "nvml.nvmlDeviceGetProcessUtilization(0)"
MEMORY = "railscope_gpu_process_memory_used_bytes"


def process(pid: int, memory: int | None = 1000, **instances: int) -> dict[str, Any]:
    return {
        "pid": pid,
        "usedGpuMemory": memory,
        "gpuInstanceId": instances.get("gpu", 0xFFFF_FFFF),
        "computeInstanceId": instances.get("compute", 0xFFFF_FFFF),
    }


def gpu(*running: dict[str, Any]) -> FakeHost:
    host = FakeHost()
    add_gpus(host, 1)
    host.calls[COMPUTE] = list(running)
    host.calls[USE] = NvmlError(6, "Not Found")
    return host


def values_by_pid(frame: Frame | None) -> dict[str, int | Absent]:
    return {key[1]: r for (name, key), r in readings(frame).items() if name == MEMORY}


def of_gpu(frame: Frame | None, what: str) -> int | Absent:
    return readings(frame)[f"railscope_gpu_{what}", ("GPU-0",)]


def shared(host: FakeHost) -> Frame | None:
    return read_once(GpuSharingSource(), host).frame


def sharing(host: FakeHost) -> str:
    state = of_gpu(shared(host), "sharing")
    assert isinstance(state, int)
    return GPU_SHARING.states[state]


def test_a_process_reports_its_memory_name_and_activity() -> None:
    host = gpu(process(41, 7000))
    host.files["/proc/41/comm"] = "python3\n"
    host.calls[USE] = [
        {"pid": 41, "timeStamp": 5, "smUtil": 90, "memUtil": 20},
        {"pid": 41, "timeStamp": 3, "smUtil": 10, "memUtil": 1},
    ]
    frame = read_once(GpuProcessSource(), host).frame
    found = numbers(frame)
    assert found[MEMORY, ("GPU-0", "41")] == 7000
    assert found["railscope_gpu_process_sm_utilization_ratio", ("GPU-0", "41")] == 0.9
    assert found["railscope_gpu_process_memory_activity_ratio", ("GPU-0", "41")] == 0.2
    assert frame is not None
    (facts,) = [
        entity.facts for entity in frame.schema.entities if entity.kind.name == "gpu_process"
    ]
    assert facts == {"process_name": "python3", "context": "compute"}
    assert sharing(host) == "exclusive"


def test_a_process_without_a_sample_was_idle_and_one_without_memory_has_none() -> None:
    frame = read_once(GpuProcessSource(), gpu(process(41, None))).frame
    found = readings(frame)
    assert found[MEMORY, ("GPU-0", "41")] is Absent.UNSUPPORTED
    assert found["railscope_gpu_process_sm_utilization_ratio", ("GPU-0", "41")] == 0


def test_a_process_has_no_more_memory_than_its_gpu() -> None:
    host = gpu(process(41, 1000), process(42, 1001))
    info = {"total": 1000, "reserved": 0, "used": 900, "free": 100}
    host.calls["nvml.nvmlDeviceGetMemoryInfo(0)"] = info
    found = values_by_pid(read_once(GpuProcessSource(), host).frame)
    assert found == {"41": 1000, "42": Absent.ERROR}


def test_processes_beyond_the_bound_are_counted() -> None:
    host = gpu(*(process(pid, memory=pid) for pid in range(1, 101)))
    frame = read_once(GpuProcessSource(max_reported=8), host).frame
    assert set(values_by_pid(frame)) == {str(pid) for pid in range(93, 101)}
    assert of_gpu(shared(host), "processes") == 100
    assert of_gpu(frame, "suppressed_processes") == 92


async def test_a_process_is_reported_once_it_has_stayed_and_until_it_is_gone() -> None:
    host = gpu(process(1))
    async with run_sampler(host, [GpuProcessSource()]) as run:
        host.calls[COMPUTE] = [process(1), process(2)]
        await run.step(5)
        assert values_by_pid(run.frames[-1]) == {"1": 1000}
        assert of_gpu(run.frames[-1], "suppressed_processes") == 1
        await run.step(5)
        await run.step(5)
        assert values_by_pid(run.frames[-1]) == {"1": 1000, "2": 1000}
        host.calls[COMPUTE] = [process(2)]
        await run.step(5)
        assert values_by_pid(run.frames[-1]) == {"1": Absent.UNSUPPORTED, "2": 1000}
        await run.step(5)
        assert values_by_pid(run.frames[-1]) == {"2": 1000}


async def test_known_processes_keep_their_columns_while_the_list_fails() -> None:
    host = gpu(process(1))
    async with run_sampler(host, [GpuProcessSource()]) as run:
        host.calls[COMPUTE] = NvmlError(15, "GPU is lost")
        for _ in range(4):
            await run.step(5)
            assert values_by_pid(run.frames[-1]) == {"1": Absent.GONE}
        assert {id(frame.schema) for frame in run.frames} == {id(run.frames[0].schema)}
        host.calls[COMPUTE] = [process(1)]
        await run.step(5)
        assert values_by_pid(run.frames[-1]) == {"1": 1000}


async def test_short_lives_are_counted_and_make_no_schema() -> None:
    host = gpu()
    async with run_sampler(host, [GpuProcessSource()]) as run:
        for pid in range(10):
            host.calls[COMPUTE] = [process(pid)]
            await run.step(5)
        assert {of_gpu(frame, "suppressed_processes") for frame in run.frames[1:]} == {1}
        assert len({id(frame.schema) for frame in run.frames}) == 1


def test_one_process_in_two_instances_has_their_memory_together() -> None:
    host = gpu()
    one, other = cut(host, 0, ["1g.10gb", "1g.10gb"])
    for uuid in (one, other):
        key = f"nvml.nvmlDeviceGetComputeRunningProcesses({uuid})"
        host.calls[key] = [process(7, 500, gpu=1, compute=0)]
    frame = read_once(GpuProcessSource(), host).frame
    assert values_by_pid(frame) == {"7": 1000}
    assert sharing(host) == "mig"
    assert of_gpu(shared(host), "processes") == 1
    found = readings(frame)
    sm = found["railscope_gpu_process_sm_utilization_ratio", ("GPU-0", "7")]
    assert sm is Absent.UNSUPPORTED, "NVML reports no process utilisation of a partitioned GPU"


@pytest.mark.parametrize(
    ("compute", "mps", "state"),
    [
        ([], [], "unused"),
        ([1], [], "exclusive"),
        ([1, 2], [], "time_slicing"),
        ([1], [2, 3], "mps"),
    ],
)
def test_how_a_gpu_is_shared(compute: list[int], mps: list[int], state: str) -> None:
    host = gpu(*map(process, compute))
    host.calls[MPS] = [process(pid) for pid in mps]
    assert sharing(host) == state


def test_denied_processes_are_denied_and_not_zero() -> None:
    host = gpu()
    host.calls[COMPUTE] = NvmlError(4, "Insufficient Permissions")
    assert (
        of_gpu(read_once(GpuProcessSource(), host).frame, "suppressed_processes") is Absent.DENIED
    )
    for what in ("processes", "sharing", "vgpus"):
        assert of_gpu(shared(host), what) is Absent.DENIED


@pytest.mark.parametrize("code", [3, 13, 25])
def test_a_driver_without_a_process_list_makes_the_count_unsupported(code: int) -> None:
    host = gpu()
    host.calls[COMPUTE] = NvmlError(code)
    assert (
        of_gpu(read_once(GpuProcessSource(), host).frame, "suppressed_processes")
        is Absent.UNSUPPORTED
    )
    for what in ("processes", "sharing"):
        assert of_gpu(shared(host), what) is Absent.UNSUPPORTED


def test_the_older_list_is_taken_where_the_newer_is_missing() -> None:
    host = gpu()
    host.calls[COMPUTE] = NvmlError(13, "Function Not Found")
    host.calls["nvml.nvmlDeviceGetComputeRunningProcesses_v2(0)"] = [process(5, 700)]
    frame = read_once(GpuProcessSource(), host).frame
    assert values_by_pid(frame) == {"5": 700}
    assert sharing(host) == "exclusive"


@pytest.mark.parametrize("code", [6, 21])
def test_no_process_is_none(code: int) -> None:
    host = gpu()
    host.calls[COMPUTE] = NvmlError(code)
    assert (of_gpu(shared(host), "processes"), sharing(host)) == (0, "unused")


def test_virtual_gpus_of_a_host() -> None:
    host = gpu()
    host.calls |= {
        "nvml.nvmlDeviceGetActiveVgpus(0)": [11, 12],
        "nvml.nvmlVgpuInstanceGetUUID(11)": "vgpu-11",
        "nvml.nvmlVgpuInstanceGetUUID(12)": "vgpu-12",
        "nvml.nvmlVgpuInstanceGetType(11)": 3,
        "nvml.nvmlVgpuTypeGetName(3)": "NVIDIA L40S-12Q",
        "nvml.nvmlVgpuInstanceGetVmID(11)": ["vm-a", 1],
        "nvml.nvmlVgpuInstanceGetFbUsage(11)": 4096,
        "nvml.nvmlDeviceGetVgpuUtilization(0)": [
            {"vgpuInstance": 11, "timeStamp": 9, "smUtil": 33, "memUtil": 4}
        ],
    }
    frame = read_once(GpuProcessSource(), host).frame
    found = numbers(frame)
    assert found["railscope_vgpu_memory_used_bytes", ("GPU-0", "vgpu-11")] == 4096
    assert found["railscope_vgpu_sm_utilization_ratio", ("GPU-0", "vgpu-11")] == 0.33
    assert found["railscope_vgpu_sm_utilization_ratio", ("GPU-0", "vgpu-12")] == 0, "no sample"
    assert (of_gpu(shared(host), "vgpus"), sharing(host)) == (2, "vgpu")


ACTIVE = "nvml.nvmlDeviceGetActiveVgpus(0)"


@pytest.mark.parametrize(
    ("code", "vgpus", "state"),
    [
        (3, Absent.UNSUPPORTED, 1),
        (10, Absent.TIMEOUT, Absent.TIMEOUT),
        (4, Absent.DENIED, Absent.DENIED),
    ],
)
def test_unreadable_virtual_gpus_have_an_absence_reason(
    code: int, vgpus: Absent, state: int | Absent
) -> None:
    host = gpu(process(41))
    host.calls[ACTIVE] = NvmlError(code)
    frame = shared(host)
    assert (of_gpu(frame, "vgpus"), of_gpu(frame, "sharing")) == (vgpus, state)
    assert of_gpu(frame, "processes") == 1


async def test_a_virtual_gpu_keeps_its_columns_until_it_is_known_to_be_gone() -> None:
    host, of_vgpu = gpu(), ("railscope_vgpu_memory_used_bytes", ("GPU-0", "11"))
    host.calls |= {ACTIVE: [11], "nvml.nvmlVgpuInstanceGetFbUsage(11)": 4096}
    async with run_sampler(host, [at_period(GpuProcessSource(), 1.0)]) as run:
        assert readings(run.of("gpu_process")[-1])[of_vgpu] == 4096
        host.calls |= {ACTIVE: NvmlError(10), COMPUTE: [process(41)]}
        for _ in range(3):
            await run.step()
            assert readings(run.of("gpu_process")[-1])[of_vgpu] is Absent.TIMEOUT
        assert values_by_pid(run.of("gpu_process")[-1]) == {"41": 1000}, (
            "the columns were built again meanwhile"
        )
        host.calls[ACTIVE] = []
        await run.until(lambda: of_vgpu not in readings(run.of("gpu_process")[-1]))


async def test_jobs_that_come_and_go_make_no_schema_that_travels() -> None:
    """A collector stores every schema of a node: columns that change with each job are exported locally only."""
    host = gpu()
    agent = Agent(AgentSettings(node="node-1"), host)
    schemas: dict[str, set[Schema]] = {}
    for pid in range(1, 20):
        host.calls[COMPUTE] = [process(pid), process(pid + 1)]
        await agent.once()
        for frame in agent.endpoint.fresh_frames():
            if is_shipped(frame):
                schemas.setdefault(frame.schema.stream, set()).add(frame.schema)
    assert "gpu_sharing" in schemas
    assert "gpu_process" not in schemas
    assert {len(found) for found in schemas.values()} == {1}
    assert "railscope_gpu_process_memory_used_bytes" in agent.endpoint.text(TextFormat.PROMETHEUS)
