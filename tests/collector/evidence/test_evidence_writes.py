"""Writes of evidence to the database: when an interval is due, in which order, and of facts that are rejected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs
from support.finalizing import FinalizingCollector
from support.postgresql import PostgreSQL
from support.story import DAY, DAY_SECONDS, Envelopes, NodeReporter, accept, claim_started, gpus_of

from railscope_collector.evidence import fact_tables
from railscope_collector.ledger.day_documents import ledger_days


@pytest.mark.statements
async def test_a_gpu_day_that_the_database_rejects_keeps_no_other_from_the_ledger(
    site: FinalizingCollector,
):
    """It is reported once, and written in the first round in which it is accepted."""
    nodes = ["n1", "n2", "n3"]
    for node in nodes:
        accept(site.core, reports(node, f"job-{node}"))
    await site.round(400)
    site.reject(ledger_days, "gpu", "GPU-n2")
    with capture_logs() as logs:
        for second in (DAY_SECONDS + 7200, DAY_SECONDS + 7260):
            await site.round(second, everything=True)
    assert [line["node"] for line in logs if line["event"] == "day_write_failed"] == ["n2"]
    assert site.finalizer.rejected_days.keys() == {("n2", DAY)}
    assert site.stores.ledger.newest(DAY, DAY + 1).keys() == {("GPU-n1", DAY), ("GPU-n3", DAY)}
    site.permit(ledger_days, "gpu")
    await site.round(DAY_SECONDS + 7320)
    assert not site.finalizer.rejected_days
    assert len(site.stores.ledger.newest(DAY, DAY + 1)) == 3


async def test_a_day_that_the_database_rejects_is_written_after_the_next_one(
    site: FinalizingCollector,
):
    accept(site.core, reports("n1", "a"))
    await site.round(400)
    site.reject(ledger_days, "day", str(DAY))
    await site.round(3 * DAY_SECONDS, everything=True)
    assert site.stores.ledger.newest(DAY, DAY + 2).keys() == {("GPU-n1", DAY + 1)}
    site.permit(ledger_days, "day")
    await site.round(3 * DAY_SECONDS + 60)
    assert len(site.stores.ledger.newest(DAY, DAY + 2)) == 2


class RejectingCollector(FinalizingCollector):
    """A collector of a shared database, with queries of its test."""

    def stored(self, node: str) -> int:
        return int(self.reader.acknowledge(node)["stored"])

    def values(self, column: sa.Column[str]) -> set[str]:
        """Return the values of a column in the database."""
        with self.stores.ledger.database.transaction() as connection:
            return set(connection.execute(sa.select(column)).scalars())


@pytest.fixture
def make_rejecting(tmp_path: Path) -> Iterator[Callable[[str], RejectingCollector]]:
    """A collector of a database, by its URL."""
    made: list[RejectingCollector] = []

    def one(url: str) -> RejectingCollector:
        made.append(RejectingCollector(tmp_path / "one", url))
        made[0].begin_positions()
        return made[0]

    yield one
    for site in made:
        site.finalizer.close()


NODES = [f"n{number}" for number in range(7)]


def reports(node: str, claim: str) -> Envelopes:
    """Reports of a node with one GPU, and a claim."""
    events = {30: [claim_started(f"GPU-{node}", claim, 30)]}
    schema = gpus_of(f"GPU-{node}")
    return NodeReporter(node).envelopes_of(schema, range(0, 300, 30), events=events)


@pytest.mark.statements
@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        (fact_tables.quarters, "node", "n3"),
        (fact_tables.claims, "claim", "job-n3"),
    ],
)
async def test_a_fact_that_the_database_rejects_keeps_no_other_from_it(
    make_rejecting: Callable[[str], RejectingCollector],
    url: str,
    table: sa.Table,
    column: str,
    value: str,
):
    """It is reported and counted, waits on disk, and is written once it is accepted."""
    site = make_rejecting(url)
    await site.round(-100)
    site.reject(table, column, value)
    positions = {}
    for node in NODES:
        site.receive(reports(node, f"job-{node}"))
        positions[node] = int(site.reader.acknowledge(node)["position"])
    with capture_logs() as logs:
        for now in (400, 500):
            await site.round(now)
    assert [line["node"] for line in logs if line["event"] == "evidence_rejected"] == ["n3"]
    assert len(site.finalizer.rejected) == 1
    for found in (fact_tables.quarters, fact_tables.claims):
        others = set(NODES) - ({"n3"} if found is table else set())
        assert site.values(found.c.node) == others
    assert {node for node in NODES if site.stored(node) < positions[node]} == {"n3"}
    checkpoint = site.checkpoint()
    site.permit(table, column)
    site.restart(checkpoint)
    site.begin_positions()
    await site.round(600)
    assert site.values(table.c.node) == set(NODES)
    assert not site.finalizer.rejected
    assert site.stored("n3") >= positions["n3"]


async def test_a_closed_connection_rejects_nothing(
    make_rejecting: Callable[[str], RejectingCollector], server: PostgreSQL
):
    """The whole group is written again."""
    rejecting = make_rejecting(server.database())
    await rejecting.round(-100)
    accept(rejecting.core, [*reports("n1", "a"), *reports("n2", "b")])
    rejecting.now = 500
    engine = rejecting.stores.ledger.database.engine

    def end_connection(
        connection: sa.Connection, _cursor: object, statement: str, *_: object
    ) -> None:
        if "INSERT INTO fact_quarter" in statement:
            pid = connection.connection.dbapi_connection.info.backend_pid  # type: ignore[union-attr]
            with psycopg.connect(server.address("postgres"), autocommit=True) as other:
                other.execute(f"SELECT pg_terminate_backend({pid}, 5000)".encode())

    sa.event.listen(engine, "before_cursor_execute", end_connection)
    assert not await rejecting.finalizer.attempt()
    sa.event.remove(engine, "before_cursor_execute", end_connection)
    assert not rejecting.finalizer.rejected
    await rejecting.round(600)
    assert rejecting.values(fact_tables.quarters.c.node) == {"n1", "n2"}
