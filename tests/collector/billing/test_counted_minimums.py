"""Minimums and frozen prices of claims for a number of GPUs: once, whichever GPUs they are on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import pairwise

from hypothesis import assume, given, settings, strategies as st
from support.billing import book, price
from support.examples import fewer_examples

from railscope.claim_terms import ClaimAuthority
from railscope.timestamps import DAY_NS, FOREVER_NS, HOUR_NS
from railscope_collector.billing.charges import Charge
from railscope_collector.billing.claim_minimums import target_ns
from railscope_collector.billing.period_rating import newest_revisions, rate_period
from railscope_collector.ledger.day_metering import MeteredGpu, MeteringComputation
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.metering.evidence import Evidence, MeteredClaim, NodeStay
from railscope_collector.metering.observation import BootSampleSpan
from railscope_collector.metering.placement import PlacementGpu, UnplacedClaim, place_counts
from railscope_collector.metering.units import Period
from railscope_collector.tables import metadata

S = ClaimAuthority.SCHEDULER
MINUTE_NS = HOUR_NS // 60
DAYS = 5
RATE = 2 * 10**9
HOURLY = price(RATE, -FOREVER_NS, FOREVER_NS, minimum_ns=HOUR_NS, granularity_ns=10 * MINUTE_NS)


def hours(number: float) -> int:
    return round(number * HOUR_NS)


def other(name: str, start: float, end: float) -> MeteredClaim:
    return MeteredClaim(S, hours(start), name, "blue", hours(end), node="n1")


def job(number: int, start: float, end: float, **more: object) -> UnplacedClaim:
    known = {"id": "job", "node": "n1", "workload": "slurm:1", "count": number, **more}
    return UnplacedClaim(S, hours(start), tenant="red", end_ns=hours(end), **known)  # type: ignore[arg-type]  # of a test


def metered(
    gpus: Sequence[Sequence[MeteredClaim]],
    counts: Iterable[UnplacedClaim],
    days: Iterable[int] = range(-1, DAYS + 1),
) -> Ledger:
    """A ledger of some days of a node."""
    named = {f"GPU-{at}": claims for at, claims in enumerate(gpus)}
    placed = place_counts([PlacementGpu(g, [(0, FOREVER_NS)], c) for g, c in named.items()], counts)
    ledger = Ledger.open("sqlite://", metadata)
    for name, claims in named.items():
        evidence = Evidence(
            name,
            (NodeStay(-FOREVER_NS, "n1"),),
            (*claims, *placed.claims.get(name, ())),
            sample_spans=(BootSampleSpan("boot", -DAY_NS, (DAYS + 1) * DAY_NS),),
        )
        one = MeteredGpu.compute(evidence, {}, [(0, "h100")])
        ledger.write_days([one.day(day, MeteringComputation("1", 0)) for day in days])
    return ledger


def billed(ledger: Ledger, *edges: int, prices=HOURLY) -> list[list[Charge]]:
    """The charges of the tenant in consecutive periods between some days."""
    periods = [Period(a * DAY_NS, b * DAY_NS) for a, b in pairwise(edges)]
    return [
        [
            charge
            for charge in rate_period(
                ledger, book(prices), period, newest_revisions(ledger)
            ).charges
            if charge.tenant == "red"
        ]
        for period in periods
    ]


def total(charges: Iterable[Charge]) -> Fraction:
    return sum((charge.amount for charge in charges), Fraction(0))


instants = st.integers(0, DAYS * 24 * 4).map(lambda quarter: quarter / 4)
spans = st.tuples(instants, st.integers(1, 120)).map(
    lambda one: (one[0], min(one[0] + one[1] / 4, DAYS * 24 + 1))
)
others = st.lists(spans, max_size=4)


@settings(fewer_examples(25))
@given(
    st.lists(others, min_size=1, max_size=3),
    st.integers(1, 3),
    instants.filter(bool),
    st.integers(1, 200),
    st.sets(st.integers(1, DAYS - 1)),
)
def test_p27_cuts_and_places_of_a_count_change_no_total(held, number, start, minutes, cuts):
    """The oracle has no GPUs: it counts, for each minute, those that no other claim has."""
    gpus = [
        [other(f"s{at}-{n}", *span) for n, span in enumerate(some)] for at, some in enumerate(held)
    ]
    begin, end = hours(start), hours(start) + minutes * 5 * MINUTE_NS
    count = UnplacedClaim(S, begin, "job", "red", end, node="n1", count=number)
    ledger = metered(gpus, [count])
    times = [0] * number
    free = 0
    for now in range(begin, min(end, DAYS * DAY_NS), 5 * MINUTE_NS):
        free = sum(not any(c.start_ns <= now < c.end_ns for c in claims) for claims in gpus)
        for at in range(min(free, number)):
            times[at] += 5 * MINUTE_NS
    assume(free or end > DAYS * DAY_NS)
    if end <= DAYS * DAY_NS:
        times = [target_ns(time, HOURLY) if time else 0 for time in times]
    expected = Fraction(2 * sum(times), HOUR_NS)
    whole = billed(ledger, 0, DAYS)
    parts = billed(ledger, 0, *sorted(cuts), DAYS)
    assert total(charge for some in whole for charge in some) == expected
    assert total(charge for some in parts for charge in some) == expected
