"""From frames to the ledger, on SQLite and PostgreSQL: stored once, settled, revised, never lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError
from structlog.testing import capture_logs
from support.settling import Site, content
from support.story import (
    DAY,
    DAY_SECONDS,
    Reporter,
    accept,
    at,
    ended,
    gpus_of,
    host,
    seconds_of,
    started,
)

from collector.account.amounts import Whose
from collector.account.quotas import days_of
from collector.audit.outbox import outbox
from collector.evidence.chunk import encode
from collector.evidence.schema import claims, homes, parts
from collector.evidence.store import ready
from collector.ledger.tiling import DAY_NS
from collector.metering.measures import Measure, Use
from collector.metering.tiling import State, tile
from collector.metering.units import GPU_CAPACITY, Tiling

HOURS = 3600
LATER = DAY_SECONDS + 2 * HOURS
ALICE = {"tenant": "alice"}
MAP = "tenant,source,owner,from,to\n"


@pytest.fixture
def site(make, url: str) -> Site:
    return make("one", url)


def a_day(node: Reporter, *, until: int = DAY_SECONDS + HOURS, step: int = 30):
    """A GPU's day and an hour; alice holds it from 6:00 to 18:00, somebody's namespace after."""
    events = {
        6 * HOURS: [started("GPU-0", "a", 6 * HOURS, **ALICE)],
        18 * HOURS: [
            ended("GPU-0", "a", 18 * HOURS),
            started("GPU-0", "b", 18 * HOURS, source="kubernetes", owner="ns"),
        ],
    }
    return node.told(gpus_of("GPU-0"), range(0, until, step), each=40, events=events)


def hours(site: Site, day: int = DAY) -> dict[tuple[str, str], float]:
    """What the ledger has of a day, in GPU-hours of compute by state and tenant."""
    totals = site.door.ledger.totals(day * DAY_NS, (day + 1) * DAY_NS)
    return {
        (of.state.value, of.tenant): quantity / (GPU_CAPACITY * HOURS * 10**9)
        for of, quantity in totals.items()
        if of.tiling is Tiling.COMPUTE
    }


def amount(site: Site, tenant: str, measure: Measure = Measure.ENERGY) -> int:
    return site.live.amounts.totals().get(Whose(measure, Use.ATTRIBUTED, tenant), 0)


async def test_a_day_goes_to_the_ledger_when_it_is_over_and_the_account_goes_on(site: Site):
    accept(site.core, a_day(Reporter()))
    before = await site.account(LATER)
    await site.round(DAY_SECONDS + 1800)
    assert hours(site) == {}, "not before its delay has passed"
    await site.round(LATER)
    assert hours(site) == {
        ("idle", ""): 6, ("observed", "alice"): 12, ("observed", "kubernetes:ns"): 6,
    }  # fmt: skip
    after = await site.account(LATER)
    assert after.balances
    assert seconds_of(after) == seconds_of(before)
    assert after.gpus == 1
    for account in (before, after):
        held = account.held(*days_of("month", at(LATER)))
        assert held["alice"] == 12 * HOURS * 10**9 * GPU_CAPACITY
    found = site.door.ledger.revision("GPU-0", DAY).tiling
    assert found.sku == "h100-80gb-hbm3"
    assert set(site.door.ledger.tiled(DAY, DAY + 1).values()) == {GPU_CAPACITY * DAY_NS}
    evidence = site.door.store.evidence("GPU-0", at(0), at(DAY_SECONDS)).evidence
    assert tuple(tile(evidence, at(0), at(DAY_SECONDS))) == found.entries
    assert site.door.store.gpus() == ["GPU-0"]


async def test_amounts_are_those_of_the_counters_before_and_after_a_day_is_settled(site: Site):
    accept(site.core, a_day(Reporter(booted_at=-6000)))
    await site.round(DAY_SECONDS + HOURS - 1, everything=True)
    expected = {"alice": 500 * 12 * HOURS, "kubernetes:ns": 500 * (7 * HOURS - 30)}
    assert {tenant: amount(site, tenant) for tenant in expected} == expected, "open days"
    await site.round(LATER)
    assert {tenant: amount(site, tenant) for tenant in expected} == expected, "settled and open"
    site.restart(site.checkpoint())
    await site.round(LATER + 60)
    assert {tenant: amount(site, tenant) for tenant in expected} == expected, "after a restart"


async def test_what_is_stored_leaves_the_memory(site: Site):
    accept(site.core, a_day(Reporter()))
    assert len(site.core.evidence.chunks) > 90
    await site.round(DAY_SECONDS + HOURS - 30)
    assert len(site.core.evidence.chunks) <= 2, "but what is still growing"
    await site.round(LATER)
    assert not site.core.evidence.chunks
    assert not site.core.evidence.unwritten
    assert len(site.checkpoint()) < 5000


async def test_late_evidence_makes_a_revision(site: Site):
    node = Reporter()
    envelopes = a_day(node)
    late = envelopes[20:30]
    accept(site.core, [*envelopes[:20], *envelopes[30:]])
    await site.round(LATER)
    assert hours(site)["inferred", "alice"] > 1
    accept(site.core, late)
    await site.round(LATER + 600)
    assert hours(site) == {
        ("idle", ""): 6, ("observed", "alice"): 12, ("observed", "kubernetes:ns"): 6,
    }  # fmt: skip
    revision = site.door.ledger.revision("GPU-0", DAY)
    assert (revision.number, revision.supersedes) == (2, 1)
    account = await site.account(LATER + 600)
    assert account.balances
    assert ("inferred", "alice") not in seconds_of(account)
    await site.round(LATER + 1200)
    assert site.door.ledger.revision("GPU-0", DAY).number == 2, "nothing new, no revision"


async def test_a_claim_told_late_moves_settled_time_to_its_tenant(site: Site):
    node = Reporter()
    accept(site.core, node.told(gpus_of("GPU-0"), range(0, DAY_SECONDS + HOURS, 30), each=40))
    await site.round(LATER)
    told = started("GPU-0", "x", 20 * HOURS, **ALICE)
    accept(site.core, node.told(host(), [LATER], events={LATER: [told]}))
    await site.round(LATER + 600)
    assert hours(site) == {("idle", ""): 20, ("observed", "alice"): 4}
    assert amount(site, "alice") > 0


async def test_a_change_of_the_tenants_file_revises_the_days_it_is_about(site: Site):
    accept(site.core, a_day(Reporter()))
    await site.round(LATER)
    assert hours(site)["observed", "kubernetes:ns"] == 6
    site.texts["tenants"] = MAP + "bob,kubernetes,ns,2026-09-04T00:00:00Z,\n"
    await site.round(LATER + 600)
    assert hours(site)["observed", "bob"] == 6
    assert amount(site, "bob") > 500 * 6 * HOURS, "the open day's too"
    assert amount(site, "kubernetes:ns") == 0
    site.restart(site.checkpoint())
    await site.round(LATER + 700)
    assert site.door.ledger.revision("GPU-0", DAY).number == 2
    with site.door.ledger.database.transaction() as connection:
        rows = connection.execute(select(outbox.c.type, outbox.c.data)).all()
    assert [row.type for row in rows] == ["billing.tenant_map"], "an auditor learns of it, once"
    assert '"rows":1' in rows[0].data


async def test_a_tenants_file_that_is_corrected_soon_after_a_change_counts_as_corrected(site: Site):
    accept(site.core, a_day(Reporter()))
    await site.round(LATER)
    for seconds, tenant in ((600, "bbo"), (660, "bob")):
        site.texts["tenants"] = MAP + f"{tenant},kubernetes,ns,2026-09-04T00:00:00Z,\n"
        await site.round(LATER + seconds)
    assert hours(site)["observed", "bob"] == 6


async def test_a_claim_told_late_counts_though_another_ended_where_it_starts(site: Site):
    node = Reporter()
    accept(site.core, node.told(gpus_of("GPU-0"), range(0, DAY_SECONDS + HOURS, 30), each=40))
    bob = started("GPU-0", "y", 20 * HOURS, tenant="bob")
    late = [started("GPU-0", "x", 10 * HOURS, **ALICE), ended("GPU-0", "x", 20 * HOURS)]
    await site.round(LATER)
    for second, events in ((LATER + 30, late), (LATER + 60, [bob])):
        accept(site.core, node.told(host(), [second], events={second: events}))
        await site.round(second)
    assert hours(site) == {
        ("idle", ""): 10, ("observed", "alice"): 10, ("observed", "bob"): 4,
    }  # fmt: skip


async def test_a_collector_that_takes_over_goes_on_from_the_ledger(make, url: str):
    one, two = make("one", url), make("two", url)
    days, node = 6, Reporter()
    claim = {HOURS: [started("GPU-0", "a", HOURS, **ALICE)]}
    for day in range(days):
        seconds = range(day * DAY_SECONDS, (day + 1) * DAY_SECONDS, 30)
        accept(one.core, node.told(gpus_of("GPU-0"), seconds, each=200, events=claim))
        await one.round((day + 1) * DAY_SECONDS, everything=True)
    now = days * DAY_SECONDS + 2 * HOURS
    await one.round(now - HOURS)
    await one.round(now - HOURS, everything=True)
    accept(two.core, node.told(gpus_of("GPU-0"), range(now - 600, now, 30)))
    await two.round(now)
    assert two.live.settled == one.live.settled
    assert set(one.door.ledger.newest(DAY, DAY + days - 1).values()) == {1}
    assert two.settler.counts.days < days, "only what was recorded lately is looked at again"
    await two.round(now, everything=True)
    assert amount(two, "alice") == 500 * (now - 30 - HOURS)


async def test_what_came_late_to_a_collector_that_ended_counts_for_the_one_that_takes_over(
    make, url: str
):
    one, two = make("one", url), make("two", url)
    envelopes = a_day(Reporter())
    accept(one.core, [*envelopes[:20], *envelopes[30:]])
    await one.round(LATER)
    assert hours(one)["inferred", "alice"] > 1
    accept(one.core, envelopes[20:30])
    written = [ready(kept.chunk, encode(kept.chunk)) for kept in one.core.evidence.chunks.values()]
    one.door.store.write(written, [], at(LATER + 60))
    await two.round(LATER + 90)
    later = LATER + 7 * DAY_SECONDS
    accept(two.core, Reporter().told(gpus_of("GPU-0"), range(later - 600, later, 30)))
    await two.round(later)
    assert hours(two) == {
        ("idle", ""): 6, ("observed", "alice"): 12, ("observed", "kubernetes:ns"): 6,
    }  # fmt: skip


async def test_a_claim_that_was_lost_with_a_boot_stays_ended_once_that_boot_is_settled(site: Site):
    noon = 12 * HOURS
    events = {6 * HOURS: [started("GPU-0", "a", 6 * HOURS, **ALICE)]}
    before = Reporter().told(gpus_of("GPU-0"), range(0, noon, 30), each=40, events=events)
    accept(site.core, before)
    anew = Reporter(boot_id="boot-2", run="run-2", booted_at=noon - 60)
    for day in range(3):
        seconds = range(max(noon, day * DAY_SECONDS), (day + 1) * DAY_SECONDS, 30)
        accept(site.core, anew.told(gpus_of("GPU-0"), seconds, each=200))
        await site.round((day + 1) * DAY_SECONDS, everything=True)
    assert hours(site)["observed", "alice"] == pytest.approx(6 - 30 / HOURS)
    assert hours(site, DAY + 1) == {("idle", ""): 24}
    account = await site.account(3 * DAY_SECONDS)
    assert account.balances
    assert seconds_of(account)["observed", "alice"] == 6 * HOURS - 30
    assert not site.core.evidence.gpus["GPU-0"].told, "it is not kept for ever"


async def test_collectors_whose_files_differ_do_not_take_turns(make, url: str):
    sides = [make(name, url) for name in ("one", "two")]
    for one, tenant in zip(sides, ("bob", "carol"), strict=True):
        accept(one.core, a_day(Reporter()))
        one.texts["tenants"] = MAP + f"{tenant},kubernetes,ns,2026-09-04T00:00:00Z,\n"
    for turn in range(4):
        for one in sides:
            await one.round(LATER + 60 * turn)
    revision = sides[0].door.ledger.revision("GPU-0", DAY)
    assert revision.number == 2, "the file that was written last counts"
    assert "carol" in {entry.tenant for entry in revision.tiling.entries}


async def test_a_node_that_never_comes_back_is_settled_day_by_day(site: Site):
    accept(site.core, a_day(Reporter(), until=20 * HOURS))
    await site.round(3 * DAY_SECONDS + 2 * HOURS)
    assert hours(site, DAY + 1) == {("inferred", "kubernetes:ns"): 24}
    entries = site.door.ledger.entries(at(DAY_SECONDS), at(2 * DAY_SECONDS), "GPU-0")
    assert {(e.state, e.witness.name) for e in entries} == {(State.INFERRED, "NONE")}
    account = await site.account(3 * DAY_SECONDS + 2 * HOURS)
    assert account.balances
    assert account.capacity == GPU_CAPACITY * (at(3 * DAY_SECONDS + 2 * HOURS) - at(0))


async def test_a_node_that_comes_back_after_days_ends_the_silence_of_all_of_them(site: Site):
    node = Reporter()
    accept(site.core, a_day(node, until=20 * HOURS))
    await site.round(2 * DAY_SECONDS + 2 * HOURS)
    back = 2 * DAY_SECONDS + 2 * HOURS
    accept(site.core, node.told(gpus_of("GPU-0"), range(back, back + 600, 30)))
    await site.round(back + 1200)
    silences = {
        entry.silence_ns
        for entry in site.door.ledger.entries(at(DAY_SECONDS), at(2 * DAY_SECONDS), "GPU-0")
    }
    assert silences == {at(back) - at(20 * HOURS - 30)}, "its length is known now"


async def test_a_gpu_that_was_silent_at_midnight_keeps_its_silence(site: Site):
    node = Reporter()
    accept(site.core, a_day(node, until=20 * HOURS))
    back = DAY_SECONDS + HOURS
    accept(site.core, node.told(gpus_of("GPU-0"), range(back, LATER, 30)))
    before = await site.account(LATER)
    await site.round(LATER)
    after = await site.account(LATER)
    assert after.balances
    assert seconds_of(after) == seconds_of(before)
    assert seconds_of(after)["inferred", "kubernetes:ns"] == 5 * HOURS + 60


async def test_who_had_a_gpu_first_has_it_on_later_days_too(site: Site):
    end = 4 * DAY_SECONDS
    rightful = Reporter().told(gpus_of("GPU-0"), range(0, end + 3600, 30), each=120)
    other = Reporter("n2", "boot-9").told(
        gpus_of("GPU-0"), range(end - 50 * HOURS, end, 30), each=1
    )
    received = sorted([*rightful, *other], key=lambda pair: pair[0].received_wall_ns)
    for until in range(LATER, LATER + end, DAY_SECONDS):
        accept(site.core, [e for e in received if e[0].received_wall_ns < at(until)])
        received = [e for e in received if e[0].received_wall_ns >= at(until)]
        await site.round(until)
        await site.account(until)
    assert hours(site, DAY + 3) == {("idle", ""): 24}
    entries = site.door.ledger.entries(at(3 * DAY_SECONDS), at(end))
    assert {entry.node for entry in entries} == {"n1"}


async def test_a_counter_that_starts_over_is_told(site: Site):
    heard: list = []
    site.core.evidence.listeners.append(heard.append)
    accept(site.core, a_day(Reporter(), until=HOURS))
    after = Reporter(boot_id="boot-2", run="run-2", booted_at=HOURS)
    accept(site.core, after.told(gpus_of("GPU-0"), range(HOURS, 2 * HOURS, 30)))
    await site.round(3 * HOURS)
    await site.round(3 * HOURS + 60)
    assert [(t.kind, t.gpu, t.facts["measure"], t.instant_ns) for t in heard] == [
        ("counter_reset", "GPU-0", "energy", at(HOURS))
    ]


async def test_two_claims_on_one_slot_are_in_the_audit_log_once_for_ever(site: Site):
    begins = [started("GPU-0", "a", 0, **ALICE), started("GPU-0", "b", 1800, tenant="bob")]
    accept(site.core, Reporter().told(gpus_of("GPU-0"), range(0, HOURS, 30), events={0: begins}))
    checkpoint = site.checkpoint()
    for _ in range(2):
        await site.round(2 * HOURS)
        await site.account(2 * HOURS)
        await site.round(2 * HOURS + 60)
        with site.door.ledger.database.transaction() as connection:
            rows = connection.execute(select(outbox)).all()
        site.restart(checkpoint)
    assert [(row.type, row.outcome, row.recorded_ns) for row in rows] == [
        ("tenancy.conflict", "seen", at(1800))
    ]
    assert '"earlier":"a"' in rows[0].data
    assert '"gpu":"GPU-0"' in rows[0].subject


async def test_two_collectors_with_overlapping_frames_write_what_one_would(
    make, tmp_path: Path, url: str
):
    sides = [make(name, url) for name in ("one", "two")]
    alone = make("alone", f"sqlite:///{tmp_path / 'alone.db'}")
    envelopes = a_day(Reporter())
    accept(alone.core, envelopes)
    accept(sides[0].core, [e for at_, e in enumerate(envelopes) if at_ % 3 != 0])
    accept(sides[1].core, [e for at_, e in enumerate(envelopes) if at_ % 3 != 1])
    for turn in range(2):
        for one in (*sides, alone):
            await one.round(LATER + 400 * turn)
    assert content(sides[0].door.ledger, range(DAY, DAY + 1)) == content(
        alone.door.ledger, range(DAY, DAY + 1)
    )
    for one in sides:
        account = await one.account(LATER + 400)
        assert account.balances
        assert seconds_of(account)["observed", "kubernetes:ns"] > 6 * HOURS + 1800, (
            "each knows the claims that the other was told"
        )


async def test_the_same_facts_of_two_collectors_are_there_once(make, url: str):
    sides = [make(name, url) for name in ("one", "two")]
    counts = []
    for one in sides:
        accept(one.core, a_day(Reporter()))
        await one.round(LATER)
        with one.door.ledger.database.transaction() as connection:
            counts.append(connection.execute(select(func.count()).select_from(parts)).scalar())
    assert counts[0] == counts[1] > 0
    assert sides[0].door.ledger.revision("GPU-0", DAY).number == 1


@pytest.mark.parametrize("cut", [0, 7, 40, 73])
async def test_a_restart_at_any_point_leaves_the_ledger_as_it_would_be(
    make, tmp_path: Path, url: str, cut: int
):
    envelopes = a_day(Reporter())
    whole = make("whole", f"sqlite:///{tmp_path / 'whole.db'}")
    accept(whole.core, envelopes)
    await whole.round(LATER)
    site = make("one", url)
    accept(site.core, envelopes[:cut])
    checkpoint = site.checkpoint()
    accept(site.core, envelopes[cut : cut + 5])
    await site.round(20 * HOURS)
    site.restart(checkpoint)
    accept(site.core, envelopes[max(0, cut - 3) :])
    await site.round(LATER)
    days = range(DAY, DAY + 1)
    assert content(site.door.ledger, days) == content(whole.door.ledger, days)
    assert seconds_of(await site.account(LATER)) == seconds_of(await whole.account(LATER))
    assert site.live.amounts.totals() == whole.live.amounts.totals()


async def test_while_the_database_is_away_nothing_is_lost_and_it_is_said_once(make, tmp_path: Path):
    gone = tmp_path / "gone"
    site = make("one", f"sqlite:///{gone / 'ledger.db'}")
    accept(site.core, a_day(Reporter()))
    site.now = LATER
    with capture_logs() as logs:
        assert not await site.settler.attempt()
        assert not await site.settler.attempt()
        assert not site.live.ready
        waiting = len(site.core.evidence.chunks)
        assert waiting > 90
        assert site.core.evidence.unwritten
        checkpoint = site.checkpoint()
        gone.mkdir()
        site.restart(checkpoint)
        site.now = LATER
        assert await site.settler.attempt()
    said = [line["event"] for line in logs if line["log_level"] == "error"]
    assert said == ["evidence_not_stored"]
    assert hours(site)["observed", "alice"] == 12


async def test_a_database_that_goes_away_later_keeps_everything_waiting(site: Site):
    accept(site.core, a_day(Reporter(), until=12 * HOURS))
    await site.round(12 * HOURS)
    stored = len(site.core.evidence.chunks)
    site.door.store.write = _fail  # type: ignore[method-assign]
    accept(site.core, a_day(Reporter(run="run-2")))
    site.now = LATER
    assert not await site.settler.attempt()
    assert len(site.core.evidence.chunks) > stored
    assert not any(kept.stored for kept in site.core.evidence.chunks.values())
    del site.door.store.write
    assert await site.settler.attempt()
    assert hours(site)["observed", "alice"] == 12
    assert site.settler.counts.failures == 1


async def test_claims_that_another_collector_was_told_are_asked_for_until_they_are_known(
    make, url: str
):
    one, two = make("one", url), make("two", url)
    claim = {HOURS: [started("GPU-0", "a", HOURS, **ALICE)]}
    node = Reporter()
    accept(one.core, node.told(gpus_of("GPU-0"), range(0, 2 * HOURS, 30), events=claim))
    await one.round(2 * HOURS, everything=True)
    await two.round(2 * HOURS)
    accept(two.core, node.told(gpus_of("GPU-0"), range(2 * HOURS, 3 * HOURS, 30)))
    two.now = 3 * HOURS
    two.door.store.told = _fail  # type: ignore[method-assign]
    assert not await two.settler.attempt()
    del two.door.store.told
    assert await two.settler.attempt()
    assert seconds_of(await two.account(3 * HOURS)).get(("observed", "alice")) == HOURS - 30


async def test_open_amounts_that_could_not_be_counted_anew_are_counted_anew_later(site: Site):
    node = Reporter()
    accept(site.core, node.told(gpus_of("GPU-0"), range(0, 6 * HOURS, 30), each=40))
    await site.round(6 * HOURS, everything=True)
    late = started("GPU-0", "x", HOURS, **ALICE)
    accept(site.core, node.told(host(), [6 * HOURS], events={6 * HOURS: [late]}))
    site.door.store.newest_end_ns = _fail  # type: ignore[method-assign]
    site.now = 6 * HOURS + 60
    assert not await site.settler.attempt()
    del site.door.store.newest_end_ns
    assert await site.settler.attempt()
    assert amount(site, "alice") == 500 * (5 * HOURS - 30)


def _fail(*_: object) -> None:
    raise OSError(28, "No space left on device")


async def test_a_part_that_was_altered_is_said_and_counts_as_not_seen(make, tmp_path: Path):
    site = make("one", f"sqlite:///{tmp_path / 'ledger.db'}")
    accept(site.core, a_day(Reporter(), until=2 * HOURS))
    await site.round(3 * HOURS)
    with site.door.ledger.database.engine.begin() as connection:
        connection.execute(text("DROP TRIGGER evidence_part_no_update"))
        rows = connection.execute(select(parts).order_by(parts.c.start_ns)).all()
        for row, content_ in ((rows[2], rows[3].content), (rows[3], b"nonsense")):
            connection.execute(
                parts.update().where(parts.c.part == row.part).values(content=content_)
            )
    with capture_logs() as logs:
        known = site.door.store.evidence("GPU-0", at(0), at(2 * HOURS))
    assert [line["event"] for line in logs] == ["evidence_damaged"] * 2
    assert {"it was altered"} < {line["problem"] for line in logs}
    assert len(known.evidence.stretches) == 2


async def test_a_part_that_cannot_be_written_takes_no_other_with_it(site: Site):
    accept(site.core, a_day(Reporter(), until=6 * HOURS))
    *_, last = site.core.evidence.chunks.values()
    end_ns, last.chunk.end_ns = last.chunk.end_ns, 1 << 70
    waiting = len(site.core.evidence.chunks)
    for now in (7 * HOURS, 8 * HOURS):
        assert not await _attempted(site, now)
        assert len(site.core.evidence.chunks) == waiting, "nothing goes before it is written"
    last.chunk.end_ns = end_ns
    assert await _attempted(site, 9 * HOURS)
    await site.round(LATER)
    assert hours(site)["idle", ""] == pytest.approx(6, abs=1 / 60)


async def _attempted(site: Site, now: float) -> bool:
    site.now = now
    return await site.settler.attempt()


async def test_a_fault_of_ours_does_not_end_the_collector(site: Site):
    accept(site.core, a_day(Reporter(), until=HOURS))
    assert await site.settler.attempt()
    site.door.store.homes = _wrong  # type: ignore[method-assign]
    with capture_logs() as logs:
        assert not await site.settler.attempt()
    assert logs[0]["problem"] == "KeyError: 'a fault'"
    del site.door.store.homes
    assert await site.settler.attempt()


def _wrong() -> None:
    message = "a fault"
    raise KeyError(message)


async def test_stored_evidence_cannot_be_changed(site: Site):
    accept(site.core, a_day(Reporter(), until=8 * HOURS))
    await site.round(9 * HOURS)
    engine = site.door.ledger.database.engine
    for table in (parts, claims, homes):
        for change in (table.update().values({table.c.node: "x"}), table.delete()):
            with engine.connect() as connection:
                with pytest.raises(DBAPIError, match="append-only"):
                    connection.execute(change)
                connection.rollback()
