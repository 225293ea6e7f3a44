"""Metrics of networks other than the rails: bonds, IP, TCP, UDP, connection tracking."""

from railscope.catalog.declare import EntityKind, Kind, Metric, Rollup, Unit
from railscope.catalog.entities import BOND, BOND_MEMBER, ECN_CODE, NODE

_BOOT = "Counts from boot, or from when the network namespace was made."


def _counter(  # noqa: PLR0913 - options of some of the counters below
    stem: str,
    help_: str,
    origin: str,
    unit: Unit = Unit.NONE,
    *,
    about: EntityKind = NODE,
    node_exporter: str = "",
) -> Metric:
    return Metric(
        f"railscope_{stem}_{unit}_total" if unit else f"railscope_{stem}_total",
        Kind.COUNTER,
        about,
        unit=unit,
        rollups=(Rollup.SUM,),
        resets=_BOOT,
        help=help_,
        origin=origin,
        other_names={"node_exporter": node_exporter} if node_exporter else {},
    )


_Row = tuple[str, str, str, Unit, str]
"""Protocol and field in the file; stem of the name, unit, help."""


def _table(file: str, *rows: _Row) -> dict[tuple[str, str], Metric]:
    """Counters of the node by protocol and field."""
    return {
        (protocol, field): _counter(
            stem, help_, f"{file} {protocol} {field}", unit,
            node_exporter=f"node_netstat_{protocol}_{field}",
        )
        for protocol, field, stem, unit, help_ in rows
    }  # fmt: skip


SNMP = _table(
    "/proc/net/snmp",
    ("Tcp", "InSegs", "tcp_receive_segments", Unit.NONE, "TCP segments received."),
    ("Tcp", "OutSegs", "tcp_transmit_segments", Unit.NONE, "TCP segments sent, without those sent again."),
    ("Tcp", "RetransSegs", "tcp_retransmit_segments", Unit.NONE, "TCP segments sent again."),
    ("Tcp", "InErrs", "tcp_receive_segment", Unit.ERRORS, "Damaged TCP segments received."),
    ("Tcp", "AttemptFails", "tcp_failed_connection_attempts", Unit.NONE, "TCP connections that were never made."),
    ("Tcp", "EstabResets", "tcp_connection_resets", Unit.NONE, "Established TCP connections that were reset."),
    ("Udp", "InDatagrams", "udp_receive", Unit.PACKETS, "UDP datagrams delivered."),
    ("Udp", "OutDatagrams", "udp_transmit", Unit.PACKETS, "UDP datagrams sent."),
    ("Udp", "NoPorts", "udp_no_port", Unit.PACKETS, "UDP datagrams to a port nobody listens at."),
    ("Udp", "InErrors", "udp_receive", Unit.ERRORS, "UDP datagrams that could not be delivered."),
    ("Udp", "RcvbufErrors", "udp_receive_buffer", Unit.ERRORS, "UDP datagrams dropped because a socket's receive buffer was full."),
    ("Udp", "SndbufErrors", "udp_transmit_buffer", Unit.ERRORS, "UDP datagrams not sent because a socket's send buffer was full."),
    ("Udp", "InCsumErrors", "udp_checksum", Unit.ERRORS, "UDP datagrams with a wrong checksum."),
    ("Ip", "InDiscards", "ip_receive_dropped", Unit.PACKETS, "Received IP packets dropped for want of memory."),
    ("Ip", "OutDiscards", "ip_transmit_dropped", Unit.PACKETS, "IP packets dropped before sending for want of memory."),
    ("Ip", "OutNoRoutes", "ip_no_route", Unit.PACKETS, "IP packets dropped because no route leads to the address."),
    ("Ip", "InHdrErrors", "ip_header_error", Unit.PACKETS, "Received IP packets with an error in the header."),
    ("Ip", "ReasmFails", "ip_reassembly_failed", Unit.PACKETS, "Fragmented IP packets that could not be put together."),
    ("Ip", "FragFails", "ip_fragmentation_failed", Unit.PACKETS, "IP packets too long for their way that may not be cut: an MTU does not match."),
)  # fmt: skip
NETSTAT = _table(
    "/proc/net/netstat",
    ("TcpExt", "ListenOverflows", "tcp_listen_overflows", Unit.NONE, "Connections refused because a queue of accept was full."),
    ("TcpExt", "ListenDrops", "tcp_listen_drops", Unit.NONE, "Connection requests a listening socket dropped."),
    ("TcpExt", "TCPTimeouts", "tcp_timeouts", Unit.NONE, "Times the retransmission timer of a connection ran out."),
    ("TcpExt", "TCPSynRetrans", "tcp_syn_retransmits", Unit.NONE, "Connection requests sent again."),
    ("TcpExt", "TCPFastRetrans", "tcp_fast_retransmits", Unit.NONE, "Segments sent again without a timeout."),
    ("TcpExt", "TCPLostRetransmit", "tcp_lost_retransmits", Unit.NONE, "Segments sent again that were lost once more."),
    ("TcpExt", "TCPBacklogDrop", "tcp_backlog_drops", Unit.NONE, "Segments dropped because a socket's backlog was full."),
    ("TcpExt", "TCPRcvQDrop", "tcp_receive_queue_drops", Unit.NONE, "Segments dropped because a receive queue was full."),
    ("TcpExt", "PruneCalled", "tcp_prunes", Unit.NONE, "Times a socket's receive queue was shrunk for want of buffer."),
    ("TcpExt", "TCPAbortOnTimeout", "tcp_aborts_on_timeout", Unit.NONE, "Connections given up after too many retries."),
    ("TcpExt", "TCPAbortOnMemory", "tcp_aborts_on_memory", Unit.NONE, "Connections given up for want of memory."),
    ("TcpExt", "TCPMemoryPressures", "tcp_memory_pressures", Unit.NONE, "Times TCP came short of memory."),
    ("TcpExt", "TCPReqQFullDrop", "tcp_request_queue_drops", Unit.NONE, "Connection requests dropped because their queue was full."),
    ("IpExt", "InCsumErrors", "ip_checksum", Unit.ERRORS, "Received IP packets with a wrong checksum."),
)  # fmt: skip
TCP_CONNECTIONS = Metric(
    "railscope_tcp_connections",
    Kind.GAUGE,
    NODE,
    rollups=(Rollup.SUM, Rollup.MAX),
    help="TCP connections that are established or closing.",
    origin="/proc/net/snmp Tcp CurrEstab",
)
ECN = _counter(
    "ip_receive_ecn",
    "Received IP packets by their ECN bits; CE: a switch on the way was congested. RDMA passes by.",
    "/proc/net/netstat IpExt InNoECTPkts, InECT0Pkts, InECT1Pkts, InCEPkts",
    Unit.PACKETS,
    about=ECN_CODE,
)
SOFTNET_DROPPED = _counter(
    "softnet_dropped",
    "Received packets dropped because a processor's backlog was full (net.core.netdev_max_backlog).",
    "/proc/net/softnet_stat column 2, all processors",
    Unit.PACKETS,
    node_exporter="node_softnet_dropped_total",
)
SOFTNET_SQUEEZED = _counter(
    "softnet_squeezes",
    "Times a processor stopped receiving with work left (net.core.netdev_budget).",
    "/proc/net/softnet_stat column 3, all processors",
    node_exporter="node_softnet_times_squeezed_total",
)
SOFTNET_FLOW_LIMITED = _counter(
    "softnet_flow_limit_dropped",
    "Received packets dropped because one flow filled half of a processor's backlog.",
    "/proc/net/softnet_stat column 11, all processors",
    Unit.PACKETS,
    node_exporter="node_softnet_flow_limit_count_total",
)
CONNTRACK_ENTRIES = Metric(
    "railscope_conntrack_entries",
    Kind.GAUGE,
    NODE,
    rollups=(Rollup.MAX,),
    help="Connections the packet filter keeps track of.",
    origin="/proc/sys/net/netfilter/nf_conntrack_count",
    other_names={"node_exporter": "node_nf_conntrack_entries"},
)
CONNTRACK_LIMIT = Metric(
    "railscope_conntrack_entries_limit",
    Kind.GAUGE,
    NODE,
    rollups=(Rollup.MIN,),
    help="Most connections the packet filter can keep track of; packets of further ones are dropped.",
    origin="/proc/sys/net/netfilter/nf_conntrack_max",
    other_names={"node_exporter": "node_nf_conntrack_entries_limit"},
)
CONNTRACK_INSERT_FAILED = _counter(
    "conntrack_failed_inserts",
    "Connections that could not be entered into the table, their packets dropped.",
    "/proc/net/stat/nf_conntrack insert_failed, all processors",
)
CONNTRACK_DROPPED = _counter(
    "conntrack_dropped",
    "Packets dropped because the table of connections was full or out of memory.",
    "/proc/net/stat/nf_conntrack drop, all processors",
    Unit.PACKETS,
)
CONNTRACK_EVICTED = _counter(
    "conntrack_evicted_entries",
    "Connections thrown out of a full table to make room for others.",
    "/proc/net/stat/nf_conntrack early_drop, all processors",
)

_BONDING = "/sys/class/net/*/bonding"
_MEMBER = "/sys/class/net/*/bonding_slave"
_MEMBERSHIP = "Counts from when the interface joined the bond."

BOND_INFO = Metric(
    "railscope_bond_info",
    Kind.INFO,
    BOND,
    help="How the bond uses its members.",
    origin=f"{_BONDING}/mode",
)
BOND_UP = Metric(
    "railscope_bond_up",
    Kind.GAUGE,
    BOND,
    rollups=(Rollup.MIN,),
    help="Whether the bond has a link (1) or not (0).",
    origin=f"{_BONDING}/mii_status",
)
BOND_MEMBERS = Metric(
    "railscope_bond_members",
    Kind.GAUGE,
    BOND,
    help="Interfaces in the bond.",
    origin=f"{_BONDING}/slaves",
    other_names={"node_exporter": "node_bonding_slaves"},
)
BOND_MEMBER_UP = Metric(
    "railscope_bond_member_up",
    Kind.GAUGE,
    BOND_MEMBER,
    rollups=(Rollup.MIN,),
    help="Whether the member has a link (1) or not (0).",
    origin=f"{_MEMBER}/mii_status",
)
BOND_MEMBER_ACTIVE = Metric(
    "railscope_bond_member_active",
    Kind.GAUGE,
    BOND_MEMBER,
    help="Whether the bond sends through this member (1) or keeps it as a backup (0).",
    origin=f"{_MEMBER}/state",
)
BOND_MEMBER_AGGREGATED = Metric(
    "railscope_bond_member_aggregated",
    Kind.GAUGE,
    BOND_MEMBER,
    rollups=(Rollup.MIN,),
    help="Whether LACP has the member in the bond's aggregator (1) or left it alone (0).",
    origin=f"{_MEMBER}/ad_aggregator_id, {_BONDING}/ad_aggregator",
)
BOND_MEMBER_FAILURES = Metric(
    "railscope_bond_member_link_failures_total",
    Kind.COUNTER,
    BOND_MEMBER,
    rollups=(Rollup.SUM,),
    resets=_MEMBERSHIP,
    wraps_at_bits=32,
    help="Times the member lost its link.",
    origin=f"{_MEMBER}/link_failure_count",
)

_TABLES = (*SNMP.values(), *NETSTAT.values())
