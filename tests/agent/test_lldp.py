"""Frames that switches announce themselves with, and their lifetime, as stories.

    parse PART ...              the neighbour in a frame
    wire                        a namespace with the virtual cable from rs-here to rs-there, and the agent's listener at its first poll
    send PART ... [from=INTERFACE] [to=MAC] [times=N]    a frame from rs-there; `send PART ... & PART ...` sends several
    wait SECONDS
    poll                        port of each interface's neighbour, and other chassis
    full                        the same with all fields, as JSON
    ip ARGUMENT ...             changes the namespace
    pair ONE OTHER              another virtual cable
    close                       the listener is closed

A frame is that of chassis a0:88:c2:00:00:01 (`chassis=KIND:VALUE`), port Ethernet1/1 (`port=KIND:VALUE`) and 120 s (`ttl=N`), and
then parts TYPE:VALUE; `raw:VALUE` is a whole announcement. A VALUE is text, or hexadecimal after 0x.
"""

from __future__ import annotations

import errno
import json
import socket
import struct
from contextlib import ExitStack

import pytest
from hypothesis import given, strategies as st
from support import examples
from support.machine import FakeHost
from support.namespace import ip, network_namespace, veth_pair
from support.stories import Story

from railscope_agent.host import Json
from railscope_agent.host.live_host import LiveHost
from railscope_agent.host.lldp import Lldp, open_socket, parse
from railscope_agent.host.netlink import Netlink
from railscope_agent.host.recording_host import RecordingHost
from railscope_agent.host.redactor import Redactor

HERE, THERE = "rs-here", "rs-there"
NS = 1_000_000_000
NEAREST_BRIDGE = "0180c200000e"
SWITCH = "a088c2000001"
OPTIONS = {"chassis": f"4:0x{SWITCH}", "port": "5:Ethernet1/1", "ttl": "120"}


def part(kind: int, value: bytes) -> bytes:
    return struct.pack("!H", kind << 9 | len(value)) + value


def value(text: str) -> bytes:
    return bytes.fromhex(text[2:]) if text.startswith("0x") else text.replace("_", " ").encode()


def announcement(words: list[str]) -> bytes:
    """Return the parts of a frame."""
    given_ = OPTIONS | dict(word.split("=", 1) for word in words if "=" in word.partition(":")[0])
    parts = [word.split(":", 1) for word in words if "=" not in word.partition(":")[0]]
    if parts and parts[0][0] == "raw":
        return value(parts[0][1])
    found = b""
    for kind, name in ((1, "chassis"), (2, "port")):
        subtype, _, text = given_[name].partition(":")
        found += part(kind, (bytes([int(subtype)]) if subtype else b"") + value(text))
    found += part(3, struct.pack("!H", int(given_["ttl"])))
    return found + b"".join(part(int(kind), value(text)) for kind, text in parts)


class CableStory:
    """A neighbour at the other end of a virtual cable, and a clock."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._now_ns = 1_000 * NS
        self._lldp: Lldp | None = None

    def run(self, line: str) -> list[str]:
        command, *words = line.split(" ")
        match command:
            case "parse":
                return [json.dumps(parse(announcement(words)))]
            case "wire":
                self._open()
            case "send":
                self._send(words)
            case "wait":
                self._now_ns += round(float(words[0]) * NS)
            case "poll" | "full":
                return self._poll(is_full=command == "full")
            case "ip":
                ip(*words)
            case "pair":
                veth_pair(*words)
            case "close":
                assert self._lldp
                self._lldp.close()
            case _:
                pytest.fail(f"unknown command: {line}")
        return []

    def _open(self) -> None:
        self._stack.enter_context(network_namespace())
        veth_pair(HERE, THERE)
        netlink = Netlink()
        self._lldp = Lldp(netlink.ethernet_ports)
        self._stack.callback(netlink.close)
        self._stack.callback(self._lldp.close)
        assert self._lldp.neighbours(self._now_ns) == {}

    def _send(self, words: list[str]) -> None:
        options = {"from": THERE, "to": NEAREST_BRIDGE, "times": "1"}
        options |= {
            name: text
            for word in words
            for name, _, text in [word.partition("=")]
            if name in options
        }
        frames = " ".join(word for word in words if word.partition("=")[0] not in options)
        head = bytes.fromhex(options["to"] + SWITCH) + b"\x88\xcc"
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
            sender.bind((options["from"], 0))
            for _ in range(int(options["times"])):
                for frame in frames.split(" & "):
                    sender.send(head + announcement(frame.split()))

    def _poll(self, *, is_full: bool) -> list[str]:
        assert self._lldp
        found = self._lldp.neighbours(self._now_ns)
        if is_full:
            return [f"{name} {json.dumps(neighbour)}" for name, neighbour in sorted(found.items())]
        return [
            " ".join([name, neighbour["port"], *neighbour.get("other_chassis", ())])
            for name, neighbour in sorted(found.items())
        ]


def test_lldp(story: Story) -> None:
    with ExitStack() as stack:
        story.play(CableStory(stack).run)


# Any frame ----------------------------------------------------------------------------------------

PRINTABLE = st.text(examples.PRINTABLE_CHARACTERS, min_size=1, max_size=60)
NUMBER = st.integers(1, 0xFFFF)


@given(st.binary(max_size=200))
def test_random_parts_behind_those_that_must_be_there(rest: bytes) -> None:
    parse(rest)
    neighbour = parse(announcement([]) + rest)
    assert neighbour is None or neighbour["chassis"] == "a0:88:c2:00:00:01"


@given(PRINTABLE, PRINTABLE, PRINTABLE, NUMBER, NUMBER)
def test_announced_fields_are_received_unchanged(
    chassis: str, port: str, system: str, ttl: int, vlan: int
) -> None:
    frame = part(1, b"\x07" + chassis.encode()) + part(2, b"\x07" + port.encode())
    frame += part(3, struct.pack("!H", ttl)) + part(5, system.encode())
    frame += part(127, bytes.fromhex("0080c201") + struct.pack("!H", vlan)) + part(0, b"")
    expected = {
        "chassis": chassis,
        "port": port,
        "system": system,
        "ttl_seconds": ttl,
        "port_vlan": vlan,
    }
    assert parse(frame) == expected


# The socket, and recordings -----------------------------------------------------------------------


def test_a_socket_that_is_rejected_is_an_error_and_one_that_is_open_never_waits() -> None:
    def refuse() -> socket.socket:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    lldp = Lldp(dict, refuse)
    with pytest.raises(PermissionError):
        lldp.neighbours(NS)
    lldp.close()
    with network_namespace():
        with open_socket() as made, pytest.raises(BlockingIOError):
            made.recv(1)
        host = LiveHost()
        assert host.call("lldp", "neighbours") == {}
        host.close()


class LldpHost(FakeHost):
    """A host with neighbours."""

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        del host_interface, function, arguments
        first = parse(announcement(["5:leaf-1", "6:SONiC", "8:0x05010a0000010200000001"])) or {}
        other = parse(announcement(["chassis=7:rack-17"]))
        return {"eth0": {**first, "other_chassis": ["rack-18"]}, "eth1": other}


def test_names_of_switches_are_redacted() -> None:
    recording = RecordingHost(LldpHost(), Redactor())
    assert recording.call("lldp", "neighbours")["eth0"]["system"] == "leaf-1"
    (moment,) = recording.moments
    line = moment.to_line()
    for secret in ("a0:88:c2:00:00:01", "leaf-1", "SONiC", "10.0.0.1", "rack-17", "rack-18"):
        assert secret not in line
    kept = moment.calls["lldp.neighbours()"]["eth0"]
    assert (kept["port"], kept["ttl_seconds"]) == ("Ethernet1/1", 120)
