"""Faults of a drawn cluster: what each changes at its cause and at its victims, with drawn strengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from support.drawn_cluster import (
    FULL_STOP_FRAMES,
    GONE,
    GPUS,
    RAILS,
    TIMEOUT,
    DrawnCluster,
    Effect,
    Row,
    node_name,
)

from railscope.wire import WireEntity, WireEvent
from railscope_collector.diagnosis.devices import ClusterDevices
from railscope_collector.diagnosis.incidents import Incident


@dataclass(slots=True)
class DrawnFault:
    """A fault: class, cause by kind and place, and effect."""

    incident_class: str
    kind: str
    node: int
    index: int
    effect: Effect
    job: str = ""

    def is_cause(self, incident: Incident, devices: ClusterDevices) -> bool:
        """True if an incident has the cause of this fault."""
        cause = incident.cause
        if cause.kind != self.kind:
            return False
        if cause.kind in {"nic", "gpu"}:
            device = (devices.nics if cause.kind == "nic" else devices.gpus)[cause.position]
            index = device.rail if cause.kind == "nic" else device.index
            return (device.node, index) == (node_name(self.node), str(self.index))
        if cause.kind == "leaf":
            return cause.name.endswith(f"-{self.index}")
        if cause.job is not None:
            return cause.job.workload == self.job
        return cause.kind in {"storage", "rack"} or cause.name == node_name(self.node)


def _log_uniform(cluster: DrawnCluster, low: float, high: float) -> float:
    return float(np.exp(cluster.rng.uniform(np.log(low), np.log(high))))


def _place(cluster: DrawnCluster) -> tuple[int, int]:
    """Return a node of the first job, and the index of one of its devices."""
    return int(cluster.rng.choice(cluster.jobs[0].nodes)), int(cluster.rng.integers(RAILS))


def _leaf(cluster: DrawnCluster, node: int) -> slice:
    first = node // cluster.nodes_per_pod * cluster.nodes_per_pod
    return slice(first, first + cluster.nodes_per_pod)


def _pause_victims(cluster: DrawnCluster, row: Row, node: int, rail: int, share: float) -> None:
    """Pause the other NICs of a leaf."""
    members = row.nic["paused"][_leaf(cluster, node), rail]
    members += (
        share
        * cluster.rng.uniform(0.5, 1.5, members.shape)
        * (row.nic["send"][_leaf(cluster, node), rail] > 0)
    )
    row.nic["paused"][node, rail] = 0.0


def slow_receiver(cluster: DrawnCluster, name: str = "slow_receiver") -> DrawnFault:
    """A NIC that pauses its switch port; PCIe stalls, or the host, may be the reason."""
    node, rail = _place(cluster)
    share, speed = _log_uniform(cluster, 0.008, 0.35), float(cluster.rng.uniform(0.35, 0.85))
    marked, stall = _log_uniform(cluster, 0.005, 0.1), float(cluster.rng.uniform(0.28, 0.8))
    narrow = bool(cluster.rng.random() < 0.5)
    discards = _log_uniform(cluster, 1, 200)
    socket = slice(rail // 4 * 4, rail // 4 * 4 + 4)

    def effect(drawn: DrawnCluster, row: Row, _: int) -> None:
        drawn.slow_job(row, drawn.job_of(node), speed)
        rails = range(socket.start, socket.stop) if name == "host_bound_receiver" else [rail]
        for each in rails:
            row.nic["pausing"][node, each] = share * drawn.rng.uniform(0.8, 1.2)
            row.nic["marked"][node, each] = marked
            _pause_victims(drawn, row, node, each, 0.3 * share)
        if name == "pcie_bound_receiver":
            row.nic["stall"][node, rail] = stall
            if narrow:
                row.nic["width"][node, rail] = 8
            else:
                row.nic["discards"][node, rail] = discards

    kind = "node" if name == "host_bound_receiver" else "nic"
    return DrawnFault(name, kind, node, rail, effect)


def storm(cluster: DrawnCluster) -> DrawnFault:
    """A NIC that pauses all the time."""
    node, rail = _place(cluster)
    share, speed = float(cluster.rng.uniform(0.8, 1)), float(cluster.rng.uniform(0.02, 0.3))

    def effect(drawn: DrawnCluster, row: Row, _: int) -> None:
        drawn.slow_job(row, drawn.job_of(node), speed)
        row.nic["pausing"][node, rail] = share
        row.nic["pausing_frames"][node, rail] = share * FULL_STOP_FRAMES
        row.nic["receive"][node, rail] *= 0.001
        _pause_victims(drawn, row, node, rail, 0.4)

    return DrawnFault("pfc_storm", "nic", node, rail, effect)


def incast(cluster: DrawnCluster) -> DrawnFault:
    """A NIC that receives more than its peers."""
    node, rail = _place(cluster)
    level, marked = float(cluster.rng.uniform(0.83, 0.97)), _log_uniform(cluster, 0.012, 0.4)
    speed = float(cluster.rng.uniform(0.55, 0.9))

    def effect(drawn: DrawnCluster, row: Row, _: int) -> None:
        drawn.slow_job(row, drawn.job_of(node), speed)
        if row.nic["send"][node, rail] > 0.02:
            row.nic["receive"][node, rail] = level
            row.nic["marked"][node, rail] = marked
            _pause_victims(drawn, row, node, rail, 0.05)

    return DrawnFault("incast_receiver", "nic", node, rail, effect)


def leaf_settings(cluster: DrawnCluster, name: str) -> DrawnFault:
    """A leaf that does not mark, does not pause, or drops."""
    node, rail = _place(cluster)
    members = _leaf(cluster, node), rail
    frames, order = _log_uniform(cluster, 100, 3000), _log_uniform(cluster, 0.5, 50)
    timeouts = float(cluster.rng.uniform(0.1, 2))

    def effect(drawn: DrawnCluster, row: Row, _: int) -> None:
        busy = row.nic["send"][members] > 0.01
        if name == "ecn_inactive":
            row.nic["marked"][members] = 0.0
            row.nic["paused_frames"][members] = frames * drawn.noise(0.3, busy.shape) * busy
        elif name == "lossless_broken":
            for pause in ("paused", "pausing", "paused_frames", "pausing_frames"):
                row.nic[pause][members] = 0.0
            row.nic["marked"][members] *= 20
            row.nic["order"][members] = order * busy
            row.nic["timeouts"][members] = timeouts * busy * (drawn.rng.random(busy.shape) < 0.3)
        else:
            row.nic["naks"][members] = row.nic["order"][members] = order * busy

    return DrawnFault(name, "leaf", node, rail, effect)


def congestion_control(cluster: DrawnCluster, name: str) -> DrawnFault:
    """A node with NICs that ignore notifications, or send outside the lossless priority."""
    node, _ = _place(cluster)
    share, naks = float(cluster.rng.uniform(0.3, 1)), _log_uniform(cluster, 1, 50)

    def effect(drawn: DrawnCluster, row: Row, _: int) -> None:
        busy = row.nic["send"][node] > 0.01
        if name == "cnp_ignored":
            row.nic["ignores"][node] = drawn.rng.uniform(50, 2000, RAILS) * busy
            row.nic["reacts"][node] = 0.0
        else:
            row.nic["unprotected"][node] = share * busy
            row.nic["naks"][node] = naks * busy

    return DrawnFault(name, "node", node, 0, effect)


def transceiver(cluster: DrawnCluster) -> DrawnFault:
    """A transceiver with bit errors."""
    node, rail = _place(cluster)
    errors, lost = 10 ** float(cluster.rng.uniform(-5.6, -3.6)), _log_uniform(cluster, 0.1, 50)

    def effect(_: DrawnCluster, row: Row, __: int) -> None:
        row.nic["bit_errors"][node, rail] = errors
        if errors > 5e-5:
            row.nic["uncorrected"][node, rail], row.nic["order"][node, rail] = lost, lost / 2

    return DrawnFault("transceiver_degraded", "nic", node, rail, effect)


def flap(cluster: DrawnCluster) -> DrawnFault:
    """A link that goes down and comes up."""
    node, rail = _place(cluster)
    downs = int(cluster.rng.integers(1, 6))

    def effect(_: DrawnCluster, row: Row, since: int) -> None:
        if since % 4 == 0 and since // 4 < downs:
            row.nic["downs"][node, rail] = 1
            row.nic["send"][node, rail] *= 0.3
            row.nic["timeouts"][:, rail] += 1

    return DrawnFault("link_flap", "nic", node, rail, effect)


def link_down(cluster: DrawnCluster) -> DrawnFault:
    """A link that stays down; the job hangs."""
    node, rail = _place(cluster)

    def effect(drawn: DrawnCluster, row: Row, _: int) -> None:
        row.nic["up"][node, rail] = 0
        row.nic["timeouts"][drawn.jobs[0].nodes, rail] += 0.5
        drawn.slow_job(row, drawn.job_of(node), 0.0)

    return DrawnFault("link_down", "nic", node, rail, effect)


def nvlink(cluster: DrawnCluster) -> DrawnFault:
    """An NVLink with errors."""
    node, index = _place(cluster)
    rate, speed = _log_uniform(cluster, 0.3, 300), float(cluster.rng.uniform(0.7, 1))

    def effect(drawn: DrawnCluster, row: Row, _: int) -> None:
        row.gpu["nvlink_errors"][node, index] = rate
        drawn.slow_job(row, drawn.job_of(node), speed)

    return DrawnFault("nvlink_errors", "gpu", node, index, effect)


def thermal(cluster: DrawnCluster) -> DrawnFault:
    """A hot GPU."""
    node, index = _place(cluster)
    factor, share = float(cluster.rng.uniform(0.5, 0.9)), float(cluster.rng.uniform(0.5, 1))

    def effect(drawn: DrawnCluster, row: Row, _: int) -> None:
        drawn.slow_job(row, drawn.job_of(node), max(factor, 0.55), (node, index))
        row.gpu["clock"][node, index] *= factor
        row.gpu["thermal"][node, index] = share
        row.gpu["temperature"][node, index] = 88.0

    return DrawnFault("thermal_straggler", "gpu", node, index, effect)


def power_brake(cluster: DrawnCluster) -> DrawnFault:
    """A power supply that limits the GPUs of two nodes."""
    nodes = cluster.jobs[0].nodes[:2]
    factor = float(cluster.rng.uniform(0.4, 0.7))

    def effect(drawn: DrawnCluster, row: Row, _: int) -> None:
        drawn.slow_job(row, drawn.jobs[0], factor)
        row.gpu["clock"][nodes] *= factor
        row.gpu["brake"][nodes] = 0.9

    return DrawnFault("hw_slowdown", "rack", nodes[0], 0, effect)


def gpu_failure(cluster: DrawnCluster, name: str) -> DrawnFault:
    """A GPU that is lost, does not answer, or has a broken memory row."""
    node, index = _place(cluster)
    xid = 63 if name == "row_remap" else 79

    def effect(drawn: DrawnCluster, row: Row, since: int) -> None:
        if name == "row_remap":
            row.gpu["remap"][node, index] = 1
        else:
            row.absent[node, index] = GONE if name == "gpu_lost" else TIMEOUT
            drawn.slow_job(row, drawn.job_of(node), 0.0)
        if since == 0 and name != "gpu_unresponsive":
            entity = WireEntity("xid", (f"0000:{index:02x}:00.0", str(xid)))
            row.events.append((node, WireEvent("xid", 0, entity, 0, 0, {})))

    return DrawnFault(name, "gpu", node, index, effect)


def storage(cluster: DrawnCluster) -> DrawnFault:
    """A file server that is slow for all."""
    factor, use = float(cluster.rng.uniform(6, 60)), float(cluster.rng.uniform(0.3, 0.65))

    def effect(drawn: DrawnCluster, row: Row, _: int) -> None:
        row.mount["latency"] *= factor
        for job in drawn.jobs:
            row.gpu["utilization"][job.nodes] *= use
            drawn.slow_job(row, job, use)

    return DrawnFault("storage_bound", "storage", 0, 0, effect)


def slow_input(cluster: DrawnCluster) -> DrawnFault:
    """A data loader that is too slow."""
    job = cluster.jobs[0]
    use, speed = float(cluster.rng.uniform(0.3, 0.7)), float(cluster.rng.uniform(0.2, 0.65))

    def effect(drawn: DrawnCluster, row: Row, _: int) -> None:
        row.gpu["utilization"][job.nodes] *= use
        drawn.slow_job(row, job, speed)

    return DrawnFault("dataloader_stall", "job", 0, 0, effect, job.name)


def hang(cluster: DrawnCluster) -> DrawnFault:
    """A collective that does not end."""
    job = cluster.jobs[0]

    def effect(_: DrawnCluster, row: Row, __: int) -> None:
        shape = (len(job.nodes), GPUS)
        for name, value in (
            ("utilization", 1.0),
            ("activity", 0.15),
            ("tensor", 0.0),
            ("nvlink", 0.0),
        ):
            row.gpu[name][job.nodes] = np.full(shape, value)
        row.gpu["power"][job.nodes] = 150.0
        for name in ("send", "receive"):
            row.nic[name][job.nodes] = 2e-4

    return DrawnFault("nccl_hang", "job", 0, 0, effect, job.name)


def slow_gpu(cluster: DrawnCluster) -> DrawnFault:
    """A GPU that computes more slowly at an equal clock."""
    node, index = _place(cluster)
    speed = 1 / float(cluster.rng.uniform(1.08, 2))

    def effect(drawn: DrawnCluster, row: Row, _: int) -> None:
        drawn.slow_job(row, drawn.job_of(node), speed, (node, index))

    return DrawnFault("gpu_straggler", "gpu", node, index, effect)


def late_host(cluster: DrawnCluster) -> DrawnFault:
    """A host that launches late."""
    node, _ = _place(cluster)
    idle = float(cluster.rng.uniform(0.08, 0.5))

    def effect(drawn: DrawnCluster, row: Row, _: int) -> None:
        drawn.slow_job(row, drawn.job_of(node), 1 - idle)
        row.gpu["utilization"][node] *= 1 - idle
        row.node["pressure"][node] += 0.2

    return DrawnFault("host_late", "node", node, 0, effect)


def clock(cluster: DrawnCluster) -> DrawnFault:
    """A clock that drifts away."""
    node, _ = _place(cluster)
    target = _log_uniform(cluster, 0.1, 5) * float(cluster.rng.choice([-1, 1]))

    def effect(_: DrawnCluster, row: Row, since: int) -> None:
        row.offsets[node] += target * min(1.0, (since + 1) / 3)

    return DrawnFault("clock_skew", "node", node, 0, effect)


def partition(cluster: DrawnCluster) -> DrawnFault:
    """A node with frames that do not arrive."""
    node, _ = _place(cluster)

    def effect(_: DrawnCluster, row: Row, __: int) -> None:
        row.cut_nodes.add(node)

    return DrawnFault("agent_partition", "node", node, 0, effect)


def node_down(cluster: DrawnCluster) -> DrawnFault:
    """A node that is gone; its job hangs."""
    node, _ = _place(cluster)

    def effect(drawn: DrawnCluster, row: Row, _: int) -> None:
        drawn.slow_job(row, drawn.job_of(node), 0.0)
        row.stale_nodes.add(node)
        row.nic["timeouts"][drawn.jobs[0].nodes] += 0.5

    return DrawnFault("node_down", "node", node, 0, effect)


FAULTS: dict[str, Callable[[DrawnCluster], DrawnFault]] = {
    "slow_receiver": slow_receiver,
    "pcie_bound_receiver": lambda cluster: slow_receiver(cluster, "pcie_bound_receiver"),
    "host_bound_receiver": lambda cluster: slow_receiver(cluster, "host_bound_receiver"),
    "pfc_storm": storm,
    "incast_receiver": incast,
    "ecn_inactive": lambda cluster: leaf_settings(cluster, "ecn_inactive"),
    "lossless_broken": lambda cluster: leaf_settings(cluster, "lossless_broken"),
    "leaf_loss": lambda cluster: leaf_settings(cluster, "leaf_loss"),
    "cnp_ignored": lambda cluster: congestion_control(cluster, "cnp_ignored"),
    "unprotected_traffic": lambda cluster: congestion_control(cluster, "unprotected_traffic"),
    "transceiver_degraded": transceiver,
    "link_flap": flap,
    "link_down": link_down,
    "nvlink_errors": nvlink,
    "thermal_straggler": thermal,
    "hw_slowdown": power_brake,
    "gpu_lost": lambda cluster: gpu_failure(cluster, "gpu_lost"),
    "gpu_unresponsive": lambda cluster: gpu_failure(cluster, "gpu_unresponsive"),
    "row_remap": lambda cluster: gpu_failure(cluster, "row_remap"),
    "storage_bound": storage,
    "dataloader_stall": slow_input,
    "nccl_hang": hang,
    "gpu_straggler": slow_gpu,
    "host_late": late_host,
    "clock_skew": clock,
    "agent_partition": partition,
    "node_down": node_down,
}
"""Faults by class."""
