"""Files lost at rest are named at the start, recorded and counted, and nothing is written over them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from railscope.wire import SentAt
from railscope_collector.framelog.framelog import FrameLog
from railscope_collector.framelog.segment_files import (
    EXTENT,
    FrameRecord,
    segment_numbers,
    segment_path,
)
from railscope_collector.framelog.state_files import StateFiles, accept_loss, open_store
from railscope_collector.state_store import FILE, StateStore


def record(number: int) -> FrameRecord:
    return FrameRecord(f"n{number}", number, SentAt(1, 2, "b"), bytes([number % 256]) * 100)


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[FrameLog]:
    """A frame log with an account of its files, as a collector has it."""
    store = StateStore(directory)
    open_store(store)
    files = StateFiles(store)
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
        store.close()


async def written(directory: Path, count: int = 13) -> FrameLog:
    """A frame log of some segments, as a killed collector leaves it."""
    async with running(directory) as log:
        for number in range(count):
            await log.append(record(number), lambda _end: None)
    return log


@contextmanager
def opened(directory: Path) -> Iterator[StateStore]:
    store = StateStore(directory)
    open_store(store)
    yield store
    store.close()


def lost(directory: Path) -> dict[str, str]:
    with opened(directory) as store:
        files = StateFiles(store)
        files.open()
        return files.damage


async def test_a_directory_that_is_whole_lacks_nothing(tmp_path: Path) -> None:
    for _ in range(3):
        await written(tmp_path)
        assert lost(tmp_path) == {}
    assert len(segment_numbers(tmp_path / "frames")) > 3
    async with running(tmp_path) as log:
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
    with opened(directory) as store:
        assert len(list(accept_loss(store))) == 1
    async with running(directory) as log:
        assert log.files is not None
        assert not log.files.is_incomplete


@pytest.mark.parametrize(("which", "how"), [(0, remove), (1, damage_last), (-1, cut)])
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
            await log.append(record(99), lambda _end: None)
        assert (path.read_bytes() if path.exists() else None) == left, "nothing is written over it"
    await put_back_and_accept(tmp_path, path, content, how)
    assert lost(tmp_path) == {}


async def test_a_tail_that_was_torn_by_a_crash_is_not_a_loss(tmp_path: Path) -> None:
    await written(tmp_path)
    path = segment_path(tmp_path / "frames", segment_numbers(tmp_path / "frames")[-1])
    path.write_bytes(path.read_bytes() + path.read_bytes()[:30])
    assert lost(tmp_path) == {}


@pytest.mark.parametrize("name", [EXTENT, FILE])
@pytest.mark.parametrize("content", [None, b"nonsense"])
async def test_the_account_itself_is_never_read_as_a_default(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    await written(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    problem = lost(tmp_path)[name]
    assert (problem == "missing file") == (content is None)
