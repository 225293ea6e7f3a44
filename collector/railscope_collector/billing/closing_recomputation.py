"""A closed period, computed again from the revisions and the prices of its closing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from railscope_collector.billing import period_closing, period_rating
from railscope_collector.billing.charges import Charge
from railscope_collector.billing.closing_record import PeriodClosing, manifest_root
from railscope_collector.billing.invoices import Invoice, draft_invoice, draft_invoices
from railscope_collector.billing.period_corrections import correction_charges
from railscope_collector.ledger import (
    database,
)


@dataclass(frozen=True, slots=True)
class RecomputedClosing:
    """Result of a closing, computed again."""

    rated: period_rating.RatedPeriod
    drafts: tuple[Invoice, ...]
    manifest_root: str


def recompute_closing(
    books: period_closing.BillingBooks, closing: PeriodClosing, issued: Iterable[Invoice]
) -> RecomputedClosing:
    """Rate again the revisions and prices of a closing.

    Administrative charges (credits, adjustments) are copied from the invoices that it issued.
    """
    published = books.store.book(closing.price_version)
    if published is None:
        message = f"the ledger lacks version {closing.price_version} of the price book"
        raise database.UnusableLedgerError(message)
    numbers = period_rating.given_revisions(books.store.revisions(closing.number))
    rated = period_rating.rate_period(books.ledger, published.book, closing.period, numbers)
    sources = dict(rated.sources)
    decided = [
        line.charge for invoice in issued for line in invoice.lines if line.charge.unit is None
    ]
    charges = [*rated.charges, *decided]
    if closing.tenant:
        replacements = tuple(_replacement(books, closing, invoice, charges) for invoice in issued)
    else:
        for earlier in closing.corrected:
            recomputed = period_rating.rate_period(books.ledger, published.book, earlier, numbers)
            valid = books.store.valid_invoices(earlier.start_ns, closing)
            charges += correction_charges(
                valid, recomputed.charges, earlier, closing.period.start_ns
            )
            sources |= recomputed.sources
        replacements = draft_invoices(charges, closing.period, closing.currency)
    root = manifest_root(
        closing.period, closing.price_version, period_rating.ledger_root(sources), replacements
    )
    return RecomputedClosing(rated, replacements, root)


def _replacement(
    books: period_closing.BillingBooks,
    closing: PeriodClosing,
    invoice: Invoice,
    charges: Iterable[Charge],
) -> Invoice:
    """The invoice of one tenant, with the corrections of the invoice that it replaces."""
    replaced = books.store.invoice(invoice.replaces)
    lines = replaced[0].lines if replaced else ()
    corrections = [line.charge for line in lines if line.charge.corrects]
    charged = [charge for charge in charges if charge.tenant == closing.tenant]
    return draft_invoice(
        charged + corrections, closing.tenant, closing.period, closing.currency, invoice.replaces
    )
