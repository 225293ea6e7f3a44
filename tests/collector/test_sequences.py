from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from collector.sequences import Ranges, Received

pieces = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 8)), max_size=30)


@given(pieces, st.integers(1, 70), st.integers(0, 20))
def test_ranges_are_a_set_of_sequences(added: list[tuple[int, int]], first: int, more: int):
    ranges, model = Ranges(), set[int]()
    for start, length in added:
        ranges.add(start, start + length)
        model |= set(range(start, start + length + 1))
    wanted = set(range(first, first + more + 1))
    missing = {n for a, b in ranges.missing_in(first, first + more) for n in range(a, b + 1)}
    assert missing == wanted - model
    assert ranges.holes == (max(model) - min(model) + 1 - len(model) if model else 0)
    spans = list(zip(ranges.starts, ranges.ends, strict=True))
    assert all(end + 1 < start for (_, end), (start, _) in pairwise(spans))


def test_runs_are_apart_and_old_ones_are_forgotten():
    received = Received()
    received.add("n", "old", "gpu", 1, 5, now_ns=10)
    received.add("n", "new", "gpu", 1, 2, now_ns=20)
    assert received.ranges("n", "new", "gpu").missing_in(1, 5) == [(3, 5)]
    received.add("n", "old", "gpu", 9, 9, now_ns=10)
    assert received.holes() == 3
    received.forget("n", 20)
    assert received.holes() == 0
    assert received.ranges("n", "old", "gpu").missing_in(1, 5) == [(1, 5)]
    assert received.ranges("n", "new", "gpu").missing_in(1, 2) == []
