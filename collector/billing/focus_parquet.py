"""FOCUS rows as Parquet, and back: decimal128(38, 12), times in microseconds of UTC, real nulls.

PyArrow writes it; it comes with the extra `parquet`, and nothing else here needs it. The same rows
make the same bytes with the same version of PyArrow: no time and no random number is in the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from importlib import import_module
from itertools import islice
from typing import Any, BinaryIO

from collector.billing.focus_columns import (
    COLUMNS,
    DECIMALS,
    NUMBERS,
    PRECISION,
    TIMES,
    VERSION,
    Row,
    Value,
    complete,
)
from collector.billing.focus_csv import spelled

ROWS_IN_A_GROUP = 50_000  # what is in memory at once


class NoParquetError(RuntimeError):
    """PyArrow is not installed; the message names the extra that brings it."""


class FocusParquetError(ValueError):
    """A file that is no export of ours; the message says why."""


def write_to(rows: Iterable[Row], file: BinaryIO) -> None:
    """Write the rows in groups of at most ROWS_IN_A_GROUP; no rows make a file without a group.

    Raises NoParquetError, and ValueError as CSV does.
    """
    arrow, parquet = _libraries()
    schema = _schema(arrow)
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for group in _groups(rows):
            columns = [
                arrow.array([_stored(complete(row)[name]) for row in group], field.type)
                for name, field in zip(COLUMNS, schema, strict=True)
            ]
            writer.write_table(arrow.Table.from_arrays(columns, schema=schema))


def read_from(file: BinaryIO) -> Iterator[Row]:
    """The rows of a file, group after group. Raises NoParquetError, FocusParquetError."""
    arrow, parquet = _libraries()
    try:
        source = parquet.ParquetFile(file)
    except arrow.ArrowInvalid as error:
        message = f"is no Parquet file: {error}"
        raise FocusParquetError(message) from error
    if not source.schema_arrow.equals(_schema(arrow), check_metadata=False):
        message = "its columns are not those of an export"
        raise FocusParquetError(message)
    for batch in source.iter_batches(batch_size=ROWS_IN_A_GROUP):
        for row in batch.to_pylist():
            yield {name: _read(value) for name, value in row.items()}


def _groups(rows: Iterable[Row]) -> Iterator[list[Row]]:
    remaining = iter(rows)
    while group := list(islice(remaining, ROWS_IN_A_GROUP)):
        yield group


def _libraries() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        message = "Parquet needs PyArrow: pip install 'railscope[parquet]'"
        raise NoParquetError(message) from error


def _schema(arrow: Any) -> Any:
    number = arrow.decimal128(PRECISION, DECIMALS)
    time = arrow.timestamp("us", tz="UTC")
    types = {**dict.fromkeys(NUMBERS, number), **dict.fromkeys(TIMES, time)}
    fields = [(name, types.get(name, arrow.string())) for name in COLUMNS]
    return arrow.schema(fields, metadata={"focus_version": VERSION})


def _stored(value: Value) -> str | Decimal | datetime | None:
    # Through text: a Decimal made by arithmetic has the precision of the context, 28 digits.
    return Decimal(spelled(value)) if isinstance(value, Fraction) else value


def _read(value: str | Decimal | datetime | None) -> Value:
    if isinstance(value, Decimal):
        return Fraction(value)
    return value.astimezone(UTC) if isinstance(value, datetime) else value
