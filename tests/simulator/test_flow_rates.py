"""Rates, queues and pause in a lossless fabric."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings, strategies as st

from railscope_simulator.cluster.fabric_state import FabricRates, FabricState
from railscope_simulator.cluster.flow_rates import FlowSolver, fair_speeds
from railscope_simulator.cluster.topology import (
    ClusterTopology,
    FloatArray,
    FlowGroup,
    collective_flows,
)

RATE, RAIL = 0.78, 3
TWO_PODS = ClusterTopology(pods=2, nodes_per_pod=4, rails=4)
ACROSS = collective_flows("ring", [0, 1, 4, 5], RATE, range(4))
"""A job of two nodes in each pod."""

NEIGHBOUR = collective_flows("ring", [2, 6], RATE, range(4))
"""Another job in both pods."""


def solve(state: FabricState, *groups: FlowGroup) -> FabricRates:
    return FlowSolver(TWO_PODS, groups).solve(state, range(len(groups)))


def healthy() -> FabricState:
    return FabricState.healthy(TWO_PODS)


def affected(values: FloatArray) -> set[tuple[int, ...]]:
    """Places of values that are not zero."""
    return {tuple(place) for place in np.argwhere(values > 1e-9).tolist()}


def test_a_slow_receiver_pauses_its_switch_port_and_slows_its_whole_job_only():
    state = healthy()
    state.drain[1, RAIL] = 0.4
    rates = solve(state, ACROSS, NEIGHBOUR)
    assert np.allclose(rates.speeds, [0.4 / RATE, 1])
    assert affected(rates.pausing) == {(1, RAIL)}
    assert np.isclose(rates.pausing[1, RAIL], 0.6)
    assert affected(rates.marked) == {(1, RAIL)}
    assert affected(rates.slowed) == {(0, RAIL)}, "the node that sends to it"
    assert rates.paused.max() < 0.03, "senders that react to marks are rarely paused"


def test_a_storm_stops_the_traffic_of_other_jobs_into_the_pod():
    state = healthy()
    state.stuck[4, RAIL] = 0.95  # node 1, in the other pod, sends to it
    rates = solve(state, ACROSS, NEIGHBOUR)
    assert rates.pausing[4, RAIL] == 0.95
    assert rates.speeds[0] < 0.1
    assert rates.speeds[1] < 0.3, "head-of-line blocking on the links between the pods"
    assert {(1, RAIL), (2, RAIL)} <= affected(rates.paused)
    assert not affected(rates.paused) & {(node, rail) for node in range(8) for rail in range(RAIL)}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.floats(0, 2), min_size=4, max_size=4), min_size=1, max_size=5),
    st.lists(st.floats(0.01, 3), min_size=4, max_size=4),
)
@example([[0.0, 0.0, 0.0, 5e-324]], [1.0, 1.0, 1.0, 1.0])
@example([[1e-12, 0.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0]], [0.01, 1.0, 1.0, 1.0])
def test_fair_speeds_fit_the_capacities_and_none_can_grow_alone(
    usage: list[list[float]], capacity: list[float]
) -> None:
    need, limit = np.array(usage), np.array(capacity)
    speeds, limits = fair_speeds(need, limit)
    used = speeds @ need
    assert (speeds <= 1).all()
    assert (used <= limit * (1 + 1e-6) + 1e-6).all()
    for group, speed in enumerate(speeds):
        if speed < 1:
            assert limits[group].any()
            assert np.allclose(used[limits[group]], limit[limits[group]], atol=1e-6)
            sharing = (need[:, limits[group]] > 1e-9).any(axis=1)
            assert speed >= speeds[sharing].max() - 1e-6, "no group has more of what limits it"
