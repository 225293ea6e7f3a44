"""Counts of GPUs without their names: the claims that fit, and equal times of all placements that fit."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, strategies as st
from msgspec.structs import replace

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


R = ClaimAuthority.REVIEW
shares = st.sampled_from([Fraction(1), Fraction(1, 2), Fraction(1, 3), Fraction(3, 4)])
workloads = st.sampled_from(["", "w"])


@st.composite
def counts_of(draw: st.DrawFn, *levels: ClaimAuthority) -> UnplacedClaim:
    start, end = draw(spans)
    level, number = draw(st.sampled_from(levels)), draw(st.integers(1, 3))
    name = draw(st.sampled_from(["j", "j5", "j#7"])) + draw(st.sampled_from(["", "a", "b"]))
    return count(
        number,
        start,
        end,
        name,
        authority=level,
        share=draw(shares),
        workload=draw(workloads),
        source=draw(st.sampled_from(["slurm", "file"])),
        review="late" if level is R else "",
    )


@st.composite
def named_claims(draw: st.DrawFn, *levels: ClaimAuthority) -> MeteredClaim:
    level, share = draw(st.sampled_from(levels)), draw(shares)
    name, review = f"c{draw(st.integers(0, 99))}", "late" if level is R else ""
    return claim(
        level,
        *draw(spans),
        name,
        workload=draw(workloads),
        source="cgroup",
        review=review,
        exclusive=share == 1,
        share=None if share == 1 else share,
    )


def parted(one: UnplacedClaim | MeteredClaim, at: int) -> list[UnplacedClaim | MeteredClaim]:
    """A claim whose end was reported late, and now waits from an instant on."""
    if not one.start_ns < at < one.end_ns:
        return [one]
    more = {"reported_id": one.id} if isinstance(one, UnplacedClaim) else {}
    late = replace(
        one, id=f"{one.id}#{at}", from_ns=at, review="end of a claim reported late", **more
    )
    if isinstance(one, MeteredClaim):
        late = replace(late, start_ns=at)
    return [replace(one, end_ns=at, **more), late]


def where(found: Placement, names: set[str]) -> set[tuple[str, int, str, str, bool]]:
    """GPU, instant, claim, share of it and whether it is assumed."""
    return {
        (gpu_, now, name, str(claim.share), claim.assumed)
        for gpu_, claims in found.claims.items()
        for claim in claims
        if (name := claim.tenant) in names
        for now in range(claim.begins_ns, claim.ceases_ns, 5)
    }


@given(
    st.lists(
        st.lists(named_claims(N, S), max_size=2, unique_by=lambda one: one.id),
        min_size=1,
        max_size=3,
    ),
    st.lists(counts_of(N, S), min_size=1, max_size=4, unique_by=lambda one: one.id),
    st.lists(st.tuples(st.integers(0, 2), named_claims(R)), max_size=2),
    st.lists(counts_of(R), max_size=2, unique_by=lambda one: one.id),
    st.lists(st.integers(1, 19), min_size=1),
)
def test_what_is_under_review_moves_no_other_claim(held, counts, late_claims, late, cuts):
    """Nor does the instant at which a part of a claim that waits begins."""
    names = {count.tenant for count in counts}
    before = place_counts([gpu(number, *claims) for number, claims in enumerate(held)], counts)
    times_ = [5 * number for number in cuts]
    also: list[list[MeteredClaim]] = [
        [part for at, one in enumerate(some) for part in parted(one, times_[at % len(times_)])]
        for some in held
    ]
    for place_, one in late_claims:
        also[place_ % len(also)].append(one)
    split = [
        part for at, one in enumerate(counts) for part in parted(one, times_[-1 - at % len(times_)])
    ]
    waiting = [replace(one, tenant="mallory", id=f"late-{one.id}") for one in late]
    gpus = [gpu(number, *claims) for number, claims in enumerate(also)]
    assert where(place_counts(gpus, [*split, *waiting]), names) == where(before, names)


@given(
    st.permutations([gpu(0), gpu(1, claim(S, 10, 60)), gpu(2, claim(N, 0, 50)), gpu(3)]),
    st.permutations([count(2, name="a"), count(1, 20, 80, name="b"), count(2, 5, 30, name="c")]),
)
def test_the_order_of_gpus_and_claims_changes_nobodys_time(gpus, counts):
    reference = times(place_counts(sorted(gpus, key=lambda g: g.gpu), sorted(counts)))
    assert times(place_counts(gpus, counts)) == reference
