"""The books for access over the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from collector.billing import seller_file
from collector.billing.closing import Books
from collector.billing.focus import Account, Seller
from collector.billing.served import BillingError, ServedBooks
from collector.ledger.database import Database, LedgerError
from collector.ledger.store import Ledger

_NOBODY = "GPU cluster"


@dataclass(frozen=True, slots=True)
class LedgerBooks:
    """Statements and exports of the ledger in a database."""

    database: Callable[[], Database]
    """Opens the database; raises LedgerError."""
    sellers: str = ""
    """File with the sellers and paying accounts; without one, each tenant pays for itself."""

    def open(self) -> ServedBooks:
        """Open the books. Blocking; raises BillingError if they are unavailable."""
        try:
            return ServedBooks(Books.of(Ledger(self.database())), self._seller)
        except LedgerError as error:
            raise BillingError(str(error)) from error

    def _seller(self, tenants: Iterable[str]) -> Seller:
        if not self.sellers:
            return Seller(_NOBODY, _NOBODY, {name: Account(name) for name in tenants})
        return seller_file.read(Path(self.sellers))
