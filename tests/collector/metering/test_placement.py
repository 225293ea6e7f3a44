"""Counts of GPUs without their names: who fits, and that no placement that fits gives other times."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from collector.metering.evidence import Claim, Level
from collector.metering.placement import Excess, NodeGpu, Placement, UnplacedClaim, place

N, S = Level.NODE_PLUGIN, Level.SCHEDULER
END = 100


def gpu(number: int, *claims: Claim, stays: tuple[tuple[int, int], ...] = ((0, END),)) -> NodeGpu:
    return NodeGpu(f"g{number}", stays, claims)


def claim(level: Level, start: int, end: int, name: str = "x", **more: object) -> Claim:
    return Claim(level, start, name, "other", end, **more)  # type: ignore[arg-type]  # of a test


def count(
    number: int, start: int = 0, end: int = END, name: str = "u", **more: object
) -> UnplacedClaim:
    usual = {"level": S, "tenant": name, "node": "n", "count": number}
    return UnplacedClaim(start_ns=start, id=name, end_ns=end, **{**usual, **more})  # type: ignore[arg-type]  # of a test


def shown(found: Placement) -> dict[str, list[tuple[str, int, int, str, bool]]]:
    """By GPU: tenant, span, share of it, and whether it is assumed."""
    return {
        name: [(c.tenant, c.begins_ns, c.ceases_ns, str(c.share or 1), c.assumed) for c in claims]
        for name, claims in found.claims.items()
    }


def times(found: Placement) -> dict[str, Fraction]:
    """GPU-ns by tenant."""
    totals: dict[str, Fraction] = {}
    for claims in found.claims.values():
        for one in claims:
            held = (one.share or 1) * (one.ceases_ns - one.begins_ns)
            totals[one.tenant] = totals.get(one.tenant, Fraction(0)) + held
    return totals


def test_whole_gpus_take_free_ones_first():
    gpus = [gpu(0, claim(N, 0, END)), gpu(1), gpu(2, claim(S, 0, END)), gpu(3)]
    found = place(gpus, [count(2)])
    assert shown(found) == {"g1": [("u", 0, END, "1", True)], "g3": [("u", 0, END, "1", True)]}
    found = place(gpus, [count(3)])
    assert shown(found)["g0"] == [("u", 0, END, "1", True)], "a lower rank gives way"
    assert place(gpus, [count(5)]).excess == [Excess("u", "u", 0, END, Fraction(2))]


def test_all_gpus_of_a_node_are_certain():
    found = place([gpu(0), gpu(1)], [count(2)])
    assert not any(one.assumed for claims in found.claims.values() for one in claims)


def test_devices_that_another_provider_names_are_certain():
    named = claim(N, 0, END, workload="7", source="slurm")
    found = place([gpu(0), gpu(1, named), gpu(2)], [count(2, workload="7", source="slurm")])
    assert shown(found) == {"g0": [("u", 0, END, "1", True)], "g1": [("u", 0, END, "1", False)]}


def test_workloads_are_compared_as_r3_compares_them():
    named = claim(N, 0, END, workload="7", source="cgroup")
    found = place([gpu(0), gpu(1, named)], [count(1, workload="slurm:7", source="slurm")])
    assert shown(found) == {"g1": [("u", 0, END, "1", False)]}
    half = count(1, workload="7", source="slurm", share=Fraction(1, 2))
    assert list(place([gpu(0), gpu(1, named)], [half]).claims) == ["g1"]
    other = claim(N, 0, END, workload="research/7", source="cgroup")
    found = place([gpu(0), gpu(1, other)], [count(1, workload="7", source="slurm")])
    assert list(found.claims) == ["g0"]
    nameless = claim(N, 0, END, source="cgroup")
    assert list(place([gpu(0), gpu(1, nameless)], [count(1)]).claims) == ["g0"], "no name is no job"


def test_a_gpu_that_a_higher_rank_gives_the_workload_is_one_of_the_number():
    given = claim(Level.ADMINISTRATOR, 0, 60, workload="slurm:7", source="file")
    one, two = (count(n, workload="7", source="slurm") for n in (1, 2))
    assert shown(place([gpu(0), gpu(1, given)], [one])) == {"g0": [("u", 60, END, "1", True)]}
    assert times(place([gpu(0), gpu(1, given)], [two])) == {"u": 140}
    own = claim(S, 0, END, workload="7", source="slurm")
    found = place([gpu(0), gpu(1, own)], [one])
    assert list(found.claims) == ["g0"], "a source counts what it does not name"


def test_positions_change_only_where_something_begins_or_ends():
    gpus = [gpu(0, claim(S, 20, 40)), gpu(1), gpu(2)]
    found = place(gpus, [count(1)])
    assert shown(found) == {
        "g0": [("u", 0, 20, "1", True)],
        "g1": [("u", 20, END, "1", True)],
    }, "it stays where it is when the first GPU is free again"


def test_a_count_that_moves_is_one_claim_with_one_start_and_one_end():
    gpus = [gpu(0, claim(S, 20, 40), claim(S, 60, 80, "y")), gpu(1, claim(S, 50, 70, "z"))]
    found = place(gpus, [count(1, 5, 90)])
    claims = [one for some in found.claims.values() for one in some]
    assert len(claims) == 4
    assert {(one.id, one.start_ns, one.end_ns, one.counted) for one in claims} == {
        ("u/count", 5, 90, True)
    }
    assert times(found) == {"u": 75}
    assert found.excess == [Excess("u", "u", 60, 70, Fraction(1))]


def test_a_later_count_leaves_the_gpus_that_another_has():
    found = place([gpu(0), gpu(1), gpu(2)], [count(1, name="early"), count(1, 30, 60, name="late")])
    assert shown(found) == {
        "g0": [("early", 0, END, "1", True)], "g1": [("late", 30, 60, "1", True)],
    }  # fmt: skip


def test_precedence_decides_who_fits():
    gpus = [gpu(0), gpu(1), gpu(2)]
    early, late = count(2, name="j9"), count(2, name="j10")
    assert times(place(gpus, [early, late])) == {"j10": 200, "j9": 100}, "10 is after 9"
    later = count(2, 50, END, name="a")
    assert times(place(gpus, [early, later])) == {"j9": 150, "a": 100}
    high = count(3, name="low", level=Level.SCHEDULER_LIST)
    assert times(place(gpus, [high, later])) == {"low": 300}


def test_fractions_take_what_is_left_and_are_split():
    half = claim(S, 0, END, exclusive=False, share=Fraction(1, 2))
    found = place([gpu(0, half), gpu(1, half)], [count(1, share=Fraction(3, 4))])
    assert shown(found) == {"g0": [("u", 0, END, "1/2", True)], "g1": [("u", 0, END, "1/4", True)]}
    found = place([gpu(0), gpu(1)], [count(2, share=Fraction(1, 3))])
    assert shown(found) == {"g0": [("u", 0, END, "1/3", True)], "g1": [("u", 0, END, "1/3", True)]}
    found = place([gpu(0, half)], [count(2, share=Fraction(1, 3))])
    assert found.excess == [Excess("u", "u", 0, END, Fraction(1, 6))]


def test_a_gpu_that_leaves_its_node_is_held_no_more():
    found = place([gpu(0, stays=((0, 30),)), gpu(1, stays=((30, END),))], [count(1)])
    assert times(found) == {"u": 100}
    assert found.excess == []
    assert place([], [count(1, 0, 10)]).excess == [Excess("u", "u", 0, 10, Fraction(1))]


spans = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(
    lambda pair: (min(pair) * 10, max(pair) * 10 + 10)
)
placed_claims = st.lists(
    st.builds(lambda level, span: claim(level, *span), st.sampled_from([N, S]), spans), max_size=2
)
whole_counts = st.lists(
    st.builds(lambda number, span, level: (number, span, level), st.integers(1, 4), spans,
              st.sampled_from([N, S])), max_size=3,
)  # fmt: skip


@given(st.lists(placed_claims, min_size=1, max_size=4), whole_counts)
def test_at_each_instant_as_many_fit_as_any_placement_gives(held, wanted):
    """The oracle counts at each instant: nothing is said of which GPU, only of how many."""
    gpus = [gpu(number, *claims) for number, claims in enumerate(held)]
    counts = [
        count(number, *span, name=f"t{place_}", level=level)
        for place_, (number, span, level) in enumerate(wanted)
    ]
    found = place(gpus, counts)
    for now in range(0, 110, 10):
        in_force = [one for one in counts if one.start_ns <= now < one.end_ns]
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
        top = max((one.level for one in in_force), default=None)
        if top is not None:
            free = sum(
                there and all(c.level < top or not c.begins_ns <= now < c.end_ns for c in g.claims)
                for g in gpus
            )
            need = sum(one.count for one in in_force if one.level == top)
            assert sum(given_[o.id] for o in in_force if o.level == top) == min(need, free)
    for claims in found.claims.values():
        for one in claims:
            assert not any(o is not one and o.begins_ns < one.ceases_ns and one.begins_ns < o.ceases_ns
                           for o in claims), "a whole GPU has one of them"  # fmt: skip


@given(st.permutations([gpu(0), gpu(1, claim(S, 10, 60)), gpu(2, claim(N, 0, 50)), gpu(3)]),
       st.permutations([count(2, name="a"), count(1, 20, 80, name="b"), count(2, 5, 30, name="c")]))  # fmt: skip
def test_the_order_of_gpus_and_claims_changes_nobodys_time(gpus, counts):
    reference = times(place(sorted(gpus, key=lambda g: g.gpu), sorted(counts)))
    assert times(place(gpus, counts)) == reference
