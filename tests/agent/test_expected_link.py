"""Expected PCIe link of a GPU: its slot on bare metal, none in guests, or as configured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from support.gpus import add_gpus
from support.machine import FakeHost
from support.pci_bus import add_gpu, set_link
from support.reading import read_once, readings

from railscope.catalog import gpu_health as c
from railscope.reading import Absent, Reading
from railscope_agent.config import PcieSettings
from railscope_agent.gpus.inventory import GpuInventory
from railscope_agent.host import NvmlError
from railscope_agent.sources.nvidia.pcie import GpuPathSource, generation

GPU, PORT = "0000:01:00.0", "0000:00:01.0"
UNKNOWN = Absent.UNSUPPORTED
NONE: Mapping[str, str] = {}


def expected(
    nvml: tuple[Any, Any] = (5, 16),
    links: Mapping[str, str] = NONE,
    settings: PcieSettings | None = None,
    virtualization: int = 0,
    limits: tuple[int, int] = (5, 16),
) -> tuple[Reading, Reading]:
    """Return the expected lanes and generation; `nvml` and `limits` are pairs of generation and lanes."""
    host = FakeHost()
    add_gpus(host, 1)
    calls = {
        "CurrPcieLinkGeneration": nvml[0], "CurrPcieLinkWidth": nvml[1],
        "MaxPcieLinkGeneration": limits[0], "MaxPcieLinkWidth": limits[1],
        "VirtualizationMode": virtualization,
    }  # fmt: skip
    host.calls |= {f"nvml.nvmlDeviceGet{name}(0)": answer for name, answer in calls.items()}
    if links:
        add_gpu(host, f"pci0000:00/{PORT}/{GPU}" if PORT in links else f"pci0000:00/{GPU}")
    for end, link in links.items():
        now, _, limit = link.partition(" of ")
        set_link(host, end, now, limit)
    gpus = GpuInventory()
    gpus.scan(host)
    found = readings(read_once(GpuPathSource(gpus=gpus, settings=settings), host).frame)
    return (
        found[c.GPU_PCIE_EXPECTED_WIDTH.name, ("GPU-0",)],
        found[c.GPU_PCIE_EXPECTED_GENERATION.name, ("GPU-0",)],
    )


def both(port: str, gpu: str) -> dict[str, str]:
    return {PORT: port, GPU: gpu}


@pytest.mark.parametrize(
    ("nvml", "links", "lanes", "generation"),
    [
        ((5, 16), both("32x16 of 32x16", "32x16 of 32x16"), 16, 5),
        ((5, 8), both("32x8 of 32x16", "32x8 of 32x16"), 16, 5),  # lanes are lost
        ((4, 8), both("16x8 of 32x8", "16x8 of 16x16"), 8, 4),  # a slot for eight lanes
        ((4, 16), both("16x16 of 16x16", "16x16 of 32x16"), 16, 4),  # an older slot
        ((1, 16), both("2.5x16 of 16x16", "2.5x16 of 16x16"), 16, 4),  # idle
        ((1, 8), both("2.5x8 of 16x16", "2.5x8 of 16x16"), 16, 4),  # idle, and lanes are lost
        ((5, 16), both("32x16 of 64x16", "32x16 of 32x16"), 16, 5),
    ],
)
def test_on_bare_metal_the_slot_counts(
    nvml: tuple[int, int], links: dict[str, str], lanes: int, generation: int
) -> None:
    assert expected(nvml, links) == (lanes, generation)


def test_where_sysfs_and_nvml_differ_nothing_is_expected() -> None:
    links = both("32x8 of 32x16", "32x8 of 32x16")
    assert expected((5, 16), links) == (UNKNOWN, 5)
    assert expected((4, 8), links) == (16, UNKNOWN)


@pytest.mark.parametrize("virtualization", [1, 2])
@pytest.mark.parametrize("lanes", [8, 16])
def test_in_a_guest_nothing_is_expected(virtualization: int, lanes: int) -> None:
    """Its slot is emulated by the hypervisor, even if it resembles one of bare metal."""
    links = both(f"32x{lanes} of 32x16", f"32x{lanes} of 32x16")
    assert expected((5, lanes), links, virtualization=virtualization) == (UNKNOWN, UNKNOWN)
    assert expected((5, lanes), virtualization=virtualization) == (UNKNOWN, UNKNOWN)


@pytest.mark.parametrize(
    ("nvml", "found"),
    [
        ((5, 16), (16, 5)),
        ((5, 8), (UNKNOWN, 5)),
        ((1, 16), (16, UNKNOWN)),
        ((1, 8), (UNKNOWN,) * 2),
    ],
)
def test_without_a_slot_to_be_seen_only_a_whole_link_is_known(
    nvml: tuple[int, int], found: tuple[Reading, Reading]
) -> None:
    assert expected(nvml) == found
    assert expected(nvml, {GPU: f"32x{nvml[1]} of 32x16"}) == found


def test_an_upstream_port_without_link_data_is_not_a_slot() -> None:
    unknown = {PORT: "32x8 of 32x0", GPU: "32x8 of 32x16"}
    assert expected((5, 8), unknown)[0] is UNKNOWN


def test_configured_links_count_by_address_before_model_and_in_guests() -> None:
    model = "NVIDIA H100 80GB HBM3"
    settings = PcieSettings(
        expected_lanes={model: 4, GPU: 8, "another": 2}, expected_generation={model: 3}
    )
    for virtualization in (0, 1):
        assert expected(settings=settings, virtualization=virtualization) == (8, 3)


def test_a_failing_gpu_has_an_absence_reason() -> None:
    lost = NvmlError(15, "lost")
    assert expected((lost, lost)) == (Absent.GONE, Absent.GONE)


def test_generations() -> None:
    speeds = [2_500, 5_000, 8_000, 16_000, 32_000, 64_000, 128_000]
    assert [generation(speed) for speed in speeds] == list(range(1, 8))
    assert generation(7) is UNKNOWN
    assert generation(Absent.DENIED) is Absent.DENIED
