"""Several collectors of one database: one at a time writes ledger days, of all GPUs, and the others follow."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest
import sqlalchemy as sa
from hypothesis import given, strategies as st
from ledger_days import HOURS, LATER, a_day, ledger_hours, tenant_amount
from stories import fleet_histories
from structlog.testing import capture_logs
from support.examples import fewer_examples
from support.finalizing import FinalizingCollector, content
from support.metered import revision_of
from support.postgresql import PostgreSQL
from support.story import DAY, DAY_SECONDS, NodeReporter, accept, gpus_of, seconds_of

from railscope.service import run_in_thread
from railscope_collector.account.finalized_sums import FinalizedSums
from railscope_collector.finalization.finalized_sums import read_finalized
from railscope_collector.ledger import leases
from railscope_collector.ledger.database import Database, call_database
from railscope_collector.ledger.day_tiling import TilingError
from railscope_collector.ledger.ledger_store import Ledger, accept_any

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


@pytest.mark.parametrize("paused_at", ["FOR KEY SHARE", "INSERT INTO ledger_revision"])
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


async def test_the_event_loop_runs_while_a_lost_lease_waits_for_a_renewal_that_hangs(
    pair: list[FinalizingCollector],
):
    one = pair[0]
    accept(one.core, a_day(NodeReporter()))
    writing, written, renewing, renewed = Event(), Event(), Event(), Event()
    has_waited: list[bool] = []

    def pause(*arguments: object) -> None:
        if "INSERT INTO ledger_revision" in str(arguments[2]):
            message = "taken by another collector"
            writing.set()
            assert written.wait(60)
            raise leases.LostLeaseError(message)
        if "UPDATE collector_lease" in str(arguments[2]) and writing.is_set():
            renewing.set()
            has_waited.append(renewed.wait(10))

    sa.event.listen(one.stores.ledger.database.engine, "before_cursor_execute", pause)
    round_ = asyncio.create_task(one.round(LATER))
    assert await run_in_thread(writing.wait, 60)
    renewal = asyncio.create_task(call_database(one.finalizer.lease.renew))
    assert await run_in_thread(renewing.wait, 60)
    written.set()
    done, _ = await asyncio.wait({round_}, timeout=1)
    assert not done, "the round waits for the renewal"
    renewed.set()
    await asyncio.gather(renewal, round_)
    assert has_waited == [True], "and the event loop does not"
    assert one.finalizer.lease.epoch == 0


async def test_collectors_without_the_lease_follow_the_ledger(pair: list[FinalizingCollector]):
    one, two = pair
    envelopes = a_day(NodeReporter())
    for side in pair:
        accept(side.core, [*envelopes[:20], *envelopes[30:]])
    before = await two.account(LATER)
    for side in pair:
        await side.round(LATER, everything=True)
    assert (one.finalizer.counts.days, two.finalizer.counts.days) == (1, 0)
    assert two.live.finalized == one.live.finalized
    assert seconds_of(await two.account(LATER)) == seconds_of(before)
    assert len(two.checkpoint()) < 5000, "what is in the ledger is not in memory"
    accept(two.core, envelopes[20:30])
    for side in (two, one, two):
        await side.round(LATER + 600)
    assert revision_of(one.stores.ledger, "GPU-0", DAY).number == 2
    for side in pair:
        await side.round(LATER + 900, everything=True)
        account = await side.account(LATER + 900)
        assert account.balances
        assert seconds_of(account)["observed", "alice"] == 12 * HOURS
        assert tenant_amount(side, "alice") == 500 * 12 * HOURS
    two.restart(two.checkpoint())
    await two.round(LATER + 960)
    assert two.live.finalized == one.live.finalized


async def test_a_holder_continues_from_what_the_last_one_has_processed(
    pair: list[FinalizingCollector], make: Callable[[str, str], FinalizingCollector]
):
    """Evidence is stored after the last round of the holder; the next one starts a week later."""
    one, two = pair
    envelopes = a_day(NodeReporter())
    accept(one.core, [*envelopes[:20], *envelopes[30:]])
    await one.round(LATER)
    accept(two.core, envelopes[20:30])
    await two.round(LATER + 60)
    assert ledger_hours(two)["inferred", "alice"] > 3
    for side in pair:
        side.finalizer.close()
    three = make("three", one.url)
    await three.round(LATER + 7 * DAY_SECONDS)
    assert ledger_hours(three) == WHOLE
    assert revision_of(three.stores.ledger, "GPU-0", DAY).number == 2


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


class RejectingLedger(Ledger):
    """A ledger that rejects one GPU-day."""

    rejected = ("", 0)

    def write_days(self, tilings, check=accept_any):
        if any((tiling.gpu, tiling.day) == self.rejected for tiling in tilings):
            message = "invalid entries"
            raise TilingError(message)
        return super().write_days(tilings, check)


def reject(side: FinalizingCollector, gpu: str, day: int) -> None:
    """Let a collector's ledger reject one GPU-day; an empty name ends that."""
    ledger = RejectingLedger(side.stores.ledger.database)
    ledger.rejected = (gpu, day)
    side.finalizer._stores = side.stores._replace(ledger=ledger)  # noqa: SLF001 - a ledger that rejects


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("day", [DAY, DAY + 1])
async def test_a_day_that_could_not_be_written_is_reported_and_written_later(
    pair: list[FinalizingCollector], day: int, *, is_lost: bool
):
    """By the same holder, or by the next one; the other days and GPUs are written meanwhile."""
    one, two = pair
    node = NodeReporter()
    accept(one.core, [*a_day(node), *other_node(until=3 * DAY_SECONDS + HOURS)])
    accept(one.core, node.envelopes_of(gpus_of("GPU-0"), range(LATER, 3 * DAY_SECONDS, 30)))
    reject(one, "GPU-0", day)
    with capture_logs() as lines:
        for second in (LATER + DAY_SECONDS, LATER + DAY_SECONDS + 60, LATER + 2 * DAY_SECONDS):
            await one.round(second, everything=True)
    failed = [line for line in lines if line["event"] == "day_write_failed"]
    assert [(line["gpu"], line["problem"]) for line in failed] == [("GPU-0", "invalid entries")]
    assert one.finalizer.rejected_days == {("GPU-0", day): "invalid entries"}
    assert one.finalizer.counts.failures == 3
    written = one.stores.ledger.newest(DAY, DAY + 3)
    assert written.keys() == {
        (gpu, each) for gpu in ("GPU-0", "GPU-1") for each in range(DAY, DAY + 3)
    } - {("GPU-0", day)}
    reject(one, "", 0)
    if is_lost:
        expire(one.stores.ledger.database)
    for side in (two, one) if is_lost else (one,):
        await side.round(LATER + 2 * DAY_SECONDS + 120)
        assert not side.finalizer.rejected_days
        assert revision_of(side.stores.ledger, "GPU-0", day).number == 1


async def test_a_collector_that_stops_releases_the_lease(pair: list[FinalizingCollector]):
    one, two = pair
    running = asyncio.create_task(one.finalizer.run())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await two.round(120)
    assert two.finalizer.lease.epoch == 2


class ScriptedLease(leases.Lease):
    """A lease that is taken by this process only while `is_wanted`, also with SQLite."""

    is_wanted = False

    def take(self, database: Database) -> leases.LeaseTerm | None:
        return super().take(database) if self.is_wanted else None


STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.booleans(), st.booleans(), st.integers(0, 9)),
    min_size=2,
    max_size=12,
)


@fewer_examples(30)
@given(fleet_histories(), st.lists(st.integers(5, 60), min_size=1, max_size=3), STEPS)
async def test_any_collectors_with_any_holders_write_the_ledger_of_one(story, sizes, steps):
    """Each step: frames that one receives, or two do; then its round, as the holder or not."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        alone = FinalizingCollector(directory / "alone", f"sqlite:///{directory / 'alone.db'}")
        sides = [
            FinalizingCollector(directory / f"side-{n}", f"sqlite:///{directory / 'shared.db'}")
            for n in range(3)
        ]
        for side in sides:
            side.finalizer.lease = ScriptedLease(leases.FINALIZATION)
        envelopes = story.envelopes(sizes)
        accept(alone.core, envelopes)
        rest, second = list(envelopes), float(LATER)
        for receiver, is_holder, is_sent_twice, count in [*steps, (0, False, True, len(envelopes))]:
            for side in (sides[receiver], *sides[receiver - 1 : receiver] * is_sent_twice):
                accept(side.core, rest[:count])
            del rest[:count]
            sides[receiver].finalizer.lease.is_wanted = is_holder
            await sides[receiver].round(second)
            second += 200
        for last in (1, 2):
            for number, side in enumerate(sides):
                side.finalizer.lease.is_wanted = number == last
                await side.round(second)
            second += 200
        for side in (sides[0], sides[1], alone):
            await side.round(second)
        expected = content(alone.stores.ledger, range(DAY, DAY + 1))
        assert content(sides[0].stores.ledger, range(DAY, DAY + 1)) == expected
        for side in sides:
            assert side.live.finalized == read_ledger(side), "as after a restart"
        for side in (alone, *sides):
            side.finalizer.close()


def read_ledger(side: FinalizingCollector) -> FinalizedSums:
    """Return the sums of the ledger about the GPUs of a collector."""
    ledger: Ledger = side.stores.ledger
    found = read_finalized(ledger, side.core.evidence.gpus.keys(), DAY)
    sums = FinalizedSums()
    sums.add_gpus(found)
    return sums
