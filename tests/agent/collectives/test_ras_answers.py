"""Reports and events of NCCL's RAS subsystem: JSON, the missing comma, and hostile bytes."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given, strategies as st
from support import ras_servers as ras
from support.shared import capture_path

from railscope_agent.collectives import CollectiveFormatError, ras_report
from railscope_agent.collectives.ras_answers import parse_events, parse_report

HEALTHY = ras.report(ras.communicator([ras.rank(n, 100 + n, AllReduce=7) for n in range(4)]))
INCOMPLETE = ras.communicator(
    [ras.rank(0, 100, AllReduce=4)], [ras.missing(1, 101), ras.missing(2, 102, is_dead=True)]
)


@pytest.mark.parametrize("version", ["2.28.7", "2.28.9", "2.29.3"])
def test_missing_ranks_are_read_with_and_without_the_comma_of_nccl(version: str) -> None:
    content = ras.report(INCOMPLETE, version=version)
    assert (b'"nvml_dev": 1\n' in content) == version.startswith("2.28")
    ranks = parse_report(content).communicators[0].ranks
    assert [(rank.rank, rank.problem) for rank in ranks] == [(0, ""), (1, "missing"), (2, "dead")]


@pytest.mark.parametrize(
    ("status", "problem", "detail"),
    [
        ({"init_state": 7}, "starting", ""),
        ({"init_state": 3}, "failed", "init_state 3"),
        ({"async_error": 6}, "failed", "async_error 6"),
        ({"abort_flag": True}, "failed", "aborted"),
        ({"finalize_called": True, "destroy_flag": True}, "", ""),
    ],
)
def test_statuses_of_ranks_are_problems_or_not(status: dict, problem: str, detail: str) -> None:  # type: ignore[type-arg]
    content = ras.report(ras.communicator([ras.rank(0, 1, status=status)]))
    (found,) = parse_report(content).communicators[0].ranks
    assert (found.problem, found.detail) == (problem, detail)


@pytest.mark.parametrize(
    "ranks",
    [
        [ras.rank(0, 1), ras.rank(0, 2)],
        [ras.rank(2, 1), ras.rank(1, 2)],
        [ras.rank(0, 1, host="x" * 65)],
        [ras.rank(0, 1, AllReduce=1 << 62)],
        [ras.rank(0, 1, AllReduce=-1)],
        [ras.rank(0, 1) | {"rank": True}],
        [ras.rank(0, 1, **{f"Kind{n}": 1 for n in range(16)})],
    ],
)
def test_communicator_with_impossible_ranks_loses_itself_only(ranks: list) -> None:  # type: ignore[type-arg]
    whole, damaged = ras.communicator([ras.rank(0, 7)], name="0xb2"), ras.communicator(ranks)
    for communicators in ([whole, damaged], [damaged, whole], [damaged, damaged, whole]):
        found = parse_report(ras.report(*communicators))
        assert [each.name for each in found.communicators] == ["0xb2:0x7:0x9"]
        assert found.damaged == len(communicators) - 1


def test_ranks_beyond_the_bound_are_left_out() -> None:
    count = ras_report.MAX_RANKS // 2 + 1
    ranks = ",".join(f'{{"rank":{n}}}' for n in range(count))
    of_one = f'{{"hash":"a","size":{count},"ranks":[{ranks}]}}'
    content = f'{{"nccl_version":"2.30.1","communicators":[{of_one},{of_one}]}}'
    found = parse_report(content.encode())
    assert [len(each.ranks) for each in found.communicators] == [count]
    assert found.damaged == 1


@given(content=st.binary(max_size=400))
@example(content=b"[" * 100_000)
def test_any_bytes_are_a_report_or_rejected(content: bytes) -> None:
    with contextlib.suppress(CollectiveFormatError):
        parse_report(content)


@given(st.data())
def test_a_report_with_any_changed_part_is_a_report_or_rejected(data: st.DataObject) -> None:
    content = HEALTHY
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, min(start + 40, len(content))))
    changed = content[:start] + data.draw(st.binary(max_size=20)) + content[end:]
    try:
        found = parse_report(changed)
    except CollectiveFormatError:
        return
    for communicator in found.communicators:
        assert all(rank.rank < communicator.size for rank in communicator.ranks)


@given(st.lists(st.sampled_from(["PEER_NEW", "PEER_DEAD"]), max_size=6), st.data())
def test_events_are_the_same_however_the_stream_is_divided(names: list[str], data: st.DataObject) -> None:  # fmt: skip
    stream = b"".join(ras.event(name, 100 + n) for n, name in enumerate(names))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    found, rest = [], b""
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        dead, rest = parse_events(rest + stream[start:end])
        found += dead
    assert [peer.pid for peer in found] == [
        100 + n for n, name in enumerate(names) if name == "PEER_DEAD"
    ]
    assert not rest.strip()


@given(st.binary(max_size=300))
@example(b"[" * 100_000)
@example(b"1" * 5000 + b" ")
@example(b'{"event": "PEER_DEAD", "peer": {"pid": 1e999}}')
def test_any_bytes_are_events_or_rejected(content: bytes) -> None:
    try:
        _, rest = parse_events(content)
    except CollectiveFormatError:
        return
    assert content.endswith(rest)


def test_answers_of_real_jobs_are_read() -> None:
    directory = capture_path("collectives/nccl-ras")
    states = {}
    for path in sorted(directory.glob("2.*[0-9a-z].json")):
        if "monitor" not in path.name:
            found = parse_report(path.read_bytes())
            states[path.name] = [
                (len(known.ranks), sum(rank.problem == "missing" for rank in known.ranks))
                for known in found.communicators
            ]
    assert states == {
        "2.28.9-healthy.json": [(2, 0)],
        "2.28.9-missing-rank-malformed.json": [(2, 1)],
        "2.28.9-three-comms-one-stuck.json": [(2, 0), (2, 0), (4, 0)],
        "2.29.1-missing-rank.json": [(2, 1)],
    }
    dead, rest = parse_events((directory / "2.29-monitor-peer-dead.json").read_bytes())
    assert ([peer.pid for peer in dead], rest) == ([1524345], b"")
