"""Records of the billing database other than invoices."""

from __future__ import annotations

from typing import NamedTuple

from collector.billing.charges import Charge
from collector.billing.prices import PriceBook
from collector.metering.instants import Period


class Mark(NamedTuple):
    """Row counts of the tables that a closing depends on; they change with any new row."""

    books: int
    closings: int
    adjustments: int
    voids: int
    openings: int


class Head(NamedTuple):
    """An invoice without its lines."""

    invoice_id: str
    tenant: str
    period: Period
    replaces: str
    void: bool


class AuditPlace(NamedTuple):
    """Index of an invoice's record in the audit log, and the size of a checkpoint that covers it."""

    leaf: int
    checkpoint_size: int | None


class Published(NamedTuple):
    """A price book as it was published."""

    book: PriceBook
    text: str
    content_hash: str


class Adjusted(NamedTuple):
    """A credit or an adjustment: its charge, currency, time of recording and actor."""

    charge: Charge
    currency: str
    recorded_ns: int
    recorded_by: str


class Opening(NamedTuple):
    """Start of the billed time, its reason, time of recording and actor."""

    opening_ns: int
    reason: str
    recorded_ns: int
    recorded_by: str
