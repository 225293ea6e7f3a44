"""FOCUS rows as CSV, and back: 12 decimals, times in UTC, null as an empty cell.

Text that a spreadsheet would interpret as a formula starts with an apostrophe.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from fractions import Fraction
from typing import BinaryIO

from railscope.timestamps import TimestampError, format_datetime, parse_timestamp, to_datetime
from railscope.untrusted_text import escape_formula, restore_formula
from railscope_collector.billing import BillingError
from railscope_collector.billing.focus_columns import (
    COLUMNS,
    DECIMALS,
    NUMBERS,
    TIMES,
    UNIT_OF_DECIMALS,
    FocusRow,
    FocusValue,
    check_columns,
    format_number,
)

_NUMBER = re.compile(rf"(-?)(\d+)\.(\d{{{DECIMALS}}})", re.ASCII)


class FocusCsvError(BillingError, ValueError):
    """Text that is not an export of Railscope; the message contains line and column."""


class Writer:
    """Writer of rows to a CSV file, starting with the header."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._write([COLUMNS])

    def add(self, rows: Iterable[FocusRow]) -> None:
        """Write rows. Raises ValueError for other columns and for more than 12 decimals."""
        self._write(
            [_format_cell(value) for value in map(check_columns(row).__getitem__, COLUMNS)]
            for row in rows
        )

    def close(self) -> None:
        """Do nothing: no rows are buffered."""

    def _write(self, lines: Iterable[Iterable[str]]) -> None:
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\r\n", strict=True).writerows(lines)
        self._file.write(text.getvalue().encode())


def read_csv(file: BinaryIO, columns: Collection[str] = COLUMNS) -> Iterator[FocusRow]:
    """Iterate over the rows of a file, limited to these columns. Raises FocusCsvError."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    reader = csv.reader(text, strict=True)
    try:
        names = next(reader, [])
        selected = [(index, name) for index, name in enumerate(names) if name in columns]
        for cells in reader:
            location = f"invalid FOCUS file: line {reader.line_num}"
            if len(cells) != len(names):
                message = f"{location}: {len(cells)} cells: expected {len(names)}"
                raise FocusCsvError(message)
            yield {name: _parse_cell(cells[index], name, location) for index, name in selected}
    except UnicodeDecodeError as error:
        message = f"invalid FOCUS file: invalid UTF-8: {error}"
        raise FocusCsvError(message) from error
    except csv.Error as error:
        message = f"invalid FOCUS file: line {reader.line_num}: {error}"
        raise FocusCsvError(message) from error
    finally:
        # Else the wrapper would close the file, which the caller still uses.
        text.detach()


def _format_cell(value: FocusValue) -> str:
    if value is None:
        return ""
    if isinstance(value, Fraction):
        return format_number(value)
    if isinstance(value, datetime):
        return format_datetime(value)
    return escape_formula(value)  # claims and resources have names that nodes choose


def _parse_cell(cell: str, name: str, location: str) -> FocusValue:
    if cell == "":
        return None
    if name in NUMBERS:
        match = _NUMBER.fullmatch(cell)
        if match is None:
            message = f"{location}, {name}: {cell!r}: expected a number with {DECIMALS} decimals"
            raise FocusCsvError(message)
        sign, whole, decimals = match.groups()
        counted = Fraction(int(whole + decimals), UNIT_OF_DECIMALS)
        return -counted if sign else counted
    if name in TIMES:
        try:
            return to_datetime(parse_timestamp(cell))
        except TimestampError as error:
            message = f"{location}, {name}: {cell!r}: expected a time"
            raise FocusCsvError(message) from error
    return restore_formula(cell)
