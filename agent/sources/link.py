"""Links of all network interfaces, as sysfs tells them: speed, carrier, changes.

Apart from the server's own numbers, because the kernel asks the card's driver for some of them.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.facts import counted, names, text
from agent.host import Host, KeptFiles
from agent.source import Columns, Finding, Inventory, Table, Verdict
from railscope.catalog import host as c
from railscope.catalog.declare import Metric
from railscope.catalog.entities import NIC
from railscope.entity import Entity
from railscope.reading import Absent, Reading, parse_integer, reason_of

ROOT = "/sys/class/net"


def parse_speed(content: bytes) -> Reading:
    """Mb/s; -1 stands for a link that is down or a driver that does not know."""
    reading = parse_integer(content)
    return Absent.UNSUPPORTED if isinstance(reading, int) and reading < 0 else reading


_FILES: tuple[tuple[str, Metric, Callable[[bytes], Reading]], ...] = (
    ("speed", c.LINK_SPEED, parse_speed),
    ("carrier", c.LINK_UP, parse_integer),
    ("carrier_changes", c.LINK_CHANGES, parse_integer),
)


class Link:
    """Speed, carrier and carrier changes of every interface."""

    name = "link"
    family = "network"

    def __init__(self, period_seconds: float = 5.0) -> None:
        self.period_seconds = period_seconds
        self._kept: KeptFiles | None = None
        self._parsers: list[Callable[[bytes], Reading]] = []

    def probe(self, host: Host) -> Inventory:
        """Find the interfaces; what does not answer now is not asked again until the next probe."""
        columns = Columns()
        paths: list[str] = []
        self._parsers = []
        interfaces = names(host, ROOT)
        for interface in interfaces:
            for file, metric, parse in _FILES:
                path = f"{ROOT}/{interface}/{file}"
                if text(host, path):
                    columns.add(metric, Entity(NIC, (interface,)))
                    paths.append(path)
                    self._parsers.append(parse)
        self.close()
        self._kept = host.keep(paths)
        verdict = Verdict.SUPPORTED if columns.columns else Verdict.ABSENT
        finding = Finding("network links", verdict, counted(len(interfaces), "interface"))
        return Inventory(tuple(columns.columns), (), (finding,))

    def read(self, host: Host, into: Table) -> None:  # noqa: ARG002 - its files are kept
        """Read every file."""
        if self._kept is None:
            return
        for column, parse in enumerate(self._parsers):
            try:
                into.put(column, parse(self._kept.text(column)))
            except OSError as error:
                into.put(column, reason_of(error))

    def close(self) -> None:
        """Close the kept files."""
        if self._kept:
            self._kept.close()
        self._kept = None
