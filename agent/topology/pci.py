"""PCI devices of a node, and their places in the tree of sysfs.

`realpath(/sys/bus/pci/devices/ADDRESS)` contains the host bridge and every port above a device
(torvalds/linux Documentation/ABI/testing/sysfs-bus-pci): host bridge, root port, upstream and downstream
port of each switch, device.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agent.host import Host
from agent.sampling.facts import linked, names, text

DEVICES = "/sys/bus/pci/devices"
NO_NUMA_NODE = "-1"
GPU, NIC, NVME, NVSWITCH, BRIDGE = "gpu", "nic", "nvme", "nvswitch", "bridge"
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
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
"""Classes that other vendors use as well: the display chip of a node's console is no GPU."""
_CLASS_DIGITS = 6
_VIRTIO = "virtio"


@dataclass(frozen=True, slots=True)
class Place:
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
    place: Place
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
    """Return a PCI address as sysfs writes it: 0000:3b:00.0. NVML writes 00000000:3B:00.0."""
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if rest else text.lower()


def is_address(text: str) -> bool:
    """True if a text is a PCI address as sysfs writes it."""
    return bool(_ADDRESS.fullmatch(text))


def bus_order(address: str) -> tuple[int, ...]:
    """Return a key that sorts PCI addresses in bus order, whatever the length of their domains."""
    return tuple(int(part, 16) for part in re.split("[:.]", address))


def slot(address: str) -> str:
    """Return an address without its function: ports of one NIC differ only in that."""
    return address.rpartition(".")[0]


def pci_path(resolved: str) -> tuple[str, ...]:
    """Return the host bridge and PCI addresses along a resolved sysfs path.

    /sys/devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0 results in (pci0000:3a, 0000:3a:01.0, 0000:3b:00.0).
    """
    parts = resolved.split("/")
    bridge = next((part for part in parts if _HOST_BRIDGE.fullmatch(part)), "")
    return (bridge, *[part for part in parts if _ADDRESS.fullmatch(part)])


def address_of(host: Host, link: str) -> str:
    """Return the PCI address that a link resolves to, directly or through virtio; else empty.

    Other devices below a function, such as the sub-functions of mlx5, are only a part of it.
    """
    try:
        resolved = host.resolve(link)
    except OSError:
        return ""
    last = resolved.rsplit("/", 1)[-1]
    return pci_path(resolved)[-1] if is_address(last) or last.startswith(_VIRTIO) else ""


def place(host: Host, address: str) -> Place:
    """Return the place of a device. If its path cannot be read, it is alone on its own host bridge."""
    node = text(host, f"{DEVICES}/{address}/numa_node").removeprefix(NO_NUMA_NODE)
    try:
        bridge, *chain = pci_path(host.resolve(f"{DEVICES}/{address}"))
    except OSError:
        bridge, chain = "", []
    return Place(bridge or address, tuple(chain) or (address,), node)


def role(host: Host, address: str) -> str:
    """Return the kind of device at an address; empty if it is not relevant."""
    class_ = text(host, f"{DEVICES}/{address}/class")[:_CLASS_DIGITS]
    of_vendor = _ROLES_BY_VENDOR.get(class_)
    if of_vendor is None:
        return _ROLES.get(class_, "")
    return of_vendor.get(text(host, f"{DEVICES}/{address}/vendor"), "")


def look(host: Host, places: Mapping[str, Place] | None = None) -> dict[str, PciDevice]:
    """Return relevant devices by address, with every port between them and the processor.

    `places` take precedence over sysfs for the same addresses.
    """
    roles = {address: role(host, address) for address in names(host, DEVICES)}
    found: dict[str, PciDevice] = {}
    for address, what in roles.items():
        if what and what != BRIDGE:
            found[address] = _device(host, address, what, places)
    for device in list(found.values()):
        for above in device.place.chain[:-1]:
            if roles.get(above) == BRIDGE and above not in found:
                found[above] = _device(host, above, BRIDGE, places)
    return dict(sorted(found.items()))


def _device(host: Host, address: str, what: str, places: Mapping[str, Place] | None) -> PciDevice:
    told = (places or {}).get(address) or place(host, address)
    vendor, device, cpus = (
        text(host, f"{DEVICES}/{address}/{name}") for name in ("vendor", "device", "local_cpulist")
    )
    return PciDevice(what, vendor, device, told, cpus)


def gpus_among(devices: Iterable[PciDevice]) -> list[PciDevice]:
    """Return GPUs in bus order, the order of NVML indices; those of NVIDIA if there are any.

    The node's own display chip is of another vendor.
    """
    gpus = sorted((d for d in devices if d.role == GPU), key=lambda d: bus_order(d.address))
    return [gpu for gpu in gpus if gpu.vendor == _NVIDIA] or [
        gpu for gpu in gpus if gpu.vendor == _AMD
    ]


def gpu_addresses(host: Host) -> list[str]:
    """Return PCI addresses of NVIDIA GPUs in bus order, the order of NVML indices."""
    return [address for address in names(host, DEVICES) if _is_gpu(host, address)]


def _is_gpu(host: Host, address: str) -> bool:
    directory = f"{DEVICES}/{address}"
    vendor, class_ = text(host, f"{directory}/vendor"), text(host, f"{directory}/class")
    return vendor == _NVIDIA and class_.startswith(_DISPLAY_CLASS)


def is_virtual_function(host: Host, address: str) -> bool:
    """True for a virtual function whose physical function is on this node (SR-IOV)."""
    return bool(linked(host, f"{DEVICES}/{address}/physfn"))
