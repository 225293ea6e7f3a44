"""Counts of GPUs without their names: the claims that fit, and equal times of all placements that fit."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, strategies as st

from railscope.claim_terms import ClaimAuthority
from railscope_collector.metering.evidence import MeteredClaim
from railscope_collector.metering.placement import (
    Placement,
    PlacementGpu,
    UnplacedClaim,
    place_counts,
)

N, S = ClaimAuthority.NODE_PLUGIN, ClaimAuthority.SCHEDULER
END = 100


def gpu(
    number: int, *claims: MeteredClaim, stays: tuple[tuple[int, int], ...] = ((0, END),)
) -> PlacementGpu:
    return PlacementGpu(f"g{number}", stays, claims)


def claim(
    level: ClaimAuthority, start: int, end: int, name: str = "x", **more: object
) -> MeteredClaim:
    return MeteredClaim(level, start, name, "other", end, **more)  # type: ignore[arg-type]  # of a test


def count(
    number: int, start: int = 0, end: int = END, name: str = "u", **more: object
) -> UnplacedClaim:
    usual = {"authority": S, "tenant": name, "node": "n", "count": number}
    return UnplacedClaim(start_ns=start, id=name, end_ns=end, **{**usual, **more})  # type: ignore[arg-type]  # of a test


def times(found: Placement) -> dict[str, Fraction]:
    """GPU-ns by tenant."""
    totals: dict[str, Fraction] = {}
    for claims in found.claims.values():
        for claim in claims:
            held = (claim.share or 1) * (claim.ceases_ns - claim.begins_ns)
            totals[claim.tenant] = totals.get(claim.tenant, Fraction(0)) + held
    return totals


spans = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(
    lambda pair: (min(pair) * 10, max(pair) * 10 + 10)
)
placed_claims = st.lists(
    st.builds(lambda level, span: claim(level, *span), st.sampled_from([N, S]), spans), max_size=2
)
whole_counts = st.lists(
    st.builds(
        lambda number, span, level: (number, span, level),
        st.integers(1, 4),
        spans,
        st.sampled_from([N, S]),
    ),
    max_size=3,
)


@given(st.lists(placed_claims, min_size=1, max_size=4), whole_counts)
def test_at_each_instant_as_many_fit_as_any_placement_gives(held, wanted):
    """The oracle counts at each time: it has the number of GPUs, not their names."""
    gpus = [gpu(number, *claims) for number, claims in enumerate(held)]
    counts = [
        count(number, *span, name=f"t{place_}", authority=level)
        for place_, (number, span, level) in enumerate(wanted)
    ]
    found = place_counts(gpus, counts)
    for now in range(0, 110, 10):
        in_force = [count for count in counts if count.start_ns <= now < count.end_ns]
        given_ = {
            one.id: sum(
                c.tenant == one.id and c.begins_ns <= now < c.ceases_ns
                for claims in found.claims.values()
                for c in claims
            )
            for one in in_force
        }
        over = {e.claim: e.amount for e in found.excess if e.start_ns <= now < e.end_ns}
        assert all(given_[one.id] + over.get(one.id, 0) == one.count for one in in_force)
        there = now < END
        top = max((one.authority for one in in_force), default=None)
        if top is not None:
            free = sum(
                there
                and all(c.authority < top or not c.begins_ns <= now < c.end_ns for c in g.claims)
                for g in gpus
            )
            need = sum(one.count for one in in_force if one.authority == top)
            assert sum(given_[o.id] for o in in_force if o.authority == top) == min(need, free)
    for claims in found.claims.values():
        for claim in claims:
            assert not any(
                o is not claim and o.begins_ns < claim.ceases_ns and claim.begins_ns < o.ceases_ns
                for o in claims
            ), "a whole GPU has one of them"


@given(
    st.permutations([gpu(0), gpu(1, claim(S, 10, 60)), gpu(2, claim(N, 0, 50)), gpu(3)]),
    st.permutations([count(2, name="a"), count(1, 20, 80, name="b"), count(2, 5, 30, name="c")]),
)
def test_the_order_of_gpus_and_claims_changes_nobodys_time(gpus, counts):
    reference = times(place_counts(sorted(gpus, key=lambda g: g.gpu), sorted(counts)))
    assert times(place_counts(gpus, counts)) == reference
