"""Billed time of claims, and the charges that raise it to minimum and granularity of their prices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from railscope import claim_terms
from railscope.timestamps import DAY_NS, FOREVER_NS
from railscope_collector.billing import price_book
from railscope_collector.billing.charges import Charge, ChargeKind
from railscope_collector.billing.usage import Usage
from railscope_collector.metering import units


class _BilledInterval(NamedTuple):
    """A billed interval, and its size as a rate of metered units."""

    charge: Charge
    price: price_book.Price
    size: Fraction


@dataclass(slots=True)
class _ClaimBilling:
    """One claim on one resource: its last usage, and its billed intervals."""

    last: Usage
    billed: list[_BilledInterval] = field(default_factory=list)


class ClaimMinimums:
    """Billed time of every claim, up to the end of a period.

    Billed time of a claim beyond its use is in separate lines; usage and its charges are not changed.
    A claim has one minimum on each of its devices.
    """

    def __init__(self, period: units.Period) -> None:
        self._period = period
        self._claims: dict[tuple[str, ...], _ClaimBilling] = {}

    def add_usage(self, usage: Usage) -> None:
        """Add a usage of a claim, billed or not. To be called before `add_charge` for this usage."""
        claim = self._claims.setdefault(_claim_key(usage), _ClaimBilling(usage))
        if _end_order(usage) > _end_order(claim.last):
            claim.last = usage

    def add_charge(self, usage: Usage, charge: Charge, price: price_book.Price) -> None:
        """Add the charge for an interval of a usage."""
        # In metered units per nanosecond: of GPU time it is a number of capacity units, of an instance its share.
        size = charge.quantity / (charge.service_t1_ns - charge.service_t0_ns)
        self._claims[_claim_key(usage)].billed.append(_BilledInterval(charge, price, size))

    def topups(self) -> Iterator[Charge]:
        """Top-up charges of every claim that ends in the period, at the price it ended with.

        A claim without billed time has no minimum. A claim that continues beyond the period, or has
        lost its slots for a time, has its minimum in the period in which it ends.
        """
        for claim in self._claims.values():
            end_ns = self._ends(claim.last)
            if end_ns is None:
                continue
            missing: dict[Charge, Fraction] = {}
            for billed_ns, last in _by_gpu(claim.billed):
                for charge, price, size in last:
                    missing_ns = target_ns(billed_ns, price) - billed_ns
                    # At the price and on the GPU of the last billed interval, in proportion to its parts.
                    missing[charge] = missing.get(charge, Fraction(0)) + missing_ns * size
            for charge, quantity in missing.items():
                if quantity:
                    yield self._topup(charge, claim.last, end_ns, quantity)

    def _ends(self, last: Usage) -> int | None:
        """The end of a claim with this last usage; None if it is not in the period."""
        end_ns = last.end_ns if last.claim_end_ns is None else last.claim_end_ns
        return end_ns if self._period.start_ns < end_ns <= self._period.end_ns else None

    def _topup(self, charge: Charge, last: Usage, end_ns: int, quantity: Fraction) -> Charge:
        # Within one UTC day, so that the charge refers to one revision of the ledger.
        last_day_ns = (end_ns - 1) // DAY_NS * DAY_NS
        return replace(
            charge,
            kind=ChargeKind.MINIMUM_TOPUP,
            service_t0_ns=max(last.start_ns, last_day_ns, self._period.start_ns),
            service_t1_ns=end_ns,
            quantity=quantity,
            amount=charge.amount * quantity / charge.quantity,
            state="",
        )


def _claim_key(usage: Usage) -> tuple[str, ...]:
    return usage.tenant, usage.claim, usage.resource, usage.sku, usage.mig_profile


def _end_order(usage: Usage) -> tuple[int, int, str]:
    """Sort key of the usages of a claim: of two with equal end, that with the claim's end is last."""
    return usage.end_ns, -(usage.claim_end_ns or FOREVER_NS), usage.resource


def _by_gpu(billed: Iterable[_BilledInterval]) -> Iterator[tuple[int, Sequence[_BilledInterval]]]:
    """Yield billed time and the last billed intervals of each whole GPU; the last may be a fraction."""
    edges: dict[int, list[tuple[_BilledInterval, bool]]] = {}
    for interval in billed:
        edges.setdefault(interval.charge.service_t0_ns, []).append((interval, True))
        edges.setdefault(interval.charge.service_t1_ns, []).append((interval, False))
    current: dict[tuple[str, int], _BilledInterval] = {}
    times: list[int] = []
    lasts: list[Sequence[_BilledInterval]] = []
    for now_ns, until_ns in pairwise(sorted(edges)):
        # Ends before starts: a GPU that passes to the next interval at this time must not count twice.
        for interval, begins in sorted(edges[now_ns], key=lambda edge: edge[1]):
            place = interval.charge.resource, interval.charge.service_t0_ns
            if begins:
                current[place] = interval
            else:
                del current[place]
        for at, parts in enumerate(_gpus(current[place] for place in sorted(current))):
            if at == len(times):
                times.append(0)
                lasts.append(())
            times[at] += until_ns - now_ns
            lasts[at] = parts
    return zip(times, lasts, strict=True)


def _gpus(billed: Iterable[_BilledInterval]) -> Iterator[list[_BilledInterval]]:
    """Billed parts at an instant, grouped to whole GPUs; the last group may be a fraction."""
    intervals: list[_BilledInterval] = []
    capacity_left = Fraction(claim_terms.GPU_CAPACITY)
    for interval in billed:
        left = interval.size
        while left:
            size = min(left, capacity_left)
            intervals.append(interval._replace(size=size))
            left, capacity_left = left - size, capacity_left - size
            if not capacity_left:
                yield intervals
                intervals, capacity_left = [], Fraction(claim_terms.GPU_CAPACITY)
    if intervals:
        yield intervals


def target_ns(billed_ns: int, price: price_book.Price) -> int:
    """Billed time raised to the minimum, and to a whole multiple of the granularity."""
    steps = -(-max(billed_ns, price.minimum_ns) // price.granularity_ns)
    return steps * price.granularity_ns
