"""A statement line by line as CSV and JSON, for programs and spreadsheets.

Amounts are strings
with the decimals of the currency; `exact` is the amount before rounding, as a fraction. In CSV, text
that a spreadsheet would interpret as a formula starts with an apostrophe.
"""

from __future__ import annotations

import csv
import io
from fractions import Fraction

import msgspec

from railscope.timestamps import format_timestamp
from railscope.untrusted_text import escape_formula
from railscope_collector.billing import charges, invoices
from railscope_collector.billing.statement import (
    TenantStatement,
    coverage,
    source_day,
    unit_price,
)
from railscope_collector.metering.units import period_name

_EXACT_PLACES = 12
_NUMBER_FIELDS = {"quantity", "unit_price", "amount", "unrounded"}


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


def as_json(statement: TenantStatement) -> bytes:
    """The statement as JSON."""
    return msgspec.json.format(msgspec.json.encode(statement_document(statement)), indent=2) + b"\n"


def statement_document(statement: TenantStatement) -> StatementDocument:
    """The statement as a structure for JSON."""
    invoice, period = statement.invoice, statement.invoice.period
    places = charges.currency_exponent(invoice.currency)
    observed = coverage(invoice)
    return StatementDocument(
        invoice=statement.invoice_id,
        status=statement.status,
        tenant=invoice.tenant,
        billed_by=statement.seller,
        period=period_name(period),
        start=format_timestamp(period.start_ns),
        end=format_timestamp(period.end_ns),
        currency=invoice.currency,
        total=charges.plain_decimal(invoice.payable, places),
        issued=None if invoice.issued_ns is None else format_timestamp(invoice.issued_ns),
        replaces=invoice.replaces or None,
        content_hash=invoice.content_hash,
        observed=None if observed is None else charges.plain_decimal(observed, _EXACT_PLACES),
        audit_record=statement.audit.leaf if statement.audit else None,
        audit_checkpoint_size=statement.audit.checkpoint_size if statement.audit else None,
        roots=dict(statement.roots),
        marks=list(statement.marks),
        lines=[_line(line, statement, places) for line in sorted(invoice.lines, key=_place)],
        undecided=[
            {
                "resource": use.resource,
                "claim": use.claim,
                "start": format_timestamp(use.start_ns),
                "end": format_timestamp(use.end_ns),
                "gpu_hours": charges.plain_decimal(use.gpu_hours, _EXACT_PLACES),
                "reason": use.reason,
            }
            for use in statement.undecided
        ],
    )


def as_csv(statement: TenantStatement) -> bytes:
    """The statement as CSV, one charge per row; each row repeats the invoice fields."""
    whole = statement_document(statement)
    repeated = ("invoice", "status", "tenant", "period", "currency")
    head = {name: getattr(whole, name) for name in repeated}
    names = [*head, *StatementLine.__struct_fields__, "unrounded"]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names, lineterminator="\r\n", strict=True)
    writer.writeheader()
    for line in whole.lines:
        cells = head | {k: str(v) for k, v in msgspec.structs.asdict(line).items()}
        cells["unrounded"] = charges.plain_decimal(Fraction(line.exact), _EXACT_PLACES)
        writer.writerow({name: _escape_cell(name, cell) for name, cell in cells.items()})
    return text.getvalue().encode()


def _line(line: invoices.InvoiceLine, statement: TenantStatement, places: int) -> StatementLine:
    charge, unit = line.charge, line.charge.unit
    key = source_day(charge)
    revision = statement.revisions.get(key) if key else None
    return StatementLine(
        charge=charge.charge_id,
        kind=charge.kind.value,
        sku=charge.sku,
        mig_profile=charge.mig_profile,
        resource=charge.resource,
        claim=charge.claim,
        state=str(charge.state),
        start=format_timestamp(charge.service_t0_ns),
        end=format_timestamp(charge.service_t1_ns),
        quantity=charges.plain_decimal(charge.quantity / unit.size, _EXACT_PLACES) if unit else "",
        unit=unit.label if unit else "",
        unit_price=unit_price(charge.price_nano).replace(",", "") if unit else "",
        amount=charges.plain_decimal(Fraction(line.minor, 10**places), places),
        exact=str(charge.amount),
        ledger_revision=f"{key.gpu}/{key.day}/{revision}" if key and revision else "",
        price_version=charge.price_version,
        corrects=charge.corrects,
        note=charge.note,
    )


def _place(line: invoices.InvoiceLine) -> tuple[int, str, str, str, str]:
    charge = line.charge
    return (
        charge.service_t0_ns,
        charge.resource,
        charge.claim,
        charge.kind.value,
        charge.charge_id,
    )


def _escape_cell(name: str, cell: str) -> str:
    if name == "exact":
        return f"'{cell}"  # a spreadsheet would interpret 7/3 as the seventh of March
    return cell if name in _NUMBER_FIELDS else escape_formula(cell)
