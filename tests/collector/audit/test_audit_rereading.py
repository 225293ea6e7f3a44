"""Verification of the audit log by the collector itself: its findings, and files that it cannot read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs
from support.audit import KEY, database_in, without_triggers, write_log

from railscope_collector.audit.periodic_verification import PeriodicVerification
from railscope_collector.ledger.database import SharedDatabase
from railscope_collector.tables import metadata

NS = 1_000_000_000


@dataclass
class VerificationClock:
    now_ns: int = 5 * NS

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_log(tmp_path, [10])
    return tmp_path


def rereading(
    directory: Path, clock: VerificationClock, period_seconds: float = 3600
) -> PeriodicVerification:
    database = SharedDatabase(f"sqlite:///{directory / 'ledger.sqlite'}", metadata)
    return PeriodicVerification(database.open, KEY.public, period_seconds, clock)


def alter(directory: Path) -> None:
    with database_in(directory) as database, database.transaction(writes=True) as connection:
        without_triggers(connection, of_log=True)
        connection.execute(text("UPDATE audit_record SET content = x'7b7d' WHERE number = 3"))


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
