"""Metrics of the ethtool statistics of each driver: one table per driver.

A name may contain {priority}, {class} or {lane}. If several statistics of a driver map to one
metric, the first one that the NIC reports counts. Sources: torvalds/linux drivers/net/ethernet,
en_stats.c (mlx5), bnxt_ethtool.c, ice_ethtool.c, i40e_ethtool.c; of the virtual NICs of clouds
amazon/ena/ena_ethtool.c, microsoft/mana/mana_ethtool.c, google/gve/gve_ethtool.c, and
drivers/net/hyperv/netvsc_drv.c. Omitted: per-queue counters, frame size counters, and offloads.
virtio has per-queue counters only; their sum is what the kernel counts for the interface.

A driver without a table uses the names shared by many drivers: `STANDARD` contains names under
which Linux drivers count what the kernel's standard groups count (tg3.c, e1000e/ethtool.c,
be_ethtool.c and others in torvalds/linux drivers/net/ethernet). `GROUPS` are the counters of IEEE
802.3 that ethtool over netlink returns under standard names (ETHTOOL_MSG_STATS_GET: eth-phy,
eth-mac, eth-ctrl, rmon), whatever the driver's own names are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from railscope.catalog import nic as c
from railscope.catalog import nic_detail as d
from railscope.catalog import nic_link as link
from railscope.catalog.declare import Metric
from railscope.catalog.entities import NIC_LANE, NIC_PRIORITY, NIC_TRAFFIC_CLASS

StatisticMetric = tuple[str, Metric]

ENA: tuple[StatisticMetric, ...] = (
    ("bw_in_allowance_exceeded", d.LIMITED_RECEIVED),
    ("bw_out_allowance_exceeded", d.LIMITED_SENT),
    ("pps_allowance_exceeded", d.LIMITED_RATE),
    ("conntrack_allowance_exceeded", d.LIMITED_CONNECTIONS),
    ("linklocal_allowance_exceeded", d.LIMITED_LOCAL),
    ("conntrack_allowance_available", d.CONNECTIONS_LEFT),
    ("ena_srd_tx_pkts", d.SRD_SENT),
    ("ena_srd_eligible_tx_pkts", d.SRD_ELIGIBLE),
    ("ena_srd_rx_pkts", d.SRD_RECEIVED),
    ("ena_srd_resource_utilization", d.SRD_USE),
    ("tx_timeout", d.TIMEOUTS),
    ("wd_expired", d.WATCHDOGS),
    ("interface_down", d.INTERFACE_DOWNS),
    ("ena_admin_q_no_completion", d.COMMAND_ERRORS),
)

MANA: tuple[StatisticMetric, ...] = (
    ("hc_rx_bytes", c.RECEIVED),
    ("hc_tx_bytes", c.SENT),
    ("hc_rx_ucast_pkts", d.RECEIVED_UNICAST),
    ("hc_tx_ucast_pkts", d.SENT_UNICAST),
    ("hc_rx_mcast_pkts", d.RECEIVED_MULTICAST),
    ("hc_tx_mcast_pkts", d.SENT_MULTICAST),
    ("hc_rx_bcast_pkts", d.RECEIVED_BROADCAST),
    ("hc_tx_bcast_pkts", d.SENT_BROADCAST),
    ("hc_rx_discards_no_wqe", c.OUT_OF_BUFFER),
    ("hc_rx_err_vport_disabled", d.DOWN_DROPS),
    ("tx_cqe_err", d.COMPLETION_ERRORS),
    ("stop_queue", d.QUEUE_STOPS),
    ("wake_queue", d.QUEUE_WAKES),
)

GVE: tuple[StatisticMetric, ...] = (
    ("rx_bytes", c.RECEIVED),
    ("tx_bytes", c.SENT),
    ("rx_packets", c.RECEIVED_PACKETS),
    ("tx_packets", c.SENT_PACKETS),
    ("rx_dropped", c.DISCARDS_RECEIVED),
    ("tx_dropped", c.DISCARDS_SENT),
    ("rx_desc_err_dropped_pkt", d.RECEIVE_ERRORS),
    ("rx_buf_alloc_fail", d.ALLOCATION_FAILURES),
    ("tx_timeouts", d.TIMEOUTS),
    ("reset_cnt", d.DEVICE_RESETS),
    ("interface_down_cnt", d.INTERFACE_DOWNS),
    ("dma_mapping_error", d.MAPPING_ERRORS),
)

NETVSC: tuple[StatisticMetric, ...] = (
    ("rx_no_memory", d.MEMORY_DROPS),
    ("tx_send_full", d.SEND_BUFFER_FULL),
    ("tx_busy", d.SEND_BUSY),
    ("stop_queue", d.QUEUE_STOPS),
    ("wake_queue", d.QUEUE_WAKES),
)


_NAMES: Mapping[Metric, tuple[str, ...]] = {
    c.RECEIVED: ("rx_bytes", "rx_octets"),
    c.SENT: ("tx_bytes", "tx_octets"),
    c.RECEIVED_PACKETS: ("rx_packets",),
    c.SENT_PACKETS: ("tx_packets",),
    d.RECEIVED_UNICAST: ("rx_ucast_packets", "rx_unicast", "rx_unicast_packets"),
    d.SENT_UNICAST: ("tx_ucast_packets", "tx_unicast", "tx_unicast_packets"),
    d.RECEIVED_MULTICAST: ("rx_mcast_packets", "rx_multicast", "rx_multicast_packets"),
    d.SENT_MULTICAST: ("tx_mcast_packets", "tx_multicast", "tx_multicast_packets"),
    d.RECEIVED_BROADCAST: ("rx_bcast_packets", "rx_broadcast", "rx_broadcast_packets"),
    d.SENT_BROADCAST: ("tx_bcast_packets", "tx_broadcast", "tx_broadcast_packets"),
    link.CRC_ERRORS: ("rx_crc_errors", "rx_fcs_errors"),
    link.SYMBOL_ERRORS: ("rx_symbol_errors", "rx_symbol_err"),
    d.ALIGNMENT_ERRORS: ("rx_align_errors", "rx_alignment_errors"),
    d.LENGTH_ERRORS: ("rx_length_errors", "rx_in_length_errors", "rx_in_range_errors"),
    d.OUT_OF_RANGE: ("rx_out_range_errors", "rx_out_length_errors"),
    d.OVERSIZE: (
        "rx_oversize", "rx_oversize_packets", "rx_frame_too_long_errors", "rx_frame_too_long",
        "rx_long_length_errors",
    ),
    d.UNDERSIZE: ("rx_undersize", "rx_undersize_packets", "rx_short_length_errors"),
    d.FRAGMENTS: ("rx_fragments",),
    d.JABBERS: ("rx_jabbers", "rx_jabber"),
    d.RECEIVE_ERRORS: ("rx_errors",),
    d.TRANSMIT_ERRORS: ("tx_errors",),
    c.DISCARDS_RECEIVED: ("rx_discards", "rx_dropped"),
    c.DISCARDS_SENT: ("tx_discards", "tx_dropped"),
    c.OUT_OF_BUFFER: ("rx_missed_errors", "rx_drops_no_pbuf"),
    d.ALLOCATION_FAILURES: ("alloc_rx_buff_failed", "rx_alloc_fail"),
    d.CHECKSUM_ERRORS: ("rx_csum_offload_errors",),
    d.TIMEOUTS: ("tx_timeout_count", "tx_timeout"),
    d.GLOBAL_PAUSE_RECEIVED: (
        "rx_flow_control_xoff", "rx_xoff_pause_rcvd", "rx_pause_frames", "rx_pause",
    ),
    d.GLOBAL_PAUSE_SENT: (
        "tx_flow_control_xoff", "tx_xoff_sent", "tx_pause_frames", "tx_pauseframes", "tx_pause",
    ),
    d.RESUME_RECEIVED: ("rx_flow_control_xon", "rx_xon_pause_rcvd"),
    d.RESUME_SENT: ("tx_flow_control_xon", "tx_xon_sent"),
    d.PFC_FRAMES_RECEIVED: ("rx_priority_pause_frames",),
    d.PFC_FRAMES_SENT: ("tx_priority_pauseframes",),
    d.RECEIVED_CONTROL: ("rx_control_frames", "rx_mac_ctrl_rcvd"),
    d.SENT_CONTROL: ("tx_controlframes",),
}  # fmt: skip

STANDARD: tuple[StatisticMetric, ...] = tuple(
    (name, metric) for metric, names in _NAMES.items() for name in names
)

GROUPS: Mapping[str, Metric] = {
    "SymbolErrorDuringCarrier": link.SYMBOL_ERRORS,
    "FramesTransmittedOK": c.SENT_PACKETS,
    "FramesReceivedOK": c.RECEIVED_PACKETS,
    "FrameCheckSequenceErrors": link.CRC_ERRORS,
    "AlignmentErrors": d.ALIGNMENT_ERRORS,
    "OctetsTransmittedOK": c.SENT,
    "OctetsReceivedOK": c.RECEIVED,
    "FramesLostDueToIntMACXmitError": d.TRANSMIT_ERRORS,
    "FramesLostDueToIntMACRcvError": d.RECEIVE_ERRORS,
    "MulticastFramesXmittedOK": d.SENT_MULTICAST,
    "BroadcastFramesXmittedOK": d.SENT_BROADCAST,
    "MulticastFramesReceivedOK": d.RECEIVED_MULTICAST,
    "BroadcastFramesReceivedOK": d.RECEIVED_BROADCAST,
    "InRangeLengthErrors": d.LENGTH_ERRORS,
    "OutOfRangeLengthField": d.OUT_OF_RANGE,
    "FrameTooLongErrors": d.OVERSIZE,
    "MACControlFramesTransmitted": d.SENT_CONTROL,
    "MACControlFramesReceived": d.RECEIVED_CONTROL,
    "UnsupportedOpcodesReceived": d.UNKNOWN_CONTROL,
    "etherStatsUndersizePkts": d.UNDERSIZE,
    "etherStatsFragments": d.FRAGMENTS,
    "etherStatsJabbers": d.JABBERS,
}

MAX_LISTED_NAMES = 40


def format_statistic_names(names: Sequence[str]) -> str:
    """Names of statistics for a message, up to a bound."""
    shown = ", ".join(names[:MAX_LISTED_NAMES])
    more = len(names) - MAX_LISTED_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


MLX5: tuple[StatisticMetric, ...] = (
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

BNXT: tuple[StatisticMetric, ...] = (
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

ICE: tuple[StatisticMetric, ...] = (
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

I40E: tuple[StatisticMetric, ...] = (
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

DRIVERS: dict[str, tuple[StatisticMetric, ...]] = {
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


def match_statistics(driver: str, names: Sequence[str]) -> list[tuple[Metric, str, int]]:
    """Metrics of a list of statistics: (metric, part or "", position in the list)."""
    found: dict[tuple[Metric, str], int] = {}
    positions = {name: position for position, name in enumerate(names)}
    for name, metric, part in _statistics(driver):
        if name in positions:
            found.setdefault((metric, part), positions[name])
    return [(metric, part, position) for (metric, part), position in found.items()]


def is_narrow(driver: str, name: str) -> bool:
    """True if a statistic wraps to zero at 2^32."""
    return name in _NARROW.get(driver, ())


def resets_with_narrow(name: str) -> bool:
    """True if a 64-bit statistic restarts when the 32-bit ones are reset."""
    return name.startswith(_OF_THE_FUNCTION)
