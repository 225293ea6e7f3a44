from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from railscope.wire import SentAt
from railscope_collector.framelog.framelog import FrameLog, FrameLogError
from railscope_collector.framelog.segment_files import (
    FrameLogStats,
    FrameRecord,
    read_segment,
    segment_numbers,
    segment_path,
)


def record(number: int, size: int = 50) -> FrameRecord:
    return FrameRecord(f"n{number}", number, SentAt(1, 2, "b"), bytes([number % 256]) * size)


@asynccontextmanager
async def running(log: FrameLog) -> AsyncIterator[FrameLog]:
    log.open()
    log.begin()
    task = asyncio.create_task(log.run())
    try:
        yield log
    finally:
        task.cancel()
        await asyncio.wait({task})
        log.close()


def taken(_end: object = None) -> None:
    """Action of these tests on a durable record: none."""


def content_of(directory: Path, number: int) -> list[FrameRecord]:
    return [r for _, r in read_segment(segment_path(directory, number), FrameLogStats())]


def content(directory: Path) -> list[FrameRecord]:
    return [r for number in segment_numbers(directory) for r in content_of(directory, number)]


async def test_what_append_returned_for_is_there_after_reopening(tmp_path: Path):
    async with running(FrameLog(tmp_path / "frames", 1 << 20, 1 << 30)) as log:
        await asyncio.gather(*(log.append(record(n), taken) for n in range(100)))
        assert log.stats.commits < 100, "records that come together are stored together"
    async with running(FrameLog(tmp_path / "frames", 1 << 20, 1 << 30)) as log:
        await log.append(record(100), taken)
    assert content(tmp_path / "frames") == [record(n) for n in range(101)]


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 400))
def test_a_torn_tail_is_cut_off_and_all_before_it_stays(
    tmp_path_factory: pytest.TempPathFactory, cut: int
):
    directory = tmp_path_factory.mktemp("log") / "frames"

    async def write() -> int:
        async with running(FrameLog(directory, 1 << 20, 1 << 30)) as log:
            for n in range(3):
                await log.append(record(n), taken)
            return log.size

    size = asyncio.run(write())
    path = segment_path(directory, 1)
    os.truncate(path, max(0, size - cut))
    whole = [r for end, r in read_segment(path, FrameLogStats()) if end <= size - cut]
    assert whole == [record(n) for n in range(len(whole))]

    async def append() -> None:
        async with running(FrameLog(directory, 1 << 20, 1 << 30)) as log:
            await log.append(record(9), taken)

    asyncio.run(append())
    assert content(directory) == [*whole, record(9)]


@settings(max_examples=60, deadline=None)
@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_costs_only_its_record_and_is_counted(
    tmp_path_factory: pytest.TempPathFactory, position: int, bit: int
):
    directory = tmp_path_factory.mktemp("log") / "frames"

    async def write() -> None:
        async with running(FrameLog(directory, 1 << 20, 1 << 30)) as log:
            for n in range(5):
                await log.append(record(n), taken)

    asyncio.run(write())
    path = segment_path(directory, 1)
    damaged = bytearray(path.read_bytes())
    damaged[position % len(damaged)] ^= 1 << bit
    path.write_bytes(damaged)
    stats = FrameLogStats()
    found = [r for _, r in read_segment(path, stats)]
    assert len(found) == 4
    assert all(r in [record(n) for n in range(5)] for r in found)


async def test_a_full_disk_is_an_error_and_leaves_the_log_whole(small_disk: Path):
    async with running(FrameLog(small_disk / "frames", 1 << 20, 1 << 30)) as log:
        await log.append(record(1, 1000), taken)
        with pytest.raises(FrameLogError, match=os.strerror(errno.ENOSPC)):
            await log.append(record(2, 80_000), taken)
        await log.append(record(3, 1000), taken)
    assert content(small_disk / "frames") == [record(1, 1000), record(3, 1000)]


async def test_a_record_inside_a_record_is_not_taken_for_one(tmp_path: Path):
    """Not even if the record around it is torn: senders cannot predict the marker."""
    other = tmp_path / "other" / "frames"
    async with running(FrameLog(other, 1 << 20, 1 << 30)) as log:
        await log.append(record(66), taken)
    forged = segment_path(other, 1).read_bytes()
    honest = FrameRecord("n1", 1, SentAt(1, 2, "b"), forged + bytes(500))
    async with running(FrameLog(tmp_path / "frames", 1 << 20, 1 << 30)) as log:
        await log.append(honest, taken)
    path = segment_path(tmp_path / "frames", 1)
    os.truncate(path, path.stat().st_size - 100)
    assert content(tmp_path / "frames") == []
