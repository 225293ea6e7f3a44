"""The open days of one GPU.

The open days of a GPU are computed when its facts change, and extended by its samples in between.
While only new samples arrive, and no claim or similar fact begins or ends, the time up to the last
sample was observed and the time since was not: that is arithmetic, and does not need metering.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from railscope.timestamps import FOREVER_NS
from railscope_collector.account import account_sums
from railscope_collector.evidence import (
    node_intervals,
)
from railscope_collector.metering import evidence as usage_evidence, holders, tiling
from railscope_collector.metering.units import Tiling, Units, exact
from railscope_collector.workloads import job_holdings, job_roster

_WHEN_OBSERVED = {
    tiling.SlotState.INFERRED: tiling.SlotState.OBSERVED,
    tiling.SlotState.UNKNOWN: tiling.SlotState.IDLE,
}


@dataclass(slots=True)
class GpuAccount:
    """The open time of a GPU up to a timestamp, extensible from there."""

    since_ns: int
    """Start of the counted time: its first evidence, or its first open day."""
    at_ns: int
    newest_span: node_intervals.SampleSpan | None
    last_sample_ns: int
    """The last sample at the time of the computation, within the counted time."""
    fixed: account_sums.TimeSums
    """Up to the last sample."""
    unobserved_sums: account_sums.TimeSums
    """Sums of the time from there to `at_ns`."""
    rates: account_sums.Rates
    is_unchanged: bool
    """True if nothing begins or ends between the last sample and `at_ns`, in either order."""
    next_ns: int
    """Time of the next start or end."""
    uncertainty_ns: int
    stays: tuple[usage_evidence.NodeStay, ...]
    """Its time in service, over all time."""
    holdings: tuple[job_roster.JobHolding, ...] = ()
    """Holdings of jobs at `at_ns`."""

    @classmethod
    def compute(
        cls,
        evidence: usage_evidence.Evidence,
        newest_span: node_intervals.SampleSpan | None,
        open_ns: int,
        now_ns: int,
    ) -> GpuAccount | None:
        """Compute the account of a GPU from its first open day; None without evidence until now."""
        first_ns = min((stay.start_ns for stay in evidence.stays), default=FOREVER_NS)
        since_ns = max(first_ns, open_ns)
        if since_ns >= now_ns:
            return None
        last_ns = newest_span.last_ns if newest_span else since_ns
        last_sample_ns = min(max(last_ns, since_ns), now_ns)
        uncertainty_ns = max((s.uncertainty_ns for s in evidence.sample_spans), default=0)
        edges = sorted(
            edge
            for edge in _fact_boundaries(evidence)
            if edge > last_sample_ns - uncertainty_ns - 1
        )
        # A sample may be newer than `now_ns`, which was read before it was received.
        newest_ns = max(last_ns, now_ns)
        timeline = tiling.GpuTimeline.compute(evidence, (Tiling.COMPUTE,))
        within = partial(tiling.clip_entries, timeline.entries(since_ns, newest_ns + 1))
        ahead = [edge for edge in edges if edge > now_ns]
        present = list(within(now_ns, now_ns + 1))
        in_newest_span = (
            newest_span is not None and newest_span.first_ns <= last_sample_ns <= last_ns
        )
        is_unchanged = in_newest_span and all(edge > newest_ns for edge in edges)
        return cls(
            since_ns=since_ns,
            at_ns=now_ns,
            newest_span=newest_span,
            last_sample_ns=last_sample_ns,
            fixed=account_sums.sum_entries(within(since_ns, last_sample_ns)),
            unobserved_sums=account_sums.sum_entries(within(last_sample_ns, now_ns)),
            rates=(
                # The time from the last sample on has no sample behind it yet: if one arrives, it was observed.
                tuple(
                    rate._replace(state=_WHEN_OBSERVED.get(rate.state, rate.state))
                    for rate in _rates(within(last_sample_ns, last_sample_ns + 1))
                ),
                _rates(within(newest_ns, newest_ns + 1) if is_unchanged else present),
            ),
            is_unchanged=is_unchanged,
            next_ns=ahead[0] if ahead else FOREVER_NS,
            uncertainty_ns=uncertainty_ns,
            stays=evidence.stays,
            holdings=job_holdings.find_holdings(evidence, present, now_ns),
        )

    def is_extensible(self, now_ns: int) -> bool:
        """True if the account can be extended to a timestamp."""
        if not self.at_ns <= now_ns < self.next_ns:
            return False
        # Without a newer sample, the states at the end continue until something begins or ends.
        if self._observed_ns(now_ns) <= self.last_sample_ns:
            return True
        last_ns = self.newest_span.last_ns if self.newest_span else 0
        # Within the uncertainty, a sample would be moved to the next start or end, which needs metering.
        return self.is_unchanged and last_ns + self.uncertainty_ns < self.next_ns

    def served_ns(self, now_ns: int) -> int:
        """Return its time in service since the start of the counted time."""
        served_ns = 0
        for stay in self.stays:
            start_ns = max(self.since_ns, stay.start_ns)
            end_ns = min(now_ns, stay.end_ns)
            if start_ns < end_ns:
                served_ns += end_ns - start_ns
        return served_ns

    def extend(self, totals: account_sums.OpenSums, now_ns: int) -> None:
        """Add the time after the last sample known at the time of the computation."""
        start_ns, observed_ns = self.at_ns, self._observed_ns(now_ns)
        observed, unobserved = self.rates
        sums = totals.sums
        if observed_ns > self.last_sample_ns:
            # The usual case is added up in groups of GPUs with the same states.
            if observed_ns >= totals.today_ns:
                totals.add(self.rates, self.last_sample_ns, observed_ns)
                return
            start_ns = observed_ns
            for rate in observed:
                account_sums.add_span(sums, rate, self.last_sample_ns, start_ns)
        else:
            for key, quantity in self.unobserved_sums.items():
                sums[key] = exact(sums.get(key, 0) + quantity)
        for rate in unobserved:
            account_sums.add_span(sums, rate, start_ns, now_ns)

    def _observed_ns(self, now_ns: int) -> int:
        """Return the end of the observed time: newer samples may have arrived, some after `now_ns`."""
        last_ns = self.newest_span.last_ns if self.newest_span else self.last_sample_ns
        return min(now_ns, last_ns)

    @property
    def holders(self) -> set[str]:
        """Tenants that hold a part of it now."""
        return {rate.tenant for rate in self.rates[1] if rate.state in tiling.HELD_STATES}


def _rates(entries: Iterable[tiling.TilingEntry]) -> tuple[account_sums.StateUnits, ...]:
    """Return the states of its slots by the entries of a time, if no sample follows."""
    sums: dict[tuple[tiling.SlotState, str], Units] = {}
    for entry in entries:
        if entry.tiling is Tiling.COMPUTE:
            key = (entry.state, entry.tenant)
            sums[key] = exact(sums.get(key, 0) + entry.slot_hi - entry.slot_lo)
    return tuple(
        account_sums.StateUnits(state, tenant, units)
        for (state, tenant), units in sorted(sums.items())
    )


def _fact_boundaries(evidence: usage_evidence.Evidence) -> Iterator[int]:
    """Yield all times at which anything but samples begins or ends."""
    for claim in holders.claims_in_force(evidence):
        yield from (claim.start_ns, claim.end_ns)
    for reservation in evidence.reservations:
        yield from (reservation.begins_ns, reservation.end_ns)
    lasting: tuple[usage_evidence.GpuOutage | usage_evidence.NodeStay, ...] = (
        *evidence.outages,
        *evidence.stays,
    )
    for each in lasting:
        yield from (each.start_ns, each.end_ns)
    for layout in evidence.layouts:
        yield layout.start_ns
