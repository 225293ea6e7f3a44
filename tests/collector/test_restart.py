"""Snapshots of the state: replaced as a whole or not at all, and rejected if damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.checkpoints import facts_of, state_reader
from support.story import NodeReporter, accept, core_in, gpus_of

from railscope_collector.framelog.log_follower import LOG_START, LogPosition
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
