"""Assignment of NICs to GPUs: servers of every kind, and properties of all of them."""

from __future__ import annotations

from hypothesis import given, strategies as st
from support.pci_trees import BRIDGES, plant

from railscope_agent.topology.pci import PciPlace
from railscope_agent.topology.pci_distance import RAIL_REACH, distance_between
from railscope_agent.topology.rails import RailAssignment, RailNic, assign_rails

CX7, STORAGE = "15b3:1021 InfiniBand", "15b3:a2dc Ethernet"


def address(bus: int, function: int = 0) -> str:
    return f"0000:{bus:02x}:00.{function}"


def at_switch(switch: str, bus: int, numa_node: str = "0") -> PciPlace:
    """A device at a switch; names of switches begin with that of their root port."""
    root = switch[0]
    chain = (f"root {root}", f"up {switch}", f"down {switch} {bus}", address(bus))
    return PciPlace(f"pci {root}", chain, numa_node)


def make_nic(place: PciPlace, model: str = CX7, *, has_other_purpose: bool = False) -> RailNic:
    return RailNic(place, model, has_other_purpose)


def rails(found: RailAssignment, *nics: RailNic) -> list[int | None]:
    positions = [found.assigned.get(nic.place.address) for nic in nics]
    return [None if position is None else found.rails[position.gpu] for position in positions]


# Servers ----------------------------------------------------------------------------------------


def test_each_gpu_has_a_nic_at_its_switch_and_storage_has_none() -> None:
    gpus = [at_switch(chr(97 + n), 16 * n + 3, str(n // 4)) for n in range(8)]
    nics = [make_nic(at_switch(chr(97 + n), 16 * n, str(n // 4))) for n in range(8)]
    storage = make_nic(PciPlace("pci z", ("root z", address(200)), "0"))
    found = assign_rails(gpus, [storage, *reversed(nics)])
    assert rails(found, *nics, storage) == [*range(8), None]
    assert found.rails == tuple(range(8))
    assert found.assigned[address(16)].reason == "PIX to GPU 1"
    assert found.why_not[address(200)] == "distance NODE to the nearest GPU exceeds PXB"


def test_a_missing_nic_moves_no_rail() -> None:
    gpus = [at_switch(chr(97 + n), 16 * n + 3) for n in range(4)]
    nics = [make_nic(at_switch(chr(97 + n), 16 * n)) for n in range(4)]
    storage = make_nic(PciPlace("pci z", ("root z", address(200)), "0"))
    found = assign_rails(gpus, [nics[0], nics[2], nics[3], storage])
    assert rails(found, nics[0], nics[2], nics[3], storage) == [0, 2, 3, None]
    assert found.nics == (address(0), "", address(32), address(48))


def pairs_of_gpus() -> list[PciPlace]:
    return [at_switch("abcd"[n // 2], 8 * n + 3, str(n // 4)) for n in range(8)]


def test_two_nics_at_a_switch_with_two_gpus() -> None:
    """As a DGX A100 has them: all four are PIX or PXB to each other, and bus order decides."""
    nics = [make_nic(at_switch("abcd"[n // 2], 8 * n, str(n // 4))) for n in range(8)]
    extra = make_nic(at_switch("d", 250, "1"))
    found = assign_rails(pairs_of_gpus(), [*nics, extra])
    assert rails(found, *nics, extra) == [*range(8), None]
    assert found.assigned[address(0)].reason == "PIX to GPUs 0, 1, in bus order"
    assert "each GPU of this node has 1 NIC" in found.why_not[address(250)]


def test_one_nic_for_two_gpus() -> None:
    """Four NICs for eight GPUs are four rails, also if one NIC is missing."""
    nics = [make_nic(at_switch("abcd"[n], 16 * n, str(n // 2))) for n in range(4)]
    found = assign_rails(pairs_of_gpus(), nics)
    assert rails(found, *nics) == [0, 1, 2, 3]
    assert found.rails == (0, 0, 1, 1, 2, 2, 3, 3)
    assert found.nics == tuple(address(16 * (n // 2)) for n in range(8))
    fewer = assign_rails(pairs_of_gpus(), [nics[0], *nics[2:]])
    assert rails(fewer, *nics) == [0, None, 2, 3]
    assert fewer.rails == found.rails


def test_two_nics_for_four_gpus_of_two_chained_switches() -> None:
    """As in a DGX-2: PIX to two GPUs and PXB to two more; a missing NIC moves no rail."""

    def at(root: str, switch: str, bus: int) -> PciPlace:
        chain = (f"root {root}", f"up {root}", f"down {switch}", f"up {switch}", f"down {bus}")
        return PciPlace(f"pci {root}", (*chain, address(bus)), "0")

    gpus = [at("ab"[n // 4], f"{'ab'[n // 4]}{n // 2}", 8 * n + 3) for n in range(8)]
    nics = [make_nic(at("ab"[n // 2], f"{'ab'[n // 2]}{n}", 16 * n)) for n in range(4)]
    found = assign_rails(gpus, nics)
    assert rails(found, *nics) == [0, 1, 2, 3]
    assert found.rails == (0, 0, 1, 1, 2, 2, 3, 3)
    assert rails(assign_rails(gpus, nics[1:]), *nics) == [None, 1, 2, 3]


def test_gpus_share_the_nics_of_their_switch_evenly() -> None:
    gpus = [at_switch("a", 8 * n + 3) for n in range(4)]
    nics = [make_nic(at_switch("a", 8 * n)) for n in range(2)]
    found = assign_rails(gpus, nics)
    assert rails(found, *nics) == [0, 1]
    assert found.nics == (address(0), address(8), address(0), address(8))
    assert found.rails == (0, 1, 0, 1)


def test_several_nics_per_gpu_are_planes_of_one_rail() -> None:
    """Four NICs per GPU; a fifth on one server, or a missing one, changes nothing."""
    gpus = [at_switch(chr(97 + n), 16 * n + 9) for n in range(4)]
    nics = [make_nic(at_switch(chr(97 + n), 16 * n + k)) for n in range(4) for k in range(4)]
    fifth = make_nic(at_switch("b", 16 + 5))
    found = assign_rails(gpus, [*nics, fifth])
    assert rails(found, *nics, fifth) == [*(n for n in range(4) for _ in range(4)), None]
    planes = [found.assigned[nic.place.address].plane for nic in nics]
    assert planes == [0, 1, 2, 3] * 4
    fewer = assign_rails(gpus, nics[1:])
    assert rails(fewer, *nics) == [None, 0, 0, 0, *(n for n in range(1, 4) for _ in range(4))]


def test_a_nic_of_another_model_is_assigned_last_and_is_not_a_plane() -> None:
    gpus = [at_switch(chr(97 + n), 16 * n + 9) for n in range(3)]
    nics = [make_nic(at_switch(chr(97 + n), 16 * n + 1)) for n in range(3)]
    dpus = [make_nic(at_switch(chr(97 + n), 16 * n), STORAGE) for n in range(2)]
    found = assign_rails(gpus, [*dpus, *nics])
    assert rails(found, *nics, *dpus) == [0, 1, 2, None, None]


def test_the_nic_of_the_default_route_is_assigned_last() -> None:
    gpus = [at_switch("a", 9)]
    busy, idle = make_nic(at_switch("a", 0), has_other_purpose=True), make_nic(at_switch("a", 1))
    assert rails(assign_rails(gpus, [busy, idle]), busy, idle) == [None, 0]
    assert rails(assign_rails(gpus, [busy]), busy) == [0], "the only NIC"


def tray(numa_nodes: str, nics: int) -> tuple[list[PciPlace], list[RailNic]]:
    """Return GPUs and NICs, each on its own host bridge."""
    gpus = [PciPlace(f"gpu{n}", (address(100 + n),), node) for n, node in enumerate(numa_nodes)]
    found = [
        make_nic(PciPlace(f"nic{n}", (address(2 * n),), node))
        for n, node in enumerate(numa_nodes * nics)
    ]
    return gpus, found


def test_on_a_tray_with_grace_processors_numa_node_and_order_decide() -> None:
    gpus, nics = tray("0011", 1)
    dpus = [make_nic(PciPlace(f"dpu{n}", (address(50 + n),), str(n)), STORAGE) for n in range(2)]
    found = assign_rails(gpus, [*dpus, *nics])
    assert rails(found, *nics, *dpus) == [0, 1, 2, 3, None, None]
    assert found.assigned[address(2)].reason.startswith("NUMA node 0 and bus order")
    assert "most NICs are of model" in found.why_not[address(50)]


def test_a_tray_with_a_missing_nic_is_not_guessed() -> None:
    """The GPU of a single NIC for two GPUs is undecidable; those of the other processor are clear."""
    gpus, nics = tray("0011", 1)
    found = assign_rails(gpus, nics[1:])
    assert rails(found, *nics) == [None, None, 2, 3]
    assert found.rails == (0, 1, 2, 3)
    assert "NUMA node 0 has 1 NIC for 2 GPUs" in found.why_not[address(2)]


def test_without_numa_nodes_nothing_is_guessed() -> None:
    gpus, nics = tray("0", 1)
    lost = [make_nic(PciPlace("nic", (address(0),)))]
    assert assign_rails(gpus, lost).assigned == {}
    assert "NUMA node is unknown" in assign_rails(gpus, lost).why_not[address(0)]
    busy = [make_nic(nics[0].place, has_other_purpose=True)]
    assert assign_rails(gpus, busy).assigned == {}


def test_below_one_host_bridge_only_a_switch_decides() -> None:
    """A virtual machine that shows everything on one bus."""
    gpus = [PciPlace("pci0", (f"root {n}", address(n)), "0") for n in range(2)]
    nics = [make_nic(PciPlace("pci0", (f"root {n}", address(n)), "0")) for n in range(8, 10)]
    found = assign_rails(gpus, nics)
    assert found.assigned == {}
    assert found.why_not[address(8)] == "distance PHB to the nearest GPU exceeds PXB"


def test_without_gpus_no_nic_is_assigned() -> None:
    assert assign_rails([], []).rails == ()
    alone = make_nic(at_switch("a", 0))
    assert assign_rails([], [alone]).why_not == {address(0): "the node has no GPU"}
    assert assign_rails([at_switch("a", 3)], []).rails == (0,)


# Any server -------------------------------------------------------------------------------------


@st.composite
def servers(draw) -> tuple[list[PciPlace], list[RailNic]]:
    places = plant(draw(BRIDGES)).places
    kinds = draw(st.lists(st.sampled_from("gcs"), min_size=len(places), max_size=len(places)))
    gpus = [place for place, kind in zip(places, kinds, strict=True) if kind == "g"]
    nics = [
        make_nic(place, CX7 if kind == "c" else STORAGE, has_other_purpose=draw(st.booleans()))
        for place, kind in zip(places, kinds, strict=True)
        if kind in "cs"
    ]
    return gpus, nics


@given(servers())
def test_each_rail_of_a_plane_is_given_once(server) -> None:
    gpus, nics = server
    found = assign_rails(gpus, nics)
    given_ = [(found.rails[one.gpu], one.plane) for one in found.assigned.values()]
    assert len(set(given_)) == len(given_)
    assert set(found.assigned).isdisjoint(found.why_not)
    assert {*found.assigned, *found.why_not} == {nic.place.address for nic in nics}


@given(servers())
def test_every_seat_is_near_or_by_numa_node(server) -> None:
    gpus, nics = server
    found = assign_rails(gpus, nics)
    places = {nic.place.address: nic.place for nic in nics}
    bridges = {gpu.bridge for gpu in gpus}
    for name, one in found.assigned.items():
        gpu = gpus[one.gpu]
        if distance_between(gpu, places[name]) > RAIL_REACH:
            assert gpu.numa_node == places[name].numa_node != ""
            assert places[name].bridge not in bridges


@given(servers())
def test_no_gpu_lacks_a_nic_while_a_near_one_is_free(server) -> None:
    gpus, nics = server
    found = assign_rails(gpus, nics)
    for nic in nics:
        if nic.place.address in found.why_not:
            near = [
                n for n, gpu in enumerate(gpus) if distance_between(gpu, nic.place) <= RAIL_REACH
            ]
            assert all(found.nics[n] for n in near)


@given(servers(), st.randoms())
def test_the_order_of_discovered_nics_moves_nothing(server, dice) -> None:
    gpus, nics = server
    shuffled = list(nics)
    dice.shuffle(shuffled)
    assert assign_rails(gpus, shuffled) == assign_rails(gpus, nics)


@given(servers(), st.data())
def test_a_nic_far_from_all_gpus_changes_no_rail(server, data) -> None:
    gpus, nics = server
    found = assign_rails(gpus, nics)
    if not any(distance_between(g, c.place) <= RAIL_REACH for g in gpus for c in nics):
        return
    far = RailNic(
        PciPlace("far", ("0000:ff:00.0",), "7"), data.draw(st.sampled_from([CX7, STORAGE]))
    )
    again = assign_rails(gpus, [*nics, far])
    assert again.assigned == found.assigned
    assert again.rails == found.rails
