"""Totals of one communicator on this node, from the calls of its ranks: by kind and size, and by rank.

A kernel that starts early waits for the last rank: the rank that arrives last has the shortest time in it, and the time by
which another one is longer is the time by which it arrived earlier. Ranks are compared in the same collective, which
kind and sequence number identify in all ranks, by times of the same clock.

The totals do not depend on the order of the calls. A comparison waits until all ranks of the communicator have reported, or
until it is closed: ranks write one after the other, and may be on other nodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from statistics import median

from railscope.reading import SIGNED_LIMIT
from railscope.timestamps import SECOND_NS
from railscope_agent.collectives.inspector import InspectedCall

SIZE_CLASSES = {
    "16KiB": 16 << 10,
    "256KiB": 256 << 10,
    "4MiB": 4 << 20,
    "64MiB": 64 << 20,
    "1GiB": 1 << 30,
}
"""Largest message of each size class."""
LARGER = "larger"
MIN_COMPARED = 100
"""Minimum number of compared collectives for a statement about a rank."""
MAX_SLOW_SHARE = 0.7
"""Bus bandwidth relative to the usual one, or to that of other communicators, below which the path is slow."""
MIN_WINDOWS, MAX_WINDOWS, MIN_PEERS = 3, 15, 2
"""Windows of the past, and other communicators, to compare with."""
MIN_LAST_SHARE, MIN_LATE_SHARE = 0.8, 0.1
"""Minimum shares of the collectives at which a straggler arrives last, and of their durations for which the others wait."""


def size_class(size: int) -> str:
    """Return the name of the smallest class that contains a message."""
    return next((name for name, largest in SIZE_CLASSES.items() if size <= largest), LARGER)


def _sum(total: int, addend: int) -> int:
    """Return a sum that fits in a counter; only invented values reach its limit."""
    return min(total + addend, SIGNED_LIMIT - 1)


@dataclass(slots=True)
class CallTotals:
    """Totals of one kind and size class over the ranks of this node."""

    calls: int = 0
    bytes: int = 0
    duration_ns: int = 0
    bus_bytes: int = 0


@dataclass(slots=True)
class BandwidthHistory:
    """Mean bus bandwidth of one kind and size class in bytes per second: now, and in the windows in which it was usual."""

    now: float = 0.0
    """0 if there were too few calls."""
    is_slow: bool = False
    _past: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_WINDOWS))
    _before: CallTotals = field(default_factory=CallTotals)

    @property
    def usual(self) -> float:
        """Median of the past; 0 if it is too short."""
        return median(self._past) if len(self._past) >= MIN_WINDOWS else 0.0

    def begin(self, totals: CallTotals) -> None:
        """End a window with the present totals."""
        calls = totals.calls - self._before.calls
        duration_ns = totals.duration_ns - self._before.duration_ns
        bus_bytes = totals.bus_bytes - self._before.bus_bytes
        is_known = calls >= MIN_COMPARED and duration_ns > 0
        self.now = bus_bytes * SECOND_NS / duration_ns if is_known else 0.0
        # A copy: the totals themselves grow with every call.
        self._before = replace(totals)

    def judge(self, peers: Sequence[float]) -> float:
        """Compare the window with the past and with those of other communicators; return the bandwidth to expect, 0 for none.

        A slow window does not become part of the past.
        """
        # The larger one: a communicator that was always slow has a low usual bandwidth, and one that is slow
        # together with its peers has low peers.
        expected = max(self.usual, median(peers) if len(peers) >= MIN_PEERS else 0.0)
        self.is_slow = 0 < self.now < MAX_SLOW_SHARE * expected
        if self.now and not self.is_slow:
            self._past.append(self.now)
        return expected


@dataclass(slots=True)
class ArrivalTotals:
    """Collectives in which a rank was compared with others, its time in them, and its delays.

    `late_ns` is the time by which it arrived after the first of the compared ranks.
    """

    compared: int = 0
    last_arrivals: int = 0
    duration_ns: int = 0
    late_ns: int = 0

    @property
    def late_share(self) -> float:
        """Share of the durations on the first rank for which it waited for this one."""
        return self.late_ns / max(self.late_ns + self.duration_ns, 1)

    @property
    def is_straggler(self) -> bool:
        """True if the rank arrives last at most collectives, late by much of their duration."""
        return (
            self.compared >= MIN_COMPARED
            and self.last_arrivals >= MIN_LAST_SHARE * self.compared
            and self.late_share >= MIN_LATE_SHARE
        )

    def since(self, before: ArrivalTotals) -> ArrivalTotals:
        """Return the difference to earlier totals."""
        return ArrivalTotals(
            self.compared - before.compared,
            self.last_arrivals - before.last_arrivals,
            self.duration_ns - before.duration_ns,
            self.late_ns - before.late_ns,
        )


@dataclass(slots=True)
class _OpenComparison:
    """Durations of one collective by rank, and the read in which it was first found."""

    opened: int
    durations: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class CommunicatorTotals:
    """Totals of a communicator."""

    kinds: dict[tuple[str, str], CallTotals] = field(default_factory=dict)
    ranks: dict[int, ArrivalTotals] = field(default_factory=dict)
    _open: dict[tuple[str, int], _OpenComparison] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of kinds with size classes, and of ranks."""
        return len(self.kinds) + len(self.ranks)

    def add(
        self,
        call: InspectedCall,
        rank: int,
        read: int,
        *,
        ranks: int,
        may_grow: bool = True,
    ) -> bool:
        """Add a call of a rank, found in a read; False if it is of a new kind or rank and there may be no more.

        `ranks` is the number of ranks of the communicator.
        """
        key = call.kind, size_class(call.bytes)
        if not may_grow and (key not in self.kinds or rank not in self.ranks):
            return False
        totals = self.kinds.setdefault(key, CallTotals())
        totals.calls += 1
        totals.bytes = _sum(totals.bytes, call.bytes)
        totals.duration_ns = _sum(totals.duration_ns, call.duration_ns)
        totals.bus_bytes = _sum(totals.bus_bytes, call.bus_bytes)
        self.ranks.setdefault(rank, ArrivalTotals())
        if call.is_compared:
            compared = self._open.setdefault((call.kind, call.sequence), _OpenComparison(read))
            # A rank that reports a collective twice counts once, or the number of ranks would be reached too
            # early.
            before_ns = compared.durations.get(rank, call.duration_ns)
            compared.durations[rank] = min(before_ns, call.duration_ns)
            if len(compared.durations) == ranks:
                self._close((call.kind, call.sequence))
        return True

    def copy_arrivals(self) -> dict[int, ArrivalTotals]:
        """Return a copy of the totals by rank."""
        return {rank: replace(totals) for rank, totals in self.ranks.items()}

    def arrivals_since(self, before: Mapping[int, ArrivalTotals]) -> dict[int, ArrivalTotals]:
        """Return the differences to earlier totals by rank."""
        none = ArrivalTotals()
        return {rank: totals.since(before.get(rank, none)) for rank, totals in self.ranks.items()}

    def close_until(self, read: int) -> None:
        """Compare the ranks of the collectives that were first found until a read."""
        # Collectives are opened in the order of reads, so the first one that is too new ends the search. A
        # list, as closing removes entries.
        closed = list(takewhile(lambda item: item[1].opened <= read, self._open.items()))
        for key, _ in closed:
            self._close(key)

    def _close(self, key: tuple[str, int]) -> None:
        durations = self._open.pop(key).durations
        # Without another rank on this node there is nothing to compare with, and the rank would be the last
        # to arrive each time.
        if len(durations) == 1:
            return
        longest, shortest = max(durations.values()), min(durations.values())
        # Two equal times do not show which rank arrived last; the collective still counts as compared, so
        # that the share decreases.
        is_clear = list(durations.values()).count(shortest) == 1
        for rank, duration_ns in durations.items():
            totals = self.ranks[rank]
            totals.compared += 1
            totals.duration_ns = _sum(totals.duration_ns, duration_ns)
            totals.late_ns = _sum(totals.late_ns, longest - duration_ns)
            totals.last_arrivals += is_clear and duration_ns == shortest
