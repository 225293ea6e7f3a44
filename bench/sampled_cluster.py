"""Clusters of many sizes and job shapes, sampled by agents of many kinds: input for the diagnosis.

The readings of every second are accumulated as counters, and each node samples them at its own times: with a period of 1 to
15 seconds, jitter, loss, gaps, restarts of the agent and of the node, a late start and an early end. Kinds of adapters
and GPUs lack some counters, and some clusters have no LLDP, no claims, no mounts, or no record of arrivals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bench.drawn_cluster import FULL_STOP_FRAMES, LINE_BYTES, START_NS, Row, gpu_uuid, node_name
from bench.shaped_cluster import GPU_LACKS, NIC_LACKS, ShapedCluster, log_uniform
from railscope.timestamps import SECOND_NS
from railscope.wire import WireEntity, WireEvent
from railscope_collector.diagnosis.cluster_diagnosis import SLOT_SECONDS, ClusterDiagnosis, Receipt
from railscope_collector.diagnosis.findings import Flags
from railscope_collector.diagnosis.node_readings import MAX_STEP_SECONDS, NodeEvent
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.diagnosis.slot_sums import Floats

PERIODS_SECONDS = (1, 2, 5, 10, 15)
LOSSES = (0.0, 0.005, 0.02, 0.05)
MAX_HEARTBEAT_LOSS = 0.01
AGENT_RESTARTS, NODE_RESTARTS, GAPS = 1 / 15_000, 1 / 20_000, 1 / 30_000
"""Probabilities of events of a node in one second."""


class AgentTimes:
    """Times at which the agents of all nodes sample, in seconds since the start."""

    def __init__(self, cluster: ShapedCluster, rng: np.random.Generator, seconds: int) -> None:
        nodes, self._cluster, self._rng = cluster.nodes, cluster, rng
        self.period = float(rng.choice(PERIODS_SECONDS))
        self._jitter, self._loss = float(rng.uniform(0.0, 0.2)), float(rng.choice(LOSSES))
        self._begin, self._end = np.zeros(nodes), np.full(nodes, float(seconds))
        if rng.integers(5) < 2:  # noqa: PLR2004 - two of five
            some = rng.integers(5, size=nodes) == 0
            self._begin[some] = rng.uniform(0, 0.4 * seconds, some.sum())
            some = rng.integers(5, size=nodes) == 0
            if not cluster.has_arrivals:
                self._end[some] = rng.uniform(0.6 * seconds, seconds, some.sum())
        self._next: Floats = self._begin + rng.uniform(0, self.period, nodes)
        self._silent_until = np.zeros(nodes)
        self.restarted: Flags = np.zeros(nodes, np.bool_)
        """Nodes whose counters begin again."""
        self.is_first: Flags = np.ones(nodes, np.bool_)
        """Nodes of which the next sample has no predecessor."""

    def advance(self, second: int, stale: set[int]) -> tuple[Flags, Flags]:
        """Return the nodes that are sampled in a second, and those from which frames arrive."""
        rng, nodes = self._rng, self._cluster.nodes
        self._restart(second)
        due = (self._next <= second) & (second >= self._begin) & (second < self._end)
        step = self.period * (1 + self._jitter * rng.uniform(-1, 1, nodes))
        self._next = np.where(due, np.fmax(self._next + step, second + 0.5), self._next)
        due &= self._silent_until <= second
        due[list(stale)] = False
        sampled = due & (rng.random(nodes) >= self._loss)
        # Frames that are lost on the way are sent again: heartbeats are lost less often.
        sent = due & (rng.random(nodes) >= MAX_HEARTBEAT_LOSS)
        return sampled, sent if self._cluster.has_arrivals else sampled

    def _restart(self, second: int) -> None:
        """Restart agents now and then, and nodes without a job; some nodes have a gap."""
        rng = self._rng
        self.restarted[:] = False
        draws = rng.random(self._cluster.nodes)
        for number in np.flatnonzero(draws < AGENT_RESTARTS).tolist():
            self._silent_until[number] = second + rng.uniform(2, 15)
            self.is_first[number] = True
        for number in np.flatnonzero(draws > 1 - NODE_RESTARTS).tolist():
            job = self._cluster.job_of(number)
            if job is None or (job.phase == "down" and not job.claimed):
                silence = rng.uniform(100, 500)
                self._silent_until[number] = second + silence
                if job is not None:  # it cannot run before its node does
                    job.phase_seconds = max(job.phase_seconds, silence)
                self.restarted[number] = self.is_first[number] = True
        gaps = rng.random(self._cluster.nodes) < GAPS
        self._silent_until[gaps] = second + rng.uniform(
            10, 15 if self._cluster.has_arrivals else 90
        )


_GPU_MEANS = {
    "utilization": "utilization",
    "power": "power",
    "clock": "clock",
    "thermal": "thermal_active",
    "brake": "power_brake_active",
    "temperature": "temperature",
}
_GPU_COUNTERS = {
    "nvlink": "nvlink_bytes",
    "nvlink_errors": "nvlink_errors",
    "power": "energy",
    "ecc": "uncorrected_errors",
}
_GPU_INTERVALS = {"activity": "sm_activity", "tensor": "tensor_activity"}


@dataclass
class SampledCounters:
    """Counters of one kind of device, and what the samples of a slot add to them."""

    names: tuple[str, ...]
    values: Floats
    before: Floats
    sums: Floats
    weights: Floats

    @classmethod
    def make(cls, names: tuple[str, ...], nodes: int, of_node: int) -> SampledCounters:
        """Return counters that are zero."""
        shape = len(names), nodes, of_node
        return cls(names, np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(shape))


class _Sample(NamedTuple):
    """Nodes that are sampled in a second, those whose counters have a predecessor, and the seconds since it."""

    sampled: Flags
    valid: Flags
    seconds: Floats


def _drawn(rng: np.random.Generator, means: Floats) -> Floats:
    found: Floats = rng.poisson(means).astype(np.float64)
    return found


class SampledFeed:
    """Samples a cluster, and stores the samples as the sums of a diagnosis."""

    def __init__(self, cluster: ShapedCluster, seconds: int) -> None:
        self.cluster = cluster
        self.diagnosis = ClusterDiagnosis(START_NS, -(-seconds // SLOT_SECONDS))
        self.diagnosis.begin(-(-seconds // SLOT_SECONDS) - 1)
        self.diagnosis.has_receipts = cluster.has_arrivals
        devices = self.diagnosis.devices
        for number in range(cluster.nodes):
            node = devices.node(node_name(number))
            devices.add_entities(node, self._entities(number))
            if cluster.has_mounts:
                key = ("filer:/data", "/data", "tcp", "READ")
                devices.position(node, DeviceKind.MOUNT, WireEntity("nfs_operation", key))
        self.rng = np.random.default_rng([cluster.nodes, int(cluster.latency_seconds * 1e9)])
        self.counters: dict[tuple[DeviceKind, str], SampledCounters] = {}
        self.times = AgentTimes(cluster, self.rng, seconds)
        self._sampled_at = np.full(cluster.nodes, -1.0)
        self._latest: dict[tuple[DeviceKind, str], Floats] = {}
        self._last_sent = np.full(cluster.nodes, -100.0)

    def _entities(self, number: int) -> list[WireEntity]:
        cluster, pod = self.cluster, number // self.cluster.nodes_per_pod
        found = [
            WireEntity(
                "gpu",
                (gpu_uuid(number, index),),
                {"index": str(index), "pci_address": f"0000:{index:02x}:00.0", "model": "H100"},
            )
            for index in range(cluster.gpus)
        ]
        for rail in range(cluster.rails):
            address = f"0000:8{rail}:00.0"
            facts = {
                "rdma_device": f"mlx5_{rail}",
                "rail": str(rail),
                "role": "compute",
                "pci_address": address,
            }
            found += [
                WireEntity("nic", (f"eth{rail}",), facts),
                WireEntity("pcie", (address,), {"numa_node": str(rail // 4)}),
            ]
            if cluster.fabric != "unknown":
                switch = (
                    f"leaf-{pod}-{rail}" if cluster.fabric == "rails" else f"rack-{number // 4}"
                )
                found.append(WireEntity("nic_neighbour", (f"eth{rail}",), {"switch": switch}))
        return found

    # Samples -----------------------------------------------------------------------------------

    def put(self, second: int, row: Row) -> None:
        """Accumulate a second, and sample the nodes whose time has come."""
        sampled, is_heard = self.times.advance(second, row.stale_nodes)
        for counters in self.counters.values():
            counters.values[:, self.times.restarted] = 0
        passed = second - self._sampled_at
        valid = sampled & ~self.times.is_first & (passed <= MAX_STEP_SECONDS) & (passed > 0)
        self._put_rows(row, _Sample(sampled, valid, np.where(valid, passed, 1.0)))
        self.times.is_first[sampled] = False
        self._sampled_at[sampled] = second
        self._put_claims(second)
        self._put_receipts(second, row, is_heard)
        if (second + 1) % SLOT_SECONDS == 0:
            self._finish(second // SLOT_SECONDS)

    def _put_rows(self, row: Row, sample: _Sample) -> None:
        nic, rng = row.nic, self.cluster.rng
        rails = self.cluster.rails
        up = nic["up"] > 0
        sent, received = (nic[name] * LINE_BYTES * up for name in ("send", "receive"))
        packets = received / 4096
        marks = _drawn(rng, packets * nic["marked"])
        frame_seconds = self.cluster.frame_seconds
        increments: dict[str, Floats] = {
            "rdma_sent_bytes": sent,
            "rdma_received_bytes": received,
            "port_sent_bytes": sent,
            "port_received_bytes": received,
            "roce_received_packets": packets,
            "port_received_packets": packets,
            "pausing_seconds": nic["pausing"] + nic["pausing_frames"] * frame_seconds,
            "paused_seconds": nic["paused"] + nic["paused_frames"] * frame_seconds,
            "pause_frames_sent": nic["pausing_frames"] + nic["pausing"] * FULL_STOP_FRAMES,
            "pause_frames_received": nic["paused_frames"] + nic["paused"] * FULL_STOP_FRAMES,
            "storm_warnings": nic["storms"],
            "marked_packets": marks,
            "notifications_handled": nic["reacts"],
            "notifications_ignored": nic["ignores"],
            "notifications_sent": np.where(nic["notifies"] < 0, 0, 0.8 * marks),
            "out_of_sequence": _drawn(rng, nic["order"]),
            "ack_timeouts": _drawn(rng, nic["timeouts"]),
            "sequence_naks": _drawn(rng, nic["naks"]),
            "discarded_at_port": _drawn(rng, nic["discards"]),
            "write_stalled_seconds": nic["stall"],
            "corrected_bits": nic["bit_errors"] * LINE_BYTES * 8,
            "line_bytes": np.full_like(sent, LINE_BYTES),
            "uncorrected_symbols": _drawn(rng, nic["uncorrected"]),
            "link_downs": nic["downs"],
            "priority_3_sent_bytes": sent * (1 - nic["unprotected"]),
            "priority_0_sent_bytes": sent * nic["unprotected"] + 1e5,
        }
        lacks = NIC_LACKS[self.cluster.nic_kind]
        reported = {n: v[:, :rails] for n, v in increments.items() if not n.startswith(lacks)}
        self._count(DeviceKind.NIC, "counter", reported, sample)
        last = {
            "link_up": nic["up"],
            "link_speed": nic["speed"],
            "pcie_width": nic["width"],
            "pcie_width_limit": np.full_like(sent, 16.0),
            "expected_speed": np.full_like(sent, LINE_BYTES),
        }
        for name, values in last.items():
            if not name.startswith(lacks):
                self._keep(DeviceKind.NIC, name, values[:, :rails], sample.sampled)
        self._put_gpus(row, sample)
        node = {
            "cpu_seconds": np.ones(self.cluster.nodes),
            "cpu_idle_seconds": 1 - row.node["cpu"],
            "cpu_pressure_seconds": row.node["pressure"],
            "io_pressure_seconds": row.node["io"],
        }
        self._count(DeviceKind.NODE, "counter", {n: v[:, None] for n, v in node.items()}, sample)
        if self.cluster.has_mounts:
            reads, writes = (_drawn(rng, row.mount[n]) for n in ("operations", "writes"))
            mount = {
                "read_operations": reads,
                "read_seconds": reads * row.mount["latency"],
                "write_operations": writes,
                "write_seconds": writes * row.mount["write_latency"],
            }
            of_mounts = {n: v[:, None] for n, v in mount.items()}
            self._count(DeviceKind.MOUNT, "counter", of_mounts, sample)

    def _put_gpus(self, row: Row, sample: _Sample) -> None:
        gpu, lacks, gpus = row.gpu, GPU_LACKS[self.cluster.gpu_kind], self.cluster.gpus
        here: Flags = np.repeat(sample.sampled[:, None], gpus, axis=1)
        key = DeviceKind.GPU, "utilization_absence"
        codes = self._latest.setdefault(key, np.full(here.shape, np.nan))
        for (node, index), reason in row.absent.items():
            if index < gpus:
                if sample.sampled[node]:
                    codes[node, index] = reason
                here[node, index] = False
        for how, table in (("counter", _GPU_COUNTERS), ("interval", _GPU_INTERVALS)):
            reported = {q: gpu[n][:, :gpus] for n, q in table.items() if not q.startswith(lacks)}
            self._count(DeviceKind.GPU, how, reported, sample, here)
        self._gauge(DeviceKind.GPU, {q: gpu[n][:, :gpus] for n, q in _GPU_MEANS.items()}, here)
        self._keep(DeviceKind.GPU, "remap_pending", gpu["remap"][:, :gpus], sample.sampled)

    def _count(
        self,
        kind: DeviceKind,
        how: str,
        values: dict[str, Floats],
        sample: _Sample,
        here: Flags | None = None,
    ) -> None:
        """Accumulate counters, and add their increases, or their means, of the nodes that are sampled."""
        if not values:
            return
        stacked = np.stack(list(values.values()))
        counters = self.counters.get((kind, how))
        if counters is None:
            counters = SampledCounters.make(tuple(values), *stacked.shape[1:])
            self.counters[kind, how] = counters
        counters.values += stacked
        use: Flags = np.repeat(sample.valid[:, None], stacked.shape[2], axis=1)
        if here is not None:
            use = use & here
        step, seconds = counters.values - counters.before, sample.seconds[:, None]
        if how == "interval":
            counters.sums += np.where(use, step / seconds, 0)
            counters.weights += use
        else:
            rises = use & (step >= 0)
            counters.sums += np.where(rises, step, 0)
            counters.weights += rises * seconds
        counters.before[:, sample.sampled] = counters.values[:, sample.sampled]

    def _gauge(self, kind: DeviceKind, values: dict[str, Floats], here: Flags) -> None:
        stacked = np.stack(list(values.values()))
        counters = self.counters.get((kind, "gauge"))
        if counters is None:
            counters = SampledCounters.make(tuple(values), *stacked.shape[1:])
            self.counters[kind, "gauge"] = counters
        counters.sums += np.where(here, stacked, 0)
        counters.weights += here

    def _keep(self, kind: DeviceKind, name: str, values: Floats, sampled: Flags) -> None:
        latest = self._latest.setdefault((kind, name), np.full(values.shape, np.nan))
        latest[sampled] = values[sampled]

    def _finish(self, slot: int) -> None:
        """Store the sums of a slot."""
        for (kind, _), counters in self.counters.items():
            for number, name in enumerate(counters.names):
                self._store(
                    kind,
                    name,
                    slot,
                    counters.sums[number].ravel(),
                    counters.weights[number].ravel(),
                )
            counters.sums[:], counters.weights[:] = 0, 0
        for (kind, name), values in self._latest.items():
            present = ~np.isnan(values.ravel())
            self._store(kind, name, slot, np.nan_to_num(values.ravel()), present * 1.0)
            values[:] = np.nan

    def _store(
        self, kind: DeviceKind, name: str, slot: int, values: Floats, weights: Floats
    ) -> None:
        sums = self.diagnosis.devices.sums[kind]
        quantities = np.full(len(values), sums.index[name])
        devices = np.arange(len(values))[None]
        sums.add(quantities, np.array([slot]), devices, values[None], weights[None])

    def _put_claims(self, second: int) -> None:
        if not self.cluster.has_claims:
            return
        now_ns = START_NS + second * SECOND_NS
        for job, begins in self.cluster.claims:
            for number in job.nodes:
                for index in range(*job.gpus):
                    entity = WireEntity(
                        "claim", (gpu_uuid(number, index), f"{job.name}/{number}/{index}")
                    )
                    facts = {"source": "slurm", "workload": job.name, "owner": f"tenant-{job.name}"}
                    name = "claim_start" if begins else "claim_end"
                    event = WireEvent(name, 0, entity, now_ns, 0, facts)
                    self.diagnosis.add_event(NodeEvent(now_ns, node_name(number), event))

    def _put_receipts(self, second: int, row: Row, is_heard: Flags) -> None:
        now_ns = START_NS + second * SECOND_NS
        for number, event in row.events:
            self.diagnosis.add_event(NodeEvent(now_ns, node_name(number), event))
        if not self.cluster.has_arrivals:
            for number in np.flatnonzero(is_heard).tolist():
                self.diagnosis.add_receipt(Receipt(now_ns, node_name(number)))
            return
        stall = self.rng.random() < 1 / 1500
        for number in np.flatnonzero(is_heard & (second - self._last_sent >= 1)).tolist():
            if number in row.cut_nodes:
                continue
            self._last_sent[number] = second
            delay = log_uniform(self.rng, 0.001, 0.03)
            if stall or self.rng.random() < 0.002:  # noqa: PLR2004 - a connection or the collector is slow
                delay += float(self.rng.uniform(0.2, 3))
            offset = row.offsets[number] - delay
            self.diagnosis.add_receipt(
                Receipt(
                    now_ns + round(delay * SECOND_NS), node_name(number), round(offset * SECOND_NS)
                )
            )
