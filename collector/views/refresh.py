"""Refreshes all views at a period, in slices, so that acknowledgements never wait for long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from collector.account.amounts import Totals
from collector.account.cells import tenant_cells
from collector.account.live import LiveAccount
from collector.account.quotas import Quotas
from collector.account.tally import Account
from collector.core import Core
from collector.inventory.view import cells as inventory_cells
from collector.inventory.watch import Found, Watch
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
    inventory: View = field(default_factory=lambda: View("inventory", 0))
    found: Found = field(default_factory=Found)
    """What the inventory view is made of."""


@dataclass(slots=True)
class Refresher:
    """Keeps `views` up to date."""

    core: Core
    live: LiveAccount
    stale_seconds: float
    period_seconds: float
    wall_ns: Callable[[], int] = time.time_ns
    views: Views = field(default_factory=Views)
    known: Callable[[], bool] = lambda: True
    """Whether it is known who holds what: else nothing is said of tenants, as held time would pass
    for idle time."""
    quotas: Callable[[], Quotas] = Quotas
    watch: Watch | None = None
    """Holds the fleet against the inventory."""

    async def run(self) -> None:
        """Refresh until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(self.period_seconds)

    async def refresh(self) -> Views:
        """Compute all views, one block of the fleet at a time."""
        started = time.perf_counter_ns()
        now_ns = self.wall_ns()
        known = self.known()  # asked first: what is known by now is in the files below
        fresh_from_ns = now_ns - round(self.stale_seconds * NS)
        names: list[str] = []
        account = await self._account(now_ns) if known else None
        held = self.live.held() if account else {}
        rollups = Rollups(self._tenants_of(now_ns, names) if held else None, names)
        turns = _Turns()
        for block in self.core.fleet.blocks():
            reduced = reduce_rows(block, self.core.fleet.fresh(block, fresh_from_ns, now_ns))
            if reduced:
                rollups.add(reduced)
            await turns.offer()
        tables = {scope: await _sliced(rollups.cells(scope)) for scope in SCOPES}
        nodes = await _sliced(self._nodes(now_ns, fresh_from_ns))
        found = Found(now_ns)
        if self.watch:
            found = await self.watch.look(now_ns, fresh_from_ns, turns.offer)
        against = await _sliced(inventory_cells(found))
        self.views = Views(
            now_ns,
            View("cluster", now_ns, (*tables["cluster"], *self._cluster(fresh_from_ns))),
            View("rail", now_ns, tuple(tables["rail"])),
            View("tenant", now_ns, (*tables["tenant"], *self._tenants(account, held))),
            View("node", now_ns, tuple(nodes)),
            account,
            time.perf_counter_ns() - started,
            View("inventory", now_ns, tuple(against)),
            found,
        )
        return self.views

    def _tenants_of(self, now_ns: int, names: list[str]) -> TenantsOf:
        """Who holds the GPU of each lane of a node, and last the whole node.

        What several tenants share is none's: no one can tell whose its readings are.
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
        def tenants_of(node: str, lanes: int) -> list[int]:
            gpus = self.core.holders_of(node)
            holders = {lane: self.live.holders(gpu) for lane, gpu in gpus.items()}
            by_lane = [holders.get(lane, set()) for lane in range(lanes)]
            whole = {claims.holder(node, now_ns)} - {""}
            if not whole and holders and all(holders.values()):
                whole = set().union(*holders.values())
            return [number(tenants) for tenants in (*by_lane, whole)]

        return tenants_of

    async def _account(self, now_ns: int) -> Account | None:
        """The account; None while the ledger cannot be read."""
        return await self.live.refresh(now_ns, _Turns().offer) if self.live.ready else None

    def _tenants(self, account: Account | None, held: Mapping[str, int]) -> Iterator[Cell]:
        if account:
            amounts: Totals = self.live.amounts.totals()
            yield from tenant_cells(account, amounts, held, self.quotas())

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
