"""Properties of the claim tracker: claims begin and end once, and a restart changes nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec
from hypothesis import given, strategies as st

from railscope.claim_terms import ClaimAuthority
from railscope.frame import Event, NodeTimestamp
from railscope.reading import Absent
from railscope_agent.gpus.mig_slots import GpuSlotRange
from railscope_agent.tenancy.claim_provider import ClaimReport
from railscope_agent.tenancy.claim_tracker import (
    ActiveClaim,
    ClaimTracker,
    ClaimTrackerState,
    ProviderReport,
)
from railscope_agent.tenancy.claims import NodeClaim

NS = 1_000_000_000
BEGIN = NodeTimestamp(1_790_000_000 * NS, 1_000 * NS)
START, END = "claim_start", "claim_end"
SOURCES = {
    "kubernetes": ClaimAuthority.NODE_PLUGIN,
    "command": ClaimAuthority.SCHEDULER,
    "file": ClaimAuthority.SCHEDULER,
}


@dataclass(frozen=True)
class PollStep:
    """One poll: the claims of each source (None if unreadable) and the time since the previous poll."""

    claims_by_source: dict[str, tuple[NodeClaim, ...] | None]
    seconds: int
    wall_step: int = 0
    restart: bool = False
    lost: frozenset[str] = field(default_factory=frozenset)


def make_claim(source: str, workload: int, gpu: int, place: int, tenant: int) -> NodeClaim:
    name = f"kubernetes:{workload}" if source in {"command", "file"} else str(workload)
    slots = GpuSlotRange(420 * place, 420 * (place + 1))
    return NodeClaim(
        source=source,
        authority=SOURCES[source],
        workload=name,
        gpu=f"GPU-{gpu}",
        tenant=str(tenant),
        device=f"GPU-{gpu}::{place}",
        compute=slots,
        memory=slots,
        reference="" if source == "kubernetes" else f"{workload}",
    )


def claim_lists(source: str) -> st.SearchStrategy[tuple[NodeClaim, ...] | None]:
    one = st.builds(
        make_claim,
        st.just(source),
        st.integers(0, 2),
        st.integers(0, 1),
        st.integers(0, 1),
        st.integers(0, 1),
    )
    some = st.lists(one, max_size=4, unique_by=lambda each: each.key).map(tuple)
    return st.one_of(st.none(), some)


steps = st.lists(
    st.builds(
        PollStep,
        st.fixed_dictionaries({source: claim_lists(source) for source in SOURCES}),
        st.integers(1, 4000),
        st.sampled_from([0, 0, 0, 0, -7200, 7200]),
        st.booleans(),
        st.frozensets(st.sampled_from(["GPU-0", "GPU-1"]), max_size=1),
    ),
    max_size=8,
)


@dataclass
class TrackerRun:
    """A claim tracker led through poll steps; with `restarts`, its state is stored and loaded at a restart."""

    restarts: bool
    tracker: ClaimTracker = field(default_factory=lambda: ClaimTracker("n", "boot"))
    events: list[Event] = field(default_factory=list)
    now: NodeTimestamp = BEGIN

    def poll(self, step: PollStep) -> tuple[ActiveClaim, ...]:
        before, boot_ns = self.tracker.active_claims, self.now.boot_ns + step.seconds * NS
        wall_ns = self.now.wall_ns + (step.seconds + step.wall_step) * NS
        self.now = NodeTimestamp(wall_ns, boot_ns)
        if self.restarts and step.restart:
            written = msgspec.json.encode(self.tracker.state)
            self.tracker = ClaimTracker(
                "n", "boot", msgspec.json.decode(written, type=ClaimTrackerState)
            )
        reports = [
            ProviderReport(
                source,
                ClaimReport(absence=Absent.GONE)
                if claims is None
                else ClaimReport(claims, unreadable_gpus=step.lost),
                NodeTimestamp(wall_ns, boot_ns - 1),
                self.now,
            )
            for source, claims in step.claims_by_source.items()
        ]
        self.tracker.process_reports(reports, self.now)
        self.events += self.tracker.take_events()
        return before


@given(steps)
def test_starts_and_ends_pair_up(sequence):
    run = TrackerRun(restarts=False)
    for step in sequence:
        run.poll(step)
    began, ended = {}, {}
    for event in run.events:
        key, facts = event.entity.key, event.facts
        if event.event_class.name == START:
            assert began.setdefault(key, facts) == facts, "a repeated report has the same facts"
        else:
            assert key in began, "nothing ends that has not begun"
            assert ended.setdefault(key, facts) == facts
            assert int(facts["end_ns"]) >= int(began[key]["start_ns"])
            assert int(facts["uncertainty_ns"]) >= 0
    assert {claim.id for claim in run.tracker.active_claims} == {
        key[1] for key in began.keys() - ended.keys()
    }
    assert all(
        count == 1 for count in Counter(claim.id for claim in run.tracker.active_claims).values()
    )


@given(steps)
def test_a_restart_at_any_point_changes_nothing(sequence):
    plain, restarted = TrackerRun(restarts=False), TrackerRun(restarts=True)
    for step in sequence:
        plain.poll(step)
        restarted.poll(step)
        assert plain.tracker.active_claims == restarted.tracker.active_claims
    stories = [
        {(e.event_class.name, e.entity.key) for e in run.events} for run in (plain, restarted)
    ]
    assert stories[0] == stories[1]


@given(steps)
def test_an_unreadable_source_ends_no_claim(sequence):
    run = TrackerRun(restarts=False)
    for step in sequence:
        before = run.poll(step)
        after = {claim.id for claim in run.tracker.active_claims}
        higher = {
            (h.gpu, h.owning_workload)
            for source in ("command", "file")
            for h in step.claims_by_source[source] or ()
        } | {(o.claim.gpu, o.claim.owning_workload) for o in before if o.adapter != "kubernetes"}
        for one in before:
            unread = step.claims_by_source[one.adapter] is None
            left = (one.claim.gpu, one.claim.owning_workload) in higher and one.adapter != "file"
            if unread:
                assert one.id in after
            elif one.claim.gpu in step.lost and not left:
                present = {h.key: h for h in step.claims_by_source[one.adapter] or ()}
                reported = present.get(one.claim.key)
                assert one.id in after or (
                    reported is not None and not reported.has_same_content(one.claim)
                )


@given(steps)
def test_a_workload_has_one_claim_on_what_it_holds(sequence):
    """The same pod reported by the kubelet and by a higher authority is one claim without duplicates."""
    run = TrackerRun(restarts=True)
    for step in sequence:
        run.poll(step)
        readable = [
            claim
            for claim in run.tracker.active_claims
            if step.claims_by_source[claim.adapter] is not None and claim.claim.gpu not in step.lost
        ]
        for one in readable:
            for other in readable:
                if one.claim.authority < other.claim.authority and one.claim.gpu == other.claim.gpu:
                    same = one.claim.owning_workload == other.claim.owning_workload
                    assert not (same and one.claim.compute.overlaps(other.claim.compute))


@given(steps)
def test_present_claims_are_reported_or_left_to_a_higher_authority(sequence):
    run = TrackerRun(restarts=False)
    for step in sequence:
        run.poll(step)
        for claim in step.claims_by_source["file"] or ():
            assert any(one.claim.has_same_content(claim) for one in run.tracker.active_claims), (
                "the highest authority is always reported"
            )
