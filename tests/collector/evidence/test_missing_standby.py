"""Rows that only the primary has, because their standby is missing, are not stored."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from support import postgresql
from support.waiting import wait_until

from railscope_collector.evidence.fact_store import FactStore
from railscope_collector.evidence.node_intervals import EvidenceInterval
from railscope_collector.ledger.database import Database, UnusableLedgerError, call_database
from railscope_collector.tables import metadata

STANDBY = "ALTER SYSTEM SET synchronous_standby_names = '{}'"
WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    " OR (wait_event_type = 'Lock' AND backend_type = 'client backend')"
)
"""Transactions that wait for the standby, or for one that does."""


def set_standby(url: str, name: str) -> None:
    """Let each commit of the server wait for a standby; an empty name ends that."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(STANDBY.format(name).encode())
        connection.execute("SELECT pg_reload_conf()")


def count_hanging(url: str) -> int:
    """Return the number of transactions that hang."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(WAITING).fetchone()
    return int(row[0]) if row else 0


END_WAITING = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


async def test_facts_that_only_the_primary_has_are_not_stored() -> None:
    """A commit that waited for the standby ended with its connection; its rows are there when it is repeated."""

    def write() -> None:
        store.write([EvidenceInterval("n1", "boot", 0, 0, 1)], [], range(1))

    with postgresql.running() as server:
        url = server.database()
        database = Database(url, metadata)
        store = FactStore(database)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_commit = off")
        set_standby(url, "missing")
        try:
            first = asyncio.create_task(call_database(write))
            await wait_until(lambda: count_hanging(url) == 1, "a transaction hangs")
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(END_WAITING)
            with pytest.raises(UnusableLedgerError, match="closed the connection"):
                await first
            again = asyncio.create_task(call_database(write))
            await wait_until(
                lambda: again.done() or count_hanging(url) == 1, "a transaction hangs again"
            )
            assert not again.done()
        finally:
            set_standby(url, "")
        await again
        database.close()
