"""Neighbours as announced by switches: frames and their lifetime."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support import examples
from support.machine import FakeHost
from support.namespace import ip, network_namespace, veth_pair

from railscope_agent.host import Json
from railscope_agent.host.live_host import LiveHost
from railscope_agent.host.lldp import Lldp, open_socket, parse
from railscope_agent.host.netlink import Netlink
from railscope_agent.host.recording_host import RecordingHost
from railscope_agent.host.redactor import Redactor

HERE, THERE = "rs-here", "rs-there"
NS = 1_000_000_000
START = 1_000 * NS
NEAREST_BRIDGE = bytes.fromhex("0180c200000e")
SWITCH = bytes.fromhex("a088c2000001")


def part(kind: int, value: bytes) -> bytes:
    return struct.pack("!H", kind << 9 | len(value)) + value


def content(
    chassis: bytes = b"\x04" + SWITCH, port: bytes = b"\x05Ethernet1/1", ttl: int = 120
) -> bytes:
    """Return the mandatory parts of a frame: switch, port and lifetime."""
    return part(1, chassis) + part(2, port) + part(3, struct.pack("!H", ttl))


def frame(announcement: bytes, destination: bytes = NEAREST_BRIDGE) -> bytes:
    return destination + SWITCH + b"\x88\xcc" + announcement


END = part(0, b"")
FULL = b"".join(
    [
        content(),
        part(4, b"to gpu-1 rail 0"),
        part(5, b"leaf-1"),
        part(6, b"SONiC Software\nVersion: 202311\x00"),
        part(7, struct.pack("!HH", 0b10100, 0b10100)),
        part(8, bytes([5, 1, 10, 0, 0, 1, 2]) + struct.pack("!IB", 1001, 0)),
        part(8, bytes([17, 2]) + bytes(15) + b"\x01" + bytes(6)),
        part(127, bytes.fromhex("0080c201") + struct.pack("!H", 100)),
        part(127, bytes.fromhex("00120f04") + struct.pack("!H", 9216)),
        part(127, bytes.fromhex("0080c2ff")),
        part(9, b"reserved"),
        END,
    ]
)


def test_all_fields_that_a_switch_announces():
    assert parse(FULL + bytes(40)) == {
        "chassis": "a0:88:c2:00:00:01",
        "port": "Ethernet1/1",
        "ttl_seconds": 120,
        "port_description": "to gpu-1 rail 0",
        "system": "leaf-1",
        "system_description": "SONiC Software Version: 202311",
        "capabilities": ["bridge", "router"],
        "management_address": "10.0.0.1",
        "port_vlan": 100,
        "maximum_frame_bytes": 9216,
    }


def test_pfc_and_the_map_of_dscps_that_a_switch_announces() -> None:
    pfc = part(127, bytes.fromhex("0080c20b 08 48"))
    applications = part(127, bytes.fromhex("0080c20c 00 65001a c50030 618906"))
    neighbour = parse(content() + pfc + applications)
    assert neighbour
    assert neighbour["pfc_priorities"] == [3, 6]
    assert neighbour["dscp_priorities"] == ["3:26", "6:48"]


def test_fields_that_a_switch_does_not_announce_are_absent():
    neighbour = parse(content() + part(127, bytes.fromhex("0080c2010000")) + part(8, b"\x02\x01"))
    assert neighbour == {"chassis": "a0:88:c2:00:00:01", "port": "Ethernet1/1", "ttl_seconds": 120}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"\x04" + SWITCH, "a0:88:c2:00:00:01"),
        (b"\x05\x01\x0a\x00\x00\x01", "10.0.0.1"),
        (b"\x05\x02" + bytes(15) + b"\x01", "::1"),
        (b"\x07leaf-1", "leaf-1"),
        (b"\x07\xff\xfe", "ff:fe"),
        (b"\x07a\x00b", "61:00:62"),
        (b"\x06name\x00\x00", "name"),
    ],
)
def test_identifiers_of_a_chassis(value: bytes, expected: str):
    neighbour = parse(content(chassis=value))
    assert neighbour
    assert neighbour["chassis"] == expected


def test_an_identifier_of_a_port_has_other_kinds_than_one_of_a_chassis():
    neighbour = parse(content(port=b"\x03" + SWITCH))
    assert neighbour
    assert neighbour["port"] == "a0:88:c2:00:00:01"
    neighbour = parse(content(port=b"\x04\x01\x0a\x00\x00\x02"))
    assert neighbour
    assert neighbour["port"] == "10.0.0.2"


@pytest.mark.parametrize(
    "announcement",
    [
        b"",
        END,
        content()[2:],
        part(2, b"\x05Eth") + part(1, b"\x04" + SWITCH) + part(3, b"\0\x78"),
        content(chassis=b"\x04"),
        content(port=b""),
        part(1, b"\x04" + SWITCH) + part(2, b"\x05Eth") + part(3, b"\x78"),
        content() + part(3, b"\0\x78"),
        content() + part(5, b"leaf-1") + part(1, b"\x07other"),
        content()[:-1],
    ],
)
def test_invalid_announcements(announcement: bytes):
    assert parse(announcement) is None


def test_a_part_that_is_cut_off_ends_the_frame():
    neighbour = parse(content() + part(5, b"leaf-1") + part(6, b"description")[:-1])
    assert neighbour
    assert neighbour["system"] == "leaf-1"
    assert "system_description" not in neighbour


@given(st.binary(max_size=300))
def test_random_frames_are_read_or_passed_over(announcement: bytes):
    parse(announcement)


@given(st.binary(max_size=200))
def test_random_parts_behind_those_that_must_be_there(rest: bytes):
    neighbour = parse(content() + rest)
    assert neighbour is None or neighbour["chassis"] == "a0:88:c2:00:00:01"


PRINTABLE = st.text(examples.PRINTABLE_CHARACTERS, min_size=1, max_size=60)


@given(
    PRINTABLE,
    PRINTABLE,
    PRINTABLE,
    st.integers(0, 0xFFFF),
    st.integers(1, 0xFFFF),
    st.integers(0, 0x7FF),
)
def test_announced_fields_are_received_unchanged(  # noqa: PLR0913, PLR0917
    chassis: str, port: str, system: str, ttl: int, vlan: int, capabilities: int
):
    announcement = content(b"\x07" + chassis.encode(), b"\x07" + port.encode(), ttl)
    announcement += part(5, system.encode()) + part(7, struct.pack("!HH", 0x7FF, capabilities))
    announcement += part(127, bytes.fromhex("0080c201") + struct.pack("!H", vlan)) + END
    neighbour = parse(announcement)
    assert neighbour
    assert len(neighbour.pop("capabilities")) == capabilities.bit_count()
    assert neighbour == {
        "chassis": chassis,
        "port": port,
        "system": system,
        "ttl_seconds": ttl,
        "port_vlan": vlan,
    }


# Over a wire ------------------------------------------------------------------------------------


class VirtualCable:
    """A neighbour at the other end of a virtual cable, and a clock that a test sets."""

    def __init__(self, lldp: Lldp) -> None:
        self._lldp = lldp
        self.now_ns = START

    def send(
        self, *contents: bytes, destination: bytes = NEAREST_BRIDGE, ends: str = THERE
    ) -> None:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
            sender.bind((ends, 0))
            for announcement in contents:
                sender.send(frame(announcement, destination))

    def neighbours(self, after_seconds: float = 0) -> dict[str, dict[str, Any]]:
        self.now_ns += round(after_seconds * NS)
        return self._lldp.neighbours(self.now_ns)

    def ports(self, after_seconds: float = 0) -> dict[str, str]:
        return {
            name: neighbour["port"] for name, neighbour in self.neighbours(after_seconds).items()
        }


@pytest.fixture
def wire() -> Iterator[VirtualCable]:
    with network_namespace():
        veth_pair(HERE, THERE)
        netlink = Netlink()
        lldp = Lldp(netlink.ethernet_ports)
        wire = VirtualCable(lldp)
        assert wire.neighbours() == {}
        yield wire
        lldp.close()
        netlink.close()


def test_a_neighbour_is_received(wire: VirtualCable):
    wire.send(FULL)
    assert wire.neighbours(1) == {HERE: parse(FULL)}


def test_both_ends_of_a_cable_receive_each_others_frames(wire: VirtualCable):
    wire.send(content(port=b"\x05there"))
    wire.send(content(port=b"\x05here"), ends=HERE)
    assert wire.ports(1) == {HERE: "there", THERE: "here"}


def test_a_neighbour_is_forgotten_when_its_time_has_run_out(wire: VirtualCable):
    wire.send(content(ttl=120))
    assert wire.ports(5) == {HERE: "Ethernet1/1"}
    assert wire.ports(114.999_999_999) == {HERE: "Ethernet1/1"}
    assert wire.ports(0.000_000_001) == {}


def test_a_neighbour_that_sends_again_is_kept(wire: VirtualCable):
    for _ in range(10):
        wire.send(content(ttl=120))
        assert wire.ports(30) == {HERE: "Ethernet1/1"}


def test_an_announcement_that_expired_in_the_queue_is_not_reported(wire: VirtualCable):
    wire.send(content(ttl=120))
    assert wire.ports(121) == {}


def test_a_neighbour_that_leaves_announces_it(wire: VirtualCable):
    wire.send(content())
    assert wire.ports(1) == {HERE: "Ethernet1/1"}
    wire.send(content(port=b"\x05Ethernet1/9", ttl=0))
    assert wire.ports(1) == {HERE: "Ethernet1/1"}, "another one"
    wire.send(content(ttl=0) + END)
    assert wire.ports(1) == {}


def test_a_cable_that_was_moved_leads_elsewhere(wire: VirtualCable):
    wire.send(content())
    assert wire.ports(1) == {HERE: "Ethernet1/1"}
    ip("link", "set", THERE, "down")
    assert wire.ports(1) == {}
    ip("link", "set", THERE, "up")
    wire.send(content(port=b"\x05Ethernet1/2"))
    assert wire.ports(1) == {}, "frames since the last poll may precede the move"
    wire.send(content(port=b"\x05Ethernet1/2"))
    assert wire.ports(1) == {HERE: "Ethernet1/2"}


def test_a_link_that_went_down_and_up_between_two_polls(wire: VirtualCable):
    wire.send(content())
    assert wire.ports(1) == {HERE: "Ethernet1/1"}
    wire.send(content())
    ip("link", "set", THERE, "down")
    ip("link", "set", THERE, "up")
    assert wire.ports(1) == {}


def test_an_interface_that_is_switched_off_has_no_neighbour(wire: VirtualCable):
    wire.send(content())
    assert wire.ports(1) == {HERE: "Ethernet1/1"}
    ip("link", "set", HERE, "down")
    assert wire.ports(1) == {}


def test_an_interface_that_comes_later_is_listened_to(wire: VirtualCable):
    veth_pair("rs-new", "rs-far")
    assert wire.neighbours(1) == {}
    wire.send(content(port=b"\x05new"), ends="rs-far")
    assert wire.ports(1) == {"rs-new": "new"}


def test_the_nic_is_configured_to_pass_the_frames(wire: VirtualCable):
    assert wire.neighbours() == {}
    (entry,) = ip("-json", "maddress", "show", "dev", HERE)
    assert NEAREST_BRIDGE.hex(":") in [
        address["link"] for address in entry["maddr"] if "link" in address
    ]


def test_the_last_announcement_of_a_chassis_counts(wire: VirtualCable):
    """A daemon announces a MAC address until it is configured, also after a silence longer than its time to live."""
    address = content(port=b"\x03" + SWITCH)
    wire.send(content())
    assert wire.ports(1) == {HERE: "Ethernet1/1"}
    for silence, unnamed in ((60, "a0:88:c2:00:00:01"), (400, "a0:88:c2:00:00:01")):
        assert wire.ports(silence) == ({HERE: "Ethernet1/1"} if silence < 120 else {})
        wire.send(address)
        assert wire.ports(1) == {HERE: unnamed}
        wire.send(content())
        assert wire.ports(30) == {HERE: "Ethernet1/1"}
    wire.send(address[:-4] + part(3, b"\0\0"))
    assert wire.ports(1) == {HERE: "Ethernet1/1"}, "leaves a port that it no longer announces"


def test_the_chassis_received_last_is_that_of_an_interface_and_the_others_are_named(
    wire: VirtualCable,
):
    other = content(b"\x07other", b"\x05two", ttl=200)
    for _ in range(2):
        wire.send(other, content(), other)
        found = wire.neighbours(1)[HERE]
        assert (found["port"], found["other_chassis"]) == ("two", ["a0:88:c2:00:00:01"])
        wire.send(other, content(port=b"\x05Ethernet1/2"))
        found = wire.neighbours(1)[HERE]
        assert (found["port"], found["other_chassis"]) == ("Ethernet1/2", ["other"])
    wire.send(content(port=b"\x05Ethernet1/2", ttl=0))
    assert wire.neighbours(1)[HERE] == parse(other), "the last one has left"


def test_neighbours_of_an_interface_are_bounded(wire: VirtualCable):
    wire.send(*[content(f"\x07chassis{n}".encode(), ttl=100 + n) for n in range(60)])
    assert len(wire.neighbours(1)[HERE]["other_chassis"]) == 7
    found = wire.neighbours(1)[HERE]
    assert (found["chassis"], set(found["other_chassis"])) == (
        "chassis59",
        {f"chassis{n}" for n in range(52, 59)},
    )
    assert wire.neighbours(156)[HERE]["chassis"] == "chassis59"
    assert wire.ports(3) == {}


def test_more_frames_than_the_socket_holds(wire: VirtualCable):
    for _ in range(3):
        wire.send(*[content()] * 3000)
        assert wire.ports(1) == {HERE: "Ethernet1/1"}


def test_frames_for_others_and_frames_without_sense(wire: VirtualCable):
    wire.send(content(), destination=bytes.fromhex("0180c2000003"))
    wire.send(b"\xff" * 60, b"", content()[:-1])
    assert wire.neighbours(1) == {}


def test_an_interface_that_is_renamed_or_removed_takes_its_neighbour_along(wire: VirtualCable):
    wire.send(content())
    assert wire.ports(1) == {HERE: "Ethernet1/1"}
    ip("link", "delete", HERE)
    assert wire.neighbours(1) == {}
    veth_pair(HERE, THERE)
    assert wire.neighbours(1) == {}, "another interface of the same name"


def test_a_socket_that_is_rejected_is_an_error():
    def refuse() -> socket.socket:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    lldp = Lldp(dict, refuse)
    with pytest.raises(PermissionError):
        lldp.neighbours(START)
    lldp.close()


def test_a_closed_listener_starts_again(wire: VirtualCable):
    wire.send(content())
    assert wire.ports(1) == {HERE: "Ethernet1/1"}
    wire._lldp.close()  # noqa: SLF001
    assert wire.neighbours(1) == {}
    wire.send(content())
    assert wire.ports(1) == {HERE: "Ethernet1/1"}


def test_the_socket_never_waits():
    with network_namespace(), open_socket() as made, pytest.raises(BlockingIOError):
        made.recv(1)


def test_this_machine_is_read_through_its_host():
    with network_namespace():
        host = LiveHost()
        try:
            assert host.call("lldp", "neighbours") == {}
        finally:
            host.close()


# In a recording ---------------------------------------------------------------------------------


class LldpHost(FakeHost):
    """A host with one neighbour."""

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        del host_interface, function, arguments
        first = {**(parse(FULL) or {}), "other_chassis": ["rack-18"]}
        return {"eth0": first, "eth1": parse(content(chassis=b"\x07rack-17"))}


def test_names_of_switches_are_redacted():
    host = LldpHost()
    recording = RecordingHost(host, Redactor())
    assert recording.call("lldp", "neighbours")["eth0"]["system"] == "leaf-1"
    (moment,) = recording.moments
    line = moment.to_line()
    for secret in ("a0:88:c2:00:00:01", "leaf-1", "SONiC", "10.0.0.1", "rack-17", "rack-18"):
        assert secret not in line
    kept = moment.calls["lldp.neighbours()"]["eth0"]
    assert (kept["port"], kept["ttl_seconds"]) == ("Ethernet1/1", 120)
    assert kept["capabilities"] == ["bridge", "router"]
