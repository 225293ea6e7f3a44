"""Models of the pages of a node, of all rails, and of one rail: newest readings of GPUs and their NICs, side by side."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from railscope import reading, wire
from railscope.device_names import device_key
from railscope.frame import NO_RAIL
from railscope.service import run_in_thread
from railscope.timestamps import SECOND_NS
from railscope_collector.console import (
    PageProblemError,
    curves,
    incident_pages,
    page_table,
    recent_events,
)
from railscope_collector.diagnosis import entity_states
from railscope_collector.fleet import schema_columns
from railscope_collector.http import read_api
from railscope_collector.switches import link_ends, links

_MAX_EVENTS, _MAX_INCIDENTS, _MAX_STREAMS, _MAX_RAILS = 20, 10, 60, 64
_NAMED = {
    curve.name: curve
    for figure in (*curves.GPU_FIGURES, *curves.NIC_FIGURES)
    for curve in figure.curves
}
_UNITS = {
    curve.name: figure.unit
    for figure in (*curves.GPU_FIGURES, *curves.NIC_FIGURES)
    for curve in figure.curves
}
COLUMNS = (
    "utilization", "sm_clock", "power", "temperature", "thermal", "nic_sent", "nic_received", "paused", "pausing",
)  # fmt: skip
"""Quantities of a rail of a node, by the names of curves."""
_LABELS = {
    "sm_clock": "SM clock",
    "temperature": "Temperature",
    "thermal": "Throttled by heat",
    "paused": "Paused",
    "pausing": "Pausing",
}
_RAIL_METRICS = {
    "GPU utilization": ("railscope_rail_mean_gpu_utilization_ratio",),
    "Highest temperature": ("railscope_rail_max_gpu_temperature_celsius",),
    "Power": ("railscope_rail_sum_gpu_power_watts",),
    "Ports up": ("railscope_rail_sum_rdma_port_up",),
    "Sent": ("railscope_rail_sum_rdma_transmit_bytes_per_second",),
    "Received": ("railscope_rail_sum_rdma_receive_bytes_per_second",),
    "Longest paused": ("railscope_rail_max_nic_receive_pfc_pause_ratio",),
    "Longest pausing": ("railscope_rail_max_nic_transmit_pfc_pause_ratio",),
    "Marked packets": ("railscope_rail_sum_rdma_ecn_marked_packets_per_second",),
}


class DeviceReading(msgspec.Struct, frozen=True):
    """Newest value of one quantity in base units, or the reason for its absence."""

    name: str
    unit: str
    value: float | None
    absent: str


class RailOfNode(msgspec.Struct, frozen=True):
    """GPU and NIC of one rail of a node, with their newest readings; names that are not known are empty."""

    rail: int
    state: str
    gpu_index: str
    gpu: str
    """UUID."""
    interface: str
    device: str
    switch_port: tuple[str, str]
    """Switch and port that the NIC is connected to; empty if they are not known."""
    readings: tuple[DeviceReading, ...]


class StreamState(msgspec.Struct, frozen=True):
    """One source of a node: age of its newest frame, and its readings by absence reason."""

    name: str
    age_seconds: float | None
    columns: int
    absent: dict[str, int]


class NodePageModel(msgspec.Struct, frozen=True):
    """One node."""

    timestamp_ns: int
    row: entity_states.NodeRow
    agent_version: str
    clock_offset_seconds: float
    missing_frames: int
    columns: tuple[tuple[str, str], ...]
    """Name and label of the quantities."""
    rails: tuple[RailOfNode, ...]
    streams: tuple[StreamState, ...]
    incidents: tuple[incident_pages.IncidentRow, ...]
    events: tuple[recent_events.EventRow, ...]


class RailRow(msgspec.Struct, frozen=True):
    """One rail over all nodes: nodes by state, and roll-ups."""

    rail: int
    failed: int
    unknown: int
    degraded: int
    healthy: int
    values: tuple[tuple[str, str, float | None], ...]
    """Label, metric and value of each roll-up; null if no fresh reading has it."""


class RailsModel(msgspec.Struct, frozen=True):
    """All rails."""

    timestamp_ns: int
    rows: tuple[RailRow, ...]


class RailModel(msgspec.Struct, frozen=True):
    """One rail, with a page of its nodes, worst first."""

    timestamp_ns: int
    row: RailRow
    nodes: tuple[entity_states.NodeRow, ...]
    page: int
    pages: int
    incidents: tuple[incident_pages.IncidentRow, ...]
    rollups: tuple[dict[str, Any], ...]


class _StreamReading(NamedTuple):
    """Copy of the newest frame of a source."""

    name: str
    schema: bytes
    timestamp_ns: int
    values: npt.NDArray[np.int64]
    codes: npt.NDArray[np.uint8]
    rates: Mapping[int, float]
    """Rate of each counter that views read, by column."""


class _RailColumn(NamedTuple):
    """A column of a device on a rail that the page shows."""

    column: int
    scale: tuple[int, int]
    rail: int
    entity: wire.WireEntity
    uses: tuple[tuple[str, int, curves.CurveSource], ...]


MAX_SCHEMAS = 512
"""Schemas whose columns are kept; those of a node are some 40, most of which all nodes share."""


@dataclass(slots=True)
class DevicePages:
    """Models of nodes and rails."""

    api: read_api.ViewApi
    _columns: Callable[[bytes], Sequence[_RailColumn]] = field(init=False)

    def __post_init__(self) -> None:
        """Create the cache of the columns of schemas, which are read from files."""
        self._columns = lru_cache(MAX_SCHEMAS)(self._read_columns)

    def models(self) -> page_table.PageModels:
        """Return the functions by name of the page."""
        return {"node": self._node, "rails": self._rails, "rail": self._rail}

    async def _node(self, request: page_table.PageRequest) -> NodePageModel:
        core, name = self.api.core, request.parts["node"]
        node = core.fleet.nodes.get(name)
        if node is None:
            text = f"unknown node {name[:100]!r}: expected one that has reported"
            raise PageProblemError(HTTPStatus.NOT_FOUND, text)
        frames = []
        for stream, row in sorted(node.rows.items()):
            block, index = row.block, row.index
            counters = block.layout.counters.tolist()
            frames.append(
                _StreamReading(
                    stream,
                    row.schema,
                    row.timestamp_ns,
                    block.values_of(index),
                    # The block changes while the page is made in a thread.
                    block.reasons_of(index).copy(),
                    dict(zip(counters, block.rates_of(index).tolist(), strict=True)),
                )
            )
        missing = dict(core.received.missing_of_nodes()).get(name, 0)
        facts = node.agent_version, node.clock_offset_ns / SECOND_NS, missing
        join = self.api.link_ends.take()
        return await run_in_thread(self._make_node, name, frames, facts, join)

    def _make_node(
        self,
        name: str,
        frames: list[_StreamReading],
        facts: tuple[str, float, int],
        join: Callable[[], links.JoinedLinks],
    ) -> NodePageModel:
        core, now_ns = self.api.core, self.api.wall_ns()
        row = next((each for each in self.api.node_rows() if each.name == name), None)
        if row is None:
            reason = "removed from the inventory, or not in a view yet"
            row = entity_states.NodeRow(name, entity_states.UNKNOWN, reason, None, None, 0, "", ())
        incidents = [each for each in map(self.api.incidents().find, row.incidents) if each]
        urgent = incident_pages.worst_first(incidents)[:_MAX_INCIDENTS]
        events = [each for each in core.events if each.node == name]
        nodes = dict(core.fleet.nodes)
        ports = {link.nic[1]: link.port for link in join().links.values() if link.nic[0] == name}
        return NodePageModel(
            now_ns,
            row,
            *facts,
            tuple((name, _LABELS.get(name, _NAMED[name].label)) for name in COLUMNS),
            tuple(self._rails_of_node(row, frames, ports)),
            tuple(_stream_state(frame, now_ns) for frame in frames[:_MAX_STREAMS]),
            tuple(map(incident_pages.incident_row, urgent)),
            tuple(recent_events.event_rows(events, nodes, core.names_of, _MAX_EVENTS)),
        )

    def _rails_of_node(
        self,
        row: entity_states.NodeRow,
        frames: list[_StreamReading],
        ports: Mapping[str, link_ends.Port],
    ) -> Iterator[RailOfNode]:
        """Yield the rails of a node, with the readings of the devices on them."""
        found: dict[tuple[int, str, int], list[float | str]] = defaultdict(list)
        names: dict[tuple[int, str], Any] = {}
        for frame in frames:
            for column in self._columns(frame.schema):
                rail, entity = column.rail, column.entity
                kind = device_key(entity.kind, entity.key)[:1]
                for name, number, source in column.uses:
                    found[rail, name, number].append(_value(frame, column, source))
                    role = _NAMED[name].device
                    if kind and (rail, role) not in names:
                        names[rail, role] = self.api.core.names_of(row.name, entity)
        gpus = self.api.core.gpus_by_rail(row.name)
        for rail in sorted({*gpus, *(key[0] for key in found)}):
            gpu = self.api.core.names_of_gpu(row.name, gpus[rail]) if rail in gpus else {}
            nic = names.get((rail, "nic")) or {}
            letter = row.rails[rail : rail + 1] or entity_states.LETTERS[""]
            yield RailOfNode(
                rail,
                entity_states.STATES_BY_LETTER.get(letter, ""),
                gpu.get("index", ""),
                gpus.get(rail, ""),
                nic.get("interface", ""),
                nic.get("device", ""),
                ports.get(nic.get("interface", ""), ("", "")),
                tuple(_combined(rail, name, found) for name in COLUMNS),
            )

    def _read_columns(self, digest: bytes) -> tuple[_RailColumn, ...]:
        """Return the columns of a schema that the page shows. Blocking."""
        schema = self.api.core.schemas.read(digest)
        rails = wire.rails_of_entities(schema)

        def choose() -> Iterator[_RailColumn]:
            for column, group, member in schema_columns.columns_of(schema):
                entity, rail = schema.entities[member], rails[member]
                of_metric = _USES.get(group.metric, ())
                if rail == NO_RAIL or rail >= _MAX_RAILS or not of_metric:
                    continue
                part = "/".join(wire.part_of_key(entity))
                uses = tuple(use for use in of_metric if use[-1].selects(part))
                if uses:
                    yield _RailColumn(column, group.scale, rail, entity, uses)

        return tuple(choose())

    async def _rails(self, _: page_table.PageRequest) -> RailsModel:
        return await run_in_thread(self._make_rails)

    def _make_rails(self) -> RailsModel:
        return RailsModel(self.api.views().timestamp_ns, tuple(self._rail_rows()))

    def _rail_rows(self) -> Iterator[RailRow]:
        nodes = self.api.node_rows()
        cells = self.api.views().rail.cells
        values = {(cell.labels[0], cell.metric.name): cell.value for cell in cells}
        rails = max((len(row.rails) for row in nodes), default=0)
        for rail in range(rails):
            counts = Counter(row.rails[rail : rail + 1] for row in nodes)
            states = {state: counts[entity_states.LETTERS[state]] for state in entity_states.STATES}
            rollups = (
                (label, metric, values.get((str(rail), metric)))
                for label, (metric,) in _RAIL_METRICS.items()
            )
            yield RailRow(rail, **states, values=tuple(rollups))

    async def _rail(self, request: page_table.PageRequest) -> RailModel:
        return await run_in_thread(self._make_rail, request)

    def _make_rail(self, request: page_table.PageRequest) -> RailModel:
        text = request.parts["rail"]
        row = next((row for row in self._rail_rows() if str(row.rail) == text), None)
        if row is None:
            message = f"unknown rail {text[:20]!r}: expected one with a GPU or a NIC"
            raise PageProblemError(HTTPStatus.NOT_FOUND, message)
        ranks = "".join(entity_states.LETTERS[state] for state in entity_states.STATES)
        members = [
            each for each in self.api.node_rows() if each.rails[row.rail : row.rail + 1] in ranks
        ]
        # Not those without this rail: an empty text is in every text.
        members = [each for each in members if len(each.rails) > row.rail]
        members.sort(key=lambda each: ranks.index(each.rails[row.rail]))
        nodes, pages = page_table.split_page(members, request.query.page)
        touching = [
            each
            for each in self.api.incidents().incidents
            if each.is_root
            and (text in each.reach.rails or _rail_of(each.document.cause) == row.rail)
        ]
        urgent = incident_pages.worst_first(touching)[:_MAX_INCIDENTS]
        rollups = (each for each in self.api.views().rail.rows() if each["labels"]["rail"] == text)
        return RailModel(
            self.api.views().timestamp_ns,
            row,
            nodes,
            request.query.page,
            pages,
            tuple(map(incident_pages.incident_row, urgent)),
            tuple(rollups)[:200],
        )


_USES: dict[str, list[tuple[str, int, curves.CurveSource]]] = defaultdict(list)
"""Quantities that a metric is a source of, with the number of the source: lower ones are preferred."""
for _column in COLUMNS:
    for _number, _source in enumerate(_NAMED[_column].sources):
        _USES[_source.metric].append((_column, _number, _source))


def _value(frame: _StreamReading, shown: _RailColumn, source: curves.CurveSource) -> float | str:
    """Return the newest value of a column in base units, or the reason for its absence."""
    (numerator, denominator), column = shown.scale, shown.column
    code = int(frame.codes[column])
    if code != reading.PRESENT or not denominator:
        return reading.REASONS.get(code, reading.Absent.ERROR).label
    value = frame.rates.get(column, math.nan) if source.is_counter else int(frame.values[column])
    return value * numerator / denominator if np.isfinite(value) else "no rate yet"


def _combined(
    rail: int, name: str, found: dict[tuple[int, str, int], list[float | str]]
) -> DeviceReading:
    """Return a quantity by its first source with a value, its parts combined."""
    reason = "not reported"
    for number in range(len(_NAMED[name].sources)):
        parts = found.get((rail, name, number), [])
        numbers = [each for each in parts if not isinstance(each, str)]
        if numbers:
            combine = sum if _NAMED[name].combine == "sum" else max
            return DeviceReading(name, _UNITS[name], float(combine(numbers)), "")
        reason = next((each for each in parts if isinstance(each, str)), reason)
    return DeviceReading(name, _UNITS[name], None, reason)


def _stream_state(frame: _StreamReading, now_ns: int) -> StreamState:
    codes, counts = np.unique(frame.codes[frame.codes != reading.PRESENT], return_counts=True)
    absent = {
        reading.REASONS.get(code, reading.Absent.ERROR).label: count
        for code, count in zip(codes.tolist(), counts.tolist(), strict=True)
    }
    age_seconds = max(now_ns - frame.timestamp_ns, 0) / SECOND_NS if frame.timestamp_ns else None
    return StreamState(frame.name, age_seconds, len(frame.codes), absent)


def _rail_of(cause: object) -> int | None:
    rail: int | None = getattr(cause, "rail", None)
    return rail
