"""Checkpoints on disk: replaced as a whole or not at all, and less often if they are expensive."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from pathlib import Path

import pytest
from support.checkpoints import facts_of
from support.story import NodeReporter, accept, core_in, gpus_of

from railscope.service import run_in_thread
from railscope_collector.framelog.framelog import FrameLog
from railscope_collector.framelog.segment_files import FrameLogStats, FrameRecord, segment_numbers
from railscope_collector.state.checkpoint_schedule import CheckpointSchedule
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.state.state_checkpointer import StateCheckpointer

SECOND = 1_000_000_000
PATIENCE_SECONDS = 60


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


async def test_no_checkpoint_while_what_is_beside_it_waits(core, tmp_path):
    beside: list[bytes | None] = [None, b"all that waits"]
    restart = StateCheckpointer(
        tmp_path, core, companion_files={tmp_path / "observed": lambda _: beside.pop(0)}
    )
    assert not await restart.write(2, 0)
    assert (restart.first_segment, names_in(tmp_path)) == (0, set())
    assert await restart.write(2, 0)
    assert names_in(tmp_path) == {"checkpoint", "observed"}


async def test_what_an_interrupted_checkpoint_left_goes_at_the_next_start(core, tmp_path):
    (tmp_path / "checkpoint.partial").write_bytes(b"railscope")
    StateCheckpointer(tmp_path, core).restore(FrameLogStats())
    assert names_in(tmp_path) == set()


async def test_after_a_checkpoint_there_is_none_for_as_long_as_it_cost(core, tmp_path):
    """The first takes a second; the segment that is full 19 s later waits, not the one after 26 s."""
    times = deque(second * SECOND for second in (0, 0, 1, 20, 27, 27, 28))
    restart, frames = (
        StateCheckpointer(tmp_path, core),
        FrameLog(tmp_path / "frames", 1 << 20, 1 << 30),
    )
    keeping = CheckpointSchedule(restart, frames, SECOND, times.popleft)
    task = asyncio.create_task(keeping.run())
    for number, kept, left in ((2, 2, 4), (3, 2, 3), (4, 4, 0)):
        keeping.note_rotation(number)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while restart.first_segment < kept or len(times) > left:  # noqa: ASYNC110 - no event for tests
                await asyncio.sleep(0.001)
        for _ in range(10):  # a checkpoint that must not start could start here
            await asyncio.sleep(0)
        assert (restart.first_segment, len(times)) == (kept, left)
    task.cancel()
    await asyncio.wait({task})


class DelayedFrameLog(FrameLog):
    """A collector with a disk delay that the test sets."""

    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def delete_before(self, number: int) -> None:
        self.begun.set()
        assert self.may_end.wait(PATIENCE_SECONDS)
        super().delete_before(number)
        self.ended.set()


async def test_a_stop_waits_for_the_deletion_of_segments(core, tmp_path):
    """Another collector may open the directory next."""
    frames = DelayedFrameLog(tmp_path / "frames", 1 << 20, 1 << 30)
    keeping = CheckpointSchedule(StateCheckpointer(tmp_path, core), frames, SECOND)
    task = asyncio.create_task(keeping.run())
    keeping.note_rotation(2)
    assert await run_in_thread(frames.begun.wait, PATIENCE_SECONDS)
    task.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()
    frames.may_end.set()
    await asyncio.wait({task})
    assert task.cancelled()
    assert frames.ended.is_set()


async def test_segments_that_go_while_events_are_read_again_are_passed_over(core, tmp_path):
    restart = StateCheckpointer(tmp_path, core)
    log = FrameLog(tmp_path / "frames", 1 << 10, 1)
    log.open()
    writing = asyncio.create_task(log.run())
    reporter = NodeReporter()
    for record, _ in reporter.envelopes_of(gpus_of("GPU-0", "GPU-1"), range(0, 600, 10), each=2):
        await log.append(FrameRecord(record.node, 1, record.sent, record.body), lambda: None)
    writing.cancel()
    await asyncio.wait({writing})
    assert log.number > 3
    events = restart.read_events()
    assert list(events) == []
    numbers = restart._records(FrameLogStats())  # noqa: SLF001 - where it is in the log
    assert next(numbers)[0] == 1
    restart.first_segment = log.number
    log.delete_before(log.number)
    assert {number for number, _ in numbers} <= {1, log.number}
    assert segment_numbers(tmp_path / "frames") == [log.number]
    log.close()
