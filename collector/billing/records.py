"""Audit records of billing operations, written in the same transaction as the operation."""

from __future__ import annotations

import getpass
from unicodedata import normalize

from sqlalchemy import Connection

from collector.billing.closed import Closing
from collector.billing.invoice import Invoice
from collector.billing.store import ISSUE
from collector.billing.stored import Adjusted, Opening, Published
from collector.ledger.draft import Draft
from collector.ledger.heads import Item
from collector.ledger.ledger_records import ROW, ROW_HASH
from collector.ledger.outbox import put
from collector.metering.instants import Period, spelled
from railscope.audit.record import Actor, Data


def operator(name: str = "") -> Actor:
    """The actor of a command: the given name or, without one, the operating system user."""
    return Actor("operator", normalize("NFC", name or getpass.getuser()), "command line")


def published(
    connection: Connection, book: Published, row: Item, actor: Actor, now_ns: int
) -> None:
    """Record that a price book was published; `row` is that of the database."""
    data: Data = {
        **_row(row),
        "version": book.book.version,
        "published": spelled(book.book.published_ns),
        "currency": book.book.currency,
        "content_hash": book.content_hash,
    }
    id_ = f"billing.price/{book.book.version}/{book.content_hash[:24]}"
    put(connection, id_, Draft("billing.price", actor, now_ns, "done", data=data))


def closed(
    connection: Connection, closing: Closing, row: Item, invoices: int, actor: Actor
) -> None:
    """Record that a period was closed."""
    data: Data = {
        **_row(row),
        **_span(closing.period),
        "tenant": _text(closing.tenant),
        "invoices": invoices,
        "price_version": closing.price_version,
        "ledger_root": closing.ledger_root,
        "manifest_root": closing.manifest_root,
        "missing_gpu_days": len(closing.missing),
    }
    draft = Draft("billing.close", actor, closing.closed_ns, "done", data=data)
    put(connection, f"billing.close/{closing.manifest_root}", draft)


def issued(
    connection: Connection, invoice: Invoice, row: Item, closing: Closing, actor: Actor
) -> None:
    """Record that an invoice was issued."""
    data: Data = {
        **_row(row),
        **_span(invoice.period),
        "invoice": invoice.invoice_id,
        "tenant": _text(invoice.tenant),
        "currency": invoice.currency,
        "total_minor": str(invoice.total_minor),
        "content_hash": invoice.content_hash,
        "replaces": invoice.replaces,
        "manifest_root": closing.manifest_root,
    }
    draft = Draft("billing.issue", actor, closing.closed_ns, "done", data=data)
    put(connection, ISSUE + invoice.invoice_id, draft)


def voided(
    connection: Connection, invoice: Invoice, row: Item, reason: str, by: tuple[Actor, int]
) -> None:
    """Record that an invoice was voided, by an actor at a time in nanoseconds."""
    actor, now_ns = by
    data: Data = {
        **_row(row),
        "invoice": invoice.invoice_id,
        "tenant": _text(invoice.tenant),
        "content_hash": invoice.content_hash,
        "reason": _text(reason),
    }
    put(
        connection,
        f"billing.void/{invoice.invoice_id}",
        Draft("billing.void", actor, now_ns, "done", data=data),
    )


def adjusted(connection: Connection, one: Adjusted, row: Item, actor: Actor) -> None:
    """Record that a credit or an adjustment was recorded."""
    charge = one.charge
    data: Data = {
        **_row(row),
        **_span(Period(charge.service_t0_ns, charge.service_t1_ns)),
        "charge": charge.charge_id,
        "kind": charge.kind.value,
        "tenant": _text(charge.tenant),
        "amount": str(charge.amount),
        "currency": one.currency,
        "reason": _text(charge.note),
    }
    draft = Draft("billing.adjust", actor, one.recorded_ns, "done", data=data)
    put(connection, f"billing.adjust/{charge.charge_id}", draft)


def opened(connection: Connection, row: Item, one: Opening, actor: Actor) -> None:
    """Record that an opening date was set."""
    data: Data = {**_row(row), "opening": spelled(one.opening_ns), "reason": _text(one.reason)}
    draft = Draft("billing.opening", actor, one.recorded_ns, "done", data=data)
    put(connection, f"billing.opening/{row.key}", draft)


def exported(connection: Connection, id_: str, what: Data, actor: Actor, now_ns: int) -> None:
    """Record an export: `what` contains tenant, period and the hashes of the files."""
    put(
        connection,
        f"billing.export/{id_}",
        Draft("billing.export", actor, now_ns, "done", data=what),
    )


def _row(row: Item) -> Data:
    return {ROW: _text(row.name), ROW_HASH: row.hash}


def _span(period: Period) -> Data:
    return {"start": spelled(period.start_ns), "end": spelled(period.end_ns)}


def _text(text: str) -> str:
    return normalize("NFC", text)
