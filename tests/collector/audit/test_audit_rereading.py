"""Verification of the audit log by the collector itself: its findings, and files that it cannot read."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from support.audit import KEY, write_log

from railscope_collector.audit.periodic_verification import PeriodicVerification

NS = 1_000_000_000


@dataclass
class VerificationClock:
    now_ns: int = 5 * NS

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_log(tmp_path / "log", [10])
    return tmp_path / "log"


def rereading(
    directory: Path, clock: VerificationClock, period_seconds: float = 3600
) -> PeriodicVerification:
    return PeriodicVerification(directory, KEY.public, period_seconds, clock)


def alter(directory: Path) -> None:
    for path in (directory / "tile/entries").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes().replace(b'"number":1', b'"number":7'))


async def test_a_log_that_is_whole_ages_from_when_it_was_read(directory: Path) -> None:
    clock = VerificationClock()
    reread = rereading(directory, clock)
    assert (reread.is_valid, reread.age_seconds) == (None, None)
    await reread.read()
    clock.now_ns += 7 * NS
    assert (reread.is_valid, reread.age_seconds) == (True, 7.0)


async def test_an_alteration_is_found_and_logged_and_the_age_grows(directory: Path) -> None:
    clock = VerificationClock()
    reread = rereading(directory, clock)
    await reread.read()
    alter(directory)
    clock.now_ns += NS
    with capture_logs() as logs:
        await reread.read()
    assert (reread.is_valid, reread.age_seconds) == (False, 1.0)
    (logged,) = logs
    assert (logged["event"], logged["outcome"]) == ("audit_verification_failed", "altered")


async def test_what_cannot_be_read_is_neither_whole_nor_altered(
    directory: Path, tmp_path: Path
) -> None:
    reread = rereading(directory, VerificationClock())
    await reread.read()
    (directory / "checkpoint").unlink()
    (directory / "checkpoint").mkdir()
    with capture_logs() as logs:
        await reread.read()
    assert reread.is_valid is True
    assert logs[0]["outcome"] == "unreadable"
    fresh = rereading(tmp_path / "nowhere", VerificationClock())
    await fresh.read()
    assert fresh.age_seconds is None


async def test_it_is_read_again_and_again_or_never(directory: Path) -> None:
    clock = VerificationClock()
    reread = rereading(directory, clock, 0.01)
    task = asyncio.create_task(reread.run())
    async with asyncio.timeout(60):
        while reread.is_valid is None:  # noqa: ASYNC110 - no event is set
            await asyncio.sleep(0.01)
        alter(directory)
        while reread.is_valid:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait({task})
    shutil.rmtree(directory)
    await rereading(directory, clock, 0).run()
