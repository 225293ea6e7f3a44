"""Statements and exports from the database in several formats, for the API.

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

from railscope.api.billing import IssuedInvoice
from railscope.settings import SettingsError
from railscope.timestamps import DAY_NS, format_timestamp
from railscope_collector.billing import (
    BillingError,
    billing_store,
    charges,
    closing_record,
    export,
    export_provenance,
    period_closing,
    statement_forms,
)
from railscope_collector.billing.rating import MissingPriceError
from railscope_collector.billing.statement import TenantStatement
from railscope_collector.billing.tenant_statements import read_statement
from railscope_collector.files import seller_file
from railscope_collector.ledger import head_chain
from railscope_collector.ledger.database import UnusableLedgerError
from railscope_collector.metering.units import Period, parse_period, period_name


class BillingUnavailableError(BillingError, RuntimeError):
    """The ledger cannot be read now."""


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
        return sorted(statement_forms.STATEMENT_FORMATS, key=lambda form: (form != "json", form))

    @property
    def export_forms(self) -> Sequence[str]:
        """Formats of an export; Parquet only if PyArrow is installed."""
        return [
            form
            for form in export.ExportFormat
            if form is not export.ExportFormat.PARQUET or find_spec("pyarrow")
        ]

    def issued_invoices(self, tenant: str | None) -> list[IssuedInvoice]:
        """Invoices of a tenant or of all, the newest period first. Raises BillingUnavailableError.

        A tenant for which a closing has only undecided time has a statement with an empty invoice.
        """
        with _readable(), self.books.store.database.transaction() as connection:
            heads = self.books.store.heads(tenant=tenant, connection=connection)
            closings = self.books.store.closings(connection)
            undecided = self.books.store.undecided_closings(tenant, connection)
        rows = [(head.period, issued_invoice(head)) for head in heads]
        billed = {(head.period, head.tenant) for head in heads}
        for closing in closings:
            names = undecided.get(closing.number, set()) if not closing.tenant else set()
            rows += [
                (closing.period, IssuedInvoice(name, period_name(closing.period), "", void=False))
                for name in names
                if (closing.period, name) not in billed
            ]
        rows.sort(key=lambda each: each[1].tenant)
        return [row for _, row in sorted(rows, key=lambda each: each[0], reverse=True)]

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
                # The details name usage, possibly of other tenants: they are separate, so that a page can leave them
                # out.
                return replace(month, problem=problem, details=str(error))
            return replace(month, totals=dict(totals))

    def read_statement(self, tenant: str, period: Period) -> TenantStatement | None:
        """A tenant's statement of a closed month; None if there is none. Raises BillingUnavailableError."""
        with _readable():
            seller = self.seller([tenant]).provider
            try:
                return read_statement(self.books, tenant, period, seller)
            except closing_record.ClosingError:
                return None

    def statement(self, tenant: str, period: Period, form: str) -> bytes | None:
        """The same in one of the formats."""
        found = self.read_statement(tenant, period)
        with _readable():
            return None if found is None else statement_forms.STATEMENT_FORMATS[form](found)

    def export(self, tenant: str | None, period: Period, form: str) -> bytes | None:
        """Export of a month's invoices; None if there are none. Raises BillingUnavailableError."""
        with _readable():
            exported = self.books.store.invoices(period, tenant)
            seller = self.seller({invoice.tenant for invoice in exported})
            order = export.ExportOrder(seller, self.wall_ns(), period=period, tenant=tenant)
            return export.export_document(
                exported,
                export_provenance.with_origins(order, self.books),
                export.ExportFormat(form),
            )


def issued_invoice(head: billing_store.InvoiceHead) -> IssuedInvoice:
    """Return an invoice with its amount as text."""
    return IssuedInvoice(
        head.tenant,
        period_name(head.period),
        head.invoice_id,
        head.void,
        charges.format_decimal(head.payable, charges.currency_exponent(head.currency)),
        head.currency,
        head.issued_ns,
        head.replaces,
    )


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except (BillingError, UnusableLedgerError, OverflowError, SettingsError) as error:
        raise BillingUnavailableError(str(error)) from error
