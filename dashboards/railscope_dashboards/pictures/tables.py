"""Tables and grids with coloured cells, made from results by the transformations of panels.

Frames and transformations are pure functions. grafana: packages/grafana-prometheus/src/
result_transformer.ts; packages/grafana-data/src/transformations/transformers: merge.ts, sortBy.ts,
organize.ts, groupingToMatrix.ts, calculateField.ts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from railscope_dashboards.pictures import drawing, plot
from railscope_dashboards.pictures.drawing import (
    NORMAL,
    SMALL,
    Box,
    Canvas,
    TextAlignment,
    width_of,
)
from railscope_dashboards.pictures.fields import (
    FieldFormat,
    Json,
    UnsupportedFeatureError,
    format_of,
)
from railscope_dashboards.prometheus_api import QueryResult

TableCell = str | float | None
Row = Mapping[str, TableCell]


@dataclass(frozen=True, slots=True)
class TableFrame:
    """A table: the names of its columns in order, and its rows; a cell without a value is None."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def numeric(self, column: str) -> bool:
        """True if a column contains numbers."""
        return any(isinstance(row.get(column), float) for row in self.rows)


def frames_of(answers: Sequence[tuple[str, QueryResult]]) -> list[TableFrame]:
    """Return the tables of answers by letter; a value column has the letter if there are several."""
    frames = []
    for letter, answer in answers:
        value = f"Value #{letter}" if len(answers) > 1 else "Value"
        labels = dict.fromkeys(name for series in answer.series for name in sorted(series.labels))
        rows: list[Row] = [
            {
                "Time": float(answer.times[-1]),
                **{name: series.labels.get(name, "") for name in labels},
                value: float(series.values[-1]),
            }
            for series in answer.series
        ]
        frames.append(TableFrame(("Time", *labels, value) if rows else (), tuple(rows)))
    return frames


def transform(frames: list[TableFrame], transformations: Iterable[Json]) -> list[TableFrame]:
    """Apply a panel's transformations in their order. Raises UnsupportedFeatureError for an unknown one."""
    for transformation in transformations:
        function = _TRANSFORMATIONS.get(transformation["id"])
        if function is None:
            message = (
                f"unsupported transformation: {transformation['id']}:"
                f" expected one of {', '.join(_TRANSFORMATIONS)}"
            )
            raise UnsupportedFeatureError(message)
        frames = function(frames, transformation["options"])
    return frames


def merge(frames: list[TableFrame], options: Json | None = None) -> list[TableFrame]:
    """Merge all tables into one; rows join if all columns common to every table are equal."""
    del options
    filled = [frame for frame in frames if frame.columns]
    if len(filled) <= 1:
        return filled or frames[:1]
    columns = tuple(dict.fromkeys(name for frame in filled for name in frame.columns))
    keys = [name for name in columns if all(name in frame.columns for frame in filled)]
    if not keys:
        return frames
    merged: dict[tuple[TableCell, ...], list[dict[str, TableCell]]] = {}
    order: list[dict[str, TableCell]] = []
    for row in (row for frame in filled for row in frame.rows):
        alike = merged.setdefault(tuple(row.get(name) for name in keys), [])
        fitting = [
            existing
            for existing in alike
            if all(existing.get(name) in {None, cell} for name, cell in row.items())
        ]
        for existing in fitting:
            existing.update(row)
        if not fitting:
            alike.append(dict(row))
            order.append(alike[-1])
    return [TableFrame(columns, tuple(order))]


def organize(frames: list[TableFrame], options: Json) -> list[TableFrame]:
    """Remove columns, order the others, set their titles; only a single table is changed."""
    if len(frames) != 1:
        return frames
    (frame,) = frames
    hidden = {name for name, out in options.get("excludeByName", {}).items() if out}
    order = options.get("indexByName", {})
    titles = options.get("renameByName", {})
    shown_columns = [name for name in frame.columns if name not in hidden]
    shown_columns.sort(key=lambda name: order.get(name, len(order)))
    rows = ({titles.get(name, name): row.get(name) for name in shown_columns} for row in frame.rows)
    return [TableFrame(tuple(titles.get(name, name) for name in shown_columns), tuple(rows))]


def sort_by(frames: list[TableFrame], options: Json) -> list[TableFrame]:
    """Sort rows by one column, empty cells last; equal rows keep their order."""
    (by,) = options["sort"]
    if by.get("desc"):
        message = "unsupported order of rows: descending: expected ascending"
        raise UnsupportedFeatureError(message)

    def order(row: Row) -> tuple[bool, float, str]:
        cell = row.get(by["field"])
        number = cell if isinstance(cell, float) else 0.0
        return cell in {None, ""}, number, str(cell or "")

    return [
        TableFrame(frame.columns, tuple(sorted(frame.rows, key=order)))
        if by["field"] in frame.columns
        else frame
        for frame in frames
    ]


def to_matrix(frames: list[TableFrame], options: Json) -> list[TableFrame]:
    """Make a row of each value of one column and a column of each value of another."""
    if len(frames) != 1:
        return frames
    (frame,) = frames
    down, across, value = options["rowField"], options["columnField"], options["valueField"]
    if not {down, across, value} <= set(frame.columns):
        return frames
    if options.get("emptyValue") != "null":
        message = f"unsupported empty cells: {options.get('emptyValue')}: expected null"
        raise UnsupportedFeatureError(message)
    head = f"{down}\\{across}"
    rows: dict[TableCell, dict[str, TableCell]] = {}
    columns = dict.fromkeys(str(row.get(across)) for row in frame.rows)
    for row in frame.rows:
        into = rows.setdefault(row.get(down), {head: row.get(down)})
        into[str(row.get(across))] = row.get(value)
    return [TableFrame((head, *columns), tuple(rows.values()))]


def reduce_rows(frames: list[TableFrame], options: Json) -> list[TableFrame]:
    """Add a column with the largest or the smallest number of each row."""
    reducers = {"max": max, "min": min}
    reducer = reducers.get(options.get("reduce", {}).get("reducer", ""))
    if options.get("mode") != "reduceRow" or options.get("replaceFields") or reducer is None:
        message = f"unsupported calculation: {options}: expected max or min of a row"
        raise UnsupportedFeatureError(message)
    added = options["alias"]

    def reduced(row: Row) -> TableCell:
        numbers = [cell for cell in row.values() if isinstance(cell, float)]
        return reducer(numbers) if numbers else None

    return [
        TableFrame(
            (*frame.columns, added), tuple({**row, added: reduced(row)} for row in frame.rows)
        )
        if frame.columns
        else frame
        for frame in frames
    ]


def table_order(frame: TableFrame, sort_by: Sequence[Json]) -> TableFrame:
    """Return the rows in the order of a table: by its first sort column, then by the next.

    An empty cell is less than every number (grafana: packages/grafana-ui/src/components/Table).
    """
    rows = list(frame.rows)
    for by in reversed(sort_by):
        key = partial(_rank, column=by["displayName"])
        rows.sort(key=key, reverse=bool(by.get("desc")))  # equal rows keep their order either way
    return TableFrame(frame.columns, tuple(rows))


_TRANSFORMATIONS: Mapping[str, Any] = {
    "merge": merge,
    "sortBy": sort_by,
    "organize": organize,
    "groupingToMatrix": to_matrix,
    "calculateField": reduce_rows,
}


def _rank(row: Row, column: str) -> tuple[float, str]:
    cell = row.get(column)
    return (cell, "") if isinstance(cell, float) else (float("-inf"), cell or "")


_ROW = 26.0
_EDGE = 6.0
_TINY = 10.0


def frame_of(panel: Json, answers: Sequence[QueryResult]) -> TableFrame:
    """Return the content of a panel of rows and columns; an empty table if it has no data."""
    letters = [target["refId"] for target in panel["targets"]]
    frames = frames_of(list(zip(letters, answers, strict=True)))
    found = transform(frames, panel.get("transformations", ()))
    frame = found[0] if found else TableFrame((), ())
    return table_order(frame, panel.get("options", {}).get("sortBy", ()))


def draw_table(
    scene: plot.DrawingState, box: Box, panel: Json, answers: Sequence[QueryResult]
) -> bool:
    """Draw a panel of rows and columns; return True if there are any rows."""
    canvas, frame = scene.canvas, frame_of(panel, answers)
    if not frame.rows:
        plot.draw_no_data(canvas, box)
        return False
    formats = {
        name: format_of(panel["fieldConfig"], name, numeric=frame.numeric(name))
        for name in frame.columns
    }
    size, places = _places(frame, formats, box)
    columns = list(zip(frame.columns, places, strict=True))
    for name, place in columns:
        side, across = _side(place, numeric=frame.numeric(name))
        spot = (across, box.top + _ROW / 2)
        width = place.width - 2 * _EDGE
        canvas.text(spot, name, size=SMALL, colour=drawing.FAINT, side=side, max_width=width)
    fitting = int((box.height - _ROW) // _ROW)
    fitting = fitting if len(frame.rows) <= fitting else max(fitting - 1, 0)
    for number, row in enumerate(frame.rows[:fitting]):
        top = box.top + (number + 1) * _ROW
        canvas.rules([[(box.left, top), (box.right, top)]], drawing.GRID)
        for name, place in columns:
            cell = Box(place.left, top, place.width, _ROW)
            _draw_cell(canvas, cell, row.get(name), formats[name], size)
    if len(frame.rows) > fitting:
        more = f"+ {len(frame.rows) - fitting} more"
        below = (box.left + _EDGE, box.top + (fitting + 1.5) * _ROW)
        canvas.text(below, more, size=SMALL, colour=drawing.FAINT)
    return True


def cell_text(cell: TableCell, form: FieldFormat) -> str:
    """Return the text of a cell."""
    if cell is None:
        return form.nothing
    return form.text(cell) if isinstance(cell, float) else cell


def _draw_cell(canvas: Canvas, box: Box, cell: TableCell, form: FieldFormat, size: float) -> None:
    ink = drawing.LINK if form.is_linked else drawing.TEXT
    numeric = isinstance(cell, float)
    if isinstance(cell, float) and form.cell != "auto":
        ink = form.colour(cell)
        if form.cell == "color-background":
            canvas.box(box.shrink(1, 1, 1, 1), drawing.mix_colour(ink, drawing.PANEL, 0.85))
            ink = drawing.ink_on(ink)
    side, across = _side(box, numeric=numeric)
    place, max_width = (across, box.middle[1]), box.width - 2 * _EDGE
    canvas.text(place, cell_text(cell, form), size=size, colour=ink, side=side, max_width=max_width)


def _side(place: Box, *, numeric: bool) -> tuple[TextAlignment, float]:
    """Return the alignment: numbers on the right, texts on the left."""
    return ("right", place.right - _EDGE) if numeric else ("left", place.left + _EDGE)


def _places(
    frame: TableFrame, formats: dict[str, FieldFormat], box: Box
) -> tuple[float, list[Box]]:
    """Return the font size, and the boxes of columns.

    A column has the width it needs and an equal share of the remainder. If space is insufficient,
    the font becomes smaller, and then the widest columns narrower.
    """
    for size in (NORMAL, SMALL, _TINY):
        needs = [_need(frame, name, formats[name], size) for name in frame.columns]
        spare = box.width - sum(needs)
        if spare >= 0:
            break
    if spare >= 0:
        widths = [need + spare / len(needs) for need in needs]
    else:
        widths = _reduce_widths(needs, box.width)
    places, left = [], box.left
    for width in widths:
        places.append(Box(left, box.top, width, box.height))
        left += width
    return size, places


def _need(frame: TableFrame, name: str, form: FieldFormat, size: float) -> float:
    widest = max(width_of(cell_text(row.get(name), form), size) for row in frame.rows)
    return max(widest, width_of(name, SMALL)) + 2 * _EDGE + 1


def _reduce_widths(needs: Sequence[float], width: float) -> list[float]:
    """Reduce the widest first, until all fit."""
    low, high = 0.0, max(needs)
    for _ in range(40):
        middle = (low + high) / 2
        fits = sum(min(need, middle) for need in needs) <= width
        low, high = (middle, high) if fits else (low, middle)
    return [min(need, low) for need in needs]
