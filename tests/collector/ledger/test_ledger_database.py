"""A ledger that cannot be used is one clear error."""

from __future__ import annotations

import socket

import pytest
from days import DAY, held, metered
from sqlalchemy import create_engine, text
from support.metered import revision_of

from collector.ledger.database import Database, LedgerError
from collector.ledger.ledger_store import Ledger
from collector.tables import metadata


@pytest.fixture
def refused() -> int:
    """A TCP port without a listener while the test runs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_a_server_that_is_not_there_is_named_without_its_password(refused):
    with pytest.raises(LedgerError) as caught:
        Ledger.open(
            f"postgresql://meter:hunter2@127.0.0.1:{refused}/ledger?password=hunter3", metadata
        )
    message = str(caught.value)
    assert f"127.0.0.1:{refused}/ledger" in message
    assert "meter:***" in message
    assert "hunter" not in message
    assert "check that the server runs" in message
    assert "\n" not in message


def test_a_directory_that_is_not_there(tmp_path):
    url = f"sqlite:///{tmp_path / 'missing' / 'ledger.db'}"
    with pytest.raises(
        LedgerError, match=r"unable to open database file; fix: check that its directory"
    ):
        Ledger.open(url, metadata)


def test_a_file_that_is_no_database(tmp_path):
    path = tmp_path / "ledger.db"
    path.write_text("not a database at all, but long enough to be looked at as one " * 50)
    with pytest.raises(LedgerError, match="file is not a database"):
        Ledger.open(f"sqlite:///{path}", metadata)


@pytest.mark.parametrize("url", ["", "ledger.db", "postgresql:/hunter2", "://hunter2@x"])
def test_what_is_no_url(url):
    with pytest.raises(LedgerError, match="expected sqlite:////PATH or postgresql://") as caught:
        Ledger.open(url, metadata)
    assert "hunter2" not in str(caught.value)


def test_another_kind_of_database():
    with pytest.raises(
        LedgerError, match=r"mysql://me:\*\*\*@host/ledger: expected sqlite"
    ) as caught:
        Ledger.open("mysql://me:hunter2@host/ledger", metadata)
    assert "hunter2" not in str(caught.value)


def test_another_schema_version_is_refused_and_left_alone(url):
    Ledger.open(url, metadata).close()
    database = Database(url, metadata)
    with database.transaction(writes=True) as connection:
        connection.execute(text("INSERT INTO ledger_schema VALUES (9)"))
    database.close()
    for _ in range(2):
        with pytest.raises(LedgerError, match="schema version 9: expected 6"):
            Ledger.open(url, metadata)


def test_a_database_with_tables_of_others_is_refused(url):
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE ledger_entry (x INTEGER)"))
    engine.dispose()
    with pytest.raises(LedgerError, match="foreign tables: ledger_entry"):
        Ledger.open(url, metadata)


def test_a_ledger_is_there_after_it_was_closed(url):
    first = Ledger.open(url, metadata)
    tiling = metered(held("GPU-0", "red"))
    first.write(tiling)
    first.close()
    second = Ledger.open(url, metadata)
    assert revision_of(second, "GPU-0", DAY).tiling == tiling
    second.close()


def test_a_database_that_takes_no_more_writes(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'ledger.db'}", metadata)
    ledger = Ledger(database)
    with database.transaction() as connection:
        connection.exec_driver_sql("PRAGMA query_only = ON")
    with pytest.raises(LedgerError, match=r"readonly database; fix: check that its directory"):
        ledger.write(metered(held("GPU-0", "red")))
    assert revision_of(ledger, "GPU-0", DAY) is None
    ledger.close()
