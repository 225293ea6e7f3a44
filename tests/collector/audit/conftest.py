"""Tests of the outbox run on SQLite and on a real PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import postgresql

from collector.ledger.database import Database


@pytest.fixture(scope="session")
def server() -> Iterator[postgresql.PostgreSQL]:
    with postgresql.running() as found:
        yield found


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty database."""
    if request.param == "sqlite":
        found = Database(f"sqlite:///{tmp_path / 'ledger.db'}")
    else:
        found = Database(request.getfixturevalue("server").database())
    yield found
    found.close()
