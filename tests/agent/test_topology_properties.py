"""Distances, rails and bandwidths of any PCI tree."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations_with_replacement

import pytest
from hypothesis import given, strategies as st
from support.pci_trees import BRIDGES, plant, walked_distance

from railscope.catalog.pcie import PATH_STEPS
from railscope_agent.topology.pci import PciPlace, bus_order, pci_address
from railscope_agent.topology.pci_distance import (
    RAIL_REACH,
    PciDistance,
    c2c_distance,
    distance_between,
)
from railscope_agent.topology.pcie_links import (
    DEGRADED,
    FULL,
    POWER_SAVING,
    PcieLink,
    PcieLinkState,
    link_bandwidth,
    list_path_links,
    path_bandwidth,
    path_limit,
    path_state,
)
from railscope_agent.topology.rails import RailNic, assign_rails

# Distances ----------------------------------------------------------------------------------------


@given(BRIDGES)
def test_the_distance_is_that_of_a_walk_through_the_tree(bridges) -> None:
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


def test_over_c2c_everything_of_the_processor_is_near() -> None:
    gpu = PciPlace("pci0008:00", ("0008:00:00.0", "0008:01:00.0"), "0")
    near = PciPlace("pci0000:00", ("0000:00:00.0", "0000:03:00.0"), "0")
    far = PciPlace("pci0010:00", ("0010:00:00.0", "0010:03:00.0"), "1")
    assert (c2c_distance(gpu, near), c2c_distance(gpu, far)) == (PciDistance.P2C, PciDistance.SYS)
    assert PciDistance.PXB < PciDistance.P2C < PciDistance.PHB, "as NCCL orders them"


def test_addresses() -> None:
    assert pci_address("00000000:3B:00.0") == "0000:3b:00.0"
    assert pci_address("00010000:01:00.0") == "10000:01:00.0"
    assert min(["10000:01:00.0", "0009:01:00.0"], key=bus_order) == "0009:01:00.0"


# Rails --------------------------------------------------------------------------------------------

CX7, STORAGE = "15b3:1021 InfiniBand", "15b3:a2dc Ethernet"


@st.composite
def servers(draw) -> tuple[list[PciPlace], list[RailNic]]:
    places = plant(draw(BRIDGES)).places
    kinds = draw(st.lists(st.sampled_from("gcs"), min_size=len(places), max_size=len(places)))
    gpus = [place for place, kind in zip(places, kinds, strict=True) if kind == "g"]
    nics = [
        RailNic(place, CX7 if kind == "c" else STORAGE, draw(st.booleans()))
        for place, kind in zip(places, kinds, strict=True)
        if kind in "cs"
    ]
    return gpus, nics


@given(servers(), st.randoms())
def test_each_rail_of_a_plane_is_given_once_to_a_near_nic_or_by_numa_node(server, dice) -> None:
    gpus, nics = server
    found = assign_rails(gpus, nics)
    given_ = [(found.rails[one.gpu], one.plane) for one in found.assigned.values()]
    assert len(set(given_)) == len(given_)
    assert set(found.assigned).isdisjoint(found.why_not)
    assert {*found.assigned, *found.why_not} == {nic.place.address for nic in nics}
    places = {nic.place.address: nic.place for nic in nics}
    for name, one in found.assigned.items():
        gpu = gpus[one.gpu]
        if distance_between(gpu, places[name]) > RAIL_REACH:
            assert gpu.numa_node == places[name].numa_node != ""
            assert places[name].bridge not in {gpu.bridge for gpu in gpus}
    assert assign_rails(gpus, dice.sample(nics, len(nics))) == found, "the order moves nothing"


@given(servers(), st.sampled_from([CX7, STORAGE]))
def test_no_gpu_lacks_a_near_nic_that_is_free_and_a_far_one_changes_nothing(server, model) -> None:
    gpus, nics = server
    found = assign_rails(gpus, nics)
    reach = {
        nic.place.address: [n for n, gpu in enumerate(gpus) if distance_between(gpu, nic.place) <= RAIL_REACH]
        for nic in nics
    }  # fmt: skip
    for name in found.why_not:
        assert all(found.nics[n] for n in reach[name])
    if any(reach.values()):
        again = assign_rails(gpus, [*nics, RailNic(PciPlace("far", ("0000:ff:00.0",), "7"), model)])
        assert (again.assigned, again.rails) == (found.assigned, found.rails)


# Links --------------------------------------------------------------------------------------------

SPEEDS = st.sampled_from([2500, 5000, 8000, 16000, 32000, 64000, 128000])
WIDTHS = st.sampled_from([1, 2, 4, 8, 16, 32])
LIMITS = st.tuples(SPEEDS, WIDTHS)


@pytest.mark.parametrize(
    ("megatransfers", "coding"),
    [
        (2_500, "8/10"), (5_000, "8/10"), (8_000, "128/130"), (16_000, "128/130"), (32_000, "128/130"),
        (64_000, "242/256"), (128_000, "242/256"),
    ],
)  # fmt: skip
def test_bandwidth_is_exact(megatransfers: int, coding: str) -> None:
    expected = megatransfers * 10**6 * 16 * Fraction(coding) / 8
    assert Fraction(link_bandwidth(megatransfers, 16), PATH_STEPS) == expected


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ("R", []),
        ("R n", ["R-n"]),
        ("R U D", ["R-U"]),  # below a port of a switch its own link begins
        ("R U D V E n", ["R-U", "D-V", "E-n"]),
        ("n", ["-n"]),  # a virtual machine shows no port
        ("vmd R n", ["R-n"]),  # Intel VMD: not a port
    ],
)
def test_links_between_a_device_and_the_processor(chain: str, expected: list[str]) -> None:
    addresses = chain.split()
    roles = {address: "bridge" for address in addresses if address.isupper()}
    assert [f"{link.upper}-{link.lower}" for link in list_path_links(addresses, roles)] == expected


@st.composite
def paths(draw) -> tuple[list[PcieLink], dict[str, PcieLinkState]]:
    """Links whose ends both report the link: it runs at the negotiated speed."""
    path, states = [], {}
    for number in range(draw(st.integers(1, 3))):
        upper, lower = draw(LIMITS), draw(LIMITS)
        speed = min(draw(SPEEDS), upper[0], lower[0])
        width = min(draw(WIDTHS), upper[1], lower[1])
        path.append(PcieLink(f"upper{number}", f"lower{number}"))
        states[f"upper{number}"] = PcieLinkState(speed, upper[0], width, upper[1])
        states[f"lower{number}"] = PcieLinkState(speed, lower[0], width, lower[1])
    return path, states


@given(paths())
def test_a_path_is_as_good_as_its_worst_link_and_sleep_excuses_speed_only(drawn) -> None:
    path, states = drawn
    ends = [(states[link.upper], states[link.lower]) for link in path]
    most = min(
        link_bandwidth(min(u.speed_limit, d.speed_limit), min(u.width_limit, d.width_limit))
        for u, d in ends
    )
    now = min(link_bandwidth(d.speed, d.width) for _, d in ends)
    at_speed = min(link_bandwidth(min(u.speed_limit, d.speed_limit), d.width) for u, d in ends)
    assert (path_limit(path, states), path_bandwidth(path, states)) == (most, now)
    assert path_state(path, states, lambda _: False) == (FULL if now == most else DEGRADED)
    asleep = DEGRADED if at_speed < most else FULL if now == most else POWER_SAVING
    assert path_state(path, states, lambda _: True) == asleep
