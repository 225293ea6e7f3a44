"""Counters of a port, and traffic per priority: the single basis of all views.

RDMA traffic counts in words of four bytes, as the port counters do; every frame of it is a whole number
of words. Vendors' statistics are these numbers under their own names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from simulator.nic_models import LANES
from simulator.port_settings import BEST_EFFORT, LOSSLESS, NOTIFICATION, PRIORITIES

WORD_BYTES = 4
DATA_FRAME_WORDS = 1039
"""4096 bytes of payload with Ethernet, IP, UDP and InfiniBand headers, without checksum."""
SMALL_FRAME_WORDS = 271
"""The same with 1024 bytes of payload, the maximum for an MTU of 1500."""

NEIGHBOUR_FRAME_BYTES = 196
NOTIFICATION_FRAME_BYTES = 74
CHECKSUM_BYTES = 4


@dataclass(slots=True)
class Flow:
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

    def less(self, other: Flow) -> Flow:
        """Return the difference after subtracting a part."""
        return Flow(self.packets - other.packets, self.words - other.words)


@dataclass(slots=True)
class PortCounters:
    """Events and traffic of a port since driver load.

    The `astray` flows are the parts of the others that had the wrong priority.
    """

    sent: Flow = field(default_factory=Flow)
    received: Flow = field(default_factory=Flow)
    dropped: Flow = field(default_factory=Flow)
    astray_sent: Flow = field(default_factory=Flow)
    astray_received: Flow = field(default_factory=Flow)
    astray_dropped: Flow = field(default_factory=Flow)
    write_requests: int = 0
    marked_packets: int = 0
    notifications_sent: int = 0
    notifications_handled: int = 0
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
    write_stalled_ns: int = 0
    neighbour_frames: int = 0
    link_downs: int = 0
    carrier_changes: int = 1
    observed_bits: int = 0
    mended_bits: list[int] = field(default_factory=lambda: [0] * LANES)
    mended_blocks: int = 0
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


def by_priority(seen: PortCounters) -> list[PriorityTraffic]:
    """Split a port's traffic by priority: RDMA, notifications, and everything else."""
    found = [PriorityTraffic()] * len(PRIORITIES)
    found[LOSSLESS] = _rdma(
        seen.sent.less(seen.astray_sent),
        seen.received.less(seen.astray_received),
        seen.dropped.less(seen.astray_dropped),
    )
    astray = _rdma(seen.astray_sent, seen.astray_received, seen.astray_dropped)
    frames = seen.neighbour_frames
    frame_bytes = frames * (NEIGHBOUR_FRAME_BYTES + CHECKSUM_BYTES)
    neighbours = PriorityTraffic(frame_bytes, frames, 0, frame_bytes, frames)
    pairs = zip(astray, neighbours, strict=True)
    found[BEST_EFFORT] = PriorityTraffic(*(one + other for one, other in pairs))
    frame = NOTIFICATION_FRAME_BYTES + CHECKSUM_BYTES
    handled, sent = seen.notifications_handled, seen.notifications_sent
    found[NOTIFICATION] = PriorityTraffic(handled * frame, handled, 0, sent * frame, sent)
    return found


def _rdma(sent: Flow, received: Flow, dropped: Flow) -> PriorityTraffic:
    return PriorityTraffic(
        received.wire_bytes + dropped.wire_bytes,
        received.packets + dropped.packets,
        dropped.packets,
        sent.wire_bytes,
        sent.packets,
    )


def on_the_wire(seen: PortCounters) -> PriorityTraffic:
    """Add up a port's traffic over all priorities."""
    return PriorityTraffic(*(sum(column) for column in zip(*by_priority(seen), strict=True)))
