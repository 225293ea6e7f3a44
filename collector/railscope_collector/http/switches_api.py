"""Resources of switches: the list, one switch with its ports, both ends of the link of a port, and all links."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from railscope.api import switches as resources
from railscope.catalog import entities, nic, switches as catalog
from railscope.catalog.declare import EntityKind, Metric, MetricKind
from railscope.reading import Absent, Reading
from railscope.service import run_in_thread
from railscope.timestamps import SECOND_NS
from railscope_collector.fleet.fleet import SWITCH_PREFIX, FleetNode
from railscope_collector.http import ResourceError, list_query, read_api
from railscope_collector.http.resource_server import ResourceRequest
from railscope_collector.switches import links, switch_reading, switch_view

MAX_FAULTS, MAX_LISTED = 100, 10_000
"""Cabling faults of one page; links, and cabling faults, of the list of links."""
READ, UNKNOWN = "read", "unknown"
UP, DOWN, DISABLED = "up", "down", "disabled"
NO_RATE = "fewer than two readings"
NOT_LINKED, STALE = "no NIC is known at the other end", "the node is stale"
_UNSUPPORTED = Absent.UNSUPPORTED.label


class SwitchesQuery(list_query.WholeQuery, frozen=True):
    """Query of the list of switches."""

    sort: Literal["", "switch", "age_seconds", "ports", "ports_up", "faults"] = ""


class CountedAtBothEnds(NamedTuple):
    """A quantity that both ends of a link count."""

    label: str
    at_switch: Metric
    at_nic: Metric


COMPARED = (
    CountedAtBothEnds("Bytes to the NIC", catalog.SENT, nic.RECEIVED),
    CountedAtBothEnds("Packets to the NIC", catalog.SENT_PACKETS, nic.RECEIVED_PACKETS),
    CountedAtBothEnds("Pause frames to the NIC", catalog.PFC_SENT, nic.PFC_RECEIVED),
    CountedAtBothEnds("Pause time of the NIC", catalog.PFC_SENT_TIME, nic.PFC_RECEIVED_TIME),
    CountedAtBothEnds("Bytes to the switch", catalog.RECEIVED, nic.SENT),
    CountedAtBothEnds("Packets to the switch", catalog.RECEIVED_PACKETS, nic.SENT_PACKETS),
    CountedAtBothEnds("Pause frames to the switch", catalog.PFC_RECEIVED, nic.PFC_SENT),
    CountedAtBothEnds("Pause time of the switch", catalog.PFC_RECEIVED_TIME, nic.PFC_SENT_TIME),
    CountedAtBothEnds("Pause time of the switch, its estimate", catalog.ESTIMATED_PAUSE, nic.PFC_SENT_TIME),
    CountedAtBothEnds("Drops on the way to the NIC", catalog.SENT_DISCARDS, nic.DISCARDS_RECEIVED),
    CountedAtBothEnds("Drops on the way to the switch", catalog.RECEIVED_DISCARDS, nic.DISCARDS_SENT),
)  # fmt: skip
_OF_QUEUES: Mapping[str, Metric] = {
    "marks": catalog.QUEUE_MARKED_PACKETS,
    "dropped": catalog.QUEUE_DROPPED_PACKETS,
    "wred_dropped": catalog.QUEUE_WRED_DROPPED_PACKETS,
    "no_buffer_dropped": catalog.QUEUE_NO_BUFFER_DROPPED,
    "storms": catalog.WATCHDOG_DETECTED,
    "ended_storms": catalog.WATCHDOG_RESTORED,
    "depth": catalog.QUEUE_OCCUPANCY,
    "watermark": catalog.QUEUE_WATERMARK,
    "used_share": catalog.QUEUE_USED,
    "peak_share": catalog.QUEUE_PEAK,
}
_OF_GROUPS: Mapping[str, Metric] = {
    "dropped": catalog.GROUP_DROPPED,
    "headroom": catalog.GROUP_HEADROOM,
    "headroom_watermark": catalog.GROUP_HEADROOM_WATERMARK,
    "headroom_used_share": catalog.GROUP_HEADROOM_USED,
    "headroom_peak_share": catalog.GROUP_HEADROOM_PEAK,
}
_OF_LANES: Mapping[str, Metric] = {
    "receive_power": catalog.TRANSCEIVER_RECEIVE_POWER,
    "transmit_power": catalog.TRANSCEIVER_TRANSMIT_POWER,
    "bias_current": catalog.TRANSCEIVER_BIAS,
}
_OF_PORTS: Mapping[str, Metric] = {
    "PFC frames sent per second, as the switch averages them": catalog.PFC_SENT_RATE,
    "PFC frames received per second, as the switch averages them": catalog.PFC_RECEIVED_RATE,
    "Pause frames of the whole link, sent": catalog.PAUSE_SENT,
    "Pause frames of the whole link, received": catalog.PAUSE_RECEIVED,
    "Packets received with errors": catalog.RECEIVED_ERRORS,
    "Packets received with a wrong checksum": catalog.FCS_ERRORS,
    "Symbol errors": catalog.SYMBOL_ERRORS,
    "FEC frames corrected": catalog.FEC_CORRECTED,
    "FEC frames not corrected": catalog.FEC_UNCORRECTABLE,
    "Bits that FEC corrected": catalog.CORRECTED,
    "Symbols that FEC could not correct": catalog.UNCORRECTED_SYMBOLS,
    "Temperature of the transceiver": catalog.TRANSCEIVER_TEMPERATURE,
    "Supply voltage of the transceiver": catalog.TRANSCEIVER_SUPPLY,
}
"""Further quantities of a port, by their name on its page."""
_NIC_STREAM = "nic"


class _LastReadings:
    """Last readings of a switch or node by metric and entity, and its facts. Blocking to make.

    While it is unknown, each present value has the reason `absent`; totals and facts remain.
    """

    def __init__(self, snapshot: switch_view.SwitchSnapshot, absent: str = "") -> None:
        self.absent = absent
        self.readings: dict[tuple[Metric, tuple[str, ...]], Reading] = {}
        self.rates: dict[tuple[Metric, tuple[str, ...]], float] = {}
        self.parts: dict[tuple[Metric, tuple[str, ...]], list[tuple[str, ...]]] = defaultdict(list)
        """Keys of the parts of each port by metric."""
        self.facts: dict[str, dict[tuple[str, ...], dict[str, str]]] = defaultdict(dict)
        for stream in snapshot.values():
            for entity in stream.read_schema().entities:
                self.facts[entity.kind][entity.key] = entity.facts
            for metric, entity, reading in stream.readings():
                self.readings[metric, entity.key] = reading
                self.parts[metric, entity.key[:2]].append(entity.key)
            for metric, entity, rate in stream.rates():
                self.rates[metric, entity.key] = rate

    def ports(self) -> list[str]:
        """Return the names of the ports, in the order of the switch."""
        return [port for _, port in self.facts.get("switch_port", {})]

    def facts_of(self, kind: EntityKind, key: tuple[str, ...]) -> dict[str, Any]:
        """Return the facts about an entity that the switch states."""
        facts = self.facts.get(kind.name, {}).get(key, {})
        return {name: facts[name] for name in kind.facts if name in facts}

    def last(self, metric: Metric, key: tuple[str, ...]) -> resources.Counted:
        """Return the last value of a gauge, or total of a counter, also of an unknown switch."""
        reading = self.readings.get((metric, key), Absent.UNSUPPORTED)
        if isinstance(reading, Absent):
            return resources.Counted(None, reading.label)
        return resources.Counted(switch_view.in_units(metric, reading))

    def value(self, metric: Metric, key: tuple[str, ...]) -> resources.Counted:
        """Return the present value of a gauge, or rate of a counter per second."""
        found = resources.Counted(None, self.absent) if self.absent else self.last(metric, key)
        if metric.kind is not MetricKind.COUNTER or found.value is None:
            return found
        rate = self.rates.get((metric, key), math.nan)
        if math.isnan(rate):
            return resources.Counted(None, NO_RATE)
        found_rate = switch_view.in_units(metric, rate)
        # A poll is stamped before its reads, which take varying times: 1.02 s/s occurs.
        return resources.Counted(min(found_rate, 1.0) if metric.unit == "seconds" else found_rate)

    def combined(
        self, combine: Callable[[Iterable[float]], float], port: tuple[str, ...], *metrics: Metric
    ) -> resources.Counted:
        """Return the sum or the largest value of all parts of a port; unsupported ones do not count, others that are absent are its reason."""
        if self.absent:
            return resources.Counted(None, self.absent)
        keys = ((metric, key) for metric in metrics for key in self.parts.get((metric, port), ()))
        parts = [self.value(*each) for each in keys]
        reasons = [part.absent for part in parts if part.absent not in {"", _UNSUPPORTED}]
        numbers = [part.value for part in parts if part.value is not None]
        if reasons or not numbers:
            return resources.Counted(None, (*reasons, _UNSUPPORTED)[0])
        return resources.Counted(combine(numbers))


class _ReadSwitch(NamedTuple):
    """Last readings of a switch, its row, and where its cables lead."""

    row: resources.Switch
    last: _LastReadings
    joined: links.JoinedLinks

    def key_of(self, port: str) -> tuple[str, str]:
        """Return the key of a port."""
        return self.row.switch, port

    def faults(self, *ports: str) -> tuple[resources.CablingFault, ...]:
        """Return the first cabling faults of the switch, or of some of its ports."""
        found = [each for each in self.joined.faults if each.port[0] == self.row.switch]
        return _fault_rows([each for each in found if not ports or each.port[1] in ports])


@dataclass(slots=True)
class SwitchesApi:
    """Functions of the resources of switches."""

    api: read_api.ViewApi

    async def link_list(self) -> resources.LinkList:
        """Return the links between NICs and ports."""
        joined, now_ns = await run_in_thread(self.api.link_ends.take()), self.api.wall_ns()
        found = [
            resources.PortLink(*each.nic, each.rail, each.evidence, *each.port)
            for each in islice(joined.links.values(), MAX_LISTED)
        ]
        faults = _fault_rows(joined.faults, MAX_LISTED)
        return resources.LinkList(
            now_ns, len(joined.links), tuple(found), len(joined.faults), faults
        )

    async def switch_list(self, request: ResourceRequest) -> resources.SwitchList:
        """Return a part of the switches, unknown ones first."""
        part, sort = request.part, request.query.sort
        core, problems = self.api.core, self.api.switches.problems()
        nodes = {
            name.removeprefix(SWITCH_PREFIX): node for name, node in core.fleet.switches.items()
        }
        names = sorted({*nodes, *problems}, key=lambda name: (not problems.get(name, "?"), name))
        streams = (switch_reading.SWITCH, switch_reading.PORTS)
        snapshots = {
            name: (
                switch_view.take_snapshot(nodes.get(name), streams),
                _newest_ns(nodes.get(name)),
            )
            for name in (names if sort else names[part])
        }
        join = self.api.link_ends.take()

        def make() -> resources.SwitchList:
            joined = join()
            rows = tuple(
                self._row(name, *taken, problems.get(name), joined)
                for name, taken in snapshots.items()
            )
            if sort:
                rows = tuple(list_query.sort_rows(rows, sort)[part])
            return resources.SwitchList(
                self.api.wall_ns(),
                rows,
                rows,
                len(names),
                _fault_rows(joined.faults),
                len(joined.faults),
                request.query.offset,
            )

        return await run_in_thread(make)

    def _row(
        self,
        name: str,
        snapshot: switch_view.SwitchSnapshot,
        newest_ns: int | None,
        problem: str | None,
        joined: links.JoinedLinks,
    ) -> resources.Switch:
        """Return the row of a switch. Blocking."""
        reason = "not in the file of switches" if problem is None else problem
        ports, ports_up, uptime, facts = None, None, None, {}
        if stream := snapshot.get(switch_reading.SWITCH):
            of_switch = _LastReadings({switch_reading.SWITCH: stream})
            facts = of_switch.facts_of(entities.SWITCH, (name,))
            ports = of_switch.value(catalog.PORTS, (name,)).value
            uptime = of_switch.value(catalog.UPTIME, (name,)).value
        if stream := snapshot.get(switch_reading.PORTS):
            up = stream.readings_of(catalog.PORT_UP)
            ports = len(up) if ports is None else ports
            ports_up = None if reason else sum(value == 1 for value in up.values())
        return resources.Switch(
            switch=name,
            state=UNKNOWN if reason else READ,
            reason=reason,
            newest_ns=newest_ns,
            age_seconds=(self.api.wall_ns() - newest_ns) / SECOND_NS if newest_ns else None,
            uptime_seconds=uptime,
            uptime=uptime,
            ports=None if ports is None else int(ports),
            ports_up=ports_up,
            links=sum(port[0] == name for port in joined.links),
            faults=sum(fault.port[0] == name for fault in joined.faults),
            **facts,
        )

    async def _read(self, name: str) -> _ReadSwitch:
        """Return the readings of a switch. Raises ResourceError."""
        core = self.api.core
        problem = self.api.switches.problems().get(name)
        node = core.fleet.switches.get(SWITCH_PREFIX + name)
        if node is None and problem is None:
            text = f"unknown switch {name[:100]!r}: expected one of the file of switches"
            raise ResourceError(HTTPStatus.NOT_FOUND, text)
        snapshot, newest_ns = switch_view.take_snapshot(node), _newest_ns(node)
        join = self.api.link_ends.take()

        def make() -> _ReadSwitch:
            joined = join()
            row = self._row(name, snapshot, newest_ns, problem, joined)
            return _ReadSwitch(row, _LastReadings(snapshot, row.reason), joined)

        return await run_in_thread(make)

    async def switch_detail(self, request: ResourceRequest) -> resources.SwitchDetail:
        """Return a switch with a part of its ports. Raises ResourceError."""
        read = await self._read(request.parts["switch"])

        def make() -> resources.SwitchDetail:
            ports = read.last.ports()
            facts = msgspec.structs.asdict(read.row)
            del facts["ports"]
            return resources.SwitchDetail(
                **facts,
                timestamp_ns=self.api.wall_ns(),
                ports=tuple(self._port_row(read, port) for port in ports[request.part]),
                found=len(ports),
                offset=request.query.offset,
                cabling_faults=read.faults(),
            )

        return await run_in_thread(make)

    def _port_row(self, read: _ReadSwitch, port: str) -> resources.SwitchPort:
        """Return the row of a port. Blocking."""
        key, last = read.key_of(port), read.last
        up, enabled = last.value(catalog.PORT_UP, key), last.value(catalog.PORT_ENABLED, key)
        state = {1: UP, 0: DOWN}.get(int(up.value), UNKNOWN) if up.value is not None else UNKNOWN
        sent, received = (
            _first_known(last.combined(sum, key, by_part), last.value(together, key))
            for by_part, together in (
                (catalog.PFC_SENT, catalog.ALL_PFC_SENT),
                (catalog.PFC_RECEIVED, catalog.ALL_PFC_RECEIVED),
            )
        )
        return resources.SwitchPort(
            port=port,
            state=DISABLED if state == DOWN and enabled.value == 0 else state,
            speed=last.value(catalog.SPEED, key),
            pauses_sent=sent,
            pauses_received=received,
            dropped=last.combined(sum, key, catalog.SENT_DISCARDS, catalog.RECEIVED_DISCARDS),
            marks=last.combined(sum, key, catalog.QUEUE_MARKED_PACKETS),
            depth=last.combined(max, key, catalog.QUEUE_OCCUPANCY),
            watermark=last.combined(max, key, catalog.QUEUE_WATERMARK),
            neighbour=last.facts_of(entities.SWITCH_NEIGHBOUR, key),
            link=self._linked_nic(read.joined.links.get(key)),
            **last.facts_of(entities.SWITCH_PORT, key),
        )

    def _linked_nic(self, link: links.PortLink | None) -> resources.PortLink | None:
        if link is None:
            return None
        node, interface = link.nic
        gpus = self.api.core.gpus_by_rail(node)
        uuid = gpus.get(int(link.rail)) if link.rail.isdecimal() else None
        gpu = self.api.core.names_of_gpu(node, uuid).get("index", "") if uuid else ""
        return resources.PortLink(node, interface, link.rail, link.evidence, gpu=gpu)

    async def port_detail(self, request: ResourceRequest) -> resources.SwitchPortDetail:
        """Return a port with both ends of its link. Raises ResourceError."""
        name, port = request.parts["switch"], request.parts["port"]
        read = await self._read(name)
        if port not in read.last.ports():
            text = f"unknown port {port[:100]!r} of {name}: expected one that it reports"
            raise ResourceError(HTTPStatus.NOT_FOUND, text)
        link = read.joined.links.get((name, port))
        node, interface = link.nic if link else ("", "")
        core = self.api.core
        nics = switch_view.take_snapshot(core.fleet.nodes.get(node), (_NIC_STREAM,))

        def make() -> resources.SwitchPortDetail:
            absent = NOT_LINKED
            if link:
                absent = "" if self.api.gpus.newest().fresh.get(node) else STALE
            return resources.SwitchPortDetail(
                self.api.wall_ns(),
                read.row,
                self._port_row(read, port),
                tuple(_compared_rates(read, port, interface, _LastReadings(nics, absent))),
                absent,
                tuple(_part_rows(read, port, _OF_QUEUES, resources.SwitchQueue)),
                tuple(_part_rows(read, port, _OF_GROUPS, resources.PriorityGroup)),
                tuple(_part_rows(read, port, _OF_LANES, resources.TransceiverLane)),
                tuple(_fact_rows(read, port)),
                read.faults(port),
            )

        return await run_in_thread(make)


def _compared_rates(
    read: _ReadSwitch, port: str, interface: str, host: _LastReadings
) -> Iterator[resources.ComparedRate]:
    """Yield what both ends count, per second; of priorities those that count anything at either end."""
    key = read.key_of(port)
    for label, at_switch, at_nic in COMPARED:
        is_by_priority = len(at_switch.about.labels) > len(key)
        for part in map(str, switch_reading.PRIORITIES) if is_by_priority else ("",):
            parts = (part,) if part else ()
            switch = read.last.value(at_switch, (*key, *parts))
            nic_end = host.value(at_nic, (interface, *parts))
            if not part or switch.value or nic_end.value:
                unit = _UNITS.get(at_switch.unit, "per second")
                yield resources.ComparedRate(label, part, unit, switch, nic_end)


_UNITS = {"bytes": "bytes per second", "seconds": "ratio"}
"""Units of rates by those of their counters."""
PartRow = TypeVar("PartRow")


def _part_rows(
    read: _ReadSwitch, port: str, table: Mapping[str, Metric], make: Callable[..., PartRow]
) -> Iterator[PartRow]:
    """Yield a row for each part of a port of which any quantity of a table is read; none of an unknown switch."""
    key, parts = read.key_of(port), read.last.parts
    if not read.last.absent:
        names = {each[2] for metric in table.values() for each in parts.get((metric, key), ())}
        for part in sorted(names, key=lambda name: (len(name), name)):
            of_part = (*key, part)
            values = {name: read.last.value(metric, of_part) for name, metric in table.items()}
            yield make(part, **values)


def _fact_rows(read: _ReadSwitch, port: str) -> Iterator[resources.PortFact]:
    """Yield the further quantities of a port; those by priority as their highest."""
    key = read.key_of(port)
    for name, metric in _OF_PORTS.items():
        if len(metric.about.labels) == len(key):
            value = read.last.value(metric, key)
        else:
            value = read.last.combined(max, key, metric)
        unit = "per second" if metric.kind is MetricKind.COUNTER else metric.unit
        yield resources.PortFact(name, metric.name, unit, value)


def _first_known(*values: resources.Counted) -> resources.Counted:
    return next((each for each in values if each.value is not None), values[0])


def _newest_ns(node: FleetNode | None) -> int | None:
    return max((row.timestamp_ns for row in node.rows.values()), default=None) if node else None


def _fault_rows(
    faults: Sequence[links.CablingFault], limit: int = MAX_FAULTS
) -> tuple[resources.CablingFault, ...]:
    return tuple(
        resources.CablingFault(
            each.kind,
            *each.port,
            resources.LinkEnd(*each.found),
            resources.LinkEnd(*each.stated),
            each.expected,
        )
        for each in faults[:limit]
    )
