"""Snapshots of the state: replaced as a whole or not at all, and rejected if damaged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.checkpoints import facts_of, state_reader
from support.story import NodeReporter, accept, core_in, gpus_of, store_parts

from railscope_collector.framelog.log_follower import LOG_START, LogPosition
from railscope_collector.framelog.segment_files import encode_record, frame_payload, start_segment
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.state_store import StateStore


@pytest.fixture
def core(tmp_path: Path) -> CollectorState:
    """A collector with the state of a GPU."""
    made = core_in(tmp_path / "schemas")
    accept(made, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, 101, 10)))
    return made


def opened(directory: Path) -> StateStore:
    store = StateStore(directory)
    store.open()
    return store


async def test_on_a_full_disk_the_last_snapshot_stays(core: CollectorState, tmp_path: Path):
    store = opened(tmp_path)
    snapshots = state_reader(core, store).snapshots
    snapshots.restore()
    assert await snapshots.make(LogPosition(2))
    with store.transaction() as connection:
        connection.execute(
            "CREATE TRIGGER full BEFORE INSERT ON snapshots BEGIN SELECT RAISE(ABORT, 'disk is full'); END"
        )
    assert not await snapshots.make(LogPosition(3))
    assert snapshots.position == LogPosition(2)
    with store.transaction() as connection:
        connection.execute("DROP TRIGGER full")
    assert await snapshots.make(LogPosition(4, 7))
    store.close()
    again = state_reader(core_in(tmp_path / "schemas"), opened(tmp_path))
    again.snapshots.restore()
    assert again.snapshots.position == LogPosition(4, 7)
    assert facts_of(again.core) == facts_of(core)
    assert len(again.snapshots.store.read("SELECT 1 FROM snapshots")) == 1
    again.snapshots.store.close()


async def test_a_damaged_snapshot_is_stated_and_not_restored(core: CollectorState, tmp_path: Path):
    store = opened(tmp_path)
    snapshots = state_reader(core, store).snapshots
    snapshots.restore()
    assert await snapshots.make(LogPosition(2))
    ((number, content),) = store.read("SELECT rowid, content FROM snapshot_parts LIMIT 1")
    damaged = content[:-1] + bytes([content[-1] ^ 1])
    with store.transaction() as connection:
        row = damaged, number
        connection.execute("UPDATE snapshot_parts SET content = ? WHERE rowid = ?", row)
    again = state_reader(core_in(tmp_path / "schemas"), store)
    again.snapshots.restore()
    assert again.snapshots.position == LOG_START
    assert not again.core.fleet.nodes
    assert store.problem.startswith("damaged snapshot")
    store.close()


def written(directory: Path, core: CollectorState, nodes: list[str]) -> list[LogPosition]:
    """Write a frame log with a record of each node; return the ends of the records."""
    directory.mkdir()
    descriptor, marker = start_segment(directory, 1)
    ends: list[LogPosition] = []
    with os.fdopen(descriptor, "wb") as file:
        for node in nodes:
            reporter = NodeReporter(node)
            found = reporter.record(reporter.frames(gpus_of(f"GPU-{node}"), range(0, 101, 10)))
            store_parts(core.schemas, found[1])
            file.write(frame_payload(marker, encode_record(found[0])))
            ends.append(LogPosition(1, file.tell()))
    return ends


def test_facts_that_a_restart_reads_are_not_stored(tmp_path: Path):
    """An agent deletes what is stored: of each record, only facts in the database count."""
    core, store = core_in(tmp_path / "schemas"), opened(tmp_path)
    ends = written(tmp_path / "frames", core, ["n1", "n2", "n3"])
    reader = state_reader(core, store)
    reader.frames.open()
    reader.restore(is_shared=True)
    reader.begin_positions(is_incomplete=False)
    for node, end in zip(("n1", "n2", "n3"), ends, strict=True):
        answer = reader.acknowledge(node)
        assert int(answer["stored"]) < end.number <= int(answer["position"])
    assert reader.acknowledge("another node")["stored"] == ends[-1].number
    reader.frames.close()
    store.close()


@pytest.mark.parametrize("left", ["nothing", "the oldest segment"])
def test_a_log_that_ends_before_the_snapshot_is_a_loss(tmp_path: Path, left: str):
    core, store = core_in(tmp_path / "schemas"), opened(tmp_path)
    if left != "nothing":
        written(tmp_path / "frames", core, ["n1"])
    reader = state_reader(core, store)
    reader.frames.open()
    reader.frames.continue_after(LogPosition(4, 7))
    assert "frames" in reader.frames.lost
    reader.frames.begin()
    assert (reader.frames.number, reader.frames.offset) == (5, 0)
    reader.frames.close()
    store.close()


def test_a_segment_that_is_missing_among_others_is_counted(tmp_path: Path):
    core, store = core_in(tmp_path / "schemas"), opened(tmp_path)
    written(tmp_path / "frames", core, ["n1"])
    start_segment(tmp_path / "frames", 3)
    reader = state_reader(core, store)
    reader.frames.open()
    reader.restore(is_shared=True)
    assert reader.frames.stats.lost_segments == 1
    reader.frames.close()
    store.close()
