"""Sharing of the simulated GPUs: the parts add up to the whole."""

from __future__ import annotations

import pytest
from support.simulated import ALL_WAYS, NOT_SUPPORTED, SECONDS, CapturedNvml, node, pairs

from railscope_simulator import NodeSpec, find_model, simulate


@pytest.mark.parametrize(("model", "mode"), ALL_WAYS)
def test_memory_adds_up(model: str, mode: str) -> None:
    for _, nvml in pairs(node(model, mode)):
        for gpu in range(nvml.call("DeviceGetCount")):
            memory = nvml.device("MemoryInfo", gpu)
            assert memory["total"] == memory["reserved"] + memory["used"] + memory["free"]
            assert min(memory["free"], memory["used"]) > 0
            held = sum(p["usedGpuMemory"] for p in nvml.device("ComputeRunningProcesses", gpu))
            assert held <= memory["used"]
            devices = nvml.device("MigDevices", gpu)
            parts = [nvml.device("MemoryInfo", device["uuid"]) for device in devices]
            if parts:
                assert sum(part["used"] for part in parts) == memory["used"]
                total = sum(part["total"] for part in parts)
                assert total <= memory["total"] - memory["reserved"]
                assert all(part["total"] == part["used"] + part["free"] for part in parts)


@pytest.mark.parametrize("model", ["h100", "h200"])
def test_the_activity_of_instances_adds_up_to_that_of_the_gpu(model: str) -> None:
    nvml = CapturedNvml(node(model, "mig"), SECONDS)
    for gpu in (0, 1):
        devices = [device["uuid"] for device in nvml.device("MigDevices", gpu)]
        sizes = [nvml.device("Attributes_v2", uuid)["multiprocessorCount"] for uuid in devices]
        busy = sum(size * nvml.metric(uuid, 2) for size, uuid in zip(sizes, devices, strict=True))
        multiprocessors = find_model(model).multiprocessors
        assert sum(sizes) <= multiprocessors
        assert busy / multiprocessors == pytest.approx(nvml.metric(gpu, 2), abs=1e-3)
        assert nvml.metric(devices[-1], 2) == 0
        assert nvml.device("ComputeRunningProcesses", devices[-1]) == []


@pytest.mark.parametrize("model", ["a100", "h100", "h200"])
def test_instances_have_a_part_of_bar1_and_show_nothing_of_it_as_used(model: str) -> None:
    nvml = CapturedNvml(node(model, "mig"), SECONDS)
    for gpu in (0, 1):
        for device in nvml.device("MigDevices", gpu):
            bar1 = nvml.device("BAR1MemoryInfo", device["uuid"])
            assert bar1["bar1Used"] == 0
            assert 0 < bar1["bar1Free"] == bar1["bar1Total"]


@pytest.mark.parametrize(
    ("gpu", "profiles", "instances"),
    [
        (0, ["1g.18gb"] * 7, [7, 8, 9, 10, 11, 12, 13]),
        (1, ["3g.71gb", "2g.35gb", "2g.35gb"], [2, 3, 4]),
    ],
)
def test_gpus_are_cut_into_instances_with_names_and_numbers(
    gpu: int, profiles: list[str], instances: list[int]
) -> None:
    nvml = CapturedNvml(node("h200", "mig"), SECONDS)
    devices = nvml.device("MigDevices", gpu)
    assert [nvml.device("Name", d["uuid"]) for d in devices] == [
        f"NVIDIA H200 MIG {profile}" for profile in profiles
    ]
    assert [device["gpu"] for device in devices] == instances
    assert nvml.device("MigMode", gpu) == [1, 1]
    for call in ("UtilizationRates", "RemappedRows", "RowRemapperHistogram", "ProcessUtilization"):
        assert nvml.device(call, gpu) == NOT_SUPPORTED
    assert nvml.device("NvLinkState", gpu, 0) == NOT_SUPPORTED


def test_mps_clients_are_listed_beside_their_server() -> None:
    capture = node("h100", "mps")
    nvml = CapturedNvml(capture, SECONDS)
    listed = {p["pid"] for p in nvml.device("ComputeRunningProcesses", 0)}
    clients = {p["pid"] for p in nvml.device("MPSComputeRunningProcesses", 0)}
    (server,) = listed - clients
    assert len(clients) == 4
    assert server in {p["pid"] for p in nvml.device("ComputeRunningProcesses", 1)}
    assert capture.moments[0].files[f"/proc/{server}/comm"] == "nvidia-cuda-mps\n"
    assert nvml.device("ComputeMode", 0) == 3


@pytest.mark.parametrize("mode", ["whole", "time_slicing", "mps"])
def test_processes_share_the_time_of_the_gpu(mode: str) -> None:
    nvml = CapturedNvml(node("h100", mode), SECONDS)
    samples = nvml.device("ProcessUtilization", 0)
    assert len(samples) == {"whole": 1, "time_slicing": 2, "mps": 4}[mode]
    busy = nvml.device("UtilizationRates", 0)["gpu"]
    assert sum(sample["smUtil"] for sample in samples) == pytest.approx(busy, abs=2)


@pytest.mark.parametrize("model", ["l40s", "t4"])
@pytest.mark.parametrize("seed", range(5))
def test_virtual_gpus_share_the_time_of_the_gpu_and_leave_some(model: str, seed: int) -> None:
    for _, nvml in pairs(node(model, "vgpu", seed=seed)):
        for gpu in (0, 1):
            rates = nvml.device("UtilizationRates", gpu)
            samples = nvml.device("VgpuUtilization", gpu)
            assert len(samples) == 3
            assert 0 < rates["gpu"] < 95
            for part, whole in (("smUtil", "gpu"), ("memUtil", "memory")):
                shares = sum(sample[part] for sample in samples)
                assert shares == pytest.approx(rates[whole], abs=1.5)


@pytest.mark.parametrize("model", ["l40s", "t4"])
def test_virtual_gpus_are_there_without_a_job_too(model: str) -> None:
    kind = find_model(model).vgpu_type
    assert kind
    for scenario in ("training", "idle"):
        nvml = CapturedNvml(node(model, "vgpu", scenario=scenario), SECONDS)
        instances = nvml.device("ActiveVgpus", 0)
        assert len(set(instances)) == 3
        for instance in instances:
            number = nvml.call("VgpuInstanceGetType", instance)
            assert nvml.call("VgpuTypeGetName", number) == kind.name
            used = nvml.call("VgpuInstanceGetFbUsage", instance)
            assert 0 < used < kind.frame_buffer_bytes
            assert len(nvml.call("VgpuInstanceGetVmID", instance)[0]) == 36
        busy = nvml.device("VgpuUtilization", 0)
        assert {sample["vgpuInstance"] for sample in busy} <= set(instances)
        assert bool(busy) == (scenario == "training")
        assert nvml.device("VirtualizationMode", 0) == 3


def test_gpus_of_virtual_machines_are_devices_of_vfio_and_no_gpus_of_nvml() -> None:
    capture = simulate(NodeSpec("gpu-001", mode="passthrough"), 1)
    start = capture.moments[0]
    assert start.calls["nvml.nvmlDeviceGetCount()"] == 4
    drivers = {
        address: start.links[f"/sys/bus/pci/devices/{address}/driver"].rpartition("/")[2]
        for address in start.names["/sys/bus/pci/devices"]
        if start.files[f"/sys/bus/pci/devices/{address}/class"] == "0x030200\n"
    }
    assert list(drivers.values()) == ["nvidia"] * 4 + ["vfio-pci"] * 4
    assert len(start.names["/sys/class/infiniband"]) == 4 + 2
