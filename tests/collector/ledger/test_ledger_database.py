"""A ledger that cannot be used is one clear error."""

from __future__ import annotations

import socket

import msgspec
import pytest
from days import DAY, START, held, metered
from sqlalchemy import create_engine, inspect, text
from support.metered import revision_of

from collector.ledger.database import Database, UnusableLedgerError
from collector.ledger.ledger_store import Ledger
from collector.ledger.row_conversion import GpuDay
from collector.metering.evidence import ClockDoubt
from collector.tables import metadata


@pytest.fixture
def refused() -> int:
    """A TCP port without a listener while the test runs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_a_server_that_is_not_there_is_named_without_its_password(refused):
    with pytest.raises(UnusableLedgerError) as caught:
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
        UnusableLedgerError, match=r"unable to open database file; fix: check that its directory"
    ):
        Ledger.open(url, metadata)


def test_a_file_that_is_not_a_database(tmp_path):
    path = tmp_path / "ledger.db"
    path.write_text("not a database at all, but long enough to be looked at as one " * 50)
    with pytest.raises(UnusableLedgerError, match="file is not a database"):
        Ledger.open(f"sqlite:///{path}", metadata)


@pytest.mark.parametrize("url", ["", "ledger.db", "postgresql:/hunter2", "://hunter2@x"])
def test_text_that_is_not_a_url(url):
    with pytest.raises(
        UnusableLedgerError, match="expected sqlite:////PATH or postgresql://"
    ) as caught:
        Ledger.open(url, metadata)
    assert "hunter2" not in str(caught.value)


def test_another_kind_of_database():
    with pytest.raises(
        UnusableLedgerError, match=r"mysql://me:\*\*\*@host/ledger: expected sqlite"
    ) as caught:
        Ledger.open("mysql://me:hunter2@host/ledger", metadata)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("version", [2, 5, 9])
def test_another_schema_version_is_rejected_and_left_alone(url, version):
    Ledger.open(url, metadata).close()
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    change = (
        "ALTER TABLE ledger_schema DISABLE TRIGGER USER"
        if engine.dialect.name == "postgresql"
        else "DROP TRIGGER ledger_schema_no_update"
    )
    with engine.begin() as connection:
        connection.execute(text(change))
        connection.execute(text("UPDATE ledger_schema SET version = :v"), {"v": version})
        connection.execute(text("DROP TABLE ledger_stop"))
    for _ in range(2):
        message = f"schema version {version}: expected 6; fix: run the version of Railscope that"
        with pytest.raises(UnusableLedgerError, match=message):
            Ledger.open(url, metadata)
    with engine.begin() as connection:
        assert not inspect(connection).has_table("ledger_stop"), "nothing was created"
    engine.dispose()


def test_a_database_with_tables_of_others_is_rejected(empty_url):
    engine = create_engine(empty_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE ledger_entry (x INTEGER)"))
    engine.dispose()
    with pytest.raises(UnusableLedgerError, match="foreign tables: ledger_entry"):
        Ledger.open(empty_url, metadata)


def test_a_ledger_is_there_after_it_was_closed(empty_url):
    first = Ledger.open(empty_url, metadata)
    tiling = metered(held("GPU-0", "red"))
    first.write(tiling)
    first.close()
    second = Ledger.open(empty_url, metadata)
    assert revision_of(second, "GPU-0", DAY).tiling == tiling
    second.close()


def test_a_database_that_takes_no_more_writes(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'ledger.db'}", metadata)
    ledger = Ledger(database)
    with database.transaction() as connection:
        connection.exec_driver_sql("PRAGMA query_only = ON")
    with pytest.raises(
        UnusableLedgerError, match=r"readonly database; fix: check that its directory"
    ):
        ledger.write(metered(held("GPU-0", "red")))
    assert revision_of(ledger, "GPU-0", DAY) is None
    ledger.close()


def test_a_mark_alone_makes_a_revision(url):
    ledger = Ledger.open(url, metadata)
    unmarked = metered(held("GPU-0", "red"))
    ledger.write(unmarked)
    key = GpuDay("GPU-0", DAY)
    assert ledger.clock_suspect({key: 1}) == {}
    doubts = (ClockDoubt(START, -5), ClockDoubt(START + 1))
    assert ledger.write(msgspec.structs.replace(unmarked, clock_suspect=doubts[::-1])).revision == 2
    assert revision_of(ledger, *key).tiling.clock_suspect == doubts
    assert ledger.clock_suspect({key: 2}) == {key: doubts}
    with ledger.database.transaction() as connection:
        marks = connection.execute(text("SELECT revision, clock_suspect FROM ledger")).all()
    assert set(marks) == {
        (1, None),
        (2, f'[{{"since_ns":{START},"delta_ns":-5}},{{"since_ns":{START + 1},"delta_ns":0}}]'),
    }
    ledger.close()


@pytest.mark.parametrize("mark", ["", "5", '[{"since_ns":1.5}]', '[{"since_ns":7,"delta_ns":7}]'])
def test_a_mark_that_was_altered_is_reported(url, mark):
    ledger = Ledger.open(url, metadata)
    doubts = (ClockDoubt(START, 7),)
    ledger.write(msgspec.structs.replace(metered(held("GPU-0", "red")), clock_suspect=doubts))
    with ledger.database.transaction(writes=True) as connection:
        off = (
            "ALTER TABLE ledger_revision DISABLE TRIGGER USER"
            if connection.dialect.name == "postgresql"
            else "DROP TRIGGER ledger_revision_no_update"
        )
        connection.execute(text(off))
        connection.execute(text("UPDATE ledger_revision SET clock_suspect = :mark"), {"mark": mark})
    with pytest.raises(
        UnusableLedgerError,
        match=r"revision 1 of GPU-0 .* (does not match what was written|invalid)",
    ):
        revision_of(ledger, "GPU-0", DAY)
    ledger.close()
