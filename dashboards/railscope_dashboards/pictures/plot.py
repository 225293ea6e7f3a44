"""The axes that curves and bands share: time across, annotations, names below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from railscope_dashboards.pictures import drawing
from railscope_dashboards.pictures.drawing import NORMAL, SMALL, Box, Canvas, width_of
from railscope_dashboards.prometheus_api import Numbers, QueryResult, QueryWindow

TIMES_HEIGHT = 20.0
_LEGEND_LINE = 18.0
_LEGEND_MAX_LINES = 3
_STEPS_OF_TIME = (10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
_DAY = 86_400


@dataclass(frozen=True, slots=True)
class MarkedPeriod:
    """A period of an annotation, and its colour."""

    start: float
    end: float
    colour: str


@dataclass(frozen=True, slots=True)
class DrawingState:
    """Common drawing state of all panels of a dashboard."""

    canvas: Canvas
    window: QueryWindow
    marks: Sequence[MarkedPeriod]


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """Horizontal positions of timestamps in a box."""

    window: QueryWindow
    box: Box

    def __call__(self, timestamp: Numbers | float) -> Numbers:
        """Return the position of a timestamp, or of many."""
        share = (np.asarray(timestamp) - self.window.start) / (self.window.end - self.window.start)
        return np.asarray(self.box.left + share * self.box.width)

    def ticks(self) -> list[tuple[float, str]]:
        """Return positions with their times of day in UTC, as many as fit."""
        length = self.window.end - self.window.start
        max_steps = max(self.box.width / 70, 1)
        step = next((step for step in _STEPS_OF_TIME if length / step <= max_steps), _DAY)
        form = "%H:%M:%S" if step < 60 else "%H:%M"  # noqa: PLR2004 - a minute
        first = np.ceil(self.window.start / step) * step
        return [
            (float(self(timestamp)), datetime.fromtimestamp(timestamp, UTC).strftime(form))
            for timestamp in np.arange(first, self.window.end, step)
        ]

    def draw(self, canvas: Canvas) -> None:
        """Draw lines at whole times, and write the times below."""
        ticks = self.ticks()
        down = (self.box.top, self.box.bottom)
        canvas.rules([[(place, end) for end in down] for place, _ in ticks], drawing.GRID)
        free = self.box.left - 30
        for place, text in ticks:
            half = width_of(text, SMALL) / 2
            if place - half > free and place + half < self.box.right + 6:
                below = (place, self.box.bottom + TIMES_HEIGHT / 2)
                canvas.text(below, text, size=SMALL, colour=drawing.FAINT, side="center")
                free = place + half + 8

    def draw_marks(self, canvas: Canvas, marks: Sequence[MarkedPeriod]) -> None:
        """Draw annotations in the time range: dashed lines, and a tint from the first to the last."""
        for mark in marks:
            start, end = (float(self(timestamp)) for timestamp in (mark.start, mark.end))
            for place in dict.fromkeys((start, end)):
                ends = [(place, self.box.top), (place, self.box.bottom)]
                canvas.line(ends, mark.colour, dashed=True, solid=0.8)
            band = Box(start, self.box.top, end - start, self.box.height)
            canvas.box(band, mark.colour, solid=0.08)
            foot = [(start - 4, self.box.bottom + 5), (start + 4, self.box.bottom + 5)]
            canvas.shapes(
                [[(start, self.box.bottom), *foot]],
                mark.colour,
                solid=1.0,
                inside=self.box.shrink(left=-5, right=-5, bottom=-6),
            )


def marks_of(answer: QueryResult, colour: str) -> list[MarkedPeriod]:
    """Return the timestamps at which a query had values: adjacent timestamps are one mark."""
    if not answer.series:
        return []
    here = np.any([~np.isnan(series.values) for series in answer.series], axis=0)
    periods = (answer.times[run] for run in runs_of(here))
    return [MarkedPeriod(float(times[0]), float(times[-1]), colour) for times in periods]


def runs_of(here: NDArray[np.bool_]) -> Iterator[slice]:
    """Yield the parts of a curve without a gap, from a mask of its values."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], here, [False])).astype(int)))
    return (slice(first, after) for first, after in edges.reshape(-1, 2).tolist())


def legend_lines(names: Sequence[str], width: float) -> list[list[int]]:
    """Return the names on each line of a legend of this width; those that do not fit are omitted."""
    lines: list[list[int]] = [[]]
    used = 0.0
    for position, name in enumerate(names):
        wide = min(_item_width(name), width)
        if lines[-1] and used + wide > width:
            if len(lines) == _LEGEND_MAX_LINES:
                return [*lines[:-1], _shorten(lines[-1], names, width)]
            lines.append([])
            used = 0.0
        lines[-1].append(position)
        used += wide
    return lines


def _shorten(line: list[int], names: Sequence[str], width: float) -> list[int]:
    """Return a line without its last names, so that the count of omitted names fits."""
    left = width - width_of(_more(len(names)), SMALL) - 8
    while len(line) > 1 and sum(_item_width(names[position]) for position in line) > left:
        line = line[:-1]
    return line


def legend_height(names: Sequence[str], width: float) -> float:
    """Return the height of a legend."""
    return len(legend_lines(names, width)) * _LEGEND_LINE + 2 if any(names) else 0.0


def draw_legend(canvas: Canvas, names: Sequence[str], inks: Sequence[str], box: Box) -> None:
    """Write names with the colours of their curves, and the number of omitted names."""
    lines = legend_lines(names, box.width)
    missing = len(names) - sum(map(len, lines))
    for number, line in enumerate(lines):
        down = box.top + (number + 0.5) * _LEGEND_LINE
        left = box.left
        for position in line:
            canvas.line([(left, down), (left + 12, down)], inks[position], 3)
            place, max_width = (left + 18, down), box.right - left - 18
            canvas.text(place, names[position], size=SMALL, max_width=max_width)
            left += _item_width(names[position])
    if missing:
        foot = (box.right, box.top + (len(lines) - 0.5) * _LEGEND_LINE)
        canvas.text(foot, _more(missing), size=SMALL, colour=drawing.FAINT, side="right")


def _more(missing: int) -> str:
    return f"+ {missing} more"


def draw_no_data(canvas: Canvas, box: Box, text: str = "No data") -> None:
    """Write that there is no data."""
    canvas.text(
        box.middle, text, size=NORMAL, colour=drawing.FAINT, side="center", max_width=box.width
    )


def _item_width(name: str) -> float:
    return width_of(name, SMALL) + 34
