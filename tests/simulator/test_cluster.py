"""Clusters with faults: captures, counters that follow from the model, and the ground truth."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.cases import third_of

from railscope.capture import read_capture
from railscope.timestamps import SECOND_NS
from railscope_simulator.cluster.captures import write_cluster
from railscope_simulator.cluster.cluster_model import ClusterModel
from railscope_simulator.cluster.scenario import FAULT_KINDS, ScenarioError, read_scenario

CLUSTER = """
seconds = 60
step_seconds = 5
seed = 4

[cluster]
pods = 2
nodes_per_pod = 2

[[jobs]]
name = "llama"
nodes = [0, 1, 2]
checkpoint_period_seconds = 0

"""


def fault(name: str, **keys: Any) -> str:
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    return "\n".join(["[[faults]]", f'fault = "{name}"', *lines, ""])


def model_of(directory: Path, text: str) -> ClusterModel:
    """A cluster after its scenario."""
    path = directory / "scenario.toml"
    path.write_text(CLUSTER + text)
    model = ClusterModel(read_scenario(path))
    for second in range(5, 61, 5):
        model.advance(second * SECOND_NS)
    return model


def target(name: str) -> dict[str, Any]:
    """Devices for a fault of a kind."""
    entity = FAULT_KINDS[name].entity
    devices = {
        "leaf": {"pods": [0], "indices": [3]},
        "job": {"job": "llama"},
        "node": {"nodes": [1]},
        "storage": {"filers": [0]},
    }
    keys = devices.get(entity, {"nodes": [1], "indices": [3]})
    return {**keys, "senders": [0, 2]} if "incast" in FAULT_KINDS[name].effects else keys


@pytest.mark.parametrize("name", third_of(FAULT_KINDS))
def test_every_fault_can_be_simulated_and_has_a_ground_truth(tmp_path: Path, name: str) -> None:
    path = tmp_path / "scenario.toml"
    text = CLUSTER.replace("seconds = 60\nstep_seconds = 5", "seconds = 20\nstep_seconds = 10", 1)
    path.write_text(
        text + fault(name, begin_seconds=5, length_seconds=10, strength=1.0, **target(name))
    )
    write_cluster(read_scenario(path), tmp_path / "out")
    lines = (tmp_path / "out" / "truth.jsonl").read_text().splitlines()
    for truth in map(json.loads, lines):
        assert truth["class"] == FAULT_KINDS[name].incident_class
        assert truth["cause"]
        assert truth["onset"] < truth["ended"]
    assert len(lines) == bool(FAULT_KINDS[name].incident_class), "none for a harmless event"
    nodes = ["gpu-node-1", "gpu-node-2", "gpu-node-33", "gpu-node-34"]
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["arrivals.csv", *nodes, "truth.jsonl"]
    for node in nodes:
        assert read_capture(tmp_path / "out" / node).moments


@pytest.mark.thorough
def test_equal_scenarios_produce_equal_captures(tmp_path: Path):
    path = tmp_path / "scenario.toml"
    noisy = CLUSTER.replace("seed = 4", "seed = 4\njitter = 0.4\nlost = 0.2")
    path.write_text(noisy + fault("slow_receiver", begin_seconds=20, nodes=[1], indices=[3]))
    for name in ("first", "second"):
        write_cluster(read_scenario(path), tmp_path / name)
    written = sorted(
        file.relative_to(tmp_path / "first") for file in (tmp_path / "first").rglob("*.*")
    )
    for file in written:
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()
    moments = read_capture(tmp_path / "first" / "gpu-node-1").moments
    gaps = {after.offset_ns - before.offset_ns for before, after in pairwise(moments)}
    assert len(gaps) > 3, "samples have their own times"
    assert len(moments) < 13, "some are lost"


def test_a_slow_receiver_shows_at_its_port_and_at_its_job_only(tmp_path: Path):
    model = model_of(
        tmp_path,
        fault("pcie_bound_receiver", begin_seconds=0, strength=1.0, nodes=[1], indices=[3]),
    )
    ports = [[cable.counters for cable in node.cables[:8]] for node in model.nodes]
    pausing = [[port.pausing_ns for port in row] for row in ports]
    assert max((ns, at, rail) for at, row in enumerate(pausing) for rail, ns in enumerate(row))[
        1:
    ] == (1, 3)
    assert ports[1][3].write_stalled_ns > 30 * SECOND_NS
    healthy = model_of(tmp_path, "")
    handled = [
        ports[0][rail].notifications_handled
        - healthy.nodes[0].cables[rail].counters.notifications_handled
        for rail in (2, 3)
    ]
    assert handled[1] > 10 * abs(handled[0]), "its sender is notified"
    (progress,) = model.progress
    assert progress.iterations < 5 / 4 * 0.8
    idle = model.nodes[3]
    assert not any(gpu.demand.resident for gpu in idle.gpus)


def test_arrivals_end_with_a_node_or_its_network(tmp_path: Path):
    path = tmp_path / "scenario.toml"
    faults = fault("node_down", begin_seconds=30, nodes=[1])
    faults += fault("node_partition", begin_seconds=30, nodes=[3])
    faults += fault("clock_skew", begin_seconds=10, nodes=[0], strength=1.0)
    path.write_text(CLUSTER + faults)
    write_cluster(read_scenario(path), tmp_path / "out")
    lines = (tmp_path / "out" / "arrivals.csv").read_text().splitlines()
    assert lines[0] == "node,sent,received"
    rows = [(node, int(sent), int(received)) for node, sent, received in map(_cells, lines[1:])]
    start_ns = min(received for _, _, received in rows)
    last = {node: (received - start_ns) / SECOND_NS for node, _, received in rows}
    assert [last[f"gpu-node-{number}"] > 40 for number in (1, 2, 33, 34)] == [1, 0, 1, 0]
    deviation = {node: (sent - received) / SECOND_NS for node, sent, received in rows}
    assert abs(deviation["gpu-node-1"]) > 4
    ends = {
        number: read_capture(tmp_path / "out" / f"gpu-node-{number}").moments[-1].offset_ns
        for number in (2, 34)
    }
    assert ends == {2: 30 * SECOND_NS, 34: 60 * SECOND_NS}, "the capture of a node ends with it"


def _cells(line: str) -> list[str]:
    return line.split(",")


def test_a_directory_with_content_is_left_as_it_is(tmp_path: Path):
    path, directory = tmp_path / "scenario.toml", tmp_path / "out"
    path.write_text(CLUSTER)
    (directory / "earlier").mkdir(parents=True)
    with pytest.raises(FileExistsError, match="expected a new or empty directory"):
        write_cluster(read_scenario(path), directory)
    assert [entry.name for entry in directory.iterdir()] == ["earlier"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "[[faults]]\nfault = 'gremlin'\nbegin_seconds = 1",
            "fault 'gremlin': unknown fault: expected one of ",
        ),
        (fault("slow_receiver", begin_seconds=1), "no nodes: expected at least one"),
        (fault("slow_receiver", begin_seconds=1, nodes=[9]), "nodes: 9: expected at most 3"),
        (
            fault("ecn_off", begin_seconds=1, pods=[0], indices=[8]),
            "indices: 8: expected at most 7",
        ),
        (fault("slow_input", begin_seconds=1, job="gpt"), "unknown job 'gpt'"),
        (
            fault("gpu_lost", begin_seconds=1, nodes=[1, 2], indices=[1]),
            "nodes and indices: expected one node, and at least one index",
        ),
        (fault("incast", begin_seconds=1, nodes=[1], senders=[1]), "expected one receiver"),
        (fault("incast", begin_seconds=1, nodes=[1, 2], senders=[0]), "expected one receiver"),
        (fault("ecn_off", begin_seconds=1, pods=[0], senders=[1]), "senders: expected none"),
        (fault("ecn_off", begin_seconds=60, pods=[0]), "begin_seconds: 60: expected less than"),
        ("[[jobs]]\nname = 'llama'\nnodes = [3]", "job 'llama': duplicate name"),
        ("[[jobs]]\nname = 'b'\nnode = [3]", "unknown key `node`"),
        ("[[jobs]]\nname = 'b'\nnodes = [2]", "node 2: expected a node without a job, has 'llama'"),
        ("[[jobs]]\nname = 'b'\nnodes = []", "job 'b': no nodes"),
        ("[[jobs]]\nname = 'b'\nnodes = [4]", "node 4: expected at most 3"),
        (fault("ecn_off", begin_seconds=1, pods=[0], strength=2), "$.faults[0].strength"),
        *(
            (f"[[jobs]]\nname = 'b'\nnodes = [3]\n{key} = {value}", f"$.jobs[1].{key}")
            for key in ("iteration_seconds", "rate", "checkpoint_seconds", "watchdog_seconds")
            for value in ("nan", "-1.0")
        ),
        ("[[jobs]]\nname = 'b'\nnodes = [3]\niteration_seconds = 1e-12", "`float` >= 0.01"),
        *(
            (f"[[jobs]]\nname = 'b'\nnodes = [3]\nbreaks = [[{times}]]", "$.jobs[1].breaks[0]")
            for times in ("-5.0, 1.0", "5.0, nan")
        ),
        ("[[faults]]\nfault = 'ecn_off'\npods = [0]\nbegin_seconds = nan", "$.faults[0]."),
        ("[[jobs]", "scenario.toml"),
    ],
)
def test_an_invalid_scenario_is_rejected_with_its_key(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(CLUSTER + text)
    with pytest.raises(ScenarioError, match=r"^invalid scenario: .*scenario\.toml: ") as error:
        read_scenario(path)
    assert problem in str(error.value)
