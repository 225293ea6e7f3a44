from itertools import pairwise

import msgspec
from hypothesis import given, strategies as st

from railscope_collector.framelog.received_frames import (
    MAX_LOST_AT_END,
    MAX_MISSING,
    MAX_RANGES,
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
    for begin in range(1, 75):
        around = range(begin - 1, begin + more + 2)
        assert ranges.has_neighbour(begin, begin + more) == any(n in model for n in around)


def test_runs_are_apart_and_old_ones_are_forgotten():
    received = ReceivedFrames()
    received.add("n", "old", "gpu", 1, 5, now_ns=10)
    received.add("n", "new", "gpu", 1, 2, now_ns=20)
    assert received.run_streams("n", "new")["gpu"].missing_in(1, 5) == [(3, 5)]
    received.add("n", "old", "gpu", 9, 9, now_ns=10)
    assert received.count_missing() == 3
    received.drop_old_runs("n", 20)
    assert received.count_missing() == 0
    assert received.run_streams("n", "old") == {}
    assert received.run_streams("n", "new")["gpu"].missing_in(1, 2) == []


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


def test_an_unknown_run_has_no_end():
    received = ReceivedFrames()
    received.record_end("n", "r", {"gpu": 10})
    assert received.count_missing() == 0


def test_stated_ends_add_neither_streams_nor_ranges():
    """However many are stated: only streams with frames have an end, and the first one is final."""
    received = ReceivedFrames()
    received.add("n", "r", "gpu", 1, 5, now_ns=1)
    for number in range(200):
        names = {f"{number}-{name}": 10 for name in range(256)}
        received.record_end("n", "r", {"gpu": 7 + 3 * number, **names})
    run = received.nodes["n"]["r"]
    assert list(run.run_streams) == ["gpu"]
    assert (run.size, received.sizes["n"], run.ended) == (1, 1, {"gpu": 7})
    assert received.count_missing() == 2
    assert received.ignored == {"stream": 200 * 256, "repeated": 199}
    received.record_end("n", "r", {"gpu": 7})
    assert received.ignored["repeated"] == 199, "the same statement may be received again"


def test_an_end_far_beyond_the_last_received_frame_is_ignored_and_counted():
    received = ReceivedFrames()
    for stream in ("near", "far"):
        received.add("n", "r", stream, 1, 5, now_ns=1)
    received.record_end("n", "r", {"near": 5 + MAX_LOST_AT_END, "far": 6 + MAX_LOST_AT_END})
    assert received.count_missing() == MAX_LOST_AT_END
    assert received.ignored == {"distance": 1}


def test_an_end_before_the_last_received_frame_adds_nothing():
    received = ReceivedFrames()
    received.add("n", "r", "gpu", 1, 5, now_ns=1)
    received.record_end("n", "r", {"gpu": 3})
    assert received.count_missing() == 0
    assert received.run_streams("n", "r")["gpu"].missing_in(4, 7) == [(6, 7)]


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


def scattered(count: int) -> SequenceRanges:
    """Every third sequence."""
    return SequenceRanges(
        [3 * n for n in range(1, count + 1)], [3 * n for n in range(1, count + 1)]
    )


def test_the_oldest_runs_are_forgotten_beyond_the_ranges_of_a_node():
    received = ReceivedFrames()
    half = MAX_RANGES // 2
    received.restore_runs(
        "n",
        {
            "old": ReceivedRun(1, {"s": scattered(half)}),
            "new": ReceivedRun(2, {"s": scattered(half)}),
        },
    )
    assert received.sizes["n"] == MAX_RANGES
    received.add("n", "now", "gpu", 1, 1, now_ns=3)
    assert list(received.nodes["n"]) == ["new", "now"]
    assert received.sizes["n"] == half + 1
    assert received.count_missing() == 2 * (half - 1)


def test_what_an_earlier_version_kept_is_read_within_the_bounds():
    """Ends without a frame were kept as streams whose sequence 0 was received."""
    received = ReceivedFrames()
    only_ends = {f"s{n}": SequenceRanges([0, 1 << 62], [0, 1 << 62]) for n in range(1000)}
    gpu = SequenceRanges([1, 8], [5, 8])
    huge = ReceivedRun(1, {"s": scattered(MAX_RANGES + 1)})
    ended = {"gpu": 9 + MAX_LOST_AT_END, "s0": 7}
    received.restore_runs(
        "n", {"huge": huge, "r": ReceivedRun(2, {**only_ends, "gpu": gpu}, ended)}
    )
    assert {name: list(run.run_streams) for name, run in received.nodes["n"].items()} == {
        "r": ["gpu"]
    }
    assert received.nodes["n"]["r"].ended == {}
    assert (received.count_missing(), received.sizes["n"]) == (2, 2)


def test_checkpoints_of_earlier_versions_have_their_sequences():
    stored = msgspec.msgpack.encode(
        {"last_received_ns": 7, "streams": {"gpu": {"starts": [1], "ends": [5]}}}
    )
    run = msgspec.msgpack.decode(stored, type=ReceivedRun)
    assert run == ReceivedRun(7, {"gpu": SequenceRanges([1], [5])})
