"""Rating: worked examples to check by hand, and what holds for any usage and prices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.billing import MONTH, SKU, book, books, price, timelines, usage, without_minimum

from collector.billing.charges import Charge, Kind, Unit, priced
from collector.billing.instants import DAY_NS, HOUR_NS, SECOND_NS, Period
from collector.billing.prices import Group, Price, PriceBook, Tariff
from collector.billing.rating import MissingPriceError, Rating, rate
from collector.billing.sequence import DoubleUsageError
from collector.billing.usage import State, Usage, Witness
from railscope.reading import Absent

EUR = 10**9  # one unit of the currency, in nano
Rate = Callable[[Sequence[Usage], PriceBook, Period], Rating]


def total(charges: Sequence[Charge], *kinds: Kind) -> Fraction:
    return sum((c.amount for c in charges if not kinds or c.kind in kinds), Fraction(0))


def shown(rating: Rating) -> list[tuple[str, str]]:
    return [(charge.kind.value, str(charge.amount)) for charge in rating.charges]


# Worked examples -------------------------------------------------------------------------------


def test_eight_gpus_for_a_day_at_two_euro_an_hour_are_384_euro():
    day = [usage(0, DAY_NS, resource=f"GPU-{n}") for n in range(8)]
    assert total(rate(day, book(price(2 * EUR)), MONTH).charges) == 384


def test_a_price_that_rises_at_noon_is_two_lines():
    noon = 12 * HOUR_NS
    prices = book(price(2 * EUR, to_ns=noon), price(3 * EUR, noon, version=2), version=2)
    charges = rate([usage(0, DAY_NS)], prices, MONTH).charges
    assert [(c.amount, c.price_version) for c in charges] == [(24, 1), (36, 2)]


def test_a_claim_may_keep_the_price_it_started_with():
    noon = 12 * HOUR_NS
    prices = book(price(2 * EUR, to_ns=noon, at_claim_start=True), price(3 * EUR, noon))
    early = usage(0, DAY_NS)
    late = usage(noon, DAY_NS, resource="GPU-1", claim="c2", claim_start_ns=noon)
    charges = rate([early, late], prices, MONTH).charges
    assert {c.claim: (c.amount, c.price_nano) for c in charges} == {
        "c1": (48, 2 * EUR),
        "c2": (36, 3 * EUR),
    }


def test_a_tenants_own_price_beats_the_list_price_and_both_are_known():
    own = price(1 * EUR, 6 * HOUR_NS, 12 * HOUR_NS, tenant="team-a")
    prices = book(price(2 * EUR), own)
    theirs = usage(0, DAY_NS, tenant="team-b", resource="GPU-1", claim="c2")
    charges = rate([usage(0, DAY_NS), theirs], prices, MONTH).charges
    assert total([c for c in charges if c.tenant == "team-a"]) == 6 * 2 + 6 * 1 + 12 * 2
    assert total([c for c in charges if c.tenant == "team-b"]) == 48
    (reduced,) = [c for c in charges if c.price_nano == EUR]
    assert reduced.list_nano == 2 * EUR


def test_a_third_of_a_gpu_for_an_hour_is_a_third_of_its_price_exactly():
    charges = rate([usage(0, HOUR_NS, capacity_units=280)], book(price(EUR)), MONTH).charges
    assert charges[0].amount == Fraction(1, 3)


def test_a_mig_profile_has_its_own_price_per_instance():
    prices = book(
        price(2 * EUR),
        price(3 * EUR // 10, mig_profile="1g.10gb", unit=Unit.INSTANCE_HOURS),
        price(2 * EUR, mig_profile="3g.40gb"),
    )
    small = usage(0, HOUR_NS, resource="MIG-1", capacity_units=120, mig_profile="1g.10gb")
    large = usage(
        0, HOUR_NS, resource="MIG-3", capacity_units=420, mig_profile="3g.40gb", claim="d"
    )
    charges = rate([small, large], prices, MONTH).charges
    assert {c.resource: c.amount for c in charges} == {"MIG-1": Fraction(3, 10), "MIG-3": 1}


def test_energy_is_billed_beside_time_and_spread_over_a_price_change():
    kilowatt_hours = {"tariff": Tariff.ENERGY, "unit": Unit.KILOWATT_HOURS}
    half = HOUR_NS // 2
    prices = book(
        price(2 * EUR),
        price(EUR // 4, 0, half, **kilowatt_hours),
        price(EUR // 2, half, **kilowatt_hours),
    )
    used = usage(0, HOUR_NS, energy_millijoules=3_600_000_000)  # 1 kWh
    assert shown(rate([used], prices, MONTH)) == [
        ("energy", "1/8"),
        ("usage", "2"),
        ("energy", "1/4"),
    ]


def test_energy_that_is_not_known_is_for_review_and_not_zero():
    prices = book(price(EUR), price(EUR, tariff=Tariff.ENERGY, unit=Unit.KILOWATT_HOURS))
    rating = rate([usage(0, HOUR_NS, energy_millijoules=Absent.ERROR)], prices, MONTH)
    assert shown(rating) == [("usage", "1")]
    assert [review.reason for review in rating.reviews] == ["its energy is not known: error"]


def test_an_unused_reservation_has_its_own_price():
    prices = book(price(2 * EUR), price(EUR, tariff=Tariff.RESERVATION))
    reserved = usage(HOUR_NS, 3 * HOUR_NS, state=State.RESERVED, claim="")
    assert shown(rate([usage(0, HOUR_NS), reserved], prices, MONTH)) == [
        ("usage", "2"),
        ("reservation", "2"),
    ]


def test_a_minimum_of_an_hour_and_then_whole_hours():
    prices = book(price(2 * EUR, minimum_ns=2 * HOUR_NS, granularity_ns=HOUR_NS))
    short = usage(0, HOUR_NS // 2)
    long = usage(0, 5 * HOUR_NS // 2, resource="GPU-1", claim="c2")
    topups = [c for c in rate([short, long], prices, MONTH).charges if c.kind is not Kind.USAGE]
    assert {c.claim: (c.kind, c.amount) for c in topups} == {
        "c1": (Kind.MINIMUM_TOPUP, 3),
        "c2": (Kind.MINIMUM_TOPUP, 1),
    }


def test_a_claim_is_topped_up_once_in_the_period_it_ends_in():
    prices = book(price(2 * EUR, granularity_ns=24 * HOUR_NS))
    second = Period(MONTH.end_ns, 2 * MONTH.end_ns)
    whole = [
        usage(MONTH.end_ns - HOUR_NS, MONTH.end_ns),
        usage(MONTH.end_ns, MONTH.end_ns + HOUR_NS, state=State.DOWN),
    ]
    assert total(rate(whole, prices, MONTH).charges) == 2, "it goes on"
    topups = rate(whole, prices, second).charges
    assert [(c.kind, c.amount) for c in topups] == [(Kind.MINIMUM_TOPUP, 46)]
    assert second.start_ns <= topups[0].service_t0_ns < topups[0].service_t1_ns


# What is billable ------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.IDLE, State.STRANDED, State.SYSTEM, State.MAINTENANCE,
                                   State.DOWN, State.UNKNOWN])  # fmt: skip
def test_what_is_not_held_is_not_billed_even_without_prices(state):
    assert rate([usage(0, HOUR_NS, state=state)], book(), MONTH) == Rating((), ())


@pytest.mark.parametrize(
    ("witness", "minutes", "billed"),
    [
        (Witness.SCHEDULER, 60, True),
        (Witness.NODE_READY, 1, True),
        (Witness.BMC, 60, True),
        (Witness.BMC, 61, False),
        (Witness.NONE, 1, False),
    ],
)
def test_inferred_time_needs_a_witness_and_a_short_silence(witness, minutes, billed):
    silent = usage(0, minutes * 60 * SECOND_NS, state=State.INFERRED, witness=witness)
    rating = rate([silent], book(price(EUR)), MONTH)
    assert (len(rating.charges), len(rating.reviews)) == (int(billed), int(not billed))


def test_a_silence_is_judged_whole_over_midnight_claims_and_the_end_of_the_period():
    def inferred(start: int, end: int, claim: str) -> Usage:
        return usage(start, end, state=State.INFERRED, witness=Witness.BMC, claim=claim,
                     claim_start_ns=start)  # fmt: skip

    middle, part = MONTH.end_ns, 40 * 60 * SECOND_NS
    first, then = inferred(middle - part, middle, "c1"), inferred(middle, middle + part, "c2")
    seen = usage(middle, middle + part, claim="c2", claim_start_ns=middle)
    prices = book(price(EUR))
    assert len(rate([first, seen], prices, MONTH).charges) == 1
    (review,) = rate([first, then], prices, MONTH).reviews
    assert (review.usage, review.reason) == (first, "inferred over a silence of more than 1 h")


def test_a_usage_tariff_bills_only_what_was_seen():
    silent = usage(HOUR_NS, 2 * HOUR_NS, state=State.INFERRED, witness=Witness.BMC)
    prices = book(price(EUR, tariff=Tariff.USED))
    assert rate([usage(0, HOUR_NS), silent], prices, MONTH) == rate(
        [usage(0, HOUR_NS)], prices, MONTH
    )


def test_rogue_use_is_for_review():
    (review,) = rate([usage(0, HOUR_NS, state=State.ROGUE, claim="")], book(), MONTH).reviews
    assert review.reason == "processes without a claim"


@pytest.mark.parametrize(
    ("prices", "said"),
    [
        ([], "1970-01-01T00:00:00Z to 1970-01-01T01:00:00Z"),
        ([price(EUR, sku="other")], "h100"),
        ([price(EUR, to_ns=HOUR_NS // 2)], "1970-01-01T00:30:00Z to 1970-01-01T01:00:00Z"),
        ([price(EUR, tenant="team-b")], "team-a"),
        ([price(EUR), price(EUR, 0, 9, tariff=Tariff.ENERGY, unit=Unit.KILOWATT_HOURS)], "energy"),
    ],
)
def test_usage_without_a_price_is_an_error_that_names_both(prices, said):
    with pytest.raises(MissingPriceError, match="no price of") as caught:
        rate([usage(0, HOUR_NS, energy_millijoules=1)], book(*prices), MONTH)
    assert said in str(caught.value)
    assert "GPU-0, claim c1" in str(caught.value)


def test_energy_is_free_before_its_first_price():
    energy = price(EUR, HOUR_NS, tariff=Tariff.ENERGY, unit=Unit.KILOWATT_HOURS)
    used = usage(0, HOUR_NS, energy_millijoules=1)
    assert shown(rate([used], book(price(EUR), energy), MONTH)) == [("usage", "1")]


@pytest.mark.parametrize(
    "other",
    [{}, {"claim": "c2"}, {"capacity_units": 1}, {"state": State.INFERRED, "witness": Witness.BMC}],
)
def test_what_would_be_billed_twice_is_refused(other):
    again = usage(HOUR_NS - 1, 2 * HOUR_NS, **other)
    with pytest.raises(DoubleUsageError, match="GPU-0"):
        rate([usage(0, HOUR_NS), again], book(price(EUR)), MONTH)


def test_two_claims_may_share_a_gpu():
    halves = [usage(0, HOUR_NS, capacity_units=420, claim=claim) for claim in ("c1", "c2")]
    assert total(rate(halves, book(price(EUR)), MONTH).charges) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"end_ns": 0}, {"capacity_units": 0}, {"capacity_units": 841}, {"capacity_units": 420.0},
        {"energy_millijoules": -1}, {"energy_millijoules": 1.5}, {"tenant": ""}, {"claim": ""},
        {"claim_start_ns": 1},
    ],
)  # fmt: skip
def test_usage_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match="usage of GPU-0"):
        replace(usage(0, HOUR_NS), **wrong)


# For any usage and prices ----------------------------------------------------------------------


def amount_by_segments(usages: Sequence[Usage], prices: PriceBook, period: Period) -> Fraction:
    """P9's oracle: between any two edges of the book every price is constant; add up."""
    edges = {edge for p in prices.prices for edge in (p.from_ns, p.to_ns)}
    edges |= {period.start_ns, period.end_ns}
    amount = Fraction(0)
    for one in usages:
        cuts = sorted(
            {one.start_ns, one.end_ns} | {e for e in edges if one.start_ns < e < one.end_ns}
        )
        for start, end in pairwise(cuts):
            if period.start_ns <= start and end <= period.end_ns:
                amount += _segment(one, (start, end), prices, silence(one, usages))
    return amount


def silence(one: Usage, usages: Sequence[Usage]) -> int:
    """How long no one saw the resource around a usage: grow the span while something touches it."""
    start, end = one.start_ns, one.end_ns
    for _ in usages:
        for other in usages:
            unseen = other.state in (State.INFERRED, State.UNKNOWN)
            touches = other.start_ns <= end and start <= other.end_ns
            if unseen and touches and other.resource == one.resource:
                start, end = min(start, other.start_ns), max(end, other.end_ns)
    return end - start


def _segment(one: Usage, span: tuple[int, int], prices: PriceBook, silence_ns: int) -> Fraction:
    start, end = span

    def found(group: Group, instant: int = start) -> Price:
        valid = {
            p.tenant: p
            for p in prices.prices
            if p.tariff.group is group and p.from_ns <= instant < p.to_ns
        }
        return valid.get(one.tenant) or valid[""]

    hours = Fraction((end - start) * one.capacity_units, 840 * HOUR_NS)
    if one.state is State.RESERVED:
        return hours * found(Group.RESERVATION).nano / EUR
    if one.state not in (State.OBSERVED, State.INFERRED):
        return Fraction(0)
    energy = one.energy_millijoules if isinstance(one.energy_millijoules, int) else 0
    share = Fraction(end - start, one.end_ns - one.start_ns)
    amount = energy * share / 3_600_000_000 * found(Group.ENERGY).nano / EUR
    begun = found(Group.TIME, one.claim_start_ns)
    time = begun if begun.at_claim_start else found(Group.TIME)
    certain = one.state is State.OBSERVED or (
        time.tariff is Tariff.ALLOCATED
        and one.witness is not Witness.NONE
        and silence_ns <= HOUR_NS
    )
    return amount + (hours * time.nano / EUR if certain else 0)


def rating_is_the_sum_of_single_prices(implementation: Rate) -> Callable[[], None]:
    """P9, for any implementation of rating."""

    @given(timelines(), books())
    def holds(usages, prices) -> None:
        charges = implementation(usages, prices, MONTH).charges
        billed = total([c for c in charges if c.kind is not Kind.MINIMUM_TOPUP])
        assert billed == amount_by_segments(usages, prices, MONTH)

    return holds


def test_rating_over_a_book_is_the_sum_over_its_single_prices():
    rating_is_the_sum_of_single_prices(rate)()


def price_by_start_only(usages: Sequence[Usage], prices: PriceBook, period: Period) -> Rating:
    """Wrong: every charge of a usage has the price that was valid when the usage began."""
    rating = rate(usages, prices, period)
    first: dict[tuple[Kind, str, str], int] = {}
    charges = []
    for charge in rating.charges:
        nano = first.setdefault((charge.kind, charge.resource, charge.claim), charge.price_nano)
        amount = priced(charge.quantity, charge.unit, nano) if charge.unit else charge.amount
        charges.append(replace(charge, price_nano=nano, amount=amount))
    return replace(rating, charges=tuple(charges))


def float_money(usages: Sequence[Usage], prices: PriceBook, period: Period) -> Rating:
    """Wrong: amounts went through floating point."""
    rating = rate(usages, prices, period)
    charges = (
        replace(charge, unit=None, amount=Fraction(float(charge.amount)))
        for charge in rating.charges
    )
    return replace(rating, charges=tuple(charges))


@pytest.mark.parametrize("wrong", [price_by_start_only, float_money])
def test_wrong_rating_is_noticed(wrong):
    search = settings(max_examples=500, derandomize=True, database=None, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        search(rating_is_the_sum_of_single_prices(wrong))()


@given(timelines(), books())
def test_minimums_only_add_lines_of_their_own(usages, prices):
    plain = replace(prices, prices=tuple(without_minimum(prices.prices)))
    charges = rate(usages, prices, MONTH).charges
    topups = [c for c in charges if c.kind is Kind.MINIMUM_TOPUP]
    rest = tuple(c for c in charges if c.kind is not Kind.MINIMUM_TOPUP)
    assert rest == rate(usages, plain, MONTH).charges
    assert all(topup.quantity > 0 and topup.amount >= 0 for topup in topups)


@given(timelines(), books())
def test_what_a_claim_is_billed_is_the_least_that_minimum_and_granularity_allow(usages, prices):
    everything = Period(-10 * DAY_NS, 100 * DAY_NS)
    one = {p.minimum_ns for p in prices.prices if p.tariff.group is Group.TIME}
    step = {p.granularity_ns for p in prices.prices if p.tariff.group is Group.TIME}
    (minimum,), (granularity,) = one, step
    charges = rate(usages, prices, everything).charges
    used: Counter[str] = Counter()
    units = {}
    for charge in (one for one in charges if one.kind is Kind.USAGE):
        duration = charge.service_t1_ns - charge.service_t0_ns
        used[charge.claim] += duration
        units[charge.claim] = charge.quantity / duration
    extras = {one.claim: one.quantity for one in charges if one.kind is Kind.MINIMUM_TOPUP}
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


def test_a_charge_that_is_not_quantity_times_price_cannot_be_made():
    (charge,) = rate([usage(0, HOUR_NS)], book(price(EUR)), MONTH).charges
    assert (charge.sku, charge.amount) == (SKU, 1)
    for wrong in ({"amount": Fraction(2)}, {"amount": 1.0}, {"price_nano": 1e9}):
        with pytest.raises(ValueError, match=r"nano|fractions"):
            replace(charge, **wrong)
