"""Users of a GPU: one process, several, MIG instances or virtual machines, with their shares of it.

All follow the same job; each tenant has its own relative load and memory use.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from railscope_simulator import device_models
from railscope_simulator.spec import NodeSpec
from railscope_simulator.training_job import JobDemand

JOB, MPS_SERVER, VGPU_MANAGER = "python3", "nvidia-cuda-mps", "vgpu"
"""Names of processes as in /proc/PID/comm: at most 15 bytes."""

ALONE = frozenset({"whole", "passthrough"})
"""Modes in which a process has a complete GPU, and takes part in the job's exchange."""

_CLIENTS, _VIRTUAL_MACHINES = 4, 3
_SERVER_BYTES = 30 * device_models.MEBIBYTE
_OVERHEAD_BYTES = 9 * device_models.MEBIBYTE
"""Driver overhead in each memory slice of a MIG instance."""

_PAGE_BYTES = 2 * device_models.MEBIBYTE
_PIDS_PER_GPU = 8
_MAX_DEVICES = 7
_FIRST_VGPU = 3_251_634_176


@dataclass(frozen=True, slots=True)
class SimulatedMigDevice:
    """A GPU instance with one compute instance that uses all of it."""

    uuid: str
    index: int
    profile: device_models.MigProfile
    gpu_instance: int
    start: int
    """Its first memory slice."""
    compute_instance: int = 0

    @property
    def memory_bytes(self) -> int:
        """Memory of the instance."""
        return self.profile.memory_mebibytes * device_models.MEBIBYTE

    @property
    def overhead_bytes(self) -> int:
        """Memory in use without any process."""
        return self.profile.memory_slices * _OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class SimulatedVgpu:
    """A virtual GPU, and the share of its frame buffer that the guest uses."""

    number: int
    uuid: str
    machine: str
    kind: device_models.VgpuType
    used_bytes: int


@dataclass(frozen=True, slots=True)
class GpuTenant:
    """A process on a GPU: its share of the GPU, its load, and its memory.

    `compute` and `memory` are shares of the GPU; `load` is relative to the job's demand. A tenant that
    stays is present without a job, too.
    """

    pid: int
    name: str
    compute: float
    memory: float
    load: float
    held_bytes: int
    mig: SimulatedMigDevice | None = None
    vgpu: SimulatedVgpu | None = None
    mps_client: bool = False
    stays: bool = False


def process_number(spec: NodeSpec, index: int) -> int:
    """Return the first process on a GPU."""
    return spec.stream("processes").randrange(20_000, 50_000) + 1 + index * _PIDS_PER_GPU


class GpuSharing:
    """All tenants of one GPU, and those present after the last span."""

    def __init__(self, spec: NodeSpec, model: device_models.GpuModel, index: int) -> None:
        self.mode = spec.mode
        self.mig_devices = _mig_devices_of(spec, model, index) if spec.mode == "mig" else ()
        # The MPS server is one process for all GPUs, and its number precedes those of the first GPU.
        first_pid = process_number(spec, 0) - 1
        pids = iter(range(process_number(spec, index), 1 << 22))
        rng = spec.stream(f"gpu {index} tenants")
        inputs = _TenantInputs(model, rng, pids, first_pid, self.mig_devices)
        self.tenants = tuple(_TENANTS[spec.mode](inputs))
        self._compute = sum(tenant.compute * tenant.load for tenant in self.tenants)
        self._memory = sum(tenant.memory * tenant.load for tenant in self.tenants)
        self.present = tuple(tenant for tenant in self.tenants if tenant.stays)
        self._demand = JobDemand()

    @property
    def used_bytes(self) -> int:
        """Memory of the GPU that is in use."""
        return sum(tenant.held_bytes for tenant in self.present) + sum(
            device.overhead_bytes for device in self.mig_devices
        )

    def tenants_on(self, device: SimulatedMigDevice) -> list[GpuTenant]:
        """Return the tenants that are present on a MIG device."""
        return [tenant for tenant in self.present if tenant.mig == device]

    def demand_on(self, device: SimulatedMigDevice) -> JobDemand:
        """Return the part of the job's demand on a MIG device; shares are of the device."""
        load = sum(tenant.load for tenant in self.tenants_on(device))
        return replace(
            self._demand,
            occupied=self._demand.occupied * (load > 0),
            activity=self._demand.activity * load,
            memory_activity=self._demand.memory_activity * load,
        )

    def part_of(self, tenant: GpuTenant) -> tuple[float, float]:
        """Return a tenant's shares of the GPU's busy time and of its memory's."""
        return (
            tenant.compute * tenant.load / self._compute,
            tenant.memory * tenant.load / self._memory,
        )

    def take(self, demand: JobDemand) -> JobDemand:
        """Apply the job's demand to the tenants; return the resulting demand on the GPU."""
        self._demand = demand
        if demand.resident:
            self.present = self.tenants
        else:
            self.present = tuple(tenant for tenant in self.tenants if tenant.stays)
        if self.mode in ALONE:
            return demand
        # Virtual machines use time slices in turn: unused time of a slice is idle.
        compute_share = self._compute if self.mode == "vgpu" else 1.0
        return replace(
            demand,
            occupied=demand.occupied * compute_share,
            activity=demand.activity * self._compute,
            memory_activity=demand.memory_activity * self._memory,
        )


@dataclass(frozen=True, slots=True)
class _TenantInputs:
    """Inputs for the creation of tenants."""

    model: device_models.GpuModel
    rng: random.Random
    pids: Iterator[int]
    server_pid: int
    mig_devices: tuple[SimulatedMigDevice, ...]

    @property
    def available_bytes(self) -> int:
        """Memory available to processes."""
        return self.model.memory_bytes - self.model.reserved_bytes

    def draw_pages(self, of_bytes: float, lower: float, upper: float) -> int:
        """Return a random share of an amount of memory, in whole pages."""
        return int(of_bytes * self.rng.uniform(lower, upper)) // _PAGE_BYTES * _PAGE_BYTES

    def process(self, count: int, lower: float, upper: float) -> GpuTenant:
        """Return one of `count` processes of the job with equal shares."""
        share = 1.0 / count
        held_bytes = self.draw_pages(self.available_bytes * share, lower, upper)
        return GpuTenant(next(self.pids), JOB, share, share, 1.0, held_bytes)


def _whole(inputs: _TenantInputs) -> Iterator[GpuTenant]:
    yield inputs.process(1, 0.85, 0.89)


def _time_slices(inputs: _TenantInputs) -> Iterator[GpuTenant]:
    for _ in range(2):
        yield inputs.process(2, 0.5, 0.8)


def _mps_clients(inputs: _TenantInputs) -> Iterator[GpuTenant]:
    yield GpuTenant(inputs.server_pid, MPS_SERVER, 0.0, 0.0, 0.0, _SERVER_BYTES)
    for _ in range(_CLIENTS):
        yield replace(inputs.process(_CLIENTS, 0.5, 0.8), mps_client=True)


def _instances(inputs: _TenantInputs) -> Iterator[GpuTenant]:
    """Yield a process on each MIG device except the last, which is free."""
    for device in inputs.mig_devices[:-1]:
        yield GpuTenant(
            next(inputs.pids),
            JOB,
            compute=device.profile.multiprocessors / inputs.model.multiprocessors,
            memory=device.memory_bytes / inputs.available_bytes,
            load=inputs.rng.uniform(0.4, 1.0),
            held_bytes=inputs.draw_pages(device.memory_bytes - device.overhead_bytes, 0.3, 0.9),
            mig=device,
        )


def _virtual_machines(inputs: _TenantInputs) -> Iterator[GpuTenant]:
    kind = inputs.model.vgpu_type
    if kind is None:
        return
    for _ in range(_VIRTUAL_MACHINES):
        pid, used = next(inputs.pids), inputs.draw_pages(kind.frame_buffer_bytes, 0.3, 0.9)
        guest = SimulatedVgpu(_FIRST_VGPU + pid, _uuid(inputs.rng), _uuid(inputs.rng), kind, used)
        yield GpuTenant(
            pid,
            VGPU_MANAGER,
            compute=1.0 / _VIRTUAL_MACHINES,
            memory=kind.frame_buffer_bytes / inputs.available_bytes,
            load=inputs.rng.uniform(0.2, 0.9),
            held_bytes=kind.frame_buffer_bytes,
            vgpu=guest,
            stays=True,
        )


_TENANTS: dict[str, Callable[[_TenantInputs], Iterator[GpuTenant]]] = {
    "whole": _whole,
    "passthrough": _whole,
    "mps": _mps_clients,
    "time_slicing": _time_slices,
    "mig": _instances,
    "vgpu": _virtual_machines,
}


def _mig_devices_of(
    spec: NodeSpec, model: device_models.GpuModel, index: int
) -> tuple[SimulatedMigDevice, ...]:
    """Partition even GPUs into seven small instances, odd ones into a large and two medium ones."""
    small, middle, large = model.mig_profiles
    profiles = [large, middle, middle] if index % 2 else [small] * _MAX_DEVICES
    starts = [4, 0, 2] if index % 2 else range(_MAX_DEVICES)
    rng = spec.stream(f"gpu {index} instances")
    return tuple(
        SimulatedMigDevice(
            f"MIG-{_uuid(rng)}",
            place,
            profile,
            profile.first_instance + profiles[:place].count(profile),
            start,
        )
        for place, (profile, start) in enumerate(zip(profiles, starts, strict=True))
    )


def _uuid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))
