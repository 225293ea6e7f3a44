"""FOCUS rows as CSV, and back: 12 decimals, times in UTC, nothing between commas for null."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from fractions import Fraction

from collector.billing.focus import DECIMALS, UNIT_OF_DECIMALS, Row, Value

NUMBERS = frozenset({
    "BilledCost", "ConsumedQuantity", "ContractedCost", "ContractedUnitPrice", "EffectiveCost",
    "ListCost", "ListUnitPrice", "PricingCurrencyContractedUnitPrice",
    "PricingCurrencyEffectiveCost", "PricingCurrencyListUnitPrice", "PricingQuantity",
    "x_CoverageRatio",
})  # fmt: skip
TIMES = frozenset({
    "BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd",
})  # fmt: skip
_NUMBER = re.compile(rf"(-?)(\d+)\.(\d{{{DECIMALS}}})", re.ASCII)


class FocusCsvError(ValueError):
    """Text that is no export of ours; the message names the line and the column."""


def write(rows: Iterable[Row]) -> str:
    """The rows as CSV with a header. All rows have the same columns; columns of ours come last."""
    found = list(rows)
    names = sorted(found[0], key=lambda name: (name.startswith("x_"), name)) if found else []
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names, lineterminator="\r\n", strict=True)
    writer.writeheader()
    writer.writerows({name: _written(value) for name, value in row.items()} for row in found)
    return text.getvalue()


def parse(text: str) -> list[Row]:
    """The rows of a CSV as `write` makes it. Raises FocusCsvError."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        names = next(reader, [])
        return [_row(names, cells, f"line {reader.line_num}") for cells in reader]
    except csv.Error as error:
        message = f"line {reader.line_num}: {error}"
        raise FocusCsvError(message) from error


def spelled(value: Fraction) -> str:
    """A number with 12 decimals, exactly. Raises ValueError for one that needs more."""
    counted = value * UNIT_OF_DECIMALS
    if counted.denominator != 1:
        message = f"{value} has more than {DECIMALS} decimals"
        raise ValueError(message)
    whole, decimals = divmod(abs(counted.numerator), UNIT_OF_DECIMALS)
    return f"{'-' if value < 0 else ''}{whole}.{decimals:0{DECIMALS}}"


def _written(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, Fraction):
        return spelled(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return value


def _row(names: list[str], cells: list[str], where: str) -> Row:
    if len(cells) != len(names):
        message = f"{where}: {len(cells)} cells under {len(names)} columns"
        raise FocusCsvError(message)
    pairs = zip(names, cells, strict=True)
    return {name: _read(cell, name, where) for name, cell in pairs}


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
