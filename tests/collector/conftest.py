"""The collector's tests share the makers beside them, and databases of both kinds."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import postgresql

from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.tables import metadata

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def server() -> Iterator[postgresql.PostgreSQL]:
    with postgresql.running() as found:
        yield found


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without tables."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'ledger.db'}"
        return
    found: postgresql.PostgreSQL = request.getfixturevalue("server")
    address = found.database()
    yield address
    found.drop(address)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a new ledger: a copy, because creating its tables takes longer than most tests."""
    if request.param == "sqlite":
        file = tmp_path / "ledger.db"
        shutil.copyfile(request.getfixturevalue("new_ledger_file"), file)
        yield f"sqlite:///{file}"
        return
    found: postgresql.PostgreSQL = request.getfixturevalue("server")
    address = found.database(request.getfixturevalue("new_ledger_database"))
    yield address
    found.drop(address)


@pytest.fixture(scope="session")
def new_ledger_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("new_ledger") / "ledger.db"
    Ledger.open(f"sqlite:///{file}", metadata).close()
    return file


@pytest.fixture(scope="session")
def new_ledger_database(server: postgresql.PostgreSQL) -> str:
    """Name of the database that others are copied from."""
    address = server.database()
    Ledger.open(address, metadata).close()
    return postgresql.name_in(address)


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    found = Ledger.open(url, metadata)
    yield found
    found.close()
