"""Physics of a port: its traffic, and flow control between it and the switch.

All counters of all views derive from the few counters of `PortCounters`, so that they agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from railscope.timestamps import SECOND_NS
from railscope_simulator import device_models, node_hardware, port as port_model, port_signal
from railscope_simulator.conditions import PortConditions
from railscope_simulator.spec import DriftNoise, NodeSpec, TimeSpan, round_randomly, seconds_to_ns

_GOODPUT = 0.97
_WRITE_PACKETS = 256
_PAUSE_QUANTA_BITS = 65535 * 512
_LONG_PAUSE, _SHORT_PAUSE = 0.6, 0.2
_MAX_MARKED, _NOTIFIED = 0.95, 0.8
_NOTIFICATIONS_PER_SECOND = 20_000  # one per flow every 50 microseconds
_SENDERS = 32
_STALLED_PERCENT = 30
_MAX_STALL_PERCENT = 95.0
_RETRIES_PER_SECOND = 4.0
_LLDP_PERIOD_NS = seconds_to_ns(30)


@dataclass(frozen=True, slots=True)
class TrafficDemand:
    """Traffic that the job requests from a port during a span: share of time, and shares of line rate."""

    busy: float
    send: float
    receive: float


def refresh_ns(gigabits: float) -> float:
    """Return the time after which a port that continues to pause sends the next frame: half of what one can pause."""
    return _PAUSE_QUANTA_BITS / gigabits / 2


def pause_frame_ns(gigabits: float) -> float:
    """Return the time that a frame of lasting congestion pauses a port of this speed."""
    return _LONG_PAUSE * refresh_ns(gigabits)


class Cable:
    """A port with its cable and switch port, in their state after the last span."""

    def __init__(self, port: node_hardware.SimulatedPort, spec: NodeSpec, uptime_ns: int) -> None:
        rng = spec.stream(f"port {port.rdma_device}")
        self.port = port
        self.up = True
        self.removed = False
        self.lanes = device_models.LANES
        self.pcie_halved = ""
        self.settings: port_model.PortSettings = port_model.USUAL
        self.pcie_read_stall_percent = 0
        self.pcie_write_stall_percent = 0
        self.counters = port_model.PortCounters()
        self.port_values: dict[str, int] = {}
        """Values that `driver_counters` has derived from the present state; none before it does."""
        self._rng = rng
        self._usual_marked = 10 ** rng.uniform(-5.0, -3.0)
        self._usual_pauses_per_second = 10 ** rng.uniform(-1.3, 0.5)
        bit_error_rate = 10 ** rng.gauss(-8.3, 0.5)
        self._rate_drift = DriftNoise(rng, 20.0)
        self._mark_drift = DriftNoise(rng, 30.0)
        # A stream of its own: errors of the signal do not change the other values of the port.
        error_rng = spec.stream(f"signal {port.rdma_device}")
        self.optics = port_signal.PortOptics(error_rng, bit_error_rate)
        self._signal = port_signal.PortSignal(
            gigabits=port.gigabits,
            bit_error_rate=bit_error_rate,
            optics=self.optics,
            rng=rng,
            error_rng=error_rng,
            first_sample_ns=rng.randrange(port_signal.SAMPLE_PERIOD_NS),
            up_ns=uptime_ns,
        )
        self._neighbour_offset_ns = rng.randrange(_LLDP_PERIOD_NS)
        self._loaded = 0.0
        self._packets_per_second = port.bytes_per_second / (port_model.DATA_FRAME_WORDS * 4)
        self._refresh_ns = refresh_ns(port.gigabits)
        self._add_work_since_boot(uptime_ns)

    @property
    def moved_bytes(self) -> tuple[int, int]:
        """RDMA traffic sent and received since driver load."""
        return self.counters.sent.data_bytes, self.counters.received.data_bytes

    @property
    def gigabits(self) -> int:
        """Speed of the link, on the lanes that are up."""
        return self.port.gigabits * self.lanes // device_models.LANES

    def reload(self) -> None:
        """Reset the counters, as after a driver load."""
        self.counters, self.port_values = port_model.PortCounters(), {}
        self._signal.reload()

    def advance(
        self,
        span: TimeSpan,
        demand: TrafficDemand,
        conditions: PortConditions,
        outages: Sequence[TimeSpan] = (),
    ) -> None:
        """Advance by a span, under conditions, and with the link down during outages.

        A removed NIC stays removed, and its state unchanged.
        """
        self.removed = self.removed or conditions.removed
        if self.removed:
            return
        self.port_values = {}
        self.settings, self.lanes = conditions.settings, conditions.lanes
        self.pcie_halved = conditions.pcie_halved
        self.counters.pcie_errors += conditions.pcie_errors
        up = 1.0 - sum(span.share_in(outage) for outage in outages)
        max_share = _GOODPUT * self.lanes / device_models.LANES
        ripple = 1.0 + 0.03 * self._rate_drift.advance(span.seconds)
        send, receive = demand.send * ripple * up, demand.receive * ripple * up
        # Traffic of others arrives whether or not the job exchanges.
        receive = max(receive, conditions.foreign_receive * up * (0.98 + 0.02 * ripple))
        excess = self._excess_ratio()
        paused = conditions.paused * demand.busy
        pausing = conditions.stuck + max(conditions.pausing, excess) * demand.busy
        send = min(send, (1.0 - paused) * max_share)
        receive = min(receive, (1.0 - pausing) * max_share)
        dropped = receive * (conditions.unprotected + conditions.lossy)
        if conditions.stuck or conditions.unprotected:
            receive *= 0.001
        self._loaded = receive
        self._transfer(span, send, receive, conditions)
        self._pause(span, demand.busy, (paused, pausing), conditions)
        self._count_losses(span, dropped, max(1.0 - up, conditions.unanswered))
        stall_percent = conditions.pcie_write_stall_percent + _MAX_STALL_PERCENT * excess
        self._stall(span, demand.busy, stall_percent)
        for outage in outages:
            self._count_outage(span, outage)
        self.up = not any(outage.start_ns <= span.end_ns < outage.end_ns for outage in outages)
        self.optics.advance(span, demand.busy, conditions.margin_lost)
        self._receive_and_sample(span, up)

    def _excess_ratio(self) -> float:
        """Share of the line rate that exceeds PCIe bandwidth."""
        if not self.pcie_halved:
            return 0.0
        pcie_share = self.port.nic.halved_pcie_bytes_per_second / self.port.bytes_per_second
        return max(1.0 - pcie_share, 0.0)

    @property
    def _frame_words(self) -> int:
        small = self.settings.mtu_bytes <= port_model.SMALL_MTU_BYTES
        return port_model.SMALL_FRAME_WORDS if small else port_model.DATA_FRAME_WORDS

    @property
    def _frames_per_second(self) -> float:
        """Frames per second of RDMA traffic that fill the link at its full speed."""
        return self._packets_per_second * (port_model.DATA_FRAME_WORDS / self._frame_words)

    def _transfer(
        self, span: TimeSpan, send: float, receive: float, conditions: PortConditions
    ) -> None:
        """Count packets, those with congestion marks, and the resulting notifications."""
        counters, rng = self.counters, self._rng
        packets = self._frames_per_second * span.seconds
        sent, received = (
            round_randomly(send * packets, rng),
            round_randomly(receive * packets, rng),
        )
        for flow, misprioritized, count, share in (
            (counters.sent, counters.misprioritized_sent, sent, conditions.misprioritized_sent),
            (
                counters.received,
                counters.misprioritized_received,
                received,
                conditions.misprioritized_received,
            ),
        ):
            self._count(flow, misprioritized, count)
            if share and self.settings.trust == "dscp":
                misprioritized.add(round_randomly(count * share, rng), self._frame_words)
        counters.write_requests += round_randomly(received / _WRITE_PACKETS, rng)
        drift = self._mark_drift.advance(span.seconds)
        usual = min(self._usual_marked * math.exp(0.8 * drift), 0.005) * conditions.marking
        share = min(conditions.marked * math.exp(0.1 * drift) + usual, _MAX_MARKED)
        marked = round_randomly(received * share, rng)
        counters.marked_packets += marked
        # The NIC limits notifications per flow, however many packets are marked.
        max_notifications = _SENDERS * _NOTIFICATIONS_PER_SECOND * span.seconds
        notifications = round_randomly(min(marked * _NOTIFIED, max_notifications), rng)
        handled = round_randomly(sent * (usual + conditions.notified) * _NOTIFIED, rng)
        if self.settings.notifying:
            counters.notifications_sent += notifications
            ignored = round(handled * conditions.ignored)
            counters.notifications_handled += handled - ignored
            counters.notifications_ignored += ignored
        if conditions.lost_received:
            counters.out_of_sequence += round_randomly(received * conditions.lost_received, rng)
        if conditions.lost_sent:
            counters.sequence_errors += round_randomly(sent * conditions.lost_sent, rng)
        if conditions.retransmitted:
            repeated = round_randomly(sent * conditions.retransmitted, rng)
            counters.adaptive_retransmissions += repeated

    def _count(
        self, flow: port_model.TrafficFlow, misprioritized: port_model.TrafficFlow, packets: int
    ) -> None:
        """Count RDMA packets in the priority that the port assigns to them."""
        flow.add(packets, self._frame_words)
        if self.settings.trust != "dscp":
            misprioritized.add(packets, self._frame_words)

    def _pause(
        self, span: TimeSpan, busy: float, shares: tuple[float, float], conditions: PortConditions
    ) -> None:
        """Count pause frames and times: the usual few, and those that the conditions cause."""
        counters, rng = self.counters, self._rng
        paused, pausing = shares
        usual = self._usual_pauses_per_second * span.seconds * busy
        extent = 1.0 if conditions.stuck else _LONG_PAUSE if paused or pausing else _SHORT_PAUSE
        frame_ns = extent * self._refresh_ns * device_models.LANES / self.lanes
        frames = pausing * span.length_ns / frame_ns
        frames += rng.expovariate(20.0) * usual
        sent = round_randomly(frames, rng)
        frames = paused * span.length_ns / frame_ns
        frames += rng.expovariate(1.0) * usual * conditions.switch_pauses
        received = round_randomly(frames, rng)
        if not self.settings.is_protected:
            return
        counters.pause_frames_sent += sent
        counters.pause_frames_received += received
        # A random number of frames may stand for more time than the span has.
        counters.pausing_ns += min(round(sent * frame_ns), span.length_ns)
        counters.paused_ns += min(round(received * frame_ns), span.length_ns)
        counters.buffer_alarms += round_randomly(sent / 10, rng)
        counters.storm_warnings += conditions.storm_warnings
        counters.storm_errors += conditions.storm_errors

    def _count_losses(self, span: TimeSpan, dropped: float, down: float) -> None:
        """Count losses while the buffer overflows, and retries while the link or the receiver is down."""
        counters, rng = self.counters, self._rng
        lost = round_randomly(dropped * self._frames_per_second * span.seconds, rng)
        self._count(counters.dropped, counters.misprioritized_dropped, lost)
        counters.out_of_sequence += round_randomly(lost / 8, rng)
        timeouts = round_randomly(down * span.seconds * _RETRIES_PER_SECOND, rng)
        counters.ack_timeouts += timeouts
        counters.sequence_errors += 2 * timeouts

    def _stall(self, span: TimeSpan, busy: float, stall_percent: float) -> None:
        """Set the share of time in which the NIC waited for PCIe; it is 0 without traffic."""
        read = abs(self._rng.gauss(0.0, 1.0)) * busy
        write = abs(self._rng.gauss(0.0, 1.0)) * busy
        write += stall_percent * busy * self._rng.uniform(0.9, 1.1)
        self.pcie_read_stall_percent = int(read)
        self.pcie_write_stall_percent = min(int(write), 100)
        if self.pcie_write_stall_percent > _STALLED_PERCENT:
            self.counters.write_stalled_ns += span.length_ns

    def _count_outage(self, span: TimeSpan, outage: TimeSpan) -> None:
        """Take the link down and up again."""
        went_down, came_up = span.passes(outage.start_ns), span.passes(outage.end_ns)
        self.counters.link_downs += went_down
        self.counters.carrier_changes += went_down + came_up

    def _receive_and_sample(self, span: TimeSpan, up: float) -> None:
        """Receive LLDP frames of neighbours, and sample the optics."""
        if self.up:
            frames = span.count_recurring(self._neighbour_offset_ns, _LLDP_PERIOD_NS)
            self.counters.neighbour_frames += frames
        self._signal.advance(round(up * span.length_ns), self.lanes)
        if self._signal.due(span):
            self._signal.sample(self.counters, self._loaded)

    def _add_work_since_boot(self, uptime_ns: int) -> None:
        """Set the counters of a port that has been under normal load since boot."""
        counters = self.counters
        uptime_seconds = uptime_ns // SECOND_NS
        usual_rate = 0.34 if self.port.rail is not None else 0.01
        packets = int(usual_rate * self._packets_per_second * uptime_seconds)
        counters.sent.add(packets, port_model.DATA_FRAME_WORDS)
        counters.received.add(packets - packets // 10_000, port_model.DATA_FRAME_WORDS)
        counters.write_requests = self._rng.randrange(1 << 31)
        counters.marked_packets = int(packets * self._usual_marked)
        counters.notifications_sent = int(counters.marked_packets * _NOTIFIED)
        counters.notifications_handled = int(counters.marked_packets * _NOTIFIED)
        counters.pause_frames_received = int(self._usual_pauses_per_second * uptime_seconds)
        counters.pause_frames_sent = counters.pause_frames_received // 20
        mean_ns = round(self._refresh_ns * _SHORT_PAUSE)
        counters.paused_ns = counters.pause_frames_received * mean_ns
        counters.pausing_ns = counters.pause_frames_sent * mean_ns
        counters.neighbour_frames = uptime_ns // _LLDP_PERIOD_NS
        self._signal.sample(counters, 0.0)
