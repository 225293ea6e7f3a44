"""Checkpoints on disk: replaced as a whole or not at all, and less often if they are expensive."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.checkpoints import facts_of
from support.story import NodeReporter, accept, core_in, gpus_of

from railscope_collector.framelog.segment_files import FrameLogStats
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.state.state_checkpointer import StateCheckpointer


@pytest.fixture
def core(tmp_path: Path) -> CollectorState:
    """A collector with the state of a GPU."""
    made = core_in(tmp_path / "schemas")
    accept(made, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, 101, 10)))
    return made


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} - {"schemas"}


async def test_on_a_full_disk_the_last_checkpoint_stays_and_nothing_is_left(core, tmp_path):
    restart = StateCheckpointer(tmp_path, core)
    assert await restart.write(2, 0)
    (tmp_path / "checkpoint.partial").symlink_to("/dev/full")
    assert not await restart.write(3, 0)
    assert (restart.first_segment, names_in(tmp_path)) == (2, {"checkpoint"})
    assert await restart.write(4, 0)
    again = StateCheckpointer(tmp_path, core_in(tmp_path / "schemas"))
    again.restore(FrameLogStats())
    assert again.first_segment == 4
    assert facts_of(again.core) == facts_of(core)
