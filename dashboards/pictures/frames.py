"""Tables of answers, and the transformations of panels; pure functions.

grafana: packages/grafana-prometheus/src/result_transformer.ts;
packages/grafana-data/src/transformations/transformers: merge.ts, sortBy.ts, organize.ts,
groupingToMatrix.ts, calculateField.ts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dashboards.asking import Answer
from dashboards.pictures.fields import CannotDraw, Json

Cell = str | float | None
Row = Mapping[str, Cell]


@dataclass(frozen=True, slots=True)
class Frame:
    """A table: the names of its columns in order, and its rows; a cell without a value is None."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def numeric(self, column: str) -> bool:
        """True if a column contains numbers."""
        return any(isinstance(row.get(column), float) for row in self.rows)


def frames_of(answers: Sequence[tuple[str, Answer]]) -> list[Frame]:
    """Return the tables of answers by letter; a value column has the letter if there are several."""
    found = []
    for letter, answer in answers:
        value = f"Value #{letter}" if len(answers) > 1 else "Value"
        labels = dict.fromkeys(name for one in answer.series for name in sorted(one.labels))
        rows: list[Row] = [
            {
                "Time": float(answer.times[-1]),
                **{name: one.labels.get(name, "") for name in labels},
                value: float(one.values[-1]),
            }
            for one in answer.series
        ]
        found.append(Frame(("Time", *labels, value) if rows else (), tuple(rows)))
    return found


def transformed(frames: list[Frame], transformations: Iterable[Json]) -> list[Frame]:
    """Apply a panel's transformations in their order. Raises CannotDraw for an unknown one."""
    for transformation in transformations:
        known = _TRANSFORMATIONS.get(transformation["id"])
        if known is None:
            message = f"no transformation {transformation['id']}"
            raise CannotDraw(message)
        frames = known(frames, transformation["options"])
    return frames


def merge(frames: list[Frame], options: Json | None = None) -> list[Frame]:
    """Merge all tables into one; rows join if all columns common to every table are equal."""
    del options
    filled = [frame for frame in frames if frame.columns]
    if len(filled) <= 1:
        return filled or frames[:1]
    columns = tuple(dict.fromkeys(name for frame in filled for name in frame.columns))
    keys = [name for name in columns if all(name in frame.columns for frame in filled)]
    if not keys:
        return frames
    merged: dict[tuple[Cell, ...], list[dict[str, Cell]]] = {}
    order: list[dict[str, Cell]] = []
    for row in (row for frame in filled for row in frame.rows):
        alike = merged.setdefault(tuple(row.get(name) for name in keys), [])
        fitting = [known for known in alike if _joins(known, row)]
        for known in fitting:
            known.update(row)
        if not fitting:
            alike.append(dict(row))
            order.append(alike[-1])
    return [Frame(columns, tuple(order))]


def organize(frames: list[Frame], options: Json) -> list[Frame]:
    """Remove columns, order the others, set their titles; only a single table is changed."""
    if len(frames) != 1:
        return frames
    (frame,) = frames
    hidden = {name for name, out in options.get("excludeByName", {}).items() if out}
    order = options.get("indexByName", {})
    titles = options.get("renameByName", {})
    kept = [name for name in frame.columns if name not in hidden]
    kept.sort(key=lambda name: order.get(name, len(order)))
    rows = ({titles.get(name, name): row.get(name) for name in kept} for row in frame.rows)
    return [Frame(tuple(titles.get(name, name) for name in kept), tuple(rows))]


def sort_by(frames: list[Frame], options: Json) -> list[Frame]:
    """Sort rows by one column, empty cells last; equal rows keep their order."""
    (by,) = options["sort"]
    if by.get("desc"):
        message = "no sorting from the last to the first"
        raise CannotDraw(message)

    def order(row: Row) -> tuple[bool, float, str]:
        cell = row.get(by["field"])
        number = cell if isinstance(cell, float) else 0.0
        return cell in {None, ""}, number, str(cell or "")

    return [
        Frame(frame.columns, tuple(sorted(frame.rows, key=order)))
        if by["field"] in frame.columns
        else frame
        for frame in frames
    ]


def to_matrix(frames: list[Frame], options: Json) -> list[Frame]:
    """Make a row of each value of one column and a column of each value of another."""
    if len(frames) != 1:
        return frames
    (frame,) = frames
    down, across, value = options["rowField"], options["columnField"], options["valueField"]
    if not {down, across, value} <= set(frame.columns):
        return frames
    if options.get("emptyValue") != "null":
        message = f"no empty cells that are {options.get('emptyValue')}"
        raise CannotDraw(message)
    head = f"{down}\\{across}"
    rows: dict[Cell, dict[str, Cell]] = {}
    columns = dict.fromkeys(str(row.get(across)) for row in frame.rows)
    for row in frame.rows:
        into = rows.setdefault(row.get(down), {head: row.get(down)})
        into[str(row.get(across))] = row.get(value)
    return [Frame((head, *columns), tuple(rows.values()))]


def reduce_rows(frames: list[Frame], options: Json) -> list[Frame]:
    """Add a column with the largest or the smallest number of each row."""
    reducers = {"max": max, "min": min}
    reducer = reducers.get(options.get("reduce", {}).get("reducer", ""))
    if options.get("mode") != "reduceRow" or options.get("replaceFields") or reducer is None:
        message = f"no calculation {options}"
        raise CannotDraw(message)
    added = options["alias"]

    def reduced(row: Row) -> Cell:
        numbers = [cell for cell in row.values() if isinstance(cell, float)]
        return reducer(numbers) if numbers else None

    return [
        Frame((*frame.columns, added), tuple({**row, added: reduced(row)} for row in frame.rows))
        if frame.columns
        else frame
        for frame in frames
    ]


def table_order(frame: Frame, sort_by: Sequence[Json]) -> Frame:
    """Return the rows in the order of a table: by its first sort column, then by the next.

    An empty cell is less than every number (grafana: packages/grafana-ui/src/components/Table).
    """
    rows = list(frame.rows)
    for by in reversed(sort_by):
        key = partial(_rank, column=by["displayName"])
        rows.sort(key=key, reverse=bool(by.get("desc")))  # equal rows keep their order either way
    return Frame(frame.columns, tuple(rows))


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


def _joins(known: Row, row: Row) -> bool:
    return all(known.get(name) in {None, cell} for name, cell in row.items())
