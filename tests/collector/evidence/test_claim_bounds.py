"""One node's claims are bounded; those of others are not affected."""

from __future__ import annotations

from core_queries import new_problems
from support.story import NodeReporter, accept, claim_ended, claim_started, gpus_of

from railscope_collector.evidence.batch_facts import MAX_IN_FORCE, MAX_IN_FORCE_ON_GPU, MAX_REPORTS
from railscope_collector.state.collector_state import CollectorState

GPU = "GPU-0"


def report(core: CollectorState, events: list, node: str = "n1", second: int = 10) -> None:
    """One envelope of a node with these events."""
    reporter = NodeReporter(node, run=f"run-{second}")
    accept(core, reporter.envelopes_of(gpus_of(GPU), [second], events={second: events}))


def full(count: int) -> list:
    """So many claims, no more on one GPU than it may have."""
    return [claim_started(f"GPU-{n // MAX_IN_FORCE_ON_GPU}", f"c{n}", 10) for n in range(count)]


def test_claims_beyond_the_bound_are_rejected_and_counted_for_that_node_only(core: CollectorState):
    reported_problems = new_problems(core)
    report(core, full(MAX_IN_FORCE + 5))
    report(core, [claim_started(GPU, "mine", 10)], node="n2")
    reported = [claim for gpu in core.evidence.gpus.values() for claim in gpu.claims]
    assert (len(reported), core.evidence.rejected_claims) == (MAX_IN_FORCE + 1, 5)
    assert {one.node for one in reported} == {"n1", "n2"}
    (trouble,) = [problem for problem in reported_problems if problem.kind == "rejected_claim"]
    assert trouble.facts == {"problem": f"the node has {MAX_IN_FORCE} claims in force"}


def test_claims_on_one_gpu_are_bounded_and_those_on_others_and_of_others_are_not(
    core: CollectorState,
):
    reported_problems = new_problems(core)
    report(
        core, [claim_started(GPU, f"c{number}", 10) for number in range(MAX_IN_FORCE_ON_GPU + 2)]
    )
    assert core.evidence.rejected_claims == 2
    (trouble,) = [problem for problem in reported_problems if problem.kind == "rejected_claim"]
    problem = f"the node has {MAX_IN_FORCE_ON_GPU} claims in force on the GPU"
    assert trouble.facts == {"problem": problem}
    report(core, [claim_started("GPU-1", "other", 11)], second=11)
    report(core, [claim_started(GPU, "mine", 11)], node="n2", second=11)
    report(core, [claim_ended(GPU, "c7", 12), claim_started(GPU, "next", 12)], second=12)
    assert core.evidence.rejected_claims == 2
    assert {"mine", "next"} <= {claim.id for claim in core.evidence.gpus[GPU].claims}


def test_a_claim_that_ended_frees_its_place(core: CollectorState):
    report(core, full(MAX_IN_FORCE))
    report(core, [claim_ended(GPU, "c7", 11), claim_started(GPU, "another", 11)], second=11)
    assert core.evidence.rejected_claims == 0
    assert "another" in {claim.id for claim in core.evidence.gpus[GPU].claims}


def test_different_reports_of_one_claim_are_bounded_too(core: CollectorState):
    report(core, [claim_started(GPU, "c", 10, owner=str(n)) for n in range(MAX_REPORTS + 3)])
    assert (len(core.evidence.gpus[GPU].claims), core.evidence.rejected_claims) == (MAX_REPORTS, 3)


def test_a_node_that_reports_nonsense_is_reported_some_times_and_then_counted(core: CollectorState):
    reported_problems = new_problems(core)
    report(core, [claim_started(GPU, f"c{number}", 10, level=str(number)) for number in range(300)])
    assert core.evidence.rejected_claims == 300
    assert (
        len([problem for problem in reported_problems if problem.kind == "rejected_claim"]) == 200
    )
    assert core.evidence.problems.suppressed == 100


def test_a_restart_counts_on(core: CollectorState):
    report(core, full(MAX_IN_FORCE))
    core.evidence.restore(core.evidence.gpus, [], [])
    report(core, [claim_started(GPU, "one more", 11)], second=11)
    assert core.evidence.rejected_claims == 1
