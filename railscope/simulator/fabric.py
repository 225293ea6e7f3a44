"""The physics of a port: what it sends and receives, and how the switch and it hold each other back.

All counters of all views come from the few counters here, so that they agree. RDMA traffic counts
in words of four bytes, as the port counters do; every frame of it is a whole number of words.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from railscope.simulator.conditions import PortConditions
from railscope.simulator.machine import Port
from railscope.simulator.noise import Drift, whole
from railscope.simulator.span import NS_PER_SECOND, Span, seconds

LANES = 4
WORD_BYTES = 4
DATA_FRAME_WORDS = 1039
"""4096 bytes of payload with Ethernet, IP, UDP and InfiniBand headers, without checksum."""

OPTICS_PERIOD_NS = seconds(10)
"""How often the card samples its optics; in between, the counters of a silent port stand still."""

_GOODPUT = 0.97
_WRITE_PACKETS = 256
_PAUSE_QUANTA_BITS = 65535 * 512
_MOST_MARKED, _NOTIFIED = 0.95, 0.8
_NOTIFICATIONS_PER_SECOND = 20_000  # one a flow every 50 microseconds
_SENDERS = 32
_STALLED_PERCENT = 30
_RETRIES_PER_SECOND = 4.0
_LLDP_PERIOD_NS = seconds(30)


@dataclass(slots=True)
class PortCounters:
    """What has happened at a port since driver load."""

    sent_packets: int = 0
    received_packets: int = 0
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
    dropped_packets: int = 0
    out_of_sequence: int = 0
    ack_timeouts: int = 0
    sequence_errors: int = 0
    write_stalled_ns: int = 0
    neighbour_frames: int = 0
    link_downs: int = 0
    carrier_changes: int = 1
    observed_bits: int = 0
    mended_bits: list[int] = field(default_factory=lambda: [0] * LANES)

    @property
    def sent_words(self) -> int:
        """RDMA traffic sent, in words of four bytes."""
        return self.sent_packets * DATA_FRAME_WORDS

    @property
    def received_words(self) -> int:
        """RDMA traffic received, in words of four bytes."""
        return self.received_packets * DATA_FRAME_WORDS


@dataclass(frozen=True, slots=True)
class Wish:
    """What the job wishes of a port during a span: share of time, and shares of line rate."""

    busy: float
    send: float
    receive: float


class Cable:
    """A port, the cable in it and its place at the switch, as they are after the last span."""

    def __init__(self, port: Port, dice: random.Random, uptime_ns: int) -> None:
        self.port = port
        self.up = True
        self.pcie_read_stall_percent = 0
        self.pcie_write_stall_percent = 0
        self.counters = PortCounters()
        self._dice = dice
        self._usual_marked = 10 ** dice.uniform(-5.0, -3.0)
        self._usual_pauses_per_second = 10 ** dice.uniform(-1.3, 0.5)
        self._bit_error_rate = 10 ** dice.gauss(-8.3, 0.5)
        self._rate_drift = Drift(dice, 20.0)
        self._mark_drift = Drift(dice, 30.0)
        self._optics_offset_ns = dice.randrange(OPTICS_PERIOD_NS)
        self._neighbour_offset_ns = dice.randrange(_LLDP_PERIOD_NS)
        self._packets_per_second = port.bytes_per_second / (DATA_FRAME_WORDS * 4)
        # A pause frame can stop the peer for this long; a NIC that goes on pausing sends the next
        # one at half of it.
        self._refresh_ns = _PAUSE_QUANTA_BITS / port.gigabits / 2
        self._unsampled_ns = uptime_ns
        self._work_since_boot(uptime_ns)

    @property
    def moved_bytes(self) -> tuple[int, int]:
        """RDMA traffic sent and received since driver load."""
        words = self.counters.sent_words, self.counters.received_words
        return words[0] * WORD_BYTES, words[1] * WORD_BYTES

    def reload(self) -> None:
        """Begin to count anew, as after a driver load."""
        self.counters = PortCounters()
        self._unsampled_ns = 0

    def advance(
        self,
        span: Span,
        wish: Wish,
        conditions: PortConditions,
        outage: Span | None,
    ) -> None:
        """Go on for a span, under conditions, and with the link down where it coincides with an outage."""
        up = 1.0 - (span.share_in(outage) if outage else 0.0)
        ripple = 1.0 + 0.03 * self._rate_drift.advance(span.seconds)
        send, receive = wish.send * ripple * up, wish.receive * ripple * up
        receive = max(receive, conditions.foreign_receive * up * (0.98 + 0.02 * ripple))
        paused = conditions.paused * wish.busy
        pausing = conditions.stuck + conditions.pausing * wish.busy
        send = min(send, (1.0 - paused) * _GOODPUT)
        receive = min(receive, (1.0 - pausing) * _GOODPUT)
        dropped = receive * conditions.unprotected
        if conditions.stuck or conditions.unprotected:
            receive *= 0.001
        self._transfer(span, send, receive, conditions)
        self._pause(span, wish.busy, (paused, pausing), conditions)
        self._lose(span, dropped, 1.0 - up)
        self._stall(span, wish.busy, conditions)
        if outage:
            self._break(span, outage)
        self._keep_watch(span, up)

    def _transfer(
        self, span: Span, send: float, receive: float, conditions: PortConditions
    ) -> None:
        """Packets, the congestion marks among them, and the notifications they cause."""
        counters, dice = self.counters, self._dice
        packets = self._packets_per_second * span.seconds
        sent, received = whole(send * packets, dice), whole(receive * packets, dice)
        counters.sent_packets += sent
        counters.received_packets += received
        counters.write_requests += whole(received / _WRITE_PACKETS, dice)
        drift = self._mark_drift.advance(span.seconds)
        usual = min(self._usual_marked * math.exp(0.8 * drift), 0.005)
        share = min(conditions.marked * math.exp(0.1 * drift) + usual, _MOST_MARKED)
        marked = whole(received * share, dice)
        counters.marked_packets += marked
        most = _SENDERS * _NOTIFICATIONS_PER_SECOND * span.seconds
        counters.notifications_sent += whole(min(marked * _NOTIFIED, most), dice)
        counters.notifications_handled += whole(sent * usual * _NOTIFIED, dice)

    def _pause(
        self,
        span: Span,
        busy: float,
        shares: tuple[float, float],
        conditions: PortConditions,
    ) -> None:
        """Pause frames and times: the usual few, and what the conditions cause."""
        counters, dice = self.counters, self._dice
        paused, pausing = shares
        usual = self._usual_pauses_per_second * span.seconds * busy
        extent = 1.0 if conditions.stuck else 0.6 if paused or pausing else 0.2
        frame_ns = extent * self._refresh_ns
        frames = pausing * span.length_ns / frame_ns
        frames += dice.expovariate(20.0) * usual
        sent = whole(frames, dice)
        frames = paused * span.length_ns / frame_ns
        frames += dice.expovariate(1.0) * usual
        received = whole(frames, dice)
        counters.pause_frames_sent += sent
        counters.pause_frames_received += received
        counters.pausing_ns += min(round(sent * frame_ns), span.length_ns)
        counters.paused_ns += min(round(received * frame_ns), span.length_ns)
        counters.buffer_alarms += whole(sent / 10, dice)
        counters.storm_warnings += conditions.storm_warnings
        counters.storm_errors += conditions.storm_errors

    def _lose(self, span: Span, dropped: float, down: float) -> None:
        """Losses while no pause protects the buffer, and retries towards a link that is down."""
        counters, dice = self.counters, self._dice
        lost = whole(dropped * self._packets_per_second * span.seconds, dice)
        counters.dropped_packets += lost
        counters.out_of_sequence += whole(lost / 8, dice)
        timeouts = whole(down * span.seconds * _RETRIES_PER_SECOND, dice)
        counters.ack_timeouts += timeouts
        counters.sequence_errors += 2 * timeouts

    def _stall(self, span: Span, busy: float, conditions: PortConditions) -> None:
        """Say how much of the time the card waited for PCIe; it never does without traffic."""
        read = abs(self._dice.gauss(0.0, 1.0)) * busy
        write = abs(self._dice.gauss(0.0, 1.0)) * busy
        write += conditions.pcie_write_stall_percent * busy * self._dice.uniform(0.9, 1.1)
        self.pcie_read_stall_percent = int(read)
        self.pcie_write_stall_percent = min(int(write), 100)
        if self.pcie_write_stall_percent > _STALLED_PERCENT:
            self.counters.write_stalled_ns += span.length_ns

    def _break(self, span: Span, outage: Span) -> None:
        """Take the link down and up again."""
        went_down, came_up = span.passes(outage.start_ns), span.passes(outage.end_ns)
        self.counters.link_downs += went_down
        self.counters.carrier_changes += went_down + came_up
        self.up = not outage.start_ns <= span.end_ns < outage.end_ns

    def _keep_watch(self, span: Span, up: float) -> None:
        """Neighbours say who they are, and the card samples its optics."""
        if self.up:
            frames = span.count_recurring(self._neighbour_offset_ns, _LLDP_PERIOD_NS)
            self.counters.neighbour_frames += frames
        self._unsampled_ns += round(up * span.length_ns)
        if span.count_recurring(self._optics_offset_ns, OPTICS_PERIOD_NS):
            self._sample_optics()

    def _sample_optics(self) -> None:
        # Line coding adds a sixteenth: 425 Gb/s on a 400 Gb/s link.
        bits = self._unsampled_ns * self.port.gigabits * 17 // 16
        self._unsampled_ns = 0
        self.counters.observed_bits += bits
        for lane in range(LANES):
            mean = bits * self._bit_error_rate / LANES
            mended = round(self._dice.gauss(mean, math.sqrt(mean)))
            self.counters.mended_bits[lane] += max(mended, 0)

    def _work_since_boot(self, uptime_ns: int) -> None:
        """Count what a port has counted that worked as usual since boot."""
        counters = self.counters
        uptime_seconds = uptime_ns // NS_PER_SECOND
        usual_rate = 0.34 if self.port.rail is not None else 0.01
        packets = int(usual_rate * self._packets_per_second * uptime_seconds)
        counters.sent_packets = packets
        counters.received_packets = packets - packets // 10_000
        counters.write_requests = self._dice.randrange(1 << 31)
        counters.marked_packets = int(packets * self._usual_marked)
        counters.notifications_sent = int(counters.marked_packets * _NOTIFIED)
        counters.notifications_handled = int(counters.marked_packets * _NOTIFIED)
        counters.pause_frames_received = int(self._usual_pauses_per_second * uptime_seconds)
        counters.pause_frames_sent = counters.pause_frames_received // 20
        mean_ns = round(self._refresh_ns * 0.2)
        counters.paused_ns = counters.pause_frames_received * mean_ns
        counters.pausing_ns = counters.pause_frames_sent * mean_ns
        counters.neighbour_frames = uptime_ns // _LLDP_PERIOD_NS
        self._sample_optics()
