"""The probe of readiness: only a committed write shows that the ledger can be written."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from sqlalchemy import text

from collector.ledger import database as probe
from collector.ledger.database import Database, UnusableLedgerError
from collector.tables import metadata


def test_a_write_is_committed_each_time(url: str):
    database = Database(url, metadata)
    try:
        for _ in range(3):
            probe.commit_probe(database)
        with database.transaction() as connection:
            assert connection.execute(text("SELECT writes FROM write_probe")).scalar_one() == 3
    finally:
        database.close()


def test_a_database_that_only_reads_is_unwritable(tmp_path: Path):
    file = tmp_path / "ledger.sqlite"
    Database(f"sqlite:///{file}", metadata).close()
    reading = Database(f"sqlite:///file:{file}?mode=rw&uri=true", metadata)
    try:
        probe.commit_probe(reading)
        with reading.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA query_only = ON")
        with pytest.raises(UnusableLedgerError, match="readonly"):
            probe.commit_probe(reading)
    finally:
        reading.close()


async def test_callers_share_one_write_and_its_result_is_reused_for_a_while(tmp_path: Path):
    database = Database(f"sqlite:///{tmp_path / 'ledger.sqlite'}", metadata)
    opened, now = 0, 0.0

    def opens() -> Database:
        nonlocal opened
        opened += 1
        if opened == 2:
            message = "gone: /secret/path"
            raise UnusableLedgerError(message)
        return database

    one = probe.LedgerProbe(opens, lambda: now)
    assert await asyncio.gather(*(one.problem() for _ in range(50))) == [""] * 50
    assert opened == 1
    now += probe.REUSE_SECONDS
    problem = await one.problem()
    assert problem
    assert "/secret" not in problem
    assert await one.problem() == problem
    assert opened == 2
    now += probe.REUSE_SECONDS
    assert await one.problem() == ""
    database.close()


async def test_a_database_that_does_not_answer_is_unwritable_and_queried_once():
    answer = threading.Event()
    asked = 0

    def hangs() -> Database:
        nonlocal asked
        asked += 1
        answer.wait(60)
        message = "gone"
        raise UnusableLedgerError(message)

    one = probe.LedgerProbe(hangs, wait_seconds=0.05)
    assert "no write to the ledger" in await one.problem()
    assert "no write to the ledger" in await one.problem()
    assert asked == 1
    answer.set()
