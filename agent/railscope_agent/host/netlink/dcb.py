"""Data centre bridging of an interface over netlink: priority flow control, bandwidth shares, trust.

Sources: linux UAPI dcbnl.h and net/dcb/dcbnl.c.
"""

from __future__ import annotations

import struct

from railscope.capture import Json
from railscope_agent.host.netlink import messages
from railscope_agent.host.netlink.connection import NetlinkConnection

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


def read_dcb(connection: NetlinkConnection, interface: str) -> dict[str, Json]:
    """Data centre bridging configuration of an interface, as reported by its driver. Raises OSError.

    Priority flow control, bandwidth shares, trust. Source: linux UAPI dcbnl.h (attributes and structures)
    and net/dcb/dcbnl.c: one DCB_CMD_IEEE_GET returns everything, and each part is present only if the
    driver implements it. A driver without any returns EOPNOTSUPP. Numbers are as in IEEE 802.1Qaz;
    `requests` are PFC frames sent, `indications` PFC frames received.
    """
    request = _MESSAGE.pack(0, _IEEE_GET) + messages.interface_attribute(_INTERFACE_NAME, interface)
    body = connection.request(_RTM_GETDCB, request)
    messages.unpack(_MESSAGE, body)
    values = dict(messages.attributes(body[_MESSAGE.size :]))
    ieee = dict(messages.attributes(values.get(_IEEE, b"")))
    answer: dict[str, Json] = {
        name: read(ieee[kind]) for kind, (name, read) in _PARTS.items() if kind in ieee
    }
    if _DCBX in values:
        flags = messages.integer(values[_DCBX])
        answer["dcbx"] = [name for bit, name in _DCBX_FLAGS.items() if flags & bit]
    return answer


def _pfc(raw: bytes) -> Json:
    capacity, enabled, _, delay, *counts = messages.unpack(_IEEE_PFC, raw)
    return {
        "capacity": capacity,
        "enabled": [priority for priority in range(_PRIORITIES) if enabled >> priority & 1],
        "delay_bits": delay,
        "requests": counts[:_PRIORITIES],
        "indications": counts[_PRIORITIES:],
    }


def _ets(raw: bytes) -> Json:
    bandwidth, algorithms, classes = messages.unpack(_IEEE_ETS, raw)
    return {
        "traffic_class": list(classes),
        "bandwidth_percent": list(bandwidth),
        "algorithm": [_ALGORITHMS.get(number, "unknown") for number in algorithms],
    }


def _applications(raw: bytes) -> Json:
    answer = []
    for kind, entry in messages.attributes(raw):
        if kind in _APPLICATION_KINDS:
            selector, priority, protocol = messages.unpack(_DCB_APPLICATION, entry)
            name = _SELECTORS.get(selector, "unknown")
            answer.append({"selector": name, "protocol": protocol, "priority": priority})
    return answer


def _buffer(raw: bytes) -> Json:
    of_priority, *sizes, total = messages.unpack(_DCBNL_BUFFER, raw)
    return {"of_priority": list(of_priority), "size_bytes": sizes, "total_bytes": total}


def _trust(raw: bytes) -> Json:
    """Selectors of a packet, in the order of their evaluation."""
    return [
        _SELECTORS.get(messages.integer(value), "unknown") for _, value in messages.attributes(raw)
    ]


_PARTS = {
    _PFC: ("pfc", _pfc),
    _ETS: ("ets", _ets),
    _APPLICATIONS: ("applications", _applications),
    _BUFFER: ("buffer", _buffer),
    _MAXIMUM_RATE: (
        "maximum_rate_kilobits",
        lambda raw: list(messages.unpack(_IEEE_MAXIMUM_RATE, raw)),
    ),
    _TRUST: ("trust", _trust),
}
