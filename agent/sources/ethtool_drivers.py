"""Metrics of the ethtool statistics of each driver: one table per driver.

A name may contain {priority}, {class} or {lane}. If several statistics of a driver map to one
metric, the first one that the NIC reports counts. A driver without a table uses the names shared by
many drivers. Sources: torvalds/linux drivers/net/ethernet, en_stats.c (mlx5), bnxt_ethtool.c,
ice_ethtool.c, i40e_ethtool.c. Omitted: per-queue counters, frame size counters, and offloads.
virtio has per-queue counters only; their sum is what the kernel counts for the interface.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from agent.sources.ethtool_clouds import ENA, GVE, MANA, NETVSC, Row
from agent.sources.ethtool_standard import STANDARD
from railscope.catalog import nic as c
from railscope.catalog import nic_detail as d
from railscope.catalog import nic_link as link
from railscope.catalog.declare import Metric
from railscope.catalog.entities import NIC_LANE, NIC_PRIORITY, NIC_TRAFFIC_CLASS

MLX5: tuple[Row, ...] = (
    ("rx_prio{priority}_pause", c.PFC_RECEIVED),
    ("tx_prio{priority}_pause", c.PFC_SENT),
    ("rx_prio{priority}_pause_duration", c.PFC_RECEIVED_TIME),
    ("tx_prio{priority}_pause_duration", c.PFC_SENT_TIME),
    ("rx_prio{priority}_pause_transition", c.PFC_RECEIVED_TRANSITIONS),
    ("rx_prio{priority}_bytes", c.PRIORITY_RECEIVED),
    ("tx_prio{priority}_bytes", c.PRIORITY_SENT),
    ("rx_prio{priority}_packets", c.PRIORITY_RECEIVED_PACKETS),
    ("tx_prio{priority}_packets", c.PRIORITY_SENT_PACKETS),
    ("rx_prio{priority}_discards", c.PRIORITY_DISCARDS),
    ("rx_prio{priority}_buf_discard", d.HOST_DISCARDS),
    ("rx_prio{priority}_cong_discard", c.PRIORITY_CONGESTION_DISCARDS),
    ("rx_prio{priority}_marked", c.PRIORITY_MARKED),
    ("rx_pause_ctrl_phy", c.PAUSE_RECEIVED),
    ("tx_pause_ctrl_phy", c.PAUSE_SENT),
    ("rx_global_pause_duration", c.GLOBAL_PAUSE_RECEIVED_TIME),
    ("tx_global_pause_duration", c.GLOBAL_PAUSE_SENT_TIME),
    ("tx_pause_storm_warning_events", c.STORM_WARNINGS),
    ("tx_pause_storm_error_events", c.STORM_ERRORS),
    ("rx_bytes_phy", c.RECEIVED),
    ("tx_bytes_phy", c.SENT),
    ("rx_packets_phy", c.RECEIVED_PACKETS),
    ("tx_packets_phy", c.SENT_PACKETS),
    ("rx_vport_rdma_unicast_bytes", c.RDMA_RECEIVED),
    ("tx_vport_rdma_unicast_bytes", c.RDMA_SENT),
    ("rx_discards_phy", c.DISCARDS_RECEIVED),
    ("tx_discards_phy", c.DISCARDS_SENT),
    ("rx_out_of_buffer", c.OUT_OF_BUFFER),
    ("rx_buffer_passed_thres_phy", c.BUFFER_ALMOST_FULL),
    ("rx_ecn_mark", c.ECN_MARKED),
    ("rx_crc_errors_phy", link.CRC_ERRORS),
    ("rx_symbol_err_phy", link.SYMBOL_ERRORS),
    ("rx_pcs_symbol_err_phy", link.UNCORRECTED_SYMBOLS),
    ("rx_bits_phy", link.LINE_RECEIVED),
    ("rx_corrected_bits_phy", link.CORRECTED),
    ("rx_err_lane_{lane}_phy", link.LANE_ERRORS),
    ("link_down_events_phy", link.LINK_DOWNS),
    ("rx_pci_signal_integrity", link.PCIE_SIGNAL_ERRORS_RECEIVED),
    ("tx_pci_signal_integrity", link.PCIE_SIGNAL_ERRORS_SENT),
    ("outbound_pci_stalled_rd", link.PCIE_READ_STALL),
    ("outbound_pci_stalled_wr", link.PCIE_WRITE_STALL),
    ("outbound_pci_stalled_rd_events", link.PCIE_READ_STALLED),
    ("outbound_pci_stalled_wr_events", link.PCIE_WRITE_STALLED),
    ("outbound_pci_buffer_overflow", link.PCIE_OVERFLOWS),
    ("module_unplug", link.TRANSCEIVER_UNPLUGS),
    ("module_high_temp", link.TRANSCEIVER_TOO_HOT),
    ("rx_multicast_phy", d.RECEIVED_MULTICAST),
    ("tx_multicast_phy", d.SENT_MULTICAST),
    ("rx_broadcast_phy", d.RECEIVED_BROADCAST),
    ("tx_broadcast_phy", d.SENT_BROADCAST),
    ("rx_mac_control_phy", d.RECEIVED_CONTROL),
    ("tx_mac_control_phy", d.SENT_CONTROL),
    ("rx_unsupported_op_phy", d.UNKNOWN_CONTROL),
    ("rx_vport_rdma_unicast_packets", d.RDMA_RECEIVED_PACKETS),
    ("tx_vport_rdma_unicast_packets", d.RDMA_SENT_PACKETS),
    ("rx_global_pause", d.GLOBAL_PAUSE_RECEIVED),
    ("tx_global_pause", d.GLOBAL_PAUSE_SENT),
    ("rx_global_pause_transition", d.GLOBAL_PAUSE_TRANSITIONS),
    ("rx_in_range_len_errors_phy", d.LENGTH_ERRORS),
    ("rx_out_of_range_len_phy", d.OUT_OF_RANGE),
    ("rx_oversize_pkts_phy", d.OVERSIZE),
    ("rx_undersize_pkts_phy", d.UNDERSIZE),
    ("rx_fragments_phy", d.FRAGMENTS),
    ("rx_jabbers_phy", d.JABBERS),
    ("tx_errors_phy", d.TRANSMIT_ERRORS),
    ("module_bus_stuck", d.TRANSCEIVER_STUCK),
    ("module_bad_shorted", d.TRANSCEIVER_SHORTED),
    ("rx_steer_missed_packets", d.STEERING_MISSES),
    ("rx_if_down_packets", d.DOWN_DROPS),
    ("rx_oversize_pkts_buffer", d.TOO_LONG_DROPS),
    ("rx_oversize_pkts_sw_drop", d.TOO_LONG_FOR_MTU),
    ("dev_internal_queue_oob", d.DEVICE_OUT_OF_BUFFER),
    ("dev_out_of_buffer", d.DEVICE_OUT_OF_BUFFER),
    ("rx_buff_alloc_err", d.ALLOCATION_FAILURES),
    ("tx_queue_dropped", d.RING_DISCARDS_SENT),
    ("tx_queue_stopped", d.QUEUE_STOPS),
    ("tx_queue_wake", d.QUEUE_WAKES),
    ("rx_wqe_err", d.RECEIVE_REQUEST_ERRORS),
    ("tx_cqe_err", d.COMPLETION_ERRORS),
    ("rx_recover", d.RECEIVE_RESETS),
    ("tx_recover", d.TRANSMIT_RESETS),
    ("ch_eq_rearm", d.MISSED_INTERRUPTS),
    *d.FUNCTION.items(),
)

BNXT: tuple[Row, ...] = (
    ("rx_pfc_ena_frames_pri{priority}", c.PFC_RECEIVED),
    ("tx_pfc_ena_frames_pri{priority}", c.PFC_SENT),
    ("pfc_pri{priority}_rx_duration_us", c.PFC_RECEIVED_TIME),
    ("pfc_pri{priority}_tx_duration_us", c.PFC_SENT_TIME),
    ("pfc_pri{priority}_rx_transitions", c.PFC_RECEIVED_TRANSITIONS),
    ("pfc_pri{priority}_tx_transitions", c.PFC_SENT_TRANSITIONS),
    ("rx_bytes_pri{priority}", c.PRIORITY_RECEIVED),
    ("tx_bytes_pri{priority}", c.PRIORITY_SENT),
    ("rx_packets_pri{priority}", c.PRIORITY_RECEIVED_PACKETS),
    ("tx_packets_pri{priority}", c.PRIORITY_SENT_PACKETS),
    ("rx_pause_frames", d.GLOBAL_PAUSE_RECEIVED),
    ("tx_pause_frames", d.GLOBAL_PAUSE_SENT),
    ("rx_bytes", c.RECEIVED),
    ("tx_bytes", c.SENT),
    ("rx_stat_discard", c.DISCARDS_RECEIVED),
    ("tx_stat_discard", c.DISCARDS_SENT),
    ("rx_buffer_passed_threshold", c.BUFFER_ALMOST_FULL),
    ("rx_fcs_err_frames", link.CRC_ERRORS),
    ("rx_pcs_symbol_err", link.UNCORRECTED_SYMBOLS),
    ("rx_bits", link.LINE_RECEIVED),
    ("rx_corrected_bits", link.CORRECTED),
    ("rx_fec_corrected_blocks", link.FEC_CORRECTED_BLOCKS),
    ("rx_fec_uncorrectable_blocks", link.FEC_UNCORRECTABLE_BLOCKS),
    ("link_down_events", link.LINK_DOWNS),
    ("rx_good_frames", c.RECEIVED_PACKETS),
    ("tx_good_frames", c.SENT_PACKETS),
    ("rx_ucast_frames", d.RECEIVED_UNICAST),
    ("tx_ucast_frames", d.SENT_UNICAST),
    ("rx_mcast_frames", d.RECEIVED_MULTICAST),
    ("tx_mcast_frames", d.SENT_MULTICAST),
    ("rx_bcast_frames", d.RECEIVED_BROADCAST),
    ("tx_bcast_frames", d.SENT_BROADCAST),
    ("rx_ctrl_frames", d.RECEIVED_CONTROL),
    ("rx_bytes_cos{class}", d.CLASS_RECEIVED),
    ("tx_bytes_cos{class}", d.CLASS_SENT),
    ("rx_packets_cos{class}", d.CLASS_RECEIVED_PACKETS),
    ("tx_packets_cos{class}", d.CLASS_SENT_PACKETS),
    ("rx_discard_bytes_cos{class}", d.CLASS_DISCARDED),
    ("rx_discard_packets_cos{class}", d.CLASS_DISCARDED_PACKETS),
    ("rx_pfc_frames", d.PFC_FRAMES_RECEIVED),
    ("tx_pfc_frames", d.PFC_FRAMES_SENT),
    ("continuous_pause_events", d.STORMS),
    ("resume_pause_events", d.STORM_ENDS),
    ("continuous_roce_pause_events", d.ROCE_STORMS),
    ("resume_roce_pause_events", d.ROCE_STORM_ENDS),
    ("rx_total_ring_discards", c.OUT_OF_BUFFER),
    ("rx_total_discard_pkts", c.OUT_OF_BUFFER),
    ("rx_total_oom_discards", d.MEMORY_DROPS),
    ("rx_filter_miss", d.STEERING_MISSES),
    ("tx_total_ring_discards", d.RING_DISCARDS_SENT),
    ("tx_total_discard_pkts", d.RING_DISCARDS_SENT),
    ("rx_ovrsz_frames", d.OVERSIZE),
    ("rx_undrsz_frames", d.UNDERSIZE),
    ("rx_runt_frames", d.FRAGMENTS),
    ("rx_jbr_frames", d.JABBERS),
    ("rx_align_err_frames", d.ALIGNMENT_ERRORS),
    ("rx_mtu_err_frames", d.MTU_ERRORS),
    ("rx_stat_err", d.RECEIVE_ERRORS),
    ("tx_stat_error", d.TRANSMIT_ERRORS),
    ("tx_fcs_err_frames", d.TRANSMIT_CRC_ERRORS),
    ("tx_fifo_underruns", d.UNDERRUNS),
    ("rx_total_l4_csum_errors", d.CHECKSUM_ERRORS),
    ("rx_total_buf_errors", d.RECEIVE_RING_ERRORS),
    ("rx_total_resets", d.RECEIVE_RESETS),
    ("tx_total_resets", d.TRANSMIT_RESETS),
    ("total_missed_irqs", d.MISSED_INTERRUPTS),
)

ICE: tuple[Row, ...] = (
    ("rx_priority_{priority}_xoff.nic", c.PFC_RECEIVED),
    ("tx_priority_{priority}_xoff.nic", c.PFC_SENT),
    ("rx_priority_{priority}_xon.nic", c.PFC_RESUMED_RECEIVED),
    ("tx_priority_{priority}_xon.nic", c.PFC_RESUMED_SENT),
    ("link_xoff_rx.nic", d.GLOBAL_PAUSE_RECEIVED),
    ("link_xoff_tx.nic", d.GLOBAL_PAUSE_SENT),
    ("rx_bytes.nic", c.RECEIVED),
    ("tx_bytes.nic", c.SENT),
    ("rx_dropped.nic", c.DISCARDS_RECEIVED),
    ("tx_dropped_link_down.nic", c.DISCARDS_SENT),
    ("rx_crc_errors.nic", link.CRC_ERRORS),
    ("rx_unicast.nic", d.RECEIVED_UNICAST),
    ("tx_unicast.nic", d.SENT_UNICAST),
    ("rx_multicast.nic", d.RECEIVED_MULTICAST),
    ("tx_multicast.nic", d.SENT_MULTICAST),
    ("rx_broadcast.nic", d.RECEIVED_BROADCAST),
    ("tx_broadcast.nic", d.SENT_BROADCAST),
    ("link_xon_rx.nic", d.RESUME_RECEIVED),
    ("link_xon_tx.nic", d.RESUME_SENT),
    ("rx_length_errors.nic", d.LENGTH_ERRORS),
    ("rx_oversize.nic", d.OVERSIZE),
    ("rx_undersize.nic", d.UNDERSIZE),
    ("rx_fragments.nic", d.FRAGMENTS),
    ("rx_jabber.nic", d.JABBERS),
    ("tx_errors.nic", d.TRANSMIT_ERRORS),
    ("rx_csum_bad.nic", d.CHECKSUM_ERRORS),
    ("illegal_bytes.nic", d.ILLEGAL_BYTES),
    ("mac_local_faults.nic", d.LOCAL_FAULTS),
    ("mac_remote_faults.nic", d.REMOTE_FAULTS),
    ("tx_timeout.nic", d.TIMEOUTS),
    ("rx_alloc_fail", d.ALLOCATION_FAILURES),
)

I40E: tuple[Row, ...] = (
    ("port.rx_priority_{priority}_xoff", c.PFC_RECEIVED),
    ("port.tx_priority_{priority}_xoff", c.PFC_SENT),
    ("port.rx_priority_{priority}_xon", c.PFC_RESUMED_RECEIVED),
    ("port.tx_priority_{priority}_xon", c.PFC_RESUMED_SENT),
    ("port.link_xoff_rx", d.GLOBAL_PAUSE_RECEIVED),
    ("port.link_xoff_tx", d.GLOBAL_PAUSE_SENT),
    ("port.rx_bytes", c.RECEIVED),
    ("port.tx_bytes", c.SENT),
    ("port.rx_dropped", c.DISCARDS_RECEIVED),
    ("port.tx_dropped_link_down", c.DISCARDS_SENT),
    ("port.rx_crc_errors", link.CRC_ERRORS),
    ("port.rx_priority_{priority}_xoff_rx", c.PFC_RECEIVED),
    ("port.tx_priority_{priority}_xoff_tx", c.PFC_SENT),
    ("port.rx_priority_{priority}_xon_rx", c.PFC_RESUMED_RECEIVED),
    ("port.tx_priority_{priority}_xon_tx", c.PFC_RESUMED_SENT),
    ("port.rx_priority_{priority}_xon_2_xoff", c.PFC_RECEIVED_TRANSITIONS),
    ("port.rx_unicast", d.RECEIVED_UNICAST),
    ("port.tx_unicast", d.SENT_UNICAST),
    ("port.rx_multicast", d.RECEIVED_MULTICAST),
    ("port.tx_multicast", d.SENT_MULTICAST),
    ("port.rx_broadcast", d.RECEIVED_BROADCAST),
    ("port.tx_broadcast", d.SENT_BROADCAST),
    ("port.link_xon_rx", d.RESUME_RECEIVED),
    ("port.link_xon_tx", d.RESUME_SENT),
    ("port.rx_length_errors", d.LENGTH_ERRORS),
    ("port.rx_oversize", d.OVERSIZE),
    ("port.rx_undersize", d.UNDERSIZE),
    ("port.rx_fragments", d.FRAGMENTS),
    ("port.rx_jabber", d.JABBERS),
    ("port.tx_errors", d.TRANSMIT_ERRORS),
    ("port.rx_csum_bad", d.CHECKSUM_ERRORS),
    ("port.illegal_bytes", d.ILLEGAL_BYTES),
    ("port.mac_local_faults", d.LOCAL_FAULTS),
    ("port.mac_remote_faults", d.REMOTE_FAULTS),
    ("port.tx_timeout", d.TIMEOUTS),
)

DRIVERS: dict[str, tuple[Row, ...]] = {
    "mlx5_core": MLX5,
    "bnxt_en": BNXT,
    "ice": ICE,
    "i40e": I40E,
    "ena": ENA,
    "mana": MANA,
    "gve": GVE,
    "hv_netvsc": NETVSC,
}

_NARROW = {"mlx5_core": ("rx_out_of_buffer", "dev_internal_queue_oob", "dev_out_of_buffer")}
"""32-bit statistics that wrap: queue counters. Those of the function are reset together with them."""
_OF_THE_FUNCTION = ("rx_vport_", "tx_vport_")

_PARTS = {NIC_PRIORITY: "{priority}", NIC_TRAFFIC_CLASS: "{class}", NIC_LANE: "{lane}"}
_MAX_PARTS = 8
"""Priorities and traffic classes of IEEE 802.1Q; no current link has more lanes."""


@lru_cache
def _statistics(driver: str) -> tuple[tuple[str, Metric, str], ...]:
    """Every statistic of a driver that maps to a metric, with its priority, class or lane."""
    found = []
    for text, metric in DRIVERS.get(driver, STANDARD):
        place = _PARTS.get(metric.about)
        parts = map(str, range(_MAX_PARTS)) if place else ("",)
        found += [(text.replace(place or "", part), metric, part) for part in parts]
    return tuple(found)


def typed(driver: str, names: Sequence[str]) -> list[tuple[Metric, str, int]]:
    """Metrics of a list of statistics: (metric, part or "", position in the list)."""
    found: dict[tuple[Metric, str], int] = {}
    positions = {name: position for position, name in enumerate(names)}
    for name, metric, part in _statistics(driver):
        if name in positions:
            found.setdefault((metric, part), positions[name])
    return [(metric, part, position) for (metric, part), position in found.items()]


def narrow(driver: str, name: str) -> bool:
    """True if a statistic wraps to zero at 2^32."""
    return name in _NARROW.get(driver, ())


def set_back_with_narrow(name: str) -> bool:
    """True if a 64-bit statistic restarts when the 32-bit ones are reset."""
    return name.startswith(_OF_THE_FUNCTION)
