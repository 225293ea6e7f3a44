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


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 5)), max_size=12),
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 5)), max_size=6),
    st.integers(1, 60),
)
def test_the_end_of_a_run_shows_what_never_came(
    before: list[tuple[int, int]], after: list[tuple[int, int]], last: int
):
    """Whatever came before and after it is known: what is missing is what did not come."""
    received = Received()
    received.add("n", "r", "other", 1, 1, now_ns=1)
    came: set[int] = set()
    for position, spans in enumerate((before, after)):
        for first, more in spans:
            end = min(first + more, last)
            if first <= end:
                received.add("n", "r", "gpu", first, end, now_ns=1)
                came |= set(range(first, end + 1))
        if position == 0:
            first_known = min(came, default=1)
            received.end("n", "r", {"gpu": last})
            received.end("n", "r", {"gpu": last})
    expected = len(set(range(min({first_known, *came}, default=1), last + 1)) - came)
    assert received.holes() == expected


def test_a_run_that_was_never_heard_of_has_no_end():
    received = Received()
    received.end("n", "r", {"gpu": 10})
    assert received.holes() == 0
