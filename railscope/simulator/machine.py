"""What the simulated node is made of: an eight-GPU server with one rail a GPU.

Addresses, RDMA names and NUMA nodes are those of a DGX H100, where the number of an RDMA device is
not its rail (NVIDIA DGX H100 User Guide, "Network Modules").
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from railscope.simulator.pci_layout import PciDevice, endpoints_of_rails, other_devices
from railscope.simulator.spec import NodeSpec

KERNEL = "5.15.0-1063-nvidia"
DRIVER_VERSION = "590.48.01"
NIC_FIRMWARE = "28.39.1002"
NIC_BOARD = "MT_0000000838"
HCA_TYPE = "MT4129"
MEBIBYTE = 1 << 20
LOGICAL_CPUS = 224
CPU_LISTS = ("0-55,112-167", "56-111,168-223")
NVSWITCHES = 4
ETHERNET, LOOPBACK = "eth0", "lo"


@dataclass(frozen=True, slots=True)
class GpuModel:
    """What all GPUs of a model have in common."""

    name: str
    pci_device: int
    pci_subsystem: int
    vbios: str
    memory_bytes: int
    reserved_bytes: int
    memory_megahertz: int
    architecture: int = 9
    power_limit_milliwatts: int = 700_000
    idle_megahertz: int = 345
    most_megahertz: int = 1980
    idle_video_megahertz: int = 765
    most_video_megahertz: int = 1545


MODELS = {
    model.name: model
    for model in (
        GpuModel(
            "NVIDIA H100 80GB HBM3", 0x2330_10DE, 0x16C1_10DE, "96.00.A5.00.01",
            81_559 * MEBIBYTE, 479 * MEBIBYTE, 2619,
        ),
        GpuModel(
            "NVIDIA H200", 0x2335_10DE, 0x18BE_10DE, "96.00.A5.00.03",
            143_771 * MEBIBYTE, 614 * MEBIBYTE, 3201,
        ),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. Its index is its rail, too."""

    index: int
    uuid: str
    serial: str
    pci_address: str

    @property
    def log_address(self) -> str:
        """The PCI address as the driver prints it in the kernel log, without the function."""
        return self.pci_address.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class Port:
    """One network card with one port: RDMA device and interface. Storage ports have no rail."""

    rdma_device: str
    interface: str
    pci_address: str
    guid: str
    mac: str
    gigabits: int
    rail: int | None

    @property
    def bytes_per_second(self) -> int:
        """Line rate."""
        return self.gigabits * 125_000_000


@dataclass(frozen=True, slots=True)
class Machine:
    """A node's parts."""

    model: GpuModel
    gpus: tuple[Gpu, ...]
    ports: tuple[Port, ...]
    pci: tuple[PciDevice, ...]


_RAIL_DEVICES = (0, 3, 4, 5, 6, 9, 10, 11)
_RAIL_GIGABITS, _STORAGE_GIGABITS = 400, 200
_STORAGE = ((1, "0000:29:00.0"), (7, "0000:aa:00.0"))


def machine(spec: NodeSpec) -> Machine:
    """Put a node together. Raises ValueError for a GPU model that is not known."""
    if spec.model not in MODELS:
        message = f"no GPU model {spec.model!r}; there are {', '.join(MODELS)}"
        raise ValueError(message)
    model = MODELS[spec.model]
    rails = endpoints_of_rails(spec.gpus, gpu_device=model.pci_device >> 16)
    gpus = tuple(_gpu(spec, index, rail.gpu) for index, rail in enumerate(rails))
    ports = (
        *(
            _port(spec, _RAIL_DEVICES[index], f"ens{index + 1}f0np0", rail.nic, index)
            for index, rail in enumerate(rails)
        ),
        *(
            _port(spec, number, f"ens{21 + place}f0np0", address, None)
            for place, (number, address) in enumerate(_STORAGE)
        ),
    )
    tree = [device for rail in rails for device in rail.devices]
    tree += other_devices([address for _, address in _STORAGE], nvswitches=NVSWITCHES)
    return Machine(model, gpus, ports, tuple(sorted(tree, key=lambda device: device.address)))


def _gpu(spec: NodeSpec, index: int, pci_address: str) -> Gpu:
    identity = spec.stream(f"gpu {index} identity")
    name = uuid.UUID(int=identity.getrandbits(128), version=4)
    return Gpu(index, f"GPU-{name}", f"165{identity.randrange(10**10):010d}", pci_address)


def _port(spec: NodeSpec, number: int, interface: str, pci_address: str, rail: int | None) -> Port:
    # ConnectX makes the GUID of its MAC address: 0003 stands between the halves.
    tail = spec.stream(f"port {number} identity").getrandbits(24)
    digits = f"a088c20300{tail:06x}"
    return Port(
        rdma_device=f"mlx5_{number}",
        interface=interface,
        pci_address=pci_address,
        guid=":".join(digits[place : place + 4] for place in range(0, 16, 4)),
        mac=":".join(f"a088c2{tail:06x}"[place : place + 2] for place in range(0, 12, 2)),
        gigabits=_STORAGE_GIGABITS if rail is None else _RAIL_GIGABITS,
        rail=rail,
    )
