"""The fleet state and its roll-ups, against straightforward models of a few lines."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest
from fleet_updates import (
    GPUS,
    KNOWN,
    NICS,
    SCHEMA,
    SECOND,
    WIDTH,
    codes,
    make_row,
    row,
    update,
)
from hypothesis import given, settings, strategies as st

from railscope.catalog import gpu
from railscope.catalog.declare import Metric, MetricKind, Rollup
from railscope.catalog.rollup import derived_name, scopes_of
from railscope.reading import Absent
from railscope_collector.fleet.fleet import Fleet
from railscope_collector.views.fresh_rows import find_fresh_rows
from railscope_collector.views.rollups import NO_TENANT, Rollups

tenant = st.sampled_from(["", "t1", "t2", "t3"])
tenants_of_rails = st.tuples(tenant, tenant, tenant) | tenant.map(lambda one: (one,) * 3)
"""Of the rails 0 and 1, and of the node as such."""
node = st.tuples(row, row, codes, tenants_of_rails, st.booleans())


def expected_cells(
    nodes: list[tuple[list[int], list[int], list[int], tuple[str, str, str], bool]],
) -> dict[tuple[str, tuple[str, ...]], float]:
    gathered: dict[tuple[str, str, Metric, tuple[str, ...]], list[float]] = defaultdict(list)
    for first, last, reasons, holders, fresh in nodes:
        for (metric, entity), before, after, code in zip(
            SCHEMA.columns, first, last, reasons, strict=True
        ):
            if not fresh or code:
                continue
            number = float(after)
            if metric.kind is MetricKind.COUNTER:
                step = after - before if after >= before else after
                number = float(np.float32(step * (1 / 2)))
            whole = entity.whole_key
            rail = next((e.facts.get("rail", "") for e in (*GPUS, *NICS) if e.key == whole), "")
            part = entity.key[len(whole) :]
            tenant = holders[int(rail) if rail else -1]
            gathered["cluster", "", metric, part].append(number)
            if rail and "rail" in scopes_of(metric):
                gathered["rail", rail, metric, part].append(number)
            if tenant and "tenant" in scopes_of(metric):
                gathered["tenant", tenant, metric, part].append(number)
    how = {
        Rollup.SUM: sum,
        Rollup.MAX: max,
        Rollup.MIN: min,
        Rollup.MEAN: lambda v: sum(v) / len(v),
        Rollup.COUNT: len,
    }
    return {
        (derived_name(metric, scope, rollup), (scope_name, *part) if scope_name else part): how[
            rollup
        ](numbers)
        * (1.0 if rollup is Rollup.COUNT else float(metric.scale))
        for (scope, scope_name, metric, part), numbers in gathered.items()
        for rollup in metric.rollups
    }


@settings(deadline=None)
@given(st.lists(node, min_size=1, max_size=6))
def test_rollups_are_what_a_straight_calculation_gives(nodes):
    fleet = Fleet()
    tenants = ["t1", "t2", "t3"]
    by_name = {}
    for number, (first, last, reasons, holders, fresh) in enumerate(nodes):
        name = f"n{number}"
        by_name[name] = [tenants.index(holder) if holder else NO_TENANT for holder in holders]
        fleet.apply(
            update(
                name,
                KNOWN,
                first,
                last,
                reasons=reasons,
                timestamp_ns=(100 if fresh else 1) * SECOND,
            )
        )
    total = Rollups(lambda name, _: by_name[name], tenants)
    for block in fleet.blocks():
        reduced = find_fresh_rows(block, fleet.fresh_rows(block, 50 * SECOND, 100 * SECOND))
        if reduced:
            total.add(reduced)
    cells = {
        (cell.metric.name, cell.labels): cell.value
        for scope in ("cluster", "rail", "tenant")
        for cell in total.cells(scope)
        if cell is not None
    }
    expected = expected_cells(nodes)
    assert cells.keys() == expected.keys()
    for key, number in expected.items():
        assert math.isclose(cells[key], number, rel_tol=1e-6, abs_tol=1e-9), key


IMPOSSIBLE = 100_000_001
"""Milliwatts above the limit of a power."""


@pytest.mark.parametrize("power", [IMPOSSIBLE, -1, 2**32 - 1, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("reason", [0, Absent.DENIED.value])
def test_a_gauge_of_an_impossible_value_is_absent_with_an_error(power: int, reason: int):
    """Agents before 0.4 sent them."""
    fleet, metrics = Fleet(), [metric for metric, _ in SCHEMA.columns]
    column = metrics.index(gpu.GPU_POWER)
    codes = [0] * WIDTH
    codes[column] = reason
    wrong = make_row(7, 2**62)
    wrong[column] = power
    other = make_row(9, 2**32 - 1)
    fleet.apply(update("n1", KNOWN, wrong, wrong, reasons=codes))
    fleet.apply(update("n2", KNOWN, other, other))
    place, right = (fleet.nodes[name].rows["test"] for name in ("n1", "n2"))
    wrong[column] = 0
    assert place.block.values_of(place.index).tolist() == wrong
    codes[column] = reason or Absent.ERROR.value
    assert place.block.reasons_of(place.index).tolist() == codes
    assert right.block.values_of(right.index).tolist() == other
    assert not right.block.reasons_of(right.index).any()
