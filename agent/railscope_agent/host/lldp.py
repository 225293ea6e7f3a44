"""Switch port that an interface is connected to, as announced by the switch: LLDP.

Source: IEEE 802.1AB-2016, clauses 8 (frames) and 9 (neighbours); IEEE 802.1Q annex D and IEEE 802.3
clause 79 for the organisationally specific TLVs; packet(7) for the socket, which needs CAP_NET_RAW.
NIC firmware may consume these frames itself (fw-lldp-agent of Intel NICs); then none are received.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import threading
from collections.abc import Callable, Iterator

from railscope.capture import Json
from railscope.timestamps import SECOND_NS
from railscope_agent.host.netlink.interfaces import EthernetPort

_ETHERTYPE = 0x88CC
_NEAREST_BRIDGE = bytes.fromhex("0180c200000e")
_ETHERNET_BYTES = 14
_LARGEST_FRAME = 1 << 14
_SOL_PACKET, _ADD_MEMBERSHIP, _ORIGINAL_DEVICE, _MULTICAST = 263, 1, 9, 0  # linux/if_packet.h
_MEMBERSHIP = struct.Struct("=iHH8s")
_MAX_FRAMES = 1024
"""Limit per call; more than the socket's buffer holds."""
_MAX_NEIGHBOURS = 8
"""Limit per interface: a cable has one, behind a device that forwards LLDP frames there are a few."""

_END, _CHASSIS, _PORT, _TTL, _CAPABILITIES, _MANAGEMENT, _ORGANISATION = 0, 1, 2, 3, 7, 8, 127
_TEXTS = {4: "port_description", 5: "system", 6: "system_description"}
_CHASSIS_MAC, _PORT_MAC = 4, 3
_CHASSIS_NETWORK, _PORT_NETWORK = 5, 4
_CAPABILITY_NAMES = (
    *("other", "repeater", "bridge", "wlan_access_point", "router", "telephone"),
    *("docsis_cable_device", "station_only", "c_vlan", "s_vlan", "two_port_mac_relay"),
)
_PORT_VLAN, _MAXIMUM_FRAME = bytes.fromhex("0080c201"), bytes.fromhex("00120f04")
_PFC, _APPLICATIONS = bytes.fromhex("0080c20b"), bytes.fromhex("0080c20c")
"""DCBX of IEEE 802.1Q; its predecessors (CEE, OUI 00-1B-21) are ignored."""
_DSCP_SELECTOR, _SELECTOR_BITS, _PRIORITY_SHIFT = 5, 0x7, 5
_FAMILIES = {(1, 4): socket.AF_INET, (2, 16): socket.AF_INET6}
"""Address family by IANA family number and address length."""


def open_socket() -> socket.socket:
    """Open a non-blocking socket that receives LLDP frames of every interface. Raises OSError."""
    kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    lldp_socket = socket.socket(socket.AF_PACKET, kind, socket.htons(_ETHERTYPE))
    try:
        # Report the port of a bond, not the bond.
        lldp_socket.setsockopt(_SOL_PACKET, _ORIGINAL_DEVICE, 1)
    except OSError:
        lldp_socket.close()
        raise
    return lldp_socket


class Lldp:
    """Neighbours of all Ethernet interfaces that are up. Thread-safe."""

    def __init__(
        self,
        ports: Callable[[], dict[str, EthernetPort]],
        open_socket: Callable[[], socket.socket] = open_socket,
    ) -> None:
        self._ports_now = ports
        self._open_socket = open_socket
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._ports: dict[str, EthernetPort] = {}
        self._emptied_ns = 0
        self._neighbours: dict[tuple[str, str], tuple[int, dict[str, Json]]] = {}
        """End of its time to live, and announcement, of each chassis by interface; the last announcement last."""

    def neighbours(self, now_ns: int) -> dict[str, dict[str, Json]]:
        """Neighbour of each interface that has one, at this time of the boot clock.

        A frame's age counts from the previous time the socket was drained: a neighbour may expire
        early by the interval between two calls, and is never retained longer than its TTL. A chassis
        is at one port at a time: its last announcement counts, as a daemon announces a MAC address
        until it is configured. If an interface has several chassis, the one that was received
        last is returned, with the others as `other_chassis`. Raises OSError.
        """
        with self._lock:
            ports = self._ports_now()
            if self._socket is None:
                self._socket, self._ports, self._emptied_ns = self._open_socket(), {}, now_ns
            # Another index or another number of carrier changes: the cable may lead to another port now.
            unmoved = {name for name, port in ports.items() if self._ports.get(name) == port}
            self._join(self._socket, ports)
            for key in [key for key in self._neighbours if key[0] not in unmoved]:
                del self._neighbours[key]
            # After the multicast addresses were added, and before expired neighbours are removed: a frame may
            # renew one.
            self._receive_frames(self._socket, unmoved, now_ns)
            for key in [key for key, (end, _) in self._neighbours.items() if end <= now_ns]:
                del self._neighbours[key]
            answer: dict[str, dict[str, Json]] = {}
            for (name, chassis), (_, neighbour) in reversed(self._neighbours.items()):
                if name in answer:
                    answer[name].setdefault("other_chassis", []).append(chassis)
                else:
                    answer[name] = dict(neighbour)
            return answer

    def close(self) -> None:
        """Close the socket and discard all neighbours."""
        with self._lock:
            if self._socket:
                self._socket.close()
                self._socket = None
            self._neighbours.clear()

    def _join(self, receiver: socket.socket, ports: dict[str, EthernetPort]) -> None:
        """Add the LLDP multicast address to the NICs of interfaces that came up."""
        joined = {port.index for port in self._ports.values()}
        for index in {port.index for port in ports.values()} - joined:
            membership = _MEMBERSHIP.pack(index, _MULTICAST, len(_NEAREST_BRIDGE), _NEAREST_BRIDGE)
            try:
                receiver.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, membership)
            except OSError as error:
                if error.errno != errno.ENODEV:  # removed after it was listed
                    raise
        self._ports = ports

    def _receive_frames(self, receiver: socket.socket, unmoved: set[str], now_ns: int) -> None:
        """Receive all pending frames.

        Frames of an interface that lost its link since the last call are dropped: they may be
        older than that, and of another switch; the next frames replace them.
        """
        for _ in range(_MAX_FRAMES):
            try:
                frame, _, _, (name, *_) = receiver.recvmsg(_LARGEST_FRAME)
            except BlockingIOError:
                # The socket is empty: what is received later has arrived after this time.
                self._emptied_ns = now_ns
                return
            is_ours = frame.startswith(_NEAREST_BRIDGE) and name in unmoved
            neighbour = parse(frame[_ETHERNET_BYTES:]) if is_ours else None
            if neighbour:
                self._store(name, neighbour)

    def _store(self, name: str, neighbour: dict[str, Json]) -> None:
        key = (name, neighbour["chassis"])
        last = self._neighbours.get(key)
        if last and not neighbour["ttl_seconds"] and last[1]["port"] != neighbour["port"]:
            return  # leaves a port that it no longer announces
        end_ns = self._emptied_ns + neighbour["ttl_seconds"] * SECOND_NS
        self._neighbours.pop(key, None)
        self._neighbours[key] = (end_ns, neighbour)
        of_interface = [key for key in self._neighbours if key[0] == name]
        if len(of_interface) > _MAX_NEIGHBOURS:
            del self._neighbours[of_interface[0]]


def parse(content: bytes) -> dict[str, Json] | None:
    """Neighbour announced in a frame, from behind the Ethernet header; None if it is not valid LLDP.

    `chassis`, `port` and `ttl_seconds` are always present; a TTL of 0 announces that the neighbour
    leaves.
    """
    parts = list(_parts(content))
    if [kind for kind, _ in parts[:3]] != [_CHASSIS, _PORT, _TTL]:
        return None
    chassis, port, ttl = (value for _, value in parts[:3])
    if len(chassis) < 2 or len(port) < 2 or len(ttl) < 2:  # noqa: PLR2004 - subtype and identifier
        return None
    answer: dict[str, Json] = {
        "chassis": _identifier(chassis, _CHASSIS_MAC, _CHASSIS_NETWORK),
        "port": _identifier(port, _PORT_MAC, _PORT_NETWORK),
        "ttl_seconds": int.from_bytes(ttl[:2]),
    }
    for kind, value in parts[3:]:
        # The standard requires each of them exactly once (9.2.7): a frame with two is discarded.
        if kind in (_CHASSIS, _PORT, _TTL):
            return None
        for name, field_text in _optional(kind, value):
            answer.setdefault(name, field_text)
    return answer


def _parts(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and value of each TLV, up to the end or to a truncated one."""
    offset = 0
    while len(content) - offset >= 2:  # noqa: PLR2004 - seven bits of type, nine of length
        head = int.from_bytes(content[offset : offset + 2])
        kind, length = head >> 9, head & 0x1FF
        if kind == _END or offset + 2 + length > len(content):
            return
        yield kind, content[offset + 2 : offset + 2 + length]
        offset += 2 + length


def _optional(kind: int, value: bytes) -> Iterator[tuple[str, Json]]:
    if kind in _TEXTS:
        yield _TEXTS[kind], _text(value)
    elif kind == _CAPABILITIES and len(value) >= 4:  # noqa: PLR2004 - supported, then enabled capabilities
        enabled = int.from_bytes(value[2:4])
        yield (
            "capabilities",
            [name for bit, name in enumerate(_CAPABILITY_NAMES) if enabled >> bit & 1],
        )
    elif kind == _MANAGEMENT and value:
        address = _network_address(value[1 : 1 + value[0]])
        if address:
            yield "management_address", address
    elif kind == _ORGANISATION and len(value) >= 6:  # noqa: PLR2004 - OUI, subtype, a number
        number = int.from_bytes(value[4:6])
        if value.startswith(_PORT_VLAN) and number:
            yield "port_vlan", number
        if value.startswith(_MAXIMUM_FRAME):
            yield "maximum_frame_bytes", number
        if value.startswith(_PFC):
            yield "pfc_priorities", [bit for bit in range(8) if value[5] >> bit & 1]
        if value.startswith(_APPLICATIONS):
            yield "dscp_priorities", list(_dscp_priorities(value[5:]))


def _dscp_priorities(table: bytes) -> Iterator[str]:
    """Priority and DSCP, as in 3:26, of the entries of an application priority table that map a DSCP."""
    for offset in range(0, len(table) - 2, 3):
        if table[offset] & _SELECTOR_BITS == _DSCP_SELECTOR:
            dscp = int.from_bytes(table[offset + 1 : offset + 3])
            yield f"{table[offset] >> _PRIORITY_SHIFT}:{dscp}"


def _identifier(value: bytes, mac: int, network: int) -> str:
    kind, identifier = value[0], value[1:]
    if kind == mac:
        return identifier.hex(":")
    return (_network_address(identifier) if kind == network else "") or _text(identifier)


def _network_address(value: bytes) -> str:
    family = _FAMILIES.get((value[0], len(value) - 1)) if value else None
    return socket.inet_ntop(family, value[1:]) if family else ""


def _text(value: bytes) -> str:
    """Printable text; other values (an identifier may be any bytes) as hexadecimal digits."""
    with contextlib.suppress(UnicodeDecodeError):
        text = value.rstrip(b"\0").decode()
        if "\0" not in text:
            return " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return value.hex(":")
