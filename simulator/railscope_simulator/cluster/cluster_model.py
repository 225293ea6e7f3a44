"""Nodes, jobs and fabric of a cluster, which advance together.

The jobs request traffic, the fabric determines its rates, and the rates determine the progress of the jobs; the
clocks of the GPUs determine the pace of computing. Faults change fields of this model, and all else follows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from railscope.timestamps import SECOND_NS
from railscope_simulator import (
    conditions,
    device_models,
    fault_schedule,
    nfs_mounts,
    node_model,
    port,
)
from railscope_simulator.cluster.fabric_state import FabricState, FabricTraffic, QueueRates
from railscope_simulator.cluster.flow_rates import FlowSolver
from railscope_simulator.cluster.job_model import ClusterJob, JobProgress
from railscope_simulator.cluster.scenario import FAULT_KINDS, ClusterScenario, PlannedClusterFault
from railscope_simulator.cluster.topology import (
    FloatArray,
    FlowGroup,
    collective_flows,
    incast_flows,
)
from railscope_simulator.fabric import TrafficDemand
from railscope_simulator.node_hardware import build_node_hardware
from railscope_simulator.spec import STARTED_WALL_NS, NodeSpec, TimeSpan, seconds_to_ns
from railscope_simulator.training_job import JobDemand

_SUBSTEP_SECONDS = 0.25
_MAX_SUBSTEPS = 20
_MIN_CAPACITY = 1e-6
_PORT_EFFECTS = (
    "brake", "margin_lost", "overrun", "marked", "paused", "retransmitted", "pcie_write_stall_percent",
)  # fmt: skip
"""Fields of `ClusterConditions` that are zero for a healthy device."""
_EFFECTS: dict[str, tuple[str, Callable[[FloatArray, float], FloatArray]]] = {
    **dict.fromkeys(("send", "deliver", "drain", "notifies", "reacts"), ("device", np.minimum)),
    **dict.fromkeys(
        ("stuck", "unprotected", "leaks", "thermal_resistance", *_PORT_EFFECTS),
        ("device", np.maximum),
    ),
    "pace": ("device", np.multiply),
    "launches": ("device", np.minimum),
    **dict.fromkeys(("delay", "contention", "used"), ("node", np.maximum)),
    "latency": ("mount", np.maximum),
    **dict.fromkeys(("supply", "collective"), ("job", np.minimum)),
    **dict.fromkeys(("marks", "pauses"), ("leaf", np.minimum)),
    "drops": ("leaf", np.maximum),
}
"""Fields that faults change: their kind of device, and the combination of two effects on one device."""


@dataclass(slots=True)
class ClusterConditions:
    """Conditions of all devices during a span.

    Arrays have the shape (nodes, rails), (nodes,), (nodes, filers) for `latency`, which is relative to the
    usual one, and (jobs,) for `supply` and `collective`, the share of collectives that make progress.
    """

    fabric: FabricState
    pace: FloatArray
    thermal_resistance: FloatArray
    launches: FloatArray
    brake: FloatArray
    margin_lost: FloatArray
    overrun: FloatArray
    marked: FloatArray
    paused: FloatArray
    retransmitted: FloatArray
    pcie_write_stall_percent: FloatArray
    delay: FloatArray
    contention: FloatArray
    used: FloatArray
    input_stall: FloatArray
    latency: FloatArray
    supply: FloatArray
    collective: FloatArray

    def slowest(self, job: ClusterJob) -> float:
        """Return the pace of the slowest GPU of a job, with the delay of its host, relative to its work."""
        nodes = job.plan.nodes
        pace = self.pace[nodes].min(axis=1) * (1.0 - self.delay[nodes])
        return float((pace / [job.work_share(node) for node in nodes]).min())

    def busy_shares(self, job: ClusterJob, node: int) -> list[float]:
        """Return the share of the computing time in which each GPU of a node computes."""
        work, pace = self.slowest(job) * job.work_share(node), self.pace[node]
        shares: list[float] = np.divide(work, pace, out=np.ones_like(pace), where=pace > 0).tolist()
        return shares


class ClusterModel:
    """A cluster after its last step.

    `progress` is that of the jobs in the step, `conditions` those of all devices in it; `traffic` and `queues` are what passed through
    the fabric.
    """

    def __init__(self, scenario: ClusterScenario, started_wall_ns: int = STARTED_WALL_NS) -> None:
        self.scenario = scenario
        self._started_wall_ns = started_wall_ns
        self.topology = scenario.topology
        self.offset_ns = 0
        model = device_models.find_model(scenario.cluster.model)
        self._job_of = {
            node: index for index, job in enumerate(scenario.jobs) for node in job.nodes
        }
        self.specs = [self._spec(model, number) for number in range(self.topology.nodes)]
        self._node_faults = [
            fault_schedule.NodeFaultSchedule(
                spec, self._occurrences(spec, number), has_job=number in self._job_of
            )
            for number, spec in enumerate(self.specs)
        ]
        for fault in scenario.faults:
            if xid := FAULT_KINDS[fault.fault].xid:
                error = seconds_to_ns(fault.begin_seconds), fault.indices[0], xid
                self._node_faults[fault.nodes[0]].errors.append(error)
        self.nodes = [node_model.NodeModel(faults.spec, faults) for faults in self._node_faults]
        self._clocks = np.ones((self.topology.nodes, self.topology.rails))
        self._read_clocks()
        shared = self.specs[0].shared_stream
        self.jobs = [ClusterJob(plan, shared(f"job {plan.name}")) for plan in scenario.jobs]
        self._incasts = [fault for fault in scenario.faults if fault.senders]
        groups = [*map(self._job_flows, self.jobs), *map(self._incast_flows, self._incasts)]
        self._solver = FlowSolver(self.topology, groups) if groups else None
        self.progress: list[JobProgress] = []
        self.conditions: ClusterConditions
        self.traffic = FabricTraffic.zeros(self.topology)
        self.queues = QueueRates.zeros(self.topology)

    def _read_clocks(self) -> None:
        """Update the clocks of all GPUs relative to those without throttling."""
        for number, node in enumerate(self.nodes):
            self._clocks[number] = [gpu.silicon.unthrottled_share for gpu in node.gpus]

    def _spec(self, model: device_models.GpuModel, number: int) -> NodeSpec:
        size = self.scenario.cluster
        plan = self.scenario.jobs[self._job_of[number]] if number in self._job_of else None
        return NodeSpec(
            self.topology.node_name(number),
            self.scenario.seed,
            model.per_node,
            model.name,
            nic=size.nic,
            scheduler=size.scheduler if plan else "none",
            job=plan.name if plan else "",
            tenant=plan.tenant if plan else "research",
            filers=size.filers,
            started_wall_ns=self._started_wall_ns,
        )

    def _occurrences(self, spec: NodeSpec, number: int) -> list[fault_schedule.FaultOccurrence]:
        found = []
        for index, fault in enumerate(self.scenario.faults):
            name = FAULT_KINDS[fault.fault].scenario
            if not name or fault.nodes != [number]:
                continue
            # A stream for each fault: another fault in the scenario does not change this one.
            rng = spec.stream(f"fault {index}")
            # A fault without an end is longer than the simulation, so that it does not end with the last
            # step.
            end_seconds = min(fault.end_seconds, self.scenario.seconds + 1)
            begin_ns = seconds_to_ns(fault.begin_seconds)
            length_ns = seconds_to_ns(end_seconds) - begin_ns
            for affected in fault.indices:
                faulty = replace(
                    spec, scenario=name, seed=rng.getrandbits(32), fault_index=affected
                )
                found.append(fault_schedule.FaultOccurrence.from_spec(faulty, begin_ns, length_ns))
        return found

    def _job_flows(self, job: ClusterJob) -> FlowGroup:
        plan = job.plan
        return collective_flows(plan.pattern, plan.nodes, plan.rate, range(self.topology.rails))

    def _incast_flows(self, fault: PlannedClusterFault) -> FlowGroup:
        rails = fault.indices or range(self.topology.rails)
        return incast_flows(fault.senders, fault.nodes[0], fault.effects()["incast"], rails)

    def _conditions(self, span: TimeSpan) -> ClusterConditions:
        """Return the conditions of a span: those of the nodes, and the effects of the cluster's faults."""
        shape = (self.topology.nodes, self.topology.rails)
        found = ClusterConditions(
            FabricState.healthy(self.topology),
            pace=np.ones(shape),
            thermal_resistance=np.ones(shape),
            launches=np.ones(shape),
            **{name: np.zeros(shape) for name in _PORT_EFFECTS},
            **{
                name: np.zeros(self.topology.nodes)
                for name in ("delay", "contention", "used", "input_stall")
            },
            latency=np.ones((self.topology.nodes, self.scenario.cluster.filers)),
            supply=np.ones(len(self.jobs)),
            collective=np.ones(len(self.jobs)),
        )
        for number, faults in enumerate(self._node_faults):
            self._add_node(found, number, faults, span)
        for fault in self.scenario.faults:
            if fault.acts(span.end_ns / SECOND_NS):
                self._add_fault(found, fault)
        self._limit_input(found)
        return found

    def _limit_input(self, found: ClusterConditions) -> None:
        """Limit jobs to the rate at which file servers respond; a node with less input than others is late."""
        for index, job in enumerate(self.jobs):
            nodes = job.plan.nodes
            if not found.latency.size or job.plan.load < 1.0:
                continue
            arrives = np.minimum(nfs_mounts.READ_AHEAD / found.latency[nodes, job.plan.filer], 1.0)
            # The node with the most input limits the job as a whole. Those with less are late, and the others
            # wait for them.
            supply = float(arrives.max())
            found.supply[index] = min(found.supply[index], supply)
            found.delay[nodes] = np.maximum(found.delay[nodes], 1.0 - arrives / supply)
            found.input_stall[nodes] = 1.0 - arrives

    def _add_node(
        self,
        found: ClusterConditions,
        number: int,
        faults: fault_schedule.NodeFaultSchedule,
        span: TimeSpan,
    ) -> None:
        """Add the clocks of a node's GPUs, and the effects of its own faults on its ports."""
        state = found.fabric
        found.pace[number] = self._clocks[number]
        # Without a fault all values are those of a healthy node.
        if not faults.faults_at(span.end_ns):
            return
        hardware = build_node_hardware(faults.spec)
        for rail, nic_port in enumerate(hardware.ports[: self.topology.rails]):
            port_state = faults.own_port(rail, span)
            up = 1.0 - sum(span.share_in(outage) for outage in faults.link_outages(rail, span))
            link = max(
                up * port_state.lanes / device_models.LANES * (not port_state.removed),
                _MIN_CAPACITY,
            )
            pcie = 1.0
            if port_state.pcie_halved:
                pcie = min(
                    nic_port.nic.halved_pcie_bytes_per_second / nic_port.bytes_per_second, 1.0
                )
            # A NIC reads what it sends over PCIe, so a slow path lowers its rate. What it receives arrives at
            # the rate of the link, and only its acceptance is slower.
            state.send[number, rail] = min(link, pcie)
            state.deliver[number, rail], state.drain[number, rail] = link, pcie
            state.notifies[number, rail] = port_state.settings.notifying
            state.stuck[number, rail] = port_state.stuck
        for index in range(len(hardware.gpus)):
            gpu = faults.gpu(index, span)
            if gpu.lost or gpu.hung or gpu.stuck:
                found.pace[number, index] = 0.0

    def _add_fault(self, found: ClusterConditions, fault: PlannedClusterFault) -> None:
        """Change the fields of a fault's effects."""
        indices = fault.indices or range(self.topology.rails)
        jobs = [index for index, job in enumerate(self.jobs) if job.plan.name == fault.job]
        per_pod = self.topology.nodes_per_pod
        below = [pod * per_pod + node for pod in fault.pods for node in range(per_pod)]
        nodes = (
            fault.nodes or below or [node for index in jobs for node in self.jobs[index].plan.nodes]
        )
        filers = fault.filers or range(self.scenario.cluster.filers)
        places: dict[str, tuple[NDArray[np.intp], ...]] = {
            "leaf": np.ix_(fault.pods, indices),
            "device": np.ix_(nodes, indices),
            "node": (np.array(nodes, dtype=np.intp),),
            "mount": np.ix_(nodes or range(self.topology.nodes), filers),
            "job": (np.array(jobs, dtype=np.intp),),
        }
        for name, value in fault.effects().items():
            if name in _EFFECTS:
                kind, combine = _EFFECTS[name]
                values: FloatArray = getattr(found if hasattr(found, name) else found.fabric, name)
                values[places[kind]] = combine(values[places[kind]], value)

    def advance(self, until_ns: int) -> None:
        """Advance to an offset into the simulation."""
        span = TimeSpan(self.offset_ns, until_ns)
        found = self.conditions = self._conditions(span)
        self.queues = QueueRates.zeros(self.topology)
        self.traffic = traffic = FabricTraffic.zeros(self.topology)
        totals = [JobProgress() for _ in self.jobs]
        count = max(1, min(round(span.seconds / _SUBSTEP_SECONDS), _MAX_SUBSTEPS))
        edges = np.linspace(span.start_ns, span.end_ns, count + 1).round().astype(int).tolist()
        for start_ns, end_ns in itertools.pairwise(edges):
            self._substep(TimeSpan(start_ns, end_ns), found, traffic, totals, span.length_ns)
        self.progress = totals
        for number, node in enumerate(self.nodes):
            self._advance_node(number, node, found, traffic, until_ns)
        self._read_clocks()
        self.offset_ns = until_ns

    def _substep(
        self,
        span: TimeSpan,
        found: ClusterConditions,
        traffic: FabricTraffic,
        totals: list[JobProgress],
        length_ns: int,
    ) -> None:
        active = [
            index
            for index, job in enumerate(self.jobs)
            if job.exchanges(span) and found.collective[index] > 0
        ]
        incasts = [
            index
            for index, fault in enumerate(self._incasts)
            if fault.acts(span.end_ns / SECOND_NS)
        ]
        groups = [*active, *(len(self.jobs) + index for index in incasts)]
        rates = self._solver.solve(found.fabric, groups) if self._solver and groups else None
        weight = span.length_ns / length_ns
        share = np.zeros((self.topology.nodes, 1))
        for index, job in enumerate(self.jobs):
            # Speeds of groups that do not exchange are of no use: their jobs compute.
            speed = float(rates.speeds[index]) if rates and index in active else 1.0
            speed *= float(found.collective[index])
            slowest = found.slowest(job)
            present = self._present(job, span)
            progress = job.advance(span, slowest, speed, float(found.supply[index]), present)
            share[job.plan.nodes] = progress.exchange * job.traffic_share(progress)
            totals[index].add(progress, weight)
        for index in incasts:
            # These flows have no phases: they last for the whole step.
            share[[*self._incasts[index].nodes, *self._incasts[index].senders]] = 1.0
        if rates:
            traffic.add(rates, share * weight)
            self.queues.add(rates.queues, share * weight)
        # A NIC that accepts nothing also pauses its port while the job does not exchange. The rest is in the
        # rates.
        stuck = found.fabric.stuck * (1.0 - share) * weight
        traffic.pausing += stuck

    def _present(self, job: ClusterJob, span: TimeSpan) -> float:
        """Return the share of a span in which the processes of a job run on all of its nodes."""
        return min(self._node_faults[node].job(span).present for node in job.plan.nodes)

    def _advance_node(
        self,
        number: int,
        node: node_model.NodeModel,
        found: ClusterConditions,
        traffic: FabricTraffic,
        until_ns: int,
    ) -> None:
        demands: list[JobDemand] = [JobDemand()] * self.topology.rails
        if number in self._job_of:
            job, progress = self.jobs[self._job_of[number]], self.progress[self._job_of[number]]
            busy, delay = found.busy_shares(job, number), float(found.delay[number])
            demands = job.demand(progress, busy, delay)
            for index in np.flatnonzero(found.launches[number] == 0).tolist():
                # The process is present, but its GPU has no work.
                demands[index] = JobDemand(present=demands[index].present)
        faults = self._node_faults[number]
        faults.thermal_resistance = found.thermal_resistance[number].tolist()
        faults.brake = found.brake[number].tolist()
        faults.ports = {
            rail: _port_conditions(found, traffic, number, rail)
            for rail in range(self.topology.rails)
        }
        rails = [
            TrafficDemand(
                *(
                    float(getattr(traffic, name)[number, rail])
                    for name in ("busy", "send", "receive")
                )
            )
            for rail in range(self.topology.rails)
        ]
        host = conditions.HostConditions(
            float(found.contention[number]),
            float(found.used[number]),
            float(found.input_stall[number]),
            tuple(found.latency[number].tolist()),
            self.jobs[self._job_of[number]].plan.filer if number in self._job_of else 0,
        )
        node.advance_under(until_ns, node_model.NodeDemand(demands[0], demands, rails, host))


def _port_conditions(
    found: ClusterConditions, traffic: FabricTraffic, number: int, rail: int
) -> conditions.PortConditions:
    """Return the conditions of a port as shares of the time in which it is busy."""
    at, leaf = (number, rail), (number * len(found.fabric.marks) // len(found.pace), rail)
    busy = float(traffic.busy[at])
    stuck = float(found.fabric.stuck[at])

    def while_busy(values: FloatArray) -> float:
        return float(values[at]) / busy if busy else 0.0

    return conditions.PortConditions(
        pausing=0.0 if stuck else while_busy(traffic.pausing),
        paused=max(while_busy(traffic.paused), float(found.paused[at])),
        stuck=stuck,
        marked=while_busy(traffic.marked) + float(found.marked[at]),
        notified=while_busy(traffic.slowed) + float(found.marked[at]),
        lost_received=while_busy(traffic.lost),
        lost_sent=while_busy(traffic.retried),
        lossy=float(found.overrun[at]),
        retransmitted=float(found.retransmitted[at]),
        ignored=1.0 - float(found.fabric.reacts[at]),
        misprioritized_sent=float(found.fabric.unprotected[at]),
        misprioritized_received=while_busy(traffic.misprioritized),
        unanswered=float(traffic.unanswered[at]),
        settings=port.PortSettings(notifying=bool(found.fabric.notifies[at])),
        marking=float(found.fabric.marks[leaf]),
        switch_pauses=float(found.fabric.pauses[leaf]),
        pcie_write_stall_percent=float(found.pcie_write_stall_percent[at]),
        margin_lost=float(found.margin_lost[at]),
    )
