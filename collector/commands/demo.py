"""`railscope bill demo`: two simulated months, billed by the production code."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from collector.billing import demo as simulated
from collector.billing.books_export import with_origins
from collector.billing.closing import Books
from collector.billing.demo_months import CLOSED_AGAIN_NS
from collector.billing.export import Form, Order
from collector.billing.statement_text import text
from collector.billing.statements import of_invoice
from collector.commands.export import forms_option, write_export
from collector.commands.period import check_lines, closed_lines
from collector.ledger.database import LedgerError
from collector.ledger.store import Ledger
from collector.metering.periods import name_of
from collector.tables import metadata

_NO_DAY = 1 << 40


@click.command()
@click.option("--ledger", "url", metavar="URL", help="Store all results in this empty database.")
@click.option(
    "--focus", "directory", type=click.Path(file_okay=False, path_type=Path),
    help="Write the invoices as FOCUS 1.2 to this directory.",
)  # fmt: skip
@forms_option
def demo(url: str | None, directory: Path | None, forms: tuple[Form, ...]) -> None:
    """Bill two simulated months of two tenants, with faults, a stale agent and late evidence.

    Metered into a ledger, closed, corrected and reconciled by the production code. Exit status 1 if
    any check fails.
    """
    with tempfile.TemporaryDirectory(prefix="railscope-") as temporary:
        try:
            ledger = Ledger.open(url or f"sqlite:///{temporary}/ledger.sqlite", metadata)
            try:
                if ledger.newest(0, _NO_DAY):
                    message = f"{ledger.database.name} is in use: the demo needs an empty ledger"
                    raise click.ClickException(message)
                passed = _run(ledger, directory, forms)
            finally:
                ledger.close()
        except LedgerError as error:
            raise click.ClickException(str(error)) from error
    sys.exit(0 if passed else 1)


def _run(ledger: Ledger, directory: Path | None, forms: tuple[Form, ...]) -> bool:
    found = simulated.run(ledger)
    books = Books.of(ledger)
    for closed in (found.closed, found.later):
        click.echo(f"CLOSING {name_of(closed.closing.period)}")
        for line in closed_lines(closed):
            click.echo(f"  {line}")
        for invoice in closed.invoices:
            issued = of_invoice(books, invoice.invoice_id, simulated.SELLER.invoice_issuer)
            click.echo(f"\n{text(issued)}")
        for one in books.store.reviews(closed.closing.number):
            if not one.tenant:
                click.echo(f"\nnot billed until somebody decides, no tenant: {one}")
        click.echo()
    click.echo("RECONCILIATION of both")
    for line in check_lines(found.checks):
        click.echo(line)
    if directory is not None:
        order = Order(simulated.SELLER, CLOSED_AGAIN_NS, forms)
        write_export(books.store, with_origins(order, books), directory, replace=True)
    return found.balances
