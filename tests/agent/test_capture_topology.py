"""PCI trees and topology files of real nodes: rails, and distances as in `nvidia-smi topo -m`."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import combinations
from pathlib import Path

import pytest
from support.machine import FakeHost
from support.pci_bus import DEVICES, add_device, name_rdma
from support.reading import read_once
from support.shared import capture_path, unpack_capture

from railscope_agent.config import TopologySettings
from railscope_agent.host.live_host import LiveHost
from railscope_agent.sources.pcie import PcieSource
from railscope_agent.topology import pci
from railscope_agent.topology.nccl_topology import NcclTopology
from railscope_agent.topology.nccl_xml import parse_nccl_topology
from railscope_agent.topology.network import NetworkScanner
from railscope_agent.topology.network_device import NodeNetwork
from railscope_agent.topology.node_topology import read_topology
from railscope_agent.topology.pci import RDMA_CLASS, gpu_addresses, pci_functions
from railscope_agent.topology.pci_distance import PciDistance, distance_between
from railscope_agent.topology.rail_rules import RailRules, parse_rail_rules

WESTMERE = "sysfs/hwloc/40intel64-2g2n4c+pcilocality.tar.bz2"
GB10 = "sysfs/hwloc/nvidia-dgx-gb10.tar.bz2"
PCI_AND_NICS = (
    r"/bus/pci/devices/|/class/infiniband/|/devices/pci.*/(class|vendor|numa_node|device)$"
)
FILES = [
    "aws-g5.48xl-topo.xml",
    "aws-p4d-24xl-topo.xml",
    "azure-ncv4-topo.xml",
    "azure-ndv4-topo.xml",
    "azure-ndv5-topo.xml",
    "rocm-topo_8p_940.xml",
]
EACH_FILE = pytest.mark.parametrize("name", FILES)
GPU_CLASSES, NIC_CLASSES = ("0x0302", "0x1200"), ("0x0200", "0x0207")


@pytest.fixture(scope="module")
def westmere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_capture(WESTMERE, tmp_path_factory.mktemp("westmere"), PCI_AND_NICS)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("0000:02:00.0", "0000:02:00.1", PciDistance.PIX),  # two ports of one NIC
        ("0000:02:00.0", "0000:03:00.0", PciDistance.PHB),  # two root ports of one host bridge
        ("0000:03:00.1", "0000:09:03.0", PciDistance.PHB),
        ("0000:02:00.0", "0000:43:00.0", PciDistance.SYS),  # the other socket
    ],
)
def test_distances_in_a_server_of_two_sockets(
    westmere: Path, one: str, other: str, expected: PciDistance
) -> None:
    places = [pci.read_place(LiveHost(westmere), address) for address in (one, other)]
    assert distance_between(*places) is distance_between(*reversed(places)) is expected


def test_nics_of_that_server_are_found(westmere: Path) -> None:
    host = LiveHost(westmere)
    assert pci_functions(host, RDMA_CLASS) == {"qib0": "0000:43:00.0"}
    assert gpu_addresses(host) == []
    network = NetworkScanner().scan(host)
    assert network.device_at("0000:43:00.0").facts == {}
    assert network.device_at("0000:43:00.0").reason == "the node has no GPU"


def test_a_tree_without_a_pci_bus_has_no_devices(tmp_path: Path) -> None:
    host = LiveHost(unpack_capture(GB10, tmp_path, "/(bus|class)(/|$)"))
    assert gpu_addresses(host) == []
    assert NetworkScanner().scan(host) == NodeNetwork()
    assert read_once(PcieSource(), host).problem == ""


# Topology files -----------------------------------------------------------------------------------


def topology_of(name: str) -> NcclTopology:
    return parse_nccl_topology(capture_path(f"topology/{name}").read_bytes())


def elements(name: str) -> list[tuple[ET.Element, list[str], str]]:
    """Return every PCI device of a file, with the addresses of its parents and the number of its CPU."""

    def below(element: ET.Element, above: list[str], cpu: str) -> None:
        for child in element.findall("pci"):
            found.append((child, above, cpu))
            below(child, [*above, child.attrib["busid"]], cpu)

    found: list[tuple[ET.Element, list[str], str]] = []
    tree = ET.parse(capture_path(f"topology/{name}"))  # noqa: S314 - a file of ours
    for cpu in tree.getroot().findall("cpu"):
        below(cpu, [], cpu.attrib["numaid"])
    return found


@EACH_FILE
def test_a_file_lists_every_device_and_its_numa_node(name: str) -> None:
    expected = {pci_.attrib["busid"]: numa for pci_, _, numa in elements(name)}
    assert {a: place.numa_node for a, place in topology_of(name).places.items()} == expected
    assert len(expected) >= 4


@EACH_FILE
def test_distances_follow_switches_and_cpus(name: str) -> None:
    """Distances match a direct reading of the nested elements."""
    places = topology_of(name).places
    ends = [entry for entry in elements(name) if not entry[0].findall("pci")]
    for (one, above, cpu), (other, above_other, cpu_other) in combinations(ends, 2):
        if cpu != cpu_other:
            expected = PciDistance.SYS
        elif above[:1] != above_other[:1] or not above:
            expected = PciDistance.PHB
        else:
            expected = PciDistance.PIX if above == above_other else PciDistance.PXB
        pair = [places[pci_.attrib["busid"]] for pci_ in (one, other)]
        assert distance_between(*pair) is distance_between(*reversed(pair)) is expected, (
            one,
            other,
        )


def test_cpus_links_and_names_of_a_file() -> None:
    aws, azure, rocm = (topology_of(FILES[number]) for number in (1, 2, 5))
    assert aws.cpus == {"0": "0-23,48-71", "1": "24-47,72-95"}
    assert azure.cpus["3"] == "72-95"
    assert azure.links == {}, "links of a GPU to itself are none"
    assert rocm.links["0000:0c:00.0", "0000:15:00.0"] == ("XGMI", 1)
    assert len(rocm.links) == 8 * 7
    assert rocm.networks["mlx5_7"] == "0000:da:00.0"


def guest(name: str, *, tree: bool = True) -> FakeHost:
    """Return the virtual machine of a file: all devices on one bus, or with the switches of the file."""
    host = FakeHost()
    for number, (pci_, above, cpu) in enumerate(elements(name)):
        address, class_ = pci_.attrib["busid"], pci_.get("class", "")
        if pci_.findall("pci"):
            continue
        ports = [port for switch in above for port in (switch, f"{switch[:-4]}{number:02x}.0")]
        path = [f"pci0000:{int(cpu):02x}", *ports] if tree else ["pci0000:00"]
        vendor = "0x1002" if class_.startswith("0x1200") else "0x10de"
        model = (pci_.get("vendor", vendor), pci_.get("device", "0x0001"))
        add_device(host, "/".join([*path, address]), class_, model, numa_node=cpu if tree else "-1")
        if class_.startswith(NIC_CLASSES):
            name_rdma(host, f"card{number}", address)
    return host


def network(host: FakeHost, tree: NcclTopology | None = None) -> NodeNetwork:
    return NetworkScanner(RailRules(tree=tree)).scan(host)


WITH_NICS = {
    "aws-p4d-24xl-topo.xml": (4, [0, 0, 1, 1, 2, 2, 3, 3]),
    "azure-ndv4-topo.xml": (8, list(range(8))),
    "azure-ndv5-topo.xml": (8, list(range(8))),
    "rocm-topo_8p_940.xml": (8, list(range(8))),
}


@pytest.mark.parametrize("name", WITH_NICS)
def test_rails_of_a_guest_are_those_of_its_file(name: str) -> None:
    """The tree built from a file matches the file, and each NIC is at its GPU."""
    nics, gpu_rails = WITH_NICS[name]
    flat = network(guest(name, tree=False), topology_of(name))
    built = network(guest(name))
    found = {d.address: d.rail for d in flat.devices}
    assert found == {d.address: d.rail for d in built.devices}
    assert sorted(found.values()) == list(range(nics))
    assert list(flat.gpu_rails.values()) == list(built.gpu_rails.values()) == gpu_rails
    switches = {p.attrib["busid"]: above[0] for p, above, _ in elements(name) if above}
    for gpu, nic in flat.nic_by_gpu.items():
        assert switches[gpu] == switches[nic]


@pytest.mark.parametrize("name", WITH_NICS)
def test_without_the_file_such_a_guest_shows_no_rails(name: str) -> None:
    found = network(guest(name, tree=False)).devices
    assert {device.rail for device in found} == {None}
    assert {device.role for device in found} == {""}, "they may be for GPUs"


@pytest.mark.parametrize("name", ["azure-ndv4-topo.xml", "azure-ndv5-topo.xml"])
def test_a_guest_with_a_bus_for_every_device_pairs_by_numa_node_as_its_file_does(name: str) -> None:
    """Azure gives each device its own domain and host bridge, and reports NUMA nodes."""
    host = FakeHost()
    for number, (pci_, _, cpu) in enumerate(elements(name)):
        address, class_ = pci_.attrib["busid"], pci_.get("class", "")
        if class_.startswith((*GPU_CLASSES, *NIC_CLASSES)):
            add_device(host, f"pci{address[:7]}/{address}", class_, numa_node=cpu)
        if class_.startswith(NIC_CLASSES):
            name_rdma(host, f"mlx5_{number}", address)
    by_numa_node, by_file = network(host), network(host, topology_of(name))
    assert by_numa_node.nic_by_gpu == by_file.nic_by_gpu
    assert by_numa_node.gpu_rails == by_file.gpu_rails


def test_the_file_of_the_settings_makes_the_table() -> None:
    name = "rocm-topo_8p_940.xml"
    file = capture_path(f"topology/{name}")
    node = read_topology(
        guest(name, tree=False), parse_rail_rules(TopologySettings(nccl_file=str(file)))
    )
    gpus, nics = [gpu.address for gpu in node.gpus], [nic.address for nic in node.nics]
    assert (len(gpus), len(nics)) == (8, 8)
    for place, gpu in enumerate(gpus):
        distances = [node.format_distance(gpu, nic) for nic in nics]
        expected = ["PHB" if place // 4 == other // 4 else "SYS" for other in range(8)]
        expected[place] = "PXB"
        assert distances == expected
        assert {node.format_distance(gpu, other) for other in gpus} == {"X", "XGMI1"}
        assert node.cpus[gpu] == topology_of(name).cpus[str(place // 4)]


def test_devices_absent_from_a_file_keep_their_place() -> None:
    name = "azure-ndv4-topo.xml"
    host = guest(name, tree=False)
    add_device(host, "pci0000:00/0000:00:02.0/0000:01:00.0", "0x010802", numa_node="0")
    node = read_topology(host, RailRules(tree=topology_of(name)))
    assert node.devices["0000:01:00.0"].place.bridge == "pci0000:00"
    assert f"{DEVICES}/0000:01:00.0" in host.links
