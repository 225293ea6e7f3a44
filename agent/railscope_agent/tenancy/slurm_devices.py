"""GPUs of a node as Slurm counts them.

An index of a GRES (IDX) counts the GPUs of the node, and to Slurm each MIG device is a GPU
(slurm.schedmd.com/gres.html, gres.conf(5)). A MIG device is found by its files in gres.conf, whose numbers the driver lists in
/proc/driver/nvidia/capabilities.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from railscope.claim_terms import GPU_CAPACITY
from railscope.slurm.resources import mig_profile
from railscope_agent.host import Host
from railscope_agent.owners.slurm import GresConf, GresDevice
from railscope_agent.sampling.fact_readers import read_text
from railscope_agent.tenancy.devices import ClaimableDevice, GpuNames, MigNames, NodeDevices

_CAPABILITIES = "/proc/driver/nvidia/capabilities"
_MINOR = "DeviceFileMinor:"
_FIRST_CAPABILITY, _PER_GPU, _PER_INSTANCE = 3, 135, 9
"""Numbers of a driver whose list cannot be read (MIG User Guide, /proc/driver/nvidia-caps/mig-minors: gpu31/gi14/ci7 has 4322)."""
_WHOLE = Fraction(1)


@dataclass(frozen=True, slots=True)
class GrantedGpu:
    """A GPU of a GRES: its device, or else its size as a share of a whole GPU, None if unknown."""

    device: ClaimableDevice | None = None
    size: Fraction | None = _WHOLE
    profile: str = ""


@dataclass(frozen=True, slots=True)
class SlurmDevices:
    """GPUs of a node with the list of gres.conf."""

    host: Host
    conf: GresConf
    devices: NodeDevices

    def with_index(self, index: int, type_: str) -> GrantedGpu:
        """Return the GPU with an index and a type."""
        listed = next((each for each in self.conf.devices if each.index == index), None)
        if listed and listed.capabilities:
            device = self._mig_device(listed)
            return GrantedGpu(device, None) if device else self.without_index(type_, listed.minor)
        if listed:
            file = listed.minor
            device = None if file is None else self.devices.gpu_with_minor(file)
        else:
            file = None
            # With a list in gres.conf, an index outside of it is unknown; a guess would bill another tenant's
            # GPU.
            device = None if self.conf.devices else self.devices.gpu_with_number(index)
        if device and not (mig_profile(type_) or self.devices.is_partitioned(device.gpu)):
            return GrantedGpu(device)
        return self.without_index(type_, file if device else None)

    def without_index(self, type_: str, minor: int | None = None) -> GrantedGpu:
        """Return what a GPU of a type amounts to; with a minor number, a MIG device of that GPU.

        Without a profile in its type, it is a MIG device only where all GPUs are in MIG mode.
        """
        profile = mig_profile(type_)
        gpu = self.devices.gpu_with_minor(minor) if minor is not None else None
        gpus = [each for each in self.devices.present if gpu is None or each.uuid == gpu.gpu]
        if gpu is None and not profile:
            if not self.devices.has_partitions:
                return GrantedGpu()
            # A node with whole and partitioned GPUs: without a type, the size of the granted one is unknown.
            if not all(each.is_partitioned for each in gpus):
                return GrantedGpu(size=_WHOLE if type_ else None)
        found = {
            (mig_profile(part.profile), _size(part))
            for each in gpus
            for part in each.parts
            if not profile or mig_profile(part.profile) == profile
        }
        # Several sizes of one profile: none of them is certain.
        name, size = found.pop() if len(found) == 1 else (profile, None)
        return GrantedGpu(size=size, profile=name)

    def _mig_device(self, listed: GresDevice) -> ClaimableDevice | None:
        """Return the MIG device whose files are those of a line of gres.conf."""
        device = self.devices.gpu_with_minor(listed.minor) if listed.minor is not None else None
        gpu = self.devices.all[device.gpu] if device else None
        if gpu is None:
            return None
        return self.devices.find_mig(
            gpu.uuid, lambda part: self._capabilities(gpu, part) == listed.capabilities
        )

    def _capabilities(self, gpu: GpuNames, part: MigNames) -> set[int]:
        """Return the minor numbers of the files of a GPU instance and its compute instance."""
        instance = f"{_CAPABILITIES}/gpu{gpu.minor}/mig/gi{part.gpu_instance}"
        gi, ci = int(part.gpu_instance or 0), int(part.compute_instance or 0)
        first = _FIRST_CAPABILITY + gpu.minor * _PER_GPU + gi * _PER_INSTANCE
        numbers = set()
        for directory, static in ((instance, first), (f"{instance}/ci{ci}", first + 1 + ci)):
            number = read_text(self.host, f"{directory}/access").partition(_MINOR)[2].split()[:1]
            numbers.add(next((int(digits) for digits in number if digits.isdecimal()), static))
        return numbers


def _size(part: MigNames) -> Fraction | None:
    slots = part.compute
    return Fraction(slots.high - slots.low, GPU_CAPACITY) if slots else None
