"""Rating: properties for any usage and prices, and wrong implementations that they detect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import Phase, given, settings, strategies as st
from support.billing import MONTH, books, timelines, without_minimum

from railscope.timestamps import DAY_NS, HOUR_NS
from railscope_collector.billing.charges import Charge, ChargeKind, price_quantity
from railscope_collector.billing.price_book import Price, PriceBook, PriceGroup, Tariff
from railscope_collector.billing.rating import RatingResult, rate
from railscope_collector.billing.usage import Usage
from railscope_collector.metering.evidence import NodeEvidence
from railscope_collector.metering.tiling import SlotState
from railscope_collector.metering.units import Period

EUR = 10**9  # one unit of the currency, in nano
Rate = Callable[[Sequence[Usage], PriceBook, Period], RatingResult]


def total(charges: Sequence[Charge], *kinds: ChargeKind) -> Fraction:
    return sum((c.amount for c in charges if not kinds or c.kind in kinds), Fraction(0))


def amount_by_segments(usages: Sequence[Usage], prices: PriceBook, period: Period) -> Fraction:
    """P9's oracle: between any two edges of the book every price is constant; add up."""
    edges = {edge for p in prices.prices for edge in (p.from_ns, p.to_ns)}
    edges |= {period.start_ns, period.end_ns}
    amount = Fraction(0)
    for usage in usages:
        cuts = sorted(
            {usage.start_ns, usage.end_ns} | {e for e in edges if usage.start_ns < e < usage.end_ns}
        )
        for start, end in pairwise(cuts):
            if period.start_ns <= start and end <= period.end_ns:
                amount += _segment(usage, (start, end), prices, silence(usage, usages))
    return amount


def silence(one: Usage, usages: Sequence[Usage]) -> int:
    """Unobserved time around a usage: extend the span while something touches it."""
    start, end = one.start_ns, one.end_ns
    for _ in usages:
        for other in usages:
            unseen = other.state in (SlotState.INFERRED, SlotState.UNKNOWN)
            touches = other.start_ns <= end and start <= other.end_ns
            if unseen and touches and other.resource == one.resource:
                start, end = min(start, other.start_ns), max(end, other.end_ns)
    return end - start


def _segment(one: Usage, span: tuple[int, int], prices: PriceBook, gap_ns: int) -> Fraction:
    start, end = span

    def found(group: PriceGroup, instant: int = start) -> Price:
        valid = {
            p.tenant: p
            for p in prices.prices
            if p.tariff.group is group and p.from_ns <= instant < p.to_ns
        }
        return valid.get(one.tenant) or valid[""]

    hours = Fraction((end - start) * one.capacity_units, 840 * HOUR_NS)
    if one.state is SlotState.RESERVED:
        return hours * found(PriceGroup.RESERVATION).nano / EUR
    if one.state not in (SlotState.OBSERVED, SlotState.INFERRED):
        return Fraction(0)
    energy = one.energy_millijoules if isinstance(one.energy_millijoules, int) else 0
    share = Fraction(end - start, one.end_ns - one.start_ns)
    amount = energy * share / 3_600_000_000 * found(PriceGroup.ENERGY).nano / EUR
    begun = found(PriceGroup.TIME, one.claim_start_ns)
    time = begun if begun.at_claim_start else found(PriceGroup.TIME)
    certain = one.state is SlotState.OBSERVED or (
        time.tariff is Tariff.ALLOCATED
        and one.node_evidence is not NodeEvidence.NONE
        and gap_ns <= HOUR_NS
    )
    return amount + (hours * time.nano / EUR if certain else 0)


def rating_is_the_sum_of_single_prices(implementation: Rate) -> Callable[[], None]:
    """P9, for any implementation of rating."""

    @given(timelines(), books())
    def holds(usages, prices) -> None:
        charges = implementation(usages, prices, MONTH).charges
        billed = total([c for c in charges if c.kind is not ChargeKind.MINIMUM_TOPUP])
        assert billed == amount_by_segments(usages, prices, MONTH)

    return holds


def test_rating_over_a_book_is_the_sum_over_its_single_prices():
    rating_is_the_sum_of_single_prices(rate)()


def price_by_start_only(usages: Sequence[Usage], prices: PriceBook, period: Period) -> RatingResult:
    """Wrong: every charge of a usage has the price that was valid when the usage began."""
    rating = rate(usages, prices, period)
    first: dict[tuple[ChargeKind, str, str], int] = {}
    charges = []
    for charge in rating.charges:
        nano = first.setdefault((charge.kind, charge.resource, charge.claim), charge.price_nano)
        amount = (
            price_quantity(charge.quantity, charge.unit, nano) if charge.unit else charge.amount
        )
        charges.append(replace(charge, price_nano=nano, amount=amount))
    return replace(rating, charges=tuple(charges))


def float_money(usages: Sequence[Usage], prices: PriceBook, period: Period) -> RatingResult:
    """Wrong: amounts went through floating point."""
    rating = rate(usages, prices, period)
    charges = (
        replace(charge, unit=None, amount=Fraction(float(charge.amount)))
        for charge in rating.charges
    )
    return replace(rating, charges=tuple(charges))


@pytest.mark.parametrize("wrong", [price_by_start_only, float_money])
def test_wrong_rating_is_detected(wrong):
    search = settings(max_examples=500, derandomize=True, database=None, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        search(rating_is_the_sum_of_single_prices(wrong))()


@given(timelines(), books())
def test_minimums_only_add_lines_of_their_own(usages, prices):
    plain = replace(prices, prices=tuple(without_minimum(prices.prices)))
    charges = rate(usages, prices, MONTH).charges
    topups = [c for c in charges if c.kind is ChargeKind.MINIMUM_TOPUP]
    rest = tuple(c for c in charges if c.kind is not ChargeKind.MINIMUM_TOPUP)
    assert rest == rate(usages, plain, MONTH).charges
    assert all(topup.quantity > 0 and topup.amount >= 0 for topup in topups)


@given(timelines(), books())
def test_what_a_claim_is_billed_is_the_least_that_minimum_and_granularity_allow(usages, prices):
    everything = Period(-10 * DAY_NS, 100 * DAY_NS)
    one = {p.minimum_ns for p in prices.prices if p.tariff.group is PriceGroup.TIME}
    step = {p.granularity_ns for p in prices.prices if p.tariff.group is PriceGroup.TIME}
    (minimum,), (granularity,) = one, step
    charges = rate(usages, prices, everything).charges
    used: Counter[str] = Counter()
    units = {}
    for charge in (charge for charge in charges if charge.kind is ChargeKind.USAGE):
        duration = charge.service_t1_ns - charge.service_t0_ns
        used[charge.claim] += duration
        units[charge.claim] = charge.quantity / duration
    extras = {
        charge.claim: charge.quantity
        for charge in charges
        if charge.kind is ChargeKind.MINIMUM_TOPUP
    }
    assert extras.keys() <= used.keys()
    for claim, time in used.items():
        extra = extras.get(claim, Fraction(0)) / units[claim]
        assert time + extra >= minimum
        assert (time + extra) % granularity == 0
        assert extra < max(granularity, minimum)


@given(timelines(), books(), st.integers(MONTH.start_ns + 1, MONTH.end_ns - 1))
def test_two_halves_of_a_period_add_up_to_it(usages, prices, middle):
    halves = (Period(MONTH.start_ns, middle), Period(middle, MONTH.end_ns))
    parts = [charge for half in halves for charge in rate(usages, prices, half).charges]
    assert total(parts) == total(rate(usages, prices, MONTH).charges)


@given(timelines(), books(), st.randoms())
def test_the_order_of_usage_does_not_matter(usages, prices, random):
    shuffled = random.sample(usages, len(usages))
    assert rate(shuffled, prices, MONTH) == rate(usages, prices, MONTH)


@given(timelines(), books())
def test_every_charge_has_an_id_of_its_own(usages, prices):
    charges = rate(usages, prices, MONTH).charges
    assert len({charge.charge_id for charge in charges}) == len(charges)
