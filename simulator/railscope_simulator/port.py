"""RoCE port: its settings, counters, and traffic per priority.

RDMA traffic carries DSCP 26 and congestion notifications DSCP 48. A port that trusts DSCP maps them to
priorities 3 and 6; one that trusts the priority code point of a VLAN tag, which is absent, maps all
traffic to priority 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from railscope_simulator import device_models

LOSSLESS, NOTIFICATION, BEST_EFFORT = 3, 6, 0
PRIORITIES = range(8)
DSCP_OF_DATA, DSCP_OF_NOTIFICATIONS = 26, 48
USUAL_MTU_BYTES, SMALL_MTU_BYTES = 4200, 1500

WORD_BYTES = 4
DATA_FRAME_WORDS = 1039
"""4096 bytes of payload with Ethernet, IP, UDP and InfiniBand headers, without checksum."""
SMALL_FRAME_WORDS = 271
"""The same with 1024 bytes of payload, the maximum for an MTU of 1500."""

NEIGHBOUR_FRAME_BYTES = 196
NOTIFICATION_FRAME_BYTES = 74
CHECKSUM_BYTES = 4


@dataclass(frozen=True, slots=True)
class PortSettings:
    """Settings of a port; defaults are those of the whole cluster."""

    mtu_bytes: int = USUAL_MTU_BYTES
    pausing: bool = True
    notifying: bool = True
    trust: Literal["dscp", "pcp"] = "dscp"

    @property
    def is_protected(self) -> bool:
        """True if pause protects RDMA traffic from loss."""
        return self.pausing and self.trust == "dscp"


USUAL = PortSettings()


@dataclass(slots=True)
class TrafficFlow:
    """Packets and their words in one direction."""

    packets: int = 0
    words: int = 0

    def add(self, packets: int, frame_words: int) -> None:
        """Count packets of one size."""
        self.packets += packets
        self.words += packets * frame_words

    @property
    def data_bytes(self) -> int:
        """Bytes with headers, without checksums."""
        return self.words * WORD_BYTES

    @property
    def wire_bytes(self) -> int:
        """Bytes with headers and checksums."""
        return self.words * WORD_BYTES + self.packets * CHECKSUM_BYTES

    def less(self, other: TrafficFlow) -> TrafficFlow:
        """Return the difference after subtracting a part."""
        return TrafficFlow(self.packets - other.packets, self.words - other.words)


@dataclass(slots=True)
class PortCounters:
    """Events and traffic of a port since driver load: the single basis of all interfaces.

    RDMA traffic counts in words of four bytes, as the port counters do; every frame of it is a whole number
    of words. Vendors' statistics are these numbers under their own names.
    The `misprioritized` flows are the parts of the others that had the wrong priority.
    """

    sent: TrafficFlow = field(default_factory=TrafficFlow)
    received: TrafficFlow = field(default_factory=TrafficFlow)
    dropped: TrafficFlow = field(default_factory=TrafficFlow)
    misprioritized_sent: TrafficFlow = field(default_factory=TrafficFlow)
    misprioritized_received: TrafficFlow = field(default_factory=TrafficFlow)
    misprioritized_dropped: TrafficFlow = field(default_factory=TrafficFlow)
    write_requests: int = 0
    marked_packets: int = 0
    notifications_sent: int = 0
    notifications_handled: int = 0
    notifications_ignored: int = 0
    pause_frames_sent: int = 0
    pause_frames_received: int = 0
    pausing_ns: int = 0
    paused_ns: int = 0
    storm_warnings: int = 0
    storm_errors: int = 0
    buffer_alarms: int = 0
    out_of_sequence: int = 0
    ack_timeouts: int = 0
    sequence_errors: int = 0
    adaptive_retransmissions: int = 0
    write_stalled_ns: int = 0
    neighbour_frames: int = 0
    link_downs: int = 0
    carrier_changes: int = 1
    observed_bits: int = 0
    corrected_bits: list[int] = field(default_factory=lambda: [0] * device_models.LANES)
    corrected_blocks: int = 0
    broken_blocks: int = 0
    symbol_errors: int = 0
    checksum_errors: int = 0
    pcie_errors: int = 0


class PriorityTraffic(NamedTuple):
    """Wire traffic of one priority; bytes include headers and checksums."""

    received_bytes: int = 0
    received_packets: int = 0
    discards: int = 0
    sent_bytes: int = 0
    sent_packets: int = 0


def by_priority(counters: PortCounters) -> list[PriorityTraffic]:
    """Split a port's traffic by priority: RDMA, notifications, and everything else."""
    traffic = [PriorityTraffic()] * len(PRIORITIES)
    traffic[LOSSLESS] = _rdma(
        counters.sent.less(counters.misprioritized_sent),
        counters.received.less(counters.misprioritized_received),
        counters.dropped.less(counters.misprioritized_dropped),
    )
    misprioritized = _rdma(
        counters.misprioritized_sent,
        counters.misprioritized_received,
        counters.misprioritized_dropped,
    )
    frames = counters.neighbour_frames
    frame_bytes = frames * (NEIGHBOUR_FRAME_BYTES + CHECKSUM_BYTES)
    neighbours = PriorityTraffic(frame_bytes, frames, 0, frame_bytes, frames)
    pairs = zip(misprioritized, neighbours, strict=True)
    traffic[BEST_EFFORT] = PriorityTraffic(
        *(traffic_share + other for traffic_share, other in pairs)
    )
    frame = NOTIFICATION_FRAME_BYTES + CHECKSUM_BYTES
    sent = counters.notifications_sent
    arrived = counters.notifications_handled + counters.notifications_ignored
    traffic[NOTIFICATION] = PriorityTraffic(arrived * frame, arrived, 0, sent * frame, sent)
    return traffic


def _rdma(sent: TrafficFlow, received: TrafficFlow, dropped: TrafficFlow) -> PriorityTraffic:
    # What the port drops has arrived on the wire.
    return PriorityTraffic(
        received.wire_bytes + dropped.wire_bytes,
        received.packets + dropped.packets,
        dropped.packets,
        sent.wire_bytes,
        sent.packets,
    )


def on_the_wire(counters: PortCounters) -> PriorityTraffic:
    """Add up a port's traffic over all priorities."""
    return PriorityTraffic(*(sum(column) for column in zip(*by_priority(counters), strict=True)))
