"""The JSON and CSV of a statement, as its recipient reads them."""

from __future__ import annotations

import csv
import io
from fractions import Fraction

import msgspec

from railscope_collector.billing.statement_forms import StatementDocument


def from_json(raw: bytes) -> StatementDocument:
    return msgspec.json.decode(raw, type=StatementDocument)


def from_csv(raw: bytes) -> list[dict[str, str]]:
    """The rows, without the apostrophe that keeps a spreadsheet from computing a cell."""
    rows = csv.DictReader(io.StringIO(raw.decode(), newline=""), strict=True)
    return [{name: cell.removeprefix("'") for name, cell in row.items()} for row in rows]


def total_amount(rows: list[dict[str, str]]) -> Fraction:
    return sum((Fraction(row["amount"]) for row in rows), Fraction(0))
