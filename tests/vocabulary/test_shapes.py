"""Shapes: nodes of one build have the same ones, whatever the names of their devices are."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, strategies as st
from support.frames import schemas

from railscope.catalog import KINDS, METRICS, MetricKind
from railscope.catalog.declare import EntityKind, Metric
from railscope.frame import Entity, Schema
from railscope.shapes import schema_parts

_METRIC_OF: dict[str, Metric] = {
    metric.about.name: metric
    for metric in METRICS.values()
    if metric.kind is not MetricKind.HISTOGRAM
}
VARYING = [kind for kind in KINDS.values() if kind.varies and kind.name in _METRIC_OF]


def renamed(entity: Entity) -> Entity:
    """The entity of another node: other names and facts, except for the rail."""
    named = entity.kind.named
    key = tuple(f"other-{word}" for word in entity.key[:named])
    facts = {
        name: text if name == "rail" else f"other-{text}" for name, text in entity.facts.items()
    }
    return replace(entity, key=key + entity.key[named:], facts=facts)


@given(schemas())
def test_nodes_with_different_names_everywhere_have_equal_shapes(schema: Schema) -> None:
    columns = tuple((metric, renamed(entity)) for metric, entity in schema.columns)
    others = tuple(map(renamed, schema.columnless_entities))
    other = schema_parts(Schema(schema.stream, columns, others))
    assert other.shape_hash == schema_parts(schema).shape_hash


def entities_of(kind: EntityKind, node: int, count: int) -> list[Entity]:
    return [
        Entity(
            kind,
            tuple(f"{node}-{number}" for _ in kind.labels[: kind.named])
            + tuple(kind.labels[kind.named :]),
        )
        for number in range(count)
    ]


@given(st.sampled_from(VARYING), st.lists(st.integers(0, 64), min_size=200, max_size=200))
def test_entities_that_come_and_go_have_at_most_8_shapes(
    kind: EntityKind, counts: list[int]
) -> None:
    metric = _METRIC_OF[kind.name]
    hashes = set()
    for node, count in enumerate(counts):
        entities = entities_of(kind, node, count)
        columns = tuple((metric, entity) for entity in entities)
        hashes.add(schema_parts(Schema("s", columns)).shape_hash)
    assert len(hashes) <= 8
