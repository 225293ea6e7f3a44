"""Speed, carrier and carrier changes of network interfaces, of the agent's network namespace."""

from __future__ import annotations

from collections.abc import Callable

from railscope.catalog import declare, entities, host as host_catalog
from railscope.frame import Entity
from railscope.reading import Absent, Reading, is_failure, parse_integer, reason_of
from railscope_agent.host import Host, Json
from railscope_agent.sampling import (
    answer_readings,
    fact_readers,
    probe_result,
    row_builder,
    source,
)
from railscope_agent.topology.network import NetworkScanner
from railscope_agent.topology.network_interface import is_infiniband, parse_speed

NET = "/sys/class/net"


_FILES: tuple[tuple[str, declare.Metric, Callable[[bytes], Reading]], ...] = (
    ("speed", host_catalog.LINK_SPEED, parse_speed),
    ("carrier", host_catalog.LINK_UP, parse_integer),
    ("carrier_changes", host_catalog.LINK_CHANGES, parse_integer),
)


class LinkSource(source.SourceWithFiles):
    """Speed, carrier and carrier changes of every interface; only the speed of IP over InfiniBand, whose ports the source `rdma` has.

    One answer of rtnetlink contains the carrier of all interfaces, up or not; without rtnetlink, as
    in a copied tree, the files of each interface are read.

    It is separate from the source of the node, because the kernel queries the NIC's driver for some values.
    """

    name = "link"
    lane = source.SYSTEM
    period_seconds = 5.0

    def __init__(self, wiring: NetworkScanner | None = None) -> None:
        self._wiring = wiring or NetworkScanner()
        self._parsers: list[Callable[[bytes], Reading]] = []
        self._with_carrier: list[str] = []

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Find the interfaces; files that do not exist now are not read again until the next probe."""
        columns = probe_result.ColumnBuilder()
        paths: list[str] = []
        self._parsers = []
        interfaces = fact_readers.list_names(host, NET)
        try:
            links = _links(host)
        except OSError:
            links = {}
        without_state = {name for name in interfaces if is_infiniband(host, name)}
        self._with_carrier = [
            name
            for name in interfaces
            if "carrier" in links.get(name, {}) and name not in without_state
        ]
        without_files = without_state.union(self._with_carrier)
        for interface in interfaces:
            # Carrier and its changes come with the one answer of rtnetlink: two files less per interface.
            for file, metric, parse in _FILES[:1] if interface in without_files else _FILES:
                path = f"{NET}/{interface}/{file}"
                if _has_content(host, path):
                    columns.add(metric, Entity(entities.NIC, (interface,)))
                    paths.append(path)
                    self._parsers.append(parse)
        for interface in self._with_carrier:
            metrics = host_catalog.LINK_UP, host_catalog.LINK_CHANGES
            columns.add_each(metrics, Entity(entities.NIC, (interface,)))
        self._keep(host, paths)
        return columns.result(columnless_entities=self._wiring.find_nics(host))

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Read every file, and all carriers in one call."""
        for files in self._files:
            parsed = map(answer_readings.content_reading, files.texts(), self._parsers)
            into.put_readings(0, list(parsed))
        if self._with_carrier:
            self._read_carriers(host, into, len(self._parsers))

    def _read_carriers(self, host: Host, into: row_builder.RowBuilder, column: int) -> None:
        try:
            links = _links(host)
        except OSError as error:
            into.put_none(column, 2 * len(self._with_carrier), reason_of(error))
            return
        for first, interface in enumerate(self._with_carrier):
            link = links.get(interface)
            carrier = (
                answer_readings.pick_reading(lambda of: int(of["up"] and of["carrier"]), link)
                if link
                else Absent.GONE
            )
            changes = link.get("carrier_changes", Absent.ERROR) if link else Absent.GONE
            into.put_readings(column + 2 * first, (carrier, changes))


def _has_content(host: Host, path: str) -> bool:
    """True if a file is not empty, or fails: an interface that is down has no speed (EINVAL)."""
    try:
        return bool(host.read(path).strip())
    except OSError as error:
        return is_failure(error)


def _links(host: Host) -> dict[str, Json]:
    """Interfaces by name. Raises OSError."""
    return {link["name"]: link for link in host.call("netlink", "links")}
