"""Administrative billing operations besides closing: publish prices, void, adjust, credit."""

from __future__ import annotations

from difflib import get_close_matches
from fractions import Fraction
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, func, select

from railscope.timestamps import DAY_NS, FOREVER_NS, format_timestamp
from railscope_collector.billing import (
    charges,
    closing_record,
    invoices,
    period_closing,
    price_book,
    price_book_file,
    price_book_versions,
    tables,
)
from railscope_collector.ledger import (
    head_chain,
    record_draft,
    schema,
)
from railscope_collector.metering.units import Period

_AMOUNT_PLACES = 9


def publish(
    books: period_closing.BillingBooks, text: str, file: str, by: record_draft.TimedActor
) -> tuple[price_book.PriceBook, bool]:
    """Publish a price book and make it the current one; false if it is current already.

    Raises PriceBookError for an invalid book, for one that is dated in the future, that changes
    past prices of an earlier version, or that is dated before the end of the closed periods.
    """
    book = price_book_file.parse_price_book(text, file)
    price_book_versions.check_published(book, by.now_ns)
    with books.store.write_transaction() as connection:
        # Under the lock of billing: two publications at once must not both be the next version.
        same = books.store.book(book.version, connection)
        if same is not None and same.book == book:
            return book, False
        newest = books.store.book(connection=connection)
        if newest is not None:
            price_book_versions.check_appended(newest.book, book)
            _check_open(books, connection, book)
        content_hash = sha256(text.encode()).hexdigest()
        row = schema.to_row(
            tables.price_books, book, content_hash=content_hash, text=text, **_recording_columns(by)
        )
        draft = by.draft(
            "billing.price",
            {
                "version": book.version,
                "published": format_timestamp(book.published_ns),
                "currency": book.currency,
                "content_hash": content_hash,
            },
        )
        _add_row(connection, "price book", row, draft, f"{book.version}/{content_hash[:24]}")
    return book, True


def accept_copy(
    books: period_closing.BillingBooks, reason: str, by: record_draft.TimedActor
) -> str:
    """Accept an older copy of the database, if the newest is lost; return its new identity."""
    with books.store.write_transaction() as connection:
        return head_chain.accept_copy(connection, reason, by.actor, by.now_ns)


def _check_open(
    books: period_closing.BillingBooks, connection: Connection, book: price_book.PriceBook
) -> None:
    closed_ns = max(
        (closing.period.end_ns for closing in books.store.closings(connection)), default=-FOREVER_NS
    )
    # Closed periods are computed again for corrections: their prices must stay those that were billed.
    if book.published_ns < closed_ns:
        message = (
            f"invalid date of price book version {book.version}: {format_timestamp(book.published_ns)}: expected"
            f" at least {format_timestamp(closed_ns)}, the end of the closed periods"
        )
        raise price_book.PriceBookError(message)


def _recording_columns(by: record_draft.TimedActor) -> dict[str, Any]:
    return {"recorded_ns": by.now_ns, "recorded_by": by.actor.id}


def _add_row(
    connection: Connection,
    kind: str,
    row: dict[str, Any],
    draft: record_draft.RecordDraft,
    id_: str = "",
) -> None:
    """Add a row with its record in the audit log, and commit to it in the chain of heads."""
    table = schema.covered_tables[kind].table
    connection.execute(table.insert(), [row])
    (key,) = (row[column.name] for column in table.primary_key.columns)
    stored = head_chain.record_row(connection, kind, key, draft, id_)
    head_chain.append_head(connection, [stored], draft.time_ns)


def record(
    books: period_closing.BillingBooks,
    charge: charges.Charge,
    by: record_draft.TimedActor,
    *,
    force: bool = False,
) -> tuple[bool, str]:
    """Record a credit or an adjustment for the next closing; false if it is recorded already.

    Also return the currency. Raises ClosingError for an unknown tenant, without a price book (which
    specifies the currency), and, unless forced, for a negative amount that is dated after now or
    exceeds what was invoiced.
    """
    with books.store.write_transaction() as connection:
        newest = books.store.book(connection=connection)
        if newest is None:
            message = (
                "no price book is published: the currency is unknown; fix: run `railscope bill"
                " prices publish FILE`"
            )
            raise closing_record.ClosingError(message)
        if not books.store.has_tenant(connection, charge.tenant):
            near = get_close_matches(charge.tenant, books.store.invoiced_tenants(connection), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            message = (
                f"unknown tenant {charge.tenant!r}: expected one with an invoice or GPU time{hint}"
            )
            raise closing_record.ClosingError(message)
        currency = newest.book.currency
        # By content: a command that is repeated after a lost answer must not credit twice.
        if any(other.charge == charge for other in books.store.adjustments(connection)):
            return False, currency
        # Under the lock: two credits at once must not together exceed what was invoiced.
        if charge.amount < 0 and not force:
            _check_credit(charge, books.store.invoiced_amount(connection, charge), by.now_ns)
        row = schema.to_row(
            tables.adjustments,
            charge,
            amount=str(charge.amount),
            currency=currency,
            reason=charge.note,
            **_recording_columns(by),
        )
        draft = by.draft(
            "billing.adjust",
            {
                **period_closing.period_data(Period(charge.service_t0_ns, charge.service_t1_ns)),
                "charge": charge.charge_id,
                "kind": charge.kind.value,
                "tenant": charge.tenant,
                "amount": str(charge.amount),
                "currency": currency,
                "reason": charge.note,
            },
        )
        _add_row(connection, "adjustment", row, draft)
    return True, currency


def _check_credit(charge: charges.Charge, invoiced: Fraction, now_ns: int) -> None:
    subject = f"{charge.kind} for {charge.tenant}"
    if charge.service_t1_ns > now_ns:
        message = (
            f"cannot record a {subject}: period ends {format_timestamp(charge.service_t1_ns)}: expected a period up to now, "
            f"{format_timestamp(now_ns)}; fix: name another period, or use --force"
        )
        raise closing_record.ClosingError(message)
    if -charge.amount > invoiced:
        shown = (
            charges.format_decimal(-charge.amount, _AMOUNT_PLACES),
            charges.format_decimal(invoiced, _AMOUNT_PLACES),
        )
        message = (
            f"cannot record a {subject}: {shown[0]} credited: expected at most {shown[1]}, the invoiced amount"
            " of its period less earlier credits; fix: lower the amount, or use --force"
        )
        raise closing_record.ClosingError(message)


def set_opening(
    books: period_closing.BillingBooks, opening_ns: int, reason: str, by: record_draft.TimedActor
) -> None:
    """Exclude all time before an instant from bills. Raises ClosingError.

    The instant is the start of a UTC day and not after the start of the first closed period.
    """
    opening = format_timestamp(opening_ns)
    if opening_ns % DAY_NS:
        message = f"invalid opening date: {opening}: expected the start of a UTC day"
        raise closing_record.ClosingError(message)
    with books.store.write_transaction() as connection:
        starts = (closing.period.start_ns for closing in books.store.closings(connection))
        first_ns = min(starts, default=opening_ns)
        if opening_ns > first_ns:
            message = (
                f"invalid opening date: {opening}: expected at most {format_timestamp(first_ns)}, "
                "the start of the first closed period"
            )
            raise closing_record.ClosingError(message)
        count = connection.execute(select(func.count()).select_from(tables.openings)).scalar_one()
        row = {
            "opening": count + 1,
            "opening_ns": opening_ns,
            "reason": reason,
            **_recording_columns(by),
        }
        draft = by.draft("billing.opening", {"opening": opening, "reason": reason})
        _add_row(connection, "opening", row, draft)


def void(
    books: period_closing.BillingBooks, invoice_id: str, reason: str, by: record_draft.TimedActor
) -> invoices.Invoice:
    """Void an invoice: its charges are billed by the next closing.

    Raises ClosingError for an invoice that does not exist or is void already.
    """
    with books.store.write_transaction() as connection:
        stored = books.store.invoice(invoice_id, connection)
        if stored is None:
            message = f"unknown invoice {invoice_id}; fix: list the invoices with `railscope bill statement`"
            raise closing_record.ClosingError(message)
        invoice, _ = stored
        if invoice.status is not invoices.InvoiceStatus.ISSUED:
            message = (
                f"cannot void {invoice_id}: status {invoice.status}: expected an issued invoice"
            )
            raise closing_record.ClosingError(message)
        row: dict[str, Any] = {
            "invoice_id": invoice_id,
            "voided_ns": by.now_ns,
            "voided_by": by.actor.id,
            "reason": reason,
        }
        draft = by.draft(
            "billing.void",
            {
                "invoice": invoice_id,
                "tenant": invoice.tenant,
                "content_hash": invoice.content_hash,
                "reason": reason,
            },
        )
        _add_row(connection, "void", row, draft)
        return invoice
