"""Names of PCI devices in other subsystems."""

from __future__ import annotations

from agent.host import Host
from agent.sampling.facts import names, text
from agent.topology.pci import GPU, PciDevice, address_of

RDMA, NET, NVME = "/sys/class/infiniband", "/sys/class/net", "/sys/class/nvme"
_UUID = "GPU UUID:"


def functions(host: Host, directory: str) -> dict[str, str]:
    """Return devices of a class that are a PCI function as a whole: addresses by name."""
    found = {
        name: address_of(host, f"{directory}/{name}/device") for name in names(host, directory)
    }
    return {name: address for name, address in found.items() if address}


def device_names(host: Host, devices: dict[str, PciDevice]) -> dict[str, list[str]]:
    """Return RDMA devices, interfaces, drives and GPU UUIDs by PCI address."""
    found: dict[str, list[str]] = {}
    for directory in (RDMA, NET, NVME):
        for name, address in functions(host, directory).items():
            found.setdefault(address, []).append(name)
    for device in devices.values():
        uuid = gpu_uuid(host, device.address) if device.role == GPU else ""
        if uuid:
            found.setdefault(device.address, []).append(uuid)
    return found


def gpu_uuid(host: Host, address: str) -> str:
    """Return the UUID of a GPU in the kernel driver; empty if it has none.

    A driver that never started the GPU writes question marks, or omits the line (open-gpu-kernel-modules,
    kernel-open/nvidia/nv-procfs.c, nv_procfs_read_gpu_info).
    """
    lines = text(host, f"/proc/driver/nvidia/gpus/{address}/information").splitlines()
    told = next((line.removeprefix(_UUID).strip() for line in lines if line.startswith(_UUID)), "")
    return "" if "?" in told else told
