"""Statistics of drivers without their own table: names shared by many drivers, and IEEE 802.3 groups.

`STANDARD` contains names under which Linux drivers count what the kernel's standard groups count
(tg3.c, e1000e/ethtool.c, be_ethtool.c and others in torvalds/linux drivers/net/ethernet). `GROUPS`
are the counters that ethtool over netlink returns under standard names (ETHTOOL_MSG_STATS_GET:
eth-phy, eth-mac, eth-ctrl, rmon), whatever the driver's own names are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.sources.ethtool_clouds import Row
from railscope.catalog import nic as c
from railscope.catalog import nic_detail as d
from railscope.catalog import nic_link as link
from railscope.catalog.declare import Metric

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

STANDARD: tuple[Row, ...] = tuple(
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


def listed(names: Sequence[str]) -> str:
    """Names of statistics for a message, up to a bound."""
    shown = ", ".join(names[:MAX_LISTED_NAMES])
    more = len(names) - MAX_LISTED_NAMES
    return f"{shown} and {more} more" if more > 0 else shown
