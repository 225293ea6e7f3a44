"""Metrics of the ethtool statistics of each driver: one table per driver.

A name may contain {priority}, {class} or {lane}. If several statistics of a driver map to one
metric, the first one that the NIC reports counts. Omitted: per-queue counters, frame size counters,
and offloads. virtio has per-queue counters only; their sum is what the kernel counts for the
interface. Sources: torvalds/linux drivers/net/ethernet, en_stats.c (mlx5), mlx4/en_ethtool.c,
mlx4_stats.h, bnxt_ethtool.c, hns3pf/hclge_main.c, cxgb4_ethtool.c,
ice_ethtool.c, i40e_ethtool.c, pensando/ionic/ionic_stats.c; of the virtual NICs of clouds amazon/ena/ena_ethtool.c,
microsoft/mana/mana_ethtool.c, google/gve/gve_ethtool.c, and drivers/net/hyperv/netvsc_drv.c.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from railscope.catalog import declare, entities, nic as c
from railscope_agent.topology.network_interface import NetworkInterface

StatisticMetric = tuple[str, declare.Metric]

ENA: tuple[StatisticMetric, ...] = (
    ("bw_in_allowance_exceeded", c.LIMITED_RECEIVED),
    ("bw_out_allowance_exceeded", c.LIMITED_SENT),
    ("pps_allowance_exceeded", c.LIMITED_RATE),
    ("conntrack_allowance_exceeded", c.LIMITED_CONNECTIONS),
    ("linklocal_allowance_exceeded", c.LIMITED_LOCAL),
    ("conntrack_allowance_available", c.CONNECTIONS_LEFT),
    ("ena_srd_tx_pkts", c.SRD_SENT),
    ("ena_srd_eligible_tx_pkts", c.SRD_ELIGIBLE),
    ("ena_srd_rx_pkts", c.SRD_RECEIVED),
    ("ena_srd_resource_utilization", c.SRD_USE),
    ("tx_timeout", c.TIMEOUTS),
    ("wd_expired", c.WATCHDOGS),
    ("interface_down", c.INTERFACE_DOWNS),
    ("ena_admin_q_no_completion", c.COMMAND_ERRORS),
)

MANA: tuple[StatisticMetric, ...] = (
    ("hc_tc{priority}_rx_pause_phy", c.PFC_RECEIVED),
    ("hc_tc{priority}_tx_pause_phy", c.PFC_SENT),
    ("hc_tc{class}_rx_byte_phy", c.CLASS_RECEIVED),
    ("hc_tc{class}_tx_byte_phy", c.CLASS_SENT),
    ("hc_tc{class}_rx_pkt_phy", c.CLASS_RECEIVED_PACKETS),
    ("hc_tc{class}_tx_pkt_phy", c.CLASS_SENT_PACKETS),
    ("hc_rx_pkt_drop_phy", c.DISCARDS_RECEIVED),
    ("hc_tx_pkt_drop_phy", c.DISCARDS_SENT),
    ("hc_rx_bytes", c.RECEIVED),
    ("hc_tx_bytes", c.SENT),
    ("hc_rx_ucast_pkts", c.RECEIVED_UNICAST),
    ("hc_tx_ucast_pkts", c.SENT_UNICAST),
    ("hc_rx_mcast_pkts", c.RECEIVED_MULTICAST),
    ("hc_tx_mcast_pkts", c.SENT_MULTICAST),
    ("hc_rx_bcast_pkts", c.RECEIVED_BROADCAST),
    ("hc_tx_bcast_pkts", c.SENT_BROADCAST),
    ("hc_rx_discards_no_wqe", c.OUT_OF_BUFFER),
    ("hc_rx_err_vport_disabled", c.DOWN_DROPS),
    ("tx_cqe_err", c.COMPLETION_ERRORS),
    ("stop_queue", c.QUEUE_STOPS),
    ("wake_queue", c.QUEUE_WAKES),
)

GVE: tuple[StatisticMetric, ...] = (
    ("rx_bytes", c.RECEIVED),
    ("tx_bytes", c.SENT),
    ("rx_packets", c.RECEIVED_PACKETS),
    ("tx_packets", c.SENT_PACKETS),
    ("rx_dropped", c.DISCARDS_RECEIVED),
    ("tx_dropped", c.DISCARDS_SENT),
    ("rx_desc_err_dropped_pkt", c.RECEIVE_ERRORS),
    ("rx_buf_alloc_fail", c.ALLOCATION_FAILURES),
    ("tx_timeouts", c.TIMEOUTS),
    ("reset_cnt", c.DEVICE_RESETS),
    ("interface_down_cnt", c.INTERFACE_DOWNS),
    ("dma_mapping_error", c.MAPPING_ERRORS),
)

NETVSC: tuple[StatisticMetric, ...] = (
    ("rx_no_memory", c.MEMORY_DROPS),
    ("tx_send_full", c.SEND_BUFFER_FULL),
    ("tx_busy", c.SEND_BUSY),
    ("stop_queue", c.QUEUE_STOPS),
    ("wake_queue", c.QUEUE_WAKES),
)


_NAMES: Mapping[declare.Metric, tuple[str, ...]] = {
    c.RECEIVED: ("rx_bytes", "rx_octets"),
    c.SENT: ("tx_bytes", "tx_octets"),
    c.RECEIVED_PACKETS: ("rx_packets",),
    c.SENT_PACKETS: ("tx_packets",),
    c.RECEIVED_UNICAST: ("rx_ucast_packets", "rx_unicast", "rx_unicast_packets"),
    c.SENT_UNICAST: ("tx_ucast_packets", "tx_unicast", "tx_unicast_packets"),
    c.RECEIVED_MULTICAST: ("rx_mcast_packets", "rx_multicast", "rx_multicast_packets"),
    c.SENT_MULTICAST: ("tx_mcast_packets", "tx_multicast", "tx_multicast_packets"),
    c.RECEIVED_BROADCAST: ("rx_bcast_packets", "rx_broadcast", "rx_broadcast_packets"),
    c.SENT_BROADCAST: ("tx_bcast_packets", "tx_broadcast", "tx_broadcast_packets"),
    c.CRC_ERRORS: ("rx_crc_errors", "rx_fcs_errors"),
    c.SYMBOL_ERRORS: ("rx_symbol_errors", "rx_symbol_err"),
    c.ALIGNMENT_ERRORS: ("rx_align_errors", "rx_alignment_errors"),
    c.LENGTH_ERRORS: ("rx_length_errors", "rx_in_length_errors", "rx_in_range_errors"),
    c.OUT_OF_RANGE: ("rx_out_range_errors", "rx_out_length_errors"),
    c.OVERSIZE: (
        "rx_oversize", "rx_oversize_packets", "rx_frame_too_long_errors", "rx_frame_too_long",
        "rx_long_length_errors",
    ),
    c.UNDERSIZE: ("rx_undersize", "rx_undersize_packets", "rx_short_length_errors"),
    c.FRAGMENTS: ("rx_fragments",),
    c.JABBERS: ("rx_jabbers", "rx_jabber"),
    c.RECEIVE_ERRORS: ("rx_errors",),
    c.TRANSMIT_ERRORS: ("tx_errors",),
    c.DISCARDS_RECEIVED: ("rx_discards", "rx_dropped", "brb_discards"),
    c.DISCARDS_SENT: ("tx_discards", "tx_dropped"),
    c.OUT_OF_BUFFER: ("rx_missed_errors", "rx_drops_no_pbuf", "no_buff_discards"),
    c.ALLOCATION_FAILURES: ("alloc_rx_buff_failed", "rx_alloc_fail"),
    c.CHECKSUM_ERRORS: ("rx_csum_offload_errors",),
    c.TIMEOUTS: ("tx_timeout_count", "tx_timeout"),
    c.GLOBAL_PAUSE_RECEIVED: (
        "rx_flow_control_xoff", "rx_xoff_pause_rcvd", "rx_pause_frames", "rx_pause",
    ),
    c.GLOBAL_PAUSE_SENT: (
        "tx_flow_control_xoff", "tx_xoff_sent", "tx_pause_frames", "tx_pauseframes", "tx_pause",
    ),
    c.RESUME_RECEIVED: ("rx_flow_control_xon", "rx_xon_pause_rcvd"),
    c.RESUME_SENT: ("tx_flow_control_xon", "tx_xon_sent"),
    c.PFC_FRAMES_RECEIVED: ("rx_priority_pause_frames", "rx_pfc_frames", "pfc_frames_received"),
    c.PFC_FRAMES_SENT: ("tx_priority_pauseframes", "tx_pfc_frames", "pfc_frames_sent"),
    c.RECEIVED_CONTROL: ("rx_control_frames", "rx_mac_ctrl_rcvd"),
    c.SENT_CONTROL: ("tx_controlframes",),
}  # fmt: skip

STANDARD: tuple[StatisticMetric, ...] = tuple(
    (name, metric) for metric, names in _NAMES.items() for name in names
)
"""Names for a driver without a table, under which Linux drivers count what the standard groups count.

Sources: tg3.c, e1000e/ethtool.c, be_ethtool.c, qede_ethtool.c, bnx2x_ethtool.c and others in torvalds/linux drivers/net/ethernet.
"""

GROUPS: Mapping[str, declare.Metric] = {
    "SymbolErrorDuringCarrier": c.SYMBOL_ERRORS,
    "FramesTransmittedOK": c.SENT_PACKETS,
    "FramesReceivedOK": c.RECEIVED_PACKETS,
    "FrameCheckSequenceErrors": c.CRC_ERRORS,
    "AlignmentErrors": c.ALIGNMENT_ERRORS,
    "OctetsTransmittedOK": c.SENT,
    "OctetsReceivedOK": c.RECEIVED,
    "FramesLostDueToIntMACXmitError": c.TRANSMIT_ERRORS,
    "FramesLostDueToIntMACRcvError": c.RECEIVE_ERRORS,
    "MulticastFramesXmittedOK": c.SENT_MULTICAST,
    "BroadcastFramesXmittedOK": c.SENT_BROADCAST,
    "MulticastFramesReceivedOK": c.RECEIVED_MULTICAST,
    "BroadcastFramesReceivedOK": c.RECEIVED_BROADCAST,
    "InRangeLengthErrors": c.LENGTH_ERRORS,
    "OutOfRangeLengthField": c.OUT_OF_RANGE,
    "FrameTooLongErrors": c.OVERSIZE,
    "MACControlFramesTransmitted": c.SENT_CONTROL,
    "MACControlFramesReceived": c.RECEIVED_CONTROL,
    "UnsupportedOpcodesReceived": c.UNKNOWN_CONTROL,
    "etherStatsUndersizePkts": c.UNDERSIZE,
    "etherStatsFragments": c.FRAGMENTS,
    "etherStatsJabbers": c.JABBERS,
}
"""Counters of IEEE 802.3 that ethtool over netlink returns under standard names, whatever the driver's are.

ETHTOOL_MSG_STATS_GET: eth-phy, eth-mac, eth-ctrl, rmon.
"""

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
    ("rx_prio{priority}_buf_discard", c.HOST_DISCARDS),
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
    ("rx_crc_errors_phy", c.CRC_ERRORS),
    ("rx_symbol_err_phy", c.SYMBOL_ERRORS),
    ("rx_pcs_symbol_err_phy", c.UNCORRECTED_SYMBOLS),
    ("rx_bits_phy", c.LINE_RECEIVED),
    ("rx_corrected_bits_phy", c.CORRECTED),
    ("rx_err_lane_{lane}_phy", c.LANE_ERRORS),
    ("link_down_events_phy", c.LINK_DOWNS),
    ("rx_pci_signal_integrity", c.PCIE_SIGNAL_ERRORS_RECEIVED),
    ("tx_pci_signal_integrity", c.PCIE_SIGNAL_ERRORS_SENT),
    ("outbound_pci_stalled_rd", c.PCIE_READ_STALL),
    ("outbound_pci_stalled_wr", c.PCIE_WRITE_STALL),
    ("outbound_pci_stalled_rd_events", c.PCIE_READ_STALLED),
    ("outbound_pci_stalled_wr_events", c.PCIE_WRITE_STALLED),
    ("outbound_pci_buffer_overflow", c.PCIE_OVERFLOWS),
    ("module_unplug", c.TRANSCEIVER_UNPLUGS),
    ("module_high_temp", c.TRANSCEIVER_TOO_HOT),
    ("rx_multicast_phy", c.RECEIVED_MULTICAST),
    ("tx_multicast_phy", c.SENT_MULTICAST),
    ("rx_broadcast_phy", c.RECEIVED_BROADCAST),
    ("tx_broadcast_phy", c.SENT_BROADCAST),
    ("rx_mac_control_phy", c.RECEIVED_CONTROL),
    ("tx_mac_control_phy", c.SENT_CONTROL),
    ("rx_unsupported_op_phy", c.UNKNOWN_CONTROL),
    ("rx_vport_rdma_unicast_packets", c.RDMA_RECEIVED_PACKETS),
    ("tx_vport_rdma_unicast_packets", c.RDMA_SENT_PACKETS),
    ("rx_global_pause", c.GLOBAL_PAUSE_RECEIVED),
    ("tx_global_pause", c.GLOBAL_PAUSE_SENT),
    ("rx_global_pause_transition", c.GLOBAL_PAUSE_TRANSITIONS),
    ("rx_in_range_len_errors_phy", c.LENGTH_ERRORS),
    ("rx_out_of_range_len_phy", c.OUT_OF_RANGE),
    ("rx_oversize_pkts_phy", c.OVERSIZE),
    ("rx_undersize_pkts_phy", c.UNDERSIZE),
    ("rx_fragments_phy", c.FRAGMENTS),
    ("rx_jabbers_phy", c.JABBERS),
    ("tx_errors_phy", c.TRANSMIT_ERRORS),
    ("module_bus_stuck", c.TRANSCEIVER_STUCK),
    ("module_bad_shorted", c.TRANSCEIVER_SHORTED),
    ("rx_steer_missed_packets", c.STEERING_MISSES),
    ("rx_if_down_packets", c.DOWN_DROPS),
    ("rx_oversize_pkts_buffer", c.TOO_LONG_DROPS),
    ("rx_oversize_pkts_sw_drop", c.TOO_LONG_FOR_MTU),
    ("dev_internal_queue_oob", c.DEVICE_OUT_OF_BUFFER),
    ("dev_out_of_buffer", c.DEVICE_OUT_OF_BUFFER),
    ("rx_buff_alloc_err", c.ALLOCATION_FAILURES),
    ("tx_queue_dropped", c.RING_DISCARDS_SENT),
    ("tx_queue_stopped", c.QUEUE_STOPS),
    ("tx_queue_wake", c.QUEUE_WAKES),
    ("rx_wqe_err", c.RECEIVE_REQUEST_ERRORS),
    ("tx_cqe_err", c.COMPLETION_ERRORS),
    ("rx_recover", c.RECEIVE_RESETS),
    ("tx_recover", c.TRANSMIT_RESETS),
    ("ch_eq_rearm", c.MISSED_INTERRUPTS),
    *c.FUNCTION.items(),
)

MLX4: tuple[StatisticMetric, ...] = (
    ("rx_pause_prio_{priority}", c.PFC_RECEIVED),
    ("tx_pause_prio_{priority}", c.PFC_SENT),
    ("rx_pause_duration_prio_{priority}", c.PFC_RECEIVED_TIME),
    ("tx_pause_duration_prio_{priority}", c.PFC_SENT_TIME),
    ("rx_pause_transition_prio_{priority}", c.PFC_RECEIVED_TRANSITIONS),
    ("tx_pause_transition_prio_{priority}", c.PFC_SENT_TRANSITIONS),
    ("rx_prio_{priority}_bytes", c.PRIORITY_RECEIVED),
    ("tx_prio_{priority}_bytes", c.PRIORITY_SENT),
    ("rx_prio_{priority}_packets", c.PRIORITY_RECEIVED_PACKETS),
    ("tx_prio_{priority}_packets", c.PRIORITY_SENT_PACKETS),
    ("rx_pause", c.GLOBAL_PAUSE_RECEIVED),
    ("tx_pause", c.GLOBAL_PAUSE_SENT),
    ("rx_pause_duration", c.GLOBAL_PAUSE_RECEIVED_TIME),
    ("tx_pause_duration", c.GLOBAL_PAUSE_SENT_TIME),
    ("rx_pause_transition", c.GLOBAL_PAUSE_TRANSITIONS),
    ("rx_bytes_phy", c.RECEIVED),
    ("tx_bytes_phy", c.SENT),
    ("rx_packets_phy", c.RECEIVED_PACKETS),
    ("tx_packets_phy", c.SENT_PACKETS),
    ("rx_multicast_packets", c.RECEIVED_MULTICAST),
    ("tx_multicast_packets", c.SENT_MULTICAST),
    ("rx_broadcast_packets", c.RECEIVED_BROADCAST),
    ("tx_broadcast_packets", c.SENT_BROADCAST),
    ("rx_dropped", c.DISCARDS_RECEIVED),
    ("tx_dropped", c.DISCARDS_SENT),
    ("rx_crc_errors", c.CRC_ERRORS),
    ("rx_jabbers", c.JABBERS),
    ("rx_in_range_length_error", c.LENGTH_ERRORS),
    ("rx_out_range_length_error", c.OUT_OF_RANGE),
    ("tx_timeout", c.TIMEOUTS),
    ("queue_stopped", c.QUEUE_STOPS),
    ("wake_queue", c.QUEUE_WAKES),
)
"""rx_bytes is left out: with virtual functions it is the sum of the rings, without RDMA."""

HNS3: tuple[StatisticMetric, ...] = (
    ("mac_rx_pfc_pri{priority}_pkt_num", c.PFC_RECEIVED),
    ("mac_tx_pfc_pri{priority}_pkt_num", c.PFC_SENT),
    ("mac_rx_pfc_pkt_num", c.PFC_FRAMES_RECEIVED),
    ("mac_tx_pfc_pkt_num", c.PFC_FRAMES_SENT),
    ("mac_rx_mac_pause_num", c.GLOBAL_PAUSE_RECEIVED),
    ("mac_tx_mac_pause_num", c.GLOBAL_PAUSE_SENT),
    ("mac_rx_total_oct_num", c.RECEIVED),
    ("mac_tx_total_oct_num", c.SENT),
    ("mac_rx_good_pkt_num", c.RECEIVED_PACKETS),
    ("mac_tx_good_pkt_num", c.SENT_PACKETS),
    ("mac_rx_uni_pkt_num", c.RECEIVED_UNICAST),
    ("mac_tx_uni_pkt_num", c.SENT_UNICAST),
    ("mac_rx_multi_pkt_num", c.RECEIVED_MULTICAST),
    ("mac_tx_multi_pkt_num", c.SENT_MULTICAST),
    ("mac_rx_broad_pkt_num", c.RECEIVED_BROADCAST),
    ("mac_tx_broad_pkt_num", c.SENT_BROADCAST),
    ("mac_rx_control_pkt_num", c.RECEIVED_CONTROL),
    ("mac_tx_control_pkt_num", c.SENT_CONTROL),
    ("mac_rx_fcs_err_pkt_num", c.CRC_ERRORS),
    ("mac_rx_bad_pkt_num", c.RECEIVE_ERRORS),
    ("mac_tx_err_all_pkt_num", c.TRANSMIT_ERRORS),
    ("mac_rx_oversize_pkt_num", c.OVERSIZE),
    ("mac_rx_undersize_pkt_num", c.UNDERSIZE),
    ("mac_rx_fragment_pkt_num", c.FRAGMENTS),
    ("mac_rx_jabber_pkt_num", c.JABBERS),
)
"""The times of pauses (xoff_time) are left out: the driver does not state their unit."""

CXGB4: tuple[StatisticMetric, ...] = (
    ("rx_ppp{priority}_frames", c.PFC_RECEIVED),
    ("tx_ppp{priority}_frames", c.PFC_SENT),
    ("rx_pause_frames", c.GLOBAL_PAUSE_RECEIVED),
    ("tx_pause_frames", c.GLOBAL_PAUSE_SENT),
    ("rx_octets_ok", c.RECEIVED),
    ("tx_octets_ok", c.SENT),
    ("rx_frames_ok", c.RECEIVED_PACKETS),
    ("tx_frames_ok", c.SENT_PACKETS),
    ("rx_unicast_frames", c.RECEIVED_UNICAST),
    ("tx_unicast_frames", c.SENT_UNICAST),
    ("rx_multicast_frames", c.RECEIVED_MULTICAST),
    ("tx_multicast_frames", c.SENT_MULTICAST),
    ("rx_broadcast_frames", c.RECEIVED_BROADCAST),
    ("tx_broadcast_frames", c.SENT_BROADCAST),
    ("tx_frames_dropped", c.DISCARDS_SENT),
    ("tx_error_frames", c.TRANSMIT_ERRORS),
    ("rx_fcs_errors", c.CRC_ERRORS),
    ("rx_symbol_errors", c.SYMBOL_ERRORS),
    ("rx_length_errors", c.LENGTH_ERRORS),
    ("rx_frames_too_long", c.OVERSIZE),
    ("rx_runt_frames", c.FRAGMENTS),
    ("rx_jabber_errors", c.JABBERS),
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
    ("rx_pause_frames", c.GLOBAL_PAUSE_RECEIVED),
    ("tx_pause_frames", c.GLOBAL_PAUSE_SENT),
    ("rx_bytes", c.RECEIVED),
    ("tx_bytes", c.SENT),
    ("rx_stat_discard", c.DISCARDS_RECEIVED),
    ("tx_stat_discard", c.DISCARDS_SENT),
    ("rx_buffer_passed_threshold", c.BUFFER_ALMOST_FULL),
    ("rx_fcs_err_frames", c.CRC_ERRORS),
    ("rx_pcs_symbol_err", c.UNCORRECTED_SYMBOLS),
    ("rx_bits", c.LINE_RECEIVED),
    ("rx_corrected_bits", c.CORRECTED),
    ("rx_fec_corrected_blocks", c.FEC_CORRECTED_BLOCKS),
    ("rx_fec_uncorrectable_blocks", c.FEC_UNCORRECTABLE_BLOCKS),
    ("link_down_events", c.LINK_DOWNS),
    ("rx_good_frames", c.RECEIVED_PACKETS),
    ("tx_good_frames", c.SENT_PACKETS),
    ("rx_ucast_frames", c.RECEIVED_UNICAST),
    ("tx_ucast_frames", c.SENT_UNICAST),
    ("rx_mcast_frames", c.RECEIVED_MULTICAST),
    ("tx_mcast_frames", c.SENT_MULTICAST),
    ("rx_bcast_frames", c.RECEIVED_BROADCAST),
    ("tx_bcast_frames", c.SENT_BROADCAST),
    ("rx_ctrl_frames", c.RECEIVED_CONTROL),
    ("rx_bytes_cos{class}", c.CLASS_RECEIVED),
    ("tx_bytes_cos{class}", c.CLASS_SENT),
    ("rx_packets_cos{class}", c.CLASS_RECEIVED_PACKETS),
    ("tx_packets_cos{class}", c.CLASS_SENT_PACKETS),
    ("rx_discard_bytes_cos{class}", c.CLASS_DISCARDED),
    ("rx_discard_packets_cos{class}", c.CLASS_DISCARDED_PACKETS),
    ("rx_pfc_frames", c.PFC_FRAMES_RECEIVED),
    ("tx_pfc_frames", c.PFC_FRAMES_SENT),
    ("continuous_pause_events", c.STORMS),
    ("resume_pause_events", c.STORM_ENDS),
    ("continuous_roce_pause_events", c.ROCE_STORMS),
    ("resume_roce_pause_events", c.ROCE_STORM_ENDS),
    ("rx_total_ring_discards", c.OUT_OF_BUFFER),
    ("rx_total_discard_pkts", c.OUT_OF_BUFFER),
    ("rx_total_oom_discards", c.MEMORY_DROPS),
    ("rx_filter_miss", c.STEERING_MISSES),
    ("tx_total_ring_discards", c.RING_DISCARDS_SENT),
    ("tx_total_discard_pkts", c.RING_DISCARDS_SENT),
    ("rx_ovrsz_frames", c.OVERSIZE),
    ("rx_undrsz_frames", c.UNDERSIZE),
    ("rx_runt_frames", c.FRAGMENTS),
    ("rx_jbr_frames", c.JABBERS),
    ("rx_align_err_frames", c.ALIGNMENT_ERRORS),
    ("rx_mtu_err_frames", c.MTU_ERRORS),
    ("rx_stat_err", c.RECEIVE_ERRORS),
    ("tx_stat_error", c.TRANSMIT_ERRORS),
    ("tx_fcs_err_frames", c.TRANSMIT_CRC_ERRORS),
    ("tx_fifo_underruns", c.UNDERRUNS),
    ("rx_total_l4_csum_errors", c.CHECKSUM_ERRORS),
    ("rx_total_buf_errors", c.RECEIVE_RING_ERRORS),
    ("rx_total_resets", c.RECEIVE_RESETS),
    ("tx_total_resets", c.TRANSMIT_RESETS),
    ("total_missed_irqs", c.MISSED_INTERRUPTS),
)

_INTEL: tuple[StatisticMetric, ...] = (
    ("rx_priority_{priority}_xoff", c.PFC_RECEIVED),
    ("tx_priority_{priority}_xoff", c.PFC_SENT),
    ("rx_priority_{priority}_xon", c.PFC_RESUMED_RECEIVED),
    ("tx_priority_{priority}_xon", c.PFC_RESUMED_SENT),
    ("link_xoff_rx", c.GLOBAL_PAUSE_RECEIVED),
    ("link_xoff_tx", c.GLOBAL_PAUSE_SENT),
    ("rx_bytes", c.RECEIVED),
    ("tx_bytes", c.SENT),
    ("rx_dropped", c.DISCARDS_RECEIVED),
    ("tx_dropped_link_down", c.DISCARDS_SENT),
    ("rx_crc_errors", c.CRC_ERRORS),
    ("rx_unicast", c.RECEIVED_UNICAST),
    ("tx_unicast", c.SENT_UNICAST),
    ("rx_multicast", c.RECEIVED_MULTICAST),
    ("tx_multicast", c.SENT_MULTICAST),
    ("rx_broadcast", c.RECEIVED_BROADCAST),
    ("tx_broadcast", c.SENT_BROADCAST),
    ("link_xon_rx", c.RESUME_RECEIVED),
    ("link_xon_tx", c.RESUME_SENT),
    ("rx_length_errors", c.LENGTH_ERRORS),
    ("rx_oversize", c.OVERSIZE),
    ("rx_undersize", c.UNDERSIZE),
    ("rx_fragments", c.FRAGMENTS),
    ("rx_jabber", c.JABBERS),
    ("tx_errors", c.TRANSMIT_ERRORS),
    ("rx_csum_bad", c.CHECKSUM_ERRORS),
    ("illegal_bytes", c.ILLEGAL_BYTES),
    ("mac_local_faults", c.LOCAL_FAULTS),
    ("mac_remote_faults", c.REMOTE_FAULTS),
    ("tx_timeout", c.TIMEOUTS),
)
"""Names of Intel's drivers: with the suffix .nic in ice, with the prefix port. in i40e."""

ICE: tuple[StatisticMetric, ...] = (
    *((f"{name}.nic", metric) for name, metric in _INTEL),
    ("rx_alloc_fail", c.ALLOCATION_FAILURES),
)

I40E: tuple[StatisticMetric, ...] = (
    *((f"port.{name}", metric) for name, metric in _INTEL),
    ("port.rx_discards", c.DISCARDS_RECEIVED),
    ("port.rx_priority_{priority}_xoff_rx", c.PFC_RECEIVED),
    ("port.tx_priority_{priority}_xoff_tx", c.PFC_SENT),
    ("port.rx_priority_{priority}_xon_rx", c.PFC_RESUMED_RECEIVED),
    ("port.tx_priority_{priority}_xon_tx", c.PFC_RESUMED_SENT),
    ("port.rx_priority_{priority}_xon_2_xoff", c.PFC_RECEIVED_TRANSITIONS),
)

IONIC: tuple[StatisticMetric, ...] = (
    ("rx_pripause_{priority}_1us_count", c.PFC_RECEIVED_TIME),
    ("tx_pripause_{priority}_1us_count", c.PFC_SENT_TIME),
    ("frames_rx_pripause", c.PFC_FRAMES_RECEIVED), ("frames_tx_pripause", c.PFC_FRAMES_SENT),
    ("frames_rx_pause", c.GLOBAL_PAUSE_RECEIVED), ("frames_tx_pause", c.GLOBAL_PAUSE_SENT),
    ("rx_pause_1us_count", c.GLOBAL_PAUSE_RECEIVED_TIME),
    ("frames_rx_pri_{priority}", c.PRIORITY_RECEIVED_PACKETS),
    ("frames_tx_pri_{priority}", c.PRIORITY_SENT_PACKETS), ("octets_rx_ok", c.RECEIVED),
    ("octets_tx_ok", c.SENT), ("frames_rx_ok", c.RECEIVED_PACKETS),
    ("frames_tx_ok", c.SENT_PACKETS), ("frames_rx_dropped", c.DISCARDS_RECEIVED),
    ("frames_rx_bad_fcs", c.CRC_ERRORS), ("frames_rx_bad_all", c.RECEIVE_ERRORS),
    ("frames_tx_bad", c.TRANSMIT_ERRORS), ("frames_rx_bad_length", c.LENGTH_ERRORS),
    ("frames_rx_oversized", c.OVERSIZE), ("frames_rx_undersized", c.UNDERSIZE),
    ("frames_rx_fragments", c.FRAGMENTS), ("frames_rx_jabber", c.JABBERS),
    ("frames_rx_unicast", c.RECEIVED_UNICAST), ("frames_tx_unicast", c.SENT_UNICAST),
    ("frames_rx_multicast", c.RECEIVED_MULTICAST), ("frames_tx_multicast", c.SENT_MULTICAST),
    ("frames_rx_broadcast", c.RECEIVED_BROADCAST), ("frames_tx_broadcast", c.SENT_BROADCAST),
)  # fmt: skip
"""AMD Pollara and Pensando: the driver counts PFC frames of all priorities together, and pause time per priority."""

DRIVERS: dict[str, tuple[StatisticMetric, ...]] = {
    "mlx5_core": MLX5,
    "mlx5e_rep": MLX5,
    "mlx4_en": MLX4,
    "hns3": HNS3,
    "cxgb4": CXGB4,
    "bnxt_en": BNXT,
    "ice": ICE,
    "i40e": I40E,
    "ionic": IONIC,
    "ena": ENA,
    "mana": MANA,
    "gve": GVE,
    "hv_netvsc": NETVSC,
}

"""Tables by driver. Linux before 5.13 calls a port in switchdev mode mlx5e_rep; interfaces of other parts have no table."""

_NARROW = {"mlx5_core": ("rx_out_of_buffer", "dev_internal_queue_oob", "dev_out_of_buffer")}
"""32-bit statistics that wrap: queue counters. Those of the function are reset together with them."""
_OF_THE_FUNCTION = ("rx_vport_", "tx_vport_")

_PARTS = {
    entities.NIC_PRIORITY: "{priority}",
    entities.NIC_TRAFFIC_CLASS: "{class}",
    entities.NIC_LANE: "{lane}",
}
_MAX_PARTS = 8
"""Priorities and traffic classes of IEEE 802.1Q; no current link has more lanes."""


@lru_cache
def _statistics(driver: str, *, is_infiniband: bool) -> tuple[tuple[str, declare.Metric, str], ...]:
    """Every statistic of a driver that maps to a metric, with its priority, class or lane.

    Without a table of its own, a driver of IPoIB counts IP packets, which are not the traffic of the port
    (drivers/infiniband/ulp/ipoib/ipoib_ethtool.c).
    """
    statistics = []
    for text, metric in DRIVERS.get(driver, () if is_infiniband else STANDARD):
        place = _PARTS.get(metric.about)
        parts = map(str, range(_MAX_PARTS)) if place else ("",)
        statistics += [(text.replace(place or "", part), metric, part) for part in parts]
    return tuple(statistics)


def match_statistics(
    nic: NetworkInterface, names: Sequence[str]
) -> list[tuple[declare.Metric, str, int]]:
    """Metrics of a list of statistics: (metric, part or "", position in the list).

    Names are compared without blanks at their ends: drivers pad them within the 32 bytes of each
    (chelsio/cxgb4/cxgb4_ethtool.c). Of equal names the first one counts.
    """
    matched: dict[tuple[declare.Metric, str], int] = {}
    positions: dict[str, int] = {}
    for position, name in enumerate(names):
        positions.setdefault(name.strip(), position)
    for name, metric, part in _statistics(nic.driver, is_infiniband=nic.is_infiniband):
        if name in positions:
            # The table is in order of precedence: older and newer drivers have different names for one
            # counter.
            matched.setdefault((metric, part), positions[name])
    return [(metric, part, position) for (metric, part), position in matched.items()]


def usual_metrics(nic: NetworkInterface) -> tuple[declare.Metric, ...]:
    """Metrics that are absent for the reason of the failure if the list of statistics cannot be read."""
    of_nic = [
        metric
        for _, metric, part in _statistics(nic.driver, is_infiniband=nic.is_infiniband)
        if not part
    ]
    return tuple(metric for metric in (c.RECEIVED, c.SENT) if metric in of_nic) or tuple(of_nic[:1])


def is_narrow(driver: str, name: str) -> bool:
    """True if a statistic wraps to zero at 2^32."""
    return name.strip() in _NARROW.get(driver, ())


def resets_with_narrow(name: str) -> bool:
    """True if a 64-bit statistic restarts when the 32-bit ones are reset."""
    return name.strip().startswith(_OF_THE_FUNCTION)
