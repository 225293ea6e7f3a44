"""`railscope bill export`: what was invoiced, for those who read FOCUS."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from collector.billing.export import ExportError, Form, Invoices, Order, export
from collector.billing.export_manifest import Manifest
from collector.billing.focus_parquet import NoParquetError
from collector.billing.invoice import InvoiceError


def _forms(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[Form, ...]:
    try:
        # Each once, in the order in which they are known.
        asked = {Form(name.strip()) for name in text.split(",")}
    except ValueError as error:
        message = f"{text!r}: write one or more of {', '.join(Form)}, with commas between them"
        raise click.BadParameter(message) from error
    return tuple(form for form in Form if form in asked)


forms_option = click.option(
    "--format", "forms", default=",".join(Form), show_default=True, callback=_forms,
    metavar="FORMAT,…", help="csv, parquet (needs the extra parquet) or both.",
)  # fmt: skip


def write_export(
    invoices: Invoices,
    order: Order,
    folder: Path,
    *,
    replace: bool,
    record: Callable[[Manifest], None] = lambda _: None,
) -> None:
    """Write an export and print what is in it. Raises ClickException for what goes wrong."""
    try:
        manifest = export(invoices, order, folder, replace=replace, record=record)
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
    """What an export holds: a line for every invoice, every currency and every file."""
    width = max((len(one.tenant) for one in manifest.invoices), default=0)
    lines = [
        f"{one.invoice}  {one.tenant.ljust(width)}  {one.rows:>9,} rows  {one.billed:>18} {one.currency}"
        for one in manifest.invoices
    ]
    lines += [f"billed: {text} {currency}" for currency, text in manifest.billed.items()]
    lines += [
        f"written {file.name}: {file.rows:,} rows, {file.bytes:,} bytes, SHA-256 {file.sha256}"
        for file in manifest.files
    ]
    return lines or ["no invoice was issued"]
