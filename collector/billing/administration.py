"""Administrative billing operations besides closing: publish prices, void, adjust, credit."""

from __future__ import annotations

from fractions import Fraction
from hashlib import sha256

from sqlalchemy import Connection

from collector.billing import (
    billing_audit_records,
    billing_store,
    charges,
    invoices,
    period_closing,
    period_completeness,
    price_book,
    tables,
)
from collector.ledger import head_chain
from collector.metering.units import period_name
from railscope.timestamps import FOREVER_NS, format_timestamp

_AMOUNT_PLACES = 9


def publish(
    books: period_closing.BillingBooks, text: str, file: str, by: period_closing.BillingActor
) -> tuple[price_book.PriceBook, bool]:
    """Publish a price book and make it the current one; false if it is current already.

    Raises PriceBookError for an invalid book, for one that is dated in the future, that changes
    past prices of an earlier version, or that is dated before the end of the closed periods.
    """
    book = price_book.parse_price_book(text, file)
    price_book.check_published(book, by.now_ns)
    found = billing_store.PublishedPriceBook(book, text, sha256(text.encode()).hexdigest())
    with books.ledger.database.transaction(writes=True) as connection:
        books.store.lock(connection)
        same = books.store.book_in(connection, book.version)
        if same is not None and same.book == book:
            return book, False
        newest = books.store.book_in(connection)
        if newest is not None:
            price_book.check_appended(newest.book, book)
        _check_open(books, connection, book, first=newest is None)
        row = {
            "version": book.version,
            "published_ns": book.published_ns,
            "currency": book.currency,
            "content_hash": found.content_hash,
            "recorded_ns": by.now_ns,
            "recorded_by": by.actor.id,
            "text": text,
        }
        billing_store.insert_rows(connection, tables.price_books, [row])
        stored = head_chain.read_back(connection, "price book", book.version)
        billing_audit_records.record_price_book(connection, found, stored, by.actor, by.now_ns)
        head_chain.append(connection, [stored], by.now_ns)
    return book, True


def accept_copy(
    books: period_closing.BillingBooks, reason: str, by: period_closing.BillingActor
) -> str:
    """Accept an older copy of the database, if the newest is lost; return its new identity."""
    with books.ledger.database.transaction(writes=True) as connection:
        books.store.lock(connection)
        return head_chain.accept_copy(connection, reason, by.actor, by.now_ns)


def _check_open(
    books: period_closing.BillingBooks,
    connection: Connection,
    book: price_book.PriceBook,
    *,
    first: bool,
) -> None:
    closed_ns = max(
        (one.period.end_ns for one in books.store.closings_in(connection)), default=-FOREVER_NS
    )
    if not first and book.published_ns < closed_ns:
        message = (
            f"version {book.version}: dated {format_timestamp(book.published_ns)}: expected"
            f" at least {format_timestamp(closed_ns)}, the end of the closed periods"
        )
        raise price_book.PriceBookError(message)


def record(
    books: period_closing.BillingBooks,
    charge: charges.Charge,
    by: period_closing.BillingActor,
    *,
    force: bool = False,
) -> tuple[bool, str]:
    """Record a credit or an adjustment for the next closing; false if it is recorded already.

    Also return the currency. Raises ClosingError for an unknown tenant, without a price book (which
    specifies the currency), and, unless forced, for a negative amount that is dated after now or
    exceeds what was invoiced.
    """
    with books.ledger.database.transaction(writes=True) as connection:
        books.store.lock(connection)
        newest = books.store.book_in(connection)
        if newest is None:
            message = (
                "no price book is published: the currency is unknown; fix: run `railscope bill"
                " prices publish FILE`"
            )
            raise invoices.ClosingError(message)
        if not books.store.knows(connection, charge.tenant):
            message = f"unknown tenant {charge.tenant!r}: expected one with an invoice or GPU time"
            raise invoices.ClosingError(message)
        one = billing_store.RecordedAdjustment(charge, newest.book.currency, by.now_ns, by.actor.id)
        if any(other.charge == charge for other in books.store.adjusted_in(connection)):
            return False, one.currency
        if charge.amount < 0 and not force:
            _check_credit(charge, books.store.invoiced_in(connection, charge), by.now_ns)
        row = {
            "charge_id": charge.charge_id,
            "tenant_id": charge.tenant,
            "kind": charge.kind.value,
            "service_t0_ns": charge.service_t0_ns,
            "service_t1_ns": charge.service_t1_ns,
            "amount": str(charge.amount),
            "currency": one.currency,
            "reason": charge.note,
            "recorded_ns": by.now_ns,
            "recorded_by": by.actor.id,
        }
        billing_store.insert_rows(connection, tables.adjustments, [row])
        stored = head_chain.read_back(connection, "adjustment", charge.charge_id)
        billing_audit_records.record_adjustment(connection, one, stored, by.actor)
        head_chain.append(connection, [stored], by.now_ns)
    return True, one.currency


def _check_credit(charge: charges.Charge, invoiced: Fraction, now_ns: int) -> None:
    what = f"{charge.kind} for {charge.tenant}"
    if charge.service_t1_ns > now_ns:
        message = (
            f"{what}: its period ends {format_timestamp(charge.service_t1_ns)}: expected a period up to now, "
            f"{format_timestamp(now_ns)}; fix: name another period, or use --force"
        )
        raise invoices.ClosingError(message)
    if -charge.amount > invoiced:
        shown = (
            charges.format_decimal(-charge.amount, _AMOUNT_PLACES),
            charges.format_decimal(invoiced, _AMOUNT_PLACES),
        )
        message = (
            f"{what}: {shown[0]} credited: expected at most {shown[1]}, the invoiced amount"
            " of its period less earlier credits; fix: lower the amount, or use --force"
        )
        raise invoices.ClosingError(message)


def set_opening(
    books: period_closing.BillingBooks,
    opening_ns: int,
    reason: str,
    by: period_closing.BillingActor,
) -> None:
    """Exclude all time before a day from bills. Raises ClosingError."""
    with books.ledger.database.transaction(writes=True) as connection:
        books.store.lock(connection)
        found = billing_store.BillingOpening(opening_ns, reason, by.now_ns, by.actor.id)
        period_completeness.set_opening(
            connection, books.store.closings_in(connection), found, by.actor
        )


def void(
    books: period_closing.BillingBooks,
    invoice_id: str,
    reason: str,
    by: period_closing.BillingActor,
) -> invoices.Invoice:
    """Void an invoice: its charges are billed by the next closing, or by `replace`.

    Raises ClosingError for an invoice that does not exist or is void already.
    """
    with books.ledger.database.transaction(writes=True) as connection:
        books.store.lock(connection)
        invoice = _issued(books, connection, invoice_id)
        row = {
            "invoice_id": invoice_id,
            "voided_ns": by.now_ns,
            "voided_by": by.actor.id,
            "reason": reason,
        }
        billing_store.insert_rows(connection, tables.voids, [row])
        stored = head_chain.read_back(connection, "void", invoice_id)
        billing_audit_records.record_void(
            connection, invoice, stored, reason, (by.actor, by.now_ns)
        )
        head_chain.append(connection, [stored], by.now_ns)
    return invoice


def replace(
    books: period_closing.BillingBooks,
    invoice_id: str,
    reason: str,
    by: period_closing.BillingActor,
) -> period_closing.ClosedPeriod:
    """Void an invoice and issue another in its place, from the current ledger and prices.

    Both or neither. Raises ClosingError also if a later period is closed, as that closing has
    corrected the difference.
    """
    found = books.store.invoice(invoice_id)
    if found is None:
        raise invoices.ClosingError(_unknown(invoice_id))
    before, number = found
    closings = books.store.closings()
    later = [one for one in closings if one.period.start_ns >= before.period.end_ns]
    if later:
        message = (
            f"cannot replace {invoice_id}: {period_name(later[0].period)} was closed after"
            " it; fix: void it without --replace; the next closing bills its charges"
        )
        raise invoices.ClosingError(message)
    bill = books.bill(before.period, correcting=False)
    fresh = invoices.issue_invoice(_replacement(bill, before), by.now_ns)
    closing = period_closing.closing_of_bill(bill, [fresh], by, before.tenant)
    if bill.lacking.all and not next(one for one in closings if one.number == number).provisional:
        message = f"cannot bill {period_name(before.period)} again: {bill.lacking}"
        raise invoices.ClosingError(message)
    with books.ledger.database.transaction(writes=True) as connection:
        books.store.lock(connection)
        if books.store.mark(connection) != bill.mark or not bill.rests_on(closings):
            message = f"{invoice_id}: another process billed at the same time; fix: try again"
            raise invoices.ClosingError(message)
        _issued(books, connection, invoice_id)
        row = {"voided_ns": by.now_ns, "voided_by": by.actor.id, "reason": reason}
        billing_store.insert_rows(connection, tables.voids, [{"invoice_id": invoice_id, **row}])
        stored = head_chain.read_back(connection, "void", invoice_id)
        billing_audit_records.record_void(connection, before, stored, reason, (by.actor, by.now_ns))
        head_chain.append(connection, [stored], by.now_ns)
        closed = period_closing.ClosedPeriod(closing, (fresh,), added=True)
        period_closing.write_closing(connection, closed, bill, by.actor)
    return closed


def _replacement(bill: period_closing.Bill, before: invoices.Invoice) -> invoices.Invoice:
    """The tenant's use from the current ledger, with the corrections and decisions of the old invoice."""
    kept = [line.charge for line in before.lines if line.charge.corrects or not line.charge.unit]
    used = [charge for charge in bill.rated.charges if charge.tenant == before.tenant]
    return invoices.draft_invoice(
        [*used, *kept], before.tenant, bill.period, bill.book.currency, before.invoice_id
    )


def _issued(
    books: period_closing.BillingBooks, connection: Connection, invoice_id: str
) -> invoices.Invoice:
    found = books.store.invoice_in(connection, invoice_id)
    if found is None:
        raise invoices.ClosingError(_unknown(invoice_id))
    invoice, _ = found
    if invoice.status is not invoices.InvoiceStatus.ISSUED:
        message = f"{invoice_id}: already void"
        raise invoices.ClosingError(message)
    return invoice


def _unknown(invoice_id: str) -> str:
    return f"unknown invoice {invoice_id}; fix: list the invoices with `railscope bill statement`"
