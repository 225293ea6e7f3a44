"""Network interfaces over netlink, with their state and the kernel's counters.

Sources: linux UAPI rtnetlink.h, if_link.h and if.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from railscope.capture import Json
from railscope_agent.host.netlink import messages
from railscope_agent.host.netlink.connection import NetlinkConnection

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
class EthernetPort:
    """An Ethernet interface that is up."""

    index: int
    carrier_changes: int


def list_links(connection: NetlinkConnection) -> list[Json]:
    """Every interface of the network namespace. Raises OSError.

    `master` and `lower` are names, "" if there is none or it is in another namespace.

    Source: linux UAPI rtnetlink.h (RTM_GETLINK), if_link.h (attributes, struct rtnl_link_stats64), if.h
    (IFF_UP, IF_OPER_*). The names of operational states are those of sysfs
    (Documentation/ABI/testing/sysfs-class-net). RTEXT_FILTER_VF is not set: virtual functions would
    lengthen the answer and cost a firmware command each.
    """
    links = list(_interfaces(connection))
    names = {index: messages.text(values.get(_NAME, b"")) for index, _, _, values in links}
    return [_link(index, flags, values, names) for index, _, flags, values in links]


def ethernet_ports(connection: NetlinkConnection) -> dict[str, EthernetPort]:
    """Ethernet interfaces that are up, by name. Raises OSError."""
    return {
        messages.text(values.get(_NAME, b"")): EthernetPort(
            index, messages.integer(values.get(_CARRIER_CHANGES, b"\0"))
        )
        for index, kind, flags, values in _interfaces(connection)
        if kind == _ETHERNET and flags & _UP and not flags & _LOOPBACK
    }


def _interfaces(
    connection: NetlinkConnection,
) -> Iterator[tuple[int, int, int, dict[int, bytes]]]:
    for body in connection.dump(_RTM_GETLINK, _INTERFACE.pack(0, 0, 0, 0, 0)):
        _, kind, index, flags, _ = messages.unpack(_INTERFACE, body)
        yield index, kind, flags, dict(messages.attributes(body[_INTERFACE.size :]))


def _link(index: int, flags: int, values: dict[int, bytes], names: dict[int, str]) -> Json:
    answer: dict[str, Json] = {
        "index": index,
        "name": names[index],
        "kind": messages.text(
            dict(messages.attributes(values.get(_LINK_INFORMATION, b""))).get(_KIND, b"")
        ),
        "up": bool(flags & _UP),
        "address": values.get(_ADDRESS, b"").hex(":"),
        "master": names.get(messages.integer(values.get(_MASTER, b"\0")), ""),
        "lower": ""
        # The index is one of another namespace, where it is another interface.
        if _LINK_NAMESPACE in values
        else names.get(messages.integer(values.get(_LINK, b"\0")), ""),
    }
    if _STATE in values:
        state = messages.integer(values[_STATE])
        answer["operational_state"] = _STATES[state] if state < len(_STATES) else "unknown"
    answer |= {
        name: messages.integer(values[kind]) for kind, name in _NUMBERS.items() if kind in values
    }
    if _STATISTICS in values:
        raw = values[_STATISTICS]
        count = min(
            len(raw) // 8, len(_COUNTERS)
        )  # older kernels report fewer, newer ones may report more
        counters = struct.unpack_from(f"={count}Q", raw)
        answer["statistics"] = dict(zip(_COUNTERS[:count], counters, strict=True))
    return answer
