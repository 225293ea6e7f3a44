"""Curves: values over time with their gaps, thinned to the width of a picture, as JSON, SVG, words and rows of a table.

A curve is thinned by minimum and maximum of each pixel, never by a mean: a burst of one sample stays visible. A value that
is not known is a gap with its reason: nothing is drawn through it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from railscope import figures
from railscope.timestamps import format_timestamp

Times: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

PICTURE_WIDTH = 240
"""Pixels of a server-made picture: with twelve figures a page stays within 600 kB."""
MAX_GAPS = 100
"""Gaps of a curve that are listed; the number of all is stated."""
TABLE_ROWS = 12
"""Rows of the table of a figure."""
_MICROSECOND_NS, _MILLISECOND_NS = 1_000, 1_000_000
HEIGHT = 120
"""Height of a server-made picture in its own units; its width is one unit for each pixel."""


class CurveGap(msgspec.Struct, frozen=True):
    """A period without values, and the reason."""

    from_ns: int
    to_ns: int
    reason: str


@dataclass(frozen=True, slots=True)
class HistoryCurve:
    """Values of one quantity in order of time; NaN is unknown."""

    name: str
    label: str
    unit: str
    times_ns: Times
    values: Floats
    gaps: Sequence[CurveGap] = ()


class TimeRange(NamedTuple):
    """The period that a page shows."""

    from_ns: int
    to_ns: int


def thin(times_ns: Times, values: Floats, period: TimeRange, width: int) -> NDArray[np.intp]:
    """Return the positions of the values that a picture of a width needs, in order: at most four of each pixel.

    These are minimum and maximum, and the first and the last unknown value, so that two known values of different pixels
    with an unknown one between them stay apart.
    """
    inside = np.flatnonzero((times_ns >= period.from_ns) & (times_ns <= period.to_ns))
    # In microseconds: the product of nanoseconds and pixels exceeds 64 bits in some weeks.
    span = max((period.to_ns - period.from_ns) // _MICROSECOND_NS, 1)
    offsets = (times_ns[inside] - period.from_ns) // _MICROSECOND_NS
    pixels = np.minimum(offsets * width // span, width - 1)
    is_known = np.isfinite(values[inside])
    positions_found = []
    for chosen, ordered_by in ((is_known, values[inside]), (~is_known, times_ns[inside])):
        positions = np.flatnonzero(chosen)
        # The first and the last one of each pixel in this order are those that are needed.
        order = positions[np.lexsort((ordered_by[positions], pixels[positions]))]
        begins = np.flatnonzero(np.diff(pixels[order], prepend=-1))
        positions_found += [order[begins], order[np.append(begins, len(order))[1:] - 1]]
    found: NDArray[np.intp] = inside[np.unique(np.concatenate(positions_found))]
    return found


class ThinnedCurve(msgspec.Struct, frozen=True):
    """A curve with the values that a picture of a width needs, as JSON has it."""

    name: str
    label: str
    unit: str
    times_ms: list[int]
    values: list[float | None]
    """Null is unknown."""
    gaps: tuple[CurveGap, ...]
    """The first ones."""


def thin_curve(curve: HistoryCurve, period: TimeRange, width: int) -> ThinnedCurve:
    """Return a curve with the values that a picture of a width needs."""
    chosen = thin(curve.times_ns, curve.values, period, width)
    return ThinnedCurve(
        curve.name,
        curve.label,
        curve.unit,
        (curve.times_ns[chosen] // _MILLISECOND_NS).tolist(),
        [value if np.isfinite(value) else None for value in curve.values[chosen].tolist()],
        tuple(curve.gaps[:MAX_GAPS]),
    )


@dataclass(slots=True)
class SvgFigure:
    """Server-made picture of curves with one axis: points of the lines of each curve, and the gaps as rectangles."""

    width: int
    height: int
    top: float
    """Value at the upper edge; the lower edge is `bottom`."""
    bottom: float
    lines: list[list[str]] = field(default_factory=list)
    """Lines of each curve: `x,y x,y`, one for each run of known values."""
    gaps: list[tuple[float, float]] = field(default_factory=list)
    """Position and width of the gaps of all curves."""


def picture(shown: Sequence[ThinnedCurve], from_ns: int, to_ns: int) -> SvgFigure:
    """Return the picture of curves; the axis begins at zero unless a value is negative."""
    known = (value for curve in shown for value in curve.values if value is not None)
    everything = [0.0, *known]
    bottom, top = min(everything), max(everything)
    figure = SvgFigure(PICTURE_WIDTH, HEIGHT, top if top > bottom else bottom + 1.0, bottom)

    def place(timestamp_ns: int) -> float:
        return (timestamp_ns - from_ns) / max(to_ns - from_ns, 1) * PICTURE_WIDTH

    def point(x: float, value: float) -> str:
        return f"{x:.1f},{HEIGHT - (value - bottom) / (figure.top - bottom) * HEIGHT:.1f}"

    for curve in shown:
        lines: list[str] = []
        points = zip(curve.times_ms, curve.values, strict=True)
        for is_known, run in groupby(points, lambda each: each[1] is not None):
            if is_known:
                line = [(place(ms * _MILLISECOND_NS), value or 0.0) for ms, value in run]
                # One value alone becomes a short line.
                line += [(line[0][0] + 1.0, line[0][1])] * (len(line) == 1)
                lines.append(" ".join(point(*each) for each in line))
        figure.lines.append(lines)
    # Several curves have the same gaps.
    spans = {(gap.from_ns, gap.to_ns) for curve in shown for gap in curve.gaps}
    for begin_ns, end_ns in sorted(spans):
        begin, end = max(place(begin_ns), 0.0), min(place(end_ns), float(PICTURE_WIDTH))
        if end > begin:
            figure.gaps.append((round(begin, 1), round(max(end - begin, 1.0), 1)))
    return figure


def caption(curve: HistoryCurve) -> str:
    """Return what a curve shows in words: last, smallest and largest value with their times."""
    known = np.flatnonzero(np.isfinite(curve.values))
    if not len(known):
        reason = f": {curve.gaps[0].reason}" if curve.gaps else ""
        return f"{curve.label}: no value in this period{reason}."
    values, times_ns = curve.values[known], curve.times_ns[known]
    low, high, last = (
        f"{figures.quantity(float(values[at]), curve.unit)} at {clock_text(int(times_ns[at]))}"
        for at in (values.argmin(), values.argmax(), -1)
    )
    return f"{curve.label}: last {last}; minimum {low}; maximum {high}."


def gaps_text(curves: Iterable[ThinnedCurve]) -> str:
    """Return why parts of figures are shaded, each reason once; empty if none is."""
    reasons = dict.fromkeys(gap.reason for curve in curves for gap in curve.gaps)
    return f"Shaded: {'; '.join(reasons)}." if reasons else ""


def clock_text(timestamp_ns: int) -> str:
    """Return a time of day in UTC."""
    return format_timestamp(timestamp_ns, "seconds")[11:19]


class FigureRow(msgspec.Struct, frozen=True):
    """Smallest and largest value of each curve of a figure in one part of the period, in words."""

    from_ns: int
    cells: tuple[str, ...]


class Figure(msgspec.Struct, frozen=True):
    """Curves of one unit, thinned to the width of a picture, with their captions and their table."""

    name: str
    title: str
    unit: str
    symbol: str
    """The unit as it follows a number; empty for a ratio."""
    curves: tuple[ThinnedCurve, ...]
    captions: tuple[str, ...]
    rows: tuple[FigureRow, ...]


FigureTitles: TypeAlias = Mapping[str, tuple[str, Sequence[str]]]
"""Title and names of the curves of each figure."""


def make_figure(
    name: str, title: str, shown: Sequence[HistoryCurve], period: TimeRange, width: int
) -> Figure:
    """Return a figure of curves of one unit."""
    unit = shown[0].unit
    return Figure(
        name,
        title,
        unit,
        figures.symbol_of(unit),
        tuple(thin_curve(curve, period, width) for curve in shown),
        tuple(map(caption, shown)),
        tuple(_table_rows(shown, period)),
    )


def make_figures(
    titles: FigureTitles, found: Mapping[str, HistoryCurve], period: TimeRange, width: int
) -> tuple[Figure, ...]:
    """Return figures of the curves that were found; a figure without any is left out."""
    made = []
    for name, (title, names) in titles.items():
        if shown := [found[each] for each in names if each in found]:
            made.append(make_figure(name, title, shown, period, width))
    return tuple(made)


def _table_rows(shown: Sequence[HistoryCurve], period: TimeRange) -> Iterator[FigureRow]:
    """Yield a row for each of some equal parts of a period."""
    edges = np.linspace(period.from_ns, period.to_ns, TABLE_ROWS + 1).astype(np.int64).tolist()
    for begin, end in pairwise(edges):
        # The last part includes its end.
        to_ns = end + (end == edges[-1])
        yield FigureRow(begin, tuple(_range_text(curve, begin, to_ns) for curve in shown))


def _range_text(curve: HistoryCurve, from_ns: int, to_ns: int) -> str:
    """Return the smallest and the largest value from a time until before another."""
    values = curve.values[(curve.times_ns >= from_ns) & (curve.times_ns < to_ns)]
    values = values[np.isfinite(values)]
    if not len(values):
        return "unknown"
    low, high = (figures.quantity(float(each), curve.unit) for each in (values.min(), values.max()))
    return low if low == high else f"{low} to {high}"
