"""From frames to the ledger, on SQLite and PostgreSQL: stored once, finalized, and revised by late facts."""

from __future__ import annotations

import pytest
from core_queries import ALICE
from ledger_days import HOURS, LATER, MAP, a_day, ledger_hours, tenant_amount
from sqlalchemy import Table, select, text, update
from support.finalizing import FinalizingCollector
from support.metered import revision_of, sizes_of_day, tile
from support.story import (
    DAY,
    DAY_SECONDS,
    NodeReporter,
    accept,
    at,
    claim_ended,
    claim_started,
    gpus_of,
    host,
    seconds_of,
)

from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import DAY_NS
from railscope_collector.account.account_cells import quota_days
from railscope_collector.evidence.evidence_tables import evidence_intervals, reported_claims
from railscope_collector.ledger.audit_outbox import outbox_rows
from railscope_collector.ledger.ledger_records import HEAD
from railscope_collector.metering.tiling import SlotState


async def test_a_day_goes_to_the_ledger_when_it_is_over_and_the_account_goes_on(
    site: FinalizingCollector,
):
    accept(site.core, a_day(NodeReporter()))
    before = await site.account(LATER)
    await site.round(DAY_SECONDS + 1800)
    assert ledger_hours(site) == {}, "not before its delay has passed"
    await site.round(LATER)
    assert ledger_hours(site) == {
        ("idle", ""): 6,
        ("observed", "alice"): 12,
        ("observed", "kubernetes:ns"): 6,
    }
    after = await site.account(LATER)
    assert after.balances
    assert seconds_of(after) == seconds_of(before)
    assert after.gpus == 1
    for account in (before, after):
        held = account.held_time(*quota_days("month", at(LATER)))
        assert held["alice"] == 12 * HOURS * 10**9 * GPU_CAPACITY
    found = revision_of(site.stores.ledger, "GPU-0", DAY).tiling
    assert found.sku == "h100-80gb-hbm3"
    assert set(sizes_of_day(site.stores.ledger, DAY).values()) == {GPU_CAPACITY * DAY_NS}
    evidence = site.stores.store.evidence("GPU-0", at(0), at(DAY_SECONDS)).evidence
    assert tuple(tile(evidence, at(0), at(DAY_SECONDS))) == found.entries
    assert sorted(site.stores.store.homes()) == ["GPU-0"]


async def test_amounts_are_those_of_the_counters_before_and_after_a_day_is_finalized(
    site: FinalizingCollector,
):
    accept(site.core, a_day(NodeReporter(booted_at=-6000)))
    await site.round(DAY_SECONDS + HOURS - 1, everything=True)
    expected = {"alice": 500 * 12 * HOURS, "kubernetes:ns": 500 * (7 * HOURS - 30)}
    assert {tenant: tenant_amount(site, tenant) for tenant in expected} == expected, "open days"
    await site.round(LATER)
    assert {tenant: tenant_amount(site, tenant) for tenant in expected} == expected, (
        "settled and open"
    )
    site.restart(site.checkpoint())
    await site.round(LATER + 60)
    assert {tenant: tenant_amount(site, tenant) for tenant in expected} == expected, (
        "after a restart"
    )


async def test_what_is_stored_leaves_the_memory(site: FinalizingCollector):
    accept(site.core, a_day(NodeReporter()))
    assert len(site.core.evidence.intervals.by_key) > 90
    await site.round(DAY_SECONDS + HOURS - 30)
    assert len(site.core.evidence.intervals.by_key) <= 2, "but what is still growing"
    await site.round(LATER)
    assert not site.core.evidence.intervals.by_key
    assert not site.core.evidence.unwritten
    assert len(site.checkpoint()) < 5000


async def test_late_evidence_makes_a_revision(site: FinalizingCollector):
    node = NodeReporter()
    envelopes = a_day(node)
    late = envelopes[20:30]
    accept(site.core, [*envelopes[:20], *envelopes[30:]])
    await site.round(LATER)
    assert ledger_hours(site)["inferred", "alice"] > 1
    accept(site.core, late)
    await site.round(LATER + 600)
    assert ledger_hours(site) == {
        ("idle", ""): 6,
        ("observed", "alice"): 12,
        ("observed", "kubernetes:ns"): 6,
    }
    revision = revision_of(site.stores.ledger, "GPU-0", DAY)
    assert (revision.number, revision.supersedes) == (2, 1)
    account = await site.account(LATER + 600)
    assert account.balances
    assert ("inferred", "alice") not in seconds_of(account)
    await site.round(LATER + 1200)
    assert revision_of(site.stores.ledger, "GPU-0", DAY).number == 2, "nothing new, no revision"


async def test_a_claim_reported_late_moves_finalized_time_to_its_tenant(site: FinalizingCollector):
    node = NodeReporter()
    accept(
        site.core, node.envelopes_of(gpus_of("GPU-0"), range(0, DAY_SECONDS + HOURS, 30), each=40)
    )
    await site.round(LATER)
    reported = claim_started("GPU-0", "x", 20 * HOURS, **ALICE)
    accept(site.core, node.envelopes_of(host(), [LATER], events={LATER: [reported]}))
    await site.round(LATER + 600)
    waits = ledger_hours(site)
    assert waits["review", "alice"] > 3.9, "all but the last seconds of the hour before"
    site.accept_all(LATER + 700)
    await site.round(LATER + 800)
    assert ledger_hours(site) == {("idle", ""): 20, ("observed", "alice"): 4}
    assert tenant_amount(site, "alice") > 0


async def test_a_change_of_the_tenants_file_revises_the_days_it_is_about(site: FinalizingCollector):
    accept(site.core, a_day(NodeReporter()))
    await site.round(LATER)
    assert ledger_hours(site)["observed", "kubernetes:ns"] == 6
    site.texts["tenants"] = MAP + "bob,kubernetes,ns,2026-09-04T00:00:00Z,\n"
    await site.round(LATER + 600)
    assert ledger_hours(site)["observed", "bob"] == 6
    assert tenant_amount(site, "bob") > 500 * 6 * HOURS, "the open day's too"
    assert tenant_amount(site, "kubernetes:ns") == 0
    site.restart(site.checkpoint())
    await site.round(LATER + 700)
    assert revision_of(site.stores.ledger, "GPU-0", DAY).number == 2
    with site.stores.ledger.database.transaction() as connection:
        rows = connection.execute(
            select(outbox_rows.c.type, outbox_rows.c.data).where(outbox_rows.c.type != HEAD)
        ).all()
    assert [row.type for row in rows] == ["billing.tenant_map"], "an auditor learns of it, once"
    assert '"rows":1' in rows[0].data


async def test_a_tenants_file_that_is_corrected_soon_after_a_change_counts_as_corrected(
    site: FinalizingCollector,
):
    accept(site.core, a_day(NodeReporter()))
    await site.round(LATER)
    for seconds, tenant in ((600, "bbo"), (660, "bob")):
        site.texts["tenants"] = MAP + f"{tenant},kubernetes,ns,2026-09-04T00:00:00Z,\n"
        await site.round(LATER + seconds)
    assert ledger_hours(site)["observed", "bob"] == 6


async def test_a_claim_reported_late_counts_though_another_ended_where_it_starts(
    site: FinalizingCollector,
):
    node = NodeReporter()
    accept(
        site.core, node.envelopes_of(gpus_of("GPU-0"), range(0, DAY_SECONDS + HOURS, 30), each=40)
    )
    bob = claim_started("GPU-0", "y", 20 * HOURS, tenant="bob")
    late = [claim_started("GPU-0", "x", 10 * HOURS, **ALICE), claim_ended("GPU-0", "x", 20 * HOURS)]
    await site.round(LATER)
    for second, events in ((LATER + 30, late), (LATER + 60, [bob])):
        accept(site.core, node.envelopes_of(host(), [second], events={second: events}))
        await site.round(second)
    site.accept_all(LATER + 700)
    await site.round(LATER + 800)
    assert ledger_hours(site) == {
        ("idle", ""): 10,
        ("observed", "alice"): 10,
        ("observed", "bob"): 4,
    }


async def test_a_claim_that_was_lost_with_a_boot_stays_ended_once_that_boot_is_finalized(
    site: FinalizingCollector,
):
    noon = 12 * HOURS
    events = {6 * HOURS: [claim_started("GPU-0", "a", 6 * HOURS, **ALICE)]}
    before = NodeReporter().envelopes_of(
        gpus_of("GPU-0"), range(0, noon, 30), each=40, events=events
    )
    accept(site.core, before)
    again = NodeReporter(boot_id="boot-2", run="run-2", booted_at=noon - 60)
    for day in range(3):
        seconds = range(max(noon, day * DAY_SECONDS), (day + 1) * DAY_SECONDS, 30)
        accept(site.core, again.envelopes_of(gpus_of("GPU-0"), seconds, each=200))
        await site.round((day + 1) * DAY_SECONDS, everything=True)
    assert ledger_hours(site)["observed", "alice"] == pytest.approx(6 - 30 / HOURS)
    assert ledger_hours(site, DAY + 1) == {("idle", ""): 24}
    account = await site.account(3 * DAY_SECONDS)
    assert account.balances
    assert seconds_of(account)["observed", "alice"] == 6 * HOURS - 30
    assert not site.core.evidence.gpus["GPU-0"].claims, "it is not kept for ever"


async def test_a_node_that_never_returns_is_finalized_day_by_day(site: FinalizingCollector):
    accept(site.core, a_day(NodeReporter(), until=20 * HOURS))
    await site.round(3 * DAY_SECONDS + 2 * HOURS)
    assert ledger_hours(site, DAY + 1) == {("inferred", "kubernetes:ns"): 24}
    entries = site.stores.ledger.entries(at(DAY_SECONDS), at(2 * DAY_SECONDS), "GPU-0")
    assert {(e.state, e.node_evidence.name) for e in entries} == {(SlotState.INFERRED, "NONE")}
    account = await site.account(3 * DAY_SECONDS + 2 * HOURS)
    assert account.balances
    assert account.capacity == GPU_CAPACITY * (at(3 * DAY_SECONDS + 2 * HOURS) - at(0))


async def test_a_node_that_returns_after_days_ends_the_gap_of_all_of_them(
    site: FinalizingCollector,
):
    node = NodeReporter()
    accept(site.core, a_day(node, until=20 * HOURS))
    await site.round(2 * DAY_SECONDS + 2 * HOURS)
    back = 2 * DAY_SECONDS + 2 * HOURS
    accept(site.core, node.envelopes_of(gpus_of("GPU-0"), range(back, back + 600, 30)))
    await site.round(back + 1200)
    silences = {
        entry.gap_ns
        for entry in site.stores.ledger.entries(at(DAY_SECONDS), at(2 * DAY_SECONDS), "GPU-0")
    }
    assert silences == {at(back) - at(20 * HOURS - 30)}, "its length is known now"


async def test_a_gap_over_midnight_keeps_its_length(site: FinalizingCollector):
    node = NodeReporter()
    accept(site.core, a_day(node, until=20 * HOURS))
    back = DAY_SECONDS + HOURS
    accept(site.core, node.envelopes_of(gpus_of("GPU-0"), range(back, LATER, 30)))
    before = await site.account(LATER)
    await site.round(LATER)
    after = await site.account(LATER)
    assert after.balances
    assert seconds_of(after) == seconds_of(before)
    assert seconds_of(after)["inferred", "kubernetes:ns"] == 5 * HOURS + 60


async def test_the_first_node_of_a_gpu_has_it_on_later_days_too(site: FinalizingCollector):
    end = 4 * DAY_SECONDS
    rightful = NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, end + 3600, 30), each=120)
    other = NodeReporter("n2", "boot-9").envelopes_of(
        gpus_of("GPU-0"), range(end - 50 * HOURS, end, 30), each=1
    )
    received = sorted([*rightful, *other], key=lambda pair: pair[0].received_wall_ns)
    for until in range(LATER, LATER + end, DAY_SECONDS):
        accept(site.core, [e for e in received if e[0].received_wall_ns < at(until)])
        received = [e for e in received if e[0].received_wall_ns >= at(until)]
        await site.round(until)
        await site.account(until)
    assert ledger_hours(site, DAY + 3) == {("idle", ""): 24}
    entries = site.stores.ledger.entries(at(3 * DAY_SECONDS), at(end))
    assert {entry.node for entry in entries} == {"n1"}


async def test_a_counter_that_starts_over_is_reported(site: FinalizingCollector):
    reported_problems: list = []
    site.core.evidence.problems.listeners.append(reported_problems.append)
    accept(site.core, a_day(NodeReporter(), until=HOURS))
    after = NodeReporter(boot_id="boot-2", run="run-2", booted_at=HOURS)
    accept(site.core, after.envelopes_of(gpus_of("GPU-0"), range(HOURS, 2 * HOURS, 30)))
    await site.round(3 * HOURS)
    await site.round(3 * HOURS + 60)
    assert [(t.kind, t.gpu, t.facts["measure"], t.timestamp_ns) for t in reported_problems] == [
        ("counter_reset", "GPU-0", "energy", at(HOURS))
    ]


async def test_two_claims_on_one_slot_are_in_the_audit_log_only_once(site: FinalizingCollector):
    begins = [
        claim_started("GPU-0", "a", 0, **ALICE),
        claim_started("GPU-0", "b", 1800, tenant="bob"),
    ]
    accept(
        site.core,
        NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, HOURS, 30), events={0: begins}),
    )
    checkpoint = site.checkpoint()
    for _ in range(2):
        await site.round(2 * HOURS)
        await site.account(2 * HOURS)
        await site.round(2 * HOURS + 60)
        with site.stores.ledger.database.transaction() as connection:
            rows = connection.execute(select(outbox_rows).where(outbox_rows.c.type != HEAD)).all()
        site.restart(checkpoint)
    assert [(row.type, row.outcome, row.recorded_ns) for row in rows] == [
        ("tenancy.conflict", "seen", at(1800))
    ]
    assert '"earlier":"a"' in rows[0].data
    assert '"gpu":"GPU-0"' in rows[0].subject


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x28\xb5\x2f\xfd", b"\xc1"])
@pytest.mark.parametrize("table", [evidence_intervals, reported_claims])
async def test_a_damaged_row_is_set_aside_and_does_not_stop_the_others(
    site: FinalizingCollector, table: Table, content: bytes
) -> None:
    accept(site.core, a_day(NodeReporter()))
    await site.round(DAY_SECONDS + HOURS - 30, everything=True)
    with site.stores.ledger.database.transaction(writes=True) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET session_replication_role = replica"))
        else:
            connection.execute(text(f"DROP TRIGGER {table.name}_no_update"))
        key = next(iter(table.primary_key.columns))
        name = connection.execute(select(key)).scalars().first()
        connection.execute(update(table).where(key == name).values(content=content))
    await site.round(LATER)
    found = revision_of(site.stores.ledger, "GPU-0", DAY)
    assert found is not None, "the day is in the ledger all the same"
    assert site.stores.store.quarantine.rows == {(table.name, name)}
    assert not site.finalizer.is_failing
