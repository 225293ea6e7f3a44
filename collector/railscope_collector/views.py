"""Roll-ups over the cluster, the rails and the tenants, as declared in the catalog; readings of each GPU and its NIC.

Each block of the fleet is reduced to cells (metric, part, rail) in one pass. The cells of all
blocks of a layout are added up as arrays; only the result, a few numbers per metric and rail, is
processed individually. Rows that are not fresh do not count, and neither do readings without a
value: a mean is the mean of existing readings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from railscope.catalog import METRICS, derived_metric
from railscope.catalog.declare import Metric, Rollup
from railscope.catalog.rollup import scopes_of
from railscope.frame import NO_RAIL
from railscope.reading import PRESENT
from railscope_collector.fleet import schemas, sheets, view_cells

Floats: TypeAlias = npt.NDArray[np.float64]
Holders: TypeAlias = npt.NDArray[np.int64]
Columns: TypeAlias = tuple[Floats, ...]
"""Sums, counts, highest and lowest of each cell."""
_REDUCERS = ((np.add, 0.0), (np.add, 0.0), (np.maximum, -np.inf), (np.minimum, np.inf))
"""Function and empty value of each column."""
_COUNTS = 1
"""Position of the counts among the columns."""
NO_TENANT = -1
EVERYONE = ""

TenantsOf = Callable[[str, int], list[int]]
"""Function of a node and its number of rails: the tenant of each rail, and last that of the whole node."""


@dataclass(frozen=True, slots=True)
class FreshRows:
    """The columns that roll up of fresh rows of a block, cell by cell, shape (rows, columns)."""

    block: sheets.SheetBlock
    rows: npt.NDArray[np.intp]
    values: Floats
    present: npt.NDArray[np.bool_] | None
    """None if no value is absent."""

    def amounts(self) -> Iterator[tuple[np.ufunc, Floats]]:
        """Yield the amounts of each column, with its function."""
        for number, (reducer, empty) in enumerate(_REDUCERS):
            amount = self.values if number != _COUNTS else np.ones(self.values.shape)
            yield reducer, amount if self.present is None else np.where(self.present, amount, empty)


def find_fresh_rows(block: sheets.SheetBlock, rows: npt.NDArray[np.intp]) -> FreshRows | None:
    """Return the columns of rows of a block that roll up; None without rows or columns."""
    layout = block.layout
    if not len(rows) or not len(layout.order):
        return None
    # A slice is not copied.
    chosen: npt.NDArray[np.intp] | slice
    chosen = slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] + 1 == len(rows) else rows
    values = block.values_at(chosen, layout.order).astype(np.float64)
    reasons = block.reasons
    present = None
    if reasons is not None:
        present = reasons[chosen].take(layout.order, axis=1) == PRESENT
    if len(layout.rated):
        rates = block.rates[chosen].take(layout.rates, axis=1)
        values[:, layout.rated] = rates
        is_known = ~np.isnan(rates)
        if not is_known.all():
            present = np.ones(values.shape, np.bool_) if present is None else present
            present[:, layout.rated] &= is_known
    if present is not None and present.all():
        present = None
    return FreshRows(block, rows, values, present)


class _LayoutSums:
    """Sums of the cells of one layout."""

    def __init__(self, layout: schemas.SchemaLayout) -> None:
        self.layout = layout
        self.columns = tuple(np.full(len(layout.starts), empty) for _, empty in _REDUCERS)

    def add(self, amounts: Columns) -> None:
        """Add the amounts of each cell."""
        for (reducer, _), total, amount in zip(_REDUCERS, self.columns, amounts, strict=True):
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
        for (reducer, empty), column in zip(_REDUCERS, cells, strict=True)
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

    def _layout_sums(self, scope_name: str, layout: schemas.SchemaLayout) -> _LayoutSums:
        key = (scope_name, id(layout))
        if key not in self._sums:
            self._sums[key] = _LayoutSums(layout)
        return self._sums[key]

    def cells(self, scope: str) -> Iterator[view_cells.ViewCell | None]:
        """Yield the table of one scope, cell by cell; None while no cell is complete."""
        totals: dict[tuple[str, schemas.CellKey], RollupTotal] = {}
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


def node_rollups(
    fresh: Iterable[FreshRows],
) -> Iterator[tuple[Metric, schemas.KeyPart, Rollup, float]]:
    """Yield the roll-ups of one node from its row of each stream."""
    totals: dict[schemas.CellKey, RollupTotal] = {}
    for rows in fresh:
        sums = _LayoutSums(rows.block.layout)
        sums.add(_sum_everyone(rows))
        for _, key, amounts in _rail_amounts(sums, "cluster", EVERYONE):
            totals.setdefault(key, RollupTotal()).add(*amounts)
    for (metric, part), total in totals.items():
        for rollup in metric.rollups:
            yield metric, part, rollup, total.scaled(metric, rollup)


Amounts: TypeAlias = tuple[float, float, float, float]


def _rail_amounts(
    sums: _LayoutSums, scope: str, scope_name: str
) -> Iterator[tuple[str, schemas.CellKey, Amounts]]:
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


LISTED_METRICS = (
    "railscope_gpu_health",
    "railscope_gpu_utilization_ratio",
    "railscope_gpu_power_watts",
    "railscope_gpu_temperature_celsius",
    "railscope_gpu_memory_used_bytes",
    "railscope_gpu_memory_size_bytes",
    "railscope_network_link_up",
    "railscope_rdma_port_up",
    "railscope_nic_receive_bytes_total",
    "railscope_nic_transmit_bytes_total",
    "railscope_rdma_receive_bytes_total",
    "railscope_rdma_transmit_bytes_total",
)
"""Metrics of the list of GPUs; counters are read as rates."""
_HEALTH_REASON = "railscope_gpu_health_reason_active"
_LOWEST = frozenset({"railscope_network_link_up", "railscope_rdma_port_up"})
"""Several ports of a rail: the lowest value counts, not the sum."""


class ListedColumns(NamedTuple):
    """Columns of a layout for the list of GPUs: positions among those that roll up, metrics and rails."""

    positions: npt.NDArray[np.intp]
    metrics: npt.NDArray[np.intp]
    rails: npt.NDArray[np.intp]
    reason_positions: npt.NDArray[np.intp]
    reasons: tuple[tuple[int, str], ...]
    """Rail and name of the reason of each of `reason_positions`."""


_LISTED: WeakKeyDictionary[schemas.SchemaLayout, ListedColumns] = WeakKeyDictionary()


def _listed_columns(layout: schemas.SchemaLayout) -> ListedColumns:
    """Return the columns of a layout for the list of GPUs, determined once."""
    if (columns := _LISTED.get(layout)) is not None:
        return columns
    listed: list[tuple[int, int, int]] = []
    reasons: list[tuple[int, tuple[int, str]]] = []
    cell_of = np.searchsorted(layout.starts, np.arange(len(layout.order)), "right") - 1
    key_of = np.searchsorted(layout.key_starts, cell_of, "right") - 1
    rails = layout.cell_rails[cell_of].tolist()
    for position, (number, rail) in enumerate(zip(key_of.tolist(), rails, strict=True)):
        metric, part = layout.keys[number]
        if rail != NO_RAIL and metric.name in LISTED_METRICS:
            listed.append((position, LISTED_METRICS.index(metric.name), rail))
        elif rail != NO_RAIL and metric.name == _HEALTH_REASON:
            reasons.append((position, (rail, part[0])))
    positions, metrics, on_rails = np.array(listed, np.intp).reshape(-1, 3).T
    places = np.array([position for position, _ in reasons], np.intp)
    found = ListedColumns(positions, metrics, on_rails, places, tuple(each for _, each in reasons))
    _LISTED[layout] = found
    return found


@dataclass
class ListedReadings:
    """Readings of the GPUs and of the NICs on their rails, as of one refresh."""

    gpus: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """UUID of the GPU on each rail, by node; GPUs without a rail have a negative key."""
    reasons: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    """Active reasons of the health, by node and rail."""
    _parts: list[tuple[list[str], ListedColumns, Floats]] = field(default_factory=list)

    def add(self, fresh: FreshRows) -> None:
        """Add rows of a block."""
        columns = _listed_columns(fresh.block.layout)
        if not len(columns.positions):
            return
        nodes = [fresh.block.nodes[row] or "" for row in fresh.rows.tolist()]
        values = fresh.values[:, columns.positions]
        if fresh.present is not None:
            values[~fresh.present[:, columns.positions]] = np.nan
        self._parts.append((nodes, columns, values))
        is_active = fresh.values[:, columns.reason_positions] > 0
        if fresh.present is not None:
            is_active &= fresh.present[:, columns.reason_positions]
        for row, column in np.argwhere(is_active).tolist():
            rail, reason = columns.reasons[column]
            self.reasons.setdefault((nodes[row], rail), []).append(reason)

    def by_gpu(self, places: Sequence[tuple[str, int]]) -> Floats:
        """Return values in base units by metric and GPU, NaN for none; `places` are sorted nodes and rails."""
        nodes = {name: number for number, name in enumerate(dict.fromkeys(n for n, _ in places))}
        rails = np.array([rail for _, rail in places], np.intp)
        keys = _place_keys(np.array([nodes[node] for node, _ in places], np.int64), rails)
        shape = len(LISTED_METRICS), len(places)
        sums, counts, lowest = np.zeros(shape), np.zeros(shape, np.int32), np.full(shape, np.inf)
        for names, columns, values in self._parts if places else ():
            numbers = np.array([nodes.get(name, -1) for name in names], np.int64)
            found_keys = _place_keys(numbers[:, np.newaxis], columns.rails)
            gpus = np.minimum(np.searchsorted(keys, found_keys), len(keys) - 1)
            row, column = np.nonzero(~np.isnan(values) & (keys[gpus] == found_keys))
            place = columns.metrics[column], gpus[row, column]
            np.add.at(sums, place, values[row, column])
            np.add.at(counts, place, 1)
            np.minimum.at(lowest, place, values[row, column])
        for number, name in enumerate(LISTED_METRICS):
            scale = METRICS[name].scale
            found = lowest[number] if name in _LOWEST else sums[number]
            sums[number] = found * scale.numerator / scale.denominator
        sums[counts == 0] = np.nan
        return sums


def _place_keys(nodes: Holders, rails: npt.NDArray[np.intp]) -> Holders:
    """Return numbers that sort as node and rail; a rail may be negative, and has few digits."""
    return nodes * (1 << 20) + rails + (1 << 16)
