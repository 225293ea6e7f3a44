"""`railscope bill export`: issued invoices in the FOCUS format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from collector.billing import seller_file
from collector.billing.books_export import record, with_origins
from collector.billing.closing import Books
from collector.billing.export import ExportError, Form, Invoices, Listed, Order, export
from collector.billing.export_manifest import Manifest
from collector.billing.focus_columns import VERSION
from collector.billing.focus_parquet import NoParquetError
from collector.billing.invoice import InvoiceError
from collector.commands.opening import Place, deciding_command
from collector.metering.instants import Period
from collector.metering.periods import PeriodError, parse
from railscope.audit.note import NoteError, read_note


def _forms(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[Form, ...]:
    try:
        # Each once, in the order of the enumeration.
        asked = {Form(name.strip()) for name in text.split(",")}
    except ValueError as error:
        message = f"{text!r}: write one or more of {', '.join(Form)}, with commas between them"
        raise click.BadParameter(message) from error
    return tuple(form for form in Form if form in asked)


forms_option = click.option(
    "--format", "forms", default=",".join(Form), show_default=True, callback=_forms,
    metavar="FORMAT,…", help="csv, parquet (needs the extra parquet) or both.",
)  # fmt: skip


def _period(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Any:
    try:
        return None if text is None else parse(text)
    except PeriodError as error:
        raise click.BadParameter(str(error)) from error


@click.command("export")
@click.argument("directory", metavar="OUT", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--focus", type=click.Choice([VERSION]), default=VERSION, show_default=True,
    expose_value=False, help="FOCUS version.",
)  # fmt: skip
@forms_option
@click.option(
    "--period",
    callback=_period,
    help="Only invoices of this period: 2026-10, or 2026-10-01..2026-10-15.",
)
@click.option("--tenant", help="Only invoices of this tenant.")
@click.option(
    "--seller", "sellers", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Seller and paying accounts (TOML), instead of billing.seller_file.",
)  # fmt: skip
@click.option(
    "--audit", "log", type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of the audit log whose checkpoint the export includes. Default: the collector's own.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace existing files of the same names.")
@deciding_command
def export_command(place: Place, directory: Path, **asked: Any) -> None:
    """Write the issued invoices to the directory OUT as FOCUS, with a manifest, and print the totals.

    The export is recorded in the audit log. Exit status 1: nothing was written.
    """
    _export(place, directory, _Asked(**asked))


@dataclass(frozen=True, slots=True)
class _Asked:
    """Options of the command."""

    forms: tuple[Form, ...]
    period: Period | None
    tenant: str | None
    sellers: Path | None
    log: Path | None
    force: bool


def _export(place: Place, directory: Path, asked: _Asked) -> None:
    by = place.by
    with place.books() as books:
        found = Listed(tuple(books.store.invoices(asked.period, asked.tenant)))
        if asked.sellers is None:
            seller = place.seller({invoice.tenant for invoice in found.all})
        else:
            seller = seller_file.read(asked.sellers)
        order = Order(
            seller=seller,
            exported_ns=by.now_ns,
            forms=asked.forms,
            period=asked.period,
            tenant=asked.tenant,
            checkpoint=_checkpoint(asked.log or place.audit_directory),
        )
        write_export(
            found,
            _with_origins(order, books),
            directory,
            replace=asked.force,
            recorder=lambda manifest: record(books, manifest, by),
        )


def _with_origins(order: Order, books: Books) -> Order:
    try:
        return with_origins(order, books)
    except ExportError as error:
        raise click.ClickException(str(error)) from error


def _checkpoint(log: Path | None) -> str | None:
    if log is None:
        return None
    try:
        return read_note(log / "checkpoint")
    except (NoteError, OSError) as error:
        message = f"{log / 'checkpoint'}: {error}"
        raise click.ClickException(message) from error


def write_export(
    invoices: Invoices,
    order: Order,
    directory: Path,
    *,
    replace: bool,
    recorder: Callable[[Manifest], None] = lambda _: None,
) -> None:
    """Write an export and print its summary. Raises ClickException for any error."""
    try:
        manifest = export(invoices, order, directory, replace=replace, record=recorder)
    except NoParquetError as error:
        message = f"{error}, or leave it out: --format csv"
        raise click.ClickException(message) from error
    except (ExportError, InvoiceError, OverflowError) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        where = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise click.ClickException(where) from error
    for line in summary(manifest):
        click.echo(line)


def summary(manifest: Manifest) -> list[str]:
    """Summary of an export: a line for every invoice, every currency and every file."""
    width = max((len(one.tenant) for one in manifest.invoices), default=0)
    lines = [] if manifest.invoices else ["no invoice was issued"]
    lines += [
        f"{one.invoice}  {one.tenant.ljust(width)}  {one.rows:>9,} rows  {one.billed:>18} {one.currency}"
        for one in manifest.invoices
    ]
    lines += [f"billed: {text} {currency}" for currency, text in manifest.billed.items()]
    lines += [
        f"written {file.name}: {file.rows:,} rows, {file.bytes:,} bytes, SHA-256 {file.sha256}"
        for file in manifest.files
    ]
    return lines
