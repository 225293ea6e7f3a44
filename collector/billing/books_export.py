"""Exports of the billing database: origin of each row in the ledger, and the export's audit record."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from unicodedata import normalize

from collector.billing import records
from collector.billing.closing import Books, By
from collector.billing.export import ExportError, Order
from collector.billing.export_manifest import Manifest
from collector.billing.focus import Background
from collector.billing.invoice import Invoice
from collector.billing.provenance import of_lines
from railscope.audit.record import Data

_CHECKPOINT_LINES = 3


def with_origins(order: Order, books: Books) -> Order:
    """The order, with rows that name the evidence and the revisions of the ledger.

    Raises ExportError for an invalid checkpoint.
    """
    short = None if order.checkpoint is None else in_short(order.checkpoint)

    def background(invoice: Invoice) -> Background:
        return Background(of_lines(books.store, invoice), audit_checkpoint=short)

    return replace(order, background=background)


def in_short(checkpoint: str) -> str:
    """A checkpoint on one line: the log's name, its size and its root. Raises ExportError."""
    lines = checkpoint.partition("\n\n")[0].split("\n")
    if len(lines) != _CHECKPOINT_LINES or not all(lines):
        message = f"no checkpoint of an audit log: {checkpoint[:100]!r}"
        raise ExportError(message)
    return " ".join(lines)


def record(books: Books, manifest: Manifest, by: By) -> None:
    """Record an export in the audit log. Raises LedgerError."""
    start, end = manifest.period or ("", "")
    data: Data = {
        "focus": manifest.focus,
        "start": start,
        "end": end,
        "tenant": normalize("NFC", manifest.tenant or ""),
        "invoices": len(manifest.invoices),
        "rows": sum(one.rows for one in manifest.invoices),
        "billed": dict(manifest.billed),
        "files": {file.name: file.sha256 for file in manifest.files},
    }
    id_ = hashlib.sha256(manifest.encoded).hexdigest()
    with books.store.database.transaction(writes=True) as connection:
        records.exported(connection, id_, data, by.actor, by.now_ns)
