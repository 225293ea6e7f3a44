"""Rail facts of GPUs, NICs and ports in every source: the collector rolls up by them only."""

from __future__ import annotations

import asyncio

import pytest

from railscope.catalog.rollup import scopes_of
from railscope.envelopes import decode_shape
from railscope.frame import NO_RAIL, Schema
from railscope.shapes import schema_parts
from railscope_agent.commands.read_once import CaptureWalk
from railscope_agent.config import AgentSettings
from railscope_agent.service import Agent
from railscope_simulator import NodeSpec, simulate


def schemas(spec: NodeSpec) -> list[Schema]:
    """Return the schemas of all sources of an agent on a simulated node."""
    walk = CaptureWalk(simulate(spec, 4, 2))
    agent = Agent(AgentSettings(), walk.host, spec.node)
    asyncio.run(walk.read(agent))
    frames = [status.frame for status in agent.sampler.statuses.values()]
    return [frame.schema for frame in frames if frame]


@pytest.fixture(scope="module")
def of_node() -> list[Schema]:
    return schemas(NodeSpec("mlx5", gpus=2, scheduler="slurm"))


def test_metrics_with_rail_rollups_have_rails(of_node: list[Schema]) -> None:
    with_rails, without_rails = set(), set()
    for schema in of_node:
        encoded = schema_parts(schema)
        shape = decode_shape(encoded.shape)
        rails = [NO_RAIL if slot.name < 0 else shape.rails[slot.name] for slot in shape.slots]
        for group in shape.groups:
            metric = next(metric for metric, _ in schema.columns if metric.name == group.metric)
            if not metric.rollups or "rail" not in scopes_of(metric):
                continue
            found = {rails[member] for member in group.entities} - {NO_RAIL}
            (with_rails if found == {0, 1} else without_rails).add((schema.stream, metric.name))
    assert without_rails == set()
    assert {stream for stream, _ in with_rails} >= {"link", "link_errors", "nic", "rdma"}


def test_every_source_reports_a_nic_alike(of_node: list[Schema]) -> None:
    facts: dict[tuple[str, tuple[str, ...]], set[tuple[tuple[str, str], ...]]] = {}
    for schema in of_node:
        for entity in schema.entities:
            if entity.facts:
                known = tuple(sorted(entity.facts.items()))
                facts.setdefault((entity.kind.name, entity.key), set()).add(known)
    assert {key: values for key, values in facts.items() if len(values) > 1} == {}
