"""What the simulated node is made of: a server with up to eight GPUs and one rail a GPU.

Addresses, RDMA names and NUMA nodes are those of a DGX H100, where the number of an RDMA device is
not its rail (NVIDIA DGX H100 User Guide, "Network Modules"); the server around other models is the
same, but for trays with Grace processors (see `pci_layout`).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from railscope.simulator.gpu_model import GpuModel
from railscope.simulator.gpu_models import find
from railscope.simulator.pci_layout import PciDevice, layout, other_devices
from railscope.simulator.spec import NodeSpec

KERNEL = "5.15.0-1063-nvidia"
NIC_FIRMWARE = "28.39.1002"
NIC_BOARD = "MT_0000000838"
HCA_TYPE = "MT4129"
LOGICAL_CPUS = 224
CPU_LISTS = ("0-55,112-167", "56-111,168-223")
ETHERNET, LOOPBACK = "eth0", "lo"


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
    """A node's parts. GPUs and ports that were handed to a virtual machine are PCI devices only.

    `peers` are the PCI addresses of all GPUs that NVLinks may lead to.
    """

    model: GpuModel
    gpus: tuple[Gpu, ...]
    ports: tuple[Port, ...]
    pci: tuple[PciDevice, ...]
    peers: tuple[str, ...]
    nvswitches: tuple[str, ...]


_RAIL_GIGABITS, _STORAGE_GIGABITS = 400, 200


def machine(spec: NodeSpec) -> Machine:
    """Put a node together. Raises ValueError for what such a node cannot have."""
    model = find(spec.model)
    _check(spec, model)
    server = layout(model)
    rails = [
        rail if index < spec.own_gpus else rail.handed_over()
        for index, rail in enumerate(server.rails[: spec.gpus])
    ]
    own = rails[: spec.own_gpus]
    ports = (
        *(
            _port(spec, server.rail_numbers[index], f"ens{index + 1}f0np0", rail.nic, index)
            for index, rail in enumerate(own)
        ),
        *(
            _port(spec, number, f"ens{21 + place}f0np0", address, None)
            for place, (number, address) in enumerate(server.storage)
        ),
    )
    nvswitches = model.nvlink.nvswitches if model.nvlink else 0
    tree = [device for rail in rails for device in rail.devices]
    tree += other_devices([address for _, address in server.storage], nvswitches=nvswitches)
    return Machine(
        model=model,
        gpus=tuple(_gpu(spec, index, rail.gpu) for index, rail in enumerate(own)),
        ports=ports,
        pci=tuple(sorted(tree, key=lambda device: device.address)),
        peers=tuple(rail.gpu for rail in server.rails),
        nvswitches=tuple(device.address for device in tree if device.driver == "nvidia-nvswitch"),
    )


def _check(spec: NodeSpec, model: GpuModel) -> None:
    wrong = ""
    if spec.gpus > model.per_node:
        wrong = f"a node has 1 to {model.per_node} GPUs {model.name}, not {spec.gpus}"
    elif spec.mode == "mig" and not model.mig_profiles:
        wrong = f"no MIG instances are known of a GPU {model.name}"
    elif spec.mode == "vgpu" and model.vgpu_type is None:
        wrong = f"no virtual GPUs are known of a GPU {model.name}"
    elif spec.mode == "passthrough" and spec.gpus == 1:
        wrong = "a node with one GPU has none left to hand to a virtual machine"
    elif spec.scenario == "nvlink_errors" and (model.nvlink is None or spec.mode == "mig"):
        wrong = f"GPU {model.name} in mode {spec.mode} shows no NVLinks to have errors"
    if wrong:
        raise ValueError(wrong)


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
