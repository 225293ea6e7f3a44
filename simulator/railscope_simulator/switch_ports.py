"""Switches at the other ends of the cables of simulated nodes, and what their ports count.

The counters of a port are those of the NIC at the other end of its cable, seen from the switch: pause frames that the
NIC receives are those that the port sends, and the bytes that arrive are those that the NIC sends, except for
packets that the cable corrupts. A queue is in front of each port, one per priority: its length follows from
the packets that it marks, and from the time in which it reaches its limit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from railscope.timestamps import SECOND_NS
from railscope_simulator import (
    fabric,
    lldp_neighbours,
    node_hardware,
    node_model,
    port as port_model,
)
from railscope_simulator.spec import TimeSpan, round_randomly

MARKING_FROM_BYTES, MARKING_TO_BYTES, PAUSE_FROM_BYTES = 1 << 20, 2 << 20, 4 << 20
"""Length of a queue from which packets are marked, at which all excess is, and at which the switch sends pause."""
MARKED_AT_MOST = 0.12
"""Share of packets that a queue marks at its full excess."""
WATERMARK_PERIOD_NS = 120 * SECOND_NS
"""Period at which the switch clears its watermarks."""
_REACTION_SECONDS = 1.5e-6
"""Time from the pause frame of a switch until its neighbour stops: what arrives meanwhile needs headroom."""
_LANES_OF_A_PORT = 4
FRAME_BYTES = port_model.DATA_FRAME_WORDS * port_model.WORD_BYTES + port_model.CHECKSUM_BYTES
"""Bytes of a frame of RDMA on the wire."""


@dataclass(slots=True)
class QueueCounters:
    """Queue of one priority of a port, for packets that leave the switch."""

    packets: int = 0
    bytes: int = 0
    marked_packets: int = 0
    dropped_packets: int = 0
    occupancy_bytes: int = 0
    watermark_bytes: int = 0

    def add(self, packets: int, size_bytes: int) -> None:
        """Count packets that have left."""
        self.packets += packets
        self.bytes += size_bytes

    def fill(self, marked: float, full: float) -> None:
        """Set the length that results from the share of marked packets, and of time at the limit."""
        excess = min(marked / MARKED_AT_MOST, 1.0)
        peak = MARKING_FROM_BYTES + excess * (MARKING_TO_BYTES - MARKING_FROM_BYTES)
        self.occupancy_bytes = round(max(excess * peak, min(full, 1.0) * PAUSE_FROM_BYTES))
        reached = PAUSE_FROM_BYTES if full else round(peak) if marked else 0
        self.watermark_bytes = max(self.watermark_bytes, reached)


def _queues() -> list[QueueCounters]:
    return [QueueCounters() for _ in port_model.PRIORITIES]


@dataclass(slots=True)
class SwitchPortCounters:
    """Counters of a port; directions are those of the switch. Pauses are of the lossless priority."""

    received_bytes: int = 0
    received_packets: int = 0
    received_multicasts: int = 0
    received_errors: int = 0
    sent_multicasts: int = 0
    pauses_received: int = 0
    pauses_sent: int = 0
    paused_ns: int = 0
    """Time in which the neighbour paused the port."""
    headroom_watermark_bytes: int = 0
    queues: list[QueueCounters] = field(default_factory=_queues)

    @property
    def lossless(self) -> QueueCounters:
        """Queue of RDMA traffic."""
        return self.queues[port_model.LOSSLESS]

    def clear_watermarks(self) -> None:
        """Clear the watermarks, as the switch does periodically."""
        self.headroom_watermark_bytes = 0
        for queue in self.queues:
            queue.watermark_bytes = 0

    def receive_pauses(self, pauses: int, paused_ns: int) -> None:
        """Count pauses by the neighbour in a step."""
        self.pauses_received += pauses
        self.paused_ns += paused_ns

    def send_pauses(self, pauses: int, received_bytes: int, span: TimeSpan) -> None:
        """Count pauses that the switch has sent in a step, and the headroom for what it received meanwhile."""
        self.pauses_sent += pauses
        if pauses:
            needed = round(received_bytes / span.seconds * _REACTION_SECONDS) + FRAME_BYTES
            self.headroom_watermark_bytes = max(self.headroom_watermark_bytes, needed)


class LldpNeighbour(NamedTuple):
    """Identity of the neighbour of a port, as it announces itself by LLDP."""

    system_name: str
    chassis: str
    port: str
    """MAC address of a NIC, or name of the port of a switch."""
    port_description: str


@dataclass(slots=True)
class SwitchPort:
    """A port with its neighbour; `number` is its place, in ports of a NIC."""

    number: int
    alias: str
    description: str
    neighbour: LldpNeighbour
    megabits: int
    is_up: bool = True
    counters: SwitchPortCounters = field(default_factory=SwitchPortCounters)

    @property
    def name(self) -> str:
        """Name in SONiC: the number of its first lane."""
        return f"Ethernet{self.number * _LANES_OF_A_PORT}"

    def clear_watermarks(self, span: TimeSpan) -> None:
        """Clear the watermarks if a period of theirs ends in a span."""
        if span.count_recurring(0, WATERMARK_PERIOD_NS):
            self.counters.clear_watermarks()


@dataclass(slots=True)
class SimulatedSwitch:
    """A switch with its ports by name."""

    name: str
    chassis: str
    ports: dict[str, SwitchPort] = field(default_factory=dict)

    def add(self, port: SwitchPort) -> SwitchPort:
        """Add a port."""
        self.ports[port.name] = port
        return port


class FabricEffects(NamedTuple):
    """Effects of the fabric on a cable's switch port during a step, which the NIC does not count; shares.

    `corrupted`: of packets of the NIC, on the cable. `dropped`: of packets to the NIC, by the switch.
    `marked_elsewhere`: of the marked packets, those that other switches have marked. `full`: of the time, in which
    the queue to the NIC is at its limit.
    """

    corrupted: float = 0.0
    dropped: float = 0.0
    marked_elsewhere: float = 0.0
    full: float = 0.0


NO_EFFECTS = FabricEffects()


class _NicCounts(NamedTuple):
    """Counters of a NIC that a switch port counts as well."""

    traffic: NDArray[np.int64]
    """Values of PriorityTraffic, shape (priorities, values)."""
    events: NDArray[np.int64]

    @classmethod
    def from_counters(cls, counters: port_model.PortCounters) -> _NicCounts:
        """Return the present counts."""
        events = [
            counters.pause_frames_sent,
            counters.pause_frames_received,
            counters.pausing_ns,
            counters.marked_packets,
            counters.checksum_errors,
            counters.neighbour_frames,
        ]
        return cls(np.array(port_model.by_priority(counters)), np.array(events))


class NicCable:
    """A switch port, and the cable of a NIC from which its counters follow."""

    def __init__(self, cable: fabric.Cable, port: SwitchPort, rng: random.Random) -> None:
        self.port, self.rail = port, cable.port.rail
        self._cable, self._rng = cable, rng
        self._counted, self._before = (
            cable.counters,
            _NicCounts.from_counters(port_model.PortCounters()),
        )
        self.advance(TimeSpan(-SECOND_NS, 0))  # the work since boot
        port.counters.clear_watermarks()

    def advance(self, span: TimeSpan, effects: FabricEffects = NO_EFFECTS) -> None:
        """Count what the NIC has counted since the last call."""
        cable = self._cable
        self.port.is_up = cable.up and not cable.removed
        self.port.megabits = cable.gigabits * 1000
        self.port.clear_watermarks(span)
        # First what the old counters had counted until then: a reload replaces the object.
        now = _NicCounts.from_counters(self._counted)
        traffic, events = now.traffic - self._before.traffic, now.events - self._before.events
        if cable.counters is not self._counted:  # the driver was loaded again
            self._counted = cable.counters
            now = _NicCounts.from_counters(self._counted)
            traffic, events = traffic + now.traffic, events + now.events
        self._before = now
        self._count(span, traffic.tolist(), events.tolist(), effects)

    def _count(
        self, span: TimeSpan, traffic: list[list[int]], events: list[int], effects: FabricEffects
    ) -> None:
        counters, rng = self.port.counters, self._rng
        pauses_received, pauses_sent, paused_ns, marked, unreadable, neighbour_frames = events
        by_priority = [port_model.PriorityTraffic(*row) for row in traffic]
        counters.received_multicasts += neighbour_frames
        counters.sent_multicasts += neighbour_frames
        counters.receive_pauses(pauses_received, paused_ns)
        sent_bytes = sum(each.sent_bytes for each in by_priority)
        sent_packets = sum(each.sent_packets for each in by_priority)
        corrupted = min(round_randomly(sent_packets * effects.corrupted, rng), sent_packets)
        counters.received_errors += corrupted
        counters.received_packets += sent_packets - corrupted
        counters.received_bytes += sent_bytes - corrupted * FRAME_BYTES
        counters.send_pauses(pauses_sent, sent_bytes, span)
        # The switch assigns priorities by DSCP, also to the packets of a NIC that does not.
        trusts = self._cable.settings.trust == "dscp"
        for priority, (queue, of_nic) in enumerate(zip(counters.queues, by_priority, strict=True)):
            packets, size_bytes = of_nic.received_packets, of_nic.received_bytes
            if priority == port_model.BEST_EFFORT and not trusts:
                of_neighbours = neighbour_frames * _NEIGHBOUR_BYTES
                counters.lossless.add(packets - neighbour_frames, size_bytes - of_neighbours)
                packets, size_bytes = neighbour_frames, of_neighbours
            queue.add(packets, size_bytes)
        arrived = sum(each.received_packets for each in by_priority)
        queue = counters.lossless
        # Packets that the NIC received with a wrong checksum left the switch intact.
        queue.add(unreadable, unreadable * FRAME_BYTES)
        here = round_randomly(marked * (1.0 - effects.marked_elsewhere), rng)
        queue.marked_packets += here
        queue.dropped_packets += round_randomly(arrived * effects.dropped, rng)
        queue.fill(
            here / arrived if arrived else 0.0, max(effects.full, paused_ns / span.length_ns)
        )


_NEIGHBOUR_BYTES = port_model.NEIGHBOUR_FRAME_BYTES + port_model.CHECKSUM_BYTES


class FlowStep(NamedTuple):
    """Traffic of one direction of a link between switches during a step.

    `paused` is the share of time in which the receiving switch pauses the sending one; `marked` and `full` are of the
    sending queue: shares of its packets, and of the time.
    """

    packets: int
    paused: float
    marked: float
    full: float


def transfer(
    sender: SwitchPort, receiver: SwitchPort, step: FlowStep, span: TimeSpan, frame_ns: float
) -> None:
    """Count one direction of a link between switches at both of its ends; a pause frame pauses for `frame_ns`."""
    sent, size_bytes = sender.counters, step.packets * FRAME_BYTES
    receiver.counters.received_packets += step.packets
    receiver.counters.received_bytes += size_bytes
    pauses = round(step.paused * span.length_ns / frame_ns)
    receiver.counters.send_pauses(pauses, size_bytes, span)
    sent.receive_pauses(pauses, round(step.paused * span.length_ns))
    sent.lossless.add(step.packets, size_bytes)
    sent.lossless.marked_packets += round(step.packets * step.marked)
    sent.lossless.fill(step.marked, max(step.full, step.paused))


class LeafSwitches:
    """Leaf switches of nodes, by name, as the nodes receive them by LLDP."""

    def __init__(self, nodes: Iterable[node_model.NodeModel]) -> None:
        self.switches: dict[str, SimulatedSwitch] = {}
        self._cables: list[list[NicCable]] = []
        for node in nodes:
            neighbours = lldp_neighbours.neighbours_of(node)
            self._cables.append(
                [
                    NicCable(
                        cable,
                        self._add_port(node, cable.port, neighbours[cable.port.interface]),
                        node.spec.stream(f"switch port of {cable.port.interface}"),
                    )
                    for cable in node.cables
                ]
            )

    def _add_port(
        self,
        node: node_model.NodeModel,
        nic: node_hardware.SimulatedPort,
        leaf: lldp_neighbours.LeafPort,
    ) -> SwitchPort:
        switch = self.switches.setdefault(leaf.switch, SimulatedSwitch(leaf.switch, leaf.chassis))
        chassis = node.machine.ports[0].mac
        neighbour = LldpNeighbour(node.spec.node, chassis, nic.mac, nic.interface)
        about = f"to {nic.interface}"
        return switch.add(SwitchPort(leaf.place, leaf.alias, about, neighbour, nic.gigabits * 1000))

    def advance(
        self,
        span: TimeSpan,
        effects: Callable[[int, int | None], FabricEffects] = lambda _node, _rail: NO_EFFECTS,
    ) -> None:
        """Count what the NICs have counted since the last call; `effects` are those of a node and a rail."""
        for number, cables in enumerate(self._cables):
            for cable in cables:
                cable.advance(span, effects(number, cable.rail))
