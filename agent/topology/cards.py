"""NICs with their facts: driver, firmware, role and rail.

A collector aggregates a source over rails by the NIC facts in that source's own frames. So every source of
NICs includes these facts, whichever source reads the driver's statistics.
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
    """Return a NIC with its facts; `driver` is ethtool's answer (linux/ethtool.h, ETHTOOL_GDRVINFO)."""
    facts = device.facts | known(
        driver=driver["driver"],
        firmware=driver.get("firmware", ""),
        pci_address=driver.get("bus", ""),
        rdma_device=device.rdma[0] if device.rdma else "",
    )
    return Entity(NIC, (interface,), facts)


class Cards:
    """Finds the NICs. One instance serves all sources, on any thread."""

    def __init__(self, wiring: Wiring | None = None) -> None:
        self._wiring = wiring or Wiring()

    def look(self, host: Host) -> tuple[Entity, ...]:
        """Return every interface whose driver identifies itself."""
        network = self._wiring.look(host)
        found = []
        for interface in names(host, NET):
            try:
                driver = host.call("ethtool", "driver", interface)
            except OSError:  # virtual, or denied: source `nic` reports it
                continue
            found.append(card(interface, driver, network.at(driver.get("bus", ""))))
        return tuple(found)
