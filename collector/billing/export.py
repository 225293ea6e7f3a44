"""Exports: the issued invoices of a period as FOCUS files, with a manifest of their contents.

The files are read back before they are published: an export whose rows do not add up to the payable
amount of each invoice is rejected.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import quote

from collector.billing.export_files import digest, staging
from collector.billing.export_manifest import File, Manifest, Total, amount
from collector.billing.focus import Background, Seller, applicable, iterate
from collector.billing.focus_columns import VERSION, Row
from collector.billing.focus_csv import CsvWriter
from collector.billing.focus_csv import read_from as read_csv
from collector.billing.focus_parquet import ParquetWriter
from collector.billing.focus_parquet import read_from as read_parquet
from collector.billing.invoice import Invoice, Status
from collector.metering.instants import Period, spelled
from collector.metering.periods import name_of

_ROWS_AT_ONCE = 5_000


class ExportError(ValueError):
    """The files differ from what was to be exported; the message names file and invoice."""


class Form(StrEnum):
    """Format of a file."""

    CSV = "csv"
    PARQUET = "parquet"


class Invoices(Protocol):
    """Store of invoices."""

    def invoices(self, period: Period | None, tenant: str | None) -> Iterable[Invoice]:
        """Invoices of any status that overlap a period, of a tenant; None selects all."""
        ...


@dataclass(frozen=True, slots=True)
class Listed:
    """Invoices in memory."""

    all: tuple[Invoice, ...]

    def invoices(self, period: Period | None, tenant: str | None) -> Iterable[Invoice]:
        """Invoices that overlap a period, of a tenant; None selects all."""
        return [
            one
            for one in self.all
            if (period is None or one.period.overlaps(period)) and tenant in (None, one.tenant)
        ]


class Writer(Protocol):
    """Writer of rows to a file in some format."""

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows."""
        ...

    def close(self) -> None:
        """Write buffered rows. The file stays open."""
        ...


WRITERS: Mapping[Form, Callable[[BinaryIO], Writer]] = {
    Form.CSV: CsvWriter,
    Form.PARQUET: ParquetWriter,
}
_Read = Callable[[BinaryIO, Collection[str]], Iterator[Row]]
_READERS: Mapping[Form, _Read] = {
    Form.CSV: read_csv,
    Form.PARQUET: read_parquet,
}


@dataclass(frozen=True, slots=True)
class Order:
    """Parameters of an export; `checkpoint` is a signed note of the audit log."""

    seller: Seller
    exported_ns: int
    forms: Sequence[Form] = tuple(Form)
    period: Period | None = None
    tenant: str | None = None
    checkpoint: str | None = None
    background: Callable[[Invoice], Background] = field(default=lambda _: Background())
    writers: Mapping[Form, Callable[[BinaryIO], Writer]] = field(default_factory=lambda: WRITERS)

    @property
    def stem(self) -> str:
        """Common prefix of the names of its files."""
        parts = ["focus", VERSION]
        if self.period:
            parts.append(name_of(self.period))
        if self.tenant is not None:
            parts.append(quote(self.tenant, safe=""))
        return "-".join(parts)


def export(
    invoices: Invoices,
    order: Order,
    directory: Path,
    *,
    replace: bool = False,
    record: Callable[[Manifest], None] = lambda _: None,
) -> Manifest:
    """Write the issued invoices to a directory, which is created if missing.

    `record` is called with the manifest before the files get their names: an exception from it
    stops the export, so that no export is without its record. Raises ExportError, StagingError,
    OSError, InvoiceError, OverflowError, NoParquetError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with staging(directory, replace=replace) as files:
        opened = {form: files.create(f"{order.stem}.{form}") for form in order.forms}
        totals = _write(invoices, order, opened)
        written = tuple(
            _checked(f"{order.stem}.{form}", _READERS[form], file, totals)
            for form, file in opened.items()
        )
        manifest = _manifest(order, written, totals)
        files.create(f"{order.stem}.manifest.json").write(manifest.encoded)
        record(manifest)
        files.publish()
    return manifest


def document(invoices: Invoices, order: Order, form: Form) -> bytes | None:
    """One file of an export, in memory; None if there is no issued invoice.

    Raises ExportError, InvoiceError, OverflowError, NoParquetError.
    """
    file = io.BytesIO()
    totals = _write(invoices, order, {form: file})
    _checked(f"{order.stem}.{form}", _READERS[form], file, totals)
    return file.getvalue() if totals else None


def _write(invoices: Invoices, order: Order, files: Mapping[Form, BinaryIO]) -> list[Total]:
    with ExitStack() as opened:
        writers = []
        for form, file in files.items():
            writers.append(order.writers[form](file))
            opened.callback(writers[-1].close)
        return [
            _total(invoice, _write_rows(invoice, order, writers))
            for invoice in invoices.invoices(order.period, order.tenant)
            if invoice.status is Status.ISSUED
        ]


def _write_rows(invoice: Invoice, order: Order, writers: Sequence[Writer]) -> int:
    """Write the rows of an invoice and return their number."""
    count = 0
    remaining = iterate(invoice, order.seller, order.background(invoice))
    while some := list(islice(remaining, _ROWS_AT_ONCE)):
        for writer in writers:
            writer.add(some)
        count += len(some)
    return count


def _total(invoice: Invoice, count: int) -> Total:
    return Total(
        invoice=invoice.invoice_id,
        tenant=invoice.tenant,
        currency=invoice.currency,
        rows=count,
        billed=amount(invoice.payable, invoice.currency),
        content_hash=invoice.content_hash,
    )


def _checked(name: str, read: _Read, file: BinaryIO, totals: Sequence[Total]) -> File:
    """Description of the file after it was read back and summed. Raises ExportError."""
    file.flush()
    file.seek(0)
    found: dict[str, tuple[int, Fraction]] = {}
    for row in read(file, ("InvoiceId", "BilledCost")):
        invoice, cost = row["InvoiceId"], row["BilledCost"]
        if not isinstance(invoice, str) or not isinstance(cost, Fraction):
            message = f"{name}: a row has no invoice or no cost: {invoice}, {cost}"
            raise ExportError(message)
        count, sum_ = found.get(invoice, (0, Fraction(0)))
        found[invoice] = (count + 1, sum_ + cost)
    expected = {
        total.invoice: (total.rows, Fraction(total.billed)) for total in totals if total.rows
    }
    for invoice in found.keys() | expected.keys():
        if found.get(invoice) != expected.get(invoice):
            message = (
                f"{name}: {invoice} is {found.get(invoice)} in rows and amount when read again,"
                f" and {expected.get(invoice)} on the invoice: this is an error of Railscope"
            )
            raise ExportError(message)
    size, sha256 = digest(file)
    return File(name, size, sum(total.rows for total in totals), sha256)


def _manifest(order: Order, files: tuple[File, ...], totals: Sequence[Total]) -> Manifest:
    billed: dict[str, Fraction] = {}
    for total in totals:
        billed[total.currency] = billed.get(total.currency, Fraction(0)) + Fraction(total.billed)
    period = order.period
    return Manifest(
        focus=VERSION,
        exported=spelled(order.exported_ns),
        period=(spelled(period.start_ns), spelled(period.end_ns)) if period else None,
        tenant=order.tenant,
        files=files,
        invoices=tuple(totals),
        billed={currency: amount(sum_, currency) for currency, sum_ in sorted(billed.items())},
        applicability_criteria=applicable(order.seller),
        audit_checkpoint=order.checkpoint,
    )
