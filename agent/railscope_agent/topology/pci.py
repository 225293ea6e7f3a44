"""PCI devices of a node: places in the tree of sysfs, and names in other subsystems.

`realpath(/sys/bus/pci/devices/ADDRESS)` contains the host bridge and every port above a device
(torvalds/linux Documentation/ABI/testing/sysfs-bus-pci): host bridge, root port, upstream and
downstream port of each switch, device.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from railscope_agent.host import Host
from railscope_agent.sampling.fact_readers import list_names, read_link_name, read_text

DEVICES = "/sys/bus/pci/devices"
RDMA_CLASS, NET_CLASS, NVME_CLASS = "/sys/class/infiniband", "/sys/class/net", "/sys/class/nvme"
NO_NUMA_NODE = "-1"
GPU, NIC, NVME, NVSWITCH, BRIDGE = "gpu", "nic", "nvme", "nvswitch", "bridge"
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_DOMAIN = re.compile(r"[0-9a-f]{1,8}")
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_NVIDIA, _AMD = "0x10de", "0x1002"
_DISPLAY_CLASS = "0x03"
_ROLES = {
    "0x0302": GPU, "0x0108": NVME, "0x0604": BRIDGE,
    "0x0200": NIC, "0x0207": NIC, "0x0208": NIC, "0x0280": NIC, "0x0c06": NIC,
}  # fmt: skip
_ROLES_BY_VENDOR = {
    "0x0300": {_NVIDIA: GPU, _AMD: GPU}, "0x0380": {_AMD: GPU}, "0x1200": {_AMD: GPU},
    "0x0680": {_NVIDIA: NVSWITCH},
}  # fmt: skip
"""Classes that other vendors use as well: the display chip of a node's console is not a GPU."""
_CLASS_DIGITS = 6
PASSTHROUGH_DRIVERS = frozenset(
    ["vfio-pci", "nvgrace_gpu_vfio_pci", "nvgrace-gpu-vfio-pci", "pciback", "pci-stub"]
)
"""Drivers that hold a function for a virtual machine; that of Xen is pciback (drivers/xen/xen-pciback/pci_stub.c)."""
_VIRTIO = "virtio"
_UUID = "GPU UUID:"


@dataclass(frozen=True, slots=True)
class PciPlace:
    """Place of a PCI device: host bridge, path from there, NUMA node.

    `chain` contains the addresses from the root port down to the device itself, with the upstream and the
    downstream port of each switch. `numa_node` is empty if unknown.
    """

    bridge: str
    chain: tuple[str, ...]
    numa_node: str = ""

    @property
    def address(self) -> str:
        """Address of the device itself."""
        return self.chain[-1]


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A relevant PCI device: role, model, place, and near CPUs."""

    role: str
    vendor: str
    device: str
    place: PciPlace
    cpus: str = ""

    @property
    def address(self) -> str:
        """Domain, bus, device and function."""
        return self.place.address

    @property
    def model(self) -> str:
        """Vendor and device, as lspci writes them."""
        return f"{self.vendor}:{self.device}".replace("0x", "")


def pci_address(text: str) -> str:
    """Return a PCI address as sysfs writes it: 0000:3b:00.0. NVML writes 00000000:3B:00.0.

    A text that is no address is returned in lower case: `is_address` is false for it.
    """
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if _DOMAIN.fullmatch(domain) else text.lower()


def is_address(text: str) -> bool:
    """True if a text is a PCI address as sysfs writes it."""
    return bool(_ADDRESS.fullmatch(text))


def bus_order(address: str) -> tuple[int, ...]:
    """Return a key that sorts PCI addresses in bus order, whatever the length of their domains."""
    return tuple(int(part, 16) for part in re.split("[:.]", address))


def pci_slot(address: str) -> str:
    """Return an address without its function: ports of one NIC differ only in that."""
    return address.rpartition(".")[0]


def pci_path(resolved: str) -> tuple[str, ...]:
    """Return the host bridge and PCI addresses along a resolved sysfs path.

    /sys/devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0 results in (pci0000:3a, 0000:3a:01.0, 0000:3b:00.0).
    """
    parts = resolved.split("/")
    bridge = next((part for part in parts if _HOST_BRIDGE.fullmatch(part)), "")
    return (bridge, *[part for part in parts if _ADDRESS.fullmatch(part)])


def is_function(resolved: str) -> bool:
    """True if a resolved sysfs path is a PCI function, directly or through virtio, and not a part of one.

    A virtio device below another device, such as vDPA on a sub-function, is a part.
    """
    last, above = (*reversed(resolved.split("/")), "")[:2]
    return is_address(last) or (last.startswith(_VIRTIO) and is_address(above))


def function_above(resolved: str) -> str:
    """Return the address of the last PCI function along a resolved sysfs path; empty if there is none."""
    return next(reversed(pci_path(resolved)[1:]), "")


def read_place(host: Host, address: str) -> PciPlace:
    """Return the place of a device. If its path cannot be read, it is alone on its own host bridge."""
    node = read_text(host, f"{DEVICES}/{address}/numa_node").removeprefix(NO_NUMA_NODE)
    try:
        bridge, *chain = pci_path(host.resolve(f"{DEVICES}/{address}"))
    except OSError:
        bridge, chain = "", []
    return PciPlace(bridge or address, tuple(chain) or (address,), node)


def read_role(host: Host, address: str) -> str:
    """Return the kind of device at an address; empty if it is not relevant."""
    # Without the programming interface, the last two digits.
    class_ = read_text(host, f"{DEVICES}/{address}/class")[:_CLASS_DIGITS]
    of_vendor = _ROLES_BY_VENDOR.get(class_)
    if of_vendor is None:
        role = _ROLES.get(class_, "")
    else:
        role = of_vendor.get(read_text(host, f"{DEVICES}/{address}/vendor"), "")
    # A virtual function is a part of its GPU and no GPU. The virtual functions of a NIC are devices with a role.
    is_part = role == GPU and is_virtual_function(host, f"{DEVICES}/{address}")
    return "" if is_part else role


def read_pci_devices(
    host: Host, places: Mapping[str, PciPlace] | None = None
) -> dict[str, PciDevice]:
    """Return relevant devices by address, with every port between them and the processor.

    `places` take precedence over sysfs for the same addresses.
    """
    roles = {address: read_role(host, address) for address in list_names(host, DEVICES)}
    devices: dict[str, PciDevice] = {}
    for address, role in roles.items():
        if role and role != BRIDGE:
            devices[address] = _read_device(host, address, role, places)
    # Bridges only above relevant devices: a server has many others.
    for device in list(devices.values()):
        for above in device.place.chain[:-1]:
            if roles.get(above) == BRIDGE and above not in devices:
                devices[above] = _read_device(host, above, BRIDGE, places)
    return dict(sorted(devices.items()))


def _read_device(
    host: Host, address: str, role: str, places: Mapping[str, PciPlace] | None
) -> PciDevice:
    place = (places or {}).get(address) or read_place(host, address)
    vendor, device, cpus = (
        read_text(host, f"{DEVICES}/{address}/{name}")
        for name in ("vendor", "device", "local_cpulist")
    )
    return PciDevice(role, vendor, device, place, cpus)


def select_gpus(devices: Iterable[PciDevice]) -> list[PciDevice]:
    """Return GPUs in bus order, the order of NVML indices; those of NVIDIA if there are any.

    The node's own display chip is of another vendor.
    """
    gpus = sorted((d for d in devices if d.role == GPU), key=lambda d: bus_order(d.address))
    return [gpu for gpu in gpus if gpu.vendor == _NVIDIA] or [
        gpu for gpu in gpus if gpu.vendor == _AMD
    ]


def gpu_addresses(host: Host) -> list[str]:
    """Return PCI addresses of NVIDIA GPUs in bus order, the order of NVML indices."""
    return [address for address, gpu in gpu_functions(host).items() if address == gpu]


def gpu_functions(host: Host) -> dict[str, str]:
    """Return the address of the GPU of each PCI function of NVIDIA's GPUs, in bus order.

    The driver binds the virtual functions of a vGPU host as well, and starts none of them as a GPU
    (NVIDIA/open-gpu-kernel-modules:kernel-open/nvidia/nv-pci.c, nv_pci_probe). In a virtual machine such a
    function has no physical function beside it, and is the GPU.
    """
    functions = (a for a in list_names(host, DEVICES) if _is_of_gpu(host, f"{DEVICES}/{a}"))
    return {
        address: read_link_name(host, f"{directory}/physfn")
        if is_virtual_function(host, directory := f"{DEVICES}/{address}")
        else address
        for address in functions
    }


def _is_of_gpu(host: Host, directory: str) -> bool:
    vendor, class_ = read_text(host, f"{directory}/vendor"), read_text(host, f"{directory}/class")
    return vendor == _NVIDIA and class_.startswith(_DISPLAY_CLASS)


def is_virtual_function(host: Host, directory: str) -> bool:
    """True for the directory of a virtual function whose physical function is on this node (SR-IOV)."""
    return "physfn" in list_names(host, directory) or bool(
        read_link_name(host, f"{directory}/physfn")
    )


def address_of(host: Host, link: str) -> str:
    """Return the address of the PCI function that a link resolves to; empty for a part of one."""
    try:
        resolved = host.resolve(link)
    except OSError:
        return ""
    return function_above(resolved) if is_function(resolved) else ""


def pci_functions(host: Host, directory: str) -> dict[str, str]:
    """Return devices of a class that are a PCI function as a whole: addresses by name."""
    functions = {
        name: address_of(host, f"{directory}/{name}/device") for name in list_names(host, directory)
    }
    return {name: address for name, address in functions.items() if address}


def find_device_names(
    host: Host, devices: dict[str, PciDevice], interfaces: Mapping[str, str]
) -> dict[str, list[str]]:
    """Return RDMA devices, interfaces, drives and GPU UUIDs by PCI address; `interfaces` are addresses by name."""
    names: dict[str, list[str]] = {}
    functions = (
        pci_functions(host, RDMA_CLASS),
        interfaces,
        pci_functions(host, NVME_CLASS),
    )
    for of_class in functions:
        for name, address in of_class.items():
            names.setdefault(address, []).append(name)
    for device in devices.values():
        uuid = read_gpu_uuid(host, device.address) if device.role == GPU else ""
        if uuid:
            names.setdefault(device.address, []).append(uuid)
    return names


def read_gpu_uuid(host: Host, address: str) -> str:
    """Return the UUID of a GPU in the kernel driver; empty if it has none.

    A driver that never started the GPU writes question marks, or omits the line (open-gpu-kernel-modules,
    kernel-open/nvidia/nv-procfs.c, nv_procfs_read_gpu_info).
    """
    lines = read_text(host, f"/proc/driver/nvidia/gpus/{address}/information").splitlines()
    uuid = next((line.removeprefix(_UUID).strip() for line in lines if line.startswith(_UUID)), "")
    return "" if "?" in uuid else uuid
