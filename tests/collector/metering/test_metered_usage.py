"""Exactly the metered time is rated: no more, no less, and nothing twice; also over midnight."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import msgspec
from histories import MeteringCase, metering_cases
from hypothesis import given, strategies as st
from support.billing import book, price
from support.gpu_evidence import timeline_of

from railscope.reading import Absent
from railscope.timestamps import DAY_NS
from railscope_collector.billing.ledger_usage import usages_of_days
from railscope_collector.billing.price_book import Tariff
from railscope_collector.billing.rating import rate
from railscope_collector.metering.counter_increments import (
    CountedQuantity,
    CounterIncrements,
    CounterReadings,
    compute_increments,
)
from railscope_collector.metering.metered_day import MeteredDay
from railscope_collector.metering.slot_state import HELD_STATES, SlotState
from railscope_collector.metering.units import Period

SKU = "h100"
BOOK = book(price(10**9, sku=SKU), price(10**8, sku=SKU, tariff=Tariff.RESERVATION))
RESERVED_TOO = {*HELD_STATES, SlotState.RESERVED}


def moved(facts: object, by_ns: int) -> object:
    """Facts with every instant so much later."""
    if isinstance(facts, tuple) and not hasattr(facts, "_fields"):
        return tuple(moved(fact, by_ns) for fact in facts)
    if not isinstance(facts, msgspec.Struct):
        return facts
    later = {
        name: value + by_ns if value < 1 << 62 else value
        for name, value in msgspec.structs.asdict(facts).items()
        if name in {"start_ns", "end_ns", "first_ns", "last_ns", "timestamp_ns"}
    }
    return msgspec.structs.replace(facts, **later)


def days_of(case: MeteringCase, by_ns: int, *, counted: bool = True) -> list[MeteredDay]:
    """The case as the ledger has it, with some instant of it at midnight."""
    facts = msgspec.structs.asdict(case.evidence)
    evidence = msgspec.structs.replace(
        case.evidence, **{name: moved(value, by_ns) for name, value in facts.items()}
    )
    runs = [
        CounterReadings(r.boot, r.timestamps_ns + by_ns, r.counters, r.driver)
        for r in case.readings
    ]
    found: dict[CountedQuantity, CounterIncrements] = (
        {CountedQuantity.ENERGY: compute_increments(runs)} if counted else {}
    )
    gpu = timeline_of(evidence, found, [(0, SKU)])
    return [gpu.meter(day) for day in range(3)]


shifts = st.integers(0, 2000).map(lambda seconds: DAY_NS - seconds * 10**9)


@given(metering_cases(), shifts)
def test_usage_is_all_that_is_held_and_kept(case: MeteringCase, by_ns: int) -> None:
    days = days_of(case, by_ns)
    metered: Counter[tuple[str, SlotState]] = Counter()
    for piece in (piece for day in days for piece in day.pieces):
        for part in piece.parts:
            if part.state in RESERVED_TOO:
                metered[part.tenant, part.state] += part.size * (piece.end_ns - piece.start_ns)
    used: Counter[tuple[str, SlotState]] = Counter()
    for usage in usages_of_days(days):
        assert usage.start_ns // DAY_NS == (usage.end_ns - 1) // DAY_NS
        if usage.state in RESERVED_TOO:
            used[usage.tenant, usage.state] += usage.capacity_units * usage.duration_ns
    assert used == metered


@given(metering_cases(), shifts)
def test_rating_takes_every_usage_and_bills_nothing_twice(case: MeteringCase, by_ns: int) -> None:
    used = usages_of_days(days_of(case, by_ns))
    rated = rate(used, BOOK, Period(0, 3 * DAY_NS))
    hours = sum((charge.quantity for charge in rated.charges), Fraction(0))
    certain = sum(
        usage.capacity_units * usage.duration_ns
        for usage in used
        if usage.state in {SlotState.OBSERVED, SlotState.RESERVED}
    )
    doubtful = sum(
        usage.capacity_units * usage.duration_ns
        for usage in used
        if usage.state is SlotState.INFERRED
    )
    assert certain <= hours <= certain + doubtful


@given(metering_cases(), shifts)
def test_the_energy_of_usage_is_that_of_its_claims_day_by_day(
    case: MeteringCase, by_ns: int
) -> None:
    days = days_of(case, by_ns)
    held = {
        (day.day, part.claim)
        for day in days
        for piece in day.pieces
        for part in piece.parts
        if part.state in HELD_STATES
    }
    attributed: Counter[tuple[int, str]] = Counter()
    for day in days:
        for each in day.amounts:
            if not each.reason and (day.day, each.claim) in held:
                attributed[day.day, each.claim] += each.amount
    known: Counter[tuple[int, str]] = Counter()
    for usage in usages_of_days(days):
        if isinstance(usage.energy_millijoules, int):
            known[usage.start_ns // DAY_NS, usage.claim] += usage.energy_millijoules
    assert +known == attributed


@given(metering_cases(), shifts)
def test_the_start_of_a_claim_is_that_of_the_evidence(case: MeteringCase, by_ns: int) -> None:
    days = days_of(case, by_ns)
    began = {(claim.id, claim.start_ns) for day in days for claim in day.claims}
    for usage in usages_of_days(days[1:]):
        if usage.claim and usage.state in HELD_STATES:
            assert (usage.claim, usage.claim_start_ns) in began


@given(metering_cases(), shifts)
def test_uncounted_energy_is_not_known(case: MeteringCase, by_ns: int) -> None:
    for usage in usages_of_days(days_of(case, by_ns, counted=False)):
        assert usage.energy_millijoules is Absent.UNSUPPORTED
