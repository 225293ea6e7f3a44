"""A node that invents boots frees no time, and moves none to another tenant, before its horizon."""

from __future__ import annotations

import pytest
from core_queries import ALICE, compute_states
from hypothesis import given, strategies as st
from reports import HOUR, SENT, Events, sample_envelopes
from support.examples import fewer_examples
from support.finalizing import FinalizingCollector
from support.story import (
    DAY_SECONDS,
    SECOND,
    Envelopes,
    NodeReporter,
    accept,
    at,
    claim_ended,
    claim_started,
    core_in,
    gpus_of,
)

from railscope.audit.record import RecordActor
from railscope.frame import Event
from railscope_collector.evidence.gpu_evidence import AdministratorInputs
from railscope_collector.evidence.review_decisions import (
    ReviewDecision,
    find_pending_evidence,
    record_decision,
)
from railscope_collector.evidence.review_rules import ReviewDecisions, ReviewKind, ReviewSubject
from railscope_collector.metering.units import Tiling
from railscope_collector.state.collector_state import CollectorState

LAST = 80 * HOUR
HORIZON = LAST - HOUR
"""Timestamp from which reports after the last honest envelope count."""
few = fewer_examples(60)


def honest(until: int = LAST, step: int = 30) -> Envelopes:
    """A GPU that alice holds, sampled to the end; an envelope every ten minutes."""
    start = 2 * HOUR
    events = {start: [claim_started("GPU-0", "job", start, **ALICE)]}
    return sample_envelopes("GPU-0", until=until, step=step, events=events)


def invented(
    number: int, second: int, events: Events | None = None, sent: int = LAST + 60
) -> Envelopes:
    """One envelope of another boot that claims a sample at a past second."""
    node = NodeReporter(boot_id=f"invented-{number}", run=f"other-{number}", booted_at=-400_000)
    return [node.record(node.frames(gpus_of("GPU-0"), [second, second + 30], events=events), sent)]


def test_an_invented_boot_frees_nothing_before_a_person_agrees(core: CollectorState):
    accept(core, honest())
    accept(core, invented(1, 20 * HOUR))
    found = compute_states(core, LAST)
    assert found[0] == ("idle", "", 0, 2 * HOUR)
    assert found[1] == ("observed", "alice", 2 * HOUR, 20 * HOUR)
    assert found[2] == ("review", "alice", 20 * HOUR, HORIZON)
    assert {tenant for _, tenant, start, _ in found if start >= HORIZON} == {""}
    subject = ReviewSubject(ReviewKind.END, "n1", "job")
    accepted = compute_states(
        core, LAST, files=AdministratorInputs(decisions=ReviewDecisions({subject: True}))
    )
    assert accepted[2][1] == ""
    rejected = compute_states(
        core, LAST, files=AdministratorInputs(decisions=ReviewDecisions({subject: False}))
    )
    assert rejected[1] == ("observed", "alice", 2 * HOUR, HORIZON)


def test_a_boot_that_is_reported_at_once_ends_what_it_does_not_report(core: CollectorState):
    accept(core, honest())
    accept(core, invented(1, LAST + 30))
    found = compute_states(core, LAST + 60)
    assert max(end for _, tenant, _, end in found if tenant) == LAST + 30


def test_reports_of_an_agent_about_boots_while_it_was_offline_count(core: CollectorState):
    accept(core, honest(until=10 * HOUR))
    node = NodeReporter(boot_id="boot-2", run="run-2", booted_at=-400_000)
    frames = node.frames(gpus_of("GPU-0"), range(20 * HOUR, 60 * HOUR, 30))
    accept(
        core,
        [
            node.record(frames[i : i + 500], 60 * HOUR + i // 500)
            for i in range(0, len(frames), 500)
        ],
    )
    found = compute_states(core, 60 * HOUR)
    assert max(end for _, tenant, _, end in found if tenant == "alice") == 20 * HOUR
    assert not [one for one in found if one[0] == "review"]


past = st.integers(8 * HOUR, LAST)


@st.composite
def hostile(draw: st.DrawFn) -> Envelopes:
    """Envelopes of invented boots: samples, starts, ends and other tenants in the past."""
    found: Envelopes = []
    for number in range(draw(st.integers(1, 4))):
        second = draw(past)
        events: list[Event] = []
        for _ in range(draw(st.integers(0, 3))):
            name, when = draw(st.sampled_from(["job", "job", "other"])), draw(past)
            boot_ns = {"start_boot_ns": str((when + 400_000) * 10**9)}
            facts = draw(st.sampled_from([{}, boot_ns]))
            tenant = draw(st.sampled_from(["alice", "mallory"]))
            level = draw(st.sampled_from(["scheduler", "node_plugin", "process"]))
            begun = claim_started("GPU-0", name, when, tenant=tenant, level=level, **facts)
            events.append(draw(st.sampled_from([begun, claim_ended("GPU-0", name, when)])))
        found += invented(number, second, {second: events}, LAST + 60 + number)
    return found


@few
@given(hostile())
def test_p24_invented_boots_move_no_time_before_the_horizon(tmp_path_factory, envelopes):
    core = core_in(tmp_path_factory.mktemp("schemas"))
    accept(core, honest(step=SENT))
    accept(core, envelopes)
    before = [state for state in compute_states(core, HORIZON) if state[2] >= 2 * HOUR]
    assert before[0][2] == 2 * HOUR
    assert {tenant for state, tenant, *_ in before if state != "review"} <= {"alice"}
    assert {tenant for _, tenant, *_ in before} <= {"alice", "mallory"}, "nor is it free"
    subjects = [ReviewSubject(what, "n1", name) for what in ReviewKind for name in ("job", "other")]
    rejected = AdministratorInputs(decisions=ReviewDecisions(dict.fromkeys(subjects, False)))
    after = [
        state for state in compute_states(core, HORIZON, files=rejected) if state[1] == "alice"
    ]
    assert sum(end - start for *_, start, end in after) == HORIZON - 2 * HOUR


def alice_hours(site: FinalizingCollector) -> dict[str, float]:
    """GPU-hours of alice by state, before the horizon."""
    found: dict[str, float] = {}
    for entry in site.stores.ledger.entries(at(0), at(HORIZON), "GPU-0"):
        if entry.tiling is Tiling.COMPUTE and entry.tenant == "alice":
            span = (min(entry.t1_ns, at(HORIZON)) - entry.t0_ns) / SECOND / HOUR
            found[entry.state.value] = found.get(entry.state.value, 0) + span
    return found


@pytest.mark.parametrize("accepted", [True, False])
async def test_people_decide_about_the_begin_of_a_late_boot(
    site: FinalizingCollector, *, accepted: bool
):
    accept(site.core, honest())
    accept(site.core, invented(1, 70 * HOUR))
    now = 4 * DAY_SECONDS + 2 * HOUR
    await site.round(now, everything=True)
    (one,) = find_pending_evidence(site.stores.store, site.stores.ledger.database, at(now))
    assert one.subject == ReviewSubject(ReviewKind.END, "n1", "job")
    assert (one.tenants, one.gpus) == (("alice",), ("GPU-0",))
    assert one.gpu_ns == at(HORIZON) - at(70 * HOUR)
    assert alice_hours(site) == {"observed": 22 + 24 + 22, "review": 2 + 7}
    decision = ReviewDecision(accepted, RecordActor("operator", "ann"), at(now + 60), "checked")
    assert record_decision(site.stores.ledger.database, [one], decision) == 1
    await site.round(now + 120)
    assert alice_hours(site) == {"observed": 22 + 24 + 22 + (0 if accepted else 2 + 7)}
    assert (
        find_pending_evidence(site.stores.store, site.stores.ledger.database, at(now + 120)) == []
    )


async def test_a_late_boot_changes_all_days_since_it_began(site: FinalizingCollector):
    accept(site.core, honest())
    now = 4 * DAY_SECONDS + 2 * HOUR
    await site.round(now, everything=True)
    assert alice_hours(site) == {"observed": 22 + 24 + 24 + 7}
    accept(site.core, invented(1, 40 * HOUR))
    await site.round(now + 7200, everything=True)
    assert alice_hours(site) == {"observed": 22 + 16, "review": 8 + 24 + 7}
