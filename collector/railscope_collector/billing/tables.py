"""Billing tables, in the database of the ledger, and exact conversion of their rows.

Rows are added and never changed. An invoice is issued by its row, and void if a row of `voids`
refers to it; drafts are not stored. A period is closed by a closing; the closing of a single tenant
replaces a void invoice. Exact numbers are text: integers, or fractions such as `7/3`. Invoices and
charges are converted to rows, and back, exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import msgspec
import sqlalchemy as sa

from railscope_collector.billing import undecided_use
from railscope_collector.billing.charges import Charge, ChargeKind, PriceUnit
from railscope_collector.billing.closing_record import PeriodClosing
from railscope_collector.billing.invoices import Invoice, InvoiceLine, InvoiceStatus
from railscope_collector.ledger import schema
from railscope_collector.ledger.day_documents import GpuDay
from railscope_collector.metering.units import Period

price_books = sa.Table(
    "billing_price_book",
    schema.metadata,
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("published_ns", sa.BigInteger, nullable=False),
    *schema.texts("currency", "content_hash"),
    sa.Column("recorded_ns", sa.BigInteger, nullable=False),
    *schema.texts("recorded_by", "text"),
)
"""Price books as they were published."""

closings = sa.Table(
    "billing_closing",
    schema.metadata,
    sa.Column("closing", sa.BigInteger, primary_key=True, autoincrement=False),
    *schema.integers("period_start_ns", "period_end_ns"),
    sa.Column("tenant_id", sa.Text, nullable=False),
    sa.Column("closed_ns", sa.BigInteger, nullable=False),
    *schema.texts("closed_by", "currency"),
    sa.Column("price_version", sa.ForeignKey("billing_price_book.version"), nullable=False),
    *schema.texts("ledger_root", "manifest_root", "corrected", "missing"),
    sa.CheckConstraint("period_start_ns < period_end_ns", name="time_passes"),
)
# One closing for all tenants; those of a single tenant, which replace void invoices, are further ones of the period.
sa.Index(
    "billing_closing_period",
    closings.c.period_start_ns,
    unique=True,
    sqlite_where=closings.c.tenant_id == "",
    postgresql_where=closings.c.tenant_id == "",
)

closing_revisions = sa.Table(
    "billing_closing_revision",
    schema.metadata,
    sa.Column("closing", sa.ForeignKey("billing_closing.closing"), primary_key=True),
    sa.Column("gpu_uuid", sa.Text, primary_key=True),
    sa.Column("day", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.ForeignKeyConstraint(
        ["gpu_uuid", "day", "revision"],
        ["ledger_revision.gpu_uuid", "ledger_revision.day", "ledger_revision.revision"],
    ),
    sa.Index("billing_closing_revision_day", "gpu_uuid", "day"),
)
"""The revisions of the ledger that a closing of a release up to 0.3 used."""

closing_days = sa.Table(
    "billing_closing_day",
    schema.metadata,
    sa.Column("closing", sa.ForeignKey("billing_closing.closing"), primary_key=True),
    sa.Column("gpu_uuid", sa.Text, primary_key=True),
    sa.Column("day", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Index("billing_closing_day_day", "gpu_uuid", "day"),
)
"""The revisions of the ledger that a closing used; those of earlier releases are among them."""
used_revisions = sa.union_all(sa.select(closing_revisions), sa.select(closing_days)).subquery()

adjustments = sa.Table(
    "billing_adjustment",
    schema.metadata,
    sa.Column("charge_id", sa.Text, primary_key=True),
    *schema.texts("tenant_id", "kind"),
    *schema.integers("service_t0_ns", "service_t1_ns"),
    *schema.texts("amount", "currency", "reason"),
    sa.Column("recorded_ns", sa.BigInteger, nullable=False),
    sa.Column("recorded_by", sa.Text, nullable=False),
)
"""Credits and adjustments, billed by the next closing."""

invoices = sa.Table(
    "billing_invoice",
    schema.metadata,
    sa.Column("invoice_id", sa.Text, primary_key=True),
    sa.Column("closing", sa.ForeignKey("billing_closing.closing"), nullable=False),
    sa.Column("tenant_id", sa.Text, nullable=False),
    *schema.integers("period_start_ns", "period_end_ns"),
    sa.Column("currency", sa.Text, nullable=False),
    sa.Column("total_minor", sa.BigInteger, nullable=False),
    sa.Column("content_hash", sa.Text, nullable=False, unique=True),
    sa.Column("replaces", sa.Text, nullable=False),
    sa.Column("issued_ns", sa.BigInteger, nullable=False),
    sa.Index("billing_invoice_tenant", "tenant_id", "period_start_ns"),
)

charges = sa.Table(
    "billing_charge",
    schema.metadata,
    sa.Column("invoice_id", sa.ForeignKey("billing_invoice.invoice_id"), primary_key=True),
    sa.Column("charge_id", sa.Text, primary_key=True),
    *schema.texts("tenant_id", "kind"),
    *schema.integers("service_t0_ns", "service_t1_ns"),
    sa.Column("amount", sa.Text, nullable=False),
    sa.Column("amount_minor", sa.BigInteger, nullable=False),
    *schema.texts("sku", "quantity"),
    sa.Column("unit", sa.Text),
    *schema.integers("price_nano", "list_nano", "price_version"),
    *schema.texts("resource", "mig_profile", "claim_id", "state", "note", "corrects"),
    sa.Column("corrected_in_ns", sa.BigInteger),
)
"""The lines of invoices; `amount` is exact, `amount_minor` its share of the rounded total."""

reviews = sa.Table(
    "billing_review",
    schema.metadata,
    sa.Column("closing", sa.ForeignKey("billing_closing.closing"), primary_key=True),
    sa.Column("review", sa.BigInteger, primary_key=True, autoincrement=False),
    *schema.texts("tenant_id", "resource", "sku", "claim_id", "state"),
    *schema.integers("units", "start_ns", "end_ns"),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("exact_units", sa.Text),
)
"""Use that a closing did not bill because it needs a decision.

`units` is rounded down where the capacity is a fraction; `exact_units` states it then, such as 378/5.
"""

voids = sa.Table(
    "billing_void",
    schema.metadata,
    sa.Column("invoice_id", sa.ForeignKey("billing_invoice.invoice_id"), primary_key=True),
    sa.Column("voided_ns", sa.BigInteger, nullable=False),
    *schema.texts("voided_by", "reason"),
)

openings = sa.Table(
    "billing_opening",
    schema.metadata,
    sa.Column("opening", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("opening_ns", sa.BigInteger, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("recorded_ns", sa.BigInteger, nullable=False),
    sa.Column("recorded_by", sa.Text, nullable=False),
)
"""Dates before which nothing is billed; the newest row applies."""

_COVERED = {
    "price book": (price_books,),
    "closing": (closings, closing_revisions, closing_days, reviews),
    "adjustment": (adjustments,),
    "invoice": (invoices, charges),
    "void": (voids,),
    "opening": (openings,),
}
BILLING_TABLES = tuple(table for tables in _COVERED.values() for table in tables)
for _kind, _tables in _COVERED.items():
    schema.cover_table(_kind, *_tables)
for _table in BILLING_TABLES:
    schema.make_append_only(_table)

_UNITS = {unit.label: unit for unit in PriceUnit}


def closing_row(closing: PeriodClosing) -> dict[str, Any]:
    """The row of a closing."""
    corrected = [[period.start_ns, period.end_ns] for period in closing.corrected]
    return schema.to_row(
        closings,
        closing,
        closing=closing.number,
        corrected=msgspec.json.encode(corrected).decode(),
        missing=msgspec.json.encode(closing.missing).decode(),
    )


def closing_from_row(row: sa.Row[Any]) -> PeriodClosing:
    """The closing of a row."""
    corrected = msgspec.json.decode(row.corrected, type=list[tuple[int, int]])
    return schema.from_row(
        PeriodClosing,
        row,
        number=row.closing,
        corrected=tuple(Period(*span) for span in corrected),
        missing=tuple(msgspec.json.decode(row.missing, type=list[GpuDay])),
    )


def charge_row(line: InvoiceLine, invoice_id: str) -> dict[str, Any]:
    """The row of a line."""
    charge = line.charge
    return schema.to_row(
        charges,
        charge,
        invoice_id=invoice_id,
        amount=str(charge.amount),
        amount_minor=line.minor,
        quantity=str(charge.quantity),
        unit=charge.unit.label if charge.unit else None,
    )


def line_from_row(row: sa.Row[Any]) -> InvoiceLine:
    """The line of a row."""
    charge = schema.from_row(
        Charge,
        row,
        kind=ChargeKind(row.kind),
        amount=Fraction(row.amount),
        quantity=Fraction(row.quantity),
        unit=_UNITS[row.unit] if row.unit else None,
    )
    return InvoiceLine(charge, row.amount_minor)


def invoice_from_row(row: sa.Row[Any], lines: Iterable[InvoiceLine]) -> Invoice:
    """The invoice of a row and its lines. Raises InvoiceError if they differ from what was issued."""
    return schema.from_row(
        Invoice,
        row,
        lines=tuple(lines),
        status=InvoiceStatus.ISSUED if row.voided_ns is None else InvoiceStatus.VOID,
        audit_seq=row.leaf,
    )


def review_row(closing: int, number: int, use: undecided_use.UndecidedUse) -> dict[str, Any]:
    """Row of undecided use of a closing."""
    exact_units = str(use.units) if use.units % 1 else None
    return schema.to_row(
        reviews, use, closing=closing, review=number, units=int(use.units), exact_units=exact_units
    )


def review_from_row(row: sa.Row[Any]) -> undecided_use.UndecidedUse:
    """Undecided use of a closing, from its row."""
    units = row.units if row.exact_units is None else Fraction(row.exact_units)
    return schema.from_row(undecided_use.UndecidedUse, row, units=units)
