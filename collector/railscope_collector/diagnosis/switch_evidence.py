"""Findings of hosts with the facts of switches: the counts of the other end of a link, and the queue that is the cause.

It changes no class. A queue stands out if a quantity exceeds that of the ports with the same role, and its own past: a port has the
role "host" if a NIC is linked to it, and "uplink" if it received LLDP from a device without an agent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from railscope_collector.diagnosis.devices import SwitchQueue
from railscope_collector.diagnosis.findings import Cause, Evidence, Finding, FindingEvidence
from railscope_collector.diagnosis.slot_sums import Floats, or_zero
from railscope_collector.diagnosis.switch_fabric import (
    MAX_NAMED,
    MIN_FRAMES,
    QUEUE,
    WINDOW_SLOTS,
    SwitchPort,
    SwitchView,
    short_name,
)
from railscope_collector.diagnosis.switch_faults import (
    MIN_ERRORS,
    port_errors,
    worst_errors,
)

PAUSING_CLASSES = frozenset(
    {"pfc_storm", "slow_receiver", "pcie_bound_receiver", "host_bound_receiver"}
)
PAUSED_CLASSES = frozenset({"paused_unlocalised", "ecn_inactive"})
HOST, UPLINK = "host", "uplink"
MIN_PEERS, FACTOR, RISE = 3, 4.0, 3.0
"""Ports with the same role; ratios of a queue that stands out to its peers, and to its own past."""
MEASURES: Mapping[str, float] = {
    "queue_marks": 1.0, "queue_drops": 0.1, "queue_wred_drops": 0.1, "queue_buffer_drops": 0.1, "queue_pauses_received": 10.0, "queue_occupancy": 100_000.0,
}  # fmt: skip
"""Least value of a quantity by which a queue may stand out: per second; of the occupancy in bytes."""
_LOSSES = ("queue_drops", "queue_wred_drops", "queue_buffer_drops")
LOCALISED: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "leaf_loss": ((UPLINK, HOST), _LOSSES),
    "paused_unlocalised": ((UPLINK, HOST), tuple(MEASURES)),
}
"""Classes whose cause is a leaf: roles of the ports that may be the cause, and the quantities that show it, the clearest first."""
PAST_SLOTS, KEPT_SLOTS = 6, 36
"""Slots before the first finding from which on samples show the past, and up to which they are kept."""


def refine(switches: SwitchView, found: Iterable[Finding]) -> Iterator[Finding]:
    """Yield findings with what switches show of them; the same ones without switches."""
    if not switches:
        yield from found
        return
    queues = _Queues(switches)
    for finding in found:
        name = finding.incident_class
        if name in PAUSING_CLASSES | PAUSED_CLASSES:
            finding = _with_pauses(switches, finding)  # noqa: PLW2901 - refined step by step
        if name == "link_transmit_errors":
            finding = _with_port_errors(switches, finding)  # noqa: PLW2901 - as above
        if name == "incast_receiver":
            finding = queues.confirm(finding)  # noqa: PLW2901 - as above
        if name in LOCALISED and finding.cause.kind == "leaf" and not finding.queue:
            finding = queues.localise(finding)  # noqa: PLW2901 - as above
        yield finding
    oldest = switches.slot - 60
    seen = switches.fabric.seen
    switches.fabric.seen = {key: span for key, span in seen.items() if span[1] > oldest}


def _with_pauses(switches: SwitchView, finding: Finding) -> Finding:
    """Return a finding that rests on pauses with the counts of the other ends of its links."""
    is_from_nic = finding.incident_class in PAUSING_CLASSES
    nics = finding.parts or ((finding.cause.position,) if finding.cause.kind == "nic" else ())
    found = [
        each
        for each in switches.compared
        if each.nic in nics
        and each.is_from_nic == is_from_nic
        and max(each.high, each.at_switch) > MIN_FRAMES
    ]
    if not found:
        return finding
    found.sort(key=lambda each: (not each.differs, -each.at_switch))
    is_confirmed = None
    if any(each.differs for each in found):
        is_confirmed = False
    elif any(each.agrees for each in found):
        is_confirmed = True
    evidence = tuple(each.evidence for each in found[:MAX_NAMED])
    return replace(finding, evidence=finding.evidence + evidence, is_confirmed=is_confirmed)


def _with_port_errors(switches: SwitchView, finding: Finding) -> Finding:
    """Return data lost on the link of a NIC with the errors of the port."""
    at = switches.port_of(finding.cause.position)
    if at is None:
        return finding
    errors = port_errors(switches)
    name = worst_errors(errors, at)
    rate, port = float(or_zero(errors[name][at])), switches.ports[at]
    if rate >= MIN_ERRORS:
        row = FindingEvidence(name, rate, MIN_ERRORS, "limit", port.place, slots=WINDOW_SLOTS)
        return replace(finding, evidence=(*finding.evidence, row), is_confirmed=True, queue=port)
    return finding


class _Queues:
    """The queues of the ports of some switches that stand out; roles are determined when they are needed."""

    def __init__(self, switches: SwitchView) -> None:
        self.switches = switches
        self._roles: dict[SwitchPort, str] = {}
        self._facing: dict[SwitchPort, str] = {}

    def _find_roles(self) -> None:
        if self._roles:
            return
        devices, links = self.switches.view.devices, self.switches.fabric.links
        nodes = {short_name(name) for name in devices.nodes}
        for name, switch in devices.switches.items():
            for port, neighbour in switch.neighbours.items():
                if short_name(neighbour) not in nodes:
                    self._roles[name, port] = UPLINK
                    if other := self.switches.fabric.far_switches.get((name, port)):
                        self._facing[name, port] = other
        self._roles |= dict.fromkeys(links, HOST)

    def localise(self, finding: Finding) -> Finding:
        """Return a finding about a leaf with the only queue that is its origin."""
        switches, groups = self.switches, self.switches.view.groups
        key = finding.incident_class, finding.subject or finding.cause
        first, _ = switches.fabric.seen.get(key, (switches.slot, 0))
        switches.fabric.seen[key] = first, switches.slot
        leaves = [finding.cause.position, *finding.alternatives]
        of_leaf = {
            leaf: {switches.link_of(nic)[0] for nic in groups.leaves[leaf].tolist()} - {""}
            for leaf in leaves
        }
        if not all(of_leaf.values()):
            return finding
        names, (roles, measures) = (
            sorted(set().union(*of_leaf.values())),
            LOCALISED[finding.incident_class],
        )
        found = self._standing_out(names, roles, measures, first)
        # Queues that the next switch or NIC does not pause: the others wait for one of these, if there is any.
        origins = [
            q for q, e in found.items() if all(each.signal != "queue_pauses_received" for each in e)
        ] or list(found)
        queues = [queue for queue in origins if not self._is_other_end(queue, origins)]
        if len(queues) != 1:
            return finding
        (queue,) = queues
        switch = queue.switch if queue.switch in names else self._facing[queue[:2]]
        leaf = next(leaf for leaf in leaves if switch in of_leaf[leaf])
        return replace(
            finding,
            cause=Cause("leaf", leaf, groups.leaf_names[leaf]),
            subject=finding.subject or finding.cause,
            alternatives=(),
            evidence=finding.evidence + found[queue],
            queue=queue,
        )

    def _is_other_end(self, queue: SwitchQueue, queues: Iterable[SwitchQueue]) -> bool:
        """True for a queue of a spine, if one of the leaf that it faces, toward this spine, is among the queues."""
        leaf = self._facing.get(queue[:2])
        is_leaf = leaf in self.switches.leaves
        return is_leaf and any(
            o.switch == leaf and self._facing.get(o[:2]) == queue.switch for o in queues
        )

    def confirm(self, finding: Finding) -> Finding:
        """Return an incast with the queue of the receiver's switch port, if that stands out now."""
        at = self.switches.port_of(finding.cause.position)
        if at is None:
            return finding
        port = self.switches.ports[at]
        found = self._standing_out(
            [port.switch],
            (HOST,),
            ("queue_marks", "queue_occupancy"),
            self.switches.slot - PAST_SLOTS,
        )
        rows = tuple(
            dict.fromkeys(e for queue, rows in found.items() if queue[:2] == port[:2] for e in rows)
        )
        return (
            replace(finding, evidence=finding.evidence + rows, is_confirmed=True)
            if rows
            else finding
        )

    def _standing_out(
        self, leaves: Sequence[str], roles: Sequence[str], measures: Iterable[str], first: int
    ) -> dict[SwitchQueue, Evidence]:
        """Return the queues that stand out, with their evidence, of leaf switches and of spines at their uplinks."""
        if self.switches.slot - first + PAST_SLOTS >= KEPT_SLOTS:
            return {}  # nothing of the past is left
        self._find_roles()
        known = self.switches.switches
        of_port = {
            port: role
            for port, role in self._roles.items()
            if port[0] in known
            and known[port[0]].is_fresh(self.switches.slot)
            and (
                port[0] in leaves
                or (self._facing.get(port) in leaves and port[0] not in self.switches.leaves)
            )
        }
        found: dict[SwitchQueue, list[FindingEvidence]] = defaultdict(list)
        for measure in measures:
            for role in roles:
                places = [port for port, each in of_port.items() if each == role]
                for place, evidence in self._outliers(measure, role, places, leaves, first):
                    found[place].append(evidence)
        return {queue: tuple(evidence) for queue, evidence in found.items()}

    def _outliers(
        self,
        measure: str,
        role: str,
        places: Sequence[SwitchPort],
        leaves: Sequence[str],
        first: int,
    ) -> Iterator[tuple[SwitchQueue, FindingEvidence]]:
        """Yield queues of ports that exceed those of the other ports with the same number, and their own past."""
        if len(places) < MIN_PEERS:
            return
        queues = self.switches.queues
        now, past = self._values(measure, first)
        layout = self.switches.layout
        known = layout.switch[layout.port_of_queue[~np.isnan(now + past)]]
        if not {self.switches.names[at] for at in np.unique(known)}.issuperset(leaves):
            return  # a quantity counts if all of the leaf switches report it
        by_number: dict[str, list[int]] = defaultdict(list)
        allowed = set(places)
        for at in np.flatnonzero(or_zero(now) > 0).tolist():
            if queues[at][:2] in allowed:
                by_number[queues[at].queue].append(at)
        for same in by_number.values():
            amounts = np.zeros(max(len(places), len(same)))
            amounts[: len(same)] = now[same]
            for number, at in enumerate(same):
                usual = float(np.median(np.delete(amounts, number)))
                if now[at] > max(MEASURES[measure], FACTOR * usual, RISE * past[at]):
                    text = f"median of {len(places) - 1} other {role} ports"
                    slots = self.switches.slot - first + 2
                    value, place = float(now[at]), queues[at].place
                    row = FindingEvidence(measure, value, usual, text, place, slots=slots)
                    yield queues[at], row

    def _values(self, name: str, first: int) -> tuple[Floats, Floats]:
        """Return what queues show since the first finding, and before; of the occupancy, the highest."""
        signals, slots = self.switches.view.signals, self.switches.slot - first + 2
        before = slots + PAST_SLOTS - 2
        spans = (slots, 0), (KEPT_SLOTS - before, before)
        if name == "queue_occupancy":
            rows = (signals.slots(QUEUE, *span)[name] for span in spans)
            now, past = (np.fmax.reduce(each, axis=0) for each in rows)
        else:
            now, past = (signals.table(QUEUE, *span)[name] for span in spans)
        return now, past
