"""Commands of `railscope bill` about periods: previews, closings, statements.

`railscope bill preview`, `close`, `statement`, `reconcile` and `list`.

"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click

from railscope.cli import format_option
from railscope_collector.billing import (
    billing_listing,
    charges,
    period_closing,
    period_completeness,
    reconciliation,
    reconciliation_check,
    statement_forms,
    tenant_statements,
    undecided_use,
)
from railscope_collector.billing.invoices import Invoice
from railscope_collector.billing.statement import TenantStatement
from railscope_collector.commands import command_options, scheduler_options
from railscope_collector.jobs import imported_lists, job_report, scheduler_records
from railscope_collector.metering import units

_MAX_SHOWN = 10


def _statement_options(command: Callable[..., None]) -> Callable[..., None]:
    form = format_option(*statement_forms.STATEMENT_FORMATS)
    file = click.option(
        "--output",
        "file",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write to this file. Default: standard output.",
    )
    return form(file(command))


def _write_statement(statement: TenantStatement, form: str, file: Path | None) -> None:
    """Print a statement, or write it to a file. Raises ClickException."""
    content = statement_forms.STATEMENT_FORMATS[form](statement)
    if file is None:
        click.echo(content.decode(), nl=False)
        return
    try:
        file.write_bytes(content)
    except OSError as error:
        message = f"cannot write {file}: {error.strerror}"
        raise click.ClickException(message) from error
    click.echo(f"written {file}: {len(content):,} bytes")


@click.command("preview")
@click.argument("periods", nargs=-1, required=True, metavar="[TENANT] PERIOD")
@_statement_options
@command_options.ledger_command
def preview_command(
    place: command_options.CommandContext, periods: tuple[str, ...], form: str, file: Path | None
) -> None:
    """Preview the bill of PERIOD from the current ledger, for all tenants or one. Writes nothing."""
    *tenants, last = periods
    if len(tenants) > 1:
        message = "too many arguments: expected at most one tenant, and one period"
        raise click.UsageError(message)
    tenant, period = next(iter(tenants), None), units.parse_period(last)
    with place.books() as books:
        bill = books.bill(period)
        incomplete = _format_incomplete_lists(books, period)
        earlier = period_completeness.find_unclosed_days(
            books.store, period, books.store.closings()
        )
    if tenant is not None:
        arguments = tenant_statements.preview_statement(bill, tenant, place.seller_name)
        _write_statement(arguments, form, file)
        return
    click.echo(f"PREVIEW of {units.period_name(period)}, not binding")
    if bill.missing_days.all:
        click.echo(f"not complete: {bill.missing_days}")
    for line in incomplete:
        click.echo(line)
    if earlier:
        click.echo(f"earlier days are not closed: {period_completeness.format_days(earlier)}")
    for line in _invoices(bill.drafts):
        click.echo(line)
    _print_unassigned_use(bill.undecided)


@click.command("close")
@command_options.period_argument()
@click.option("--provisional", is_flag=True, help="Close even if days are not in the ledger yet.")
@command_options.deciding_command
def close_command(
    place: command_options.CommandContext, period: units.Period, *, provisional: bool
) -> None:
    """Close PERIOD and issue its invoices, once. Later evidence is billed as corrections."""
    place.reject_suspect_clock()
    with place.books() as books:
        closed = books.close(period, place.timed_actor, provisional=provisional)
        reviews = books.store.reviews(closed.closing.number)
        incomplete = _format_incomplete_lists(books, period)
    for line in (*format_closing(closed), *incomplete):
        click.echo(line)
    _print_unassigned_use(reviews)


@click.command("statement")
@click.argument("tenant")
@command_options.period_argument()
@_statement_options
@click.option("--invoice", help="Print this invoice, even if it is void.")
@command_options.ledger_command
def statement_command(  # noqa: PLR0913, PLR0917 - its options
    place: command_options.CommandContext,
    tenant: str,
    period: units.Period,
    form: str,
    file: Path | None,
    invoice: str | None,
) -> None:
    """Print the statement of TENANT for a closed PERIOD: the invoice, summed up by product, state and price, and its evidence."""
    with place.books() as books:
        if invoice is None:
            statement = tenant_statements.read_statement(books, tenant, period, place.seller_name)
        else:
            statement = tenant_statements.read_invoice_statement(books, invoice, place.seller_name)
    _write_statement(statement, form, file)


@click.command("reconcile")
@command_options.period_argument(required=False)
@scheduler_options.books_options
@command_options.ledger_command
def reconcile_command(
    place: command_options.CommandContext,
    period: units.Period | None,
    compare: scheduler_options.LedgerComparison | None,
) -> None:
    """Reconcile PERIOD, or all closed periods: exact comparisons without tolerance.

    With a scheduler's own records, compare the ledger with those too, job by job, within
    `--tolerance`. A bad line of the records is reported and skipped. docs/billing.md has the
    meaning of each rule. Exit status 1: a check failed, or a line was skipped.
    """
    passed = True
    with place.books() as books:
        periods = [period] if period is not None else tenant_statements.statement_periods(books)
        if not periods:
            click.echo(
                "no period is closed; fix: name a period to compare what the ledger contains"
            )
        for closed_period in periods:
            checks = reconciliation.reconcile_period(
                books, closed_period, place.seller(_tenants(books, closed_period))
            )
            click.echo(f"RECONCILIATION of {units.period_name(closed_period)}")
            for line in format_checks(checks):
                click.echo(line)
            if books.evidence is None:
                click.echo(
                    "not compared with samples (R1, R2 and R4): this ledger has no evidence of agents"
                )
            passed = passed and all(check.passes for check in checks)
            if compare is not None:
                compared = compare(books.ledger, closed_period)
                for line in scheduler_records.comparison_text(compared):
                    click.echo(line)
                passed = passed and compared.agrees and compared.is_complete
    sys.exit(0 if passed else 1)


@click.command("list")
@format_option("text", "json")
@command_options.ledger_command
def list_command(place: command_options.CommandContext, form: str) -> None:
    """List closed periods, invoices, credits, pending corrections and undecided usage."""
    with place.books() as books:
        listing = billing_listing.read_listing(books)
    if form == "json":
        click.echo(json.dumps(billing_listing.listing_document(listing), indent=2))
        return
    for line in billing_listing.listing_text(listing):
        click.echo(line)


def format_closing(closed: period_closing.ClosedPeriod) -> list[str]:
    """Lines that describe a closing with its invoices."""
    closing = closed.closing
    state = "closed" if closed.added else "is already closed, since"
    lines = [
        f"{units.period_name(closing.period)} {state} {charges.show_time(closing.closed_ns)} by {closing.closed_by}"
    ]
    if closing.provisional:
        lines.append(f"PROVISIONAL: {len(closing.missing):,} GPU-days were not final")
    if closing.corrected:
        names = ", ".join(map(units.period_name, closing.corrected))
        lines.append(f"computed again, with corrections: {names}")
    return [*lines, *_invoices(closed.invoices), f"root {closing.manifest_root}"]


def format_checks(checks: Sequence[reconciliation_check.ReconciliationCheck]) -> list[str]:
    """Comparisons in aligned columns."""
    rows = [("rule", "check", "compared", "difference", "result")]
    rows += [
        (row.rule, row.title, f"{row.parts:,}", row.difference, row.result)
        for row in (check.row for check in checks)
    ]
    return job_report.format_table(rows, {2, 3})


def _tenants(books: period_closing.BillingBooks, period: units.Period) -> list[str]:
    return sorted({head.tenant for head in books.store.heads(period)})


def _invoices(invoices: Sequence[Invoice]) -> list[str]:
    if not invoices:
        return ["no invoice: no billable usage"]
    rows = [("tenant", "invoice", "status", "charges", "total", "currency")]
    rows += [
        (
            invoice.tenant,
            invoice.invoice_id,
            invoice.status.value,
            f"{len(invoice.lines):,}",
            charges.format_decimal(invoice.payable, charges.currency_exponent(invoice.currency)),
            invoice.currency,
        )
        for invoice in invoices
    ]
    return job_report.format_table(rows, {3, 4})


def _format_incomplete_lists(books: period_closing.BillingBooks, period: units.Period) -> list[str]:
    """Job lists of a period with lines that could not be imported."""
    lines = []
    for jobs in imported_lists.newest_lists(books.ledger.database):
        if jobs.rejected_count and jobs.period.overlaps(period):
            count = job_report.format_count(jobs.rejected_count, "line")
            lines.append(f"incomplete job list {jobs}: {count} not imported")
            lines += [f"  {line}" for line in jobs.rejected[:_MAX_SHOWN]]
            if jobs.rejected_count > _MAX_SHOWN:
                lines.append(f"  and {jobs.rejected_count - _MAX_SHOWN:,} more")
    return lines


def _print_unassigned_use(reviews: Iterable[undecided_use.UndecidedUse]) -> None:
    for review in reviews:
        prefix = f"{review.tenant}: " if review.tenant else "no tenant: "
        click.echo(f"not billed until decided, {prefix}{review}")
