"""The probe of the ledger: only a committed write shows that it can be written."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from railscope_collector.ledger import head_chain, ledger_probe
from railscope_collector.ledger.database import Database, UnusableLedgerError
from railscope_collector.tables import metadata


def test_a_write_is_committed_each_time(url: str):
    database = Database(url, metadata)
    try:
        for _ in range(3):
            ledger_probe.commit_probe(database)
        with database.transaction() as connection:
            assert connection.execute(text("SELECT writes FROM write_probe")).scalar_one() == 3
    finally:
        database.close()


def test_a_database_that_only_reads_is_unwritable(tmp_path: Path):
    file = tmp_path / "ledger.sqlite"
    Database(f"sqlite:///{file}", metadata).close()
    reading = Database(f"sqlite:///file:{file}?mode=rw&uri=true", metadata)
    try:
        ledger_probe.commit_probe(reading)
        with reading.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA query_only = ON")
        with pytest.raises(UnusableLedgerError, match="readonly"):
            ledger_probe.commit_probe(reading)
    finally:
        reading.close()


def test_an_older_copy_is_unwritable(url: str):
    def reject(_: Connection) -> None:
        message = "expected head 7"
        raise head_chain.OlderLedgerError(message)

    database = Database(url, metadata)
    try:
        database.before_writing = reject
        with pytest.raises(UnusableLedgerError, match="older copy: expected head 7"):
            ledger_probe.commit_probe(database)
    finally:
        database.close()


def test_the_reason_why_the_ledger_cannot_be_opened_is_returned():
    def fail() -> Database:
        message = "gone: /secret/path"
        raise UnusableLedgerError(message)

    assert ledger_probe.find_ledger_problem(fail) == "gone: /secret/path"
