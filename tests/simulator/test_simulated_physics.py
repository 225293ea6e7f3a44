"""The model's physics: energy, time and traffic add up, in every scenario and for every seed."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise

import pytest
from hypothesis import example, given, settings, strategies as st
from support.examples import fewer_examples

from railscope.timestamps import SECOND_NS
from railscope_simulator import NICS
from railscope_simulator.conditions import JobConditions, PortConditions
from railscope_simulator.device_models import LANES
from railscope_simulator.fabric import TrafficDemand
from railscope_simulator.node_model import NodeModel
from railscope_simulator.port import USUAL, PortCounters, TrafficFlow
from railscope_simulator.scenarios import SettingsDrift
from railscope_simulator.spec import SCENARIOS, NodeSpec, TimeSpan
from railscope_simulator.training_job import TrainingJob

SHORT = settings(fewer_examples(50), deadline=None)
STEPS_NS = st.sampled_from((100_000_000, 333_333_333, 1_000_000_000, 5_000_000_000))
SPECS = st.builds(
    NodeSpec,
    node=st.sampled_from(("gpu-001", "gpu-002")),
    seed=st.integers(0, 1000),
    gpus=st.integers(1, 3),
    model=st.sampled_from(["v100", "a100", "h100", "h200", "b200", "gb200"]),
    scenario=st.sampled_from([name for name in SCENARIOS if name != "counter_reset"]),
    nic=st.sampled_from(list(NICS)),
)
SHARES = st.floats(0.0, 1.0)


def at_onset(spec: NodeSpec) -> NodeModel:
    """A model just before the onset of its fault."""
    model = NodeModel(spec, 40 * SECOND_NS)
    model.advance(19 * SECOND_NS)
    return model


@SHORT
@given(SPECS, STEPS_NS)
def test_energy_is_the_integral_of_the_reported_power(spec: NodeSpec, step_ns: int) -> None:
    model = at_onset(spec)
    expected = [gpu.silicon.energy_picojoules for gpu in model.gpus]
    for _ in range(12):
        model.advance(model.offset_ns + step_ns)
        for index, gpu in enumerate(model.gpus):
            expected[index] += 0 if gpu.lost else gpu.silicon.power_milliwatts * step_ns
    assert [gpu.silicon.energy_picojoules for gpu in model.gpus] == expected
    assert [gpu.silicon.energy_millijoules for gpu in model.gpus] == [e // 10**9 for e in expected]


@SHORT
@given(SPECS, STEPS_NS)
def test_power_temperature_and_clocks_stay_in_bounds(spec: NodeSpec, step_ns: int) -> None:
    model = at_onset(spec)
    for _ in range(12):
        model.advance(model.offset_ns + step_ns)
        for gpu in model.gpus:
            kind, silicon = gpu.model, gpu.silicon
            least_milliwatts = 850 * kind.idle_watts
            assert least_milliwatts <= silicon.power_milliwatts <= kind.power_limit_milliwatts
            assert kind.idle_megahertz <= silicon.clock_megahertz <= kind.max_megahertz
            assert 20 <= silicon.core_celsius <= 120
            assert 0 <= silicon.occupied_percent <= 100
            assert 0 <= gpu.sharing.used_bytes <= kind.memory_bytes - kind.reserved_bytes


@SHORT
@example(TrafficDemand(1.0, 1.0, 1.0), PortConditions(paused=0.5), SECOND_NS, 0)
@example(TrafficDemand(1.0, 1.0, 1.0), PortConditions(pausing=0.5), SECOND_NS, 0)
@example(
    TrafficDemand(0.0, 0.0, 0.0), PortConditions(foreign_receive=1.0, marked=1.0), SECOND_NS, -1
)
@given(
    st.builds(TrafficDemand, busy=SHARES, send=SHARES, receive=SHARES),
    st.builds(
        PortConditions,
        foreign_receive=SHARES,
        marked=SHARES,
        pausing=st.floats(0.0, 0.5),
        paused=SHARES,
        stuck=st.floats(0.0, 0.5),
        unprotected=st.floats(0.0, 0.5),
        pcie_write_stall_percent=st.floats(0.0, 100.0),
        lossy=SHARES,
        margin_lost=SHARES,
        lanes=st.sampled_from((LANES // 2, LANES)),
        pcie_halved=st.sampled_from(("", "lanes", "speed")),
        settings=st.sampled_from((USUAL, *SettingsDrift.drifted)),
    ),
    STEPS_NS,
    st.sampled_from((0, -1)),
)
def test_a_port_keeps_to_its_limits_whatever_acts_on_it(
    wish: TrafficDemand, conditions: PortConditions, step_ns: int, place: int
) -> None:
    cable = NodeModel(NodeSpec("gpu-001", gpus=1), SECOND_NS).cables[place]
    before = amounts(cable.counters)
    for number in range(5):
        span = TimeSpan(number * step_ns, (number + 1) * step_ns)
        cable.advance(span, wish, conditions)
    grown = {name: amount - before[name] for name, amount in amounts(cable.counters).items()}
    assert min(grown.values()) >= 0
    passed_ns = 5 * step_ns
    for terms, stopped_ns, frames in (
        (grown["sent_words"], grown["paused_ns"], grown["pause_frames_received"]),
        (grown["received_words"], grown["pausing_ns"], grown["pause_frames_sent"]),
    ):
        assert stopped_ns <= passed_ns
        assert stopped_ns <= frames * 65535 * 512 / cable.gigabits
        line_bytes_per_second = cable.gigabits * 125_000_000
        max_bytes = line_bytes_per_second * (passed_ns - stopped_ns) / SECOND_NS
        slack_bytes = 0.01 * line_bytes_per_second * passed_ns / SECOND_NS
        assert terms * 4 <= max_bytes + slack_bytes
    for way in ("sent", "received", "dropped"):
        assert grown[f"misprioritized_{way}_words"] in {0, grown[f"{way}_words"]}
    assert grown["notifications_sent"] <= grown["marked_packets"] <= grown["received_packets"]
    assert 0 <= cable.pcie_write_stall_percent <= 100
    assert grown["corrected_bits"] <= grown["observed_bits"]
    assert grown["symbol_errors"] >= grown["broken_blocks"] >= grown["checksum_errors"]


def amounts(counters: PortCounters) -> dict[str, int]:
    """Every number of a port by name; the lanes' added up."""
    found = {}
    for part in fields(counters):
        value = getattr(counters, part.name)
        if isinstance(value, TrafficFlow):
            found |= {f"{part.name}_packets": value.packets, f"{part.name}_words": value.words}
        else:
            found[part.name] = sum(value) if isinstance(value, list) else value
    return found


@SHORT
@given(st.integers(0, 1000), st.floats(0.05, 1.0), st.floats(0.05, 1.0))
def test_the_job_requests_the_same_in_small_steps_and_in_large_ones(
    seed: int, gpu_pace: float, exchange_speed: float
) -> None:
    spec = NodeSpec("gpu-001", seed=seed)
    conditions = JobConditions(exchange_speed=exchange_speed)
    fine, coarse = TrainingJob(spec), TrainingJob(spec)
    edges = [number * SECOND_NS // 4 for number in range(401)]
    small = [fine.advance(TimeSpan(*pair), conditions, gpu_pace) for pair in pairwise(edges)]
    large = coarse.advance(TimeSpan(0, edges[-1]), conditions, gpu_pace)
    for part in ("occupied", "activity", "memory_activity", "exchange", "exchanged", "fetch"):
        mean = sum(getattr(demand, part) for demand in small) / len(small)
        assert mean == pytest.approx(getattr(large, part), abs=1e-6)
    assert large.exchanged == pytest.approx(large.exchange * exchange_speed)
