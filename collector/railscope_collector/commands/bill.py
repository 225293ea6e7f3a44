"""`railscope bill`: use of the GPUs by tenants, and its cost; with its commands `export` and `demo`.

`railscope bill demo`: two simulated months, billed by the production code.

`railscope bill export`: issued invoices in the FOCUS format.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import click

from railscope_collector.audit import tables as audit_tables
from railscope_collector.billing import (
    BillingError,
    billing_demo,
    export,
    export_provenance,
    focus_parquet,
    period_closing,
    statement_forms,
    tenant_statements,
)
from railscope_collector.billing.invoices import Invoice
from railscope_collector.commands import bill_decisions, bill_periods, command_options
from railscope_collector.commands.import_jobs import import_jobs
from railscope_collector.files import seller_file
from railscope_collector.ledger import database, ledger_store
from railscope_collector.metering.units import Period, period_name
from railscope_collector.tables import metadata


def _parse_formats(
    _context: click.Context, _parameter: click.Parameter, text: str
) -> tuple[export.ExportFormat, ...]:
    try:
        # Each once, in the order of the enumeration.
        formats = {export.ExportFormat(name.strip()) for name in text.split(",")}
    except ValueError as error:
        message = f"{text!r}: expected one or more of {', '.join(export.ExportFormat)}, separated by commas"
        raise click.BadParameter(message) from error
    return tuple(form for form in export.ExportFormat if form in formats)


@click.command("export")
@click.argument("directory", metavar="OUT", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--format",
    "forms",
    default=",".join(export.ExportFormat),
    show_default=True,
    callback=_parse_formats,
    metavar="FORMAT,…",
    help="csv, parquet (needs the extra parquet) or both.",
)
@click.option(
    "--period",
    callback=command_options.read_period,
    help="Only invoices of this period: 2026-10, or 2026-10-01..2026-10-15.",
)
@click.option("--tenant", help="Only invoices of this tenant.")
@click.option(
    "--seller",
    "sellers",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Seller and paying accounts (TOML), instead of billing.seller_file.",
)
@click.option("--force", is_flag=True, help="Replace existing files of the same names.")
@command_options.deciding_command
def export_command(  # noqa: PLR0913 - its options
    place: command_options.CommandContext,
    directory: Path,
    *,
    forms: tuple[export.ExportFormat, ...],
    period: Period | None,
    tenant: str | None,
    sellers: Path | None,
    force: bool,
) -> None:
    """Write the issued invoices to the directory OUT as FOCUS, with a manifest, and print the totals.

    The export is recorded in the audit log. Exit status 1: nothing was written.
    """
    by = place.timed_actor
    with place.books() as books:
        invoices = books.store.invoices(period, tenant)
        tenants = {invoice.tenant for invoice in invoices}
        order = export.ExportOrder(
            seller=seller_file.find_seller(str(sellers), ()) if sellers else place.seller(tenants),
            exported_ns=by.now_ns,
            forms=forms,
            period=period,
            tenant=tenant,
            checkpoint=audit_tables.read_newest_checkpoint(books.ledger.database),
        )
        write_export(
            invoices,
            export_provenance.with_origins(order, books),
            directory,
            replace=force,
            recorder=lambda manifest: export_provenance.record_exported_files(books, manifest, by),
        )


def write_export(
    invoices: Iterable[Invoice],
    order: export.ExportOrder,
    directory: Path,
    *,
    replace: bool,
    recorder: Callable[[export.ExportManifest], None],
) -> None:
    """Write an export and print its summary. Raises ClickException for any error."""
    try:
        manifest = export.export_invoices(
            invoices, order, directory, replace=replace, record=recorder
        )
    except focus_parquet.NoParquetError as error:
        message = f"{error}; fix: install it, or export with --format csv"
        raise click.ClickException(message) from error
    except (BillingError, OverflowError) as error:
        raise click.ClickException(str(error)) from error
    except FileExistsError as error:
        message = f"cannot write the export: {error.filename} already exists; fix: add --force"
        raise click.ClickException(message) from error
    except OSError as error:
        message = f"cannot write the export: {error.filename or directory}: {error.strerror}"
        raise click.ClickException(message) from error
    for line in format_summary(manifest):
        click.echo(line)


def format_summary(manifest: export.ExportManifest) -> list[str]:
    """Summary of an export: a line for every invoice, every currency and every file."""
    width = max((len(invoice.tenant) for invoice in manifest.invoices), default=0)
    lines = [] if manifest.invoices else ["no invoice is issued"]
    lines += [
        f"{invoice.invoice}  {invoice.tenant.ljust(width)}  {invoice.rows:>9,} rows  {invoice.billed:>18} {invoice.currency}"
        for invoice in manifest.invoices
    ]
    lines += [f"billed: {text} {currency}" for currency, text in manifest.billed.items()]
    lines += [
        f"written {file.name}: {file.rows:,} rows, {file.bytes:,} bytes, SHA-256 {file.sha256}"
        for file in manifest.files
    ]
    return lines


_NO_DAY = 1 << 40


@click.command()
@click.option("--ledger", "url", metavar="URL", help="Store all results in this empty database.")
def demo(url: str | None) -> None:
    """Bill two simulated months of two tenants, with faults, a stale agent and late evidence.

    Metered into a ledger, closed, corrected and reconciled by the production code. Exit status 1 if
    any check fails.
    """
    with tempfile.TemporaryDirectory(prefix="railscope-") as temporary:
        try:
            ledger = ledger_store.Ledger.open(
                url or f"sqlite:///{temporary}/ledger.sqlite", metadata
            )
            try:
                if ledger.newest(0, _NO_DAY):
                    message = (
                        f"{ledger.database.name} is in use: expected an empty ledger for the demo"
                    )
                    raise click.ClickException(message)
                passed = _run_demo(ledger)
            finally:
                ledger.close()
        except database.UnusableLedgerError as error:
            raise click.ClickException(str(error)) from error
    sys.exit(0 if passed else 1)


def _run_demo(ledger: ledger_store.Ledger) -> bool:
    demo = billing_demo.run_demo(ledger)
    books = period_closing.BillingBooks.for_ledger(ledger)
    for closed in (demo.closed, demo.later):
        click.echo(f"CLOSING {period_name(closed.closing.period)}")
        for line in bill_periods.format_closing(closed):
            click.echo(f"  {line}")
        for invoice in closed.invoices:
            issued = tenant_statements.read_invoice_statement(
                books, invoice.invoice_id, billing_demo.SELLER.provider
            )
            click.echo(f"\n{statement_forms.as_text(issued)}")
        invoiced = {invoice.tenant for invoice in closed.invoices}
        for finding in books.store.reviews(closed.closing.number):
            # The statements above list the others.
            if finding.tenant not in invoiced:
                tenant = finding.tenant or "no tenant"
                click.echo(f"\nnot billed until decided, {tenant}: {finding}")
        click.echo()
    click.echo("RECONCILIATION of both")
    for line in bill_periods.format_checks(demo.checks):
        click.echo(line)
    return demo.balances


@click.group()
def bill() -> None:
    """Meter and bill the use of GPUs by tenants."""


for command in (
    bill_decisions.accept_copy_command,
    bill_decisions.adjust_command,
    bill_periods.close_command,
    bill_decisions.credit_command,
    demo,
    export_command,
    import_jobs,
    bill_periods.list_command,
    bill_decisions.opening_command,
    bill_decisions.prices,
    bill_periods.preview_command,
    bill_periods.reconcile_command,
    bill_periods.statement_command,
    bill_decisions.void_command,
):
    bill.add_command(command)
