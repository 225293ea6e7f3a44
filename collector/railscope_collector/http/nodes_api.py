"""Resources of nodes and rails: the lists with their states, and one node with its GPUs and the readings of its sources."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import zip_longest
from typing import Any, Literal

import msgspec

from railscope import api, reading, service, textfile_series, timestamps
from railscope.catalog import METRICS, declare, entities
from railscope_collector import view_refresh
from railscope_collector.diagnosis import entity_states
from railscope_collector.diagnosis.incident_table import IncidentTable
from railscope_collector.fleet import shape_columns
from railscope_collector.fleet.fleet import StreamRow
from railscope_collector.http import ResourceError, gpus_api, list_query
from railscope_collector.inventory.inventory_view import missing_nodes
from railscope_collector.state.collector_state import CollectorState

_MAX_QUOTED = 100


_RAIL_METRICS: Mapping[str, tuple[str, ...]] = {
    "mean_utilization_ratio": ("railscope_rail_mean_gpu_utilization_ratio",),
    "max_temperature_celsius": ("railscope_rail_max_gpu_temperature_celsius",),
    "power_watts": ("railscope_rail_sum_gpu_power_watts",),
    "ports_up": ("railscope_rail_sum_rdma_port_up",),
    "receive_bytes_per_second": ("railscope_rail_sum_rdma_receive_bytes_per_second", "railscope_rail_sum_nic_receive_bytes_per_second"),
    "transmit_bytes_per_second": ("railscope_rail_sum_rdma_transmit_bytes_per_second", "railscope_rail_sum_nic_transmit_bytes_per_second"),
    "max_paused_ratio": ("railscope_rail_max_nic_receive_pfc_pause_ratio", "railscope_rail_max_nic_receive_global_pause_ratio"),
    "max_pausing_ratio": ("railscope_rail_max_nic_transmit_pfc_pause_ratio", "railscope_rail_max_nic_transmit_global_pause_ratio"),
    "marked_packets_per_second": ("railscope_rail_sum_rdma_ecn_marked_packets_per_second",),
}  # fmt: skip
"""Roll-ups of each reading of a rail: the first one that is reported counts, or the largest of all for a maximum."""


class NodesQuery(list_query.WholeQuery, frozen=True):
    """Query of the list of nodes: the part of the list, a state, and a part of the name without regard to case."""

    state: Literal["", "failed", "degraded", "unknown", "healthy"] = ""
    name: list_query.SearchText = ""
    sort: Literal["", "node", "since_ns", "age_seconds", "gpus"] = ""
    """Order in place of worst first."""


class NodeQuery(msgspec.Struct, frozen=True):
    """Query of a node: names of sources, all without any."""

    stream: tuple[list_query.SearchText, ...] = ()


class RailsQuery(msgspec.Struct, frozen=True):
    """Query of the list of rails."""

    sort: Literal[
        "", "failed", "degraded", "mean_utilization_ratio", "power_watts", "max_temperature_celsius", "max_pausing_ratio"
    ] = ""  # fmt: skip


@dataclass(slots=True)
class NodesApi:
    """Functions that use the latest views and incidents."""

    core: CollectorState
    gpus: gpus_api.GpusApi
    views: Callable[[], view_refresh.CollectorViews]
    incidents: Callable[[], IncidentTable]
    wall_ns: Callable[[], int]
    _nodes: tuple[tuple[int, int], tuple[api.Node, ...]] = ((-1, -1), ())
    """Time of views and incidents with their nodes: one value, as threads replace it while others read it."""

    def rows(self) -> Sequence[api.Node]:
        """Return all nodes with their states, worst first; computed once per refresh. Blocking."""
        gpus, table = self.gpus.newest(), self.incidents()
        latest, version = self._nodes, (gpus.views.timestamp_ns, table.timestamp_ns)
        if latest[0] != version:
            undecided, rails = gpus.node_rows(self.core), gpus.views.gpus.gpus
            rows = entity_states.decide_nodes(undecided, rails, table, version[0])
            rows += missing_nodes(self.views().inventory_comparison, {row.node for row in rows})
            rows.sort(key=lambda row: entity_states.STATES.index(row.state))
            latest = self._nodes = version, tuple(rows)
        if stale := entity_states.view_problem(version[0], self.wall_ns()):
            return [entity_states.unknown_row(row, stale) for row in latest[1]]
        return latest[1]

    def node_list(self, query: NodesQuery) -> api.NodeList:
        """Return the part of the nodes that a query selects. Blocking."""
        rows = self.rows()
        found = [
            row
            for row in rows
            if query.state in {"", row.state} and query.name.lower() in row.node.lower()
        ]
        found = list_query.sort_rows(found, query.sort)
        counts = Counter(row.state for row in rows)
        return api.NodeList(
            self.views().timestamp_ns,
            tuple(found[query.offset : query.offset + query.limit]),
            found=len(found),
            offset=query.offset,
            states={state: counts[state] for state in entity_states.STATES},
            gpus=sum(row.gpus for row in rows),
        )

    async def node_detail(self, name: str, streams: Collection[str] = ()) -> api.NodeDetail:
        """Return a node with its GPUs and sources, all unless some are named. Raises ResourceError."""
        node = self.core.fleet.nodes.get(name)
        if node is None:
            text = f"unknown node {name[:_MAX_QUOTED]!r}: expected one that has reported"
            raise ResourceError(HTTPStatus.NOT_FOUND, text)
        now_ns = self.wall_ns()
        chosen = {
            stream: _stream_document(self.core, node.name, row, now_ns)
            for stream, row in sorted(node.rows.items())
            if not streams or stream in streams
        }
        missing = dict(self.core.received.missing_of_nodes()).get(name, 0)
        gpus, row = await service.run_in_thread(lambda: (self.gpus.of_node(name), self._row(name)))
        return api.NodeDetail(
            name,
            now_ns,
            chosen,
            state=row.state,
            reason=row.reason,
            since_ns=row.since_ns,
            incidents=row.incidents,
            victim_of=row.victim_of,
            age_seconds=row.age_seconds,
            clock_offset_seconds=node.clock_offset_ns / timestamps.SECOND_NS,
            missing_frames=missing,
            agent_version=node.agent_version,
            gpus=gpus,
        )

    def rail_list(self, sort: str = "") -> api.RailList:
        """Return all rails with their states and roll-ups. Blocking."""
        view, nodes = self.views().rail, self.rows()
        rows = view.rows()
        values = defaultdict[tuple[str, str], list[float]](list)
        for row in rows:
            if row.value is not None:
                values[row.labels["rail"], row.metric].append(row.value)
        letters = zip_longest(*(row.rails for row in nodes), fillvalue="")
        rails = []
        for rail, of_rail in enumerate(letters):
            counts = Counter(entity_states.STATES_BY_LETTER.get(each, "") for each in of_rail)
            readings: dict[str, Any] = {
                name: _reading(name, [v for each in metrics for v in values[str(rail), each]])
                for name, metrics in _RAIL_METRICS.items()
            }
            states = {state: counts[state] for state in entity_states.STATES}
            victims = of_rail.count(entity_states.LETTERS["victim"])
            rails.append(api.Rail(rail, **states, victims=victims, **readings))
        return api.RailList(view.timestamp_ns, rows, tuple(list_query.sort_rows(rails, sort)))

    def _row(self, name: str) -> api.Node:
        """Return the row of a node, also of one that is in no view. Blocking."""
        row = next((each for each in self.rows() if each.node == name), None)
        reason = "removed from the inventory, or not in a view yet"
        return row or api.Node(name, state=entity_states.UNKNOWN, reason=reason)


def _reading(name: str, values: Sequence[float]) -> float | None:
    """Return a reading of a rail: the largest one of all priorities for a maximum, else the first."""
    return max(values, default=None) if name.startswith("max_") else next(iter(values), None)


def _stream_document(core: CollectorState, node: str, row: StreamRow, now_ns: int) -> api.Stream:
    """Return the latest frame of a source, reading by reading, converted to units."""
    schema = row.schema.join()
    values = row.block.values_of(row.index).tolist()
    codes = row.block.reasons_of(row.index).tolist()
    readings = []
    devices = [core.names_of(node, entity) for entity in schema.entities]
    used = list(shape_columns.columns_of(schema))
    for column, group, member in used:
        metric, entity = METRICS.get(group.metric), schema.entities[member]
        # These have names and exact values of their own, which `json_entries` joins from several columns.
        if metric and metric.about is entities.TEXTFILE_SERIES:
            continue
        numerator, denominator = group.scale
        if metric and metric.kind is declare.MetricKind.HISTOGRAM:
            numerator, denominator = metric.scale_of(entity.key).as_integer_ratio()
        value: int | float | None = None
        absent = ""
        if codes[column] != reading.PRESENT:
            absent = reading.REASONS.get(codes[column], reading.Absent.ERROR).label
        # A schema of another version may have any scale: a division by zero must not fail the whole document.
        elif not denominator:
            absent = reading.Absent.ERROR.label
        else:
            counter = metric is not None and metric.kind is declare.MetricKind.COUNTER
            value = reading.from_stored(values[column], counter=counter) * numerator
            # An integer stays exact; a division makes it a float.
            value = value if denominator == 1 else value / denominator
        readings.append(
            api.Reading(group.metric, tuple(entity.key), value, absent, devices[member] or {})
        )
    age_seconds = (now_ns - row.timestamp_ns) / timestamps.SECOND_NS if row.timestamp_ns else None
    columns = (
        (group.metric, "".join(schema.entities[member].key[:1])) for _, group, member in used
    )

    def read_column(number: int) -> reading.Reading:
        column = used[number][0]
        if codes[column] == reading.PRESENT:
            return values[column]  # type: ignore[no-any-return]  # numpy's types
        return reading.REASONS.get(codes[column], reading.Absent.ERROR)

    series = textfile_series.json_entries(columns, read_column)
    return api.Stream(row.timestamp_ns, tuple(readings), age_seconds, series)
