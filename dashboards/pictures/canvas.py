"""Boxes, lines and texts on a picture; positions are in pixels from the upper left corner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from dashboards.pictures import colours, shades

SMALL, NORMAL, HEADING, TITLE = 11.0, 12.5, 15.0, 20.0
"""Font heights, in pixels."""
ELLIPSIS = "…"

_DPI = 100
_FONT = "DejaVu Sans"
"""A font included in matplotlib, so that pictures are the same everywhere."""
Side = Literal["left", "center", "right"]
Weight = Literal["normal", "bold"]
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Right edge."""
        return self.left + self.width

    @property
    def bottom(self) -> float:
        """Lower edge."""
        return self.top + self.height

    @property
    def middle(self) -> tuple[float, float]:
        """Centre."""
        return self.left + self.width / 2, self.top + self.height / 2

    def within(
        self, left: float = 0.0, top: float = 0.0, right: float = 0.0, bottom: float = 0.0
    ) -> Box:
        """Return the box reduced by a margin on each side."""
        return Box(
            self.left + left,
            self.top + top,
            max(self.width - left - right, 1.0),
            max(self.height - top - bottom, 1.0),
        )


class Canvas:
    """A picture under construction."""

    def __init__(self, width: int, height: int) -> None:
        figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI, facecolor=colours.PAGE)
        self._agg: Any = FigureCanvasAgg(figure)
        self._axes: Axes = figure.add_axes((0, 0, 1, 1))
        self._axes.set_axis_off()
        self._axes.set_xlim(0, width)
        self._axes.set_ylim(height, 0)
        self._layers = count()
        self._colours = {colours.PAGE: True}

    def box(self, box: Box, fill: str, edge: str = "none", *, solid: float = 1.0) -> None:
        """Fill a rectangle, and draw its edge."""
        self._axes.add_patch(
            Rectangle(
                (box.left, box.top), box.width, box.height, facecolor=fill, edgecolor=edge,
                linewidth=_points(1), alpha=solid, snap=True, zorder=self._layer(fill, solid),
            )
        )  # fmt: skip

    def line(  # noqa: PLR0913 - properties of a pen
        self, points: Points, colour: str, width: float = 1.0, *, dashed: bool = False,
        inside: Box | None = None, solid: float = 1.0,
    ) -> None:  # fmt: skip
        """Draw a line; it breaks where a point is NaN."""
        across, down = zip(*points, strict=True)
        line = Line2D(
            across, down, color=colour, linewidth=_points(width), alpha=solid,
            dashes=(4, 3) if dashed else (None, None), solid_joinstyle="round",
            zorder=self._layer(colour, solid),
        )  # fmt: skip
        self._axes.add_line(line)
        if inside:
            line.set_clip_path(self._clip(inside))

    def dots(self, points: Points, colour: str, size: float, *, inside: Box) -> None:
        """Draw dots for isolated values."""
        across, down = zip(*points, strict=True)
        dots = Line2D(
            across, down, color=colour, linestyle="none", marker="o", markersize=_points(size),
            markeredgewidth=0, zorder=self._layer(colour),
        )  # fmt: skip
        self._axes.add_line(dots)
        dots.set_clip_path(self._clip(inside))

    def shapes(self, shapes: Sequence[Points], colour: str, *, solid: float, inside: Box) -> None:
        """Fill closed shapes."""
        filled = PolyCollection(
            [np.asarray(shape) for shape in shapes], facecolors=colour, edgecolors="none", alpha=solid,
            antialiaseds=True, zorder=self._layer(colour, solid),
        )  # fmt: skip
        self._axes.add_collection(filled, autolim=False)
        filled.set_clip_path(self._clip(inside))

    def rules(self, lines: Sequence[Points], colour: str) -> None:
        """Draw thin straight lines."""
        thin = LineCollection(
            [np.asarray(line) for line in lines], colors=colour, linewidths=_points(1),
            zorder=self._layer(colour),
        )  # fmt: skip
        thin.set_snap(True)
        self._axes.add_collection(thin, autolim=False)

    def text(  # noqa: PLR0913 - properties of a pen
        self, place: tuple[float, float], text: str, *, size: float = NORMAL,
        colour: str = colours.TEXT, side: Side = "left", room: float = float("inf"),
        weight: Weight = "normal",
    ) -> None:  # fmt: skip
        """Write a line; `place` is the middle of its height, `room` its maximum width."""
        self._axes.text(
            *place, clipped(text, room, size, weight), fontsize=_points(size), color=colour,
            ha=side, va="center_baseline", fontweight=weight, fontfamily=_FONT, parse_math=False,
            zorder=self._layer(colour),
        )  # fmt: skip

    def png(self) -> bytes:
        """Return the picture as PNG bytes."""
        self._agg.draw()
        return shades.png(np.asarray(self._agg.buffer_rgba())[:, :, :3], list(self._colours))

    def save(self, path: Path) -> None:
        """Write the picture to a file."""
        path.write_bytes(self.png())

    def _layer(self, colour: str, solid: float = 1.0) -> int:
        """Return the z-order of the next shape in this colour: above everything before."""
        if solid == 1:
            self._colours[colour] = True
        return next(self._layers)

    def _clip(self, inside: Box) -> Rectangle:
        return Rectangle(
            (inside.left, inside.top), inside.width, inside.height, transform=self._axes.transData
        )


def clipped(text: str, room: float, size: float, weight: Weight = "normal") -> str:
    """Return as much of a text as fits, with an ellipsis if shortened."""
    if width_of(text, size, weight) <= room:
        return text
    short, long = 0, len(text)
    while short < long:
        middle = (short + long + 1) // 2
        fits = width_of(text[:middle].rstrip() + ELLIPSIS, size, weight) <= room
        short, long = (middle, long) if fits else (short, middle - 1)
    return text[:short].rstrip() + ELLIPSIS if short else ""


@lru_cache(maxsize=20_000)
def width_of(text: str, size: float = NORMAL, weight: Weight = "normal") -> float:
    """Return the width of a text, in pixels."""
    font = FontProperties(family=_FONT, size=_points(size), weight=weight)
    width, _, _ = _measure().get_text_width_height_descent(text, font, ismath=False)
    return float(width)


@lru_cache(maxsize=1)
def _measure() -> Any:
    """Return a renderer that measures the width of letters."""
    canvas: Any = FigureCanvasAgg(Figure(dpi=_DPI))
    return canvas.get_renderer()


def _points(pixels: float) -> float:
    return pixels * 72 / _DPI
