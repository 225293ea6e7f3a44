"""Closing a period: from the ledger to issued invoices, once, in one transaction.

Late evidence for a closed period is billed in the next one, with the dates of the service. Closing
a closed period again changes nothing. Two concurrent closings issue one set of invoices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection, and_, func, or_, select

from collector.billing import (
    billing_audit_records,
    billing_store,
    period_completeness,
    period_rating,
    price_book,
    rating,
    tables,
)
from collector.billing.charges import Charge
from collector.billing.invoices import (
    CLOSE_AFTER_NS,
    ClosingError,
    Invoice,
    PeriodClosing,
    correction_charges,
    draft_invoices,
    issue_invoice,
    manifest_root,
)
from collector.jobs import imported_lists
from collector.ledger import head_chain, ledger_queries, ledger_store, row_conversion, schema
from collector.metering.units import Period, period_name
from railscope.audit.record import RecordActor
from railscope.timestamps import format_timestamp

_TRIES = 5


@dataclass(frozen=True, slots=True)
class Bill:
    """Bill of a period from the current ledger; not binding."""

    period: Period
    book: price_book.PriceBook
    rated: period_rating.RatedPeriod
    drafts: tuple[Invoice, ...]
    corrected: tuple[Period, ...]
    reviews: tuple[rating.UsageReview, ...]
    sources: Mapping[row_conversion.GpuDay, period_rating.SourceRevision]
    lacking: period_completeness.MissingDays
    mark: billing_store.BillingRowCounts

    @property
    def undecided(self) -> tuple[period_rating.UndecidedUse, ...]:
        """Use that is not billed, of the period and of the periods corrected with it."""
        return period_rating.merge_reviews(self.reviews)

    def rests_on(self, closings: Sequence[PeriodClosing]) -> bool:
        """True if no closing was added since it was computed; closings are never removed."""
        return self.mark.closings == len(closings)


class BillingActor(NamedTuple):
    """Actor and time of an administrative operation."""

    actor: RecordActor
    now_ns: int


class ClosedPeriod(NamedTuple):
    """A closing with its invoices; `added` is true if this call made it."""

    closing: PeriodClosing
    invoices: tuple[Invoice, ...]
    added: bool


class PendingItems(NamedTuple):
    """Corrections and undecided use, by closed period, that the next closing adds."""

    currency: str
    corrections: tuple[tuple[Period, tuple[Charge, ...]], ...]
    undecided: tuple[tuple[Period, period_rating.UndecidedUse], ...]


class _CorrectedPeriod(NamedTuple):
    """A closed period computed again, and the charges that correct it."""

    rated: period_rating.RatedPeriod
    charges: tuple[Charge, ...]


@dataclass(frozen=True, slots=True)
class BillingBooks:
    """The ledger with its billing tables. All methods block, and raise LedgerError."""

    ledger: ledger_store.Ledger
    store: billing_store.BillingStore
    evidence: period_completeness.UsageEvidence | None = None

    @classmethod
    def of(
        cls, ledger: ledger_store.Ledger, evidence: period_completeness.UsageEvidence | None = None
    ) -> BillingBooks:
        """The billing tables in the database of a ledger."""
        return cls(ledger, billing_store.BillingStore(ledger.database), evidence)

    @property
    def opening(self) -> billing_store.BillingOpening | None:
        """The date before which nothing is billed; None without one."""
        return period_completeness.newest_opening(self.ledger.database)

    # Bills ---------------------------------------------------------------------------------------

    def bill(self, period: Period, *, correcting: bool = True) -> Bill:
        """The bill of a period from the current ledger, with corrections of earlier periods.

        Raises ClosingError, MissingPriceError.
        """
        with self.ledger.database.transaction() as connection:
            mark = self.store.mark(connection)
        book = self._book()
        numbers = period_rating.RevisionNumbers(self.ledger)
        rated = period_rating.rate_period(self.ledger, book, period, numbers)
        again = self._corrections(period.start_ns, book, numbers) if correcting else []
        charges = [*rated.charges, *self._adjustments(book.currency)]
        sources, reviews = dict(rated.sources), list(rated.reviews)
        for earlier in again:
            charges += earlier.charges
            sources |= earlier.rated.sources
            reviews += earlier.rated.reviews
        return Bill(
            period=period,
            book=book,
            rated=rated,
            drafts=draft_invoices(charges, period, book.currency),
            corrected=tuple(earlier.rated.period for earlier in again),
            reviews=tuple(reviews),
            sources=sources,
            lacking=period_completeness.find_missing_days(
                period,
                rated.sources,
                self.evidence,
                imported_lists.newest_lists(self.ledger.database),
            ),
            mark=mark,
        )

    def pending(self) -> PendingItems:
        """Corrections of closed periods that the next closing would bill, from the current ledger.

        Raises ClosingError, MissingPriceError.
        """
        closed = [one.period.end_ns for one in self.store.closings()]
        if not closed:
            return PendingItems("", (), ())
        book = self._book()
        again = self._corrections(max(closed), book, period_rating.RevisionNumbers(self.ledger))
        return PendingItems(
            book.currency,
            tuple((one.rated.period, one.charges) for one in again),
            tuple(
                (one.rated.period, each)
                for one in again
                for each in period_rating.merge_reviews(one.rated.reviews)
            ),
        )

    def _book(self) -> price_book.PriceBook:
        published = self.store.book()
        if published is None:
            message = "no price book is published; fix: run `railscope bill prices publish FILE`"
            raise ClosingError(message)
        return published.book

    def _corrections(
        self, open_ns: int, book: price_book.PriceBook, numbers: period_rating.RevisionNumbers
    ) -> list[_CorrectedPeriod]:
        """Closed periods before the open one that need correction, computed again."""
        found = []
        for earlier in self._to_correct(open_ns):
            again = period_rating.rate_period(self.ledger, book, earlier, numbers)
            standing = self.store.standing(earlier.start_ns)
            charges = correction_charges(standing, again.charges, earlier, open_ns)
            found.append(_CorrectedPeriod(again, charges))
        return found

    def _adjustments(self, currency: str) -> list[Charge]:
        """Credits and adjustments that are on no valid invoice."""
        recorded = self.store.adjusted()
        if not recorded:
            return []
        wrong = next((one for one in recorded if one.currency != currency), None)
        if wrong is not None:
            message = (
                f"{wrong.charge.kind} of {wrong.charge.tenant}: expected the currency {currency}"
            )
            raise ClosingError(message)
        billed = self.store.decided()
        return [one.charge for one in recorded if one.charge.charge_id not in billed]

    def _to_correct(self, open_ns: int) -> list[Period]:
        """Closed periods with ledger days that have changed since they were computed.

        Also all closed periods up to that of a void invoice without a replacement, as their charges
        may have been on it.
        """
        closed = sorted({one.period for one in self.store.closings()})
        closed = [one for one in closed if one.end_ns <= open_ns]
        if not closed:
            return []
        with self.ledger.database.transaction() as connection:
            changed = _changed_periods(connection, closed)
        heads = self.store.heads()
        replaced = {head.replaces for head in heads}
        void_ns = [
            head.period.start_ns for head in heads if head.void and head.invoice_id not in replaced
        ]
        return [
            one
            for one in closed
            if one in changed or any(start_ns >= one.start_ns for start_ns in void_ns)
        ]

    # Closing -------------------------------------------------------------------------------------

    def close(self, period: Period, by: BillingActor, *, provisional: bool = False) -> ClosedPeriod:
        """Close a period and issue its invoices; a closed period is left unchanged.

        Raises ClosingError for a period that is not over, does not follow the previous one, leaves
        out earlier time, or has missing days in the ledger, unless `provisional`;
        MissingPriceError; and PriceBookError for prices that are dated after now.
        """
        for _ in range(_TRIES):
            known = self.store.closings()
            there = self._closed(period, known)
            if there is not None:
                return there
            _check(period, known, by.now_ns)
            period_completeness.check_earlier(self.ledger.database, period, known, self.opening)
            bill = self.bill(period)
            price_book.check_published(bill.book, by.now_ns)
            if bill.lacking.all and not provisional:
                message = (
                    f"cannot close {period_name(period)} yet: {bill.lacking}; fix: wait for them, or"
                    " close with --provisional: the next period then contains the corrections"
                )
                raise ClosingError(message)
            invoices = tuple(issue_invoice(one, by.now_ns) for one in bill.drafts)
            closing = closing_of_bill(bill, invoices, by)
            with self.ledger.database.transaction(writes=True) as connection:
                self.store.lock(connection)
                if self.store.mark(connection) == bill.mark and bill.rests_on(known):
                    write_closing(
                        connection, ClosedPeriod(closing, invoices, added=True), bill, by.actor
                    )
                    return ClosedPeriod(closing, invoices, added=True)
            # A concurrent transaction changed the billing tables: the bill may be outdated.
        message = (
            f"cannot close {period_name(period)}: prices, invoices or closings keep changing"
            " at the same time; fix: try again"
        )
        raise ClosingError(message)

    def _closed(self, period: Period, known: Iterable[PeriodClosing]) -> ClosedPeriod | None:
        for closing in known:
            if closing.period == period and not closing.tenant:
                return ClosedPeriod(
                    closing, tuple(self.store.of_closing(closing.number)), added=False
                )
        return None


def closing_of_bill(
    bill: Bill, invoices: Iterable[Invoice], by: BillingActor, tenant: str = ""
) -> PeriodClosing:
    """The closing that issues the invoices of a bill."""
    root = period_rating.ledger_root(bill.sources)
    return PeriodClosing(
        number=bill.mark.closings + 1,
        period=bill.period,
        tenant=tenant,
        closed_ns=by.now_ns,
        closed_by=by.actor.id,
        currency=bill.book.currency,
        price_version=bill.book.version,
        ledger_root=root,
        manifest_root=manifest_root(bill.period, bill.book.version, root, invoices),
        corrected=bill.corrected,
        missing=bill.lacking.all,
    )


def write_closing(
    connection: Connection, closed: ClosedPeriod, bill: Bill, actor: RecordActor
) -> None:
    """Write a closing with its invoices, and record both in the audit log."""
    closing, number = closed.closing, closed.closing.number
    billing_store.insert_rows(connection, tables.closings, [tables.closing_row(closing)])
    pinned = (
        {"closing": number, "gpu_uuid": key.gpu, "day": key.day, "revision": source.revision}
        for key, source in sorted(bill.sources.items())
    )
    billing_store.insert_rows(connection, tables.closing_revisions, pinned)
    own = [one for one in bill.undecided if closing.tenant in ("", one.tenant)]
    found = (tables.review_row(one, number, at) for at, one in enumerate(own))
    billing_store.insert_rows(connection, tables.reviews, found)
    billing_store.insert_rows(
        connection, tables.invoices, (tables.invoice_row(one, number) for one in closed.invoices)
    )
    for one in closed.invoices:
        lines = (tables.charge_row(line, one.invoice_id) for line in one.lines)
        billing_store.insert_rows(connection, tables.charges, lines)
    rows = [head_chain.read_back(connection, "closing", number)]
    billing_audit_records.record_closing(connection, closing, rows[0], len(closed.invoices), actor)
    for one in closed.invoices:
        rows.append(head_chain.read_back(connection, "invoice", one.invoice_id))
        billing_audit_records.record_invoice(connection, one, rows[-1], closing, actor)
    head_chain.append(connection, rows, closing.closed_ns)


def _check(period: Period, known: Iterable[PeriodClosing], now_ns: int) -> None:
    """Check that a period may be closed at `now_ns`. Raises ClosingError."""
    name = period_name(period)
    if now_ns < period.end_ns + CLOSE_AFTER_NS:
        message = (
            f"cannot close {name} yet: expected "
            f"{format_timestamp(period.end_ns + CLOSE_AFTER_NS)} or later: evidence may be"
            " received until three days after its end"
        )
        raise ClosingError(message)
    closed = [one.period for one in known]
    for other in closed:
        if other.overlaps(period):
            message = f"{name}: overlaps the closed period {period_name(other)}"
            raise ClosingError(message)
    last_ns = max((one.end_ns for one in closed), default=period.start_ns)
    if last_ns != period.start_ns:
        message = (
            f"{name}: gap or overlap with closed periods: expected the start "
            f"{format_timestamp(last_ns)}"
        )
        raise ClosingError(message)


def _changed_periods(connection: Connection, closed: Sequence[Period]) -> set[Period]:
    """Closed periods with ledger revisions that are newer than those of their closings."""
    pinned = tables.closing_revisions
    seen = (
        select(pinned.c.gpu_uuid, pinned.c.day, func.max(pinned.c.revision).label("revision"))
        .join_from(pinned, tables.closings)
        .where(tables.closings.c.tenant_id == "")
        .group_by(pinned.c.gpu_uuid, pinned.c.day)
        .subquery()
    )
    first, last = (
        period_rating.rating_days(closed[0]).start,
        period_rating.rating_days(closed[-1]).stop,
    )
    newest = (
        select(
            schema.revisions.c.gpu_uuid,
            schema.revisions.c.day,
            func.max(schema.revisions.c.revision).label("revision"),
        )
        .where(schema.revisions.c.day < last)
        .group_by(schema.revisions.c.gpu_uuid, schema.revisions.c.day)
        .subquery()
    )
    same = and_(seen.c.gpu_uuid == newest.c.gpu_uuid, seen.c.day == newest.c.day)
    fresh = or_(
        and_(seen.c.revision.is_(None), newest.c.day >= first),
        seen.c.revision < newest.c.revision,
    )
    query = select(newest.c.gpu_uuid, newest.c.day).outerjoin_from(newest, seen, same).where(fresh)
    keys = [row_conversion.GpuDay(*row) for row in connection.execute(query)]
    days = {key.day for key in keys}
    found = {one for one in closed if not days.isdisjoint(period_rating.rating_days(one))}
    for day, gpus in ledger_queries.by_day(keys):
        # A claim that continues into a period was rated with the days before it, so a change of
        # those days affects that period too.
        which = select(pinned.c.closing).distinct()
        which = which.where(pinned.c.day == day, pinned.c.gpu_uuid.in_(gpus))
        rested = tables.closings.c.closing.in_(which)
        for row in connection.execute(select(tables.closings).where(rested)):
            closing = tables.closing_from_row(row)
            found |= {closing.period, *closing.corrected}
    return found & set(closed)
