"""Which PCI devices have been on the bus since the agent started, and which of them are gone.

A device that is pulled, or that a switch drops, takes its files with it, and all its series would
simply end. Here it stays known, until the agent starts anew.
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
"""More than a server has slots for; what is new beyond that is not followed."""


@dataclass(slots=True)
class _Known:
    entity: Entity
    names: tuple[str, ...]
    present: bool = True


class Presence:
    """The devices that were ever seen, with what they were last called."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._listed: frozenset[str] = frozenset()
        self.grown = False
        """Whether the bus is no longer as the last probe found it."""

    def learn(
        self,
        listed: Sequence[str],
        devices: Mapping[str, Entity],
        names: Mapping[str, Sequence[str]],
    ) -> dict[str, Entity]:
        """Take in what a probe found on the bus; every device that was ever seen, by address.

        A device that has no names any more, as a half removed one, keeps those it had.
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
        """What has gone and what is back, given all addresses that are on the bus now."""
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
