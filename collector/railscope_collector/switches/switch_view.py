"""Current readings of switches, from the fleet: cells of the metrics endpoint, and the ends of links.

Values are taken from the fleet on the event loop, as they change there; everything that follows may run in a thread.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from railscope.catalog import INFO, METRICS, switches as catalog
from railscope.catalog.declare import Metric, MetricKind
from railscope.reading import PRESENT, REASONS, Absent, Reading, from_stored
from railscope.timestamps import HOUR_NS
from railscope.wire import WireEntity, WireSchema
from railscope_collector.fleet.fleet import SWITCH_PREFIX, FleetNode
from railscope_collector.fleet.names import KnownSchema
from railscope_collector.fleet.shape_columns import columns_of
from railscope_collector.fleet.view_cells import ViewCell
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.switches import link_ends, links, switch_reading

NEIGHBOUR_STREAM = "neighbour"
"""Stream of agents with the neighbours of NICs."""
MAX_AGE_NS = HOUR_NS
"""Age of the neighbours of a node above which they are ignored: another node may have its place."""


ELSEWHERE = "another collector reads the switches"


class StreamSnapshot(NamedTuple):
    """Last frame of one stream of a node or switch."""

    read_schema: Callable[[], WireSchema]
    values: list[int]
    codes: list[int]
    timestamp_ns: int
    rated: npt.NDArray[np.intp]
    """Columns of counters with a rate."""
    stored_rates: npt.NDArray[np.float32]
    """Their rates per second, NaN before two readings."""

    def readings_of(self, metric: Metric) -> dict[tuple[str, ...], Reading]:
        """Return the readings of one metric by entity. Blocking."""
        return {entity.key: value for of, entity, value in self.readings() if of is metric}

    def readings(self) -> Iterator[tuple[Metric, WireEntity, Reading]]:
        """Yield all readings of metrics in the catalog; counters are exact. Blocking."""
        schema = self.read_schema()
        for column, group, member in columns_of(schema):
            metric = METRICS.get(group.metric)
            if metric is None:
                continue
            reading: Reading = REASONS.get(self.codes[column], Absent.ERROR)
            if self.codes[column] == PRESENT:
                is_counter = metric.kind is MetricKind.COUNTER
                reading = from_stored(self.values[column], counter=is_counter)
            yield metric, schema.entities[member], reading

    def rates(self) -> Iterator[tuple[Metric, WireEntity, float]]:
        """Yield the rates of counters per second, in units of their readings; NaN before two readings. Blocking."""
        schema = self.read_schema()
        of_column = dict(zip(self.rated.tolist(), self.stored_rates.tolist(), strict=True))
        for column, group, member in columns_of(schema):
            if column in of_column:
                yield METRICS[group.metric], schema.entities[member], of_column[column]


SwitchSnapshot = Mapping[str, StreamSnapshot]
"""Last frames of a node or switch, by stream."""


def take_snapshot(node: FleetNode | None, streams: Collection[str] = ()) -> SwitchSnapshot:
    """Return the last frames of a node or switch, of some streams or of all; none if it has never reported."""
    return {
        stream: StreamSnapshot(
            row.schema.join,
            row.block.values_of(row.index).tolist(),
            row.block.reasons_of(row.index).tolist(),
            row.timestamp_ns,
            row.block.layout.counters,
            row.block.rates_of(row.index).copy(),
        )
        for stream, row in (node.rows.items() if node else ())
        if not streams or stream in streams
    }


def reading_cells(snapshots: Iterable[SwitchSnapshot]) -> Iterator[ViewCell]:
    """Yield the readings of switches that have a value, and their facts. Blocking."""
    for snapshot in snapshots:
        for stream in snapshot.values():
            for metric, entity, reading in stream.readings():
                if not isinstance(reading, Absent):
                    yield ViewCell(metric, entity.key, in_units(metric, reading))
            for entity in stream.read_schema().entities:
                info = INFO.get(entity.kind)
                if info and entity.facts:
                    facts = tuple(entity.facts.get(name, "") for name in info.about.facts)
                    yield ViewCell(info, (*entity.key, *facts), 1)


def link_cells(join: Callable[[], links.JoinedLinks], shown: Collection[str]) -> Iterator[ViewCell]:
    """Yield the links of these switches. Blocking."""
    for link in join().links.values() if shown else ():
        if link.port[0] in shown:
            yield ViewCell(catalog.LINK_INFO, (*link.port, *link.nic, link.rail), 1)


def fault_cells(join: Callable[[], links.JoinedLinks]) -> Iterator[ViewCell]:
    """Yield the number of cabling faults of each kind, if the switch of any NIC is known. Blocking."""
    joined = join()
    counts = Counter(fault.kind for fault in joined.faults)
    for kind in links.FAULT_KINDS if joined.nics or counts else ():
        yield ViewCell(catalog.CABLING_FAULTS, (kind,), counts[kind])


def in_units(metric: Metric, value: float) -> int | float:
    """Return a stored value in base units; an integer stays exact."""
    numerator, denominator = metric.scale.as_integer_ratio()
    return value * numerator if denominator == 1 else value * numerator / denominator


# Ends of links -----------------------------------------------------------------------------------


_SchemasOfEnds: TypeAlias = tuple[
    list[tuple[str, KnownSchema]], list[tuple[str, dict[str, KnownSchema]]]
]
"""Schemas with the ends of links: those of nodes, and those of switches by stream."""


@dataclass(slots=True)
class LinkEnds:
    """Ends of all links, from the schemas of nodes and switches; those of a schema are determined once."""

    core: CollectorState
    cabling: Sequence[link_ends.CabledLink] = ()
    wall_ns: Callable[[], int] = time.time_ns
    _hosts: dict[KnownSchema, tuple[link_ends.HostEnd, ...]] = field(default_factory=dict)
    _joined: tuple[_SchemasOfEnds, links.JoinedLinks] | None = None

    def take(self) -> Callable[[], links.JoinedLinks]:
        """Return a function that joins all links as of now; it blocks, and computes only after a change of a schema."""
        return partial(self._join, self._schemas())

    def _join(self, schemas: _SchemasOfEnds) -> links.JoinedLinks:
        last = self._joined
        if last and last[0] == schemas:
            return last[1]
        nodes, switches = schemas
        joined = links.join_links(self._host_ends(nodes), self._switch_ends(switches), self.cabling)
        self._joined = schemas, joined
        return joined

    def _schemas(self) -> _SchemasOfEnds:
        """Return the schemas of nodes that report, and of all switches, which change on the event loop."""
        fleet, oldest_ns = self.core.fleet, self.wall_ns() - MAX_AGE_NS
        rows = ((name, node.rows.get(NEIGHBOUR_STREAM)) for name, node in fleet.nodes.items())
        nodes = [(name, row.schema) for name, row in rows if row and row.timestamp_ns >= oldest_ns]
        switches = [
            (name.removeprefix(SWITCH_PREFIX), {s: row.schema for s, row in node.rows.items()})
            for name, node in fleet.switches.items()
        ]
        return nodes, switches

    def _host_ends(self, schemas: Iterable[tuple[str, KnownSchema]]) -> list[link_ends.HostEnd]:
        """Return the ends of the NICs of all nodes. Blocking."""
        found = {}
        for _, schema in schemas:
            found[schema] = self._hosts.get(schema) or tuple(_host_ends(schema.join()))
        # Only those in use: the ends of former schemas are dropped.
        self._hosts = found
        return [end._replace(node=node) for node, schema in schemas for end in found[schema]]

    def _switch_ends(
        self, schemas: Iterable[tuple[str, dict[str, KnownSchema]]]
    ) -> list[link_ends.SwitchEnd]:
        """Return the ends of the ports of all switches. Blocking."""
        ends: list[link_ends.SwitchEnd] = []
        for name, streams in schemas:
            ends += _switch_ends(name, {s: schema.join() for s, schema in streams.items()})
        return ends


def _facts(schema: WireSchema | None, kind: str) -> dict[tuple[str, ...], dict[str, str]]:
    entities = schema.entities if schema else ()
    return {entity.key: entity.facts for entity in entities if entity.kind == kind}


def _host_ends(schema: WireSchema) -> Iterator[link_ends.HostEnd]:
    neighbours, addresses = _facts(schema, "nic_neighbour"), _facts(schema, "nic_address")
    for key, nic in _facts(schema, "nic").items():
        facts = neighbours.get(key, {})
        switch, port, chassis = (
            facts.get(name, "") for name in ("switch", "switch_port", "chassis")
        )
        reported = addresses.get(key, {})
        macs = tuple(reported.get(name, "") for name in ("permanent_mac_address", "mac_address"))
        description = facts.get("port_description", "")
        yield link_ends.HostEnd(
            "", key[0], nic.get("rail", ""), switch, port, chassis, macs, description
        )


def _switch_ends(name: str, streams: Mapping[str, WireSchema]) -> Iterator[link_ends.SwitchEnd]:
    switch_facts = _facts(streams.get(switch_reading.SWITCH), "switch").get((name,), {})
    neighbours = _facts(streams.get(switch_reading.NEIGHBOURS), "switch_neighbour")
    for key, facts in _facts(streams.get(switch_reading.PORTS), "switch_port").items():
        neighbour = neighbours.get(key, {})
        yield link_ends.SwitchEnd(
            name,
            key[1],
            tuple(facts.get(text, "") for text in ("description", "mac_address", "alias")),
            switch_facts.get("system_name", ""),
            switch_facts.get("chassis", ""),
            neighbour.get("system_name", ""),
            neighbour.get("neighbour_port", ""),
            neighbour.get("chassis", ""),
            neighbour.get("port_description", ""),
            facts.get("lldp_port_id", ""),
            tuple(
                zip(
                    *(
                        neighbour.get(fact, "").split(link_ends.LIST_SEPARATOR)
                        for fact in ("other_system_names", "other_chassis")
                    ),
                    strict=False,
                )
            ),
        )
