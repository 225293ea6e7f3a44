"""Live copies at a collector: current readings only, in no view until the primary collector fails."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from makers import SECOND, START_BOOT_NS, START_WALL_NS, FrameSender, gpu_schema
from running_collector import gpu_frames, logged_envelopes, run_collector, settings_in
from support.checkpoints import facts_of
from test_cluster_head import ReportingNode
from test_record_feed import Feed

from railscope.envelopes import open_body
from railscope.frame import Schema
from railscope.wire import COPIES_PATH, PRIMARY_FAILING, PRIMARY_HEADER, SentAt, pack
from railscope_collector.fleet.schemas import StoredSchemas
from railscope_collector.framelog.received_frames import MAX_STREAMS
from railscope_collector.framelog.segment_files import FrameRecord
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.state.record_feed import CopyPart, FeedPart, ReadingsPart, RecordPart
from railscope_collector.state.state_checkpoint import NodePart

FAILING = {PRIMARY_HEADER: PRIMARY_FAILING}


async def test_a_copy_is_not_shown_not_stored_and_not_counted(tmp_path: Path):
    sender = FrameSender()
    async with run_collector(settings_in(tmp_path)) as running:
        core = running.collector.core
        status, reply = await running.post(sender.body(gpu_frames(sender)), path=COPIES_PATH)
        assert (status, len(reply["unknown_schemas"])) == (409, 1)
        for at in (3, 6):
            body = sender.body(gpu_frames(sender, at=at), schemas=True)
            status, reply = await running.post(body, path=COPIES_PATH)
            assert (status, reply) == (200, {"copied_frames": 3})
        assert not core.fleet.nodes
        assert not core.received.nodes
        assert not core.evidence.gpus
        assert (core.counts.frames, core.counts.envelopes, core.counts.copies) == (0, 0, 6)
        views = await running.collector.refresher.refresh()
        assert (views.node.cells, views.gpus.gpus) == ((), {})
        _, text = await running.get("/metrics")
        assert "railscope_collector_copied_frames_total 6\n" in text
        assert "railscope_cluster_nodes 0\n" in text, "a sum over collectors contains the node once"
        assert (await running.json("/api/v1/nodes"))["rows"] == []
    assert logged_envelopes(tmp_path) == 0


async def test_a_node_is_shown_with_its_rates_when_the_primary_collector_fails(tmp_path: Path):
    sender = FrameSender()
    async with run_collector(settings_in(tmp_path, stale_seconds=10**9)) as running:
        core = running.collector.core
        body = sender.body(gpu_frames(sender), schemas=True)
        await running.post(body, path=COPIES_PATH)
        one = sender.body(gpu_frames(sender, at=10, rows=1))
        await running.post(one, path=COPIES_PATH, headers=FAILING)
        row = core.fleet.nodes["n1"].rows["gpu"]
        assert row.block.values_of(row.index).tolist() == [50, 60, 1000, 2000, 10, 20]
        rates = row.block.rates_of(row.index).tolist()
        assert rates == pytest.approx([10 / 8, 20 / 8]), "since the copy before"
        assert core.gpus_by_rail("n1") == {0: "GPU-n1-0", 1: "GPU-n1-1"}
        assert core.fleet.nodes["n1"].agent_version == "test"
        views = await running.collector.refresher.refresh()
        assert views.cluster.cells
        assert not core.fleet.standby
        assert core.counts.frames == 0
        for sent, count in ((body, 3), (one, 1)):
            _, reply = await running.post(sent)
            assert reply == {"accepted_frames": count, "duplicate_frames": 0}, "sent again"
    assert logged_envelopes(tmp_path) == 2


def test_the_gpus_of_a_node_on_standby_are_shown_with_it(tmp_path: Path):
    core, sender = open_core(tmp_path), FrameSender()
    apply(core, sender.body(gpu_frames(sender), schemas=True), 3, copy="standby")
    assert not core.gpus_by_rail("n1")
    apply(core, sender.body([]), 4)
    assert core.gpus_by_rail("n1") == {0: "GPU-n1-0", 1: "GPU-n1-1"}


@pytest.mark.parametrize(
    ("node", "body", "status"),
    [
        ("n2", FrameSender("n1").body(gpu_frames(FrameSender("n1"))), 403),
        ("n1", b"RSF1", 400),
        ("n1", FrameSender().body(gpu_frames(FrameSender(), rows=101), schemas=True), 400),
        ("unknown", b"", 401),
    ],
)
async def test_an_invalid_copy_is_rejected_as_a_frame_is(
    tmp_path: Path, node: str, body: bytes, status: int
):
    async with run_collector(settings_in(tmp_path)) as running:
        found, reply = await running.post(body, node=node, path=COPIES_PATH, headers=FAILING)
        assert found == status, reply
        assert not running.collector.core.fleet.nodes
        assert not running.collector.core.fleet.standby


async def test_a_draining_collector_accepts_no_copies(tmp_path: Path):
    sender = FrameSender()
    async with run_collector(settings_in(tmp_path, draining=True)) as running:
        body = sender.body(gpu_frames(sender), schemas=True)
        status, reply = await running.post(body, path=COPIES_PATH)
        assert (status, reply["draining"]) == (503, True)


def test_the_streams_of_a_node_on_standby_are_bounded(tmp_path: Path):
    """A hostile node sends copies of ever more streams, which no sequence of frames bounds."""
    core, sender = open_core(tmp_path), FrameSender()
    for number in range(MAX_STREAMS + 9):
        schema = Schema(f"stream{number}", gpu_schema("n1").columns)
        body = sender.body(sender.frames(schema, [[1] * 6], at=0), schemas=True)
        apply(core, body, 1, copy="standby")
    assert len(core.fleet.standby["n1"].rows) == MAX_STREAMS
    apply(core, body, 1, copy="shown")
    assert len(core.fleet.nodes["n1"].rows) == MAX_STREAMS


# Interleavings ------------------------------------------------------------------------------------


def open_core(directory: Path) -> CollectorState:
    core = CollectorState(StoredSchemas(directory / "schemas"))
    core.schemas.open()
    return core


def apply(core: CollectorState, body: bytes, at: int, copy: str = "") -> None:
    """Apply an envelope, as a copy if that is set: standby, or shown."""
    opened = open_body(body, 1 << 20)
    core.schemas.put_all([core.schemas.recognize(content) for content in opened.schemas])
    sent = SentAt(START_WALL_NS + at * SECOND, START_BOOT_NS + at * SECOND, "boot-1")
    record = FrameRecord("n1", START_WALL_NS + at * SECOND, sent, pack(opened.decode_envelope()))
    if copy:
        for _ in core.copy_steps(record, opened.decode_envelope(), is_shown=copy == "shown"):
            pass
    else:
        core.accept(record, opened.decode_envelope())


def rows_in_use(core: CollectorState) -> int:
    return sum(sheet.rows for sheet in core.fleet._sheets.values())  # noqa: SLF001 - rows must not leak


steps = st.lists(st.tuples(st.sampled_from(("", "", "standby", "shown")), st.integers(0, 7)))


@given(steps)
@settings(deadline=None, max_examples=60)
def test_copies_in_any_order_change_current_readings_only(found: list[tuple[str, int]]):
    """Evidence, counts and events are those of the same frames without copies; no reading becomes older."""
    node = ReportingNode("n1")
    bodies = [node.body() for _ in range(8)]
    with tempfile.TemporaryDirectory() as directory:
        core, alone = open_core(Path(directory, "a")), open_core(Path(directory, "b"))
        newest = {"nodes": 0, "standby": 0}
        for at, (copy, number) in enumerate(found, 30):
            apply(core, bodies[number], at, copy)
            if not copy:
                apply(alone, bodies[number], at)
            if copy == "standby":
                newest["standby"] = max(newest["standby"], number + 1)
            else:
                newest["nodes"] = max(*newest.values(), number + 1)
                newest["standby"] = 0
            for name, count in newest.items():
                held = getattr(core.fleet, name).get("n1")
                streams = held.rows.values() if held else ()
                assert [row.boot_ns for row in streams] == [
                    START_BOOT_NS + (3 * count - 1) * SECOND for _ in streams
                ]
                assert len(streams) == (2 if count else 0)
                for row in streams:
                    is_shown = name == "nodes"
                    assert bool(row.block.timestamps_ns[row.index]) is is_shown
            held_rows = [
                row for each in (core.fleet.nodes, core.fleet.standby) for one in each.values()
                for row in one.rows.values()
            ]  # fmt: skip
            assert rows_in_use(core) == len(held_rows)
        assert facts_of(core) == facts_of(alone)
        assert core.received.nodes == alone.received.nodes
        assert core.counts.frames == alone.counts.frames
        assert [each.event for each in core.events] == [each.event for each in alone.events]


# Records for the head -----------------------------------------------------------------------------


def copied(feed: Feed, node: ReportingNode, *, is_shown: bool = False) -> None:
    """Let the sender receive a copy."""
    opened = open_body(node.body(), 1 << 20)
    feed.sent.schemas.put_all([feed.sent.schemas.recognize(each) for each in opened.schemas])
    sent = SentAt(START_WALL_NS, START_BOOT_NS + node.at * SECOND, "boot-1")
    envelope = opened.decode_envelope()
    record = FrameRecord(node.name, START_WALL_NS, sent, pack(envelope))
    for _ in feed.sent.copy_steps(record, envelope, is_shown=is_shown):
        pass


async def test_a_snapshot_contains_the_readings_of_copies(tmp_path: Path):
    feed, node = Feed(tmp_path), ReportingNode("n1")
    copied(feed, node)
    parts = await feed.parts()
    assert not [part for part in parts if isinstance(part, NodePart)]
    assert {part.node for part in parts if isinstance(part, ReadingsPart)} == {"n1"}
    await feed.apply(*parts)
    assert not feed.follower.rejected, feed.follower.problem
    assert feed.follower.owners == {}
    (before,), (after,) = feed.sent.fleet.standby.values(), feed.follower.core.fleet.nodes.values()
    for stream, row in before.rows.items():
        found = after.rows[stream]
        assert (
            found.block.values_of(found.index).tolist() == row.block.values_of(row.index).tolist()
        )
        assert found.block.timestamps_ns[found.index] == row.timestamp_ns


async def test_a_copy_changes_readings_at_the_head_and_no_owner(tmp_path: Path):
    feed, node = Feed(tmp_path), ReportingNode("n1")
    feed.accept(node)
    await feed.apply(*await feed.parts())
    core = feed.follower.core
    facts, count = facts_of(core), core.counts.frames
    parts: list[FeedPart] = []
    feed.sent.on_copy.append(lambda record, _: parts.append(CopyPart(record)))
    copied(feed, node)
    copied(feed, node)
    feed.follower.owners["n1"] = "primary"
    await feed.apply(*parts)
    assert not feed.follower.rejected, feed.follower.problem
    assert feed.follower.owners == {"n1": "primary"}
    assert feed.follower.copies["n1"] == ("a", 2)
    assert core.fleet.nodes["n1"].rows["gpu"].boot_ns == START_BOOT_NS + 8 * SECOND
    assert (facts_of(core), core.counts.frames) == (facts, count)


async def test_a_copy_that_arrives_after_its_record_is_no_sign_of_a_missing_one(tmp_path: Path):
    feed, node = Feed(tmp_path), ReportingNode("n1")
    sent: list[FrameRecord] = []
    feed.sent.on_envelope.append(lambda record, _: sent.append(record))
    feed.accept(node)
    await feed.apply(*await feed.parts())
    feed.accept(node)
    record = sent[-1]
    await feed.apply(CopyPart(record))
    assert feed.follower.copies["n1"] == ("a", 1), "the record may be missing"
    await feed.apply(RecordPart(record), CopyPart(record))
    assert feed.follower.copies == {}


async def test_an_invalid_copy_is_left_out_at_the_head(tmp_path: Path):
    feed = Feed(tmp_path)
    await feed.apply(*await feed.parts())
    sent = SentAt(START_WALL_NS, START_BOOT_NS, "boot-1")
    await feed.apply(CopyPart(FrameRecord("n1", START_WALL_NS, sent, b"RSF1")))
    assert feed.follower.rejected == 1
    assert not feed.follower.copies
    assert not feed.follower.core.fleet.nodes
