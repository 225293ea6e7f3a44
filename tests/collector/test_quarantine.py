"""A record of the frame log that a restart cannot apply is quarantined; all others are applied."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hostile.generators import frames_far_apart
from makers import FrameSender
from running_collector import gpu_frames, run_collector, settings_in
from support.schemas import store_parts

from railscope.envelopes import unpack
from railscope.wire import MAGIC, SentAt
from railscope_collector.framelog.framelog import FrameLog
from railscope_collector.framelog.segment_files import FrameRecord

SENT = SentAt(1_790_000_000 * 10**9, 10**18, "boot-1")


async def append(directory: Path, *bodies: bytes) -> None:
    """Put bodies into the frame log as an older collector might have."""
    frames = FrameLog(directory / "state" / "frames", 1 << 26, 1 << 30)
    frames.open()
    frames.begin()
    writing = asyncio.create_task(frames.run())
    for body in bodies:
        await frames.append(FrameRecord("n1", SENT.wall_ns, SENT, body), lambda _end: None)
    writing.cancel()
    await asyncio.wait({writing})
    frames.close()


async def test_a_record_beyond_what_a_restart_may_cost_is_kept_aside(tmp_path: Path):
    sender = FrameSender()
    (hostile,) = frames_far_apart()
    async with run_collector(settings_in(tmp_path)) as running:
        assert (await running.post(sender.body(gpu_frames(sender), schemas=True)))[0] == 200
        # Its schema is known, as it was when the record was accepted.

        store_parts(running.collector.core.schemas, unpack(hostile, 1 << 24))
    await append(tmp_path, hostile, MAGIC + b"no envelope")
    for _ in range(2):
        async with run_collector(settings_in(tmp_path)) as running:
            assert running.collector.core.counts.frames == 3, "what others sent was taken"
            assert running.collector.reader.quarantined == 2
            await running.collector.refresher.refresh()
            assert "railscope_collector_quarantined_records 2" in (await running.get("/metrics"))[1]
            stored = running.collector.store.read("SELECT node FROM quarantined_records")
            assert stored == [("n1",), ("n1",)]
