"""Nothing is lost: collectors that share a ledger, take over or start again, and a ledger out of reach."""

from __future__ import annotations

from pathlib import Path

import pytest
from core_queries import ALICE
from ledger_days import HOURS, LATER, MAP, a_day, ledger_hours, tenant_amount
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError
from structlog.testing import capture_logs
from support.finalizing import FinalizingCollector, content
from support.metered import revision_of
from support.story import (
    DAY,
    DAY_SECONDS,
    NodeReporter,
    accept,
    at,
    claim_started,
    gpus_of,
    host,
    seconds_of,
)

from railscope_collector.evidence.evidence_store import compress_interval
from railscope_collector.evidence.evidence_tables import (
    evidence_intervals,
    gpu_nodes,
    reported_claims,
)
from railscope_collector.evidence.node_intervals import encode_interval


async def test_a_collector_that_takes_over_goes_on_from_the_ledger(make, url: str):
    one, two = make("one", url), make("two", url)
    days, node = 6, NodeReporter()
    claim = {HOURS: [claim_started("GPU-0", "a", HOURS, **ALICE)]}
    for day in range(days):
        seconds = range(day * DAY_SECONDS, (day + 1) * DAY_SECONDS, 30)
        accept(one.core, node.envelopes_of(gpus_of("GPU-0"), seconds, each=200, events=claim))
        await one.round((day + 1) * DAY_SECONDS, everything=True)
    now = days * DAY_SECONDS + 2 * HOURS
    await one.round(now - HOURS)
    await one.round(now - HOURS, everything=True)
    accept(two.core, node.envelopes_of(gpus_of("GPU-0"), range(now - 600, now, 30)))
    await two.round(now)
    assert two.live.finalized == one.live.finalized
    assert set(one.stores.ledger.newest(DAY, DAY + days - 1).values()) == {1}
    assert two.finalizer.counts.days < days, "only what was recorded lately is looked at again"
    await two.round(now, everything=True)
    assert tenant_amount(two, "alice") == 500 * (now - 30 - HOURS)


async def test_what_came_late_to_a_collector_that_ended_counts_for_the_one_that_takes_over(
    make, url: str
):
    one, two = make("one", url), make("two", url)
    envelopes = a_day(NodeReporter())
    accept(one.core, [*envelopes[:20], *envelopes[30:]])
    await one.round(LATER)
    assert ledger_hours(one)["inferred", "alice"] > 1
    accept(one.core, envelopes[20:30])
    written = [
        compress_interval(kept.interval, encode_interval(kept.interval))
        for kept in one.core.evidence.intervals.by_key.values()
    ]
    one.stores.store.write(written, [], lambda: at(LATER + 60))
    one.finalizer.lease.release()
    await two.round(LATER + 90)
    later = LATER + 7 * DAY_SECONDS
    accept(two.core, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(later - 600, later, 30)))
    await two.round(later)
    assert ledger_hours(two) == {
        ("idle", ""): 6,
        ("observed", "alice"): 12,
        ("observed", "kubernetes:ns"): 6,
    }


async def test_collectors_whose_files_differ_do_not_take_turns(make, url: str):
    sides = [make(name, url) for name in ("one", "two")]
    for account, tenant in zip(sides, ("bob", "carol"), strict=True):
        accept(account.core, a_day(NodeReporter()))
        account.texts["tenants"] = MAP + f"{tenant},kubernetes,ns,2026-09-04T00:00:00Z,\n"
    for turn in range(4):
        for account in sides:
            await account.round(LATER + 60 * turn)
    revision = revision_of(sides[0].stores.ledger, "GPU-0", DAY)
    assert revision.number == 2, "the file that was written last counts"
    assert "carol" in {entry.tenant for entry in revision.tiling.entries}


async def test_two_collectors_with_overlapping_frames_write_what_one_would(
    make, tmp_path: Path, url: str
):
    sides = [make(name, url) for name in ("one", "two")]
    alone = make("alone", f"sqlite:///{tmp_path / 'alone.db'}")
    envelopes = a_day(NodeReporter())
    accept(alone.core, envelopes)
    accept(sides[0].core, [e for at_, e in enumerate(envelopes) if at_ % 3 != 0])
    accept(sides[1].core, [e for at_, e in enumerate(envelopes) if at_ % 3 != 1])
    for turn in range(2):
        for one in (*sides, alone):
            await one.round(LATER + 400 * turn)
    assert content(sides[0].stores.ledger, range(DAY, DAY + 1)) == content(
        alone.stores.ledger, range(DAY, DAY + 1)
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
    for account in sides:
        accept(account.core, a_day(NodeReporter()))
        await account.round(LATER)
        with account.stores.ledger.database.transaction() as connection:
            counts.append(
                connection.execute(select(func.count()).select_from(evidence_intervals)).scalar()
            )
    assert counts[0] == counts[1] > 0
    assert revision_of(sides[0].stores.ledger, "GPU-0", DAY).number == 1


@pytest.mark.parametrize("cut", [0, 7, 40, 73])
async def test_a_restart_at_any_point_leaves_the_ledger_as_it_would_be(
    make, tmp_path: Path, url: str, cut: int
):
    envelopes = a_day(NodeReporter())
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
    assert content(site.stores.ledger, days) == content(whole.stores.ledger, days)
    assert seconds_of(await site.account(LATER)) == seconds_of(await whole.account(LATER))
    assert site.live.amounts.totals() == whole.live.amounts.totals()


async def test_while_the_database_is_unavailable_nothing_is_lost_and_it_is_logged_once(
    make, tmp_path: Path
):
    gone = tmp_path / "gone"
    site = make("one", f"sqlite:///{gone / 'ledger.db'}")
    accept(site.core, a_day(NodeReporter()))
    site.now = LATER
    with capture_logs() as logs:
        assert not await site.finalizer.attempt()
        assert not await site.finalizer.attempt()
        assert not site.live.is_ready
        waiting = len(site.core.evidence.intervals.by_key)
        assert waiting > 90
        assert site.core.evidence.unwritten
        checkpoint = site.checkpoint()
        gone.mkdir()
        site.restart(checkpoint)
        site.now = LATER
        assert await site.finalizer.attempt()
    expected_text = [line["event"] for line in logs if line["log_level"] == "error"]
    assert expected_text == ["evidence_write_failed"]
    assert ledger_hours(site)["observed", "alice"] == 12


async def test_a_database_that_goes_away_later_keeps_everything_waiting(site: FinalizingCollector):
    accept(site.core, a_day(NodeReporter(), until=12 * HOURS))
    await site.round(12 * HOURS)
    stored = len(site.core.evidence.intervals.by_key)
    site.stores.store.write = _fail  # type: ignore[method-assign]
    accept(site.core, a_day(NodeReporter(run="run-2")))
    site.now = LATER
    assert not await site.finalizer.attempt()
    assert len(site.core.evidence.intervals.by_key) > stored
    assert not any(kept.stored for kept in site.core.evidence.intervals.by_key.values())
    del site.stores.store.write
    assert await site.finalizer.attempt()
    assert ledger_hours(site)["observed", "alice"] == 12
    assert site.finalizer.counts.failures == 1


async def test_claims_received_by_another_collector_are_read_until_they_are_known(make, url: str):
    one, two = make("one", url), make("two", url)
    claim = {HOURS: [claim_started("GPU-0", "a", HOURS, **ALICE)]}
    node = NodeReporter()
    accept(one.core, node.envelopes_of(gpus_of("GPU-0"), range(0, 2 * HOURS, 30), events=claim))
    await one.round(2 * HOURS, everything=True)
    await two.round(2 * HOURS)
    accept(two.core, node.envelopes_of(gpus_of("GPU-0"), range(2 * HOURS, 3 * HOURS, 30)))
    two.now = 3 * HOURS
    two.stores.store.claim_facts = _fail  # type: ignore[method-assign]
    assert not await two.finalizer.attempt()
    del two.stores.store.claim_facts
    assert await two.finalizer.attempt()
    assert seconds_of(await two.account(3 * HOURS)).get(("observed", "alice")) == HOURS - 30


async def test_open_amounts_that_could_not_be_counted_again_are_counted_later(
    site: FinalizingCollector,
):
    node = NodeReporter()
    accept(site.core, node.envelopes_of(gpus_of("GPU-0"), range(0, 6 * HOURS, 30), each=40))
    await site.round(6 * HOURS, everything=True)
    late = claim_started("GPU-0", "x", 5 * HOURS + 1800, **ALICE)
    accept(site.core, node.envelopes_of(host(), [6 * HOURS], events={6 * HOURS: [late]}))
    site.stores.store.load = _fail  # type: ignore[method-assign]
    site.now = 6 * HOURS + 60
    assert not await site.finalizer.attempt()
    del site.stores.store.load
    assert await site.finalizer.attempt()
    assert tenant_amount(site, "alice") == 500 * (1800 - 30)


def _fail(*_: object) -> None:
    raise OSError(28, "No space left on device")


async def test_an_altered_interval_is_logged_and_counts_as_not_observed(make, tmp_path: Path):
    site = make("one", f"sqlite:///{tmp_path / 'ledger.db'}")
    accept(site.core, a_day(NodeReporter(), until=2 * HOURS))
    await site.round(3 * HOURS)
    with site.stores.ledger.database.engine.begin() as connection:
        connection.execute(text("DROP TRIGGER evidence_part_no_update"))
        rows = connection.execute(
            select(evidence_intervals).order_by(evidence_intervals.c.start_ns)
        ).all()
        for row, content_ in ((rows[2], rows[3].content), (rows[3], b"nonsense")):
            connection.execute(
                evidence_intervals.update()
                .where(evidence_intervals.c.part == row.part)
                .values(content=content_)
            )
    with capture_logs() as logs:
        known = site.stores.store.evidence("GPU-0", at(0), at(2 * HOURS))
    assert [line["event"] for line in logs] == ["evidence_damaged"] * 2
    assert {"content does not match its hash"} < {line["problem"] for line in logs}
    assert len(known.evidence.sample_spans) == 2


async def test_a_part_that_cannot_be_written_takes_no_other_with_it(site: FinalizingCollector):
    accept(site.core, a_day(NodeReporter(), until=6 * HOURS))
    *_, last = site.core.evidence.intervals.by_key.values()
    end_ns, last.interval.end_ns = last.interval.end_ns, 1 << 70
    waiting = len(site.core.evidence.intervals.by_key)
    for now in (7 * HOURS, 8 * HOURS):
        assert not await _attempted(site, now)
        assert len(site.core.evidence.intervals.by_key) == waiting, (
            "nothing goes before it is written"
        )
    last.interval.end_ns = end_ns
    assert await _attempted(site, 9 * HOURS)
    await site.round(LATER)
    assert ledger_hours(site)["idle", ""] == pytest.approx(6, abs=1 / 60)


async def _attempted(site: FinalizingCollector, now: float) -> bool:
    site.now = now
    return await site.finalizer.attempt()


async def test_a_fault_of_ours_does_not_end_the_collector(site: FinalizingCollector):
    accept(site.core, a_day(NodeReporter(), until=HOURS))
    assert await site.finalizer.attempt()
    site.stores.store.homes = _wrong  # type: ignore[method-assign]
    with capture_logs() as logs:
        assert not await site.finalizer.attempt()
    assert logs[0]["problem"] == "KeyError: 'a fault'"
    del site.stores.store.homes
    assert await site.finalizer.attempt()


def _wrong() -> None:
    message = "a fault"
    raise KeyError(message)


async def test_stored_evidence_cannot_be_changed(site: FinalizingCollector):
    accept(site.core, a_day(NodeReporter(), until=8 * HOURS))
    await site.round(9 * HOURS)
    engine = site.stores.ledger.database.engine
    for table in (evidence_intervals, reported_claims, gpu_nodes):
        for change in (table.update().values({table.c.node: "x"}), table.delete()):
            with engine.connect() as connection:
                with pytest.raises(DBAPIError, match="append-only"):
                    connection.execute(change)
                connection.rollback()
