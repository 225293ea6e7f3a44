from itertools import pairwise

import msgspec
from hypothesis import given, strategies as st

from railscope_collector.framelog.received_frames import (
    MAX_MISSING,
    ReceivedFrames,
    ReceivedRun,
    SequenceRanges,
)

pieces = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 8)), max_size=30)


@given(pieces, st.integers(1, 70), st.integers(0, 20))
def test_ranges_are_a_set_of_sequences(added: list[tuple[int, int]], first: int, more: int):
    ranges, model = SequenceRanges(), set[int]()
    for start, length in added:
        ranges.add(start, start + length)
        model |= set(range(start, start + length + 1))
    wanted = set(range(first, first + more + 1))
    missing = {n for a, b in ranges.missing_in(first, first + more) for n in range(a, b + 1)}
    assert ranges.count_new(first, more + 1) == len(missing)
    assert missing == wanted - model
    assert ranges.count_missing(max(model, default=0)) == (
        max(model) - min(model) + 1 - len(model) if model else 0
    )
    spans = list(zip(ranges.starts, ranges.ends, strict=True))
    assert all(end + 1 < start for (_, end), (start, _) in pairwise(spans))


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 5)), max_size=12),
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 5)), max_size=6),
    st.integers(1, 60),
)
def test_the_end_of_a_run_shows_what_never_came(
    before: list[tuple[int, int]], after: list[tuple[int, int]], last: int
):
    """Frames before and after a gap are known: exactly the frames that did not arrive are missing."""
    received = ReceivedFrames()
    received.add("n", "r", "other", 1, 1, now_ns=1)
    came: set[int] = set()
    has_end = False
    for position, spans in enumerate((before, after)):
        for first, more in spans:
            end = min(first + more, last)
            if first <= end:
                received.add("n", "r", "gpu", first, end, now_ns=1)
                came |= set(range(first, end + 1))
        if position == 0:
            has_end = bool(came)
            received.record_end("n", "r", {"gpu": last})
            received.record_end("n", "r", {"gpu": last})
    until = last if has_end else max(came, default=0)
    assert received.count_missing() == len(set(range(min(came, default=1), until + 1)) - came)
    assert received.nodes["n"]["r"].missing == received.count_missing()
    assert received.ignored == ({} if has_end else {"stream": 2})
    again = ReceivedFrames()
    again.restore_runs(
        "n", msgspec.convert(msgspec.to_builtins(received.nodes["n"]), dict[str, ReceivedRun])
    )
    assert (again.count_missing(), again.sizes) == (received.count_missing(), received.sizes)


@given(pieces, pieces, st.integers(1, 70))
def test_a_term_counts_what_is_missing_from_its_first_frame_on(
    before: list[tuple[int, int]], after: list[tuple[int, int]], last: int
):
    """Another collector may have received any frame before that one."""
    received = ReceivedFrames()
    for first, more in before:
        received.add("n", "r", "gpu", first, first + more, now_ns=1)
    received.begin_term()
    received.record_end("n", "r", {"gpu": last})
    assert received.count_missing() == 0
    came = {n for first, more in before for n in range(first, first + more + 1)}
    since = after[0][0] if after else 0
    for first, more in after:
        received.add("n", "r", "gpu", first, first + more, now_ns=1)
        came |= set(range(first, first + more + 1))
    if not before and after:
        since = min(came)
    until = max(came | {last}) if before else max(came, default=0)
    expected = set(range(since, until + 1)) - came if after else set()
    assert received.count_missing() == len(expected)


def test_one_node_adds_a_bounded_number_to_the_figure_of_the_cluster():
    received = ReceivedFrames()
    received.add("other", "r", "gpu", 1, 1, now_ns=1)
    received.add("other", "r", "gpu", 4, 4, now_ns=1)
    for run in ("a", "b"):
        received.add("n", run, "gpu", 1, 1, now_ns=1)
        received.add("n", run, "gpu", 1 << 62, 1 << 62, now_ns=1)
    assert dict(received.missing_of_nodes()) == {"other": 2, "n": MAX_MISSING}
    assert received.count_missing() == MAX_MISSING + 2
    received.add("n", "a", "gpu", 1, 1 << 62, now_ns=1)
    received.add("n", "b", "gpu", 1, 1 << 62, now_ns=1)
    assert dict(received.missing_of_nodes()) == {"other": 2}
