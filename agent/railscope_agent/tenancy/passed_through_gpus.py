"""GPUs that are passed through to virtual machines.

A passed-through GPU is bound to vfio-pci and not visible to NVML. It keeps the UUID that it had
under the driver of this node, or else its PCI address names it. A virtual function is a share of its
GPU, whatever its driver: a vGPU stays bound to nvidia. KubeVirt's device plugin names both
by PCI address, older versions by IOMMU group
(NVIDIA/kubevirt-gpu-device-plugin:pkg/device_plugin/device_plugin.go).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from railscope_agent.host import Host
from railscope_agent.sampling import fact_readers
from railscope_agent.tenancy.devices import ClaimableDevice, NodeDevices
from railscope_agent.topology.pci import DEVICES, PASSTHROUGH_DRIVERS, gpu_functions, is_address

_IOMMU_GROUPS = "/sys/kernel/iommu_groups"


@dataclass(slots=True)
class PassedThroughGpus:
    """PCI functions that a virtual machine can have; the bus is read again only when its devices change."""

    whole: frozenset[str] = frozenset()
    """Addresses of passed-through GPUs as of the last scan."""
    virtual: dict[str, str] = field(default_factory=dict)
    """Addresses of virtual functions, with those of their GPUs."""
    _names: list[str] = field(default_factory=list)
    _gpus: tuple[str, ...] = ()

    def scan(self, host: Host) -> None:
        """Read which GPUs are passed through, and which have virtual functions."""
        names = fact_readers.list_names(host, DEVICES)
        # Reading class and vendor of each device costs two files; the list of names is one call.
        if names != self._names:
            functions = gpu_functions(host)
            self._names = names
            self._gpus = tuple(a for a, gpu in functions.items() if a == gpu)
            self.virtual = {a: gpu for a, gpu in functions.items() if gpu not in {"", a}}
        self.whole = frozenset(
            address
            for address in self._gpus
            if fact_readers.read_link_name(host, f"{DEVICES}/{address}/driver")
            in PASSTHROUGH_DRIVERS
        )

    def find(self, address: str, devices: NodeDevices) -> ClaimableDevice | None:
        """Return the device of a virtual machine that has a PCI function; None if it is of no GPU.

        A GPU has its former UUID, or its address if it never had one here. The device of a virtual function
        has an id of its own: it is a share.
        """
        if address in self.whole:
            return _gpu_at(address, devices)
        if gpu := self.virtual.get(address):
            return ClaimableDevice(_gpu_at(gpu, devices).gpu, address)
        return None

    def find_by_plugin_id(
        self, host: Host, text: str, devices: NodeDevices
    ) -> list[ClaimableDevice]:
        """Return the devices that an id of KubeVirt's plugin names: PCI address or IOMMU group."""
        if text.isdecimal():
            addresses = fact_readers.list_names(host, f"{_IOMMU_GROUPS}/{text}/devices")
        else:
            addresses = [text.lower()] if is_address(text.lower()) else []
        found = (self.find(address, devices) for address in addresses)
        return [device for device in found if device is not None]


def _gpu_at(address: str, devices: NodeDevices) -> ClaimableDevice:
    name = f"pci:{address}"
    return devices.gpu_at(address) or ClaimableDevice(name, name)
