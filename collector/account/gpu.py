"""One GPU's open days: computed when its facts change, extended by its samples in between.

While only new samples arrive, and no claim or similar fact begins or ends, the time up to the last
sample was observed and the time since was not: that is arithmetic, and does not need metering.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from collector.account.tally import Rate, Sums, spread, tally
from collector.evidence.chunk import Span
from collector.metering.evidence import Evidence, Outage, Reservation, Stay
from collector.metering.holders import claims_in_force
from collector.metering.tiling import HELD, Entry, GpuTimeline, State
from collector.metering.units import FOREVER_NS, Tiling, Units, exact
from collector.workloads.holding import Holding, holdings

_WHEN_OBSERVED = {State.INFERRED: State.OBSERVED, State.UNKNOWN: State.IDLE}


@dataclass(slots=True)
class GpuAccount:
    """The open time of a GPU up to a timestamp, extensible from there."""

    since_ns: int
    """Start of the counted time: its first evidence, or its first open day."""
    at_ns: int
    tail: Span | None
    tail_ns: int
    """The last sample at the time of the computation, within the counted time."""
    fixed: Sums
    """Up to the last sample."""
    silent_fixed: Sums
    """From there to `at_ns`."""
    silent: tuple[Rate, ...]
    seen: tuple[Rate, ...]
    calm: bool
    """True if nothing begins or ends between the last sample and `at_ns`, in either order."""
    next_ns: int
    """Time of the next start or end."""
    uncertainty_ns: int
    stays: tuple[Stay, ...]
    """Its time in service, over all time."""
    holdings: tuple[Holding, ...] = ()
    """Holdings of jobs at `at_ns`."""

    @classmethod
    def of(
        cls, evidence: Evidence, tail: Span | None, open_ns: int, now_ns: int
    ) -> GpuAccount | None:
        """Compute the account of a GPU from its first open day; None without evidence until now."""
        first_ns = min((stay.start_ns for stay in evidence.stays), default=FOREVER_NS)
        since_ns = max(first_ns, open_ns)
        if since_ns >= now_ns:
            return None
        last_ns = tail.last_ns if tail else since_ns
        tail_ns = min(max(last_ns, since_ns), now_ns)
        uncertainty_ns = max((s.uncertainty_ns for s in evidence.stretches), default=0)
        edges = sorted(edge for edge in _edges(evidence) if edge > tail_ns - uncertainty_ns - 1)
        timeline = GpuTimeline.of(evidence)
        ahead = [edge for edge in edges if edge > now_ns]
        present = timeline.entries(now_ns, now_ns + 1)
        # A sample may be newer than `now_ns`, which was read before it was received.
        newest_ns = max(last_ns, now_ns)
        in_tail = tail is not None and tail.first_ns <= tail_ns <= last_ns
        calm = in_tail and all(edge > newest_ns for edge in edges)
        return cls(
            since_ns=since_ns,
            at_ns=now_ns,
            tail=tail,
            tail_ns=tail_ns,
            fixed=tally(timeline.entries(since_ns, tail_ns)),
            silent_fixed=tally(timeline.entries(tail_ns, now_ns)),
            silent=_rates(timeline.entries(newest_ns, newest_ns + 1) if calm else present),
            seen=tuple(
                rate._replace(state=_observed(rate.state))
                for rate in _rates(timeline.entries(tail_ns, tail_ns + 1))
            ),
            calm=calm,
            next_ns=ahead[0] if ahead else FOREVER_NS,
            uncertainty_ns=uncertainty_ns,
            stays=evidence.stays,
            holdings=holdings(evidence, present, now_ns),
        )

    def holds(self, now_ns: int) -> bool:
        """True if the account can be extended to a timestamp."""
        if not self.at_ns <= now_ns < self.next_ns:
            return False
        if self._observed_ns(now_ns) <= self.tail_ns:
            return True
        last_ns = self.tail.last_ns if self.tail else 0
        return self.calm and last_ns + self.uncertainty_ns < self.next_ns

    def served_ns(self, now_ns: int) -> int:
        """Return its time in service since the start of the counted time."""
        spans = ((max(s.start_ns, self.since_ns), min(s.end_ns, now_ns)) for s in self.stays)
        return sum(end - start for start, end in spans if start < end)

    def carry(self, sums: Sums, now_ns: int) -> None:
        """Add the time after the last sample known at the time of the computation."""
        start_ns, observed_ns = self.at_ns, self._observed_ns(now_ns)
        if observed_ns > self.tail_ns:
            start_ns = observed_ns
            for rate in self.seen:
                spread(sums, rate, self.tail_ns, start_ns)
        else:
            for key, quantity in self.silent_fixed.items():
                sums[key] = exact(sums.get(key, 0) + quantity)
        for rate in self.silent:
            spread(sums, rate, start_ns, now_ns)

    def _observed_ns(self, now_ns: int) -> int:
        """Return the end of the observed time: newer samples may have arrived, some after `now_ns`."""
        last_ns = self.tail.last_ns if self.tail else self.tail_ns
        return min(last_ns, now_ns)

    @property
    def holders(self) -> set[str]:
        """Tenants that hold a part of it now."""
        return {rate.tenant for rate in self.silent if rate.state in HELD}


def _observed(state: State) -> State:
    return _WHEN_OBSERVED.get(state, state)


def _rates(entries: Iterable[Entry]) -> tuple[Rate, ...]:
    """Return the states of its slots by the entries of a time, if no sample follows."""
    sums: dict[tuple[State, str], Units] = {}
    for entry in entries:
        if entry.tiling is Tiling.COMPUTE:
            key = (entry.state, entry.tenant)
            sums[key] = exact(sums.get(key, 0) + entry.slot_hi - entry.slot_lo)
    return tuple(Rate(state, tenant, units) for (state, tenant), units in sorted(sums.items()))


def _edges(evidence: Evidence) -> Iterator[int]:
    """Yield all times at which anything but samples begins or ends."""
    for claim in claims_in_force(evidence):
        yield from (claim.start_ns, claim.end_ns)
    lasting: tuple[Outage | Reservation | Stay, ...] = (
        *evidence.outages,
        *evidence.reservations,
        *evidence.stays,
    )
    for each in lasting:
        yield from (each.start_ns, each.end_ns)
    for layout in evidence.layouts:
        yield layout.start_ns
