"""Number of GPUs of a node expected without an inventory: 32 at once, 64 new ones in 30 days."""

from __future__ import annotations

from core_queries import ALICE
from hypothesis import given, strategies as st
from reports import HOUR
from support.story import DAY_SECONDS, NodeReporter, accept, at, claim_started, gpus_of, known_of

from railscope.timestamps import FOREVER_NS
from railscope_collector.evidence.gpu_evidence import AdministratorInputs
from railscope_collector.evidence.node_intervals import FirstContact
from railscope_collector.evidence.review_rules import (
    MAX_GPUS_AT_ONCE,
    MAX_NEW_GPUS,
    NEW_NS,
    TOO_MANY,
    TOO_MANY_NEW,
    ExpectedGpus,
    ReviewDecisions,
    ReviewKind,
    ReviewSubject,
)
from railscope_collector.files.retirements_file import RetiredGpus, Retirement
from railscope_collector.state.collector_state import CollectorState

MONTH = 30 * DAY_SECONDS


def name_of(number: int) -> str:
    return f"GPU-{number:03}"


def replaced(count: int, every: int) -> RetiredGpus:
    """GPUs that are each retired before the next one comes."""
    return RetiredGpus.from_rows(
        Retirement(at((number + 1) * every - 1), FOREVER_NS, name_of(number))
        for number in range(count)
    )


def reasons(count: int, every: int, expected: ExpectedGpus) -> dict[str, str]:
    """Reason for the review of each GPU, of those that a node reports one after the other."""
    gpus = {name_of(n): FirstContact(at(n * every), f"0000:{n:02x}:00.0") for n in range(count)}
    found = {}
    for gpu, contact in gpus.items():
        for start, end, reason in expected.excess(gpu, "n1", {"n1": gpus}):
            if start <= contact.received_ns < end:
                found[gpu] = reason
    return found


def test_of_gpus_that_replace_each_other_64_in_30_days_are_expected():
    every = HOUR
    count = MAX_NEW_GPUS + 5
    expected = ExpectedGpus(retired=replaced(count, every))
    assert reasons(count, every, expected) == {
        name_of(number): TOO_MANY_NEW for number in range(MAX_NEW_GPUS, count)
    }


def test_after_30_days_more_gpus_are_expected():
    every = MONTH // MAX_NEW_GPUS
    assert at(MONTH) - at(0) == NEW_NS
    count = 2 * MAX_NEW_GPUS
    assert reasons(count, every, ExpectedGpus(retired=replaced(count, every))) == {}


def test_a_node_that_keeps_inventing_gpus_has_32():
    count = 100
    found = reasons(count, 1, ExpectedGpus())
    assert found == {name_of(number): TOO_MANY for number in range(MAX_GPUS_AT_ONCE, count)}


@given(st.sets(st.integers(0, 99)), st.sets(st.integers(0, 99)))
def test_decided_gpus_do_not_wait_and_rejected_ones_leave_their_place(accepted, rejected):
    verdicts = dict.fromkeys(accepted, True) | dict.fromkeys(rejected, False)
    decisions = ReviewDecisions(
        {
            ReviewSubject(ReviewKind.GPU, "n1", name_of(number)): verdict
            for number, verdict in verdicts.items()
        }
    )
    waits = reasons(100, 1, ExpectedGpus(decisions=decisions))
    in_service = [n for n in range(100) if name_of(n) not in waits and verdicts.get(n) is not False]
    assert not {name_of(number) for number in verdicts} & waits.keys()
    assert len([n for n in in_service if n not in accepted]) <= MAX_GPUS_AT_ONCE


def test_the_65th_new_gpu_of_a_month_waits_for_a_person(core: CollectorState):
    """Each GPU is retired before the next one is reported."""
    every, count = 120, MAX_NEW_GPUS + 1
    node = NodeReporter()
    for number in range(count):
        name, begin = name_of(number), number * every
        node.run, node.sequences = f"run-{number}", {}
        events = {begin: [claim_started(name, f"job-{number}", begin, **ALICE)]}
        accept(core, [node.record(node.frames(gpus_of(name), [begin, begin + 30], events=events))])
    files = AdministratorInputs(retired=replaced(count, every))
    waits = {
        number: claim.review
        for number in range(count)
        for claim in known_of(core, name_of(number), files).evidence.claims
        if claim.review
    }
    assert waits == {MAX_NEW_GPUS: TOO_MANY_NEW}
