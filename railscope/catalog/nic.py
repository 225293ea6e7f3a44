"""Metrics of NICs: traffic, pauses and drops, from driver statistics in the kernel's ethtool.

The agent's driver tables map each driver's statistics to metrics.
"""

from fractions import Fraction

from railscope.catalog.declare import EntityKind, Kind, Metric, Rollup, Unit, per
from railscope.catalog.entities import NIC, NIC_PRIORITY

DRIVER_LOAD = "Counts from driver load or from when the counter was last cleared."
MICROSECOND = per(10**6)
SUM_AND_MAX = (Rollup.SUM, Rollup.MAX)


def counter(  # noqa: PLR0913 - options of some of the counters below
    stem: str,
    help_: str,
    *,
    about: EntityKind = NIC,
    unit: Unit = Unit.NONE,
    bits: int = 64,
    detail: bool = False,
    scale: Fraction | None = None,
    origin: str,
) -> Metric:
    """Declare a counter of a NIC; a detail counter has no roll-ups."""
    sums = SUM_AND_MAX if unit is Unit.SECONDS else (Rollup.SUM,)
    return Metric(
        f"railscope_nic_{stem}_total",
        Kind.COUNTER,
        about,
        unit=unit,
        scale=scale or (MICROSECOND if unit is Unit.SECONDS else per(1)),
        rollups=() if detail else sums,
        resets=DRIVER_LOAD,
        wraps_at_bits=bits,
        help=help_,
        origin=f"ethtool statistics: {origin}",
    )


NIC_INFO = Metric(
    "railscope_nic_info",
    Kind.INFO,
    NIC,
    help="What this network card is: driver, PCI address, firmware, RDMA device and rail.",
    origin="ETHTOOL_GDRVINFO, /sys/class/net/*/device",
)

PFC_RECEIVED = counter(
    "receive_pfc_pause_frames",
    "PFC pause frames received: the switch asked us to stop sending.",
    about=NIC_PRIORITY,
    unit=Unit.FRAMES,
    origin="mlx5 rx_prioN_pause; bnxt rx_pfc_ena_frames_priN; ice rx_priority_N_xoff.nic; i40e port.rx_priority_N_xoff, port.rx_priority_N_xoff_rx",
)
PFC_SENT = counter(
    "transmit_pfc_pause_frames",
    "PFC pause frames sent: we asked the switch to stop sending.",
    about=NIC_PRIORITY,
    unit=Unit.FRAMES,
    origin="mlx5 tx_prioN_pause; bnxt tx_pfc_ena_frames_priN; ice tx_priority_N_xoff.nic; i40e port.tx_priority_N_xoff, port.tx_priority_N_xoff_tx",
)
PFC_RESUMED_RECEIVED = counter(
    "receive_pfc_resume_frames",
    "PFC frames received that let us send again.",
    about=NIC_PRIORITY,
    unit=Unit.FRAMES,
    origin="ice rx_priority_N_xon.nic; i40e port.rx_priority_N_xon, port.rx_priority_N_xon_rx",
)
PFC_RESUMED_SENT = counter(
    "transmit_pfc_resume_frames",
    "PFC frames sent that let the switch send again.",
    about=NIC_PRIORITY,
    unit=Unit.FRAMES,
    origin="ice tx_priority_N_xon.nic; i40e port.tx_priority_N_xon, port.tx_priority_N_xon_tx",
)
PFC_RECEIVED_TIME = counter(
    "receive_pfc_pause_seconds",
    "Time in which the switch kept us from sending.",
    about=NIC_PRIORITY,
    unit=Unit.SECONDS,
    origin="mlx5 rx_prioN_pause_duration (us); bnxt pfc_priN_rx_duration_us",
)
PFC_SENT_TIME = counter(
    "transmit_pfc_pause_seconds",
    "Time in which we kept the switch from sending.",
    about=NIC_PRIORITY,
    unit=Unit.SECONDS,
    origin="mlx5 tx_prioN_pause_duration (us); bnxt pfc_priN_tx_duration_us",
)
PFC_RECEIVED_TRANSITIONS = counter(
    "receive_pfc_pause_transitions",
    "Times the switch stopped us and let us go on.",
    about=NIC_PRIORITY,
    origin="mlx5 rx_prioN_pause_transition; bnxt pfc_priN_rx_transitions; i40e port.rx_priority_N_xon_2_xoff",
)
PFC_SENT_TRANSITIONS = counter(
    "transmit_pfc_pause_transitions",
    "Times we stopped the switch and let it go on.",
    about=NIC_PRIORITY,
    origin="bnxt pfc_priN_tx_transitions",
)
PRIORITY_RECEIVED = counter(
    "priority_receive_bytes",
    "Bytes received in this priority.",
    about=NIC_PRIORITY,
    unit=Unit.BYTES,
    origin="mlx5 rx_prioN_bytes; bnxt rx_bytes_priN",
)
PRIORITY_SENT = counter(
    "priority_transmit_bytes",
    "Bytes sent in this priority.",
    about=NIC_PRIORITY,
    unit=Unit.BYTES,
    origin="mlx5 tx_prioN_bytes; bnxt tx_bytes_priN",
)
PRIORITY_RECEIVED_PACKETS = counter(
    "priority_receive_packets",
    "Packets received in this priority.",
    about=NIC_PRIORITY,
    unit=Unit.PACKETS,
    origin="mlx5 rx_prioN_packets; bnxt rx_packets_priN",
)
PRIORITY_SENT_PACKETS = counter(
    "priority_transmit_packets",
    "Packets sent in this priority.",
    about=NIC_PRIORITY,
    unit=Unit.PACKETS,
    origin="mlx5 tx_prioN_packets; bnxt tx_packets_priN",
)
PRIORITY_DISCARDS = counter(
    "priority_receive_discarded_packets",
    "Packets of this priority dropped for lack of a buffer.",
    about=NIC_PRIORITY,
    unit=Unit.PACKETS,
    origin="mlx5 rx_prioN_discards",
)
PRIORITY_CONGESTION_DISCARDS = counter(
    "priority_receive_congestion_discarded_packets",
    "Packets of this priority dropped early because the card's buffer filled up.",
    about=NIC_PRIORITY,
    unit=Unit.PACKETS,
    origin="mlx5 rx_prioN_cong_discard",
)
PRIORITY_MARKED = counter(
    "priority_receive_ecn_marked_packets",
    "Packets of this priority that the card's own receive buffer marked as congested.",
    about=NIC_PRIORITY,
    unit=Unit.PACKETS,
    origin="mlx5 rx_prioN_marked",
)
PAUSE_RECEIVED = counter(
    "receive_pause_frames",
    "Pause frames of any kind received by the port, those of PFC among them.",
    unit=Unit.FRAMES,
    origin="mlx5 rx_pause_ctrl_phy",
)
PAUSE_SENT = counter(
    "transmit_pause_frames",
    "Pause frames of any kind sent by the port, those of PFC among them.",
    unit=Unit.FRAMES,
    origin="mlx5 tx_pause_ctrl_phy",
)
GLOBAL_PAUSE_RECEIVED_TIME = counter(
    "receive_global_pause_seconds",
    "Time in which link-wide pause kept us from sending.",
    unit=Unit.SECONDS,
    origin="mlx5 rx_global_pause_duration (us)",
)
GLOBAL_PAUSE_SENT_TIME = counter(
    "transmit_global_pause_seconds",
    "Time in which we kept the whole link from sending.",
    unit=Unit.SECONDS,
    origin="mlx5 tx_global_pause_duration (us)",
)
STORM_WARNINGS = counter(
    "transmit_pause_storm_warnings",
    "Times the card had been sending pause for long.",
    origin="mlx5 tx_pause_storm_warning_events",
)
STORM_ERRORS = counter(
    "transmit_pause_storm_errors",
    "Times the card stopped sending pause because it had done so for too long.",
    unit=Unit.ERRORS,
    origin="mlx5 tx_pause_storm_error_events",
)
RECEIVED = counter(
    "receive_bytes",
    "Bytes the port received, RDMA included.",
    unit=Unit.BYTES,
    origin="mlx5 rx_bytes_phy; bnxt rx_bytes; ice rx_bytes.nic; i40e port.rx_bytes; mana hc_rx_bytes; gve rx_bytes",
)
SENT = counter(
    "transmit_bytes",
    "Bytes the port sent, RDMA included.",
    unit=Unit.BYTES,
    origin="mlx5 tx_bytes_phy; bnxt tx_bytes; ice tx_bytes.nic; i40e port.tx_bytes; mana hc_tx_bytes; gve tx_bytes",
)
RECEIVED_PACKETS = counter(
    "receive_packets",
    "Packets the port received, RDMA included.",
    unit=Unit.PACKETS,
    origin="mlx5 rx_packets_phy; bnxt rx_good_frames; gve rx_packets",
)
SENT_PACKETS = counter(
    "transmit_packets",
    "Packets the port sent, RDMA included.",
    unit=Unit.PACKETS,
    origin="mlx5 tx_packets_phy; bnxt tx_good_frames; gve tx_packets",
)
RDMA_RECEIVED = counter(
    "receive_rdma_bytes",
    "RDMA bytes this function received.",
    unit=Unit.BYTES,
    origin="mlx5 rx_vport_rdma_unicast_bytes",
)
RDMA_SENT = counter(
    "transmit_rdma_bytes",
    "RDMA bytes this function sent.",
    unit=Unit.BYTES,
    origin="mlx5 tx_vport_rdma_unicast_bytes",
)
DISCARDS_RECEIVED = counter(
    "receive_discarded_packets",
    "Packets the port dropped because no buffer was free.",
    unit=Unit.PACKETS,
    origin="mlx5 rx_discards_phy; bnxt rx_stat_discard; ice rx_dropped.nic; i40e port.rx_dropped; gve rx_dropped",
)
DISCARDS_SENT = counter(
    "transmit_discarded_packets",
    "Packets the port dropped before sending.",
    unit=Unit.PACKETS,
    origin="mlx5 tx_discards_phy; bnxt tx_stat_discard; ice tx_dropped_link_down.nic; i40e port.tx_dropped_link_down; gve tx_dropped",
)
OUT_OF_BUFFER = counter(
    "receive_out_of_buffer_packets",
    "Ethernet packets dropped because receive queues were empty.",
    unit=Unit.PACKETS,
    bits=32,
    origin="mlx5 rx_out_of_buffer; bnxt rx_total_ring_discards, rx_total_discard_pkts; mana hc_rx_discards_no_wqe",
)
BUFFER_ALMOST_FULL = counter(
    "receive_buffer_passed_threshold",
    "Times the receive buffer was more than 85 % full.",
    origin="mlx5 rx_buffer_passed_thres_phy; bnxt rx_buffer_passed_threshold",
)
ECN_MARKED = counter(
    "receive_ecn_marked_packets",
    "Ethernet (TCP) packets received with a congestion mark.",
    unit=Unit.PACKETS,
    origin="mlx5 rx_ecn_mark",
)
