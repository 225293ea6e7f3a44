"""What billing keeps in the database beside invoices, as it is read."""

from __future__ import annotations

from typing import NamedTuple

from collector.billing.charges import Charge
from collector.billing.prices import PriceBook
from collector.metering.instants import Period


class Mark(NamedTuple):
    """How much there is of each thing that a closing depends on: it changes whenever they do."""

    books: int
    closings: int
    adjustments: int
    voids: int
    openings: int


class Head(NamedTuple):
    """What is known of an invoice without reading its lines."""

    invoice_id: str
    tenant: str
    period: Period
    replaces: str
    void: bool


class AuditPlace(NamedTuple):
    """Which record of the audit log has an invoice, and the size of a checkpoint that covers it."""

    leaf: int
    checkpoint_size: int | None


class Published(NamedTuple):
    """A price book as it was published."""

    book: PriceBook
    text: str
    content_hash: str


class Adjusted(NamedTuple):
    """A credit or an adjustment: the charge that it becomes, in what currency, when and by whom."""

    charge: Charge
    currency: str
    recorded_ns: int
    recorded_by: str


class Opening(NamedTuple):
    """The first instant that is billed, why, and when and by whom it was set."""

    opening_ns: int
    reason: str
    recorded_ns: int
    recorded_by: str
