"""The GPUs of the node under all the names that others have for them.

What was there once keeps its names: a GPU that is lost, or handed to a virtual machine, is still the
one that somebody holds.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agent.gpus.inventory import GpuDevice
from agent.gpus.slices import WHOLE, Slots

UNKNOWN_NUMBER = -1
_MIB = 1 << 20


class Part(msgspec.Struct, frozen=True):
    """A MIG device; its slots are None where they could not be made out."""

    uuid: str
    profile: str
    gpu_instance: str
    compute_instance: str
    index: str
    start: int | None = None
    compute: Slots | None = None
    memory: Slots | None = None


class Known(msgspec.Struct, frozen=True):
    """A GPU and its names. Numbers are -1 where they are not known."""

    uuid: str
    pci_address: str
    index: int
    minor: int
    parts: tuple[Part, ...] = ()
    memory_mib: int = 0
    """0 where it is not known."""


class Device(msgspec.Struct, frozen=True):
    """What a name stands for: a GPU, or a part of it with its slots."""

    gpu: str
    id: str
    compute: Slots = WHOLE
    memory: Slots = WHOLE
    profile: str = ""
    exact: bool = True
    """Whether the slots are known."""


class Devices:
    """GPUs and MIG devices by each of their names."""

    def __init__(self, present: Iterable[Known] = (), before: Iterable[Known] = ()) -> None:
        """GPUs that are there, and those that were: of two with one name, the one that is there."""
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
        """Those that NVML told of, and those that are remembered."""
        return cls([known(gpu) for gpu in gpus], before)

    def gpu(self, uuid: str) -> Device:
        """A GPU by its UUID, which need not be known here."""
        return Device(uuid, uuid)

    def with_index(self, index: int) -> Device | None:
        """The GPU with an index of NVML."""
        return _whole(self._by_index.get(index))

    def with_minor(self, minor: int) -> Device | None:
        """The GPU whose file is /dev/nvidiaN."""
        return _whole(self._by_minor.get(minor))

    def at(self, pci_address: str) -> Device | None:
        """The GPU at a PCI address."""
        return _whole(self._by_address.get(pci_address))

    def mig(self, uuid: str) -> Device | None:
        """A MIG device by its UUID."""
        found = self._parts.get(uuid)
        return _part(*found) if found else None

    def instance(self, gpu: str, gpu_instance: str, compute_instance: str = "") -> Device | None:
        """A MIG device by the ids of its instances; the first of a GPU instance where only that is told."""
        owner = self.all.get(gpu)
        for part in owner.parts if owner else ():
            wanted = (gpu_instance, compute_instance or part.compute_instance)
            if (part.gpu_instance, part.compute_instance) == wanted:
                return _part(owner, part)
        return None

    def mig_with_index(self, gpu: str, index: int) -> Device | None:
        """A MIG device by its place among those of its GPU."""
        owner = self.all.get(gpu)
        found = (part for part in (owner.parts if owner else ()) if part.index == str(index))
        return next((_part(owner, part) for part in found), None)

    def mig_placed(self, gpu: str, start: int) -> Device | None:
        """A MIG device by the first slice of memory it has."""
        owner = self.all.get(gpu)
        found = (part for part in (owner.parts if owner else ()) if part.start == start)
        return next((_part(owner, part) for part in found), None)

    def memory_mib(self, place: str | int | None) -> int | None:
        """Memory of a GPU by UUID or index; without a name, that of all GPUs where they are alike."""
        if place is None:
            sizes = {gpu.memory_mib for gpu in self.present}
            return sizes.pop() or None if len(sizes) == 1 else None
        device = self.with_index(place) if isinstance(place, int) else None
        gpu = self.all.get(device.gpu if device else str(place))
        return gpu.memory_mib or None if gpu else None

    @property
    def names(self) -> str:
        """For messages: what there is."""
        return ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in self.present) or "none"


def known(gpu: GpuDevice) -> Known:
    """A GPU as NVML told of it."""
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
    assert gpu is not None  # noqa: S101 - a part is of the GPU it was found with
    if part.compute is None or part.memory is None:
        return Device(gpu.uuid, part.uuid, profile=part.profile, exact=False)
    return Device(gpu.uuid, part.uuid, part.compute, part.memory, part.profile)
