"""`railscope bill preview`, `close`, `statement`, `reconcile` and `list`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import wraps
from pathlib import Path
from typing import Any

import click

from collector.billing.checks import Check
from collector.billing.closing import Books, Closed
from collector.billing.completeness import spelled_days
from collector.billing.invoice import Invoice
from collector.billing.listing import as_document, as_text, listing
from collector.billing.reconcile import reconcile
from collector.billing.rounding import decimal, exponent_of
from collector.billing.statement import Statement
from collector.billing.statement_text import table
from collector.billing.statements import FORMS, of_invoice, periods, preview, statement
from collector.billing.unclosed import unclosed
from collector.billing.undecided import Undecided
from collector.commands.books_options import GivenBooks, books_options
from collector.commands.opening import Place, deciding_command, ledger_command, period_argument
from collector.jobs import lists
from collector.jobs.report import counted
from collector.metering.instants import Period, spelled
from collector.metering.periods import name_of, parse

_MAX_SHOWN = 10


@dataclass(frozen=True, slots=True)
class _Output:
    """Format and destination of a statement."""

    form: str
    file: Path | None

    def write(self, statement: Statement) -> None:
        """Print the statement, or write it to its file. Raises ClickException."""
        content = FORMS[self.form](statement)
        if self.file is None:
            click.echo(content.decode(), nl=False)
            return
        try:
            self.file.write_bytes(content)
        except OSError as error:
            message = f"{self.file}: {error.strerror}"
            raise click.ClickException(message) from error
        click.echo(f"written {self.file}: {len(content):,} bytes")


def _output(command: Callable[..., None]) -> Callable[..., None]:
    @click.option("--format", "form", type=click.Choice(list(FORMS)), default="text",
                  show_default=True)  # fmt: skip
    @click.option("--output", "file", type=click.Path(dir_okay=False, path_type=Path),
                  help="Write to this file. Default: standard output.")  # fmt: skip
    @wraps(command)
    def wrapped(form: str, file: Path | None, **rest: Any) -> None:
        command(output=_Output(form, file), **rest)

    return wrapped


@click.command("preview")
@click.argument("words", nargs=-1, required=True, metavar="[TENANT] PERIOD")
@_output
@ledger_command
def preview_command(place: Place, words: tuple[str, ...], output: _Output) -> None:
    """Preview the bill of PERIOD from the current ledger, for all tenants or one. Writes nothing."""
    *tenants, last = words
    if len(tenants) > 1:
        message = "write one tenant at most, and one period"
        raise click.UsageError(message)
    tenant, period = next(iter(tenants), None), parse(last)
    with place.books() as books:
        bill = books.bill(period)
        incomplete = _incomplete(books, period)
        earlier = unclosed(books.ledger.database, period, books.store.closings(), books.opening)
    if tenant is not None:
        output.write(preview(bill, tenant, place.seller_name))
        return
    click.echo(f"PREVIEW of {name_of(period)}, nothing is binding")
    if bill.lacking.all:
        click.echo(f"not complete: {bill.lacking}")
    for line in incomplete:
        click.echo(line)
    if earlier:
        click.echo(f"earlier days are not closed: {spelled_days(earlier)}")
    for line in _invoices(bill.drafts):
        click.echo(line)
    _nobodys(bill.undecided)


@click.command("close")
@period_argument()
@click.option("--provisional", is_flag=True, help="Close even if days are not in the ledger yet.")
@deciding_command
def close_command(place: Place, period: Period, *, provisional: bool) -> None:
    """Close PERIOD and issue its invoices, once. Later evidence is billed as corrections."""
    place.refuse_suspect_clock()
    with place.books() as books:
        closed = books.close(period, place.by, provisional=provisional)
        reviews = books.store.reviews(closed.closing.number)
        incomplete = _incomplete(books, period)
    for line in (*closed_lines(closed), *incomplete):
        click.echo(line)
    _nobodys(reviews)


@click.command("statement")
@click.argument("tenant")
@period_argument()
@_output
@click.option("--invoice", help="Print this invoice, even if it is void.")
@ledger_command
def statement_command(
    place: Place, tenant: str, period: Period, output: _Output, invoice: str | None
) -> None:
    """Print the statement of TENANT for a closed PERIOD: the invoice, line by line, and its evidence."""
    with place.books() as books:
        if invoice is None:
            found = statement(books, tenant, period, place.seller_name)
        else:
            found = of_invoice(books, invoice, place.seller_name)
    output.write(found)


@click.command("reconcile")
@period_argument(required=False)
@books_options
@ledger_command
def reconcile_command(place: Place, period: Period | None, given: GivenBooks | None) -> None:
    """Reconcile PERIOD, or all closed periods: exact comparisons without tolerance.

    With a scheduler's own records, compare the ledger with those too, job by job, within
    `--tolerance`. Exit status 1: a check failed.
    """
    passed = True
    with place.books() as books:
        chosen = [period] if period is not None else periods(books)
        if not chosen:
            click.echo("no period is closed: name one to compare what is in the ledger")
        for one in chosen:
            checks = reconcile(books, one, place.seller(_tenants(books, one)))
            click.echo(f"RECONCILIATION of {name_of(one)}")
            for line in check_lines(checks):
                click.echo(line)
            if books.evidence is None:
                click.echo("R1, R2, R4 not compared: this ledger has no evidence")
            passed = passed and all(check.passes for check in checks)
            if given is not None:
                agrees, told = given.compare(books.ledger, one)
                for line in told:
                    click.echo(line)
                passed = passed and agrees
    sys.exit(0 if passed else 1)


@click.command("list")
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
)
@ledger_command
def list_command(place: Place, form: str) -> None:
    """List closed periods, invoices, credits, pending corrections and undecided use."""
    with place.books() as books:
        found = listing(books)
    if form == "json":
        click.echo(json.dumps(as_document(found), indent=2))
        return
    for line in as_text(found):
        click.echo(line)


def closed_lines(closed: Closed) -> list[str]:
    """Lines that describe a closing with its invoices."""
    closing = closed.closing
    done = "closed" if closed.added else "is closed already, since"
    lines = [
        f"{name_of(closing.period)} {done} {spelled(closing.closed_ns)} by {closing.closed_by}"
    ]
    if closing.provisional:
        lines.append(f"PROVISIONAL: {len(closing.missing):,} GPU-days were not final")
    if closing.corrected:
        names = ", ".join(map(name_of, closing.corrected))
        lines.append(f"computed again, with corrections: {names}")
    return [*lines, *_invoices(closed.invoices), f"root {closing.manifest_root}"]


def check_lines(checks: Sequence[Check]) -> list[str]:
    """Comparisons in aligned columns."""
    rows = [("rule", "what", "compared", "difference", "")]
    rows += [
        (check.rule, check.what, f"{check.parts:,}", _difference(check), _remark(check))
        for check in checks
    ]
    return table(rows, {2, 3})


def _difference(check: Check) -> str:
    return "" if check.bound is not None else str(check.difference)


def _remark(check: Check) -> str:
    if check.bound is not None:
        found, bound = _percent(check.found), _percent(check.bound)
        return f"{found}, {'within' if check.within else 'ABOVE'} {bound}"
    return "" if check.passes else f"worst: {check.where}" if check.where else "DIFFERS"


def _percent(share: Fraction) -> str:
    return f"{decimal(100 * share, 3)} %"


def _tenants(books: Books, period: Period) -> list[str]:
    return sorted({head.tenant for head in books.store.heads(period)})


def _invoices(invoices: Sequence[Invoice]) -> list[str]:
    if not invoices:
        return ["no invoice: nothing was used that is billed"]
    rows = [("tenant", "invoice", "status", "lines", "total", "")]
    rows += [
        (
            one.tenant, one.invoice_id, one.status.value, f"{len(one.lines):,}",
            decimal(one.payable, exponent_of(one.currency)), one.currency,
        )
        for one in invoices
    ]  # fmt: skip
    return table(rows, {3, 4})


def _incomplete(books: Books, period: Period) -> list[str]:
    """Job lists of a period with lines that could not be imported."""
    found = []
    for one in lists.newest(books.ledger.database):
        if one.rejected_count and one.period.overlaps(period):
            count = counted(one.rejected_count, "line")
            found.append(f"incomplete job list {one}: {count} not imported")
            found += [f"  {line}" for line in one.rejected[:_MAX_SHOWN]]
            if one.rejected_count > _MAX_SHOWN:
                found.append(f"  and {one.rejected_count - _MAX_SHOWN:,} more")
    return found


def _nobodys(reviews: Iterable[Undecided]) -> None:
    for one in reviews:
        whose = f"{one.tenant}: " if one.tenant else "no tenant: "
        click.echo(f"not billed until somebody decides, {whose}{one}")
