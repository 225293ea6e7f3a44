"""A GPU that several nodes report: a stale node does not lose it, and a real move counts."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from core_queries import ALICE, compute_states
from hypothesis import given, settings, strategies as st
from reports import HOUR
from support.checkpoints import checkpoint_of, resume_from
from support.examples import fewer_examples
from support.finalizing import FinalizingCollector
from support.story import (
    DAY_SECONDS,
    Envelopes,
    NodeReporter,
    accept,
    account_at,
    at,
    claim_started,
    core_in,
    gpus_of,
    host,
    known_of,
    seconds_of,
)

from railscope.audit.record import RecordActor
from railscope.reading import Absent
from railscope_collector.evidence.gpu_evidence import AdministratorInputs
from railscope_collector.evidence.gpu_node_history import (
    LEFT_NS,
    NodeListing,
    divide_occupancy,
    intersect_periods,
    subtract_periods,
    unite_periods,
)
from railscope_collector.evidence.node_intervals import SampleSpan
from railscope_collector.evidence.review_decisions import (
    ReviewDecision,
    find_pending_evidence,
    record_decision,
)
from railscope_collector.evidence.review_rules import (
    CONTESTED,
    MOVED,
    ReviewDecisions,
    ReviewKind,
    ReviewSubject,
)
from railscope_collector.files import inventory_file
from railscope_collector.metering.observation import GAP_NS
from railscope_collector.state.collector_state import CollectorState

END = 290
RED = {"tenant": "red"}
BLUE = {"tenant": "blue"}
LIVE = ("observed", "inferred")


def victim(*, away: range = range(100, 200), end: int = END) -> Envelopes:
    """n2 with GPU-0 held by red, which does not report for a while."""
    seconds = [second for second in range(0, end + 1, 10) if second not in away]
    events = {10: [claim_started("GPU-0", "job", 0, **RED)]}
    node = NodeReporter("n2", "boot-2", "run-2")
    return sorted(
        node.envelopes_of(gpus_of("GPU-0"), seconds, each=1, events=events)
        + node.envelopes_of(host(), seconds, each=1),
        key=lambda one: one[0].received_wall_ns,
    )


def thief(seconds: range, *, claims: bool = False) -> Envelopes:
    """n1, which lists GPU-0 of n2."""
    events = {seconds[1]: [claim_started("GPU-0", "mine", seconds[0], **BLUE)]} if claims else {}
    return NodeReporter().envelopes_of(gpus_of("GPU-0"), seconds, each=1, events=events)


def in_turn(*some: Envelopes) -> Envelopes:
    """Envelopes in the order of their receipt."""
    found = [envelope for envelopes in some for envelope in envelopes]
    return sorted(found, key=lambda one: one[0].received_wall_ns)


def held(core: CollectorState, second: int = END, files: AdministratorInputs | None = None) -> dict:
    """Seconds of GPU-0 by state and tenant."""
    found: dict[tuple[str, str], float] = {}
    for state, tenant, start, end in compute_states(core, second, files=files):
        found[state, tenant] = found.get((state, tenant), 0) + end - start
    return found


def decided(**verdicts: bool) -> AdministratorInputs:
    """Decisions about GPU-0 in nodes."""
    return AdministratorInputs(
        decisions=ReviewDecisions(
            {
                ReviewSubject(ReviewKind.GPU, node, "GPU-0"): verdict
                for node, verdict in verdicts.items()
            }
        )
    )


@pytest.mark.parametrize("seconds", [range(130, 171, 10), range(110, 191, 5), range(5, 290, 5)])
async def test_a_stale_node_keeps_its_gpu(core: CollectorState, seconds: range):
    accept(core, in_turn(victim(), thief(seconds)))
    assert held(core) == {("observed", "red"): 180, ("inferred", "red"): 110}
    assert seconds_of(await account_at(core, END)) == held(core)
    assert {stay.node for stay in known_of(core, "GPU-0").evidence.stays} == {"n2"}


@pytest.mark.parametrize("seconds", [range(130, 171, 10), range(5, 290, 5), range(-600, 290, 5)])
async def test_with_claims_of_both_nodes_no_tenant_is_billed(core: CollectorState, seconds: range):
    accept(core, in_turn(victim(), thief(seconds, claims=True)))
    found = held(core)
    billed = {
        tenant: sum(s for (state, holder), s in found.items() if holder == tenant and state in LIVE)
        for tenant in ("red", "blue")
    }
    disputed = sum(s for (state, _), s in found.items() if state == "review")
    overlap = min(END, seconds[-1]) - max(0, seconds[0])
    assert disputed >= overlap - 20
    if seconds[0] >= 0:
        assert billed["red"] + disputed == END
        assert not billed["blue"]
    else:
        assert compute_states(core, 0)[-1][:2] == ("observed", "blue"), "n2 was not known then"
        assert all(
            state == "review" for state, _, start, _ in compute_states(core, 280) if start >= 10
        )
    rejected = decided(n1=False)
    assert held(core, files=rejected) == {("observed", "red"): 180, ("inferred", "red"): 110}
    assert held(core, files=decided(n2=True))["observed", "red"] == 180
    assert (
        sum(s for (_, holder), s in held(core, files=decided(n2=True)).items() if holder == "red")
        >= END
    )
    assert {c.review for c in known_of(core, "GPU-0").evidence.claims if c.review} <= {
        MOVED,
        CONTESTED,
    }


async def test_a_node_that_listed_the_gpu_before_its_own_node_was_known(core: CollectorState):
    early = thief(range(-3000, 290, 10))
    accept(core, in_turn(early, victim()))
    found = held(core)
    assert found["review", "red"] >= 180
    assert all(state in {"idle", "review", "unknown"} for state, _ in found)
    assert seconds_of(await account_at(core, END))["review", "red"] == found["review", "red"]
    assert held(core, files=decided(n1=False)) == {
        ("observed", "red"): 180,
        ("inferred", "red"): 110,
    }


def test_a_device_without_values_has_not_left_its_node(core: CollectorState):
    node = NodeReporter("n2", "boot-2", "run-2")
    events = {10: [claim_started("GPU-0", "job", 0, **RED)]}
    first = node.envelopes_of(gpus_of("GPU-0", "GPU-1"), range(0, 101, 10), each=1, events=events)
    frames = node.frames(gpus_of("GPU-0", "GPU-1"), range(110, 601, 10))
    reasons = bytes([Absent.TIMEOUT.value, 0] * 3)
    hung = [node.record([replace(frame, reasons=reasons)]) for frame in frames]
    accept(core, in_turn(first, hung, thief(range(200, 601, 10))))
    assert {stay.node for stay in known_of(core, "GPU-0").evidence.stays} == {"n2"}
    assert not any(holder == "blue" for _, holder in held(core, 600))


@pytest.mark.parametrize("after", [[gpus_of("GPU-9")], [host()]])
async def test_a_gpu_that_was_moved_by_a_technician_is_in_its_new_node(
    core: CollectorState, tmp_path: Path, after: list
):
    """The old node is switched off, the new one starts first, the old one comes back without the GPU."""
    old = NodeReporter("n2", "boot-2", "run-2")
    events = {10: [claim_started("GPU-0", "job", 0, **RED)]}
    before = old.envelopes_of(gpus_of("GPU-0"), range(0, 101, 10), each=1, events=events)
    claims = {300: [claim_started("GPU-0", "next", 300, **BLUE)]}
    new = NodeReporter().envelopes_of(gpus_of("GPU-0"), range(200, 1001, 10), each=1, events=claims)
    again = NodeReporter("n2", "boot-3", "run-3", booted_at=350)
    back = [
        envelope
        for schema in after
        for envelope in again.envelopes_of(schema, range(400, 1001, 10), each=1)
    ]
    accept(core, in_turn(before, new[:15]))
    assert {holder for state, holder in held(core, 340) if state in LIVE} == {"red"}
    assert held(core, 340)["review", "red"] == 40, "two tenants claim the GPU"
    rest = core_in(tmp_path)
    resume_from(rest, checkpoint_of(core))
    accept(rest, in_turn(new[15:], back))
    assert [
        (stay.node, (stay.start_ns - at(0)) / 10**9)
        for stay in known_of(rest, "GPU-0").evidence.stays
    ] == [("n2", 0), ("n1", 200)]
    assert held(rest, 1000)["observed", "blue"] == 700
    account = seconds_of(await account_at(rest, 1000))
    assert account["observed", "blue"] == 700
    assert not any(state == "review" for state, _ in account)


def test_a_node_that_is_renamed_goes_through_by_the_inventory_or_one_decision(core: CollectorState):
    old = NodeReporter("old").envelopes_of(gpus_of("GPU-0"), range(0, 101, 10), each=1)
    events = {210: [claim_started("GPU-0", "next", 210, **BLUE)]}
    new = NodeReporter("new", "boot-2").envelopes_of(
        gpus_of("GPU-0"), range(200, 601, 10), each=1, events=events
    )
    accept(core, in_turn(old, new))
    assert held(core, 600)["review", "blue"] == 390
    assert held(core, 600, decided(new=True))["observed", "blue"] == 390
    rows = "node,gpus,rdma_ports,from,to\nold,1,,2026-01-01T00:00:00Z,{}\nnew,1,,{},\n"
    stamp = "2026-09-04T00:02:30Z"
    files = AdministratorInputs(inventory=inventory_file.parse_inventory(rows.format(stamp, stamp)))
    assert held(core, 600, files)["observed", "blue"] == 390
    unlisted = AdministratorInputs(
        inventory=inventory_file.parse_inventory(rows.split("new", maxsplit=1)[0].format(""))
    )
    assert ("observed", "blue") not in held(core, 600, unlisted)


async def test_the_ledger_and_people_see_a_move_that_waits(site: FinalizingCollector):
    events = {7 * HOUR: [claim_started("GPU-0", "next", 7 * HOUR, **ALICE)]}
    old = NodeReporter("old").envelopes_of(gpus_of("GPU-0"), range(0, 2 * HOUR, 30), each=40)
    new = NodeReporter("new", "boot-2").envelopes_of(
        gpus_of("GPU-0"), range(6 * HOUR, DAY_SECONDS, 30), each=40, events=events
    )
    accept(site.core, in_turn(old, new))
    now = DAY_SECONDS + 2 * HOUR
    await site.round(now, everything=True)

    def hours() -> dict:
        entries = site.stores.ledger.entries(at(0), at(DAY_SECONDS), "GPU-0")
        return {
            ("held" if e.state.value in LIVE else e.state.value, e.tenant): (e.t1_ns - e.t0_ns)
            // (HOUR * 10**9)
            for e in entries
            if e.tiling.value == "compute" and e.tenant
        }

    assert hours().keys() == {("review", "alice")}
    (one,) = find_pending_evidence(site.stores.store, site.stores.ledger.database, at(now))
    assert (one.subject, one.tenants, one.reasons) == (
        ReviewSubject(ReviewKind.GPU, "new", "GPU-0"),
        ("alice",),
        (MOVED,),
    )
    decision = ReviewDecision(
        accepted=True, actor=RecordActor("operator", "x"), now_ns=at(now + 60)
    )
    assert record_decision(site.stores.ledger.database, [one], decision) == 1
    await site.round(now + 120)
    assert hours().keys() == {("held", "alice")}
    assert (
        find_pending_evidence(site.stores.store, site.stores.ledger.database, at(now + 120)) == []
    )


@settings(fewer_examples(20))
@given(
    random=st.randoms(),
    claims=st.booleans(),
    begin=st.integers(-300, 150),
    count=st.integers(2, 40),
)
def test_the_order_of_receipt_of_other_nodes_frames_changes_nothing(
    tmp_path_factory, random, claims, begin, count
):
    """Frames in another order, twice, and through a checkpoint: only the record of each counts."""
    envelopes = in_turn(victim(), thief(range(begin, begin + 5 * count, 5), claims=claims))
    plain = core_in(tmp_path_factory.mktemp("schemas"))
    accept(plain, envelopes)
    shuffled = envelopes + random.sample(envelopes, len(envelopes) // 2)
    cut = len(envelopes) // 2
    again = core_in(directory := tmp_path_factory.mktemp("schemas"))
    accept(again, shuffled[:cut])
    resumed = core_in(directory)
    resume_from(resumed, checkpoint_of(again))
    accept(resumed, shuffled[cut:])
    assert known_of(resumed, "GPU-0").evidence == known_of(plain, "GPU-0").evidence
    billed = {holder for state, holder in held(plain) if state in LIVE}
    assert "blue" not in billed or begin < 0


# Division of time ------------------------------------------------------------------------------

STEP_NS = GAP_NS // 2
spans = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 30)), max_size=8)
nodes = st.lists(
    st.tuples(
        spans.filter(bool), st.integers(0, 200), spans, st.sampled_from([None, None, True, False])
    ),
    min_size=1,
    max_size=4,
)


@given(nodes)
def test_at_each_instant_one_node_at_most_has_the_gpu(found: list):
    listings = [
        NodeListing(f"n{number}", problems * STEP_NS, made(listed), made([*listed, *more]), verdict)
        for number, (listed, problems, more, verdict) in enumerate(found)
    ]
    divided = divide_occupancy(listings)
    everything = list(divided.occupied.values())
    for at_, some in enumerate(everything):
        for other in everything[at_ + 1 :]:
            assert not intersect_periods(unite_periods(some), unite_periods(other))
    for listing in listings:
        listed = unite_periods((s.first_ns, s.last_ns + 1) for s in listing.listed)
        if listing.verdict is False:
            assert listing.node not in divided.occupied
        elif listing.verdict is None:
            left = subtract_periods(listed, divided.occupied[listing.node])
            assert not subtract_periods(left, divided.under_review.get(listing.node, [])), (
                "occupied or under review"
            )


@given(spans.filter(bool), spans.filter(bool))
def test_the_first_node_keeps_all_that_it_listed_and_its_gaps(mine: list, others: list):
    first = NodeListing("n1", 0, made(mine), made(mine))
    second = NodeListing("n2", 10**15, made(others), made(others))
    divided = divide_occupancy([second, first])
    assert "n1" not in divided.under_review
    listed = made(mine)
    silences = [(a.last_ns, b.first_ns) for a, b in pairwise(listed)]
    assert not intersect_periods(unite_periods(divided.occupied["n2"]), unite_periods(silences))


def test_departure_takes_two_minutes_of_reports():
    for seconds, is_free in ((119, False), (120, True)):
        listed = [SampleSpan(0, 100 * 10**9)]
        reports = [SampleSpan(0, (130 + seconds) * 10**9)]
        other = NodeListing("n2", 10**15, [SampleSpan(10**12, 2 * 10**12)])
        divided = divide_occupancy([NodeListing("n1", 0, listed, reports), other])
        assert ("n2" not in divided.under_review) is is_free
    assert LEFT_NS == 120 * 10**9


def made(spans_: list) -> list[SampleSpan]:
    """Spans in order, none nearer to another than a gap."""
    found = unite_periods(
        (start * STEP_NS, (start + length) * STEP_NS + GAP_NS + 1) for start, length in spans_
    )
    return [SampleSpan(start, end - GAP_NS - 1) for start, end in found]


@pytest.mark.parametrize("left", [True, False])
async def test_each_day_of_the_ledger_contains_if_the_gpu_has_left_its_node(
    site: FinalizingCollector, *, left: bool
):
    """The old node stopped days before; it is read back to where it last listed the GPU, or left it."""
    gone = range(5 * HOUR, 8 * HOUR, 30) if left else range(5 * HOUR, 5 * HOUR + 61, 30)
    old = NodeReporter("old")
    envelopes = old.envelopes_of(gpus_of("GPU-0"), range(0, 2 * HOUR, 30), each=40)
    envelopes += old.envelopes_of(host(), gone, each=40)
    events = {7 * HOUR: [claim_started("GPU-0", "next", 7 * HOUR, **ALICE)]}
    seconds = range(6 * HOUR, 3 * DAY_SECONDS + HOUR, 30)
    envelopes += NodeReporter("new", "boot-2").envelopes_of(
        gpus_of("GPU-0"), seconds, each=40, events=events
    )
    accept(site.core, in_turn(envelopes))
    for day in (1, 2, 3):
        await site.round(day * DAY_SECONDS + 2 * HOUR, everything=True)
    for day in range(3):
        entries = site.stores.ledger.entries(
            at(day * DAY_SECONDS), at((day + 1) * DAY_SECONDS), "GPU-0"
        )
        found = {e.state.value for e in entries if e.tenant == "alice"}
        assert found <= ({"observed", "inferred"} if left else {"review"})
        assert found
    account = await site.account(3 * DAY_SECONDS + 2 * HOUR)
    states_ = {key.state.value for key, amount in account.sums.items() if key.tenant and amount}
    assert ("review" in states_) is not left
