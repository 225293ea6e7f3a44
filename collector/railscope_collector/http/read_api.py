"""Routes for readers: /metrics, the JSON API of the views and jobs, health.

The collector's /metrics: the aggregates of the views, and the collector's own state.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from itertools import chain
from typing import Any

import numpy as np
from aiohttp import web

from railscope import exposition, service, timestamps
from railscope.catalog import declare
from railscope.catalog.rollup import part_labels
from railscope_collector import view_refresh
from railscope_collector.access.credentials import Credential, Role
from railscope_collector.account.account_cells import account_json
from railscope_collector.config import ConsoleSettings
from railscope_collector.diagnosis import entity_states
from railscope_collector.diagnosis.incident_table import DiagnosisProgress, IncidentTable
from railscope_collector.fleet import view_cells
from railscope_collector.fleet.fleet import FleetNode, StreamRow
from railscope_collector.http import (
    gpus_api,
    incidents_api,
    json_responses,
    node_readings,
    route_table,
    switches_api,
)
from railscope_collector.http.collector_metrics import CollectorMetrics, render
from railscope_collector.http.write_probes import WriteProbe
from railscope_collector.inventory.inventory_view import inventory_json
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.switches import all_switches, switch_view
from railscope_collector.views.fresh_rows import find_fresh_rows
from railscope_collector.views.rollups import node_rollups

MAX_EVENTS = 1000
_NOT_COMPUTED = "the views have not been computed yet"


@dataclass(slots=True)
class ViewApi:
    """Handlers of the read routes. `views` is called for each request."""

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
    progress: Callable[[], DiagnosisProgress] = DiagnosisProgress
    """Returns how current the incidents are."""
    _ranking: entity_states.NodeRanking = field(default_factory=entity_states.NodeRanking)

    def __post_init__(self) -> None:
        """Create the cache of the ends of links, which are those of this state."""
        cabling = self.switches.polling.cabling
        self.link_ends = switch_view.LinkEnds(self.core, cabling, self.wall_ns)
        self.switches.take_links = self.link_ends.take  # of the head: that of all nodes

    def with_state(
        self,
        core: CollectorState,
        views: Callable[[], view_refresh.CollectorViews],
        incidents: Callable[[], IncidentTable],
    ) -> ViewApi:
        """Return the same for another state."""
        ranking = entity_states.NodeRanking()
        return replace(self, core=core, views=views, incidents=incidents, _ranking=ranking)

    def handlers(self) -> route_table.RouteHandlers:
        """Return the handlers by route name."""
        return {
            "healthy": self._healthy,
            "ready": self._ready,
            "metrics": self._metrics,
            "cluster": self._view("cluster"),
            "rails": self._view("rail"),
            "tenants": self._tenants,
            "nodes": self._nodes,
            "node": self._node,
            "gpus": gpus_api.GpusApi(self.core, self.views, self.incidents).list,
            "inventory": self._inventory,
            "account": self._account,
            "events": self._events,
            **self.jobs_api.handlers(),
            **incidents_api.IncidentsApi(self.incidents, self.progress).handlers(),
            **switches_api.SwitchesApi(self.core, self.link_ends, self.wall_ns).handlers(),
        }

    @property
    def jobs_api(self) -> incidents_api.JobsApi:
        """Handlers of jobs."""
        return incidents_api.JobsApi(
            lambda: self.views().jobs, self.core.names_of_gpu, self.incidents
        )

    def node_rows(self) -> Sequence[entity_states.NodeRow]:
        """Return all nodes with their states, worst first; computed once per refresh. Blocking."""
        views, gpus = self.views(), dict(self.core.gpus_by_node)
        return self._ranking.rows(views.node, self.incidents(), gpus, views.failed_gpus)

    def cells(self) -> tuple[int, Iterator[view_cells.ViewCell]]:
        """Return the timestamp of the views and all cells of the metrics endpoint; iterating over them may block."""
        views = self.views()
        tables = (views.cluster, views.rail, views.tenant, views.node, views.inventory)
        return views.timestamp_ns, chain(
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
            _, cells = self.cells()
        text_format = exposition.TextFormat.negotiate(request.headers.get("Accept", ""))
        # In a thread: the text of a large fleet takes longer than an acknowledgement may wait.
        text = await service.run_in_thread(render, cells, text_format)
        response = web.Response(body=text.encode(), headers={"Content-Type": text_format.value})
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            response.enable_compression(web.ContentCoding.gzip)
        return response

    def _view(self, name: str) -> route_table.RouteHandler:
        async def respond(request: web.Request, _: Credential) -> web.Response:
            view: view_cells.View = getattr(self.views(), name)
            return await json_responses.tagged_response(
                request, partial(_document, view), view.timestamp_ns
            )

        return respond

    async def _tenants(self, request: web.Request, credential: Credential) -> web.Response:
        view, tenant = self.views().tenant, credential.tenant
        if credential.role is Role.TENANT:
            view = replace(view, cells=tuple(tenant_cells(view.cells, tenant)))
        return await json_responses.tagged_response(
            request, partial(_document, view), view.timestamp_ns, tenant
        )

    async def _nodes(self, request: web.Request, _: Credential) -> web.Response:
        version = self.views().timestamp_ns, self.incidents().timestamp_ns
        make = partial(self._make_nodes, dict(self.core.fleet.nodes))
        return await json_responses.tagged_response(request, make, *version)

    def _make_nodes(self, nodes: Mapping[str, FleetNode]) -> dict[str, Any]:
        views, facts = self.views(), dict[str, dict[str, Any]]()
        for cell in views.node.cells:
            facts.setdefault(cell.labels[0], {})[cell.metric.name] = cell.value
        states = {row.name: row.state_document() for row in self.node_rows()}
        rows = [
            {
                "node": name,
                **states[name],
                "agent_version": node.agent_version,
                "streams": sorted(node.rows),
                "gpus": len(self.core.gpus_by_rail(name)),
                **facts[name],
            }
            for name, node in sorted(nodes.items())
            # The views are older than the nodes: a node of this second is in the next answer.
            if name in facts and name in states  # without stale nodes that were removed
        ]
        return {"view": "nodes", "timestamp_ns": views.timestamp_ns, "rows": rows}

    async def _node(self, request: web.Request, __: Credential) -> web.Response:
        node = self.core.fleet.nodes.get(request.match_info["node"])
        if node is None:
            text = f"unknown node {request.match_info['node']!r}: expected one that has reported"
            return json_responses.json_error(HTTPStatus.NOT_FOUND, text)
        now_ns = self.wall_ns()
        selected = set(request.query.getall("stream", node.rows))
        content = {
            "node": node.name,
            "agent_version": node.agent_version,
            "timestamp_ns": now_ns,
            "rollups": _rollup_rows(self._fresh_rows(node, now_ns)),
            "gpus": self._gpus(node.name),
            "streams": {
                stream: node_readings.stream_document(self.core, node.name, row, now_ns)
                for stream, row in sorted(node.rows.items())
                if stream in selected
            },
        }
        return json_responses.json_response(content)

    def _gpus(self, node: str) -> list[dict[str, Any]]:
        """Return the GPUs of a node by rail, with the jobs that hold them."""
        holders = self.views().jobs.holders_by_gpu(node)
        return [
            {"rail": rail, "gpu": gpu, "holders": holders.get(gpu, [])}
            | {name: self.core.names_of_gpu(node, gpu)[name] for name in ("index", "pci_address")}
            for rail, gpu in sorted(self.core.gpus_by_rail(node).items())
        ]

    def _fresh_rows(self, node: FleetNode, now_ns: int) -> list[StreamRow]:
        """Return the rows of the node's fresh sources; stale ones are excluded, as in the views."""
        from_ns = now_ns - round(self.stale_seconds * timestamps.SECOND_NS)
        fleet = self.core.fleet
        rows = node.rows.values()
        return [row for row in rows if row.index in fleet.fresh_rows(row.block, from_ns, now_ns)]

    async def _inventory(self, request: web.Request, _: Credential) -> web.Response:
        result = self.views().inventory_comparison
        if not result.timestamp_ns:
            return json_responses.json_error(HTTPStatus.SERVICE_UNAVAILABLE, _NOT_COMPUTED)
        return await json_responses.tagged_response(
            request, partial(inventory_json, result, self.core.names_of)
        )

    async def _account(self, request: web.Request, credential: Credential) -> web.Response:
        views = self.views()
        if views.account is None:
            text, reason = "the account has not been computed yet", self.metrics.unknown_reason
            if views.timestamp_ns and reason:
                text = f"the holders of GPUs are unknown: {reason}"
            return json_responses.json_error(HTTPStatus.SERVICE_UNAVAILABLE, text)
        found, tenant = views.account, credential.tenant
        is_tenant = credential.role is Role.TENANT

        def make() -> dict[str, Any]:
            account = account_json(found)
            return tenant_account(account, tenant) if is_tenant else account

        return await json_responses.tagged_response(request, make, views.timestamp_ns, tenant)

    async def _events(self, request: web.Request, _: Credential) -> web.Response:
        node = request.query.get("node")
        events = [seen_event for seen_event in self.core.events if node in (None, seen_event.node)]

        def make() -> dict[str, Any]:
            return {
                "events": [
                    {**each.to_json(), "device": self.core.names_of(each.node, each.event.entity)}
                    for each in events[-MAX_EVENTS:]
                ]
            }

        return await json_responses.tagged_response(request, make)

    async def _healthy(self, _: web.Request, __: Credential) -> web.Response:
        return web.Response(text="healthy\n")

    async def _ready(self, _: web.Request, __: Credential) -> web.Response:
        problem = "draining" if self.core.is_draining else ""
        problem = problem or (f"read-only: {self.read_only}" if self.read_only else "")
        problem = problem or ("" if self.views().timestamp_ns else _NOT_COMPUTED)
        problem = problem or self.metrics.unknown_reason
        for probe in self.write_probes:
            # Last, as a probe waits for the disk: it is not made if the answer is known.
            problem = problem or await probe.problem()
        if problem:
            return web.Response(status=503, text=f"not ready: {problem}\n")
        return web.Response(text="ready\n")


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


def tenant_account(account: dict[str, Any], tenant: str) -> dict[str, Any]:
    """Return the tenant's part of an account, without the size of the cluster and its free capacity."""
    tenants = account["tenants"]
    own_totals = {tenant: tenants[tenant]} if tenant in tenants else {}
    return {"until_ns": account["until_ns"], "tenants": own_totals}


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


def _document(view: view_cells.View) -> dict[str, Any]:
    return {"view": view.name, "timestamp_ns": view.timestamp_ns, "rows": view.rows()}
