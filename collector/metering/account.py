"""The GPU-time account: every GPU and instant has exactly one state.

    held by a tenant   a claim covers the instant, observed or not
    idle               no claim, and the GPU was observed
    unknown            no claim, and no one saw the GPU

All integers, nanoseconds. For each GPU the states add up to the time since its first evidence.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from collector.claims import Claims
from collector.metering.coverage import Coverage


@dataclass(slots=True)
class TenantTime:
    """What one tenant held: while the GPU was observed, and while no one saw it."""

    observed_ns: int = 0
    unknown_ns: int = 0

    @property
    def held_ns(self) -> int:
        """All of it."""
        return self.observed_ns + self.unknown_ns


@dataclass(slots=True)
class Account:
    """GPU time of the cluster up to an instant."""

    until_ns: int
    gpus: int = 0
    capacity_ns: int = 0
    idle_ns: int = 0
    unknown_ns: int = 0
    tenants: dict[str, TenantTime] = field(default_factory=dict)

    @property
    def held_ns(self) -> int:
        """Time held by all tenants."""
        return sum(tenant.held_ns for tenant in self.tenants.values())

    @property
    def balances(self) -> bool:
        """Whether the states add up to the capacity, to the nanosecond."""
        return self.held_ns + self.idle_ns + self.unknown_ns == self.capacity_ns


def account(coverages: Mapping[str, Coverage], claims: Claims, until_ns: int) -> Account:
    """The account of all GPUs from their first evidence until an instant."""
    total = Account(until_ns)
    for gpu, coverage in coverages.items():
        if coverage.since_ns < until_ns:
            add_gpu(total, gpu, coverage, claims)
    return total


def add_gpu(total: Account, gpu: str, coverage: Coverage, claims: Claims) -> None:
    """Add one GPU to an account. A claim on a node counts while the GPU is in that node."""
    since, until = coverage.since_ns, total.until_ns
    observed = coverage.observed_until(until)
    held_ns = held_observed_ns = 0
    for begins, ends, node in coverage.stays_until(until):
        for holding in claims.holdings(gpu, node):
            start, end = max(holding.start_ns, begins), min(holding.end_ns, ends)
            if start >= end:
                continue
            seen = overlap_ns(observed, start, end)
            tenant = total.tenants.setdefault(holding.tenant, TenantTime())
            tenant.observed_ns += seen
            tenant.unknown_ns += end - start - seen
            held_ns += end - start
            held_observed_ns += seen
    observed_ns = sum(end - start for start, end in observed)
    total.gpus += 1
    total.capacity_ns += until - since
    total.idle_ns += observed_ns - held_observed_ns
    total.unknown_ns += (until - since) - held_ns - (observed_ns - held_observed_ns)


def overlap_ns(intervals: Sequence[tuple[int, int]], start: int, end: int) -> int:
    """How much of [start, end) lies in disjoint intervals that are in order."""
    total = 0
    at = bisect_right(intervals, start, key=lambda interval: interval[1])
    while at < len(intervals) and intervals[at][0] < end:
        total += min(intervals[at][1], end) - max(intervals[at][0], start)
        at += 1
    return total
