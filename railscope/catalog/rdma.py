"""Metrics of RDMA ports: the files of `counters/` and `hw_counters/`, with one meaning per metric.

`COUNTER_FILES` maps a file name, of whatever vendor, to its metric. A file that is not in it still
comes through, as `other` says, with its own name as a label.
"""

from fractions import Fraction

from railscope.catalog.declare import EntityKind, Kind, Metric, Rollup, Unit
from railscope.catalog.entities import RDMA_COUNTER, RDMA_PORT

DRIVER_LOAD = "Counts from driver load or from when the counter was last cleared."
FOUR_BYTE_WORDS = Fraction(4)
PORT_STATES = {0: "nop", 1: "down", 2: "init", 3: "armed", 4: "active", 5: "active_defer"}
PHYSICAL_STATES = {
    1: "sleep",
    2: "polling",
    3: "disabled",
    4: "training",
    5: "link_up",
    6: "link_error_recovery",
    7: "phy_test",
}


def _counter(  # noqa: PLR0913 - one row of the table below
    stem: str,
    help_: str,
    files: str,
    *,
    unit: Unit = Unit.NONE,
    scale: Fraction = Fraction(1),
    bits: int = 64,
    saturates: bool = False,
    about: EntityKind = RDMA_PORT,
) -> Metric:
    return Metric(
        f"railscope_rdma_{stem}_total",
        Kind.COUNTER,
        about,
        unit=unit,
        scale=scale,
        rollups=(Rollup.SUM,),
        resets=DRIVER_LOAD,
        wraps_at_bits=bits,
        saturates=saturates,
        help=help_,
        origin=f"/sys/class/infiniband/*/ports/*: {files}",
    )


RDMA_INFO = Metric(
    "railscope_rdma_port_info",
    Kind.INFO,
    RDMA_PORT,
    help="What this RDMA port is: driver, PCI address, firmware, board, interface and rail.",
    origin="/sys/class/infiniband/*/{fw_ver,board_id,hca_type,device}, ports/*/link_layer",
)
RDMA_STATE = Metric(
    "railscope_rdma_port_state",
    Kind.STATE,
    RDMA_PORT,
    states=PORT_STATES,
    help="Logical state of the port; only an active port carries traffic.",
    origin="/sys/class/infiniband/*/ports/*/state",
)
RDMA_PHYSICAL_STATE = Metric(
    "railscope_rdma_port_physical_state",
    Kind.STATE,
    RDMA_PORT,
    states=PHYSICAL_STATES,
    help="Physical state of the port's link.",
    origin="/sys/class/infiniband/*/ports/*/phys_state",
)
RDMA_UP = Metric(
    "railscope_rdma_port_up",
    Kind.GAUGE,
    RDMA_PORT,
    rollups=(Rollup.SUM, Rollup.MIN),
    help="Whether the port's logical state is active (1) or not (0).",
    origin="/sys/class/infiniband/*/ports/*/state",
)
RDMA_RATE = Metric(
    "railscope_rdma_port_rate_bytes_per_second",
    Kind.GAUGE,
    RDMA_PORT,
    unit=Unit.BYTES_PER_SECOND,
    scale=Fraction(125_000),
    rollups=(Rollup.SUM, Rollup.MIN),
    help="Line rate of the port.",
    origin="/sys/class/infiniband/*/ports/*/rate (Gb/s)",
)
RDMA_OTHER = Metric(
    "railscope_rdma_vendor_counter_total",
    Kind.COUNTER,
    RDMA_COUNTER,
    resets=DRIVER_LOAD,
    help="A counter of the RDMA driver that has no metric of its own, under the driver's own name.",
    origin="/sys/class/infiniband/*/ports/*/{counters,hw_counters}/*",
)
RDMA_OTHER_VALUE = Metric(
    "railscope_rdma_vendor_value",
    Kind.GAUGE,
    RDMA_COUNTER,
    help="A present value the RDMA driver tells that has no metric of its own, "
    "under the driver's own name.",
    origin="/sys/class/infiniband/*/ports/*/hw_counters/{active_*,watermark_*,db_fifo_register}",
)
_VALUES = ("active_", "watermark_")
_VALUE = "db_fifo_register"


def other(file: str) -> Metric:
    """What a file without a metric of its own is: drivers put present values among their counters."""
    return RDMA_OTHER_VALUE if file.startswith(_VALUES) or file == _VALUE else RDMA_OTHER


# One row a metric: name, meaning, the files that tell it (all vendors), and what is special.
_TABLE: tuple[tuple[str, str, str, dict[str, object]], ...] = (
    (
        "transmit_bytes",
        "Bytes the port sent.",
        "port_xmit_data",
        {"unit": Unit.BYTES, "scale": FOUR_BYTE_WORDS},
    ),
    (
        "receive_bytes",
        "Bytes the port received.",
        "port_rcv_data",
        {"unit": Unit.BYTES, "scale": FOUR_BYTE_WORDS},
    ),
    ("transmit_packets", "Packets the port sent.", "port_xmit_packets", {"unit": Unit.PACKETS}),
    ("receive_packets", "Packets the port received.", "port_rcv_packets", {"unit": Unit.PACKETS}),
    (
        "transmit_unicast_packets",
        "Unicast packets the port sent.",
        "unicast_xmit_packets",
        {"unit": Unit.PACKETS},
    ),
    (
        "receive_unicast_packets",
        "Unicast packets the port received.",
        "unicast_rcv_packets",
        {"unit": Unit.PACKETS},
    ),
    (
        "transmit_multicast_packets",
        "Multicast packets the port sent.",
        "multicast_xmit_packets",
        {"unit": Unit.PACKETS},
    ),
    (
        "receive_multicast_packets",
        "Multicast packets the port received.",
        "multicast_rcv_packets",
        {"unit": Unit.PACKETS},
    ),
    (
        "transmit_wait_ticks",
        "Ticks in which data was ready to send but no credit was left.",
        "port_xmit_wait",
        {"bits": 32},
    ),
    (
        "symbol_errors",
        "Minor link errors on one or more lanes.",
        "symbol_error",
        {"unit": Unit.ERRORS, "bits": 16, "saturates": True},
    ),
    (
        "receive_errors",
        "Packets received with an error.",
        "port_rcv_errors",
        {"unit": Unit.ERRORS, "bits": 16, "saturates": True},
    ),
    (
        "receive_remote_physical_errors",
        "Packets received that were marked bad on the way.",
        "port_rcv_remote_physical_errors",
        {"unit": Unit.ERRORS, "bits": 16, "saturates": True},
    ),
    (
        "receive_switch_relay_errors",
        "Packets received that a switch could not forward.",
        "port_rcv_switch_relay_errors",
        {"unit": Unit.ERRORS, "bits": 16, "saturates": True},
    ),
    (
        "transmit_discarded_packets",
        "Packets not sent because the port was down or congested.",
        "port_xmit_discards",
        {"unit": Unit.PACKETS, "bits": 16, "saturates": True},
    ),
    (
        "transmit_constraint_errors",
        "Packets not sent because of a partition or filter rule.",
        "port_xmit_constraint_errors",
        {"unit": Unit.ERRORS, "bits": 8, "saturates": True},
    ),
    (
        "receive_constraint_errors",
        "Packets refused because of a partition or filter rule.",
        "port_rcv_constraint_errors",
        {"unit": Unit.ERRORS, "bits": 8, "saturates": True},
    ),
    (
        "link_error_recoveries",
        "Times the link recovered from errors by itself.",
        "link_error_recovery",
        {"bits": 8, "saturates": True},
    ),
    (
        "link_downs",
        "Times the link could not recover and went down.",
        "link_downed",
        {"bits": 8, "saturates": True},
    ),
    (
        "local_link_integrity_errors",
        "Times local physical errors passed their threshold.",
        "local_link_integrity_errors",
        {"unit": Unit.ERRORS, "bits": 4, "saturates": True},
    ),
    (
        "excessive_buffer_overrun_errors",
        "Times buffer overruns passed their threshold.",
        "excessive_buffer_overrun_errors",
        {"unit": Unit.ERRORS, "bits": 4, "saturates": True},
    ),
    (
        "vl15_dropped_packets",
        "Management packets dropped for lack of a buffer.",
        "VL15_dropped",
        {"unit": Unit.PACKETS, "bits": 16, "saturates": True},
    ),
    ("write_requests", "RDMA write requests received.", "rx_write_requests", {"bits": 32}),
    ("read_requests", "RDMA read requests received.", "rx_read_requests", {"bits": 32}),
    ("atomic_requests", "RDMA atomic requests received.", "rx_atomic_requests", {"bits": 32}),
    (
        "dct_connects",
        "Connection requests received for dynamic connections.",
        "rx_dct_connect",
        {"bits": 32},
    ),
    (
        "out_of_buffer_drops",
        "Packets dropped because no receive request was posted.",
        "out_of_buffer rx_out_of_buffer",
        {"bits": 32},
    ),
    (
        "out_of_sequence_packets",
        "Packets that arrived out of order.",
        "out_of_sequence oos_drop_count",
        {"unit": Unit.PACKETS, "bits": 32},
    ),
    (
        "duplicate_requests",
        "Requests received more than once: the peer sent again.",
        "duplicate_request dup_req",
        {"bits": 32},
    ),
    (
        "packet_sequence_errors",
        "Sequence-error NAKs received: the peer lost our packets.",
        "packet_seq_err seq_err_naks_rcvd",
        {"unit": Unit.ERRORS, "bits": 32},
    ),
    (
        "implied_nak_sequence_errors",
        "Responses beyond the expected one: a response was lost.",
        "implied_nak_seq_err missing_resp",
        {"unit": Unit.ERRORS, "bits": 32},
    ),
    (
        "ack_timeouts",
        "Acknowledgement timers that ran out.",
        "local_ack_timeout_err to_retransmits",
        {"bits": 32},
    ),
    (
        "receiver_not_ready_naks",
        "Receiver-not-ready NAKs received: the peer was slow.",
        "rnr_nak_retry_err rnr_naks_rcvd",
        {"bits": 32},
    ),
    (
        "transport_retries_exceeded",
        "Connections given up after too many retries.",
        "req_transport_retries_exceeded max_retry_exceeded",
        {"bits": 32},
    ),
    (
        "rnr_retries_exceeded",
        "Connections given up because the receiver was never ready.",
        "req_rnr_retries_exceeded",
        {"bits": 32},
    ),
    (
        "requester_completion_errors",
        "Requests that completed with an error.",
        "req_cqe_error",
        {"unit": Unit.ERRORS, "bits": 32},
    ),
    (
        "responder_completion_errors",
        "Responses that completed with an error.",
        "resp_cqe_error",
        {"unit": Unit.ERRORS, "bits": 32},
    ),
    (
        "requester_flushed_errors",
        "Requests flushed when their connection ended.",
        "req_cqe_flush_error",
        {"unit": Unit.ERRORS, "bits": 32},
    ),
    (
        "responder_flushed_errors",
        "Responses flushed when their connection ended.",
        "resp_cqe_flush_error",
        {"unit": Unit.ERRORS, "bits": 32},
    ),
    (
        "requester_invalid_request_errors",
        "Requests the peer called invalid.",
        "req_remote_invalid_request remote_invalid_req_err",
        {"unit": Unit.ERRORS, "bits": 32},
    ),
    (
        "requester_access_errors",
        "Requests the peer refused for their key or address.",
        "req_remote_access_errors remote_access_err",
        {"unit": Unit.ERRORS, "bits": 32},
    ),
    (
        "responder_access_errors",
        "Requests refused here for their key or address.",
        "resp_remote_access_errors",
        {"unit": Unit.ERRORS, "bits": 32},
    ),
    (
        "responder_length_errors",
        "Requests refused here for their length.",
        "resp_local_length_error res_length_mismatch",
        {"unit": Unit.ERRORS, "bits": 32},
    ),
    (
        "adaptive_retransmissions",
        "Retransmissions by the adaptive algorithm.",
        "roce_adp_retrans",
        {"bits": 32},
    ),
    (
        "adaptive_retransmission_timeouts",
        "Timeouts among the adaptive retransmissions.",
        "roce_adp_retrans_to",
        {"bits": 32},
    ),
    ("slow_restarts", "Times a flow restarted slowly.", "roce_slow_restart", {"bits": 32}),
    (
        "slow_restart_notifications",
        "Congestion notifications made by slow restart.",
        "roce_slow_restart_cnps",
        {"bits": 32},
    ),
    (
        "slow_restart_transitions",
        "Times slow restart changed its state.",
        "roce_slow_restart_trans",
        {"bits": 32},
    ),
    (
        "ecn_marked_packets",
        "RoCE packets received with a congestion mark.",
        "np_ecn_marked_roce_packets rx_ecn_marked_pkts RxECNMrkd",
        {"unit": Unit.PACKETS},
    ),
    (
        "congestion_notifications_sent",
        "Congestion notifications (CNP) sent to senders.",
        "np_cnp_sent np_cnp_pkts tx_cnp_pkts cnpSent",
        {},
    ),
    (
        "congestion_notifications_handled",
        "Congestion notifications received and acted on.",
        "rp_cnp_handled rx_cnp_pkts cnpHandled",
        {},
    ),
    (
        "congestion_notifications_ignored",
        "Congestion notifications received and not acted on.",
        "rp_cnp_ignored cnpIgnored",
        {},
    ),
    (
        "icrc_errors",
        "RoCE packets received with a wrong invariant checksum.",
        "rx_icrc_encapsulated",
        {"unit": Unit.ERRORS},
    ),
)

RDMA_COUNTERS: tuple[Metric, ...] = tuple(
    _counter(stem, help_, files, **special)  # type: ignore[arg-type]  # a heterogeneous table
    for stem, help_, files, special in _TABLE
)
COUNTER_FILES = {
    file: metric
    for metric, (_, _, files, _) in zip(RDMA_COUNTERS, _TABLE, strict=True)
    for file in files.split()
}
