"""PCI topology of the simulated nodes.

Addresses, RDMA names and NUMA nodes are those of a DGX H100, where the number of an RDMA device is
not its rail (NVIDIA DGX H100 User Guide, "Network Modules"); other GPU models use the same host,
except for trays with Grace processors.

Each GPU shares one PCIe switch with its rail's NIC, under its own host bridge; four of these pairs
belong to each NUMA node. Storage, NVSwitches and the management interface have other bridges. On a
tray with Grace processors each GPU and each NIC has its own PCI domain, and the GPU is connected by
C2C.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from railscope_simulator import data, device_models
from railscope_simulator.spec import MAX_GPUS

CLASS_ETHERNET, CLASS_INFINIBAND = 0x020000, 0x020700
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
class SimulatedPciDevice:
    """A PCI device, a port of a switch, or a root port. Generation 0: no PCI Express link."""

    path: str = ""
    numa_node: int = 0
    vendor: int = 0
    device: int = 0
    pci_class: int = CLASS_ETHERNET
    driver: str = ""
    generation: int = 5
    lanes: int = 16

    @property
    def address(self) -> str:
        """Domain, bus, device and function."""
        return self.path.rpartition("/")[2]


_KINDS = data.read_table("pci_devices", dict[str, SimulatedPciDevice])


@dataclass(frozen=True, slots=True)
class PciRail:
    """A GPU, its NIC, and all devices between them and the host bridge."""

    gpu: str
    nic: str
    devices: tuple[SimulatedPciDevice, ...]

    def passed_through(self) -> PciRail:
        """Return the same rail with GPU and NIC passed through to a virtual machine."""
        ends = {self.gpu, self.nic}
        devices = (
            replace(device, driver=VFIO) if device.address in ends else device
            for device in self.devices
        )
        return replace(self, devices=tuple(devices))


@dataclass(frozen=True, slots=True)
class PciLayout:
    """A kind of node: all rails it can have, the numbers of their RDMA devices, and storage.

    `bridges` are the ConnectX-7 functions for managing NVSwitches without a PCIe port of their own (HGX
    B200).
    """

    rails: tuple[PciRail, ...]
    rail_numbers: tuple[int, ...]
    storage: tuple[tuple[int, str], ...]
    bridges: tuple[tuple[int, str], ...] = ()


def layout(model: device_models.GpuModel, nics: str) -> PciLayout:
    """Return the layout for such GPUs and NICs: a DGX H100's, or a tray with Grace processors."""
    make_rail, count = (_grace_rail, len(_GRACE_GPU_DOMAINS)) if model.grace else (_rail, MAX_GPUS)
    rails = tuple(
        make_rail(index, model, device_models.nic_of(nics, index)) for index in range(count)
    )
    if model.grace:
        return PciLayout(rails, (0, 1, 4, 5), ((2, "0006:01:00.0"), (6, "0016:01:00.0")))
    storage = ((1, "0000:29:00.0"), (7, "0000:aa:00.0"))
    bridges = _BRIDGES if model.generation >= device_models.GpuGeneration.BLACKWELL else ()
    return PciLayout(rails, (0, 3, 4, 5, 6, 9, 10, 11), storage, bridges)


def _rail(index: int, model: device_models.GpuModel, nic_model: device_models.NicModel) -> PciRail:
    nic_bus, numa = _RAIL_BUSES[index], index // GPUS_PER_NUMA_NODE
    root_bus, upper_bus, lower_bus = nic_bus - 3, nic_bus - 2, nic_bus - 1
    nic, gpu = f"0000:{nic_bus:02x}:00.0", f"0000:{nic_bus + _GPU_AFTER_NIC:02x}:00.0"
    root = f"/sys/devices/pci0000:{root_bus:02x}/0000:{root_bus:02x}:01.0"
    upper = f"{root}/0000:{upper_bus:02x}:00.0"
    to_nic, to_gpu = f"{upper}/0000:{lower_bus:02x}:00.0", f"{upper}/0000:{lower_bus:02x}:02.0"
    return PciRail(
        gpu,
        nic,
        (
            _device("root_port", root, numa),
            *(_device("switch_port", port, numa) for port in (upper, to_nic, to_gpu)),
            _nic_device(f"{to_nic}/{nic}", numa, nic_model),
            _gpu_device(f"{to_gpu}/{gpu}", numa, model),
        ),
    )


def _grace_rail(
    index: int, model: device_models.GpuModel, nic_model: device_models.NicModel
) -> PciRail:
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
    return PciRail(
        gpu,
        nic,
        (
            *(_device("root_port", port, numa) for port in (gpu_root, nic_root)),
            *(_device("switch_port", port, numa) for port in (upper, lower)),
            _nic_device(f"{lower}/{nic}", numa, nic_model),
            _gpu_device(f"{gpu_root}/{gpu}", numa, model),
        ),
    )


def other_devices(
    storage: list[str], nic: device_models.NicModel, *, bridges: list[str], nvswitches: int
) -> list[SimulatedPciDevice]:
    """Return storage NICs, NVSwitches and their bridges, an NVMe drive and the management interface."""
    devices = []
    for numa, address in enumerate(storage):
        root = _own_root(address)
        devices += [_device("root_port", root, numa), _nic_device(f"{root}/{address}", numa, nic)]
    for place, address in enumerate(bridges):
        root, numa = _own_root(address), place * 2 // len(bridges)
        bridge = _nic_device(f"{root}/{address}", numa, device_models.CONNECTX7)
        devices += [_device("root_port", root, numa), replace(bridge, pci_class=CLASS_INFINIBAND)]
    root = "/sys/devices/pci0000:22/0000:22:01.0"
    devices += [
        _device("root_port", root),
        _device("nvme", f"{root}/0000:23:00.0"),
        _device("management", f"/sys/devices/pci0000:00/{MANAGEMENT_ADDRESS}"),
    ]
    return devices + (_nvswitches(nvswitches) if nvswitches else [])


def _own_root(address: str) -> str:
    """Return the path of the root port above a device with its own host bridge."""
    domain, bus, _ = address.split(":")
    above = f"{domain}:{int(bus, 16) - 1:02x}"
    return f"/sys/devices/pci{above}/{above}:01.0"


def _nvswitches(count: int) -> list[SimulatedPciDevice]:
    root = "/sys/devices/pci0000:00/0000:00:01.0"
    upper = f"{root}/0000:03:00.0"
    devices = [_device("root_port", root), _device("switch_port", upper)]
    for place in range(count):
        lower = f"{upper}/0000:04:{place:02x}.0"
        nvswitch = f"{lower}/0000:{5 + place:02x}:00.0"
        devices += [_device("switch_port", lower), _device("nvswitch", nvswitch)]
    return devices


def _device(kind: str, path: str, numa: int = 0) -> SimulatedPciDevice:
    return replace(_KINDS[kind], path=path, numa_node=numa)


def _gpu_device(path: str, numa: int, model: device_models.GpuModel) -> SimulatedPciDevice:
    device = model.pci_device >> 16
    return replace(_device("gpu", path, numa), device=device, generation=model.pcie_generation)


def _nic_device(path: str, numa: int, nic: device_models.NicModel) -> SimulatedPciDevice:
    return SimulatedPciDevice(
        path,
        numa,
        nic.pci_vendor,
        nic.pci_device,
        driver=nic.driver,
        generation=nic.pcie_generation,
        lanes=nic.pcie_lanes,
    )
