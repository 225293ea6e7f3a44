"""A ledger that cannot be used is one clear error."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from days import DAY, held, metered
from sqlalchemy import create_engine, inspect, make_url, text
from support.metered import revision_of, write_day

from railscope.settings import SettingsError
from railscope_collector.ledger.database import Database, UnusableLedgerError
from railscope_collector.ledger.database_location import check_file
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.tables import metadata


@pytest.fixture
def refused() -> int:
    """A TCP port without a listener while the test runs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("sqlite:///{}/new", ""),
        ("sqlite:///{}/sub", "is a directory: expected"),
        ("sqlite:///{}/gone/new", "gone does not exist: expected"),
        ("sqlite:///file:{}/gone/new?uri=true", ""),
        ("postgresql+psycopg://host/{}/gone/new", ""),
    ],
)
def test_only_a_file_of_sqlite_must_be_writable(tmp_path: Path, url: str, problem: str) -> None:
    (tmp_path / "sub").mkdir()
    rejected = pytest.raises(SettingsError, match=problem) if problem else contextlib.nullcontext()
    with rejected:
        check_file(make_url(url.format(tmp_path)))


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


def test_connections_to_a_server_that_is_gone_end_within_half_a_minute():
    """A server that accepts nothing is enough: the options are those of the socket."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        url = f"postgresql://meter@127.0.0.1:{port}/ledger?connect_timeout=2&keepalives_count=3"
        assert socket_options(url) == {
            "idle": 10,
            "interval": 5,
            "count": 3,
            "unanswered": 30,
        }


def socket_options(url: str) -> dict[str, int]:
    """Return the options of the connection that a ledger tries to open, with the count of its URL."""
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(Ledger.open, url, metadata)
        # Other connections of this process may have a limit as well.
        while not (
            found := [each for each in map(options_of, own_sockets()) if each.get("count") == 3]
        ):
            assert not opening.done()
        with pytest.raises(UnusableLedgerError, match="timeout"):
            opening.result()
    return found[0]


def own_sockets() -> Iterator[socket.socket]:
    """Duplicates of the sockets of this process."""
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(path.readlink()).startswith("socket:"):
                yield socket.socket(fileno=os.dup(int(path.name)))


def options_of(duplicate: socket.socket) -> dict[str, int]:
    """Return the options of a connection with a limit for what is unanswered; none of another socket."""
    names = {"idle": "KEEPIDLE", "interval": "KEEPINTVL", "count": "KEEPCNT"}
    with duplicate, contextlib.suppress(OSError):
        # The option that is set last.
        if limit := duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT):
            found = {
                key: duplicate.getsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}"))
                for key, name in names.items()
            }
            return found | {"unanswered": limit // 1000}
    return {}


def test_a_file_that_is_not_a_database(tmp_path):
    path = tmp_path / "ledger.db"
    path.write_text("not a database at all, but long enough to be looked at as one " * 50)
    with pytest.raises(UnusableLedgerError, match="file is not a database"):
        Ledger.open(f"sqlite:///{path}", metadata)


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
        message = f"schema version {version}: expected 8; fix: run the version of Railscope that"
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


def test_connections_to_a_server_that_became_read_only_are_replaced(server):
    """As of a former primary that lets its clients continue: another server of the URL accepts writes."""
    url = server.database()
    database = Database(url, metadata)
    ledger = Ledger(database)
    with database.transaction() as connection:
        connection.execute(text("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"))
    with pytest.raises(UnusableLedgerError, match="in a read-only transaction; fix: check that"):
        write_day(ledger, metered(held("GPU-0", "red")))
    write_day(ledger, metered(held("GPU-0", "red")))
    assert revision_of(ledger, "GPU-0", DAY)
    ledger.close()
    server.drop(url)
