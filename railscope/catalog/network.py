"""Metrics of the networks beside the rails: bonds, IP, TCP, UDP, connection tracking."""

from railscope.catalog.declare import EntityKind, Kind, Metric, Rollup, Unit
from railscope.catalog.entities import BOND, BOND_MEMBER, ECN_CODE, NODE

_BOOT = "Counts from boot, or from when the network namespace was made."
_SUM = (Rollup.SUM,)


def _counter(
    stem: str, help_: str, origin: str, unit: Unit = Unit.NONE, about: EntityKind = NODE
) -> Metric:
    name = f"railscope_{stem}_{unit}_total" if unit else f"railscope_{stem}_total"
    return Metric(
        name, Kind.COUNTER, about,
        unit=unit, rollups=_SUM, resets=_BOOT, help=help_, origin=origin,
    )  # fmt: skip


def _tcp(stem: str, help_: str, field: str) -> Metric:
    return _counter(f"tcp_{stem}", help_, f"/proc/net/snmp Tcp {field}")


def _tcp_more(stem: str, help_: str, field: str) -> Metric:
    return _counter(f"tcp_{stem}", help_, f"/proc/net/netstat TcpExt {field}")


def _udp(stem: str, help_: str, field: str, unit: Unit = Unit.PACKETS) -> Metric:
    return _counter(f"udp_{stem}", help_, f"/proc/net/snmp Udp {field}", unit)


def _ip(stem: str, help_: str, field: str) -> Metric:
    return _counter(f"ip_{stem}", help_, f"/proc/net/snmp Ip {field}", Unit.PACKETS)


SNMP: dict[tuple[str, str], Metric] = {
    ("Tcp", "InSegs"): _tcp("receive_segments", "TCP segments received.", "InSegs"),
    ("Tcp", "OutSegs"): _tcp(
        "transmit_segments", "TCP segments sent, without those sent again.", "OutSegs"
    ),
    ("Tcp", "RetransSegs"): _tcp("retransmit_segments", "TCP segments sent again.", "RetransSegs"),
    ("Tcp", "InErrs"): _tcp("receive_segment_errors", "Damaged TCP segments received.", "InErrs"),
    ("Tcp", "AttemptFails"): _tcp(
        "failed_connection_attempts", "TCP connections that were never made.", "AttemptFails"
    ),
    ("Tcp", "EstabResets"): _tcp(
        "connection_resets", "Established TCP connections that were reset.", "EstabResets"
    ),
    ("Udp", "InDatagrams"): _udp("receive", "UDP datagrams delivered.", "InDatagrams"),
    ("Udp", "OutDatagrams"): _udp("transmit", "UDP datagrams sent.", "OutDatagrams"),
    ("Udp", "NoPorts"): _udp("no_port", "UDP datagrams to a port nobody listens at.", "NoPorts"),
    ("Udp", "InErrors"): _udp(
        "receive", "UDP datagrams that could not be delivered.", "InErrors", Unit.ERRORS
    ),
    ("Udp", "RcvbufErrors"): _udp(
        "receive_buffer",
        "UDP datagrams dropped because a socket's receive buffer was full.",
        "RcvbufErrors",
        Unit.ERRORS,
    ),
    ("Udp", "SndbufErrors"): _udp(
        "transmit_buffer",
        "UDP datagrams not sent because a socket's send buffer was full.",
        "SndbufErrors",
        Unit.ERRORS,
    ),
    ("Udp", "InCsumErrors"): _udp(
        "checksum", "UDP datagrams with a wrong checksum.", "InCsumErrors", Unit.ERRORS
    ),
    ("Ip", "InDiscards"): _ip(
        "receive_dropped", "Received IP packets dropped for want of memory.", "InDiscards"
    ),
    ("Ip", "OutDiscards"): _ip(
        "transmit_dropped", "IP packets dropped before sending for want of memory.", "OutDiscards"
    ),
    ("Ip", "OutNoRoutes"): _ip(
        "no_route", "IP packets dropped because no route leads to the address.", "OutNoRoutes"
    ),
    ("Ip", "InHdrErrors"): _ip(
        "header_error", "Received IP packets with an error in the header.", "InHdrErrors"
    ),
    ("Ip", "ReasmFails"): _ip(
        "reassembly_failed", "Fragmented IP packets that could not be put together.", "ReasmFails"
    ),
    ("Ip", "FragFails"): _ip(
        "fragmentation_failed",
        "IP packets too long for their way that may not be cut: an MTU does not match.",
        "FragFails",
    ),
}
NETSTAT: dict[tuple[str, str], Metric] = {
    ("TcpExt", "ListenOverflows"): _tcp_more(
        "listen_overflows", "Connections refused because a queue of accept was full.",
        "ListenOverflows",
    ),
    ("TcpExt", "ListenDrops"): _tcp_more(
        "listen_drops", "Connection requests a listening socket dropped.", "ListenDrops"
    ),
    ("TcpExt", "TCPTimeouts"): _tcp_more(
        "timeouts", "Times the retransmission timer of a connection ran out.", "TCPTimeouts"
    ),
    ("TcpExt", "TCPSynRetrans"): _tcp_more(
        "syn_retransmits", "Connection requests sent again.", "TCPSynRetrans"
    ),
    ("TcpExt", "TCPFastRetrans"): _tcp_more(
        "fast_retransmits", "Segments sent again without a timeout.", "TCPFastRetrans"
    ),
    ("TcpExt", "TCPLostRetransmit"): _tcp_more(
        "lost_retransmits", "Segments sent again that were lost once more.", "TCPLostRetransmit"
    ),
    ("TcpExt", "TCPBacklogDrop"): _tcp_more(
        "backlog_drops", "Segments dropped because a socket's backlog was full.", "TCPBacklogDrop"
    ),
    ("TcpExt", "TCPRcvQDrop"): _tcp_more(
        "receive_queue_drops", "Segments dropped because a receive queue was full.", "TCPRcvQDrop"
    ),
    ("TcpExt", "PruneCalled"): _tcp_more(
        "prunes", "Times a socket's receive queue was shrunk for want of buffer.", "PruneCalled"
    ),
    ("TcpExt", "TCPAbortOnTimeout"): _tcp_more(
        "aborts_on_timeout", "Connections given up after too many retries.", "TCPAbortOnTimeout"
    ),
    ("TcpExt", "TCPAbortOnMemory"): _tcp_more(
        "aborts_on_memory", "Connections given up for want of memory.", "TCPAbortOnMemory"
    ),
    ("TcpExt", "TCPMemoryPressures"): _tcp_more(
        "memory_pressures", "Times TCP came short of memory.", "TCPMemoryPressures"
    ),
    ("TcpExt", "TCPReqQFullDrop"): _tcp_more(
        "request_queue_drops", "Connection requests dropped because their queue was full.",
        "TCPReqQFullDrop",
    ),
    ("IpExt", "InCsumErrors"): _counter(
        "ip_checksum", "Received IP packets with a wrong checksum.",
        "/proc/net/netstat IpExt InCsumErrors", Unit.ERRORS,
    ),
}  # fmt: skip
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
    ECN_CODE,
)
SOFTNET_DROPPED = _counter(
    "softnet_dropped",
    "Received packets dropped because a processor's backlog was full (net.core.netdev_max_backlog).",
    "/proc/net/softnet_stat column 2, all processors",
    Unit.PACKETS,
)
SOFTNET_SQUEEZED = _counter(
    "softnet_squeezes",
    "Times a processor stopped receiving with work left (net.core.netdev_budget).",
    "/proc/net/softnet_stat column 3, all processors",
)
SOFTNET_FLOW_LIMITED = _counter(
    "softnet_flow_limit_dropped",
    "Received packets dropped because one flow filled half of a processor's backlog.",
    "/proc/net/softnet_stat column 11, all processors",
    Unit.PACKETS,
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
