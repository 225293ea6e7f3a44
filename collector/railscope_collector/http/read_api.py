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

from railscope import exposition, log_output, server_connections, service, timestamps
from railscope.catalog import collector as catalog, declare
from railscope.catalog.rollup import part_labels
from railscope_collector import administrator_files, view_refresh
from railscope_collector.access.credentials import Credential, Role, tenant_account, tenant_cells
from railscope_collector.access.tokens_file import TokensFile
from railscope_collector.account.account_cells import account_json, cluster_cells
from railscope_collector.audit.collector_records import AuditTrail
from railscope_collector.config import ConsoleSettings
from railscope_collector.diagnosis import entity_states
from railscope_collector.diagnosis.incident_table import IncidentTable
from railscope_collector.finalization.day_finalizer import DayFinalizer
from railscope_collector.fleet import view_cells
from railscope_collector.fleet.fleet import FleetNode, StreamRow
from railscope_collector.framelog import framelog
from railscope_collector.http import (
    access_control,
    gpus_api,
    incidents_api,
    node_readings,
    switches_api,
)
from railscope_collector.http.identity_conflicts import IdentityConflictDetector
from railscope_collector.http.web_server import WriteProbe
from railscope_collector.inventory.comparison import inventory_json
from railscope_collector.sinks.influx import InfluxSink
from railscope_collector.state import state_checkpointer
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.switches import all_switches, switch_view
from railscope_collector.views import find_fresh_rows, node_rollups


@dataclass(slots=True)
class CollectorMetrics:
    """Sources of the collector's own metrics, and of the GPU-time account of all tenants."""

    core: CollectorState
    log: framelog.FrameLog
    files: administrator_files.AdministratorFiles
    finalizer: DayFinalizer
    sink: InfluxSink
    trail: AuditTrail
    tokens: TokensFile
    connections: server_connections.ServerConnections
    conflicts: IdentityConflictDetector
    quarantine: state_checkpointer.RecordQuarantine
    limits: Sequence[log_output.LogRateLimit] = ()
    """All rate limits of log lines."""
    audit: Callable[[], list[view_cells.ViewCell]] = list
    """Returns the cells of the audit log's components."""

    @property
    def unknown_reason(self) -> str:
        """Reason why the claims of GPUs cannot be determined; empty if they can."""
        if self.files.unknown:
            return f"{self.files.unknown} has never been valid"
        return "" if self.finalizer.live.is_ready else "the ledger has not been read yet"

    def cells(self, views: view_refresh.CollectorViews) -> list[view_cells.ViewCell]:
        """Return the collector's own state and the GPU-time account, in base units."""
        counts, intervals = self.core.counts, self.core.evidence.intervals
        plain = [
            (catalog.ENVELOPES, counts.envelopes),
            (catalog.FRAMES, counts.frames),
            (catalog.SWITCH_FRAMES, counts.switch_frames),
            (catalog.DUPLICATES, counts.duplicates),
            (catalog.COPIES, counts.copies),
            (catalog.MISSING, self.core.received.count_missing()),
            (catalog.VALUES, counts.values),
            (catalog.RECEIVED_BYTES, counts.bytes),
            (catalog.COMMITS, self.log.stats.commits),
            (catalog.COMMIT_TIME, self.log.stats.commit_ns / timestamps.SECOND_NS),
            (catalog.LOG_SIZE, self.log.size),
            (catalog.QUARANTINED, self.quarantine.records),
            (catalog.SCHEMAS, len(self.core.schemas)),
            (catalog.CONNECTIONS, len(self.connections)),
            (catalog.VIEWS_TIME, views.duration_ns / timestamps.SECOND_NS),
            (catalog.CLAIMS, self.files.claims.content.count_in_force(views.timestamp_ns)),
            (catalog.CLAIMS_REJECTED, self.core.evidence.rejected_claims),
            (catalog.EVIDENCE_TOO_OLD, self.core.evidence.aged_rows),
            (catalog.EVIDENCE_EXCESS_GPUS, self.core.evidence.excess_gpus),
            (catalog.EVIDENCE_EXCESS_SPANS, self.core.evidence.excess_spans),
            (catalog.EVIDENCE_SUPPRESSED, self.core.evidence.problems.suppressed),
            (catalog.EVIDENCE_WAITING, len(intervals.by_key) + intervals.on_disk.total()),
            (catalog.EVIDENCE_WAITING_SIZE, self.finalizer.waiting_bytes),
            (catalog.EVIDENCE_STORED, self.finalizer.counts.intervals),
            (catalog.EVIDENCE_REJECTED, len(self.finalizer.rejected)),
            (catalog.EVIDENCE_FAILURES, self.finalizer.counts.failures),
            (catalog.FINALIZED_DAYS, self.finalizer.counts.days),
            (catalog.REVISED_DAYS, self.finalizer.counts.revisions),
            (catalog.REJECTED_DAYS, len(self.finalizer.rejected_days)),
            (catalog.FINALIZER, int(self.finalizer.lease.term is not None)),
            (catalog.FINALIZER_EPOCH, self.finalizer.lease.epoch),
            (catalog.FINALIZER_CHANGES, self.finalizer.lease.changes),
            (catalog.AUDIT_RECORDS, self.trail.log.size),
            (catalog.AUDIT_UNSIGNED, self.trail.log.size - self.trail.log.signed.size),
            (catalog.AUDIT_LOST, self.trail.lost_records),
            (catalog.DENIALS, self.trail.denials),
            (catalog.LOG_LINES_SUPPRESSED, sum(limit.suppressed for limit in self.limits)),
            (catalog.LOG_LINES_LOST, log_output.LOG_STREAM.lost),
            (catalog.CLOCK_SUSPECT, int(bool(self.finalizer.hold_reason()))),
            (catalog.SINK_WRITTEN, self.sink.writer.written),
            (catalog.SINK_DROPPED, self.sink.writer.dropped),
        ]
        files = [
            (file.kind, int(file.is_valid and file.kind not in self.finalizer.rejected_files))
            for file in self.files.all_files
            if file.path
        ]
        unplaced = self.finalizer.live.unplaced(views.timestamp_ns)
        by_label: tuple[tuple[declare.Metric, Iterable[tuple[str, float]]], ...] = (
            (catalog.FILE_VALID, (*files, ("tokens", int(self.tokens.is_valid)))),
            (
                catalog.NODE_IDENTITY_CONFLICT,
                ((name, 1) for name in self.conflicts.nodes(views.timestamp_ns)),
            ),
            (catalog.UNPLACED_GPUS, ((name, float(amount)) for name, amount in unplaced.items())),
            (catalog.CONNECTIONS_CLOSED, self.connections.closed.items()),
            (catalog.MISSING_OF_NODE, self.core.received.missing_of_nodes()),
            (catalog.RUN_ENDS_IGNORED, self.core.received.ignored.items()),
            (catalog.REJECTED, counts.rejected.items()),
        )
        return [
            *(view_cells.ViewCell(metric, (), value) for metric, value in plain),
            *self.audit(),
            *(cluster_cells(views.account) if views.account else ()),
            *(
                view_cells.ViewCell(metric, (label,), n)
                for metric, values in by_label
                for label, n in values
            ),
        ]


def render(cells: Iterable[view_cells.ViewCell], text_format: exposition.TextFormat) -> str:
    """Render cells as the text of the metrics endpoint; zeros of sparse metrics are omitted."""
    blocks: dict[str, list[str]] = {}
    for cell in cells:
        if cell.metric.sparse and not cell.value:
            continue
        labels = zip(view_cells.label_names(cell.metric), cell.labels, strict=True)
        line = f"{exposition.labelled(cell.metric.name, labels)}{_format_number(cell.value)}\n"
        blocks.setdefault(cell.metric.name, []).append(line)
    return exposition.render_blocks(
        {name: "".join(lines) for name, lines in blocks.items()}, text_format
    )


def _format_number(value: float) -> str:
    return repr(int(value)) if float(value).is_integer() else repr(float(value))


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

    def handlers(self) -> access_control.RouteHandlers:
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
            **incidents_api.IncidentsApi(self.incidents).handlers(),
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
        text = await service.run_in_thread(render, cells, text_format)
        response = web.Response(body=text.encode(), headers={"Content-Type": text_format.value})
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            response.enable_compression(web.ContentCoding.gzip)
        return response

    def _view(self, name: str) -> access_control.RouteHandler:
        async def respond(request: web.Request, _: Credential) -> web.Response:
            view: view_cells.View = getattr(self.views(), name)
            return await access_control.tagged_response(
                request, partial(_document, view), view.timestamp_ns
            )

        return respond

    async def _tenants(self, request: web.Request, credential: Credential) -> web.Response:
        view, tenant = self.views().tenant, credential.tenant
        if credential.role is Role.TENANT:
            view = replace(view, cells=tuple(tenant_cells(view.cells, tenant)))
        return await access_control.tagged_response(
            request, partial(_document, view), view.timestamp_ns, tenant
        )

    async def _nodes(self, request: web.Request, _: Credential) -> web.Response:
        version = self.views().timestamp_ns, self.incidents().timestamp_ns
        make = partial(self._make_nodes, dict(self.core.fleet.nodes))
        return await access_control.tagged_response(request, make, *version)

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
            if name in facts and name in states  # without stale nodes that were removed
        ]
        return {"view": "nodes", "timestamp_ns": views.timestamp_ns, "rows": rows}

    async def _node(self, request: web.Request, __: Credential) -> web.Response:
        node = self.core.fleet.nodes.get(request.match_info["node"])
        if node is None:
            text = f"unknown node {request.match_info['node']!r}: expected one that has reported"
            return access_control.json_error(HTTPStatus.NOT_FOUND, text)
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
        return access_control.json_response(content)

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
            return access_control.json_error(HTTPStatus.SERVICE_UNAVAILABLE, _NOT_COMPUTED)
        return await access_control.tagged_response(
            request, partial(inventory_json, result, self.core.names_of)
        )

    async def _account(self, request: web.Request, credential: Credential) -> web.Response:
        views = self.views()
        if views.account is None:
            text, reason = "the account has not been computed yet", self.metrics.unknown_reason
            if views.timestamp_ns and reason:
                text = f"the holders of GPUs are unknown: {reason}"
            return access_control.json_error(HTTPStatus.SERVICE_UNAVAILABLE, text)
        found, tenant = views.account, credential.tenant
        is_tenant = credential.role is Role.TENANT

        def make() -> dict[str, Any]:
            account = account_json(found)
            return tenant_account(account, tenant) if is_tenant else account

        return await access_control.tagged_response(request, make, views.timestamp_ns, tenant)

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

        return await access_control.tagged_response(request, make)

    async def _healthy(self, _: web.Request, __: Credential) -> web.Response:
        return web.Response(text="healthy\n")

    async def _ready(self, _: web.Request, __: Credential) -> web.Response:
        problem = "draining" if self.core.is_draining else ""
        problem = problem or (f"read-only: {self.read_only}" if self.read_only else "")
        problem = problem or ("" if self.views().timestamp_ns else _NOT_COMPUTED)
        problem = problem or self.metrics.unknown_reason
        for probe in self.write_probes:
            problem = problem or await probe.problem()
        if problem:
            return web.Response(status=503, text=f"not ready: {problem}\n")
        return web.Response(text="ready\n")


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
