"""Ingest over real HTTP: acknowledged frames, and their state after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from makers import SECOND, FrameSender
from running_collector import (
    RunningCollector,
    gpu_frames,
    logged_envelopes,
    run_collector,
    settings_in,
)
from support.checkpoints import facts_of
from support.waiting import wait_until

from railscope.catalog import collector as catalog
from railscope.settings import SettingsError
from railscope.wire import RunEnd, pack
from railscope_collector.config import (
    FrameLogSettings,
    IngestLimits,
    MeteringSettings,
)


async def test_a_collector_requests_shape_and_names_once_and_then_acknowledges(tmp_path: Path):
    sender = FrameSender()
    async with run_collector(settings_in(tmp_path)) as running:
        first = gpu_frames(sender)
        status, reply = await running.post(sender.body(first))
        assert status == 409
        assert [len(reply[name]) for name in ("unknown_shapes", "unknown_names")] == [1, 1]
        assert not running.collector.core.counts.rejected, "it is a step of the protocol"
        status, reply = await running.post(sender.body(first, schemas=True))
        assert (status, reply) == (200, {"accepted_frames": 3, "duplicate_frames": 0})
        status, reply = await running.post(sender.body(gpu_frames(sender, at=3)))
        assert (status, reply) == (200, {"accepted_frames": 3, "duplicate_frames": 0})
        row = running.collector.core.fleet.nodes["n1"].rows["gpu"]
        assert row.block.values_of(row.index).tolist() == [50, 60, 1000, 2000, 12, 22]
    assert logged_envelopes(tmp_path) == 2


async def test_sending_again_counts_nothing_twice(tmp_path: Path):
    sender = FrameSender()
    body = sender.body(gpu_frames(sender), schemas=True)
    async with run_collector(settings_in(tmp_path)) as running:
        answers = await asyncio.gather(*(running.post(body) for _ in range(5)))
        assert all(status == 200 for status, _ in answers)
        assert sum(reply["accepted_frames"] for _, reply in answers) == 3
        assert running.collector.core.counts.frames == 3
    assert logged_envelopes(tmp_path) == 1


async def test_records_beyond_the_queue_are_read_from_the_log(tmp_path: Path):
    """Their facts count as stored no earlier than those of the queue."""
    sender = FrameSender()
    bodies = [sender.body(gpu_frames(sender, at), schemas=not at) for at in range(0, 30, 3)]
    async with run_collector(settings_in(tmp_path)) as running:
        collector = running.collector
        collector.reader.max_queued_bytes = 0
        collector.reader.begin_positions(is_incomplete=False)
        answers = [await running.post(bodies[0])]
        answers += await asyncio.gather(*map(running.post, bodies[1:]))
        assert {status for status, _ in answers} == {200}
        assert collector.core.counts.frames == 30
        first = answers[0][1]["position"]
        assert all(reply["stored"] < first for _, reply in answers)
        assert collector.reader.acknowledge("n1")["stored"] < first
        await collector.finalizer.round(everything=True)
        last = collector.reader.acknowledge("n1")
        assert last["stored"] == last["position"] == max(reply["position"] for _, reply in answers)


async def test_reordered_envelopes_all_count(tmp_path: Path):
    sender = FrameSender()
    bodies = [sender.body(gpu_frames(sender, at=3 * n), schemas=True) for n in range(4)]
    async with run_collector(settings_in(tmp_path)) as running:
        for body in (bodies[2], bodies[0], bodies[3]):
            assert (await running.post(body))[1]["accepted_frames"] == 3
        assert running.collector.core.received.count_missing() == 3
        assert (await running.post(bodies[1]))[1]["accepted_frames"] == 3
        assert running.collector.core.received.count_missing() == 0
        row = running.collector.core.fleet.nodes["n1"].rows["gpu"]
        assert row.boot_ns == (5_000 + 11) * SECOND, "the newest frame stays the present state"


async def test_a_restart_leaves_the_state_as_it_was(tmp_path: Path):
    sender, other = FrameSender(), FrameSender("n2")
    settings = settings_in(tmp_path, frame_log=FrameLogSettings(segment_bytes=1 << 16))
    async with run_collector(settings) as running:
        await running.post(sender.body(gpu_frames(sender), schemas=True))
        await running.post(other.body(gpu_frames(other, at=5), schemas=True), node="n2")
        before = running.collector.core
    async with run_collector(settings) as running:
        after = running.collector.core
        assert after.received == before.received
        assert facts_of(after) == facts_of(before)
        for name in ("n1", "n2"):
            old, new = before.fleet.nodes[name].rows["gpu"], after.fleet.nodes[name].rows["gpu"]
            assert (
                old.block.values_of(old.index).tolist() == new.block.values_of(new.index).tolist()
            )
            assert old.timestamp_ns == new.timestamp_ns
        body = FrameSender("n2", sequences={}).body(gpu_frames(FrameSender("n2"), at=5))
        status, reply = await running.post(body, node="n2")
        assert (status, reply["accepted_frames"]) == (200, 0), (
            "a retry after the crash is no new frame"
        )


async def test_frames_stay_with_the_agent_that_has_its_share_of_waiting_evidence(tmp_path: Path):
    waits, at_once = (
        MeteringSettings(quiet_seconds=3600),
        MeteringSettings(period_seconds=0.1, quiet_seconds=0),
    )
    limits = IngestLimits(pending_evidence_intervals=2)
    sender, other = FrameSender(), FrameSender("n2")
    quarters = [sender.body(gpu_frames(sender, at=900 * n), schemas=True) for n in range(4)]
    body = other.body(gpu_frames(other), schemas=True)
    async with run_collector(settings_in(tmp_path, limits=limits, metering=waits)) as running:
        answers = [await running.post(quarter, at=5000) for quarter in quarters]
        assert [status for status, _ in answers] == [200, 200, 200, 503]
        assert answers[3][1]["error"] == (
            "3 intervals of evidence of n1 wait for the database: expected at most 2"
        )
        assert (await running.post(body, node="n2"))[0] == 200, "another node is not affected"
        assert (await running.post(quarters[0], at=5000))[0] == 200, (
            "what is durable already is acknowledged"
        )
        assert running.collector.core.counts.rejected == {"evidence": 1}
    async with run_collector(settings_in(tmp_path, limits=limits, metering=at_once)) as running:
        intervals = running.collector.core.evidence.quarters
        await wait_until(lambda: not intervals.by_key, "the evidence is in the database")
        assert (await running.post(quarters[3], at=5000))[0] == 200


async def test_two_collectors_do_not_share_a_state_directory(tmp_path: Path):
    settings = settings_in(tmp_path)
    async with run_collector(settings):
        with pytest.raises(SettingsError, match="in use by another collector"):
            async with run_collector(settings):
                pass


async def test_the_end_of_an_earlier_run_shows_what_was_lost_of_it(tmp_path: Path):
    """Also after a restart that reads the frame log again, and it closes where frames come late."""
    sender, settings = FrameSender(), settings_in(tmp_path)
    frames = gpu_frames(sender, rows=6)
    early, late = frames[:4], frames[4:]
    after = FrameSender(run="after")
    statement = RunEnd(sender.run, {frames[0].schema.stream: frames[-1].sequence})
    stated = msgspec.structs.replace(
        after.envelope(gpu_frames(after, 30), schemas=True), ended=statement
    )
    missing = f"{catalog.MISSING.name} "

    async def lost(one: RunningCollector) -> int:
        _, text = await one.get("/metrics")
        return int(next(line for line in text.splitlines() if line.startswith(missing)).split()[1])

    async with run_collector(settings) as running:
        assert (await running.post(sender.body(early, schemas=True)))[0] == 200
        assert await lost(running) == 0
        assert (await running.post(pack(stated), at=40))[0] == 200
        assert await lost(running) == len(late)
    async with run_collector(settings) as running:
        assert await lost(running) == len(late)
        assert (await running.post(sender.body(late), at=50))[0] == 200
        assert await lost(running) == 0


async def test_a_node_with_missing_frames_is_named(tmp_path: Path):
    sender = FrameSender()
    frames = gpu_frames(sender, rows=9)
    async with run_collector(settings_in(tmp_path)) as running:
        for part in (frames[:2], frames[5:]):
            assert (await running.post(sender.body(part, schemas=True)))[0] == 200
        _, text = await running.get("/metrics")
        assert f'{catalog.MISSING_OF_NODE.name}{{node="n1"}} 3\n' in text
        assert f"{catalog.MISSING.name} 3\n" in text
