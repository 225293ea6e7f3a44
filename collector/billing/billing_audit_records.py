"""Audit records of billing operations, written in the same transaction as the operation."""

from __future__ import annotations

import getpass
from unicodedata import normalize

from sqlalchemy import Connection

from collector.billing import billing_store
from collector.billing.invoices import Invoice, PeriodClosing
from collector.ledger.audit_outbox import ROW, ROW_HASH, RecordDraft, put_record
from collector.ledger.head_chain import HashedRow
from collector.metering.units import Period
from railscope.audit.record import RecordActor, RecordData
from railscope.timestamps import format_timestamp


def operator_actor(name: str = "") -> RecordActor:
    """The actor of a command: the given name or, without one, the operating system user."""
    return RecordActor("operator", normalize("NFC", name or getpass.getuser()), "command line")


def record_price_book(
    connection: Connection,
    book: billing_store.PublishedPriceBook,
    row: HashedRow,
    actor: RecordActor,
    now_ns: int,
) -> None:
    """Record that a price book was published; `row` is that of the database."""
    data: RecordData = {
        **_row_data(row),
        "version": book.book.version,
        "published": format_timestamp(book.book.published_ns),
        "currency": book.book.currency,
        "content_hash": book.content_hash,
    }
    id_ = f"billing.price/{book.book.version}/{book.content_hash[:24]}"
    put_record(connection, id_, RecordDraft("billing.price", actor, now_ns, "done", data=data))


def record_closing(
    connection: Connection,
    closing: PeriodClosing,
    row: HashedRow,
    invoices: int,
    actor: RecordActor,
) -> None:
    """Record that a period was closed."""
    data: RecordData = {
        **_row_data(row),
        **_period_data(closing.period),
        "tenant": _normalized(closing.tenant),
        "invoices": invoices,
        "price_version": closing.price_version,
        "ledger_root": closing.ledger_root,
        "manifest_root": closing.manifest_root,
        "missing_gpu_days": len(closing.missing),
    }
    draft = RecordDraft("billing.close", actor, closing.closed_ns, "done", data=data)
    put_record(connection, f"billing.close/{closing.manifest_root}", draft)


def record_invoice(
    connection: Connection,
    invoice: Invoice,
    row: HashedRow,
    closing: PeriodClosing,
    actor: RecordActor,
) -> None:
    """Record that an invoice was issued."""
    data: RecordData = {
        **_row_data(row),
        **_period_data(invoice.period),
        "invoice": invoice.invoice_id,
        "tenant": _normalized(invoice.tenant),
        "currency": invoice.currency,
        "total_minor": str(invoice.total_minor),
        "content_hash": invoice.content_hash,
        "replaces": invoice.replaces,
        "manifest_root": closing.manifest_root,
    }
    draft = RecordDraft("billing.issue", actor, closing.closed_ns, "done", data=data)
    put_record(connection, billing_store.ISSUE + invoice.invoice_id, draft)


def record_void(
    connection: Connection,
    invoice: Invoice,
    row: HashedRow,
    reason: str,
    by: tuple[RecordActor, int],
) -> None:
    """Record that an invoice was voided, by an actor at a time in nanoseconds."""
    actor, now_ns = by
    data: RecordData = {
        **_row_data(row),
        "invoice": invoice.invoice_id,
        "tenant": _normalized(invoice.tenant),
        "content_hash": invoice.content_hash,
        "reason": _normalized(reason),
    }
    put_record(
        connection,
        f"billing.void/{invoice.invoice_id}",
        RecordDraft("billing.void", actor, now_ns, "done", data=data),
    )


def record_adjustment(
    connection: Connection,
    one: billing_store.RecordedAdjustment,
    row: HashedRow,
    actor: RecordActor,
) -> None:
    """Record that a credit or an adjustment was recorded."""
    charge = one.charge
    data: RecordData = {
        **_row_data(row),
        **_period_data(Period(charge.service_t0_ns, charge.service_t1_ns)),
        "charge": charge.charge_id,
        "kind": charge.kind.value,
        "tenant": _normalized(charge.tenant),
        "amount": str(charge.amount),
        "currency": one.currency,
        "reason": _normalized(charge.note),
    }
    draft = RecordDraft("billing.adjust", actor, one.recorded_ns, "done", data=data)
    put_record(connection, f"billing.adjust/{charge.charge_id}", draft)


def record_opening(
    connection: Connection, row: HashedRow, one: billing_store.BillingOpening, actor: RecordActor
) -> None:
    """Record that an opening date was set."""
    data: RecordData = {
        **_row_data(row),
        "opening": format_timestamp(one.opening_ns),
        "reason": _normalized(one.reason),
    }
    draft = RecordDraft("billing.opening", actor, one.recorded_ns, "done", data=data)
    put_record(connection, f"billing.opening/{row.key}", draft)


def record_export(
    connection: Connection, id_: str, what: RecordData, actor: RecordActor, now_ns: int
) -> None:
    """Record an export: `what` contains tenant, period and the hashes of the files."""
    put_record(
        connection,
        f"billing.export/{id_}",
        RecordDraft("billing.export", actor, now_ns, "done", data=what),
    )


def _row_data(row: HashedRow) -> RecordData:
    return {ROW: _normalized(row.name), ROW_HASH: row.hash}


def _period_data(period: Period) -> RecordData:
    return {"start": format_timestamp(period.start_ns), "end": format_timestamp(period.end_ns)}


def _normalized(text: str) -> str:
    return normalize("NFC", text)
