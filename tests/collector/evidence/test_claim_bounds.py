"""One node's claims are bounded; those of others are not affected."""

from __future__ import annotations

from support.story import NodeReporter, accept, claim_started, gpus_of

from railscope_collector.evidence.batch_facts import MAX_IN_FORCE, MAX_IN_FORCE_ON_GPU
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
    reported = [claim for gpu in core.evidence.gpus.values() for claim in gpu.claims]
    assert (len(reported), core.evidence.rejected_claims) == (MAX_IN_FORCE + 1, 5)
    assert {one.node for one in reported} == {"n1", "n2"}
    (trouble,) = [problem for problem in reported_problems if problem.kind == "rejected_claim"]
    assert trouble.facts == {"problem": f"the node has {MAX_IN_FORCE} claims in force"}
