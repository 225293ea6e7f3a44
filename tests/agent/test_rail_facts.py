"""Rail facts of GPUs, NICs and ports in every source: the collector rolls up by them only."""

from __future__ import annotations

import asyncio

import pytest
from support.machine import FakeHost

from railscope.catalog.rollup import scopes_of
from railscope.frame import NO_RAIL, Entity, Schema
from railscope.wire import rails_of_entities, to_wire_schema
from railscope_agent.commands.capture_walk import CaptureWalk
from railscope_agent.config import AgentSettings
from railscope_agent.service import Agent
from railscope_agent.topology.network import NetworkScanner
from railscope_simulator import NodeSpec, simulate

NODES = [
    NodeSpec("mlx5", gpus=2, scheduler="slurm"),
    NodeSpec("bnxt", gpus=2, nic="bnxt", model="a100"),
    NodeSpec("ice", gpus=2, nic="irdma", mode="mig"),
    NodeSpec("b200", gpus=2, model="b200"),
    NodeSpec("mps", gpus=2, mode="mps"),
]
FROM_OF_NETWORK = {"link", "link_errors", "nic", "rdma"}


def schemas(spec: NodeSpec) -> list[Schema]:
    """Return the schemas of all sources of an agent on a simulated node."""
    walk = CaptureWalk(simulate(spec, 4, 2))
    agent = Agent(AgentSettings(), walk.host, spec.node)
    asyncio.run(walk.read(agent))
    frames = [status.frame for status in agent.sampler.statuses.values()]
    return [frame.schema for frame in frames if frame]


@pytest.mark.parametrize("spec", NODES, ids=lambda spec: spec.node)
def test_metrics_with_rail_rollups_have_rails(spec: NodeSpec) -> None:
    with_rails, without_rails = set(), set()
    for schema in schemas(spec):
        wire = to_wire_schema(schema)
        rails = rails_of_entities(wire)
        for group in wire.groups:
            metric = next(metric for metric, _ in schema.columns if metric.name == group.metric)
            if not metric.rollups or "rail" not in scopes_of(metric):
                continue
            found = {rails[member] for member in group.entities} - {NO_RAIL}
            (with_rails if found == {0, 1} else without_rails).add((schema.stream, metric.name))
    assert without_rails == set()
    streams = {stream for stream, _ in with_rails}
    assert len(streams) >= len(FROM_OF_NETWORK) // 2
    assert spec.nic != "cx7" or streams >= FROM_OF_NETWORK


def test_every_source_reports_a_nic_alike() -> None:
    facts: dict[tuple[str, tuple[str, ...]], set[tuple[tuple[str, str], ...]]] = {}
    for schema in schemas(NODES[0]):
        for entity in schema.entities:
            if entity.facts:
                known = tuple(sorted(entity.facts.items()))
                facts.setdefault((entity.kind.name, entity.key), set()).add(known)
    assert {key: values for key, values in facts.items() if len(values) > 1} == {}


def test_interfaces_without_a_device_are_not_nics() -> None:
    host = FakeHost()
    host.files["/sys/class/net/lo/speed"] = ""
    host.links["/sys/class/net/ens1/device"] = "/sys/devices/pci0000:1a/0000:1a:00.0"
    host.files["/sys/devices/pci0000:1a/0000:1a:00.0/vendor"] = "0x15b3"
    driver_info = {"driver": "mlx5_core", "version": "", "firmware": "28.1", "bus": "0000:1a:00.0"}
    host.calls |= {f"ethtool.driver({name})": driver_info for name in ("lo", "ens1")}
    (found,) = NetworkScanner().find_nics(host)
    wanted = {"driver": "mlx5_core", "firmware": "28.1", "pci_address": "0000:1a:00.0"}
    assert (found, found.facts) == (Entity(found.kind, ("ens1",), wanted), wanted)
