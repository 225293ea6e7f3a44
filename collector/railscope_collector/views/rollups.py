"""Roll-ups over the cluster, the rails and the tenants, as declared in the catalog.

Each block of the fleet is reduced to cells (metric, part, rail) in one pass. The cells of all
blocks of a layout are added up as arrays; only the result, a few numbers per metric and rail, is
processed individually. A mean is the mean of existing readings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from railscope.catalog import derived_metric
from railscope.catalog.declare import Metric, Rollup
from railscope.catalog.rollup import scopes_of
from railscope.frame import NO_RAIL
from railscope_collector.fleet import shapes, view_cells
from railscope_collector.views.fresh_rows import REDUCERS, Floats, FreshRows

Holders: TypeAlias = npt.NDArray[np.int64]
Columns: TypeAlias = tuple[Floats, ...]
"""Sums, counts, highest and lowest of each cell."""
NO_TENANT = -1
EVERYONE = ""

TenantsOf = Callable[[str, int], list[int]]
"""Function of a node and its number of rails: the tenant of each rail, and last that of the whole node."""


class _LayoutSums:
    """Sums of the cells of one layout."""

    def __init__(self, layout: shapes.SchemaLayout) -> None:
        self.layout = layout
        self.columns = tuple(np.full(len(layout.starts), empty) for _, empty in REDUCERS)

    def add(self, amounts: Columns) -> None:
        """Add the amounts of each cell."""
        for (reducer, _), total, amount in zip(REDUCERS, self.columns, amounts, strict=True):
            reducer(total, amount, out=total)


def _sum_everyone(fresh: FreshRows) -> Columns:
    """Return the amounts of the cells of all rows."""
    starts = fresh.block.layout.starts
    return tuple(
        reducer.reduceat(reducer.reduce(amount, axis=0), starts)
        for reducer, amount in fresh.amounts()
    )


def _sum_by_tenant(fresh: FreshRows, holders: Holders) -> Iterator[tuple[int, Columns]]:
    """Yield the amounts of each tenant's cells; the cost depends on rows, not on tenants.

    `holders` are the tenants of each row's rails, and last that of the whole node.
    """
    row, rail = np.nonzero(holders != NO_TENANT)
    if not len(row):
        return
    pairs = np.unique(np.stack([holders[row, rail], row], axis=1), axis=0)
    tenants, rows = pairs[:, 0], pairs[:, 1]
    # The last entry is the whole node, and -1 is the rail of columns without one.
    layout = fresh.block.layout
    is_held = holders[:, layout.cell_rails][rows] == tenants[:, np.newaxis]
    starts = np.flatnonzero(np.diff(tenants, prepend=NO_TENANT))
    cells = (reducer.reduceat(amount, layout.starts, axis=1) for reducer, amount in fresh.amounts())
    columns = [
        reducer.reduceat(np.where(is_held, column[rows], empty), starts)
        for (reducer, empty), column in zip(REDUCERS, cells, strict=True)
    ]
    for number, tenant in enumerate(tenants[starts].tolist()):
        yield tenant, tuple(column[number] for column in columns)


@dataclass(slots=True)
class RollupTotal:
    """Sum of one metric and part of one scope."""

    sum: float = 0.0
    count: float = 0.0
    highest: float = -np.inf
    lowest: float = np.inf

    def add(self, sum_: float, count: float, highest: float, lowest: float) -> None:
        """Add another part."""
        self.sum += sum_
        self.count += count
        self.highest = max(self.highest, highest)
        self.lowest = min(self.lowest, lowest)

    def value(self, rollup: Rollup) -> float:
        """Return the value of a roll-up."""
        if rollup is Rollup.SUM:
            return self.sum
        if rollup is Rollup.MEAN:
            return self.sum / self.count
        if rollup is Rollup.COUNT:
            return self.count
        return self.highest if rollup is Rollup.MAX else self.lowest

    def scaled(self, metric: Metric, rollup: Rollup) -> float:
        """Return the value of a roll-up in base units."""
        scale = Fraction(1) if rollup is Rollup.COUNT else metric.scale
        return self.value(rollup) * scale.numerator / scale.denominator


@dataclass(slots=True)
class Rollups:
    """Adds up rows: over the cluster, and over each tenant."""

    tenants_of: TenantsOf | None
    """None if no tenant holds anything: then holders of rails are not computed."""
    tenant_names: list[str]
    _sums: dict[tuple[str, int], _LayoutSums] = field(default_factory=dict)

    def add(self, fresh: FreshRows) -> None:
        """Add rows of a block."""
        layout, nodes = fresh.block.layout, fresh.block.nodes
        self._layout_sums(EVERYONE, layout).add(_sum_everyone(fresh))
        if self.tenants_of:
            rails = layout.rails
            holders = np.array([self.tenants_of(nodes[r] or "", rails) for r in fresh.rows])
            for tenant, amounts in _sum_by_tenant(fresh, holders):
                self._layout_sums(self.tenant_names[tenant], layout).add(amounts)

    def _layout_sums(self, scope_name: str, layout: shapes.SchemaLayout) -> _LayoutSums:
        # The sums hold the layout: its id stays its own.
        key = (scope_name, id(layout))
        if key not in self._sums:
            self._sums[key] = _LayoutSums(layout)
        return self._sums[key]

    def cells(self, scope: str) -> Iterator[view_cells.ViewCell | None]:
        """Yield the table of one scope, cell by cell; None while no cell is complete."""
        totals: dict[tuple[str, shapes.CellKey], RollupTotal] = {}
        for (scope_name, _), sums in self._sums.items():
            if (scope_name == EVERYONE) == (scope != "tenant"):
                for rail, key, amounts in _rail_amounts(sums, scope, scope_name):
                    totals.setdefault((rail, key), RollupTotal()).add(*amounts)
                    yield None
        for (rail, (metric, part)), total in totals.items():
            labels = (rail, *part) if rail else part
            for rollup in metric.rollups:
                yield view_cells.ViewCell(
                    derived_metric(metric, scope, rollup), labels, total.scaled(metric, rollup)
                )


Amounts: TypeAlias = tuple[float, float, float, float]


def _rail_amounts(
    sums: _LayoutSums, scope: str, scope_name: str
) -> Iterator[tuple[str, shapes.CellKey, Amounts]]:
    """Yield the amounts of each cell of a layout for a scope: rail or tenant, key, and amounts."""
    layout = sums.layout
    ends = [*layout.key_starts[1:].tolist(), len(layout.starts)]
    rails = layout.cell_rails.tolist()
    amounts = list(zip(*(column.tolist() for column in sums.columns), strict=True))
    for key, start, end in zip(layout.keys, layout.key_starts.tolist(), ends, strict=True):
        if scope not in scopes_of(key[0]):
            continue
        for cell in range(start, end):
            if not amounts[cell][1] or (scope == "rail" and rails[cell] == NO_RAIL):
                continue
            yield str(rails[cell]) if scope == "rail" else scope_name, key, amounts[cell]
