"""GPUs that are passed through to virtual machines.

A passed-through GPU is bound to vfio-pci and not visible to NVML. It keeps the UUID that it had
under the driver of this node, or else its PCI address names it. KubeVirt's device plugin names it
by PCI address, older versions by IOMMU group
(NVIDIA/kubevirt-gpu-device-plugin:pkg/device_plugin/device_plugin.go).
"""

from __future__ import annotations

from railscope_agent.host import Host
from railscope_agent.sampling import fact_readers
from railscope_agent.tenancy.devices import ClaimableDevice, NodeDevices
from railscope_agent.topology.pci import DEVICES, gpu_addresses, is_address

_PASSTHROUGH_DRIVERS = {
    "vfio-pci",
    "nvgrace_gpu_vfio_pci",
    "nvgrace-gpu-vfio-pci",
    "xen-pciback",
    "pci-stub",
}
_IOMMU_GROUPS = "/sys/kernel/iommu_groups"


class PassedThroughGpus:
    """Passed-through GPUs of the PCI bus; the bus is read again only when its devices change."""

    def __init__(self) -> None:
        self._bus: tuple[list[str], list[str]] = ([], [])

    def scan(self, host: Host) -> set[str]:
        """Return their PCI addresses."""
        addresses = fact_readers.list_names(host, DEVICES)
        # Reading class and vendor of each device costs two files; the list of names is one call.
        if addresses != self._bus[0]:
            self._bus = addresses, gpu_addresses(host)
        return {
            address
            for address in self._bus[1]
            if fact_readers.read_link_name(host, f"{DEVICES}/{address}/driver")
            in _PASSTHROUGH_DRIVERS
        }


def passed_through_device(address: str, devices: NodeDevices) -> ClaimableDevice:
    """Return the GPU at an address by its former UUID; by its address if it never had one here."""
    name = f"pci:{address}"
    return devices.gpu_at(address) or ClaimableDevice(name, name)


def find_passed_through(
    host: Host, text: str, passed: set[str], devices: NodeDevices
) -> list[ClaimableDevice]:
    """Return the passed-through GPUs that an id of KubeVirt's plugin names: PCI address or IOMMU group."""
    if text.isdecimal():
        addresses = fact_readers.list_names(host, f"{_IOMMU_GROUPS}/{text}/devices")
    else:
        addresses = [text.lower()] if is_address(text.lower()) else []
    return [passed_through_device(address, devices) for address in addresses if address in passed]
