"""The model's physics: energy, time and traffic add up, in every scenario and for every seed."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railscope.simulator.job import Job
from railscope.simulator.model import NodeModel
from railscope.simulator.noise import whole
from railscope.simulator.scenarios import JobConditions
from railscope.simulator.server import MODES
from railscope.simulator.span import NS_PER_SECOND, Span
from railscope.simulator.spec import SCENARIOS, NodeSpec

SHORT = settings(max_examples=25, deadline=None)
STEPS_NS = st.sampled_from((100_000_000, 333_333_333, 1_000_000_000, 5_000_000_000))
SPECS = st.builds(
    NodeSpec,
    node=st.sampled_from(("gpu-001", "gpu-002")),
    seed=st.integers(0, 1000),
    gpus=st.integers(1, 3),
    scenario=st.sampled_from([name for name in SCENARIOS if name != "counter_reset"]),
)
PAUSE_NS_AT_MOST = {400: 65535 * 512 / 400, 200: 65535 * 512 / 200}


def at_onset(spec: NodeSpec) -> NodeModel:
    """A model that stands just before its fault sets in."""
    model = NodeModel(spec, duration_ns=40 * NS_PER_SECOND)
    model.advance(19 * NS_PER_SECOND)
    return model


@SHORT
@given(SPECS, STEPS_NS)
def test_energy_is_the_integral_of_the_reported_power(spec: NodeSpec, step_ns: int) -> None:
    model = at_onset(spec)
    expected = [gpu.energy_picojoules for gpu in model.gpus]
    for _ in range(12):
        model.advance(model.offset_ns + step_ns)
        for index, gpu in enumerate(model.gpus):
            expected[index] += 0 if gpu.lost else gpu.power_milliwatts * step_ns
    assert [gpu.energy_picojoules for gpu in model.gpus] == expected
    assert [gpu.energy_millijoules for gpu in model.gpus] == [e // 10**9 for e in expected]


@SHORT
@given(SPECS, STEPS_NS)
def test_power_temperature_and_clocks_stay_in_bounds(spec: NodeSpec, step_ns: int) -> None:
    model = at_onset(spec)
    for _ in range(12):
        model.advance(model.offset_ns + step_ns)
        for gpu in model.gpus:
            assert 60_000 <= gpu.power_milliwatts <= gpu.model.power_limit_milliwatts
            assert gpu.model.idle_megahertz <= gpu.clock_megahertz <= gpu.model.most_megahertz
            assert 20 <= gpu.core_celsius <= 120
            assert 0 <= gpu.occupied_percent <= 100
            assert 0 <= gpu.memory_used_bytes <= gpu.model.memory_bytes - gpu.model.reserved_bytes


@SHORT
@given(SPECS, STEPS_NS)
def test_a_port_moves_no_more_than_pause_and_line_rate_leave(spec: NodeSpec, step_ns: int) -> None:
    model = at_onset(spec)
    for _ in range(12):
        before = [
            (
                cable.counters.sent_words,
                cable.counters.received_words,
                cable.counters.paused_ns,
                cable.counters.pausing_ns,
            )
            for cable in model.cables
        ]
        model.advance(model.offset_ns + step_ns)
        for cable, (sent, received, paused_ns, pausing_ns) in zip(
            model.cables, before, strict=True
        ):
            seen, rate = cable.counters, cable.port.bytes_per_second
            for words, stopped_ns in (
                (seen.sent_words - sent, seen.paused_ns - paused_ns),
                (seen.received_words - received, seen.pausing_ns - pausing_ns),
            ):
                assert 0 <= stopped_ns <= step_ns
                room_bytes = rate * (step_ns - stopped_ns) / NS_PER_SECOND
                assert 0 <= 4 * words <= room_bytes + 0.01 * rate * step_ns / NS_PER_SECOND
            assert seen.pausing_ns - pausing_ns <= step_ns


@SHORT
@given(SPECS, STEPS_NS)
def test_every_pause_frame_stops_the_peer_for_no_longer_than_it_can(
    spec: NodeSpec, step_ns: int
) -> None:
    model = at_onset(spec)
    for _ in range(12):
        model.advance(model.offset_ns + step_ns)
    for cable in model.cables:
        seen, most_ns = cable.counters, PAUSE_NS_AT_MOST[cable.port.gigabits]
        assert seen.paused_ns <= seen.pause_frames_received * most_ns
        assert seen.pausing_ns <= seen.pause_frames_sent * most_ns


@SHORT
@given(SPECS, STEPS_NS)
def test_notifications_are_caused_by_marks_and_marks_by_packets(
    spec: NodeSpec, step_ns: int
) -> None:
    model = at_onset(spec)
    for _ in range(12):
        model.advance(model.offset_ns + step_ns)
    for cable in model.cables:
        seen = cable.counters
        assert seen.notifications_sent <= seen.marked_packets <= seen.received_packets


@SHORT
@given(SPECS, STEPS_NS)
def test_processor_time_adds_up(spec: NodeSpec, step_ns: int) -> None:
    model = at_onset(spec)
    for _ in range(12):
        model.advance(model.offset_ns + step_ns)
    passed_ns = spec.started_boot_ns + model.offset_ns
    assert tuple(model.server.cpu_ns) == MODES
    assert sum(model.server.cpu_ns.values()) == 224 * passed_ns
    assert min(model.server.cpu_ns.values()) >= 0


@SHORT
@given(st.integers(0, 1000), st.floats(0.05, 1.0), st.floats(0.05, 1.0))
def test_the_job_asks_for_the_same_in_small_steps_and_in_large_ones(
    seed: int, gpu_pace: float, exchange_pace: float
) -> None:
    spec = NodeSpec("gpu-001", seed=seed)
    conditions = JobConditions(exchange_pace=exchange_pace)
    fine, coarse = Job(spec), Job(spec)
    edges = [number * NS_PER_SECOND // 4 for number in range(401)]
    small = [fine.advance(Span(*pair), conditions, gpu_pace) for pair in pairwise(edges)]
    large = coarse.advance(Span(0, edges[-1]), conditions, gpu_pace)
    for part in ("occupied", "activity", "memory_activity", "exchange", "exchanged", "fetch"):
        mean = sum(getattr(demand, part) for demand in small) / len(small)
        assert mean == pytest.approx(getattr(large, part), abs=1e-6)
    assert large.exchanged == pytest.approx(large.exchange * exchange_pace)


def test_a_job_at_a_standstill_asks_for_no_exchange() -> None:
    job = Job(NodeSpec("gpu-001"))
    still = JobConditions(exchange_pace=0.0)
    for second in range(30):
        demand = job.advance(Span(second * NS_PER_SECOND, (second + 1) * NS_PER_SECOND), still, 1.0)
        assert demand.exchanged == 0
    assert demand.activity < 0.5


@given(
    st.integers(0, 500), st.integers(0, 500), st.integers(1, 60), st.integers(1, 60),
    st.integers(0, 100),
)  # fmt: skip
def test_recurring_spans_are_counted_as_one_would_by_hand(
    start: int, length: int, period: int, active: int, first: int
) -> None:
    span = Span(start, start + length + 1)
    covered = sum(
        instant >= first and (instant - first) % period < min(active, period)
        for instant in range(span.start_ns, span.end_ns)
    )
    window = Span(first, first + min(active, period))
    assert span.share_recurring(window, period) == pytest.approx(covered / span.length_ns)
    count = sum(
        instant >= first and (instant - first) % period == 0
        for instant in range(span.start_ns + 1, span.end_ns + 1)
    )
    assert span.count_recurring(first, period) == count


def test_whole_numbers_keep_the_mean_and_make_nothing_of_nothing() -> None:
    dice = NodeSpec("gpu-001").stream("test")
    assert [whole(0.0, dice) for _ in range(100)] == [0] * 100
    assert sum(whole(0.3, dice) for _ in range(10_000)) == pytest.approx(3000, rel=0.1)


def test_heat_stays_while_the_load_does_and_goes_with_it() -> None:
    model = NodeModel(NodeSpec("gpu-001", scenario="counter_reset"), 600 * NS_PER_SECOND)
    loaded = [gpu.core_celsius for gpu in model.gpus]
    model.advance(301 * NS_PER_SECOND)
    model.advance(308 * NS_PER_SECOND)
    assert all(gpu.core_celsius < before for gpu, before in zip(model.gpus, loaded, strict=True))
