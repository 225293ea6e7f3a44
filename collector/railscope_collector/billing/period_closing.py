"""Closing a period: from the ledger to issued invoices, once, in one transaction.

Late evidence for a closed period is billed in the next one, with the dates of the service. Closing
a closed period again changes nothing. Two concurrent closings issue one set of invoices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection, and_, func, or_, select, union_all

from railscope.audit.record import RecordData
from railscope.timestamps import format_timestamp
from railscope_collector.billing import (
    billing_store,
    closing_record,
    invoices as invoicing,
    period_completeness,
    period_corrections,
    period_rating,
    price_book,
    price_book_versions,
    rating,
    tables,
    undecided_use,
)
from railscope_collector.billing.charges import Charge
from railscope_collector.evidence.usage_facts import UsageFacts
from railscope_collector.jobs import imported_lists
from railscope_collector.ledger import (
    head_chain,
    ledger_store,
    record_draft,
    schema,
)
from railscope_collector.ledger.day_documents import GpuDay, group_by_day, ledger_days
from railscope_collector.metering.units import Period, period_name

_TRIES = 5
"""Attempts to close a period: a bill is outdated if prices, invoices or closings change while it is computed."""


@dataclass(frozen=True, slots=True)
class Bill:
    """Bill of a period from the current ledger; not binding."""

    period: Period
    book: price_book.PriceBook
    rated: period_rating.RatedPeriod
    drafts: tuple[invoicing.Invoice, ...]
    corrected: tuple[Period, ...]
    reviews: tuple[rating.UsageReview, ...]
    sources: Mapping[GpuDay, period_rating.SourceRevision]
    missing_days: period_completeness.MissingDays
    row_counts: Mapping[str, int]
    """Rows of the tables of billing when it was computed."""

    @property
    def undecided(self) -> tuple[undecided_use.UndecidedUse, ...]:
        """Use that is not billed, of the period and of the periods corrected with it."""
        return undecided_use.merge_reviews(self.reviews)

    def is_current(self, closings: Sequence[closing_record.PeriodClosing]) -> bool:
        """True if no closing was added since it was computed; closings are never removed."""
        return self.row_counts[tables.closings.name] == len(closings)


class ClosedPeriod(NamedTuple):
    """A closing with its invoices; `added` is true if this call made it."""

    closing: closing_record.PeriodClosing
    invoices: tuple[invoicing.Invoice, ...]
    added: bool


class PendingItems(NamedTuple):
    """Corrections and undecided use, by closed period, that the next closing adds."""

    currency: str
    corrections: tuple[tuple[Period, tuple[Charge, ...]], ...]
    undecided: tuple[tuple[Period, undecided_use.UndecidedUse], ...]


class _CorrectedPeriod(NamedTuple):
    """A closed period computed again, and the charges that correct it."""

    rated: period_rating.RatedPeriod
    charges: tuple[Charge, ...]


@dataclass(frozen=True, slots=True)
class BillingBooks:
    """The ledger with its billing tables. All methods block, and raise UnusableLedgerError."""

    ledger: ledger_store.Ledger
    store: billing_store.BillingStore
    evidence: UsageFacts | None = None

    @classmethod
    def for_ledger(
        cls, ledger: ledger_store.Ledger, evidence: UsageFacts | None = None
    ) -> BillingBooks:
        """The billing tables in the database of a ledger."""
        return cls(ledger, billing_store.BillingStore(ledger.database), evidence)

    # Bills ---------------------------------------------------------------------------------------

    def bill(self, period: Period, *, correcting: bool = True) -> Bill:
        """The bill of a period from the current ledger, with corrections of earlier periods.

        Raises ClosingError, MissingPriceError.
        """
        with self.ledger.database.transaction() as connection:
            # Before anything is read: a row that is added later makes the bill outdated.
            row_counts = self.store.row_counts(connection)
        book = self._book()
        # One set of revisions for the period and all corrections, although days are finalized meanwhile.
        numbers = period_rating.newest_revisions(self.ledger)
        rated = period_rating.rate_period(self.ledger, book, period, numbers)
        corrections = self._corrections(period.start_ns, book, numbers) if correcting else []
        charges = [*rated.charges, *self._adjustments(book.currency)]
        sources, reviews = dict(rated.sources), list(rated.reviews)
        for earlier in corrections:
            charges += earlier.charges
            sources |= earlier.rated.sources
            reviews += earlier.rated.reviews
        return Bill(
            period=period,
            book=book,
            rated=rated,
            drafts=invoicing.draft_invoices(charges, period, book.currency),
            corrected=tuple(earlier.rated.period for earlier in corrections),
            reviews=tuple(reviews),
            sources=sources,
            missing_days=period_completeness.find_missing_days(
                period,
                rated.sources,
                self.evidence,
                imported_lists.newest_lists(self.ledger.database),
            ),
            row_counts=row_counts,
        )

    def rate_until(self, period: Period, last_day: int) -> period_rating.RatedPeriod:
        """Rate a period from the newest revisions of its days up to the last one, as closing it does.

        Raises ClosingError, MissingPriceError.
        """
        newest = period_rating.newest_revisions(self.ledger)
        return period_rating.rate_period(
            self.ledger,
            self._book(),
            period,
            lambda days: {key: n for key, n in newest(days).items() if key.day <= last_day},
        )

    def find_pending(self) -> PendingItems:
        """Corrections of closed periods that the next closing would bill, from the current ledger.

        Raises ClosingError, MissingPriceError.
        """
        closed = [closing.period.end_ns for closing in self.store.closings()]
        if not closed:
            return PendingItems("", (), ())
        book = self._book()
        corrections = self._corrections(
            max(closed), book, period_rating.newest_revisions(self.ledger)
        )
        return PendingItems(
            book.currency,
            tuple((correction.rated.period, correction.charges) for correction in corrections),
            tuple(
                (correction.rated.period, each)
                for correction in corrections
                for each in undecided_use.merge_reviews(correction.rated.reviews)
            ),
        )

    def _book(self) -> price_book.PriceBook:
        published = self.store.book()
        if published is None:
            message = "no price book is published; fix: run `railscope bill prices publish FILE`"
            raise closing_record.ClosingError(message)
        return published.book

    def _corrections(
        self, open_ns: int, book: price_book.PriceBook, numbers: period_rating.RevisionNumbers
    ) -> list[_CorrectedPeriod]:
        """Closed periods before the open one that need correction, computed again."""
        corrected = []
        for earlier in self._to_correct(open_ns):
            recomputed = period_rating.rate_period(self.ledger, book, earlier, numbers)
            valid = self.store.valid_invoices(earlier.start_ns)
            charges = period_corrections.correction_charges(
                valid, recomputed.charges, earlier, open_ns
            )
            corrected.append(_CorrectedPeriod(recomputed, charges))
        return corrected

    def _adjustments(self, currency: str) -> list[Charge]:
        """Credits and adjustments that are on no valid invoice."""
        recorded = self.store.adjustments()
        if not recorded:
            return []
        wrong = next((item for item in recorded if item.currency != currency), None)
        if wrong is not None:
            message = (
                f"cannot bill the {wrong.charge.kind} of {wrong.charge.tenant}: currency "
                f"{wrong.currency}: expected {currency}"
            )
            raise closing_record.ClosingError(message)
        billed = self.store.billed_adjustments()
        return [item.charge for item in recorded if item.charge.charge_id not in billed]

    def _to_correct(self, open_ns: int) -> list[Period]:
        """Closed periods with ledger days that have changed since they were computed.

        Also all closed periods up to that of a void invoice without a replacement, as their charges
        may have been on it.
        """
        closed = sorted({closing.period for closing in self.store.closings()})
        closed = [period for period in closed if period.end_ns <= open_ns]
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
            period
            for period in closed
            if period in changed or any(start_ns >= period.start_ns for start_ns in void_ns)
        ]

    # Closing -------------------------------------------------------------------------------------

    def close(
        self, period: Period, by: record_draft.TimedActor, *, provisional: bool = False
    ) -> ClosedPeriod:
        """Close a period and issue its invoices; a closed period is left unchanged.

        Raises ClosingError for a period that is not over, does not follow the previous one, leaves
        out earlier time, or has missing days in the ledger, unless `provisional`;
        MissingPriceError; and PriceBookError for prices that are dated after now.
        """
        for _ in range(_TRIES):
            closings = self.store.closings()
            existing = self._find_closed(period, closings)
            if existing is not None:
                return existing
            _check_closable(period, closings, by.now_ns)
            period_completeness.check_earlier(self.store, period, closings)
            # Outside of the transaction, as rating may take minutes; compared again under the lock.
            bill = self.bill(period)
            price_book_versions.check_published(bill.book, by.now_ns)
            if bill.missing_days.all and not provisional:
                message = (
                    f"cannot close {period_name(period)} yet: {bill.missing_days}; fix: {bill.missing_days.fix},"
                    " or close with --provisional: the next period then contains the corrections"
                )
                raise closing_record.ClosingError(message)
            invoices = tuple(invoicing.issue_invoice(draft, by.now_ns) for draft in bill.drafts)
            closing = closing_of_bill(bill, invoices, by)
            closed = ClosedPeriod(closing, invoices, added=True)
            with self.store.write_transaction() as connection:
                if self.store.row_counts(connection) == bill.row_counts and bill.is_current(
                    closings
                ):
                    write_closing(connection, closed, bill, by)
                    return closed
            # A concurrent transaction changed the billing tables: the bill may be outdated.
        message = (
            f"cannot close {period_name(period)}: prices, invoices or closings keep changing"
            " at the same time; fix: try again"
        )
        raise closing_record.ClosingError(message)

    def _find_closed(
        self, period: Period, closings: Iterable[closing_record.PeriodClosing]
    ) -> ClosedPeriod | None:
        for closing in closings:
            if closing.period == period and not closing.tenant:
                return ClosedPeriod(
                    closing, tuple(self.store.of_closing(closing.number)), added=False
                )
        return None


def closing_of_bill(
    bill: Bill, invoices: Iterable[invoicing.Invoice], by: record_draft.TimedActor
) -> closing_record.PeriodClosing:
    """The closing that issues the invoices of a bill."""
    root = period_rating.ledger_root(bill.sources)
    return closing_record.PeriodClosing(
        number=bill.row_counts[tables.closings.name] + 1,
        period=bill.period,
        tenant="",
        closed_ns=by.now_ns,
        closed_by=by.actor.id,
        currency=bill.book.currency,
        price_version=bill.book.version,
        ledger_root=root,
        manifest_root=closing_record.manifest_root(bill.period, bill.book.version, root, invoices),
        corrected=bill.corrected,
        missing=bill.missing_days.all,
    )


def period_data(period: Period) -> RecordData:
    """Start and end of a period in an audit record."""
    return {"start": format_timestamp(period.start_ns), "end": format_timestamp(period.end_ns)}


def write_closing(
    connection: Connection, closed: ClosedPeriod, bill: Bill, by: record_draft.TimedActor
) -> None:
    """Write a closing with its invoices, and record both in the audit log."""
    closing, number = closed.closing, closed.closing.number
    billing_store.insert_rows(connection, tables.closings, [tables.closing_row(closing)])
    used = (
        {"closing": number, "gpu_uuid": key.gpu, "day": key.day, "revision": source.revision}
        for key, source in sorted(bill.sources.items())
    )
    billing_store.insert_rows(connection, tables.closing_days, used)
    billing_store.insert_rows(
        connection,
        tables.reviews,
        (tables.review_row(number, at, review) for at, review in enumerate(bill.undecided)),
    )
    draft = by.draft(
        "billing.close",
        {
            **period_data(closing.period),
            "tenant": closing.tenant,
            "invoices": len(closed.invoices),
            "price_version": closing.price_version,
            "ledger_root": closing.ledger_root,
            "manifest_root": closing.manifest_root,
            "missing_gpu_days": len(closing.missing),
        },
    )
    rows = [head_chain.record_row(connection, "closing", number, draft, closing.manifest_root)]
    for invoice in closed.invoices:
        row = schema.to_row(tables.invoices, invoice, closing=number)
        billing_store.insert_rows(connection, tables.invoices, [row])
        lines = (tables.charge_row(line, invoice.invoice_id) for line in invoice.lines)
        billing_store.insert_rows(connection, tables.charges, lines)
        draft = by.draft(
            "billing.issue",
            {
                **period_data(invoice.period),
                "invoice": invoice.invoice_id,
                "tenant": invoice.tenant,
                "currency": invoice.currency,
                "total_minor": str(invoice.total_minor),
                "content_hash": invoice.content_hash,
                "replaces": invoice.replaces,
                "manifest_root": closing.manifest_root,
            },
        )
        rows.append(head_chain.record_row(connection, "invoice", invoice.invoice_id, draft))
    # Last: the head covers the rows that were written before, with their parts.
    head_chain.append_head(connection, rows, closing.closed_ns)


def _check_closable(
    period: Period, closings: Iterable[closing_record.PeriodClosing], now_ns: int
) -> None:
    """Check that a period may be closed at `now_ns`. Raises ClosingError."""
    name = period_name(period)
    if now_ns < period.end_ns + invoicing.CLOSE_AFTER_NS:
        message = (
            f"cannot close {name} yet: expected "
            f"{format_timestamp(period.end_ns + invoicing.CLOSE_AFTER_NS)} or later: evidence may be"
            " received until three days after its end"
        )
        raise closing_record.ClosingError(message)
    closed = [closing.period for closing in closings]
    for other in closed:
        if other.overlaps(period):
            message = f"cannot close {name}: overlaps the closed period {period_name(other)}"
            raise closing_record.ClosingError(message)
    last_ns = max((earlier.end_ns for earlier in closed), default=period.start_ns)
    if last_ns != period.start_ns:
        message = (
            f"cannot close {name}: gap or overlap with closed periods: expected the start "
            f"{format_timestamp(last_ns)}"
        )
        raise closing_record.ClosingError(message)


def _changed_periods(connection: Connection, closed: Sequence[Period]) -> set[Period]:
    """Closed periods with ledger revisions that are newer than those of their closings."""
    used = tables.used_revisions
    billed = (
        select(used.c.gpu_uuid, used.c.day, func.max(used.c.revision).label("revision"))
        .join_from(used, tables.closings, used.c.closing == tables.closings.c.closing)
        # A replacement for one tenant has rated all GPUs, but billed that tenant only.
        .where(tables.closings.c.tenant_id == "")
        .group_by(used.c.gpu_uuid, used.c.day)
        .subquery()
    )
    first, last = (
        period_rating.rating_days(closed[0]).start,
        period_rating.rating_days(closed[-1]).stop,
    )
    rows = schema.revisions.c
    present = union_all(
        select(rows.gpu_uuid, rows.day, rows.revision).where(rows.day < last),
        select(ledger_days.c.gpu, ledger_days.c.day, ledger_days.c.revision).where(
            ledger_days.c.day < last
        ),
    ).subquery()
    newest = (
        select(present.c.gpu_uuid, present.c.day, func.max(present.c.revision).label("revision"))
        .group_by(present.c.gpu_uuid, present.c.day)
        .subquery()
    )
    same = and_(billed.c.gpu_uuid == newest.c.gpu_uuid, billed.c.day == newest.c.day)
    fresh = or_(
        and_(billed.c.revision.is_(None), newest.c.day >= first),
        billed.c.revision < newest.c.revision,
    )
    query = (
        select(newest.c.gpu_uuid, newest.c.day).outerjoin_from(newest, billed, same).where(fresh)
    )
    keys = [GpuDay(*row) for row in connection.execute(query)]
    days = {key.day for key in keys}
    changed = {span for span in closed if not days.isdisjoint(period_rating.rating_days(span))}
    for day, gpus in group_by_day(keys):
        # A claim that continues into a period was rated with the days before it, so a change of
        # those days affects that period too.
        closing_query = select(used.c.closing).distinct()
        closing_query = closing_query.where(used.c.day == day, used.c.gpu_uuid.in_(gpus))
        rested = tables.closings.c.closing.in_(closing_query)
        for row in connection.execute(select(tables.closings).where(rested)):
            closing = tables.closing_from_row(row)
            changed |= {closing.period, *closing.corrected}
    return changed & set(closed)
