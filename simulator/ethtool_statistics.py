"""Statistics of `ethtool -S` of an interface, in the order of its driver.

bnxt: names of linux, drivers/net/ethernet/broadcom/bnxt/bnxt_ethtool.c. Rings are first, then the
port, then additional statistics of the firmware. The counters of all priorities are always present.

ice: names of linux, drivers/net/ethernet/intel/ice/ice_ethtool.c. Names that end in `.nic` are of
the port, with RDMA; the rest are of the kernel's own traffic. Frames that start a pause (XOFF) and
those that end one (XON) are counted separately, and the duration of pauses is not reported.

mlx5: names and units of linux,
Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst. Only a priority with
PFC has pause counters; global pause is off.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.device_models import LANES
from simulator.fabric import Cable
from simulator.port import (
    LOSSLESS,
    NEIGHBOUR_FRAME_BYTES,
    PRIORITIES,
    PortCounters,
    PriorityTraffic,
    by_priority,
    on_the_wire,
)
from simulator.spec import NS_PER_SECOND, NS_PER_US

_RING = (
    "rx_ucast_packets", "rx_mcast_packets", "rx_bcast_packets", "rx_discards", "rx_errors",
    "rx_ucast_bytes", "rx_mcast_bytes", "rx_bcast_bytes",
    "tx_ucast_packets", "tx_mcast_packets", "tx_bcast_packets", "tx_errors", "tx_discards",
    "tx_ucast_bytes", "tx_mcast_bytes", "tx_bcast_bytes",
    "rx_l4_csum_errors", "rx_resets", "rx_buf_errors", "missed_irqs",
)  # fmt: skip
_TOTALS = (
    "rx_total_l4_csum_errors", "rx_total_resets", "rx_total_buf_errors", "rx_total_oom_discards",
    "rx_total_netpoll_discards", "rx_total_ring_discards", "tx_total_resets",
    "tx_total_ring_discards", "total_missed_irqs",
)  # fmt: skip
_RECEIVE = (
    "rx_64b_frames", "rx_65b_127b_frames", "rx_128b_255b_frames", "rx_256b_511b_frames",
    "rx_512b_1023b_frames", "rx_1024b_1518b_frames", "rx_good_vlan_frames",
    "rx_1519b_2047b_frames", "rx_2048b_4095b_frames", "rx_4096b_9216b_frames",
    "rx_9217b_16383b_frames", "rx_total_frames", "rx_ucast_frames", "rx_mcast_frames",
    "rx_bcast_frames", "rx_fcs_err_frames", "rx_ctrl_frames", "rx_pause_frames", "rx_pfc_frames",
    "rx_align_err_frames", "rx_ovrsz_frames", "rx_jbr_frames", "rx_mtu_err_frames",
    "rx_tagged_frames", "rx_double_tagged_frames", "rx_good_frames",
    *(f"rx_pfc_ena_frames_pri{priority}" for priority in PRIORITIES),
    "rx_undrsz_frames", "rx_eee_lpi_events", "rx_eee_lpi_duration", "rx_bytes", "rx_runt_bytes",
    "rx_runt_frames", "rx_stat_discard", "rx_stat_err",
)  # fmt: skip
_TRANSMIT = (
    "tx_64b_frames", "tx_65b_127b_frames", "tx_128b_255b_frames", "tx_256b_511b_frames",
    "tx_512b_1023b_frames", "tx_1024b_1518b_frames", "tx_good_vlan_frames",
    "tx_1519b_2047b_frames", "tx_2048b_4095b_frames", "tx_4096b_9216b_frames",
    "tx_9217b_16383b_frames", "tx_good_frames", "tx_total_frames", "tx_ucast_frames",
    "tx_mcast_frames", "tx_bcast_frames", "tx_pause_frames", "tx_pfc_frames", "tx_jabber_frames",
    "tx_fcs_err_frames", "tx_err", "tx_fifo_underruns",
    *(f"tx_pfc_ena_frames_pri{priority}" for priority in PRIORITIES),
    "tx_eee_lpi_events", "tx_eee_lpi_duration", "tx_total_collisions", "tx_bytes",
    "tx_xthol_frames", "tx_stat_discard", "tx_stat_error",
)  # fmt: skip
_EVENTS = (
    "link_down_events", "continuous_pause_events", "resume_pause_events",
    "continuous_roce_pause_events", "resume_roce_pause_events",
)  # fmt: skip
_SIGNAL = ("rx_bits", "rx_buffer_passed_threshold", "rx_pcs_symbol_err", "rx_corrected_bits")
_BLOCKS = ("rx_fec_corrected_blocks", "rx_fec_uncorrectable_blocks", "rx_filter_miss")


def _bnxt_names() -> Iterator[str]:
    yield from (f"[0]: {name}" for name in _RING)
    yield from (*_TOTALS, *_RECEIVE, *_TRANSMIT, *_EVENTS)
    for queue in PRIORITIES:
        yield from (f"rx_bytes_cos{queue}", f"rx_packets_cos{queue}")
    for priority in PRIORITIES:
        yield from (f"pfc_pri{priority}_rx_duration_us", f"pfc_pri{priority}_rx_transitions")
    yield from _SIGNAL
    for queue in PRIORITIES:
        yield from (f"rx_discard_bytes_cos{queue}", f"rx_discard_packets_cos{queue}")
    yield from _BLOCKS
    for queue in PRIORITIES:
        yield from (f"tx_bytes_cos{queue}", f"tx_packets_cos{queue}")
    for priority in PRIORITIES:
        yield from (f"pfc_pri{priority}_tx_duration_us", f"pfc_pri{priority}_tx_transitions")
    for stem in ("rx_bytes_pri", "rx_packets_pri", "tx_bytes_pri", "tx_packets_pri"):
        yield from (f"{stem}{priority}" for priority in PRIORITIES)


_BNXT_NAMES = tuple(_bnxt_names())


def bnxt_statistics(cable: Cable) -> dict[str, int]:
    """Return the statistics of `ethtool -S`."""
    seen = cable.counters
    found = dict.fromkeys(_BNXT_NAMES, 0)
    found.update(_bnxt_traffic(seen))
    found.update(_bnxt_pauses(seen))
    for priority, traffic in enumerate(by_priority(seen)):
        found.update(_by_bnxt_priority(priority, traffic))
    found.update(
        {
            "link_down_events": seen.link_downs,
            "rx_fcs_err_frames": seen.checksum_errors,
            "rx_bits": seen.observed_bits,
            "rx_buffer_passed_threshold": seen.buffer_alarms,
            "rx_pcs_symbol_err": seen.symbol_errors,
            "rx_corrected_bits": sum(seen.mended_bits),
            "rx_fec_corrected_blocks": seen.mended_blocks,
            "rx_fec_uncorrectable_blocks": seen.broken_blocks,
        }
    )
    return found


def _bnxt_traffic(seen: PortCounters) -> dict[str, int]:
    wire, frames = on_the_wire(seen), seen.neighbour_frames
    size = frames * NEIGHBOUR_FRAME_BYTES
    return {
        "[0]: rx_mcast_packets": frames, "[0]: rx_mcast_bytes": size,
        "[0]: tx_mcast_packets": frames, "[0]: tx_mcast_bytes": size,
        "rx_total_frames": wire.received_packets,
        "rx_good_frames": wire.received_packets,
        "rx_ucast_frames": wire.received_packets - frames, "rx_mcast_frames": frames,
        "rx_bytes": wire.received_bytes, "rx_stat_discard": wire.discards,
        "tx_total_frames": wire.sent_packets, "tx_good_frames": wire.sent_packets,
        "tx_ucast_frames": wire.sent_packets - frames, "tx_mcast_frames": frames,
        "tx_bytes": wire.sent_bytes,
    }  # fmt: skip


def _bnxt_pauses(seen: PortCounters) -> dict[str, int]:
    received, sent = seen.pause_frames_received, seen.pause_frames_sent
    return {
        "rx_ctrl_frames": received,
        "rx_pfc_frames": received,
        "tx_pfc_frames": sent,
        f"rx_pfc_ena_frames_pri{LOSSLESS}": received,
        f"tx_pfc_ena_frames_pri{LOSSLESS}": sent,
        "continuous_roce_pause_events": seen.storm_warnings,
        "resume_roce_pause_events": seen.storm_errors,
        f"pfc_pri{LOSSLESS}_rx_duration_us": seen.paused_ns // NS_PER_US,
        f"pfc_pri{LOSSLESS}_rx_transitions": received // 2,
        f"pfc_pri{LOSSLESS}_tx_duration_us": seen.pausing_ns // NS_PER_US,
        f"pfc_pri{LOSSLESS}_tx_transitions": sent // 2,
    }


def _by_bnxt_priority(priority: int, traffic: PriorityTraffic) -> Iterator[tuple[str, int]]:
    """Return the same by priority and by queue; each priority has its own queue."""
    for place in ("cos", "pri"):
        yield f"rx_bytes_{place}{priority}", traffic.received_bytes
        yield f"rx_packets_{place}{priority}", traffic.received_packets
        yield f"tx_bytes_{place}{priority}", traffic.sent_bytes
        yield f"tx_packets_{place}{priority}", traffic.sent_packets
    yield f"rx_discard_packets_cos{priority}", traffic.discards


_ICE_KERNEL = (
    "rx_unicast", "tx_unicast", "rx_multicast", "tx_multicast", "rx_broadcast", "tx_broadcast",
    "rx_bytes", "tx_bytes", "rx_dropped", "rx_unknown_protocol", "rx_alloc_fail",
    "rx_pg_alloc_fail", "tx_errors", "tx_linearize", "tx_busy", "tx_restart",
    "tx_queue_0_packets", "tx_queue_0_bytes", "rx_queue_0_packets", "rx_queue_0_bytes",
)  # fmt: skip
_ICE_PORT = (
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
_ICE_NAMES = (*_ICE_KERNEL, *(f"{name}.nic" for name in _ICE_PORT))


def ice_statistics(cable: Cable) -> dict[str, int]:
    """Return the statistics of `ethtool -S`."""
    seen = cable.counters
    frames, size = seen.neighbour_frames, seen.neighbour_frames * NEIGHBOUR_FRAME_BYTES
    kernel = {
        "rx_multicast": frames, "tx_multicast": frames, "rx_bytes": size, "tx_bytes": size,
        "tx_queue_0_packets": frames, "tx_queue_0_bytes": size,
        "rx_queue_0_packets": frames, "rx_queue_0_bytes": size,
    }  # fmt: skip
    port = _ice_port(seen, on_the_wire(seen)) | _ice_pauses(seen)
    told = {f"{name}.nic": value for name, value in port.items()}
    return dict.fromkeys(_ICE_NAMES, 0) | kernel | told


def _ice_port(seen: PortCounters, wire: PriorityTraffic) -> dict[str, int]:
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


def _ice_pauses(seen: PortCounters) -> dict[str, int]:
    found = {}
    for way, frames in (("rx", seen.pause_frames_received), ("tx", seen.pause_frames_sent)):
        xon, xoff = xon_and_xoff(frames)
        found[f"{way}_priority_{LOSSLESS}_xon"] = xon
        found[f"{way}_priority_{LOSSLESS}_xoff"] = xoff
    return found


_PRIORITY_NAMES = [
    tuple(
        f"{direction}_prio{priority}_{what}"
        for direction, what in (
            ("rx", "bytes"), ("rx", "packets"), ("rx", "discards"), ("tx", "bytes"), ("tx", "packets"),
        )
    )
    for priority in PRIORITIES
]  # fmt: skip
_LANE_NAMES = [f"rx_err_lane_{lane}_phy" for lane in range(LANES)]


def mlx5_statistics(cable: Cable) -> dict[str, int]:
    """Return the statistics of `ethtool -S`."""
    seen = cable.counters
    wire = on_the_wire(seen)
    frames, frame_bytes = seen.neighbour_frames, seen.neighbour_frames * NEIGHBOUR_FRAME_BYTES
    found = {
        "rx_packets": frames,
        "rx_bytes": frame_bytes,
        "tx_packets": frames,
        "tx_bytes": frame_bytes,
        "rx_ecn_mark": 0,
        "rx_out_of_buffer": 0,
        "ch0_events": 2 * frames,
        "ch0_poll": 2 * frames,
        "rx0_packets": frames,
        "rx0_bytes": frame_bytes,
        "tx0_packets": frames,
        "tx0_bytes": frame_bytes,
        "rx_vport_rdma_unicast_packets": seen.received.packets,
        "rx_vport_rdma_unicast_bytes": seen.received.data_bytes,
        "tx_vport_rdma_unicast_packets": seen.sent.packets,
        "tx_vport_rdma_unicast_bytes": seen.sent.data_bytes,
        "rx_bytes_phy": wire.received_bytes,
        "rx_packets_phy": wire.received_packets,
        "rx_discards_phy": wire.discards,
        "tx_bytes_phy": wire.sent_bytes,
        "tx_packets_phy": wire.sent_packets,
        "tx_discards_phy": 0,
        "rx_crc_errors_phy": seen.checksum_errors,
        "rx_symbol_err_phy": seen.symbol_errors,
        "rx_pause_ctrl_phy": seen.pause_frames_received,
        "tx_pause_ctrl_phy": seen.pause_frames_sent,
        "rx_pcs_symbol_err_phy": seen.symbol_errors,
        "rx_corrected_bits_phy": sum(seen.mended_bits),
        "rx_bits_phy": seen.observed_bits,
        **dict(zip(_LANE_NAMES, seen.mended_bits, strict=True)),
        "link_down_events_phy": seen.link_downs,
        "rx_buffer_passed_thres_phy": seen.buffer_alarms,
        "rx_pci_signal_integrity": seen.pcie_errors,
        "tx_pci_signal_integrity": 0,
        "outbound_pci_stalled_rd": cable.pcie_read_stall_percent,
        "outbound_pci_stalled_wr": cable.pcie_write_stall_percent,
        "outbound_pci_stalled_rd_events": 0,
        "outbound_pci_stalled_wr_events": seen.write_stalled_ns // NS_PER_SECOND,
        "outbound_pci_buffer_overflow": 0,
        "module_unplug": 0,
        "module_bus_stuck": 0,
        "module_high_temp": 0,
        "module_bad_shorted": 0,
    }
    for names, values in zip(_PRIORITY_NAMES, by_priority(seen), strict=True):
        found.update(zip(names, values, strict=True))
    if cable.settings.pausing:
        found["rx_prio3_pause"] = seen.pause_frames_received
        found["rx_prio3_pause_duration"] = seen.paused_ns // NS_PER_US
        found["rx_prio3_pause_transition"] = seen.pause_frames_received // 2
        found["tx_prio3_pause"] = seen.pause_frames_sent
        found["tx_prio3_pause_duration"] = seen.pausing_ns // NS_PER_US
    found["tx_pause_storm_warning_events"] = seen.storm_warnings
    found["tx_pause_storm_error_events"] = seen.storm_errors
    return found
