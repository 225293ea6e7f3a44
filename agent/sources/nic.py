"""Network cards: the statistics of their drivers, by the kernel's ethtool interface.

The list of statistics changes while a card runs (PFC switched on for a priority, channels added).
Names and values come together at each read; where the names differ from those of the probe, the
card is looked up by name again and, with the next probe, gets the right columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter

from agent.facts import known
from agent.host import Host, Json
from agent.source import Columns, Finding, HoldsNothing, Inventory, Table, Verdict
from agent.sources.ethtool_drivers import DRIVERS, typed
from agent.topology import rails_by_address, rdma_cards
from railscope.catalog.declare import Metric
from railscope.catalog.entities import NIC
from railscope.entity import Entity
from railscope.reading import Absent, reason_of, to_stored

_NET = "/sys/class/net"


@dataclass(slots=True)
class _Card:
    """A card of the last probe: which statistics it had, and which of them become columns."""

    interface: str
    names: list[str]
    positions: list[int]
    start: int


class Nic(HoldsNothing):
    """PFC, ECN, discards, PCIe stall, PHY and FEC of every card whose driver we know."""

    name = "nic"
    family = "network"
    longest_period_seconds = 20.0
    """Some counters of drops are 32 bits wide: at 200 million packets a second 21 seconds' worth."""

    def __init__(self, period_seconds: float = 1.0) -> None:
        self.period_seconds = period_seconds
        self._cards: list[_Card] = []

    def probe(self, host: Host) -> Inventory:
        """Ask every interface for its driver and its list of statistics."""
        columns = Columns()
        findings: list[Finding] = []
        bystanders: list[Entity] = []
        self._cards = []
        rails = rails_by_address(host)
        devices = {address: name for name, address in rdma_cards(host).items()}
        for interface in _interfaces(host):
            try:
                driver = host.call("ethtool", "driver", interface)
                statistics = host.call("ethtool", "statistics", interface)
            except OSError as error:
                findings.append(_trouble(interface, error))
                continue
            card = Entity(NIC, (interface,), _facts(driver, devices, rails))
            found = typed(driver["driver"], statistics["names"])
            findings.append(_finding(interface, driver["driver"], len(found)))
            if not found:
                bystanders.append(card)
                continue
            start = len(columns.columns)
            for metric, part, _ in found:
                columns.add(metric, _about(card, metric, part))
            positions = [position for _, _, position in found]
            self._cards.append(_Card(interface, statistics["names"], positions, start))
        return Inventory(tuple(columns.columns), tuple(bystanders), tuple(findings))

    def read(self, host: Host, into: Table) -> None:
        """Read each card once and pick the statistics that have a column."""
        for card in self._cards:
            width = len(card.positions)
            try:
                statistics = host.call("ethtool", "statistics", card.interface)
            except OSError as error:
                into.put_none(card.start, width, reason_of(error))
                continue
            if statistics["names"] is not card.names and statistics["names"] != card.names:
                _read_by_name(card, statistics, into)
                continue
            values = statistics["values"]
            picked = itemgetter(*card.positions)(values)
            into.put_all(card.start, picked if width > 1 else (picked,))


def _read_by_name(card: _Card, statistics: Json, into: Table) -> None:
    values = dict(zip(statistics["names"], statistics["values"], strict=True))
    for offset, position in enumerate(card.positions):
        value = values.get(card.names[position])
        into.put(card.start + offset, Absent.GONE if value is None else to_stored(value))


def _about(card: Entity, metric: Metric, part: str) -> Entity:
    return card if metric.about is NIC else Entity(metric.about, (*card.key, part))


def _interfaces(host: Host) -> list[str]:
    try:
        return host.names(_NET)
    except FileNotFoundError:
        return []


def _facts(
    driver: dict[str, str], devices: dict[str, str], rails: dict[str, int]
) -> dict[str, str]:
    address = driver["bus"]
    return known(
        driver=driver["driver"],
        firmware=driver["firmware"],
        pci_address=address,
        rdma_device=devices.get(address, ""),
        rail=str(rails.get(address, "")),
    )


def _finding(interface: str, driver: str, metrics: int) -> Finding:
    if metrics:
        detail = f"driver {driver}, {metrics} typed statistics"
        return Finding(f"statistics of {interface}", Verdict.SUPPORTED, detail)
    known = ", ".join(sorted(DRIVERS))
    detail = f"driver {driver} has none of the statistics we know (drivers known: {known})"
    return Finding(f"statistics of {interface}", Verdict.ABSENT, detail)


def _trouble(interface: str, error: OSError) -> Finding:
    reason = reason_of(error)
    if reason is Absent.UNSUPPORTED:
        detail = "the driver has no ethtool interface"
        return Finding(f"statistics of {interface}", Verdict.ABSENT, detail)
    if reason is Absent.GONE:  # a file among the interfaces, or one that went away meanwhile
        detail = error.strerror or "no such interface"
        return Finding(f"statistics of {interface}", Verdict.ABSENT, detail)
    verdict = Verdict.DENIED if reason is Absent.DENIED else Verdict.BROKEN
    remedy = "allow the agent the ioctl SIOCETHTOOL" if reason is Absent.DENIED else ""
    return Finding(f"statistics of {interface}", verdict, error.strerror or str(error), remedy)
