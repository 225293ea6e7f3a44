"""Boxes, lines and texts on a picture, Grafana's colours, and small PNG files.

Positions are in pixels from the upper left corner. Colours are those of Grafana's dark theme: the
colours that dashboards name, and those of curves in their order (grafana:
packages/grafana-data/src/themes/createVisualizationColors.ts, createColors.ts). A file has few
colours, including exactly those with a meaning.
"""

from __future__ import annotations

import io
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
from numpy.typing import NDArray
from PIL import Image

PAGE = "#111217"
PANEL = "#181b1f"
BORDER = "#2c2e33"
GRID = "#26292e"
TEXT = "#ccccdc"
FAINT = "#8f919d"
LINK = "#6e9fff"

_HUES = {
    "red": "#F2495C",
    "orange": "#FF9830",
    "yellow": "#FADE2A",
    "green": "#73BF69",
    "blue": "#5794F2",
    "purple": "#B877D9",
    "light-red": "#FF7383",
    "light-orange": "#FFB357",
    "light-yellow": "#FFEE52",
    "light-green": "#96D98D",
    "light-blue": "#8AB8FF",
    "light-purple": "#CA95E5",
    "dark-red": "#C4162A",
    "dark-orange": "#FA6400",
    "dark-yellow": "#E0B400",
    "dark-green": "#37872D",
    "dark-blue": "#1F60C4",
    "dark-purple": "#8F3BB8",
    "text": TEXT,
    "transparent": PANEL,
}
_CURVES = (
    "#73BF69", "#FADE2A", "#5794F2", "#FF9830", "#F2495C", "#B877D9", "#37872D", "#E0B400",
    "#1F60C4", "#FA6400", "#C4162A", "#8F3BB8", "#C8F2C2", "#FFF899", "#C0D8FF", "#FFCB7D",
    "#FFA6B0", "#DEB6F2", "#447EBC", "#C15C17", "#890F02", "#0A437C", "#6D1F62", "#584477",
)  # fmt: skip


def find_colour(colour: str) -> str:
    """Return a colour as #rrggbb. Raises KeyError for an unknown name."""
    return colour if colour.startswith("#") else _HUES[colour]


def of_curve(position: int) -> str:
    """Return the colour of the curve at a position in its panel, from 0."""
    return _CURVES[position % len(_CURVES)]


def mix_colour(colour: str, ground: str, share: float) -> str:
    """Return a colour mixed with a background, by a share from 0 to 1."""
    parts = zip(_parts(colour), _parts(ground), strict=True)
    return "#" + "".join(f"{round(top * share + below * (1 - share)):02x}" for top, below in parts)


def ink_on(ground: str) -> str:
    """Return white or nearly black, whichever is easier to read on a background."""
    red, green, blue = _parts(ground)
    light = 0.299 * red + 0.587 * green + 0.114 * blue  # luma of ITU-R BT.601
    return "#111217" if light > 145 else "#ffffff"  # noqa: PLR2004 - a little above the middle


def _parts(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


MAX_BYTES = 250_000
_SHADES = (192, 128, 96, 64)
"""Numbers of colours of a picture, tried in order until its file is small enough."""

Colours = NDArray[np.uint8]
"""Red, green and blue in the last dimension."""


def png(drawn: Colours, exact_colours: Sequence[str]) -> bytes:
    """Return a picture as PNG bytes; colours of `kept`, as #rrggbb, remain unchanged."""
    fixed = np.array(
        [list(bytes.fromhex(colour[1:])) for colour in exact_colours], np.uint8
    ).reshape(-1, 3)
    red, green, blue = (drawn[:, :, part].astype(np.int32) for part in range(3))
    numbers = red << 16 | green << 8 | blue
    present = np.flatnonzero(np.bincount(numbers.ravel(), minlength=1 << 24))
    places = np.zeros(1 << 24, np.uint8)
    for shades in _SHADES:
        palette = np.concatenate([fixed, _reduce_colours(drawn, max(shades - len(fixed), 1))])[:256]
        places[present] = _nearest(_split(present), palette)
        reduced = Image.fromarray(places[numbers])
        reduced.putpalette(palette.tobytes())
        file = io.BytesIO()
        reduced.save(file, "PNG", optimize=True)
        if file.tell() <= MAX_BYTES:
            break
    return file.getvalue()


def _reduce_colours(drawn: Colours, shades: int) -> Colours:
    """Return colours that represent all colours of a picture."""
    reduced = Image.fromarray(drawn).quantize(
        shades, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE
    )
    palette: Colours = np.array(reduced.getpalette(), np.uint8).reshape(-1, 3)
    return palette[:shades]


def _split(numbers: NDArray[np.intp]) -> NDArray[np.float32]:
    parts = [numbers >> 16 & 255, numbers >> 8 & 255, numbers & 255]
    return np.stack(parts, axis=-1).astype(np.float32)


def _nearest(colours: NDArray[np.float32], palette: Colours) -> NDArray[np.uint8]:
    """Return the position in the palette of the colour nearest to each."""
    floats = palette.astype(np.float32)
    distance = (floats**2).sum(axis=1) - 2 * colours @ floats.T  # less the term common to all
    places: NDArray[np.uint8] = distance.argmin(axis=1).astype(np.uint8)
    return places


SMALL, NORMAL, HEADING, TITLE = 11.0, 12.5, 15.0, 20.0
"""Font heights, in pixels."""
ELLIPSIS = "…"

_DPI = 100
_FONT = "DejaVu Sans"
"""A font included in matplotlib, so that pictures are the same everywhere."""
TextAlignment = Literal["left", "center", "right"]
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

    def shrink(
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
        figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI, facecolor=PAGE)
        self._agg: Any = FigureCanvasAgg(figure)
        self._axes: Axes = figure.add_axes((0, 0, 1, 1))
        self._axes.set_axis_off()
        self._axes.set_xlim(0, width)
        self._axes.set_ylim(height, 0)
        self._layers = count()
        self._colours = {PAGE: True}

    def box(self, box: Box, fill: str, edge: str = "none", *, solid: float = 1.0) -> None:
        """Fill a rectangle, and draw its edge."""
        self._axes.add_patch(
            Rectangle(
                (box.left, box.top),
                box.width,
                box.height,
                facecolor=fill,
                edgecolor=edge,
                linewidth=_points(1),
                alpha=solid,
                snap=True,
                zorder=self._layer(fill, solid),
            )
        )

    def line(  # noqa: PLR0913 - properties of a pen
        self,
        points: Points,
        colour: str,
        width: float = 1.0,
        *,
        dashed: bool = False,
        inside: Box | None = None,
        solid: float = 1.0,
    ) -> None:
        """Draw a line; it breaks where a point is NaN."""
        across, down = zip(*points, strict=True)
        line = Line2D(
            across,
            down,
            color=colour,
            linewidth=_points(width),
            alpha=solid,
            dashes=(4, 3) if dashed else (None, None),
            solid_joinstyle="round",
            zorder=self._layer(colour, solid),
        )
        self._axes.add_line(line)
        if inside:
            line.set_clip_path(self._clip(inside))

    def dots(self, points: Points, colour: str, size: float, *, inside: Box) -> None:
        """Draw dots for isolated values."""
        across, down = zip(*points, strict=True)
        dots = Line2D(
            across,
            down,
            color=colour,
            linestyle="none",
            marker="o",
            markersize=_points(size),
            markeredgewidth=0,
            zorder=self._layer(colour),
        )
        self._axes.add_line(dots)
        dots.set_clip_path(self._clip(inside))

    def shapes(self, shapes: Sequence[Points], colour: str, *, solid: float, inside: Box) -> None:
        """Fill closed shapes."""
        filled = PolyCollection(
            [np.asarray(shape) for shape in shapes],
            facecolors=colour,
            edgecolors="none",
            alpha=solid,
            antialiaseds=True,
            zorder=self._layer(colour, solid),
        )
        self._axes.add_collection(filled, autolim=False)
        filled.set_clip_path(self._clip(inside))

    def rules(self, lines: Sequence[Points], colour: str) -> None:
        """Draw thin straight lines."""
        thin = LineCollection(
            [np.asarray(line) for line in lines],
            colors=colour,
            linewidths=_points(1),
            zorder=self._layer(colour),
        )
        thin.set_snap(True)
        self._axes.add_collection(thin, autolim=False)

    def text(  # noqa: PLR0913 - properties of a pen
        self,
        place: tuple[float, float],
        text: str,
        *,
        size: float = NORMAL,
        colour: str = TEXT,
        side: TextAlignment = "left",
        max_width: float = float("inf"),
        weight: Weight = "normal",
    ) -> None:
        """Write a line; `place` is the middle of its height, `max_width` its maximum width."""
        self._axes.text(
            *place,
            clip_text(text, max_width, size, weight),
            fontsize=_points(size),
            color=colour,
            ha=side,
            va="center_baseline",
            fontweight=weight,
            fontfamily=_FONT,
            parse_math=False,
            zorder=self._layer(colour),
        )

    def png(self) -> bytes:
        """Return the picture as PNG bytes."""
        self._agg.draw()
        return png(np.asarray(self._agg.buffer_rgba())[:, :, :3], list(self._colours))

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


def clip_text(text: str, max_width: float, size: float, weight: Weight = "normal") -> str:
    """Return as much of a text as fits, with an ellipsis if shortened."""
    if width_of(text, size, weight) <= max_width:
        return text
    short, long = 0, len(text)
    while short < long:
        middle = (short + long + 1) // 2
        fits = width_of(text[:middle].rstrip() + ELLIPSIS, size, weight) <= max_width
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
