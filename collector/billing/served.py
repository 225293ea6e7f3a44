"""Statements and exports for the API, from the billing database. Blocking: run it in a thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec

import msgspec
from sqlalchemy import select

from collector.billing import tables
from collector.billing.books_export import with_origins
from collector.billing.closed import ClosingError
from collector.billing.closing import Books
from collector.billing.export import ExportError, Form, Listed, Order, document
from collector.billing.focus import Seller
from collector.billing.invoice import InvoiceError
from collector.billing.seller_file import SellerFileError
from collector.billing.statements import FORMS, statement
from collector.ledger.database import LedgerError
from collector.metering.instants import Period
from collector.metering.periods import name_of, parse
from railscope.settings import SettingsError

_FAILURES = (ExportError, InvoiceError, LedgerError, OverflowError, SellerFileError, SettingsError)


class BillingError(RuntimeError):
    """The ledger cannot be read now."""


class Issued(msgspec.Struct, frozen=True):
    """An invoice that has a statement."""

    tenant: str
    period: str
    invoice: str
    void: bool


@dataclass(frozen=True, slots=True)
class ServedBooks:
    """Statements and exports from the ledger. Methods block, and raise BillingError.

    `seller` returns the seller for the tenants that are billed. It is called for each export, so
    that a changed file takes effect at once.
    """

    books: Books
    seller: Callable[[Iterable[str]], Seller]
    wall_ns: Callable[[], int] = time.time_ns

    @property
    def statement_forms(self) -> Sequence[str]:
        """Formats of a statement; JSON, the default of the API, is first."""
        return sorted(FORMS, key=lambda form: (form != "json", form))

    @property
    def export_forms(self) -> Sequence[str]:
        """Formats of an export; Parquet only if PyArrow is installed."""
        return [form for form in Form if form is not Form.PARQUET or find_spec("pyarrow")]

    def issued(self, tenant: str | None) -> list[Issued]:
        """Invoices of a tenant or of all, the oldest period first. Raises BillingError.

        A tenant for which a closing has only undecided time has a statement with an empty invoice.
        """
        table, void = tables.invoices, tables.voids
        joined = table.outerjoin(void, void.c.invoice_id == table.c.invoice_id)
        query = select(*table.c, void.c.voided_ns).select_from(joined)
        if tenant is not None:
            query = query.where(table.c.tenant_id == tenant)
        order = (table.c.period_start_ns, table.c.tenant_id, table.c.issued_ns)
        with _readable(), self.books.store.database.transaction() as connection:
            rows = connection.execute(query.order_by(*order)).all()
            closings = self.books.store.closings_in(connection)
            undecided = self.books.store.undecided_in(connection, tenant)
        found = [
            (
                row.period_start_ns, row.tenant_id,
                Issued(
                    row.tenant_id, name_of(Period(row.period_start_ns, row.period_end_ns)),
                    row.invoice_id, row.voided_ns is not None,
                ),
            )
            for row in rows
        ]  # fmt: skip
        billed = {(start_ns, name) for start_ns, name, _ in found}
        for closing in closings:
            start_ns, period = closing.period.start_ns, name_of(closing.period)
            names = undecided.get(closing.number, set()) if not closing.tenant else set()
            found += [
                (start_ns, name, Issued(name, period, "", void=False))
                for name in names
                if (start_ns, name) not in billed
            ]
        return [one for *_, one in sorted(found, key=lambda each: each[:2])]

    def statement(self, tenant: str, period: str, form: str) -> bytes | None:
        """A tenant's statement of a closed month; None if there is none. Raises BillingError."""
        with _readable():
            seller = self.seller([tenant]).invoice_issuer
            try:
                return FORMS[form](statement(self.books, tenant, parse(period), seller))
            except ClosingError:
                return None

    def export(self, tenant: str | None, period: str, form: str) -> bytes | None:
        """Export of a month's invoices; None if there are none. Raises BillingError."""
        with _readable():
            span = parse(period)
            found = Listed(tuple(self.books.store.invoices(span, tenant)))
            seller = self.seller({invoice.tenant for invoice in found.all})
            order = Order(seller, self.wall_ns(), period=span, tenant=tenant)
            return document(found, with_origins(order, self.books), Form(form))


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except _FAILURES as error:
        raise BillingError(str(error)) from error
