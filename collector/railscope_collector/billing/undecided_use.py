"""Undecided use, which is not billed until a person decides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from railscope_collector.billing import price_book
from railscope_collector.billing.charges import show_quantity, show_time
from railscope_collector.billing.rating import UsageReview
from railscope_collector.metering.units import GPU_HOUR, Units


@dataclass(frozen=True, slots=True, order=True)
class UndecidedUse:
    """Use of a resource in [start, end) that a bill leaves out; `tenant` is empty if unknown."""

    resource: str
    start_ns: int
    end_ns: int
    reason: str
    tenant: str = ""
    sku: str = ""
    claim: str = ""
    state: str = ""
    units: Units = 0
    """Capacity that was used; 0 if only energy is undecided and the time is billed."""

    @property
    def gpu_hours(self) -> Fraction:
        """Quantity of undecided time."""
        return Fraction(self.units * (self.end_ns - self.start_ns)) / GPU_HOUR

    def __str__(self) -> str:
        claim = f", claim {self.claim}" if self.claim else ""
        span = f"{show_time(self.start_ns)} to {show_time(self.end_ns)}"
        quantity = f", {show_quantity(self.gpu_hours, 6)} GPU-hours" if self.units else ""
        return f"{self.resource}{claim}, {span}{quantity}: {self.reason}"


def merge_reviews(reviews: Iterable[UsageReview]) -> tuple[UndecidedUse, ...]:
    """Undecided outcomes of rating in order of resource and time, with consecutive ones merged."""
    merged: list[UndecidedUse] = []
    # By subject and then by time, so that parts of one subject are consecutive.
    for review in sorted(map(_undecided_use, reviews), key=_review_subject):
        if merged and merged[-1].end_ns == review.start_ns and _continues(merged[-1], review):
            merged[-1] = replace(merged[-1], end_ns=review.end_ns)
        else:
            merged.append(review)
    return tuple(sorted(merged))


def select_undecided(found: Iterable[UndecidedUse], tenant: str) -> tuple[UndecidedUse, ...]:
    """Undecided use of one tenant."""
    return tuple(use for use in found if use.tenant == tenant)


def _undecided_use(review: UsageReview) -> UndecidedUse:
    used = review.usage
    return UndecidedUse(
        resource=used.resource,
        start_ns=review.start_ns,
        end_ns=review.end_ns,
        reason=review.reason,
        tenant=used.tenant,
        sku=used.sku,
        claim=used.claim,
        state=used.state,
        units=used.capacity_units if review.group is price_book.PriceGroup.TIME else 0,
    )


def _review_subject(use: UndecidedUse) -> tuple[str | Units, ...]:
    return (use.resource, use.claim, use.reason, use.tenant, use.state, use.units, use.start_ns)


def _continues(use: UndecidedUse, other: UndecidedUse) -> bool:
    return _review_subject(use)[:-1] == _review_subject(other)[:-1]
