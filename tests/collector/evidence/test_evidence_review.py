"""Evidence under review: late claims, late ends, unexpected GPUs."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import pytest
from click.testing import CliRunner
from core_queries import ALICE, compute_states, tenant_energy
from hypothesis import given, strategies as st
from reports import HOUR, SENT, sample_envelopes
from sqlalchemy import select
from support.examples import fewer_examples
from support.finalizing import FinalizingCollector
from support.story import (
    DAY_SECONDS,
    SECOND,
    NodeReporter,
    accept,
    at,
    claim_ended,
    claim_started,
    core_in,
    gpus_of,
    host,
    known_of,
)

from railscope.audit.record import RecordActor
from railscope.claim_terms import GPU_CAPACITY
from railscope.frame import Event
from railscope_collector.commands.bill_decisions import (
    accept_command,
    reject_command,
    review_command,
)
from railscope_collector.evidence.gpu_evidence import AdministratorInputs
from railscope_collector.evidence.node_intervals import LATE_NS
from railscope_collector.evidence.review_decisions import (
    PendingEvidence,
    ReviewDecision,
    find_pending_evidence,
    record_decision,
)
from railscope_collector.evidence.review_rules import (
    ALLOCATED_TWICE,
    BEFORE_CONTACT,
    BEYOND_INVENTORY,
    LATE_CLAIM,
    MAX_GPUS_AT_ONCE,
    TOO_MANY,
    UNLISTED,
    ReviewDecisions,
    ReviewKind,
    ReviewSubject,
)
from railscope_collector.files import inventory_file
from railscope_collector.ledger.audit_outbox import outbox_rows
from railscope_collector.state.collector_state import CollectorState


def inventory(*rows: str) -> AdministratorInputs:
    """An inventory: rows of node,gpus."""
    lines = ["node,gpus,rdma_ports,from,to", *(f"{row},,2026-01-01T00:00:00Z," for row in rows)]
    return AdministratorInputs(inventory=inventory_file.parse_inventory("\n".join(lines) + "\n"))


reports_of = partial(sample_envelopes, "GPU-0", until=10 * HOUR)


# Late claims -----------------------------------------------------------------------------------


def test_a_claim_may_reach_an_hour_before_the_previous_envelope(core: CollectorState):
    events = {5 * HOUR: [claim_started("GPU-0", "job", 4 * HOUR, **ALICE)]}
    accept(core, reports_of(events=events))
    assert compute_states(core, 10 * HOUR) == [
        ("idle", "", 0, 4 * HOUR),
        ("observed", "alice", 4 * HOUR, 10 * HOUR),
    ]


def test_the_earlier_time_of_a_claim_waits(core: CollectorState):
    events = {5 * HOUR: [claim_started("GPU-0", "job", HOUR, **ALICE)]}
    accept(core, reports_of(events=events))
    assert compute_states(core, 10 * HOUR) == [
        ("idle", "", 0, HOUR),
        ("review", "alice", HOUR, 4 * HOUR - SENT),
        ("observed", "alice", 4 * HOUR - SENT, 10 * HOUR),
    ]


def test_energy_of_time_under_review_is_nobodys_until_it_is_accepted(core: CollectorState):
    job = claim_started("GPU-0", "job", HOUR, **ALICE)
    accept(core, reports_of(events={5 * HOUR: [job, claim_ended("GPU-0", "job", 4 * HOUR - SENT)]}))
    waiting_energy = tenant_energy(core)
    assert set(waiting_energy) == {("unattributed", ""), ("idle", "")}
    accepted = tenant_energy(
        core,
        files=AdministratorInputs(
            decisions=ReviewDecisions({ReviewSubject(ReviewKind.CLAIM, "n1", "job"): True})
        ),
    )
    assert accepted["attributed", "alice"] == waiting_energy["unattributed", ""]
    assert sum(accepted.values()) == sum(waiting_energy.values())


def test_the_first_receipt_counts(core: CollectorState):
    job = claim_started("GPU-0", "job", HOUR, **ALICE)
    accept(core, reports_of(events={HOUR: [job], 5 * HOUR: [job], 6 * HOUR: [job]}))
    assert compute_states(core, 10 * HOUR)[1:] == [("observed", "alice", HOUR, 10 * HOUR)]


def test_a_late_end_frees_nothing_before_it_is_accepted(core: CollectorState):
    events = {
        0: [claim_started("GPU-0", "job", 0, **ALICE)],
        5 * HOUR: [claim_ended("GPU-0", "job", HOUR)],
    }
    accept(core, reports_of(events=events))
    assert compute_states(core, 10 * HOUR) == [
        ("observed", "alice", 0, HOUR),
        ("review", "alice", HOUR, 4 * HOUR - SENT),
        ("idle", "", 4 * HOUR - SENT, 10 * HOUR),
    ]
    subject = ReviewSubject(ReviewKind.END, "n1", "job")
    accepted = AdministratorInputs(decisions=ReviewDecisions({subject: True}))
    assert compute_states(core, 10 * HOUR, files=accepted)[1] == ("idle", "", HOUR, 10 * HOUR)
    rejected = AdministratorInputs(decisions=ReviewDecisions({subject: False}))
    assert compute_states(core, 10 * HOUR, files=rejected)[0] == (
        "observed",
        "alice",
        0,
        4 * HOUR - SENT,
    )


def test_reports_of_an_agent_that_was_offline_count_for_three_days(core: CollectorState):
    """It sends its spool in order, oldest first; only current frames move the limit."""
    node = NodeReporter()
    accept(core, node.envelopes_of(gpus_of("GPU-0"), range(0, 301, 30)))
    events = {
        2 * HOUR: [claim_started("GPU-0", "a", 2 * HOUR, **ALICE)],
        40 * HOUR: [
            claim_ended("GPU-0", "a", 40 * HOUR),
            claim_started("GPU-0", "b", 40 * HOUR, tenant="bob"),
        ],
    }
    frames = node.frames(gpus_of("GPU-0"), range(330, 48 * HOUR + 1, 30), events=events)
    back = [
        node.record(frames[i : i + 500], sent=48 * HOUR + i // 500)
        for i in range(0, len(frames), 500)
    ]
    accept(core, back)
    assert compute_states(core, 48 * HOUR)[1:] == [
        ("observed", "alice", 2 * HOUR, 40 * HOUR),
        ("observed", "bob", 40 * HOUR, 48 * HOUR),
    ]


def test_beyond_three_days_an_absent_agent_waits_for_a_person(core: CollectorState):
    node = NodeReporter()
    accept(core, node.envelopes_of(gpus_of("GPU-0"), range(0, 301, 30)))
    events = {330: [claim_started("GPU-0", "a", 320, **ALICE)]}
    frames = node.frames(gpus_of("GPU-0"), range(330, 100 * HOUR + 1, 30), events=events)
    accept(
        core,
        [node.record(frames[i : i + 5000], sent=100 * HOUR) for i in range(0, len(frames), 5000)],
    )
    found = compute_states(core, 100 * HOUR)
    assert ("review", "alice", 320, 28 * HOUR) in found
    assert found[-1] == ("observed", "alice", 28 * HOUR, 100 * HOUR)


def test_a_job_that_is_reported_when_it_is_over_is_decided_as_one(core: CollectorState):
    events = {
        8 * HOUR: [
            claim_started("GPU-0", "job", HOUR, **ALICE),
            claim_ended("GPU-0", "job", 3 * HOUR),
        ]
    }
    accept(core, reports_of(events=events))
    assert compute_states(core, 10 * HOUR)[1:] == [
        ("review", "alice", HOUR, 3 * HOUR),
        ("idle", "", 3 * HOUR, 10 * HOUR),
    ]
    accepted = AdministratorInputs(
        decisions=ReviewDecisions({ReviewSubject(ReviewKind.CLAIM, "n1", "job"): True})
    )
    assert compute_states(core, 10 * HOUR, files=accepted)[1:] == [
        ("observed", "alice", HOUR, 3 * HOUR),
        ("idle", "", 3 * HOUR, 10 * HOUR),
    ]


# First contact ---------------------------------------------------------------------------------


def test_a_claim_from_before_first_contact_waits_and_nothing_else_is_metered(core: CollectorState):
    node = NodeReporter()
    events = {0: [claim_started("GPU-0", "job", -27 * DAY_SECONDS, compute="0-420", **ALICE)]}
    accept(core, node.envelopes_of(gpus_of("GPU-0"), range(0, 601, 30), events=events))
    stays = known_of(core, "GPU-0").evidence.stays
    assert [((s.start_ns - at(0)) / SECOND, s.end_ns > at(10**9)) for s in stays] == [
        (-27 * DAY_SECONDS, False),
        (0, True),
    ]
    (waits,) = (c for c in known_of(core, "GPU-0").evidence.claims if c.review)
    assert (waits.review, (waits.begins_ns - at(0)) / SECOND, (waits.end_ns - at(0)) / SECOND) == (
        BEFORE_CONTACT,
        -27 * DAY_SECONDS,
        -120,
    )


@fewer_examples(25)
@given(st.integers(1, 100), st.booleans())
def test_evidence_under_review_moves_no_time_of_another_claim(tmp_path_factory, hours, exclusive):
    def held(*more: Event) -> list:
        core = core_in(tmp_path_factory.mktemp("schemas"))
        events = {
            0: [claim_started("GPU-0", "own", 0, level="node_plugin", **ALICE)],
            101 * HOUR: more,
        }
        accept(core, reports_of(until=102 * HOUR, step=SENT, events=events))
        return [state for state in compute_states(core, 99 * HOUR) if state[1] == "alice"]

    late = claim_started(
        "GPU-0",
        "late",
        (99 - min(hours, 98)) * HOUR,
        tenant="mallory",
        exclusive=str(exclusive).lower(),
    )
    assert held(late) == held() != []


# GPUs beyond the inventory -----------------------------------------------------------------------


def gpus_reporting(*names: str) -> list:
    """GPUs of a node, each held from its first frame on."""
    events = {60: [claim_started(name, f"job-{name}", 60, **ALICE) for name in names]}
    return NodeReporter().envelopes_of(gpus_of(*names), range(0, 601, 30), events=events)


def test_gpus_beyond_the_inventory_wait(core: CollectorState):
    names = [f"GPU-{number}" for number in range(4)]
    accept(core, gpus_reporting(*names))
    files = inventory("n1,3")
    held = {name: {s for s, *_ in compute_states(core, 600, name, files)} for name in names}
    assert held == {name: {"idle", "observed"} for name in names[:3]} | {"GPU-3": {"review"}}
    (claim,) = known_of(core, "GPU-3", files).evidence.claims
    assert claim.review == BEYOND_INVENTORY
    accepted = AdministratorInputs(
        inventory=files.inventory,
        decisions=ReviewDecisions({ReviewSubject(ReviewKind.GPU, "n1", "GPU-3"): True}),
    )
    assert {s for s, *_ in compute_states(core, 600, "GPU-3", accepted)} == {"idle", "observed"}
    rejected = AdministratorInputs(
        inventory=files.inventory,
        decisions=ReviewDecisions({ReviewSubject(ReviewKind.GPU, "n1", "GPU-3"): False}),
    )
    assert compute_states(core, 600, "GPU-3", rejected) == []


def test_gpus_of_an_unlisted_node_wait_and_an_empty_inventory_is_none(core: CollectorState):
    accept(core, gpus_reporting("GPU-0"))
    (claim,) = known_of(core, "GPU-0", inventory("n2,8")).evidence.claims
    assert claim.review == UNLISTED
    assert {s for s, *_ in compute_states(core, 600, files=inventory())} == {"idle", "observed"}


def test_without_an_inventory_a_node_has_so_many_gpus(core: CollectorState):
    names = [f"GPU-{number:02}" for number in range(MAX_GPUS_AT_ONCE + 2)]
    accept(core, gpus_reporting(*names))
    waits = {
        name: claim.review
        for name in names
        for claim in known_of(core, name).evidence.claims
        if claim.review
    }
    assert waits == dict.fromkeys(names[-2:], TOO_MANY)


# Decisions ---------------------------------------------------------------------------------------


def everything(site: FinalizingCollector, second: int) -> list[PendingEvidence]:
    """Evidence under review at a second."""
    return find_pending_evidence(site.stores.store, site.stores.ledger.database, at(second))


def ledger_hours(site: FinalizingCollector) -> dict:
    """GPU-hours of the first day by state and tenant."""
    found: dict = {}
    for entry in site.stores.ledger.entries(at(0), at(DAY_SECONDS), "GPU-0"):
        if entry.tiling.value == "compute":
            key = (entry.state.value, entry.tenant)
            hours = entry.quantity / GPU_CAPACITY / SECOND / HOUR
            found[key] = found.get(key, 0) + hours
    return found


@pytest.mark.parametrize("accepted", [True, False])
async def test_a_decision_is_recorded_and_makes_a_revision(
    site: FinalizingCollector, *, accepted: bool
):
    events = {
        12 * HOUR: [claim_started("GPU-0", "job", HOUR, **ALICE)],
        20 * HOUR: [claim_ended("GPU-0", "job", 20 * HOUR)],
    }
    accept(site.core, reports_of(until=24 * HOUR, events=events))
    now = 26 * HOUR
    await site.round(now, everything=True)
    late = 10 - SENT / HOUR
    assert ledger_hours(site) == pytest.approx(
        {("idle", ""): 5, ("review", "alice"): late, ("observed", "alice"): 19 - late}
    )
    (one,) = everything(site, now)
    assert (one.subject, one.tenants, one.reasons, one.gpus) == (
        ReviewSubject(ReviewKind.CLAIM, "n1", "job"),
        ("alice",),
        (LATE_CLAIM,),
        ("GPU-0",),
    )
    assert one.gpu_ns == Fraction(round(late * HOUR) * SECOND)
    decision = ReviewDecision(accepted, RecordActor("operator", "ann"), at(now + 60), "checked")
    assert record_decision(site.stores.ledger.database, [one], decision) == 1
    await site.round(now + 120)
    expected = (
        {("idle", ""): 5, ("observed", "alice"): 19}
        if accepted
        else {("idle", ""): 5 + late, ("observed", "alice"): 19 - late}
    )
    assert ledger_hours(site) == pytest.approx(expected)
    assert everything(site, now + 120) == []
    account = await site.account(now + 120)
    assert account.balances
    with site.stores.ledger.database.transaction() as connection:
        records = connection.execute(
            select(outbox_rows.c.type, outbox_rows.c.data).where(
                outbox_rows.c.type == "evidence.decide"
            )
        ).all()
    assert len(records) == 1
    assert f'"verdict":"{"accept" if accepted else "reject"}"' in records[0].data


@pytest.mark.parametrize(
    ("accepted", "rejected", "expected"),
    [
        ((), (), {("review", "alice"): 5, ("review", "bob"): 5, ("idle", ""): 14}),
        (("a",), ("b",), {("observed", "alice"): 10, ("idle", ""): 14}),
        (("a", "b"), (), {("observed", "alice"): 5, ("observed", "bob"): 5, ("idle", ""): 14}),
    ],
)
async def test_claims_on_a_device_allocated_twice_wait_for_a_decision_as_equal_shares(
    site: FinalizingCollector, accepted, rejected, expected
):
    twice = {"exclusive": "false", "allocated_twice": "true"}
    tenants = {"a": ALICE, "b": {"tenant": "bob"}}
    events = {
        2 * HOUR: [claim_started("GPU-0", n, 2 * HOUR, **of, **twice) for n, of in tenants.items()],
        12 * HOUR: [claim_ended("GPU-0", name, 12 * HOUR) for name in tenants],
    }
    accept(site.core, reports_of(until=24 * HOUR, events=events))
    now = 26 * HOUR
    await site.round(now, everything=True)
    pending = everything(site, now)
    assert [(one.subject.name, one.reasons) for one in pending] == [
        (name, (ALLOCATED_TWICE,)) for name in tenants
    ]
    for one in pending:
        if one.subject.name in (*accepted, *rejected):
            actor = RecordActor("operator", "ann")
            decision = ReviewDecision(one.subject.name in accepted, actor, at(now + 60), "checked")
            record_decision(site.stores.ledger.database, [one], decision)
    await site.round(now + 120)
    assert ledger_hours(site) == pytest.approx(expected)


async def test_time_before_first_contact_is_in_the_ledger_as_review(site: FinalizingCollector):
    node = NodeReporter()
    events = {2 * DAY_SECONDS: [claim_started("GPU-0", "job", 0, **ALICE)]}
    seconds = range(2 * DAY_SECONDS, 3 * DAY_SECONDS, 30)
    accept(site.core, node.envelopes_of(gpus_of("GPU-0"), seconds, events=events, each=40))
    now = 3 * DAY_SECONDS + 2 * HOUR
    await site.round(now, everything=True)
    assert ledger_hours(site) == {("review", "alice"): 24}
    (one,) = everything(site, now)
    assert one.gpu_ns == (2 * DAY_SECONDS - 120) * SECOND
    account = await site.account(now)
    assert account.balances


async def test_two_collectors_report_the_same_of_late_claims(site: FinalizingCollector):
    events = {12 * HOUR: [claim_started("GPU-0", "job", HOUR, **ALICE)]}
    envelopes = reports_of(until=24 * HOUR, events=events)
    accept(site.core, envelopes)
    await site.round(26 * HOUR, everything=True)
    once = ledger_hours(site)
    site.restart()
    accept(site.core, [*envelopes, *envelopes[:5]])
    accept(site.core, NodeReporter(run="other").envelopes_of(host(), [24 * HOUR + 60]))
    await site.round(26 * HOUR + 60, everything=True)
    assert ledger_hours(site) == once


@pytest.mark.parametrize("has_merged", [True, False])
async def test_a_node_cannot_report_late_to_another_collector(
    make: Callable[[str, str], FinalizingCollector], url: str, *, has_merged: bool
):
    one, other = make("one", url), make("other", url)
    events = {12 * HOUR: [claim_started("GPU-0", "job", HOUR, **ALICE)]}
    envelopes = reports_of(until=24 * HOUR, events=events)
    moved_ns = at(12 * HOUR - SENT / 2)
    accept(one.core, [e for e in envelopes if e[0].received_wall_ns < moved_ns])
    await one.round(12 * HOUR, everything=True)
    other.core.evidence.first_age_ns = LATE_NS
    other.core.evidence.intervals.unstored.log = "other"
    if has_merged:
        await other.round(12 * HOUR)
    accept(other.core, [e for e in envelopes if e[0].received_wall_ns >= moved_ns])
    await other.round(26 * HOUR, everything=True)
    await one.round(26 * HOUR, everything=True)  # which has the lease, where there is one
    late = ledger_hours(other)["review", "alice"]
    assert late == pytest.approx(10, abs=2 * SENT / HOUR)
    assert ledger_hours(other) == pytest.approx(
        {("idle", ""): 1, ("review", "alice"): late, ("observed", "alice"): 23 - late}
    )


async def test_people_see_and_decide_what_waits_by_commands(site: FinalizingCollector):
    events = {12 * HOUR: [claim_started("GPU-0", "job", HOUR, **ALICE)]}
    accept(site.core, reports_of(until=24 * HOUR, events=events))
    await site.round(26 * HOUR, everything=True)
    where = ["--ledger", site.url]
    listed = CliRunner().invoke(review_command, [*where, "--format", "json"])
    (row,) = json.loads(listed.stdout)
    assert (row["node"], row["gpus"], row["tenants"], row["reasons"]) == (
        "n1",
        ["GPU-0"],
        ["alice"],
        [LATE_CLAIM],
    )
    assert row["gpu_hours"] == f"{10 - SENT / HOUR:.6f}"
    text = CliRunner().invoke(review_command, where)
    assert "claim job on n1: 9.833333 GPU-hours, alice" in text.output
    wrong = CliRunner().invoke(accept_command, [*where, "nothing"])
    assert wrong.exit_code == 1
    assert "expected one of evidence under review" in wrong.output
    done = CliRunner().invoke(reject_command, [*where, row["id"], "--as", "ann", "--reason", "no"])
    assert done.exit_code == 0, done.output
    assert "rejected" in done.output
    again = CliRunner().invoke(accept_command, [*where, "--node", "n1"])
    assert "no evidence selected" in again.output
