"""Recorded dumps as directories, rules of the comparison, and dumps of hostile content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from support.flight_recorders import SAME_TIME_NS, STEP_NS, dump, entry, pickled

from railscope.timestamps import SECOND_NS
from railscope.untrusted_text import parse_toml
from railscope_agent.collectives import CollectiveFormatError, flight_recorder
from railscope_agent.collectives.flight_recorder import parse_dump
from railscope_agent.collectives.rank_verdicts import (
    RankRecord,
    RankState,
    RankVerdict,
    compare_ranks,
)

DUMPS = Path(__file__).parent / "dumps"
CASES = sorted(path.name for path in DUMPS.iterdir() if (path / "case.toml").exists())
BEGAN_NS = 1_795_000_000 * SECOND_NS
LIMIT_NS = 60 * SECOND_NS


class ExpectedCollective(msgspec.Struct, forbid_unknown_fields=True):
    """Collective in question of a rank in a group, and a frame of its stack."""

    group: str
    rank: int
    sequence: int
    kind: str
    shapes: str
    types: str
    stack: str


class DumpCase(msgspec.Struct, forbid_unknown_fields=True):
    """Content of case.toml: time of each dump, and the state of each rank by group."""

    description: str
    recorded_ns: list[int]
    states: dict[str, dict[int, str]]
    late_seconds: float = 5.0
    collective: ExpectedCollective | None = None


def read_case(name: str) -> DumpCase:
    return msgspec.convert(
        parse_toml((DUMPS / name / "case.toml").read_text()), DumpCase, strict=False
    )


def verdicts_of(name: str, suffix: str = "") -> dict[str, dict[int, RankVerdict]]:
    case = read_case(name)
    records: dict[str, dict[int, RankRecord]] = {}
    for rank, recorded_ns in enumerate(case.recorded_ns):
        for group in parse_dump((DUMPS / name / f"rank_{rank}{suffix}").read_bytes()).groups:
            records.setdefault(group.name, {})[rank] = RankRecord(group, recorded_ns)
    limit_ns = round(case.late_seconds * SECOND_NS)
    return {name: compare_ranks(of_group, (), limit_ns) for name, of_group in records.items()}


@pytest.mark.parametrize("name", CASES)
def test_the_states_of_recorded_jobs_are_those_of_the_case(name: str) -> None:
    verdicts, case = verdicts_of(name), read_case(name)
    found = {
        group: {rank: verdict.state.name.lower() for rank, verdict in of_group.items()}
        for group, of_group in verdicts.items()
    }
    assert found == case.states, case.description
    if wanted := case.collective:
        collective = verdicts[wanted.group][wanted.rank].collective
        assert collective is not None
        assert (collective.sequence, collective.kind) == (wanted.sequence, wanted.kind)
        assert (collective.shapes, collective.types) == (wanted.shapes, wanted.types)
        assert wanted.stack in collective.stack


@pytest.mark.parametrize(
    "name", [name for name in CASES if (DUMPS / name / "rank_0.json").exists()]
)
def test_dumps_in_json_have_the_same_states(name: str) -> None:
    as_json, as_pickle = verdicts_of(name, ".json"), verdicts_of(name)
    states = [
        [(v.state, v.collective and v.collective.sequence) for v in g.values()]
        for g in (*as_json.values(), *as_pickle.values())
    ]
    assert states[: len(as_json)] == states[len(as_json) :]


def record(enqueued: int, completed: int, recorded_ns: int = 0, **changes: Any) -> RankRecord:
    """Return the record of one of four ranks, made ten minutes after its last collective."""
    content = pickled(dump(range(4), enqueued, completed, BEGAN_NS, **changes))
    made_ns = BEGAN_NS + enqueued * STEP_NS + SAME_TIME_NS
    return RankRecord(parse_dump(content).groups[0], recorded_ns or made_ns)


def states(records: dict[int, RankRecord], members: Any = range(4)) -> list[RankState]:
    return [verdict.state for verdict in compare_ranks(records, members, LIMIT_NS).values()]


WAITING, LATE, RUNNING, UNKNOWN, STUCK = (
    RankState.WAITING,
    RankState.LATE,
    RankState.RUNNING,
    RankState.UNKNOWN,
    RankState.STUCK,
)


def test_a_rank_without_a_dump_is_unknown_and_the_others_are_not_stuck() -> None:
    waiting = {rank: record(50, 49) for rank in (0, 1, 3)}
    assert states(waiting) == [WAITING, WAITING, UNKNOWN, WAITING]


def test_a_collective_that_all_ranks_entered_and_none_completed_is_stuck() -> None:
    assert states({rank: record(50, 49) for rank in range(4)}) == [STUCK] * 4
    assert states({rank: record(50, 49) for rank in range(4)}, members=()) == [WAITING] * 4, (
        "the members of the group are not recorded"
    )


def test_a_rank_that_ran_ahead_does_not_hide_the_late_one() -> None:
    records = {0: record(90, 49), 1: record(50, 49), 2: record(49, 49), 3: record(70, 49)}
    verdicts = compare_ranks(records, range(4), LIMIT_NS)
    assert [v.state for v in verdicts.values()] == [WAITING, WAITING, LATE, WAITING]
    assert verdicts[2].peers == (0, 1, 3)
    assert verdicts[2].collective is not None
    assert verdicts[2].collective.sequence == 50
    assert verdicts[2].last is not None
    assert verdicts[2].last.sequence == 49


def test_a_dump_that_is_older_than_the_wait_of_the_others_is_unknown() -> None:
    early_ns = BEGAN_NS + 50 * STEP_NS + LIMIT_NS // 2
    records = {rank: record(50, 49) for rank in range(3)} | {3: record(49, 49, early_ns)}
    assert states(records)[3] is UNKNOWN


def test_ranks_with_short_waits_are_running() -> None:
    soon_ns = BEGAN_NS + 52 * STEP_NS
    records = {rank: record(50 + rank % 2, 49 + rank % 2, soon_ns) for rank in range(4)}
    assert states(records) == [RUNNING] * 4


def test_shapes_count_only_where_all_ranks_have_the_same() -> None:
    def with_last(kind: str, size: int) -> RankRecord:
        last = entry(50, BEGAN_NS, is_completed=False, profiling_name=kind, input_sizes=[[size]])
        return record(50, 49, entries=[last])

    for kind, odd in (("nccl:all_reduce", RankState.MISMATCHED), ("nccl:all_to_all", STUCK)):
        records = {rank: with_last(kind, 8 if rank == 3 else 16) for rank in range(4)}
        assert states(records)[3] is odd


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("nccl:all_reduce", [WAITING, WAITING, LATE, WAITING]),
        ("nccl:_reduce_scatter_base", [WAITING, WAITING, LATE, WAITING]),
        ("nccl:all_to_all", [WAITING, WAITING, LATE, WAITING]),
        ("nccl:broadcast", [WAITING, WAITING, RUNNING, WAITING]),
        ("nccl:_reduce_oop", [WAITING, WAITING, RUNNING, WAITING]),
        ("nccl:a_collective_of_later", [WAITING, WAITING, RUNNING, WAITING]),
    ],
)
def test_a_rank_is_late_only_in_collectives_that_none_leaves_early(
    kind: str, expected: list[RankState]
) -> None:
    last = entry(50, BEGAN_NS, is_completed=False, profiling_name=kind)
    records = {rank: record(50, 49, entries=[last]) for rank in (0, 1, 3)} | {2: record(49, 49)}
    assert states(records) == expected


@pytest.mark.parametrize("changes", [{"collective_seq_id": None}, {"profiling_name": None}])
def test_a_damaged_entry_is_no_collective_that_ranks_wait_in(changes: dict[str, Any]) -> None:
    last = entry(50, BEGAN_NS, is_completed=False)
    records = {
        rank: record(50, 49, entries=[last | (changes if rank == 3 else {})]) for rank in range(4)
    }
    verdicts = compare_ranks(records, range(4), LIMIT_NS)
    assert RankState.MISMATCHED not in {verdict.state for verdict in verdicts.values()}
    assert {v.collective.sequence for v in verdicts.values() if v.collective} == {50}


def test_without_a_majority_all_ranks_are_mismatched() -> None:
    kinds = ["nccl:all_reduce", "nccl:all_reduce", "nccl:broadcast", "nccl:broadcast"]
    records = {
        rank: record(50, 49, entries=[entry(50, BEGAN_NS, is_completed=False, profiling_name=kind)])
        for rank, kind in enumerate(kinds)
    }
    assert states(records) == [RankState.MISMATCHED] * 4


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


def test_the_newest_collectives_of_a_long_dump_count() -> None:
    count = flight_recorder.MAX_ENTRIES + 5
    entries = [{"collective_seq_id": n, "process_group": ["0", ""]} for n in range(count)]
    content = json.dumps({"version": "2.10", "entries": entries}).encode()
    (group,) = parse_dump(content).groups
    assert group.enqueued == count - 1
