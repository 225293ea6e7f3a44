"""FOCUS rows as CSV and as Parquet, and back; columns of an export, in order, and their types.

Source: FinOps-Open-Cost-and-Usage-Spec/FOCUS_Spec, tag v1.2, specification/columns. FOCUS columns
come first, in order of name; Railscope's own columns start with x_ and follow them.

CSV: 12 decimals, times in UTC, null as an empty cell. Parquet: decimal128(38, 12), times in
microseconds of UTC, real nulls. Parquet requires PyArrow, from the extra `parquet`. The same rows
produce the same bytes with the same version of PyArrow: the file contains no time of writing and no
random number.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from importlib import import_module
from typing import Any, BinaryIO, TypeAlias

from railscope import convert_errors
from railscope.timestamps import TimestampError, format_datetime, parse_timestamp, to_datetime
from railscope_collector.billing import BillingError

FOCUS_VERSION = "1.2"
DECIMALS = 12
UNIT_OF_DECIMALS = 10**DECIMALS
PRECISION = 38  # total digits: decimal128(38, 12)

FocusValue: TypeAlias = str | Fraction | datetime | None
FocusRow: TypeAlias = dict[str, FocusValue]

NUMBERS = frozenset({
    "BilledCost", "ConsumedQuantity", "ContractedCost", "ContractedUnitPrice", "EffectiveCost",
    "ListCost", "ListUnitPrice", "PricingCurrencyContractedUnitPrice",
    "PricingCurrencyEffectiveCost", "PricingCurrencyListUnitPrice", "PricingQuantity",
    "x_CoverageRatio",
})  # fmt: skip
TIMES = frozenset(
    {"BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd"}
)
_TEXTS = frozenset({
    "BillingAccountId", "BillingAccountName", "BillingCurrency", "CapacityReservationId",
    "CapacityReservationStatus", "ChargeCategory", "ChargeClass", "ChargeDescription",
    "ChargeFrequency", "CommitmentDiscountStatus", "ConsumedUnit", "InvoiceId",
    "InvoiceIssuerName", "PricingCategory", "PricingCurrency", "PricingUnit", "ProviderName",
    "PublisherName", "RegionId", "RegionName", "ResourceId", "ResourceName", "ResourceType",
    "ServiceCategory", "ServiceName", "ServiceSubcategory", "SkuId", "SkuMeter",
    "SkuPriceDetails", "SkuPriceId", "SubAccountId", "SubAccountName", "SubAccountType", "Tags",
    "x_AllocationState", "x_AuditCheckpoint", "x_AuditRecord", "x_ChargeId", "x_ChargeKind", "x_ClaimId",
    "x_CorrectsInvoiceId", "x_EvidenceHash", "x_LedgerRevision",
})  # fmt: skip
COLUMNS = tuple(sorted(NUMBERS | TIMES | _TEXTS, key=lambda name: (name.startswith("x_"), name)))
_ALL = frozenset(COLUMNS)


def check_columns(row: FocusRow) -> FocusRow:
    """The row, unchanged. Raises ValueError if its columns are not those of an export."""
    if row.keys() != _ALL:
        wrong = sorted(row.keys() ^ _ALL)
        message = f"missing or unknown columns of an export: {', '.join(wrong)}"
        raise ValueError(message)
    return row


_NUMBER = re.compile(rf"(-?)(\d+)\.(\d{{{DECIMALS}}})", re.ASCII)


class FocusCsvError(BillingError, ValueError):
    """Text that is not an export of Railscope; the message contains line and column."""


class FocusCsvWriter:
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
        text.detach()


def format_number(value: Fraction) -> str:
    """A number with 12 decimals, exactly. Raises ValueError if it needs more."""
    counted, rest = divmod(value.numerator * UNIT_OF_DECIMALS, value.denominator)
    if rest:
        message = f"invalid number {value}: expected at most {DECIMALS} decimals"
        raise ValueError(message)
    whole, decimals = divmod(abs(counted), UNIT_OF_DECIMALS)
    return f"{'-' if counted < 0 else ''}{whole}.{decimals:0{DECIMALS}}"


def _format_cell(value: FocusValue) -> str:
    if value is None:
        return ""
    if isinstance(value, Fraction):
        return format_number(value)
    if isinstance(value, datetime):
        return format_datetime(value)
    return value


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
    return cell


ROWS_IN_A_GROUP = 20_000  # buffered in memory by the writer
ROWS_IN_A_BATCH = 5_000  # read at once


class NoParquetError(BillingError, RuntimeError):
    """PyArrow is not installed; the message names the extra that installs it."""


class FocusParquetError(BillingError, ValueError):
    """A file that is not an export of Railscope; the message contains the reason."""


class FocusParquetWriter:
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
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        message = "missing PyArrow, which Parquet requires; fix: pip install 'railscope[parquet]'"
        raise NoParquetError(message) from error


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
