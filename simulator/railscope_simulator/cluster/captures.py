"""Captures of a simulated cluster, one for each node, and the ground truth of its faults.

`DIRECTORY/NODE` is a capture as `railscope simulate node` writes it; that of a node that is down ends early.
`DIRECTORY/arrivals.csv` has the heartbeats of all nodes, `DIRECTORY/agent.toml` the settings of agents that read the records of
collectives, if a job has any. `DIRECTORY/truth.jsonl` has one line per fault: its
class and cause, the jobs and NICs that suffer from it, times in UTC, and the action. A
victim is a job that is slower than without faults, or a NIC that is paused. Where faults
overlap, the speed of jobs is that of the time in which a fault acts alone, if there is any.
"""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from railscope.capture import CaptureMetadata, CaptureMoment, CaptureWriter
from railscope.timestamps import SECOND_NS, format_timestamp
from railscope_simulator import lldp_neighbours, simulation
from railscope_simulator.cluster import collective_records, collectives
from railscope_simulator.cluster.arrivals import Heartbeat, HeartbeatPath
from railscope_simulator.cluster.cluster_model import ClusterModel
from railscope_simulator.cluster.scenario import (
    FAULT_KINDS,
    ClusterScenario,
    JobPlan,
    PlannedClusterFault,
)
from railscope_simulator.nfs_mounts import server_name
from railscope_simulator.node_hardware import build_node_hardware
from railscope_simulator.owners import slurm_job_number
from railscope_simulator.spec import STARTED_WALL_NS, TimeSpan, seconds_to_ns

_MAX_VICTIM_SPEED = 0.95
"""A job with a lower relative speed is a victim."""

_MIN_VICTIM_PAUSE_SHARE = 0.01
"""A NIC that is paused for a larger share of a fault's time is a victim."""


class GroundTruthRecorder:
    """Ground truth of a simulation: how much the jobs and the NICs suffer from each fault."""

    def __init__(self, model: ClusterModel) -> None:
        self._model = model
        self._faults = model.scenario.faults
        # For each fault: all steps in which it acts, and those in which no other fault does.
        shape = (2, len(self._faults), len(model.jobs))
        self._worked_seconds, self._iterations = np.zeros(shape), np.zeros(shape)
        self._paused_seconds = [np.zeros_like(model.paused) for _ in self._faults]

    def add(self, start_ns: int) -> None:
        """Add the last step of the model."""
        now_seconds = self._model.offset_ns / SECOND_NS
        length_seconds = (self._model.offset_ns - start_ns) / SECOND_NS
        acting = [index for index, fault in enumerate(self._faults) if fault.acts(now_seconds)]
        for index in acting:
            self._paused_seconds[index] += self._model.paused * length_seconds
            steps, rows = self._model.steps, slice(2 if len(acting) == 1 else 1)
            self._worked_seconds[rows, index] += [
                step.working_share * length_seconds for step in steps
            ]
            self._iterations[rows, index] += [step.progress.iterations for step in steps]

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the ground truth of each fault."""
        started_ns = self._model.specs[0].started_wall_ns
        duration_seconds = self._model.scenario.seconds
        for index, fault in enumerate(self._faults):
            kind = FAULT_KINDS[fault.fault]
            if not kind.incident_class:
                continue
            is_over = fault.end_seconds <= duration_seconds
            yield {
                "fault": fault.fault,
                "strength": fault.strength,
                "class": kind.incident_class,
                "cause": self._cause(fault, kind.entity),
                "accepted": kind.accepted,
                "onset": format_timestamp(started_ns + seconds_to_ns(fault.begin_seconds)),
                "ended": format_timestamp(started_ns + seconds_to_ns(fault.end_seconds))
                if is_over
                else None,
                "action": kind.action,
                "jobs": list(self._slowed_jobs(index)),
                "victims": list(self._paused_nics(index, fault)),
                **self._ranks(fault, kind.entity),
            }

    def _slowed_jobs(self, fault: int) -> Iterator[dict[str, Any]]:
        row = int(self._worked_seconds[1, fault].any())
        # The job's own working time is the reference: its checkpoints and pauses are not an effect of a
        # fault.
        worked, iterations = self._worked_seconds[row, fault], self._iterations[row, fault]
        for job, seconds_of, count in zip(self._model.jobs, worked, iterations, strict=True):
            speed = count * job.iteration_seconds / seconds_of if seconds_of else 1.0
            if speed < _MAX_VICTIM_SPEED:
                yield {**self._job(job.plan), "speed": round(float(speed), 3)}

    def _job(self, plan: JobPlan) -> dict[str, Any]:
        spec = self._model.specs[plan.nodes[0]]
        workloads = {
            "slurm": str(slurm_job_number(spec)),
            "kubernetes": f"{spec.tenant}/{plan.name}",
        }
        workload = workloads.get(spec.scheduler, plan.name)
        names = {"tenant": spec.tenant, "source": spec.scheduler, "workload": workload}
        return {"kind": "job", "job": plan.name, **names}

    def _paused_nics(self, index: int, fault: PlannedClusterFault) -> Iterator[dict[str, Any]]:
        end_seconds = min(fault.end_seconds, self._model.scenario.seconds)
        length_seconds = max(end_seconds - fault.begin_seconds, 1e-9)
        shares = self._paused_seconds[index] / length_seconds
        for node, rail in np.argwhere(shares > _MIN_VICTIM_PAUSE_SHARE).tolist():
            # A NIC with the fault is its cause, and not a victim.
            if not (node in fault.nodes and rail in (fault.indices or [rail])):
                yield self._nic(node, rail)

    def _nic(self, node: int, rail: int) -> dict[str, Any]:
        spec = self._model.specs[node]
        port = build_node_hardware(spec).ports[rail]
        names = {
            "interface": port.interface,
            "device": port.rdma_device,
            "pci_address": port.pci_address,
        }
        return {"kind": "nic", "node": spec.node, **names, "rail": rail}

    def _ranks(self, fault: PlannedClusterFault, entity: str) -> dict[str, list[int]]:
        """Return the ranks on the devices of a fault, if their job leaves records of its collectives."""
        rails, found = self._model.topology.rails, list[int]()
        if entity not in {"gpu", "nic", "node"}:
            return {}
        for job in self._model.jobs:
            for place, node in enumerate(job.plan.nodes if job.plan.collectives else ()):
                if node in fault.nodes:
                    found += [place * rails + index for index in fault.indices or range(rails)]
        return {"ranks": found} if found else {}

    def _cause(self, fault: PlannedClusterFault, entity: str) -> list[dict[str, Any]]:
        """Return the entities of a fault."""
        rails = fault.indices or range(self._model.topology.rails)
        if entity == "job":
            plans = [job.plan for job in self._model.jobs if job.plan.name == fault.job]
            return [self._job(plan) for plan in plans]
        if entity == "storage":
            return [{"kind": "storage", "server": server_name(index)} for index in fault.filers]
        if entity == "leaf":
            return [self._leaf(pod, rail) for pod in fault.pods for rail in rails]
        if entity == "node":
            return [{"kind": "node", "node": self._model.specs[node].node} for node in fault.nodes]
        if entity == "nic":
            return [self._nic(node, rail) for node in fault.nodes for rail in rails]
        return [self._gpu(node, index) for node in fault.nodes for index in rails]

    @staticmethod
    def _leaf(pod: int, rail: int) -> dict[str, Any]:
        return {
            "kind": "leaf",
            "pod": pod,
            "rail": rail,
            "switch": lldp_neighbours.leaf_name(pod, rail),
        }

    def _gpu(self, node: int, index: int) -> dict[str, Any]:
        spec = self._model.specs[node]
        gpu = build_node_hardware(spec).gpus[index]
        return {
            "kind": "gpu",
            "node": spec.node,
            "index": index,
            "uuid": gpu.uuid,
            "pci_address": gpu.pci_address,
        }


class SampledCluster:
    """A cluster that advances from sample to sample, with its heartbeats and its ground truth."""

    def __init__(self, scenario: ClusterScenario, started_wall_ns: int = STARTED_WALL_NS) -> None:
        self.scenario = scenario
        self.model = ClusterModel(scenario, started_wall_ns)
        self.paths = [HeartbeatPath(scenario, spec, i) for i, spec in enumerate(self.model.specs)]
        self._truth = GroundTruthRecorder(self.model)
        self._jobs = [
            collectives.JobCollectives(self.model, job)
            for job in self.model.jobs
            if job.plan.collectives
        ]
        self._collectives = {
            node: collective_records.NodeCollectives(job, place)
            for job in self._jobs
            for place, node in enumerate(job.job.plan.nodes)
        }
        self._recorders = [
            simulation.CaptureRecorder(node, *self._views(number))
            for number, node in enumerate(self.model.nodes)
        ]
        self._rng = self.model.specs[0].shared_stream("samples")

    def _views(self, number: int) -> list[simulation.NodeView]:
        found = self._collectives.get(number)
        return [found.show] if found else []

    def offsets(self) -> Iterator[int]:
        """Yield the offsets of the samples, each with its own deviation from the period."""
        scenario = self.scenario
        count = int(scenario.seconds / scenario.step_seconds)
        for number in range(count + 1):
            is_inner = 0 < number < count
            # The first and the last sample have no deviation: captures begin and end at the times in their
            # metadata.
            deviation = scenario.jitter * self._rng.uniform(-0.5, 0.5) if is_inner else 0.0
            yield seconds_to_ns((number + deviation) * scenario.step_seconds)

    def advance(self, offset_ns: int) -> TimeSpan:
        """Advance to a sample; return the time since the last one."""
        span = TimeSpan(self.model.offset_ns, offset_ns)
        if offset_ns:
            self.model.advance(offset_ns)
            self._truth.add(span.start_ns)
            for job in self._jobs:
                job.advance(span)
        for of_node in self._collectives.values():
            of_node.advance()
        return span

    def changes(self) -> Iterator[CaptureMoment | None]:
        """Yield the changes of each node since its last sample; None if it is down or the sample is lost."""
        offset_ns = self.model.offset_ns
        for path, recorder in zip(self.paths, self._recorders, strict=True):
            is_kept = not offset_ns or self._rng.random() >= self.scenario.lost
            is_sampled = is_kept and not path.is_off(offset_ns / SECOND_NS)
            yield recorder.changes() if is_sampled else None

    def metadata(self) -> Iterator[CaptureMetadata]:
        """Yield the metadata of the capture of each node."""
        faults = ", ".join(fault.fault for fault in self.scenario.faults) or "no faults"
        origin = f"simulated cluster: {faults}, seed {self.scenario.seed}"
        for node in self.model.nodes:
            spec = node.spec
            yield replace(simulation.capture_metadata(spec, self.scenario.seconds), origin=origin)

    def write_truth(self, directory: Path) -> None:
        """Write the ground truth of the faults. Raises OSError."""
        lines = "".join(json.dumps(line) + "\n" for line in self._truth.lines())
        (directory / "truth.jsonl").write_text(lines, encoding="utf-8")


def make_output_directory(directory: Path) -> None:
    """Create a directory for results. Raises OSError, also if it has content."""
    if directory.exists() and any(directory.iterdir()):
        raise FileExistsError(errno.EEXIST, "expected a new or empty directory", str(directory))
    directory.mkdir(parents=True, exist_ok=True)


def write_cluster(scenario: ClusterScenario, directory: Path) -> None:
    """Simulate a cluster, and write its captures and its ground truth into a new or empty directory.

    Raises OSError.
    """
    make_output_directory(directory)
    cluster, arrivals = SampledCluster(scenario), list[Heartbeat]()
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(CaptureWriter(directory / about.node, about))
            for about in cluster.metadata()
        ]
        for offset_ns in cluster.offsets():
            span = cluster.advance(offset_ns)
            arrivals += [beat for path in cluster.paths for beat in path.arrivals(span)]
            for writer, moment in zip(writers, cluster.changes(), strict=True):
                if moment is not None:
                    writer.write(moment)
    rows = "".join(f"{','.join(map(str, row))}\n" for row in sorted(arrivals, key=_received_ns))
    (directory / "arrivals.csv").write_text(f"node,sent,received\n{rows}", encoding="utf-8")
    cluster.write_truth(directory)
    if any(job.collectives for job in scenario.jobs):
        (directory / "agent.toml").write_text(collective_records.SETTINGS_FILE, encoding="utf-8")


def _received_ns(heartbeat: Heartbeat) -> int:
    return heartbeat.received_ns
