"""Recorded dumps as directories, rules of the comparison, and dumps of hostile content."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from support.flight_recorders import SAME_TIME_NS, STEP_NS, dump, entry, pickled

from railscope.timestamps import SECOND_NS
from railscope_agent.collectives import CollectiveFormatError, flight_recorder
from railscope_agent.collectives.flight_recorder import parse_dump
from railscope_agent.collectives.rank_verdicts import (
    RankRecord,
    RankState,
    compare_ranks,
)

BEGAN_NS = 1_795_000_000 * SECOND_NS
LIMIT_NS = 60 * SECOND_NS


def record(enqueued: int, completed: int, recorded_ns: int = 0, **changes: Any) -> RankRecord:
    """Return the record of one of four ranks, made ten minutes after its last collective."""
    content = pickled(dump(range(4), enqueued, completed, BEGAN_NS, **changes))
    made_ns = BEGAN_NS + enqueued * STEP_NS + SAME_TIME_NS
    return RankRecord(parse_dump(content).groups[0], recorded_ns or made_ns)


WAITING, LATE, RUNNING, UNKNOWN, STUCK = (
    RankState.WAITING,
    RankState.LATE,
    RankState.RUNNING,
    RankState.UNKNOWN,
    RankState.STUCK,
)


@given(
    st.lists(st.tuples(st.integers(45, 55), st.integers(40, 55)), min_size=1, max_size=6),
    st.permutations(range(6)),
)
def test_verdicts_do_not_depend_on_the_order_and_no_rank_without_record_is_healthy(
    numbers: list[tuple[int, int]], order: list[int]
) -> None:
    records = {rank: record(max(pair), min(pair)) for rank, pair in enumerate(numbers) if rank != 1}
    shuffled = {rank: records[rank] for rank in order if rank in records}
    verdicts = compare_ranks(records, range(6), LIMIT_NS)
    assert compare_ranks(shuffled, range(6), LIMIT_NS) == verdicts
    assert {verdicts[rank].state for rank in range(6) if rank not in records} == {UNKNOWN}
    furthest = max((r.group.enqueued for r in records.values()), default=0)
    assert all(
        verdicts[r].state is not LATE for r in records if records[r].group.enqueued == furthest
    )


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(
    st.sampled_from([*dump([], 1, 0, 0), *entry(1, 0, is_completed=False), "ranks"]), JSON_VALUES
)
def test_any_value_in_place_of_another_is_accepted_or_rejected(name: str, value: object) -> None:
    content = json.loads(json.dumps(dump(range(4), 6, 4, BEGAN_NS)))
    content["entries"][-1][name] = value
    content["pg_config"]["0"][name] = value
    content["pg_status"]["0"][name] = value
    content[name] = value
    try:
        parsed = parse_dump(json.dumps(content).encode())
    except CollectiveFormatError:
        return
    for group in parsed.groups:
        msgspec.json.encode(group)
        assert compare_ranks({0: RankRecord(group, BEGAN_NS)}, group.ranks[:9], LIMIT_NS)


def test_sizes_of_a_hostile_dump_are_bounded() -> None:
    shared: list[Any] = [7]
    for _ in range(40):  # 2**40 numbers if they were copied
        shared = [shared, shared]
    many = entry(
        1, 0, is_completed=False, input_sizes=shared, frames=[{"filename": "f" * 10_000}] * 10_000
    )
    groups = [{**many, "process_group": (f"{n}", "x" * 10_000)} for n in range(1000)]
    parsed = parse_dump(pickled(dump([], 1, 0, 0, entries=groups)))
    assert len(parsed.groups) == flight_recorder.MAX_GROUPS
    assert len(msgspec.json.encode(parsed)) < 2_000_000


def in_groups(number: int, **changes: Any) -> list[dict[str, Any]]:
    """Return an incomplete collective of each of these groups, all of the same name."""
    return [entry(1, 0, is_completed=False, pg_id=n, **changes) for n in range(number)]


def test_ranks_that_many_groups_share_are_counted_for_each_of_them() -> None:
    content = dump(range(flight_recorder.MAX_RANKS), 1, 0, 0)
    parsed = parse_dump(json.dumps(content | {"entries": in_groups(3)}).encode())
    assert [len(group.ranks) for group in parsed.groups] == [flight_recorder.MAX_RANKS] * 3
    hostile = json.dumps(content | {"entries": in_groups(flight_recorder.MAX_GROUPS)}).encode()
    assert len(hostile) < 1 << 20
    with pytest.raises(CollectiveFormatError, match="more than 8388608 bytes of ranks and texts"):
        parse_dump(hostile)


def test_stacks_that_many_collectives_of_a_pickle_share_are_counted_for_each_of_them() -> None:
    frames = [{"name": "n" * 256, "filename": "f" * 256, "line": 1}] * flight_recorder.MAX_FRAMES
    entries = [
        entry(number, 0, is_completed=False, frames=frames, pg_id=group)
        for group in range(32)
        for number in range(1, flight_recorder.MAX_COLLECTIVES + 1)
    ]
    hostile = pickled(dump([], 1, 0, 0, entries=entries))
    assert len(hostile) < 1 << 20
    with pytest.raises(CollectiveFormatError, match="more than 8388608 bytes of ranks and texts"):
        parse_dump(hostile)
    assert len(parse_dump(pickled(dump([], 1, 0, 0, entries=entries[:512]))).groups) == 8


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{"version": "3.0", "entries": []}', "version '3.0': expected 2.x"),
        (b'{"version": "2.10", "entries": {}}', "expected a dictionary with a list"),
        (b"[" * 100_000, "opcode"),
        (b'{"entries": ' + b"[" * 100_000, "invalid JSON"),
        (b'{"version": "2.10", "a": [' + b"[]," * 500_000 + b"1]}", "more than 1000000 values"),
        (pickled([1]), "expected a dictionary"),
    ],
)
def test_dumps_of_another_form_are_rejected(content: bytes, problem: str) -> None:
    with pytest.raises(CollectiveFormatError, match=problem):
        parse_dump(content)
