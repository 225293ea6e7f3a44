"""Curves of a device from the frames of its node: rates, absence reasons, gaps, bounds."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from makers import SECOND, START_BOOT_NS, START_WALL_NS, FrameSender, gpu_schema, rdma_schema
from support.clock import ManualClock
from support.machine import FakeHost

from railscope.catalog import METRICS, nic
from railscope.frame import Entity, Frame, FrameOrigin, NodeTimestamp, Schema
from railscope.reading import Absent
from railscope.wire import WireSchema, schema_identity, to_wire_schema
from railscope_agent.sampling.call_time import CallTime
from railscope_agent.sampling.hang_guard import GuardedHost, HungCalls
from railscope_agent.sampling.read_times import MIN_DELAY_NS
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.rdma import RdmaSource
from railscope_collector.console import node_history
from railscope_collector.console.curves import HistoryCurve, TimeRange
from railscope_collector.console.device_figures import GPU_FIGURES, NIC_FIGURES, NamedFigure
from railscope_collector.console.stored_frames import StoredFrames
from railscope_collector.framelog.record_index import RecordIndex
from railscope_collector.framelog.segment_files import (
    FrameRecord,
    encode_record,
    frame_payload,
    start_segment,
)

FIGURES = [*GPU_FIGURES, *NIC_FIGURES]
KEYS: node_history.DeviceKeys = {
    "gpu": frozenset({("gpu", "GPU-n1-1")}),
    "nic": frozenset({("device", "port", "mlx5_1", "1"), ("interface", "eth0")}),
}
GPU, RDMA = gpu_schema("n1"), rdma_schema()


class LogOfFrames:
    """A frame log of one node: each call of `add` is one envelope."""

    def __init__(self, directory: Path) -> None:
        self.sender = FrameSender()
        descriptor, self._marker = start_segment(directory, 1)
        self._file = os.fdopen(descriptor, "wb", buffering=0)
        self.schemas: dict[bytes, WireSchema] = {}
        self.frames = StoredFrames(RecordIndex(directory), self._find)

    def _find(self, digest: bytes) -> WireSchema:
        if digest not in self.schemas:
            raise FileNotFoundError(digest.hex())
        return self.schemas[digest]

    def add(
        self,
        schema: Schema,
        rows: Sequence[Sequence[int]],
        at: int,
        *,
        reasons: bytes = b"",
        delay: int = 0,
    ) -> None:
        frames = self.sender.frames(schema, rows, at=at, reasons=reasons)
        self.append(frames, at + len(rows) - 1 + delay)

    def append(self, frames: Sequence[Frame], at: int) -> None:
        for frame in frames:
            self.schemas[schema_identity(frame.schema)] = to_wire_schema(frame.schema)
        received_ns = START_WALL_NS + at * SECOND
        record = FrameRecord("n1", received_ns, self.sender.sent(at), self.sender.body(frames))
        self._file.write(frame_payload(self._marker, encode_record(record)))

    def read(
        self, last: int, figures: Iterable[NamedFigure] = FIGURES, first: int = 0
    ) -> dict[str, HistoryCurve]:
        period = TimeRange(START_WALL_NS + first * SECOND, START_WALL_NS + last * SECOND)
        return node_history.read_curves(self.frames, "n1", KEYS, figures, period).curves

    def close(self) -> None:
        self._file.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterable[LogOfFrames]:
    found = LogOfFrames(tmp_path)
    yield found
    found.close()


def gpu_row(second: int) -> list[int]:
    return [0, second, 300_000, 400_000 + second, 0, second * 1000]


def gaps(curve: HistoryCurve) -> list[tuple[float, float, str]]:
    return [
        ((gap.from_ns - START_WALL_NS) / SECOND, (gap.to_ns - START_WALL_NS) / SECOND, gap.reason)
        for gap in curve.gaps
    ]


def points(curve: HistoryCurve) -> list[tuple[float, float]]:
    seconds = (curve.times_ns - START_WALL_NS) / SECOND
    return list(zip(seconds.tolist(), curve.values.tolist(), strict=True))


def test_gauges_are_those_of_the_device_in_base_units(log: LogOfFrames) -> None:
    for start in range(0, 30, 10):
        log.add(GPU, [gpu_row(start + n) for n in range(10)], start)
    found = log.read(29)
    assert points(found["utilization"]) == [(n, n / 100) for n in range(30)]
    assert found["power"].values.tolist() == pytest.approx([400 + n / 1000 for n in range(30)])
    assert found["power"].gaps == ()
    assert found["power"].unit == "watts"


def test_counters_are_rates_between_two_readings(log: LogOfFrames) -> None:
    log.add(RDMA, [[7, 1000 * n * n, 0, n] for n in range(10)], 0)
    found = log.read(9)
    assert points(found["nic_sent"]) == [(n, 1000.0 * (2 * n - 1)) for n in range(1, 10)]
    assert set(found["ack_timeouts"].values.tolist()) == {1.0}


LINE_RATE = 50_000_000_000
OWN_DELAY_NS = 20_000_000


@given(
    st.lists(
        st.tuples(st.integers(0, 300_000_000), st.integers(0, OWN_DELAY_NS)),
        min_size=2,
        max_size=8,
    )
)
def test_a_counter_at_line_rate_shows_the_line_rate_however_late_its_device_is_read(
    delays_ns: list[tuple[int, int]],
) -> None:
    """The device before it answers late, and it takes up to 20 ms itself: the uncertainty of its times."""
    clock = ManualClock(NodeTimestamp(START_WALL_NS, START_BOOT_NS))
    host, delays = FakeHost(clock), [0, 0]

    def answer(device: int) -> str:
        clock.advance(delays[device] / SECOND)
        sent_bytes = (clock.now().boot_ns - START_BOOT_NS) * LINE_RATE // SECOND
        return f"{sent_bytes // 4}\n"

    for device in range(2):
        path = f"/sys/class/infiniband/mlx5_{device}/ports/1/counters/port_xmit_data"
        host.files[path] = lambda device=device: answer(device)
    guard = GuardedHost(host, HungCalls(), CallTime())
    reader = SourceReader(RdmaSource(), guard, FrameOrigin("n1", "run-1", "boot-1"))
    frames = []
    with tempfile.TemporaryDirectory() as directory:
        log = LogOfFrames(Path(directory))
        for at, drawn in enumerate(delays_ns):
            clock.advance(at - (clock.now().boot_ns - START_BOOT_NS) / SECOND)
            delays[:] = drawn
            frame = reader.run().frame
            assert frame
            frames.append(frame)
        log.append(frames, len(frames))
        found = log.read(len(frames))["nic_sent"].values
        log.close()
    assert len(found) == len(delays_ns) - 1
    uncertainty_ns, interval_ns = MIN_DELAY_NS + OWN_DELAY_NS, SECOND - 300_000_000
    assert found.tolist() == pytest.approx(
        [LINE_RATE] * len(found), rel=uncertainty_ns / interval_ns
    )


def test_the_first_rate_of_a_period_uses_the_reading_before_it(log: LogOfFrames) -> None:
    log.add(RDMA, [[0, 5 * n, 0, 0] for n in range(20)], 0)
    assert points(log.read(19, first=10)["nic_sent"]) == [(n, 5.0) for n in range(10, 20)]


def test_a_value_that_was_not_read_is_a_gap_with_its_reason(log: LogOfFrames) -> None:
    log.add(GPU, [gpu_row(n) for n in range(5)], 0)
    denied = bytes([0, 0, 0, Absent.DENIED.value, 0, 0])
    log.add(GPU, [gpu_row(n) for n in range(5, 8)], 5, reasons=denied)
    log.add(GPU, [gpu_row(n) for n in range(8, 12)], 8)
    found = log.read(11)
    assert gaps(found["power"]) == [(4, 8, "not read: denied")]
    assert np.isnan(found["power"].values[5:8]).all()
    assert gaps(found["utilization"]) == []


def test_a_value_that_is_not_due_leaves_no_gap(log: LogOfFrames) -> None:
    for second in range(0, 12, 2):
        not_due = bytes([0, 0, 0, Absent.NOT_DUE.value if second % 4 else 0, 0, 0])
        log.add(GPU, [gpu_row(second)], second, reasons=not_due)
    found = log.read(11)["power"]
    assert [time for time, _ in points(found)] == [0, 4, 8]
    assert gaps(found) == []


def test_missing_frames_and_restarts_are_gaps(log: LogOfFrames) -> None:
    log.add(RDMA, [[0, 10 * n, 0, 0] for n in range(5)], 0)
    log.sender.run = "run-2"
    log.add(RDMA, [[0, 10 * n, 0, 0] for n in range(5, 10)], 5)
    log.add(RDMA, [[0, 10 * n, 0, 0] for n in range(30, 35)], 30)
    log.add(RDMA, [[0, n, 0, 0] for n in range(5)], 35)
    found = log.read(100)["nic_sent"]
    assert gaps(found) == [
        (4, 6, "the agent was started again"),
        (9, 30, "this collector received no frame"),
        (34, 36, "the counter was reset"),
        (39, 100, "this collector received no frame"),
    ]


def test_late_and_repeated_frames_take_their_places(log: LogOfFrames) -> None:
    early = log.sender.frames(GPU, [gpu_row(n) for n in range(5)], at=0)
    late = log.sender.frames(GPU, [gpu_row(n) for n in range(5, 10)], at=5)
    log.append(early, 4)
    log.add(GPU, [gpu_row(n) for n in range(10, 15)], 10)
    log.append(late, 300)
    log.append(late, 301)
    found = log.read(14)["utilization"]
    assert points(found) == [(n, n / 100) for n in range(15)]
    assert gaps(found) == []


def test_frames_that_a_spool_held_back_are_found_beyond_the_end_of_the_period(
    log: LogOfFrames,
) -> None:
    log.add(GPU, [gpu_row(second) for second in range(10)], 0, delay=590)
    assert points(log.read(9)["utilization"]) == [(second, second / 100) for second in range(10)]


def test_what_is_not_known_at_all_has_its_reason(log: LogOfFrames) -> None:
    assert gaps(log.read(60)["power"]) == [(0, 60, "not in the frame log")]
    log.add(GPU, [gpu_row(100)], 100)
    found = log.read(160, first=40)
    before = (40, 100, "not in the frame log")
    assert gaps(found["power"]) == [before, (100, 160, "this collector received no frame")]
    assert gaps(found["nic_sent"]) == [before, (100, 160, "the node does not report it")]
    assert gaps(log.read(400, first=300)["power"]) == [
        (300, 400, "this collector received no frame")
    ]
    log.schemas.clear()
    assert gaps(log.read(110, first=100)["power"]) == [
        (100, 110, "the schema of these frames is no longer stored")
    ]


def test_parts_of_a_device_are_combined(log: LogOfFrames) -> None:
    metric = METRICS["railscope_gpu_throttle_seconds_total"]
    kind = metric.about
    entity = type(GPU.columns[0][1])
    reasons = ("software_thermal", "hardware_thermal", "software_power_cap")
    columns = [(metric, entity(kind, ("GPU-n1-1", reason))) for reason in reasons]
    columns += [(metric, entity(kind, ("GPU-n1-0", "software_power_cap")))]
    schema = Schema("throttle", tuple(columns))
    half = SECOND // 2
    log.add(schema, [[n * half, n * half // 2, 0, n * SECOND] for n in range(5)], 0)
    found = log.read(4)
    assert set(found["thermal"].values.tolist()) == {0.5}, "the larger one, not the sum"
    assert set(found["power_cap"].values.tolist()) == {0.0}


@pytest.mark.parametrize("is_link_wide", [False, True])
def test_a_nic_pauses_priorities_or_the_whole_link(log: LogOfFrames, *, is_link_wide: bool) -> None:
    """Its driver counts both kinds: the other one is 0. Each read is counted 0.02 s later than the frame states, or 0.24 s."""
    metrics = [nic.PFC_SENT_TIME, nic.PFC_SENT, nic.GLOBAL_PAUSE_SENT_TIME, nic.GLOBAL_PAUSE_SENT]
    entities = [
        Entity(each.about, ("eth0", "3") if "pfc" in each.name else ("eth0",)) for each in metrics
    ]
    schema = Schema("nic", tuple(zip(metrics, entities, strict=True)))
    paused = [[second * 10**6 + 220_000 * (second % 2), second * 5000] for second in range(6)]
    log.add(schema, [[0, 0, *of] if is_link_wide else [*of, 0, 0] for of in paused], 0)
    found = log.read(5)
    assert found["pausing"].values.tolist() == pytest.approx([1.0, 0.78, 1.0, 0.78, 1.0])
    assert set(found["pause_sent"].values.tolist()) == {5000.0}


def test_the_names_of_curves_are_unique_and_their_metrics_declared() -> None:
    names = [curve.name for figure in FIGURES for curve in figure.curves]
    assert len(names) == len(set(names))
    used = {
        source.metric for figure in FIGURES for curve in figure.curves for source in curve.sources
    }
    assert used <= METRICS.keys()
