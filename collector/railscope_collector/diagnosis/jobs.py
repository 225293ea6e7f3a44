"""Jobs by the claims of nodes, and groups of devices that are peers: leaf, rail, socket, pod."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from railscope_collector.diagnosis.devices import ClusterDevices
from railscope_collector.diagnosis.node_readings import NodeEvent
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.diagnosis.slot_sums import Floats, Positions, median
from railscope_collector.fleet import rail_cabling
from railscope_collector.workloads.job_roster import JobKey
from railscope_collector.workloads.pod_jobs import NO_PODS, job_of_pod

Flags: TypeAlias = NDArray[np.bool_]

MAX_CLAIMS_PER_GPU = 64
_FOREVER_NS = 1 << 62


@dataclass(slots=True)
class _ClaimSpan:
    job: JobKey
    start_ns: int
    end_ns: int = _FOREVER_NS


TenantOf: TypeAlias = Callable[[str, str, int], str]
"""Tenant of an owner: source of the claim, owner, time in nanoseconds."""


def owner_as_tenant(source: str, owner: str, timestamp_ns: int) -> str:
    """Return the owner itself: the tenant where no file of tenants is configured."""
    del source, timestamp_ns
    return owner


class ClaimedGpus:
    """Claims of all GPUs over time, from the events of their nodes."""

    def __init__(
        self, tenant_of: TenantOf = owner_as_tenant, pods: re.Pattern[str] = NO_PODS
    ) -> None:
        """`pods` matches the names of pods, whose group `job` names their job."""
        self._tenant_of, self._pods = tenant_of, pods
        self._spans: dict[str, dict[str, _ClaimSpan]] = defaultdict(dict)
        self.ignored_claims = 0

    def add(self, node_event: NodeEvent) -> None:
        """Add the start or the end of a claim; other events are ignored."""
        event = node_event.event
        if event.entity.kind != "claim" or len(event.entity.key) != 2:  # noqa: PLR2004 - GPU and claim
            return
        gpu, claim = event.entity.key
        spans = self._spans[gpu]
        if event.name == "claim_start":
            if claim not in spans and len(spans) >= MAX_CLAIMS_PER_GPU:
                del spans[next(iter(spans))]
                self.ignored_claims += 1
            facts = event.facts
            job = JobKey(
                self._tenant_of(
                    facts.get("source", ""), facts.get("owner", ""), node_event.timestamp_ns
                ),
                facts.get("source", ""),
                facts.get("workload", ""),
            )
            spans[claim] = _ClaimSpan(job_of_pod(job, self._pods), node_event.timestamp_ns)
        elif event.name == "claim_end" and claim in spans:
            spans[claim].end_ns = node_event.timestamp_ns

    def jobs_at(self, timestamp_ns: int) -> dict[JobKey, list[str]]:
        """Return the GPUs of each job at a time."""
        found: dict[JobKey, list[str]] = defaultdict(list)
        for gpu, spans in self._spans.items():
            for span in spans.values():
                if span.start_ns <= timestamp_ns < span.end_ns and span.job.workload:
                    found[span.job].append(gpu)
        return dict(found)


@dataclass(frozen=True, slots=True, eq=False)
class ActiveJob:
    """A job with the positions of its GPUs, and of the rail NICs of its nodes."""

    key: JobKey
    nodes: tuple[str, ...]
    gpus: Positions
    nics: Positions

    @property
    def exchange_nics(self) -> Positions:
        """NICs of its exchange between nodes: what those of a job on one node carry is storage, or that of others."""
        return self.nics if len(self.nodes) > 1 else self.nics[:0]


class EndedJob(NamedTuple):
    """A job that ended within the last minute, and the latest time at which it can have ended."""

    job: ActiveJob
    end_ns: int


class JobMinute:
    """Slots of a minute in which each device of a kind has a job, has none, or stands idle, as during a restart."""

    def __init__(self) -> None:
        self._slots = 0
        self._taken, self._free, self._idle = (np.zeros(0, np.intp) for _ in range(3))

    def add(self, jobs: Positions, is_idle: Flags, is_known: Flags) -> None:
        """Add a slot.

        For each device: the number of its job, -1 for none; whether the GPUs of the job, or of its node, are idle; and
        whether it has readings.
        """
        for counts in (self._taken, self._free, self._idle):
            counts.resize(len(jobs), refcheck=False)  # devices are only ever added
        self._taken += jobs >= 0
        self._free += (jobs < 0) & is_known
        self._idle += is_idle
        self._slots += 1

    @property
    def interrupted(self) -> Flags:
        """Devices that were idle for half of the minute, or served a job for a part of it only."""
        changed: Flags = (self._taken > 0) & (self._free > 0)
        return changed | (2 * self._idle >= self._slots)


class PastJobs:
    """For each device, a number of the job to which its past belongs; 0 for none.

    That is the first one of those that have used it, one after the other without a break: a job that ends beside another one,
    as on a shared GPU, ends no past.
    """

    def __init__(self) -> None:
        self._numbers: dict[DeviceKind, NDArray[np.float32]] = {}
        self._positions: dict[DeviceKind, dict[JobKey, Positions]] = {}

    def update(
        self, devices: ClusterDevices, jobs: Sequence[ActiveJob]
    ) -> dict[DeviceKind, NDArray[np.float32]]:
        """Return the numbers of GPUs, NICs and nodes, with the jobs that run now."""
        nodes = {name: node.position for name, node in devices.nodes.items()}
        of_nodes = {job.key: np.array([nodes[name] for name in job.nodes], np.intp) for job in jobs}
        for kind, positions, count in (
            (DeviceKind.GPU, {job.key: job.gpus for job in jobs}, len(devices.gpus)),
            (DeviceKind.NIC, {job.key: job.nics for job in jobs}, len(devices.nics)),
            (DeviceKind.NODE, of_nodes, len(nodes)),
        ):
            self._numbers[kind] = self._update_kind(kind, positions, count)
            self._positions[kind] = positions
        return dict(self._numbers)

    def _update_kind(
        self, kind: DeviceKind, positions: dict[JobKey, Positions], count: int
    ) -> NDArray[np.float32]:
        numbers, before = np.zeros((2, count), np.float32)
        earlier_numbers = self._numbers.get(kind, before[:0])
        before[: len(earlier_numbers)] = earlier_numbers  # devices are only ever added
        stays = np.zeros(count, np.bool_)
        earlier_positions = self._positions.get(kind, {})
        for key, now in positions.items():
            earlier = earlier_positions.get(key, now[:0])
            stays[now if np.array_equal(now, earlier) else np.intersect1d(now, earlier)] = True
            numbers[now] = _number_of(key)
        return np.where(stays, before, numbers)


def _number_of(key: JobKey) -> int:
    """Return a number of a job that 32-bit floats represent exactly."""
    return 1 + int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=3).digest())


@dataclass
class PeerGroups:
    """Groups of devices, as arrays with one number for each device; -1 for none.

    `leaf_names` are those of earlier groups: a leaf keeps its number.
    """

    devices: ClusterDevices
    leaf_names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Number all groups."""
        nics, nodes = self.devices.nics, self.devices.nodes
        self.version = self.devices.version
        self.nic_node = np.array([nodes[nic.node].position for nic in nics], np.intp)
        self.gpu_node = np.array([nodes[gpu.node].position for gpu in self.devices.gpus], np.intp)
        self.is_rail = np.array([bool(nic.rail) for nic in nics], np.bool_)
        self.nic_rail = _numbers([nic.rail or "-" for nic in nics])[0]
        names = [nic.switch or (f"rail {nic.rail}" if nic.rail else "") for nic in nics]
        self.nic_leaf, self.leaf_names = _numbers(names, self._earlier_names(names))
        self.nic_leaf[~self.is_rail] = -1
        self.nic_socket = _numbers([f"{nic.node}/{nic.numa_node}" for nic in nics])[0]
        self.nic_pod = self._pods()

    def _earlier_names(self, names: Sequence[str]) -> list[str]:
        """Return the earlier names of leaves; beyond the bound, new names replace those that no NIC states."""
        earlier = self.leaf_names
        used, known_names = set(names), set(earlier)
        new = [name for name in dict.fromkeys(names) if name not in known_names]
        excess = len(earlier) + len(new) - MIN_LEAVES - len(names)
        if excess <= 0:
            return earlier
        unused = [number for number, name in enumerate(earlier) if name not in used]
        replaced = list(earlier)
        for number, name in zip(unused[:excess], new, strict=False):
            replaced[number] = name
        return replaced

    def _pods(self) -> Positions:
        """Return the pod of each NIC: nodes that share leaves are in one pod."""
        parent = list(range(len(self.leaf_names)))

        def find(leaf: int) -> int:
            while parent[leaf] != leaf:
                parent[leaf] = parent[parent[leaf]]
                leaf = parent[leaf]
            return leaf

        first: dict[int, int] = {}
        for leaf, node in zip(self.nic_leaf.tolist(), self.nic_node.tolist(), strict=True):
            if leaf >= 0:
                parent[find(leaf)] = find(first.setdefault(node, leaf))
        roots = [find(leaf) if leaf >= 0 else -1 for leaf in self.nic_leaf.tolist()]
        order = {
            root: number for number, root in enumerate(dict.fromkeys(r for r in roots if r >= 0))
        }
        return np.array([order.get(root, -1) for root in roots], np.intp)

    @cached_property
    def leaves(self) -> tuple[Positions, ...]:
        """Positions of the rail NICs below each leaf."""
        return tuple(np.flatnonzero(self.nic_leaf == leaf) for leaf in range(len(self.leaf_names)))

    @cached_property
    def alike_on_node(self) -> tuple[Positions, ...]:
        """Positions of the NICs of each node and role."""
        return _members(f"{nic.node}/{nic.role}" for nic in self.devices.nics)

    @cached_property
    def alike_in_cluster(self) -> tuple[Positions, ...]:
        """Positions of the NICs of each role."""
        return _members(nic.role for nic in self.devices.nics)

    @cached_property
    def alike_on_rail(self) -> tuple[Positions, ...]:
        """Positions of the NICs of each role and rail."""
        return _members(f"{nic.role}/{nic.rail}" for nic in self.devices.nics)

    @cached_property
    def wrong_rails(self) -> tuple[rail_cabling.WrongRail, ...]:
        """NICs on leaves of other rails, as the switches announce themselves to the nodes."""
        return tuple(
            rail_cabling.find_wrong_rails(
                rail_cabling.RailEnd((nic.node, nic.interface), nic.rail, nic.switch)
                for nic in self.devices.nics
            )
        )

    @cached_property
    def _leaf_peers(self) -> tuple[tuple[Positions, Positions], ...]:
        """Rail NICs below each leaf, and their peers there: of two nodes, those of the other, as a fault of a node is in half of them."""
        found = []
        for positions in self.leaves:
            nodes, sides = np.unique(self.nic_node[positions], return_inverse=True)
            if len(nodes) == 2:  # noqa: PLR2004 - one has half of the NICs
                found += [(positions[sides == side], positions[sides != side]) for side in (0, 1)]
            else:
                found.append((positions, positions))
        return tuple(found)

    def leaf_peers(self, values: Floats, members: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Return, for each NIC, the median of its leaf's members and their scaled deviation."""
        medians, deviations = np.full(len(values), np.nan), np.full(len(values), np.nan)
        for positions, peers in self._leaf_peers:
            of_members = values[peers[members[peers]]]
            known_values = of_members[~np.isnan(of_members)]
            if len(known_values) >= MIN_PEERS:
                medians[positions] = usual = median(known_values)
                deviations[positions] = MAD_SCALE * median(np.abs(known_values - usual))
        return medians, deviations


MIN_LEAVES = 1024
"""Names of leaves that are kept, in addition to one for each NIC."""
MIN_PEERS = 3
MAD_SCALE = 1.4826
"""Deviation of a normal distribution, relative to the median of absolute deviations."""


def _numbers(names: Sequence[str], before: Sequence[str] = ()) -> tuple[Positions, list[str]]:
    order = {name: number for number, name in enumerate(dict.fromkeys((*before, *names)))}
    return np.array([order[name] for name in names], np.intp), list(order)


def _members(names: Iterable[str]) -> tuple[Positions, ...]:
    """Return the positions of each name."""
    positions: dict[str, list[int]] = defaultdict(list)
    for position, name in enumerate(names):
        positions[name].append(position)
    return tuple(np.array(found, np.intp) for found in positions.values())


def active_jobs(
    devices: ClusterDevices, groups: PeerGroups, jobs: Mapping[JobKey, Iterable[str]]
) -> list[ActiveJob]:
    """Return jobs with their devices; GPUs that no node reports are left out.

    A job has all NICs of its nodes that are on a rail; on a node that it shares, those of the rails of its GPUs.
    """
    position_of: dict[str, int] = {}
    for position, gpu in enumerate(devices.gpus):
        position_of.setdefault(
            gpu.uuid, position
        )  # another node cannot take over a GPU by its UUID
    gpus_of = {
        key: np.array(sorted({position_of[uuid] for uuid in uuids if uuid in position_of}), np.intp)
        for key, uuids in sorted(jobs.items())
    }
    job_counts = Counter[int]()
    for gpus in gpus_of.values():
        job_counts.update(np.unique(groups.gpu_node[gpus]).tolist())
    found = []
    for key, gpus in gpus_of.items():
        if not len(gpus):
            continue
        nodes = np.unique(groups.gpu_node[gpus])
        is_used = np.isin(groups.nic_node, nodes) & groups.is_rail
        for node in nodes.tolist():
            if job_counts[node] > 1:
                held_gpus = gpus[groups.gpu_node[gpus] == node].tolist()
                is_used[_on_other_rails(devices, devices.node_names[node], held_gpus)] = False
        names = tuple(devices.node_names[node] for node in nodes)
        found.append(ActiveJob(key, names, gpus, np.flatnonzero(is_used)))
    return found


def _on_other_rails(devices: ClusterDevices, node: str, gpus: Sequence[int]) -> list[int]:
    """Return the NICs of a node that are on none of the rails of some GPUs; none if one of these rails is unknown."""
    rails = {devices.gpus[gpu].rail for gpu in gpus}
    nics = devices.nodes[node].nics.values() if "" not in rails else ()
    return [nic for nic in nics if devices.nics[nic].rail not in rails]


def connected_pods(
    groups: PeerGroups, jobs: Sequence[ActiveJob], other_nics: Positions
) -> Positions:
    """Return, for each pod, the first of the pods with which it may exchange, directly or over others.

    A job exchanges with all its nodes, and NICs in use that serve no known job (`other_nics`) with each other.
    """
    pods = groups.nic_pod
    first = np.arange(pods.max(initial=-1) + 1)
    for nics in (*(job.nics for job in jobs), other_nics):
        spanned = np.unique(pods[nics])
        connected = first[spanned[spanned >= 0]]
        if len(connected) > 1:
            first[np.isin(first, connected)] = connected.min()
    return first
