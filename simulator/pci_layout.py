"""PCI topology of the simulated node.

Each GPU shares one PCIe switch with its rail's NIC, under its own host bridge; four of these pairs belong
to each NUMA node. Storage, NVSwitches and the management interface have other bridges. On a tray with
Grace processors each GPU and each NIC has its own PCI domain, and the GPU is connected by C2C.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.gpu_model import Generation, GpuModel
from simulator.nic_models import CONNECTX7, NicModel

NVIDIA, INTEL, SAMSUNG, BROADCOM, VIRTIO = 0x10DE, 0x8086, 0x144D, 0x1000, 0x1AF4
CLASS_GPU, CLASS_ETHERNET, CLASS_INFINIBAND, CLASS_BRIDGE = 0x030200, 0x020000, 0x020700, 0x060400
CLASS_OTHER_BRIDGE, CLASS_NVME = 0x068000, 0x010802
NVSWITCH, ROOT_PORT, SWITCH, NVME, VIRTIO_NET = 0x22A3, 0x352A, 0xC030, 0xA824, 0x1000
VFIO = "vfio-pci"
"""Driver that passes a device through to a virtual machine."""

MANAGEMENT_ADDRESS = "0000:00:03.0"
GPUS_PER_NUMA_NODE, GRACE_GPUS_PER_NUMA_NODE = 4, 2
_RAIL_BUSES = (0x18, 0x40, 0x4F, 0x5E, 0x9A, 0xC0, 0xCE, 0xDC)
_GPU_AFTER_NIC = 3
_GRACE_GPU_DOMAINS = (0x0008, 0x0009, 0x0018, 0x0019)
_GRACE_NIC_DOMAINS = (0x0000, 0x0002, 0x0010, 0x0012)
_BRIDGES = ((2, "0000:2d:00.0"), (8, "0000:ae:00.0"), (12, "0000:e4:00.0"), (13, "0000:e8:00.0"))


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
        """Address of the upstream port; a host bridge has no device address."""
        return self.path.split("/")[-2]


@dataclass(frozen=True, slots=True)
class Rail:
    """A GPU, its NIC, and all devices between them and the host bridge."""

    gpu: str
    nic: str
    devices: tuple[PciDevice, ...]

    def with_nic(self, nic: NicModel) -> Rail:
        """Return the same rail with a different NIC."""
        return replace(
            self,
            devices=tuple(
                _nic(device.path, device.numa_node, nic) if device.address == self.nic else device
                for device in self.devices
            ),
        )

    def handed_over(self) -> Rail:
        """Return the same rail with GPU and NIC passed through to a virtual machine."""
        ends = {self.gpu, self.nic}
        return replace(
            self,
            devices=tuple(
                replace(device, driver=VFIO) if device.address in ends else device
                for device in self.devices
            ),
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """A kind of node: all rails it can have, the numbers of their RDMA devices, and storage.

    `bridges` are the ConnectX-7 functions for managing NVSwitches without a PCIe port of their own (HGX
    B200).
    """

    rails: tuple[Rail, ...]
    rail_numbers: tuple[int, ...]
    storage: tuple[tuple[int, str], ...]
    bridges: tuple[tuple[int, str], ...] = ()


def layout(model: GpuModel) -> Layout:
    """Return the layout for GPUs of this model: a DGX H100's, or a tray with Grace processors."""
    if model.grace:
        rails = tuple(_grace_rail(index, model) for index in range(len(_GRACE_GPU_DOMAINS)))
        return Layout(rails, (0, 1, 4, 5), ((2, "0006:01:00.0"), (6, "0016:01:00.0")))
    rails = tuple(_rail(index, model) for index in range(len(_RAIL_BUSES)))
    storage = ((1, "0000:29:00.0"), (7, "0000:aa:00.0"))
    bridges = _BRIDGES if model.generation >= Generation.BLACKWELL else ()
    return Layout(rails, (0, 3, 4, 5, 6, 9, 10, 11), storage, bridges)


def _rail(index: int, model: GpuModel) -> Rail:
    nic_bus, numa = _RAIL_BUSES[index], index // GPUS_PER_NUMA_NODE
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
            _nic(f"{to_nic}/{nic}", numa, CONNECTX7),
            _gpu(f"{to_gpu}/{gpu}", numa, model),
        ),
    )


def _grace_rail(index: int, model: GpuModel) -> Rail:
    """Return a rail of a GB200 tray: its PCI domains, with the bus and port numbers of its NICs."""
    numa = index // GRACE_GPUS_PER_NUMA_NODE
    gpu_domain, nic_domain = (
        f"{domains[index]:04x}" for domains in (_GRACE_GPU_DOMAINS, _GRACE_NIC_DOMAINS)
    )
    gpu, nic = f"{gpu_domain}:01:00.0", f"{nic_domain}:03:00.0"
    gpu_root = f"/sys/devices/pci{gpu_domain}:00/{gpu_domain}:00:00.0"
    nic_root = f"/sys/devices/pci{nic_domain}:00/{nic_domain}:00:00.0"
    upper = f"{nic_root}/{nic_domain}:01:00.0"
    lower = f"{upper}/{nic_domain}:02:00.0"
    return Rail(
        gpu,
        nic,
        (
            *(_root_port(port, numa) for port in (gpu_root, nic_root)),
            *(_switch_port(port, numa) for port in (upper, lower)),
            _nic(f"{lower}/{nic}", numa, CONNECTX7),
            _gpu(f"{gpu_root}/{gpu}", numa, model),
        ),
    )


def other_devices(
    storage: list[str], nic: NicModel, *, bridges: list[str], nvswitches: int
) -> list[PciDevice]:
    """Return storage NICs, NVSwitches and their bridges, an NVMe drive and the management interface."""
    devices = []
    for numa, address in enumerate(storage):
        root = _own_root(address)
        devices += [_root_port(root, numa), _nic(f"{root}/{address}", numa, nic)]
    for place, address in enumerate(bridges):
        root, numa = _own_root(address), place * 2 // len(bridges)
        bridge = _nic(f"{root}/{address}", numa, CONNECTX7)
        devices += [_root_port(root, numa), replace(bridge, pci_class=CLASS_INFINIBAND)]
    root = "/sys/devices/pci0000:22/0000:22:01.0"
    devices += [
        _root_port(root, 0),
        PciDevice(f"{root}/0000:23:00.0", SAMSUNG, NVME, CLASS_NVME, "nvme", 0, 4, 4),
        PciDevice(
            f"/sys/devices/pci0000:00/{MANAGEMENT_ADDRESS}",
            VIRTIO, VIRTIO_NET, CLASS_ETHERNET, "virtio-pci", 0, 0, 0,
        ),
    ]  # fmt: skip
    return devices + (_nvswitches(nvswitches) if nvswitches else [])


def _own_root(address: str) -> str:
    """Return the path of the root port above a device with its own host bridge."""
    domain, bus, _ = address.split(":")
    above = f"{domain}:{int(bus, 16) - 1:02x}"
    return f"/sys/devices/pci{above}/{above}:01.0"


def _nvswitches(count: int) -> list[PciDevice]:
    root = "/sys/devices/pci0000:00/0000:00:01.0"
    upper = f"{root}/0000:03:00.0"
    devices = [_root_port(root, 0), _switch_port(upper, 0)]
    for place in range(count):
        lower = f"{upper}/0000:04:{place:02x}.0"
        devices += [
            _switch_port(lower, 0),
            PciDevice(
                f"{lower}/0000:{5 + place:02x}:00.0",
                NVIDIA, NVSWITCH, CLASS_OTHER_BRIDGE, "nvidia-nvswitch", 0, 2, 2,
            ),
        ]  # fmt: skip
    return devices


def _root_port(path: str, numa: int) -> PciDevice:
    return PciDevice(path, INTEL, ROOT_PORT, CLASS_BRIDGE, "pcieport", numa)


def _switch_port(path: str, numa: int) -> PciDevice:
    return PciDevice(path, BROADCOM, SWITCH, CLASS_BRIDGE, "pcieport", numa)


def _nic(path: str, numa: int, nic: NicModel) -> PciDevice:
    return PciDevice(
        path, nic.pci_vendor, nic.pci_device, CLASS_ETHERNET, nic.driver, numa,
        nic.pcie_generation, nic.pcie_lanes,
    )  # fmt: skip


def _gpu(path: str, numa: int, model: GpuModel) -> PciDevice:
    device = model.pci_device >> 16
    return PciDevice(path, NVIDIA, device, CLASS_GPU, "nvidia", numa, model.pcie_generation)
