"""Files lost at rest are named at the start, recorded and counted, and nothing is written over them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.checkpoints import facts_of
from support.story import NodeReporter, accept, core_in, gpus_of

from railscope.wire import SentAt
from railscope_collector import clock
from railscope_collector.framelog.framelog import FrameLog
from railscope_collector.framelog.segment_files import (
    FrameLogStats,
    FrameRecord,
    segment_numbers,
    segment_path,
)
from railscope_collector.framelog.state_manifest import EXTENT, MANIFEST, StateFiles, accept_loss
from railscope_collector.state.checkpoint_schedule import CheckpointSchedule
from railscope_collector.state.state_checkpointer import StateCheckpointer

SECOND = 1_000_000_000


def record(number: int) -> FrameRecord:
    return FrameRecord(f"n{number}", number, SentAt(1, 2, "b"), bytes([number % 256]) * 100)


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[FrameLog]:
    """A frame log with an account of its files, as a collector has it."""
    files = StateFiles(directory)
    log = FrameLog(directory / "frames", 500, 1 << 30, files=files)
    files.open()
    log.open()
    files.begin(log.number, log.offset)
    task = asyncio.create_task(log.run())
    try:
        yield log
    finally:
        task.cancel()
        await asyncio.wait({task})
        log.close()
        files.close()


async def written(directory: Path, count: int = 13) -> FrameLog:
    """A frame log of some segments, as a killed collector leaves it."""
    async with running(directory) as log:
        for number in range(count):
            await log.append(record(number), lambda: None)
    return log


def lost(directory: Path) -> dict[str, str]:
    files = StateFiles(directory)
    files.open()
    files.close()
    return files.damage


async def test_a_directory_that_is_whole_lacks_nothing(tmp_path: Path) -> None:
    for _ in range(3):
        log = await written(tmp_path)
        assert lost(tmp_path) == {}
    assert len(segment_numbers(tmp_path / "frames")) > 3
    log.delete_before(log.number)
    assert lost(tmp_path) == {}


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def damage_last(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


async def put_back_and_accept(
    directory: Path, path: Path, content: bytes, how: Callable[[Path], None]
) -> None:
    """Check that a lost file can be put back, and that the loss of it can be accepted."""
    path.write_bytes(content)
    assert lost(directory) == {}
    how(path)
    assert len(list(accept_loss(directory))) == 1
    async with running(directory) as log:
        assert log.files is not None
        assert not log.files.is_incomplete


@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("how", [remove, cut, damage_last])
async def test_a_segment_that_is_lost_is_named_until_it_is_accepted(
    tmp_path: Path, which: int, how: Callable[[Path], None]
) -> None:
    await written(tmp_path)
    number = segment_numbers(tmp_path / "frames")[which]
    path = segment_path(tmp_path / "frames", number)
    content = path.read_bytes()
    how(path)
    left = path.read_bytes() if path.exists() else None
    for _ in range(2):
        async with running(tmp_path) as log:
            assert log.files is not None
            assert list(log.files.damage) == [f"frames/{number:010d}"]
            assert log.files.is_incomplete
            await log.append(record(99), lambda: None)
        assert (path.read_bytes() if path.exists() else None) == left, "nothing is written over it"
    await put_back_and_accept(tmp_path, path, content, how)
    assert lost(tmp_path) == {}


async def test_a_tail_that_was_torn_by_a_crash_is_not_a_loss(tmp_path: Path) -> None:
    await written(tmp_path)
    path = segment_path(tmp_path / "frames", segment_numbers(tmp_path / "frames")[-1])
    path.write_bytes(path.read_bytes() + path.read_bytes()[:30])
    assert lost(tmp_path) == {}


@pytest.mark.parametrize("name", [EXTENT, MANIFEST])
@pytest.mark.parametrize("content", [None, b"", b"nonsense"])
async def test_the_account_itself_is_never_read_as_a_default(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    await written(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    problem = lost(tmp_path)[name]
    assert (problem == "missing file") == (content is None)


async def test_all_segments_gone_are_named(tmp_path: Path) -> None:
    await written(tmp_path)
    numbers = segment_numbers(tmp_path / "frames")
    for number in numbers:
        segment_path(tmp_path / "frames", number).unlink()
    assert list(lost(tmp_path)) == [f"frames/{number:010d}" for number in numbers]
    async with running(tmp_path) as log:
        assert log.number > numbers[-1], "no number is used twice"


async def test_a_directory_of_an_earlier_version_begins_its_account(tmp_path: Path) -> None:
    await written(tmp_path)
    (tmp_path / EXTENT).unlink()
    (tmp_path / MANIFEST).unlink()
    assert lost(tmp_path) == {}
    await written(tmp_path)
    segment_path(tmp_path / "frames", 1).unlink()
    assert list(lost(tmp_path)) == ["frames/0000000001"]


@pytest.mark.parametrize("how", [remove, cut, damage_last, lambda path: path.write_bytes(b"")])
async def test_a_lost_clock_file_is_named_until_it_is_put_back_or_accepted(
    tmp_path: Path, how: Callable[[Path], None]
) -> None:
    path = tmp_path / clock.FILE
    path.write_bytes(clock.encode_state(clock.ClockState("boot", 5)))
    await written(tmp_path)
    assert lost(tmp_path) == {}
    content = path.read_bytes()
    how(path)
    for _ in range(2):
        async with running(tmp_path) as log:
            assert log.files is not None
            assert (list(log.files.damage), log.files.is_incomplete) == ([clock.FILE], True)
    await put_back_and_accept(tmp_path, path, content, how)


async def checkpointed(directory: Path) -> None:
    """A state whose first segments are in a checkpoint."""
    core = core_in(directory / "schemas")
    accept(core, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, 101, 10)))
    log = await written(directory)
    files = StateFiles(directory)
    files.open()
    files.begin(log.number, log.offset)
    keeping = CheckpointSchedule(StateCheckpointer(directory, core), log, SECOND)
    await keeping._make_checkpoint(log.number)  # noqa: SLF001 - as its task does
    files.close()


@pytest.mark.parametrize("content", [None, b"nonsense"])
async def test_a_checkpoint_that_is_lost_is_named_and_none_is_written_over_it(
    tmp_path: Path, content: bytes | None
) -> None:
    await checkpointed(tmp_path)
    path = tmp_path / "checkpoint"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    core = core_in(tmp_path / "schemas")
    restart, files = StateCheckpointer(tmp_path, core), StateFiles(tmp_path)
    files.open()
    restart.restore(FrameLogStats())
    files.compare_checkpoint(restart.first_segment)
    assert list(files.damage) == ["checkpoint"]
    frames = FrameLog(tmp_path / "frames", 500, 1, files=files)
    before = segment_numbers(tmp_path / "frames")
    await CheckpointSchedule(restart, frames, SECOND)._make_checkpoint(99)  # noqa: SLF001 - as its task does
    assert (path.read_bytes() if path.exists() else None) == content
    assert segment_numbers(tmp_path / "frames") == before


async def test_an_existing_checkpoint_is_not_a_loss(tmp_path: Path) -> None:
    await checkpointed(tmp_path)
    core = core_in(tmp_path / "schemas")
    restart, files = StateCheckpointer(tmp_path, core), StateFiles(tmp_path)
    files.open()
    restart.restore(FrameLogStats())
    files.compare_checkpoint(restart.first_segment)
    assert files.damage == {}
    assert facts_of(core)


async def test_a_running_collector_finds_what_is_deleted_under_it(tmp_path: Path) -> None:
    await checkpointed(tmp_path)
    async with running(tmp_path) as log:
        files = log.files
        assert files is not None
        names = [path.name for path in (tmp_path / "schemas").iterdir()]
        assert files.find_new_losses(lambda: names) == []
        segment_path(tmp_path / "frames", 1).unlink()
        (tmp_path / "checkpoint").unlink()
        (tmp_path / "schemas" / names[0]).unlink()
        wanted = {"frames/0000000001", "checkpoint", f"schemas/{names[0]}"}
        assert set(files.find_new_losses(lambda: names)) == wanted
        assert files.find_new_losses(lambda: names) == [], "each is reported once"
        assert (set(files.damage), files.is_incomplete) == (wanted, False)
