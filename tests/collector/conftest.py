"""The collector's tests share the makers beside them, and databases of both kinds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import postgresql

from collector.ledger.ledger_store import Ledger
from collector.tables import metadata

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def server() -> Iterator[postgresql.PostgreSQL]:
    with postgresql.running() as found:
        yield found


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'ledger.db'}"
        return
    found: postgresql.PostgreSQL = request.getfixturevalue("server")
    address = found.database()
    yield address
    found.drop(address)


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    found = Ledger.open(url, metadata)
    yield found
    found.close()
