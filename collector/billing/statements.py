"""Statements of tenants from the database, in several formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from collector.billing.closed import Closing, ClosingError
from collector.billing.closing import Bill, Books
from collector.billing.invoice import Invoice, Status, draft
from collector.billing.statement import Statement
from collector.billing.statement_data import as_csv, as_json
from collector.billing.statement_html import page
from collector.billing.statement_text import text
from collector.billing.undecided import of_tenant
from collector.metering.instants import Period
from collector.metering.periods import name_of

FORMS: Mapping[str, Callable[[Statement], bytes]] = {
    "text": lambda statement: f"{text(statement)}\n".encode(),
    "html": lambda statement: page(statement).encode(),
    "csv": as_csv,
    "json": as_json,
}


class UnknownTenantError(ClosingError):
    """A tenant without an invoice or undecided time in a period."""


def periods(books: Books, tenant: str | None = None) -> list[Period]:
    """The closed periods; of a tenant, those with an invoice or with undecided time."""
    closings = books.store.closings()
    if tenant is None:
        return sorted({closing.period for closing in closings})
    undecided = books.store.undecided_closings(tenant)
    found = {head.period for head in books.store.heads(tenant=tenant)}
    return sorted(found | {one.period for one in closings if one.number in undecided})


def statement(books: Books, tenant: str, period: Period, seller: str = "") -> Statement:
    """The statement of a closed period: of the valid invoice, else of the newest void one.

    For a tenant without an invoice, the statement contains its undecided time.

    Raises UnknownTenantError, ClosingError for a period that is not closed, and LedgerError.
    """
    closings = [one for one in books.store.closings() if one.period == period]
    if not closings:
        known = ", ".join(name_of(one) for one in periods(books)) or "none"
        message = f"{name_of(period)} is not closed; closed are: {known}"
        raise ClosingError(message)
    own = [one for one in books.store.heads(period, tenant) if one.period == period]
    if not own:
        return _without_invoice(books, tenant, closings, seller)
    standing = [one for one in own if not one.void]
    return of_invoice(books, (standing or own)[-1].invoice_id, seller)


def _without_invoice(
    books: Books, tenant: str, closings: Sequence[Closing], seller: str
) -> Statement:
    """The statement of a tenant without an invoice in a closing. Raises UnknownTenantError."""
    closing = next(one for one in closings if not one.tenant)
    reviews = of_tenant(books.store.reviews(closing.number), tenant)
    if not reviews:
        tenants = {one.tenant for one in books.store.heads(closing.period)}
        message = (
            f"{tenant!r} has no invoice of {name_of(closing.period)}; "
            f"those who have one: {', '.join(sorted(tenants)) or 'none'}"
        )
        raise UnknownTenantError(message)
    return Statement(
        invoice=draft((), tenant, closing.period, closing.currency),
        seller=seller,
        undecided=reviews,
        roots=_roots(closing),
        marks=_provisional(closing),
        closed_ns=closing.closed_ns,
    )


def of_invoice(books: Books, invoice_id: str, seller: str = "") -> Statement:
    """The statement of one invoice, void or not. Raises ClosingError if there is none."""
    found = books.store.invoice(invoice_id)
    if found is None:
        message = f"there is no invoice {invoice_id}"
        raise ClosingError(message)
    invoice, number = found
    closing = next(one for one in books.store.closings() if one.number == number)
    reviews = of_tenant(books.store.reviews(number), invoice.tenant)
    revisions = books.store.revisions(number, {line.charge.resource for line in invoice.lines})
    return Statement(
        invoice=invoice,
        seller=seller,
        undecided=reviews,
        revisions=revisions,
        roots=_roots(closing),
        audit=books.store.audit_place(invoice_id),
        marks=_marks(books, invoice, closing),
        clock_suspect=books.ledger.clock_suspect(revisions),
    )


def preview(bill: Bill, tenant: str, seller: str = "") -> Statement:
    """Preview of a tenant's invoice for an open period, from the current ledger."""
    empty = draft((), tenant, bill.period, bill.book.currency)
    found = next((one for one in bill.drafts if one.tenant == tenant), empty)
    marks = ["Nothing of this is binding: it is what the ledger says now"]
    if bill.lacking.all:
        marks.append(f"Not complete: {bill.lacking}")
    return Statement(
        invoice=found,
        seller=seller,
        undecided=of_tenant(bill.undecided, tenant),
        revisions={key: source.revision for key, source in bill.sources.items()},
        marks=marks,
        clock_suspect={key: source.clock_suspect for key, source in bill.sources.items()},
    )


def _marks(books: Books, invoice: Invoice, closing: Closing) -> list[str]:
    """Reasons why an invoice is not final."""
    found = []
    if invoice.status is Status.VOID:
        others = books.store.heads(invoice.period, invoice.tenant)
        by = next((one for one in others if one.replaces == invoice.invoice_id), None)
        instead = f"; {by.invoice_id} stands in its place" if by else ""
        reason = books.store.void_reason(invoice.invoice_id)
        found.append(f"VOID: {reason}{instead}")
    return found + _provisional(closing)


def _provisional(closing: Closing) -> list[str]:
    # Listing the days would disclose GPUs of other tenants.
    text = (
        "PROVISIONAL: closed while days were not final in the ledger. What they change comes "
        "as corrections"
    )
    return [text] if closing.missing else []


def _roots(closing: Closing) -> dict[str, str]:
    return {"Ledger root": closing.ledger_root, "Closing root": closing.manifest_root}
