"""Use of the GPUs on the PCI bus: by the driver, by a virtual machine, or unused."""

from __future__ import annotations

import pytest
from support.gpus import add_gpus, of_gpu
from support.machine import DENIED, FakeHost
from support.reading import ORIGIN, at_period, read_once, readings
from support.sampling import run_sampler

from railscope.catalog.entities import GPU
from railscope.catalog.gpu_health import GPU_DEVICE_STATE
from railscope.frame import Entity
from railscope_agent.gpus.inventory import GpuInventory
from railscope_agent.host import NvmlError
from railscope_agent.sampling.probe_result import ProbeVerdict
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.nvidia.bus_state import GpuDeviceSource
from railscope_agent.sources.nvidia.gpu_devices import GpuSource
from railscope_agent.streams.xid_matcher import InitFailure, XidMatcher

DEVICES = "/sys/bus/pci/devices"


def plug(host: FakeHost, address: str, driver: str) -> None:
    host.files[f"{DEVICES}/{address}/vendor"] = "0x10de"
    host.files[f"{DEVICES}/{address}/class"] = "0x030200"
    if driver:
        host.links[f"{DEVICES}/{address}/driver"] = f"/sys/bus/pci/drivers/{driver}"
        host.files[f"/sys/bus/pci/drivers/{driver}/new_id"] = ""


def states(host: FakeHost, gpus: GpuInventory) -> dict[str, str]:
    frame = read_once(GpuDeviceSource(gpus=gpus), host).frame
    return {
        key[0]: GPU_DEVICE_STATE.states[reading]
        for (_, key), reading in readings(frame).items()
        if isinstance(reading, int)
    }


def test_the_state_of_each_gpu_follows_its_driver() -> None:
    host, gpus = FakeHost(), GpuInventory()
    add_gpus(host, 1)
    for address, driver in (
        ("0000:01:00.0", "nvidia"),
        ("0000:02:00.0", "vfio-pci"),
        ("0000:03:00.0", ""),
        ("0000:04:00.0", "nouveau"),
        ("0000:05:00.0", "nvidia"),
    ):
        plug(host, address, driver)
    gpus.scan(host)
    assert states(host, gpus) == {
        "0000:01:00.0": "driver", "0000:02:00.0": "virtual_machine", "0000:03:00.0": "unbound",
        "0000:04:00.0": "other_driver", "0000:05:00.0": "missing",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("information", "name"),
    [
        ("Model: \t\t NVIDIA H200\nIRQ:   \t\t 300\nGPU UUID: \t GPU-5\nDevice Minor: \t 4\n", "GPU-5"),
        ("Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-????????-????-????\n", "0000:05:00.0"),
        ("Model: \t\t NVIDIA H200\nVideo BIOS: \t ??.??.??.??.??\n", "0000:05:00.0"),
        (DENIED, "0000:05:00.0"),
    ],
)  # fmt: skip
def test_a_missing_gpu_is_described_by_the_name_that_the_driver_has_for_it(
    information: str | OSError, name: str
) -> None:
    host, gpus = FakeHost(), GpuInventory(is_listed=True)
    plug(host, "0000:05:00.0", "nvidia")
    plug(host, "0000:06:00.0", "vfio-pci")
    host.files["/proc/driver/nvidia/gpus/0000:05:00.0/information"] = information
    inventory = GpuDeviceSource(gpus=gpus).probe(host)
    assert inventory.columnless_entities == (Entity(GPU, (name,), {"pci_address": "0000:05:00.0"}),)
    broken = [f for f in inventory.findings if f.verdict is ProbeVerdict.BROKEN]
    assert [(f.title, name in f.detail) for f in broken] == [("GPU 0000:05:00.0", True)]


def test_a_gpu_of_a_virtual_machine_is_not_a_problem_and_a_missing_one_is() -> None:
    host, gpus = FakeHost(), GpuInventory(is_listed=True)
    add_gpus(host, 0)
    plug(host, "0000:02:00.0", "vfio-pci")
    plug(host, "0000:05:00.0", "nvidia")
    findings = {f.title: f for f in read_once(GpuDeviceSource(gpus=gpus), host).findings}
    assert findings["GPU 0000:02:00.0"].verdict is ProbeVerdict.SUPPORTED
    assert "virtual machine" in findings["GPU 0000:02:00.0"].detail
    assert findings["GPU 0000:05:00.0"].verdict is ProbeVerdict.BROKEN


async def test_a_gpu_that_changes_hands_is_seen_at_the_next_read() -> None:
    host, gpus = FakeHost(), GpuInventory()
    add_gpus(host, 1)
    plug(host, "0000:01:00.0", "nvidia")
    async with run_sampler(
        host, [GpuSource.load(gpus=gpus), at_period(GpuDeviceSource(gpus), 1.0)]
    ) as run:
        plug(host, "0000:01:00.0", "vfio-pci")
        plug(host, "0000:09:00.0", "")
        await run.step()
        await run.step()
        values = readings(run.of("gpu_device")[-1])
        assert [GPU_DEVICE_STATE.states[int(r)] for r in values.values() if isinstance(r, int)] == [
            "virtual_machine",
            "unbound",
        ]


@pytest.mark.parametrize(
    ("peer", "verdict"), [("nvidia", "BROKEN"), ("vfio-pci", "ABSENT"), ("", "ABSENT")]
)
def test_a_gpu_without_a_driver_is_a_fault_beside_gpus_of_nvidias(peer: str, verdict: str) -> None:
    host = FakeHost()
    plug(host, "0000:01:00.0", peer)
    plug(host, "0000:02:00.0", "")
    findings = {f.title: f for f in read_once(GpuDeviceSource(), host).findings}
    assert findings["GPU 0000:02:00.0"].verdict is ProbeVerdict[verdict]
    assert "bind the GPU" in findings["GPU 0000:02:00.0"].remedy


def test_a_gpu_that_failed_to_start_is_not_to_be_bound_again() -> None:
    host, xids = FakeHost(), XidMatcher()
    plug(host, "0000:02:00.0", "")
    reader = SourceReader(GpuDeviceSource(xids=xids), host, ORIGIN)
    assert [f.verdict for f in reader.run().findings] == [ProbeVerdict.ABSENT]
    xids.record_init_failure("0000:02:00.0", InitFailure(1, "probe of 0000:02:00.0 failed"))
    reader.run()
    (finding,) = reader.run().findings
    assert finding.verdict is ProbeVerdict.BROKEN
    assert finding.remedy == "see the health of this GPU below"


def test_no_gpu_is_missing_while_nvml_does_not_list_its_gpus() -> None:
    host, gpus = FakeHost(), GpuInventory()
    add_gpus(host, 1)
    host.calls["nvml.nvmlDeviceGetCount()"] = NvmlError(18)
    plug(host, "0000:01:00.0", "nvidia")
    with pytest.raises(NvmlError):
        gpus.scan(host)
    assert states(host, gpus) == {"0000:01:00.0": "driver"}
    host.calls["nvml.nvmlDeviceGetCount()"] = 0
    host.clock.advance(1)
    gpus.scan(host)
    assert states(host, gpus) == {"0000:01:00.0": "missing"}


def test_a_gpu_that_does_not_report_its_address_is_the_one_that_is_left() -> None:
    host, gpus = FakeHost(), GpuInventory()
    add_gpus(host, 3)
    for number in (1, 2, 3):
        plug(host, f"0000:0{number}:00.0", "nvidia")
    plug(host, "0000:09:00.0", "vfio-pci")
    host.files["/proc/driver/nvidia/gpus/0000:02:00.0/information"] = "GPU UUID: \t GPU-1\n"
    host.calls |= dict.fromkeys(of_gpu(host, 1), NvmlError(999))
    found = gpus.scan(host)
    assert [(gpu.entity.key, gpu.pci_address) for gpu in found.values()] == [
        (("GPU-0",), "0000:01:00.0"), (("GPU-1",), "0000:02:00.0"), (("GPU-2",), "0000:03:00.0"),
    ]  # fmt: skip
