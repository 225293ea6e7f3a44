"""FOCUS rows as Parquet, and back: decimal128(38, 12), times in microseconds of UTC, real nulls.

Parquet requires PyArrow, from the extra `parquet`. The same rows
produce the same bytes with the same version of PyArrow: the file contains no time of writing and no
random number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from importlib import import_module
from typing import Any, BinaryIO

from railscope import convert_errors, extras
from railscope_collector.billing import BillingError
from railscope_collector.billing.focus_columns import (
    COLUMNS,
    DECIMALS,
    FOCUS_VERSION,
    NUMBERS,
    PRECISION,
    TIMES,
    FocusRow,
    FocusValue,
    check_columns,
    format_number,
)

ROWS_IN_A_GROUP = 20_000  # buffered in memory by the writer
ROWS_IN_A_BATCH = 5_000  # read at once


class NoParquetError(BillingError, RuntimeError):
    """PyArrow is not installed; the message names the extra that installs it."""


class FocusParquetError(BillingError, ValueError):
    """A file that is not an export of Railscope; the message contains the reason."""


class Writer:
    """Writer of rows to a Parquet file, group by group. Raises NoParquetError."""

    def __init__(self, file: BinaryIO, rows_in_a_group: int = ROWS_IN_A_GROUP) -> None:
        self._arrow, parquet = _import_pyarrow()
        self._schema = _schema(self._arrow)
        self._writer = parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._max_rows = rows_in_a_group
        self._waiting: list[FocusRow] = []

    def add(self, rows: Iterable[FocusRow]) -> None:
        """Add rows. Raises ValueError for other columns and for more than 12 decimals."""
        for row in rows:
            self._waiting.append(check_columns(row))
            if len(self._waiting) == self._max_rows:
                self._write()

    def close(self) -> None:
        """Write the buffered rows and the footer of the file."""
        try:
            if self._waiting:
                self._write()
        finally:
            # PyArrow's writer would otherwise close itself after the file was closed.
            self._writer.close()

    def _write(self) -> None:
        columns = [
            self._arrow.array([_to_parquet(row[name]) for row in self._waiting], field.type)
            for name, field in zip(COLUMNS, self._schema, strict=True)
        ]
        self._writer.write_table(self._arrow.Table.from_arrays(columns, schema=self._schema))
        self._waiting.clear()


def read_parquet(file: BinaryIO, columns: Collection[str] = COLUMNS) -> Iterator[FocusRow]:
    """The rows of a file, with these columns. Raises NoParquetError, FocusParquetError."""
    arrow, parquet = _import_pyarrow()
    with convert_errors(arrow.ArrowInvalid, FocusParquetError, "invalid Parquet file: "):
        source = parquet.ParquetFile(file)
    if not source.schema_arrow.equals(_schema(arrow), check_metadata=False):
        message = "invalid Parquet file: expected the columns of an export"
        raise FocusParquetError(message)
    for batch in source.iter_batches(ROWS_IN_A_BATCH, columns=list(columns)):
        for row in batch.to_pylist():
            yield {name: _from_parquet(value) for name, value in row.items()}


def _import_pyarrow() -> tuple[Any, Any]:
    with extras.importing("parquet", "Parquet", "PyArrow", NoParquetError):
        return import_module("pyarrow"), import_module("pyarrow.parquet")


def _schema(arrow: Any) -> Any:
    number = arrow.decimal128(PRECISION, DECIMALS)
    time = arrow.timestamp("us", tz="UTC")
    types = {**dict.fromkeys(NUMBERS, number), **dict.fromkeys(TIMES, time)}
    fields = [(name, types.get(name, arrow.string())) for name in COLUMNS]
    return arrow.schema(fields, metadata={"focus_version": FOCUS_VERSION})


def _to_parquet(value: FocusValue) -> str | Decimal | datetime | None:
    # Through text: a Decimal from arithmetic has the precision of the context, 28 digits.
    return Decimal(format_number(value)) if isinstance(value, Fraction) else value


def _from_parquet(value: str | Decimal | datetime | None) -> FocusValue:
    if isinstance(value, Decimal):
        return Fraction(value)
    return value.astimezone(UTC) if isinstance(value, datetime) else value
