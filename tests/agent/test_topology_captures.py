"""The table of distances of captured nodes is that which `nvidia-smi topo -m` printed there."""

from __future__ import annotations

import re

import pytest
from support import nvidia_smi_csv as csv, nvidia_smi_links as links
from support.exporter_capture import CASES, DIRECTORY, read_moment
from support.machine import FakeHost
from support.nvidia_smi import machine
from support.pci_bus import GPU, NVIDIA, add_device, add_gpu
from support.shared import capture_path

from railscope_agent.topology.distance_matrix import format_matrix
from railscope_agent.topology.node_topology import read_topology
from railscope_agent.topology.pci import pci_address
from railscope_agent.topology.rail_rules import RailRules

MODELS = sorted({model for model, _ in CASES})
ESCAPES = re.compile(r"\x1b\[\d*m")
SWITCH = 2


@pytest.mark.parametrize("model", MODELS)
def test_the_table_is_that_of_nvidia_smi(model: str) -> None:
    """CPUs and NUMA node are added to the tree as printed, the GPU at its address."""
    capture = capture_path(f"{DIRECTORY}/{model}.txt").read_text()
    printed = ESCAPES.sub("", csv.section(capture, "capabilities :: topo -m")) + "\n"
    (row,) = [line.split("\t") for line in printed.splitlines() if line.startswith("GPU0")]
    case = read_moment(model, "idle")
    address = pci_address(case.row["pci.bus_id"])
    host = case.host
    path = f"pci{address[:7]}/{address}"
    add_device(host, path, GPU, (NVIDIA, "0x2330"), numa_node=row[3], local_cpulist=row[2])
    assert format_matrix(read_topology(host, RailRules())) == printed


@pytest.mark.parametrize(
    ("file", "count"),
    [("azure-good_nvlink_status.txt", 1), ("gpud/nvidia-smi.nvlink.status.a100", 8)],
)
def test_bonds_of_gpus_at_nvswitches(file: str, count: int) -> None:
    """Output of `nvidia-smi nvlink --status` for A100s, whose links all lead to switches."""
    printed = links.status(capture_path(f"nvidia-smi/{file}").read_text())
    gpus = list({gpu.index: gpu for gpu in printed}.values())
    assert len(gpus) >= count
    host = FakeHost()
    host.calls |= machine([gpu.row for gpu in gpus])
    for place, gpu in enumerate(gpus):
        host.calls |= links.links(place, gpu.links)
        for link in range(len(gpu.links)):
            host.calls[f"nvml.nvmlDeviceGetNvLinkRemoteDeviceType({place},{link})"] = SWITCH
        add_gpu(host, f"pci0000:00/{pci_address(gpu.row['pci.bus_id'])}")
    node = read_topology(host, RailRules())
    distances = {
        node.format_distance(one.address, other.address) for one in node.gpus for other in node.gpus
    }
    assert distances == ({"X", "NV12"} if len(gpus) > 1 else {"X"})
