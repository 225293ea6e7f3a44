"""Components of the simulated node: up to eight GPUs and one rail per GPU.

Addresses, RDMA names and NUMA nodes are those of a DGX H100, where the number of an RDMA device is not
its rail (NVIDIA DGX H100 User Guide, "Network Modules"); other GPU models use the same host, except for
trays with Grace processors (see `pci_layout`).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from simulator.gpu_model import GpuModel
from simulator.gpu_models import find
from simulator.nic_models import CONNECTX7, NicModel, nic_of
from simulator.pci_layout import Layout, PciDevice, layout, other_devices
from simulator.spec import NodeSpec

KERNEL = "5.15.0-1063-nvidia"
LOGICAL_CPUS = 224
CPU_LISTS = ("0-55,112-167", "56-111,168-223")
ETHERNET, LOOPBACK = "eth0", "lo"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. Its index is also its rail."""

    index: int
    uuid: str
    serial: str
    pci_address: str

    @property
    def log_address(self) -> str:
        """PCI address as the driver prints it in the kernel log, without the function."""
        return self.pci_address.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class Port:
    """NIC with one port: RDMA device and interface. Storage ports have no rail."""

    rdma_device: str
    interface: str
    pci_address: str
    guid: str
    mac: str
    gigabits: int
    rail: int | None
    nic: NicModel

    @property
    def bytes_per_second(self) -> int:
        """Line rate."""
        return self.gigabits * 125_000_000


@dataclass(frozen=True, slots=True)
class Bridge:
    """ConnectX-7 function for managing NVSwitches: an RDMA device, but not a NIC."""

    rdma_device: str
    pci_address: str
    guid: str


@dataclass(frozen=True, slots=True)
class Machine:
    """Components of a node. GPUs and ports passed through to a virtual machine are PCI devices only.

    `peers` are the PCI addresses of all GPUs that NVLinks may lead to.
    """

    model: GpuModel
    gpus: tuple[Gpu, ...]
    ports: tuple[Port, ...]
    pci: tuple[PciDevice, ...]
    peers: tuple[str, ...]
    nvswitches: tuple[str, ...]
    bridges: tuple[Bridge, ...] = ()


def machine(spec: NodeSpec) -> Machine:
    """Create a node's components. Raises ValueError for an impossible configuration."""
    model = find(spec.model)
    _check(spec, model)
    server = layout(model)
    rails = [
        rail.with_nic(nic_of(spec.nic, index))
        for index, rail in enumerate(server.rails[: spec.gpus])
    ]
    own = rails[: spec.own_gpus]
    handed_over = [rail.handed_over() for rail in rails[spec.own_gpus :]]
    storage = [address for _, address in server.storage]
    bridges = tuple(_bridge(spec, number, address) for number, address in server.bridges)
    nvswitches = model.nvlink.nvswitches if model.nvlink else 0
    tree = [device for rail in own + handed_over for device in rail.devices]
    tree += other_devices(
        storage,
        nic_of(spec.nic, None),
        bridges=[bridge.pci_address for bridge in bridges],
        nvswitches=nvswitches,
    )
    return Machine(
        model=model,
        gpus=tuple(_gpu(spec, index, rail.gpu) for index, rail in enumerate(own)),
        ports=_ports(spec, server),
        pci=tuple(sorted(tree, key=lambda device: device.address)),
        peers=tuple(rail.gpu for rail in server.rails),
        nvswitches=tuple(device.address for device in tree if device.driver == "nvidia-nvswitch"),
        bridges=bridges,
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


def _ports(spec: NodeSpec, server: Layout) -> tuple[Port, ...]:
    """Return the ports of rails, then those for storage."""
    places = [
        _Place(index, f"{index + 1}", number, rail.nic)
        for index, (number, rail) in enumerate(
            zip(server.rail_numbers, server.rails[: spec.own_gpus], strict=False)
        )
    ]
    places += [
        _Place(None, f"{21 + place}", number, address)
        for place, (number, address) in enumerate(server.storage)
    ]
    return tuple(_port(spec, place, places) for place in places)


@dataclass(frozen=True, slots=True)
class _Place:
    """PCI position of a NIC, and its number among all network ports of a DGX H100."""

    rail: int | None
    slot: str
    number: int
    pci_address: str


def _port(spec: NodeSpec, place: _Place, places: list[_Place]) -> Port:
    nic = nic_of(spec.nic, place.rail)
    tail = spec.stream(f"port {place.number} identity").getrandbits(24)
    mac = f"{nic.mac_prefix}{tail:06x}"
    domain, bus = (int(part, 16) for part in place.pci_address.split(":")[:2])
    return Port(
        rdma_device=nic.rdma_name.format(
            number=_number(nic, place, places, spec.nic),
            domain=f"P{domain}" if domain else "",
            bus=bus,
        ),
        interface=nic.interface_name.format(slot=place.slot),
        pci_address=place.pci_address,
        guid=_guid(nic, mac),
        mac=":".join(mac[start : start + 2] for start in range(0, 12, 2)),
        gigabits=nic.storage_gigabits if place.rail is None else nic.gigabits,
        rail=place.rail,
        nic=nic,
    )


def _number(nic: NicModel, place: _Place, places: list[_Place], nics: str) -> int:
    """Return a NIC's number: as in a DGX H100 for ConnectX-7, else in bus order within the NIC model."""
    if nic is CONNECTX7:
        return place.number
    addresses = [other.pci_address for other in places if nic_of(nics, other.rail) is nic]
    return sorted(addresses).index(place.pci_address)


def _guid(nic: NicModel, mac: str) -> str:
    """Return the GUID: ConnectX puts 0300 between the halves of its MAC address, others use an EUI-64."""
    if nic is CONNECTX7:
        digits = f"{mac[:6]}0300{mac[6:]}"
    else:
        digits = f"{int(mac[:2], 16) ^ 2:02x}{mac[2:6]}fffe{mac[6:]}"
    return ":".join(digits[start : start + 4] for start in range(0, 16, 4))


def _bridge(spec: NodeSpec, number: int, pci_address: str) -> Bridge:
    tail = spec.stream(f"bridge {number} identity").getrandbits(24)
    mac = f"{CONNECTX7.mac_prefix}{tail:06x}"
    return Bridge(f"mlx5_{number}", pci_address, _guid(CONNECTX7, mac))
