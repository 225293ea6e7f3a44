"""Minimums and granularity: billed time of a claim beyond its use.

They are separate lines; usage and its charges are not changed. A claim on a device has one minimum
on it. A claim for a number of GPUs has one for its first GPU, its second and so on, whichever these
are: its quantity at an instant is added up over its GPUs, so that the placement does not affect the
result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from collector.billing.charges import Charge, Kind
from collector.billing.prices import Price
from collector.billing.usage import Usage
from collector.metering.instants import DAY_NS, Period
from collector.metering.units import FOREVER_NS, GPU_CAPACITY


class CountedClaim(NamedTuple):
    """A claim for a number of GPUs of a node."""

    tenant: str
    id: str
    node: str


class _Billed(NamedTuple):
    """A billed stretch, and its size as a rate of metered units."""

    charge: Charge
    price: Price
    size: Fraction


@dataclass(slots=True)
class _Claim:
    """One claim on one resource, or on any of a node: its last usage, and its billed stretches."""

    last: Usage
    billed: list[_Billed] = field(default_factory=list)


class Claims:
    """Billed time of every claim, up to the end of a period."""

    def __init__(self, period: Period) -> None:
        self._period = period
        self._claims: dict[tuple[str, ...], _Claim] = {}

    def hold(self, usage: Usage) -> None:
        """Add a usage of a claim, billed or not. To be called before `bill` for this usage."""
        claim = self._claims.setdefault(_key(usage), _Claim(usage))
        if _until(usage) > _until(claim.last):
            claim.last = usage

    def bill(self, usage: Usage, charge: Charge, price: Price) -> None:
        """Add the charge for a stretch of a usage."""
        size = charge.quantity / (charge.service_t1_ns - charge.service_t0_ns)
        self._claims[_key(usage)].billed.append(_Billed(charge, price, size))

    def begun_before(self, instant_ns: int) -> dict[CountedClaim, int]:
        """Start times of counted claims that began before an instant and end in the period."""
        return {
            CountedClaim(last.tenant, last.claim, last.counted_on): last.claim_start_ns
            for last in (claim.last for claim in self._claims.values())
            if last.counted_on and last.claim_start_ns < instant_ns and self._ends(last) is not None
        }

    def topups(self) -> Iterator[Charge]:
        """Top-up charges of every claim that ends in the period, at the price it ended with.

        A claim without billed time has no minimum. A claim that continues beyond the period, or has
        lost its slots for a time, has its minimum in the period of its own end.
        """
        for claim in self._claims.values():
            end_ns = self._ends(claim.last)
            if end_ns is None:
                continue
            missing: dict[Charge, Fraction] = {}
            for billed_ns, last in _by_gpu(claim.billed):
                for charge, price, size in last:
                    missing_ns = target_ns(billed_ns, price) - billed_ns
                    missing[charge] = missing.get(charge, Fraction(0)) + missing_ns * size
            for charge, quantity in missing.items():
                if quantity:
                    yield self._topup(charge, claim.last, end_ns, quantity)

    def _ends(self, last: Usage) -> int | None:
        """The end of a claim with this last usage; None if it is not in the period."""
        end_ns = last.end_ns if last.claim_end_ns is None else last.claim_end_ns
        return end_ns if self._period.start_ns < end_ns <= self._period.end_ns else None

    def _topup(self, charge: Charge, last: Usage, end_ns: int, quantity: Fraction) -> Charge:
        last_day_ns = (end_ns - 1) // DAY_NS * DAY_NS
        return replace(
            charge,
            kind=Kind.MINIMUM_TOPUP,
            service_t0_ns=max(last.start_ns, last_day_ns, self._period.start_ns),
            service_t1_ns=end_ns,
            quantity=quantity,
            amount=charge.amount * quantity / charge.quantity,
            state="",
        )


def _key(usage: Usage) -> tuple[str, ...]:
    if usage.counted_on:
        return usage.tenant, usage.claim, usage.counted_on
    return usage.tenant, usage.claim, usage.resource, usage.sku, usage.mig_profile


def _until(usage: Usage) -> tuple[int, int, str]:
    """Sort key of the usages of a claim: of two with equal end, that with the claim's end is last."""
    return usage.end_ns, -(usage.claim_end_ns or FOREVER_NS), usage.resource


def _by_gpu(billed: Iterable[_Billed]) -> Iterator[tuple[int, Sequence[_Billed]]]:
    """Billed time and last billed parts of the first GPU's worth, the second and so on."""
    edges: dict[int, list[tuple[_Billed, bool]]] = {}
    for one in billed:
        edges.setdefault(one.charge.service_t0_ns, []).append((one, True))
        edges.setdefault(one.charge.service_t1_ns, []).append((one, False))
    current: dict[tuple[str, int], _Billed] = {}
    times: list[int] = []
    lasts: list[Sequence[_Billed]] = []
    for now_ns, until_ns in pairwise(sorted(edges)):
        for one, begins in sorted(edges[now_ns], key=lambda edge: edge[1]):
            place = one.charge.resource, one.charge.service_t0_ns
            if begins:
                current[place] = one
            else:
                del current[place]
        for at, parts in enumerate(_gpus(current[place] for place in sorted(current))):
            if at == len(times):
                times.append(0)
                lasts.append(())
            times[at] += until_ns - now_ns
            lasts[at] = parts
    return zip(times, lasts, strict=True)


def _gpus(billed: Iterable[_Billed]) -> Iterator[list[_Billed]]:
    """Billed parts at an instant, grouped to whole GPUs; the last group may be a fraction."""
    found: list[_Billed] = []
    room = Fraction(GPU_CAPACITY)
    for one in billed:
        left = one.size
        while left:
            size = min(left, room)
            found.append(one._replace(size=size))
            left, room = left - size, room - size
            if not room:
                yield found
                found, room = [], Fraction(GPU_CAPACITY)
    if found:
        yield found


def target_ns(billed_ns: int, price: Price) -> int:
    """Billed time raised to the minimum, and to a whole multiple of the granularity."""
    steps = -(-max(billed_ns, price.minimum_ns) // price.granularity_ns)
    return steps * price.granularity_ns
