from hypothesis import given
from hypothesis import strategies as st

from collector.claims import FOREVER_NS, Claim, Claims
from collector.metering.account import account, overlap_ns
from collector.metering.coverage import GAP_NS, Coverage

S = 1_000_000_000
samples = st.lists(
    st.tuples(st.integers(0, 600), st.sampled_from(["a", "b"])), min_size=1, max_size=25
)
claims = st.lists(
    st.builds(
        lambda start, length, tenant, holds: Claim(start * S, (start + length) * S, tenant, holds),
        st.integers(-50, 600), st.integers(1, 300), st.sampled_from(["t1", "t2", "t3"]),
        st.sampled_from(["gpu", "node"]),
    ),
    max_size=6,
)  # fmt: skip


def cover(points: list[tuple[int, str]]) -> Coverage:
    coverage = Coverage()
    for second, boot in points:
        assert coverage.add("node", boot, second * S, second * S)
    return coverage


def by_boot(coverage: Coverage) -> dict[str, list[tuple[int, int]]]:
    return {presence.boot_id: presence.stretches for presence in coverage.presences}


def boots_in_order(points: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Boot b follows boot a: its samples come after all of a's."""
    return [(second + (2000 if boot == "b" else 0), boot) for second, boot in points]


@given(samples, st.randoms())
def test_order_and_repetition_of_samples_change_nothing(points, random):
    shuffled = points + points[: len(points) // 2]
    random.shuffle(shuffled)
    assert by_boot(cover(shuffled)) == by_boot(cover(points)), "even where boots overlap"


@given(samples, st.integers(0, 3000))
def test_observed_means_a_sample_on_both_sides_of_one_boot_within_the_gap(points, second):
    points = boots_in_order(points)
    instant = second * S + S // 2
    observed = overlap_ns(cover(points).observed_until(FOREVER_NS), instant, instant + 1) == 1
    expected = any(
        a <= second < b and b - a <= GAP_NS // S and boot == other
        for a, boot in points
        for b, other in points
        if not any(a < c < b for c, _ in points)
    )
    assert observed == expected


@given(samples, claims, st.integers(0, 4000))
def test_every_gpu_and_nanosecond_has_exactly_one_state(points, held, until):
    coverage = {"gpu": cover(boots_in_order(points))}
    total = account(coverage, Claims.of(held), until * S)
    assert total.balances
    since = coverage["gpu"].since_ns
    assert total.capacity_ns == max(0, until * S - since)
    assert (
        min([total.idle_ns, total.unknown_ns, *(t.observed_ns for t in total.tenants.values())])
        >= 0
    )


@given(claims, st.integers(-60, 1000))
def test_the_holder_is_the_latest_claim_until_the_next_begins(held, second):
    ordered = sorted(held)
    begun = [claim for claim in ordered if claim.start_ns <= second * S]
    latest = begun[-1] if begun else None
    expected = latest.tenant if latest and second * S < latest.end_ns else ""
    assert Claims.of(held).holder("gpu", "node", second * S) == expected


@given(samples, claims, st.integers(0, 2000), st.integers(0, 2000))
def test_accounts_of_two_windows_add_up(points, held, one, other):
    first, last = sorted((one, other))
    coverage = {"gpu": cover(boots_in_order(points))}
    earlier = account(coverage, Claims.of(held), first * S)
    later = account(coverage, Claims.of(held), last * S)
    assert later.capacity_ns >= earlier.capacity_ns
    assert later.idle_ns >= earlier.idle_ns
    for tenant, time in earlier.tenants.items():
        assert later.tenants[tenant].held_ns >= time.held_ns
        assert later.tenants[tenant].observed_ns >= time.observed_ns


def test_a_gpu_that_moves_takes_node_claims_along_only_from_then_on():
    coverage = Coverage()
    assert coverage.add("n1", "a", 0, 100 * S)
    assert coverage.add("n2", "b", 200 * S, 300 * S)
    held = Claims.of([Claim(0, 1000 * S, "alice", "n1"), Claim(0, 1000 * S, "bob", "n2")])
    total = account({"gpu": coverage}, held, 300 * S)
    assert {who: time.held_ns // S for who, time in total.tenants.items()} == {
        "alice": 200,
        "bob": 100,
    }
    assert total.balances
    assert coverage.stays_until(300 * S) == [(0, 200 * S, "n1"), (200 * S, 300 * S, "n2")]


def test_a_node_cannot_claim_a_gpu_that_another_has_at_that_time():
    coverage = Coverage()
    assert coverage.add("n1", "a", 0, 100 * S)
    assert not coverage.add("thief", "b", 50 * S, 60 * S)
    assert not coverage.add("thief", "b", 100 * S + GAP_NS, 500 * S)
    assert coverage.stays_until(200 * S) == [(0, 200 * S, "n1")]
    assert coverage.add("n2", "b", 100 * S + GAP_NS + 1, 200 * S), "after a gap it has moved"
