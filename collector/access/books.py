"""Statements and exports from the ledger, for those who ask over the network."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from collector.access.billing_api import BillingError
from collector.billing import seller_file
from collector.billing.books_export import with_origins
from collector.billing.closed import ClosingError
from collector.billing.closing import Books
from collector.billing.export import ExportError, Form, Listed, Order, document
from collector.billing.focus import Account, Seller
from collector.billing.focus_parquet import NoParquetError
from collector.billing.instants import Period
from collector.billing.invoice import InvoiceError
from collector.billing.periods import parse
from collector.billing.seller_file import SellerFileError
from collector.billing.statements import FORMS, statement
from collector.ledger.database import LedgerError
from collector.ledger.store import Ledger
from railscope.audit.note import NoteError, read_note

_NOBODY = "GPU cluster"
_FAILURES = (
    LedgerError, SellerFileError, ExportError, InvoiceError, NoParquetError, NoteError, OSError,
    UnicodeDecodeError, OverflowError,
)  # fmt: skip


@dataclass(slots=True)
class LedgerBilling:
    """What `Billing` promises, from one database. It is opened when somebody asks."""

    url: str
    sellers: str = ""
    """File that says who bills; empty where nobody does."""
    checkpoint: Path | None = None
    """Of the audit log, for the rows of exports."""
    wall_ns: Callable[[], int] = time.time_ns
    statement_forms: tuple[str, ...] = ("json", *(form for form in FORMS if form != "json"))
    export_forms: tuple[str, ...] = tuple(Form)
    _opened: Books | None = None
    _opening: threading.Lock = field(default_factory=threading.Lock)

    def statement(self, tenant: str, period: str, form: str) -> bytes | None:
        """A tenant's statement of a closed period; None where there is none. Raises BillingError."""
        wanted = parse(period)
        try:
            seller = self._seller(()).invoice_issuer if self.sellers else ""
            return FORMS[form](statement(self._books(), tenant, wanted, seller))
        except ClosingError:
            # Its message names the tenants who have one.
            return None
        except _FAILURES as error:
            raise BillingError(str(error)) from error

    def export(self, tenant: str | None, period: str, form: str) -> bytes | None:
        """The FOCUS rows of a period, of a tenant or all; None for none. Raises BillingError."""
        wanted = parse(period)
        try:
            return self._export(tenant, wanted, Form(form))
        except _FAILURES as error:
            raise BillingError(str(error)) from error

    def _export(self, tenant: str | None, period: Period, form: Form) -> bytes | None:
        books = self._books()
        found = Listed(tuple(books.store.invoices(period, tenant)))
        order = Order(
            seller=self._seller({invoice.tenant for invoice in found.all}),
            exported_ns=self.wall_ns(),
            forms=(form,),
            period=period,
            tenant=tenant,
            checkpoint=self._checkpoint(),
        )
        return document(found, with_origins(order, books), form)

    def _books(self) -> Books:
        with self._opening:
            if self._opened is None:
                self._opened = Books.of(Ledger.open(self.url, make=False))
            return self._opened

    def _seller(self, tenants: Iterable[str]) -> Seller:
        if not self.sellers:
            return Seller(_NOBODY, _NOBODY, {name: Account(name) for name in tenants})
        return seller_file.read(Path(self.sellers))

    def _checkpoint(self) -> str | None:
        if self.checkpoint is None or not self.checkpoint.exists():
            return None
        return read_note(self.checkpoint)

    def close(self) -> None:
        """Close the database."""
        with self._opening:
            if self._opened is not None:
                self._opened.ledger.close()
            self._opened = None
