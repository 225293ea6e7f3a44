"""Use that is not billed until a person decides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from collector.billing.prices import Group
from collector.billing.rating import Review
from collector.billing.rounding import decimal
from collector.metering.instants import spelled
from collector.metering.units import GPU_HOUR, Units


@dataclass(frozen=True, slots=True, order=True)
class Undecided:
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
        span = f"{spelled(self.start_ns)} to {spelled(self.end_ns)}"
        quantity = f", {decimal(self.gpu_hours, 6)} GPU-hours" if self.units else ""
        return f"{self.resource}{claim}, {span}{quantity}: {self.reason}"


def undecided(reviews: Iterable[Review]) -> tuple[Undecided, ...]:
    """Undecided outcomes of rating in order of resource and time, with consecutive ones merged."""
    found: list[Undecided] = []
    for review in sorted(map(_of, reviews), key=_matter):
        if found and found[-1].end_ns == review.start_ns and _same(found[-1], review):
            found[-1] = replace(found[-1], end_ns=review.end_ns)
        else:
            found.append(review)
    return tuple(sorted(found))


def of_tenant(found: Iterable[Undecided], tenant: str) -> tuple[Undecided, ...]:
    """Undecided use of one tenant."""
    return tuple(one for one in found if one.tenant == tenant)


def _of(review: Review) -> Undecided:
    used = review.usage
    return Undecided(
        resource=used.resource,
        start_ns=review.start_ns,
        end_ns=review.end_ns,
        reason=review.reason,
        tenant=used.tenant,
        sku=used.sku,
        claim=used.claim,
        state=used.state,
        units=used.capacity_units if review.group is Group.TIME else 0,
    )


def _matter(one: Undecided) -> tuple[str, ...]:
    return (
        one.resource, one.claim, one.reason, one.tenant, one.state, f"{one.units:03}",
        f"{one.start_ns:020}",
    )  # fmt: skip


def _same(one: Undecided, other: Undecided) -> bool:
    return _matter(one)[:-1] == _matter(other)[:-1]
