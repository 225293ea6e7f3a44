"""Users of a GPU: one process, several, MIG instances or virtual machines, and their shares of it.

All follow the same job; each tenant has its own relative load and memory use.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from simulator.gpu_model import MEBIBYTE, GpuModel, MigProfile, VgpuType
from simulator.job import Demand
from simulator.spec import NodeSpec

JOB, MPS_SERVER, VGPU_MANAGER = "python3", "nvidia-cuda-mps", "vgpu"
"""Names of processes as in /proc/PID/comm: at most 15 bytes."""

ALONE = frozenset({"whole", "passthrough"})
"""Modes in which a process has a complete GPU, and takes part in the job's exchange."""

_CLIENTS, _VIRTUAL_MACHINES = 4, 3
_SERVER_BYTES = 30 * MEBIBYTE
_OVERHEAD_BYTES = 9 * MEBIBYTE
"""Driver overhead in each memory slice of a MIG instance."""

_PAGE_BYTES = 2 * MEBIBYTE
_PIDS_PER_GPU = 8
_MAX_DEVICES = 7
_FIRST_VGPU = 3_251_634_176


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A GPU instance with one compute instance that uses all of it."""

    uuid: str
    index: int
    profile: MigProfile
    gpu_instance: int
    start: int
    """Its first memory slice."""
    compute_instance: int = 0

    @property
    def memory_bytes(self) -> int:
        """Memory of the instance."""
        return self.profile.memory_mebibytes * MEBIBYTE

    @property
    def overhead_bytes(self) -> int:
        """Memory in use without any process."""
        return self.profile.memory_slices * _OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class Vgpu:
    """A virtual GPU, and the share of its frame buffer that the guest uses."""

    number: int
    uuid: str
    machine: str
    kind: VgpuType
    used_bytes: int


@dataclass(frozen=True, slots=True)
class Tenant:
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
    mig: MigDevice | None = None
    vgpu: Vgpu | None = None
    mps_client: bool = False
    stays: bool = False


class Sharing:
    """The tenants of one GPU, and those present after the last span."""

    def __init__(self, spec: NodeSpec, model: GpuModel, index: int) -> None:
        self.mode = spec.mode
        self.mig_devices = _cut(spec, model, index) if spec.mode == "mig" else ()
        first_pid = spec.stream("processes").randrange(20_000, 50_000)
        pids = iter(range(first_pid + 1 + index * _PIDS_PER_GPU, 1 << 22))
        part = _Part(model, spec.stream(f"gpu {index} tenants"), pids, first_pid)
        self._tenants = tuple(_TENANTS[spec.mode](part, self.mig_devices))
        self._compute = sum(tenant.compute * tenant.load for tenant in self._tenants)
        self._memory = sum(tenant.memory * tenant.load for tenant in self._tenants)
        self.present = tuple(tenant for tenant in self._tenants if tenant.stays)
        self._demand = Demand()

    @property
    def all_ever(self) -> tuple[Tenant, ...]:
        """Every tenant, present or not."""
        return self._tenants

    @property
    def used_bytes(self) -> int:
        """Memory of the GPU that is in use."""
        return sum(tenant.held_bytes for tenant in self.present) + sum(
            device.overhead_bytes for device in self.mig_devices
        )

    def on(self, device: MigDevice) -> list[Tenant]:
        """Return the tenants that are present on a MIG device."""
        return [tenant for tenant in self.present if tenant.mig == device]

    def demand_on(self, device: MigDevice) -> Demand:
        """Return the part of the job's demand on a MIG device; shares are of the device."""
        load = sum(tenant.load for tenant in self.on(device))
        return replace(
            self._demand,
            occupied=self._demand.occupied * (load > 0),
            activity=self._demand.activity * load,
            memory_activity=self._demand.memory_activity * load,
        )

    def part_of(self, tenant: Tenant) -> tuple[float, float]:
        """Return a tenant's shares of the GPU's busy time and of its memory's."""
        return (
            tenant.compute * tenant.load / self._compute,
            tenant.memory * tenant.load / self._memory,
        )

    def take(self, demand: Demand) -> Demand:
        """Apply the job's demand to the tenants; return the resulting demand on the GPU."""
        self._demand = demand
        if demand.resident:
            self.present = self._tenants
        else:
            self.present = tuple(tenant for tenant in self._tenants if tenant.stays)
        if self.mode in ALONE:
            return demand
        # Virtual machines use time slices in turn: unused time of a slice is idle.
        taken = self._compute if self.mode == "vgpu" else 1.0
        return replace(
            demand,
            occupied=demand.occupied * taken,
            activity=demand.activity * self._compute,
            memory_activity=demand.memory_activity * self._memory,
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """Inputs for the creation of tenants."""

    model: GpuModel
    dice: random.Random
    pids: Iterator[int]
    server_pid: int

    @property
    def room_bytes(self) -> int:
        """Memory available to processes."""
        return self.model.memory_bytes - self.model.reserved_bytes

    def held(self, of_bytes: float, least: float, most: float) -> int:
        """Return a random share of an amount of memory, in whole pages."""
        return int(of_bytes * self.dice.uniform(least, most)) // _PAGE_BYTES * _PAGE_BYTES

    def process(self, count: int, least: float, most: float) -> Tenant:
        """Return one of `count` processes of the job with equal shares."""
        share = 1.0 / count
        held = self.held(self.room_bytes * share, least, most)
        return Tenant(next(self.pids), JOB, share, share, 1.0, held)


def _whole(part: _Part, _: tuple[MigDevice, ...]) -> Iterator[Tenant]:
    yield part.process(1, 0.85, 0.89)


def _time_slices(part: _Part, _: tuple[MigDevice, ...]) -> Iterator[Tenant]:
    for _number in range(2):
        yield part.process(2, 0.5, 0.8)


def _mps_clients(part: _Part, _: tuple[MigDevice, ...]) -> Iterator[Tenant]:
    yield Tenant(part.server_pid, MPS_SERVER, 0.0, 0.0, 0.0, _SERVER_BYTES)
    for _number in range(_CLIENTS):
        yield replace(part.process(_CLIENTS, 0.5, 0.8), mps_client=True)


def _instances(part: _Part, devices: tuple[MigDevice, ...]) -> Iterator[Tenant]:
    """Yield a process on each MIG device except the last, which is free."""
    for device in devices[:-1]:
        yield Tenant(
            next(part.pids),
            JOB,
            compute=device.profile.multiprocessors / part.model.multiprocessors,
            memory=device.memory_bytes / part.room_bytes,
            load=part.dice.uniform(0.4, 1.0),
            held_bytes=part.held(device.memory_bytes - device.overhead_bytes, 0.3, 0.9),
            mig=device,
        )


def _virtual_machines(part: _Part, _: tuple[MigDevice, ...]) -> Iterator[Tenant]:
    kind = part.model.vgpu_type
    if kind is None:
        return
    for _number in range(_VIRTUAL_MACHINES):
        pid, used = next(part.pids), part.held(kind.frame_buffer_bytes, 0.3, 0.9)
        guest = Vgpu(_FIRST_VGPU + pid, _uuid(part.dice), _uuid(part.dice), kind, used)
        yield Tenant(
            pid,
            VGPU_MANAGER,
            compute=1.0 / _VIRTUAL_MACHINES,
            memory=kind.frame_buffer_bytes / part.room_bytes,
            load=part.dice.uniform(0.2, 0.9),
            held_bytes=kind.frame_buffer_bytes,
            vgpu=guest,
            stays=True,
        )


_TENANTS: dict[str, Callable[[_Part, tuple[MigDevice, ...]], Iterator[Tenant]]] = {
    "whole": _whole,
    "passthrough": _whole,
    "mps": _mps_clients,
    "time_slicing": _time_slices,
    "mig": _instances,
    "vgpu": _virtual_machines,
}


def _cut(spec: NodeSpec, model: GpuModel, index: int) -> tuple[MigDevice, ...]:
    """Partition even GPUs into seven small instances, odd ones into a large and two medium ones."""
    small, middle, large = model.mig_profiles
    profiles = [large, middle, middle] if index % 2 else [small] * _MAX_DEVICES
    starts = [4, 0, 2] if index % 2 else range(_MAX_DEVICES)
    dice = spec.stream(f"gpu {index} instances")
    return tuple(
        MigDevice(
            f"MIG-{_uuid(dice)}",
            place,
            profile,
            profile.first_instance + profiles[:place].count(profile),
            start,
        )
        for place, (profile, start) in enumerate(zip(profiles, starts, strict=True))
    )


def _uuid(dice: random.Random) -> str:
    return str(uuid.UUID(int=dice.getrandbits(128), version=4))
