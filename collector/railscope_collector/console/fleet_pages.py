"""Models of the pages about the whole: overview, self-monitoring, list of the API's routes."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import msgspec

from railscope import api as resources
from railscope.catalog import collector as catalog
from railscope.catalog.agent import GOVERNOR_EVENT
from railscope.catalog.incidents import EVALUATION_TIME
from railscope.service import run_in_thread
from railscope.timestamps import SECOND_NS
from railscope_collector import view_refresh
from railscope_collector.account import account_cells
from railscope_collector.console import incident_pages, page_table, rail_grid
from railscope_collector.diagnosis import entity_states
from railscope_collector.fleet.view_cells import ViewCell
from railscope_collector.http import nodes_api, read_api
from railscope_collector.http.incidents_api import visible_incidents, visible_jobs
from railscope_collector.http.resources import ROUTES
from railscope_collector.metering.units import GPU_HOUR

MAX_WORST, MAX_EVENTS, MAX_NAMED = 20, 20, 10
MAX_VALUES = 300
_SENT = ("sum_rdma_transmit_bytes_per_second", "sum_nic_transmit_bytes_per_second")
"""Roll-ups in order of preference."""
_PAUSES = tuple(
    f"max_nic_{direction}_{kind}_pause_ratio"
    for direction in ("receive", "transmit")
    for kind in ("pfc", "global")
)


class ApiRoute(msgspec.Struct, frozen=True):
    """A route that the reader may read."""

    name: str
    path: str
    is_linked: bool
    """True if the path has no parts to fill in."""


class ApiModel(msgspec.Struct, frozen=True):
    """Routes of the API."""

    routes: tuple[ApiRoute, ...]


@dataclass(slots=True)
class FleetPages:
    """Models from what the API shows to the same reader."""

    api: read_api.ViewApi

    def models(self) -> page_table.PageModels:
        """Return the functions by name of the page."""
        return {
            "overview": self._overview,
            "railscope": self._railscope,
            "api": self._api,
        }

    async def _overview(self, request: page_table.PageRequest) -> page_table.PageContent:
        missing = Counter(dict(self.api.core.received.missing_of_nodes()))
        not_ready = await self.api.not_ready()
        return await run_in_thread(self._make_overview, request, missing, not_ready)

    def _make_overview(
        self, request: page_table.PageRequest, missing: Counter[str], not_ready: str
    ) -> page_table.PageContent:
        status = self.api.status(request.credential, not_ready)
        views, table = self.api.views(), self.api.incidents()
        visible = visible_incidents(table, request.credential)
        roots = [each for each in visible if each.is_root]
        urgent = [each for each in roots if each.document.severity != "info"]
        touched = incident_pages.touched_jobs(visible)
        tenants = sorted({tenant for tenant, _, _ in touched if tenant})
        ended = 0
        # Otherwise a touched job may run without being listed.
        if views.jobs.timestamp_ns and not views.jobs.suppressed:
            running = visible_jobs(views.jobs, request.credential)
            ended = len(touched.difference(job.key for job in running))
        shown: dict[str, object] = {
            "timestamp_ns": views.timestamp_ns,
            "since_ns": min((each.onset_ns for each in urgent), default=None),
            "touched_jobs": len(touched) - ended,
            "ended_jobs": ended,
            "touched_tenants": tenants[:MAX_NAMED],
            "touched_tenant_count": len(tenants),
            "diagnosis_ns": table.timestamp_ns,
            "problem": status.absent.get("incidents", ""),
            "open_count": len(roots),
            "nodes": None,
        }
        if request.tenant is None:
            shown |= self._of_all_nodes(views, missing)
        return page_table.PageContent(status, shown)

    def _of_all_nodes(
        self, views: view_refresh.CollectorViews, missing: Counter[str]
    ) -> dict[str, object]:
        """Return what the overview shows to readers of all nodes."""
        rows = self.api.nodes.rows()
        nodes = self.api.nodes.node_list(nodes_api.NodesQuery(limit=MAX_WORST))
        ages = [row.age_seconds for row in rows if row.age_seconds is not None]
        stale = sorted(row.node for row in rows if not row.reporting)
        return {
            "load": _load(views),
            "nodes": nodes,
            "worst_nodes": [row for row in nodes.rows if row.state != entity_states.HEALTHY],
            "ages": ages,
            "stale_nodes": stale[:MAX_NAMED],
            "stale_count": len(stale),
            "missing_frames": missing.total(),
            "missing_nodes": [name for name, _ in missing.most_common(MAX_NAMED)],
            "grid": rail_grid.make_grid(rows),
            "events": self.api.event_writer().newest(self.api.core.events, MAX_EVENTS),
        }

    async def _railscope(self, _: page_table.PageRequest) -> page_table.PageContent:
        views = self.api.views()
        cells = self.api.metrics.cells(views)
        missing = Counter(dict(self.api.core.received.missing_of_nodes()))
        return await run_in_thread(self._make_railscope, views, cells, missing)

    def _make_railscope(
        self, views: view_refresh.CollectorViews, cells: list[ViewCell], missing: Counter[str]
    ) -> page_table.PageContent:
        core = self.api.core
        agents = [cell for cell in views.cluster.cells if "_agent_" in cell.metric.name]
        values = [cell.to_value() for cell in (*agents, *cells)]
        plain = {each.metric: each.value for each in values if not each.labels}
        rejected = (each for each in values if each.metric == catalog.REJECTED.name)
        ages = [
            (row.node, row.age_seconds)
            for row in self.api.nodes.rows()
            if row.age_seconds is not None
        ]
        ages.sort(key=lambda each: each[1], reverse=True)
        events = [each for each in core.events if each.event.name == GOVERNOR_EVENT.name]
        shown = {
            "diagnosis_ns": self.api.incidents().timestamp_ns,
            "diagnosis": self.api.progress(),
            "read_only": self.api.read_only,
            "refresh_seconds": views.duration_ns / SECOND_NS,
            "evaluation_seconds": plain.get(EVALUATION_TIME.name),
            "max_agent_cpu_ratio": plain.get("railscope_cluster_max_agent_cpu_use_ratio"),
            "max_agent_memory_bytes": plain.get(
                "railscope_cluster_max_agent_resident_memory_bytes"
            ),
            "log_bytes": plain.get(catalog.LOG_SIZE.name),
            "missing_frames": missing.total(),
            "missing": missing.most_common(MAX_NAMED),
            "oldest": ages[:MAX_NAMED],
            "rejected": [each for each in rejected if each.value],
            "governor": self.api.event_writer().newest(events, MAX_EVENTS),
            "omitted": max(len(values) - MAX_VALUES, 0),
        }
        listed = resources.MetricList(views.timestamp_ns, tuple(values[:MAX_VALUES]), "railscope")
        return page_table.PageContent(listed, shown)

    async def _api(self, request: page_table.PageRequest) -> ApiModel:
        role = request.credential.role
        return ApiModel(
            tuple(
                ApiRoute(route.name, route.path, "{" not in route.path)
                for route in ROUTES
                if route.method == "GET" and (route.open or route.admits(role))
            )
        )


def _load(views: view_refresh.CollectorViews) -> dict[str, float | None]:
    """Return the present load of the cluster; None is not known."""
    values = defaultdict[str, list[float]](list)
    for cell in views.cluster.cells:
        values[cell.metric.name].append(cell.value)

    def largest(*names: str) -> float | None:
        """Return the largest of some roll-ups, with those of each priority."""
        found = (each for name in names for each in values[f"railscope_cluster_{name}"])
        return max(found, default=None)

    sent = map(largest, _SENT)
    held_hours = None
    if views.account is not None:
        today = account_cells.quota_days("day", views.timestamp_ns)
        held_ns = sum(views.account.held_time(*today).values())
        held_hours = float(held_ns / GPU_HOUR)
    return {
        "mean_utilization_ratio": largest("mean_gpu_utilization_ratio"),
        "power_watts": largest("sum_gpu_power_watts"),
        "transmit_bytes_per_second": next((each for each in sent if each is not None), None),
        "max_pause_ratio": largest(*_PAUSES),
        "gpu_hours_today": held_hours,
    }
