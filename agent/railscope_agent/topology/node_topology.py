"""Model of the whole node: PCI tree, GPUs and their NVLinks, network devices and rails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from railscope_agent.host import Host
from railscope_agent.topology import (
    nccl_topology,
    network_interface,
    pci,
    pci_distance,
    pcie_links,
    rail_rules,
)
from railscope_agent.topology.gpu_links import GpuLinks, count_bonded_links, read_gpu_links
from railscope_agent.topology.network import NetworkScanner
from railscope_agent.topology.network_device import NetworkDevice, NodeNetwork


@dataclass(frozen=True, slots=True)
class TopologyGpu:
    """A GPU on the bus. `index` is NVML's if NVML lists the GPU, else its position in bus order."""

    index: int
    device: pci.PciDevice
    reported: GpuLinks | None = None

    @property
    def address(self) -> str:
        """PCI address."""
        return self.device.address

    @property
    def model(self) -> str:
        """Name, or vendor and device if no driver reports the name."""
        return self.reported.model if self.reported and self.reported.model else self.device.model

    @property
    def memory_node(self) -> str:
        """NUMA node of its own memory; empty if it has none."""
        return self.reported.memory_node if self.reported else ""


@dataclass(frozen=True, slots=True)
class NodeTopology:
    """Result of `read_topology`.

    `names`, `links` and `cpus` are by device address: names, states of PCIe links, and near CPUs. `bonds`
    are the NVLinks between pairs of GPUs in table notation (NV18).
    """

    devices: Mapping[str, pci.PciDevice]
    names: Mapping[str, list[str]]
    links: Mapping[str, pcie_links.PcieLinkState]
    cpus: Mapping[str, str]
    gpus: tuple[TopologyGpu, ...]
    network: NodeNetwork
    bonds: Mapping[tuple[str, str], str]

    @property
    def nics(self) -> list[NetworkDevice]:
        """Network devices with RDMA, in bus order: those of the table."""
        return [device for device in self.network.devices if device.rdma]

    def format_distance(self, address: str, other: str) -> str:
        """Return the distance of two GPUs or NICs by address, in the terms of the table."""
        if address == other:
            return "X"
        if (address, other) in self.bonds:
            return self.bonds[address, other]
        return self.pci_distance(address, other).name

    def pci_distance(self, address: str, other: str) -> pci_distance.PciDistance:
        """Return the same without NVLinks."""
        places = [self._find_place(end) for end in (address, other)]
        c2c = {gpu.address for gpu in self.gpus if gpu.reported and gpu.reported.c2c_links}
        # P2C is between a GPU with C2C and a device without it: two such GPUs have the distance of their
        # places.
        if (address in c2c) != (other in c2c):
            gpu, nic = places if address in c2c else reversed(places)
            return pci_distance.c2c_distance(gpu, nic)
        return pci_distance.distance_between(*places)

    def _find_place(self, address: str) -> pci.PciPlace:
        device = self.devices.get(address)
        return device.place if device else self.network.device_at(address).device.place


def read_topology(host: Host, rules: rail_rules.RailRules) -> NodeTopology:
    """Return the node as it is now."""
    tree = rules.tree or nccl_topology.NcclTopology()
    devices = pci.read_pci_devices(host, tree.places)
    network = NetworkScanner(rules).assign_roles(host, devices.values())
    reported = {gpu.address: gpu for gpu in read_gpu_links(host)}
    gpus = []
    for position, device in enumerate(network.gpus):
        links = reported.get(device.address)
        gpus.append(TopologyGpu(links.index if links else position, device, links))
    files = host.open_file_group(pcie_links.link_files(devices))
    states = pcie_links.read_links(files, devices)
    files.close()
    bonds = {pair: f"{kind}{count}" for pair, (kind, count) in tree.links.items()}
    bonded = count_bonded_links(tuple(reported.values()))
    # Reports of the driver take precedence over the topology file.
    bonds |= {pair: f"NV{count}" for pair, count in bonded.items()}
    return NodeTopology(
        devices,
        pci.find_device_names(host, devices, network_interface.whole_functions(network.interfaces)),
        states,
        {address: _list_near_cpus(device, tree) for address, device in devices.items()},
        tuple(sorted(gpus, key=lambda gpu: (gpu.index, pci.bus_order(gpu.address)))),
        network,
        bonds,
    )


def _list_near_cpus(device: pci.PciDevice, tree: nccl_topology.NcclTopology) -> str:
    """Return the CPUs of the topology file if it contains the device, else those of sysfs."""
    in_file = tree.cpus.get(device.place.numa_node) if device.address in tree.places else None
    return in_file or device.cpus
