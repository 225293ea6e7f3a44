"""Pages about money: one statement, periods, reconciliation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from http import HTTPStatus

import msgspec

from railscope.api import billing as resources
from railscope.timestamps import SECOND_NS, format_timestamp
from railscope_collector.billing import (
    billing_listing,
    billing_reader,
    billing_store,
    charges,
    reconciliation,
    statement as statements,
)
from railscope_collector.console import page_cache, page_table
from railscope_collector.files import seller_file
from railscope_collector.http import ResourceError, billing_api
from railscope_collector.ledger import audit_outbox, head_chain
from railscope_collector.metering.units import period_name

MAX_CLAIMS, MAX_UNDECIDED, MAX_SUMMARY = 100, 100, 200
RECONCILED_AGAIN_NS = 600 * SECOND_NS
"""Time after which a period is reconciled again although nothing was written: rows may be changed by hand."""
MAX_RATING_WAIT_SECONDS = 2.0
"""Time for which a page waits for the charges so far; a later refresh shows them."""
_RATING_PAUSES = 9
"""Pause after rating the charges so far, in durations of the rating: it takes at most a tenth of the time."""


@dataclass(slots=True)
class BillingPages:
    """Models from the books."""

    books: billing_api.BillingApi
    _reconciled: page_cache.PageCache[resources.Reconciliation] = field(
        default_factory=page_cache.PageCache
    )
    _charges: billing_reader.MonthCharges | None = None
    """Of all tenants, from the ledger and the prices at `_charges_head`."""
    _charges_head: head_chain.ChainHead | None = None
    _rating: asyncio.Task[None] | None = None
    _rate_again_ns: int = 0

    def models(self) -> page_table.PageModels:
        """Return the functions by name of the page."""
        return {
            "statement": self._statement,
            "billing": self._billing,
            "billing_period": self._period,
            "reconciliation": self._reconciliation,
        }

    async def issued(
        self, request: page_table.PageRequest, tenant: str | None
    ) -> list[resources.IssuedInvoice]:
        """Return the invoices of a tenant or of all, the oldest first. Raises ResourceError."""
        return await self.books.read(
            request.credential, lambda reader: reader.issued_invoices(tenant)
        )

    async def month_charges(self, request: page_table.PageRequest) -> billing_reader.MonthCharges:
        """Return the charges so far of all tenants, rated once for each change of the ledger or the prices.

        While they are rated again, these are the previous ones, marked as outdated. Raises ResourceError.
        """
        head = await self.books.read(request.credential, lambda reader: reader.ledger_head())
        if self._charges is None or self._charges_head != head:
            is_due = time.monotonic_ns() >= self._rate_again_ns
            if self._rating is None or (self._rating.done() and is_due):
                self._rating = asyncio.create_task(self._rate(request, head))
            # `wait` does not cancel the rating: a later request shows its result.
            await asyncio.wait([self._rating], timeout=MAX_RATING_WAIT_SECONDS)
            if self._rating.done():
                self._rating.result()
        if self._charges is None:
            return billing_reader.MonthCharges(problem="being computed")
        return replace(self._charges, is_outdated=self._charges_head != head)

    async def _rate(
        self, request: page_table.PageRequest, head: head_chain.ChainHead | None
    ) -> None:
        began_ns = time.monotonic_ns()
        try:
            self._charges = await self.books.read(
                request.credential, lambda reader: reader.month_charges()
            )
            # Read before the charges, which are then outdated rather than taken for newer ones.
            self._charges_head = head
        finally:
            ended_ns = time.monotonic_ns()
            self._rate_again_ns = ended_ns + _RATING_PAUSES * (ended_ns - began_ns)

    async def _statement(self, request: page_table.PageRequest) -> resources.Statement:
        tenant, period = request.parts["tenant"], billing_api.requested_period(request)

        def make(reader: billing_reader.BillingReader) -> resources.Statement | None:
            found = reader.read_statement(tenant, period)
            return None if found is None else _statement_model(found, reader.statement_forms)

        model = await self.books.read(request.credential, make)
        if model is None:
            text = f"no statement of {tenant} for {period_name(period)}"
            raise ResourceError(HTTPStatus.NOT_FOUND, text)
        return model

    async def _billing(self, request: page_table.PageRequest) -> resources.ClosedPeriodList:
        def make(reader: billing_reader.BillingReader) -> resources.ClosedPeriodList:
            store = reader.books.store
            opening, closings = store.opening(), store.closings()
            periods = sorted({closing.period for closing in closings}, reverse=True)
            rows = []
            for period in periods[request.part]:
                of_period = [closing for closing in closings if closing.period == period]
                heads = [head for head in store.heads(period) if head.period == period]
                rows.append(
                    resources.ClosedPeriod(
                        period_name(period),
                        len(of_period),
                        len(heads),
                        sum(head.void for head in heads),
                        _totals(heads),
                        any(closing.provisional for closing in of_period),
                    )
                )
            text = (
                f"{format_timestamp(opening.opening_ns)[:10]}: {opening.reason}" if opening else ""
            )
            return resources.ClosedPeriodList(text, tuple(rows), len(periods), request.query.offset)

        return await self.books.read(request.credential, make)

    async def _period(self, request: page_table.PageRequest) -> resources.PeriodDetail:
        period = billing_api.requested_period(request)

        def make(reader: billing_reader.BillingReader) -> resources.PeriodDetail | None:
            store = reader.books.store
            closings = [closing for closing in store.closings() if closing.period == period]
            if not closings:
                return None
            heads = [head for head in store.heads(period) if head.period == period]
            undecided = [
                f"{use.tenant or 'no tenant'}: {use}"
                for closing in closings
                for use in store.reviews(closing.number)
            ]
            return resources.PeriodDetail(
                period_name(period),
                tuple(map(billing_listing.closing_row, closings)),
                _totals(heads),
                tuple(map(billing_reader.issued_invoice, heads[request.part])),
                len(heads),
                tuple(undecided[:MAX_UNDECIDED]),
                len(undecided),
                tuple(reader.export_forms),
                request.query.offset,
            )

        model = await self.books.read(request.credential, make)
        if model is None:
            text = f"{period_name(period)} is not closed: expected a closed period"
            raise ResourceError(HTTPStatus.NOT_FOUND, text)
        return model

    async def _reconciliation(self, request: page_table.PageRequest) -> resources.Reconciliation:
        """Compare a period once for each change of the ledger: every write of it adds a record to the outbox."""
        period = billing_api.requested_period(request)

        def read_version(reader: billing_reader.BillingReader) -> tuple[seller_file.Seller, int]:
            # In one transaction: the tenants and the number belong together.
            with reader.books.store.database.transaction() as connection:
                heads = reader.books.store.heads(period, connection=connection)
                number = audit_outbox.newest_number(connection)
            return reader.seller(sorted({head.tenant for head in heads})), number

        def make(reader: billing_reader.BillingReader) -> resources.Reconciliation:
            checks = reconciliation.reconcile_period(reader.books, period, seller)
            rows = tuple(check.row for check in checks)
            above = sum(not check.is_within_bound for check in checks)
            failed = sum(not check.passes for check in checks)
            return resources.Reconciliation(
                period_name(period), reader.wall_ns(), rows, failed, above
            )

        seller, number = await self.books.read(request.credential, read_version)
        slot = time.monotonic_ns() // RECONCILED_AGAIN_NS
        key = period, number, msgspec.json.encode(seller), slot
        return await self._reconciled.get(
            key, lambda: self.books.read(request.credential, make), reads_storage=True
        )


def _statement_model(
    found: statements.TenantStatement, forms: Sequence[str]
) -> resources.Statement:
    summary, claims, undecided = found.summary, found.claims, found.undecided
    return resources.Statement(
        title=found.title,
        tenant=found.invoice.tenant,
        period=period_name(found.invoice.period),
        facts=tuple(found.facts),
        proof=tuple(found.proof),
        marks=tuple(found.marks),
        summary=tuple(line._asdict() for line in summary[:MAX_SUMMARY]),
        summary_count=len(summary),
        total_label=found.total_label,
        total=found.total,
        currency=found.invoice.currency,
        claims=tuple(claim._asdict() for claim in claims[:MAX_CLAIMS]),
        claim_count=len(claims),
        undecided=tuple(map(str, undecided[:MAX_UNDECIDED])),
        undecided_count=len(undecided),
        forms=tuple(forms),
    )


def _totals(heads: Sequence[billing_store.InvoiceHead]) -> tuple[str, ...]:
    """Return the sum of the valid invoices in each currency."""
    totals: dict[str, Fraction] = {}
    for head in heads:
        if not head.void:
            totals[head.currency] = totals.get(head.currency, Fraction(0)) + head.payable
    return tuple(
        f"{charges.format_decimal(total, charges.currency_exponent(currency))} {currency}"
        for currency, total in sorted(totals.items())
    )
