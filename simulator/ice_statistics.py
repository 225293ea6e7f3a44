"""Statistics of an ice interface, in the driver's order.

Names: linux, drivers/net/ethernet/intel/ice/ice_ethtool.c. Names that end in `.nic` are of the port, with
RDMA; the rest are of the kernel's own traffic. Frames that start a pause (XOFF) and those that end one
(XON) are counted separately, and the duration of pauses is not reported.
"""

from __future__ import annotations

from simulator.fabric import Cable
from simulator.port_counters import (
    NEIGHBOUR_FRAME_BYTES,
    PortCounters,
    PriorityTraffic,
    on_the_wire,
)
from simulator.port_settings import LOSSLESS, PRIORITIES

_KERNEL = (
    "rx_unicast", "tx_unicast", "rx_multicast", "tx_multicast", "rx_broadcast", "tx_broadcast",
    "rx_bytes", "tx_bytes", "rx_dropped", "rx_unknown_protocol", "rx_alloc_fail",
    "rx_pg_alloc_fail", "tx_errors", "tx_linearize", "tx_busy", "tx_restart",
    "tx_queue_0_packets", "tx_queue_0_bytes", "rx_queue_0_packets", "rx_queue_0_bytes",
)  # fmt: skip
_PORT = (
    "rx_bytes", "tx_bytes", "rx_unicast", "tx_unicast", "rx_multicast", "tx_multicast",
    "rx_broadcast", "tx_broadcast", "tx_errors", "tx_timeout",
    *(
        f"{way}_size_{size}"
        for size in ("64", "127", "255", "511", "1023", "1522", "big")
        for way in ("rx", "tx")
    ),
    "link_xon_rx", "link_xon_tx", "link_xoff_rx", "link_xoff_tx", "tx_dropped_link_down",
    "rx_undersize", "rx_fragments", "rx_oversize", "rx_jabber", "rx_csum_bad", "rx_length_errors",
    "rx_dropped", "rx_crc_errors", "illegal_bytes", "mac_local_faults", "mac_remote_faults",
    "fdir_sb_match", "fdir_sb_status",
    *(
        f"{way}_priority_{priority}_{end}"
        for way in ("tx", "rx")
        for priority in PRIORITIES
        for end in ("xon", "xoff")
    ),
)  # fmt: skip
_NAMES = (*_KERNEL, *(f"{name}.nic" for name in _PORT))


def statistics(cable: Cable) -> dict[str, int]:
    """Return the statistics of `ethtool -S`."""
    seen = cable.counters
    frames, size = seen.neighbour_frames, seen.neighbour_frames * NEIGHBOUR_FRAME_BYTES
    kernel = {
        "rx_multicast": frames, "tx_multicast": frames, "rx_bytes": size, "tx_bytes": size,
        "tx_queue_0_packets": frames, "tx_queue_0_bytes": size,
        "rx_queue_0_packets": frames, "rx_queue_0_bytes": size,
    }  # fmt: skip
    port = _port(seen, on_the_wire(seen)) | _pauses(seen)
    told = {f"{name}.nic": value for name, value in port.items()}
    return dict.fromkeys(_NAMES, 0) | kernel | told


def _port(seen: PortCounters, wire: PriorityTraffic) -> dict[str, int]:
    frames = seen.neighbour_frames
    return {
        "rx_bytes": wire.received_bytes,
        "tx_bytes": wire.sent_bytes,
        "rx_unicast": wire.received_packets - frames,
        "tx_unicast": wire.sent_packets - frames,
        "rx_multicast": frames,
        "tx_multicast": frames,
        "rx_dropped": wire.discards,
        "rx_crc_errors": seen.checksum_errors,
        "mac_local_faults": seen.link_downs,
        "tx_dropped_link_down": seen.ack_timeouts,
    }


def xon_and_xoff(frames: int) -> tuple[int, int]:
    """Return the frames that end a pause, and those that begin or prolong one."""
    return frames // 2, frames - frames // 2


def _pauses(seen: PortCounters) -> dict[str, int]:
    found = {}
    for way, frames in (("rx", seen.pause_frames_received), ("tx", seen.pause_frames_sent)):
        xon, xoff = xon_and_xoff(frames)
        found[f"{way}_priority_{LOSSLESS}_xon"] = xon
        found[f"{way}_priority_{LOSSLESS}_xoff"] = xoff
    return found
