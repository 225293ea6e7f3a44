"""The mean, which a single outlier hardly moves and three in a row do."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, strategies as st
from support.clock import NS

from railscope_agent.sampling.cost_trend import MAX_GROWTH, MIN_VALUES, CostTrend

VALUES = st.floats(0.0, 1e12, allow_nan=False)


def trend_of(*values: float, seconds: float = 1.0) -> CostTrend:
    """Return a trend of these values, one per period."""
    trend = CostTrend()
    for number, value in enumerate(values):
        trend.add(value, round(number * seconds * NS))
    return trend


@given(values=st.lists(VALUES, min_size=1, max_size=30), seconds=st.sampled_from([0.02, 1, 60]))
def test_the_mean_lies_within_the_values(values: list[float], seconds: float) -> None:
    trend = trend_of(*values, seconds=seconds)
    slack = 1 + 1e-9
    assert min(values) / slack <= trend.mean <= max(values) * slack


@given(before=st.lists(VALUES, min_size=MIN_VALUES, max_size=30), outlier=VALUES)
def test_one_value_at_most_doubles_it(before: list[float], outlier: float) -> None:
    trend = trend_of(*before)
    mean = trend.mean
    assume(min(before[-2:]) <= mean)
    trend.add(outlier, len(before) * NS)
    assert trend.mean <= max(mean * MAX_GROWTH, min(*before[-2:], outlier))


@given(before=st.lists(VALUES, max_size=30), outlier=VALUES)
def test_three_consecutive_values_count(before: list[float], outlier: float) -> None:
    assert trend_of(*before, *[outlier] * MIN_VALUES).mean >= outlier * (1 - 1e-9)


@given(first=VALUES, seconds=st.sampled_from([0.02, 0.1, 1, 8, 60]))
def test_old_values_are_forgotten(first: float, seconds: float) -> None:
    """After some time at short periods, after some dozens of reads at long ones."""
    reads = max(64, round(600 / seconds))
    assert trend_of(*[first] * 5, *[1.0] * reads, seconds=seconds).mean <= 1.0 + first * 1e-5


def test_of_the_first_three_values_the_least_counts() -> None:
    """A library is loaded, files are opened, garbage is collected: once each."""
    assert trend_of(1e9).mean == 1e9
    assert trend_of(1e9, 5.0).mean == 5.0
    assert trend_of(9e9, 5.0, 1e9).estimate == 5.0


def test_a_value_now_and_then_counts_by_how_often_it_comes() -> None:
    values = [100.0 if number % 10 == 0 else 1.0 for number in range(600)]
    assert trend_of(*values).mean == pytest.approx(10.9, rel=0.3)


def test_a_trend_is_stable_once_enough_samples_exist() -> None:
    assert trend_of(7.0, 7.0).estimate == 0
    assert trend_of(7.0, 7.0, 7.0).estimate == 7
    assert CostTrend(min_values=1).estimate == 0
