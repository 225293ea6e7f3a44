"""The switch queue that causes what hosts see: the one that stands out among those of ports with the same role.

A port has the role "host" if a NIC is linked to it, and "uplink" if it received LLDP from a device without an agent. A queue
stands out if a quantity exceeds that of its peers, and its own past. The queue of a priority has its number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from railscope.timestamps import SECOND_NS
from railscope_collector.diagnosis import findings
from railscope_collector.diagnosis.slot_sums import Positions, or_zero
from railscope_collector.diagnosis.switch_counters import (
    KEPT_NS,
    CounterTrack,
    SwitchQueue,
    TrackedSender,
)
from railscope_collector.diagnosis.switch_evidence import (
    MAX_NAMED,
    SwitchEvidence,
    SwitchPort,
    not_provided,
    short_name,
)

HOST, UPLINK = "host", "uplink"
MIN_PEERS, FACTOR, RISE = 3, 4.0, 3.0
"""Ports with the same role; ratios of a queue that stands out to its peers, and to its own past."""
BEFORE_NS, PAST_NS = 10 * SECOND_NS, 60 * SECOND_NS
"""Times before the first finding from which on samples show the fault, and up to which they show the past."""
MAX_LOCALISED = 32
"""Findings of one evaluation that are localised."""
_REMEMBERED_NS = 600 * SECOND_NS

MEASURES: Mapping[str, float] = MappingProxyType({
    "marks": 1.0, "drops": 0.1, "wred_drops": 0.1, "buffer_drops": 0.1, "pauses_received": 10.0, "occupancy": 100_000.0,
})  # fmt: skip
"""Least value of a quantity by which a queue may stand out: per second; of the occupancy in bytes."""
_LOSSES = ("drops", "wred_drops", "buffer_drops")
LOCALISED: Mapping[str, tuple[Sequence[str], Sequence[str]]] = MappingProxyType({
    "leaf_loss": ((UPLINK, HOST), _LOSSES),
    "paused_unlocalised": ((UPLINK, HOST), tuple(MEASURES)),
})  # fmt: skip
"""Classes whose cause is a leaf: roles of the ports that may be the cause, and the quantities that show it, the clearest first."""


class _QueueValue(NamedTuple):
    """A value of a queue now, and before."""

    queue: SwitchQueue
    now: float
    past: float


@dataclass(slots=True)
class _Fabric:
    """Roles of the ports of all switches, and the switches at the other end of their uplinks."""

    roles: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    facing: dict[SwitchPort, str] = field(default_factory=dict)
    ports_facing: dict[str, list[SwitchPort]] = field(default_factory=lambda: defaultdict(list))
    leaves: set[str] = field(default_factory=set)
    """Switches with a NIC at some port."""

    def is_other_end(self, queue: SwitchQueue, queues: Iterable[SwitchQueue]) -> bool:
        """True for a queue of a spine, if one of the leaf that it faces, toward this spine, is among the queues."""
        leaf = self.facing.get(queue[:2])
        return leaf in self.leaves and any(
            leaf == other.switch and self.facing.get(other[:2]) == queue.switch for other in queues
        )


def _find_fabric(view: findings.DiagnosisView, evidence: SwitchEvidence) -> _Fabric:
    found, senders = _Fabric(), evidence.readings.senders
    nodes = {short_name(name) for name in view.devices.nodes}
    switches = evidence.switch_names()
    for name, sender in senders.items():
        for port, neighbour in sender.neighbours.items():
            short = short_name(neighbour)
            if short not in nodes:
                found.roles[name][port] = UPLINK
                if other := switches.get(short):
                    found.facing[name, port] = other
                    found.ports_facing[other].append((name, port))
    for name, port in evidence.links:
        found.roles[name][port] = HOST
        found.leaves.add(name)
    return found


@dataclass(slots=True)
class QueueLocaliser:
    """Names the queue of findings about leaves, from their first evaluation on."""

    evidence: SwitchEvidence
    _spans: dict[tuple[str, findings.Cause | str], tuple[int, int]] = field(default_factory=dict)
    """First and last evaluation of each finding."""
    _fabric: _Fabric | None = None
    """Roles of all ports, determined once for an evaluation that needs them."""

    def refine(
        self, view: findings.DiagnosisView, found: Iterable[findings.Finding]
    ) -> list[findings.Finding]:
        """Return findings with the queues that switches show; the same ones without switches."""
        self._fabric = None
        refined, count = [], 0
        for finding in found:
            is_leaf = finding.incident_class in LOCALISED and finding.cause.kind == "leaf"
            if finding.queue:
                refined.append(finding)
            elif self.evidence.is_used and is_leaf and count < MAX_LOCALISED:
                count += 1
                refined.append(self._localise(view, finding))
            elif self.evidence.is_used and finding.incident_class == "incast_receiver":
                refined.append(self._confirm_incast(view, finding))
            else:
                refined.append(finding)
        oldest_ns = view.timestamp_ns - _REMEMBERED_NS
        self._spans = {key: span for key, span in self._spans.items() if span[1] > oldest_ns}
        return refined

    def _localise(
        self, view: findings.DiagnosisView, finding: findings.Finding
    ) -> findings.Finding:
        key = finding.incident_class, finding.subject or finding.cause
        first_ns, _ = self._spans.get(key, (view.timestamp_ns, 0))
        self._spans[key] = first_ns, view.timestamp_ns
        leaves = [finding.cause.position, *finding.alternatives]
        switches = {leaf: self._switches_of(view, leaf) for leaf in leaves}
        names = sorted(set().union(*switches.values()))
        roles, measures = LOCALISED[finding.incident_class]
        if not all(switches.values()) or not all(
            self.evidence.is_fresh(name, view.timestamp_ns) for name in names
        ):
            return finding
        found = self._standing_out(view, names, roles, measures, first_ns)
        fabric, origins = self._fabric or _Fabric(), _origins(found)
        queues = [queue for queue in origins if not fabric.is_other_end(queue, origins)]
        if len(queues) != 1:
            senders = self.evidence.readings.senders
            lacking = (name for name in names if senders[name].lacks(measures[0]))
            missing = tuple(not_provided(f"queue_{measures[0]}", name) for name in lacking)
            return replace(finding, evidence=finding.evidence + missing[:MAX_NAMED])
        queue = queues[0]
        leaf_switch = queue.switch if queue.switch in names else fabric.facing[queue[:2]]
        leaf = next(leaf for leaf in leaves if leaf_switch in switches[leaf])
        return replace(
            finding,
            cause=findings.Cause("leaf", leaf, view.groups.leaf_names[leaf]),
            subject=finding.subject or finding.cause,
            alternatives=(),
            evidence=finding.evidence + tuple(found[queue]),
            queue=queue,
        )

    def _confirm_incast(
        self, view: findings.DiagnosisView, finding: findings.Finding
    ) -> findings.Finding:
        """Return an incast with the queue of the receiver's switch port, if that stands out now."""
        port = self.evidence.port_of(view, finding.cause.position)
        if port is None or not self.evidence.is_fresh(port[0], view.timestamp_ns):
            return finding
        first_ns = view.timestamp_ns - PAST_NS
        found = self._standing_out(view, [port[0]], (HOST,), ("marks", "occupancy"), first_ns)
        rows = (each for queue, rows in found.items() if queue[:2] == port for each in rows)
        of_port = tuple(dict.fromkeys(rows))
        if not of_port:
            return finding
        return replace(finding, evidence=(*finding.evidence, *of_port), is_confirmed=True)

    def _switches_of(self, view: findings.DiagnosisView, leaf: int) -> set[str]:
        """Return the switches that the NICs of a leaf are linked to."""
        ports = (self.evidence.port_of(view, nic) for nic in view.groups.leaves[leaf].tolist())
        return {port[0] for port in ports if port is not None}

    def _standing_out(
        self,
        view: findings.DiagnosisView,
        leaves: Sequence[str],
        allowed: Sequence[str],
        measures: Iterable[str],
        first_ns: int,
    ) -> dict[SwitchQueue, list[findings.FindingEvidence]]:
        """Return the queues that stand out, with their evidence, of leaf switches and of spines at their uplinks.

        A quantity counts if all of the leaf switches report it.
        """
        fabric = self._fabric = self._fabric or _find_fabric(view, self.evidence)
        roles = {name: fabric.roles[name] for name in leaves}
        for spine, port in (each for name in leaves for each in fabric.ports_facing[name]):
            if spine not in leaves and self.evidence.is_fresh(spine, view.timestamp_ns):
                roles.setdefault(spine, {})[port] = UPLINK
        found: dict[SwitchQueue, list[findings.FindingEvidence]] = defaultdict(list)
        slots = findings.slots_of(view.timestamp_ns - first_ns + BEFORE_NS)
        for measure in measures:
            rows = {
                name: _values(name, self.evidence.readings.senders[name], measure, first_ns)
                for name in roles
            }
            if any(rows[name] is None for name in leaves):
                continue
            for role in allowed:
                peers = sum(list(each.values()).count(role) for each in roles.values())
                values = [
                    value
                    for name, of_switch in rows.items()
                    for value in of_switch or ()
                    if roles[name].get(value.queue.port) == role
                ]
                for value, usual in _outliers(values, peers, MEASURES[measure]):
                    found[value.queue].append(
                        findings.FindingEvidence(
                            f"queue_{measure}",
                            value.now,
                            usual,
                            f"median of {peers - 1} other {role} ports",
                            value.queue.place,
                            slots=slots,
                        )
                    )
        return found


def _origins(found: Mapping[SwitchQueue, Sequence[findings.FindingEvidence]]) -> list[SwitchQueue]:
    """Return the queues that the next switch or NIC does not pause: the others wait for one of these, if there is any."""
    origins = [
        queue
        for queue, evidence in found.items()
        if all(each.signal != "queue_pauses_received" for each in evidence)
    ]
    return origins or list(found)


def _values(
    switch: str, sender: TrackedSender, measure: str, first_ns: int
) -> list[_QueueValue] | None:
    """Return the values of the queues that are above 0 since the first finding; None if they are unknown then or before."""
    for track in sender.tracks():
        positions = track.positions_of(measure)
        if len(positions):
            return _track_values(switch, track, positions, measure, first_ns)
    return None


def _track_values(
    switch: str, track: CounterTrack, positions: Positions, measure: str, first_ns: int
) -> list[_QueueValue] | None:
    now, seconds = track.within(first_ns - BEFORE_NS, track.newest_ns)
    past, past_seconds = track.within(first_ns - KEPT_NS, first_ns - PAST_NS)
    if not seconds or not past_seconds:
        return None
    if measure != "occupancy":
        now, past = now / seconds, past / past_seconds
    labels, found = track.columns.labels, []
    for position in positions[or_zero(now[positions]) > 0].tolist():
        label = labels[position]
        queue = SwitchQueue(switch, label.port, label.number)
        found.append(_QueueValue(queue, float(now[position]), float(past[position])))
    return found


def _outliers(
    values: Iterable[_QueueValue], peers: int, minimum: float
) -> Iterator[tuple[_QueueValue, float]]:
    """Yield the values that exceed those of the other ports for the same queue, and their own past; with the median."""
    if peers < MIN_PEERS:
        return
    by_number: dict[str, list[_QueueValue]] = defaultdict(list)
    for value in values:
        by_number[value.queue.queue].append(value)
    for same in by_number.values():
        amounts = np.zeros(max(peers, len(same)))
        amounts[: len(same)] = [value.now for value in same]
        for number, value in enumerate(same):
            usual = float(np.median(np.delete(amounts, number)))
            if value.now > max(minimum, FACTOR * usual) and value.now > RISE * value.past:
                yield value, usual
