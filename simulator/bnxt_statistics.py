"""Statistics of a bnxt interface, in the driver's order.

Names: linux, drivers/net/ethernet/broadcom/bnxt/bnxt_ethtool.c. Rings are first, then the port, then
additional statistics of the firmware. The counters of all priorities are always present.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.fabric import Cable
from simulator.port_counters import (
    NEIGHBOUR_FRAME_BYTES,
    PortCounters,
    PriorityTraffic,
    by_priority,
    on_the_wire,
)
from simulator.port_settings import LOSSLESS, PRIORITIES
from simulator.span import NS_PER_US

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


def _names() -> Iterator[str]:
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


_NAMES = tuple(_names())


def statistics(cable: Cable) -> dict[str, int]:
    """Return the statistics of `ethtool -S`."""
    seen = cable.counters
    found = dict.fromkeys(_NAMES, 0)
    found.update(_traffic(seen))
    found.update(_pauses(seen))
    for priority, traffic in enumerate(by_priority(seen)):
        found.update(_in_priority(priority, traffic))
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


def _traffic(seen: PortCounters) -> dict[str, int]:
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


def _pauses(seen: PortCounters) -> dict[str, int]:
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


def _in_priority(priority: int, traffic: PriorityTraffic) -> Iterator[tuple[str, int]]:
    """Return the same by priority and by queue; each priority has its own queue."""
    for place in ("cos", "pri"):
        yield f"rx_bytes_{place}{priority}", traffic.received_bytes
        yield f"rx_packets_{place}{priority}", traffic.received_packets
        yield f"tx_bytes_{place}{priority}", traffic.sent_bytes
        yield f"tx_packets_{place}{priority}", traffic.sent_packets
    yield f"rx_discard_packets_cos{priority}", traffic.discards
