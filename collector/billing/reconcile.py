"""Reconciliation: what must be equal is compared, to the last unit. A difference is never excused.

R1  per GPU and day the states add up to capacity times time, in both tilings
R2  the cluster's sum is its inventory times time
R4  energy attributed, idle and unattributed is all that the counters counted
R5  charges, invoices, FOCUS rows and their CSV are one amount
R7  computing a closed period again gives the same root
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from collector.billing import focus, focus_csv
from collector.billing.charges import Charge
from collector.billing.focus import Seller
from collector.billing.instants import DAY_NS, Period
from collector.billing.invoice import Invoice, root
from collector.metering.evidence import Evidence
from collector.metering.measures import Increments, owners, shares
from collector.metering.tiling import GpuTimeline
from collector.metering.units import GPU_CAPACITY, Tiling


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison: what was added up, what it should be, and how many parts were compared."""

    rule: str
    what: str
    found: Fraction
    expected: Fraction
    parts: int = 1

    @property
    def difference(self) -> Fraction:
        """Zero, or something is wrong."""
        return self.found - self.expected


def days(period: Period) -> Iterator[Period]:
    """The UTC days of a period, the first and the last cut where it is."""
    start_ns = period.start_ns
    while start_ns < period.end_ns:
        end_ns = min((start_ns // DAY_NS + 1) * DAY_NS, period.end_ns)
        yield Period(start_ns, end_ns)
        start_ns = end_ns


def capacity(gpus: Iterable[Evidence], period: Period) -> list[Check]:
    """R1 as the largest difference of any GPU, day and tiling, and R2 over all of them."""
    worst = Check(
        "R1", "states = capacity x time, per GPU, day and tiling", Fraction(0), Fraction(0)
    )
    found = expected = parts = 0
    for evidence in gpus:
        timeline = GpuTimeline.of(evidence)
        for day in days(period):
            entries = timeline.entries(day.start_ns, day.end_ns)
            present_ns = _present_ns(evidence, day)
            for tiling in Tiling:
                parts += 1
                held = sum(entry.quantity for entry in entries if entry.tiling is tiling)
                check = _whole(worst, held, GPU_CAPACITY * present_ns)
                worst = max(worst, check, key=lambda one: abs(one.difference))
                found += held
                expected += GPU_CAPACITY * present_ns
    worst = Check(worst.rule, worst.what, worst.found, worst.expected, parts)
    return [worst, Check("R2", "cluster = inventory x time", Fraction(found), Fraction(expected))]


def _whole(like: Check, found: int, expected: int) -> Check:
    return Check(like.rule, like.what, Fraction(found), Fraction(expected))


def _present_ns(evidence: Evidence, period: Period) -> int:
    """How long the GPU was in some node, counted from its stays alone."""
    spans = sorted(
        (max(stay.start_ns, period.start_ns), min(stay.end_ns, period.end_ns))
        for stay in evidence.stays
    )
    total, reached = 0, period.start_ns
    for start_ns, end_ns in spans:
        total += max(0, end_ns - max(start_ns, reached))
        reached = max(reached, end_ns)
    return total


def energy(counted: Iterable[tuple[Evidence, Increments]], period: Period) -> Check:
    """R4, in millijoules."""
    found = expected = parts = 0
    for evidence, increments in counted:
        parts += 1
        within = (increments.ends_ns > period.start_ns) & (increments.ends_ns <= period.end_ns)
        expected += int(increments.amounts[within].sum())
        own = shares(owners(evidence), increments, period.start_ns, period.end_ns)
        found += sum(share.amount for share in own)
    what = "attributed + idle + unattributed = counted, in mJ"
    return Check("R4", what, Fraction(found), Fraction(expected), parts)


def amounts(charges: Sequence[Charge], invoices: Sequence[Invoice], seller: Seller) -> list[Check]:
    """R5: the exact amount through every step, and the payable one as others will read it."""
    exact = sum((charge.amount for charge in charges), Fraction(0))
    invoiced = sum((invoice.exact for invoice in invoices), Fraction(0))
    payable = sum((invoice.payable for invoice in invoices), Fraction(0))
    rows = [row for invoice in invoices for row in focus.rows(invoice, seller)]
    again = focus_csv.parse(focus_csv.write(rows))
    return [
        Check("R5", "invoices, exact = charges", invoiced, exact, len(charges)),
        Check("R5", "FOCUS rows = payable", focus.billed(rows), payable, len(rows)),
        Check("R5", "CSV, read again = payable", focus.billed(again), payable, len(again)),
    ]


def recomputed(closed: Sequence[Invoice], again: Sequence[Invoice]) -> Check:
    """R7, as the number of periods' roots that are the same."""
    same = Fraction(root(closed) == root(again))
    return Check("R7", "root of the period, computed again", same, Fraction(1), len(closed))
