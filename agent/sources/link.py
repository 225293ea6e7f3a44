"""Links of all network interfaces: speed, carrier, changes.

Separate from the node's own numbers, because the kernel queries the NIC's driver for some of them.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.host import Host, Json, KeptFiles
from agent.sampling.facts import counted, names, text
from agent.sampling.source import Columns, Finding, Inventory, Table, Verdict, picked
from agent.topology.cards import Cards
from railscope.catalog import host as c
from railscope.catalog.declare import Metric
from railscope.catalog.entities import NIC
from railscope.entity import Entity
from railscope.reading import Absent, Reading, parse_integer, reason_of

ROOT = "/sys/class/net"


def parse_speed(content: bytes) -> Reading:
    """Speed in Mb/s; -1 marks a down link or a driver that does not report it, and is unsupported."""
    reading = parse_integer(content)
    return Absent.UNSUPPORTED if isinstance(reading, int) and reading < 0 else reading


_FILES: tuple[tuple[str, Metric, Callable[[bytes], Reading]], ...] = (
    ("speed", c.LINK_SPEED, parse_speed),
    ("carrier", c.LINK_UP, parse_integer),
    ("carrier_changes", c.LINK_CHANGES, parse_integer),
)
_SPEED_ONLY = _FILES[:1]


class Link:
    """Speed, carrier and carrier changes of every interface.

    One answer of rtnetlink contains the carrier of all interfaces, up or not; without rtnetlink, as
    in a copied tree, the files of each interface are read.
    """

    name = "link"
    family = "network"

    def __init__(self, period_seconds: float = 5.0, cards: Cards | None = None) -> None:
        self.period_seconds = period_seconds
        self._cards = cards or Cards()
        self._kept: KeptFiles | None = None
        self._parsers: list[Callable[[bytes], Reading]] = []
        self._told: list[str] = []

    def probe(self, host: Host) -> Inventory:
        """Find the interfaces; files that fail now are not read again until the next probe."""
        columns = Columns()
        paths: list[str] = []
        self._parsers = []
        interfaces = names(host, ROOT)
        try:
            told = _links(host)
        except OSError:
            told = {}
        self._told = [interface for interface in interfaces if "carrier" in told.get(interface, {})]
        for interface in interfaces:
            for file, metric, parse in _SPEED_ONLY if interface in self._told else _FILES:
                path = f"{ROOT}/{interface}/{file}"
                if text(host, path):
                    columns.add(metric, Entity(NIC, (interface,)))
                    paths.append(path)
                    self._parsers.append(parse)
        for interface in self._told:
            columns.add(c.LINK_UP, Entity(NIC, (interface,)))
            columns.add(c.LINK_CHANGES, Entity(NIC, (interface,)))
        self.close()
        self._kept = host.keep(paths)
        verdict = Verdict.SUPPORTED if columns.columns else Verdict.ABSENT
        finding = Finding("network links", verdict, counted(len(interfaces), "interface"))
        return Inventory(tuple(columns.columns), self._cards.look(host), (finding,))

    def read(self, host: Host, into: Table) -> None:
        """Read every file, and all carriers in one call."""
        if self._kept is None:
            return
        for column, parse in enumerate(self._parsers):
            try:
                into.put(column, parse(self._kept.text(column)))
            except OSError as error:
                into.put(column, reason_of(error))
        if self._told:
            self._read_carriers(host, into, len(self._parsers))

    def _read_carriers(self, host: Host, into: Table, column: int) -> None:
        try:
            links = _links(host)
        except OSError as error:
            into.put_none(column, 2 * len(self._told), reason_of(error))
            return
        for place, interface in enumerate(self._told):
            link = links.get(interface)
            first = column + 2 * place
            into.put(first, picked(_carrier, link) if link else Absent.GONE)
            into.put(first + 1, link.get("carrier_changes", Absent.ERROR) if link else Absent.GONE)

    def close(self) -> None:
        """Close the open files."""
        if self._kept:
            self._kept.close()
        self._kept = None


def _carrier(link: Json) -> Reading:
    return int(link["up"] and link["carrier"])


def _links(host: Host) -> dict[str, Json]:
    """Interfaces by name. Raises OSError."""
    return {link["name"]: link for link in host.call("netlink", "links")}
