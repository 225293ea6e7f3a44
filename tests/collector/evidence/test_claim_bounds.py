"""One node's claims are bounded; those of others are not affected."""

from __future__ import annotations

from support.checkpoints import checkpoint_of, resume_from
from support.story import (
    NodeReporter,
    accept,
    claim_ended,
    claim_started,
    gpus_of,
    temporary_core,
)

from railscope_collector.evidence.open_claims import (
    MAX_BOOTS,
    MAX_ENDS,
    MAX_IN_FORCE,
    MAX_IN_FORCE_ON_GPU,
    MAX_REPORTS,
)
from railscope_collector.state.collector_state import CollectorState

GPU = "GPU-0"


def report(core: CollectorState, events: list, node: str = "n1") -> None:
    """One envelope of a node with these events."""
    accept(core, NodeReporter(node).envelopes_of(gpus_of(GPU), [10], events={10: events}))


def full(count: int) -> list:
    """So many claims, no more on one GPU than it may have."""
    return [claim_started(f"GPU-{n // MAX_IN_FORCE_ON_GPU}", f"c{n}", 10) for n in range(count)]


def test_claims_beyond_the_bound_are_rejected_and_counted_for_that_node_only(core: CollectorState):
    reported_problems: list = []
    core.evidence.problems.listeners.append(reported_problems.append)
    report(core, full(MAX_IN_FORCE + 5))
    report(core, [claim_started(GPU, "mine", 10)], node="n2")
    counts = {name: len(of_node.claims) for name, of_node in core.evidence.claims.nodes.items()}
    assert (counts, core.evidence.rejected_claims) == ({"n1": MAX_IN_FORCE, "n2": 1}, 5)
    (trouble,) = [problem for problem in reported_problems if problem.kind == "rejected_claim"]
    assert trouble.facts == {"problem": f"the node has {MAX_IN_FORCE} claims in force"}
    # Nodes claim any name: only GPUs that were seen have holders.
    assert core.evidence.changed == {GPU}


def test_different_reports_of_one_claim_are_bounded(core: CollectorState):
    report(core, [claim_started(GPU, "c", 10, tenant=f"t{n}") for n in range(MAX_REPORTS + 5)])
    (claim,) = core.evidence.claims.nodes["n1"].claims.values()
    assert (len(claim.starts), core.evidence.rejected_claims) == (MAX_REPORTS, 5)


def test_only_the_newest_boots_of_a_node_are_remembered(core: CollectorState):
    for number in range(MAX_BOOTS + 5):
        second = 1000 * number + 100
        node = NodeReporter(boot_id=f"b{number}", run=f"r{number}", booted_at=second - 50)
        accept(core, node.envelopes_of(gpus_of(GPU), [second]))
    boots = core.evidence.claims.nodes["n1"].boots
    assert set(boots) == {f"b{number}" for number in range(5, MAX_BOOTS + 5)}


def test_claims_that_have_ended_do_not_count(core: CollectorState):
    node = NodeReporter()
    for number in range(MAX_IN_FORCE_ON_GPU + 50):
        second = 20 * (number + 1)
        ended = [claim_ended(GPU, f"job-{number - 1}", second)] if number else []
        events = {second: [*ended, claim_started(GPU, f"job-{number}", second)]}
        accept(core, node.envelopes_of(gpus_of(GPU), [second], events=events))
    of_node = core.evidence.claims.nodes["n1"]
    assert (len(of_node.claims), core.evidence.rejected_claims) == (1, 0)
    assert len(core.evidence.unwritten) == 2 * (MAX_IN_FORCE_ON_GPU + 50) - 1


def test_claims_of_former_boots_do_not_count(core: CollectorState):
    for number in range(8):
        second = 1000 * number + 100
        node = NodeReporter(boot_id=f"boot-{number}", run=f"run-{number}", booted_at=second - 50)
        events = [claim_started(GPU, f"{number}-{i}", second) for i in range(20)]
        accept(core, node.envelopes_of(gpus_of(GPU), [second], events={second: events}))
        restarted = temporary_core()
        resume_from(restarted, checkpoint_of(core))
        core = restarted
        assert len(core.evidence.claims.nodes["n1"].claims) == 20
    assert core.evidence.rejected_claims == 0


def test_ends_without_a_claim_are_rejected_beyond_the_bound_of_an_hour(core: CollectorState):
    reported_problems: list = []
    core.evidence.problems.listeners.append(reported_problems.append)
    node, future = NodeReporter(), 10**8
    begun = claim_started(GPU, "job", 10)
    ends = [claim_ended(GPU, f"c{number}", future) for number in range(MAX_ENDS + 5)]
    events = {10: [begun, *ends], 20: [claim_ended(GPU, "job", 20)]}
    accept(core, node.envelopes_of(gpus_of(GPU), [10, 20], events=events))
    of_node = core.evidence.claims.nodes["n1"]
    # The end of a known claim is accepted, and the oldest of the others leaves memory.
    assert (len(of_node.claims), len(of_node.ends), core.evidence.rejected_claims) == (
        0,
        MAX_ENDS,
        5,
    )
    assert len(core.evidence.unwritten) == MAX_ENDS + 2
    (trouble,) = [problem for problem in reported_problems if problem.kind == "rejected_claim"]
    assert trouble.facts == {"problem": f"the node has {MAX_ENDS} ends within an hour"}
    events = {4000: [claim_ended(GPU, "later", 4000)]}
    accept(core, node.envelopes_of(gpus_of(GPU), [4000], events=events))
    assert (len(of_node.ends), core.evidence.rejected_claims) == (1, 5)


def test_claims_that_wait_for_the_database_use_the_share_of_their_node(core: CollectorState):
    node, seconds = NodeReporter(), range(10, 130)
    events = {
        s: [claim_started(GPU, f"j{s}{i}", s), claim_ended(GPU, f"j{s}{i}", s)]
        for s in seconds
        for i in range(2)
    }
    before = core.evidence.pending("n1")
    accept(core, node.envelopes_of(gpus_of(GPU), seconds, events=events))
    assert core.evidence.pending("n1") > before + 1
    core.evidence.leave_memory(list(core.evidence.unwritten))
    assert not core.evidence.unwritten
    assert core.evidence.pending("n1") == core.evidence.quarters.counts["n1"]
