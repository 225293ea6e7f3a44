"""Curves over time, states over time, and single numbers.

Curves are lines, bars and layers, with thresholds to compare with. States have a band for each
curve, with the colour and text of each state. Single numbers are as large as they fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from railscope_dashboards.pictures import drawing, fields, plot
from railscope_dashboards.pictures.drawing import SMALL, Box, Canvas, width_of
from railscope_dashboards.pictures.fields import (
    FieldFormat,
    Json,
    UnsupportedFeatureError,
    format_of,
)
from railscope_dashboards.prometheus_api import Numbers, QueryResult

_TICK_ROOM = 40.0
"""Minimum distance between two ticks of the axis, in pixels."""
_BAR_SHARE = 0.6
"""Share of the distance between timestamps."""
_SUPPORTED_OPTIONS = {
    "drawStyle": {"line", "bars"},
    "stacking": {"none", "normal"},
    "thresholdsStyle": {"off", "dashed"},
}


@dataclass(frozen=True, slots=True)
class Curve:
    """One curve: its name, its base if curves are stacked, and its upper edge."""

    name: str
    times: Numbers
    low: Numbers
    high: Numbers


def name_of(target: Json, labels: dict[str, str]) -> str:
    """Return the name of a curve: the target's legend, or else its labels or the query itself."""
    legend: str = target["legendFormat"]
    if legend != "__auto":
        return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda label: labels.get(label[1], ""), legend)
    listed = ", ".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
    return f"{{{listed}}}" if listed else str(target["expr"])


def curves_of(panel: Json, answers: Sequence[QueryResult], *, stacked: bool) -> list[Curve]:
    """Return the curves of a panel in their order, stacked on each other if `stacked`."""
    curves: list[Curve] = []
    below: dict[int, Numbers] = {}
    for target, answer in zip(panel["targets"], answers, strict=True):
        for series in answer.series:
            low = below.get(len(answer.times), np.zeros(len(answer.times)))
            high = low + series.values if stacked else series.values
            if stacked:
                below[len(answer.times)] = low + np.nan_to_num(series.values)
            name = name_of(target, dict(series.labels))
            curves.append(Curve(name, answer.times, low, high))
    return curves


def draw_curves(
    scene: plot.DrawingState, box: Box, panel: Json, answers: Sequence[QueryResult]
) -> bool:
    """Draw a panel of curves; return True if it has any value."""
    form = format_of(panel["fieldConfig"], "Value", numeric=True)
    style = _style(form)
    curves = curves_of(panel, answers, stacked=style.stacked)
    curves = [curve for curve in curves if np.isfinite(curve.high).any()]
    names = [curve.name for curve in curves] if panel["options"]["legend"]["showLegend"] else []
    legend = plot.legend_height(names, box.width)
    field = box.shrink(top=4, right=4, bottom=plot.TIMES_HEIGHT + legend)
    axis = _ValueAxis(*span(curves, form.minimum), form.unit, field.top, field.bottom)
    field = field.shrink(left=style.axis_width or axis.label_width)
    axis.draw(scene.canvas, field)
    across = plot.TimeAxis(scene.window, field)
    across.draw(scene.canvas)
    if not curves:
        plot.draw_no_data(scene.canvas, field)
        return False
    inks = [
        format_of(panel["fieldConfig"], curve.name, numeric=True).fixed
        or drawing.of_curve(position)
        for position, curve in enumerate(curves)
    ]
    floor = max(axis.low, min(0.0, axis.high))
    for curve, ink in zip(curves, inks, strict=True):
        base = curve.low if style.stacked else np.full(len(curve.times), floor)
        path = _CurvePath(across(curve.times), axis(base), axis(curve.high))
        _draw_curve(scene.canvas, field, path, ink, style)
    for step in form.steps if style.dashed_steps else ():
        if axis.low < step.value < axis.high:
            ends = [(side, float(axis(step.value))) for side in (field.left, field.right)]
            scene.canvas.line(ends, step.colour, 1.2, dashed=True)
    across.draw_marks(scene.canvas, scene.marks)
    if names:
        plot.draw_legend(scene.canvas, names, inks, box.shrink(top=box.height - legend))
    return True


def _draw_curve(canvas: Canvas, field: Box, path: _CurvePath, ink: str, style: _CurveStyle) -> None:
    if style.bars:
        canvas.shapes(path.bars(), ink, solid=0.9, inside=field)
        return
    canvas.shapes(path.areas(), ink, solid=style.fill, inside=field)
    canvas.line(path.upper(), ink, 1.4, inside=field.shrink(top=-1, bottom=-1))
    if alone := path.alone():
        canvas.dots(alone, ink, 4, inside=field.shrink(-3, -3, -3, -3))


def span(curves: Sequence[Curve], minimum: float | None) -> tuple[float, float]:
    """Return the lowest and highest value of the axis; never equal."""
    values = np.concatenate([curve.high for curve in curves]) if curves else np.array([])
    values = values[np.isfinite(values)]
    lowest = float(values.min(initial=np.inf)) if minimum is None else minimum
    highest = float(values.max(initial=-np.inf))
    if not np.isfinite(lowest):
        lowest = 0.0
    if highest <= lowest:
        highest = lowest + 1
    return lowest, highest + 0.06 * (highest - lowest)


def ticks_between(low: float, high: float, unit: str, max_ticks: int) -> list[float]:
    """Return round values of a unit between two values."""
    divisor = fields.UNITS[unit](max(abs(low), abs(high))).divisor
    locator = MaxNLocator(nbins=max(max_ticks, 1), steps=[1, 2, 2.5, 5, 10])
    ticks = np.asarray(locator.tick_values(low / divisor, high / divisor)) * divisor
    near = 1e-9 * (high - low)
    return [float(tick) for tick in ticks if low - near <= tick <= high + near]


class _ValueAxis:
    """The value axis: position of a value in a field, and the ticks on its left."""

    def __init__(self, low: float, high: float, unit: str, top: float, bottom: float) -> None:
        self.low, self.high = low, high
        self._top, self._bottom = top, bottom
        self._ticks = ticks_between(low, high, unit, int((bottom - top) // _TICK_ROOM))
        self._texts = fields.texts_of_ticks(self._ticks, unit)
        self.label_width = max((width_of(text, SMALL) for text in self._texts), default=0.0) + 8

    def __call__(self, value: Numbers | float) -> Numbers:
        """Return the position of a value, or of many."""
        share = (np.asarray(value) - self.low) / (self.high - self.low)
        return np.asarray(self._bottom - share * (self._bottom - self._top))

    def draw(self, canvas: Canvas, field: Box) -> None:
        """Draw the ticks and their lines."""
        for tick, text in zip(self._ticks, self._texts, strict=True):
            down = float(self(tick))
            canvas.rules([[(field.left, down), (field.right, down)]], drawing.GRID)
            place = (field.left - 6, down)
            canvas.text(place, text, size=SMALL, colour=drawing.FAINT, side="right")


@dataclass(frozen=True, slots=True)
class _CurvePath:
    """A curve in pixels: horizontal positions, lower and upper edge."""

    places: Numbers
    low: Numbers
    high: Numbers

    def _runs(self) -> Iterator[slice]:
        """Yield the parts without a gap."""
        return plot.runs_of(np.isfinite(self.high))

    def upper(self) -> list[tuple[float, float]]:
        """Return the upper edge, with gaps."""
        return list(zip(self.places, self.high, strict=True))

    def alone(self) -> list[tuple[float, float]]:
        """Return the values without a neighbour, which no line connects."""
        single = (run.start for run in self._runs() if run.stop - run.start == 1)
        return [(self.places[position], self.high[position]) for position in single]

    def areas(self) -> list[list[tuple[float, float]]]:
        """Return the areas between both edges."""
        polygons = []
        for run in self._runs():
            upper = zip(self.places[run], self.high[run], strict=True)
            lower = zip(self.places[run][::-1], self.low[run][::-1], strict=True)
            polygons.append([*upper, *lower])
        return polygons

    def bars(self) -> list[list[tuple[float, float]]]:
        """Return a bar for each value that is not 0."""
        apart = self.places[1] - self.places[0] if len(self.places) > 1 else 10.0
        half = max(apart * _BAR_SHARE, 1.5) / 2
        return [
            [(place - half, low), (place - half, high), (place + half, high), (place + half, low)]
            for place, low, high in zip(self.places, self.low, self.high, strict=True)
            if np.isfinite(high) and high != low
        ]


@dataclass(frozen=True, slots=True)
class _CurveStyle:
    """Drawing style of curves."""

    bars: bool
    fill: float
    """Opacity of the area below a curve, from 0 to 1."""
    stacked: bool
    dashed_steps: bool
    axis_width: float
    """Width in pixels; 0 is the width of its ticks."""


def _style(form: FieldFormat) -> _CurveStyle:
    settings: dict[str, Any] = {
        "drawStyle": "line",
        "fillOpacity": 0,
        "stacking": "none",
        "thresholdsStyle": "off",
        "axisWidth": 0,
    }
    for name, value in form.drawn.items():
        if name not in settings:
            message = f"unsupported setting: custom.{name}: expected one of {', '.join(settings)}"
            raise UnsupportedFeatureError(message)
        settings[name] = value["mode"] if isinstance(value, dict) else value
    for name, supported in _SUPPORTED_OPTIONS.items():
        if settings[name] not in supported:
            message = f"unsupported {name}: {settings[name]}: expected one of {', '.join(map(str, supported))}"
            raise UnsupportedFeatureError(message)
    return _CurveStyle(
        bars=settings["drawStyle"] == "bars",
        fill=float(settings["fillOpacity"]) / 100,
        stacked=settings["stacking"] == "normal",
        dashed_steps=settings["thresholdsStyle"] == "dashed",
        axis_width=float(settings["axisWidth"]),
    )


_MAX_NAME_SHARE = 0.3
_THICKEST = 36.0


def runs(times: Numbers, values: Numbers) -> Iterator[tuple[float, float, float]]:
    """Yield the start, the end and the value of each period in which a state lasted.

    A value holds until the next timestamp; the last period ends at its last timestamp.
    """
    start = 0
    for position in range(1, len(values) + 1):
        if position < len(values) and values[position] == values[start]:
            continue
        if np.isfinite(values[start]):
            yield float(times[start]), float(times[min(position, len(times) - 1)]), values[start]
        start = position


def draw_bands(
    scene: plot.DrawingState, box: Box, panel: Json, answers: Sequence[QueryResult]
) -> bool:
    """Draw a panel of states; return True if there is any."""
    form = format_of(panel["fieldConfig"], "Value", numeric=True)
    bands = [
        (name_of(target, dict(series.labels)), answer.times, series.values)
        for target, answer in zip(panel["targets"], answers, strict=True)
        for series in answer.series
        if np.isfinite(series.values).any()
    ]
    if not bands:
        plot.draw_no_data(scene.canvas, box)
        return False
    widest = max(width_of(name, SMALL) for name, _, _ in bands)
    left = min(widest, box.width * _MAX_NAME_SHARE) + 10
    field = box.shrink(left=left, bottom=plot.TIMES_HEIGHT, top=4, right=4)
    across = plot.TimeAxis(scene.window, field)
    across.draw(scene.canvas)
    pitch = field.height / len(bands)
    thick = min(pitch * float(panel["options"]["rowHeight"]), _THICKEST)
    for position, (name, times, values) in enumerate(bands):
        middle = field.top + (position + 0.5) * pitch
        place = (field.left - 8, middle)
        scene.canvas.text(place, name, size=SMALL, side="right", max_width=left - 10)
        for start, end, value in runs(times, values):
            begin, finish = (float(across(timestamp)) for timestamp in (start, end))
            band = Box(begin, middle - thick / 2, max(finish - begin, 1.0), thick)
            text, colour = form.text(value), form.colour(value)
            scene.canvas.box(band, drawing.mix_colour(colour, drawing.PANEL, 0.8))
            if width_of(text, SMALL) + 10 < band.width:
                ink = drawing.ink_on(colour)
                scene.canvas.text((band.left + 5, middle), text, size=SMALL, colour=ink)
    across.draw_marks(scene.canvas, scene.marks)
    return True


_LARGEST, _SMALLEST = 34.0, 14.0
_WIDTH_SHARE = 0.88


def draw_stats(
    scene: plot.DrawingState, box: Box, panel: Json, answers: Sequence[QueryResult]
) -> bool:
    """Draw a panel of numbers, side by side if there are several; return True if there is any."""
    form = format_of(panel["fieldConfig"], "Value", numeric=True)
    options = panel["options"]
    chosen = (options["reduceOptions"]["calcs"], options["colorMode"], options["graphMode"])
    if chosen != (["lastNotNull"], "value", "none"):
        message = f"unsupported options of a number: {chosen}: expected lastNotNull, value, none"
        raise UnsupportedFeatureError(message)
    stats = [
        (
            name_of({"legendFormat": "__auto", **target}, dict(series.labels)),
            float(series.values[-1]),
        )
        for target, answer in zip(panel["targets"], answers, strict=True)
        for series in answer.series
    ]
    if not stats:
        plot.draw_no_data(scene.canvas, box, form.nothing or "No data")
        return False
    share = box.width / len(stats)
    for position, (name, value) in enumerate(stats):
        cell = Box(box.left + position * share, box.top, share, box.height)
        text, max_width = form.text(value), cell.width * _WIDTH_SHARE
        fitting = _LARGEST * 0.97 * max_width / max(width_of(text, _LARGEST, "bold"), 1)
        size = min(max(fitting, _SMALLEST), _LARGEST)
        across, down = cell.middle
        scene.canvas.text(
            (across, down),
            text,
            size=size,
            colour=form.colour(value),
            side="center",
            max_width=max_width,
            weight="bold",
        )
        if len(stats) > 1:
            below = (across, cell.bottom - 8)
            scene.canvas.text(below, name, size=11, side="center", max_width=max_width)
    return True
