"""Ranking: findings that explain others, by what their classes may explain and by reach.

A symptom waits while a candidate may still explain it, so that one fault is one incident. Two faults stay two
incidents: nothing explains a finding that it cannot reach, and hard evidence is explained only by another report about the same
device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Set as AbstractSet
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter
from typing import Generic, TypeVar

import numpy as np

from railscope_collector.diagnosis.explanation import DISTURBS, EDGES, FABRIC, Relation
from railscope_collector.diagnosis.findings import (
    MIN_EXCHANGE,
    Cause,
    DiagnosisView,
    Finding,
)
from railscope_collector.diagnosis.incident_classes import CLASSES, part_kind
from railscope_collector.diagnosis.jobs import ActiveJob
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.workloads.job_roster import JobKey

_EDGES = {
    name: {**EDGES.get(name, {}), Relation.DEVICE: (*EDGES.get(name, {}).get(Relation.DEVICE, ()), name)}
    for name in CLASSES
}  # fmt: skip
"""Also the class itself: a larger unit explains its parts, which may show the fault before the rest of them does."""

REFUTED = {"agent_partition": "node_down", "node_down": "agent_partition"}
"""Conclusions from the same silence of a node: the later one has seen more of its job, and ends the other."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Device, nodes and rails that a cause affects, and jobs that it may slow down."""

    device: tuple[str, int, str]
    nodes: frozenset[str]
    rails: frozenset[str]
    jobs: frozenset[JobKey]
    parts: frozenset[tuple[str, int, str]] = frozenset()
    """Devices that a larger cause consists of."""
    pods: frozenset[int] = frozenset()
    """Pods to which effects may spread along the rails."""
    subject: str | Cause = ""
    """Setting, link or queue of the finding, as one device may have several."""

    def contains(self, other: Reach) -> bool:
        """True if a cause is the device of another one, or a larger unit with a part of it."""
        return self.device == other.device or self.is_larger_than(other)

    def is_larger_than(self, other: Reach) -> bool:
        """True if a cause is a larger unit with a part of another one."""
        is_larger = len(self.parts) > len(other.parts)
        return is_larger and not self.parts.isdisjoint({other.device, *other.parts})

    def shared(self, relation: Relation) -> AbstractSet[Hashable]:
        """Return the properties by which a relation compares reaches."""
        if relation is Relation.DEVICE:
            return {self.device, *self.parts}
        if relation is Relation.NODE:
            return self.nodes
        if relation is Relation.PEERS:
            # Nodes without a job exchange with others without one.
            return {(rail, job) for rail in self.rails for job in self.jobs or {None}}
        if relation is Relation.RAIL:
            return {(rail, pod) for rail in self.rails for pod in self.pods}
        return self.jobs


def reach_of(view: DiagnosisView, finding: Finding) -> Reach:
    """Return the reach of a finding. A leaf affects the rail in all pods with traffic to its own: that crosses the spines."""
    cause, parts = finding.cause, finding.parts
    devices, nodes = view.devices, set[str]()
    nics: Iterable[int] = ()
    if cause.kind == "nic":
        nics = [cause.position]
        nodes = {devices.nics[cause.position].node}
    elif cause.kind == "gpu":
        nodes = {devices.gpus[cause.position].node}
    elif cause.kind == "node":
        nodes = {cause.name}
        is_of_nics = part_kind(finding.incident_class) == "nic"
        nics = (is_of_nics and parts) or _nics_of_node(view, cause.name)
    elif cause.kind == "leaf":
        nics = view.groups.leaves[cause.position].tolist()
        nodes = {devices.nics[position].node for position in nics}
    elif cause.kind == "rack":
        nodes = {devices.gpus[position].node for position in parts}
    elif cause.kind == "storage":
        # The clients that it delays: others may have it mounted, and hardly use it.
        nodes = {devices.mounts[position].node for position in parts}
    elif cause.job:
        nodes = {name for job in view.jobs if job.key == cause.job for name in job.nodes}
    device = (cause.kind, cause.position, cause.name)
    devices_of_cause = frozenset((part_kind(finding.incident_class), part, "") for part in parts)
    rails = frozenset(devices.nics[position].rail for position in nics)
    pods = view.pods_around(view.groups.nic_pod[list(nics)]) if rails else frozenset[int]()
    jobs = frozenset(_slowed_jobs(view, finding, nodes))
    return Reach(device, frozenset(nodes), rails, jobs, devices_of_cause, pods, finding.subject)


def _slowed_jobs(view: DiagnosisView, finding: Finding, nodes: set[str]) -> set[JobKey]:
    """Return the jobs that a cause on some nodes may slow down."""
    cause, name = finding.cause, finding.incident_class
    if not CLASSES[name].slows_jobs:
        return set()
    jobs: set[JobKey] = {cause.job} if cause.job else set()
    if cause.kind == "nic" and name != "transport_retry" and not _is_of_own_link(name):
        jobs |= _jobs_on_rail(view, cause.position)
    else:
        jobs |= {job.key for job in view.jobs if _uses(view, job, cause, nodes)}
    # With settings, a node may pause or slow the senders of other nodes on the rails of its NICs.
    if cause.kind == "node" and (
        name == "config_drift" or (name in FABRIC and not _is_of_own_link(name))
    ):
        jobs |= {key for position in finding.parts for key in _jobs_on_rail(view, position)}
    return jobs


def _is_of_own_link(name: str) -> bool:
    """True if a class disturbs only what one link carries: the peers of its node suffer, not all that share the rail."""
    return "losses" in DISTURBS.get(name, ())


def _uses(view: DiagnosisView, job: ActiveJob, cause: Cause, nodes: set[str]) -> bool:
    """True if a job uses the cause; of single GPUs and NICs on a rail, those of another job on the same node do not count."""
    if cause.kind == "gpu" and any(cause.position in other.gpus for other in view.jobs):
        return bool(cause.position in job.gpus)
    if cause.kind == "nic" and any(cause.position in other.nics for other in view.jobs):
        return bool(cause.position in job.nics)
    return not nodes.isdisjoint(job.nodes)


def _nics_of_node(view: DiagnosisView, name: str) -> Iterable[int]:
    node = view.devices.nodes.get(name)
    return node.nics.values() if node else ()


def _jobs_on_rail(view: DiagnosisView, position: int) -> set[JobKey]:
    """Return the jobs that use the rail of a NIC, along which pause spreads: those that send on it, or did."""
    sent = np.fmax(view.signals.nic["send"], view.base(DeviceKind.NIC, "send"))
    uses = view.rail_around(position) & ~(sent < MIN_EXCHANGE)
    return {job.key for job in view.jobs if uses[job.nics].any()}


def may_explain(cause_class: str, cause: Reach, effect_class: str, effect: Reach) -> bool:
    """True if a finding of one class may be the effect of another one.

    Of its own class, only of a larger unit with the same subject: another setting or link is another fault.
    """
    is_part = cause.is_larger_than(effect) and cause.subject == effect.subject
    return any(
        cause_class in classes
        and not cause.shared(relation).isdisjoint(effect.shared(relation))
        and (cause_class != effect_class or relation is not Relation.DEVICE or is_part)
        for relation, classes in _EDGES[effect_class].items()
    )


_RELATIONS: dict[str, set[Relation]] = defaultdict(set)
"""Relations by which a class may explain others."""
for _relations in _EDGES.values():
    for _relation, _classes in _relations.items():
        for _name in _classes:
            _RELATIONS[_name].add(_relation)

ItemT = TypeVar("ItemT")


class CauseIndex(Generic[ItemT]):
    """Possible causes by class and by what they reach, so that each effect is compared with those of its own only."""

    def __init__(self, causes: Iterable[tuple[str, Reach, ItemT]]) -> None:
        self._causes: dict[tuple[str, Relation, Hashable], list[tuple[int, str, Reach, ItemT]]]
        self._causes = defaultdict(list)
        for number, (name, reach, item) in enumerate(causes):
            for relation in _RELATIONS.get(name, ()):
                for key in reach.shared(relation):
                    self._causes[name, relation, key].append((number, name, reach, item))

    def causes_of(self, effect_class: str, effect: Reach) -> Iterator[ItemT]:
        """Yield what may explain a finding, in the order of the index; an item may be repeated."""
        found = (
            self._causes.get((name, relation, key), ())
            for relation, classes in _EDGES[effect_class].items()
            for key in effect.shared(relation)
            for name in classes
        )
        for _, name, cause, item in merge(*filter(None, found), key=itemgetter(0)):
            if name != effect_class or may_explain(name, cause, effect_class, effect):
                yield item
