"""A closed period: what was billed from what."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from collector.billing.canonical import Content, digest
from collector.billing.invoice import Invoice
from collector.ledger.rows import GpuDay
from collector.metering.instants import Period


class ClosingError(ValueError):
    """A period cannot be closed, or not be billed like that; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Closing:
    """A period that was closed, for all tenants or (to replace a void invoice) for one.

    `manifest_root` is a hash over everything that went in and came out. `corrected` are the earlier
    periods that were computed again with it. `missing` are GPU-days that it could not wait for.
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
        """Whether it was closed without all that it should rest on."""
        return bool(self.missing)


def manifest_root(
    period: Period, price_version: int, ledger_root: str, invoices: Iterable[Invoice]
) -> str:
    """One hash over a period, the prices, the ledger's revisions and the invoices made of them."""
    content: Content = {
        "period": [period.start_ns, period.end_ns],
        "price_version": price_version,
        "ledger": ledger_root,
        "invoices": sorted(invoice.content_hash for invoice in invoices),
    }
    return digest(content)
