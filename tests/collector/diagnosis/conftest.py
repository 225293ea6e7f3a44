"""A simulated cluster with a slow receiver: its captures, and the frame log of its collector."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.arriving_frames import write_frame_log
from support.once_per_run import once_per_run
from support.scenarios import SLOW_RECEIVER

from railscope_simulator.cluster.captures import write_cluster
from railscope_simulator.cluster.scenario import read_scenario


@pytest.fixture(scope="session")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Captures of a cluster with a slow receiver."""

    def write(directory: Path) -> None:
        directory.mkdir()
        (directory / "scenario.toml").write_text(SLOW_RECEIVER)
        write_cluster(read_scenario(directory / "scenario.toml"), directory / "captures")

    return once_per_run(tmp_path_factory, "cluster", write) / "captures"


@pytest.fixture(scope="session")
def frame_log(captures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """State directory of a collector that received these captures: one sample in each envelope."""

    def write(directory: Path) -> None:
        write_frame_log(captures, directory)

    return once_per_run(tmp_path_factory, "frame-log", write)
