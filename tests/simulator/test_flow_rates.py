"""Rates, queues and pause in a lossless fabric."""

from __future__ import annotations

from dataclasses import fields
from itertools import permutations

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from railscope_simulator.cluster.fabric_state import FabricRates, FabricState
from railscope_simulator.cluster.flow_rates import FlowSolver, fair_speeds
from railscope_simulator.cluster.topology import (
    ClusterTopology,
    FloatArray,
    FlowGroup,
    collective_flows,
    incast_flows,
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


def test_a_healthy_fabric_carries_all_traffic_without_queues():
    rates = solve(healthy(), ACROSS, NEIGHBOUR)
    assert rates.speeds.tolist() == [1, 1]
    assert np.allclose(rates.send[[0, 1, 2, 4, 5, 6]], RATE)
    assert not rates.send[[3, 7]].any()
    for field in fields(rates):
        if field.name not in {"speeds", "send", "receive", "queues"}:
            assert not getattr(rates, field.name).any(), field.name


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


def test_without_marks_pause_limits_the_senders():
    state = healthy()
    state.drain[1, RAIL] = 0.4
    state.marks[0, RAIL] = 0
    rates = solve(state, ACROSS, NEIGHBOUR)
    assert not rates.marked.any()
    assert rates.paused[0, RAIL] > 0.3
    assert 0 < rates.paused[5, RAIL] < 0.03, "bursts"
    assert np.isclose(rates.paused[0, RAIL], 1 - 0.4 / RATE)


def test_a_storm_stops_the_traffic_of_other_jobs_into_the_pod():
    state = healthy()
    state.stuck[4, RAIL] = 0.95  # node 1, in the other pod, sends to it
    rates = solve(state, ACROSS, NEIGHBOUR)
    assert rates.pausing[4, RAIL] == 0.95
    assert rates.speeds[0] < 0.1
    assert rates.speeds[1] < 0.3, "head-of-line blocking on the links between the pods"
    assert {(1, RAIL), (2, RAIL)} <= affected(rates.paused)
    assert not affected(rates.paused) & {(node, rail) for node in range(8) for rail in range(RAIL)}


def test_an_incast_marks_and_does_not_pause_the_receiver():
    rates = solve(healthy(), incast_flows([1, 2, 3], 0, 0.9, [RAIL]))
    assert np.isclose(rates.receive[0, RAIL], 1.0)
    assert not rates.pausing.any()
    assert rates.marked[0, RAIL] > 0.05
    assert affected(rates.slowed) == {(1, RAIL), (2, RAIL), (3, RAIL)}


def test_a_leaf_without_pause_loses_packets_of_senders_that_do_not_react():
    state = healthy()
    state.drain[1, RAIL] = 0.4
    state.pauses[0, RAIL] = 0
    reacting = solve(state, ACROSS).lost[1, RAIL]
    state.notifies[1, RAIL] = 0
    rates = solve(state, ACROSS)
    assert 0 < reacting < rates.lost[1, RAIL]
    assert affected(rates.retried) == {(0, RAIL)}
    assert not rates.paused.any()


def test_a_lost_uplink_slows_jobs_that_leave_the_pod():
    state = healthy()
    state.up[0, RAIL] *= 0.25
    inside = collective_flows("ring", [1, 3], RATE, range(4))
    rates = solve(state, collective_flows("ring", [0, 4], 1.0, range(4)), inside, NEIGHBOUR)
    assert rates.speeds[1] == 1
    assert rates.speeds[0] < 1
    assert rates.speeds[2] < 1


@pytest.mark.parametrize("marks", [0.0, 1.0])
@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_the_order_of_the_groups_does_not_matter(order: tuple[int, ...], marks: float):
    topology = ClusterTopology(3, 4, 1, 1.0)
    state = FabricState.healthy(topology)
    state.marks[:] = marks
    groups = [
        incast_flows([0], 4, 0.2, [0]),
        incast_flows([8, 9, 10], 5, 1.0, [0]),
        incast_flows([1, 2], 8, 0.9, [0]),
        incast_flows([6], 11, 0.5, [0]),
    ]
    expected = FlowSolver(topology, groups).solve(state, range(4))
    rates = FlowSolver(topology, [groups[index] for index in order]).solve(state, range(4))
    assert np.allclose(rates.speeds, expected.speeds[list(order)])
    for field in fields(rates):
        if field.name not in {"speeds", "queues"}:
            assert np.allclose(getattr(rates, field.name), getattr(expected, field.name)), field
    for field in fields(rates.queues):
        found, wanted = (getattr(r.queues, field.name) for r in (rates, expected))
        assert np.allclose(found, wanted), field.name


def test_pause_of_another_groups_receiver_reaches_a_sender_to_its_pod():
    topology = ClusterTopology(3, 4, 1, 1.0)
    state = FabricState.healthy(topology)
    state.marks[:] = 0
    groups = [incast_flows([0], 4, 0.2, [0]), incast_flows([8, 9, 10], 5, 1.0, [0])]
    rates = FlowSolver(topology, groups).solve(state, range(2))
    assert np.isclose(rates.paused[0, 0], 2 / 3, atol=1e-3)


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
