"""Ranks of a communicator that are late, mismatched, missing or dead, from successive reports of NCCL's RAS subsystem.

Ranks launch the collectives of a communicator in the same order, so the number launched is the position of a rank. Positions
differ all the time while a job runs: a rank is late only if no count of its communicator has changed for `min_wait_ns` and
over `MIN_REPORTS` reports, and all ranks responded. Late are the ranks with the lower number of compared collectives, however
many they are: the text of NCCL names the smaller group. Counts are of launches; equal counts are not evidence that the GPUs make
progress. Ranks that launched as many collectives, but of other kinds, are mismatched.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from railscope_agent.collectives import COMPARED_KINDS
from railscope_agent.collectives.ras_report import ReportedCommunicator, ReportedRank

MIN_REPORTS = 3
MIN_MISSING_REPORTS = 2
"""A rank that has just left its communicator is missing in one report."""


class NcclRankState(IntEnum):
    """State of a rank in a communicator, as of the last report."""

    UNKNOWN = 0
    RUNNING = 1
    WAITING = 2
    LATE = 3
    MISMATCHED = 4
    MISSING = 5
    DEAD = 6
    FAILED = 7


_PROBLEMS = {
    "starting": NcclRankState.RUNNING,
    "failed": NcclRankState.FAILED,
    "missing": NcclRankState.MISSING,
    "dead": NcclRankState.DEAD,
}


@dataclass(frozen=True, slots=True)
class NcclRankVerdict:
    """State of a rank, the number of collectives it launched, how many compared ones fewer than the first rank, and since when.

    `kinds` are those in which ranks differ; `launched` is None if the report does not contain it.
    """

    rank: ReportedRank
    state: NcclRankState
    launched: int | None = None
    lag: int = 0
    kinds: str = ""
    unchanged_ns: int = 0
    peers: tuple[int, ...] = ()


@dataclass(slots=True)
class CommunicatorHistory:
    """Last report of a communicator, since when it has been the same, and in how many reports."""

    report: ReportedCommunicator
    since_ns: int
    reports: int = 1
    missing: dict[int, int] = field(default_factory=dict)
    """Number of consecutive reports in which a rank was missing."""

    def __post_init__(self) -> None:
        """Count the missing ranks of the first report."""
        self._count_missing()

    def update(self, report: ReportedCommunicator, now_ns: int) -> None:
        """Compare the next report with the last one."""
        if _progress(report) == _progress(self.report):
            self.reports += 1
        else:
            self.since_ns, self.reports = now_ns, 1
        self.report = report
        self._count_missing()

    def _count_missing(self) -> None:
        self.missing = {
            rank.rank: self.missing.get(rank.rank, 0) + 1
            for rank in self.report.ranks
            if rank.problem == "missing"
        }

    def verdicts(self, now_ns: int, min_wait_ns: int) -> list[NcclRankVerdict]:
        """Return the verdict about each rank of the last report, in the order of ranks."""
        unchanged_ns = now_ns - self.since_ns
        is_frozen = self.reports >= MIN_REPORTS and unchanged_ns >= min_wait_ns
        return list(_judge(self.report.ranks, unchanged_ns, is_frozen=is_frozen))


def _progress(report: ReportedCommunicator) -> object:
    """Return what changes when any rank makes progress."""
    # Not the problem itself: a rank that goes from missing to dead has not made progress.
    ranks = [(rank.rank, rank.problem in {"", "starting"}, rank.counts) for rank in report.ranks]
    return report.size, ranks


def _judge(
    ranks: list[ReportedRank], unchanged_ns: int, *, is_frozen: bool
) -> Iterable[NcclRankVerdict]:
    usable = [rank for rank in ranks if rank.counts and not rank.problem]
    launched = {rank.rank: sum(rank.counts.values()) for rank in usable}
    positions = {
        rank.rank: sum(n for kind, n in rank.counts.items() if kind in COMPARED_KINDS)
        for rank in usable
    }
    first = max(positions.values(), default=0)
    kinds = sorted({kind for rank in usable for kind in rank.counts})
    different = [kind for kind in kinds if len({r.counts.get(kind, 0) for r in usable}) > 1]
    # Equal totals with different kinds: no rank is behind, and waiting does not resolve it.
    is_mismatched = bool(different) and len(set(launched.values())) == 1
    if not is_mismatched:
        different = [kind for kind in different if kind in COMPARED_KINDS]
    # A rank without counts may be the one that the others wait for: then no other one is called late.
    is_comparable = is_frozen and bool(different) and len(usable) == len(ranks)
    ahead = tuple(number for number, count in positions.items() if count == first)
    for rank in ranks:
        position = positions.get(rank.rank)
        if rank.problem:
            state = _PROBLEMS.get(rank.problem, NcclRankState.UNKNOWN)
        elif position is None:
            state = NcclRankState.UNKNOWN
        elif not is_comparable:
            state = NcclRankState.RUNNING
        elif is_mismatched:
            state = NcclRankState.MISMATCHED
        else:
            state = NcclRankState.LATE if position < first else NcclRankState.WAITING
        is_named = state in {NcclRankState.LATE, NcclRankState.MISMATCHED, NcclRankState.WAITING}
        yield NcclRankVerdict(
            rank,
            state,
            launched.get(rank.rank),
            first - position if position is not None else 0,
            " ".join(different) if is_named else "",
            unchanged_ns,
            tuple(n for n in ahead if n != rank.rank) if state is NcclRankState.LATE else (),
        )
