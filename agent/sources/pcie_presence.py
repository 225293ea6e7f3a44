"""PCI devices seen on the bus since the agent started, and those of them that vanished.

When a device is unplugged, or dropped by a switch, its files vanish and all its series would simply
end. Here it is remembered until the agent restarts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from agent.sampling.facts import known
from railscope.catalog.declare import EventClass
from railscope.catalog.entities import PCIE
from railscope.catalog.pcie import PCIE_BACK_EVENT, PCIE_GONE_EVENT
from railscope.entity import Entity
from railscope.frame import Event, Instant

MAX_DEVICES = 1024
"""More than a node has slots; further new devices are not followed."""


@dataclass(slots=True)
class _Known:
    entity: Entity
    names: tuple[str, ...]
    present: bool = True


class Presence:
    """Every device seen so far, with its last names."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._listed: frozenset[str] = frozenset()
        self.grown = False
        """True if the bus differs from the last probe."""

    def learn(
        self,
        listed: Sequence[str],
        devices: Mapping[str, Entity],
        names: Mapping[str, Sequence[str]],
    ) -> dict[str, Entity]:
        """Add the devices found by a probe, and return every device seen so far by address.

        A device without names, such as a partially removed one, keeps its earlier names.
        """
        self._listed, self.grown = frozenset(listed), False
        for address, entity in devices.items():
            before = self._known.get(address)
            told = tuple(names.get(address, ())) or (before.names if before else ())
            if before:
                before.entity, before.names = entity, told
            elif len(self._known) < MAX_DEVICES:
                self._known[address] = _Known(entity, told)
        return {address: known.entity for address, known in sorted(self._known.items())}

    def compare(self, there: Collection[str], now: Instant) -> list[Event]:
        """Events of vanished and returned devices, for the addresses currently on the bus."""
        self.grown = self._listed != frozenset(there)
        events = []
        for address, device in self._known.items():
            present = address in there
            if present != device.present:
                device.present = present
                event = PCIE_BACK_EVENT if present else PCIE_GONE_EVENT
                events.append(_event(event, device, now))
        return events


def _event(event: EventClass, device: _Known, now: Instant) -> Event:
    facts = device.entity.facts
    model = f"{facts.get('vendor', '')}:{facts.get('device', '')}".replace("0x", "")
    told = known(
        role=facts.get("role", ""),
        names=" ".join(device.names),
        driver=facts.get("driver", ""),
        model="" if model == ":" else model,
    )
    about = Entity(PCIE, device.entity.key)
    return Event(event, about, now.wall_ns, now.boot_ns, told)
