"""Routes of switches: the list, one switch with its ports, and the links between ports and NICs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from aiohttp import web

from railscope.catalog import nic, switches as catalog
from railscope.catalog.declare import Metric
from railscope.reading import Absent, Reading
from railscope.service import run_in_thread
from railscope.timestamps import SECOND_NS
from railscope_collector.access.credentials import Credential
from railscope_collector.fleet.fleet import SWITCH_PREFIX
from railscope_collector.http.json_responses import json_error, tagged_response
from railscope_collector.http.route_table import RouteHandlers
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.switches import link_ends, links, switch_reading, switch_view

MAX_LISTED = 10_000
"""Links and cabling faults of one response."""
_COMPARED: Mapping[str, tuple[Metric, Metric]] = {
    "to_host_bytes": (catalog.SENT, nic.RECEIVED),
    "to_host_packets": (catalog.SENT_PACKETS, nic.RECEIVED_PACKETS),
    "to_host_pfc_pause_frames": (catalog.PFC_SENT, nic.PFC_RECEIVED),
    "to_switch_bytes": (catalog.RECEIVED, nic.SENT),
    "to_switch_packets": (catalog.RECEIVED_PACKETS, nic.SENT_PACKETS),
    "to_switch_pfc_pause_frames": (catalog.PFC_RECEIVED, nic.PFC_SENT),
}
"""Counters of the same quantity at the switch port and at the NIC."""
_NIC_STREAM = "nic"
Values = dict[tuple[Metric, tuple[str, ...]], Reading]


@dataclass(slots=True)
class SwitchesApi:
    """Handlers of the routes of switches."""

    core: CollectorState
    ends: switch_view.LinkEnds
    wall_ns: Callable[[], int] = time.time_ns

    def handlers(self) -> RouteHandlers:
        """Return the handlers by route name."""
        return {"switches": self._list, "switch": self._switch, "links": self._links}

    async def _list(self, request: web.Request, _: Credential) -> web.Response:
        now_ns, core = self.wall_ns(), self.core
        snapshots = {
            node.name.removeprefix(SWITCH_PREFIX): switch_view.take_snapshot(core, node)
            for node in core.fleet.switches.values()
        }

        def make() -> dict[str, Any]:
            rows = [self._row(name, snapshots[name], now_ns) for name in sorted(snapshots)]
            return {"timestamp_ns": now_ns, "switches": rows}

        return await tagged_response(request, make)

    async def _switch(self, request: web.Request, _: Credential) -> web.Response:
        name = request.match_info["switch"]
        node = self.core.fleet.switches.get(SWITCH_PREFIX + name)
        if node is None:
            text = f"unknown switch {name!r}: expected one that has been polled"
            return json_error(HTTPStatus.NOT_FOUND, text)
        now_ns, joined = self.wall_ns(), await run_in_thread(self.ends.take())
        snapshot = switch_view.take_snapshot(self.core, node)
        own_links = {port: link for port, link in joined.links.items() if port[0] == name}
        nodes = {link.nic[0]: self.core.fleet.nodes.get(link.nic[0]) for link in own_links.values()}
        hosts = {
            host: switch_view.take_snapshot(self.core, found, (_NIC_STREAM,))
            for host, found in nodes.items()
        }

        def make() -> dict[str, Any]:
            faults = [fault for fault in joined.faults if fault.port[0] == name]
            return self._row(name, snapshot, now_ns) | {
                "timestamp_ns": now_ns,
                "ports": _ports(snapshot, own_links, hosts),
                "cabling_faults": [_fault_document(fault) for fault in faults],
            }

        return await tagged_response(request, make)

    async def _links(self, request: web.Request, _: Credential) -> web.Response:
        joined, now_ns = await run_in_thread(self.ends.take()), self.wall_ns()

        def make() -> dict[str, Any]:
            found = [
                {"switch": link.port[0], "port": link.port[1], **_nic_document(link)}
                for link in list(joined.links.values())[:MAX_LISTED]
            ]
            return {
                "timestamp_ns": now_ns,
                "total": len(joined.links),
                "links": found,
                "total_cabling_faults": len(joined.faults),
                "cabling_faults": [_fault_document(each) for each in joined.faults[:MAX_LISTED]],
            }

        return await tagged_response(request, make)

    def _row(self, name: str, snapshot: switch_view.SwitchSnapshot, now_ns: int) -> dict[str, Any]:
        """Return what is stated about a switch as a whole. Blocking."""
        newest_ns = max((stream.timestamp_ns for stream in snapshot.values()), default=0)
        age_seconds = (now_ns - newest_ns) / SECOND_NS if newest_ns else None
        row: dict[str, Any] = {"switch": name, "age_seconds": age_seconds}
        if stream := snapshot.get(switch_reading.SWITCH):
            for metric, entity, reading in stream.readings():
                row |= entity.facts
                row[metric.stem.removeprefix("switch_")] = _json(metric, reading)
        return row


def _ports(
    snapshot: switch_view.SwitchSnapshot,
    own_links: Mapping[link_ends.Port, links.PortLink],
    hosts: Mapping[str, switch_view.SwitchSnapshot],
) -> list[dict[str, Any]]:
    """Return the ports with their readings, neighbours and links. Blocking."""
    found: dict[str, dict[str, Any]] = {}
    values: Values = {}
    for stream in (
        switch_reading.PORTS,
        switch_reading.PRIORITY,
        switch_reading.QUEUES,
        switch_reading.NEIGHBOURS,
    ):
        for metric, entity, reading in snapshot[stream].readings() if stream in snapshot else ():
            port = found.setdefault(entity.key[1], {"port": entity.key[1], "readings": []})
            values[metric, entity.key] = reading
            if stream == switch_reading.PORTS:
                port |= entity.facts
            elif stream == switch_reading.NEIGHBOURS and entity.facts:
                port["neighbour"] = entity.facts
            label = dict(zip(metric.about.labels[2:], entity.key[2:], strict=True))
            state = "absent" if isinstance(reading, Absent) else "value"
            port["readings"].append({"metric": metric.name, **label, state: _json(metric, reading)})
    for (switch, name), link in own_links.items():
        if name in found:
            of_node = hosts.get(link.nic[0], {})
            host = _nic_values(of_node, link.nic[1])
            found[name]["link"] = _nic_document(link) | {
                "switch_timestamp_ns": _timestamp_ns(snapshot, switch_reading.PORTS),
                "host_timestamp_ns": _timestamp_ns(of_node, _NIC_STREAM),
                "counters": _compare(switch, name, values, host),
            }
    return list(found.values())


def _timestamp_ns(snapshot: switch_view.SwitchSnapshot, stream: str) -> int | None:
    """Return the time of the last frame of a stream; None if there is none."""
    return snapshot[stream].timestamp_ns if stream in snapshot else None


def _nic_values(snapshot: switch_view.SwitchSnapshot, interface: str) -> Values:
    return {
        (metric, entity.key[1:]): reading
        for stream in snapshot.values()
        for metric, entity, reading in stream.readings()
        if entity.key[:1] == (interface,)
    }


def _compare(switch: str, port: str, values: Values, host: Values) -> list[dict[str, Any]]:
    """Return the counters of both ends of a link side by side; an end that does not have one has a reason."""
    rows = []
    for quantity, (at_switch, at_host) in _COMPARED.items():
        keys = [key for metric, key in values if metric is at_switch and key[:2] == (switch, port)]
        for key in keys:
            part = key[2:]
            rows.append(
                {
                    "quantity": quantity,
                    **({"priority": part[0]} if part else {}),
                    "switch": _json(at_switch, values[at_switch, key]),
                    "host": _json(at_host, host.get((at_host, part), Absent.UNSUPPORTED)),
                }
            )
    return rows


def _nic_document(link: links.PortLink) -> dict[str, Any]:
    node, interface = link.nic
    return {"node": node, "interface": interface, "rail": link.rail, "evidence": link.evidence}


def _fault_document(fault: links.CablingFault) -> dict[str, Any]:
    switch, port = fault.port
    ends = {"found": fault.found, "stated": fault.stated}
    named = {end: {"node": n, "interface": interface} for end, (n, interface) in ends.items()}
    expected = {"expected_leaves": fault.expected} if fault.expected else {}
    return {"kind": fault.kind, "switch": switch, "port": port, **named, **expected}


def _json(metric: Metric, reading: Reading) -> int | float | str:
    """Return a value in base units, or the reason for its absence."""
    return reading.label if isinstance(reading, Absent) else switch_view.in_units(metric, reading)
