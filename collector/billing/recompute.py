"""Recomputation of a closed period from the revisions and the prices of its closing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from collector.billing.charges import Charge
from collector.billing.closed import Closing, manifest_root
from collector.billing.closing import Books
from collector.billing.corrections import corrections
from collector.billing.invoice import Invoice, draft
from collector.billing.invoice import close as drafts
from collector.billing.rated import Numbers, Rated, ledger_root, rate_period
from collector.ledger.database import LedgerError


@dataclass(frozen=True, slots=True)
class Recomputed:
    """Result of a closing, computed again."""

    rated: Rated
    drafts: tuple[Invoice, ...]
    manifest_root: str


def recompute(books: Books, closing: Closing, issued: Iterable[Invoice]) -> Recomputed:
    """Rate again the revisions and prices of a closing.

    Administrative charges (credits, adjustments) are copied from the invoices that it issued.
    """
    published = books.store.book(closing.price_version)
    if published is None:
        message = f"the ledger lacks version {closing.price_version} of the prices"
        raise LedgerError(message)
    numbers = Numbers.given(books.store.revisions(closing.number))
    rated = rate_period(books.ledger, published.book, closing.period, numbers)
    sources = dict(rated.sources)
    decided = [line.charge for one in issued for line in one.lines if line.charge.unit is None]
    charges = [*rated.charges, *decided]
    if closing.tenant:
        found = tuple(_replacement(books, closing, one, charges) for one in issued)
    else:
        for earlier in closing.corrected:
            again = rate_period(books.ledger, published.book, earlier, numbers)
            standing = books.store.standing(earlier.start_ns, closing)
            charges += corrections(standing, again.charges, earlier, closing.period.start_ns)
            sources |= again.sources
        found = drafts(charges, closing.period, closing.currency)
    root = manifest_root(closing.period, closing.price_version, ledger_root(sources), found)
    return Recomputed(rated, found, root)


def _replacement(
    books: Books, closing: Closing, invoice: Invoice, charges: Iterable[Charge]
) -> Invoice:
    """The invoice of one tenant, with the corrections of the invoice that it replaces."""
    replaced = books.store.invoice(invoice.replaces)
    kept = [line.charge for line in replaced[0].lines if line.charge.corrects] if replaced else []
    own = [charge for charge in charges if charge.tenant == closing.tenant]
    return draft([*own, *kept], closing.tenant, closing.period, closing.currency, invoice.replaces)
