"""Numbers as people write them."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, strategies as st

from railscope import figures


@pytest.mark.parametrize(("ratio", "text"), [
    (0.0, "0 %"), (-0.0, "0 %"), (0.373552, "37 %"), (0.0312, "3.1 %"), (0.03, "3 %"), (0.0000012, "< 0.01 %"), (0.000019, "< 0.01 %"), (0.0001, "0.01 %"),
    (-0.5, "-50 %"), (0.985, "98 %"), (0.996, "99.6 %"), (0.99999, "99.9 %"), (1.0, "100 %"), (1.12, "112 %"),
])  # fmt: skip
def test_percentages(ratio: float, text: str) -> None:
    assert figures.percent(ratio) == text


@pytest.mark.parametrize(("value", "unit", "text"), [
    (None, "watts", figures.NONE), (math.nan, "", figures.NONE), (math.inf, "", figures.NONE),
    (0, "", "0"), (0.5, "", "0.5"), (12.34, "", "12.3"), (999.4, "", "999"), (999.9, "", "1 k"), (1234, "", "1.23 k"),
    (1.3e12, "bytes", "1.3 TB"), (49_999_999_999.0, "bytes per second", "400 Gb/s"), (1.98e9, "hertz", "1.98 GHz"),
    (1200.0, "celsius", "1200 °C"), (-2500.0, "watts", "-2.5 kW"), (3.5, "frames", "3.5 frames"), (1, "errors", "1 error"), (1.0, "CPUs", "1 CPU"), (12_000, "events", "12 k events"), (1000, "events", "1 k events"),
    (226.4, "per second", "226/s"),
    (3540.0, "per second", "3.54 k/s"), (0.373552, "ratio", "37 %"), (0.0123, "seconds", "12.3 ms"),
])  # fmt: skip
def test_quantities(value: float | None, unit: str, text: str) -> None:
    assert figures.quantity(value, unit) == text


@pytest.mark.parametrize(("seconds", "text"), [
    (None, figures.NONE), (0, "0 s"), (0.04, "40 ms"), (0.5, "0.5 s"), (9.94, "9.9 s"), (59.9, "1 min"), (240, "4 min"),
    (3599, "59 min 59 s"), (3700, "1 h 1 min"), (200_000, "2 d 7 h"), (-5, "-5.0 s"),
])  # fmt: skip
def test_durations(seconds: float | None, text: str) -> None:
    assert figures.duration(seconds) == text


@pytest.mark.parametrize(("number", "text"), [(0, "0 nodes"), (1, "1 node"), (1200, "1,200 nodes")])
def test_counts(number: int, text: str) -> None:
    assert figures.count(number, "node") == text


@pytest.mark.parametrize(("probability", "text"), [
    (0.793, "likely (79 %)"), (0.97, "certain (97 %)"), (0.3, "possible (30 %)"),
])  # fmt: skip
def test_likelihood(probability: float, text: str) -> None:
    assert figures.likelihood(probability) == text


@given(st.floats(0, 2))
def test_a_percentage_is_0_or_100_only_if_the_ratio_is(ratio: float) -> None:
    text = figures.percent(ratio)
    assert (text == "0 %") == (ratio == 0)
    assert text != "100 %" or ratio >= 1


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e17, max_value=1e17))
def test_a_quantity_has_few_digits_and_no_negative_zero(value: float) -> None:
    text = figures.quantity(value, "watts")
    assert not re.match(r"-0(\.0*)? ", text)
    digits = re.sub(r"e[+-]?\d+|\D", "", text)
    assert len(digits.lstrip("0")) <= 3, text
