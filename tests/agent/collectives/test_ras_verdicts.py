"""Verdicts about ranks from successive reports of a communicator."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from railscope_agent.collectives.ras_report import ANY_KIND, ReportedCommunicator, ReportedRank
from railscope_agent.collectives.ras_verdicts import (
    MIN_REPORTS,
    CommunicatorHistory,
    NcclRankState,
    complete_ranks,
)

WAIT = 60


def reported(*counts: int, problems: dict[int, str] | None = None) -> ReportedCommunicator:
    ranks = [
        ReportedRank(number, problem=(problems or {}).get(number, ""), counts={"AllReduce": count})
        for number, count in enumerate(counts)
    ]
    return ReportedCommunicator("0xa1", len(counts), ranks)


def states(*reports: ReportedCommunicator, step: int = 30) -> list[str]:
    """Return the states after reports `step` apart."""
    history = CommunicatorHistory(reports[0], 0)
    for number, report in enumerate(reports[1:], 1):
        history.update(report, number * step)
    return [v.state.name for v in history.verdicts((len(reports) - 1) * step, WAIT)]


def test_a_rank_is_late_after_enough_reports_and_time_without_a_change() -> None:
    behind = reported(5, 4, 5)
    late = ["WAITING", "LATE", "WAITING"]
    assert states(behind, behind, behind) == late
    assert states(behind, behind) == ["RUNNING"] * 3
    assert states(behind, behind, step=WAIT) == ["RUNNING"] * 3, f"expected {MIN_REPORTS} reports"
    assert states(behind, behind, behind, step=20) == ["RUNNING"] * 3, "expected 60 s"


def test_progress_of_any_rank_begins_again() -> None:
    behind, moved = reported(5, 4, 5), reported(6, 4, 5)
    assert states(behind, behind, moved, moved) == ["RUNNING"] * 3
    assert states(behind, behind, moved, moved, moved) == ["WAITING", "LATE", "LATE"]


def test_no_rank_is_late_while_another_one_does_not_respond() -> None:
    for problem, state in (("missing", "MISSING"), ("dead", "DEAD"), ("failed", "FAILED")):
        report = reported(5, 4, 0, problems={2: problem})
        assert states(report, report, report) == ["RUNNING", "RUNNING", state]
    starting = reported(5, 4, 0, problems={2: "starting"})
    assert states(starting, starting, starting) == ["RUNNING"] * 3


def test_a_rank_without_counts_is_unknown() -> None:
    report = ReportedCommunicator("0xa1", 1, [ReportedRank(0)])
    assert states(report, report, report) == ["UNKNOWN"]


def test_ranks_that_a_text_does_not_name_have_the_count_of_the_largest_group() -> None:
    named = [ReportedRank(1, counts={"AllReduce": 4}), ReportedRank(3, problem="missing")]
    report = ReportedCommunicator("0xa1", 4, named, {"AllReduce": 5, "Broadcast": 2})
    assert [(r.rank, r.problem, r.counts) for r in complete_ranks(report)] == [
        (0, "", {"AllReduce": 5, "Broadcast": 2}),
        (1, "", {"AllReduce": 4, "Broadcast": 2}),
        (2, "", {"AllReduce": 5, "Broadcast": 2}),
        (3, "missing", {}),
    ]


def test_a_missing_rank_has_the_number_of_its_reports() -> None:
    here, gone = reported(5, 5), reported(5, 5, problems={1: "missing"})
    history = CommunicatorHistory(gone, 0)
    assert history.missing == {1: 1}
    for report, expected in ((gone, {1: 2}), (gone, {1: 3}), (here, {}), (gone, {1: 1})):
        history.update(report, 1)
        assert history.missing == expected


def of_kinds(*ranks: dict[str, int]) -> list[str]:
    """Return the states of ranks that do not move, from their counts by kind."""
    listed = [ReportedRank(number, counts=counts) for number, counts in enumerate(ranks)]
    return states(*[ReportedCommunicator("0xa1", len(ranks), listed)] * MIN_REPORTS)


@pytest.mark.parametrize(
    "kind", ["Broadcast", "Reduce", "Gather", "SendRecv", "AllGatherV", ANY_KIND]
)
def test_ranks_are_not_late_in_collectives_that_some_leave_early(kind: str) -> None:
    assert of_kinds({kind: 5}, {kind: 4}) == ["RUNNING"] * 2
    ahead, behind = {kind: 5, "AllReduce": 7}, {kind: 4, "AllReduce": 7}
    assert of_kinds(ahead, behind) == ["RUNNING"] * 2
    late = {kind: 5, "AllReduce": 6}
    assert of_kinds(ahead, behind, late) == ["WAITING", "WAITING", "LATE"]


@pytest.mark.parametrize("kind", ["AllReduce", "AllGather", "ReduceScatter", "AlltoAll"])
def test_ranks_are_late_in_collectives_that_none_leaves_early(kind: str) -> None:
    assert of_kinds({kind: 5, "Broadcast": 1}, {kind: 4, "Broadcast": 1}) == ["WAITING", "LATE"]


def test_ranks_with_as_many_collectives_of_other_kinds_are_mismatched() -> None:
    for kinds in (("AllReduce", "Broadcast"), ("Broadcast", "Reduce")):
        one, other = (dict(zip(kinds, counts, strict=True)) for counts in ((5, 4), (4, 5)))
        assert of_kinds(one, other) == ["MISMATCHED"] * 2


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_exactly_the_ranks_below_the_first_one_are_late(counts: list[int]) -> None:
    report = reported(*counts)
    history = CommunicatorHistory(report, 0, MIN_REPORTS)
    verdicts = history.verdicts(WAIT, WAIT)
    first = max(counts)
    late = {v.rank.rank for v in verdicts if v.state is NcclRankState.LATE}
    assert late == {number for number, count in enumerate(counts) if count < first}
    assert [v.lag for v in verdicts] == [first - count for count in counts]
    for verdict in verdicts:
        if verdict.state is NcclRankState.LATE:
            assert set(verdict.peers) == {n for n, count in enumerate(counts) if count == first}
