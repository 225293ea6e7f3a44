"""Refresh of all views, for answers and periodically, in slices, so that acknowledgements are not delayed for long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import numpy.typing as npt

from railscope.catalog import account as account_catalog, collector as catalog
from railscope.catalog.gpu_health import GPU_HEALTH
from railscope.reading import PRESENT
from railscope.timestamps import SECOND_NS
from railscope_collector.account import account_cells, account_sums, live_account
from railscope_collector.files.quotas_file import Quotas
from railscope_collector.fleet import fleet, view_cells
from railscope_collector.fleet.shape_columns import columns_of
from railscope_collector.fleet.sheets import SheetBlock
from railscope_collector.inventory.inventory_view import inventory_cells
from railscope_collector.inventory.inventory_watch import InventoryComparison, InventoryWatch
from railscope_collector.metering.units import Units
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.views.fresh_rows import find_fresh_rows
from railscope_collector.views.gpu_list import ListedReadings
from railscope_collector.views.rollups import NO_TENANT, Rollups, TenantsOf
from railscope_collector.work_limits import TimeSlices
from railscope_collector.workloads.fleet_positions import FleetPositions
from railscope_collector.workloads.job_readings import GatheredReadings
from railscope_collector.workloads.job_roster import fair_selection
from railscope_collector.workloads.job_view import RunningJobs
from railscope_collector.workloads.measure_averages import MeasureAverages

PERIOD_SECONDS = 15.0
"""Period of refreshes while nothing is asked: the period at which Prometheus usually scrapes."""
NOT_COMPUTED = "the views have not been computed yet"
MAX_JOBS = 5000
_SUMMED = ("cluster", "rail", "tenant")
*_, _FAILED = GPU_HEALTH.states
_CELLS_PER_TURN = 16
_ROWS_PER_SLICE = 32
"""Rows of a block after which other tasks get a turn."""


@dataclass(frozen=True, slots=True)
class CollectorViews:
    """All views as of one point in time."""

    timestamp_ns: int = 0
    cluster: view_cells.View = field(default_factory=lambda: view_cells.View("cluster", 0))
    rail: view_cells.View = field(default_factory=lambda: view_cells.View("rail", 0))
    tenant: view_cells.View = field(default_factory=lambda: view_cells.View("tenant", 0))
    node: view_cells.View = field(default_factory=lambda: view_cells.View("node", 0))
    account: account_sums.GpuTimeAccount | None = None
    """None while the claims of GPUs cannot be determined."""
    duration_ns: int = 0
    inventory: view_cells.View = field(default_factory=lambda: view_cells.View("inventory", 0))
    inventory_comparison: InventoryComparison = field(default_factory=InventoryComparison)
    """Source data of the inventory view."""
    jobs: RunningJobs = field(default_factory=RunningJobs)
    failed_gpus: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """GPUs that have failed by the verdict of their agent: names in words by node and UUID."""
    gpus: ListedReadings = field(default_factory=ListedReadings)


@dataclass(slots=True)
class ViewRefresher:
    """Keeps `views` up to date."""

    core: CollectorState
    live: live_account.LiveAccount
    stale_seconds: float
    max_age_seconds: float
    """Age of the views up to which an answer uses them."""
    wall_ns: Callable[[], int] = time.time_ns
    views: CollectorViews = field(default_factory=CollectorViews)
    is_known: Callable[[], bool] = lambda: True
    """True if the claims of GPUs can be determined; otherwise no tenant metrics are computed, because claimed
    time would appear as idle time.
    """
    quotas: Callable[[], Quotas] = Quotas
    watch: InventoryWatch | None = None
    """Compares the fleet with the inventory."""
    max_jobs: int = MAX_JOBS
    positions: FleetPositions = field(init=False)
    averages: MeasureAverages = field(default_factory=MeasureAverages)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def __post_init__(self) -> None:
        """Create the positions of the GPUs of jobs."""
        self.positions = FleetPositions(self.core, self.live.roster)

    async def run(self) -> None:
        """Refresh until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(max(PERIOD_SECONDS, self.max_age_seconds))

    async def refresh_for_answer(self) -> CollectorViews:
        """Return views that were not too old when this was called; those before the first refresh are empty."""
        oldest_ns = self.wall_ns() - round(self.max_age_seconds * SECOND_NS)
        if 0 < self.views.timestamp_ns < oldest_ns:
            async with self._turn:
                # Another answer may have refreshed them meanwhile.
                if self.views.timestamp_ns < oldest_ns:
                    await self._refresh()
        return self.views

    async def refresh(self) -> CollectorViews:
        """Compute all views, after a refresh that has begun: the newest views are those of the newest state."""
        async with self._turn:
            return await self._refresh()

    async def _refresh(self) -> CollectorViews:
        """Compute all views, one block of the fleet at a time."""
        started = time.perf_counter_ns()
        now_ns = self.wall_ns()
        is_known = self.is_known()  # first, so that the files read below are at least as new
        fresh_from_ns = now_ns - round(self.stale_seconds * SECOND_NS)
        names: list[str] = []
        turns = TimeSlices()
        if is_known:
            await self.live.refresh(now_ns, turns.yield_if_due)
        # None while the ledger cannot be read.
        account = self.live.account if is_known else None
        held_units = self.live.held_units() if is_known else {}
        rollups = Rollups(self._tenants_of(now_ns, names) if held_units else None, names)
        if is_known:
            await self.positions.refresh(turns.yield_if_due)
        gathered, gpus = GatheredReadings(), ListedReadings(dict(self.core.gpus_by_node))
        failed: dict[str, dict[str, str]] = {}
        for block in self.core.fleet.blocks():
            table = self.positions.find(block) if is_known else None
            fresh_rows = self.core.fleet.fresh_rows(block, fresh_from_ns, now_ns)
            for start in range(0, len(fresh_rows), _ROWS_PER_SLICE):
                rows = fresh_rows[start : start + _ROWS_PER_SLICE]
                self._add_failed(failed, block, rows)
                fresh = find_fresh_rows(block, rows)
                if fresh:
                    rollups.add(fresh)
                    gpus.add(fresh)
                if table:
                    gathered.add(table, self.positions.select_unchanged(block, rows))
                await turns.yield_if_due()
        tables = {scope: await _yield_slices(rollups.cells(scope)) for scope in _SUMMED}
        fresh_nodes = {  # all except stale ones that were removed from the inventory
            name: node
            for name, node in self.core.fleet.nodes.items()
            if node.timestamp_ns >= fresh_from_ns
            or not (self.watch and self.watch.is_removed(name, now_ns))
        }
        nodes = await _yield_slices(self._nodes(fresh_nodes, now_ns, fresh_from_ns))
        found = InventoryComparison(now_ns)
        if self.watch:
            found = await self.watch.compare(now_ns, fresh_from_ns, turns.yield_if_due)
        against = await _yield_slices(inventory_cells(found))
        jobs = self._jobs(now_ns, fresh_from_ns, gathered) if is_known else RunningJobs()
        cluster = (
            *tables["cluster"],
            *self._cluster(fresh_nodes, fresh_from_ns, gpus.unclaimed),
            *_job_count_cells(jobs),
        )
        self.views = CollectorViews(
            now_ns,
            view_cells.View("cluster", now_ns, cluster),
            view_cells.View("rail", now_ns, tuple(tables["rail"])),
            view_cells.View(
                "tenant", now_ns, (*tables["tenant"], *self._tenants(account, held_units))
            ),
            view_cells.View("node", now_ns, tuple(nodes)),
            account,
            time.perf_counter_ns() - started,
            view_cells.View("inventory", now_ns, tuple(against)),
            found,
            jobs,
            failed,
            gpus,
        )
        return self.views

    def _add_failed(
        self, failed: dict[str, dict[str, str]], block: SheetBlock, rows: npt.NDArray[np.intp]
    ) -> None:
        """Add the GPUs of rows of a block that have failed."""
        columns = block.layout.health
        if not len(columns):
            return
        values, reasons = block.values_at(rows, columns), block.reasons
        is_present = reasons is None or reasons[rows[:, np.newaxis], columns] == PRESENT
        for row, column in np.argwhere((values == _FAILED) & is_present).tolist():
            position = int(columns[column])
            node = self.core.fleet.nodes.get(block.nodes[int(rows[row])] or "")
            if node is None:
                continue
            schema = node.rows[block.layout.stream].schema.join()
            member = next(member for at, _, member in columns_of(schema) if at == position)
            gpu = schema.entities[member].key[0]
            number = self.core.names_of_gpu(node.name, gpu)["index"] or gpu
            failed.setdefault(node.name, {})[gpu] = f"GPU {number}"

    def _jobs(self, now_ns: int, fresh_from_ns: int, gathered: GatheredReadings) -> RunningJobs:
        """Return the jobs; the gathered values are summed on request."""
        roster, nodes = self.live.roster, self.core.fleet.nodes
        jobs, job_of_position = roster.jobs(), roster.job_of_position.copy()
        averages = self.averages.update(gathered, roster.holding_of_position.copy(), now_ns)
        fresh = frozenset(n for n, node in nodes.items() if node.timestamp_ns >= fresh_from_ns)
        chosen = fair_selection(jobs, self.max_jobs)
        suppressed = len(jobs) - len(chosen)
        return RunningJobs(
            now_ns,
            tuple(chosen),
            suppressed,
            gathered,
            job_of_position,
            roster.numbers,
            fresh,
            averages,
        )

    def _tenants_of(self, now_ns: int, names: list[str]) -> TenantsOf:
        """Return a function for the tenants of each rail's GPU of a node, and last of the whole node.

        A GPU shared by several tenants is attributed to none: its readings cannot be divided.
        """
        numbers: dict[str, int] = {}
        claims = self.live.files().claims

        def number(tenants: set[str]) -> int:
            if len(tenants) != 1:
                return NO_TENANT
            (tenant,) = tenants
            if tenant not in numbers:
                numbers[tenant] = len(names)
                names.append(tenant)
            return numbers[tenant]

        @cache
        def tenants_of(node: str, rails: int) -> list[int]:
            gpus = self.core.gpus_by_rail(node)
            holders = {rail: self.live.holders(gpu) for rail, gpu in gpus.items()}
            by_rail = [holders.get(rail, set()) for rail in range(rails)]
            whole = {claims.node_holder(node, now_ns)} - {""}
            if not whole and holders and all(holders.values()):
                whole = set().union(*holders.values())
            return [number(tenants) for tenants in (*by_rail, whole)]

        return tenants_of

    def _tenants(
        self, account: account_sums.GpuTimeAccount | None, held_units: Mapping[str, Units]
    ) -> Iterator[view_cells.ViewCell]:
        if account:
            yield from account_cells.tenant_cells(
                account, self.live.amounts, held_units, self.quotas()
            )

    def _cluster(
        self,
        nodes: Mapping[str, fleet.FleetNode],
        fresh_from_ns: int,
        unclaimed: float | None,
    ) -> Iterator[view_cells.ViewCell]:
        fresh = [name for name, node in nodes.items() if node.timestamp_ns >= fresh_from_ns]
        gpus = {name: len(self.core.gpus_by_rail(name)) for name in nodes}
        total = sum(gpus.values())
        yield view_cells.ViewCell(catalog.NODES, (), len(nodes))
        yield view_cells.ViewCell(catalog.NODES_UP, (), len(fresh))
        yield view_cells.ViewCell(catalog.CLUSTER_GPUS, (), total)
        yield view_cells.ViewCell(catalog.STALE_GPUS, (), total - sum(gpus[name] for name in fresh))
        if unclaimed is not None:
            yield view_cells.ViewCell(catalog.UNCLAIMED_GPUS, (), unclaimed)

    def _nodes(
        self, fresh_nodes: Mapping[str, fleet.FleetNode], now_ns: int, fresh_from_ns: int
    ) -> Iterator[view_cells.ViewCell]:
        for name, node in fresh_nodes.items():
            yield view_cells.ViewCell(
                catalog.NODE_UP, (name,), float(node.timestamp_ns >= fresh_from_ns)
            )
            yield view_cells.ViewCell(
                catalog.NODE_CLOCK_OFFSET, (name,), node.clock_offset_ns / SECOND_NS
            )
            if node.timestamp_ns:
                yield view_cells.ViewCell(
                    catalog.NODE_AGE, (name,), (now_ns - node.timestamp_ns) / SECOND_NS
                )


def _job_count_cells(jobs: RunningJobs) -> Iterator[view_cells.ViewCell]:
    """Yield the number of jobs; nothing while the claims of GPUs cannot be determined."""
    if jobs.timestamp_ns:
        yield view_cells.ViewCell(
            account_catalog.CLUSTER_JOBS, (), len(jobs.jobs) + jobs.suppressed
        )
        yield view_cells.ViewCell(account_catalog.SUPPRESSED_JOBS, (), jobs.suppressed)


async def _yield_slices(cells: Iterator[view_cells.ViewCell | None]) -> list[view_cells.ViewCell]:
    """Collect all cells, yielding to other tasks periodically."""
    turns = TimeSlices()
    found: list[view_cells.ViewCell] = []
    for number, cell in enumerate(cells):
        if cell is not None:
            found.append(cell)
        if number % _CELLS_PER_TURN == 0:
            await turns.yield_if_due()
    return found
