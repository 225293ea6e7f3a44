"""The verdict on the PCIe link of every captured server: right, or none; never a wrong one.

No GPU of these captures has lost a lane. In guests the slot is emulated by the hypervisor; the
Tesla T4 has eight lanes of sixteen because its server wires only eight.
"""

from __future__ import annotations

import pytest
from support import nvidia_smi_text as text, nvidia_smi_xml as xml
from support.exporter_capture import CASES, read_moment as read_exporter_capture
from support.judging import REASON, VerdictSources
from support.machine import FakeHost
from support.nvidia_smi import machine
from support.nvidia_smi_shares import shares
from support.pci_bus import add_gpu, set_link
from support.reading import read_once, readings
from support.shared import CAPTURES, capture_path

from railscope.catalog import gpu_health as c
from railscope.reading import Absent, Reading
from railscope_agent.gpus.inventory import GpuInventory
from railscope_agent.sources.nvidia.pcie import GpuPathSource

UNKNOWN = Absent.UNSUPPORTED
TEXTS = {
    "gpud/nvidia-smi-query.535.154.05.out.0.valid": (8, 16),
    "gpud/nvidia-smi-query.535.161.08.out.0.valid": (8, 16),
    "gpud/nvidia-smi-query.560.35.03.out.0.valid": (1, 16),
}
XMLS = {
    "xml/a100-sxm4-v12.xml": (1, 16), "xml/dual_a5000-v13.xml": (2, 16),
    "xml/gtx-1070-ti.xml": (1, UNKNOWN), "xml/quadro-p400.xml": (1, 16),
    "xml/rtx-3060-v12.xml": (1, 16), "xml/rtx-3080-v12.xml": (1, UNKNOWN),
    "xml/rtx-3080-v13.xml": (1, 16), "xml/tesla-t4.xml": (1, UNKNOWN),
}  # fmt: skip
"""By capture: the GPUs, and the lanes to expect of each; unknown in guests and without a limit."""
GUESTS = {"xml/rtx-3080-v12.xml", "xml/tesla-t4.xml"}
MACHINES = {**TEXTS, **XMLS}


def server(path: str) -> FakeHost:
    """Return a host with the GPUs that nvidia-smi printed."""
    file, host = capture_path(f"nvidia-smi/{path}"), FakeHost()
    if path in TEXTS:
        printed = file.read_text()
        host.calls |= machine([text.row(printed, lines) for lines in text.gpus(printed)])
        return host
    log = xml.root(file)
    elements = log.findall("gpu")
    host.calls |= machine([xml.row(log, element) for element in elements])
    for index, element in enumerate(elements):
        host.calls |= shares(index, [], xml.mig_devices(element))
    return host


def expected_lanes(host: FakeHost) -> list[Reading]:
    gpus = GpuInventory()
    gpus.scan(host)
    found = readings(read_once(GpuPathSource(gpus=gpus), host).frame)
    return [r for (name, _), r in found.items() if name == c.GPU_PCIE_EXPECTED_WIDTH.name]


def link_verdicts(host: FakeHost) -> set[str]:
    """Return the link rules that a GPU violates."""
    run = VerdictSources(host)
    run.step()
    run.step()
    values = readings(run.frame)
    rules = {key[1] for (name, key), r in values.items() if name == REASON and r == 1}
    return rules & {"pcie_width", "pcie_generation"}


def test_every_captured_list_of_gpus_is_judged() -> None:
    capture_path("nvidia-smi")
    directory = CAPTURES / "nvidia-smi"
    found = {str(f.relative_to(directory)) for f in directory.glob("xml/*.xml")}
    found |= {str(f.relative_to(directory)) for f in directory.glob("gpud/nvidia-smi-query*")}
    assert found == set(MACHINES)


@pytest.mark.parametrize(("path", "gpus", "lanes"), [(p, *found) for p, found in MACHINES.items()])
def test_no_captured_link_is_judged_wrongly(path: str, gpus: int, lanes: Reading) -> None:
    host = server(path)
    assert expected_lanes(host) == [lanes] * gpus
    assert link_verdicts(host) == set()


@pytest.mark.parametrize(("model", "moment"), CASES, ids=[f"{c[21:30]}-{m}" for c, m in CASES])
def test_no_link_of_the_exporter_captures_is_judged_wrongly(model: str, moment: str) -> None:
    host = read_exporter_capture(model, moment).host
    assert expected_lanes(host) == [16 if "rtx" in model else UNKNOWN]
    assert link_verdicts(host) == set()


SLOTS = [(lanes, slot) for lanes in (4, 8, 16) for slot in (4, 8, 16) if lanes <= slot]


@pytest.mark.parametrize(("lanes", "slot"), SLOTS)
@pytest.mark.parametrize("path", MACHINES)
def test_in_a_slot_of_any_width_only_lost_lanes_count(path: str, lanes: int, slot: int) -> None:
    """The first GPU of each server, in a slot with fewer or more lanes than it uses."""
    host = server(path)
    bus_id = host.calls["nvml.nvmlDeviceGetPciInfo(0)"]["busId"]
    address, port = bus_id[-12:].lower(), "0000:f0:01.0"
    speed = _speed(host)
    add_gpu(host, f"pci0000:f0/{port}/{address}")
    set_link(host, port, f"{speed}x{lanes}", f"{speed}x{slot}")
    set_link(host, address, f"{speed}x{lanes}", f"{speed}x16")
    host.calls["nvml.nvmlDeviceGetCurrPcieLinkWidth(0)"] = lanes
    first = expected_lanes(host)[0]
    is_bare_metal = path not in GUESTS
    assert first == (slot if is_bare_metal else UNKNOWN)
    assert ("pcie_width" in link_verdicts(host)) == (is_bare_metal and lanes < slot)


def _speed(host: FakeHost) -> float:
    """Gigatransfers per second of the link that NVML reports for the first GPU."""
    generation = host.calls["nvml.nvmlDeviceGetCurrPcieLinkGeneration(0)"]
    return {1: 2.5, 2: 5, 3: 8, 4: 16, 5: 32}[generation]
