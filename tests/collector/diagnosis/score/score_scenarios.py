"""Random scenarios for the score of the diagnosis: one for each class of incidents and seed, and healthy ones.

Clusters, jobs, sample periods, strengths and times are drawn from the class and the seed. Every scenario
has harmless events: checkpoints, evaluations, restarts, pause spikes, marks, errors of applications. A slow
sample period allows more nodes, so that all scenarios take about the same time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from railscope_simulator.cluster import scenario

HEALTHY, COMPOUND, CASCADE = "healthy", "compound", "cascade"
CLASSES = (
    *sorted({kind.incident_class for kind in scenario.FAULT_KINDS.values() if kind.incident_class}),
    COMPOUND,
    CASCADE,
    HEALTHY,
)
"""Classes of scenarios: those of incidents, two faults at once, a fault that becomes a worse one, and none."""

_SIZES = (
    (1.0, 1, 4),
    (2.0, 1, 6),
    (2.5, 2, 4),
    (5.0, 1, 8),
    (5.0, 2, 5),
    (10.0, 2, 6),
    (10.0, 2, 8),
)
"""Sample period, pods, and nodes of a pod."""
_MIN_ONSET_SECONDS, _MAX_ONSET_SECONDS = 240, 270
_MIN_LENGTH_SECONDS, _MAX_LENGTH_SECONDS = 240, 360
_REST_SECONDS = 30
_MIN_JOB_NODES = 4

_RAILS = 8
_COMPOUNDS = (
    ("transceiver", "slow_receiver"), ("hot_gpu", "incast"), ("storage_slow", "node_partition"),
    ("gpu_lost", "pfc_storm"), ("slow_gpu", "rate_control_off"), ("late_host", "link_flap"),
)  # fmt: skip
_CASCADES = (
    ("transceiver", "link_flap"), ("link_flap", "link_down"), ("link_speed", "link_down"),
    ("slow_receiver", "pfc_storm"), ("pcie_degraded", "nic_lost"), ("hot_gpu", "gpu_lost"),
    ("nvlink_errors", "gpu_lost"), ("row_remap", "ecc_uncorrected"), ("ecc_uncorrected", "gpu_lost"),
)  # fmt: skip
"""Faults of a device, and what they become."""
_MIN_STAGE_SECONDS, _MAX_STAGE_SECONDS = 60.0, 150.0
_NICS = ("cx7", "cx7", "cx7", "cx7", "bnxt", "mixed")
_OF_FULL_COUNTERS = {
    "cnp_ignored", "cnp_not_sent", "ecn_late", "link_transmit_errors", "transport_retry",
    "unprotected_traffic", COMPOUND, CASCADE,
}  # fmt: skip
"""Classes with counters that only ConnectX has."""
_WHOLE_NODE = {"rate_control_off", "unprotected", "power_brake"}
_WATCHDOG_SECONDS = 120.0
"""Timeout of collectives: the default of ten minutes is longer than the faults."""
_BENIGN_SHARE, _HEALTHY_BENIGN_SHARE = 0.35, 0.8
_SECOND_JOB_SHARE, _SERVICE_SHARE, _MANY_SHARE = 0.7, 0.6, 0.5
"""Probabilities of harmless events, of jobs, and of faults of several devices at once."""


def draw_scenario(incident_class: str, seed: int) -> scenario.ClusterScenario:
    """Return the scenario of a class and a seed. Raises ValueError for an unknown class."""
    if incident_class not in CLASSES:
        message = f"unknown class {incident_class!r}: expected one of {', '.join(CLASSES)}"
        raise ValueError(message)
    rng = random.Random(f"{incident_class}/{seed}")  # noqa: S311 - repeatable on purpose
    draw = _ScenarioDraw(
        rng,
        any_nic=incident_class not in _OF_FULL_COUNTERS,
    )
    names = _names(incident_class, rng)
    faults = list(draw.stages(*names) if incident_class == CASCADE else draw.faults(names))
    return scenario.ClusterScenario(
        seconds=draw.seconds,
        step_seconds=draw.period,
        jitter=rng.choice((0.0, 0.1, 0.3)),
        lost=rng.choice((0.0, 0.01, 0.03)),
        seed=rng.getrandbits(31),
        cluster=draw.size,
        jobs=draw.jobs,
        faults=[*faults, *draw.harmless_events(0.0 if faults else _HEALTHY_BENIGN_SHARE)],
    )


def with_collectives(plan: scenario.ClusterScenario) -> scenario.ClusterScenario:
    """Return a scenario whose training jobs leave records of their collectives."""
    records = ["inspector", "ras", "flight_recorder"]
    jobs = [
        replace(job, collectives=records, watchdog_seconds=_WATCHDOG_SECONDS)
        if job.load == 1
        else job
        for job in plan.jobs
    ]
    return replace(plan, jobs=jobs)


def _names(incident_class: str, rng: random.Random) -> Sequence[str]:
    """Return the faults of a scenario."""
    if incident_class == HEALTHY:
        return ()
    if incident_class in {COMPOUND, CASCADE}:
        return rng.choice(_COMPOUNDS if incident_class == COMPOUND else _CASCADES)
    kinds = [
        name for name, kind in scenario.FAULT_KINDS.items() if kind.incident_class == incident_class
    ]
    return (rng.choice(kinds),)


class _ScenarioDraw:
    """A cluster with its jobs, in which faults and harmless events are drawn."""

    def __init__(self, rng: random.Random, *, any_nic: bool) -> None:
        self._rng = rng
        self.period, pods, per_pod = rng.choice(_SIZES)
        self.size = scenario.SimulatedClusterSize(
            pods=pods,
            nodes_per_pod=per_pod,
            model=rng.choice(("h100", "h200")),
            nic=rng.choice(_NICS) if any_nic else _NICS[0],
            filers=2,
        )
        self.onset = rng.uniform(_MIN_ONSET_SECONDS, _MAX_ONSET_SECONDS)
        self.length = rng.uniform(_MIN_LENGTH_SECONDS, _MAX_LENGTH_SECONDS)
        self.seconds = int(self.onset + self.length) + _REST_SECONDS
        self.jobs = list(self._jobs(pods * per_pod, first_pod=per_pod))

    def _jobs(self, nodes: int, first_pod: int) -> Iterator[scenario.JobPlan]:
        """Yield a training job that spans the pods, and others on the remaining nodes."""
        order = list(range(nodes))
        count = self._rng.randint(max(_MIN_JOB_NODES, nodes // 2), nodes)
        if nodes > first_pod:
            # All nodes of the first pod, and some of the other one.
            count = max(count, first_pod + 2)
        job = self._training("alpha", order[:count], "research")
        yield job
        rest = order[count:]
        if len(rest) > 1 and self._rng.random() < _SECOND_JOB_SHARE:
            half = rest[: self._rng.randint(2, len(rest))]
            yield self._training("beta", half, "vision")
            rest = rest[len(half) :]
        if rest and self._rng.random() < _SERVICE_SHARE:
            load, rate = self._rng.uniform(0.3, 0.8), self._rng.uniform(0.02, 0.08)
            yield scenario.JobPlan(
                "gamma",
                rest,
                pattern="all_to_all",
                iteration_seconds=0.4,
                exchange=0.3,
                rate=rate,
                activity=0.3,
                load=load,
                checkpoint_period_seconds=0,
                tenant="serving",
                filer=1,
            )

    def _training(self, name: str, nodes: list[int], tenant: str) -> scenario.JobPlan:
        rng = self._rng
        breaks = []
        if name != "alpha" and rng.random() < _BENIGN_SHARE:
            breaks.append((rng.uniform(30.0, self.seconds), float(self.seconds)))  # its end
        elif rng.random() < _BENIGN_SHARE / 2:
            begin = rng.uniform(30.0, self.onset - 170.0)
            breaks.append((begin, rng.uniform(20.0, 100.0)))
        return scenario.JobPlan(
            name,
            nodes,
            pattern=rng.choice(("ring", "ring", "ring", "tree", "all_to_all")),
            iteration_seconds=_log_uniform(rng, 1.0, 12.0),
            exchange=rng.uniform(0.3, 0.55),
            rate=rng.uniform(0.6, 0.95),
            activity=rng.uniform(0.85, 0.97),
            checkpoint_period_seconds=rng.uniform(240.0, 500.0),
            checkpoint_seconds=rng.uniform(15.0, 45.0),
            evaluation_period_seconds=rng.choice((0.0, 0.0, 0.0, 420.0)),
            evaluation_seconds=rng.uniform(60.0, 150.0),
            uneven=rng.choice((0.0, 0.0, 0.0, rng.uniform(0.05, 0.3))),
            tenant=tenant,
            breaks=breaks,
        )

    def faults(self, names: Sequence[str]) -> Iterator[scenario.PlannedClusterFault]:
        """Yield faults with these names on different nodes of the first job."""
        nodes = self._rng.sample(self.jobs[0].nodes, len(self.jobs[0].nodes))
        onset = self.onset
        for name in names:
            yield self._fault(name, nodes.pop(), onset)
            onset += self._rng.uniform(0.0, 60.0)

    def stages(self, name: str, worse: str) -> Iterator[scenario.PlannedClusterFault]:
        """Yield a fault of a device, and the worse one that it becomes."""
        first = self._fault(name, self._rng.choice(self.jobs[0].nodes), self.onset)
        seconds = round(self._rng.uniform(_MIN_STAGE_SECONDS, _MAX_STAGE_SECONDS), 1)
        yield replace(first, length_seconds=seconds)
        second = self._fault(worse, first.nodes[0], self.onset + seconds)
        length = round(self.length - seconds, 1)
        yield replace(second, nodes=first.nodes, indices=first.indices, length_seconds=length)

    def _fault(self, name: str, node: int, onset: float) -> scenario.PlannedClusterFault:
        rng, kind, job = self._rng, scenario.FAULT_KINDS[name], self.jobs[0]
        rail = rng.randrange(_RAILS)
        indices, senders = [rail], list[int]()
        pods, filers, nodes = list[int](), list[int](), [node]
        if name == "host_bound_receiver":
            half = rng.choice((0, _RAILS // 2))
            indices = list(range(half, half + _RAILS // 2))
        elif name in _WHOLE_NODE or kind.entity == "node":
            indices = []
        elif name == "nic_lost" and rng.random() < _MANY_SHARE:
            indices = sorted(rng.sample(range(_RAILS), _RAILS // 2))
        elif kind.entity == "leaf":
            nodes, pods = [], [0]
        elif kind.entity in {"job", "storage"}:
            nodes, indices = [], []
            filers = [job.filer] if kind.entity == "storage" else []
        elif "incast" in kind.effects:
            all_nodes = range(self.size.pods * self.size.nodes_per_pod)
            outsiders = [other for other in all_nodes if other not in job.nodes]
            if name == "noisy_neighbour" and outsiders:
                nodes = [rng.choice(outsiders)]
            candidates = [other for other in all_nodes if other not in nodes]
            senders = rng.sample(candidates, min(len(candidates), rng.randint(3, 7)))
        if name == "power_brake" and rng.random() < _MANY_SHARE:
            nodes = job.nodes[: rng.randint(2, 4)]
        return scenario.PlannedClusterFault(
            fault=name,
            begin_seconds=round(onset, 1),
            length_seconds=round(self.length, 1),
            strength=round(rng.random(), 3),
            nodes=nodes,
            pods=pods,
            indices=indices,
            senders=senders,
            filers=filers,
            job=job.name if kind.entity == "job" else "",
        )

    def harmless_events(self, at_least: float) -> Iterator[scenario.PlannedClusterFault]:
        """Yield harmless events at any time: marks, pause spikes, errors of applications."""
        rng, nodes = self._rng, self.size.pods * self.size.nodes_per_pod
        probability = max(_BENIGN_SHARE, at_least)
        for name in (
            "ecn_phase",
            "pause_spike",
            "pause_spike",
            "application_error",
            "channel_reset",
        ):
            if rng.random() >= probability:
                continue
            is_leaf = scenario.FAULT_KINDS[name].entity == "leaf"
            node, rail = rng.randrange(nodes), rng.randrange(_RAILS)
            yield scenario.PlannedClusterFault(
                fault=name,
                begin_seconds=round(rng.uniform(20.0, self.seconds - 20.0), 1),
                length_seconds=150.0 if is_leaf else max(self.period, 1.5),
                strength=round(rng.random(), 3),
                nodes=[] if is_leaf else [node],
                pods=[rng.randrange(self.size.pods)] if is_leaf else [],
                indices=[rail],
            )


def _log_uniform(rng: random.Random, lower: float, upper: float) -> float:
    return lower * math.pow(upper / lower, rng.random())
