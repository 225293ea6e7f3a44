"""Listing of billed and pending items: periods, invoices, credits and pending corrections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from railscope.timestamps import format_timestamp, parse_timestamp
from railscope_collector.billing import billing_store, period_closing, undecided_use
from railscope_collector.billing.charges import Charge, format_amount, plain_decimal, show_time
from railscope_collector.billing.closing_record import PeriodClosing
from railscope_collector.billing.invoices import Invoice
from railscope_collector.jobs.job_report import format_table
from railscope_collector.metering.units import Period, period_name

_EXACT_PLACES = 12
_HOUR_PLACES = 6


@dataclass(frozen=True, slots=True)
class BillingListing:
    """Current billing state of the database.

    `billed_on` is the valid invoice of each credit or adjustment that is on one; the others are
    billed by the next closing. `undecided` is the use that no closing and no correction has
    decided.
    """

    opening: billing_store.BillingOpening | None
    closings: Sequence[PeriodClosing]
    invoices: Sequence[Invoice]
    adjusted: Sequence[billing_store.RecordedAdjustment]
    billed_on: dict[str, str]
    pending: period_closing.PendingItems
    undecided: Sequence[tuple[Period, undecided_use.UndecidedUse]]


def read_listing(books: period_closing.BillingBooks) -> BillingListing:
    """Read the listing. Raises UnusableLedgerError, ClosingError, MissingPriceError."""
    closings = books.store.closings()
    invoices = books.store.invoices()
    billed_on = {
        line.charge.charge_id: invoice.invoice_id
        for invoice in books.store.valid_invoices(
            min((c.period.start_ns for c in closings), default=0)
        )
        for line in invoice.lines
        if line.charge.unit is None
    }
    return BillingListing(
        books.store.opening(),
        closings,
        invoices,
        books.store.adjustments(),
        billed_on,
        books.find_pending(),
        tuple(_find_undecided(books, closings)),
    )


def _find_undecided(
    books: period_closing.BillingBooks, closings: Sequence[PeriodClosing]
) -> Iterator[tuple[Period, undecided_use.UndecidedUse]]:
    """Undecided use of every closed period, from the last closing that computed it."""
    latest: dict[tuple[Period, str], int] = {}
    for closing in closings:
        for period in (closing.period, *closing.corrected):
            if not closing.tenant:
                # A closing of the whole period supersedes those of single tenants.
                latest = {key: n for key, n in latest.items() if key[0] != period}
            latest[period, closing.tenant] = closing.number
    replaced = {key for key in latest if key[1]}
    for (period, tenant), number in sorted(latest.items()):
        for review in books.store.reviews(number):
            within = period.start_ns <= review.start_ns < period.end_ns
            newer = not tenant and (period, review.tenant) in replaced
            if within and not newer and tenant in ("", review.tenant):
                yield period, review


# Formats -----------------------------------------------------------------------------------------


def listing_document(listing: BillingListing) -> dict[str, Any]:
    """The listing for JSON: amounts and quantities are decimal strings, times RFC 3339."""
    opened = listing.opening
    return {
        "opening": opened
        and {
            "date": format_timestamp(opened.opening_ns),
            "reason": opened.reason,
            "recorded": format_timestamp(opened.recorded_ns),
            "recorded_by": opened.recorded_by,
        },
        "periods": [closing_row(closing) for closing in listing.closings],
        "invoices": [
            {
                "invoice": invoice.invoice_id,
                "tenant": invoice.tenant,
                "period": period_name(invoice.period),
                "status": invoice.status.value,
                "issued": format_timestamp(invoice.issued_ns or 0),
                "total": format_amount(invoice.payable, invoice.currency),
                "currency": invoice.currency,
                "replaces": invoice.replaces or None,
            }
            for invoice in listing.invoices
        ],
        "credits": [
            {
                "kind": adjustment.charge.kind.value,
                "tenant": adjustment.charge.tenant,
                "period": _span(adjustment.charge),
                "amount": format_amount(adjustment.charge.amount, adjustment.currency),
                "currency": adjustment.currency,
                "reason": adjustment.charge.note,
                "recorded": format_timestamp(adjustment.recorded_ns),
                "recorded_by": adjustment.recorded_by,
                "invoice": listing.billed_on.get(adjustment.charge.charge_id),
            }
            for adjustment in listing.adjusted
        ],
        "pending_corrections": [
            {
                "period": period_name(period),
                "tenant": tenant,
                "amount": plain_decimal(amount, _EXACT_PLACES),
                "currency": listing.pending.currency,
            }
            for period, tenant, amount in _corrections(listing.pending)
        ],
        "pending_undecided": [_undecided_row(*each) for each in listing.pending.undecided],
        "undecided": [_undecided_row(*each) for each in listing.undecided],
    }


def closing_row(closing: PeriodClosing) -> dict[str, Any]:
    """A closing for JSON."""
    return {
        "period": period_name(closing.period),
        "start": format_timestamp(closing.period.start_ns),
        "end": format_timestamp(closing.period.end_ns),
        "closing": closing.number,
        "tenant": closing.tenant or None,
        "closed": format_timestamp(closing.closed_ns),
        "closed_by": closing.closed_by,
        "price_version": closing.price_version,
        "currency": closing.currency,
        "provisional": closing.provisional,
        "missing_gpu_days": len(closing.missing),
        "corrected": [period_name(period) for period in closing.corrected],
    }


def listing_text(listing: BillingListing) -> Iterator[str]:
    """The listing as tables."""
    if listing.opening:
        opened = listing.opening
        yield f"opening date: {format_timestamp(opened.opening_ns)[:10]} ({opened.reason})"
    document = listing_document(listing)
    for title, name, columns, right in _TABLES:
        rows = [tuple(_cell(column, row[column]) for column in columns) for row in document[name]]
        yield f"{title}: {len(rows):,}"
        if rows:
            heads = tuple(_HEADS.get(column, column.replace("_", " ")) for column in columns)
            yield from (f"  {line}" for line in format_table([heads, *rows], right))


_TIMES = {"closed", "start", "end"}
_HEADS = {"gpu_hours": "GPU-hours", "missing_gpu_days": "missing GPU-days"}
_UNDECIDED = ("tenant", "period", "resource", "claim", "start", "end", "gpu_hours", "reason")
_TABLES = (
    (
        "periods closed", "periods",
        ("period", "closed", "closed_by", "tenant", "price_version", "missing_gpu_days", "corrected"),
        {4, 5},
    ),
    (
        "invoices", "invoices",
        ("tenant", "period", "invoice", "status", "total", "currency", "replaces"), {4},
    ),
    (
        "credits and adjustments", "credits",
        ("tenant", "period", "kind", "amount", "currency", "reason", "invoice"), {3},
    ),
    (
        "corrections that the next closing bills", "pending_corrections",
        ("tenant", "period", "amount", "currency"), {2},
    ),
    ("undecided after the next closing", "pending_undecided", _UNDECIDED, {6}),
    ("undecided", "undecided", _UNDECIDED, {6}),
)  # fmt: skip


def _corrections(pending: period_closing.PendingItems) -> Iterator[tuple[Period, str, Fraction]]:
    """Periods and tenants with corrections, and the amount by which these change the bill."""
    for period, charges in pending.corrections:
        amounts: dict[str, Fraction] = {}
        for charge in charges:
            amounts[charge.tenant] = amounts.get(charge.tenant, Fraction(0)) + charge.amount
        yield from ((period, tenant, amounts[tenant]) for tenant in sorted(amounts))


def _undecided_row(period: Period, use: undecided_use.UndecidedUse) -> dict[str, str]:
    return {
        "period": period_name(period),
        "tenant": use.tenant,
        "resource": use.resource,
        "claim": use.claim,
        "start": format_timestamp(use.start_ns),
        "end": format_timestamp(use.end_ns),
        "gpu_hours": plain_decimal(use.gpu_hours, _HOUR_PLACES),
        "reason": use.reason,
    }


def _span(charge: Charge) -> str:
    return period_name(Period(charge.service_t0_ns, charge.service_t1_ns))


def _cell(column: str, value: Any) -> str:
    if column in _TIMES:
        return show_time(parse_timestamp(value))
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
