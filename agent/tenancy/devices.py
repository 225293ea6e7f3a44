"""GPUs of the node under all names that claim providers use for them.

The names of a GPU outlive it: a GPU that is lost, or passed to a virtual machine, may still be claimed.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agent.gpus.inventory import GpuDevice
from agent.gpus.slices import WHOLE, Slots

UNKNOWN_NUMBER = -1
_MIB = 1 << 20


class Part(msgspec.Struct, frozen=True):
    """A MIG device; its slots are None if they could not be determined."""

    uuid: str
    profile: str
    gpu_instance: str
    compute_instance: str
    index: str
    start: int | None = None
    compute: Slots | None = None
    memory: Slots | None = None


class Known(msgspec.Struct, frozen=True):
    """A GPU and its names. Unknown numbers are -1."""

    uuid: str
    pci_address: str
    index: int
    minor: int
    parts: tuple[Part, ...] = ()
    memory_mib: int = 0
    """Memory in MiB; 0 if unknown."""


class Device(msgspec.Struct, frozen=True):
    """Device that a name stands for: a GPU, or a part of it with its slots."""

    gpu: str
    id: str
    compute: Slots = WHOLE
    memory: Slots = WHOLE
    profile: str = ""
    exact: bool = True
    """True if the slots are known."""


class Devices:
    """GPUs and MIG devices by each of their names."""

    def __init__(self, present: Iterable[Known] = (), before: Iterable[Known] = ()) -> None:
        """Index present and remembered GPUs; if two have the same name, the present one counts."""
        here = {gpu.uuid: gpu for gpu in present}
        self.present = tuple(here.values())
        self.all = {gpu.uuid: gpu for gpu in before} | here
        order = [gpu for gpu in self.all.values() if gpu.uuid not in here] + list(here.values())
        self._by_index = {gpu.index: gpu for gpu in order if gpu.index != UNKNOWN_NUMBER}
        self._by_minor = {gpu.minor: gpu for gpu in order if gpu.minor != UNKNOWN_NUMBER}
        self._by_address = {gpu.pci_address: gpu for gpu in order if gpu.pci_address}
        self._parts = {part.uuid: (gpu, part) for gpu in order for part in gpu.parts}

    @classmethod
    def of(cls, gpus: Iterable[GpuDevice], before: Iterable[Known] = ()) -> Devices:
        """Build from the GPUs that NVML lists and the remembered ones."""
        return cls([known(gpu) for gpu in gpus], before)

    def gpu(self, uuid: str) -> Device:
        """Return a GPU by its UUID, which need not be in the inventory."""
        return Device(uuid, uuid)

    def with_index(self, index: int) -> Device | None:
        """Return the GPU with an NVML index."""
        return _whole(self._by_index.get(index))

    def with_minor(self, minor: int) -> Device | None:
        """Return the GPU with the device file /dev/nvidiaN."""
        return _whole(self._by_minor.get(minor))

    def at(self, pci_address: str) -> Device | None:
        """Return the GPU at a PCI address."""
        return _whole(self._by_address.get(pci_address))

    def mig(self, uuid: str) -> Device | None:
        """Return a MIG device by its UUID."""
        found = self._parts.get(uuid)
        return _part(*found) if found else None

    def instance(self, gpu: str, gpu_instance: str, compute_instance: str = "") -> Device | None:
        """Return a MIG device by its instance ids; without a compute instance, the GPU instance's first."""
        owner = self.all.get(gpu)
        for part in owner.parts if owner else ():
            wanted = (gpu_instance, compute_instance or part.compute_instance)
            if (part.gpu_instance, part.compute_instance) == wanted:
                return _part(owner, part)
        return None

    def mig_with_index(self, gpu: str, index: int) -> Device | None:
        """Return a MIG device by its index on its GPU."""
        owner = self.all.get(gpu)
        found = (part for part in (owner.parts if owner else ()) if part.index == str(index))
        return next((_part(owner, part) for part in found), None)

    def mig_placed(self, gpu: str, start: int) -> Device | None:
        """Return a MIG device by its first memory slice."""
        owner = self.all.get(gpu)
        found = (part for part in (owner.parts if owner else ()) if part.start == start)
        return next((_part(owner, part) for part in found), None)

    def memory_mib(self, place: str | int | None) -> int | None:
        """Return the memory of a GPU by UUID or index; without a name, that of all GPUs if it is equal."""
        if place is None:
            sizes = {gpu.memory_mib for gpu in self.present}
            return sizes.pop() or None if len(sizes) == 1 else None
        device = self.with_index(place) if isinstance(place, int) else None
        gpu = self.all.get(device.gpu if device else str(place))
        return gpu.memory_mib or None if gpu else None

    @property
    def names(self) -> str:
        """List of the GPUs that are present, for messages."""
        return ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in self.present) or "none"


def known(gpu: GpuDevice) -> Known:
    """Return the names of a GPU from the inventory."""
    facts = gpu.entity.facts
    parts = tuple(
        Part(
            device.uuid,
            device.entity.facts.get("profile", ""),
            device.entity.facts.get("gpu_instance", ""),
            device.entity.facts.get("compute_instance", ""),
            device.entity.facts.get("mig_index", ""),
            device.start,
            device.place.compute if device.place else None,
            device.place.memory if device.place else None,
        )
        for device in gpu.mig_devices
    )
    minor = facts.get("minor", "")
    return Known(
        gpu.entity.key[0],
        gpu.pci_address,
        gpu.index,
        int(minor) if minor.isdecimal() else UNKNOWN_NUMBER,
        parts,
        gpu.memory_bytes // _MIB,
    )


def _whole(gpu: Known | None) -> Device | None:
    return Device(gpu.uuid, gpu.uuid) if gpu else None


def _part(gpu: Known | None, part: Part) -> Device:
    assert gpu is not None  # noqa: S101 - a part belongs to the GPU it was found on
    if part.compute is None or part.memory is None:
        return Device(gpu.uuid, part.uuid, profile=part.profile, exact=False)
    return Device(gpu.uuid, part.uuid, part.compute, part.memory, part.profile)
