"""Resources of the cluster, its tenants and its events, and the routes of health and of /metrics.

The collector's /metrics: the aggregates of the views, and the collector's own state.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from itertools import chain
from typing import Literal

import msgspec
from aiohttp import web

from railscope import api, claim_terms, exposition, service
from railscope.api import inventory as inventory_api, tenants as tenant_api
from railscope.api.status import Status
from railscope_collector import view_refresh
from railscope_collector.access.credentials import Credential, Role
from railscope_collector.account.account_cells import account_document
from railscope_collector.config import ConsoleSettings
from railscope_collector.diagnosis import entity_states
from railscope_collector.diagnosis.incident_table import IncidentTable
from railscope_collector.fleet import view_cells
from railscope_collector.http import (
    ResourceError,
    event_list,
    gpus_api,
    incidents_api,
    list_query,
    nodes_api,
    resource_server,
    route_table,
    status_api,
)
from railscope_collector.http.collector_metrics import CollectorMetrics, render
from railscope_collector.http.json_compression import accepts_gzip
from railscope_collector.http.resource_server import Change, ResourceRequest
from railscope_collector.http.write_probes import WriteProbe
from railscope_collector.inventory.inventory_view import inventory_document
from railscope_collector.metering.slot_state import HELD_STATES, SlotState
from railscope_collector.metering.units import GPU_HOUR, Units, exact
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.switches import all_switches, switch_view

MAX_EVENTS = 1000
_MAX_QUOTED = 100


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
    nodes: nodes_api.NodesApi = field(init=False)

    def __post_init__(self) -> None:
        """Create the caches of the newest views and of the ends of links of this state."""
        self.gpus = gpus_api.GpusApi(self.core, self.views, self.incidents, self.wall_ns)
        self.nodes = nodes_api.NodesApi(
            self.core, self.gpus, self.views, self.incidents, self.wall_ns
        )
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
                None if is_tenant else self.nodes.rows(),
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
    return float(held / GPU_HOUR)


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
