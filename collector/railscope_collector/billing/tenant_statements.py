"""Statements of tenants from the database, in several formats, and with exports for the API.

All calls block: run them in a thread.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from importlib.util import find_spec

import msgspec

from railscope.settings import SettingsError
from railscope.timestamps import DAY_NS, format_timestamp
from railscope_collector.billing import (
    BillingError,
    export,
    export_provenance,
    invoices,
    period_closing,
    period_rating,
    statement_formats,
)
from railscope_collector.billing.rating import MissingPriceError
from railscope_collector.billing.statement import TenantStatement
from railscope_collector.files import seller_file
from railscope_collector.ledger import head_chain
from railscope_collector.ledger.database import UnusableLedgerError
from railscope_collector.metering.units import Period, parse_period, period_name

STATEMENT_FORMATS: Mapping[str, Callable[[TenantStatement], bytes]] = {
    "text": lambda statement: f"{statement_formats.as_text(statement)}\n".encode(),
    "html": lambda statement: statement_formats.as_html(statement).encode(),
    "csv": statement_formats.as_csv,
    "json": statement_formats.as_json,
}


class UnknownTenantError(invoices.ClosingError):
    """A tenant without an invoice or undecided time in a period."""


def statement_periods(
    books: period_closing.BillingBooks, tenant: str | None = None
) -> list[Period]:
    """The closed periods; of a tenant, those with an invoice or with undecided time."""
    closings = books.store.closings()
    if tenant is None:
        return sorted({closing.period for closing in closings})
    undecided = books.store.undecided_closings(tenant)
    periods = {head.period for head in books.store.heads(tenant=tenant)}
    return sorted(periods | {closing.period for closing in closings if closing.number in undecided})


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
        raise invoices.ClosingError(message)
    period_heads = [
        invoice for invoice in books.store.heads(period, tenant) if invoice.period == period
    ]
    if not period_heads:
        return _without_invoice(books, tenant, closings, seller)
    valid = [invoice for invoice in period_heads if not invoice.void]
    return read_invoice_statement(books, (valid or period_heads)[-1].invoice_id, seller)


def _without_invoice(
    books: period_closing.BillingBooks,
    tenant: str,
    closings: Sequence[invoices.PeriodClosing],
    seller: str,
) -> TenantStatement:
    """The statement of a tenant without an invoice in a closing. Raises UnknownTenantError."""
    closing = next(closing for closing in closings if not closing.tenant)
    reviews = period_rating.select_undecided(books.store.reviews(closing.number), tenant)
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
        raise invoices.ClosingError(message)
    invoice, number = stored
    closing = next(closing for closing in books.store.closings() if closing.number == number)
    reviews = period_rating.select_undecided(books.store.reviews(number), invoice.tenant)
    revisions = books.store.revisions(number, {line.charge.resource for line in invoice.lines})
    return TenantStatement(
        invoice=invoice,
        seller=seller,
        undecided=reviews,
        revisions=revisions,
        roots=_roots(closing),
        audit=books.store.audit_position(invoice_id),
        marks=_find_marks(books, invoice, closing),
        clock_suspect=books.ledger.clock_suspect(revisions),
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
        undecided=period_rating.select_undecided(bill.undecided, tenant),
        revisions={key: source.revision for key, source in bill.sources.items()},
        marks=marks,
        clock_suspect={key: source.clock_suspect for key, source in bill.sources.items()},
    )


def _find_marks(
    books: period_closing.BillingBooks, invoice: invoices.Invoice, closing: invoices.PeriodClosing
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


def _provisional(closing: invoices.PeriodClosing) -> list[str]:
    # Listing the days would disclose GPUs of other tenants.
    text = (
        "PROVISIONAL: closed before all days were final in the ledger; later changes"
        " are billed as corrections"
    )
    return [text] if closing.missing else []


def _roots(closing: invoices.PeriodClosing) -> dict[str, str]:
    return {"Ledger root": closing.ledger_root, "Closing root": closing.manifest_root}


class BillingUnavailableError(BillingError, RuntimeError):
    """The ledger cannot be read now."""


class IssuedInvoice(msgspec.Struct, frozen=True):
    """An invoice that has a statement."""

    tenant: str
    period: str
    invoice: str
    void: bool


@dataclass(frozen=True, slots=True)
class MonthCharges:
    """Exact charges by tenant of the newest month with finalized days, up to the newest of these."""

    period: Period | None = None
    """None if no day is finalized."""
    last_day: int = 0
    currency: str = ""
    """Empty without a price book."""
    totals: Mapping[str, Fraction] = field(default_factory=dict)
    problem: str = ""
    """Reason why there are no charges; it names no tenant."""
    details: str = ""
    """The same with the usage concerned, which may be that of any tenant."""
    is_outdated: bool = False
    """True while a newer ledger or newer prices are being rated."""


@dataclass(frozen=True, slots=True)
class BillingReader:
    """Statements and exports from the ledger. Methods block, and raise BillingUnavailableError.

    `seller` returns the seller for the tenants that are billed. It is called for each export, so
    that a changed file takes effect at once.
    """

    books: period_closing.BillingBooks
    seller: Callable[[Iterable[str]], seller_file.Seller]
    wall_ns: Callable[[], int] = time.time_ns

    @property
    def statement_forms(self) -> Sequence[str]:
        """Formats of a statement; JSON, the default of the API, is first."""
        return sorted(STATEMENT_FORMATS, key=lambda form: (form != "json", form))

    @property
    def export_forms(self) -> Sequence[str]:
        """Formats of an export; Parquet only if PyArrow is installed."""
        return [
            form
            for form in export.ExportFormat
            if form is not export.ExportFormat.PARQUET or find_spec("pyarrow")
        ]

    def issued_invoices(self, tenant: str | None) -> list[IssuedInvoice]:
        """Invoices of a tenant or of all, the oldest period first. Raises BillingUnavailableError.

        A tenant for which a closing has only undecided time has a statement with an empty invoice.
        """
        with _readable(), self.books.store.database.transaction() as connection:
            heads = self.books.store.heads(tenant=tenant, connection=connection)
            closings = self.books.store.closings(connection)
            undecided = self.books.store.undecided_closings(tenant, connection)
        rows = [(head.period, head.tenant, head.invoice_id, head.void) for head in heads]
        billed = {each[:2] for each in rows}
        for closing in closings:
            names = undecided.get(closing.number, set()) if not closing.tenant else set()
            rows += [
                (closing.period, name, "", False)
                for name in names
                if (closing.period, name) not in billed
            ]
        return [
            IssuedInvoice(name, period_name(period), invoice_id, void)
            for period, name, invoice_id, void in sorted(rows, key=lambda each: each[:2])
        ]

    def ledger_head(self) -> head_chain.ChainHead | None:
        """Version of days and prices: each write of them adds a head. Raises BillingUnavailableError."""
        with _readable(), self.books.store.database.transaction() as connection:
            return head_chain.newest_head(connection)

    def month_charges(self) -> MonthCharges:
        """Charges so far, as closing the month would rate these days. Raises BillingUnavailableError."""
        with _readable():
            last_day = self.books.ledger.finalized_day()
            if last_day is None:
                return MonthCharges(problem="no day is finalized in the ledger yet")
            period = parse_period(format_timestamp(last_day * DAY_NS)[:7])
            published = self.books.store.book()
            if published is None:
                return MonthCharges(period, last_day, problem="no price book is published")
            month = MonthCharges(period, last_day, published.book.currency)
            totals: dict[str, Fraction] = defaultdict(Fraction)
            try:
                for charge in self.books.rate_until(period, last_day).charges:
                    totals[charge.tenant] += charge.amount
            except BillingError as error:
                is_unpriced = isinstance(error, MissingPriceError)
                problem = "some usage has no price" if is_unpriced else "the usage cannot be rated"
                return replace(month, problem=problem, details=str(error))
            return replace(month, totals=dict(totals))

    def read_statement(self, tenant: str, period: Period) -> TenantStatement | None:
        """A tenant's statement of a closed month; None if there is none. Raises BillingUnavailableError."""
        with _readable():
            seller = self.seller([tenant]).provider
            try:
                return read_statement(self.books, tenant, period, seller)
            except invoices.ClosingError:
                return None

    def statement(self, tenant: str, period: str, form: str) -> bytes | None:
        """The same in one of the formats."""
        found = self.read_statement(tenant, parse_period(period))
        with _readable():
            return None if found is None else STATEMENT_FORMATS[form](found)

    def export(self, tenant: str | None, period: str, form: str) -> bytes | None:
        """Export of a month's invoices; None if there are none. Raises BillingUnavailableError."""
        with _readable():
            span = parse_period(period)
            exported = self.books.store.invoices(span, tenant)
            seller = self.seller({invoice.tenant for invoice in exported})
            order = export.ExportOrder(seller, self.wall_ns(), period=span, tenant=tenant)
            return export.export_document(
                exported,
                export_provenance.with_origins(order, self.books),
                export.ExportFormat(form),
            )


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except (BillingError, UnusableLedgerError, OverflowError, SettingsError) as error:
        raise BillingUnavailableError(str(error)) from error
