"""Several collectors of one database: one at a time writes ledger days, of all GPUs, and the others follow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from threading import Event

import pytest
import sqlalchemy as sa
from ledger_days import HOURS, LATER, a_day, ledger_hours
from support.finalizing import FinalizingCollector
from support.metered import revision_of
from support.postgresql import PostgreSQL
from support.story import DAY, DAY_SECONDS, NodeReporter, accept, gpus_of, seconds_of

from railscope.service import run_in_thread
from railscope_collector.ledger import leases
from railscope_collector.ledger.database import Database

WHOLE = {("idle", ""): 6, ("observed", "alice"): 12, ("observed", "kubernetes:ns"): 6}


@pytest.fixture
def shared(server: PostgreSQL, new_ledger_database: str) -> Iterator[str]:
    """URL of a database of PostgreSQL."""
    address = server.database(new_ledger_database)
    yield address
    server.drop(address)


@pytest.fixture
async def pair(
    make: Callable[[str, str], FinalizingCollector], shared: str
) -> list[FinalizingCollector]:
    """Two collectors; the first holds the lease."""
    sides = [make(name, shared) for name in ("one", "two")]
    for side in sides:
        await side.round(60)
    assert [side.finalizer.lease.epoch for side in sides] == [1, 0]
    return sides


def expire(database: Database) -> None:
    """Let the lease of its holder end now."""
    with database.transaction(writes=True) as connection:
        connection.execute(sa.update(leases.rows).values(expires_at=sa.func.clock_timestamp()))


def other_node(until: int = DAY_SECONDS + HOURS):
    """Reports of another node, with GPU-1."""
    node = NodeReporter("n2", "boot-2", "run-2")
    return node.envelopes_of(gpus_of("GPU-1"), range(0, until, 30), each=40)


async def test_the_days_of_all_gpus_are_written_after_their_collector_was_lost(
    pair: list[FinalizingCollector],
):
    one, two = pair
    accept(one.core, a_day(NodeReporter()))
    accept(two.core, other_node())
    await one.round(DAY_SECONDS + HOURS - 30, everything=True)
    expire(one.stores.ledger.database)  # and nothing of `one` runs from here on
    await two.round(LATER)
    assert two.finalizer.lease.epoch == 2
    assert ledger_hours(two) == {**WHOLE, ("idle", ""): 30}
    await two.round(LATER + DAY_SECONDS)
    assert revision_of(two.stores.ledger, "GPU-0", DAY + 1) is not None
    assert two.core.evidence.gpus.keys() == {"GPU-1"}
    account = await two.account(LATER + DAY_SECONDS)
    assert account.balances
    assert account.gpus == 1, "the account has only the GPUs whose frames it received"


@pytest.mark.parametrize("paused_at", ["FOR KEY SHARE", "INSERT INTO ledger_day"])
async def test_a_holder_that_is_paused_before_its_write_writes_nothing(
    pair: list[FinalizingCollector], paused_at: str
):
    """Paused after it loaded the evidence: before the check of its lease, and after it."""
    one, two = pair
    envelopes = a_day(NodeReporter())
    accept(one.core, [*envelopes[:20], *envelopes[30:]])
    accept(two.core, envelopes[20:30])
    paused, resumed = Event(), Event()

    def pause(*arguments: object) -> None:
        if paused_at in str(arguments[2]) and not paused.is_set():
            paused.set()
            assert resumed.wait(60)

    sa.event.listen(one.stores.ledger.database.engine, "before_cursor_execute", pause)
    writing = asyncio.create_task(one.round(LATER))
    assert await run_in_thread(paused.wait, 60)
    expire(two.stores.ledger.database)
    await two.round(LATER)
    is_checked = paused_at != "FOR KEY SHARE"
    assert two.finalizer.lease.epoch == (0 if is_checked else 2), "not taken during a checked write"
    resumed.set()
    await writing
    if not is_checked:
        assert ledger_hours(two) == WHOLE
        assert one.finalizer.lease.epoch == 0
        await one.round(LATER + 30)
    for side in (one, two):
        assert revision_of(side.stores.ledger, "GPU-0", DAY).number == 1
        assert not side.finalizer.is_failing
    expire(two.stores.ledger.database)
    for side in (two, one):
        await side.round(LATER + 60)
        assert ledger_hours(side) == WHOLE, "what the other has stored meanwhile counts"
        assert seconds_of(await side.account(LATER + 60))["observed", "alice"] == 12 * HOURS
    assert revision_of(two.stores.ledger, "GPU-0", DAY).number == 1 + is_checked


async def test_a_collector_that_cannot_finalize_leaves_the_lease_to_another(
    pair: list[FinalizingCollector],
):
    one, two = pair
    one.finalizer.hold_reason = lambda: "its clock is suspect"
    for side in pair:
        await side.round(120)
    assert [side.finalizer.lease.epoch for side in pair] == [0, 2]

    def fail() -> None:
        message = "the disk is full"
        raise OSError(message)

    one.finalizer.hold_reason = lambda: ""
    two.finalizer.check = fail
    assert not await two.finalizer.attempt()
    await one.round(180)
    assert [side.finalizer.lease.epoch for side in pair] == [3, 0]


async def test_a_collector_that_stops_releases_the_lease(pair: list[FinalizingCollector]):
    one, two = pair
    running = asyncio.create_task(one.finalizer.run())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await two.round(120)
    assert two.finalizer.lease.epoch == 2
