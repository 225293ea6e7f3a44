"""States over time: a band for each curve, with the colour and text of each state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dashboards.asking import Answer, Numbers
from dashboards.pictures import colours, plot
from dashboards.pictures.canvas import SMALL, Box, Canvas, width_of
from dashboards.pictures.curves import name_of
from dashboards.pictures.fields import Json, look_of

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


def draw(scene: plot.Scene, box: Box, panel: Json, answers: Sequence[Answer]) -> bool:
    """Draw a panel of states; return True if there is any."""
    look = look_of(panel["fieldConfig"], "Value", numeric=True)
    found = [
        (name_of(target, dict(one.labels)), answer.times, one.values)
        for target, answer in zip(panel["targets"], answers, strict=True)
        for one in answer.series
        if np.isfinite(one.values).any()
    ]
    if not found:
        plot.nothing(scene.canvas, box)
        return False
    widest = max(width_of(name, SMALL) for name, _, _ in found)
    left = min(widest, box.width * _MAX_NAME_SHARE) + 10
    field = box.within(left=left, bottom=plot.TIMES_HEIGHT, top=4, right=4)
    across = plot.Across(scene.window, field)
    across.draw(scene.canvas)
    room = field.height / len(found)
    thick = min(room * float(panel["options"]["rowHeight"]), _THICKEST)
    for position, (name, times, values) in enumerate(found):
        middle = field.top + (position + 0.5) * room
        place = (field.left - 8, middle)
        scene.canvas.text(place, name, size=SMALL, side="right", room=left - 10)
        for start, end, value in runs(times, values):
            begin, finish = (float(across(instant)) for instant in (start, end))
            band = Box(begin, middle - thick / 2, max(finish - begin, 1.0), thick)
            _draw_band(scene.canvas, band, look.text(value), look.colour(value))
    across.draw_marks(scene.canvas, scene.marks)
    return True


def _draw_band(canvas: Canvas, band: Box, text: str, colour: str) -> None:
    """Draw a band, and its text if it fits."""
    canvas.box(band, colours.mixed(colour, colours.PANEL, 0.8))
    if width_of(text, SMALL) + 10 < band.width:
        place = (band.left + 5, band.middle[1])
        canvas.text(place, text, size=SMALL, colour=colours.ink_on(colour))
