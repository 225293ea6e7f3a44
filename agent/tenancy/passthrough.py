"""GPUs passed through to virtual machines, by the names that other components use for them.

Such a GPU is bound to vfio-pci and not visible to NVML. It keeps the UUID that it had under the driver of
this node, or else its PCI address names it. KubeVirt's device plugin names it by PCI address, older
versions by IOMMU group (NVIDIA/kubevirt-gpu-device-plugin:pkg/device_plugin/device_plugin.go).
"""

from __future__ import annotations

from agent.host import Host
from agent.sampling.facts import linked, names
from agent.tenancy.devices import Device, Devices
from agent.topology.pci import DEVICES, gpu_addresses, is_address

_PASSED_ON = {"vfio-pci", "nvgrace_gpu_vfio_pci", "nvgrace-gpu-vfio-pci", "xen-pciback", "pci-stub"}
_GROUPS = "/sys/kernel/iommu_groups"


class PassedOn:
    """Passed-through GPUs of the PCI bus; the bus is read again only when its devices change."""

    def __init__(self) -> None:
        self._bus: tuple[list[str], list[str]] = ([], [])

    def look(self, host: Host) -> set[str]:
        """Return their PCI addresses."""
        there = names(host, DEVICES)
        if there != self._bus[0]:
            self._bus = there, gpu_addresses(host)
        return {
            address
            for address in self._bus[1]
            if linked(host, f"{DEVICES}/{address}/driver") in _PASSED_ON
        }


def device_at(address: str, devices: Devices) -> Device:
    """Return the GPU at an address by its former UUID; by its address if it never had one here."""
    name = f"pci:{address}"
    return devices.at(address) or Device(name, name)


def named(host: Host, text: str, passed: set[str], devices: Devices) -> list[Device]:
    """Return the passed-through GPUs that an id of KubeVirt's plugin names: PCI address or IOMMU group."""
    if text.isdecimal():
        addresses = names(host, f"{_GROUPS}/{text}/devices")
    else:
        addresses = [text.lower()] if is_address(text.lower()) else []
    return [device_at(address, devices) for address in addresses if address in passed]
