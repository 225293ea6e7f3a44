"""GPUs of the node under all names that claim providers use for them.

The names of a GPU outlive it: a GPU that is lost, or passed to a virtual machine, may still be
claimed. Users and administrators name a device by GPU index, UUID, PCI address or device file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec

from railscope_agent.gpus.inventory import GpuDevice
from railscope_agent.gpus.mig_slots import WHOLE_GPU, GpuSlotRange
from railscope_agent.owners import kubernetes_devices
from railscope_agent.topology.pci import pci_address

UNKNOWN_NUMBER = -1
_MIB = 1 << 20


class MigNames(msgspec.Struct, frozen=True):
    """A MIG device; its slots are None if they could not be determined."""

    uuid: str
    profile: str
    gpu_instance: str
    compute_instance: str
    index: str
    start: int | None = None
    compute: GpuSlotRange | None = None
    memory: GpuSlotRange | None = None


class GpuNames(msgspec.Struct, frozen=True):
    """A GPU and its names. Unknown numbers are -1."""

    uuid: str
    pci_address: str
    index: int
    minor: int
    parts: tuple[MigNames, ...] = ()
    memory_mib: int = 0
    """Memory in MiB; 0 if unknown."""
    is_partitioned: bool = False
    """True in MIG mode: only its MIG devices can be granted."""


class ClaimableDevice(msgspec.Struct, frozen=True):
    """Device that a name stands for: a GPU, or a part of it with its slots."""

    gpu: str
    id: str
    compute: GpuSlotRange = WHOLE_GPU
    memory: GpuSlotRange = WHOLE_GPU
    profile: str = ""
    exact: bool = True
    """True if the slots are known."""


class NodeDevices:
    """GPUs and MIG devices by each of their names."""

    def __init__(self, present: Iterable[GpuNames] = (), before: Iterable[GpuNames] = ()) -> None:
        """Index present and remembered GPUs; if two have the same name, the present one counts."""
        present_gpus = {gpu.uuid: gpu for gpu in present}
        self.present = tuple(present_gpus.values())
        self.all = {gpu.uuid: gpu for gpu in before} | present_gpus
        # Remembered GPUs first, so that present ones replace them below under the same index or address.
        order = [gpu for gpu in self.all.values() if gpu.uuid not in present_gpus] + list(
            present_gpus.values()
        )
        self._by_index = {gpu.index: gpu for gpu in order if gpu.index != UNKNOWN_NUMBER}
        self._by_minor = {gpu.minor: gpu for gpu in order if gpu.minor != UNKNOWN_NUMBER}
        self._by_address = {gpu.pci_address: gpu for gpu in order if gpu.pci_address}
        self._parts = {part.uuid: (gpu, part) for gpu in order for part in gpu.parts}

    @classmethod
    def from_inventory(
        cls, gpus: Iterable[GpuDevice], before: Iterable[GpuNames] = ()
    ) -> NodeDevices:
        """Build from the GPUs that NVML lists and the remembered ones."""
        return cls([names_of_gpu(gpu) for gpu in gpus], before)

    def gpu(self, uuid: str) -> ClaimableDevice:
        """Return a GPU by its UUID; the inventory may lack it."""
        return ClaimableDevice(uuid, uuid)

    def gpu_with_index(self, index: int) -> ClaimableDevice | None:
        """Return the GPU with an NVML index."""
        return _whole_gpu(self._by_index.get(index))

    def gpu_with_minor(self, minor: int) -> ClaimableDevice | None:
        """Return the GPU with the device file /dev/nvidiaN."""
        return _whole_gpu(self._by_minor.get(minor))

    def gpu_with_number(self, number: int) -> ClaimableDevice | None:
        """Return the GPU that Slurm counts as a number: in the order of device files, with MIG devices.

        So the number names no device file at or after that of a GPU in MIG mode (slurm.schedmd.com/gres.html).
        """
        partitioned = [gpu.minor for gpu in self.present if gpu.is_partitioned]
        return (
            self.gpu_with_minor(number) if number < min(partitioned, default=number + 1) else None
        )

    def gpu_at(self, pci_address: str) -> ClaimableDevice | None:
        """Return the GPU at a PCI address."""
        return _whole_gpu(self._by_address.get(pci_address))

    def mig(self, uuid: str) -> ClaimableDevice | None:
        """Return a MIG device by its UUID."""
        named = self._parts.get(uuid)
        return _mig_device(*named) if named else None

    def mig_with_instance(
        self, gpu: str, gpu_instance: str, compute_instance: str = ""
    ) -> ClaimableDevice | None:
        """Return a MIG device by its instance ids; without a compute instance, the GPU instance's first."""
        return self.find_mig(
            gpu,
            lambda part: (
                part.gpu_instance == gpu_instance
                and compute_instance in {"", part.compute_instance}
            ),
        )

    def find_mig(self, gpu: str, test: Callable[[MigNames], bool]) -> ClaimableDevice | None:
        """Return the first MIG device of a GPU that passes a test."""
        owner = self.all.get(gpu)
        matches = (_mig_device(owner, part) for part in owner.parts if test(part)) if owner else ()
        return next(iter(matches), None)

    def memory_mib(self, place: str | int | None) -> int | None:
        """Return the memory of a GPU by UUID or index; without a name, that of all GPUs if it is equal."""
        if place is None:
            # A share in MiB without a device has one meaning only if all GPUs have the same memory.
            sizes = {gpu.memory_mib for gpu in self.present}
            return sizes.pop() or None if len(sizes) == 1 else None
        device = self.gpu_with_index(place) if isinstance(place, int) else None
        gpu = self.all.get(device.gpu if device else str(place))
        return gpu.memory_mib or None if gpu else None

    def has(self, uuid: str) -> bool:
        """True for the UUID of a GPU or MIG device of this node."""
        return uuid in self.all or uuid in self._parts

    def is_partitioned(self, gpu: str) -> bool:
        """True for the UUID of a GPU in MIG mode."""
        return gpu in self.all and self.all[gpu].is_partitioned

    @property
    def names(self) -> str:
        """List of the GPUs that are present, for messages."""
        return ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in self.present) or "none"


def names_of_gpu(gpu: GpuDevice) -> GpuNames:
    """Return the names of a GPU from the inventory."""
    facts = gpu.entity.facts
    parts = tuple(
        MigNames(
            device.uuid,
            device.entity.facts.get("profile", ""),
            device.entity.facts.get("gpu_instance", ""),
            device.entity.facts.get("compute_instance", ""),
            device.entity.facts.get("mig_index", ""),
            device.start,
            device.slots.compute if device.slots else None,
            device.slots.memory if device.slots else None,
        )
        for device in gpu.mig_devices
    )
    minor = facts.get("minor", "")
    return GpuNames(
        gpu.entity.key[0],
        gpu.pci_address,
        gpu.index,
        int(minor) if minor.isdecimal() else UNKNOWN_NUMBER,
        parts,
        gpu.memory_bytes // _MIB,
        gpu.mig_mode == "1",
    )


def _whole_gpu(gpu: GpuNames | None) -> ClaimableDevice | None:
    return ClaimableDevice(gpu.uuid, gpu.uuid) if gpu else None


def _mig_device(gpu: GpuNames, part: MigNames) -> ClaimableDevice:
    if part.compute is None or part.memory is None:
        # Unknown slots count as the whole GPU, and not exclusively: others may hold the rest.
        return ClaimableDevice(gpu.uuid, part.uuid, profile=part.profile, exact=False)
    return ClaimableDevice(gpu.uuid, part.uuid, part.compute, part.memory, part.profile)


_DEVICE_FILE = re.compile(r"/dev/nvidia(\d{1,4})")
_BUS_ADDRESS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
DEVICE_NAME_KINDS = "an index, a UUID of a GPU or MIG device, a PCI address or /dev/nvidiaN"


def find_device(text: str, devices: NodeDevices) -> ClaimableDevice | None:
    """Return the device of this node with a name; None if no device has it."""
    file = _DEVICE_FILE.fullmatch(text)
    if file:
        return devices.gpu_with_minor(int(file[1]))
    if _BUS_ADDRESS.fullmatch(text):
        return devices.gpu_at(pci_address(text))
    name = kubernetes_devices.parse_device_id(text)
    device = device_with_id(name, devices) if name else None
    # A UUID in the right form may be that of another node.
    return device if device and device.gpu in devices.all else None


def find_slurm_device(text: str, devices: NodeDevices) -> ClaimableDevice | None:
    """Return the device with a name of `owners.slurm.device_names`, whose device files are Slurm's numbers."""
    file = _DEVICE_FILE.fullmatch(text)
    return devices.gpu_with_number(int(file[1])) if file else find_device(text, devices)


def is_part(name: kubernetes_devices.DeviceId) -> bool:
    """True if an id names a part of its device without the size of the part."""
    match name:
        case kubernetes_devices.GpuIndexId() | kubernetes_devices.DeviceFileId():
            return False
        case _:
            return name.is_part


def device_with_id(
    name: kubernetes_devices.DeviceId, devices: NodeDevices
) -> ClaimableDevice | None:
    """Return the device with an id, ignoring its replica; the inventory may lack the UUID of a GPU."""
    device: ClaimableDevice | None
    match name:
        case kubernetes_devices.GpuId(uuid=uuid, mig_index=place) if place is not None:
            device = devices.find_mig(uuid, lambda part: part.index == str(place))
        case kubernetes_devices.GpuId(uuid=uuid):
            device = devices.gpu(uuid)
        case kubernetes_devices.MigDeviceId(uuid=uuid):
            device = devices.mig(uuid)
        case kubernetes_devices.MigInstanceId(gpu_uuid=uuid, gpu_instance=gi, compute_instance=ci):
            device = devices.mig_with_instance(uuid, str(gi), str(ci))
        case kubernetes_devices.GpuIndexId(index=index, mig_index=place):
            device = devices.gpu_with_index(index)
            if device and place is not None:
                device = devices.find_mig(device.gpu, lambda part: part.index == str(place))
        case kubernetes_devices.DeviceFileId(minor=minor, gpu_instance=gi):
            device = devices.gpu_with_minor(minor)
            if device and gi is not None:
                device = devices.mig_with_instance(device.gpu, str(gi))
    return device
