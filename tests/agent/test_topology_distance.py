"""Distances: the formula over paths against a walk through the tree."""

from __future__ import annotations

from itertools import combinations_with_replacement

import pytest
from hypothesis import given
from support.machine import FakeHost
from support.pci_bus import add_device, add_gpu, add_nic
from support.pci_trees import BRIDGES, plant, walked_distance

from railscope_agent.topology import pci
from railscope_agent.topology.pci import PciPlace, bus_order, pci_address
from railscope_agent.topology.pci_distance import PciDistance, c2c_distance, distance_between


@given(BRIDGES)
def test_the_formula_is_the_walk_through_the_tree(bridges) -> None:
    tree = plant(bridges)
    for one, other in combinations_with_replacement(tree.places, 2):
        expected = walked_distance(tree, one, other)
        assert distance_between(one, other) is distance_between(other, one) is expected


@given(BRIDGES)
def test_no_detour_is_nearer_than_the_worst_of_its_parts(bridges) -> None:
    """Property that makes assigning the nearest pairs first optimal."""
    known = [place for place in plant(bridges).places if place.numa_node]
    for one, other in combinations_with_replacement(known, 2):
        for between in known:
            parts = distance_between(one, between), distance_between(between, other)
            if max(parts) <= PciDistance.PXB:
                assert distance_between(one, other) <= PciDistance.PXB


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("a/b/c", "a/b/d", PciDistance.PIX),
        ("a/b/c/d", "a/x/y/z", PciDistance.PXB),
        ("a/b", "c/d", PciDistance.PHB),
        ("a/b/c/d/e/f", "a/b/g/h", PciDistance.PXB),  # one switch below the other
    ],
)
def test_distances_by_bridges_between(one: str, other: str, expected: PciDistance) -> None:
    places = [PciPlace("pci0", tuple(path.split("/")), "0") for path in (one, other)]
    assert distance_between(*places) is expected


def test_unknown_numa_nodes_are_not_the_same() -> None:
    one, other = PciPlace("pci0", ("a",)), PciPlace("pci1", ("a",))
    assert distance_between(one, other) is PciDistance.SYS


def test_over_c2c_everything_of_the_processor_is_near() -> None:
    gpu = PciPlace("pci0008:00", ("0008:00:00.0", "0008:01:00.0"), "0")
    near = PciPlace("pci0000:00", ("0000:00:00.0", "0000:03:00.0"), "0")
    far = PciPlace("pci0010:00", ("0010:00:00.0", "0010:03:00.0"), "1")
    assert (c2c_distance(gpu, near), c2c_distance(gpu, far)) == (
        PciDistance.P2C,
        PciDistance.SYS,
    )
    assert PciDistance.PXB < PciDistance.P2C < PciDistance.PHB, "as NCCL orders them"


def test_places_and_roles_from_sysfs() -> None:
    host = FakeHost()
    gpu = add_gpu(host, "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1b:00.0", "1")
    nic = add_nic(host, "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0")
    console = add_device(
        host, "pci0000:00/0000:00:02.0/0000:01:00.0", "0x030000", ("0x1a03", "0x2000")
    )  # ASPEED
    devices = pci.read_pci_devices(host)
    chain = ("0000:15:01.0", "0000:16:00.0", "0000:17:02.0", "0000:1b:00.0")
    assert devices[gpu].place == PciPlace("pci0000:15", chain, "1")
    assert [d.address for d in pci.select_gpus(devices.values())] == [gpu]
    assert console not in devices, "a console's display chip is no GPU, nor anything else of ours"
    assert {d.role for d in devices.values()} == {"gpu", "nic", "bridge"}
    assert distance_between(devices[gpu].place, devices[nic].place) is PciDistance.PIX


def test_a_virtual_function_is_a_part_of_its_gpu_and_no_gpu() -> None:
    host = FakeHost()
    whole = add_gpu(host, "pci0000:15/0000:15:01.0/0000:1b:00.0")
    part = add_gpu(host, "pci0000:15/0000:15:01.0/0000:1b:00.4")
    assert pci.gpu_addresses(host) == [whole, part], "in a virtual machine it is the GPU"
    host.links[f"{host.links[f'{pci.DEVICES}/{part}']}/physfn"] = host.links[
        f"{pci.DEVICES}/{whole}"
    ]
    assert pci.gpu_addresses(host) == [whole]
    assert pci.gpu_functions(host) == {whole: whole, part: whole}
    assert (pci.read_role(host, whole), pci.read_role(host, part)) == (pci.GPU, "")
    assert part not in pci.read_pci_devices(host)


def test_a_device_that_went_away_is_near_nothing() -> None:
    lost = pci.read_place(FakeHost(), "0000:99:00.0")
    assert distance_between(lost, PciPlace("pci0", ("a",), "0")) is PciDistance.SYS


def test_addresses() -> None:
    assert pci_address("00000000:3B:00.0") == "0000:3b:00.0"
    assert pci_address("00010000:01:00.0") == "10000:01:00.0"
    assert min(["10000:01:00.0", "0009:01:00.0"], key=bus_order) == "0009:01:00.0"
