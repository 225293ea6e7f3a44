"""Holders of a GPU: claims, parts of a GPU, and the nodes that may report them."""

from __future__ import annotations

import pytest
from core_queries import ALICE, compute_states, new_problems, story_time
from support.metered import tile
from support.story import (
    SECOND,
    NodeReporter,
    accept,
    account_at,
    at,
    claim_ended,
    claim_started,
    cut,
    gpus_of,
    host,
    known_of,
    seconds_of,
)

from railscope_collector.evidence.claim_events import MAX_CHARACTERS
from railscope_collector.evidence.gpu_evidence import AdministratorInputs
from railscope_collector.files import claims_file
from railscope_collector.metering.tiling import SlotState
from railscope_collector.state.collector_state import CollectorState


async def test_a_claim_holds_from_its_start_to_its_end(core: CollectorState):
    events = {
        50: [claim_started("GPU-0", "job-1", 40, **ALICE)],
        80: [claim_ended("GPU-0", "job-1", 75)],
    }
    accept(core, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, 101, 5), events=events))
    assert compute_states(core, 120) == [
        ("idle", "", 0, 40),
        ("observed", "alice", 40, 75),
        ("idle", "", 75, 100),
        ("unknown", "", 100, 120),
    ]
    account = await account_at(core, 120)
    assert account.balances
    assert seconds_of(account) == {("idle", ""): 65, ("observed", "alice"): 35, ("unknown", ""): 20}


async def test_claims_count_whatever_the_clock(core: CollectorState):
    node = NodeReporter(skew=3600)
    accept(
        core,
        node.envelopes_of(
            gpus_of("GPU-0"),
            range(0, 51, 10),
            events={20: [claim_started("GPU-0", "job-1", 10, **ALICE)]},
        ),
    )
    assert seconds_of(await account_at(core, 50)) == {
        ("inferred", "alice"): 40,
        ("unknown", ""): 10,
    }


def test_a_sample_as_near_to_a_claim_as_the_clock_is_uncertain_belongs_to_it(core: CollectorState):
    node = NodeReporter(uncertainty_ns=2 * SECOND)
    events = {20: [claim_started("GPU-0", "job-1", -1, **ALICE)]}
    accept(core, node.envelopes_of(gpus_of("GPU-0"), range(0, 51, 10), events=events))
    claim = known_of(core, "GPU-0").evidence
    assert claim.sample_spans[0].uncertainty_ns == 2 * SECOND
    assert compute_states(core, 50)[0] == ("observed", "alice", 0, 50)


def test_a_gpu_that_is_cut_in_the_middle_of_an_hour_has_stranded_parts(core: CollectorState):
    node = NodeReporter()
    accept(core, node.envelopes_of(gpus_of("GPU-0"), range(0, 101, 10)))
    accept(core, node.envelopes_of(cut("GPU-0"), range(0, 41, 10)))
    accept(core, node.envelopes_of(cut("GPU-0", "3g.40gb", "3g.40gb"), range(50, 81, 10)))
    accept(core, node.envelopes_of(cut("GPU-0"), range(90, 101, 10)))
    evidence = known_of(core, "GPU-0").evidence
    assert [(x.start_ns - at(0)) // SECOND for x in evidence.layouts] == [0, 50, 90]
    stranded = [e for e in tile(evidence, at(0), at(100)) if e.state is SlotState.STRANDED]
    assert [
        (e.tiling, e.slot_hi - e.slot_lo, (e.t0_ns - at(0)) // SECOND, (e.t1_ns - at(0)) // SECOND)
        for e in stranded
    ] == [("compute", 120, 50, 90)]


def test_parts_of_a_gpu_have_holders_of_their_own(core: CollectorState):
    node = NodeReporter()
    half = {"compute": "0-420", "memory": "0-420"}
    events = {
        10: [
            claim_started("GPU-0", "a", 10, tenant="alice", **half),
            claim_started("GPU-0", "b", 10, tenant="bob", compute="420-840", memory="420-840"),
        ],
        60: [claim_ended("GPU-0", "a", 50)],
    }
    accept(core, node.envelopes_of(gpus_of("GPU-0"), range(0, 101, 10), events=events))
    found = {
        (e.tenant, e.slot_lo, e.slot_hi, (e.t0_ns - at(0)) // SECOND, (e.t1_ns - at(0)) // SECOND)
        for e in tile(known_of(core, "GPU-0").evidence, at(0), at(100))
        if e.tenant
    }
    assert found == {("alice", 0, 420, 10, 50), ("bob", 420, 840, 10, 100)}


async def test_a_gpu_passes_from_one_tenant_to_the_next_without_a_hole(core: CollectorState):
    problems = new_problems(core)
    events = {
        60: [claim_ended("GPU-0", "a", 50), claim_started("GPU-0", "b", 50, tenant="bob")],
        10: [claim_started("GPU-0", "a", 0, **ALICE)],
    }
    accept(core, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, 101, 10), events=events))
    assert seconds_of(await account_at(core, 100)) == {
        ("observed", "alice"): 50,
        ("observed", "bob"): 50,
    }
    assert not problems


async def test_two_claims_of_one_authority_on_one_slot_are_reported_and_billed_once(
    core: CollectorState,
):
    problems = new_problems(core)
    events = {
        10: [claim_started("GPU-0", "a", 0, **ALICE), claim_started("GPU-0", "b", 40, tenant="bob")]
    }
    accept(core, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, 101, 10), events=events))
    assert seconds_of(await account_at(core, 100)) == {
        ("observed", "alice"): 40,
        ("observed", "bob"): 60,
    }
    assert [(t.kind, t.gpu, t.facts["earlier"], t.facts["later"]) for t in problems] == [
        ("conflict", "GPU-0", "a", "b")
    ]
    await account_at(core, 100)
    assert len(problems) == 1, "said once"


async def test_a_claim_of_the_file_on_a_gpu_is_an_exception_to_one_on_its_node(
    core: CollectorState,
):
    problems = new_problems(core)
    accept(core, NodeReporter("n1").envelopes_of(gpus_of("GPU-0"), range(0, 101, 10)))
    text = f"tenant,holds,from,to\nalice,n1,{story_time(0)},\nbob,GPU-0,{story_time(40)},\n"
    files = AdministratorInputs(claims=claims_file.parse_claims(text))
    assert seconds_of(await account_at(core, 100, files)) == {
        ("observed", "alice"): 40,
        ("observed", "bob"): 60,
    }
    assert not problems


async def test_a_claim_of_higher_authority_is_no_conflict(core: CollectorState):
    problems = new_problems(core)
    process = claim_started("GPU-0", "p", 10, tenant="bob", level="process", source="process")
    events = {20: [claim_started("GPU-0", "a", 0, **ALICE), process]}
    accept(core, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, 51, 10), events=events))
    assert seconds_of(await account_at(core, 50)) == {("observed", "alice"): 50}
    assert not problems


async def test_use_without_a_claim_is_unclaimed(core: CollectorState):
    events = {
        10: [
            claim_started(
                "GPU-0", "x", 10, unclaimed=True, level="process", owner="root", source="process"
            )
        ]
    }
    accept(core, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, 51, 10), events=events))
    assert seconds_of(await account_at(core, 50)) == {
        ("idle", ""): 10,
        ("unclaimed", "process:root"): 40,
    }


async def test_a_gpu_that_moves_takes_node_claims_along_only_from_then_on(core: CollectorState):
    accept(core, NodeReporter("n1").envelopes_of(gpus_of("GPU-0"), range(0, 101, 10)))
    accept(core, NodeReporter("n2", "boot-9").envelopes_of(gpus_of("GPU-0"), range(200, 301, 10)))
    accept(core, NodeReporter("n1", "boot-2", "run-2").envelopes_of(host(), range(170, 301, 10)))
    text = f"tenant,holds,from,to\nalice,n1,{story_time(0)},\nbob,n2,{story_time(0)},\n"
    files = AdministratorInputs(claims=claims_file.parse_claims(text))
    account = await account_at(core, 300, files)
    assert account.balances
    assert seconds_of(account) == {
        ("observed", "alice"): 100,
        ("inferred", "alice"): 100,
        ("observed", "bob"): 100,
    }


async def test_of_two_nodes_with_one_gpu_the_first_stands_whatever_times_the_other_gives(
    core: CollectorState,
):
    problems = new_problems(core)
    accept(core, NodeReporter("n1").envelopes_of(gpus_of("GPU-0"), range(1000, 1101, 10)))
    thief = NodeReporter("n2", "boot-9")
    frames = thief.frames(gpus_of("GPU-0"), range(900, 1201, 10))
    accept(core, [thief.record(frames, sent=1200)])
    account = await account_at(core, 1200)
    assert account.balances
    assert [(t.kind, t.gpu, t.node) for t in problems] == [("seen_twice", "GPU-0", "n2")]
    stays = [
        (s.node, (s.start_ns - at(0)) // SECOND) for s in known_of(core, "GPU-0").evidence.stays
    ]
    assert stays == [("n1", 1000)]


def test_a_node_reports_claims_of_its_own_gpus_only(core: CollectorState):
    accept(core, NodeReporter("n1").envelopes_of(gpus_of("GPU-0"), range(0, 101, 10)))
    stranger = NodeReporter("n2", "boot-9")
    events = {
        10: [
            claim_started("GPU-0", "x", 0, tenant="mallory", level="administrator"),
            claim_started("GPU-9", "y", 0, tenant="mallory"),
        ]
    }
    accept(core, stranger.envelopes_of(gpus_of("GPU-1"), range(0, 101, 10), events=events))
    assert compute_states(core, 100) == [("idle", "", 0, 100)]


def test_an_end_reported_by_another_node_ends_nothing(core: CollectorState):
    events = {10: [claim_started("GPU-0", "a", 0, **ALICE)]}
    accept(
        core, NodeReporter("n1").envelopes_of(gpus_of("GPU-0"), range(0, 101, 10), events=events)
    )
    accept(
        core,
        NodeReporter("n2", "boot-9").envelopes_of(
            gpus_of("GPU-1"), [50], events={50: [claim_ended("GPU-0", "a", 20)]}
        ),
    )
    assert compute_states(core, 100) == [("observed", "alice", 0, 100)]


def test_an_end_may_be_received_before_the_start(core: CollectorState):
    node = NodeReporter()
    early = node.envelopes_of(
        gpus_of("GPU-0"), range(0, 51, 10), events={20: [claim_started("GPU-0", "a", 10, **ALICE)]}
    )
    late = node.envelopes_of(
        gpus_of("GPU-0"), range(60, 101, 10), events={60: [claim_ended("GPU-0", "a", 55)]}
    )
    accept(core, [*late, *early])
    assert compute_states(core, 100) == [
        ("idle", "", 0, 10),
        ("observed", "alice", 10, 55),
        ("idle", "", 55, 100),
    ]


@pytest.mark.parametrize(
    "facts",
    [{"level": "king"}, {"start_ns": "soon"}, {"compute": "0-900"}, {"compute": "500-400"},
     {"owner": "a" * (MAX_CHARACTERS + 1)}, {"start_ns": "9" * 19}],
)  # fmt: skip
def test_an_impossible_claim_is_reported_and_ignored(core: CollectorState, facts: dict[str, str]):
    problems = new_problems(core)
    events = {10: [claim_started("GPU-0", "a", 0, **facts)]}
    accept(core, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, 51, 10), events=events))
    assert core.evidence.rejected_claims == 1
    assert [t.kind for t in problems] == ["rejected_claim"]
    assert compute_states(core, 50) == [("idle", "", 0, 50)]
