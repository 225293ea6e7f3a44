"""Components of the simulated node: up to eight GPUs, one rail per GPU, storage NICs and NVSwitches."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from railscope_simulator import device_models
from railscope_simulator.pci_layout import PciLayout, SimulatedPciDevice, layout, other_devices
from railscope_simulator.spec import NodeSpec

KERNEL = "5.15.0-1063-nvidia"
LOGICAL_CPUS = 224
CPU_LISTS = ("0-55,112-167", "56-111,168-223")
ETHERNET, LOOPBACK = "eth0", "lo"


@dataclass(frozen=True, slots=True)
class SimulatedGpu:
    """One GPU. Its index is also its rail."""

    index: int
    uuid: str
    serial: str
    pci_address: str


@dataclass(frozen=True, slots=True)
class SimulatedPort:
    """NIC with one port: RDMA device and interface. Storage ports have no rail."""

    rdma_device: str
    interface: str
    pci_address: str
    guid: str
    mac: str
    gigabits: int
    rail: int | None
    nic: device_models.NicModel

    @property
    def bytes_per_second(self) -> int:
        """Line rate."""
        return self.gigabits * 125_000_000


@dataclass(frozen=True, slots=True)
class NvSwitchFunction:
    """ConnectX-7 function for managing NVSwitches: an RDMA device, but not a NIC."""

    rdma_device: str
    pci_address: str
    guid: str


@dataclass(frozen=True, slots=True)
class NodeHardware:
    """Components of a node. GPUs and ports passed through to a virtual machine are PCI devices only.

    `peers` are the PCI addresses of all GPUs that NVLinks may lead to.
    """

    model: device_models.GpuModel
    gpus: tuple[SimulatedGpu, ...]
    ports: tuple[SimulatedPort, ...]
    pci: tuple[SimulatedPciDevice, ...]
    peers: tuple[str, ...]
    nvswitches: tuple[str, ...]
    bridges: tuple[NvSwitchFunction, ...] = ()


def build_node_hardware(spec: NodeSpec) -> NodeHardware:
    """Create a node's components. Raises ValueError for an impossible configuration."""
    model = device_models.find_model(spec.model)
    _check(spec, model)
    server = layout(model, spec.nic)
    own_rails = server.rails[: spec.own_gpus]
    passed_through = [rail.passed_through() for rail in server.rails[spec.own_gpus : spec.gpus]]
    storage = [address for _, address in server.storage]
    bridges = tuple(_bridge(spec, number, address) for number, address in server.bridges)
    nvswitches = model.nvlink.nvswitches if model.nvlink else 0
    tree = [device for rail in (*own_rails, *passed_through) for device in rail.devices]
    tree += other_devices(
        storage,
        device_models.nic_of(spec.nic, None),
        bridges=[bridge.pci_address for bridge in bridges],
        nvswitches=nvswitches,
    )
    return NodeHardware(
        model=model,
        gpus=tuple(_gpu(spec, index, rail.gpu) for index, rail in enumerate(own_rails)),
        ports=_ports(spec, server),
        pci=tuple(sorted(tree, key=lambda device: device.address)),
        peers=tuple(rail.gpu for rail in server.rails),
        nvswitches=tuple(device.address for device in tree if device.driver == "nvidia-nvswitch"),
        bridges=bridges,
    )


def _check(spec: NodeSpec, model: device_models.GpuModel) -> None:
    wrong = ""
    if spec.gpus > model.per_node:
        wrong = f"invalid number of GPUs {model.name}: {spec.gpus}: expected 1 to {model.per_node}"
    elif spec.mode == "mig" and not model.mig_profiles:
        wrong = f"invalid mode mig: GPU {model.name} has no MIG profiles"
    elif spec.mode == "vgpu" and model.vgpu_type is None:
        wrong = f"invalid mode vgpu: GPU {model.name} has no vGPU types"
    elif spec.mode == "passthrough" and spec.gpus == 1:
        wrong = "invalid mode passthrough: 1 GPU: expected 2 or more"
    elif spec.scenario == "nvlink_errors" and (model.nvlink is None or spec.mode == "mig"):
        wrong = (
            f"invalid scenario nvlink_errors: GPU {model.name} in mode {spec.mode} has no NVLinks"
        )
    if wrong:
        raise ValueError(wrong)


def _gpu(spec: NodeSpec, index: int, pci_address: str) -> SimulatedGpu:
    identity = spec.stream(f"gpu {index} identity")
    name = uuid.UUID(int=identity.getrandbits(128), version=4)
    return SimulatedGpu(index, f"GPU-{name}", f"165{identity.randrange(10**10):010d}", pci_address)


def _ports(spec: NodeSpec, server: PciLayout) -> tuple[SimulatedPort, ...]:
    """Return the ports of rails, then those for storage."""
    places = [
        _NicPosition(index, f"{index + 1}", number, rail.nic)
        for index, (number, rail) in enumerate(
            zip(server.rail_numbers, server.rails[: spec.own_gpus], strict=False)
        )
    ]
    places += [
        _NicPosition(None, f"{21 + place}", number, address)
        for place, (number, address) in enumerate(server.storage)
    ]
    return tuple(_port(spec, place, places) for place in places)


@dataclass(frozen=True, slots=True)
class _NicPosition:
    """PCI position of a NIC, and its number among all network ports of a DGX H100."""

    rail: int | None
    slot: str
    number: int
    pci_address: str


def _port(spec: NodeSpec, place: _NicPosition, places: list[_NicPosition]) -> SimulatedPort:
    nic = device_models.nic_of(spec.nic, place.rail)
    tail = spec.stream(f"port {place.number} identity").getrandbits(24)
    mac = f"{nic.mac_prefix}{tail:06x}"
    domain, bus = (int(part, 16) for part in place.pci_address.split(":")[:2])
    return SimulatedPort(
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


def _number(
    nic: device_models.NicModel, place: _NicPosition, places: list[_NicPosition], nics: str
) -> int:
    """Return a NIC's number: as in a DGX H100 for ConnectX-7, else in bus order within the NIC model."""
    if nic is device_models.CONNECTX7:
        return place.number
    addresses = [
        other.pci_address for other in places if device_models.nic_of(nics, other.rail) is nic
    ]
    return sorted(addresses).index(place.pci_address)


def _guid(nic: device_models.NicModel, mac: str) -> str:
    """Return the GUID: ConnectX puts 0300 between the halves of its MAC address, others use an EUI-64."""
    if nic is device_models.CONNECTX7:
        digits = f"{mac[:6]}0300{mac[6:]}"
    else:
        digits = f"{int(mac[:2], 16) ^ 2:02x}{mac[2:6]}fffe{mac[6:]}"
    return ":".join(digits[start : start + 4] for start in range(0, 16, 4))


def _bridge(spec: NodeSpec, number: int, pci_address: str) -> NvSwitchFunction:
    tail = spec.stream(f"bridge {number} identity").getrandbits(24)
    mac = f"{device_models.CONNECTX7.mac_prefix}{tail:06x}"
    return NvSwitchFunction(f"mlx5_{number}", pci_address, _guid(device_models.CONNECTX7, mac))
