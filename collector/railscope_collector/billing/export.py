"""Exports: the issued invoices of a period as FOCUS files, with a manifest of their contents.

The files are published complete and together under their names, or not at all. They are read back
before they are published: an export whose rows do not add up to the payable amount of each invoice
is rejected.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import msgspec

from railscope.durable_files import stage_files
from railscope.timestamps import format_timestamp
from railscope_collector.billing import (
    BillingError,
    charges,
    focus_columns,
    focus_csv,
    focus_parquet,
)
from railscope_collector.billing.focus_rows import (
    ExportContext,
    applicability_criteria,
    invoice_rows,
)
from railscope_collector.billing.invoices import Invoice, InvoiceStatus
from railscope_collector.files.seller_file import Seller
from railscope_collector.metering.units import Period, period_name


class ExportedFile(msgspec.Struct, frozen=True):
    """A file of an export."""

    name: str
    bytes: int
    rows: int
    sha256: str


class InvoiceTotal(msgspec.Struct, frozen=True):
    """An invoice of an export. `billed`, as text, is the sum of its rows and its payable amount."""

    invoice: str
    tenant: str
    currency: str
    rows: int
    billed: str
    content_hash: str


class ExportManifest(msgspec.Struct, frozen=True):
    """Contents of an export. Amounts are text, so that no parser converts them to floating point."""

    focus: str
    exported: str
    period: tuple[str, str] | None
    tenant: str | None
    files: tuple[ExportedFile, ...]
    invoices: tuple[InvoiceTotal, ...]
    billed: dict[str, str]
    """Billed amount by currency."""
    applicability_criteria: tuple[str, ...]
    """Applicability criteria of the exporter for the FOCUS validator."""
    audit_checkpoint: str | None
    """The newest checkpoint of the audit log, a signed note; null without one."""

    @property
    def encoded(self) -> bytes:
        """The manifest as JSON, as written to its file."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


_ROWS_AT_ONCE = 5_000
_CHUNK_BYTES = 1 << 20


class ExportError(BillingError, ValueError):
    """The files differ from what was to be exported; the message names file and invoice."""


class ExportFormat(StrEnum):
    """Format of a file."""

    CSV = "csv"
    PARQUET = "parquet"


FocusRowWriter = focus_csv.Writer | focus_parquet.Writer
WRITERS: Mapping[ExportFormat, Callable[[BinaryIO], FocusRowWriter]] = {
    ExportFormat.CSV: focus_csv.Writer,
    ExportFormat.PARQUET: focus_parquet.Writer,
}
_FileReader = Callable[[BinaryIO, Collection[str]], Iterator[focus_columns.FocusRow]]
_READERS: Mapping[ExportFormat, _FileReader] = {
    ExportFormat.CSV: focus_csv.read_csv,
    ExportFormat.PARQUET: focus_parquet.read_parquet,
}


@dataclass(frozen=True, slots=True)
class ExportOrder:
    """Parameters of an export; `checkpoint` is a signed note of the audit log."""

    seller: Seller
    exported_ns: int
    forms: Sequence[ExportFormat] = tuple(ExportFormat)
    period: Period | None = None
    tenant: str | None = None
    checkpoint: str | None = None
    background: Callable[[Invoice], ExportContext] = field(default=lambda _: ExportContext())
    writers: Mapping[ExportFormat, Callable[[BinaryIO], FocusRowWriter]] = field(
        default_factory=lambda: WRITERS
    )

    @property
    def stem(self) -> str:
        """Common prefix of the names of its files."""
        parts = ["focus", focus_columns.FOCUS_VERSION]
        if self.period:
            parts.append(period_name(self.period))
        if self.tenant is not None:
            parts.append(quote(self.tenant, safe=""))
        return "-".join(parts)


def export_invoices(
    invoices: Iterable[Invoice],
    order: ExportOrder,
    directory: Path,
    *,
    replace: bool = False,
    record: Callable[[ExportManifest], None] = lambda _: None,
) -> ExportManifest:
    """Write the issued invoices to a directory, which is created if missing.

    `record` is called with the manifest before the files get their names: an exception from it
    stops the export, so that no export is without its record. Raises ExportError, OSError, InvoiceError, OverflowError, NoParquetError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with stage_files(directory, replace=replace) as files:
        opened = {form: files.create(f"{order.stem}.{form}") for form in order.forms}
        totals = _write_files(invoices, order, opened)
        written = tuple(
            _check_file(f"{order.stem}.{form}", _READERS[form], file, totals)
            for form, file in opened.items()
        )
        manifest = _manifest(order, written, totals)
        files.create(f"{order.stem}.manifest.json").write(manifest.encoded)
        # Before the files get their names: no export is delivered without its record.
        record(manifest)
        files.publish()
    return manifest


def export_document(
    invoices: Iterable[Invoice], order: ExportOrder, form: ExportFormat
) -> bytes | None:
    """One file of an export, in memory; None if there is no issued invoice.

    Raises ExportError, InvoiceError, OverflowError, NoParquetError.
    """
    file = io.BytesIO()
    totals = _write_files(invoices, order, {form: file})
    _check_file(f"{order.stem}.{form}", _READERS[form], file, totals)
    return file.getvalue() if totals else None


def _write_files(
    invoices: Iterable[Invoice], order: ExportOrder, files: Mapping[ExportFormat, BinaryIO]
) -> list[InvoiceTotal]:
    with ExitStack() as opened:
        writers = []
        for form, file in files.items():
            writers.append(order.writers[form](file))
            opened.callback(writers[-1].close)
        return [
            InvoiceTotal(
                invoice=invoice.invoice_id,
                tenant=invoice.tenant,
                currency=invoice.currency,
                rows=_write_rows(invoice, order, writers),
                billed=charges.format_amount(invoice.payable, invoice.currency),
                content_hash=invoice.content_hash,
            )
            for invoice in invoices
            if invoice.status is InvoiceStatus.ISSUED
            and (order.period is None or invoice.period.overlaps(order.period))
            and order.tenant in (None, invoice.tenant)
        ]


def _write_rows(invoice: Invoice, order: ExportOrder, writers: Sequence[FocusRowWriter]) -> int:
    """Write the rows of an invoice and return their number."""
    count = 0
    remaining = invoice_rows(invoice, order.seller, order.background(invoice))
    while batch := list(islice(remaining, _ROWS_AT_ONCE)):
        for writer in writers:
            writer.add(batch)
        count += len(batch)
    return count


def _check_file(
    name: str, read: _FileReader, file: BinaryIO, totals: Sequence[InvoiceTotal]
) -> ExportedFile:
    """Description of the file after it was read back and summed. Raises ExportError."""
    file.flush()
    file.seek(0)
    totals_by_invoice: dict[str, tuple[int, Fraction]] = {}
    # Only two columns: reading all of them would take several times as long.
    for row in read(file, ("InvoiceId", "BilledCost")):
        invoice, cost = row["InvoiceId"], row["BilledCost"]
        if not isinstance(invoice, str) or not isinstance(cost, Fraction):
            message = f"cannot verify {name}: invalid row: {invoice}, {cost}: expected an invoice and a cost"
            raise ExportError(message)
        count, sum_ = totals_by_invoice.get(invoice, (0, Fraction(0)))
        totals_by_invoice[invoice] = (count + 1, sum_ + cost)
    expected = {
        total.invoice: (total.rows, Fraction(total.billed)) for total in totals if total.rows
    }
    for invoice in totals_by_invoice.keys() | expected.keys():
        if totals_by_invoice.get(invoice) != expected.get(invoice):
            message = (
                f"cannot verify {name}: {invoice} has {totals_by_invoice.get(invoice)} rows and amount: expected "
                f"{expected.get(invoice)} as on the invoice: this is a defect of Railscope"
            )
            raise ExportError(message)
    file.seek(0)
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
    rows = sum(total.rows for total in totals)
    return ExportedFile(name, file.tell(), rows, digest.hexdigest())


def _manifest(
    order: ExportOrder, files: tuple[ExportedFile, ...], totals: Sequence[InvoiceTotal]
) -> ExportManifest:
    billed: dict[str, Fraction] = {}
    for total in totals:
        billed[total.currency] = billed.get(total.currency, Fraction(0)) + Fraction(total.billed)
    period = order.period
    return ExportManifest(
        focus=focus_columns.FOCUS_VERSION,
        exported=format_timestamp(order.exported_ns),
        period=(format_timestamp(period.start_ns), format_timestamp(period.end_ns))
        if period
        else None,
        tenant=order.tenant,
        files=files,
        invoices=tuple(totals),
        billed={
            currency: charges.format_amount(sum_, currency)
            for currency, sum_ in sorted(billed.items())
        },
        applicability_criteria=applicability_criteria(order.seller),
        audit_checkpoint=order.checkpoint,
    )
