"""Resources of the views, and the routes of health and of /metrics.

The collector's /metrics: the aggregates of the views, and the collector's own state.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from itertools import chain, zip_longest
from typing import Any, Literal

import msgspec
import numpy as np
from aiohttp import web

from railscope import api, claim_terms, exposition, service, timestamps
from railscope.api import inventory as inventory_api, tenants as tenant_api
from railscope.api.status import Status
from railscope.catalog import declare
from railscope.catalog.rollup import part_labels
from railscope_collector import view_refresh
from railscope_collector.access.credentials import Credential, Role
from railscope_collector.account.account_cells import account_document
from railscope_collector.config import ConsoleSettings
from railscope_collector.diagnosis import entity_states
from railscope_collector.diagnosis.incident_table import IncidentTable
from railscope_collector.fleet import view_cells
from railscope_collector.fleet.fleet import FleetNode, StreamRow
from railscope_collector.http import (
    ResourceError,
    event_list,
    gpus_api,
    incidents_api,
    list_query,
    node_readings,
    resource_server,
    route_table,
    status_api,
)
from railscope_collector.http.collector_metrics import CollectorMetrics, render
from railscope_collector.http.json_compression import accepts_gzip
from railscope_collector.http.resource_server import Change, ResourceRequest
from railscope_collector.http.write_probes import WriteProbe
from railscope_collector.inventory.inventory_view import inventory_document, missing_nodes
from railscope_collector.metering.tiling import HELD_STATES, SlotState
from railscope_collector.metering.units import Units, exact
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.switches import all_switches, switch_view
from railscope_collector.views.fresh_rows import find_fresh_rows
from railscope_collector.views.rollups import node_rollups

MAX_EVENTS = 1000
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


class TenantsQuery(list_query.WholeQuery, frozen=True):
    """Query of the list of tenants."""

    sort: Literal["", "tenant", "held_gpu_hours"] = ""


class EventsQuery(msgspec.Struct, frozen=True):
    """Query of the list of events."""

    node: list_query.SearchText = ""


@dataclass(slots=True)
class ViewApi:
    """Functions of resources, and handlers of other routes. `views` is called for each request."""

    core: CollectorState
    metrics: CollectorMetrics
    views: Callable[[], view_refresh.CollectorViews]
    incidents: Callable[[], IncidentTable] = IncidentTable
    stale_seconds: float = 30.0
    wall_ns: Callable[[], int] = time.time_ns
    write_probes: Sequence[WriteProbe] = ()
    read_only: str = ""
    """Reason why no data is accepted; empty if data is accepted."""
    console: ConsoleSettings = field(default_factory=ConsoleSettings)
    switches: all_switches.AllSwitches = field(default_factory=all_switches.AllSwitches)
    link_ends: switch_view.LinkEnds = field(init=False)
    progress: Callable[[], api.DiagnosisProgress] = api.DiagnosisProgress
    """Returns how current the incidents are."""
    tenant_of: event_list.TenantOf = event_list.no_tenant
    gpus: gpus_api.GpusApi = field(init=False)
    _nodes: tuple[tuple[int, int], tuple[api.Node, ...]] = field(init=False, default=((-1, -1), ()))
    """Time of views and incidents with their nodes: one value, as threads replace it while others read it."""

    def __post_init__(self) -> None:
        """Create the caches of the newest views and of the ends of links of this state."""
        self.gpus = gpus_api.GpusApi(self.core, self.views, self.incidents, self.wall_ns)
        cabling = self.switches.polling.cabling
        self.link_ends = switch_view.LinkEnds(self.core, cabling, self.wall_ns)

    def handlers(self) -> route_table.RouteHandlers:
        """Return the handlers by route name."""
        return {"healthy": self._healthy, "ready": self._ready, "metrics": self._metrics}

    @property
    def changes(self) -> resource_server.Changes:
        """Causes of new versions of documents."""
        return {
            Change.VIEWS: self._views_version,
            Change.INCIDENTS: lambda: self.incidents().timestamp_ns,
            Change.PROGRESS: self.listed_incidents.progress_version,
        }

    def _views_version(self) -> tuple[int, str]:
        at_ns = self.views().timestamp_ns
        return at_ns, entity_states.view_problem(at_ns, self.wall_ns())

    @property
    def listed_incidents(self) -> incidents_api.IncidentsApi:
        """Functions of the resources of incidents."""
        return incidents_api.IncidentsApi(self.incidents, self.progress)

    @property
    def jobs_api(self) -> incidents_api.JobsApi:
        """Functions of the resources of jobs."""
        return incidents_api.JobsApi(
            lambda: self.views().jobs, self.core.names_of_gpu, self.wall_ns, self.incidents
        )

    def node_rows(self) -> Sequence[api.Node]:
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
        rows = self.node_rows()
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
        rollups = _rollup_rows(self._fresh_rows(node, now_ns))
        chosen = {
            stream: node_readings.stream_document(self.core, node.name, row, now_ns)
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
            rollups=tuple(rollups),
        )

    def rail_list(self, sort: str = "") -> api.RailList:
        """Return all rails with their states and roll-ups. Blocking."""
        view, nodes = self.views().rail, self.node_rows()
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
        row = next((each for each in self.node_rows() if each.node == name), None)
        reason = "removed from the inventory, or not in a view yet"
        return row or api.Node(name, state=entity_states.UNKNOWN, reason=reason)

    def _cells(self) -> Iterator[view_cells.ViewCell]:
        """Return all cells of the metrics endpoint; iterating over them may block."""
        views = self.views()
        tables = (views.cluster, views.rail, views.tenant, views.node, views.inventory)
        return chain(
            *(table.cells for table in tables),
            views.jobs.cells(),
            self.incidents().cells(),
            self.metrics.cells(views),
            self.switches.reading_cells(self.core, self.link_ends),
        )

    async def _metrics(self, request: web.Request, credential: Credential) -> web.Response:
        if credential.role is Role.TENANT:
            views = self.views()
            cells = tenant_cells(
                chain(views.tenant.cells, views.jobs.cells(credential.tenant)), credential.tenant
            )
            cells = chain(cells, self.incidents().cells(credential.tenant))
        else:
            cells = self._cells()
        text_format = exposition.TextFormat.negotiate(request.headers.get("Accept", ""))
        # In a thread: the text of a large fleet takes longer than an acknowledgement may wait.
        text = await service.run_in_thread(render, cells, text_format)
        response = web.Response(body=text.encode(), headers={"Content-Type": text_format.value})
        if accepts_gzip(request):
            response.enable_compression(web.ContentCoding.gzip)
        return response

    def cluster_values(self) -> api.MetricList:
        """Return the values of the whole cluster. Blocking."""
        view = self.views().cluster
        return api.MetricList(view.timestamp_ns, view.rows(), view.name)

    def tenant_list(self, request: ResourceRequest) -> tenant_api.TenantList:
        """Return a part of the tenants, or the tenant that reads, those that hold most GPUs first. Blocking."""
        tenant, query = request.tenant, request.query
        views = self.views()
        view, account, table = views.tenant, views.account, self.incidents()
        if tenant is not None:
            view = replace(view, cells=tuple(tenant_cells(view.cells, tenant)))
        held_now, jobs = defaultdict[str, Units](int), Counter[str]()
        for job in views.jobs.jobs:
            units = sum(place.holding.units for place in job.places)
            held_now[job.key.tenant] = exact(held_now[job.key.tenant] + units)
            jobs[job.key.tenant] += 1
        opened = (each.tenant_nodes for each in table.incidents if each.is_open and each.is_root)
        incidents = Counter(chain.from_iterable(opened))
        sums = account.tenants() if account else {}
        names = {*sums, *held_now} - {""} if tenant is None else {tenant}
        rows = [
            tenant_api.Tenant(
                name,
                float(held_now[name] / claim_terms.GPU_CAPACITY)
                if views.jobs.timestamp_ns
                else None,
                held_gpu_hours(sums.get(name, {})) if account else None,
                jobs[name] if views.jobs.timestamp_ns else None,
                incidents[name] if table.timestamp_ns else None,
            )
            for name in sorted(names, key=lambda name: (-held_now[name], name))
        ]
        shown = list_query.sort_rows(rows, query.sort)[request.part]
        return tenant_api.TenantList(
            view.timestamp_ns, view.rows(), tuple(shown), len(rows), query.offset
        )

    def _fresh_rows(self, node: FleetNode, now_ns: int) -> list[StreamRow]:
        """Return the rows of the node's fresh sources; stale ones are excluded, as in the views."""
        from_ns = now_ns - round(self.stale_seconds * timestamps.SECOND_NS)
        fleet = self.core.fleet
        rows = node.rows.values()
        return [row for row in rows if row.index in fleet.fresh_rows(row.block, from_ns, now_ns)]

    def inventory(self) -> inventory_api.Inventory:
        """Return the comparison with the inventory. Blocking; raises ResourceError before the first one."""
        result = self.views().inventory_comparison
        if not result.timestamp_ns:
            raise ResourceError(HTTPStatus.SERVICE_UNAVAILABLE, view_refresh.NOT_COMPUTED)
        return inventory_document(result, self.core.names_of)

    def account(self, request: ResourceRequest) -> tenant_api.Account:
        """Return the GPU time of all tenants, or of the tenant that reads. Blocking; raises ResourceError while it is unknown."""
        views = self.views()
        if views.account is None:
            text, reason = "the account has not been computed yet", self.metrics.unknown_reason
            if views.timestamp_ns and reason:
                text = f"the holders of GPUs are unknown: {reason}"
            raise ResourceError(HTTPStatus.SERVICE_UNAVAILABLE, text)
        return account_document(views.account, request.tenant)

    def event_writer(self) -> event_list.EventWriter:
        """Return the writer of events of the nodes as of now."""
        return event_list.EventWriter(
            dict(self.core.fleet.nodes), self.core.names_of, self.tenant_of
        )

    def event_list(self, node: str) -> api.EventList:
        """Return the newest events of all nodes, or of one. Blocking."""
        events = [each for each in [*self.core.events] if node in {"", each.node}]
        return api.EventList(tuple(map(self.event_writer().event, events[-MAX_EVENTS:])))

    async def _healthy(self, _: web.Request, __: Credential) -> web.Response:
        return web.Response(text="healthy\n")

    async def _ready(self, _: web.Request, __: Credential) -> web.Response:
        problem = await self.not_ready()
        if problem:
            return web.Response(status=503, text=f"not ready: {problem}\n")
        return web.Response(text="ready\n")

    async def status_now(self, credential: Credential) -> Status:
        """Return the status, with the reason if the collector is not ready."""
        return await service.run_in_thread(self.status, credential, await self.not_ready())

    def status(self, credential: Credential, not_ready: str = "") -> Status:
        """Return the status as a reader may see it. Blocking."""
        is_tenant = credential.role is Role.TENANT
        jobs = self.views().jobs
        visible = len(incidents_api.visible_jobs(jobs, credential))
        query = gpus_api.GpusQuery(limit=1)
        return status_api.make_status(
            status_api.VisibleFacts(
                self.wall_ns(),
                None if is_tenant else self.node_rows(),
                self.gpus.select(credential, query),
                self.listed_incidents.select(credential, lambda one: one.is_open, slice(None)),
                visible + (0 if is_tenant else jobs.suppressed) if jobs.timestamp_ns else None,
                not_ready,
            )
        )

    async def not_ready(self) -> str:
        """Return why the collector is not ready; empty if it is."""
        problem = self.core.draining or (f"read-only: {self.read_only}" if self.read_only else "")
        problem = problem or ("" if self.views().timestamp_ns else view_refresh.NOT_COMPUTED)
        problem = problem or self.metrics.unknown_reason
        for probe in self.write_probes:
            # Last, as a probe waits for the disk: it is not made if the answer is known.
            problem = problem or await probe.problem()
        return problem


def held_gpu_hours(states: Mapping[SlotState, Units]) -> float:
    """Return the GPU time of a tenant that it has held."""
    held = sum(states.get(state, 0) for state in HELD_STATES)
    return float(held / (claim_terms.GPU_CAPACITY * timestamps.HOUR_NS))


def _reading(name: str, values: Sequence[float]) -> float | None:
    """Return a reading of a rail: the largest one of all priorities for a maximum, else the first."""
    return max(values, default=None) if name.startswith("max_") else next(iter(values), None)


_TENANT_METRICS = ("railscope_tenant_", "railscope_job_")


def tenant_cells(
    cells: Iterable[view_cells.ViewCell], tenant: str
) -> Iterator[view_cells.ViewCell]:
    """Yield the cells of the tenant and its jobs: none of rails, the cluster, the collector or others."""
    for cell in cells:
        # By a list of what is permitted: a metric that is added later is not visible to tenants by mistake.
        if cell.metric.name.startswith(_TENANT_METRICS):
            labels = zip(cell.metric.about.labels, cell.labels, strict=False)
            if dict(labels).get("tenant") == tenant:
                yield cell


def _rollup_rows(rows: Sequence[StreamRow]) -> list[dict[str, Any]]:
    """Return the catalog's rollups of a node: sums, means, extremes; counters as rates."""
    fresh = (find_fresh_rows(row.block, np.array([row.index])) for row in rows)
    return [
        {
            "metric": metric.name,
            "rollup": str(rollup),
            "rate_per_second": metric.kind is declare.MetricKind.COUNTER,
            "labels": dict(zip(part_labels(metric.about), part, strict=True)),
            "value": value,
        }
        for metric, part, rollup, value in node_rollups(filter(None, fresh))
        if math.isfinite(value)
    ]
