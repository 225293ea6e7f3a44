"""Rating: worked examples to check by hand, and what is billable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest
from support.billing import MONTH, SKU, book, price, usage

from railscope.reading import Absent
from railscope.timestamps import DAY_NS, HOUR_NS, SECOND_NS
from railscope_collector.billing.charges import Charge, ChargeKind, PriceUnit
from railscope_collector.billing.price_book import Tariff
from railscope_collector.billing.rating import MissingPriceError, RatingResult, rate
from railscope_collector.billing.usage import DoubleUsageError, Usage
from railscope_collector.metering.evidence import NodeEvidence
from railscope_collector.metering.tiling import SlotState
from railscope_collector.metering.units import Period

EUR = 10**9  # one unit of the currency, in nano


def total(charges: Sequence[Charge], *kinds: ChargeKind) -> Fraction:
    return sum((c.amount for c in charges if not kinds or c.kind in kinds), Fraction(0))


def shown(rating: RatingResult) -> list[tuple[str, str]]:
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


def test_a_reservation_has_the_price_of_each_time():
    """The ledger does not have its start: the first day that is read would decide the price."""
    tariff = {"tariff": Tariff.RESERVATION, "at_claim_start": True}
    prices = book(price(2 * EUR, to_ns=DAY_NS, **tariff), price(3 * EUR, DAY_NS, **tariff))
    days = [
        usage(
            day * DAY_NS,
            (day + 1) * DAY_NS,
            state=SlotState.RESERVED,
            claim="kept",
            claim_start_ns=0,
        )
        for day in range(2)
    ]
    charges = rate(days, prices, MONTH).charges
    assert [charge.price_nano for charge in charges] == [2 * EUR, 3 * EUR]


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
        price(3 * EUR // 10, mig_profile="1g.10gb", unit=PriceUnit.INSTANCE_HOURS),
        price(2 * EUR, mig_profile="3g.40gb"),
    )
    small = usage(0, HOUR_NS, resource="MIG-1", capacity_units=120, mig_profile="1g.10gb")
    large = usage(
        0, HOUR_NS, resource="MIG-3", capacity_units=420, mig_profile="3g.40gb", claim="d"
    )
    charges = rate([small, large], prices, MONTH).charges
    assert {c.resource: c.amount for c in charges} == {"MIG-1": Fraction(3, 10), "MIG-3": 1}


@pytest.mark.parametrize(
    ("held", "instance", "amount"),
    [
        (30, 120, Fraction(3, 40)),
        (Fraction(120, 7), 120, Fraction(3, 70)),
        (120, 120, Fraction(3, 10)),
        (120, 0, Fraction(3, 10)),
        (840, 120, Fraction(3, 10)),
    ],
    ids=["quarter", "seventh", "whole", "size unknown", "never above one instance"],
)
def test_a_share_of_an_instance_costs_its_share(held, instance, amount):
    prices = book(price(3 * EUR // 10, mig_profile="1g.10gb", unit=PriceUnit.INSTANCE_HOURS))
    used = usage(0, HOUR_NS, capacity_units=held, instance_units=instance, mig_profile="1g.10gb")
    assert total(rate([used], prices, MONTH).charges) == amount


def test_energy_is_billed_beside_time_and_spread_over_a_price_change():
    kilowatt_hours = {"tariff": Tariff.ENERGY, "unit": PriceUnit.KILOWATT_HOURS}
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
    prices = book(price(EUR), price(EUR, tariff=Tariff.ENERGY, unit=PriceUnit.KILOWATT_HOURS))
    rating = rate([usage(0, HOUR_NS, energy_millijoules=Absent.ERROR)], prices, MONTH)
    assert shown(rating) == [("usage", "1")]
    assert [review.reason for review in rating.reviews] == ["its energy is unknown: error"]


def test_an_unused_reservation_has_its_own_price():
    prices = book(price(2 * EUR), price(EUR, tariff=Tariff.RESERVATION))
    reserved = usage(HOUR_NS, 3 * HOUR_NS, state=SlotState.RESERVED, claim="")
    assert shown(rate([usage(0, HOUR_NS), reserved], prices, MONTH)) == [
        ("usage", "2"),
        ("reservation", "2"),
    ]


def test_a_minimum_of_an_hour_and_then_whole_hours():
    prices = book(price(2 * EUR, minimum_ns=2 * HOUR_NS, granularity_ns=HOUR_NS))
    short = usage(0, HOUR_NS // 2)
    long = usage(0, 5 * HOUR_NS // 2, resource="GPU-1", claim="c2")
    topups = [
        c for c in rate([short, long], prices, MONTH).charges if c.kind is not ChargeKind.USAGE
    ]
    assert {c.claim: (c.kind, c.amount) for c in topups} == {
        "c1": (ChargeKind.MINIMUM_TOPUP, 3),
        "c2": (ChargeKind.MINIMUM_TOPUP, 1),
    }


def test_a_claim_is_topped_up_once_in_the_period_it_ends_in():
    prices = book(price(2 * EUR, granularity_ns=24 * HOUR_NS))
    second = Period(MONTH.end_ns, 2 * MONTH.end_ns)
    whole = [
        usage(MONTH.end_ns - HOUR_NS, MONTH.end_ns),
        usage(MONTH.end_ns, MONTH.end_ns + HOUR_NS, state=SlotState.DOWN),
    ]
    assert total(rate(whole, prices, MONTH).charges) == 2, "it goes on"
    topups = rate(whole, prices, second).charges
    assert [(c.kind, c.amount) for c in topups] == [(ChargeKind.MINIMUM_TOPUP, 46)]
    assert second.start_ns <= topups[0].service_t0_ns < topups[0].service_t1_ns


def test_a_claim_that_ends_with_the_period_is_topped_up_in_it_and_not_again():
    prices = book(price(2 * EUR, granularity_ns=2 * HOUR_NS))
    claim = [usage(MONTH.end_ns - HOUR_NS, MONTH.end_ns)]
    assert total(rate(claim, prices, MONTH).charges) == 4
    assert not rate(claim, prices, Period(MONTH.end_ns, 2 * MONTH.end_ns)).charges


# What is billable ------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [SlotState.IDLE, SlotState.STRANDED, SlotState.SYSTEM, SlotState.MAINTENANCE,
                                   SlotState.DOWN, SlotState.UNKNOWN])  # fmt: skip
def test_what_is_not_held_is_not_billed_even_without_prices(state):
    assert rate([usage(0, HOUR_NS, state=state)], book(), MONTH) == RatingResult((), ())


@pytest.mark.parametrize(
    ("node_evidence", "minutes", "billed"),
    [
        (NodeEvidence.SCHEDULER, 60, True),
        (NodeEvidence.NODE_READY, 1, True),
        (NodeEvidence.BMC, 60, True),
        (NodeEvidence.BMC, 61, False),
        (NodeEvidence.NONE, 1, False),
    ],
)
def test_inferred_time_needs_node_evidence_and_a_short_gap(node_evidence, minutes, billed):
    silent = usage(
        0, minutes * 60 * SECOND_NS, state=SlotState.INFERRED, node_evidence=node_evidence
    )
    rating = rate([silent], book(price(EUR)), MONTH)
    assert (len(rating.charges), len(rating.reviews)) == (int(billed), int(not billed))


def test_a_gap_is_judged_as_a_whole_over_midnight_claims_and_the_end_of_the_period():
    def inferred(start: int, end: int, claim: str) -> Usage:
        return usage(
            start,
            end,
            state=SlotState.INFERRED,
            node_evidence=NodeEvidence.BMC,
            claim=claim,
            claim_start_ns=start,
        )

    middle, part = MONTH.end_ns, 40 * 60 * SECOND_NS
    first, then = inferred(middle - part, middle, "c1"), inferred(middle, middle + part, "c2")
    seen = usage(middle, middle + part, claim="c2", claim_start_ns=middle)
    prices = book(price(EUR))
    assert len(rate([first, seen], prices, MONTH).charges) == 1
    (review,) = rate([first, then], prices, MONTH).reviews
    assert (review.usage, review.reason) == (first, "inferred over a gap of more than 1 h")


def test_a_usage_tariff_bills_only_what_was_seen():
    silent = usage(HOUR_NS, 2 * HOUR_NS, state=SlotState.INFERRED, node_evidence=NodeEvidence.BMC)
    prices = book(price(EUR, tariff=Tariff.USED))
    found = rate([usage(0, HOUR_NS), silent], prices, MONTH)
    assert (found.charges, found.reviews) == (rate([usage(0, HOUR_NS)], prices, MONTH).charges, ())
    (free,) = found.free
    assert (free.usage, free.start_ns, free.end_ns) == (silent, HOUR_NS, 2 * HOUR_NS)


def test_unclaimed_use_is_for_review():
    (review,) = rate(
        [usage(0, HOUR_NS, state=SlotState.UNCLAIMED, claim="")], book(), MONTH
    ).reviews
    assert review.reason == "processes without a claim"


@pytest.mark.parametrize(
    ("lacking", "expected_text"),
    [
        ({"tenant": ""}, "its tenant is unknown"),
        ({"sku": ""}, "the model of the GPU is unknown, so it has no price"),
        ({"tenant": "", "state": SlotState.RESERVED}, "its tenant is unknown"),
    ],
)
def test_usage_without_a_payer_is_for_review(lacking, expected_text):
    (review,) = rate([usage(0, HOUR_NS, **lacking)], book(), MONTH).reviews
    assert (review.reason, review.start_ns, review.end_ns) == (expected_text, 0, HOUR_NS)


@pytest.mark.parametrize(
    ("prices", "expected_text"),
    [
        ([], "1970-01-01T00:00:00Z to 1970-01-01T01:00:00Z"),
        ([price(EUR, sku="other")], "h100"),
        ([price(EUR, to_ns=HOUR_NS // 2)], "1970-01-01T00:30:00Z to 1970-01-01T01:00:00Z"),
        ([price(EUR, tenant="team-b")], "team-a"),
        (
            [price(EUR), price(EUR, 0, 9, tariff=Tariff.ENERGY, unit=PriceUnit.KILOWATT_HOURS)],
            "energy",
        ),
    ],
)
def test_usage_without_a_price_is_an_error_that_names_both(prices, expected_text):
    with pytest.raises(MissingPriceError, match="no price of") as caught:
        rate([usage(0, HOUR_NS, energy_millijoules=1)], book(*prices), MONTH)
    assert expected_text in str(caught.value)
    assert "GPU-0, claim c1" in str(caught.value)


def test_energy_is_free_before_its_first_price():
    energy = price(EUR, HOUR_NS, tariff=Tariff.ENERGY, unit=PriceUnit.KILOWATT_HOURS)
    used = usage(0, HOUR_NS, energy_millijoules=1)
    assert shown(rate([used], book(price(EUR), energy), MONTH)) == [("usage", "1")]


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"claim": "c2"},
        {"capacity_units": 1},
        {"state": SlotState.INFERRED, "node_evidence": NodeEvidence.BMC},
    ],
)
def test_what_would_be_billed_twice_is_rejected(other):
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
        {"energy_millijoules": -1}, {"energy_millijoules": 1.5}, {"claim": ""},
        {"claim_start_ns": 1},
    ],
)  # fmt: skip
def test_usage_that_cannot_be_is_rejected(wrong):
    with pytest.raises(ValueError, match="usage of GPU-0"):
        replace(usage(0, HOUR_NS), **wrong)


def test_a_charge_that_is_not_quantity_times_price_cannot_be_made():
    (charge,) = rate([usage(0, HOUR_NS)], book(price(EUR)), MONTH).charges
    assert (charge.sku, charge.amount) == (SKU, 1)
    for wrong in ({"amount": Fraction(2)}, {"amount": 1.0}, {"price_nano": 1e9}):
        with pytest.raises(ValueError, match=r"nano|fractions"):
            replace(charge, **wrong)
