"""Places of NICs in the fabric: as switches announce themselves, or those of known links."""

from __future__ import annotations

from railscope.wire import WireEntity
from railscope_collector.diagnosis.devices import ClusterDevices

ENDS = {
    ("n1", "nic0"): ("leaf1", "1"),
    ("n2", "nic0"): ("leaf1", "2"),
    ("n3", "nic0"): ("leaf2", "1"),
}


def add(devices: ClusterDevices, node: str, switch: str = "", port: str = "") -> None:
    facts = {"rdma_device": "mlx5_0", "role": "compute", "rail": "0"}
    neighbour = {"switch": switch, "switch_port": port}
    entities = [
        WireEntity("nic", ("nic0",), facts),
        WireEntity("nic_neighbour", ("nic0",), neighbour),
    ]
    devices.add_entities(devices.node(node), entities)


def places(devices: ClusterDevices) -> list[tuple[str, str]]:
    return [(nic.switch, nic.switch_port) for nic in devices.nics]


def test_a_nic_without_lldp_is_at_the_port_of_its_link() -> None:
    devices = ClusterDevices(8, 4)
    add(devices, "n1")
    version = devices.version
    devices.place_nics(ENDS)
    assert places(devices) == [("leaf1", "1")]
    assert devices.version > version
    version = devices.version
    devices.place_nics(ENDS)
    assert devices.version == version


def test_the_announcement_of_a_switch_outranks_a_link() -> None:
    devices = ClusterDevices(8, 4)
    add(devices, "n1")
    devices.place_nics(ENDS)
    add(devices, "n1", "leaf3.example", "Ethernet3")
    devices.place_nics(ENDS)
    assert places(devices) == [("leaf3.example", "Ethernet3")]
    devices.place_nics({})
    assert places(devices) == [("leaf3.example", "Ethernet3")]


def test_a_port_has_the_name_that_its_switch_has_for_it_and_not_the_announced_alias() -> None:
    devices = ClusterDevices(8, 4)
    add(devices, "n1", "leaf1.example", "Ethernet2/1")
    devices.place_nics({("n1", "nic0"): ("leaf1", "Ethernet8")}, {("n1", "nic0")})
    assert places(devices) == [("leaf1.example", "Ethernet8")]
    version = devices.version
    devices.place_nics({("n1", "nic0"): ("leaf1", "Ethernet8")}, {("n1", "nic0")})
    assert devices.version == version


def test_a_link_that_is_no_longer_known_leaves_the_place_unknown() -> None:
    devices = ClusterDevices(8, 4)
    add(devices, "n1")
    devices.place_nics(ENDS)
    devices.place_nics({})
    assert places(devices) == [("", "")]


def test_a_switch_has_one_name_for_nics_with_and_without_lldp() -> None:
    """One node of three misstates the switch at its link: the name that most state counts."""
    devices = ClusterDevices(8, 4)
    ends = {(f"n{number}", "nic0"): ("leaf1", str(number)) for number in range(5)}
    for number, name in enumerate(("leaf2", "leaf1.example", "leaf1.example", "", "")):
        add(devices, f"n{number}", name, "Ethernet1" if name else "")
    devices.place_nics(ends)
    assert places(devices)[3:] == [("leaf1.example", "3"), ("leaf1.example", "4")]
