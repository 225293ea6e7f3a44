"""Scenario files of clusters: size, jobs and faults, in TOML.

A fault is a row of `data/cluster_faults.toml`, with the devices that it affects, its time and its strength.
A scenario with other faults, jobs and sizes needs no code, and neither does another kind of fault that
only changes fields of the physical model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from railscope.untrusted_text import TomlError, parse_toml
from railscope_simulator import device_models
from railscope_simulator.cluster.topology import ClusterTopology, Pattern
from railscope_simulator.data import read_table
from railscope_simulator.spec import NICS, SCHEDULERS, SimulatorError

MAX_NODES = 10_000
MAX_SECONDS = 1_000_000
"""Bound of times and lengths in a scenario, which has at most 86,400 s; infinity and NaN are outside of all bounds."""

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)]
PositiveSeconds = Annotated[float, msgspec.Meta(gt=0, le=MAX_SECONDS)]
IterationSeconds = Annotated[float, msgspec.Meta(ge=0.01, le=3_600)]
"""The model goes through each iteration: the shorter they are, the longer a simulation takes."""
Index = Annotated[int, msgspec.Meta(ge=0)]


class ScenarioError(SimulatorError, ValueError):
    """A scenario file is missing or invalid; the message states the file, the key and the expectation."""


class SimulatedClusterSize(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes of a cluster; `uplinks` is the uplink capacity of a leaf relative to that of its NICs.

    All nodes mount all `filers`, which are NFS servers.
    """

    pods: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 1
    nodes_per_pod: Annotated[int, msgspec.Meta(ge=1, le=32)] = 4
    uplinks: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    model: str = "h100"
    nic: str = "cx7"
    scheduler: str = "slurm"
    filers: Annotated[int, msgspec.Meta(ge=0, le=8)] = 1


class JobPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A synchronous job on whole nodes. An iteration computes, exchanges, and updates the weights.

    `exchange` is the share of the exchange in an undisturbed iteration, `rate` the share of the line rate that
    each NIC sends meanwhile. A period of 0 means no checkpoints or no evaluations. A load below 1 is that
    of a service that responds to requests: it varies, and GPUs are idle between requests. The job reads its
    input from one of the file servers.
    """

    name: str
    nodes: list[Index]
    pattern: Pattern = "ring"
    iteration_seconds: IterationSeconds = 4.0
    exchange: Share = 0.45
    rate: Share = 0.78
    activity: Share = 0.94
    checkpoint_period_seconds: Seconds = 300.0
    checkpoint_seconds: PositiveSeconds = 25.0
    evaluation_period_seconds: Seconds = 0.0
    evaluation_seconds: PositiveSeconds = 180.0
    uneven: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    """Share of the computing that the last node has less than the first one: stages of a pipeline."""
    load: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    filer: Index = 0
    tenant: str = "research"
    collectives: list[Literal["inspector", "ras", "flight_recorder"]] = []
    """Records of its collectives that the job leaves on its nodes: logs of NCCL Inspector, answers of NCCL RAS, dumps of flight recorders."""
    watchdog_seconds: PositiveSeconds = 600.0
    """Time after which ranks that wait in a collective write the dumps of their flight recorders; the job goes on waiting."""
    breaks: list[tuple[Seconds, Seconds]] = []
    """Times without work, as begin and length in seconds: restarts, maintenance."""


class PlannedClusterFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fault, with the devices that it affects: NICs and GPUs by node and index, leaves by pod and index, filers.

    Without indices all of a node or pod are affected. A length of 0 lasts until the end. `senders` are the
    nodes that send the additional traffic of an incast.
    """

    fault: str
    begin_seconds: Seconds
    length_seconds: Seconds = 0.0
    strength: Share = 0.5
    nodes: list[Index] = []
    pods: list[Index] = []
    indices: list[Index] = []
    senders: list[Index] = []
    filers: list[Index] = []
    job: str = ""

    def acts(self, seconds: float) -> bool:
        """True if the fault is present at a time."""
        # A step is judged by its end: a fault that begins there has not acted in it.
        return self.begin_seconds < seconds <= self.end_seconds

    @property
    def end_seconds(self) -> float:
        """Time at which the fault ends."""
        return self.begin_seconds + (self.length_seconds or math.inf)

    def effects(self) -> dict[str, float]:
        """Return the fields of the physical model that the fault changes, with their values."""
        return {
            name: weakest + (strongest - weakest) * self.strength
            for name, (weakest, strongest) in FAULT_KINDS[self.fault].effects.items()
        }


class FaultKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the table of faults.

    `incident_class` is the class that a diagnosis should conclude. A harmless event has no class; `xid` is that of an application's error. `accepted` are other classes and kinds of entities that are correct as well.
    `effects` are fields with their values at strength 0 and 1; `scenario` is a fault of a single node.
    """

    text: str
    entity: Literal["nic", "gpu", "node", "leaf", "job", "storage"]
    incident_class: str = ""
    effects: dict[str, tuple[float, float]] = {}
    scenario: str = ""
    xid: int = 0
    accepted: list[str] = []


FAULT_KINDS: dict[str, FaultKind] = read_table("cluster_faults", dict[str, FaultKind])


class ClusterScenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scenario: equal scenarios produce equal captures.

    `jitter` is the deviation of a sample's time, as a share of the step; `lost` is the share of lost samples.
    """

    seconds: Annotated[int, msgspec.Meta(ge=1, le=86_400)]
    step_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=60)] = 1.0
    jitter: Share = 0.0
    lost: Share = 0.0
    seed: int = 0
    cluster: SimulatedClusterSize = SimulatedClusterSize()
    jobs: list[JobPlan] = []
    faults: list[PlannedClusterFault] = []

    @property
    def rails(self) -> int:
        """Number of rails: one for each GPU of a node."""
        return device_models.find_model(self.cluster.model).per_node

    @property
    def topology(self) -> ClusterTopology:
        """The cluster's topology."""
        size = self.cluster
        return ClusterTopology(size.pods, size.nodes_per_pod, self.rails, size.uplinks)


def read_scenario(path: Path) -> ClusterScenario:
    """Read a scenario file. Raises ScenarioError."""
    try:
        found = msgspec.convert(parse_toml(path.read_text(encoding="utf-8")), ClusterScenario)
        problem = next(scenario_problems(found), "")
    except (OSError, UnicodeDecodeError, TomlError, msgspec.ValidationError) as error:
        problem = str(error).replace("Object contains unknown field", "unknown key")
    if problem:
        message = f"invalid scenario: {path}: {problem}"
        raise ScenarioError(message)
    return found


def scenario_problems(scenario: ClusterScenario) -> Iterator[str]:
    """Yield the problems of a scenario."""
    size = scenario.cluster
    for key, value, choices in (
        ("model", size.model, device_models.SHORT_NAMES),
        ("nic", size.nic, NICS),
        ("scheduler", size.scheduler, SCHEDULERS),
    ):
        if value not in choices:
            yield f"cluster.{key}: {value!r}: expected one of {', '.join(choices)}"
            return
    if scenario.topology.nodes > MAX_NODES:
        yield f"cluster: {scenario.topology.nodes} nodes: expected at most {MAX_NODES}"
    if scenario.step_seconds > scenario.seconds:
        yield f"step_seconds: {scenario.step_seconds:g}: expected at most seconds, {scenario.seconds}"
    yield from _job_problems(scenario)
    for fault in scenario.faults:
        for problem in _fault_problems(scenario, fault):
            yield f"fault {fault.fault!r}: {problem}"


def _job_problems(scenario: ClusterScenario) -> Iterator[str]:
    last = scenario.topology.nodes - 1
    job_of: dict[int, str] = {}
    names: set[str] = set()
    for job in scenario.jobs:
        if job.name in names:
            yield f"job {job.name!r}: duplicate name: expected a name of its own"
        names.add(job.name)
        if job.filer and job.filer >= scenario.cluster.filers:
            yield f"job {job.name!r}: filer {job.filer}: expected at most {scenario.cluster.filers - 1}"
        if not job.nodes:
            yield f"job {job.name!r}: no nodes: expected at least one"
        for node in job.nodes:
            if node > last:
                yield f"job {job.name!r}: node {node}: expected at most {last}"
            if node in job_of:
                yield f"job {job.name!r}: node {node}: expected a node without a job, has {job_of[node]!r}"
            job_of[node] = job.name


def _fault_problems(scenario: ClusterScenario, fault: PlannedClusterFault) -> Iterator[str]:
    kind = FAULT_KINDS.get(fault.fault)
    if kind is None:
        yield f"unknown fault: expected one of {', '.join(sorted(FAULT_KINDS))}"
        return
    if fault.begin_seconds >= scenario.seconds:
        yield f"begin_seconds: {fault.begin_seconds:g}: expected less than seconds, {scenario.seconds}"
    yield from _index_problems(scenario, fault)
    required = {"leaf": "pods", "job": "job", "storage": "filers"}.get(kind.entity, "nodes")
    if not getattr(fault, required):
        yield f"no {required}: expected at least one"
    if kind.entity == "job" and fault.job not in {job.name for job in scenario.jobs}:
        names = ", ".join(job.name for job in scenario.jobs) or "a scenario with jobs"
        yield f"unknown job {fault.job!r}: expected {names}"
    if "incast" not in kind.effects:
        if fault.senders:
            yield "senders: expected none"
    elif len(fault.nodes) != 1 or not set(fault.senders) - set(fault.nodes):
        yield "nodes and senders: expected one receiver, and other nodes that send to it"
    if (kind.scenario or kind.xid) and (len(fault.nodes) != 1 or not fault.indices):
        yield "nodes and indices: expected one node, and at least one index"


def _index_problems(scenario: ClusterScenario, fault: PlannedClusterFault) -> Iterator[str]:
    """Yield a problem for each list of indices that exceeds the cluster."""
    topology = scenario.topology
    for key, indices, count in (
        ("nodes", fault.nodes, topology.nodes),
        ("senders", fault.senders, topology.nodes),
        ("pods", fault.pods, topology.pods),
        ("indices", fault.indices, topology.rails),
        ("filers", fault.filers, scenario.cluster.filers),
    ):
        if indices and max(indices) >= count:
            yield f"{key}: {max(indices)}: expected at most {count - 1}"
