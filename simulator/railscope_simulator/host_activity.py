"""Host around the GPUs: processors, memory, disk, management network.

Processor time adds up: the rest of each span is idle time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from railscope.timestamps import MICROSECOND_NS, SECOND_NS
from railscope_simulator import (
    conditions,
    node_hardware,
    training_job,
)
from railscope_simulator.spec import DriftNoise, NodeSpec, TimeSpan, round_randomly

MEMORY_BYTES = 2_113_660_000_000 // 4096 * 4096
MODES = (
    "user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice",
)  # fmt: skip
LOAD_WINDOWS_SECONDS = (60, 300, 900)
PRESSURE_WINDOWS_SECONDS = (10, 60, 300)
RESOURCES = ("cpu", "memory", "io")

_PAGE_BYTES = 4096
_JOB_CPU, _SYSTEM_CPU = 0.30, 0.015
_JOB_MEMORY = 0.31
_CHECKPOINT_BYTES_PER_SECOND = 1_500_000_000
_REQUEST_BYTES = 1 << 17


@dataclass(slots=True)
class InterfaceTraffic:
    """Traffic of a kernel interface."""

    sent_bytes: int = 0
    received_bytes: int = 0
    sent_packets: int = 0
    received_packets: int = 0
    receive_errors: int = 0


@dataclass(slots=True)
class DiskActivity:
    """Activity of the disk."""

    reads: int = 0
    writes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    read_us: int = 0
    write_us: int = 0
    busy_us: int = 0


@dataclass(slots=True)
class PressureStall:
    """Time that tasks waited for a resource, and the averages over the windows, in percent."""

    some_us: int = 0
    full_us: int = 0
    some_percent: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    full_percent: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])


class HostState:
    """State of the host after the last span."""

    def __init__(self, spec: NodeSpec, uptime_ns: int) -> None:
        self._rng = spec.stream("server")
        self._drift = DriftNoise(self._rng, 15.0)
        self.cpu_ns = dict.fromkeys(MODES, 0)
        self.cpu_ns["user"] = int(0.28 * uptime_ns) * node_hardware.LOGICAL_CPUS
        self.cpu_ns["system"] = int(0.015 * uptime_ns) * node_hardware.LOGICAL_CPUS
        self.cpu_ns["idle"] = uptime_ns * node_hardware.LOGICAL_CPUS - sum(self.cpu_ns.values())
        self.load = [2.0, 2.0, 2.0]
        self.running, self.last_process = 3, self._rng.randrange(50_000, 200_000)
        self.processes = self._rng.randrange(2400, 2900)
        self.job_memory_bytes = 0
        self.cached_bytes = int(0.11 * MEMORY_BYTES) // _PAGE_BYTES * _PAGE_BYTES
        self.disk = DiskActivity()
        self.traffic = {
            node_hardware.ETHERNET: InterfaceTraffic(),
            node_hardware.LOOPBACK: InterfaceTraffic(),
        }
        self.pressure = {resource: PressureStall() for resource in RESOURCES}
        self._add_work_since_boot(uptime_ns)

    def advance(
        self, span: TimeSpan, demand: training_job.JobDemand, host: conditions.HostConditions
    ) -> None:
        """Advance by a span."""
        drift = self._drift.advance(span.seconds)
        busy = max(_JOB_CPU * demand.present * (1.0 + 0.1 * drift) + 0.004, 0.001)
        busy = min(busy + host.used, 0.9)
        waiting = 0.05 * demand.checkpoint + 0.05 * host.input_stall
        self._use_cpus(span, busy, waiting)
        self._use_memory(span, demand)
        self._use_disk(span, demand.checkpoint)
        self._use_network(span, demand.present)
        self._add_stalls(span, "cpu", 0.004 * busy + host.contention, 0.0)
        some = 0.002 + 0.4 * demand.checkpoint + 0.6 * host.input_stall
        full = 0.25 * demand.checkpoint + 0.4 * host.input_stall
        self._add_stalls(span, "io", some, full)

    def _use_cpus(self, span: TimeSpan, busy: float, waiting: float) -> None:
        capacity_ns = span.length_ns * node_hardware.LOGICAL_CPUS
        mode_ns = {
            "user": int(busy * capacity_ns),
            "system": int(_SYSTEM_CPU * (0.2 + busy) * capacity_ns),
            "iowait": int(waiting * capacity_ns),
            "softirq": int(0.0004 * capacity_ns),
        }
        # The remainder, not a share of its own: rounding must not add or lose time.
        mode_ns["idle"] = capacity_ns - sum(mode_ns.values())
        for mode, amount_ns in mode_ns.items():
            self.cpu_ns[mode] += amount_ns
        tasks = (busy + waiting) * node_hardware.LOGICAL_CPUS
        for place, window_seconds in enumerate(LOAD_WINDOWS_SECONDS):
            decay = math.exp(-span.seconds / window_seconds)
            self.load[place] = self.load[place] * decay + tasks * (1.0 - decay)
        self.running = 1 + round(tasks)
        self.last_process += round_randomly(6.0 * span.seconds, self._rng)

    def _use_memory(self, span: TimeSpan, demand: training_job.JobDemand) -> None:
        job = _JOB_MEMORY * MEMORY_BYTES * demand.resident
        self.job_memory_bytes = int(job) // _PAGE_BYTES * _PAGE_BYTES
        written = int(demand.checkpoint * _CHECKPOINT_BYTES_PER_SECOND * span.seconds)
        max_cached_bytes = int(0.3 * MEMORY_BYTES)
        self.cached_bytes = min(
            self.cached_bytes + written // _PAGE_BYTES * _PAGE_BYTES, max_cached_bytes
        )

    def _use_disk(self, span: TimeSpan, checkpoint: float) -> None:
        """Write logs all the time and checkpoints at intervals, in pages."""
        rate = 60_000 + checkpoint * _CHECKPOINT_BYTES_PER_SECOND
        pages = round_randomly(rate * span.seconds / _PAGE_BYTES, self._rng)
        writes = pages * _PAGE_BYTES // _REQUEST_BYTES + round_randomly(
            2.0 * span.seconds, self._rng
        )
        reads = round_randomly(0.3 * span.seconds, self._rng)
        self.disk.written_bytes += pages * _PAGE_BYTES
        self.disk.writes += writes
        self.disk.reads += reads
        self.disk.read_bytes += reads * 4 * _PAGE_BYTES
        self.disk.write_us += writes * (40 + round(400 * checkpoint))
        self.disk.read_us += reads * 90
        busy_us = writes * 12 + reads * 80
        self.disk.busy_us += min(busy_us, span.length_ns // MICROSECOND_NS)

    def _use_network(self, span: TimeSpan, present: float) -> None:
        for name, rate in (
            (node_hardware.ETHERNET, 9_000 + 24_000 * present),
            (node_hardware.LOOPBACK, 3_000.0),
        ):
            traffic = self.traffic[name]
            sent = round_randomly(
                rate * span.seconds / 400 * self._rng.uniform(0.8, 1.2), self._rng
            )
            received = (
                sent if name == node_hardware.LOOPBACK else round_randomly(sent * 1.1, self._rng)
            )
            traffic.sent_packets += sent
            traffic.sent_bytes += sent * 400
            traffic.received_packets += received
            traffic.received_bytes += received * (400 if name == node_hardware.LOOPBACK else 220)

    def _add_stalls(self, span: TimeSpan, resource: str, some: float, full: float) -> None:
        pressure = self.pressure[resource]
        length_us = span.length_ns // MICROSECOND_NS
        pressure.some_us += int(some * length_us)
        pressure.full_us += int(full * length_us)
        for place, window_seconds in enumerate(PRESSURE_WINDOWS_SECONDS):
            decay = math.exp(-span.seconds / window_seconds)
            for percent, share in ((pressure.some_percent, some), (pressure.full_percent, full)):
                percent[place] = percent[place] * decay + 100 * share * (1.0 - decay)

    def _add_work_since_boot(self, uptime_ns: int) -> None:
        uptime_seconds = uptime_ns // SECOND_NS
        self.disk.writes = uptime_seconds * 950
        self.disk.written_bytes = self.disk.writes * _REQUEST_BYTES
        self.disk.reads = uptime_seconds * 3
        self.disk.read_bytes = self.disk.reads * 4 * _PAGE_BYTES
        self.disk.write_us = self.disk.writes * 70
        self.disk.read_us = self.disk.reads * 90
        self.disk.busy_us = self.disk.writes * 12 + self.disk.reads * 80
        for traffic in self.traffic.values():
            traffic.sent_packets = uptime_seconds * 70
            traffic.sent_bytes = traffic.sent_packets * 400
            traffic.received_packets = traffic.sent_packets
            traffic.received_bytes = traffic.sent_bytes
        for pressure in self.pressure.values():
            pressure.some_us = uptime_seconds * 1500
            pressure.full_us = uptime_seconds * 400
