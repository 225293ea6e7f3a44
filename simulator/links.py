"""All network interfaces in the kernel's routing netlink interface, in one reply.

Names are those of linux, include/uapi/linux/if_link.h, struct rtnl_link_stats64. The kernel counts only
its own traffic; RDMA traffic bypasses it.
"""

from __future__ import annotations

from railscope.capture import Json, Moment
from simulator.host import network
from simulator.machine import ETHERNET, LOOPBACK
from simulator.model import NodeModel
from simulator.nic import LOOPBACK_MTU_BYTES, MANAGEMENT_MAC, MANAGEMENT_MTU_BYTES
from simulator.server import Traffic

STATISTICS = (
    "rx_packets", "tx_packets", "rx_bytes", "tx_bytes", "rx_errors", "tx_errors", "rx_dropped",
    "tx_dropped", "multicast", "collisions", "rx_length_errors", "rx_over_errors",
    "rx_crc_errors", "rx_frame_errors", "rx_fifo_errors", "rx_missed_errors",
    "tx_aborted_errors", "tx_carrier_errors", "tx_fifo_errors", "tx_heartbeat_errors",
    "tx_window_errors", "rx_compressed", "tx_compressed", "rx_nohandler", "rx_otherhost_dropped",
)  # fmt: skip
_FIRST_INDEX = 3


def show(model: NodeModel, into: Moment) -> None:
    """Add all interfaces to a `Moment`."""
    traffic = network(model)
    interfaces = [
        _link(1, LOOPBACK, traffic[LOOPBACK])
        | {"mtu": LOOPBACK_MTU_BYTES, "address": "00:00:00:00:00:00"}
        | {"operational_state": "unknown", "carrier_changes": 0, "carrier_up_count": 0},
        _link(2, ETHERNET, traffic[ETHERNET])
        | {"mtu": MANAGEMENT_MTU_BYTES, "address": MANAGEMENT_MAC},
    ]
    for place, cable in enumerate(model.cables):
        if cable.removed:
            continue
        name, seen = cable.port.interface, cable.counters
        interfaces.append(
            _link(_FIRST_INDEX + place, name, traffic[name])
            | {
                "operational_state": "up" if cable.up else "down",
                "carrier": int(cable.up),
                "mtu": cable.settings.mtu_bytes,
                "address": cable.port.mac,
                "carrier_changes": seen.carrier_changes,
                "carrier_up_count": seen.carrier_changes - seen.link_downs,
                "carrier_down_count": seen.link_downs,
            }
        )
    into.calls["netlink.links()"] = interfaces


def _link(index: int, name: str, traffic: Traffic) -> dict[str, Json]:
    """Return an interface that has been up since boot."""
    return {
        "index": index,
        "name": name,
        "kind": "",
        "operational_state": "up",
        "up": True,
        "carrier": 1,
        "mtu": 0,
        "address": "",
        "master": "",
        "lower": "",
        "carrier_changes": 1,
        "carrier_up_count": 1,
        "carrier_down_count": 0,
        "statistics": dict.fromkeys(STATISTICS, 0)
        | {
            "rx_packets": traffic.received_packets,
            "tx_packets": traffic.sent_packets,
            "rx_bytes": traffic.received_bytes,
            "tx_bytes": traffic.sent_bytes,
            "rx_errors": traffic.receive_errors,
            "rx_crc_errors": traffic.receive_errors,
        },
    }
