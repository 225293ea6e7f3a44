"""Tables for the terminal: rows of plain values, their columns, filters and their text.

A row is the same in JSON, in a plain table and in `top`. An absent value is None, shown as a dash.
"""

from __future__ import annotations

import fnmatch
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from railscope import figures, timestamps
from railscope.untrusted_text import printable

Row: TypeAlias = dict[str, Any]
DASH = "-"
CUT = "~"
"""Last character of a text that was too long for its column."""
MIN_WIDTH = 8
MIN_TEXT, USUAL_TEXT = 10, 80
"""Minimum width of a text; texts get this width before `--wide` columns are shown."""
GAP = 2
"""Columns of the terminal between two columns of a table."""
_BELOW = " " * 4
"""Beginning of a text below its row."""
ANY_TEXT = ""
"""Key of the filter for words that may be in any column."""
MAX_KNOWN = 5
"""Names that an error lists."""
NARROW = 80
"""Width of a table that is not `--wide`, also where the output is not a terminal."""


def show_text(value: Any) -> str:
    """Return any value as one printable line."""
    return printable(str(value))


def show_list(values: Any) -> str:
    """Return the values of a list as one printable line."""
    return show_text(", ".join(map(str, values)))


def show_number(value: Any) -> str:
    """Format without decimals if they are zero."""
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.2f}"


def show_age(seconds: Any) -> str:
    """Format a duration; a small negative one is a difference of clocks."""
    return figures.duration(max(round(seconds, 1), 0.0))


def show_gpu_hours(seconds: Any) -> str:
    """Format GPU-seconds as GPU-hours."""
    return f"{seconds / 3_600:,.2f}"


def show_watts(value: Any) -> str:
    """Format a power."""
    return figures.quantity(value, "watts")


def show_gigabits(value: Any) -> str:
    """Format bytes per second as Gb/s."""
    return f"{8 * value / 1e9:.0f}"


def show_gigabytes(value: Any) -> str:
    """Format bytes as GB."""
    return f"{value / 1e9:.0f}"


def show_time(text: Any) -> str:
    """Format RFC 3339 to the second, in UTC."""
    try:
        return timestamps.format_timestamp(timestamps.parse_timestamp(text), "seconds")
    except timestamps.TimestampError:
        return show_text(text)


def show_short_time(text: Any) -> str:
    """Format RFC 3339 as month, day and time in UTC."""
    return show_time(text)[5:].replace("T", " ").removesuffix("Z")


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column: the key of its values, its head, and the form of a value."""

    key: str
    head: str
    form: Callable[[Any], str] = show_text
    is_number: bool = False
    """True to align right, and never to cut."""
    is_key: bool = False
    """True for the name of the row, which is cut last."""
    is_wide: bool = False
    """True to show the column with `--wide` only."""
    is_sentence: bool = False
    """True to show the text below its row where the line has no room for all of it."""


def number(
    key: str, head: str, form: Callable[[Any], str] = show_number, *, wide: bool = False
) -> TableColumn:
    """Return a column of numbers."""
    return TableColumn(key, head, form, is_number=True, is_wide=wide)


@dataclass(frozen=True, slots=True)
class ClientTable:
    """Rows, or the reason for their absence. Notes state what the rows do not contain."""

    name: str
    columns: tuple[TableColumn, ...]
    rows: Sequence[Row] = ()
    absence: str = ""
    notes: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Reasons for absent values, by column."""
    unfiltered: int = 0
    """Number of rows before a filter; 0 without one."""

    def filtered(self, filters: Mapping[str, str]) -> ClientTable:
        """Return the rows that match all filters."""
        if not filters:
            return self
        rows = [row for row in self.rows if matches(row, filters)]
        return replace(self, rows=rows, unfiltered=len(self.rows))

    def unmatched(self, key: str, pattern: str) -> str:
        """Return the error that lists the known values if no row matches; empty if one does."""
        if self.absence or not pattern or self.filtered({key: pattern}).rows:
            return ""
        known = sorted({str(value) for row in self.rows for value in several(row.get(key))})
        more = f" and {len(known) - MAX_KNOWN} more" if len(known) > MAX_KNOWN else ""
        names = show_list(known[:MAX_KNOWN]) + more if known else "there is none"
        return f"no {key} matches {show_text(pattern)!r}: {names}"

    def cell(self, column: TableColumn, row: Row) -> str:
        """Return the text of a value."""
        value = row.get(column.key)
        if value is None or value in ("", []):
            return DASH
        return column.form(value)

    def as_text(self, width: int = NARROW, *, wide: bool = False) -> str:
        """Return the table; without `wide`, no line is longer than `width`."""
        if self.absence:
            return f"{self.name}: unknown: {show_text(self.absence)}"
        columns = [column for column in self.columns if wide or not column.is_wide]
        if not self.rows:
            count = f" of {self.unfiltered} matches" if self.unfiltered else ""
            return "\n".join([f"{self.name}: none{count}", *self.notes])
        texts = {column.key: [self.cell(column, row) for row in self.rows] for column in columns}
        widths = [max(map(cell_width, (each.head, *texts[each.key]))) for each in columns]
        below: list[TableColumn] = []
        if not wide and sum(widths) + GAP * (len(widths) - 1) > width:
            below = [column for column in columns if column.is_sentence]
            kept = [pair for pair in zip(columns, widths, strict=True) if not pair[0].is_sentence]
            columns = [column for column, _ in kept]
            widths = fit_widths(columns, [size for _, size in kept], width)

        def line(cells: Iterable[str]) -> str:
            shown = (
                (" " * GAP)
                .join(
                    pad(cut(text, size), size, right=column.is_number)
                    for text, size, column in zip(cells, widths, columns, strict=True)
                )
                .rstrip()
            )
            return shown if wide else cut(shown, width)

        lines = [line(column.head for column in columns)]
        for place, row in enumerate(self.rows):
            lines.append(line(texts[column.key][place] for column in columns))
            for column in below:
                if row.get(column.key):
                    lines += wrap(f"{_BELOW}{texts[column.key][place]}", width, _BELOW)
        return "\n".join([*lines, *self.notes])


def matches(row: Row, filters: Mapping[str, str]) -> bool:
    """True if each value matches its pattern (`gpu-*`), or is a list with a value that does."""
    for key, pattern in filters.items():
        if key == ANY_TEXT:
            shown = " ".join(_texts_of(row)).lower()
            if not all(fnmatch.fnmatchcase(shown, f"*{word}*") for word in pattern.lower().split()):
                return False
            continue
        texts = ("" if entry is None else str(entry) for entry in several(row.get(key)))
        if not any(fnmatch.fnmatchcase(text.lower(), pattern.lower()) for text in texts):
            return False
    return True


def _texts_of(row: Row) -> Iterator[str]:
    """Yield the texts of a row; numbers have too many digits to be searched."""
    for value in row.values():
        yield from (entry for entry in several(value) if isinstance(entry, str))


def several(value: Any) -> Sequence[Any]:
    """Return the values of a list, or one value as a list."""
    return value if isinstance(value, list | tuple) else [value]


def fit_widths(columns: Sequence[TableColumn], widths: Sequence[int], width: int) -> list[int]:
    """Shrink the widest columns of text until a line fits, names last; numbers stay whole."""
    fitted = list(widths)
    for keys in (False, True):
        while sum(fitted) + 2 * (len(fitted) - 1) > width:
            candidates = [
                (size, place)
                for place, (size, column) in enumerate(zip(fitted, columns, strict=True))
                if not column.is_number and column.is_key <= keys and size > MIN_WIDTH
            ]
            if not candidates:
                break
            fitted[max(candidates)[1]] -= 1
    return fitted


def fit_columns(
    columns: Sequence[TableColumn], widths: Sequence[int], width: int
) -> dict[int, int]:
    """Return the widths of the columns that have room, by their places, from the full widths of all.

    Names and numbers are shown whole or not at all, names first. A text may be cut. A `--wide` column is shown if
    there is room for all of it beside texts of the usual width.
    """
    fitted: dict[int, int] = {}
    free = width + GAP
    places = range(len(columns))
    normal = [place for place in places if not columns[place].is_wide]
    texts = [place for place in normal if not (columns[place].is_number or columns[place].is_key)]

    def grow(up_to: int) -> int:
        """Give the room to the narrowest texts; return what remains."""
        room = free
        while wanting := [
            place for place in texts if fitted.get(place, up_to) < min(widths[place], up_to)
        ]:
            if not room:
                break
            fitted[min(wanting, key=lambda place: fitted[place])] += 1
            room -= 1
        return room

    for place in sorted(normal, key=lambda place: not columns[place].is_key):
        size = min(widths[place], MIN_TEXT if place in texts else width)
        if size + GAP <= free:
            fitted[place], free = size, free - size - GAP
    free = grow(USUAL_TEXT)
    for place in places:
        if columns[place].is_wide and widths[place] + GAP <= free:
            fitted[place], free = widths[place], free - widths[place] - GAP
    grow(width)
    return dict(sorted(fitted.items()))


def cell_width(text: str) -> int:
    """Return the columns of a terminal that a text fills."""
    if text.isascii():
        return len(text)
    return sum(map(_character_width, text))


def _character_width(character: str) -> int:
    if unicodedata.category(character) in {"Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def wrap(text: str, width: int, indent: str) -> list[str]:
    """Wrap a text into lines; all but the first are indented, and none is cut."""
    shown = show_text(text)
    spread = "".join(char + _FILLER * (_character_width(char) - 1) for char in shown)
    width -= spread != shown  # a break may be between a wide character and its filler
    lines = textwrap.wrap(spread, width, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace(_FILLER, "") for line in lines] or [""]


_FILLER = "\ue000"
"""Second column of a wide character while a text is wrapped; a printable text does not contain it."""


def cut(text: str, width: int) -> str:
    """Cut a text to a width, with a mark at its end."""
    if cell_width(text) <= width:
        return text
    shown, used = [], 0
    for character in text:
        used += _character_width(character)
        if used > width - 1:
            break
        shown.append(character)
    return "".join(shown) + CUT


def sorted_rows(rows: Sequence[Row], key: str, *, is_reversed: bool) -> Sequence[Row]:
    """Return rows sorted by a column: numbers from the highest, texts from A; absent values are last in any case."""
    known = [row for row in rows if row.get(key) not in (None, "", [])]
    if not key or not known:
        return rows
    numbers = all(isinstance(row[key], int | float) for row in known)
    order = sorted(
        known, key=lambda row: -row[key] if numbers else _natural(show_list(several(row[key])))
    )
    absent = [row for row in rows if row.get(key) in (None, "", [])]
    return [*(reversed(order) if is_reversed else order), *absent]


def _natural(text: str) -> list[tuple[int, str]]:
    """Return a key that sorts node-2 before node-10."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part.lower())
        for part in re.split(r"(\d{1,9})", text)
    ]


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Fill a text up to a width."""
    filling = " " * max(width - cell_width(text), 0)
    return filling + text if right else text + filling


def parse_filters(texts: Iterable[str], keys: Sequence[str]) -> dict[str, str]:
    """Parse words that may be in any column, and `key=value`. Raises ValueError for a key that is not one of `keys`."""
    filters: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            filters[ANY_TEXT] = f"{filters.get(ANY_TEXT, '')} {text}".strip()
        elif key.lower() in keys:
            filters[key.lower()] = value
        else:
            message = f"unknown filter key {key[:60]!r}: expected one of {', '.join(keys)}"
            raise ValueError(message)
    return filters


def format_filters(filters: Mapping[str, str]) -> list[str]:
    """Return filters as they are parsed."""
    return [f"{key}={value}" if key else value for key, value in filters.items()]
