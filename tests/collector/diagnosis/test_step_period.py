"""Step periods of jobs from traffic by seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from railscope.shapes import SchemaTable
from railscope_agent.commands.replay import CaptureReplay
from railscope_agent.config import AgentSettings
from railscope_collector.diagnosis.cluster_diagnosis import ClusterDiagnosis
from railscope_collector.diagnosis.step_period import WINDOW_SECONDS, TrafficTraces, find_step
from railscope_simulator.cluster.captures import write_cluster
from railscope_simulator.cluster.scenario import read_scenario


def traffic(
    period: float, share: float, noise: float = 0.0, seed: int = 1, count: int = WINDOW_SECONDS
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Means over seconds of a traffic that is on for a share of each period."""
    times = np.arange(count * 100) / 100
    on = ((times / period) % 1.0 < share) * 1e10
    rng = np.random.default_rng(seed)
    means = on.reshape(count, 100).mean(axis=1)
    return means * rng.lognormal(0, noise, count) if noise else means


@settings(deadline=None)
@given(
    st.floats(3.2, 30.0),
    st.floats(0.2, 0.7),
    st.floats(0.0, 0.15),
    st.integers(0, 1000),
)
@example(9.9, 0.6, 0.0, 0)
def test_the_period_is_found(period: float, share: float, noise: float, seed: int) -> None:
    step = find_step(traffic(period, share, noise, seed))
    assert step is not None
    assert step.period_seconds == pytest.approx(period, rel=0.05)
    assert 0 <= step.jitter_seconds <= 0.6 * period


def test_the_share_of_the_exchange_is_found() -> None:
    step = find_step(traffic(12.0, 0.25))
    assert step is not None
    assert step.exchange_share == pytest.approx(0.25, abs=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_noise_has_no_period(seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert find_step(1e9 * rng.lognormal(0, 0.5, WINDOW_SECONDS)) is None


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", range(10))
def test_the_search_of_a_period_ends(seed: int) -> None:
    """Of traffic that repeats and then stops, the correlation falls at all multiples of the period."""
    rng = np.random.default_rng(seed)
    repeated = np.resize(rng.random(rng.integers(3, 10)), WINDOW_SECONDS)
    works = np.arange(WINDOW_SECONDS) < rng.uniform(0.2, 0.9) * WINDOW_SECONDS
    rates = works * (1 + rng.random() * repeated) + 0.1 * rng.random(WINDOW_SECONDS)
    step = find_step(1e9 * rates)
    assert step is None or 0 < step.period_seconds <= WINDOW_SECONDS / 2


def test_even_and_unknown_traffic_have_no_period() -> None:
    assert find_step(np.full(WINDOW_SECONDS, 1e9)) is None
    assert find_step(np.zeros(WINDOW_SECONDS)) is None
    assert find_step(np.full(WINDOW_SECONDS, np.nan)) is None
    every_tenth = np.full(WINDOW_SECONDS, np.nan)
    every_tenth[::10] = traffic(7.0, 0.4)[::10]
    assert find_step(every_tenth) is None


def test_gaps_do_not_hide_a_period() -> None:
    rates = traffic(8.0, 0.5)
    rates[40:55] = np.nan
    step = find_step(rates)
    assert step is not None
    assert step.period_seconds == pytest.approx(8.0, rel=0.05)


def test_traces_keep_the_newest_seconds_and_leave_gaps_unknown() -> None:
    traces = TrafficTraces(10)
    devices, valid = np.array([[0, 20]]), np.ones((1, 2, 1), np.bool_)
    for second in (0, 1, 2, 5, 12):
        length = np.array([[1.0 if second != 5 else 3.0]])
        amounts = np.array([[[second], [3.0 * second]]])
        traces.add(np.array([[second]]), length, devices, amounts, valid)
    # Samples 3 seconds apart yield no rate per second; seconds 0 to 2 have left the ring.
    expected = [np.nan] * 8 + [24.0]
    np.testing.assert_array_equal(traces.mean(devices[0], 13, 9), expected)
    np.testing.assert_array_equal(traces.mean(np.array([20]), 13, 1), [36.0])
    np.testing.assert_array_equal(traces.mean(np.array([99]), 13, 1), [np.nan])


SCENARIO = """
seconds = 185
step_seconds = 1
seed = 4

[cluster]
nodes_per_pod = 2

[[jobs]]
name = "train"
nodes = [0, 1]
checkpoint_period_seconds = 0
iteration_seconds = 7.3
exchange = 0.4
"""


@pytest.mark.thorough
def test_the_steps_of_a_job_are_found_in_the_frames_of_its_nodes(tmp_path: Path) -> None:
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    write_cluster(read_scenario(tmp_path / "scenario.toml"), tmp_path / "captures")
    diagnosis, slots = None, 19
    for directory in sorted(path for path in (tmp_path / "captures").iterdir() if path.is_dir()):
        schemas = SchemaTable()
        for envelope in CaptureReplay(
            directory, AgentSettings(), ("gpu", "rdma", "nic", "tenancy")
        ).envelopes():
            schemas.add(envelope)
            if diagnosis is None:
                diagnosis = ClusterDiagnosis(envelope.batches[0].wall_ns[0], slots)
                diagnosis.begin(slots - 1)
            for batch in envelope.batches:
                diagnosis.add(
                    envelope.node, envelope.run, batch, schemas.__getitem__, lambda ns: ns
                )
    assert diagnosis is not None
    diagnosis.arrange()
    for slot in range(slots):
        diagnosis.evaluate(slot)
    (step,) = diagnosis.steps.values()
    assert step.period_seconds == pytest.approx(7.3, rel=0.05)
    assert step.exchange_share == pytest.approx(0.4, abs=0.08)
