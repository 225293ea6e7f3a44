"""A dashboard as a picture: title, layout of the panels, and the panels with and without data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from railscope_dashboards import COLUMNS
from railscope_dashboards.pictures import curves, drawing, plot, tables
from railscope_dashboards.pictures.drawing import HEADING, NORMAL, TITLE, Box, Canvas, width_of
from railscope_dashboards.pictures.fields import Json, UnsupportedFeatureError
from railscope_dashboards.prometheus_api import DashboardResults, QueryResult

WIDTH = 1400
_UNIT, _GAP, _MARGIN = 32, 8, 12
_HEAD = 74
_PANEL_TITLE = 28


@dataclass(frozen=True, slots=True)
class DashboardPicture:
    """A drawn dashboard, and the result of each panel."""

    canvas: Canvas
    drawn: Mapping[int, str]
    """The titles of panels with values, by id."""
    empty: Mapping[int, str]
    """The titles of panels without values."""


def draw_dashboard(
    dashboard: Json, answers: DashboardResults, sections: int = 0
) -> DashboardPicture:
    """Draw a dashboard from its JSON, or its first sections only.

    Raises UnsupportedFeatureError, with the name of the panel, for unknown features.
    """
    panels = _first(dashboard["panels"], sections)
    canvas = Canvas(WIDTH, height(panels))
    _head(canvas, dashboard, answers)
    marks = [
        mark
        for marks, answer in zip(dashboard["annotations"]["list"], answers.marks, strict=True)
        for mark in plot.marks_of(answer, drawing.find_colour(marks["iconColor"]))
    ]
    scene = plot.DrawingState(canvas, answers.window, marks)
    drawn: dict[int, str] = {}
    empty: dict[int, str] = {}
    for panel in panels:
        box = _box(panel["gridPos"])
        if panel["type"] == "row":
            _row(canvas, box, panel["title"])
            continue
        try:
            found = _panel(scene, box, panel, answers.panels[panel["id"]])
        except (UnsupportedFeatureError, KeyError) as error:
            message = f"drawing panel {panel['title']} of {dashboard['title']} failed: {error}"
            raise UnsupportedFeatureError(message) from error
        (drawn if found else empty)[panel["id"]] = panel["title"]
    return DashboardPicture(canvas, drawn, empty)


def height(panels: Sequence[Json]) -> int:
    """Return the height of the picture of these panels, in pixels."""
    depth: int = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    return _HEAD + depth * (_UNIT + _GAP) + _MARGIN


def _first(panels: Sequence[Json], sections: int) -> Sequence[Json]:
    rows = [position for position, panel in enumerate(panels) if panel["type"] == "row"]
    return panels[: rows[sections]] if 0 < sections < len(rows) else panels


def _box(place: Json) -> Box:
    column = (WIDTH - 2 * _MARGIN + _GAP) / COLUMNS
    pitch = _UNIT + _GAP
    return Box(
        _MARGIN + place["x"] * column,
        _HEAD + place["y"] * pitch,
        place["w"] * column - _GAP,
        place["h"] * pitch - _GAP,
    )


def _head(canvas: Canvas, dashboard: Json, answers: DashboardResults) -> None:
    """Draw the title, the question, the selected values and the time range."""
    canvas.text((_MARGIN + 4, 24), dashboard["title"], size=TITLE, weight="bold")
    window = answers.window
    first, last = (datetime.fromtimestamp(at, UTC) for at in (window.start, window.end))
    time = f"{first:%H:%M} to {last:%H:%M} UTC"
    left: float = WIDTH - _MARGIN - 4
    canvas.text((left, 24), time, colour=drawing.FAINT, side="right")
    left -= width_of(time, NORMAL) + 24
    for variable in reversed(dashboard["templating"]["list"]):
        if variable["type"] == "datasource" or variable.get("hide"):
            continue
        value = answers.choices[variable["name"]]
        text = "All" if value == variable.get("allValue") else value
        canvas.text((left, 24), text, side="right", weight="bold")
        left -= width_of(text, NORMAL, "bold") + 8
        canvas.text((left, 24), variable["label"], colour=drawing.FAINT, side="right")
        left -= width_of(variable["label"], NORMAL) + 24
    canvas.text((_MARGIN + 4, 52), dashboard["description"], colour=drawing.FAINT)


def _row(canvas: Canvas, box: Box, title: str) -> None:
    down = box.middle[1]
    chevron = [(box.left + 4, down - 3), (box.left + 9, down + 3), (box.left + 14, down - 3)]
    canvas.line(chevron, drawing.FAINT, 1.6)
    canvas.text((box.left + 22, down), title, size=HEADING, weight="bold", max_width=box.width - 30)


def _panel(scene: plot.DrawingState, box: Box, panel: Json, answers: Sequence[QueryResult]) -> bool:
    """Draw a panel; return True if it has data."""
    draw_kind = _KINDS.get(panel["type"])
    if draw_kind is None:
        message = f"unsupported type of panel: {panel['type']}: expected one of {', '.join(_KINDS)}"
        raise UnsupportedFeatureError(message)
    scene.canvas.box(box, drawing.PANEL, drawing.BORDER)
    title = (box.left + 10, box.top + _PANEL_TITLE / 2 + 1)
    scene.canvas.text(title, panel["title"], max_width=box.width - 16)
    inner = box.shrink(left=10, top=_PANEL_TITLE, right=10, bottom=8)
    return draw_kind(scene, inner, panel, answers)


_KINDS: Mapping[str, Callable[[plot.DrawingState, Box, Json, Sequence[QueryResult]], bool]] = {
    "stat": curves.draw_stats,
    "timeseries": curves.draw_curves,
    "state-timeline": curves.draw_bands,
    "table": tables.draw_table,
}
