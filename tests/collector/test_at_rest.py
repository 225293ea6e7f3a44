"""Losses at rest are named at the start, and nothing is written over the rest."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
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


def record(number: int) -> FrameRecord:
    return FrameRecord(f"n{number}", number, SentAt(1, 2, "b"), bytes([number % 256]) * 100)


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[FrameLog]:
    """A frame log, as a collector has it."""
    log = FrameLog(directory / "frames", 500, 1 << 30)
    log.open()
    log.begin()
    task = asyncio.create_task(log.run())
    try:
        yield log
    finally:
        task.cancel()
        await asyncio.wait({task})
        log.close()


async def written(directory: Path, count: int = 13) -> dict[str, str]:
    """Leave a frame log of some segments, as a killed collector does; return what it had lost."""
    async with running(directory) as log:
        for number in range(count):
            await log.append(record(number), lambda _end: None)
        return log.lost


async def test_a_directory_that_is_whole_lacks_nothing(tmp_path: Path) -> None:
    for _ in range(3):
        assert await written(tmp_path) == {}
    assert len(segment_numbers(tmp_path / "frames")) > 3
    async with running(tmp_path) as log:
        log.delete_before(log.number)
    assert await written(tmp_path) == {}


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def damage_last(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("how", [remove, cut, damage_last])
async def test_a_lost_end_of_the_log_is_named_once(
    tmp_path: Path, how: Callable[[Path], None]
) -> None:
    await written(tmp_path, 2)
    number = segment_numbers(tmp_path / "frames")[-1]
    path = segment_path(tmp_path / "frames", number)
    how(path)
    left = path.read_bytes() if path.exists() else None
    ends = []
    async with running(tmp_path) as log:
        assert list(log.lost) == [f"frames/{number:010d}"]
        await log.append(record(99), ends.append)
    assert ends[0].segment == number + 1, "positions increase"
    assert (path.read_bytes() if path.exists() else None) == left, "nothing is written over it"
    assert await written(tmp_path) == {}


async def test_a_tail_that_was_torn_by_a_crash_is_not_a_loss(tmp_path: Path) -> None:
    await written(tmp_path)
    path = segment_path(tmp_path / "frames", segment_numbers(tmp_path / "frames")[-1])
    path.write_bytes(path.read_bytes() + path.read_bytes()[:30])
    assert await written(tmp_path) == {}


@pytest.mark.parametrize("content", [None, b"nonsense"])
async def test_the_stored_end_is_never_read_as_a_default(
    tmp_path: Path, content: bytes | None
) -> None:
    await written(tmp_path)
    (tmp_path / EXTENT).unlink()
    if content is not None:
        (tmp_path / EXTENT).write_bytes(content)
    problem = (await written(tmp_path))[EXTENT]
    assert (problem == "missing file") == (content is None)
