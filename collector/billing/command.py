"""`railscope bill prices` and `railscope bill demo`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from collector.billing import demo as simulated
from collector.billing.export import Form, Listed, Order
from collector.billing.export_command import forms_option, write_export
from collector.billing.instants import spelled
from collector.billing.invoice import CLOSE_AFTER_NS
from collector.billing.price_file import parse
from collector.billing.prices import PriceBook, PriceBookError, check_appended
from collector.billing.reconcile import Check
from collector.billing.statement import statement, undecided

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("file", type=_FILE)
@click.option("--before", type=_FILE, help="The book published before: its past must stay.")
def prices(file: Path, before: Path | None) -> None:
    """Check a price book (TOML) and print it. Exit status 1: it cannot be used."""
    book = _book(file)
    if before is not None:
        try:
            check_appended(_book(before), book)
        except PriceBookError as error:
            message = f"{file}: {error}"
            raise click.ClickException(message) from error
    click.echo(f"version {book.version}, published {spelled(book.published_ns)}, {book.currency}")
    for price in book.prices:
        until = f", to {spelled(price.to_ns)}"
        click.echo(f"  {price}{until}: {price.nano:,} nano-{book.currency} per {price.unit.label}")


@click.command()
@click.option(
    "--focus", "folder", type=click.Path(file_okay=False, path_type=Path),
    help="Write the invoices as FOCUS 1.2 to this folder.",
)  # fmt: skip
@forms_option
def demo(folder: Path | None, forms: tuple[Form, ...]) -> None:
    """A simulated month of two tenants with faults and silence: metered, closed and reconciled.

    Exit status 1 if anything differs from what it must be.
    """
    found = simulated.run()
    for invoice in (*found.invoices, *found.later):
        click.echo(statement(invoice, found.reviews) + "\n")
    nobodys = [review for review in found.reviews if not review.usage.tenant]
    if nobodys:
        click.echo("\n".join(["USE WITHOUT A TENANT", *undecided(nobodys)]) + "\n")
    click.echo("RECONCILIATION")
    for line in _checks(found.checks):
        click.echo(line)
    click.echo(f"\nroot of the month  {found.root}")
    if folder is not None:
        exported_ns = simulated.NEXT_MONTH.end_ns + CLOSE_AFTER_NS
        order = Order(simulated.SELLER, exported_ns, forms)
        write_export(Listed((*found.invoices, *found.later)), order, folder, replace=True)
    sys.exit(0 if found.balances else 1)


def _book(file: Path) -> PriceBook:
    try:
        return parse(file.read_text(encoding="utf-8"), str(file))
    except (PriceBookError, UnicodeDecodeError) as error:
        raise click.ClickException(str(error)) from error


def _checks(checks: Sequence[Check]) -> list[str]:
    width = max(len(check.what) for check in checks)
    return [
        f"{check.rule}  {check.what.ljust(width)}  compared {check.parts:>5,}"
        f"  difference {check.difference}"
        for check in checks
    ]
