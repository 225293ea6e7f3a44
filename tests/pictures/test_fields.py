"""Style of a field: thresholds, texts in place of values, overrides."""

from __future__ import annotations

from typing import Any

import pytest

from railscope_dashboards.pictures import drawing
from railscope_dashboards.pictures.fields import UnsupportedFeatureError, format_of

STEPS = [
    {"color": "green", "value": None},
    {"color": "orange", "value": 0.05},
    {"color": "red", "value": 0.5},
]
TEXTS = {"type": "value", "options": {"0": {"text": "no", "color": "red"}, "1": {"text": "yes"}}}


def config(*overrides: dict[str, Any], **defaults: Any) -> dict[str, Any]:
    return {"defaults": defaults, "overrides": list(overrides)}


def override(matcher: str, options: str, **properties: Any) -> dict[str, Any]:
    return {
        "matcher": {"id": matcher, "options": options},
        "properties": [{"id": key, "value": value} for key, value in properties.items()],
    }


@pytest.mark.parametrize(
    ("value", "colour"),
    [(-1, "green"), (0, "green"), (0.049, "green"), (0.05, "orange"), (0.5, "red"), (7, "red")],
)
def test_a_value_has_the_colour_of_the_last_step_it_has_reached(value: float, colour: str):
    style = format_of(
        config(thresholds={"mode": "absolute", "steps": STEPS}), "Value", numeric=True
    )
    assert style.colour(value) == drawing.find_colour(colour)


def test_without_steps_a_value_is_plain():
    assert format_of(config(unit="watt"), "Value", numeric=True).colour(1) == drawing.TEXT


def test_a_text_replaces_its_value_and_may_have_a_colour():
    thresholds = {"mode": "absolute", "steps": STEPS}
    style = format_of(
        config(mappings=[TEXTS], thresholds=thresholds, unit="short"), "v", numeric=True
    )
    assert [style.text(value) for value in (0.0, 1.0, 2.0)] == ["no", "yes", "2"]
    assert style.colour(0.0) == drawing.find_colour("red")
    assert style.colour(1.0) == drawing.find_colour("red"), "no colour of its own: that of the step"
    assert style.colour(0.01) == drawing.find_colour("green")


def test_an_override_changes_the_fields_it_is_for_only():
    reported = config(
        override("byName", "Out", unit="Bps"),
        override("byType", "number", **{"custom.cellOptions": {"type": "color-text"}}),
        override("byName", "Node", links=[{"title": "look", "url": "/d/x"}]),
        unit="short",
    )
    out = format_of(reported, "Out", numeric=True)
    assert (out.unit, out.cell, out.is_linked) == ("Bps", "color-text", False)
    node = format_of(reported, "Node", numeric=False)
    assert (node.unit, node.cell, node.is_linked) == ("short", "auto", True)


def test_a_curve_may_have_a_colour_of_its_own():
    red = {"mode": "fixed", "fixedColor": "red"}
    reported = config(override("byName", "failed", color=red), unit="short")
    assert format_of(reported, "failed", numeric=True).fixed == drawing.find_colour("red")
    assert format_of(reported, "healthy", numeric=True).fixed == ""


@pytest.mark.parametrize(
    "reported",
    [
        config(color={"mode": "palette-classic-by-name"}),
        config(unit="parsecs"),
        config(displayMode="lcd"),
        config(thresholds={"mode": "percentage", "steps": STEPS}),
        config(thresholds={"mode": "absolute", "steps": [{"color": "mauve", "value": None}]}),
        config(mappings=[{"type": "regex", "options": {}}]),
        config(override("byRegexp", ".*", unit="short")),
        config(override("byName", "Value", **{"custom.cellOptions": {"type": "gauge"}})),
        config(override("byName", "Value", **{"custom.width": 90})),
    ],
)
def test_what_is_not_known_is_an_error(reported: dict[str, Any]):
    with pytest.raises(UnsupportedFeatureError):
        format_of(reported, "Value", numeric=True)
