"""Models of the pages of switches: the list, one switch with its ports, and both ends of the link of a port."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple

from railscope.catalog import nic, switches as catalog
from railscope.catalog.declare import Metric
from railscope.reading import Absent, Reading
from railscope.service import run_in_thread
from railscope.timestamps import SECOND_NS
from railscope_collector.console import PageProblemError, page_table, switch_models
from railscope_collector.console.counter_increases import (
    TOLERANCE_NS,
    StoredCounters,
    read_counters,
)
from railscope_collector.console.curves import TimeRange
from railscope_collector.console.history_pages import USUAL_PERIOD_NS
from railscope_collector.console.node_history import NodeHistory
from railscope_collector.fleet.fleet import SWITCH_PREFIX, FleetNode
from railscope_collector.http import read_api
from railscope_collector.http.read_pool import ReadPool
from railscope_collector.switches import links, switch_reading, switch_view

MAX_FAULTS = 100
"""Cabling faults of one page."""
READ, UNKNOWN = "read", "unknown"
UP, DOWN, DISABLED = "up", "down", "disabled"
NO_INTERVAL = "fewer than two readings of the switch are stored in the last 15 minutes"
NOT_LINKED = "no NIC is known at the other end"
_PORT_COUNTERS = (
    catalog.SENT, catalog.PFC_SENT, catalog.PFC_RECEIVED, catalog.ALL_PFC_SENT, catalog.ALL_PFC_RECEIVED, catalog.SENT_DISCARDS,
    catalog.RECEIVED_DISCARDS, catalog.QUEUE_MARKED_PACKETS,
)  # fmt: skip
_UNSUPPORTED = Absent.UNSUPPORTED.label


class ComparedCounter(NamedTuple):
    """A quantity that both ends of a link count."""

    label: str
    at_switch: Metric
    at_nic: Metric
    is_same: bool = True
    """True if both ends count the same, so that a difference is a fault."""


COMPARED = (
    ComparedCounter("Bytes to the NIC", catalog.SENT, nic.RECEIVED),
    ComparedCounter("Packets to the NIC", catalog.SENT_PACKETS, nic.RECEIVED_PACKETS),
    ComparedCounter("Pause frames to the NIC", catalog.PFC_SENT, nic.PFC_RECEIVED),
    ComparedCounter("Pause time of the NIC", catalog.PFC_SENT_TIME, nic.PFC_RECEIVED_TIME),
    ComparedCounter("Bytes to the switch", catalog.RECEIVED, nic.SENT),
    ComparedCounter("Packets to the switch", catalog.RECEIVED_PACKETS, nic.SENT_PACKETS),
    ComparedCounter("Pause frames to the switch", catalog.PFC_RECEIVED, nic.PFC_SENT),
    ComparedCounter("Pause time of the switch", catalog.PFC_RECEIVED_TIME, nic.PFC_SENT_TIME),
    ComparedCounter("Pause time of the switch, its estimate", catalog.ESTIMATED_PAUSE, nic.PFC_SENT_TIME, is_same=False),
    ComparedCounter("Drops on the way to the NIC", catalog.SENT_DISCARDS, nic.DISCARDS_RECEIVED, is_same=False),
    ComparedCounter("Drops on the way to the switch", catalog.RECEIVED_DISCARDS, nic.DISCARDS_SENT, is_same=False),
)  # fmt: skip
_QUEUE_COUNTERS = {
    "marks": catalog.QUEUE_MARKED_PACKETS,
    "dropped": catalog.QUEUE_DROPPED_PACKETS,
    "wred_dropped": catalog.QUEUE_WRED_DROPPED_PACKETS,
    "storms": catalog.WATCHDOG_DETECTED,
}
_QUEUE_GAUGES = {"depth": catalog.QUEUE_OCCUPANCY, "watermark": catalog.QUEUE_WATERMARK}
_OF_QUEUES = frozenset((*_QUEUE_COUNTERS.values(), *_QUEUE_GAUGES.values()))


class _Values:
    """Newest readings of a switch by metric and entity, and its facts, which remain when it is unknown. Blocking to make."""

    def __init__(
        self, readings: switch_view.SwitchSnapshot, facts: switch_view.SwitchSnapshot
    ) -> None:
        self.readings: dict[tuple[Metric, tuple[str, ...]], Reading] = {
            (metric, entity.key): found
            for stream in readings.values()
            for metric, entity, found in stream.readings()
        }
        self.facts: dict[str, dict[tuple[str, ...], Mapping[str, str]]] = defaultdict(dict)
        for stream in facts.values():
            for entity in stream.read_schema().entities:
                self.facts[entity.kind][entity.key] = entity.facts

    def ports(self) -> list[str]:
        """Return the names of the ports, in the order of the switch."""
        return [port for _, port in self.facts.get("switch_port", {})]

    def fact(self, kind: str, key: tuple[str, ...], name: str) -> str:
        """Return a fact; empty if the switch does not state it."""
        return self.facts.get(kind, {}).get(key, {}).get(name, "")

    def value(self, metric: Metric, key: tuple[str, ...]) -> switch_models.CountedValue:
        """Return a gauge."""
        return _counted(metric, self.readings.get((metric, key), Absent.UNSUPPORTED))

    def highest(self, metric: Metric, port: tuple[str, ...]) -> switch_models.CountedValue:
        """Return the highest value of the queues of a port."""
        of_port = [key for of, key in self.readings if of is metric and key[:2] == port]
        return _combined(max, [self.value(metric, key) for key in of_port])


class _Increases:
    """Increases of counters over one interval; those of an unknown switch have its reason."""

    def __init__(
        self, stored: StoredCounters, interval: TimeRange | None, absent: str = ""
    ) -> None:
        self.stored, self.interval, self.absent = stored, interval, absent
        self.keys: dict[tuple[str, tuple[str, ...]], list[tuple[str, ...]]] = defaultdict(list)
        for metric, key in stored.readings:
            self.keys[metric, key[:2]].append(key)

    def value(self, metric: Metric, key: tuple[str, ...]) -> switch_models.CountedValue:
        """Return the increase of one counter."""
        if self.interval is None:
            return switch_models.CountedValue(None, self.absent)
        found = self.stored.increase((metric.name, key), self.interval)
        if isinstance(found, str):
            return switch_models.CountedValue(None, found)
        return switch_models.CountedValue(switch_view.in_units(metric, found))

    def total(self, metric: Metric, port: tuple[str, ...]) -> switch_models.CountedValue:
        """Return the increase of a counter of all parts of a port."""
        keys = self.keys.get((metric.name, port), [])
        return _combined(sum, [self.value(metric, key) for key in keys], self.absent)


def _counted(metric: Metric, value: Reading) -> switch_models.CountedValue:
    if isinstance(value, Absent):
        return switch_models.CountedValue(None, value.label)
    return switch_models.CountedValue(switch_view.in_units(metric, value))


def _combined(
    combine: Callable[[Iterable[float]], float],
    parts: Sequence[switch_models.CountedValue],
    absent: str = "",
) -> switch_models.CountedValue:
    """Return the sum or the largest of parts; unsupported ones do not count, others that are absent are its reason."""
    numbers = [part.value for part in parts if part.value is not None]
    reasons = [part.absent for part in parts if part.absent not in {"", _UNSUPPORTED}]
    if reasons or not numbers:
        return switch_models.CountedValue(None, (*reasons, absent, _UNSUPPORTED)[0] or _UNSUPPORTED)
    return switch_models.CountedValue(combine(numbers))


@dataclass(slots=True)
class SwitchPages:
    """Models of the pages of switches."""

    api: read_api.ViewApi
    history: NodeHistory
    reading: ReadPool

    def models(self) -> page_table.PageModels:
        """Return the functions by name of the page."""
        return {"switches": self._switches, "switch": self._switch, "switch_port": self._port}

    async def _switches(self, request: page_table.PageRequest) -> switch_models.SwitchesModel:
        core, problems = self.api.core, self.api.switches.problems()
        nodes = {
            name.removeprefix(SWITCH_PREFIX): node for name, node in core.fleet.switches.items()
        }
        names = sorted({*nodes, *problems}, key=lambda name: (not problems.get(name, "?"), name))
        shown, pages = page_table.split_page(names, request.query.page)
        streams = (switch_reading.SWITCH, switch_reading.PORTS)
        snapshots = {
            name: switch_view.take_snapshot(core, nodes.get(name), streams) for name in shown
        }
        newest = {name: _newest_ns(nodes.get(name)) for name in shown}
        join = self.api.link_ends.take()

        def make() -> switch_models.SwitchesModel:
            joined = join()
            rows = tuple(
                self._row(name, snapshots[name], newest[name], problems.get(name), joined)
                for name in shown
            )
            faults = _fault_rows(joined.faults)
            number, count = request.query.page, len(joined.faults)
            return switch_models.SwitchesModel(
                self.api.wall_ns(), rows, len(names), number, pages, faults, count
            )

        return await run_in_thread(make)

    def _row(
        self,
        name: str,
        snapshot: switch_view.SwitchSnapshot,
        newest_ns: int,
        problem: str | None,
        joined: links.JoinedLinks,
    ) -> switch_models.SwitchRow:
        """Return the row of a switch. Blocking."""
        reason = "not in the file of switches" if problem is None else problem
        ports, ports_up = None, None
        if stream := snapshot.get(switch_reading.SWITCH):
            found = stream.readings_of(catalog.PORTS).get((name,), Absent.UNSUPPORTED)
            ports = None if isinstance(found, Absent) else found
        if stream := snapshot.get(switch_reading.PORTS):
            up = stream.readings_of(catalog.PORT_UP)
            ports = len(up) if ports is None else ports
            ports_up = None if reason else sum(value == 1 for value in up.values())
        return switch_models.SwitchRow(
            name,
            UNKNOWN if reason else READ,
            reason,
            newest_ns,
            (self.api.wall_ns() - newest_ns) / SECOND_NS if newest_ns else None,
            ports,
            ports_up,
            sum(port[0] == name for port in joined.links),
            sum(fault.port[0] == name for fault in joined.faults),
        )

    async def _read(
        self,
        request: page_table.PageRequest,
        metrics: Sequence[Metric],
        choose: Callable[[list[str]], Collection[str]],
    ) -> _ReadSwitch:
        """Return the readings of a switch, and increases of counters of chosen ports. Raises PageProblemError."""
        core, name = self.api.core, request.parts["switch"]
        problem = self.api.switches.problems().get(name)
        node = core.fleet.switches.get(SWITCH_PREFIX + name)
        if node is None and problem is None:
            text = f"unknown switch {name[:100]!r}: expected one of the file of switches"
            raise PageProblemError(HTTPStatus.NOT_FOUND, text)
        snapshot, newest_ns = switch_view.take_snapshot(core, node), _newest_ns(node)
        join, now_ns = self.api.link_ends.take(), self.api.wall_ns()
        period = TimeRange(now_ns - USUAL_PERIOD_NS, now_ns)
        counters = {metric.name for metric in metrics}

        def make() -> _ReadSwitch:
            joined = join()
            row = self._row(name, snapshot, newest_ns, problem, joined)
            values = _Values({} if row.state == UNKNOWN else snapshot, snapshot)
            stored, ports = StoredCounters(), set(choose(values.ports()))
            if row.state == READ:
                stored = read_counters(
                    self.history,
                    SWITCH_PREFIX + name,
                    counters,
                    period,
                    lambda key: key[1] in ports,
                )
            interval = stored.interval({catalog.SENT.name})
            absent = "" if interval else row.reason or NO_INTERVAL
            increases = _Increases(stored, interval, absent)
            shown = (
                switch_models.ShownInterval(*interval)
                if interval
                else switch_models.ShownInterval(absent=absent)
            )
            faults = [each for each in joined.faults if each.port[0] == name]
            return _ReadSwitch(row, values, increases, shown, joined, faults)

        return await self.reading.read(request.credential, make)

    async def _switch(self, request: page_table.PageRequest) -> switch_models.SwitchModel:
        number = request.query.page
        read = await self._read(
            request, _PORT_COUNTERS, lambda ports: page_table.split_page(ports, number)[0]
        )
        name = read.row.name

        def make() -> switch_models.SwitchModel:
            shown, pages = page_table.split_page(read.values.ports(), number)
            facts = read.values.facts.get("switch", {}).get((name,), {})
            return switch_models.SwitchModel(
                self.api.wall_ns(),
                read.row,
                facts.get("system_name", ""),
                facts.get("description", ""),
                facts.get("missing_tables", ""),
                read.interval,
                tuple(self._port_row(read, port) for port in shown),
                len(read.values.ports()),
                number,
                pages,
                _fault_rows(read.faults),
                len(read.faults),
            )

        return await run_in_thread(make)

    def _port_row(self, read: _ReadSwitch, port: str) -> switch_models.PortRow:
        """Return the row of a port. Blocking."""
        key, values, increases = (read.row.name, port), read.values, read.increases
        up, enabled = values.value(catalog.PORT_UP, key), values.value(catalog.PORT_ENABLED, key)
        state = {1: UP, 0: DOWN}.get(int(up.value), UNKNOWN) if up.value is not None else UNKNOWN
        neighbour = [
            values.fact("switch_neighbour", key, fact) for fact in ("system_name", "neighbour_port")
        ]
        sent, received = (
            _first_known(increases.total(by_priority, key), increases.value(together, key))
            for by_priority, together in (
                (catalog.PFC_SENT, catalog.ALL_PFC_SENT),
                (catalog.PFC_RECEIVED, catalog.ALL_PFC_RECEIVED),
            )
        )
        drops = (catalog.SENT_DISCARDS, catalog.RECEIVED_DISCARDS)
        return switch_models.PortRow(
            port,
            values.fact("switch_port", key, "alias"),
            DISABLED if state == DOWN and enabled.value == 0 else state,
            values.value(catalog.SPEED, key),
            " ".join(filter(None, neighbour)),
            self._linked_nic(read.joined.links.get(key)),
            sent,
            received,
            _combined(sum, [increases.value(metric, key) for metric in drops]),
            increases.total(catalog.QUEUE_MARKED_PACKETS, key),
            values.highest(catalog.QUEUE_OCCUPANCY, key),
            values.highest(catalog.QUEUE_WATERMARK, key),
        )

    def _linked_nic(self, link: links.PortLink | None) -> switch_models.LinkedNic | None:
        if link is None:
            return None
        node, interface = link.nic
        gpus = self.api.core.gpus_by_rail(node)
        uuid = gpus.get(int(link.rail)) if link.rail.isdecimal() else None
        gpu = self.api.core.names_of_gpu(node, uuid).get("index", "") if uuid else ""
        return switch_models.LinkedNic(node, interface, link.rail, gpu, link.evidence)

    async def _port(self, request: page_table.PageRequest) -> switch_models.SwitchPortModel:
        compared = [each.at_switch for each in COMPARED]
        metrics = (*compared, *_PORT_COUNTERS, *_QUEUE_COUNTERS.values())
        port = request.parts["port"]
        read = await self._read(request, metrics, lambda _: (port,))
        if port not in read.values.ports():
            text = f"unknown port {port[:100]!r} of {read.row.name}: expected one that it reports"
            raise PageProblemError(HTTPStatus.NOT_FOUND, text)
        return await self.reading.read(request.credential, lambda: self._make_port(read, port))

    def _make_port(self, read: _ReadSwitch, port: str) -> switch_models.SwitchPortModel:
        row, interval = self._port_row(read, port), read.increases.interval
        nic_counters, absent = StoredCounters(), NOT_LINKED
        if row.link:
            counters = {each.at_nic.name for each in COMPARED}
            if interval:
                period = TimeRange(interval.from_ns - TOLERANCE_NS, interval.to_ns + TOLERANCE_NS)
                interface = row.link.interface
                nic_counters = read_counters(
                    self.history, row.link.node, counters, period, lambda key: key[0] == interface
                )
            absent = read.interval.absent
            if not absent and not nic_counters.readings:
                absent = "no reading of the NIC is stored"
        at_nic = _Increases(nic_counters, None if absent else interval, absent)
        return switch_models.SwitchPortModel(
            self.api.wall_ns(),
            read.row,
            row,
            read.interval,
            tuple(_compared_rows(read, port, row.link, at_nic)),
            absent,
            tuple(_queue_rows(read, port)),
            _fault_rows([each for each in read.faults if each.port[1] == port]),
        )


class _ReadSwitch(NamedTuple):
    """Readings of a switch that its pages are made of."""

    row: switch_models.SwitchRow
    values: _Values
    increases: _Increases
    interval: switch_models.ShownInterval
    joined: links.JoinedLinks
    faults: Sequence[links.CablingFault]


def _compared_rows(
    read: _ReadSwitch, port: str, link: switch_models.LinkedNic | None, at_nic: _Increases
) -> Iterator[switch_models.ComparedRow]:
    """Yield what both ends count; of priorities those that counted anything at either end."""
    key = read.row.name, port
    interface = link.interface if link else ""
    for label, at_switch, of_nic, is_same in COMPARED:
        is_by_priority = len(at_switch.about.labels) > len(key)
        for part in map(str, switch_reading.PRIORITIES) if is_by_priority else ("",):
            parts = (part,) if part else ()
            switch = read.increases.value(at_switch, (*key, *parts))
            host = at_nic.value(of_nic, (interface, *parts))
            if part and not (switch.value or host.value):
                continue
            difference = None
            if is_same and switch.value is not None and host.value is not None:
                difference = switch.value - host.value
            unit = at_switch.unit if at_switch.unit in {"bytes", "seconds"} else ""
            yield switch_models.ComparedRow(label, part, unit, switch, host, difference)


def _queue_rows(read: _ReadSwitch, port: str) -> Iterator[switch_models.QueueRow]:
    key = read.row.name, port
    queues = {each[2] for of, each in read.values.readings if each[:2] == key and of in _OF_QUEUES}
    for queue in sorted(queues, key=lambda name: (len(name), name)):
        increases = {
            name: read.increases.value(metric, (*key, queue))
            for name, metric in _QUEUE_COUNTERS.items()
        }
        gauges = {
            name: read.values.value(metric, (*key, queue)) for name, metric in _QUEUE_GAUGES.items()
        }
        yield switch_models.QueueRow(queue, **increases, **gauges)


def _first_known(*values: switch_models.CountedValue) -> switch_models.CountedValue:
    return next((each for each in values if each.value is not None), values[0])


def _newest_ns(node: FleetNode | None) -> int:
    return max((row.timestamp_ns for row in node.rows.values()), default=0) if node else 0


def _fault_rows(faults: Sequence[links.CablingFault]) -> tuple[switch_models.CablingFaultRow, ...]:
    return tuple(
        switch_models.CablingFaultRow(each.kind, *each.port, each.found, each.stated, each.expected)
        for each in faults[:MAX_FAULTS]
    )
