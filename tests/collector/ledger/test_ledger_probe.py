"""The probe of the ledger: only a committed write shows that it can be written."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from railscope_collector.ledger import ledger_probe
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
