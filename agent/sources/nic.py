"""NICs: the statistics of their drivers, by the kernel's ethtool interface.

The list of statistics changes while a NIC runs (PFC enabled for a priority, channels added). Names
and values are returned together by each read; if the names differ from those of the probe, values
are looked up by name, and the next probe creates the right columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter

from agent.host import Host, Json
from agent.sampling.counter_memory import CounterMemory
from agent.sampling.known_devices import hidden
from agent.sampling.source import Columns, Finding, HoldsNothing, Inventory, Table, Verdict
from agent.sampling.unwrap import Carried, Unwrap
from agent.sources.ethtool_drivers import DRIVERS, narrow, set_back_with_narrow, typed
from agent.sources.ethtool_standard import listed
from agent.topology.cards import card as card_of
from agent.topology.network import Wiring
from agent.topology.rules import BRIDGE
from railscope.catalog.declare import Metric
from railscope.catalog.entities import NIC
from railscope.entity import Entity
from railscope.reading import Absent, reason_of

_NET = "/sys/class/net"


@dataclass(slots=True)
class _Card:
    """A NIC of the last probe: its statistics, and those of them that become columns."""

    interface: str
    names: list[str]
    positions: list[int]
    start: int
    unwrap: Unwrap


class Nic(HoldsNothing):
    """PFC, ECN, discards, PCIe stall, PHY and FEC of every NIC, as far as its driver counts them."""

    name = "nic"
    family = "network"
    longest_period_seconds = 20.0
    """Some drop counters are 32 bits wide: they wrap after 21 seconds at 200 million packets per second."""

    def __init__(self, period_seconds: float = 1.0, wiring: Wiring | None = None) -> None:
        self.period_seconds = period_seconds
        self._wiring = wiring or Wiring()
        self._cards: list[_Card] = []
        self._memory: CounterMemory | None = None
        self._before: dict[str, Carried] = {}
        """Counters before a restart, or hidden from the last probe by failed calls."""

    def remember(self, memory: CounterMemory) -> None:
        """Load the counter wraps from before a restart, and store them from now on."""
        self._memory = memory
        self._before = memory.load()

    @property
    def _carried(self) -> dict[str, Carried]:
        return {card.interface: card.unwrap.carried for card in self._cards}

    def probe(self, host: Host) -> Inventory:
        """Read the driver and the list of statistics of every interface."""
        columns = Columns()
        findings: list[Finding] = []
        bystanders: list[Entity] = []
        before, cards = self._before | self._carried, list[_Card]()
        network = self._wiring.look(host)
        for interface in _interfaces(host):
            try:
                driver = host.call("ethtool", "driver", interface)
                statistics = host.call("ethtool", "statistics", interface)
            except OSError as error:
                findings.append(_trouble(interface, error))
                continue
            card = card_of(interface, driver, network.at(driver.get("bus", "")))
            found = typed(driver["driver"], statistics["names"])
            findings.append(_finding(interface, driver["driver"], statistics["names"], found))
            if not found or card.facts.get("role") == BRIDGE:
                bystanders.append(card)
                continue
            start = len(columns.columns)
            for metric, part, _ in found:
                columns.add(metric, _about(card, metric, part))
            positions = [position for _, _, position in found]
            told = [statistics["names"][position] for position in positions]
            unwrap = _unwrap(driver["driver"], told, start, before.get(interface))
            cards.append(_Card(interface, statistics["names"], positions, start, unwrap))
        self._cards = cards
        self._before = hidden(host, before, self._carried)
        return Inventory(tuple(columns.columns), tuple(bystanders), tuple(findings))

    def read(self, host: Host, into: Table) -> None:
        """Read each NIC once and select the statistics that have a column."""
        for card in self._cards:
            width = len(card.positions)
            try:
                statistics = host.call("ethtool", "statistics", card.interface)
            except OSError as error:
                into.put_none(card.start, width, reason_of(error))
                continue
            if statistics["names"] is not card.names and statistics["names"] != card.names:
                _read_by_name(card, statistics, into)
                into.grown = (
                    True  # for example, PFC on another priority: probe again for new statistics
                )
            else:
                values = statistics["values"]
                picked = itemgetter(*card.positions)(values)
                into.put_all(card.start, picked if width > 1 else (picked,))
            card.unwrap.carry_on(into.values, into.reasons)
        if self._memory:
            unwraps = {card.interface: card.unwrap for card in self._cards}
            self._memory.keep(unwraps, host.clock.now().boot_ns)


def _unwrap(driver: str, told: list[str], start: int, before: Carried | None) -> Unwrap:
    columns = {name: start + offset for offset, name in enumerate(told)}
    wide = [column for name, column in columns.items() if set_back_with_narrow(name)]
    return Unwrap({n: column for n, column in columns.items() if narrow(driver, n)}, wide, before)


def _read_by_name(card: _Card, statistics: Json, into: Table) -> None:
    values = dict(zip(statistics["names"], statistics["values"], strict=True))
    for offset, position in enumerate(card.positions):
        value = values.get(card.names[position])
        into.put(card.start + offset, Absent.GONE if value is None else value)


def _about(card: Entity, metric: Metric, part: str) -> Entity:
    return card if metric.about is NIC else Entity(metric.about, (*card.key, part))


def _interfaces(host: Host) -> list[str]:
    try:
        return host.names(_NET)
    except FileNotFoundError:
        return []


def _finding(
    interface: str, driver: str, names: list[str], found: list[tuple[Metric, str, int]]
) -> Finding:
    """Number of published statistics; for a driver without a table also the unpublished names."""
    what = f"statistics of {interface}"
    if driver in DRIVERS:
        detail = f"driver {driver}, {len(found)} typed statistics"
        return Finding(what, Verdict.SUPPORTED if found else Verdict.ABSENT, detail)
    used = {position for _, _, position in found}
    rest = [name for position, name in enumerate(names) if position not in used]
    detail = f"driver {driver}, {len(found)} of {len(names)} statistics have standard names"
    if rest:
        detail += f"; the rest: {listed(rest)}"
    return Finding(what, Verdict.SUPPORTED if found else Verdict.ABSENT, detail)


def _trouble(interface: str, error: OSError) -> Finding:
    reason = reason_of(error)
    if reason is Absent.UNSUPPORTED:
        detail = "the driver has no ethtool interface"
        return Finding(f"statistics of {interface}", Verdict.ABSENT, detail)
    if reason is Absent.GONE:  # not an interface, or removed meanwhile
        detail = error.strerror or "no such interface"
        return Finding(f"statistics of {interface}", Verdict.ABSENT, detail)
    verdict = Verdict.DENIED if reason is Absent.DENIED else Verdict.BROKEN
    remedy = "allow the agent the ioctl SIOCETHTOOL" if reason is Absent.DENIED else ""
    return Finding(f"statistics of {interface}", verdict, error.strerror or str(error), remedy)
