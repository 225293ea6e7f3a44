"""Where the PCI devices of the simulated node sit.

Each GPU shares one PCIe switch with its rail's NIC, under a host bridge of their own; four of these
pairs belong to each NUMA node. Storage, NVSwitches and the management interface have other bridges.
"""

from __future__ import annotations

from dataclasses import dataclass

NVIDIA, MELLANOX, INTEL, SAMSUNG, BROADCOM, VIRTIO = 0x10DE, 0x15B3, 0x8086, 0x144D, 0x1000, 0x1AF4
CLASS_GPU, CLASS_ETHERNET, CLASS_BRIDGE = 0x030200, 0x020000, 0x060400
CLASS_OTHER_BRIDGE, CLASS_NVME = 0x068000, 0x010802
CONNECTX7, NVSWITCH, ROOT_PORT, SWITCH, NVME, VIRTIO_NET = (
    0x1021, 0x22A3, 0x352A, 0xC030, 0xA824, 0x1000,
)  # fmt: skip

MANAGEMENT_ADDRESS = "0000:00:03.0"
GPUS_PER_NUMA_NODE = 4
_RAIL_BUSES = (0x18, 0x40, 0x4F, 0x5E, 0x9A, 0xC0, 0xCE, 0xDC)
_GPU_AFTER_NIC = 3


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A PCI device, a port of a switch, or a root port. Generation 0: no PCI Express link."""

    path: str
    vendor: int
    device: int
    pci_class: int
    driver: str
    numa_node: int
    generation: int = 5
    lanes: int = 16

    @property
    def address(self) -> str:
        """Domain, bus, device and function."""
        return self.path.rpartition("/")[2]

    @property
    def parent_address(self) -> str:
        """The address of the port above; that of a host bridge is not one of a device."""
        return self.path.split("/")[-2]


@dataclass(frozen=True, slots=True)
class Rail:
    """A GPU, its NIC, and everything between them and the host bridge."""

    gpu: str
    nic: str
    devices: tuple[PciDevice, ...]


def endpoints_of_rails(count: int, *, gpu_device: int) -> list[Rail]:
    """Lay out the first rails of the node with their PCIe switches."""
    return [_rail(index, _RAIL_BUSES[index], gpu_device) for index in range(count)]


def _rail(index: int, nic_bus: int, gpu_device: int) -> Rail:
    numa = index // GPUS_PER_NUMA_NODE
    root_bus, upper_bus, lower_bus = nic_bus - 3, nic_bus - 2, nic_bus - 1
    nic, gpu = f"0000:{nic_bus:02x}:00.0", f"0000:{nic_bus + _GPU_AFTER_NIC:02x}:00.0"
    root = f"/sys/devices/pci0000:{root_bus:02x}/0000:{root_bus:02x}:01.0"
    upper = f"{root}/0000:{upper_bus:02x}:00.0"
    to_nic, to_gpu = f"{upper}/0000:{lower_bus:02x}:00.0", f"{upper}/0000:{lower_bus:02x}:02.0"
    return Rail(
        gpu,
        nic,
        (
            _root_port(root, numa),
            *(_switch_port(port, numa) for port in (upper, to_nic, to_gpu)),
            _nic(f"{to_nic}/{nic}", numa),
            PciDevice(f"{to_gpu}/{gpu}", NVIDIA, gpu_device, CLASS_GPU, "nvidia", numa),
        ),
    )


def other_devices(storage_nics: list[str], *, nvswitches: int) -> list[PciDevice]:
    """Storage NICs, an NVMe drive, the NVSwitches and the management interface."""
    devices = []
    for numa, nic in enumerate(storage_nics):
        bus = int(nic.split(":")[1], 16) - 1
        root = f"/sys/devices/pci0000:{bus:02x}/0000:{bus:02x}:01.0"
        devices += [_root_port(root, numa), _nic(f"{root}/{nic}", numa)]
    root = "/sys/devices/pci0000:22/0000:22:01.0"
    devices += [
        _root_port(root, 0),
        PciDevice(f"{root}/0000:23:00.0", SAMSUNG, NVME, CLASS_NVME, "nvme", 0, 4, 4),
    ]
    root = "/sys/devices/pci0000:00/0000:00:01.0"
    upper = f"{root}/0000:03:00.0"
    devices += [_root_port(root, 0), _switch_port(upper, 0)]
    for place in range(nvswitches):
        lower = f"{upper}/0000:04:{place:02x}.0"
        devices += [
            _switch_port(lower, 0),
            PciDevice(
                f"{lower}/0000:{5 + place:02x}:00.0",
                NVIDIA, NVSWITCH, CLASS_OTHER_BRIDGE, "nvidia-nvswitch", 0, 2, 2,
            ),
        ]  # fmt: skip
    devices.append(
        PciDevice(
            f"/sys/devices/pci0000:00/{MANAGEMENT_ADDRESS}",
            VIRTIO, VIRTIO_NET, CLASS_ETHERNET, "virtio-pci", 0, 0, 0,
        )
    )  # fmt: skip
    return devices


def _root_port(path: str, numa: int) -> PciDevice:
    return PciDevice(path, INTEL, ROOT_PORT, CLASS_BRIDGE, "pcieport", numa)


def _switch_port(path: str, numa: int) -> PciDevice:
    return PciDevice(path, BROADCOM, SWITCH, CLASS_BRIDGE, "pcieport", numa)


def _nic(path: str, numa: int) -> PciDevice:
    return PciDevice(path, MELLANOX, CONNECTX7, CLASS_ETHERNET, "mlx5_core", numa)
