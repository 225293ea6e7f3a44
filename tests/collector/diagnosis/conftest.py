"""A simulated cluster with a slow receiver: its captures, and the frame log of its collector."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.once_per_run import once_per_run
from support.scenarios import SLOW_RECEIVER

from railscope.wire import SentAt, pack
from railscope_agent.commands.replay import CaptureReplay
from railscope_agent.config import AgentSettings
from railscope_collector.framelog.segment_files import (
    FrameRecord,
    encode_record,
    frame_payload,
    start_segment,
)
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
        (directory / "frames").mkdir(parents=True)
        descriptor, marker = start_segment(directory / "frames", 1)
        for node in sorted(path for path in captures.iterdir() if path.is_dir()):
            for envelope in CaptureReplay(node, AgentSettings()).envelopes(1):
                batch = envelope.batches[0]
                sent = SentAt(batch.wall_ns[-1], batch.boot_ns[-1], envelope.boot_id)
                record = FrameRecord(envelope.node, sent.wall_ns, sent, pack(envelope))
                os.write(descriptor, frame_payload(marker, encode_record(record)))
        os.close(descriptor)

    return once_per_run(tmp_path_factory, "frame-log", write)
