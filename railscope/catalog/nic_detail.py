"""More metrics of NICs: traffic by kind, losses and errors by cause, cloud limits."""

# fmt: off
from railscope.catalog.declare import Kind, Metric, Rollup, Unit, per
from railscope.catalog.entities import NIC, NIC_PRIORITY, NIC_TRAFFIC_CLASS
from railscope.catalog.nic import counter

_B, _P, _F, _E = Unit.BYTES, Unit.PACKETS, Unit.FRAMES, Unit.ERRORS

# Traffic ------------------------------------------------------------------------------------------
RECEIVED_UNICAST = counter("receive_unicast_packets", "Unicast packets the port received.", unit=_P, origin="bnxt rx_ucast_frames; ice rx_unicast.nic; i40e port.rx_unicast; mana hc_rx_ucast_pkts")
SENT_UNICAST = counter("transmit_unicast_packets", "Unicast packets the port sent.", unit=_P, origin="bnxt tx_ucast_frames; ice tx_unicast.nic; i40e port.tx_unicast; mana hc_tx_ucast_pkts")
RECEIVED_MULTICAST = counter("receive_multicast_packets", "Multicast packets the port received.", unit=_P, origin="mlx5 rx_multicast_phy; bnxt rx_mcast_frames; ice rx_multicast.nic; i40e port.rx_multicast; mana hc_rx_mcast_pkts")
SENT_MULTICAST = counter("transmit_multicast_packets", "Multicast packets the port sent.", unit=_P, origin="mlx5 tx_multicast_phy; bnxt tx_mcast_frames; ice tx_multicast.nic; i40e port.tx_multicast; mana hc_tx_mcast_pkts")
RECEIVED_BROADCAST = counter("receive_broadcast_packets", "Broadcast packets the port received.", unit=_P, origin="mlx5 rx_broadcast_phy; bnxt rx_bcast_frames; ice rx_broadcast.nic; i40e port.rx_broadcast; mana hc_rx_bcast_pkts")
SENT_BROADCAST = counter("transmit_broadcast_packets", "Broadcast packets the port sent.", unit=_P, origin="mlx5 tx_broadcast_phy; bnxt tx_bcast_frames; ice tx_broadcast.nic; i40e port.tx_broadcast; mana hc_tx_bcast_pkts")
RECEIVED_CONTROL = counter("receive_control_frames", "Control frames of the MAC layer received, pauses among them.", unit=_F, origin="mlx5 rx_mac_control_phy; bnxt rx_ctrl_frames", detail=True)
SENT_CONTROL = counter("transmit_control_frames", "Control frames of the MAC layer sent, pauses among them.", unit=_F, origin="mlx5 tx_mac_control_phy", detail=True)
UNKNOWN_CONTROL = counter("receive_unsupported_control_frames", "Control frames received with an unknown operation.", unit=_F, origin="mlx5 rx_unsupported_op_phy", detail=True)
RDMA_RECEIVED_PACKETS = counter("receive_rdma_packets", "RDMA packets this function received.", unit=_P, origin="mlx5 rx_vport_rdma_unicast_packets")
RDMA_SENT_PACKETS = counter("transmit_rdma_packets", "RDMA packets this function sent.", unit=_P, origin="mlx5 tx_vport_rdma_unicast_packets")
FUNCTION = {
    f"{way}_vport_{kind}_{what}": counter(f"function_{verb}_{label}_{what}", f"{what.capitalize()} this function {did}, {meaning}.", unit=unit, origin=f"mlx5 {way}_vport_{kind}_{what}", detail=True)
    for way, verb, did in (("rx", "receive", "received"), ("tx", "transmit", "sent"))
    for kind, label, meaning in (
        ("unicast", "unicast", "unicast without RDMA"), ("multicast", "multicast", "multicast without RDMA"),
        ("broadcast", "broadcast", "broadcast"), ("rdma_multicast", "rdma_multicast", "multicast by RDMA"),
    )
    for what, unit in (("packets", _P), ("bytes", _B))
}
FUNCTION_METRICS = tuple(FUNCTION.values())

# Traffic classes: targets of a NIC's priority mapping ---------------------------------------------
CLASS_RECEIVED = counter("class_receive_bytes", "Bytes received in this traffic class.", about=NIC_TRAFFIC_CLASS, unit=_B, origin="bnxt rx_bytes_cosN")
CLASS_SENT = counter("class_transmit_bytes", "Bytes sent in this traffic class.", about=NIC_TRAFFIC_CLASS, unit=_B, origin="bnxt tx_bytes_cosN")
CLASS_RECEIVED_PACKETS = counter("class_receive_packets", "Packets received in this traffic class.", about=NIC_TRAFFIC_CLASS, unit=_P, origin="bnxt rx_packets_cosN")
CLASS_SENT_PACKETS = counter("class_transmit_packets", "Packets sent in this traffic class.", about=NIC_TRAFFIC_CLASS, unit=_P, origin="bnxt tx_packets_cosN")
CLASS_DISCARDED = counter("class_receive_discarded_bytes", "Bytes of this traffic class dropped for lack of a buffer.", about=NIC_TRAFFIC_CLASS, unit=_B, origin="bnxt rx_discard_bytes_cosN")
CLASS_DISCARDED_PACKETS = counter("class_receive_discarded_packets", "Packets of this traffic class dropped for lack of a buffer.", about=NIC_TRAFFIC_CLASS, unit=_P, origin="bnxt rx_discard_packets_cosN")

HOST_DISCARDS = counter("priority_receive_host_discarded_packets", "Packets of this priority dropped for lack of a buffer of this host, of several on one card.", about=NIC_PRIORITY, unit=_P, origin="mlx5 rx_prioN_buf_discard")

# Pauses -------------------------------------------------------------------------------------------
GLOBAL_PAUSE_RECEIVED = counter("receive_global_pause_frames", "Link-wide pause frames received: not those of PFC.", unit=_F, origin="mlx5 rx_global_pause; bnxt rx_pause_frames; ice link_xoff_rx.nic; i40e port.link_xoff_rx; others ETHTOOL_A_PAUSE_STAT_RX_FRAMES")
GLOBAL_PAUSE_SENT = counter("transmit_global_pause_frames", "Link-wide pause frames sent: not those of PFC.", unit=_F, origin="mlx5 tx_global_pause; bnxt tx_pause_frames; ice link_xoff_tx.nic; i40e port.link_xoff_tx; others ETHTOOL_A_PAUSE_STAT_TX_FRAMES")
GLOBAL_PAUSE_TRANSITIONS = counter("receive_global_pause_transitions", "Times link-wide pause stopped us and let us go on.", origin="mlx5 rx_global_pause_transition")
RESUME_RECEIVED = counter("receive_resume_frames", "Link-wide frames received that let us send again.", unit=_F, origin="ice link_xon_rx.nic; i40e port.link_xon_rx")
RESUME_SENT = counter("transmit_resume_frames", "Link-wide frames sent that let the switch send again.", unit=_F, origin="ice link_xon_tx.nic; i40e port.link_xon_tx")
PFC_FRAMES_RECEIVED = counter("receive_pfc_frames", "PFC frames of all priorities received.", unit=_F, origin="bnxt rx_pfc_frames")
PFC_FRAMES_SENT = counter("transmit_pfc_frames", "PFC frames of all priorities sent.", unit=_F, origin="bnxt tx_pfc_frames")
STORMS = counter("continuous_pauses", "Times the port was paused without end.", origin="bnxt continuous_pause_events")
STORM_ENDS = counter("continuous_pause_ends", "Times such a pause ended.", origin="bnxt resume_pause_events")
ROCE_STORMS = counter("roce_continuous_pauses", "Times RoCE traffic was paused without end.", origin="bnxt continuous_roce_pause_events")
ROCE_STORM_ENDS = counter("roce_continuous_pause_ends", "Times such a pause of RoCE traffic ended.", origin="bnxt resume_roce_pause_events")

# Frames dropped by the port, by cause -------------------------------------------------------------
LENGTH_ERRORS = counter("receive_length_errors", "Frames received whose length field is wrong.", unit=_E, origin="mlx5 rx_in_range_len_errors_phy; ice rx_length_errors.nic; i40e port.rx_length_errors")
OUT_OF_RANGE = counter("receive_out_of_range_frames", "Frames received whose length field says more than is allowed.", unit=_F, origin="mlx5 rx_out_of_range_len_phy")
OVERSIZE = counter("receive_oversize_frames", "Frames received that are too long.", unit=_F, origin="mlx5 rx_oversize_pkts_phy; bnxt rx_ovrsz_frames; ice rx_oversize.nic; i40e port.rx_oversize")
UNDERSIZE = counter("receive_undersize_frames", "Frames received that are too short.", unit=_F, origin="mlx5 rx_undersize_pkts_phy; bnxt rx_undrsz_frames; ice rx_undersize.nic; i40e port.rx_undersize")
FRAGMENTS = counter("receive_fragments", "Frames received that are too short and have a wrong checksum.", origin="mlx5 rx_fragments_phy; bnxt rx_runt_frames; ice rx_fragments.nic; i40e port.rx_fragments")
JABBERS = counter("receive_jabbers", "Frames received that are too long and have a wrong checksum.", origin="mlx5 rx_jabbers_phy; bnxt rx_jbr_frames; ice rx_jabber.nic; i40e port.rx_jabber")
ALIGNMENT_ERRORS = counter("receive_alignment_errors", "Frames received that do not end at a byte.", unit=_E, origin="bnxt rx_align_err_frames", detail=True)
MTU_ERRORS = counter("receive_mtu_errors", "Frames received that are longer than the MTU.", unit=_E, origin="bnxt rx_mtu_err_frames")
RECEIVE_ERRORS = counter("receive_errors", "Packets received with an error of any kind.", unit=_E, origin="bnxt rx_stat_err; gve rx_desc_err_dropped_pkt")
TRANSMIT_ERRORS = counter("transmit_errors", "Packets not sent because of an error.", unit=_E, origin="mlx5 tx_errors_phy; bnxt tx_stat_error; ice tx_errors.nic; i40e port.tx_errors")
TRANSMIT_CRC_ERRORS = counter("transmit_crc_errors", "Frames sent with a wrong checksum.", unit=_E, origin="bnxt tx_fcs_err_frames")
UNDERRUNS = counter("transmit_underruns", "Frames that could not be fetched from memory in time.", origin="bnxt tx_fifo_underruns")
CHECKSUM_ERRORS = counter("receive_checksum_errors", "Packets received with a wrong checksum of IP, TCP or UDP.", unit=_E, origin="bnxt rx_total_l4_csum_errors; ice rx_csum_bad.nic; i40e port.rx_csum_bad")
ILLEGAL_BYTES = counter("receive_illegal_bytes", "Bytes received that no code of the line stands for.", unit=_B, origin="ice illegal_bytes.nic; i40e port.illegal_bytes")
LOCAL_FAULTS = counter("local_faults", "Times our side of the link was at fault.", origin="ice mac_local_faults.nic; i40e port.mac_local_faults")
REMOTE_FAULTS = counter("remote_faults", "Times the other side of the link said it was at fault.", origin="ice mac_remote_faults.nic; i40e port.mac_remote_faults")
TRANSCEIVER_STUCK = counter("transceiver_bus_stuck_events", "Times the bus of the transceiver was stuck.", origin="mlx5 module_bus_stuck")
TRANSCEIVER_SHORTED = counter("transceiver_shorted_events", "Times the transceiver's cable was shorted.", origin="mlx5 module_bad_shorted")

# Packets dropped by the function, by cause --------------------------------------------------------
STEERING_MISSES = counter("receive_unsteered_packets", "Packets dropped because no rule said where they go.", unit=_P, origin="mlx5 rx_steer_missed_packets; bnxt rx_filter_miss")
DOWN_DROPS = counter("receive_interface_down_packets", "Packets dropped because the interface was down.", unit=_P, origin="mlx5 rx_if_down_packets; mana hc_rx_err_vport_disabled")
TOO_LONG_DROPS = counter("receive_too_long_packets", "Packets dropped because they did not fit into the buffer of their queue.", unit=_P, origin="mlx5 rx_oversize_pkts_buffer")
TOO_LONG_FOR_MTU = counter("receive_beyond_mtu_packets", "Packets the driver dropped because they were longer than the MTU.", unit=_P, origin="mlx5 rx_oversize_pkts_sw_drop", detail=True)
DEVICE_OUT_OF_BUFFER = counter("receive_device_out_of_buffer_packets", "Packets dropped because a queue of the device itself was empty.", unit=_P, bits=32, origin="mlx5 dev_out_of_buffer, dev_internal_queue_oob")
MEMORY_DROPS = counter("receive_out_of_memory_packets", "Packets dropped because no memory was left for them.", unit=_P, origin="bnxt rx_total_oom_discards; hv_netvsc rx_no_memory")
ALLOCATION_FAILURES = counter("receive_buffer_allocation_failures", "Receive buffers that could not be had.", origin="mlx5 rx_buff_alloc_err; ice rx_alloc_fail; gve rx_buf_alloc_fail")
RING_DISCARDS_SENT = counter("transmit_queue_discarded_packets", "Packets dropped before a send queue took them.", unit=_P, origin="mlx5 tx_queue_dropped; bnxt tx_total_ring_discards, tx_total_discard_pkts")
QUEUE_STOPS = counter("transmit_queue_stops", "Times a send queue was full and stopped.", origin="mlx5 tx_queue_stopped; mana, hv_netvsc stop_queue")
QUEUE_WAKES = counter("transmit_queue_wakes", "Times a send queue went on after it had been full.", origin="mlx5 tx_queue_wake; mana, hv_netvsc wake_queue", detail=True)
RECEIVE_REQUEST_ERRORS = counter("receive_request_errors", "Receive requests of the driver that the card called wrong.", unit=_E, origin="mlx5 rx_wqe_err")
COMPLETION_ERRORS = counter("transmit_completion_errors", "Send requests of the driver that completed with an error.", unit=_E, origin="mlx5 tx_cqe_err; mana tx_cqe_err")
RECEIVE_RESETS = counter("receive_queue_resets", "Receive queues that were set up again after an error.", origin="mlx5 rx_recover; bnxt rx_total_resets")
TRANSMIT_RESETS = counter("transmit_queue_resets", "Send queues that were set up again after an error.", origin="mlx5 tx_recover; bnxt tx_total_resets")
RECEIVE_RING_ERRORS = counter("receive_queue_errors", "Errors of receive queues.", unit=_E, origin="bnxt rx_total_buf_errors")
MISSED_INTERRUPTS = counter("missed_interrupts", "Interrupts that were lost and made up for.", origin="bnxt total_missed_irqs; mlx5 ch_eq_rearm")
TIMEOUTS = counter("transmit_timeouts", "Times the driver found sending stuck.", origin="ice tx_timeout.nic; i40e port.tx_timeout; ena tx_timeout; gve tx_timeouts")
DEVICE_RESETS = counter("device_resets", "Times the driver reset its device.", origin="gve reset_cnt")
WATCHDOGS = counter("keep_alive_timeouts", "Times the device gave no sign of life.", origin="ena wd_expired")
COMMAND_ERRORS = counter("admin_commands_unanswered", "Commands the device never answered.", origin="ena ena_admin_q_no_completion", detail=True)
INTERFACE_DOWNS = counter("interface_downs", "Times the driver took the interface down.", origin="ena interface_down; gve interface_down_cnt", detail=True)
MAPPING_ERRORS = counter("dma_mapping_errors", "Buffers that could not be mapped for the device.", unit=_E, origin="gve dma_mapping_error", detail=True)
SEND_BUFFER_FULL = counter("transmit_ring_full", "Times the ring to the hypervisor was full.", origin="hv_netvsc tx_send_full", detail=True)
SEND_BUSY = counter("transmit_busy", "Packets that had to wait because the hypervisor was busy.", origin="hv_netvsc tx_busy", detail=True)

# Cloud limits -------------------------------------------------------------------------------------
LIMITED_RECEIVED = counter("receive_bandwidth_limited_packets", "Packets queued or dropped because the instance received more than it may.", unit=_P, origin="ena bw_in_allowance_exceeded")
LIMITED_SENT = counter("transmit_bandwidth_limited_packets", "Packets queued or dropped because the instance sent more than it may.", unit=_P, origin="ena bw_out_allowance_exceeded")
LIMITED_RATE = counter("rate_limited_packets", "Packets queued or dropped because there were more in a second than may be.", unit=_P, origin="ena pps_allowance_exceeded")
LIMITED_CONNECTIONS = counter("connection_limited_packets", "Packets dropped because no further connection could be tracked.", unit=_P, origin="ena conntrack_allowance_exceeded")
LIMITED_LOCAL = counter("local_service_limited_packets", "Packets dropped because local services were asked too often.", unit=_P, origin="ena linklocal_allowance_exceeded")
CONNECTIONS_LEFT = Metric("railscope_nic_connections_available", Kind.GAUGE, NIC, rollups=(Rollup.MIN,), help="Connections that can still be tracked before packets are dropped.", origin="ethtool statistics: ena conntrack_allowance_available")
SRD_SENT = counter("transmit_srd_packets", "Packets sent by the scalable reliable datagram protocol.", unit=_P, origin="ena ena_srd_tx_pkts")
SRD_ELIGIBLE = counter("transmit_srd_eligible_packets", "Packets sent that could have gone by that protocol.", unit=_P, origin="ena ena_srd_eligible_tx_pkts", detail=True)
SRD_RECEIVED = counter("receive_srd_packets", "Packets received by the scalable reliable datagram protocol.", unit=_P, origin="ena ena_srd_rx_pkts")
SRD_USE = Metric("railscope_nic_srd_resource_ratio", Kind.GAUGE, NIC, unit=Unit.RATIO, scale=per(100), rollups=(Rollup.MAX,), help="Share of the connections of that protocol in use.", origin="ethtool statistics: ena ena_srd_resource_utilization (percent)")
