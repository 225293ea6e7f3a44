"""Refreshes all views at a period, in slices, so that acknowledgements never wait for long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache

from collector.claims import Claims
from collector.core import Core
from collector.metering.account import Account, add_gpu
from collector.views.rollup import NO_TENANT, Rollups, TenantsOf, reduce_rows
from collector.views.table import Cell, View
from railscope.catalog import collector as catalog
from railscope.catalog.rollup import SCOPES

NS = 1_000_000_000
SLICE_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Views:
    """All views as of one instant."""

    instant_ns: int = 0
    cluster: View = field(default_factory=lambda: View("cluster", 0))
    rail: View = field(default_factory=lambda: View("rail", 0))
    tenant: View = field(default_factory=lambda: View("tenant", 0))
    node: View = field(default_factory=lambda: View("node", 0))
    account: Account | None = None
    """None while no one knows who holds what."""
    duration_ns: int = 0


@dataclass(slots=True)
class Refresher:
    """Keeps `views` up to date."""

    core: Core
    claims: Callable[[], Claims]
    stale_seconds: float
    period_seconds: float
    wall_ns: Callable[[], int] = time.time_ns
    views: Views = field(default_factory=Views)
    claims_known: Callable[[], bool] = lambda: True
    """Without claims nothing is said of tenants: held time would pass for idle time."""

    async def run(self) -> None:
        """Refresh until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(self.period_seconds)

    async def refresh(self) -> Views:
        """Compute all views, one block of the fleet at a time."""
        started = time.perf_counter_ns()
        now_ns = self.wall_ns()
        known = self.claims_known()  # asked first: what is known by now is in the claims below
        claims = self.claims()
        fresh_from_ns = now_ns - round(self.stale_seconds * NS)
        names: list[str] = []
        held = known and bool(claims.by_target)
        rollups = Rollups(self._tenants_of(claims, now_ns, names) if held else None, names)
        turns = _Turns()
        for block in self.core.fleet.blocks():
            reduced = reduce_rows(block, self.core.fleet.fresh(block, fresh_from_ns, now_ns))
            if reduced:
                rollups.add(reduced)
            await turns.offer()
        tables = {scope: await _sliced(rollups.cells(scope)) for scope in SCOPES}
        account = await self._account(claims, now_ns) if known else None
        nodes = await _sliced(self._nodes(now_ns, fresh_from_ns))
        self.views = Views(
            now_ns,
            View("cluster", now_ns, (*tables["cluster"], *self._cluster(fresh_from_ns))),
            View("rail", now_ns, tuple(tables["rail"])),
            View("tenant", now_ns, (*tables["tenant"], *_tenant_time(account))),
            View("node", now_ns, tuple(nodes)),
            account,
            time.perf_counter_ns() - started,
        )
        return self.views

    def _tenants_of(self, claims: Claims, now_ns: int, names: list[str]) -> TenantsOf:
        numbers: dict[str, int] = {}

        def number(tenant: str) -> int:
            if not tenant:
                return NO_TENANT
            if tenant not in numbers:
                numbers[tenant] = len(names)
                names.append(tenant)
            return numbers[tenant]

        @cache
        def tenants_of(node: str, lanes: int) -> list[int]:
            gpus = self.core.holders_of(node)
            holders = [claims.holder(gpus.get(lane, ""), node, now_ns) for lane in range(lanes)]
            return [number(tenant) for tenant in (*holders, claims.holder("", node, now_ns))]

        return tenants_of

    async def _account(self, claims: Claims, now_ns: int) -> Account:
        """The account. Others go first by the clock: GPUs differ in how much there is to add."""
        account = Account(now_ns)
        turns = _Turns()
        for gpu, coverage in list(self.core.coverages.items()):
            if coverage.since_ns < now_ns:
                add_gpu(account, gpu, coverage, claims)
            await turns.offer()
        return account

    def _cluster(self, fresh_from_ns: int) -> tuple[Cell, ...]:
        nodes = self.core.fleet.nodes
        fresh = [name for name, node in nodes.items() if node.instant_ns >= fresh_from_ns]
        gpus = sum(len(self.core.holders_of(name)) for name in fresh)
        return (
            Cell(catalog.NODES, (), len(nodes)),
            Cell(catalog.NODES_UP, (), len(fresh)),
            Cell(catalog.CLUSTER_GPUS, (), gpus),
        )

    def _nodes(self, now_ns: int, fresh_from_ns: int) -> Iterator[Cell]:
        for name, node in list(self.core.fleet.nodes.items()):
            yield Cell(catalog.NODE_UP, (name,), float(node.instant_ns >= fresh_from_ns))
            yield Cell(catalog.NODE_CLOCK_OFFSET, (name,), node.clock_offset_ns / NS)
            if node.instant_ns:
                yield Cell(catalog.NODE_AGE, (name,), (now_ns - node.instant_ns) / NS)


class _Turns:
    """Lets others go first: after each slice of work, for as long as the slice took.

    A request passes the loop a dozen times until it is acknowledged. If every pass met a slice of
    ours, it would wait for a dozen of them.
    """

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def offer(self) -> None:
        """Pause, if a slice has been used up."""
        spent = time.perf_counter() - self._since
        if spent >= SLICE_SECONDS:
            await asyncio.sleep(spent)
            self._since = time.perf_counter()


async def _sliced(cells: Iterator[Cell | None]) -> list[Cell]:
    """All cells, letting others go first now and then."""
    turns = _Turns()
    found: list[Cell] = []
    for cell in cells:
        if cell is not None:
            found.append(cell)
        await turns.offer()
    return found


def _tenant_time(account: Account | None) -> tuple[Cell, ...]:
    cells: list[Cell] = []
    for tenant, time_ in sorted(account.tenants.items()) if account else ():
        cells += [
            Cell(catalog.TENANT_GPU_TIME, (tenant, "observed"), time_.observed_ns / NS),
            Cell(catalog.TENANT_GPU_TIME, (tenant, "unknown"), time_.unknown_ns / NS),
        ]
    return tuple(cells)
