"""Writes of evidence to the database: when an interval is due, in which order, and of facts that are rejected."""

from __future__ import annotations

import asyncio
from functools import partial

import sqlalchemy as sa
from support.finalizing import FinalizingCollector
from support.postgresql import PostgreSQL
from support.story import NodeReporter, accept, gpus_of

from collector.evidence import evidence_tables, node_intervals
from collector.ledger.database import Database, call_database
from collector.tables import metadata

QUIET = 60
INTERVAL = node_intervals.INTERVAL_NS // 10**9
HANGING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND backend_type = 'client backend'"


async def test_an_interval_that_is_added_to_again_and_again_is_written(site: FinalizingCollector):
    """By a node that sends frames of one old quarter of an hour, one per minute."""
    node = NodeReporter()
    accept(site.core, node.envelopes_of(gpus_of("GPU-0"), [0]))
    waited = 0
    for now in range(60, 4 * INTERVAL, 60):
        frames = node.frames(gpus_of("GPU-0"), [now // 10])
        accept(site.core, [node.record(frames, sent=now)])
        await site.round(now + 30)
        waited = 0 if not site.core.evidence.intervals.by_key else waited + 60
        assert waited <= INTERVAL + QUIET + 60
    assert 3 <= site.finalizer.counts.intervals <= 4


def contact(gpu: str) -> dict[str, object]:
    return {"node": "n1", "gpu_uuid": gpu, "heard_ns": 1, "pci": ""}


async def test_collectors_that_write_the_same_facts_do_not_deadlock(server: PostgreSQL):
    """One has the facts in the order of their keys, the other in the reverse order."""
    database = Database(server.database(), metadata)
    table, found = evidence_tables.first_contacts, [contact("GPU-1"), contact("GPU-0")]

    def write() -> None:
        with database.transaction(writes=True) as connection:
            evidence_tables.insert_new_rows(connection, table, found)

    def is_waiting() -> bool:
        with database.transaction() as connection:
            return connection.execute(sa.text(HANGING)).scalar_one() > 0

    with database.transaction(writes=True) as connection:
        insert = partial(evidence_tables.insert_new_rows, connection, table)
        insert([contact("GPU-0")])
        writing = asyncio.create_task(call_database(write))
        async with asyncio.timeout(60):
            while not await call_database(is_waiting):
                pass
        await call_database(insert, [contact("GPU-1")])
    await writing
    with database.transaction() as connection:
        assert len(connection.execute(sa.select(table)).all()) == len(found)
    database.close()
