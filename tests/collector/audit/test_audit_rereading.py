"""Verification of the audit log by the collector itself: its findings, and files that it cannot read."""

from __future__ import annotations

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
