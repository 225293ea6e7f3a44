"""FOCUS rows as CSV, and back: 12 decimals, times in UTC, null as an empty cell."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from fractions import Fraction
from typing import BinaryIO, TextIO

from collector.billing.focus_columns import (
    COLUMNS,
    DECIMALS,
    NUMBERS,
    TIMES,
    UNIT_OF_DECIMALS,
    Row,
    Value,
    complete,
)

_NUMBER = re.compile(rf"(-?)(\d+)\.(\d{{{DECIMALS}}})", re.ASCII)


class FocusCsvError(ValueError):
    """Text that is not an export of Railscope; the message contains line and column."""


class CsvWriter:
    """Writer of rows to a CSV file, starting with the header."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._write([COLUMNS])

    def add(self, rows: Iterable[Row]) -> None:
        """Write rows. Raises ValueError for other columns and for more than 12 decimals."""
        self._write(
            [_written(value) for value in map(complete(row).__getitem__, COLUMNS)] for row in rows
        )

    def close(self) -> None:
        """Do nothing: no rows are buffered."""

    def _write(self, lines: Iterable[Iterable[str]]) -> None:
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\r\n", strict=True).writerows(lines)
        self._file.write(text.getvalue().encode())


def write(rows: Iterable[Row]) -> str:
    """The rows as CSV with a header. Raises ValueError as CsvWriter does."""
    file = io.BytesIO()
    CsvWriter(file).add(rows)
    return file.getvalue().decode()


def parse(text: str) -> list[Row]:
    """The rows of a CSV in the format of `write`. Raises FocusCsvError."""
    return list(_rows(io.StringIO(text, newline=""), COLUMNS))


def read_from(file: BinaryIO, columns: Collection[str] = COLUMNS) -> Iterator[Row]:
    """Iterate over the rows of a file, limited to these columns. Raises FocusCsvError."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    try:
        yield from _rows(text, columns)
    except UnicodeDecodeError as error:
        message = f"is no UTF-8: {error}"
        raise FocusCsvError(message) from error
    finally:
        text.detach()


def _rows(file: TextIO, columns: Collection[str]) -> Iterator[Row]:
    reader = csv.reader(file, strict=True)
    try:
        names = next(reader, [])
        wanted = [(at, name) for at, name in enumerate(names) if name in columns]
        for cells in reader:
            where = f"line {reader.line_num}"
            if len(cells) != len(names):
                message = f"{where}: {len(cells)} cells under {len(names)} columns"
                raise FocusCsvError(message)
            yield {name: _read(cells[at], name, where) for at, name in wanted}
    except csv.Error as error:
        message = f"line {reader.line_num}: {error}"
        raise FocusCsvError(message) from error


def spelled(value: Fraction) -> str:
    """A number with 12 decimals, exactly. Raises ValueError if it needs more."""
    counted, rest = divmod(value.numerator * UNIT_OF_DECIMALS, value.denominator)
    if rest:
        message = f"{value} has more than {DECIMALS} decimals"
        raise ValueError(message)
    whole, decimals = divmod(abs(counted), UNIT_OF_DECIMALS)
    return f"{'-' if counted < 0 else ''}{whole}.{decimals:0{DECIMALS}}"


def _written(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, Fraction):
        return spelled(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return value


def _read(cell: str, name: str, where: str) -> Value:
    if cell == "":
        return None
    if name in NUMBERS:
        match = _NUMBER.fullmatch(cell)
        if match is None:
            message = f"{where}, {name}: {cell!r} is no number with {DECIMALS} decimals"
            raise FocusCsvError(message)
        sign, whole, decimals = match.groups()
        counted = Fraction(int(whole + decimals), UNIT_OF_DECIMALS)
        return -counted if sign else counted
    if name in TIMES:
        try:
            return datetime.fromisoformat(cell)
        except ValueError as error:
            message = f"{where}, {name}: {cell!r} is no time"
            raise FocusCsvError(message) from error
    return cell
