"""A simulated cluster with a slow receiver."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.cluster.captures import write_cluster
from simulator.cluster.scenario import read_scenario

SCENARIO = """
seconds = 400
step_seconds = 10
seed = 3

[cluster]
nodes_per_pod = 4

[[jobs]]
name = "train"
nodes = [0, 1, 2]
checkpoint_period_seconds = 0

[[faults]]
fault = "slow_receiver"
begin_seconds = 300
strength = 0.6
nodes = [1]
indices = [3]
"""


@pytest.fixture(scope="session")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Captures of a cluster with a slow receiver."""
    directory = tmp_path_factory.mktemp("cluster")
    (directory / "scenario.toml").write_text(SCENARIO)
    write_cluster(read_scenario(directory / "scenario.toml"), directory / "captures")
    return directory / "captures"
