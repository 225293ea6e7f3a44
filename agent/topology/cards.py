"""Network cards with all that is known of them: driver, firmware, role and rail.

A collector rolls a stream up over rails by what the stream itself says of its cards. So every source
of cards tells these facts, whichever source asks the driver for its statistics.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.host import Host
from agent.sampling.facts import known, names
from agent.topology.names import NET
from agent.topology.network import NetworkDevice, Wiring
from railscope.catalog.entities import NIC
from railscope.entity import Entity


def card(interface: str, driver: Mapping[str, str], device: NetworkDevice) -> Entity:
    """A card with its facts; `driver` is the answer of ethtool (linux/ethtool.h, ETHTOOL_GDRVINFO)."""
    facts = device.facts | known(
        driver=driver["driver"],
        firmware=driver.get("firmware", ""),
        pci_address=driver.get("bus", ""),
        rdma_device=device.rdma[0] if device.rdma else "",
    )
    return Entity(NIC, (interface,), facts)


class Cards:
    """Finds the cards. One serves all sources, whichever thread they have."""

    def __init__(self, wiring: Wiring | None = None) -> None:
        self._wiring = wiring or Wiring()

    def look(self, host: Host) -> tuple[Entity, ...]:
        """Every interface whose driver says who it is."""
        network = self._wiring.look(host)
        found = []
        for interface in names(host, NET):
            try:
                driver = host.call("ethtool", "driver", interface)
            except OSError:  # virtual, or not for us to ask: `nic` says which
                continue
            found.append(card(interface, driver, network.at(driver.get("bus", ""))))
        return tuple(found)
