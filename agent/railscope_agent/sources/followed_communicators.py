"""Communicators whose calls an agent follows: ranks that arrive last, and bandwidths that are low, as events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from railscope import frame
from railscope.catalog import collectives as c, entities
from railscope.timestamps import SECOND_NS
from railscope_agent.collectives import communicator_totals
from railscope_agent.sampling import fact_readers
from railscope_agent.sources.rank_places import JobKey

WINDOW_NS = 60 * SECOND_NS
"""Minimum time over which a rank, or a bandwidth, is judged."""


@dataclass(slots=True)
class FollowedCommunicator:
    """Totals of a communicator, the facts of its ranks, and the time of its last line on the boot clock.

    `window` and `window_ns` are totals and time at the start of the current window, `straggler` is that of the last one.
    """

    totals: communicator_totals.CommunicatorTotals = field(
        default_factory=communicator_totals.CommunicatorTotals
    )
    facts: dict[int, dict[str, str]] = field(default_factory=dict)
    updated_ns: int = 0
    window: dict[int, communicator_totals.ArrivalTotals] = field(default_factory=dict)
    window_ns: int = 0
    straggler: int | None = None
    ranks: int = 0
    """Ranks on all nodes; 0 if it is not known."""
    bandwidths: dict[tuple[str, str], communicator_totals.BandwidthHistory] = field(
        default_factory=dict
    )

    path_window: dict[int, communicator_totals.ArrivalTotals] = field(default_factory=dict)
    has_late_rank: bool = False

    @property
    def form(self) -> tuple[int, int]:
        """Numbers of ranks on all nodes and on this one: communicators are compared with others of the same form."""
        return self.ranks, len(self.facts)

    def end_window(self) -> None:
        """End a window of the bandwidths of all kinds, and note if the others wait for a rank of this node in it."""
        arrivals = self.totals.arrivals_since(self.path_window)
        min_share = communicator_totals.MIN_LATE_SHARE
        self.has_late_rank = any(rank.late_share >= min_share for rank in arrivals.values())
        self.path_window = self.totals.copy_arrivals()
        for kind, totals in self.totals.kinds.items():
            self.bandwidths.setdefault(kind, communicator_totals.BandwidthHistory()).begin(totals)


JobCommunicators: TypeAlias = Mapping[JobKey, Mapping[str, FollowedCommunicator]]
"""Communicators of each job by their names."""


def find_stragglers(jobs: JobCommunicators, now: frame.NodeTimestamp) -> Iterator[frame.Event]:
    """Yield an event for each rank that has become a straggler of its communicator."""
    for (job, user), of_job in jobs.items():
        for name, communicator in of_job.items():
            arrivals = communicator.totals.arrivals_since(communicator.window)
            compared = max((rank.compared for rank in arrivals.values()), default=0)
            communicator.window_ns = communicator.window_ns or now.boot_ns
            if (
                # A window continues until it has enough collectives, so that a slow job is judged as well,
                # only later.
                now.boot_ns - communicator.window_ns < WINDOW_NS
                or compared < communicator_totals.MIN_COMPARED
            ):
                continue
            communicator.window = communicator.totals.copy_arrivals()
            communicator.window_ns = now.boot_ns
            before = communicator.straggler
            communicator.straggler = next(
                (rank for rank, of_rank in arrivals.items() if of_rank.is_straggler), None
            )
            # One event when a rank becomes a straggler, not one per window.
            if (rank := communicator.straggler) is None or rank == before:
                continue
            of_rank = arrivals[rank]
            entity = frame.Entity(entities.COMMUNICATOR_RANK, (job, str(user), name, str(rank)))
            facts = communicator.facts[rank] | {
                "compared": str(of_rank.compared),
                "last_arrivals": str(of_rank.last_arrivals),
                "late_milliseconds": str(of_rank.late_ns // 10**6),
                "late_percent": str(round(100 * of_rank.late_share)),
            }
            yield frame.Event(c.STRAGGLER_EVENT, entity, now.wall_ns, now.boot_ns, facts)


@dataclass(slots=True)
class SlowPaths:
    """Windows over which the bandwidths of all communicators are compared; `window_ns` is the start of the present one."""

    window_ns: int = 0

    def find(self, jobs: JobCommunicators, now: frame.NodeTimestamp) -> Iterator[frame.Event]:
        """Yield an event for each kind and size class of a communicator whose bandwidth has become low.

        Peers are the communicators of the same job and form: those of other rails, if each has its own.
        """
        self.window_ns = self.window_ns or now.boot_ns
        if now.boot_ns - self.window_ns < WINDOW_NS:
            return
        self.window_ns = now.boot_ns
        for (job, user), of_job in jobs.items():
            # All windows end first: each bandwidth is compared with those of the same time.
            for communicator in of_job.values():
                communicator.end_window()
            for name, communicator in of_job.items():
                peers = [
                    other
                    for other in of_job.values()
                    if other is not communicator and other.form == communicator.form
                ]
                for kind, history in communicator.bandwidths.items():
                    of_peers = [
                        other.bandwidths[kind].now for other in peers if kind in other.bandwidths
                    ]
                    was_slow = history.is_slow
                    expected = history.judge([each for each in of_peers if each])
                    # A late rank makes its communicator slow as well: the straggler is reported then, not the
                    # path.
                    history.is_slow = history.is_slow and not communicator.has_late_rank
                    if not history.is_slow or was_slow:
                        continue
                    entity = frame.Entity(entities.COMMUNICATOR_CALL, (job, str(user), name, *kind))
                    facts = _path_facts(communicator) | {
                        "bytes_per_second": str(round(history.now)),
                        "expected_bytes_per_second": str(round(expected)),
                        "percent": str(round(100 * history.now / expected)),
                    }
                    yield frame.Event(c.SLOW_PATH_EVENT, entity, now.wall_ns, now.boot_ns, facts)


def _path_facts(communicator: FollowedCommunicator) -> dict[str, str]:
    """Return holder, rails and GPUs of the ranks of a communicator on this node."""
    of_ranks = list(communicator.facts.values())
    holder = {
        name: next((facts[name] for facts in of_ranks if name in facts), "")
        for name in ("communicator_name", *c.HOLDER)
    }
    rails, gpus = (
        " ".join(sorted({facts[name] for facts in of_ranks if name in facts}))
        for name in ("rail", "gpu_index")
    )
    return fact_readers.nonempty_facts(**holder, rails=rails, gpus=gpus)
