"""PCI trees of real machines: distances as `nvidia-smi topo -m` words them, and rails."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
from support.machine import FakeHost
from support.reading import read_once
from support.shared import captured, unpacked

from agent.host.real import RealHost
from agent.sources.pcie import Pcie
from agent.topology import Distance, distance, gpu_addresses, pci_path, rails, rdma_cards

DEVICES = "/sys/bus/pci/devices"
WESTMERE = "sysfs/hwloc/40intel64-2g2n4c+pcilocality.tar.bz2"
GB10 = "sysfs/hwloc/nvidia-dgx-gb10.tar.bz2"
PCI_AND_CARDS = (
    r"/bus/pci/devices/|/class/infiniband/|/devices/pci.*/(class|vendor|numa_node|device)$"
)
GPU_CLASS, CARD_CLASSES = "0x0302", ("0x0200", "0x0207")


@pytest.fixture(scope="module")
def westmere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(WESTMERE, tmp_path_factory.mktemp("westmere"), PCI_AND_CARDS)


def apart(host: RealHost | FakeHost, one: str, other: str) -> Distance:
    """The distance of two devices, their NUMA nodes read by plain means."""
    paths = [pci_path(host.resolve(f"{DEVICES}/{address}")) for address in (one, other)]
    nodes = [host.read(f"{DEVICES}/{address}/numa_node").strip() for address in (one, other)]
    return distance(*paths, same_numa_node=nodes[0] == nodes[1] != b"-1")


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("0000:02:00.0", "0000:02:00.1", Distance.PIX),  # two ports of one card
        ("0000:02:00.0", "0000:03:00.0", Distance.PHB),  # two root ports of one host bridge
        ("0000:03:00.1", "0000:09:03.0", Distance.PHB),
        ("0000:02:00.0", "0000:43:00.0", Distance.SYS),  # the other socket
    ],
)
def test_distances_in_a_server_of_two_sockets(
    westmere: Path, one: str, other: str, expected: Distance
) -> None:
    host = RealHost(westmere)
    assert apart(host, one, other) is apart(host, other, one) is expected


def test_cards_of_that_server_are_found(westmere: Path) -> None:
    host = RealHost(westmere)
    assert rdma_cards(host) == {"qib0": "0000:43:00.0"}
    assert gpu_addresses(host) == []
    assert rails(host, rdma_cards(host), ()) == {}


def test_a_tree_without_a_pci_bus_has_no_devices(tmp_path: Path) -> None:
    host = RealHost(unpacked(GB10, tmp_path, "/(bus|class)(/|$)"))
    assert (gpu_addresses(host), rdma_cards(host)) == ([], {})
    assert read_once(Pcie(), host).problem == ""


# Cloud machines, from the topology files their vendors give to NCCL ---------------------------------


def devices(element: ET.Element, path: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """Address, class and place in the tree of every PCI device below an element."""
    for pci in element.findall("pci"):
        address = pci.attrib["busid"]
        yield address, pci.attrib.get("class", ""), "/".join((*path, address))
        yield from devices(pci, (*path, address))


def machine(name: str) -> tuple[FakeHost, list[str], dict[str, str]]:
    """A host with the tree of a topology file, its GPUs in bus order and its cards."""
    host = FakeHost()
    gpus: list[str] = []
    cards: dict[str, str] = {}
    tree = ET.parse(captured(f"topology/{name}"))  # noqa: S314 - a file of ours
    for cpu in tree.getroot().findall("cpu"):
        node = cpu.attrib["numaid"]
        for address, class_, place in devices(cpu, ("/sys/devices", f"pci{node}")):
            host.files[f"{place}/numa_node"] = node
            host.links[f"{DEVICES}/{address}"] = place
            if class_.startswith(GPU_CLASS):
                gpus.append(address)
            elif class_.startswith(CARD_CLASSES):
                cards[f"card{len(cards)}"] = address
    return host, sorted(gpus), cards


def parent(host: FakeHost, address: str) -> str:
    return host.links[f"{DEVICES}/{address}"].rsplit("/", 1)[0]


@pytest.mark.parametrize("name", ["azure-ndv4-topo.xml", "azure-ndv5-topo.xml"])
def test_each_gpu_has_a_card_of_its_own_under_its_switch(name: str) -> None:
    host, gpus, cards = machine(name)
    found = rails(host, cards, gpus)
    assert sorted(found.values()) == list(range(8))
    for card, rail in found.items():
        assert parent(host, cards[card]) == parent(host, gpus[rail])


def test_two_gpus_share_a_card() -> None:
    """Four cards for eight GPUs: a card's rail is the first GPU under its switch."""
    host, gpus, cards = machine("aws-p4d-24xl-topo.xml")
    assert list(rails(host, cards, gpus).values()) == [0, 2, 4, 6]


@pytest.mark.parametrize(
    "name", ["azure-ndv4-topo.xml", "azure-ndv5-topo.xml", "aws-p4d-24xl-topo.xml"]
)
def test_distances_follow_switch_and_socket(name: str) -> None:
    host, gpus, cards = machine(name)
    for one, other in combinations([*gpus, *cards.values()], 2):
        same_switch = parent(host, one) == parent(host, other)
        same_socket = parent(host, one).split("/")[3] == parent(host, other).split("/")[3]
        expected = Distance.PIX if same_switch else Distance.PHB if same_socket else Distance.SYS
        assert apart(host, one, other) is expected, (one, other)


def test_a_card_far_from_every_gpu_has_no_rail() -> None:
    host, gpus, cards = machine("azure-ndv5-topo.xml")
    other_switch = [gpu for gpu in gpus if parent(host, gpu) != parent(host, cards["card0"])]
    assert rails(host, {"card0": cards["card0"]}, other_switch) == {}


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("pci0/a/b/c", "pci0/a/b/d", Distance.PIX),
        ("pci0/a/b/c/d", "pci0/a/x/y/z", Distance.PXB),
        ("pci0/a/b", "pci0/c/d", Distance.PHB),
        ("pci0/a", "pci1/a", Distance.NODE),
    ],
)
def test_distances_by_bridges_between(one: str, other: str, expected: Distance) -> None:
    assert distance(one.split("/"), other.split("/"), same_numa_node=True) is expected
