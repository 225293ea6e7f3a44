"""Billed time of claims, and the charges that raise it to minimum and granularity of their prices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from railscope.timestamps import DAY_NS, FOREVER_NS
from railscope_collector.billing import price_book
from railscope_collector.billing.charges import Charge, ChargeKind
from railscope_collector.billing.usage import Usage
from railscope_collector.metering import units


@dataclass(slots=True)
class _ClaimBilling:
    """One claim on one GPU: its last usage, its billed time, and the last charge for it."""

    last: Usage
    billed_ns: int = 0
    charge: Charge | None = None
    price: price_book.Price | None = None


class ClaimMinimums:
    """Billed time of every claim on every GPU, up to the end of a period.

    Billed time of a claim beyond its use is in separate lines; usage and its charges are not changed.
    A claim uses a GPU once at a time (`reject_double_usage`), and has one minimum on each.
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
        claim = self._claims[_claim_key(usage)]
        claim.billed_ns += charge.service_t1_ns - charge.service_t0_ns
        if claim.charge is None or charge.service_t1_ns > claim.charge.service_t1_ns:
            claim.charge, claim.price = charge, price

    def topups(self) -> Iterator[Charge]:
        """Top-up charges of every claim that ends in the period, at the price it ended with.

        A claim without billed time has no minimum. A claim that continues beyond the period, or has
        lost its GPU for a time, has its minimum in the period in which it ends.
        """
        for claim in self._claims.values():
            last, charge, price = claim.last, claim.charge, claim.price
            end_ns = last.end_ns if last.claim_end_ns is None else last.claim_end_ns
            if not self._period.start_ns < end_ns <= self._period.end_ns or not (charge and price):
                continue
            missing_ns = target_ns(claim.billed_ns, price) - claim.billed_ns
            if not missing_ns:
                continue
            share = Fraction(missing_ns, charge.service_t1_ns - charge.service_t0_ns)
            # Within one UTC day, so that the charge refers to one revision of the ledger.
            last_day_ns = (end_ns - 1) // DAY_NS * DAY_NS
            yield replace(
                charge,
                kind=ChargeKind.MINIMUM_TOPUP,
                service_t0_ns=max(last.start_ns, last_day_ns, self._period.start_ns),
                service_t1_ns=end_ns,
                quantity=charge.quantity * share,
                amount=charge.amount * share,
                state="",
            )


def _claim_key(usage: Usage) -> tuple[str, ...]:
    return usage.tenant, usage.claim, usage.resource, usage.sku, usage.mig_profile


def _end_order(usage: Usage) -> tuple[int, int]:
    """Sort key of the usages of a claim: of two with equal end, that with the claim's end is last."""
    return usage.end_ns, -(usage.claim_end_ns or FOREVER_NS)


def target_ns(billed_ns: int, price: price_book.Price) -> int:
    """Billed time raised to the minimum, and to a whole multiple of the granularity."""
    steps = -(-max(billed_ns, price.minimum_ns) // price.granularity_ns)
    return steps * price.granularity_ns
