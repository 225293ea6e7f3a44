"""Role of a network device, from distances, names, routes and its own attributes."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from support.machine import DENIED, FakeHost
from support.pci_bus import (
    BLUEFIELD3,
    CONNECTX7,
    DEVICES,
    MELLANOX,
    add_device,
    add_gpu,
    add_nic,
    name_rdma,
)
from support.reading import read_once

from railscope_agent.sources.nic_counters import NicSource
from railscope_agent.sources.rdma import RdmaSource
from railscope_agent.topology import pci
from railscope_agent.topology.default_routes import default_interfaces
from railscope_agent.topology.network import NetworkScanner
from railscope_agent.topology.network_device import NodeNetwork
from railscope_agent.topology.network_interface import InterfaceKind

DGX_H100 = {
    0: (0x18, "mlx5_0", "ibp24s0"), 1: (0x40, "mlx5_3", "ibp64s0"), 2: (0x4F, "mlx5_4", "ibp79s0"),
    3: (0x5E, "mlx5_5", "ibp94s0"), 4: (0x9A, "mlx5_6", "ibp154s0"), 5: (0xC0, "mlx5_9", "ibp192s0"),
    6: (0xCE, "mlx5_10", "ibp206s0"), 7: (0xDC, "mlx5_11", "ibp220s0"),
}  # fmt: skip
"""Bus, RDMA device and interface of each rail (NVIDIA DGX H100 User Guide, "Network Modules")."""
ROUTES = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
SW_MNG = b"\x82\x1a\x00ConnectX-7 \x90\x20\x00V2\x06SW_MNGV3\x04abcd"


def add_rail(host: FakeHost, number: int, name: str, interface: str = "") -> str:
    """Add a GPU and a NIC at one switch; return the address of the NIC."""
    bus, numa_node = DGX_H100[number][0], str(number // 4)
    root = f"pci0000:{bus - 3:02x}/0000:{bus - 3:02x}:01.0/0000:{bus - 2:02x}:00.0"
    add_gpu(host, f"{root}/0000:{bus - 1:02x}:02.0/0000:{bus + 3:02x}:00.0", numa_node)
    path = f"{root}/0000:{bus - 1:02x}:00.0/0000:{bus:02x}:00.0"
    return add_nic(host, path, name, interface=interface, numa_node=numa_node)


def add_lone_nic(host: FakeHost, bus: int, name: str = "", **given: object) -> str:
    """Add a NIC at its own root port."""
    return add_nic(
        host, f"pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0", name, **given
    )  # type: ignore[arg-type]


def dgx_h100() -> FakeHost:
    host = FakeHost()
    for number, (_, name, interface) in DGX_H100.items():
        add_rail(host, number, name, interface)
    for bus, numa_node, names in (
        (0x28, "0", ("mlx5_1", "mlx5_2")),
        (0xA9, "1", ("mlx5_7", "mlx5_8")),
    ):
        for function, name in enumerate(names):
            path = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.{function}"
            add_nic(host, path, name, numa_node=numa_node, link_layer="Ethernet")
    return host


def by_name(network: NodeNetwork) -> dict[str, tuple[str, int | None]]:
    return {(d.rdma or d.interfaces)[0]: (d.role, d.rail) for d in network.devices}


def scan(host: FakeHost) -> dict[str, tuple[str, int | None]]:
    return by_name(NetworkScanner().scan(host))


def route(host: FakeHost, *routes: tuple[str, int]) -> None:
    lines = [f"{i} 00000000 0100A8C0 0003 0 0 {metric} 00000000 0 0 0\n" for i, metric in routes]
    host.files["/proc/net/route"] = (
        ROUTES + "eth7 0000A8C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\n" + "".join(lines)
    )


# Servers ------------------------------------------------------------------------------------------


def test_the_rails_of_a_dgx_h100_are_not_the_numbers_of_its_devices() -> None:
    found = scan(dgx_h100())
    expected = {name: ("compute", number) for number, (_, name, _) in DGX_H100.items()}
    expected |= dict.fromkeys(("mlx5_1", "mlx5_2", "mlx5_7", "mlx5_8"), ("storage", None))
    assert found == expected


@given(st.permutations(range(12)), st.permutations([name for _, _, name in DGX_H100.values()]))
def test_no_renaming_moves_a_rail(numbers, interfaces) -> None:
    names = [device.rdma[0] for device in NetworkScanner().scan(dgx_h100()).devices]
    fresh = {name: f"mlx5_{number}" for name, number in zip(names, numbers, strict=True)}
    host = dgx_h100()
    renamed = FakeHost()
    renamed.files = {_renamed(path, fresh): text for path, text in host.files.items()}
    links = {_renamed(path, fresh): place for path, place in host.links.items()}
    nets = [path for path in links if path.startswith("/sys/class/net/")]
    places = [links.pop(path) for path in nets]
    links |= {
        f"/sys/class/net/{name}/device": place
        for name, place in zip(interfaces, places, strict=True)
    }
    renamed.links = links
    before, after = NetworkScanner().scan(host), NetworkScanner().scan(renamed)
    assert {d.address: (d.role, d.rail) for d in before.devices} == {
        d.address: (d.role, d.rail) for d in after.devices
    }
    assert before.nic_by_gpu == after.nic_by_gpu


def _renamed(path: str, fresh: dict[str, str]) -> str:
    parts = path.split("/")
    return "/".join(fresh.get(part, part) for part in parts)


def hgx_b200() -> FakeHost:
    """14 RDMA devices: 8 rails, 4 ports for storage, and 2 functions that lead to NVSwitches."""
    host = FakeHost()
    for number in range(8):
        add_rail(host, number, f"mlx5_{number + 4}")
    for place, bus in enumerate((0x28, 0xA9)):
        for function in range(2):
            path = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.{function}"
            name = f"mlx5_{2 * place + function}"
            add_nic(host, path, name, link_layer="Ethernet", model=(MELLANOX, BLUEFIELD3))
    for place, bus in enumerate((0x70, 0x72)):
        address = add_lone_nic(host, bus, f"mlx5_{12 + place}", model=(MELLANOX, CONNECTX7))
        host.files[f"{host.links[f'{DEVICES}/{address}']}/vpd"] = SW_MNG.decode("latin-1")
    return host


def test_eight_of_the_fourteen_devices_of_an_hgx_b200_are_rails() -> None:
    found = scan(hgx_b200())
    assert len(found) == 14
    assert {name: number for name, (_, number) in found.items() if number is not None} == {
        f"mlx5_{number + 4}": number for number in range(8)
    }
    assert found["mlx5_12"] == found["mlx5_13"] == ("bridge", None)
    assert {found[f"mlx5_{n}"] for n in range(4)} == {("storage", None)}


def test_bridges_to_nvswitches_are_described_and_not_measured() -> None:
    frame = read_once(RdmaSource(), hgx_b200()).frame
    assert frame is not None
    measured = {entity.key[0] for _, entity in frame.schema.columns}
    described = {e.key[0]: e.facts.get("role") for e in frame.schema.columnless_entities}
    assert described == {"mlx5_12": "bridge", "mlx5_13": "bridge"}
    assert measured == {f"mlx5_{n}" for n in range(12)}


def test_the_interface_of_a_bridge_is_not_measured() -> None:
    host = FakeHost()
    add_rail(host, 0, "mlx5_0")
    address = add_lone_nic(host, 0x70, "mlx5_1", interface="ibp113s0")
    host.files[f"{host.links[f'{DEVICES}/{address}']}/vpd"] = SW_MNG.decode("latin-1")
    host.calls["ethtool.driver(ibp113s0)"] = {
        "driver": "mlx5_core", "version": "", "firmware": "", "bus": address,
    }  # fmt: skip
    host.calls["ethtool.statistics(ibp113s0)"] = {"names": ["rx_bytes_phy"], "values": [1]}
    inventory = NicSource().probe(host)
    assert inventory.columns == ()
    assert [entity.facts["role"] for entity in inventory.columnless_entities] == ["bridge"]


def test_a_bridge_at_the_switch_of_a_gpu_takes_no_rail() -> None:
    host = FakeHost()
    address = add_rail(host, 0, "mlx5_1")
    path = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:17:00.1"
    bridge = add_nic(host, path, "mlx5_0")
    host.files[f"{host.links[f'{DEVICES}/{bridge}']}/vpd"] = SW_MNG.decode("latin-1")
    assert scan(host) == {"mlx5_0": ("bridge", None), "mlx5_1": ("compute", 0)}
    assert address > bridge, "it would have been the first"


def test_product_data_is_read_once_and_only_of_possible_bridges() -> None:
    host, asked = hgx_b200(), []
    for path in list(host.links.values()):
        host.files[f"{path}/vpd"] = lambda path=path: asked.append(path) or "ConnectX-7"
    wiring = NetworkScanner()
    wiring.scan(host)
    assert len(asked) == 10, "eight rails and two that may be bridges; not the BlueFields"
    host.clock.advance(60)
    wiring.scan(host)
    assert len(asked) == 10


def test_product_data_that_may_not_be_read_makes_no_bridge() -> None:
    host = FakeHost()
    address = add_rail(host, 0, "mlx5_0")
    host.files[f"{host.links[f'{DEVICES}/{address}']}/vpd"] = DENIED
    wiring = NetworkScanner()
    assert by_name(wiring.scan(host)) == {"mlx5_0": ("compute", 0)}
    host.files[f"{host.links[f'{DEVICES}/{address}']}/vpd"] = SW_MNG.decode("latin-1")
    host.clock.advance(60)
    assert by_name(wiring.scan(host)) == {"mlx5_0": ("bridge", None)}, "the agent has become root"


def test_sources_that_probe_together_share_one_scan() -> None:
    host, wiring = hgx_b200(), NetworkScanner()
    first = wiring.scan(host)
    assert wiring.scan(host) is first
    add_lone_nic(host, 0x90, "mlx5_14")
    second = wiring.scan(host)
    assert len(second.devices) == len(first.devices) + 1, "a new device is seen at once"
    host.clock.advance(1)
    assert wiring.scan(host) is not second
    assert wiring.scan(host) == second
    assert wiring.scan(hgx_b200()) == first


def test_a_gb200_tray() -> None:
    """Each NIC in its own PCI domain, with ports of the BlueFields between them (Mission Control)."""
    host = FakeHost()
    for domain, numa_node in (("0008", "0"), ("0009", "0"), ("0018", "1"), ("0019", "1")):
        add_gpu(host, f"pci{domain}:00/{domain}:00:00.0/{domain}:01:00.0", numa_node)
    for domain, name, numa_node in (
        ("0000", "mlx5_0", "0"),
        ("0002", "mlx5_1", "0"),
        ("0010", "mlx5_4", "1"),
        ("0012", "mlx5_5", "1"),
    ):
        path = f"pci{domain}:00/{domain}:00:00.0/{domain}:01:00.0/{domain}:02:00.0/{domain}:03:00.0"
        add_nic(host, path, name, numa_node=numa_node)
    for domain, numbers, numa_node in (("0006", (2, 3), "0"), ("0016", (6, 7), "1")):
        for function, number in enumerate(numbers):
            path = f"pci{domain}:00/{domain}:00:00.0/{domain}:01:00.{function}"
            model = (MELLANOX, BLUEFIELD3)
            add_nic(
                host,
                path,
                f"mlx5_{number}",
                numa_node=numa_node,
                model=model,
                link_layer="Ethernet",
            )
    compute = {f"mlx5_{n}": ("compute", r) for r, n in enumerate((0, 1, 4, 5))}
    storage = {f"mlx5_{n}": ("storage", None) for n in (2, 3, 6, 7)}
    assert scan(host) == compute | storage
    assert list(NetworkScanner().scan(host).gpu_rails.values()) == [0, 1, 2, 3]


def grace_tray(nics: tuple[int, ...], gpus: tuple[int, ...] = (0, 1, 2, 3)) -> FakeHost:
    """Two GPUs, two rail NICs and a NIC for storage of the same model at each processor: 0 to 2, and 3 to 5."""
    host = FakeHost()
    for gpu in gpus:
        domain = f"{0x10 * (gpu // 2) + 8 + gpu % 2:04x}"
        add_gpu(host, f"pci{domain}:00/{domain}:00:00.0/{domain}:01:00.0", str(gpu // 2))
    for nic in nics:
        domain = f"{0x10 * (nic // 3) + nic % 3 * 2:04x}"
        path = f"pci{domain}:00/{domain}:00:00.0/{domain}:01:00.0"
        add_nic(host, path, f"mlx5_{nic}", numa_node=str(nic // 3))
    return host


def test_a_nic_that_vanishes_moves_no_rail() -> None:
    wiring = NetworkScanner()
    roles = by_name(wiring.scan(grace_tray((0, 1, 2, 3, 4, 5))))
    assert roles["mlx5_4"] == ("compute", 3)
    assert roles["mlx5_2"] == roles["mlx5_5"] == ("storage", None)
    without = wiring.scan(grace_tray((0, 1, 2, 3, 5)))
    del roles["mlx5_4"]
    assert by_name(without) == roles
    assert [*without.gpu_rails.values()] == [0, 1, 2, 3]
    assert without.nic_by_gpu["0019:01:00.0"] == ""
    assert wiring.scan(grace_tray((0, 1, 2, 3, 4, 5))).nic_by_gpu["0019:01:00.0"] == "0012:01:00.0"


def test_a_gpu_that_vanishes_moves_no_rail() -> None:
    wiring = NetworkScanner()
    before = wiring.scan(grace_tray((0, 1, 2, 3, 4, 5)))
    after = wiring.scan(grace_tray((0, 1, 2, 3, 4, 5), gpus=(1, 2, 3)))
    assert by_name(after) == by_name(before)
    assert [*after.gpu_rails.values()] == [1, 2, 3]


def test_a_nic_at_another_address_is_other_hardware() -> None:
    """A NIC has been moved to another slot: its old place has no rail any more."""
    wiring = NetworkScanner()
    wiring.scan(grace_tray((0, 1, 3, 4)))
    moved = wiring.scan(grace_tray((0, 2, 3, 4)))
    assert by_name(moved)["mlx5_2"] == ("compute", 1)


def test_two_ports_of_a_nic_are_two_planes_of_one_rail() -> None:
    host = FakeHost()
    for number in range(2):
        first = add_rail(host, number, f"mlx5_{2 * number}")
        second = host.links[f"{DEVICES}/{first}"].removeprefix("/sys/devices/")[:-1] + "1"
        add_nic(host, second, f"mlx5_{2 * number + 1}")
    found = [(d.rail, d.plane) for d in NetworkScanner().scan(host).devices]
    assert found == [(0, 0), (0, 1), (1, 0), (1, 1)]


def bonded_port(other: str, device: str, gids: str = "bond0") -> FakeHost:
    """A GPU and a NIC whose ports ens1 and ens2 are bonded; only function `device` has an RDMA device."""
    host = FakeHost()
    add_rail(host, 0, "mlx5_bond_0", "ens1")
    add_nic(host, f"{DGX_FIRST}.{other}", interface="ens2", link_layer="Ethernet")
    host.links["/sys/class/infiniband/mlx5_bond_0/device"] = f"/sys/devices/{DGX_FIRST}.{device}"
    host.files["/sys/class/infiniband/mlx5_bond_0/ports/1/gid_attrs/ndevs/0"] = gids
    host.files["/sys/class/net/bonding_masters"] = "bond0"
    host.files["/sys/class/net/bond0/bonding/slaves"] = "ens1 ens2"
    return host


DGX_FIRST = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00"


@pytest.mark.parametrize("device", ["0", "1"])
def test_bonded_ports_share_their_rdma_device_and_its_rail(device: str) -> None:
    network = NetworkScanner().scan(bonded_port("1", device))
    found = {d.interfaces: (d.rdma, d.role, d.rail, d.plane) for d in network.devices}
    assert found == {
        ("ens1",): (("mlx5_bond_0",), "compute", 0, 0),
        ("ens2",): (("mlx5_bond_0",), "compute", 0, 1),
    }
    assert {i.name: i.rdma_port for i in network.interfaces.values()} == {"ens1": "1", "ens2": "1"}


def test_ports_of_a_team_share_their_rdma_device() -> None:
    """The team driver has no directory `bonding`: the kernel links each port to its master."""
    host = bonded_port("1", "0", "team0")
    del (
        host.files["/sys/class/net/bonding_masters"],
        host.files["/sys/class/net/bond0/bonding/slaves"],
    )
    host.files["/sys/devices/virtual/net/team0/ifindex"] = "9"
    for name in ("ens1", "ens2"):
        host.links[f"/sys/class/net/{name}/master"] = "/sys/devices/virtual/net/team0"
    assert [d.rail for d in NetworkScanner().scan(host).devices] == [0, 0]


@pytest.mark.parametrize("gids", ["ens1", "bond1", ""])
def test_an_rdma_device_without_the_bond_is_not_shared(gids: str) -> None:
    devices = NetworkScanner().scan(bonded_port("1", "0", gids)).devices
    assert [d.rail for d in devices] == [0, None]


def test_a_bond_across_two_nics_shares_no_device() -> None:
    host = bonded_port("1", "0")
    lone = add_lone_nic(host, 0x60, interface="ens3", link_layer="Ethernet")
    host.files["/sys/class/net/bond0/bonding/slaves"] = "ens1 ens3"
    network = NetworkScanner().scan(host)
    assert network.device_at(lone).rdma == ()
    assert network.device_of("ens2").rail is None


# Network namespaces -------------------------------------------------------------------------------


def bind_driver(host: FakeHost, address: str, driver: str = "mlx5_core") -> None:
    place = host.links[f"{DEVICES}/{address}"]
    host.links[f"{place}/driver"] = f"/sys/bus/pci/drivers/{driver}"
    host.files[f"/sys/bus/pci/drivers/{driver}/module"] = ""


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        ("mlx5_core", "no interface in this network namespace"),
        ("vfio-pci", "driver vfio-pci has no network interface"),
        ("", "no driver is bound"),
    ],
)
def test_a_nic_without_names_has_a_reason_and_no_role(driver: str, reason: str) -> None:
    host = FakeHost()
    bind_driver(host, add_rail(host, 0, "mlx5_0", "ens1"))
    address = add_lone_nic(host, 0x60)
    if driver:
        bind_driver(host, address, driver)
    device = NetworkScanner().scan(host).device_at(address)
    assert (device.role, device.rail, device.reason) == ("", None, reason)


def test_a_nic_in_another_namespace_keeps_its_rail_until_it_returns() -> None:
    wiring, host = NetworkScanner(), FakeHost()
    address = add_rail(host, 0, "mlx5_0", "ens1")
    add_rail(host, 1, "mlx5_3", "ens2")
    before = wiring.scan(host)
    away = FakeHost()
    away.files = {path: text for path, text in host.files.items() if "mlx5_0" not in path}
    away.links = {p: to for p, to in host.links.items() if not {"mlx5_0", "ens1"} & {*p.split("/")}}
    moved = wiring.scan(away)
    device = moved.device_at(address)
    assert (device.role, device.rail) == ("compute", 0)
    assert device.reason == "no interface in this network namespace"
    assert [*moved.nic_by_gpu.values()] == ["", before.device_of("ens2").address]
    assert wiring.scan(host) == before


# Interfaces ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("port_name", "driver", "kind"),
    [
        ("p0", "mlx5_core", InterfaceKind.PORT),
        ("p0", "mlx5e_rep", InterfaceKind.PORT),
        ("l1p3s2", "mlxsw_spectrum", InterfaceKind.PORT),
        ("", "mlx5_core", InterfaceKind.PORT),
        ("pf0vf0", "bnxt_en", InterfaceKind.REPRESENTOR),
        ("c1pf0vf3", "mlx5_core", InterfaceKind.REPRESENTOR),
        ("pf0sf88", "mlx5e_rep", InterfaceKind.REPRESENTOR),
        ("pf0", "mlx5e_rep", InterfaceKind.REPRESENTOR),
        ("p0pf0vf1", "efx_ef100_rep", InterfaceKind.REPRESENTOR),
        ("", "mlx5e_rep", InterfaceKind.REPRESENTOR),
        ("3", "mlx5e_rep", InterfaceKind.REPRESENTOR),
    ],
)
def test_name_of_the_port_decides_on_representors(
    port_name: str, driver: str, kind: InterfaceKind
) -> None:
    host = FakeHost()
    address = add_lone_nic(host, 0x60, "mlx5_0", interface="eth0")
    host.files["/sys/class/net/eth0/phys_port_name"] = port_name
    host.calls["ethtool.driver(eth0)"] = {"driver": driver, "firmware": "", "bus": address}
    network = NetworkScanner().scan(host)
    assert network.interfaces["eth0"].kind is kind
    assert network.device_at(address).interfaces == (
        ("eth0",) if kind is InterfaceKind.PORT else ()
    )


def test_parts_and_stacked_interfaces_are_no_ports() -> None:
    host = FakeHost()
    place = f"/sys/devices/{DGX_FIRST}.0"
    add_rail(host, 0, "mlx5_0", "ens1")
    host.links["/sys/class/net/en3s88/device"] = f"{place}/mlx5_core.sf.2"
    host.links["/sys/class/infiniband/mlx5_4/device"] = f"{place}/mlx5_core.sf.2"
    host.files[f"{place}/mlx5_core.sf.2/sfnum"] = "88"
    host.links["/sys/class/net/vdpa5/device"] = f"{place}/mlx5_core.sf.3/vdpa0/virtio3"
    host.links["/sys/class/net/ens1.8001/device"] = place
    host.files |= {"/sys/class/net/ens1.8001/ifindex": "5", "/sys/class/net/ens1.8001/iflink": "4"}
    usb = "/sys/devices/pci0000:00/0000:00:14.0/usb1/1-2/1-2:1.0"
    host.links["/sys/class/net/usb0/device"] = usb
    host.files |= {f"{usb}/bInterfaceClass": "0a", "/sys/class/net/vlan5/mtu": "1500"}
    network = NetworkScanner().scan(host)
    assert network.ports == ["ens1", "usb0"]
    for name in ("en3s88", "mlx5_4"):
        assert network.device_of(name).facts == {"role": "virtual_function"}
    assert network.device_of("ens1").facts == {"role": "compute", "rail": "0"}
    assert network.interfaces["usb0"].function == ""


# Roles --------------------------------------------------------------------------------------------


def test_virtual_functions_of_this_server_are_not_its_nics() -> None:
    host = FakeHost()
    address = add_rail(host, 0, "mlx5_0")
    place = host.links[f"{DEVICES}/{address}"]
    virtual = add_nic(host, place.removeprefix("/sys/devices/")[:-1] + "1", "mlx5_1")
    host.links[f"{host.links[f'{DEVICES}/{virtual}']}/physfn"] = place
    assert scan(host) == {"mlx5_0": ("compute", 0), "mlx5_1": ("virtual_function", None)}


def test_the_default_route_makes_management() -> None:
    host = FakeHost()
    add_rail(host, 0, "mlx5_0", "ib0")
    add_lone_nic(host, 0x60, "mlx5_1", interface="ens1", link_layer="Ethernet")
    add_lone_nic(host, 0x62, "mlx5_2", interface="ens2", link_layer="Ethernet")
    route(host, ("ens2", 200), ("ens1", 100))
    expected = {
        "mlx5_0": ("compute", 0),
        "mlx5_1": ("management", None),
        "mlx5_2": ("storage", None),
    }
    assert scan(host) == expected


def test_a_bond_and_a_vlan_lead_to_their_interfaces() -> None:
    host = FakeHost()
    route(host, ("bond0.100", 0))
    host.files |= {
        "/sys/class/net/bond0.100/lower_bond0/mtu": "", "/sys/class/net/bond0/lower_ens1/mtu": "",
        "/sys/class/net/bond0/lower_ens2/mtu": "", "/sys/class/net/ens1/mtu": "",
    }  # fmt: skip
    assert default_interfaces(host) == {"bond0.100", "bond0", "ens1", "ens2"}


@pytest.mark.parametrize(
    ("flags", "length", "expected"),
    [("00000003", "00", {"eth0"}), ("00000200", "00", set()), ("00000003", "40", set())],
)
def test_a_server_of_ipv6_only(flags: str, length: str, expected: set[str]) -> None:
    host = FakeHost()
    zeros = "0" * 32
    lines = [
        f"{zeros} {length} {zeros} 00 {zeros} 00000400 00000001 00000000 {flags} {name}"
        for name in ("lo", "eth0")
    ]
    host.files["/proc/net/ipv6_route"] = "\n".join([*lines, "garbage", ""])
    assert default_interfaces(host) == expected


def test_a_server_without_routes() -> None:
    assert default_interfaces(FakeHost()) == set()


def test_the_only_nic_of_a_gpu_is_its_rail_even_with_the_default_route() -> None:
    host = FakeHost()
    add_rail(host, 0, "mlx5_0", "eth0")
    route(host, ("eth0", 0))
    assert scan(host) == {"mlx5_0": ("compute", 0)}


@pytest.mark.parametrize(
    ("speed", "role"),
    [("100000", "storage"), ("40000", "storage"), ("1000", "management"), ("-1", "management")],
)
def test_nics_without_rdma_by_their_speed(speed: str, role: str) -> None:
    host = FakeHost()
    add_rail(host, 0, "mlx5_0")
    add_lone_nic(host, 0x60, interface="eth1", link_layer="Ethernet")
    host.files["/sys/class/net/eth1/speed"] = speed
    assert scan(host)["eth1"] == (role, None)


def test_without_gpus_nics_have_no_role() -> None:
    host = FakeHost()
    add_lone_nic(host, 0x60, "mlx5_0", interface="eth1")
    assert scan(host) == {"mlx5_0": ("", None)}
    assert not NetworkScanner().scan(host).devices[0].facts


def test_parts_of_a_function_are_not_the_function() -> None:
    """Sub-functions of mlx5 are devices below the PCI function (auxiliary bus)."""
    host = FakeHost()
    address = add_rail(host, 0, "mlx5_0", "ens1")
    place = host.links[f"{DEVICES}/{address}"]
    host.files[f"{place}/mlx5_core.sf.2/sfnum"] = "88"
    host.links["/sys/class/infiniband/mlx5_2/device"] = f"{place}/mlx5_core.sf.2"
    host.links["/sys/class/net/en1s88/device"] = f"{place}/mlx5_core.sf.2"
    (device,) = NetworkScanner().scan(host).devices
    assert device.names == ("mlx5_0", "ens1", address)


def test_sources_report_role_and_rail() -> None:
    host = FakeHost()
    address = add_rail(host, 0, "mlx5_0", "ens1")
    name_rdma(host, "mlx5_0", address, "Ethernet")
    host.calls["ethtool.driver(ens1)"] = {
        "driver": "mlx5_core", "version": "", "firmware": "28.39", "bus": address,
    }  # fmt: skip
    host.calls["ethtool.statistics(ens1)"] = {"names": ["rx_bytes_phy"], "values": [1]}
    for source in (NicSource(), RdmaSource()):
        frame = read_once(source, host).frame
        assert frame is not None
        (facts,) = [dict(entity.facts) for entity in frame.schema.entities]
        assert (facts["role"], facts["rail"]) == ("compute", "0")


def test_a_connectx_3_is_a_nic() -> None:
    """Its PCI class is that of other network controllers (0x0280)."""
    host = FakeHost()
    add_device(host, "pci0000:00/0000:00:01.0/0000:01:00.0", "0x028000", (MELLANOX, "0x1003"))
    assert pci.read_role(host, "0000:01:00.0") == pci.NIC
