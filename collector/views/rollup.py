"""Roll-ups over the cluster, the rails and the tenants, as the catalog declares them.

Each block of the fleet is reduced to cells (metric, part, lane) in one pass; cells are then added
up by scope. Rows that are not fresh do not count, and neither do readings without a value: a mean
is the mean of what was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from collector.fleet import Block
from collector.layout import Key
from collector.views.table import Cell, View
from railscope.catalog import rollups
from railscope.catalog.declare import Rollup
from railscope.catalog.rollup import derived_name, scopes_of
from railscope.frame import NO_LANE
from railscope.reading import PRESENT

Floats: TypeAlias = npt.NDArray[np.float64]
NO_TENANT = -1

TenantsOf = Callable[[str, int], list[int]]
"""For a node and its number of lanes: the tenant of each lane, and last that of the whole node."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """Cells of the fresh rows of a block, shape (rows, cells) each."""

    block: Block
    rows: npt.NDArray[np.intp]
    sums: Floats
    counts: Floats
    highest: Floats
    lowest: Floats


def reduce_block(block: Block, fresh_from_ns: int) -> Reduced | None:
    """Reduce the fresh rows of a block to cells; None where there is nothing to reduce."""
    layout = block.layout
    rows = np.flatnonzero(block.instants_ns >= fresh_from_ns)
    if not len(rows) or not len(layout.order):
        return None
    values = block.values[rows].astype(np.float64)
    present = block.reasons[rows] == PRESENT
    if len(layout.counters):
        values[:, layout.counters] = block.rates[rows]
        present[:, layout.counters] &= ~np.isnan(block.rates[rows])
    values, present = values[:, layout.order], present[:, layout.order]
    starts = layout.starts
    return Reduced(
        block,
        rows,
        np.add.reduceat(np.where(present, values, 0.0), starts, axis=1),
        np.add.reduceat(present.astype(np.float64), starts, axis=1),
        np.maximum.reduceat(np.where(present, values, -np.inf), starts, axis=1),
        np.minimum.reduceat(np.where(present, values, np.inf), starts, axis=1),
    )


@dataclass(slots=True)
class Total:
    """What has been added up for one key of one scope."""

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

    def of(self, rollup: Rollup) -> float:
        """The value of a roll-up."""
        if rollup is Rollup.SUM:
            return self.sum
        if rollup is Rollup.MEAN:
            return self.sum / self.count
        return self.highest if rollup is Rollup.MAX else self.lowest


@dataclass(slots=True)
class Rollups:
    """Adds reduced blocks up by scope."""

    tenants_of: TenantsOf
    tenant_names: list[str]
    _totals: dict[tuple[str, str, Key], Total] = field(default_factory=dict)

    def add(self, reduced: Reduced) -> None:
        """Add a block to the cluster, its rails and its tenants."""
        everyone = np.ones((len(reduced.rows), 1), np.bool_)
        self._add_group(reduced, everyone, "rail")
        for tenant, held in self._tenants(reduced):
            self._add_group(reduced, held, "tenant", self.tenant_names[tenant])

    def _tenants(self, reduced: Reduced) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
        lanes = reduced.block.layout.lanes
        holders = np.array(
            [self.tenants_of(reduced.block.nodes[row] or "", lanes) for row in reduced.rows]
        )
        # The last entry stands for the whole node, and -1 is the lane of what has none.
        by_cell = holders[:, reduced.block.layout.cell_lanes]
        for tenant in np.unique(holders):
            if tenant != NO_TENANT:
                yield int(tenant), by_cell == tenant

    def _add_group(
        self, reduced: Reduced, held: npt.NDArray[np.bool_], scope: str, who: str = ""
    ) -> None:
        layout = reduced.block.layout
        held = np.broadcast_to(held, reduced.sums.shape)
        sums = np.where(held, reduced.sums, 0.0).sum(axis=0)
        counts = np.where(held, reduced.counts, 0.0).sum(axis=0)
        highest = np.where(held, reduced.highest, -np.inf).max(axis=0)
        lowest = np.where(held, reduced.lowest, np.inf).min(axis=0)
        ends = [*layout.key_starts[1:], len(layout.starts)]
        for key, start, end in zip(layout.keys, layout.key_starts, ends, strict=True):
            scopes = scopes_of(key[0].about)
            for cell in range(start, end):
                if not counts[cell]:
                    continue
                part = (
                    float(sums[cell]),
                    float(counts[cell]),
                    float(highest[cell]),
                    float(lowest[cell]),
                )
                lane = int(layout.cell_lanes[cell])
                if scope == "tenant":
                    if "tenant" in scopes:
                        self._total("tenant", who, key).add(*part)
                    continue
                self._total("cluster", "", key).add(*part)
                if lane != NO_LANE and "rail" in scopes:
                    self._total("rail", str(lane), key).add(*part)

    def _total(self, scope: str, who: str, key: Key) -> Total:
        return self._totals.setdefault((scope, who, key), Total())

    def view(self, scope: str, instant_ns: int) -> View:
        """The table of one scope."""
        cells = []
        for (where, who, (metric, part)), total in self._totals.items():
            if where != scope:
                continue
            for rollup in metric.rollups:
                derived = rollups()[derived_name(metric, scope, rollup)]
                labels = (who, *part) if who else part
                value = total.of(rollup) * metric.scale.numerator / metric.scale.denominator
                cells.append(Cell(derived.metric, labels, value))
        return View(scope, instant_ns, tuple(cells))
