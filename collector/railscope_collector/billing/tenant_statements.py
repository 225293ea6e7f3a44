"""Statements of tenants from the database: of closed periods, of invoices, and previews.

All calls block: run them in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from railscope_collector.billing import (
    closing_record,
    invoices,
    period_closing,
    undecided_use,
)
from railscope_collector.billing.statement import TenantStatement
from railscope_collector.metering.units import Period, period_name


class UnknownTenantError(closing_record.ClosingError):
    """A tenant without an invoice or undecided time in a period."""


def statement_periods(books: period_closing.BillingBooks) -> list[Period]:
    """The closed periods."""
    return sorted({closing.period for closing in books.store.closings()})


def read_statement(
    books: period_closing.BillingBooks, tenant: str, period: Period, seller: str = ""
) -> TenantStatement:
    """The statement of a closed period: of the valid invoice, else of the newest void one.

    For a tenant without an invoice, the statement contains its undecided time.

    Raises UnknownTenantError, ClosingError for a period that is not closed, and UnusableLedgerError.
    """
    closings = [closing for closing in books.store.closings() if closing.period == period]
    if not closings:
        closed_periods = (
            ", ".join(period_name(closed) for closed in statement_periods(books)) or "none"
        )
        message = f"no statement of {period_name(period)}: expected one of the closed periods: {closed_periods}"
        raise closing_record.ClosingError(message)
    period_heads = [
        invoice for invoice in books.store.heads(period, tenant) if invoice.period == period
    ]
    if not period_heads:
        return _without_invoice(books, tenant, closings, seller)
    valid = [invoice for invoice in period_heads if not invoice.void]
    # The valid one, else the newest void one: statements of void invoices stay readable.
    return read_invoice_statement(books, (valid or period_heads)[-1].invoice_id, seller)


def _without_invoice(
    books: period_closing.BillingBooks,
    tenant: str,
    closings: Sequence[closing_record.PeriodClosing],
    seller: str,
) -> TenantStatement:
    """The statement of a tenant without an invoice in a closing. Raises UnknownTenantError."""
    closing = next(closing for closing in closings if not closing.tenant)
    reviews = undecided_use.select_undecided(books.store.reviews(closing.number), tenant)
    if not reviews:
        tenants = {invoice.tenant for invoice in books.store.heads(closing.period)}
        message = (
            f"no invoice of {tenant!r} in {period_name(closing.period)}: expected one of "
            f"{', '.join(sorted(tenants)) or 'none'}"
        )
        raise UnknownTenantError(message)
    return TenantStatement(
        invoice=invoices.draft_invoice((), tenant, closing.period, closing.currency),
        seller=seller,
        undecided=reviews,
        roots=_roots(closing),
        marks=_provisional(closing),
        closed_ns=closing.closed_ns,
    )


def read_invoice_statement(
    books: period_closing.BillingBooks, invoice_id: str, seller: str = ""
) -> TenantStatement:
    """The statement of one invoice, void or not. Raises ClosingError if there is none."""
    stored = books.store.invoice(invoice_id)
    if stored is None:
        message = f"unknown invoice {invoice_id}"
        raise closing_record.ClosingError(message)
    invoice, number = stored
    closing = next(closing for closing in books.store.closings() if closing.number == number)
    reviews = undecided_use.select_undecided(books.store.reviews(number), invoice.tenant)
    revisions = books.store.revisions(number, {line.charge.resource for line in invoice.lines})
    return TenantStatement(
        invoice=invoice,
        seller=seller,
        undecided=reviews,
        revisions=revisions,
        roots=_roots(closing),
        audit=books.store.audit_position(invoice_id),
        marks=_find_marks(books, invoice, closing),
    )


def preview_statement(bill: period_closing.Bill, tenant: str, seller: str = "") -> TenantStatement:
    """Preview of a tenant's invoice for an open period, from the current ledger."""
    empty = invoices.draft_invoice((), tenant, bill.period, bill.book.currency)
    draft = next((draft for draft in bill.drafts if draft.tenant == tenant), empty)
    marks = ["Not binding: computed from the current ledger"]
    if bill.missing_days.all:
        marks.append(f"Not complete: {bill.missing_days}")
    return TenantStatement(
        invoice=draft,
        seller=seller,
        undecided=undecided_use.select_undecided(bill.undecided, tenant),
        revisions={key: source.revision for key, source in bill.sources.items()},
        marks=marks,
    )


def _find_marks(
    books: period_closing.BillingBooks,
    invoice: invoices.Invoice,
    closing: closing_record.PeriodClosing,
) -> list[str]:
    """Reasons why an invoice is not final."""
    marks = []
    if invoice.status is invoices.InvoiceStatus.VOID:
        heads = books.store.heads(invoice.period, invoice.tenant)
        invoice_head = next(head for head in heads if head.invoice_id == invoice.invoice_id)
        by = next((head for head in heads if head.replaces == invoice.invoice_id), None)
        instead = f"; replaced by {by.invoice_id}" if by else ""
        marks.append(f"VOID: {invoice_head.void_reason}{instead}")
    return marks + _provisional(closing)


def _provisional(closing: closing_record.PeriodClosing) -> list[str]:
    # Listing the days would disclose GPUs of other tenants.
    text = (
        "PROVISIONAL: closed before all days were final in the ledger; later changes"
        " are billed as corrections"
    )
    return [text] if closing.missing else []


def _roots(closing: closing_record.PeriodClosing) -> dict[str, str]:
    return {"Ledger root": closing.ledger_root, "Closing root": closing.manifest_root}
