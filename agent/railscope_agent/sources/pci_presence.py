"""PCI devices seen on the bus since the agent started, and those of them that vanished.

When a device is unplugged, or dropped by a switch, its files vanish and all its series would simply
end. Here it is retained until the agent restarts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from railscope.catalog import declare, pcie as catalog
from railscope.catalog.entities import PCIE
from railscope.frame import Entity, Event, NodeTimestamp
from railscope_agent.sampling import fact_readers

MAX_DEVICES = 1024
"""More than a node has slots; further new devices are not followed."""


@dataclass(slots=True)
class _ObservedPciDevice:
    entity: Entity
    names: tuple[str, ...]
    present: bool = True


class PciPresence:
    """Every device seen so far, with its last names."""

    def __init__(self) -> None:
        self._devices: dict[str, _ObservedPciDevice] = {}
        self._listed: frozenset[str] = frozenset()
        self.has_changed = False
        """True if the bus differs from the last probe."""

    def add_devices(
        self,
        listed: Sequence[str],
        devices: Mapping[str, Entity],
        names: Mapping[str, Sequence[str]],
    ) -> dict[str, Entity]:
        """Add the devices found by a probe, and return every device seen so far by address.

        A device without names, such as a partially removed one, keeps its earlier names.
        """
        self._listed, self.has_changed = frozenset(listed), False
        for address, entity in devices.items():
            before = self._devices.get(address)
            device_names = tuple(names.get(address, ())) or (before.names if before else ())
            if before:
                before.entity, before.names = entity, device_names
            elif len(self._devices) < MAX_DEVICES:
                self._devices[address] = _ObservedPciDevice(entity, device_names)
        return {address: observed.entity for address, observed in sorted(self._devices.items())}

    def compare(self, addresses: Collection[str], now: NodeTimestamp) -> list[Event]:
        """Events of vanished and returned devices, for the addresses currently on the bus."""
        self.has_changed = self._listed != frozenset(addresses)
        events = []
        for address, device in self._devices.items():
            present = address in addresses
            if present != device.present:
                device.present = present
                event = catalog.PCIE_BACK_EVENT if present else catalog.PCIE_GONE_EVENT
                events.append(_event(event, device, now))
        return events


def _event(event: declare.EventClass, device: _ObservedPciDevice, now: NodeTimestamp) -> Event:
    facts = device.entity.facts
    model = f"{facts.get('vendor', '')}:{facts.get('device', '')}".replace("0x", "")
    facts_present = fact_readers.nonempty_facts(
        role=facts.get("role", ""),
        names=" ".join(device.names),
        driver=facts.get("driver", ""),
        model="" if model == ":" else model,
    )
    about = Entity(PCIE, device.entity.key)
    return Event(event, about, now.wall_ns, now.boot_ns, facts_present)
