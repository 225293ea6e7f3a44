"""Tests of the outbox run on SQLite and on a real PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from railscope_collector.ledger.database import Database
from railscope_collector.tables import metadata


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    """An empty database."""
    found = Database(url, metadata)
    yield found
    found.close()
