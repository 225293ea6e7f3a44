"""Every roll-up that the catalog declares is computed where its source metrics exist."""

from __future__ import annotations

import pytest
from support.batches import batch_of
from support.schemas import known_schema

from railscope.catalog import METRICS, rollups
from railscope.catalog.declare import EntityKind
from railscope.catalog.rollup import ON_A_RAIL
from railscope.frame import Entity, Schema
from railscope_collector.fleet.fleet import Fleet, NodeUpdate
from railscope_collector.views.fresh_rows import find_fresh_rows
from railscope_collector.views.rollups import Rollups

SECOND = 1_000_000_000
RAILS = 2


def entities(kind: EntityKind) -> list[Entity]:
    """One of a kind on each rail."""
    return (
        [
            Entity(kind, (f"{rail}",) * len(kind.outermost.labels) + ("x",) * _parts(kind))
            for rail in range(RAILS)
        ]
        if kind.labels
        else [Entity(kind)]
    )


def _parts(kind: EntityKind) -> int:
    return len(kind.labels) - len(kind.outermost.labels)


def schema() -> Schema:
    """Every metric that rolls up."""
    metrics = [metric for metric in METRICS.values() if metric.rollups]
    on_rails = tuple(
        Entity(kind, (f"{rail}",) * len(kind.labels), {"rail": f"{rail}"})
        for kind in ON_A_RAIL
        for rail in range(RAILS)
    )
    columns = [(metric, entity) for metric in metrics for entity in entities(metric.about)]
    return Schema("all", tuple(columns[i] for i in Schema.ordered(columns)), on_rails)


@pytest.mark.parametrize("scope", ["cluster", "rail", "tenant"])
def test_every_declared_rollup_is_made(scope: str) -> None:
    everything = schema()
    width = len(everything.columns)
    fleet = Fleet()
    batch = batch_of([[0] * width, [1] * width], boot_ns=[SECOND, 3 * SECOND])
    fleet.apply(NodeUpdate("n1", "r", "b", known_schema(everything), batch, 100 * SECOND))
    made = Rollups(lambda _node, rails: [0] * (rails + 1), ["t1"])
    for block in fleet.blocks():
        reduced = find_fresh_rows(block, fleet.fresh_rows(block, 50 * SECOND, 100 * SECOND))
        assert reduced
        made.add(reduced)
    cells = [cell for cell in made.cells(scope) if cell]
    wanted = {name for name, derived in rollups().items() if derived.scope == scope}
    assert {cell.metric.name for cell in cells} == wanted
    if scope == "rail":
        assert {cell.labels[0] for cell in cells} == {str(rail) for rail in range(RAILS)}
