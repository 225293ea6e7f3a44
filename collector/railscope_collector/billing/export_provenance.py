"""Provenance of the rows of an export: the GPU-day of the ledger that each charge was computed from.

A charge refers to its GPU and the day of its service, in the revision that the closing of its invoice
used; the hash of that revision is in the ledger. An export has a record in the audit log.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from fractions import Fraction
from unicodedata import normalize

from railscope.audit.record import RecordData
from railscope_collector.billing import (
    billing_store,
    export,
    focus_rows,
    invoices,
    period_closing,
)
from railscope_collector.billing.statement import source_day
from railscope_collector.billing.usage import UNSEEN
from railscope_collector.jobs.imported_lists import is_listed_gpu
from railscope_collector.ledger import audit_outbox, day_documents, record_draft


def provenance_of_lines(
    store: billing_store.BillingStore, invoice: invoices.Invoice
) -> dict[str, focus_rows.ChargeProvenance]:
    """The provenance of each charge of an invoice, by charge id. Raises UnusableLedgerError."""
    stored = store.invoice(invoice.invoice_id)
    keys = {line.charge.charge_id: source_day(line.charge) for line in invoice.lines}
    gpus = {key.gpu for key in keys.values() if key}
    numbers = store.revisions(stored[1], gpus) if stored else {}
    used = {key: numbers[key] for key in keys.values() if key in numbers}
    with store.database.transaction() as connection:
        days = {
            revision.key: _provenance(revision)
            for revision in day_documents.read_revisions(connection, used)
        }
    nothing = focus_rows.ChargeProvenance()
    return {charge: days.get(key, nothing) if key else nothing for charge, key in keys.items()}


def _provenance(revision: day_documents.Revision) -> focus_rows.ChargeProvenance:
    observed = whole = Fraction(0)
    for piece in revision.day.pieces:
        for part in piece.parts:
            quantity = Fraction(part.size) * (piece.end_ns - piece.start_ns)
            whole += quantity
            observed += 0 if part.state in UNSEEN else quantity
    if is_listed_gpu(revision.day.gpu):
        # No agent had samples of it, also if its job list is treated as observed.
        observed = Fraction(0)
    return focus_rows.ChargeProvenance(observed / whole, revision.root, revision.number)


_CHECKPOINT_LINES = 3


def with_origins(
    order: export.ExportOrder, books: period_closing.BillingBooks
) -> export.ExportOrder:
    """The order, with rows that name the evidence and the revisions of the ledger.

    Raises ExportError for an invalid checkpoint.
    """
    short = None if order.checkpoint is None else _shorten_checkpoint(order.checkpoint)

    def background(invoice: invoices.Invoice) -> focus_rows.ExportContext:
        return focus_rows.ExportContext(
            provenance_of_lines(books.store, invoice), audit_checkpoint=short
        )

    return replace(order, background=background)


def _shorten_checkpoint(checkpoint: str) -> str:
    """A checkpoint on one line: the log's name, its size and its root. Raises ExportError."""
    lines = checkpoint.partition("\n\n")[0].split("\n")
    if len(lines) != _CHECKPOINT_LINES or not all(lines):
        message = f"invalid checkpoint of an audit log: {checkpoint[:100]!r}"
        raise export.ExportError(message)
    return " ".join(lines)


def record_exported_files(
    books: period_closing.BillingBooks, manifest: export.ExportManifest, by: record_draft.TimedActor
) -> None:
    """Record an export in the audit log. Raises UnusableLedgerError."""
    start, end = manifest.period or ("", "")
    data: RecordData = {
        "focus": manifest.focus,
        "start": start,
        "end": end,
        "tenant": normalize("NFC", manifest.tenant or ""),
        "invoices": len(manifest.invoices),
        "rows": sum(invoice.rows for invoice in manifest.invoices),
        "billed": dict(manifest.billed),
        "files": {file.name: file.sha256 for file in manifest.files},
    }
    id_ = f"billing.export/{hashlib.sha256(manifest.encoded).hexdigest()}"
    with books.store.database.transaction(writes=True) as connection:
        audit_outbox.put_record(connection, id_, by.draft("billing.export", data))
