"""Model of the whole node: PCI tree, GPUs and their NVLinks, network devices and rails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent.host import Host
from agent.topology import nvlinks, pci
from agent.topology.distance import Distance, distance, over_c2c
from agent.topology.names import device_names
from agent.topology.network import Network, NetworkDevice, Wiring
from agent.topology.nvlinks import GpuLinks, bonded
from agent.topology.paths import LinkFiles, LinkState
from agent.topology.pci import PciDevice, bus_order
from agent.topology.rules import Rules
from agent.topology.tree_file import NcclTopology


@dataclass(frozen=True, slots=True)
class NodeGpu:
    """A GPU on the bus. `index` is NVML's if NVML lists the GPU, else its position in bus order."""

    index: int
    device: PciDevice
    told: GpuLinks | None = None

    @property
    def address(self) -> str:
        """PCI address."""
        return self.device.address

    @property
    def model(self) -> str:
        """Name, or vendor and device if no driver reports the name."""
        return self.told.model if self.told and self.told.model else self.device.model

    @property
    def memory_node(self) -> str:
        """NUMA node of its own memory; empty if it has none."""
        return self.told.memory_node if self.told else ""


@dataclass(frozen=True, slots=True)
class Node:
    """Result of `look`.

    `names`, `links` and `cpus` are by device address: names, states of PCIe links, and near CPUs. `bonds`
    are the NVLinks between pairs of GPUs in table notation (NV18).
    """

    devices: Mapping[str, PciDevice]
    names: Mapping[str, list[str]]
    links: Mapping[str, LinkState]
    cpus: Mapping[str, str]
    gpus: tuple[NodeGpu, ...]
    network: Network
    bonds: Mapping[tuple[str, str], str]

    @property
    def cards(self) -> list[NetworkDevice]:
        """Network devices with RDMA, in bus order: those of the table."""
        return [device for device in self.network.devices if device.rdma]

    def apart(self, one: str, other: str) -> str:
        """Return the distance of two GPUs or NICs by address, in the terms of the table."""
        if one == other:
            return "X"
        if (one, other) in self.bonds:
            return self.bonds[one, other]
        return self.pci_distance(one, other).name

    def pci_distance(self, one: str, other: str) -> Distance:
        """Return the same without NVLinks."""
        places = [self._place(address) for address in (one, other)]
        c2c = {gpu.address for gpu in self.gpus if gpu.told and gpu.told.c2c_links}
        if (one in c2c) != (other in c2c):
            gpu, card = places if one in c2c else reversed(places)
            return over_c2c(gpu, card)
        return distance(*places)

    def _place(self, address: str) -> pci.Place:
        known = self.devices.get(address)
        return known.place if known else self.network.at(address).device.place


def look(host: Host, rules: Rules) -> Node:
    """Return the node as it is now."""
    tree = rules.tree or NcclTopology()
    devices = pci.look(host, tree.places)
    network = Wiring(rules).network(host, devices.values())
    told = {gpu.address: gpu for gpu in nvlinks.look(host)}
    gpus = tuple(
        NodeGpu(
            told[gpu.address].index if gpu.address in told else place, gpu, told.get(gpu.address)
        )
        for place, gpu in enumerate(network.gpus)
    )
    files = LinkFiles(host, tuple(devices))
    states = files.read()
    files.close()
    bonds = {pair: f"{word}{count}" for pair, (word, count) in tree.links.items()}
    bonds |= {pair: f"NV{count}" for pair, count in bonded(tuple(told.values())).items()}
    return Node(
        devices,
        device_names(host, devices),
        states,
        {address: _cpus(device, tree) for address, device in devices.items()},
        tuple(sorted(gpus, key=lambda gpu: (gpu.index, bus_order(gpu.address)))),
        network,
        bonds,
    )


def _cpus(device: PciDevice, tree: NcclTopology) -> str:
    """Return the CPUs of the topology file if it contains the device, else those of sysfs."""
    told = tree.cpus.get(device.place.numa_node) if device.address in tree.places else None
    return told or device.cpus
