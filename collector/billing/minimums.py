"""Minimums and granularity: what a claim is billed beyond what it used.

They are lines of their own; usage and its charges stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from collector.billing.charges import Charge, Kind
from collector.billing.instants import DAY_NS, Period
from collector.billing.prices import Price
from collector.billing.usage import Usage


@dataclass(slots=True)
class _Claim:
    """One claim on one resource: the usage it ends with, and what it was billed."""

    last: Usage
    billed_ns: int = 0
    charge: Charge | None = None
    price: Price | None = None


class Claims:
    """What every claim on every resource was billed, up to the end of a period."""

    def __init__(self, period: Period) -> None:
        self._period = period
        self._claims: dict[tuple[str, ...], _Claim] = {}

    def hold(self, usage: Usage) -> None:
        """A claim holds a resource, billed or not. Comes before the bills of this usage."""
        key = (usage.tenant, usage.claim, usage.resource, usage.sku, usage.mig_profile)
        claim = self._claims.setdefault(key, _Claim(usage))
        if usage.end_ns > claim.last.end_ns:
            claim.last = usage

    def bill(self, charge: Charge, price: Price) -> None:
        """A claim is billed for a stretch that comes after those before."""
        key = (charge.tenant, charge.claim, charge.resource, charge.sku, charge.mig_profile)
        claim = self._claims[key]
        claim.billed_ns += charge.service_t1_ns - charge.service_t0_ns
        claim.charge, claim.price = charge, price

    def topups(self) -> Iterator[Charge]:
        """The missing time of every claim that ends in the period, at the price it ended with.

        A claim of which nothing was billed has no minimum, and one that is only cut by the end of
        the period, or has lost its slots for a time, has it in the period of its own end.
        """
        for claim in self._claims.values():
            stated = claim.last.claim_end_ns
            end_ns = claim.last.end_ns if stated is None else stated
            if not self._period.start_ns < end_ns <= self._period.end_ns:
                continue
            if claim.charge is None or claim.price is None:
                continue
            missing_ns = target_ns(claim.billed_ns, claim.price) - claim.billed_ns
            if missing_ns:
                yield self._topup(claim.charge, claim.last, end_ns, missing_ns)

    def _topup(self, charge: Charge, last: Usage, end_ns: int, missing_ns: int) -> Charge:
        share = Fraction(missing_ns, charge.service_t1_ns - charge.service_t0_ns)
        last_day_ns = (end_ns - 1) // DAY_NS * DAY_NS
        return replace(
            charge,
            kind=Kind.MINIMUM_TOPUP,
            service_t0_ns=max(last.start_ns, last_day_ns, self._period.start_ns),
            service_t1_ns=end_ns,
            quantity=charge.quantity * share,
            amount=charge.amount * share,
            state="",
        )


def target_ns(billed_ns: int, price: Price) -> int:
    """Billed time raised to the minimum, and to a whole multiple of the granularity."""
    steps = -(-max(billed_ns, price.minimum_ns) // price.granularity_ns)
    return steps * price.granularity_ns
