"""Thinning preserves extremes, gaps and order within a bound; pictures, captions and tables state the same values."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, strategies as st

from railscope_collector.console.curves import (
    HEIGHT,
    POINTS_PER_PIXEL,
    CurveGap,
    HistoryCurve,
    TimeRange,
    caption,
    clock_text,
    gaps_text,
    summarize,
    table_rows,
    thin,
    thin_curve,
    to_svg,
)
from railscope_collector.console.device_figures import node_figures

MICROSECOND = 1000
PERIOD = TimeRange(0, 1_000_000 * MICROSECOND)
SECOND = 1_000_000
samples = st.lists(
    st.tuples(
        st.integers(-1000, 1_001_000),
        st.one_of(st.floats(-1e15, 1e15), st.sampled_from([np.nan, np.inf, -np.inf])),
    ),
    max_size=200,
    unique_by=lambda sample: sample[0],
).map(sorted)


def curve(samples: list[tuple[int, float]], unit: str = "watts", *gaps: CurveGap) -> HistoryCurve:
    times_ns = np.array([time * MICROSECOND for time, _ in samples], np.int64)
    return HistoryCurve(
        "power", "Power", unit, times_ns, np.array([v for _, v in samples], float), gaps
    )


@given(samples, st.integers(1, 60))
def test_thinning_preserves_extremes_gaps_and_order(
    samples: list[tuple[int, float]], width: int
) -> None:
    full = curve(samples)
    chosen = thin(full.times_ns, full.values, PERIOD, width)
    assert list(chosen) == sorted(set(chosen.tolist()))
    assert len(chosen) <= POINTS_PER_PIXEL * width
    inside = [n for n, (time, _) in enumerate(samples) if 0 <= time <= 1_000_000]
    assert set(chosen.tolist()) <= set(inside)
    pixel = {n: min(samples[n][0] * width // 1_000_000, width - 1) for n in inside}
    known_places = {n for n in inside if np.isfinite(samples[n][1])}
    for number in set(pixel.values()):
        values = [samples[n][1] for n in known_places if pixel[n] == number]
        shown = [samples[n][1] for n in chosen.tolist() if n in known_places and pixel[n] == number]
        if values:
            assert (min(shown), max(shown)) == (min(values), max(values))
    for before, after in pairwise(chosen.tolist()):
        if {before, after} <= known_places and pixel[before] != pixel[after]:
            assert all(n in known_places for n in range(before, after)), (
                "a line is drawn through a gap"
            )


@given(samples, st.integers(1, 60))
def test_the_json_form_has_increasing_times_and_no_nan(
    samples: list[tuple[int, float]], width: int
) -> None:
    found = thin_curve(curve(samples), PERIOD, width)
    assert found.times_ms == sorted(found.times_ms)
    assert len(found.times_ms) == len(found.values)
    assert all(value is None or np.isfinite(value) for value in found.values)


@given(samples, st.integers(1, 60))
def test_a_picture_stays_within_its_frame(samples: list[tuple[int, float]], width: int) -> None:
    figure = to_svg([curve(samples)], PERIOD, width)
    for line in figure.lines[0]:
        points = [tuple(map(float, point.split(","))) for point in line.split()]
        assert len(points) > 1
        assert all(0 <= x <= width + 1 and -0.1 <= y <= HEIGHT + 0.1 for x, y in points)
    assert figure.top > figure.bottom


def test_a_burst_of_one_sample_in_an_hour_is_visible() -> None:
    values = [(second * SECOND, 0.0) for second in range(3600)]
    values[1234] = (1234 * SECOND, 1.0)
    document = thin_curve(curve(values), TimeRange(0, 3600 * SECOND * MICROSECOND), 100)
    assert max(document.values) == 1.0


def test_a_gap_divides_the_line_and_is_marked_with_its_reason() -> None:
    gap = CurveGap(300_000_000, 600_000_000, "this collector received no frame")
    values = [(100_000, 1.0), (200_000, 3.0), (300_000, np.nan), (700_000, 2.0)]
    found = curve(values, "watts", gap)
    figure = to_svg([found], PERIOD, 100)
    assert figure.lines == [["10.0,80.0 20.0,0.0", "70.0,40.0 71.0,40.0"]]
    assert figure.gaps == [(30.0, 30.0)]
    assert thin_curve(found, PERIOD, 100).gaps == (gap,)
    assert caption(found) == (
        "Power: last 2 W at 00:00:00; minimum 1 W at 00:00:00; maximum 3 W at 00:00:00."
    )


def test_a_curve_without_values_has_a_caption_with_the_reason() -> None:
    empty = curve([(5, np.nan)], "watts", CurveGap(0, 9, "unsupported"))
    assert summarize(empty) is None
    assert caption(empty) == "Power: no value in this period: unsupported."
    assert gaps_text([empty, empty]) == "Shaded: unsupported."
    assert gaps_text([curve([(5, 1.0)])]) == ""
    assert to_svg([empty], PERIOD, 10).lines == [[]]
    assert all(np.isnan(row.minimum) for row in table_rows(empty, PERIOD))


def test_the_rows_of_a_table_contain_each_value_once() -> None:
    values = [(n * 100_000, float(n)) for n in range(11)]
    rows = table_rows(curve(values), PERIOD, 5)
    assert [(row.minimum, row.maximum) for row in rows] == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 10)]
    assert [row.from_ns for row in rows] == [0, 200_000_000, 400_000_000, 600_000_000, 800_000_000]


def test_times_are_those_of_a_clock_in_utc() -> None:
    assert clock_text(3_725 * SECOND * MICROSECOND) == "01:02:05"


def test_a_node_with_many_rails_has_curves_of_the_first_eight() -> None:
    figures = {figure.name: figure for figure in node_figures(range(16))}
    assert [curve.label for curve in figures["node_nic_sent"].curves] == [
        f"Rail {n}" for n in range(8)
    ]
