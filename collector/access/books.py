"""The books for those who ask over the network, opened when somebody does."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from collector.access.billing_api import BillingError
from collector.billing import seller_file
from collector.billing.closing import Books
from collector.billing.focus import Account, Seller
from collector.billing.served import ServedBooks
from collector.ledger.database import LedgerError
from collector.ledger.store import Ledger

_NOBODY = "GPU cluster"


@dataclass(slots=True)
class LedgerBooks:
    """Statements and exports of one database."""

    url: str
    sellers: str = ""
    """File that says who bills; without one, each tenant pays for itself."""
    _books: Books | None = None
    _opening: threading.Lock = field(default_factory=threading.Lock)

    def open(self) -> ServedBooks:
        """The books, opened once. Blocking; raises BillingError where there are none now."""
        with self._opening:
            if self._books is None:
                try:
                    self._books = Books.of(Ledger.open(self.url, make=False))
                except LedgerError as error:
                    raise BillingError(str(error)) from error
            return ServedBooks(self._books, self._seller)

    def close(self) -> None:
        """Close the database."""
        with self._opening:
            if self._books is not None:
                self._books.ledger.close()
            self._books = None

    def _seller(self, tenants: Iterable[str]) -> Seller:
        if not self.sellers:
            return Seller(_NOBODY, _NOBODY, {name: Account(name) for name in tenants})
        return seller_file.read(Path(self.sellers))
