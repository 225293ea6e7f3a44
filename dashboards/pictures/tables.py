"""Tables, and grids with coloured cells."""

from __future__ import annotations

from collections.abc import Sequence

from dashboards.asking import Answer
from dashboards.pictures import colours, plot
from dashboards.pictures.canvas import NORMAL, SMALL, Box, Canvas, Side, width_of
from dashboards.pictures.fields import Json, Look, look_of
from dashboards.pictures.frames import Cell, Frame, frames_of, table_order, transformed

_ROW = 26.0
_EDGE = 6.0
_TINY = 10.0


def frame_of(panel: Json, answers: Sequence[Answer]) -> Frame:
    """Return the content of a panel of rows and columns; an empty table if it has no data."""
    letters = [target["refId"] for target in panel["targets"]]
    frames = frames_of(list(zip(letters, answers, strict=True)))
    found = transformed(frames, panel.get("transformations", ()))
    frame = found[0] if found else Frame((), ())
    return table_order(frame, panel.get("options", {}).get("sortBy", ()))


def draw(scene: plot.Scene, box: Box, panel: Json, answers: Sequence[Answer]) -> bool:
    """Draw a panel of rows and columns; return True if there are any rows."""
    canvas, frame = scene.canvas, frame_of(panel, answers)
    if not frame.rows:
        plot.nothing(canvas, box)
        return False
    looks = {
        name: look_of(panel["fieldConfig"], name, numeric=frame.numeric(name))
        for name in frame.columns
    }
    size, places = _places(frame, looks, box)
    columns = list(zip(frame.columns, places, strict=True))
    for name, place in columns:
        side, across = _side(place, numeric=frame.numeric(name))
        spot = (across, box.top + _ROW / 2)
        room = place.width - 2 * _EDGE
        canvas.text(spot, name, size=SMALL, colour=colours.FAINT, side=side, room=room)
    fitting = int((box.height - _ROW) // _ROW)
    fitting = fitting if len(frame.rows) <= fitting else max(fitting - 1, 0)
    for number, row in enumerate(frame.rows[:fitting]):
        top = box.top + (number + 1) * _ROW
        canvas.rules([[(box.left, top), (box.right, top)]], colours.GRID)
        for name, place in columns:
            cell = Box(place.left, top, place.width, _ROW)
            _draw_cell(canvas, cell, row.get(name), looks[name], size)
    if len(frame.rows) > fitting:
        more = f"+ {len(frame.rows) - fitting} more"
        below = (box.left + _EDGE, box.top + (fitting + 1.5) * _ROW)
        canvas.text(below, more, size=SMALL, colour=colours.FAINT)
    return True


def written(cell: Cell, look: Look) -> str:
    """Return the text of a cell."""
    if cell is None:
        return look.nothing
    return look.text(cell) if isinstance(cell, float) else cell


def _draw_cell(canvas: Canvas, box: Box, cell: Cell, look: Look, size: float) -> None:
    ink = colours.LINK if look.linked else colours.TEXT
    numeric = isinstance(cell, float)
    if isinstance(cell, float) and look.cell != "auto":
        ink = look.colour(cell)
        if look.cell == "color-background":
            canvas.box(box.within(1, 1, 1, 1), colours.mixed(ink, colours.PANEL, 0.85))
            ink = colours.ink_on(ink)
    side, across = _side(box, numeric=numeric)
    place, room = (across, box.middle[1]), box.width - 2 * _EDGE
    canvas.text(place, written(cell, look), size=size, colour=ink, side=side, room=room)


def _side(place: Box, *, numeric: bool) -> tuple[Side, float]:
    """Return the alignment: numbers on the right, texts on the left."""
    return ("right", place.right - _EDGE) if numeric else ("left", place.left + _EDGE)


def _places(frame: Frame, looks: dict[str, Look], box: Box) -> tuple[float, list[Box]]:
    """Return the font size, and the boxes of columns.

    A column has the width it needs and an equal share of the remainder. If space is insufficient,
    the font becomes smaller, and then the widest columns narrower.
    """
    for size in (NORMAL, SMALL, _TINY):
        needs = [_need(frame, name, looks[name], size) for name in frame.columns]
        spare = box.width - sum(needs)
        if spare >= 0:
            break
    if spare >= 0:
        widths = [need + spare / len(needs) for need in needs]
    else:
        widths = _squeezed(needs, box.width)
    places, left = [], box.left
    for width in widths:
        places.append(Box(left, box.top, width, box.height))
        left += width
    return size, places


def _need(frame: Frame, name: str, look: Look, size: float) -> float:
    widest = max(width_of(written(row.get(name), look), size) for row in frame.rows)
    return max(widest, width_of(name, SMALL)) + 2 * _EDGE + 1


def _squeezed(needs: Sequence[float], room: float) -> list[float]:
    """Reduce the widest first, until all fit."""
    low, high = 0.0, max(needs)
    for _ in range(40):
        most = (low + high) / 2
        fits = sum(min(need, most) for need in needs) <= room
        low, high = (most, high) if fits else (low, most)
    return [min(need, low) for need in needs]
