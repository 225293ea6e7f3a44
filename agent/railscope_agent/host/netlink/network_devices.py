"""Network interfaces, their data centre bridging, and counters of RDMA ports, over netlink.

Sources: linux UAPI rtnetlink.h, if_link.h and if.h for interfaces, dcbnl.h for data centre
bridging, rdma_netlink.h for RDMA ports.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from railscope.capture import Json
from railscope_agent.host.netlink import connection as netlink

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


def list_links(connection: netlink.NetlinkConnection) -> list[Json]:
    """Every interface of the network namespace. Raises OSError.

    `master` and `lower` are names, "" if there is none or it is in another namespace.

    Source: linux UAPI rtnetlink.h (RTM_GETLINK), if_link.h (attributes, struct rtnl_link_stats64), if.h
    (IFF_UP, IF_OPER_*). The names of operational states are those of sysfs
    (Documentation/ABI/testing/sysfs-class-net). RTEXT_FILTER_VF is not set: virtual functions would
    lengthen the answer and cost a firmware command each.
    """
    links = list(_interfaces(connection))
    names = {index: netlink.text(values.get(_NAME, b"")) for index, _, _, values in links}
    return [_link(index, flags, values, names) for index, _, flags, values in links]


def ethernet_ports(connection: netlink.NetlinkConnection) -> dict[str, EthernetPort]:
    """Ethernet interfaces that are up, by name. Raises OSError."""
    return {
        netlink.text(values.get(_NAME, b"")): EthernetPort(
            index, netlink.integer(values.get(_CARRIER_CHANGES, b"\0"))
        )
        for index, kind, flags, values in _interfaces(connection)
        if kind == _ETHERNET and flags & _UP and not flags & _LOOPBACK
    }


def _interfaces(
    connection: netlink.NetlinkConnection,
) -> Iterator[tuple[int, int, int, dict[int, bytes]]]:
    for body in connection.dump(_RTM_GETLINK, _INTERFACE.pack(0, 0, 0, 0, 0)):
        _, kind, index, flags, _ = netlink.unpack(_INTERFACE, body)
        yield index, kind, flags, dict(netlink.attributes(body[_INTERFACE.size :]))


def _link(index: int, flags: int, values: dict[int, bytes], names: dict[int, str]) -> Json:
    answer: dict[str, Json] = {
        "index": index,
        "name": names[index],
        "kind": netlink.text(
            dict(netlink.attributes(values.get(_LINK_INFORMATION, b""))).get(_KIND, b"")
        ),
        "up": bool(flags & _UP),
        "address": values.get(_ADDRESS, b"").hex(":"),
        "master": names.get(netlink.integer(values.get(_MASTER, b"\0")), ""),
        "lower": ""
        if _LINK_NAMESPACE in values
        else names.get(netlink.integer(values.get(_LINK, b"\0")), ""),
    }
    if _STATE in values:
        state = netlink.integer(values[_STATE])
        answer["operational_state"] = _STATES[state] if state < len(_STATES) else "unknown"
    answer |= {
        name: netlink.integer(values[kind]) for kind, name in _NUMBERS.items() if kind in values
    }
    if _STATISTICS in values:
        raw = values[_STATISTICS]
        count = min(
            len(raw) // 8, len(_COUNTERS)
        )  # older kernels report fewer, newer ones may report more
        counters = struct.unpack_from(f"={count}Q", raw)
        answer["statistics"] = dict(zip(_COUNTERS[:count], counters, strict=True))
    return answer


_RTM_GETDCB, _IEEE_GET = 78, 21
_MESSAGE = struct.Struct("=BBxx")  # struct dcbmsg
_INTERFACE_NAME, _IEEE, _DCBX = 1, 13, 14
_ETS, _PFC, _APPLICATIONS, _MAXIMUM_RATE, _BUFFER, _TRUST = 1, 2, 3, 7, 10, 11
_APPLICATION_KINDS = (1, 2)  # DCB_ATTR_IEEE_APP, DCB_ATTR_DCB_APP

# Members up to the last one that is read.
_IEEE_PFC = struct.Struct("=BBBxH2x8Q8Q")
_IEEE_ETS = struct.Struct("=3x8s8x8s8s")
_IEEE_MAXIMUM_RATE = struct.Struct("=8Q")
_DCB_APPLICATION = struct.Struct("=BBH")
_DCBNL_BUFFER = struct.Struct("=8s8II")

_ALGORITHMS = {0: "strict", 1: "cbs", 2: "ets", 255: "vendor"}
_SELECTORS = {1: "ethertype", 2: "stream", 3: "dgram", 4: "any", 5: "dscp", 255: "pcp"}
_DCBX_FLAGS = {0x01: "host", 0x02: "lld_managed", 0x04: "cee", 0x08: "ieee", 0x10: "static"}
_PRIORITIES = 8


def read_dcb(connection: netlink.NetlinkConnection, interface: str) -> dict[str, Json]:
    """Data centre bridging configuration of an interface, as reported by its driver. Raises OSError.

    Priority flow control, bandwidth shares, trust. Source: linux UAPI dcbnl.h (attributes and structures)
    and net/dcb/dcbnl.c: one DCB_CMD_IEEE_GET returns everything, and each part is present only if the
    driver implements it. A driver without any returns EOPNOTSUPP. Numbers are as in IEEE 802.1Qaz;
    `requests` are PFC frames sent, `indications` PFC frames received.
    """
    request = _MESSAGE.pack(0, _IEEE_GET) + netlink.interface_attribute(_INTERFACE_NAME, interface)
    body = connection.request(_RTM_GETDCB, request)
    netlink.unpack(_MESSAGE, body)
    values = dict(netlink.attributes(body[_MESSAGE.size :]))
    ieee = dict(netlink.attributes(values.get(_IEEE, b"")))
    answer: dict[str, Json] = {
        name: read(ieee[kind]) for kind, (name, read) in _PARTS.items() if kind in ieee
    }
    if _DCBX in values:
        flags = netlink.integer(values[_DCBX])
        answer["dcbx"] = [name for bit, name in _DCBX_FLAGS.items() if flags & bit]
    return answer


def _pfc(raw: bytes) -> Json:
    capacity, enabled, _, delay, *counts = netlink.unpack(_IEEE_PFC, raw)
    return {
        "capacity": capacity,
        "enabled": [priority for priority in range(_PRIORITIES) if enabled >> priority & 1],
        "delay_bits": delay,
        "requests": counts[:_PRIORITIES],
        "indications": counts[_PRIORITIES:],
    }


def _ets(raw: bytes) -> Json:
    bandwidth, algorithms, classes = netlink.unpack(_IEEE_ETS, raw)
    return {
        "traffic_class": list(classes),
        "bandwidth_percent": list(bandwidth),
        "algorithm": [_ALGORITHMS.get(number, "unknown") for number in algorithms],
    }


def _applications(raw: bytes) -> Json:
    answer = []
    for kind, entry in netlink.attributes(raw):
        if kind in _APPLICATION_KINDS:
            selector, priority, protocol = netlink.unpack(_DCB_APPLICATION, entry)
            name = _SELECTORS.get(selector, "unknown")
            answer.append({"selector": name, "protocol": protocol, "priority": priority})
    return answer


def _buffer(raw: bytes) -> Json:
    of_priority, *sizes, total = netlink.unpack(_DCBNL_BUFFER, raw)
    return {"of_priority": list(of_priority), "size_bytes": sizes, "total_bytes": total}


def _trust(raw: bytes) -> Json:
    """Selectors of a packet, in the order of their evaluation."""
    return [
        _SELECTORS.get(netlink.integer(value), "unknown") for _, value in netlink.attributes(raw)
    ]


_PARTS = {
    _PFC: ("pfc", _pfc),
    _ETS: ("ets", _ets),
    _APPLICATIONS: ("applications", _applications),
    _BUFFER: ("buffer", _buffer),
    _MAXIMUM_RATE: (
        "maximum_rate_kilobits",
        lambda raw: list(netlink.unpack(_IEEE_MAXIMUM_RATE, raw)),
    ),
    _TRUST: ("trust", _trust),
}


_NLDEV = 5 << 10  # RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, ...)
_DEVICE_GET, _STATISTICS_GET = _NLDEV | 1, _NLDEV | 17
_DEVICE_INDEX, _DEVICE_NAME, _PORT = 1, 2, 3
_COUNTER_TABLE, _COUNTER_NAME, _COUNTER_VALUE = 80, 82, 83
_VALUE_BYTES = 8


class _CounterLayout:
    """Places of the counters in an answer; of two answers about a port usually only their values differ."""

    def __init__(self, body: bytes) -> None:
        names, members, end = list[str](), ["="], 0
        for name, place in _counter_places(body):
            if place.stop - place.start != _VALUE_BYTES:
                netlink.raise_inconsistent(f"counter of {place.stop - place.start} bytes")
            names.append(name)
            members.append(f"{place.start - end}sQ")
            end = place.stop
        self.names = tuple(names)
        self._layout = struct.Struct("".join(members) + f"{len(body) - end}s")
        self._between_values = self._layout.unpack(body)[::2]

    def values(self, body: bytes) -> Sequence[int] | None:
        """Values of the counters; None if anything else differs from the first answer."""
        if len(body) != self._layout.size:
            return None
        members = self._layout.unpack(body)
        return members[1::2] if members[::2] == self._between_values else None


def _counter_places(body: bytes) -> Iterator[tuple[str, slice]]:
    for kind, table in netlink.attribute_places(body, slice(0, len(body))):
        if kind != _COUNTER_TABLE:
            continue
        for _, entry in netlink.attribute_places(body, table):
            places = dict(netlink.attribute_places(body, entry))
            name = netlink.text(body[places.get(_COUNTER_NAME, slice(0))])
            yield name, places.get(_COUNTER_VALUE, slice(0, 0))


class RdmaStatistics:
    """Statistics of RDMA ports.

    Source: linux UAPI rdma_netlink.h and drivers/infiniband/core/nldev.c. RDMA_NLDEV_CMD_STAT_GET of a
    device and a port returns the counters below `hw_counters`, and the optional counters that an
    administrator enabled (`rdma statistic set link ... optional-counters ...`), which are in no file.
    Devices are identified by an index; a missing device, or one without counters, returns EINVAL.
    """

    def __init__(self, connection: Callable[[], netlink.NetlinkConnection]) -> None:
        self._connection = connection
        self._indexes: dict[str, int] = {}
        self._layouts: dict[tuple[str, int], _CounterLayout] = {}

    def statistics(self, device: str, port: int) -> dict[str, int]:
        """Name and value of each counter of a port. Raises OSError as `counters` does."""
        return dict(zip(*self.counters(device, port), strict=True))

    def counters(self, device: str, port: int) -> tuple[Sequence[str], Sequence[int]]:
        """Names and values of the counters of a port. Raises OSError.

        The names are the same object as long as they do not change. EPROTONOSUPPORT if the kernel has no
        RDMA, ENODEV if it has no such device.
        """
        connection = self._connection()
        if device in self._indexes:
            try:
                body = _port_statistics(connection, self._indexes[device], port)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
            else:
                layout = self._layouts.get((device, port))
                if layout and (values := layout.values(body)) is not None:
                    return layout.names, values
                if netlink.text(dict(netlink.attributes(body)).get(_DEVICE_NAME, b"")) == device:
                    return self._first_counters(device, port, body)
        # First request, renamed, or registered again after a reset of the NIC: indexes have
        # changed.
        self._indexes, self._layouts = _devices(connection), {}
        if device not in self._indexes:
            raise OSError(errno.ENODEV, f"RDMA device {device} does not exist")
        body = _port_statistics(connection, self._indexes[device], port)
        return self._first_counters(device, port, body)

    def _first_counters(
        self, device: str, port: int, body: bytes
    ) -> tuple[Sequence[str], Sequence[int]]:
        layout = self._layouts[device, port] = _CounterLayout(body)
        return layout.names, layout.values(body) or ()


def _devices(connection: netlink.NetlinkConnection) -> dict[str, int]:
    devices = [dict(netlink.attributes(body)) for body in connection.dump(_DEVICE_GET, b"")]
    return {
        netlink.text(values.get(_DEVICE_NAME, b"")): netlink.integer(values.get(_DEVICE_INDEX, b""))
        for values in devices
    }


def _port_statistics(connection: netlink.NetlinkConnection, index: int, port: int) -> bytes:
    device = netlink.attribute(_DEVICE_INDEX, struct.pack("=I", index))
    return connection.request(
        _STATISTICS_GET, device + netlink.attribute(_PORT, struct.pack("=I", port))
    )
