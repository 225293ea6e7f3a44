"""Closed periods: their invoices, and the evidence that these were computed from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from railscope_collector.billing import BillingError, charges as charge_types
from railscope_collector.billing.invoices import Invoice
from railscope_collector.ledger.day_documents import GpuDay
from railscope_collector.metering.units import Period


class ClosingError(BillingError, ValueError):
    """A period cannot be closed or billed as requested; the message contains reason and remedy."""


@dataclass(frozen=True, slots=True)
class PeriodClosing:
    """A period that was closed, for all tenants or (to replace a void invoice) for one.

    `manifest_root` is a hash over all inputs and outputs. `corrected` are the earlier periods that
    were computed again with it. `missing` are GPU-days that were missing or not final when a
    provisional closing was made.
    """

    number: int
    period: Period
    tenant: str
    closed_ns: int
    closed_by: str
    currency: str
    price_version: int
    ledger_root: str
    manifest_root: str
    corrected: tuple[Period, ...] = ()
    missing: tuple[GpuDay, ...] = ()

    @property
    def provisional(self) -> bool:
        """True if it was closed with missing or provisional GPU-days."""
        return bool(self.missing)


def manifest_root(
    period: Period, price_version: int, ledger_root: str, invoices: Iterable[Invoice]
) -> str:
    """Hash over a period, the prices, the ledger's revisions and the resulting invoices."""
    content: charge_types.Content = {
        "period": [period.start_ns, period.end_ns],
        "price_version": price_version,
        "ledger": ledger_root,
        "invoices": sorted(invoice.content_hash for invoice in invoices),
    }
    return charge_types.content_digest(content)
