"""Models of the pages about the whole: overview, self-monitoring, list of the API's routes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from railscope import api as resources
from railscope.api.status import Status, headline
from railscope.catalog import collector as catalog
from railscope.catalog.agent import GOVERNOR_EVENT, REPLAY_MEMORY
from railscope.catalog.declare import Rollup
from railscope.catalog.incidents import EVALUATION_TIME
from railscope.catalog.rollup import derived_name
from railscope.claim_terms import GPU_CAPACITY
from railscope.service import run_in_thread
from railscope.timestamps import HOUR_NS, SECOND_NS
from railscope_collector import view_refresh
from railscope_collector.account import account_cells
from railscope_collector.console import incident_pages, page_table, rail_grid
from railscope_collector.diagnosis import entity_states
from railscope_collector.fleet.view_cells import ViewCell
from railscope_collector.http import read_api
from railscope_collector.http.incidents_api import visible_incidents, visible_jobs
from railscope_collector.http.resources import ROUTES

MAX_WORST, MAX_EVENTS, MAX_NAMED = 20, 20, 10
MAX_VALUES = 300
_SENT = ("sum_rdma_transmit_bytes_per_second", "sum_nic_transmit_bytes_per_second")
"""Roll-ups in order of preference."""
_PAUSES = tuple(
    f"max_nic_{direction}_{kind}_pause_ratio"
    for direction in ("receive", "transmit")
    for kind in ("pfc", "global")
)
_SIMULATED_AGENTS = derived_name(REPLAY_MEMORY, "cluster", Rollup.COUNT)


class DataState(msgspec.Struct, frozen=True):
    """Completeness of the picture; ages are null while no node has reported."""

    newest_seconds: float | None
    oldest_seconds: float | None
    """Age of the newest frame of the node that is silent longest."""
    stale_nodes: tuple[str, ...]
    """The first ones."""
    stale_count: int
    missing_frames: int
    missing_nodes: tuple[str, ...]
    """The nodes with most missing frames."""
    refresh_seconds: float
    """Time that the last refresh of the views took."""


class RunningLoad(msgspec.Struct, frozen=True):
    """Present load of the cluster; null is not known."""

    mean_utilization_ratio: float | None
    power_watts: float | None
    transmit_bytes_per_second: float | None
    """Mean of the last minute, over all rails."""
    max_pause_ratio: float | None
    """Largest share of time in which a NIC was paused or paused its switch, in the last minute."""
    gpu_hours_today: float | None
    """GPU time held since midnight (UTC)."""


class OverviewModel(msgspec.Struct, frozen=True):
    """First page. What a tenant may not see is null."""

    timestamp_ns: int
    status: Status
    summary: str
    """The status in one line."""
    since_ns: int | None
    touched_jobs: int
    """Running jobs that open incidents touch."""
    ended_jobs: int
    """Jobs that open incidents touched, and that no longer run."""
    touched_tenants: tuple[str, ...]
    touched_tenant_count: int
    diagnosis_ns: int
    """Time of the last evaluation of incidents; 0 for none."""
    problem: str
    """Reason why the incidents are not those of now; empty if they are."""
    open_incidents: int
    """Open ones that no other one explains."""
    load: RunningLoad | None = None
    nodes: resources.NodeList | None = None
    """The worst nodes, and the number of all by state."""
    data: DataState | None = None
    grid: rail_grid.RailGrid | None = None
    events: tuple[resources.Event, ...] = ()


class OwnModel(msgspec.Struct, frozen=True):
    """Self-monitoring: the cost of Railscope, the ages of its data, its gaps, and what the governors of agents did.

    Of a value that is not known there is none: null.
    """

    timestamp_ns: int
    diagnosis_ns: int
    diagnosis: resources.DiagnosisProgress
    read_only: str
    """Reason why no frame is accepted; empty if frames are accepted."""
    refresh_seconds: float
    evaluation_seconds: float | None
    max_agent_cpu_ratio: float | None
    max_agent_memory_bytes: float | None
    simulated_agents: int
    """Agents of simulated nodes and of captures, whose costs are not comparable: those of the other agents are above."""
    log_bytes: float | None
    missing_frames: int
    missing: tuple[tuple[str, int], ...]
    """Nodes with most missing frames."""
    oldest: tuple[tuple[str, float], ...]
    """Nodes with the oldest data: ages in seconds."""
    rejected: tuple[resources.MetricValue, ...]
    """Rejected envelopes by reason."""
    governor: tuple[resources.Event, ...]
    values: tuple[resources.MetricValue, ...]
    omitted: int
    """Values beyond the largest number."""


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

    async def _overview(self, request: page_table.PageRequest) -> OverviewModel:
        missing = Counter(dict(self.api.core.received.missing_of_nodes()))
        not_ready = await self.api.not_ready()
        return await run_in_thread(self._make_overview, request, missing, not_ready)

    def _make_overview(
        self, request: page_table.PageRequest, missing: Counter[str], not_ready: str
    ) -> OverviewModel:
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
        model = OverviewModel(
            timestamp_ns=views.timestamp_ns,
            status=status,
            summary=headline(status),
            since_ns=min((each.onset_ns for each in urgent), default=None),
            touched_jobs=len(touched) - ended,
            ended_jobs=ended,
            touched_tenants=tuple(tenants[:MAX_NAMED]),
            touched_tenant_count=len(tenants),
            diagnosis_ns=table.timestamp_ns,
            problem=status.absent.get("incidents", ""),
            open_incidents=len(roots),
        )
        if request.tenant is None:
            rows = self.api.node_rows()
            worst = self.api.node_list(read_api.NodesQuery(limit=MAX_WORST))
            ill = (row for row in worst.rows if row.state != entity_states.HEALTHY)
            worst = msgspec.structs.replace(worst, rows=tuple(ill))
            events = self.api.event_writer().newest(self.api.core.events, MAX_EVENTS)
            model = msgspec.structs.replace(
                model,
                load=_load(views),
                nodes=worst,
                data=_data_state(rows, views, missing),
                grid=rail_grid.make_grid(rows),
                events=events,
            )
        return model

    async def _railscope(self, _: page_table.PageRequest) -> OwnModel:
        views = self.api.views()
        cells = self.api.metrics.cells(views)
        missing = Counter(dict(self.api.core.received.missing_of_nodes()))
        return await run_in_thread(self._make_railscope, views, cells, missing)

    def _make_railscope(
        self, views: view_refresh.CollectorViews, cells: list[ViewCell], missing: Counter[str]
    ) -> OwnModel:
        core = self.api.core
        agents = [cell for cell in views.cluster.cells if "_agent_" in cell.metric.name]
        values = [cell.to_value() for cell in (*agents, *cells)]
        plain = {each.metric: each.value for each in values if not each.labels}
        rejected = (each for each in values if each.metric == catalog.REJECTED.name)
        ages = [
            (row.node, row.age_seconds)
            for row in self.api.node_rows()
            if row.age_seconds is not None
        ]
        ages.sort(key=lambda each: each[1], reverse=True)
        events = [each for each in core.events if each.event.name == GOVERNOR_EVENT.name]
        return OwnModel(
            timestamp_ns=views.timestamp_ns,
            diagnosis_ns=self.api.incidents().timestamp_ns,
            diagnosis=self.api.progress(),
            read_only=self.api.read_only,
            refresh_seconds=views.duration_ns / SECOND_NS,
            evaluation_seconds=plain.get(EVALUATION_TIME.name),
            max_agent_cpu_ratio=plain.get("railscope_cluster_max_agent_cpu_use_ratio"),
            max_agent_memory_bytes=plain.get("railscope_cluster_max_agent_resident_memory_bytes"),
            simulated_agents=int(plain.get(_SIMULATED_AGENTS) or 0),
            log_bytes=plain.get(catalog.LOG_SIZE.name),
            missing_frames=missing.total(),
            missing=tuple(missing.most_common(MAX_NAMED)),
            oldest=tuple(ages[:MAX_NAMED]),
            rejected=tuple(each for each in rejected if each.value),
            governor=self.api.event_writer().newest(events, MAX_EVENTS),
            values=tuple(values[:MAX_VALUES]),
            omitted=max(len(values) - MAX_VALUES, 0),
        )

    async def _api(self, request: page_table.PageRequest) -> ApiModel:
        role = request.credential.role
        return ApiModel(
            tuple(
                ApiRoute(route.name, route.path, "{" not in route.path)
                for route in ROUTES
                if route.method == "GET" and (route.open or route.admits(role))
            )
        )


def _load(views: view_refresh.CollectorViews) -> RunningLoad:
    values = defaultdict[str, list[float]](list)
    for cell in views.cluster.cells:
        values[cell.metric.name].append(cell.value)

    def largest(*names: str) -> float | None:
        """Return the largest of some roll-ups, with those of each priority."""
        found = (each for name in names for each in values[f"railscope_cluster_{name}"])
        return max(found, default=None)

    sent = map(largest, _SENT)
    held_ns = None
    if views.account is not None:
        today = account_cells.quota_days("day", views.timestamp_ns)
        held_ns = float(sum(views.account.held_time(*today).values()) / GPU_CAPACITY)
    return RunningLoad(
        largest("mean_gpu_utilization_ratio"),
        largest("sum_gpu_power_watts"),
        next((each for each in sent if each is not None), None),
        largest(*_PAUSES),
        None if held_ns is None else held_ns / HOUR_NS,
    )


def _data_state(
    rows: Sequence[resources.Node], views: view_refresh.CollectorViews, missing: Counter[str]
) -> DataState:
    ages = [row.age_seconds for row in rows if row.age_seconds is not None]
    stale = sorted(row.node for row in rows if not row.reporting)
    return DataState(
        min(ages, default=None),
        max(ages, default=None),
        tuple(stale[:MAX_NAMED]),
        len(stale),
        missing.total(),
        tuple(name for name, _ in missing.most_common(MAX_NAMED)),
        views.duration_ns / SECOND_NS,
    )
