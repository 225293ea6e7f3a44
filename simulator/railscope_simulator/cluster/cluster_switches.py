"""Leaf and spine switches of a simulated cluster, whose counters follow from its model.

A leaf has a port for each NIC, and one for all of its uplinks together; the spines of a rail are one switch, with a port
for each leaf.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from railscope_simulator import (
    fabric,
    lldp_neighbours,
    port as port_model,
    sonic_answers,
    switch_ports,
)
from railscope_simulator.cluster.cluster_model import ClusterModel
from railscope_simulator.spec import TimeSpan

_UPLINK_PLACE = 64
"""Number of the first uplink port of a leaf, after those of its NICs."""


class _Uplink(NamedTuple):
    """Ports at both ends of the uplinks of a leaf."""

    pod: int
    rail: int
    leaf: switch_ports.SwitchPort
    spine: switch_ports.SwitchPort


class ClusterSwitches:
    """Switches of a cluster by name, as of its last step that was counted. Thread-safe."""

    def __init__(self, model: ClusterModel) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._leaves = switch_ports.LeafSwitches(model.nodes)
        self.switches = self._leaves.switches
        ports = model.nodes[0].machine.ports
        self._gigabits = [port.gigabits for port in ports if port.rail is not None]
        self._uplinks = [
            self._add_uplink(pod, rail)
            for pod in range(model.topology.pods if model.topology.pods > 1 else 0)
            for rail in range(model.topology.rails)
        ]

    def _add_uplink(self, pod: int, rail: int) -> _Uplink:
        """Connect a leaf with the spine of its rail."""
        leaf = self.switches[lldp_neighbours.leaf_name(pod, rail)]
        name = f"spine-{rail + 1}"
        chassis = f"9c:05:91:ff:{rail:02x}:00"
        spine = self.switches.setdefault(name, switch_ports.SimulatedSwitch(name, chassis))
        ends = [
            (leaf, _UPLINK_PLACE, f"Ethernet{_UPLINK_PLACE // 2 + 1}/1"),
            (spine, 2 * pod, f"Ethernet{pod + 1}/1"),
        ]
        ports = [
            switch.add(
                switch_ports.SwitchPort(
                    place,
                    alias,
                    f"to {other.name}",
                    switch_ports.LldpNeighbour(
                        other.name, other.chassis, other_alias, f"to {switch.name}"
                    ),
                    0,
                )
            )
            for (switch, place, alias), (other, _, other_alias) in (ends, ends[::-1])
        ]
        return _Uplink(pod, rail, *ports)

    def find_answer(
        self, switch: str, path: sonic_answers.TablePath
    ) -> Mapping[str, object] | None:
        """Return the table of a switch at a path, or None if it does not have it. Blocking."""
        with self._lock:
            return sonic_answers.find_answer(self.switches[switch], path)

    def answers(self) -> dict[str, sonic_answers.FindAnswer]:
        """Return the function that answers for each switch."""
        return {name: partial(self.find_answer, name) for name in self.switches}

    def count(self, span: TimeSpan) -> None:
        """Count the last step of the model."""
        with self._lock:
            self._leaves.advance(span, self._effects)
            for uplink in self._uplinks:
                self._count_uplink(span, uplink)

    def _effects(self, node: int, rail: int | None) -> switch_ports.FabricEffects:
        """Return the effects on the port of a NIC; storage is not part of the fabric's model."""
        if rail is None:
            return switch_ports.NO_EFFECTS
        at, model = (node, rail), self._model
        traffic, queues = model.traffic, model.queues
        busy, marked = float(traffic.busy[at]), float(traffic.marked[at])
        return switch_ports.FabricEffects(
            corrupted=float(model.conditions.fabric.leaks[at]),
            dropped=float(queues.lost[at]) / busy if busy else 0.0,
            marked_elsewhere=1.0 - float(queues.marked[at]) / marked if marked else 0.0,
            full=float(queues.full[at]),
        )

    def _count_uplink(self, span: TimeSpan, uplink: _Uplink) -> None:
        model, at = self._model, (uplink.pod, uplink.rail)
        gigabits, queues = self._gigabits[uplink.rail], model.queues
        state = model.conditions.fabric
        for port, capacity in (uplink.leaf, state.up), (uplink.spine, state.down):
            port.megabits = round(float(capacity[at]) * gigabits * 1000)
            port.is_up = port.megabits > 0
            port.clear_watermarks(span)
        per_pod = model.topology.nodes_per_pod
        nics = slice(uplink.pod * per_pod, (uplink.pod + 1) * per_pod), uplink.rail
        line_packets = gigabits * 125_000_000 * span.seconds / _FRAME_BYTES
        frame_ns = fabric.pause_frame_ns(gigabits)
        # Shares of a port are of the time in which it has traffic; without any, the numerators are 0 as well.
        busy = float(model.traffic.busy[nics].max()) or 1.0
        for sender, receiver, sent, paused, marked, full in (
            (
                uplink.leaf,
                uplink.spine,
                queues.remote_sent,
                queues.up_paused,
                queues.up_marked,
                queues.up_full,
            ),
            (
                uplink.spine,
                uplink.leaf,
                queues.remote_received,
                queues.down_paused,
                queues.down_marked,
                queues.down_full,
            ),
        ):
            packets = round(float(np.sum(sent[nics])) * line_packets)
            step = switch_ports.FlowStep(
                packets, float(paused[at]), float(marked[at]) / busy, float(full[at])
            )
            switch_ports.transfer(sender, receiver, step, span, frame_ns)


_FRAME_BYTES = port_model.DATA_FRAME_WORDS * port_model.WORD_BYTES
