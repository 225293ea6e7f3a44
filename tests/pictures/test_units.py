"""Numbers as Grafana writes them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st

from railscope_dashboards.pictures.curves import ticks_between
from railscope_dashboards.pictures.fields import UNITS, text, texts_of_ticks
from railscope_dashboards.query import (
    COUNT,
    EVENTS_PER_SECOND,
    RATE_UNITS,
    SHARE,
    UNITS as UNITS_OF_METRICS,
)


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0, "short", "0"),
        (16, "short", "16"),
        (1234, "short", "1.23 K"),
        (32e9, "short", "32 Bil"),
        (-0.5, "short", "-0.500"),
        (0.9864, "percentunit", "98.6%"),
        (0, "percentunit", "0%"),
        (1, "percentunit", "100%"),
        (50e9, "Bps", "50 GB/s"),
        (48.75e9, "Bps", "48.8 GB/s"),
        (1.2 * 2**40, "bytes", "1.20 TiB"),
        (512, "bytes", "512 B"),
        (22_410, "watt", "22.4 kW"),
        (0.000875, "watt", "875 µW"),
        (85, "celsius", "85 °C"),
        (1.98e9, "hertz", "1.98 GHz"),
        (2_040_000, "cps", "2.04M c/s"),
        (0, "cps", "0 c/s"),
        (1500, "pps", "1.50 kp/s"),
        (0.0042, "s", "4.20 ms"),
        (90, "s", "1.50 mins"),
        (7200, "s", "2 hours"),
        (3.3, "volt", "3.30 V"),
        (4200, "rotrpm", "4200 rpm"),
        (float("nan"), "watt", "NaN"),
        (float("inf"), "watt", "∞"),
    ],
)
def test_a_number_in_its_unit(value: float, unit: str, expected: str):
    assert text(value, unit) == expected


def test_decimals_may_be_given():
    assert text(0.000123, "percentunit", 1) == "0.0%"
    assert text(-0.0001, "percentunit", 1) == "0.0%"


def test_every_unit_of_dashboards_is_known():
    used = {COUNT, EVENTS_PER_SECOND, SHARE, *UNITS_OF_METRICS.values(), *RATE_UNITS.values()}
    assert used <= UNITS.keys()


NUMBERS = st.floats(min_value=1e-9, max_value=1e18)


@given(NUMBERS, st.sampled_from(["Bps", "watt", "bytes", "short", "cps", "s", "pps"]))
def test_a_text_keeps_what_the_number_is_worth(value: float, unit: str):
    written = re.match(r"[-\d.e+]+", text(value, unit))
    assert written
    scale = UNITS[unit](value).divisor
    assert float(written[0]) * scale == pytest.approx(value, rel=0.06, abs=1e-12)


@given(
    st.floats(min_value=-1e12, max_value=1e12),
    st.floats(min_value=1e-6, max_value=1e12),
    st.integers(1, 8),
    st.sampled_from(sorted(UNITS)),
)
def test_marks_of_an_axis_are_in_order_and_distinct(
    low: float, length: float, most: int, unit: str
):
    high = low + max(length, abs(low) * 1e-3)
    ticks = ticks_between(low, high, unit, most)
    assert ticks == sorted(ticks)
    assert all(low - 1e-6 * (high - low) <= tick <= high + 1e-6 * (high - low) for tick in ticks)
    texts = texts_of_ticks(ticks, unit)
    assert len(set(texts)) == len(texts)


def test_marks_of_an_axis_share_their_scale():
    assert texts_of_ticks([0, 50e9, 100e9], "Bps") == ["0", "50 GB/s", "100 GB/s"]
    assert texts_of_ticks([0, 0.0025, 0.005], "percentunit") == ["0%", "0.25%", "0.50%"]
    assert texts_of_ticks([0.0039062, 0.0039072], "bytes") == ["0.003906 B", "0.003907 B"]
    assert texts_of_ticks([], "watt") == []
