"""Routes for readers: /metrics, the JSON API of the views and jobs, health.

The collector's /metrics: the aggregates of the views, and the collector's own state.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from http import HTTPStatus
from itertools import chain
from typing import Any

import numpy as np
from aiohttp import web

from collector import administrator_files, view_refresh, work_limits
from collector.access.credentials import Credential, Role, tenant_account, tenant_cells
from collector.access.tokens_file import TokensFile
from collector.account.account_cells import account_json, cluster_cells
from collector.audit.collector_records import AuditTrail
from collector.config import ConsoleSettings
from collector.diagnosis import node_states
from collector.diagnosis.incident_table import IncidentTable
from collector.diagnosis.step_period import StepTiming
from collector.finalization.day_finalizer import DayFinalizer
from collector.fleet import schema_columns, view_cells
from collector.fleet.fleet import FleetNode, NamesOfGpu, StreamRow
from collector.framelog import framelog, segment_files
from collector.http import gpus_api, incidents_api
from collector.http.access_control import RouteHandler, RouteHandlers, json_error, json_response
from collector.http.identity_conflicts import IdentityConflictDetector
from collector.inventory.comparison import inventory_json
from collector.sinks.influx import InfluxSink
from collector.state.collector_state import CollectorState
from collector.views import find_fresh_rows, node_rollups
from collector.workloads.job_roster import JobKey, RunningJob
from collector.workloads.job_view import RunningJobs
from railscope import exposition, reading, server_connections, service, timestamps
from railscope.catalog import METRICS, collector as catalog, declare
from railscope.catalog.rollup import part_labels

UNKNOWN_JOB = "unknown job: expected one that holds GPUs now"


def visible_jobs(
    view: RunningJobs, credential: Credential, tenants: Collection[str] = ()
) -> list[RunningJob]:
    """Return the jobs that a reader may see, of some tenants; of all if none is named."""
    if credential.role is Role.TENANT:
        tenants = {credential.tenant}
    return [job for job in view.jobs if not tenants or job.key.tenant in tenants]


@dataclass(slots=True)
class JobsApi:
    """Handlers that use the latest view. `names_of` returns the names of a GPU of a node."""

    jobs: Callable[[], RunningJobs]
    names_of: NamesOfGpu
    steps: Callable[[], Mapping[JobKey, StepTiming]] = dict
    """Returns the steps of the jobs whose traffic shows them."""

    def handlers(self) -> RouteHandlers:
        """Return the handlers by route name."""
        return {"jobs": self._list, "job": self._job}

    async def _list(self, request: web.Request, credential: Credential) -> web.Response:
        view = self.jobs()
        jobs = visible_jobs(view, credential, set(request.query.getall("tenant", [])))
        rows = await service.run_in_thread(lambda: [self.row(view, job) for job in jobs])
        content = {"view": "jobs", "timestamp_ns": view.timestamp_ns, "rows": rows}
        if credential.role is not Role.TENANT:
            content["suppressed"] = view.suppressed
        return json_response(content)

    async def _job(self, request: web.Request, _: Credential) -> web.Response:
        view, job = self.find(request.match_info)
        if job is None:
            return json_error(HTTPStatus.NOT_FOUND, UNKNOWN_JOB)
        return json_response(await service.run_in_thread(self.job_document, view, job))

    def find(self, named: Mapping[str, str]) -> tuple[RunningJobs, RunningJob | None]:
        """Return the view and the running job that the parts of a path name; None if there is none."""
        view = self.jobs()
        key = JobKey(named["tenant"], named["source"], named["workload"])
        return view, next((job for job in view.jobs if job.key == key), None)

    def row(self, view: RunningJobs, job: RunningJob) -> dict[str, Any]:
        """Return a job with its step."""
        step = self.steps().get(job.key)
        return view.to_json(job, self.names_of) | {"step": step and asdict(step)}

    def job_document(self, view: RunningJobs, job: RunningJob) -> dict[str, Any]:
        """Return a job with its GPUs and their readings."""
        document = {"timestamp_ns": view.timestamp_ns, **self.row(view, job)}
        return document | {"places": view.gpu_rows(job, self.names_of)}


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
    quarantine: segment_files.RecordQuarantine
    limits: Sequence[work_limits.LogRateLimit] = ()
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
        counts = self.core.counts
        plain = [
            (catalog.ENVELOPES, counts.envelopes),
            (catalog.FRAMES, counts.frames),
            (catalog.DUPLICATES, counts.duplicates),
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
            (catalog.EVIDENCE_WAITING, len(self.core.evidence.intervals.by_key)),
            (catalog.EVIDENCE_STORED, self.finalizer.counts.intervals),
            (catalog.EVIDENCE_FAILURES, self.finalizer.counts.failures),
            (catalog.FINALIZED_DAYS, self.finalizer.counts.days),
            (catalog.REVISED_DAYS, self.finalizer.counts.revisions),
            (catalog.AUDIT_RECORDS, self.trail.log.size),
            (catalog.AUDIT_UNSIGNED, self.trail.log.size - self.trail.log.signed.size),
            (catalog.AUDIT_LOST, self.trail.lost_records),
            (catalog.DENIALS, self.trail.denials),
            (catalog.LOG_LINES_SUPPRESSED, sum(limit.suppressed for limit in self.limits)),
            (catalog.LOG_LINES_LOST, service.LOG_STREAM.lost),
            (catalog.CLOCK_SUSPECT, int(bool(self.finalizer.hold_reason()))),
            (catalog.SINK_WRITTEN, self.sink.written_lines),
            (catalog.SINK_DROPPED, self.sink.dropped_lines),
        ]
        files = [(file.kind, int(file.is_valid)) for file in self.files.all_files if file.path]
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


async def _no_problem() -> str:
    return ""


@dataclass(slots=True)
class ViewApi:
    """Handlers of the read routes. `views` is called for each request."""

    core: CollectorState
    metrics: CollectorMetrics
    views: Callable[[], view_refresh.CollectorViews]
    incidents: Callable[[], IncidentTable] = IncidentTable
    stale_seconds: float = 30.0
    wall_ns: Callable[[], int] = time.time_ns
    ledger_problem: Callable[[], Awaitable[str]] = _no_problem
    """Reason why the ledger cannot be written; empty if there is none."""
    read_only: str = ""
    """Reason why no data is accepted; empty if data is accepted."""
    console: ConsoleSettings = field(default_factory=ConsoleSettings)
    _ranking: node_states.NodeRanking = field(default_factory=node_states.NodeRanking)

    def handlers(self) -> RouteHandlers:
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
        }

    @property
    def jobs_api(self) -> JobsApi:
        """Handlers of jobs."""
        return JobsApi(
            lambda: self.views().jobs, self.core.names_of_gpu, lambda: self.incidents().steps
        )

    def node_rows(self) -> Sequence[node_states.NodeRow]:
        """Return all nodes with their states, worst first; computed once per refresh. Blocking."""
        views, gpus = self.views(), dict(self.core.gpus_by_node)
        return self._ranking.rows(views.node, self.incidents(), gpus, views.failed_gpus)

    async def _metrics(self, request: web.Request, credential: Credential) -> web.Response:
        views = self.views()
        if credential.role is Role.TENANT:
            cells = tenant_cells(
                chain(views.tenant.cells, views.jobs.cells(credential.tenant)), credential.tenant
            )
            cells = chain(cells, self.incidents().cells(credential.tenant))
        else:
            tables = (views.cluster, views.rail, views.tenant, views.node, views.inventory)
            cells = chain(
                *(table.cells for table in tables),
                views.jobs.cells(),
                self.incidents().cells(),
                self.metrics.cells(views),
            )
        text_format = exposition.TextFormat.negotiate(request.headers.get("Accept", ""))
        text = await service.run_in_thread(render, cells, text_format)
        response = web.Response(body=text.encode(), headers={"Content-Type": text_format.value})
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            response.enable_compression(web.ContentCoding.gzip)
        return response

    def _view(self, name: str) -> RouteHandler:
        async def respond(_: web.Request, __: Credential) -> web.Response:
            return _view_response(getattr(self.views(), name))

        return respond

    async def _tenants(self, _: web.Request, credential: Credential) -> web.Response:
        view = self.views().tenant
        if credential.role is Role.TENANT:
            view = replace(view, cells=tuple(tenant_cells(view.cells, credential.tenant)))
        return _view_response(view)

    async def _nodes(self, _: web.Request, __: Credential) -> web.Response:
        return await service.run_in_thread(self._make_nodes, dict(self.core.fleet.nodes))

    def _make_nodes(self, nodes: Mapping[str, FleetNode]) -> web.Response:
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
        return json_response({"view": "nodes", "timestamp_ns": views.timestamp_ns, "rows": rows})

    async def _node(self, request: web.Request, __: Credential) -> web.Response:
        node = self.core.fleet.nodes.get(request.match_info["node"])
        if node is None:
            text = f"unknown node {request.match_info['node']!r}: expected one that has reported"
            return json_error(HTTPStatus.NOT_FOUND, text)
        now_ns = self.wall_ns()
        selected = set(request.query.getall("stream", node.rows))
        content = {
            "node": node.name,
            "agent_version": node.agent_version,
            "timestamp_ns": now_ns,
            "rollups": _rollup_rows(self._fresh_rows(node, now_ns)),
            "gpus": self._gpus(node.name),
            "streams": {
                stream: self._readings(node.name, row, now_ns)
                for stream, row in sorted(node.rows.items())
                if stream in selected
            },
        }
        return json_response(content)

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

    def _readings(self, node: str, row: StreamRow, now_ns: int) -> dict[str, Any]:
        """Return the latest frame of a source, reading by reading, converted to units."""
        schema = self.core.schemas.read(row.schema)
        values = row.block.values_of(row.index).tolist()
        codes = row.block.reasons_of(row.index).tolist()
        readings = []
        devices = [self.core.names_of(node, entity) for entity in schema.entities]
        for column, group, member in schema_columns.columns_of(schema):
            metric, entity = METRICS.get(group.metric), schema.entities[member]
            numerator, denominator = group.scale
            if metric and metric.kind is declare.MetricKind.HISTOGRAM:
                numerator, denominator = metric.scale_of(entity.key).as_integer_ratio()
            entry: dict[str, Any] = {"metric": group.metric, "entity": list(entity.key)}
            if devices[member]:
                entry["device"] = devices[member]
            if codes[column] != reading.PRESENT:
                entry["absent"] = reading.REASONS.get(codes[column], reading.Absent.ERROR).label
            elif not denominator:
                entry["absent"] = reading.Absent.ERROR.label
            else:
                counter = metric is not None and metric.kind is declare.MetricKind.COUNTER
                value = reading.from_stored(values[column], counter=counter) * numerator
                entry["value"] = value if denominator == 1 else value / denominator
            readings.append(entry)
        age_seconds = (
            (now_ns - row.timestamp_ns) / timestamps.SECOND_NS if row.timestamp_ns else None
        )
        return {"timestamp_ns": row.timestamp_ns, "age_seconds": age_seconds, "readings": readings}

    async def _inventory(self, _: web.Request, __: Credential) -> web.Response:
        result = self.views().inventory_comparison
        if not result.timestamp_ns:
            return json_error(HTTPStatus.SERVICE_UNAVAILABLE, _NOT_COMPUTED)
        return json_response(
            await service.run_in_thread(inventory_json, result, self.core.names_of)
        )

    async def _account(self, _: web.Request, credential: Credential) -> web.Response:
        views = self.views()
        if views.account is None:
            text, reason = "the account has not been computed yet", self.metrics.unknown_reason
            if views.timestamp_ns and reason:
                text = f"the holders of GPUs are unknown: {reason}"
            return json_error(HTTPStatus.SERVICE_UNAVAILABLE, text)
        account = account_json(views.account)
        is_tenant = credential.role is Role.TENANT
        return json_response(tenant_account(account, credential.tenant) if is_tenant else account)

    async def _events(self, request: web.Request, __: Credential) -> web.Response:
        node = request.query.get("node")
        events = [seen_event for seen_event in self.core.events if node in (None, seen_event.node)]
        rows = [
            {
                **seen_event.to_json(),
                "device": self.core.names_of(seen_event.node, seen_event.event.entity),
            }
            for seen_event in events[-MAX_EVENTS:]
        ]
        return json_response({"events": rows})

    async def _healthy(self, _: web.Request, __: Credential) -> web.Response:
        return web.Response(text="healthy\n")

    async def _ready(self, _: web.Request, __: Credential) -> web.Response:
        problem = "" if self.views().timestamp_ns else _NOT_COMPUTED
        problem = problem or self.metrics.unknown_reason or await self.ledger_problem()
        problem = f"read-only: {self.read_only}" if self.read_only else problem
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


def _view_response(view: view_cells.View) -> web.Response:
    return json_response(
        {"view": view.name, "timestamp_ns": view.timestamp_ns, "rows": view.rows()}
    )
