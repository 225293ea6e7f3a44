"""The table of `nvidia-smi topo -m`, the tree, and the command that shows them."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st
from support import cases, nvidia_smi_csv as csv, nvidia_smi_links as links
from support.exporter_capture import CASES, DIRECTORY, read_moment
from support.gpus import add_gpus
from support.machine import FakeHost
from support.nvidia_smi import machine
from support.pci_bus import GPU, NVIDIA, add_device, add_gpu, add_nic, set_link
from support.reading import read_once
from support.shared import capture_path

from railscope.cli import root as railscope
from railscope_agent.commands.capture_walk import CaptureWalk
from railscope_agent.sources.nic_counters import NicSource
from railscope_agent.sources.nvidia.gpu_devices import GpuSource
from railscope_agent.sources.rdma import RdmaSource
from railscope_agent.topology.distance_matrix import create_matrix, format_matrix
from railscope_agent.topology.gpu_links import count_bonded_links, read_gpu_links as look_at_links
from railscope_agent.topology.node_topology import NodeTopology, read_topology
from railscope_agent.topology.pci import pci_address
from railscope_agent.topology.rail_rules import RailRules
from railscope_agent.topology.topology_report import as_json, as_text
from railscope_simulator import SHORT_NAMES, NodeSpec, simulate

MODELS = sorted({model for model, _ in CASES})
ESCAPES = re.compile(r"\x1b\[\d*m")
SWITCH, PEER = 2, 0


# Real tables --------------------------------------------------------------------------------------


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


def dgx1() -> FakeHost:
    """GPUs linked straight to each other, as in a DGX-1: bonds of one and of two."""
    host = FakeHost()
    add_gpus(host, 4)
    peers = {0: (1, 2, 3, 3), 1: (0, 2, 2, 3), 2: (0, 1, 1, 3), 3: (0, 0, 1, 2)}
    for gpu, others in peers.items():
        add_gpu(host, f"pci0000:00/0000:00:0{gpu}.0/0000:0{gpu + 1}:00.0")
        host.calls[f"nvml.nvmlDeviceGetFieldValues({gpu},91)"] = [0, 4]
        for link, other in enumerate(others):
            host.calls[f"nvml.nvmlDeviceGetNvLinkState({gpu},{link})"] = 1
            host.calls[f"nvml.nvmlDeviceGetNvLinkRemoteDeviceType({gpu},{link})"] = PEER
            remote = {"busId": f"00000000:0{other + 1}:00.0"}
            host.calls[f"nvml.nvmlDeviceGetNvLinkRemotePciInfo({gpu},{link})"] = remote
    return host


def cells(node: NodeTopology) -> list[list[str]]:
    _, rows = create_matrix(node)
    return [row[1 : 1 + len(rows)] for row in rows]


def test_bonds_of_gpus_linked_to_each_other() -> None:
    assert cells(read_topology(dgx1(), RailRules())) == [
        ["X", "NV1", "NV1", "NV2"],
        ["NV1", "X", "NV2", "NV1"],
        ["NV1", "NV2", "X", "NV1"],
        ["NV2", "NV1", "NV1", "X"],
    ]


def test_links_that_sleep_bond_like_active_ones() -> None:
    host = dgx1()
    for gpu in range(4):
        for link in range(4):
            host.calls[f"nvml.nvmlDeviceGetFieldValues({gpu},165:{link})"] = [0, 2]
    assert cells(read_topology(host, RailRules())) == cells(read_topology(dgx1(), RailRules()))


def test_links_that_are_down_bond_nothing() -> None:
    host = dgx1()
    for link in (2, 3):
        host.calls[f"nvml.nvmlDeviceGetNvLinkState(0,{link})"] = 0
        host.calls[f"nvml.nvmlDeviceGetNvLinkState(3,{link - 2})"] = 0
    assert cells(read_topology(host, RailRules()))[0] == ["X", "NV1", "NV1", "PHB"]


def test_without_a_driver_there_are_distances_only() -> None:
    host = dgx1()
    host.calls.clear()
    node = read_topology(host, RailRules())
    assert {distance for row in cells(node) for distance in row} == {"X", "PHB"}
    assert node.gpus[0].model == "10de:2330"


def test_a_gpu_with_missing_links_is_bonded_by_the_others() -> None:
    host = FakeHost()
    add_gpus(host, 2)
    for gpu, count in ((0, 18), (1, 16)):
        host.calls[f"nvml.nvmlDeviceGetFieldValues({gpu},91)"] = [0, 18]
        for link in range(18):
            host.calls[f"nvml.nvmlDeviceGetFieldValues({gpu},165:{link})"] = [0, int(link < count)]
            host.calls[f"nvml.nvmlDeviceGetNvLinkRemoteDeviceType({gpu},{link})"] = SWITCH
    found = count_bonded_links(look_at_links(host))
    assert set(found.values()) == {16}


# Simulated servers --------------------------------------------------------------------------------


@cache
def simulated(name: str) -> NodeTopology:
    model = SHORT_NAMES[name]
    spec = NodeSpec("gpu-001", model=model.name, gpus=model.per_node)
    return read_topology(CaptureWalk(simulate(spec, 1, 1)).host, RailRules())


@pytest.mark.parametrize("name", SHORT_NAMES)
def test_tables_are_symmetric_and_every_rail_has_its_nic(name: str) -> None:
    node = simulated(name)
    distances = cells(node)
    assert distances == [list(column) for column in zip(*distances, strict=True)]
    assert [row[place] for place, row in enumerate(distances)] == ["X"] * len(distances)
    count = len(node.gpus)
    assert list(node.network.gpu_rails.values()) == list(range(count))
    assert sorted(d.rail for d in node.network.devices if d.rail is not None) == list(range(count))


@pytest.mark.parametrize(
    ("name", "near", "bond"),
    [("h100", "PIX", "NV18"), ("gb200", "P2C", "NV18"), ("a100", "PIX", "NV12")],
)
def test_nics_of_simulated_servers(name: str, near: str, bond: str) -> None:
    node = simulated(name)
    for gpu in node.gpus:
        nic = node.network.device_at(node.network.nic_by_gpu[gpu.address])
        assert node.format_distance(gpu.address, nic.address) == near
        assert nic.rail == gpu.index
    assert node.format_distance(node.gpus[0].address, node.gpus[-1].address) == bond


def test_the_rails_of_a_gb200_tray_are_those_of_its_compute_nics() -> None:
    found = {d.rdma[0]: d.rail for d in simulated("gb200").network.devices if d.rdma}
    assert found == {
        "mlx5_0": 0, "mlx5_1": 1, "mlx5_2": None, "mlx5_4": 2, "mlx5_5": 3, "mlx5_6": None,
    }  # fmt: skip
    assert "  P2C  = Connection traversing C2C" in format_matrix(simulated("gb200"))
    assert "P2C" not in format_matrix(simulated("h100"))


def test_sources_report_the_rails_of_a_gb200_tray() -> None:
    model = SHORT_NAMES["gb200"]
    host = CaptureWalk(simulate(NodeSpec("gpu-001", model=model.name, gpus=4), 1, 1)).host
    for source, kind in (
        (RdmaSource(), "rdma_port"),
        (NicSource(), "nic"),
        (GpuSource.load(), "gpu"),
    ):
        frame = read_once(source, host).frame
        assert frame is not None
        entities = [e for e in frame.schema.entities if e.kind.name == kind]
        rails = sorted(e.facts["rail"] for e in entities if "rail" in e.facts)
        assert rails == ["0", "1", "2", "3"]


def test_nics_are_in_the_order_of_their_numbers() -> None:
    legend = format_matrix(simulated("h100")).partition("NIC Legend:")[2].split()
    assert legend[1::2] == [f"mlx5_{n}" for n in (0, 1, 3, 4, 5, 6, 7, 9, 10, 11)]


def test_the_text_shows_the_tree_and_the_reason_of_each_assignment() -> None:
    text = as_text(simulated("h100"))
    assert (
        "  pci0000:3d\n"
        "    0000:3d:01.0 root port, 32 GT/s x16\n"
        "      0000:3e:00.0 switch, 32 GT/s x16\n"
        "        0000:3f:00.0 switch port, 32 GT/s x16\n"
        "          0000:40:00.0 nic mlx5_3 ens2f0np0 compute rail 1, 32 GT/s x16\n"
        "        0000:3f:02.0 switch port, 32 GT/s x16\n"
        "          0000:43:00.0 GPU1 NVIDIA H100 80GB HBM3, 32 GT/s x16\n"
    ) in text
    assert (
        "  GPU1 NVIDIA H100 80GB HBM3: rail 1\n    mlx5_3 ens2f0np0 0000:40:00.0: PIX to GPU 1\n"
    ) in text
    assert "  mlx5_1 ens21f0np0 0000:29:00.0: storage; RDMA, not a rail: distance NODE" in text
    assert "nvswitch, 5 GT/s x2" in text
    assert "nvme, 16 GT/s x4" in text
    assert "P2C, NUMA node 0 and bus order" in as_text(simulated("gb200"))


def test_a_link_below_its_most_shows_both() -> None:
    host = FakeHost()
    add_gpu(host, "pci0000:00/0000:00:01.0/0000:01:00.0")
    set_link(host, "0000:01:00.0", "8x4", "32x16")
    assert "0000:01:00.0 GPU0 10de:2330, 8 of 32 GT/s x4 of 16" in as_text(
        read_topology(host, RailRules())
    )


def test_a_shared_nic_is_shown_with_each_of_its_gpus() -> None:
    host = FakeHost()
    switch = "pci0000:10/0000:10:01.0/0000:11:00.0"
    for port in range(2):
        add_gpu(host, f"{switch}/0000:12:0{port}.0/0000:2{port}:00.0")
    add_nic(host, f"{switch}/0000:12:03.0/0000:30:00.0", "mlx5_0")
    add_nic(host, f"{switch}/0000:12:03.0/0000:30:00.1", "mlx5_1")
    text = as_text(read_topology(host, RailRules()))
    for gpu in range(2):
        assert f"GPU{gpu} 10de:2330: rail 0\n    mlx5_0 0000:30:00.0" in text
    assert text.count("mlx5_1 0000:30:00.1") == 1
    assert "GPUs 0, 1, in bus order" in text


def test_nics_of_a_server_without_gpus_have_no_role_in_the_text() -> None:
    host = FakeHost()
    add_nic(host, "pci0000:15/0000:15:01.0/0000:18:00.0", "mlx5_0")
    add_nic(host, "pci0000:00/0000:00:03.0", interface="eth0")
    text = as_text(read_topology(host, RailRules()))
    assert "Rails:" not in text
    assert "\n  mlx5_0 0000:18:00.0: role unknown; the node has no GPU\n" in text
    assert "\n  eth0 0000:00:03.0: role unknown; the node has no GPU\n" in text
    assert "NIC0\t X \n" in text


def test_control_characters_in_a_name_are_escaped() -> None:
    host = FakeHost()
    add_nic(host, "pci0000:00/0000:00:03.0", "mlx5\x1b[2J", interface="eth\x1b[31m\u202e0")
    text = as_text(read_topology(host, RailRules()))
    assert text.replace("\n", "").replace("\t", "").isprintable()
    assert r"mlx5\x1b[2J eth\x1b[31m\u202e0 0000:00:03.0" in text
    assert r"NIC0: mlx5\x1b[2J" in text


def test_ports_without_a_numa_node_are_listed_with_their_devices() -> None:
    host = FakeHost()
    add_nic(host, "pci0000:40/0000:40:03.0/0000:43:00.0", "mlx5_0", numa_node="2")
    host.files["/sys/devices/pci0000:40/0000:40:03.0/numa_node"] = "-1"
    text = as_text(read_topology(host, RailRules()))
    assert text.count("0000:40:03.0") == 1
    assert text.startswith("NUMA node 2\n  pci0000:40\n    0000:40:03.0 root port")


@given(st.permutations(range(4)))
def test_gpus_are_in_the_order_of_the_driver(order) -> None:
    host = FakeHost()
    add_gpus(host, 4)
    for index, place in enumerate(order):
        add_gpu(host, f"pci0000:00/0000:00:0{place}.0/0000:0{place + 1}:00.0")
        pci_info = {"busId": f"00000000:0{place + 1}:00.0"}
        host.calls[f"nvml.nvmlDeviceGetPciInfo({index})"] = pci_info
    node = read_topology(host, RailRules())
    assert [gpu.address for gpu in node.gpus] == [f"0000:0{place + 1}:00.0" for place in order]
    assert [gpu.index for gpu in node.gpus] == [0, 1, 2, 3]


def test_json_is_the_same_as_plain_data() -> None:
    shown = json.loads(json.dumps(as_json(simulated("h100"))))
    assert shown["matrix"]["rows"]["GPU0"][:2] == ["X", "NV18"]
    assert shown["gpus"][3]["nics"] == ["0000:5e:00.0"]
    assert {d["role"] for d in shown["network"]} == {"compute", "storage", "management"}
    (nic,) = [d for d in shown["devices"] if d["address"] == "0000:5e:00.0"]
    assert nic["link"]["megatransfers_per_second"] == 32_000
    assert nic["path"][0] == "0000:5b:01.0"
    assert shown["problems"] == []


# The command --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("tray") / "capture"
    simulate(NodeSpec("gpu-001", model=SHORT_NAMES["gb200"].name, gpus=4), 1, 1).write(directory)
    return str(directory)


def run(*distances: str) -> tuple[int, str]:
    result = CliRunner().invoke(railscope, ["agent", "topology", *distances])
    return result.exit_code, result.output


def test_the_command_shows_a_capture(capture: str) -> None:
    code, text = run("--replay", capture)
    assert (code, text) == (0, as_text(simulated("gb200")))
    code, text = run("--replay", capture, "--format", "json")
    assert (code, json.loads(text)) == (0, as_json(simulated("gb200")))


def test_of_a_capture_the_command_shows_the_end() -> None:
    """A NIC lost during the capture is in no tree and in no metrics."""
    code, text = run("--replay", str(cases.CASES / "nic-lost"))
    assert code == 0
    assert "mlx5_5" not in text
    assert "0000:5e:00.0" not in text
    assert re.search(r"GPU3 .*: rail 3, without a NIC nearby", text)


def test_the_command_takes_the_settings(capture: str, tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text("[topology]\nrails = { mlx5_0 = 2, mlx5_4 = 0, mlx5_9 = 1 }\n")
    code, text = run("--replay", capture, "--config", str(config))
    assert code == 0
    assert text.endswith("Names in the settings without a device on this node:\n  mlx5_9\n")
    assert "GPU0 NVIDIA GB200: rail 2" in text
    assert "P2C, topology.rails contains mlx5_4" in text


def test_settings_that_do_not_fit_the_server_are_reported(capture: str, tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text("[topology]\nrails = { mlx5_4 = 0 }\n")
    code, text = run("--replay", capture, "--config", str(config))
    assert code == 1
    assert "Invalid settings:\n  conflicting rail 0 of mlx5_0" in text


def test_an_empty_tree_has_an_empty_table(tmp_path: Path) -> None:
    code, text = run("--root", str(tmp_path))
    assert code == 0
    assert text.startswith("\n\n\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n")
