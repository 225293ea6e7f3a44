"""Readings of a cluster at the input of the detectors, drawn around the levels of healthy nodes.

Nothing is simulated: no reading follows from another one. A test sets the readings of a fault, at its cause and at its victims,
as published cases and driver documentation describe them. `railscope_simulator.cluster` computes both from one model.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from railscope.reading import Absent
from railscope.timestamps import SECOND_NS
from railscope.wire import WireEntity, WireEvent
from railscope_collector.diagnosis.cluster_diagnosis import SLOT_SECONDS, ClusterDiagnosis, Receipt
from railscope_collector.diagnosis.node_readings import NodeEvent
from railscope_collector.diagnosis.quantities import QUANTITIES, DeviceKind
from railscope_collector.diagnosis.slot_sums import REPLACED_KINDS, Floats, Positions

GPUS, RAILS = 8, 8
LINE_BYTES = 50e9
FULL_STOP_FRAMES = 400e9 / (65_535 * 512)
SPIN_ACTIVITY, SPIN_WATTS, IDLE_WATTS = 0.15, 240.0, 75.0
START_NS = 1_760_000_000 * SECOND_NS
QUIET_SLOTS = 6
"""First slots without events, and those after a phase without a checkpoint."""
COUNTED = (
    "send", "receive", "pausing", "paused", "pausing_frames", "paused_frames", "storms",
    "notifies", "ignores", "order", "timeouts", "naks", "discards", "uncorrected", "downs",
    "unprotected", "adaptive",
)  # fmt: skip
"""Readings of a NIC that are 0 without a fault."""
_GPU_MEANS = {
    "utilization": "utilization", "activity": "sm_activity", "tensor": "tensor_activity", "power": "power", "clock": "clock",
    "thermal": "thermal_active", "brake": "power_brake_active", "temperature": "temperature", "graphics": "graphics_activity",
}  # fmt: skip
"""Quantities of the readings of a GPU that are means."""


@dataclass(slots=True)
class DrawnJob:
    """A job: its nodes, and the level of its readings."""

    nodes: list[int]
    name: str
    rate: float
    activity: float
    gpus: range = range(GPUS)
    """GPUs of each node that it holds."""


@dataclass(slots=True)
class Row:
    """Readings of all devices in one slot, before they are stored; NICs (nodes, rails), GPUs (nodes, GPUs)."""

    nic: dict[str, Floats]
    gpu: dict[str, Floats]
    node: dict[str, Floats]
    mount: dict[str, Floats]
    absent: dict[tuple[int, int], int] = field(default_factory=dict)
    """Absence reasons of GPUs by node and index."""
    stale_nodes: set[int] = field(default_factory=set)
    cut_nodes: set[int] = field(default_factory=set)
    """Nodes with frames that do not arrive while they go on."""
    events: list[tuple[int, WireEvent]] = field(default_factory=list)
    offsets: dict[int, float] = field(default_factory=dict)
    limited: dict[str, Floats] = field(default_factory=dict)
    """Other quantities with a limit, by name."""


class DrawnCluster:
    """A cluster of pods with jobs; `draw` returns the readings of the next slot."""

    leaf_name = "leaf-{pod}-{rail}"
    """Name of the leaf of a rail in a pod."""

    def __init__(
        self, seed: int, pods: int = 2, nodes_per_pod: int = 4, *, benign: bool = True
    ) -> None:
        self.rng, self.python_rng = np.random.default_rng(seed), random.Random(seed)  # noqa: S311 - repeatable on purpose
        self.pods, self.nodes_per_pod, self.nodes = pods, nodes_per_pod, pods * nodes_per_pod
        self.benign = benign
        first = max(3, int(0.6 * self.nodes))
        self.jobs = [
            self.add_job(list(range(first)), "101"),
            self.add_job(list(range(first, self.nodes - 1)), "102"),
        ]
        shape = self.nodes, RAILS
        self.marked = np.exp(self.rng.uniform(np.log(1e-5), np.log(1e-3), shape))
        self.frames = np.exp(self.rng.uniform(np.log(0.05), np.log(3), shape))
        self.frame_seconds = self.rng.uniform(2e-6, 6e-6, shape)
        self.bit_errors = 10 ** self.rng.normal(-8.3, 0.5, shape)
        self.offset_seconds = self.rng.normal(0, 4e-4, self.nodes)
        self.filers: dict[int, str] = {}
        """File servers of nodes, if they have not all the same."""
        self.slot = 0
        self._phases: dict[str, tuple[str, int]] = {}
        self._marked_until, self._marked_factor = 0, 1.0

    def add_job(self, nodes: list[int], name: str) -> DrawnJob:
        return DrawnJob(
            nodes, name, self.python_rng.uniform(0.25, 0.45), self.python_rng.uniform(0.55, 0.85)
        )

    def noise(self, share: float, shape: tuple[int, ...]) -> Floats:
        """Return factors with this share of log-normal noise."""
        return self.rng.lognormal(0.0, share, shape)

    def draw(self) -> Row:
        """Return the readings of the next slot, without faults."""
        shape, nodes = (self.nodes, RAILS), (self.nodes,)
        nic = {name: np.zeros(shape) for name in COUNTED}
        nic |= {
            "marked": self.marked * self.noise(0.5, shape),
            "bit_errors": self.bit_errors * self.noise(0.1, shape),
            "up": np.ones(shape),
            "speed": np.full(shape, LINE_BYTES),
            "width": np.full(shape, 16.0),
        }
        nic["stall"] = np.abs(self.rng.normal(0, 0.015, shape)) * 0.1
        nic["paused_frames"] = self.frames * self.noise(0.6, shape)
        nic["pausing_frames"] = 0.05 * nic["paused_frames"]
        gpu = {
            "utilization": np.zeros(shape),
            "activity": np.zeros(shape),
            "tensor": np.zeros(shape),
            "power": np.full(shape, IDLE_WATTS),
            "clock": np.full(shape, 345e6),
            "nvlink": np.zeros(shape),
            "thermal": np.zeros(shape),
            "brake": np.zeros(shape),
            "nvlink_errors": np.zeros(shape),
            "remap": np.zeros(shape),
            "ecc": np.zeros(shape),
            "temperature": np.full(shape, 32.0),
            "width": np.full(shape, 16.0),
        }
        node = {"cpu": np.full(nodes, 0.02), "pressure": np.zeros(nodes), "io": np.zeros(nodes)}
        mount = {"latency": 0.002 * self.noise(0.25, nodes), "operations": np.full(nodes, 20.0)}
        row = Row(nic, gpu, node, mount)
        row.offsets = dict(
            enumerate((self.offset_seconds + self.rng.normal(0, 2e-4, nodes)).tolist())
        )
        for job in self.jobs:
            self._work(row, job)
        if self.benign:
            self._disturb(row)
        nic["reacts"] = 0.8 * nic["marked"] * nic["send"] * LINE_BYTES / 4096
        self.slot += 1
        return row

    def _work(self, row: Row, job: DrawnJob) -> None:
        members = job.nodes
        shape = (len(members), RAILS)
        level = job.rate * self.noise(0.03, (1, 1)) * self.noise(0.05, shape)
        row.nic["send"][members] = row.nic["receive"][members] = level
        row.gpu["utilization"][members] = self.rng.uniform(0.97, 1.0, shape)
        row.gpu["activity"][members] = job.activity * self.noise(0.015, shape)
        row.gpu["tensor"][members] = 0.42 * self.noise(0.03, shape)
        row.gpu["power"][members] = 590 * self.noise(0.02, shape)
        row.gpu["clock"][members] = 1755e6 * self.noise(0.005, shape)
        row.gpu["nvlink"][members] = 120e9 * self.noise(0.05, shape)
        row.gpu["temperature"][members] = 64.0
        row.node["cpu"][members] = self.rng.normal(0.35, 0.03, len(members))
        row.node["pressure"][members] = np.abs(self.rng.normal(0, 0.004, len(members)))

    # Benign phases ---------------------------------------------------------------------------------

    def _disturb(self, row: Row) -> None:
        for job in self.jobs:
            phase, until = self._phases.get(job.name, ("", 0))
            if self.slot >= until:
                phase = self._next_phase(job, self.slot - until)
            self._apply_phase(row, job, phase)
        if self.slot >= self._marked_until and self.rng.random() < 0.005:
            self._marked_until, self._marked_factor = self.slot + 30, float(self.rng.uniform(5, 30))
        if self.slot < self._marked_until:
            row.nic["marked"] *= self._marked_factor
        spikes = self.rng.random((self.nodes, RAILS)) < 2e-4
        row.nic["paused_frames"][spikes] += self.rng.uniform(200, 3000)

    def _next_phase(self, job: DrawnJob, quiet_slots: int) -> str:
        draw = self.rng.random() if self.slot > QUIET_SLOTS else 1.0
        phase, low, high = "", 0, 0
        if draw < 1 / 60:
            phase, low, high = ("checkpoint", 2, 7) if quiet_slots > QUIET_SLOTS else ("", 0, 0)
        elif draw < 1 / 60 + 1 / 800:
            phase, low, high = "requeue", 6, 18
        elif draw < 1 / 60 + 2 / 800:
            phase, low, high = "evaluation", 12, 36
        if phase:
            self._phases[job.name] = phase, self.slot + int(self.rng.integers(low, high + 1))
        return phase

    def _apply_phase(self, row: Row, job: DrawnJob, phase: str) -> None:
        factors = {
            "checkpoint": (0.05, 0.3, 0.4),
            "requeue": (0.0, 0.0, 0.15),
            "evaluation": (0.3, 0.9, 0.75),
        }
        if phase not in factors:
            return
        exchange, use, power = factors[phase]
        for name in ("send", "receive"):
            row.nic[name][job.nodes] *= exchange
        row.gpu["nvlink"][job.nodes] *= exchange
        row.gpu["utilization"][job.nodes] *= use
        row.gpu["activity"][job.nodes] *= min(use, 0.8)
        row.gpu["tensor"][job.nodes] *= 0.6 * use
        row.gpu["power"][job.nodes] = np.fmax(row.gpu["power"][job.nodes] * power, IDLE_WATTS)
        if phase == "checkpoint":
            row.mount["latency"][job.nodes] *= 2.0

    def slow_job(
        self, row: Row, job: DrawnJob | None, speed: float, busy: tuple[int, int] | None = None
    ) -> None:
        """Slow a job down to a speed; its ranks wait, except for a busy GPU."""
        if job is None:
            return
        for name in ("send", "receive"):
            row.nic[name][job.nodes] *= speed
        for name in ("nvlink", "tensor"):
            row.gpu[name][job.nodes] *= speed
        kept_values = {name: row.gpu[name][busy] for name in ("activity", "power")} if busy else {}
        waits = row.gpu["utilization"][job.nodes] > 0.5
        for name, spin in (("activity", SPIN_ACTIVITY), ("power", SPIN_WATTS)):
            values = row.gpu[name][job.nodes]
            row.gpu[name][job.nodes] = np.where(waits, spin + (values - spin) * speed, values)
        if busy:
            for name in ("activity", "power"):
                row.gpu[name][busy] = kept_values[name]


_Readings: TypeAlias = tuple[str, Positions, Floats, Floats]
"""A quantity, its devices, its sums and weights."""


class DrawnFeed:
    """Stores drawn rows as the sums of a diagnosis, as the frames of real nodes would be."""

    def __init__(self, cluster: DrawnCluster, slots: int) -> None:
        self.cluster = cluster
        self.diagnosis = ClusterDiagnosis(START_NS, slots)
        self.diagnosis.begin(slots - 1)
        self.diagnosis.has_receipts = True
        devices = self.diagnosis.devices
        for number in range(cluster.nodes):
            node = devices.node(node_name(number))
            devices.add_entities(node, _entities(cluster, number))
            devices.position(
                node,
                DeviceKind.MOUNT,
                WireEntity(
                    "nfs_operation",
                    (f"{cluster.filers.get(number, 'filer')}:/data", "/data", "tcp", "READ"),
                ),
            )
        self._rows = defaultdict[tuple[DeviceKind, bool], list[_Readings]](list)
        self._add_claims()

    def _add_claims(self) -> None:
        for job in self.cluster.jobs:
            self.add_claim_events(job, "claim_start", START_NS)

    def add_claim_events(self, job: DrawnJob, kind: str, timestamp_ns: int) -> None:
        """Let a job hold its GPUs from a time on, or until then."""
        for number in job.nodes:
            for index in job.gpus:
                entity = WireEntity(
                    "claim", (gpu_uuid(number, index), f"{job.name}/{number}/{index}")
                )
                facts = {"source": "slurm", "workload": job.name, "owner": f"tenant-{job.name}"}
                event = WireEvent(kind, 0, entity, timestamp_ns, 0, facts)
                self.diagnosis.claims.add(NodeEvent(timestamp_ns, node_name(number), event))

    def end_job(self, job: DrawnJob, slot: int) -> None:
        """End a job at the start of a slot."""
        self.cluster.jobs.remove(job)
        self.add_claim_events(job, "claim_end", START_NS + slot * SLOT_SECONDS * SECOND_NS)

    def evaluate(self, slot: int, row: Row) -> None:
        """Store the readings of a slot, and evaluate it."""
        self.put(slot, row)
        self.diagnosis.arrange()
        self.diagnosis.evaluate(slot)

    def put(self, slot: int, row: Row) -> None:
        """Store the readings of a slot."""
        lost = self.cluster.rng.random(self.cluster.nodes) < 0.01
        here = [n not in row.stale_nodes and not lost[n] for n in range(self.cluster.nodes)]
        present: Floats = np.array(here)
        for number in np.flatnonzero(present).tolist():
            self.diagnosis.readings.last_slots[node_name(number)] = slot
        self._put_nics(row, present)
        self._put_gpus(row, present)
        for name, values in row.limited.items():
            weights = np.ones(values.size)
            self._add(QUANTITIES[name].device, name, values.ravel(), weights)
        seconds = np.where(present, SLOT_SECONDS, 0.0)
        for name, values, weights in (
            ("cpu_seconds", np.full(self.cluster.nodes, 1.0), seconds),
            ("cpu_idle_seconds", 1 - row.node["cpu"], seconds),
            ("cpu_pressure_seconds", row.node["pressure"] * SLOT_SECONDS, seconds),
            ("io_pressure_seconds", row.node["io"] * SLOT_SECONDS, seconds),
        ):
            self._add(DeviceKind.NODE, name, np.asarray(values, np.float64), weights)
        for kind, prefix in (("read", ""), ("write", "write_")):
            if f"{prefix}operations" in row.mount:
                count, latency = (row.mount[prefix + name] for name in ("operations", "latency"))
                for name, values in (("operations", count), ("seconds", count * latency)):
                    self._add(DeviceKind.MOUNT, f"{kind}_{name}", values * SLOT_SECONDS, seconds)
        self._store(slot)
        self._put_receipts(slot, row)

    def _put_receipts(self, slot: int, row: Row) -> None:
        end_ns = self.diagnosis.end_of(slot)
        for number in range(self.cluster.nodes):
            if number not in row.stale_nodes | row.cut_nodes:
                for back in (6, 1):
                    offset_ns = round(row.offsets[number] * SECOND_NS)
                    receipt = Receipt(end_ns - back * SECOND_NS, node_name(number), offset_ns)
                    self.diagnosis.add_receipt(receipt)
        for number, event in row.events:
            self.diagnosis.add_event(NodeEvent(end_ns - SECOND_NS, node_name(number), event))

    def _put_nics(self, row: Row, present: Floats) -> None:
        nic, frame = row.nic, self.cluster.frame_seconds
        seconds = np.repeat(np.where(present, SLOT_SECONDS, 0.0), RAILS)
        up = nic["up"] > 0
        sent, received = (
            nic[name] * LINE_BYTES * SLOT_SECONDS * up for name in ("send", "receive")
        )
        packets = np.nan_to_num(received / 4096)  # those of a counter that is not read
        marked = packets * nic["marked"]
        counters: dict[str, Floats] = {
            "rdma_sent_bytes": sent,
            "rdma_received_bytes": received,
            "roce_received_packets": packets,
            "pausing_seconds": (nic["pausing"] + nic["pausing_frames"] * frame) * SLOT_SECONDS,
            "paused_seconds": (nic["paused"] + nic["paused_frames"] * frame) * SLOT_SECONDS,
            "pause_frames_sent": (nic["pausing_frames"] + nic["pausing"] * FULL_STOP_FRAMES)
            * SLOT_SECONDS,
            "pause_frames_received": (nic["paused_frames"] + nic["paused"] * FULL_STOP_FRAMES)
            * SLOT_SECONDS,
            "storm_warnings": nic["storms"],
            "marked_packets": np.where(
                np.isnan(marked), np.nan, self.cluster.rng.poisson(np.nan_to_num(marked))
            ),
            "notifications_handled": (nic["reacts"] + nic.get("extra_notifications", 0.0))
            * SLOT_SECONDS,
            "notifications_ignored": nic["ignores"] * SLOT_SECONDS,
            "out_of_sequence": self._count(nic["order"]),
            "ack_timeouts": self._count(nic["timeouts"]),
            "adaptive_retransmissions": nic["adaptive"] * SLOT_SECONDS,
            "sequence_naks": self._count(nic["naks"]),
            "discarded_at_port": self._count(nic["discards"]),
            "write_stalled_seconds": nic["stall"] * SLOT_SECONDS,
            "corrected_bits": nic["bit_errors"] * LINE_BYTES * 8 * SLOT_SECONDS,
            "line_bytes": np.full_like(sent, LINE_BYTES * SLOT_SECONDS),
            "uncorrected_symbols": self._count(nic["uncorrected"]),
            "link_downs": nic["downs"],
            "priority_3_sent_bytes": sent * (1 - nic["unprotected"]),
            "priority_0_sent_bytes": sent * nic["unprotected"],
        }
        counters["notifications_sent"] = np.where(
            nic["notifies"] < 0, 0, counters["marked_packets"] * 0.8
        )
        for name, values in counters.items():
            self._add(DeviceKind.NIC, name, values.ravel(), seconds)
        for name, values in (
            ("link_up", nic["up"]),
            ("link_speed", nic["speed"]),
            ("pcie_width", nic["width"]),
            ("pcie_width_limit", np.full_like(sent, 16.0)),
            ("expected_speed", np.full_like(sent, LINE_BYTES)),
        ):
            self._add(DeviceKind.NIC, name, values.ravel(), seconds)
        if "gone" in nic:
            self._add(DeviceKind.NIC, "device_gone", nic["gone"].ravel(), nic["gone"].ravel())

    def _count(self, rates: Floats) -> Floats:
        return self.cluster.rng.poisson(rates * SLOT_SECONDS).astype(np.float64)

    def _put_gpus(self, row: Row, present: Floats) -> None:
        gpu, here = row.gpu, np.repeat(present, GPUS)
        for (node, index), reason in row.absent.items():
            gpu_number = node * GPUS + index
            here[gpu_number] = False
            if present[node]:
                code, unit = np.array([float(reason)]), np.ones(1)
                self._add(DeviceKind.GPU, "utilization_absence", code, unit, gpu_number)
        for name in _GPU_MEANS.keys() & gpu.keys():
            self._add(DeviceKind.GPU, _GPU_MEANS[name], gpu[name].ravel(), here * 1.0)
        seconds = here * float(SLOT_SECONDS)
        for name, quantity in (("nvlink", "nvlink_bytes"), ("nvlink_errors", "nvlink_errors")):
            self._add(DeviceKind.GPU, quantity, gpu[name].ravel() * SLOT_SECONDS, seconds)
        self._add(DeviceKind.GPU, "uncorrected_errors", gpu["ecc"].ravel(), seconds)
        self._add(DeviceKind.GPU, "remap_pending", gpu["remap"].ravel(), here * 1.0)
        self._add(DeviceKind.GPU, "width", gpu["width"].ravel(), here * 1.0)
        self._add(DeviceKind.GPU, "width_expected", np.full(here.shape, 16.0), here * 1.0)

    def _add(
        self, kind: DeviceKind, name: str, values: Floats, weights: Floats, first: int = 0
    ) -> None:
        """Add readings of devices that follow each other, from the first one; they are stored later."""
        row = name, np.arange(first, first + len(values)), values, np.asarray(weights, np.float64)
        self._rows[kind, QUANTITIES[name].kind in REPLACED_KINDS].append(row)

    def _store(self, slot: int) -> None:
        for (kind, _), rows in self._rows.items():
            sums = self.diagnosis.devices.sums[kind]
            names, *columns = zip(*rows, strict=True)
            devices, values, weights = (np.concatenate(column)[None] for column in columns)
            counts = [len(row[1]) for row in rows]
            quantities = np.repeat([sums.index[name] for name in names], counts)
            sums.add(quantities, np.array([slot]), devices, values, weights)
        self._rows.clear()


def node_name(number: int) -> str:
    """Return the name of a node."""
    return f"node-{number:04d}"


def gpu_uuid(node: int, index: int) -> str:
    """Return the UUID of a GPU."""
    return f"GPU-{node:04d}-{index}"


def _entities(cluster: DrawnCluster, number: int) -> list[WireEntity]:
    pod = number // cluster.nodes_per_pod
    found = [
        WireEntity(
            "gpu",
            (gpu_uuid(number, index),),
            {"index": str(index), "pci_address": f"0000:{index:02x}:00.0", "model": "H100"},
        )
        for index in range(GPUS)
    ]
    for rail in range(RAILS):
        address = f"0000:8{rail}:00.0"
        facts = {
            "rdma_device": f"mlx5_{rail}",
            "rail": str(rail),
            "role": "compute",
            "pci_address": address,
        }
        found += [
            WireEntity("nic", (f"eth{rail}",), facts),
            WireEntity(
                "nic_neighbour",
                (f"eth{rail}",),
                {"switch": cluster.leaf_name.format(pod=pod, rail=rail)},
            ),
            WireEntity("pcie", (address,), {"numa_node": str(rail // 4)}),
        ]
    return found


GONE, TIMEOUT = Absent.GONE.value, Absent.TIMEOUT.value
