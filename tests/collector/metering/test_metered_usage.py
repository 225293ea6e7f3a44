"""What is rated is what was metered: no more, no less, and nothing twice."""

from __future__ import annotations

from fractions import Fraction

from histories import Case, cases
from hypothesis import given
from support.billing import book, price

from collector.billing.instants import Period
from collector.billing.metered import usages
from collector.billing.prices import Tariff
from collector.billing.rating import rate
from collector.billing.usage import HELD
from collector.metering.measures import Use, increments, owners, shares
from collector.metering.tiling import State, tile
from collector.metering.units import Tiling

SKU = "h100"
BOOK = book(price(10**9, sku=SKU), price(10**8, sku=SKU, tariff=Tariff.RESERVATION))


@given(cases())
def test_usage_is_all_that_is_held_and_kept(case: Case) -> None:
    until = case.end
    metered: dict[tuple[str, State], int] = {}
    since = min(stay.start_ns for stay in case.evidence.stays)
    for entry in tile(case.evidence, since, until):
        if entry.tiling is Tiling.COMPUTE and entry.state in HELD | {State.RESERVED}:
            key = (entry.tenant, entry.state)
            metered[key] = metered.get(key, 0) + entry.quantity
    used: dict[tuple[str, State], int] = {}
    for usage in usages(case.evidence, SKU, until):
        if usage.state in HELD | {State.RESERVED}:
            key = (usage.tenant, usage.state)
            used[key] = used.get(key, 0) + usage.capacity_units * usage.duration_ns
    assert used == metered


@given(cases())
def test_rating_takes_every_usage_and_bills_nothing_twice(case: Case) -> None:
    used = usages(case.evidence, SKU, case.end)
    rated = rate(used, BOOK, Period(0, max(case.end, 1)))
    hours = sum((charge.quantity for charge in rated.charges), Fraction(0))
    certain = sum(
        usage.capacity_units * usage.duration_ns
        for usage in used
        if usage.state in {State.OBSERVED, State.RESERVED}
    )
    doubtful = sum(
        usage.capacity_units * usage.duration_ns for usage in used if usage.state is State.INFERRED
    )
    assert certain <= hours <= certain + doubtful


@given(cases())
def test_the_energy_of_usage_is_that_of_its_claims(case: Case) -> None:
    counted = increments(case.readings)
    known: dict[str, int] = {}
    for usage in usages(case.evidence, SKU, case.end, counted):
        if isinstance(usage.energy_millijoules, int):
            known[usage.claim] = known.get(usage.claim, 0) + usage.energy_millijoules
    since = min(stay.start_ns for stay in case.evidence.stays)
    attributed: dict[str, int] = {}
    for share in shares(owners(case.evidence), counted, since, case.end):
        if share.use is Use.ATTRIBUTED:
            attributed[share.claim] = attributed.get(share.claim, 0) + share.amount
    assert all(amount <= attributed.get(claim, 0) for claim, amount in known.items())
