"""The verdict on the PCIe link of every captured server: right, or none; never a wrong one.

No GPU of these captures has lost a lane. The Tesla T4 has eight lanes of sixteen because its server wires only eight.
"""

from __future__ import annotations

import pytest
from support import nvidia_smi_text as text, nvidia_smi_xml as xml
from support.exporter_capture import CASES, read_moment as read_exporter_capture
from support.judging import REASON, VerdictSources
from support.machine import FakeHost
from support.nvidia_smi import machine
from support.nvidia_smi_shares import shares
from support.reading import read_once, readings
from support.shared import capture_path

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
