"""Network interfaces, all in one dump of rtnetlink.

Source: linux UAPI rtnetlink.h (RTM_GETLINK), if_link.h (attributes, struct rtnl_link_stats64), if.h
(IFF_UP, IF_OPER_*). The names of operational states are those of sysfs
(Documentation/ABI/testing/sysfs-class-net). RTEXT_FILTER_VF is not set: virtual functions would
lengthen the answer and cost a firmware command each.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from agent.host.netlink.connection import Connection
from agent.host.netlink.wire import attributes, integer, text, unpack
from railscope.capture import Json

_RTM_GETLINK = 18
_INTERFACE = struct.Struct("=BxHiII")  # struct ifinfomsg: family, type, index, flags, change
_UP, _ETHERNET, _LOOPBACK = 0x1, 1, 0x8
_ADDRESS, _NAME, _MTU, _LINK, _MASTER, _STATE, _LINK_INFORMATION = 1, 3, 4, 5, 10, 16, 18
_STATISTICS, _CARRIER, _CARRIER_CHANGES, _LINK_NAMESPACE = 23, 33, 35, 37
_CARRIER_UP_COUNT, _CARRIER_DOWN_COUNT = 47, 48
_KIND = 1  # IFLA_INFO_KIND
_STATES = ("unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up")
_NUMBERS = {
    _MTU: "mtu",
    _CARRIER: "carrier",
    _CARRIER_CHANGES: "carrier_changes",
    _CARRIER_UP_COUNT: "carrier_up_count",
    _CARRIER_DOWN_COUNT: "carrier_down_count",
}
_COUNTERS = (
    *("rx_packets", "tx_packets", "rx_bytes", "tx_bytes", "rx_errors", "tx_errors"),
    *("rx_dropped", "tx_dropped", "multicast", "collisions"),
    *("rx_length_errors", "rx_over_errors", "rx_crc_errors", "rx_frame_errors"),
    *("rx_fifo_errors", "rx_missed_errors"),
    *("tx_aborted_errors", "tx_carrier_errors", "tx_fifo_errors", "tx_heartbeat_errors"),
    *("tx_window_errors", "rx_compressed", "tx_compressed", "rx_nohandler"),
    "rx_otherhost_dropped",
)


@dataclass(frozen=True, slots=True)
class Port:
    """An Ethernet interface that is up."""

    index: int
    carrier_changes: int


def links(connection: Connection) -> list[Json]:
    """Every interface of the network namespace. Raises OSError.

    `master` and `lower` are names, "" if there is none or it is in another namespace.
    """
    found = list(_interfaces(connection))
    names = {index: text(said.get(_NAME, b"")) for index, _, _, said in found}
    return [_link(index, flags, said, names) for index, _, flags, said in found]


def ethernet_ports(connection: Connection) -> dict[str, Port]:
    """Ethernet interfaces that are up, by name. Raises OSError."""
    return {
        text(said.get(_NAME, b"")): Port(index, integer(said.get(_CARRIER_CHANGES, b"\0")))
        for index, kind, flags, said in _interfaces(connection)
        if kind == _ETHERNET and flags & _UP and not flags & _LOOPBACK
    }


def _interfaces(connection: Connection) -> Iterator[tuple[int, int, int, dict[int, bytes]]]:
    for body in connection.dump(_RTM_GETLINK, _INTERFACE.pack(0, 0, 0, 0, 0)):
        _, kind, index, flags, _ = unpack(_INTERFACE, body)
        yield index, kind, flags, dict(attributes(body[_INTERFACE.size :]))


def _link(index: int, flags: int, said: dict[int, bytes], names: dict[int, str]) -> Json:
    answer: dict[str, Json] = {
        "index": index,
        "name": names[index],
        "kind": text(dict(attributes(said.get(_LINK_INFORMATION, b""))).get(_KIND, b"")),
        "up": bool(flags & _UP),
        "address": said.get(_ADDRESS, b"").hex(":"),
        "master": names.get(integer(said.get(_MASTER, b"\0")), ""),
        "lower": "" if _LINK_NAMESPACE in said else names.get(integer(said.get(_LINK, b"\0")), ""),
    }
    if _STATE in said:
        state = integer(said[_STATE])
        answer["operational_state"] = _STATES[state] if state < len(_STATES) else "unknown"
    answer |= {name: integer(said[kind]) for kind, name in _NUMBERS.items() if kind in said}
    if _STATISTICS in said:
        answer["statistics"] = _statistics(said[_STATISTICS])
    return answer


def _statistics(raw: bytes) -> dict[str, int]:
    """Counters of an interface: older kernels report fewer, newer ones may report more."""
    count = min(len(raw) // 8, len(_COUNTERS))
    return dict(zip(_COUNTERS[:count], struct.unpack_from(f"={count}Q", raw), strict=True))
