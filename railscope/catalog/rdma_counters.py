"""Counters of RDMA drivers by subject: one row per metric, with each driver's names for it.

Sources: torvalds/linux drivers/infiniband: core/sysfs.c (`ib`: the counters of port management, of all
drivers), hw/mlx5/counters.c, hw/mlx4/main.c (diagnostic counters), hw/bnxt_re/hw_counters.c and
Broadcom's own driver, hw/irdma/verbs.c (generations 1 to 3), hw/efa/efa_verbs.c, hw/erdma/erdma_verbs.c,
hw/hns/hns_roce_main.c, hw/mana/counters.c. A
counter that is in no row, because its driver does not document it or misnames it (`recoverable_errors` of
bnxt_re counts broadcasts), is reported under its own name. The firmware of AMD's NICs names the counters of
`ionic`: ROCm/device-metrics-exporter docs/configuration/nic-metricslist.md.
"""

# fmt: off
from typing import NamedTuple


class RdmaRow(NamedTuple):
    """A metric: the middle of its name, its meaning, and its sources.

    `files` is "driver: name, name; driver: name". `bits` is the narrowest width of the counter in
    hardware. A row that is `summed` has roll-ups; a `basic` one is part of the detail basic.
    """

    stem: str
    meaning: str
    files: str
    bits: int = 64
    saturates: bool = False
    summed: bool = False
    basic: bool = False


TRAFFIC = (
    RdmaRow("transmit_bytes", "Bytes the port sent.", "ib: port_xmit_data_64, port_xmit_data (4-byte words); hfi1: port_xmit_data (8-byte flits); bnxt_re, efa, mana: tx_bytes; ionic: tx_rdma_ucast_bytes; erdma: tx_bytes_cnt", summed=True, basic=True),
    RdmaRow("receive_bytes", "Bytes the port received.", "ib: port_rcv_data_64, port_rcv_data (4-byte words); hfi1: port_rcv_data (8-byte flits); bnxt_re, efa, mana: rx_bytes; ionic: rx_rdma_ucast_bytes; erdma: rx_bytes_cnt", summed=True, basic=True),
    RdmaRow("transmit_packets", "Packets the port sent.", "ib: port_xmit_packets_64, port_xmit_packets; bnxt_re, efa: tx_pkts; mana: tx_packets; ionic: tx_rdma_ucast_pkts; erdma: tx_packets_cnt; hns: tx_pkt"),
    RdmaRow("receive_packets", "Packets the port received.", "ib: port_rcv_packets_64, port_rcv_packets; bnxt_re, efa: rx_pkts; mana: rx_packets; ionic: rx_rdma_ucast_pkts; erdma: rx_packets_cnt; hns: rx_pkt", basic=True),
    RdmaRow("transmit_unicast_packets", "Unicast packets the port sent.", "ib: unicast_xmit_packets, port_unicast_xmit_packets"),
    RdmaRow("receive_unicast_packets", "Unicast packets the port received.", "ib: unicast_rcv_packets, port_unicast_rcv_packets"),
    RdmaRow("transmit_multicast_packets", "Multicast packets the port sent.", "ib: multicast_xmit_packets, port_multicast_xmit_packets; ionic: tx_rdma_mcast_pkts"),
    RdmaRow("receive_multicast_packets", "Multicast packets the port received.", "ib: multicast_rcv_packets, port_multicast_rcv_packets; ionic: rx_rdma_mcast_pkts"),
    RdmaRow("roce_transmit_bytes", "RoCE bytes sent, other traffic of the function left out.", "mlx5: rdma_tx_bytes; bnxt_re: tx_roce_only_bytes"),
    RdmaRow("roce_receive_bytes", "RoCE bytes received, other traffic of the function left out.", "mlx5: rdma_rx_bytes; bnxt_re: rx_roce_only_bytes"),
    RdmaRow("roce_transmit_packets", "RoCE packets sent, other traffic of the function left out.", "mlx5: rdma_tx_packets; bnxt_re: tx_roce_only_pkts"),
    RdmaRow("roce_receive_packets", "RoCE packets received, other traffic of the function left out.", "mlx5: rdma_rx_packets; bnxt_re: rx_roce_only_pkts"),
    RdmaRow("roce_good_receive_bytes", "RoCE bytes received in packets without error.", "bnxt_re: rx_roce_good_bytes, rx_good_bytes"),
    RdmaRow("roce_good_receive_packets", "RoCE packets received without error.", "bnxt_re: rx_roce_good_pkts, rx_good_pkts"),
    RdmaRow("udp_transmit_packets", "UDP packets sent: RoCE v2.", "irdma: TxUDP"),
    RdmaRow("udp_receive_packets", "UDP packets received: RoCE v2.", "irdma: RxUDP"),
    RdmaRow("transmit_segments", "TCP segments sent: iWARP.", "irdma: tcpOutSegs, OutSegs"),
    RdmaRow("receive_segments", "TCP segments received: iWARP.", "irdma: tcpInSegs, InSegs"),
    *(
        row for version in ("4", "6") for row in (
            RdmaRow(f"ipv{version}_transmit_bytes", f"Bytes sent over IPv{version}.", f"irdma: ip{version}OutOctets"),
            RdmaRow(f"ipv{version}_receive_bytes", f"Bytes received over IPv{version}.", f"irdma: ip{version}InOctets"),
            RdmaRow(f"ipv{version}_transmit_packets", f"Packets sent over IPv{version}.", f"irdma: ip{version}OutPkts"),
            RdmaRow(f"ipv{version}_receive_packets", f"Packets received over IPv{version}.", f"irdma: ip{version}InPkts"),
            RdmaRow(f"ipv{version}_transmit_multicast_packets", f"Multicast packets sent over IPv{version}.", f"irdma: ip{version}OutMcastPkts"),
            RdmaRow(f"ipv{version}_receive_multicast_packets", f"Multicast packets received over IPv{version}.", f"irdma: ip{version}InMcastPkts"),
            RdmaRow(f"ipv{version}_transmit_fragments", f"Fragments sent over IPv{version}.", f"irdma: ip{version}OutSegRqd"),
            RdmaRow(f"ipv{version}_receive_fragments", f"Fragments received over IPv{version}.", f"irdma: ip{version}InReasmRqd"),
            RdmaRow(f"ipv{version}_receive_discarded_packets", f"Packets received over IPv{version} and dropped.", f"irdma: ip{version}InDiscards"),
            RdmaRow(f"ipv{version}_receive_truncated_packets", f"Packets received over IPv{version} that were truncated.", f"irdma: ip{version}InTruncatedPkts"),
            RdmaRow(f"ipv{version}_transmit_unroutable_packets", f"Packets not sent over IPv{version} for lack of a route.", f"irdma: ip{version}OutNoRoutes"),
        )
    ),
)
REQUESTS = (
    RdmaRow("write_requests", "RDMA write requests received.", "mlx5: rx_write_requests; bnxt_re: rx_write_req, rx_write_requests; irdma: iwInRdmaWrites, InRdmaWrites; mana: rx_write_requests", bits=32),
    RdmaRow("read_requests", "RDMA read requests received.", "mlx5: rx_read_requests; bnxt_re: rx_read_req, rx_read_requests; irdma: iwInRdmaReads, InRdmaReads; mana: rx_read_requests", bits=32),
    RdmaRow("atomic_requests", "RDMA atomic requests received.", "mlx5: rx_atomic_requests; bnxt_re: rx_atomic_req, rx_atomic_requests; irdma: Rx atomics", bits=32),
    RdmaRow("send_requests", "RDMA sends received.", "bnxt_re: rx_send_req; irdma: iwInRdmaSends, InRdmaSends; mana: rx_send_requests"),
    RdmaRow("dct_connects", "Connection requests received for dynamic connections.", "mlx5: rx_dct_connect", bits=32),
    RdmaRow("transmit_write_requests", "RDMA write requests sent.", "bnxt_re: tx_write_req; irdma: iwOutRdmaWrites, OutRdmaWrites"),
    RdmaRow("transmit_read_requests", "RDMA read requests sent.", "bnxt_re: tx_read_req; irdma: iwOutRdmaReads, OutRdmaReads"),
    RdmaRow("transmit_atomic_requests", "RDMA atomic requests sent.", "bnxt_re: tx_atomic_req; irdma: Tx atomics"),
    RdmaRow("transmit_send_requests", "RDMA sends sent.", "bnxt_re: tx_send_req; irdma: iwOutRdmaSends, OutRdmaSends"),
    RdmaRow("read_responses", "Responses received to RDMA reads.", "bnxt_re: rx_read_resp"),
    RdmaRow("transmit_read_responses", "Responses sent to RDMA reads of peers.", "bnxt_re: tx_read_resp"),
    RdmaRow("window_binds", "Memory windows bound.", "irdma: iwRdmaBnd, RdmaBnd"),
    RdmaRow("invalidations", "Memory keys invalidated.", "irdma: iwRdmaInv, RdmaInv"),
    RdmaRow("outstanding_read_limits", "Times requests waited for the local limit of outstanding reads.", "irdma: ord limit count"),
    RdmaRow("inbound_read_limits", "Times the limit of outstanding reads of a peer was reached.", "irdma: ird limit count"),
    RdmaRow("transmit_requests", "Requests sent.", "erdma: tx_reqs_cnt"),
    RdmaRow("send_work_requests", "Send requests completed.", "efa: send_wrs"),
    RdmaRow("send_bytes", "Bytes sent by send requests.", "efa: send_bytes"),
    RdmaRow("receive_work_requests", "Receive requests completed.", "efa: recv_wrs"),
    RdmaRow("receive_request_bytes", "Bytes received into receive requests.", "efa: recv_bytes"),
    RdmaRow("read_work_requests", "RDMA read requests completed.", "efa: rdma_read_wrs"),
    RdmaRow("read_bytes", "Bytes fetched from peers by RDMA reads.", "efa: rdma_read_bytes"),
    RdmaRow("read_response_bytes", "Bytes sent in answer to RDMA reads of peers.", "efa: rdma_read_resp_bytes"),
    RdmaRow("write_work_requests", "RDMA write requests completed.", "efa: rdma_write_wrs"),
    RdmaRow("write_bytes", "Bytes written to peers by RDMA writes.", "efa: rdma_write_bytes"),
    RdmaRow("write_receive_bytes", "Bytes received by RDMA writes of peers.", "efa: rdma_write_recv_bytes"),
)
LOSS = (
    RdmaRow("out_of_buffer_drops", "Packets dropped because no receive request was posted.", "mlx5: out_of_buffer; bnxt_re: rx_out_of_buffer, out_of_buffer; mlx4: rq_num_udsdprd; ionic: resp_rx_outof_buf", bits=32),
    RdmaRow("receive_discarded_packets", "RDMA packets received and dropped.", "bnxt_re: rx_roce_discards; efa: rx_drops"),
    RdmaRow("transmit_discarded_packets", "Packets not sent because the port was down or congested.", "ib: port_xmit_discards; bnxt_re: tx_roce_discards", bits=16, saturates=True),
    RdmaRow("transmit_rate_limited_packets", "Packets not sent because of the instance's limit of packets per second.", "erdma: tx_pps_limit_drop_cnt"),
    RdmaRow("receive_rate_limited_packets", "Packets received and dropped because of the instance's limit of packets per second.", "erdma: rx_pps_limit_drop_cnt"),
    RdmaRow("transmit_bandwidth_limited_packets", "Packets not sent because of the instance's limit of bandwidth.", "erdma: tx_bps_limit_drop_cnt"),
    RdmaRow("receive_bandwidth_limited_packets", "Packets received and dropped because of the instance's limit of bandwidth.", "erdma: rx_bps_limit_drop_cnt"),
    RdmaRow("transmit_disabled_packets", "Packets not sent because sending was disabled.", "erdma: tx_disable_drop_cnt"),
    RdmaRow("receive_disabled_packets", "Packets received and dropped because receiving was disabled.", "erdma: rx_disable_drop_cnt"),
    RdmaRow("out_of_sequence_packets", "Packets that arrived out of order.", "mlx5: out_of_sequence; bnxt_re: oos_drop_count, out_of_sequence; irdma: Rcvd Out of order packets; mana: responder_oos; mlx4: rq_num_oos; ionic: resp_rx_outouf_seq", bits=32, summed=True, basic=True),
    RdmaRow("duplicate_requests", "Requests received more than once: the peer sent again.", "mlx5: duplicate_request; bnxt_re: dup_req, duplicate_request; mana: responder_dup_request; mlx4: rq_num_dup; ionic: resp_rx_dup_request", bits=32, summed=True, basic=True),
    RdmaRow("packet_sequence_errors", "Sequence-error NAKs received: the peer lost packets of this port.", "mlx5: packet_seq_err; bnxt_re: seq_err_naks_rcvd, packet_seq_err; irdma: Nak Sequence Error; mana: requester_oos_nak; mlx4: sq_num_oos; ionic: req_rx_pkt_seq_err", bits=32, summed=True, basic=True),
    RdmaRow("implied_nak_sequence_errors", "Responses beyond the expected one: a response was lost.", "mlx5: implied_nak_seq_err; bnxt_re: missing_resp, implied_nak_seq_err; irdma: Nak Sequence Error Implied; mana: requester_implicit_nak; ionic: req_rx_impl_nak_seq_err", bits=32, summed=True, basic=True),
    RdmaRow("read_response_sequence_errors", "Answers to reads with another sequence number than expected.", "mana: requester_readresp_psn_mismatch"),
    RdmaRow("ack_timeouts", "Acknowledgement timers that ran out.", "mlx5: local_ack_timeout_err; bnxt_re: to_retransmits, local_ack_timeout_err; efa: retrans_timeout_events; irdma: RTO; mana: requester_timeout; mlx4: sq_num_to; ionic: tx_rdma_ack_timeout", bits=32, summed=True, basic=True),
    RdmaRow("receiver_not_ready_naks", "Receiver-not-ready NAKs received: the peer was slow.", "mlx5: rnr_nak_retry_err; bnxt_re: rnr_naks_rcvd, rnr_nak_retry_err; irdma: RNR received; mana: requester_rnr_nak; mlx4: sq_num_rnr; ionic: req_rx_rnr_retry_err", bits=32, summed=True),
    RdmaRow("receiver_not_ready_naks_sent", "Receiver-not-ready NAKs sent: this port was slow.", "irdma: RNR sent; mana: responder_rnr_nak; mlx4: rq_num_rnr; ionic: resp_tx_rnr_retry_err", bits=32),
    RdmaRow("transport_retries_exceeded", "Connections aborted after too many retries.", "mlx5: req_transport_retries_exceeded; bnxt_re: max_retry_exceeded, req_transport_retries_exceeded; mana: requester_retries_exceeded; mlx4: sq_num_tree; ionic: req_tx_retry_excd_err", bits=32, summed=True, basic=True),
    RdmaRow("rnr_retries_exceeded", "Connections aborted because the receiver was never ready.", "mlx5: req_rnr_retries_exceeded; bnxt_re: req_rnr_retries_exceeded; mana: requester_rnr_nak_retries_exceeded; mlx4: sq_num_rree", bits=32),
    RdmaRow("retransmitted_packets", "Packets sent again.", "efa: retrans_pkts; irdma: tcpRetransSegs, RetransSegs; ionic: tx_rdma_retx_pkts", summed=True),
    RdmaRow("retransmitted_bytes", "Bytes sent again.", "efa: retrans_bytes; ionic: tx_rdma_retx_bytes"),
    RdmaRow("adaptive_retransmissions", "Retransmissions by the adaptive algorithm.", "mlx5, bnxt_re: roce_adp_retrans", bits=32, summed=True, basic=True),
    RdmaRow("adaptive_retransmission_timeouts", "Timeouts among the adaptive retransmissions.", "mlx5, bnxt_re: roce_adp_retrans_to", bits=32),
    RdmaRow("unresponsive_remotes", "Times a peer did not respond.", "efa: unresponsive_remote_events"),
    RdmaRow("impaired_connections", "Times a connection was throttled because its path was impaired.", "efa: impaired_remote_conn_events"),
)
CONGESTION = (
    RdmaRow("transmit_wait_ticks", "Ticks in which data was ready to send but no credit was left.", "ib: port_xmit_wait", bits=32, saturates=True, summed=True),
    RdmaRow("ecn_marked_packets", "RoCE packets received with a congestion mark.", "mlx5: np_ecn_marked_roce_packets, cc_rx_ce_pkts; bnxt_re: rx_ecn_marked_pkts, np_ecn_marked_roce_packets; irdma: RxECNMrkd; mana: received_ecns; ionic: rx_rdma_ecn_pkts", summed=True, basic=True),
    RdmaRow("congestion_notifications_sent", "Congestion notifications (CNP) sent to senders.", "mlx5: np_cnp_sent, cc_tx_cnp_pkts; bnxt_re: tx_cnp_pkts, np_cnp_sent, np_cnp_pkts; irdma: cnpSent; mana: sent_cnps; ionic: tx_rdma_cnp_pkts; hns: tx_cnp_pkt", summed=True, basic=True),
    RdmaRow("congestion_notifications_received", "Congestion notifications received, whether acted on or not.", "mlx5: cc_rx_cnp_pkts; mana: received_cnps, received_cnp_count; ionic: rx_rdma_cnp_pkts; hns: rx_cnp_pkt", summed=True),
    RdmaRow("congestion_notifications_handled", "Congestion notifications received and acted on.", "mlx5: rp_cnp_handled; bnxt_re: rx_cnp_pkts, rp_cnp_handled; irdma: cnpHandled", summed=True, basic=True),
    RdmaRow("congestion_notifications_ignored", "Congestion notifications received and not acted on.", "mlx5, bnxt_re: rp_cnp_ignored; irdma: cnpIgnored"),
    RdmaRow("congestion_rate_increases", "Times congestion control let a connection send faster again.", "mana: rate_inc_events"),
    RdmaRow("slow_restarts", "Times a flow restarted slowly.", "mlx5, bnxt_re: roce_slow_restart", bits=32),
    RdmaRow("slow_restart_notifications", "Congestion notifications generated by slow restart.", "mlx5, bnxt_re: roce_slow_restart_cnps", bits=32),
    RdmaRow("slow_restart_transitions", "Times slow restart changed its state.", "mlx5, bnxt_re: roce_slow_restart_trans", bits=32),
    RdmaRow("doorbell_pacing_alerts", "Times the queue of doorbells was near its end, and pacing began.", "bnxt_re: pacing_alerts"),
    RdmaRow("doorbell_pacing_reschedules", "Times pacing of doorbells continued.", "bnxt_re: pacing_reschedule"),
    RdmaRow("doorbell_pacing_completions", "Times pacing of doorbells ended.", "bnxt_re: pacing_complete"),
)
LINK = (
    RdmaRow("symbol_errors", "Minor link errors on one or more lanes.", "ib: symbol_error", bits=16, saturates=True, summed=True),
    RdmaRow("receive_errors", "Packets received with an error.", "ib: port_rcv_errors; bnxt_re: rx_roce_errors; hns: rx_err_pkt", bits=16, saturates=True),
    RdmaRow("transmit_errors", "Packets not sent because of an error.", "bnxt_re: tx_roce_errors; hns: tx_err_pkt"),
    RdmaRow("receive_remote_physical_errors", "Packets received that were marked bad on the way.", "ib: port_rcv_remote_physical_errors", bits=16, saturates=True),
    RdmaRow("receive_switch_relay_errors", "Packets received that a switch could not forward.", "ib: port_rcv_switch_relay_errors", bits=16, saturates=True),
    RdmaRow("transmit_constraint_errors", "Packets not sent because of a partition or filter rule.", "ib: port_xmit_constraint_errors", bits=8, saturates=True),
    RdmaRow("receive_constraint_errors", "Packets rejected because of a partition or filter rule.", "ib: port_rcv_constraint_errors", bits=8, saturates=True),
    RdmaRow("link_error_recoveries", "Times the link recovered from errors by itself.", "ib: link_error_recovery", bits=8, saturates=True),
    RdmaRow("link_downs", "Times the link could not recover and went down.", "ib: link_downed", bits=8, saturates=True, summed=True),
    RdmaRow("local_link_integrity_errors", "Times local physical errors passed their threshold.", "ib: local_link_integrity_errors", bits=4, saturates=True),
    RdmaRow("excessive_buffer_overrun_errors", "Times buffer overruns passed their threshold.", "ib: excessive_buffer_overrun_errors", bits=4, saturates=True),
    RdmaRow("vl15_dropped_packets", "Management packets dropped for lack of a buffer.", "ib: VL15_dropped", bits=16, saturates=True),
    RdmaRow("icrc_errors", "RoCE packets received with a wrong invariant checksum.", "mlx5, bnxt_re: rx_icrc_encapsulated; irdma: CRC errors"),
    RdmaRow("receive_vlan_errors", "Packets received with a wrong VLAN tag.", "irdma: rxVlanErrors"),
    RdmaRow("receive_option_errors", "TCP segments received with wrong options.", "irdma: tcpInOptErrors, InOptErrors"),
    RdmaRow("receive_protocol_errors", "Segments received that violated the protocol.", "irdma: tcpInProtoErrors, InProtoErrors"),
)
REQUESTER_ERRORS = (
    RdmaRow("requester_completion_errors", "Requests that completed with an error.", "mlx5, bnxt_re: req_cqe_error; ionic: req_rx_cqe_err", bits=32),
    RdmaRow("requester_flushed_errors", "Requests flushed when their connection ended.", "mlx5, bnxt_re: req_cqe_flush_error; mlx4: sq_num_wrfe; ionic: req_rx_cqe_flush", bits=32),
    RdmaRow("requester_invalid_request_errors", "Requests that the peer rejected as invalid.", "mlx5: req_remote_invalid_request; bnxt_re: remote_invalid_req_err, req_remote_invalid_request; mlx4: sq_num_rire; ionic: req_rx_rmt_req_err", bits=32),
    RdmaRow("requester_access_errors", "Requests that the peer rejected for their key or address.", "mlx5: req_remote_access_errors; bnxt_re: remote_access_err, req_remote_access_errors; mlx4: sq_num_rae; ionic: req_rx_rmt_acc_err", bits=32),
    RdmaRow("requester_remote_operation_errors", "Requests that the peer could not execute.", "bnxt_re: remote_op_err; mlx4: sq_num_roe; ionic: req_rx_oper_err", bits=32),
    RdmaRow("requester_response_errors", "Invalid responses received.", "bnxt_re: bad_resp_err; mlx4: sq_num_bre", bits=32),
    RdmaRow("requester_length_errors", "Requests with a length that could not be sent.", "mlx4: sq_num_lle", bits=32),
    RdmaRow("requester_queue_errors", "Requests that violated the rules of their queue pair.", "bnxt_re: local_qp_op_err; mlx4: sq_num_lqpoe; ionic: req_tx_loc_oper_err", bits=32),
    RdmaRow("requester_protection_errors", "Requests whose local memory was not accessible.", "bnxt_re: local_protection_err; mana: requestor_local_prot_error; mlx4: sq_num_lpe; ionic: req_tx_loc_acc_err", bits=32),
    RdmaRow("requester_memory_operation_errors", "Memory windows or registrations that failed.", "bnxt_re: mem_mgmt_op_err; mlx4: sq_num_mwbe; ionic: req_tx_mem_mgmt_err", bits=32),
    RdmaRow("read_work_request_errors", "RDMA read requests that completed with an error.", "efa: rdma_read_wr_err"),
    RdmaRow("write_work_request_errors", "RDMA write requests that completed with an error.", "efa: rdma_write_wr_err"),
)
RESPONDER_ERRORS = (
    RdmaRow("responder_completion_errors", "Responses that completed with an error.", "mlx5, bnxt_re: resp_cqe_error; ionic: resp_rx_cqe_err", bits=32),
    RdmaRow("responder_flushed_errors", "Responses flushed when their connection ended.", "mlx5, bnxt_re: resp_cqe_flush_error; mlx4: rq_num_wrfe; ionic: resp_rx_cqe_flush", bits=32),
    RdmaRow("responder_access_errors", "Requests of peers rejected for their key or address.", "mlx5, bnxt_re: resp_remote_access_errors; mana: responder_rem_access_error; mlx4: rq_num_rae; ionic: resp_tx_rmt_acc_err", bits=32),
    RdmaRow("responder_length_errors", "Requests of peers rejected for their length.", "mlx5: resp_local_length_error; bnxt_re: res_length_mismatch, resp_local_length_error; mana: responder_local_len_error; mlx4: rq_num_lle; ionic: resp_rx_loc_len_err", bits=32),
    RdmaRow("responder_invalid_request_errors", "Requests of peers rejected as invalid.", "mlx4: rq_num_rire; ionic: resp_tx_rmt_inval_req_err", bits=32),
    RdmaRow("responder_queue_errors", "Requests of peers for a queue pair in error.", "mana: responder_local_qp_error; mlx4: rq_num_lqpoe; ionic: resp_rx_loc_oper_err", bits=32),
    RdmaRow("responder_protection_errors", "Requests of peers for which local memory was not accessible.", "mlx4: rq_num_lpe", bits=32),
    RdmaRow("responder_malformed_request_errors", "Receive requests with a wrong form.", "bnxt_re: res_wqe_format_err; mana: responder_malformed_wqe"),
    RdmaRow("responder_maximum_errors", "Requests longer than the maximum allowed.", "bnxt_re: res_exceed_max"),
    RdmaRow("responder_overlong_errors", "Requests longer than their receive request.", "bnxt_re: res_exceeds_wqe"),
    RdmaRow("responder_opcode_errors", "Requests with an unexpected operation.", "bnxt_re: res_opcode_err"),
    RdmaRow("responder_unsupported_opcode_errors", "Requests with an operation that is not supported.", "bnxt_re: res_unsup_opcode"),
    RdmaRow("responder_unaligned_atomic_errors", "Atomic requests for an unaligned address.", "bnxt_re: res_unaligned_atomic"),
    RdmaRow("responder_remote_invalidate_errors", "Memory keys that a peer could not invalidate.", "bnxt_re: res_rem_inv_err"),
    RdmaRow("responder_duplicate_key_errors", "Duplicate requests with an invalid key.", "bnxt_re: res_invalid_dup_rkey"),
    RdmaRow("responder_read_queue_overflow_errors", "Reads and atomics that overflowed their queue.", "bnxt_re: res_irrq_oflow"),
    RdmaRow("responder_receive_key_errors", "Requests to write with an invalid key.", "bnxt_re: res_rx_invalid_rkey"),
    RdmaRow("responder_receive_domain_errors", "Requests to write in another protection domain.", "bnxt_re: res_rx_domain_err"),
    RdmaRow("responder_receive_permission_errors", "Requests to write without permission.", "bnxt_re: res_rx_no_perm"),
    RdmaRow("responder_receive_range_errors", "Requests to write out of range.", "bnxt_re: res_rx_range_err"),
    RdmaRow("responder_transmit_key_errors", "Requests to read with an invalid key.", "bnxt_re: res_tx_invalid_rkey"),
    RdmaRow("responder_transmit_domain_errors", "Requests to read in another protection domain.", "bnxt_re: res_tx_domain_err"),
    RdmaRow("responder_transmit_permission_errors", "Requests to read without permission.", "bnxt_re: res_tx_no_perm"),
    RdmaRow("responder_transmit_range_errors", "Requests to read out of range.", "bnxt_re: res_tx_range_err"),
    RdmaRow("responder_memory_errors", "Requests that failed with a memory error.", "bnxt_re: res_mem_err"),
    RdmaRow("responder_shared_queue_errors", "Requests that failed with an error of a shared receive queue.", "bnxt_re: res_srq_err"),
    RdmaRow("responder_completion_queue_errors", "Requests that could not be completed into their queue.", "bnxt_re: res_cmp_err"),
    RdmaRow("responder_completion_queue_load_errors", "Completion queues whose state could not be loaded.", "bnxt_re: res_cq_load_err"),
    RdmaRow("responder_shared_queue_load_errors", "Shared receive queues whose state could not be loaded.", "bnxt_re: res_srq_load_err"),
    RdmaRow("responder_transmit_pci_errors", "PCIe errors while memory was read for a peer.", "bnxt_re: res_tx_pci_err"),
    RdmaRow("responder_receive_pci_errors", "PCIe errors while memory was written for a peer.", "bnxt_re: res_rx_pci_err"),
)
DEVICE = (
    RdmaRow("fatal_errors", "Unrecoverable errors of the device.", "bnxt_re: unrecoverable_err; mana: total_fatal_error"),
    RdmaRow("hardware_errors", "Errors of the device's hardware.", "mana: general_hw_error"),
    RdmaRow("completion_queue_overflows", "Completion queues that overflowed.", "mlx4: num_cqovf", bits=32),
    RdmaRow("completion_queue_resizes", "Times a completion queue was resized.", "bnxt_re: resize_cq_cnt"),
    RdmaRow("admin_commands_submitted", "Commands submitted to the device's firmware.", "efa: submitted_cmds"),
    RdmaRow("admin_commands_completed", "Commands the device's firmware completed.", "efa: completed_cmds"),
    RdmaRow("admin_command_errors", "Commands that failed.", "efa: cmds_err"),
    RdmaRow("admin_commands_unanswered", "Commands the device's firmware never answered.", "efa: no_completion_cmds"),
    RdmaRow("keep_alives", "Keep-alive messages of the device's firmware.", "efa: keep_alive_rcvd"),
    RdmaRow("protection_domain_errors", "Protection domains that could not be created.", "efa: alloc_pd_err"),
    RdmaRow("queue_pair_errors", "Queue pairs that could not be created.", "efa: create_qp_err"),
    RdmaRow("completion_queue_errors", "Completion queues that could not be created.", "efa: create_cq_err"),
    RdmaRow("memory_region_errors", "Memory regions that could not be registered.", "efa: reg_mr_err"),
    RdmaRow("context_errors", "Contexts of processes that could not be created.", "efa: alloc_ucontext_err"),
    RdmaRow("address_handle_errors", "Address handles that could not be created.", "efa: create_ah_err"),
    RdmaRow("mapping_errors", "Mappings into processes that could not be created.", "efa: mmap_err"),
)
COUNTERS = (*TRAFFIC, *REQUESTS, *LOSS, *CONGESTION, *LINK, *REQUESTER_ERRORS, *RESPONDER_ERRORS, *DEVICE)

# Present use, and the maximum since driver load: not counters.
_RESOURCES = {
    "protection_domains": ("Protection domains", "pds"),
    "address_handles": ("Address handles", "ahs"),
    "queue_pairs": ("Queue pairs", "qps"),
    "reliable_queue_pairs": ("Queue pairs of reliable connections", "rc_qps"),
    "datagram_queue_pairs": ("Queue pairs of datagrams", "ud_qps"),
    "shared_receive_queues": ("Shared receive queues", "srqs"),
    "completion_queues": ("Completion queues", "cqs"),
    "memory_regions": ("Memory regions", "mrs"),
    "memory_windows": ("Memory windows", "mws"),
}
RESOURCES = (
    *(RdmaRow(stem, f"{resource} in use.", f"bnxt_re: active_{file}") for stem, (resource, file) in _RESOURCES.items()),
    *(RdmaRow(f"max_{stem}", f"{resource} in use, maximum since driver load.", f"bnxt_re: watermark_{file}") for stem, (resource, file) in _RESOURCES.items()),
)
