"""Models of the pages about money: statements, periods, reconciliation. Amounts are the text of the statements."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from http import HTTPStatus
from typing import TypeVar

import msgspec

from railscope.timestamps import SECOND_NS, format_timestamp
from railscope_collector.billing import (
    BillingError,
    billing_listing,
    billing_reader,
    billing_store,
    charges,
    reconciliation,
    reconciliation_check,
    statement as statements,
)
from railscope_collector.console import PageProblemError, page_cache, page_table
from railscope_collector.files import seller_file
from railscope_collector.http.read_pool import ReadPool
from railscope_collector.ledger import audit_outbox, database, head_chain
from railscope_collector.metering.units import Period, PeriodError, parse_period, period_name

MAX_CLAIMS, MAX_UNDECIDED, MAX_SUMMARY = 100, 100, 200
RECONCILED_AGAIN_NS = 600 * SECOND_NS
"""Time after which a period is reconciled again although nothing was written: rows may be changed by hand."""
MAX_RATING_WAIT_SECONDS = 2.0
"""Time for which a page waits for the charges so far; a later refresh shows them."""
_RATING_PAUSES = 9
"""Pause after rating the charges so far, in durations of the rating: it takes at most a tenth of the time."""
UNAVAILABLE = "the ledger is unavailable"
_PERCENT_PLACES = 3
ResultT = TypeVar("ResultT")


class StatementsModel(msgspec.Struct, frozen=True):
    """Statements, the newest period first."""

    tenant: str
    """The only tenant; empty for all."""
    rows: tuple[billing_reader.IssuedInvoice, ...]
    found: int
    page: int
    pages: int


class StatementModel(msgspec.Struct, frozen=True):
    """The statement of a tenant and period, as in its text: rounded lines that add up to the total."""

    title: str
    tenant: str
    period: str
    facts: tuple[tuple[str, str], ...]
    marks: tuple[str, ...]
    """Reasons why it may still change."""
    summary: tuple[dict[str, str], ...]
    summary_count: int
    total_label: str
    total: str
    currency: str
    claims: tuple[dict[str, str], ...]
    """The most expensive ones."""
    claim_count: int
    undecided: tuple[str, ...]
    undecided_count: int
    forms: tuple[str, ...]
    """Formats of the API."""


class ClosedPeriodRow(msgspec.Struct, frozen=True):
    """A closed period in the list."""

    period: str
    closings: int
    invoices: int
    void: int
    totals: tuple[str, ...]
    """Sum of the valid invoices, with its currency."""
    is_provisional: bool


class BillingModel(msgspec.Struct, frozen=True):
    """Closed periods, the newest first."""

    opening: str
    """Start of the billed time, with its reason; empty if none is set."""
    rows: tuple[ClosedPeriodRow, ...]
    found: int
    page: int
    pages: int


class PeriodInvoiceRow(msgspec.Struct, frozen=True):
    """An invoice of a period."""

    tenant: str
    invoice: str
    is_void: bool
    total: str
    currency: str
    issued_ns: int
    replaces: str


class BillingPeriodModel(msgspec.Struct, frozen=True):
    """One period: its closings as `railscope bill list` prints them, and one page of its invoices."""

    period: str
    closings: tuple[dict[str, object], ...]
    totals: tuple[str, ...]
    invoices: tuple[PeriodInvoiceRow, ...]
    found: int
    page: int
    pages: int
    undecided: tuple[str, ...]
    undecided_count: int
    export_forms: tuple[str, ...]


class ReconciliationRow(msgspec.Struct, frozen=True):
    """Result of one comparison; sums are exact."""

    rule: str
    title: str
    parts: int
    found: str
    expected: str
    difference: str
    """Empty for a share that has a bound."""
    result: str
    """`equal`, `DIFFERS`, `within` or `ABOVE`, with the place or the bound."""
    passes: bool


class ReconciliationModel(msgspec.Struct, frozen=True):
    """All comparisons of a period with the ledger."""

    period: str
    computed_ns: int
    rows: tuple[ReconciliationRow, ...]
    failed: int
    above_bound: int


@dataclass(slots=True)
class BillingPages:
    """Models from the books; `open_books` blocks, and raises BillingUnavailableError."""

    open_books: Callable[[], billing_reader.BillingReader]
    read_pool: ReadPool
    _reconciled: page_cache.PageCache[ReconciliationModel] = field(
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
            "statements": self._statements,
            "statement": self._statement,
            "billing": self._billing,
            "billing_period": self._period,
            "reconciliation": self._reconciliation,
        }

    async def issued(
        self, request: page_table.PageRequest, tenant: str | None
    ) -> list[billing_reader.IssuedInvoice]:
        """Return the invoices of a tenant or of all, the oldest first. Raises PageProblemError."""
        return await self._read(request, lambda reader: reader.issued_invoices(tenant))

    async def month_charges(self, request: page_table.PageRequest) -> billing_reader.MonthCharges:
        """Return the charges so far of all tenants, rated once for each change of the ledger or the prices.

        While they are rated again, these are the previous ones, marked as outdated. Raises PageProblemError.
        """
        head = await self._read(request, lambda reader: reader.ledger_head())
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
            self._charges = await self._read(request, lambda reader: reader.month_charges())
            # Read before the charges, which are then outdated rather than taken for newer ones.
            self._charges_head = head
        finally:
            ended_ns = time.monotonic_ns()
            self._rate_again_ns = ended_ns + _RATING_PAUSES * (ended_ns - began_ns)

    async def _read(
        self,
        request: page_table.PageRequest,
        work: Callable[[billing_reader.BillingReader], ResultT],
    ) -> ResultT:
        """Return the result of reading the books. Raises PageProblemError."""
        try:
            return await self.read_pool.read(request.credential, lambda: work(self.open_books()))
        except (billing_reader.BillingUnavailableError, database.UnusableLedgerError) as error:
            raise PageProblemError(HTTPStatus.SERVICE_UNAVAILABLE, UNAVAILABLE) from error
        except BillingError as error:
            raise PageProblemError(HTTPStatus.CONFLICT, str(error)) from error

    async def _statements(self, request: page_table.PageRequest) -> StatementsModel:
        tenant = request.tenant or request.query.tenant or None
        newest = list(reversed(await self.issued(request, tenant)))
        page = request.query.page
        shown, pages = page_table.split_page(newest, page)
        return StatementsModel(tenant or "", shown, len(newest), page, pages)

    async def _statement(self, request: page_table.PageRequest) -> StatementModel:
        tenant, period = request.parts["tenant"], _parse_period(request)

        def make(reader: billing_reader.BillingReader) -> StatementModel | None:
            found = reader.read_statement(tenant, period)
            return None if found is None else _statement_model(found, reader.statement_forms)

        model = await self._read(request, make)
        if model is None:
            text = f"no statement of {tenant} for {period_name(period)}"
            raise PageProblemError(HTTPStatus.NOT_FOUND, text)
        return model

    async def _billing(self, request: page_table.PageRequest) -> BillingModel:
        def make(reader: billing_reader.BillingReader) -> BillingModel:
            store = reader.books.store
            opening, closings = store.opening(), store.closings()
            periods = sorted({closing.period for closing in closings}, reverse=True)
            shown, pages = page_table.split_page(periods, request.query.page)
            rows = []
            for period in shown:
                of_period = [closing for closing in closings if closing.period == period]
                heads = [head for head in store.heads(period) if head.period == period]
                rows.append(
                    ClosedPeriodRow(
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
            return BillingModel(text, tuple(rows), len(periods), request.query.page, pages)

        return await self._read(request, make)

    async def _period(self, request: page_table.PageRequest) -> BillingPeriodModel:
        period = _parse_period(request)

        def make(reader: billing_reader.BillingReader) -> BillingPeriodModel | None:
            store = reader.books.store
            closings = [closing for closing in store.closings() if closing.period == period]
            if not closings:
                return None
            heads = [head for head in store.heads(period) if head.period == period]
            page = request.query.page
            shown, pages = page_table.split_page(heads, page)
            undecided = [
                f"{use.tenant or 'no tenant'}: {use}"
                for closing in closings
                for use in store.reviews(closing.number)
            ]
            return BillingPeriodModel(
                period_name(period),
                tuple(map(billing_listing.closing_row, closings)),
                _totals(heads),
                tuple(map(_invoice_row, shown)),
                len(heads),
                page,
                pages,
                tuple(undecided[:MAX_UNDECIDED]),
                len(undecided),
                tuple(reader.export_forms),
            )

        model = await self._read(request, make)
        if model is None:
            text = f"{period_name(period)} is not closed: expected a closed period"
            raise PageProblemError(HTTPStatus.NOT_FOUND, text)
        return model

    async def _reconciliation(self, request: page_table.PageRequest) -> ReconciliationModel:
        """Compare a period once for each change of the ledger: every write of it adds a record to the outbox."""
        period = _parse_period(request)

        def read_version(reader: billing_reader.BillingReader) -> tuple[seller_file.Seller, int]:
            # In one transaction: the tenants and the number belong together.
            with reader.books.store.database.transaction() as connection:
                heads = reader.books.store.heads(period, connection=connection)
                number = audit_outbox.newest_number(connection)
            return reader.seller(sorted({head.tenant for head in heads})), number

        def make(reader: billing_reader.BillingReader) -> ReconciliationModel:
            checks = reconciliation.reconcile_period(reader.books, period, seller)
            rows = tuple(map(check_row, checks))
            above = sum(not check.is_within_bound for check in checks)
            failed = sum(not check.passes for check in checks)
            return ReconciliationModel(period_name(period), reader.wall_ns(), rows, failed, above)

        seller, number = await self._read(request, read_version)
        slot = time.monotonic_ns() // RECONCILED_AGAIN_NS
        key = period, number, msgspec.json.encode(seller), slot
        return await self._reconciled.get(
            key, lambda: self._read(request, make), reads_storage=True
        )


def _parse_period(request: page_table.PageRequest) -> Period:
    try:
        return parse_period(request.parts["period"])
    except PeriodError as error:
        raise PageProblemError(HTTPStatus.BAD_REQUEST, str(error)) from error


def _statement_model(found: statements.TenantStatement, forms: Sequence[str]) -> StatementModel:
    summary, claims, undecided = found.summary, found.claims, found.undecided
    return StatementModel(
        title=found.title,
        tenant=found.invoice.tenant,
        period=period_name(found.invoice.period),
        facts=tuple(found.facts),
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


def _invoice_row(head: billing_store.InvoiceHead) -> PeriodInvoiceRow:
    places = charges.currency_exponent(head.currency)
    return PeriodInvoiceRow(
        tenant=head.tenant,
        invoice=head.invoice_id,
        is_void=head.void,
        total=charges.format_decimal(head.payable, places),
        currency=head.currency,
        issued_ns=head.issued_ns,
        replaces=head.replaces,
    )


def check_row(check: reconciliation_check.ReconciliationCheck) -> ReconciliationRow:
    """Return the row of a comparison."""
    if check.bound is None:
        result = "equal" if check.passes else "DIFFERS"
        found, expected, difference = map(str, (check.found, check.expected, check.difference))
    else:
        result = "within" if check.is_within_bound else "ABOVE"
        found, expected, difference = _percent(check.found), f"≤ {_percent(check.bound)}", ""
    if check.place and not check.passes:
        result += f": {check.place}"
    parts, passes = check.parts, check.passes and check.is_within_bound
    return ReconciliationRow(
        check.rule, check.title, parts, found, expected, difference, result, passes
    )


def _percent(share: Fraction) -> str:
    return f"{charges.format_decimal(100 * share, _PERCENT_PLACES)} %"
