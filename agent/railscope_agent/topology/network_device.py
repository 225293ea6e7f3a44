"""A network device of a node with its role and its rail, and all of them as one table.

A NIC has facts: driver, firmware, role and rail. A collector aggregates a source over rails by
the NIC facts in that source's own frames. So every source of NICs includes these facts, whichever
source reads the driver's statistics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from railscope.catalog.entities import NIC
from railscope.frame import Entity
from railscope_agent.sampling.fact_readers import nonempty_facts
from railscope_agent.topology import pci
from railscope_agent.topology.network_interface import NetworkInterface


@dataclass(frozen=True, slots=True)
class NetworkDevice:
    """Network function of the PCI bus, or a sub-function of one, with its names, its role and its rail.

    `driver` is that of the function; `gpu` is the address of its GPU; `reason` explains the role and the rail.
    """

    device: pci.PciDevice
    rdma: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    link_layer: str = ""
    driver: str = ""
    role: str = ""
    rail: int | None = None
    plane: int = 0
    gpu: str = ""
    reason: str = ""

    @property
    def address(self) -> str:
        """PCI address."""
        return self.device.address

    @property
    def names(self) -> tuple[str, ...]:
        """All names, the RDMA device first."""
        return (*self.rdma, *self.interfaces, self.address)

    @property
    def model(self) -> str:
        """Model and link layer: the rail NICs of one node have the same."""
        return f"{self.device.model} {self.link_layer}".strip()

    @property
    def facts(self) -> dict[str, str]:
        """Role and rail as labels; unknown ones are left out."""
        return nonempty_facts(role=self.role, rail="" if self.rail is None else str(self.rail))


NO_NETWORK_DEVICE = NetworkDevice(pci.PciDevice("", "", "", pci.PciPlace("", ("",))))
"""Placeholder for a device that is not on the PCI bus: it has neither role nor rail."""


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """All network devices of a node in bus order, and the GPUs they serve.

    `gpu_rails` maps the PCI address of a GPU to its rail, `nic_by_gpu` to the NIC that it uses. `problems`
    are settings that contradict the node, or each other; `unused` are names in the settings without a
    device. `interfaces` are those of all devices by name, `subfunctions` the parts of functions.
    """

    devices: tuple[NetworkDevice, ...] = ()
    gpus: tuple[pci.PciDevice, ...] = ()
    gpu_rails: Mapping[str, int] = field(default_factory=dict)
    nic_by_gpu: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    interfaces: Mapping[str, NetworkInterface] = field(default_factory=dict)
    subfunctions: tuple[NetworkDevice, ...] = ()

    @property
    def ports(self) -> list[str]:
        """Interfaces that represent a port of this node."""
        return [name for name, interface in self.interfaces.items() if interface.is_port]

    def device_at(self, address: str) -> NetworkDevice:
        """Return the device at a PCI address."""
        return next((d for d in self.devices if d.address == address), NO_NETWORK_DEVICE)

    def device_of(self, name: str) -> NetworkDevice:
        """Return the device or the sub-function with this interface or RDMA device."""
        devices = (d for d in (*self.devices, *self.subfunctions) if name in d.names)
        return next(devices, NO_NETWORK_DEVICE)


def nic_entity(
    interface: NetworkInterface, device: NetworkDevice, driver: Mapping[str, str]
) -> Entity:
    """Return a NIC with its facts; `driver` is the answer of `read_driver`, empty if it failed."""
    facts = device.facts | nonempty_facts(
        driver=driver.get("driver", "") or interface.driver,
        firmware=driver.get("firmware", ""),
        pci_address=interface.function or driver.get("bus", ""),
        rdma_device=interface.rdma_device,
    )
    return Entity(NIC, (interface.name,), facts)
