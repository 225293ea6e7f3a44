"""Ground truth of the faults of a simulated cluster: what a diagnosis should conclude.

`truth.jsonl` has one line for each fault with a class of incidents: its class and the others that are accepted, the entities of its
cause, its onset and end in UTC, and the ranks on its devices if their job leaves records of its collectives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from railscope.timestamps import format_timestamp
from railscope_simulator import lldp_neighbours
from railscope_simulator.cluster.cluster_model import ClusterModel
from railscope_simulator.cluster.scenario import FAULT_KINDS, JobPlan, PlannedClusterFault
from railscope_simulator.nfs_mounts import server_name
from railscope_simulator.node_hardware import build_node_hardware
from railscope_simulator.owners import slurm_job_number
from railscope_simulator.spec import seconds_to_ns


def truth_lines(model: ClusterModel) -> Iterator[dict[str, Any]]:
    """Yield the ground truth of each fault."""
    started_ns, duration_seconds = model.specs[0].started_wall_ns, model.scenario.seconds
    for fault in model.scenario.faults:
        kind = FAULT_KINDS[fault.fault]
        if not kind.incident_class:
            continue
        is_over = fault.end_seconds <= duration_seconds
        yield {
            "fault": fault.fault,
            "strength": fault.strength,
            "class": kind.incident_class,
            "cause": _cause(model, fault, kind.entity),
            "accepted": kind.accepted,
            "onset": format_timestamp(started_ns + seconds_to_ns(fault.begin_seconds)),
            "ended": format_timestamp(started_ns + seconds_to_ns(fault.end_seconds))
            if is_over
            else None,
            **_ranks(model, fault, kind.entity),
        }


def _ranks(model: ClusterModel, fault: PlannedClusterFault, entity: str) -> dict[str, list[int]]:
    """Return the ranks on the devices of a fault, if their job leaves records of its collectives."""
    rails, found = model.topology.rails, list[int]()
    if entity not in {"gpu", "nic", "node"}:
        return {}
    for job in model.jobs:
        for place, node in enumerate(job.plan.nodes if job.plan.collectives else ()):
            if node in fault.nodes:
                found += [place * rails + index for index in fault.indices or range(rails)]
    return {"ranks": found} if found else {}


def _cause(model: ClusterModel, fault: PlannedClusterFault, entity: str) -> list[dict[str, Any]]:
    """Return the entities of a fault."""
    rails = fault.indices or range(model.topology.rails)
    if entity == "job":
        plans = [job.plan for job in model.jobs if job.plan.name == fault.job]
        return [_job(model, plan) for plan in plans]
    if entity == "storage":
        return [{"kind": "storage", "server": server_name(index)} for index in fault.filers]
    if entity == "leaf":
        return [_leaf(pod, rail) for pod in fault.pods for rail in rails]
    if entity == "node":
        return [{"kind": "node", "node": model.specs[node].node} for node in fault.nodes]
    if entity == "nic":
        return [_nic(model, node, rail) for node in fault.nodes for rail in rails]
    return [_gpu(model, node, index) for node in fault.nodes for index in rails]


def _job(model: ClusterModel, plan: JobPlan) -> dict[str, Any]:
    spec = model.specs[plan.nodes[0]]
    workloads = {
        "slurm": str(slurm_job_number(spec)),
        "kubernetes": f"{spec.tenant}/{plan.name}",
    }
    workload = workloads.get(spec.scheduler, plan.name)
    names = {"tenant": spec.tenant, "source": spec.scheduler, "workload": workload}
    return {"kind": "job", "job": plan.name, **names}


def _leaf(pod: int, rail: int) -> dict[str, Any]:
    return {
        "kind": "leaf",
        "pod": pod,
        "rail": rail,
        "switch": lldp_neighbours.leaf_name(pod, rail),
    }


def _nic(model: ClusterModel, node: int, rail: int) -> dict[str, Any]:
    spec = model.specs[node]
    port = build_node_hardware(spec).ports[rail]
    names = {
        "interface": port.interface,
        "device": port.rdma_device,
        "pci_address": port.pci_address,
    }
    return {"kind": "nic", "node": spec.node, **names, "rail": rail}


def _gpu(model: ClusterModel, node: int, index: int) -> dict[str, Any]:
    spec = model.specs[node]
    gpu = build_node_hardware(spec).gpus[index]
    return {
        "kind": "gpu",
        "node": spec.node,
        "index": index,
        "uuid": gpu.uuid,
        "pci_address": gpu.pci_address,
    }
