"""`state.sqlite`: durable transactions, and what remains after damage, a loss or a newer version."""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
from pathlib import Path

import pytest
from makers import FrameSender
from running_collector import gpu_frames, run_collector, settings_in
from support.waiting import wait_until

from railscope_collector.state_store import FORMAT, StateStore, StateStoreError

TABLE = "CREATE TABLE IF NOT EXISTS notes (text TEXT NOT NULL) STRICT"


def opened(directory: Path, *, is_expected: bool = False) -> StateStore:
    store = StateStore(directory)
    store.open(is_expected=is_expected)
    store.create(TABLE)
    return store


def notes(store: StateStore) -> list[str]:
    return [text for (text,) in store.read("SELECT text FROM notes ORDER BY text")]


def _write_and_die(directory: Path) -> None:
    store = opened(directory)
    with store.transaction() as connection:
        connection.execute("INSERT INTO notes VALUES ('durable')")
    with store.transaction() as connection:
        connection.execute("INSERT INTO notes VALUES ('unfinished')")
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_writer_leaves_whole_transactions(tmp_path: Path):
    process = multiprocessing.get_context("fork").Process(target=_write_and_die, args=(tmp_path,))
    process.start()
    process.join()
    reader = StateStore(tmp_path)
    reader.open_read_only()
    reader.create(TABLE)
    assert notes(reader) == ["durable"]
    assert reader.read("SELECT * FROM missing") == []
    with pytest.raises(StateStoreError, match="readonly"), reader.transaction() as connection:
        connection.execute("INSERT INTO notes VALUES ('on a full disk')")
    reader.close()
    store = opened(tmp_path)
    assert (notes(store), store.problem) == (["durable"], "")
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    store.close()


@pytest.mark.parametrize("how", ["deleted", "no database", "damaged page"])
def test_a_lost_database_is_stated_and_begun_again(tmp_path: Path, how: str):
    store = opened(tmp_path)
    with store.transaction() as connection:
        connection.executemany("INSERT INTO notes VALUES (?)", [("note " * 99,)] * 99)
    store.close()
    if how == "deleted":
        store.path.unlink()
    else:
        content = bytearray(store.path.read_bytes())
        begin = 0 if how == "no database" else 4096
        content[begin : begin + 4096] = b"\xa5" * 4096
        store.path.write_bytes(content)
    after = opened(tmp_path, is_expected=True)
    assert ("missing" if how == "deleted" else "damaged") in after.problem
    assert notes(after) == []
    after.close()
    again = opened(tmp_path, is_expected=True)
    assert again.problem == ""
    assert (tmp_path / "state.sqlite.damaged").exists() == (how != "deleted")
    again.close()


def test_a_newer_version_is_rejected_unchanged(tmp_path: Path):
    store = opened(tmp_path)
    with store.transaction() as connection:
        connection.execute(f"PRAGMA user_version = {FORMAT + 1}")
    store.close()
    before = store.path.read_bytes()
    with pytest.raises(StateStoreError, match="fix: install the version"):
        opened(tmp_path)
    assert store.path.read_bytes() == before


@pytest.mark.parametrize("how", ["deleted", "damaged"])
async def test_a_collector_without_its_database_reads_all_segments(tmp_path: Path, how: str):
    """Received frames are known by their records; the loss is stated, and agents send shapes and names again."""
    sender = FrameSender()
    batches = [gpu_frames(sender, at) for at in (0, 3)]
    bodies = [sender.body(batch, schemas=True) for batch in batches]
    async with run_collector(settings_in(tmp_path)) as running:
        assert [(await running.post(body))[0] for body in bodies] == [200, 200]
        reader = running.collector.reader
        assert await reader.snapshots.make(reader.position)
        received = running.collector.core.received
    path = tmp_path / "state" / "state.sqlite"
    path.write_bytes(b"no database") if how == "damaged" else path.unlink()
    async with run_collector(settings_in(tmp_path)) as running:
        collector = running.collector
        assert collector.core.received == received
        again = {"accepted_frames": 0, "duplicate_frames": 3}
        assert await running.post(bodies[1]) == (200, again)
        await wait_until(lambda: len(collector.lost) == 2, "missing shapes are stated")
        assert [name.split()[-1] for name in collector.lost] == ["state.sqlite", "state.sqlite"]
        assert "railscope_collector_lost_files 2" in (await running.get("/metrics"))[1]
    async with run_collector(settings_in(tmp_path)) as running:
        assert not running.collector.lost
        assert running.collector.core.received == received
