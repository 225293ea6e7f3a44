"""Provenance of the rows of an export: the GPU-days of the ledger that charges were computed from.

A charge refers to the GPU and the days of its service, each in the revision that the closing of its
invoice used. An export of the billing database contains the origin of each row, and has a record in
the audit log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple
from unicodedata import normalize

from railscope.audit.record import RecordData
from railscope.timestamps import DAY_NS
from railscope_collector.billing import (
    billing_store,
    charges,
    export,
    focus_rows,
    invoices,
    period_closing,
)
from railscope_collector.jobs.imported_lists import is_listed_gpu
from railscope_collector.ledger import audit_outbox, day_documents, record_draft
from railscope_collector.ledger.day_documents import GpuDay
from railscope_collector.metering import tiling, units

_UNSEEN = (tiling.SlotState.INFERRED, tiling.SlotState.UNKNOWN)


class _SourceDay(NamedTuple):
    """A GPU-day in one revision: its hash, its capacity times time, and the unobserved part."""

    revision: int
    root: str
    quantity: units.Units
    unseen: units.Units


def _provenance(
    days: Mapping[GpuDay, _SourceDay], charge: charges.Charge
) -> focus_rows.ChargeProvenance:
    """Provenance of one charge; empty if the ledger has none of its days.

    The evidence hash is the hash of its day in the ledger; of several days, the SHA-256 of their hashes
    in order, as a JSON list.
    """
    source_days = [days[key] for key in gpu_days(charge) if key in days]
    if not source_days:
        return focus_rows.ChargeProvenance()
    quantity = sum((Fraction(day.quantity) for day in source_days), Fraction(0))
    unseen = sum((Fraction(day.unseen) for day in source_days), Fraction(0))
    if is_listed_gpu(charge.resource):
        # No agent had samples of it, also if its job list is treated as observed.
        unseen = quantity
    roots = [day.root for day in source_days]
    return focus_rows.ChargeProvenance(
        coverage_ratio=1 - unseen / quantity,
        evidence_hash=roots[0] if len(roots) == 1 else charges.content_digest(roots),
        ledger_revisions=tuple(sorted({day.revision for day in source_days})),
    )


def gpu_days(charge: charges.Charge) -> list[GpuDay]:
    """The days of the charge's service on its GPU, in order; empty for a charge without a GPU."""
    if not charge.resource:
        return []
    first, last = charge.service_t0_ns // DAY_NS, (charge.service_t1_ns - 1) // DAY_NS
    return [GpuDay(charge.resource, day) for day in range(first, last + 1)]


def provenance_of_lines(
    store: billing_store.BillingStore, invoice: invoices.Invoice
) -> dict[str, focus_rows.ChargeProvenance]:
    """The provenance of each charge of an invoice, by charge id. Raises UnusableLedgerError."""
    stored = store.invoice(invoice.invoice_id)
    numbers = store.revisions(stored[1]) if stored else {}
    required_days = {key for line in invoice.lines for key in gpu_days(line.charge)}
    days = _read_source_days(store, {key: numbers[key] for key in required_days if key in numbers})
    return {line.charge.charge_id: _provenance(days, line.charge) for line in invoice.lines}


def _read_source_days(
    store: billing_store.BillingStore, numbers: Mapping[GpuDay, int]
) -> dict[GpuDay, _SourceDay]:
    source_days: dict[GpuDay, _SourceDay] = {}
    with store.database.transaction() as connection:
        for revision in day_documents.read_revisions(connection, numbers):
            times = {True: Fraction(0), False: Fraction(0)}
            for piece in revision.day.pieces:
                for part in piece.parts:
                    quantity = Fraction(part.size) * (piece.end_ns - piece.start_ns)
                    times[part.state in _UNSEEN] += quantity
            source_days[revision.key] = _SourceDay(
                revision.number, revision.root, sum(times.values(), Fraction(0)), times[True]
            )
    return source_days


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
