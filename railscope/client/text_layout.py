"""Texts and tables of a terminal, by cells, as wide characters have two."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from railscope.client.columns import NONE, Column, Row

_GAP, _BELOW = "  ", " " * 4
_MIN_FOLDED, _MIN_SENTENCE = 8, 24
"""Widths to which a text is folded at most, and below which a sentence follows its row."""
_FILLER = "\ue000"
"""Second cell of a wide character while a text is wrapped; a printable text does not contain it."""


def cell_width(text: str) -> int:
    """Return the number of cells of a printable text."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, width: int) -> str:
    """Return the beginning of a text that has at most so many cells."""
    used = 0
    for number, character in enumerate(text):
        used += _cells(character)
        if used > width:
            return text[:number]
    return text


def wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Return the lines of a printable text; all but the first are indented."""
    spread = "".join(each + _FILLER * (_cells(each) - 1) for each in text)
    width -= spread != text  # a break may be inside a wide character
    lines = textwrap.wrap(spread, width, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace(_FILLER, "") for line in lines] or [""]


def table_lines(columns: Sequence[Column], rows: Iterable[Row], width: int | None) -> list[str]:
    """Return a table whose lines have at most so many cells, or any number.

    Numbers are whole. Other texts are folded; sentences that have no space beside them follow their row.
    """
    texts = [[column.text(row) for column in columns] for row in rows]
    widths = [
        max(map(cell_width, (column.head, *(row[number] for row in texts))))
        for number, column in enumerate(columns)
    ]
    beside = list(range(len(columns)))
    if width is not None and _total(widths) > width:
        brief = [number for number in beside if not columns[number].is_sentence]
        if width - _total([widths[number] for number in brief]) < _MIN_SENTENCE + len(_GAP):
            beside = brief
        for is_name in (False, True):  # names last: they identify the rows
            folded = [
                n for n in beside if not columns[n].is_whole and columns[n].is_name == is_name
            ]
            _fold(widths, beside, folded, width)
    lines = _row_lines(columns, widths, beside, [column.head for column in columns])
    for row in texts:
        lines += _row_lines(columns, widths, beside, row)
        for number in sorted({*range(len(columns))}.difference(beside)):
            if width and row[number] != NONE:
                lines += wrap(_BELOW + row[number], width, _BELOW)
    return lines


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _fold(widths: list[int], shown: Sequence[int], folded: Sequence[int], width: int) -> None:
    """Take from the widest of the columns that may be folded until all fit."""
    while folded and _total([widths[number] for number in shown]) > width:
        widest = max(folded, key=widths.__getitem__)
        if widths[widest] <= _MIN_FOLDED:
            break
        widths[widest] -= 1


def _row_lines(
    columns: Sequence[Column], widths: Sequence[int], shown: Sequence[int], texts: Sequence[str]
) -> list[str]:
    cells = [
        [texts[number]]
        if columns[number].is_whole or cell_width(texts[number]) <= widths[number]
        else wrap(texts[number], widths[number])
        for number in shown
    ]
    lines = []
    for parts in zip_longest(*cells, fillvalue=""):
        padded = []
        for number, part in zip(shown, parts, strict=True):
            filling = " " * (widths[number] - cell_width(part))
            padded.append(filling + part if columns[number].is_number else part + filling)
        lines.append(_GAP.join(padded).rstrip())
    return lines
