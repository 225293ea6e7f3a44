"""A slow link of a GPU: saving power while idle, degraded under load, and nothing where unknown."""

from __future__ import annotations

from typing import Any

import pytest
from support.gpus import add_gpus
from support.machine import FakeHost
from support.pci_bus import NVIDIA, add_gpu, set_link
from support.reading import ORIGIN, readings

from railscope.catalog.pcie import PCIE_PATH_STATE
from railscope.reading import Absent
from railscope_agent.gpus.inventory import GpuInventory
from railscope_agent.host import NvmlError
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.nvidia.pcie import GpuPathSource

GPU, PORT = "0000:01:00.0", "0000:00:01.0"


class GpuLinkRun:
    """One GPU with its driver, whose link runs at 2.5 of 32 GT/s."""

    def __init__(self, now: str = "2.5x16", *, driver: bool = True) -> None:
        self.host = FakeHost()
        add_gpu(self.host, f"pci0000:00/{PORT}/{GPU}")
        self.set_link(now)
        gpus = GpuInventory()
        if driver:
            add_gpus(self.host, 1)
            gpus.scan(self.host)
        self.set_gpu(busy=0, state=8)
        self.reader = SourceReader(GpuPathSource(gpus=gpus), self.host, ORIGIN)

    def set_link(self, now: str) -> None:
        for end in (PORT, GPU):
            set_link(self.host, end, now, "32x16")

    def set_gpu(self, *, busy: Any, state: Any = 0) -> None:
        rates = busy if isinstance(busy, Exception) else {"gpu": busy, "memory": 0}
        self.host.calls["nvml.nvmlDeviceGetUtilizationRates(0)"] = rates
        self.host.calls["nvml.nvmlDeviceGetPerformanceState(0)"] = state

    def state(self) -> str:
        frame = self.reader.run().frame
        assert frame is not None
        found = readings(frame)[PCIE_PATH_STATE.name, (GPU,)]
        return found.label if isinstance(found, Absent) else PCIE_PATH_STATE.states[found]


def test_a_full_link_needs_no_further_call() -> None:
    run = GpuLinkRun("32x16")
    run.host.asked.clear()
    assert run.state() == "full"
    assert not any("Utilization" in key or "PerformanceState" in key for key in run.host.asked)


@pytest.mark.parametrize(("busy", "state"), [(0, 8), (0, 0), (3, 8)])
def test_an_idle_gpu_saves_power(busy: int, state: int) -> None:
    run = GpuLinkRun()
    run.set_gpu(busy=busy, state=state)
    assert [run.state(), run.state()] == ["power_saving"] * 2


def test_under_load_a_slow_link_is_degraded_at_the_second_poll() -> None:
    """The link needs a moment to speed up when work begins."""
    run = GpuLinkRun()
    run.set_gpu(busy=80)
    assert [run.state(), run.state(), run.state()] == ["not_due", "degraded", "degraded"]
    run.set_gpu(busy=0)
    assert run.state() == "power_saving"
    run.set_gpu(busy=80)
    assert run.state() == "not_due", "work has only begun again"
    run.set_link("32x16")
    assert run.state() == "full"


def test_lost_lanes_count_under_any_load() -> None:
    assert GpuLinkRun("2.5x8").state() == "degraded"
    assert GpuLinkRun("32x8").state() == "degraded"


@pytest.mark.parametrize(
    ("busy", "state", "expected"),
    [
        (NvmlError(3, "with MIG"), 0, "unsupported"),
        (80, NvmlError(15, "lost"), "gone"),
        (80, 32, "unsupported"),  # NVML_PSTATE_UNKNOWN
        (NvmlError(999, "?"), 0, "error"),
    ],
)
def test_without_the_load_there_is_no_verdict(busy: Any, state: Any, expected: str) -> None:
    run = GpuLinkRun()
    run.set_gpu(busy=busy, state=state)
    assert run.state() == expected


def test_a_gpu_that_another_has_gets_no_verdict_on_speed() -> None:
    run = GpuLinkRun(driver=False)
    assert run.state() == "unsupported"
    run.set_link("32x16")
    assert run.state() == "full"


def test_a_port_above_a_switch_does_not_sleep_with_its_gpus() -> None:
    run = GpuLinkRun("32x16")
    host = run.host
    gpu = add_gpu(host, "pci0000:40/0000:40:01.0/0000:41:00.0/0000:42:00.0/0000:43:00.0")
    for end, now in (
        ("0000:40:01.0", "16x16"),
        ("0000:41:00.0", "16x16"),
        ("0000:42:00.0", "32x16"),
        (gpu, "32x16"),
    ):
        set_link(host, end, now, "32x16")
    frame = SourceReader(GpuPathSource(), host, ORIGIN).run().frame
    assert readings(frame)[PCIE_PATH_STATE.name, (gpu,)] == 2
    assert host.read(f"/sys/bus/pci/devices/{gpu}/vendor").decode() == NVIDIA
