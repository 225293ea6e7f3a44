"""Drawing: inside of its box, distinguishable, and with an error for unknown settings."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from PIL import Image

from railscope_dashboards.pictures import curves, drawing, layout, plot
from railscope_dashboards.pictures.drawing import ELLIPSIS, clip_text, width_of
from railscope_dashboards.pictures.fields import UnsupportedFeatureError
from railscope_dashboards.prometheus_api import (
    DashboardResults,
    QueryResult,
    QueryWindow,
    ResultSeries,
)

WINDOW = QueryWindow(1000.0, 1600.0, 15.0)
TIMES = WINDOW.grid(40)
TEXTS = st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=40)
GREEN = {"mode": "absolute", "steps": [{"color": "green", "value": None}]}


def panel(kind: str, ident: int, options: dict[str, Any], **more: Any) -> dict[str, Any]:
    target = {
        "refId": "A",
        "expr": "up",
        "legendFormat": "{{node}}",
        "instant": kind in "stattable",
    }
    return {
        "id": ident,
        "type": kind,
        "title": f"a {kind}",
        "gridPos": {"x": 6 * (ident - 1), "y": 1, "w": 6, "h": 8},
        "fieldConfig": {"defaults": {"unit": "watt", "thresholds": GREEN}, "overrides": []},
        "options": options,
        "targets": [target],
    } | more


STAT = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "none"}
KINDS = (
    panel("stat", 1, STAT),
    panel("timeseries", 2, {"legend": {"showLegend": True}}),
    panel("state-timeline", 3, {"rowHeight": 0.9}),
    panel("table", 4, {}),
)
ROW = {"type": "row", "title": "Is all well?", "gridPos": {"x": 0, "y": 0, "w": 24, "h": 1}}


def dashboard(*panels: dict[str, Any]) -> dict[str, Any]:
    return {
        "title": "A dashboard",
        "description": "Is all well?",
        "panels": [ROW, *panels],
        "templating": {"list": []},
        "annotations": {"list": [{"iconColor": "red"}]},
    }


def answers(*panels: dict[str, Any], nodes: int = 2) -> DashboardResults:
    def found(one: dict[str, Any]) -> QueryResult:
        times = TIMES[-1:] if one["targets"][0]["instant"] else TIMES
        series = (
            ResultSeries({"node": f"n{number}"}, np.linspace(number, 5, len(times)))
            for number in range(nodes)
        )
        return QueryResult(times, tuple(series))

    marks = QueryResult(
        TIMES, (ResultSeries({}, np.where(np.arange(len(TIMES)) == 5, 1.0, np.nan)),)
    )
    return DashboardResults(
        WINDOW, {}, {panel["id"]: (found(panel),) for panel in panels}, (marks,)
    )


def test_every_kind_of_panel_is_drawn_and_reported():
    picture = layout.draw_dashboard(dashboard(*KINDS), answers(*KINDS))
    assert picture.drawn == {one["id"]: one["title"] for one in KINDS}
    assert picture.empty == {}
    image = Image.open(io.BytesIO(picture.canvas.png()))
    assert image.format == "PNG"
    assert image.size == (layout.WIDTH, layout.height(KINDS))
    assert len(set(image.convert("RGB").get_flattened_data())) > 20


def test_a_panel_without_data_is_reported_as_empty():
    picture = layout.draw_dashboard(dashboard(*KINDS), answers(*KINDS, nodes=0))
    assert picture.drawn == {}
    assert picture.empty == {one["id"]: one["title"] for one in KINDS}


def test_only_the_first_sections_are_drawn_if_requested():
    second = {**ROW, "gridPos": ROW["gridPos"] | {"y": 9}}
    below = {**KINDS[0], "id": 9, "title": "below", "gridPos": {"x": 0, "y": 10, "w": 3, "h": 4}}
    whole = dashboard(*KINDS)
    whole["panels"] += [second, below]
    reported = answers(*KINDS, below)
    assert layout.draw_dashboard(whole, reported).drawn[9] == "below"
    assert 9 not in layout.draw_dashboard(whole, reported, sections=1).drawn


@pytest.mark.parametrize(
    "strange",
    [
        panel("gauge", 1, {}),
        panel("stat", 1, STAT | {"graphMode": "area"}),
        panel("timeseries", 1, {"legend": {"showLegend": True}},
              fieldConfig={"defaults": {"custom": {"drawStyle": "points"}}, "overrides": []}),
        panel("timeseries", 1, {"legend": {"showLegend": True}},
              fieldConfig={"defaults": {"custom": {"lineInterpolation": "smooth"}}, "overrides": []}),
        panel("table", 1, {}, transformations=[{"id": "reduce", "options": {}}]),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_an_error_that_names_the_panel(strange: dict[str, Any]):
    with pytest.raises(
        UnsupportedFeatureError, match=f"drawing panel {strange['title']} of A dashboard"
    ):
        layout.draw_dashboard(dashboard(strange), answers(strange))


@given(TEXTS, st.floats(1, 300), st.sampled_from([11.0, 15.0]))
def test_a_text_is_clipped_to_its_width(text: str, limit: float, size: float):
    shown = clip_text(text, limit, size)
    assert width_of(shown, size) <= limit or shown == ""
    assert shown in {text, ""} or shown.endswith(ELLIPSIS)
    assert text.startswith(shown.removesuffix(ELLIPSIS))


@given(
    st.lists(st.text("abcdef ", min_size=1, max_size=60), min_size=1, max_size=30),
    st.floats(150, 600),
)
def test_a_legend_stays_in_its_lines_and_in_order(names: list[str], width: float):
    lines = plot.legend_lines(names, width)
    shown = [position for line in lines for position in line]
    assert shown == list(range(len(shown)))
    assert 1 <= len(lines) <= 3
    assert all(lines)


def test_stacked_curves_add_up_and_a_gap_counts_as_zero():
    values = (np.array([1.0, np.nan, 3.0]), np.array([10.0, 20.0, 30.0]))
    reported = (
        QueryResult(
            TIMES[:3],
            tuple(ResultSeries({"node": n}, v) for n, v in zip("ab", values, strict=True)),
        ),
    )
    upper = [curve.high.tolist() for curve in curves.curves_of(KINDS[1], reported, stacked=True)]
    assert upper[1] == [11.0, 20.0, 33.0]
    assert np.isnan(upper[0][1])


@pytest.mark.parametrize(
    ("legend", "labels", "name"),
    [
        ("GPU {{index}}, {{ reason }}", {"index": "3", "reason": "thermal"}, "GPU 3, thermal"),
        ("rail {{rail}}", {}, "rail "),
        ("__auto", {"rail": "3"}, '{rail="3"}'),
        ("__auto", {}, "up"),
    ],
)
def test_a_curve_is_called_by_its_legend(legend: str, labels: dict[str, str], name: str):
    assert curves.name_of({"legendFormat": legend, "expr": "up"}, labels) == name


@given(st.lists(st.sampled_from([0.0, 1.0, np.nan]), min_size=1, max_size=20))
def test_bands_cover_what_has_a_state_and_change_where_it_changes(states: list[float]):
    times = np.arange(len(states), dtype=float)
    found = list(curves.runs(times, np.array(states)))
    for position, state in enumerate(states):
        held = [value for start, end, value in found if start <= position < end]
        last = position == len(states) - 1
        assert last or held == ([] if np.isnan(state) else [state])
    for before, after in pairwise(found):
        assert before[1] <= after[0]
        assert before[1] < after[0] or before[2] != after[2]


def test_neighbouring_instants_are_one_mark():
    here = np.array([np.nan, 1.0, 1.0, np.nan, 2.0])
    reported = QueryResult(np.arange(5.0), (ResultSeries({}, here),))
    assert plot.marks_of(reported, "#ff0000") == [
        plot.MarkedPeriod(1.0, 2.0, "#ff0000"),
        plot.MarkedPeriod(4.0, 4.0, "#ff0000"),
    ]


@pytest.mark.parametrize(("ground", "ink"), [("#73BF69", "#111217"), ("#8F3BB8", "#ffffff")])
def test_texts_on_a_colour_can_be_read(ground: str, ink: str):
    assert drawing.ink_on(ground) == ink


def test_colours_that_mean_something_stay_what_they_are_however_few_there_are():
    dice = np.random.default_rng(1)
    drawn = dice.integers(0, 255, (200, 300, 3), np.uint8)
    kept = [drawing.of_curve(position) for position in range(8)]
    for position, ink in enumerate(kept):
        drawn[position] = list(bytes.fromhex(ink[1:]))
    with Image.open(io.BytesIO(drawing.png(drawn, kept))) as image:
        assert image.mode == "P"
        found = np.asarray(image.convert("RGB"))
    assert found.shape == drawn.shape
    np.testing.assert_array_equal(found[:8], drawn[:8])
    assert np.abs(found.astype(int) - drawn).sum(axis=2).mean() < 60
