"""Logs of NCCL Inspector as directories and as recorded, totals in any order of lines and parts, and hostile content."""

from __future__ import annotations

import json
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from support.examples import fewer_examples
from support.inspector_logs import (
    InspectorDirectory,
    case_logs,
    collective,
    header,
    marked_lines,
    metadata,
    straggling,
    text,
    whole_lines,
)
from support.shared import capture_path

from railscope.reading import SIGNED_LIMIT
from railscope_agent.collectives import inspector
from railscope_agent.collectives.communicator_totals import (
    CommunicatorTotals,
)
from railscope_agent.collectives.inspector import InspectedCall, InspectorPart, parse_part

CAPTURES = "collectives/nccl-inspector"


@pytest.mark.parametrize(
    ("name", "rank", "call", "dropped"),
    [
        ("v4.0-coll-line.jsonl", 1, ["AllReduce", 8995, 2_360_832, 5_663_000, 3_147_779, True], 0),
        ("v4.0-readme-coll.json", 2, ["AllReduce", 1407, 17_179_869_184, 61_974_000, 30_064_771_041, False], 0),
        ("v4.0-readme-coll-verbose.json", 4, ["ReduceScatter", 1231, 2_147_483_648, 41_057_000, 15_032_385_521, True], 0),
        ("v4.3-stream-derived.jsonl", 2, ["AllReduce", 1407, 17_179_869_184, 61_974_000, 30_064_771_041, True], 512),
    ],
)  # fmt: skip
def test_published_lines_are_read(name: str, rank: int, call: list[object], dropped: int) -> None:
    content = capture_path(f"{CAPTURES}/{name}").read_bytes()
    if name.endswith(".json"):  # printed over several lines
        content = text(json.loads(content))
    part = parse_part(content, 0)
    assert [h.rank for h in part.headers] == [rank]
    assert msgspec.to_builtins(part.calls) == [[0, *call]]
    assert set(part.lines) == {"read"}
    assert part.dropped == dropped


def read_parts(content: bytes, part_bytes: int) -> list[InspectorPart]:
    """Return the parts of a log, read with a small buffer."""
    parts, offset = [], 0
    while not parts or parts[-1].end > offset:
        offset = parts[-1].end if parts else 0
        first = max(offset - 1, 0)
        parts.append(parse_part(content[first : first + part_bytes], offset))
    return parts


def resolved(parts: list[InspectorPart]) -> list[tuple[object, ...]]:
    """Return the calls with their ranks."""
    calls, before = [], None
    for part in parts:
        for call in part.calls:
            of_call = before if call.header < 0 else part.headers[call.header]
            calls.append((of_call.rank if of_call else None, *msgspec.structs.astuple(call)[1:]))
        if part.last_header != -1:
            before = None if part.last_header is None else part.headers[part.last_header]
    return calls


@given(part_bytes=st.integers(500, 4000))
def test_the_length_of_parts_does_not_change_the_calls(part_bytes: int) -> None:
    log = marked_lines(1, straggling(1, 4)) + whole_lines(2, straggling(2, 4)) + b"{}\n"
    log += marked_lines(3, straggling(3, 4))
    parts = read_parts(log, part_bytes)
    assert parts[-1].end == len(log)
    assert all(later.start == earlier.end for earlier, later in pairwise(parts))
    assert resolved(parts) == resolved([parse_part(log, 0)])


@given(st.binary(max_size=3000), st.integers(0, 5000))
def test_any_bytes_are_accepted_and_every_line_is_counted(content: bytes, offset: int) -> None:
    part = parse_part(content, offset)
    assert offset - 1 <= part.start <= part.end <= max(offset - 1, 0) + len(content)
    begin, end = (place - max(offset - 1, 0) for place in (part.start, part.end))
    assert sum(part.lines.values()) == content[begin:end].count(b"\n")
    assert not part.calls


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([]), st.just({}),
)  # fmt: skip


@given(st.sampled_from(["header", "coll_perf"]), st.data())
def test_a_line_with_an_invalid_value_is_malformed_or_valid(
    part_name: str, data: st.DataObject
) -> None:
    line = {"header": header(0), "metadata": metadata("v4.0", 1), "coll_perf": collective(1, 64, 2)}
    name = data.draw(st.sampled_from(sorted(line[part_name])))
    line[part_name][name] = data.draw(VALUES)
    part = parse_part(text(line), 0)
    for call in part.calls:
        assert 0 <= call.bytes < 1 << 50
        assert 0 <= call.duration_ns <= inspector.MAX_DURATION_NS
        assert 0 <= call.bus_bytes < SIGNED_LIMIT
        assert 0 <= call.sequence < SIGNED_LIMIT
        assert call.kind.replace("_", "a").isalnum()
    assert sum(part.lines.values()) == 1
    assert bool(part.calls) is ("read" in part.lines)


CALLS = st.lists(
    st.builds(
        InspectedCall,
        header=st.just(0),
        kind=st.sampled_from(["AllReduce", "AllGather"]),
        sequence=st.integers(0, 3),
        bytes=st.integers(0, 1 << 40),
        duration_ns=st.integers(0, 50),
        bus_bytes=st.integers(0, 1 << 40),
        is_compared=st.booleans(),
    ).flatmap(lambda call: st.tuples(st.just(call), st.integers(0, 3))),
    max_size=30,
)  # fmt: skip


def folded(
    calls: list[tuple[InspectedCall, int]], reads: list[int], ranks: int = 0
) -> CommunicatorTotals:
    totals = CommunicatorTotals()
    for (call, rank), read in zip(calls, sorted(reads), strict=True):
        assert totals.add(call, rank, read, ranks=ranks)
    totals.close_until(max(reads, default=0))
    return totals


@given(CALLS, st.data())
def test_totals_do_not_depend_on_the_order_of_calls_or_on_the_reads(
    calls: list[tuple[InspectedCall, int]], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(calls))
    reads = data.draw(st.lists(st.integers(0, 5), min_size=len(calls), max_size=len(calls)))
    once, again = folded(calls, [0] * len(calls)), folded(shuffled, reads)
    assert once == again == CommunicatorTotals(once.kinds, once.ranks), "no comparison is left open"
    assert sum(kind.calls for kind in once.kinds.values()) == len(calls)
    assert sum(kind.bytes for kind in once.kinds.values()) == sum(call.bytes for call, _ in calls)
    ranks = once.ranks.values()
    assert (
        sum(rank.last_arrivals for rank in ranks) <= max((r.compared for r in ranks), default=0) * 4
    )
    assert all(rank.last_arrivals <= rank.compared for rank in ranks)


@settings(fewer_examples(100), deadline=None)
@given(cuts=st.lists(st.integers(0, 2700), min_size=8, max_size=8))
def test_logs_that_grow_by_any_bytes_have_the_totals_of_whole_ones(
    cuts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    logs = {rank: content for case, rank, content in case_logs() if case == "straggler"}
    node = InspectorDirectory(tmp_path_factory.mktemp("grows"))
    for step in (0, 1):
        for rank, content in logs.items():
            begin, end = sorted(cuts[2 * rank : 2 * rank + 2])
            node.append(rank, content[begin:end] if step else content[:begin])
        node.read()
    for rank, content in logs.items():
        node.append(rank, content[max(cuts[2 * rank : 2 * rank + 2]) :])
    node.close()
    whole = InspectorDirectory(tmp_path_factory.mktemp("whole"))
    for rank, content in logs.items():
        whole.append(rank, content)
    whole.close()
    assert (node.totals, node.lines) == (whole.totals, whole.lines)
