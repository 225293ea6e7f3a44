"""Frames that another collector received are not missing; lost ones are, whichever collectors an agent uses."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, strategies as st
from makers import FrameSender, gpu_schema
from running_collector import RunningCollector, run_collector
from structlog.testing import capture_logs
from support import postgresql
from support.examples import fewer_examples
from test_cluster_head import settings_of

from railscope import wire
from railscope.catalog import collector as catalog
from railscope.frame import Frame
from railscope_agent.shipping.delivered_frames import DELIVERED_FILE, DeliveredFrames, add_range
from railscope_collector.framelog.received_frames import MAX_DELIVERED_RANGES, ReceivedFrames

COLLECTORS = ("a", "b", "c")


@pytest.fixture
def database(server: postgresql.PostgreSQL) -> Iterator[str]:
    url = server.database()
    yield url
    server.drop(url)


def frames_of(sender: FrameSender, count: int) -> list[Frame]:
    first = sender.sequences.get("gpu", 0)
    rows = [[50, 60, 1000, 2000, 10 * t, 20 * t] for t in range(first, first + count)]
    return sender.frames(gpu_schema("n1"), rows, at=first)


async def missing_at(one: RunningCollector) -> int:
    _, text = await one.get("/metrics")
    (line,) = [line for line in text.splitlines() if line.startswith(f"{catalog.MISSING.name} ")]
    return int(line.split()[1])


async def test_frames_that_another_collector_received_are_not_missing(
    tmp_path: Path, database: str
) -> None:
    """The agent moves to the other collector, which stores its frames, and returns; then it loses some."""
    settings = {name: settings_of(tmp_path, name, database) for name in ("a", "b")}
    sender, delivered = FrameSender(), DeliveredFrames(tmp_path)
    first, elsewhere, later, _lost, last = (
        sender.body(frames_of(sender, 3), schemas=True) for _ in range(5)
    )
    async with run_collector(settings["b"]) as other:
        async with run_collector(settings["a"]) as one:
            for target, url, body in ((one, "a", first), (other, "b", elsewhere)):
                assert (await target.post(body))[0] == 200
                delivered.add(url, body)
            restarted = DeliveredFrames(tmp_path)
            query = msgspec.structs.replace(sender.envelope([]), delivered=restarted.elsewhere("a"))
            status, answer = await one.post(wire.pack(query))
            assert (status, answer["accepted_frames"]) == (200, 0)
            assert "receipt" not in answer
            assert (await one.post(later))[0] == 200
            assert await missing_at(one) == 0
            assert (await one.post(elsewhere))[1]["accepted_frames"] == 0
        async with run_collector(settings["a"]) as one:
            assert await missing_at(one) == 0, "it is in the frame log"
            assert (await one.post(last))[0] == 200
            assert await missing_at(one) == 3, "nothing has received them"
        assert await missing_at(other) == 0


@fewer_examples(40)
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from([*COLLECTORS, "lost"]), st.booleans()),
        max_size=14,
    )
)
def test_exactly_the_lost_frames_are_missing(steps: list[tuple[int, str, bool]]) -> None:
    """Envelopes to some collector, or to none. An agent states what others received before it sends to another one."""
    directory = Path(tempfile.mkdtemp())
    try:
        sender, delivered = FrameSender(), DeliveredFrames(directory)
        received = {name: ReceivedFrames() for name in COLLECTORS}
        came: set[int] = set()
        own: dict[str, set[int]] = {name: set() for name in COLLECTORS}
        for count, target, is_restarted in steps:
            frames = frames_of(sender, count)
            if is_restarted:
                delivered = DeliveredFrames(directory)
            if target == "lost":
                continue
            sequences = [frame.sequence for frame in frames]
            received[target].record_delivered("n1", delivered.elsewhere(target))
            received[target].add("n1", "run-1", "gpu", sequences[0], sequences[-1], 1)
            delivered.add(target, sender.body(frames))
            came.update(sequences)
            own[target].update(sequences)
            known = range(min(own[target]), max(own[target]) + 1)
            assert received[target].count_missing() == len(set(known) - came)
    finally:
        shutil.rmtree(directory)


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 8)), max_size=30))
def test_ranges_are_disjoint_and_in_order(added: list[tuple[int, int]]) -> None:
    ranges: list[tuple[int, int]] = []
    for first, more in added:
        add_range(ranges, first, first + more)
    assert {n for first, last in ranges for n in range(first, last + 1)} == {
        n for first, more in added for n in range(first, first + more + 1)
    }
    assert all(one[1] + 1 < next_[0] for one, next_ in pairwise(ranges))


def test_a_statement_beyond_its_bounds_is_ignored() -> None:
    received = ReceivedFrames()
    received.add("n1", "run-1", "gpu", 1, 3, 1)
    spans = tuple((10 * number, 10 * number + 1) for number in range(1, 2 * MAX_DELIVERED_RANGES))
    for streams in ({"gpu": ((9, 5), (1 << 60, 1 << 61))}, {"nic": ((1, 5),)}):
        received.record_delivered("n1", [wire.DeliveredRun("run-1", streams)])
    received.record_delivered("n1", [wire.DeliveredRun("other", {"gpu": ((4, 5),)})])
    assert (received.sizes["n1"], received.count_missing()) == (1, 0)
    received.record_delivered("n1", [wire.DeliveredRun("run-1", {"gpu": spans})])
    assert received.sizes["n1"] == MAX_DELIVERED_RANGES


def test_a_statement_is_bounded_on_the_wire() -> None:
    ranges = ((1, 1),) * (wire.MAX_DELIVERED_RANGES + 1)
    with pytest.raises(msgspec.ValidationError, match="length <= 64"):
        msgspec.convert(["run", {"gpu": ranges}], wire.DeliveredRun)


def test_a_damaged_file_of_delivered_frames_is_reported(tmp_path: Path) -> None:
    (tmp_path / DELIVERED_FILE).write_text("{")
    with capture_logs() as logs:
        delivered = DeliveredFrames(tmp_path)
        delivered.add("a", b"no envelope")
    assert delivered.elsewhere("b") == ()
    assert [entry["event"] for entry in logs].count("delivered_frames_lost") == 2
