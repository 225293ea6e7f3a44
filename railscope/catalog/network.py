"""Metrics of networks other than the rails: bonds, IP, TCP, UDP, connection tracking."""

# fmt: off
from railscope.catalog.declare import BASIC, Metric, MetricTable
from railscope.catalog.entities import BOND, BOND_MEMBER, ECN_CODE, NODE

NAMESPACE = "Counts from boot, or from the creation of the network namespace."
MEMBERSHIP = "Counts from when the interface joined the bond."
_NETWORK = MetricTable(NODE, resets=NAMESPACE)
_BOND = MetricTable(BOND, origin="/sys/class/net/*/bonding/")
_MEMBER = MetricTable(BOND_MEMBER, origin="/sys/class/net/*/bonding_slave/", resets=MEMBERSHIP)

TCP_CONNECTIONS = _NETWORK.gauge("railscope_tcp_connections", "TCP connections that are established or closing.", "/proc/net/snmp Tcp CurrEstab")
ECN = _NETWORK.counter("railscope_ip_receive_ecn_packets_total", "Received IP packets by their ECN bits; CE: a switch on the way was congested. RDMA traffic is not counted.", "/proc/net/netstat IpExt InNoECTPkts, InECT0Pkts, InECT1Pkts, InCEPkts", about=ECN_CODE)
SOFTNET_DROPPED = _NETWORK.counter("railscope_softnet_dropped_packets_total", "Received packets dropped because a processor's backlog was full (net.core.netdev_max_backlog).", "/proc/net/softnet_stat column 2, all processors", node_exporter="node_softnet_dropped_total")
SOFTNET_SQUEEZED = _NETWORK.counter("railscope_softnet_squeezes_total", "Times a processor stopped receiving with work left (net.core.netdev_budget).", "/proc/net/softnet_stat column 3, all processors", node_exporter="node_softnet_times_squeezed_total")
SOFTNET_FLOW_LIMITED = _NETWORK.counter("railscope_softnet_flow_limit_dropped_packets_total", "Received packets dropped because one flow filled half of a processor's backlog.", "/proc/net/softnet_stat column 11, all processors", node_exporter="node_softnet_flow_limit_count_total")
CONNTRACK_ENTRIES = _NETWORK.gauge("railscope_conntrack_entries", "Connections that the packet filter tracks.", "/proc/sys/net/netfilter/nf_conntrack_count", node_exporter="node_nf_conntrack_entries", detail=BASIC)
CONNTRACK_LIMIT = _NETWORK.gauge("railscope_conntrack_entries_limit", "Maximum connections that the packet filter can track; packets of further ones are dropped.", "/proc/sys/net/netfilter/nf_conntrack_max", node_exporter="node_nf_conntrack_entries_limit", detail=BASIC)
CONNTRACK_INSERT_FAILED = _NETWORK.counter("railscope_conntrack_failed_inserts_total", "Connections that could not be entered into the table, their packets dropped.", "/proc/net/stat/nf_conntrack insert_failed, all processors")
CONNTRACK_DROPPED = _NETWORK.counter("railscope_conntrack_dropped_packets_total", "Packets dropped because the table of connections was full or out of memory.", "/proc/net/stat/nf_conntrack drop, all processors")
CONNTRACK_EVICTED = _NETWORK.counter("railscope_conntrack_evicted_entries_total", "Connections evicted from a full table.", "/proc/net/stat/nf_conntrack early_drop, all processors")
BOND_INFO = _BOND.info("railscope_bond_info", "Mode of the bond.", "mode")
BOND_UP = _BOND.gauge("railscope_bond_up", "1 if the bond has a link, 0 otherwise.", "mii_status", detail=BASIC)
BOND_MEMBERS = _BOND.gauge("railscope_bond_members", "Interfaces in the bond.", "slaves", node_exporter="node_bonding_slaves")
BOND_MEMBER_UP = _MEMBER.gauge("railscope_bond_member_up", "1 if the member has a link, 0 otherwise.", "mii_status", detail=BASIC)
BOND_MEMBER_ACTIVE = _MEMBER.gauge("railscope_bond_member_active", "1 if the bond sends through this member, 0 if the member is a backup.", "state")
BOND_MEMBER_AGGREGATED = _MEMBER.gauge("railscope_bond_member_aggregated", "1 if LACP has the member in the bond's aggregator, 0 otherwise.", "ad_aggregator_id, /sys/class/net/*/bonding/ad_aggregator")
BOND_MEMBER_FAILURES = _MEMBER.counter("railscope_bond_member_link_failures_total", "Times the member lost its link.", "link_failure_count", bits=32)


def _table(file: str, *rows: tuple[str, str, str, str]) -> dict[tuple[str, str], Metric]:
    """Declare counters of the node by protocol and field: both, name and help of each."""
    return {
        (protocol, field): _NETWORK.counter(name, help_, f"{file} {protocol} {field}", node_exporter=f"node_netstat_{protocol}_{field}")
        for protocol, field, name, help_ in rows
    }


SNMP = _table(
    "/proc/net/snmp",
    ("Tcp", "InSegs", "railscope_tcp_receive_segments_total", "TCP segments received."),
    ("Tcp", "OutSegs", "railscope_tcp_transmit_segments_total", "TCP segments sent, without those sent again."),
    ("Tcp", "RetransSegs", "railscope_tcp_retransmit_segments_total", "TCP segments sent again."),
    ("Tcp", "InErrs", "railscope_tcp_receive_segment_errors_total", "Damaged TCP segments received."),
    ("Tcp", "AttemptFails", "railscope_tcp_failed_connection_attempts_total", "Failed attempts to establish a TCP connection."),
    ("Tcp", "EstabResets", "railscope_tcp_connection_resets_total", "Established TCP connections that were reset."),
    ("Udp", "InDatagrams", "railscope_udp_receive_packets_total", "UDP datagrams delivered."),
    ("Udp", "OutDatagrams", "railscope_udp_transmit_packets_total", "UDP datagrams sent."),
    ("Udp", "NoPorts", "railscope_udp_no_port_packets_total", "UDP datagrams to a port without a listener."),
    ("Udp", "InErrors", "railscope_udp_receive_errors_total", "UDP datagrams that could not be delivered."),
    ("Udp", "RcvbufErrors", "railscope_udp_receive_buffer_errors_total", "UDP datagrams dropped because a socket's receive buffer was full."),
    ("Udp", "SndbufErrors", "railscope_udp_transmit_buffer_errors_total", "UDP datagrams not sent because a socket's send buffer was full."),
    ("Udp", "InCsumErrors", "railscope_udp_checksum_errors_total", "UDP datagrams with a wrong checksum."),
    ("Ip", "InDiscards", "railscope_ip_receive_dropped_packets_total", "Received IP packets dropped for lack of memory."),
    ("Ip", "OutDiscards", "railscope_ip_transmit_dropped_packets_total", "IP packets dropped before sending for lack of memory."),
    ("Ip", "OutNoRoutes", "railscope_ip_no_route_packets_total", "IP packets dropped for lack of a route."),
    ("Ip", "InHdrErrors", "railscope_ip_header_error_packets_total", "Received IP packets with an error in the header."),
    ("Ip", "ReasmFails", "railscope_ip_reassembly_failed_packets_total", "Fragmented IP packets that could not be reassembled."),
    ("Ip", "FragFails", "railscope_ip_fragmentation_failed_packets_total", "IP packets too long for their path that may not be fragmented: an MTU does not match."),
)
NETSTAT = _table(
    "/proc/net/netstat",
    ("TcpExt", "ListenOverflows", "railscope_tcp_listen_overflows_total", "Connections rejected because an accept queue was full."),
    ("TcpExt", "ListenDrops", "railscope_tcp_listen_drops_total", "Connection requests a listening socket dropped."),
    ("TcpExt", "TCPTimeouts", "railscope_tcp_timeouts_total", "Times the retransmission timer of a connection expired."),
    ("TcpExt", "TCPSynRetrans", "railscope_tcp_syn_retransmits_total", "Connection requests sent again."),
    ("TcpExt", "TCPFastRetrans", "railscope_tcp_fast_retransmits_total", "Segments sent again without a timeout."),
    ("TcpExt", "TCPLostRetransmit", "railscope_tcp_lost_retransmits_total", "Segments sent again that were lost once more."),
    ("TcpExt", "TCPBacklogDrop", "railscope_tcp_backlog_drops_total", "Segments dropped because a socket's backlog was full."),
    ("TcpExt", "TCPRcvQDrop", "railscope_tcp_receive_queue_drops_total", "Segments dropped because a receive queue was full."),
    ("TcpExt", "PruneCalled", "railscope_tcp_prunes_total", "Times a socket's receive queue was shrunk for lack of buffer space."),
    ("TcpExt", "TCPAbortOnTimeout", "railscope_tcp_aborts_on_timeout_total", "Connections aborted after too many retries."),
    ("TcpExt", "TCPAbortOnMemory", "railscope_tcp_aborts_on_memory_total", "Connections aborted for lack of memory."),
    ("TcpExt", "TCPMemoryPressures", "railscope_tcp_memory_pressures_total", "Times TCP ran short of memory."),
    ("TcpExt", "TCPReqQFullDrop", "railscope_tcp_request_queue_drops_total", "Connection requests dropped because their queue was full."),
    ("IpExt", "InCsumErrors", "railscope_ip_checksum_errors_total", "Received IP packets with a wrong checksum."),
)
