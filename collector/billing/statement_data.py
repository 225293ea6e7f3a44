"""A statement line by line, for programs and spreadsheets: CSV and JSON, and back.

Amounts are strings with the decimals of the currency; `exact` is the amount before rounding, as a
fraction. In CSV, text that a spreadsheet would interpret as a formula starts with an apostrophe.
"""

from __future__ import annotations

import csv
import io
from fractions import Fraction

import msgspec

from collector.billing.invoice import Line
from collector.billing.rounding import decimal, exponent_of
from collector.billing.statement import Statement, coverage, source_of, spelled_doubt, unit_price
from collector.metering.instants import spelled
from collector.metering.periods import name_of

_EXACT_PLACES = 12
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBERS = {"quantity", "unit_price", "amount", "unrounded"}


class StatementError(ValueError):
    """Text that is not a statement of Railscope."""


class StatementLine(msgspec.Struct, frozen=True):
    """One charge, as text."""

    charge: str
    kind: str
    sku: str
    mig_profile: str
    resource: str
    claim: str
    state: str
    start: str
    end: str
    quantity: str
    unit: str
    unit_price: str
    amount: str
    exact: str
    ledger_revision: str
    price_version: int
    corrects: str
    note: str
    clock_suspect: str = ""
    """Reason for the clock mark of the GPU-day; empty if its evidence has none."""


class StatementDocument(msgspec.Struct, frozen=True):
    """A statement as JSON."""

    invoice: str
    status: str
    tenant: str
    billed_by: str
    period: str
    start: str
    end: str
    currency: str
    total: str
    issued: str | None
    replaces: str | None
    content_hash: str
    observed: str | None
    audit_record: int | None
    audit_checkpoint_size: int | None
    roots: dict[str, str]
    marks: list[str]
    lines: list[StatementLine]
    undecided: list[dict[str, str]]


def as_json(statement: Statement) -> bytes:
    """The statement as JSON."""
    return msgspec.json.format(msgspec.json.encode(document(statement)), indent=2) + b"\n"


def from_json(raw: bytes) -> StatementDocument:
    """Parse a statement. Raises StatementError."""
    try:
        return msgspec.json.decode(raw, type=StatementDocument)
    except msgspec.MsgspecError as error:
        message = f"no statement: {error}"
        raise StatementError(message) from error


def document(statement: Statement) -> StatementDocument:
    """The statement as a structure for JSON."""
    invoice, period = statement.invoice, statement.invoice.period
    places = exponent_of(invoice.currency)
    seen = coverage(invoice)
    return StatementDocument(
        invoice=statement.invoice_id,
        status=statement.status,
        tenant=invoice.tenant,
        billed_by=statement.seller,
        period=name_of(period),
        start=spelled(period.start_ns),
        end=spelled(period.end_ns),
        currency=invoice.currency,
        total=_plain(invoice.payable, places),
        issued=None if invoice.issued_ns is None else spelled(invoice.issued_ns),
        replaces=invoice.replaces or None,
        content_hash=invoice.content_hash,
        observed=None if seen is None else _plain(seen, _EXACT_PLACES),
        audit_record=statement.audit.leaf if statement.audit else None,
        audit_checkpoint_size=statement.audit.checkpoint_size if statement.audit else None,
        roots=dict(statement.roots),
        marks=list(statement.marks),
        lines=[_line(line, statement, places) for line in sorted(invoice.lines, key=_place)],
        undecided=[
            {
                "resource": one.resource,
                "claim": one.claim,
                "start": spelled(one.start_ns),
                "end": spelled(one.end_ns),
                "gpu_hours": _plain(one.gpu_hours, _EXACT_PLACES),
                "reason": one.reason,
            }
            for one in statement.undecided
        ],
    )


def as_csv(statement: Statement) -> bytes:
    """The statement as CSV, one charge per row; each row repeats the invoice fields."""
    whole = document(statement)
    head = {
        "invoice": whole.invoice, "status": whole.status, "tenant": whole.tenant,
        "period": whole.period, "currency": whole.currency,
    }  # fmt: skip
    names = [*head, *StatementLine.__struct_fields__, "unrounded"]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names, lineterminator="\r\n", strict=True)
    writer.writeheader()
    for line in whole.lines:
        cells = head | {k: str(v) for k, v in msgspec.structs.asdict(line).items()}
        cells["unrounded"] = _plain(Fraction(line.exact), _EXACT_PLACES)
        writer.writerow({name: _safe(name, cell) for name, cell in cells.items()})
    return text.getvalue().encode()


def from_csv(raw: bytes) -> list[dict[str, str]]:
    """Parse the rows of a statement. Raises StatementError."""
    try:
        rows = list(csv.DictReader(io.StringIO(raw.decode(), newline=""), strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        message = f"no statement: {error}"
        raise StatementError(message) from error
    return [{name: _unsafe(cell) for name, cell in row.items()} for row in rows]


def total(rows: list[dict[str, str]]) -> Fraction:
    """Sum of the amounts in the rows of a CSV."""
    return sum((Fraction(row["amount"]) for row in rows), Fraction(0))


def _line(line: Line, statement: Statement, places: int) -> StatementLine:
    charge, unit = line.charge, line.charge.unit
    key = source_of(charge)
    revision = statement.revisions.get(key) if key else None
    doubts = statement.clock_suspect.get(key, ()) if key else ()
    return StatementLine(
        charge=charge.charge_id,
        kind=charge.kind.value,
        sku=charge.sku,
        mig_profile=charge.mig_profile,
        resource=charge.resource,
        claim=charge.claim,
        state=str(charge.state),
        start=spelled(charge.service_t0_ns),
        end=spelled(charge.service_t1_ns),
        quantity=_plain(charge.quantity / unit.size, _EXACT_PLACES) if unit else "",
        unit=unit.label if unit else "",
        unit_price=unit_price(charge.price_nano).replace(",", "") if unit else "",
        amount=_plain(Fraction(line.minor, 10**places), places),
        exact=str(charge.amount),
        ledger_revision=f"{key.gpu}/{key.day}/{revision}" if key and revision else "",
        price_version=charge.price_version,
        corrects=charge.corrects,
        note=charge.note,
        clock_suspect="; ".join(map(spelled_doubt, doubts)),
    )


def _place(line: Line) -> tuple[int, str, str, str, str]:
    charge = line.charge
    return (
        charge.service_t0_ns, charge.resource, charge.claim, charge.kind.value, charge.charge_id,
    )  # fmt: skip


def _plain(value: Fraction, places: int) -> str:
    return decimal(value, places).replace(",", "")


def _safe(name: str, cell: str) -> str:
    # A spreadsheet would interpret 7/3 as the seventh of March.
    text = name == "exact" or (name not in _NUMBERS and cell.startswith(("'", *_FORMULA)))
    return f"'{cell}" if text else cell


def _unsafe(cell: str) -> str:
    return cell.removeprefix("'")
