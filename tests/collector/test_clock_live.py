"""A running collector whose wall clock is stepped, and the decision about it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from makers import FrameSender
from running_collector import RunningCollector, gpu_frames, run_collector, settings_in

from railscope_collector import clock
from railscope_collector.framelog.segment_files import (
    FrameLogStats,
    FrameRecord,
    read_segment,
    segment_numbers,
    segment_path,
)

HOUR_NS = 3_600_000_000_000
PATIENCE_SECONDS = 60


def records(directory: Path) -> list[FrameRecord]:
    """The records of the frame log, in order."""
    frames = directory / "state" / "frames"
    return [
        record
        for number in segment_numbers(frames)
        for _, record in read_segment(segment_path(frames, number), FrameLogStats())
    ]


async def test_frames_of_a_suspect_time_are_placed_again_by_the_accepted_clock(tmp_path: Path):
    settings = settings_in(tmp_path)
    error_ns = 0
    reloaded = asyncio.Event()

    def ready(one: RunningCollector) -> None:
        one.collector.clock.wall_ns = lambda: time.time_ns() + error_ns
        one.collector.clock_records.reload = reloaded.set

    async with run_collector(settings, ready) as running:
        sender = FrameSender("n1")
        assert (await running.post(sender.body(gpu_frames(sender), schemas=True)))[0] == 200
        error_ns = HOUR_NS
        other = FrameSender("n2")
        body = other.body(gpu_frames(other), schemas=True)
        assert (await running.post(body, node="n2"))[0] == 200
        assert "suspect" in (await running.get("/metrics"))[1]
        state = clock.read_state(tmp_path / "state")
        assert state is not None
        assert "stepped" in state.problem
        (tmp_path / "state" / clock.ACCEPTED_FILE).touch()
        await asyncio.wait_for(reloaded.wait(), PATIENCE_SECONDS)
        assert not running.collector.clock.problem
        assert "new timestamps" in running.collector.clock.hold_reason, (
            "nothing is stored before that is done"
        )

    first, second = records(tmp_path)
    assert (first.doubted_since_ns, second.doubted_since_ns > 0) == (0, True)
    state = clock.read_state(tmp_path / "state")
    assert state is not None
    (decided,) = state.corrections
    assert decided.since_ns == second.doubted_since_ns
    assert abs(decided.delta_ns - HOUR_NS) < clock.MAX_STEP_NS

    async with run_collector(settings, ready) as running:
        assert not running.collector.clock.hold_reason
        quarters = running.collector.core.evidence.quarters.by_key.values()
        received = {
            one.interval.node: {gpu.received_ns for gpu in one.interval.gpus.values()}
            for one in quarters
        }
        assert received == {
            "n1": {first.received_wall_ns},
            "n2": {second.received_wall_ns + decided.delta_ns},
        }
