"""Commands of `railscope bill` that record decisions of people: corrections and prices.

`railscope bill opening`, `void`, `adjust`, `credit` and `accept-copy`: decisions about bills.

`railscope bill prices`: check and publish price books.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from fractions import Fraction
from functools import wraps
from pathlib import Path
from typing import Any

import click

from railscope import convert_errors, untrusted_text
from railscope.timestamps import format_timestamp, from_datetime
from railscope_collector.billing import (
    administration,
    charges,
    closing_record,
    invoices,
    price_book,
    price_book_file,
    price_book_versions,
)
from railscope_collector.commands import command_options, scheduler_options
from railscope_collector.metering.units import Period, period_name

_DECISION_REASON = click.option(
    "--reason", required=True, help="Reason; recorded, and printed on the statement."
)


def _parse_amount(_context: click.Context, _parameter: click.Parameter, text: str) -> Fraction:
    with convert_errors(untrusted_text.NumberError, click.BadParameter):
        return untrusted_text.parse_decimal(text)


_ARBITRARY_ARGUMENTS = {"ignore_unknown_options": True}  # a negative amount begins like an option


_FORCE = click.option(
    "--force",
    is_flag=True,
    help="Allow a negative amount or a credit that is dated in the future or exceeds the invoiced amount.",
)


@click.command("opening")
@click.argument("day", metavar="DAY", type=click.DateTime(["%Y-%m-%d"]))
@_DECISION_REASON
@command_options.deciding_command
def opening_command(place: command_options.CommandContext, day: datetime, reason: str) -> None:
    """Exclude all time before DAY (such as 2026-10-01, UTC) from invoices.

    Without an opening date no period can be closed while earlier days have billable or undecided
    time.
    """
    with place.books() as books:
        opening_ns = from_datetime(day.replace(tzinfo=UTC))
        administration.set_opening(books, opening_ns, reason, place.timed_actor)
    click.echo(f"opening date: {day:%Y-%m-%d}; earlier days are not billed")


@click.command("void")
@click.argument("invoice")
@_DECISION_REASON
@command_options.deciding_command
def void_command(place: command_options.CommandContext, invoice: str, reason: str) -> None:
    """Void INVOICE. Its content is unchanged; the next closing bills its charges again."""
    with place.books() as books:
        voided = administration.void(books, invoice, reason, place.timed_actor)
        click.echo(f"{voided.invoice_id} of {voided.tenant} is void")


def _charge_command(charge_of: Callable[..., charges.Charge]) -> Callable[..., None]:
    """Add the arguments of a charge by decision to a function that makes it; the charge is recorded."""

    @click.argument("tenant")
    @command_options.period_argument()
    @click.argument("amount", callback=_parse_amount)
    @_DECISION_REASON
    @_FORCE
    @command_options.deciding_command
    @wraps(charge_of)
    def wrapped(
        place: command_options.CommandContext, *, force: bool, period: Period, **rest: Any
    ) -> None:
        charge = charge_of(period=period, **rest)
        with place.books() as books:
            added, currency = administration.record(books, charge, place.timed_actor, force=force)
        is_credit = charge.kind is charges.ChargeKind.CREDIT  # the word states the sign
        amount = abs(charge.amount) if is_credit else charge.amount
        shown = charges.format_decimal(amount, charges.currency_exponent(currency))
        outcome = "recorded, for the next closing" if added else "already recorded"
        text = f"{charge.kind} of {shown} {currency} for {charge.tenant}, {period_name(period)}"
        click.echo(f"{text}: {outcome}")

    return wrapped


@click.command("adjust", context_settings=_ARBITRARY_ARGUMENTS)
@_charge_command
def adjust_command(tenant: str, period: Period, amount: Fraction, reason: str) -> charges.Charge:
    """Bill TENANT an AMOUNT of either sign for PERIOD, by decision, with the next closing."""
    return invoices.adjustment_charge(tenant, amount, period, reason)


@click.command("credit", context_settings=_ARBITRARY_ARGUMENTS)
@_charge_command
def credit_command(tenant: str, period: Period, amount: Fraction, reason: str) -> charges.Charge:
    """Credit TENANT an AMOUNT for PERIOD, with the next closing."""
    if amount <= 0:
        message = (
            "invalid credit: expected an amount above zero; fix: use `railscope bill"
            " adjust`, which accepts either sign"
        )
        raise click.ClickException(message)
    return invoices.credit_charge(tenant, amount, period, reason)


@click.command("accept-copy")
@_DECISION_REASON
@click.confirmation_option(
    prompt="Data that only the newest database contained is lost, and recorded as lost. Continue?"
)
@command_options.deciding_command
def accept_copy_command(place: command_options.CommandContext, reason: str) -> None:
    """Accept an older copy of the ledger's database, because the newest is lost.

    The copy gets a new identity, which is recorded permanently. `railscope audit verify --ledger`
    then reports the lost rows as findings to explain.
    """
    with place.books(any_copy=True) as books:
        identity = administration.accept_copy(books, reason, place.timed_actor)
    click.echo(f"accepted: the ledger continues as {identity}")


_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group("prices")
def prices() -> None:
    """Check a price book, publish it, or print the current one as a file."""


@prices.command("check")
@click.argument("file", type=_FILE)
@click.option(
    "--before", type=_FILE, help="Previously published price book; its past must be unchanged."
)
def check(file: Path, before: Path | None) -> None:
    """Check a price book (TOML) and print it. Exit status 1: it is invalid."""
    book = _parse_file(file)
    if before is not None:
        try:
            price_book_versions.check_appended(_parse_file(before), book)
        except price_book.PriceBookError as error:
            message = f"invalid price book {file}: {error}"
            raise click.ClickException(message) from error
    click.echo(
        f"version {book.version}, published {format_timestamp(book.published_ns)}, {book.currency}"
    )
    for price in book.prices:
        until = f", to {format_timestamp(price.to_ns)}"
        click.echo(f"  {price}{until}: {price.nano:,} nano-{book.currency} per {price.unit.label}")


@prices.command("publish")
@click.argument("file", type=_FILE)
@command_options.deciding_command
def publish(place: command_options.CommandContext, file: Path) -> None:
    """Publish the price book in FILE as the current one. Versions are consecutive and never removed."""
    text = scheduler_options.parse_file(file, str)
    with place.books() as books:
        book, added = administration.publish(books, text, str(file), place.timed_actor)
    click.echo(f"version {book.version} is {'published' if added else 'already published'}")


@prices.command("show")
@click.option(
    "--version", type=click.IntRange(min=1), help="Version to print. Default: the newest."
)
@command_options.ledger_command
def show(place: command_options.CommandContext, version: int | None) -> None:
    """Print the current price book, or an earlier version, as a file that can be published again."""
    with place.books() as books:
        published = books.store.book(version)
    if published is None:
        version_name = f"version {version}" if version else "a price book"
        message = f"{version_name} is not published; fix: run `railscope bill prices publish FILE`"
        raise closing_record.ClosingError(message)
    click.echo(published.text, nl=not published.text.endswith("\n"))


def _parse_file(file: Path) -> price_book.PriceBook:
    """Parse the price book in a file. Raises ClickException."""
    with convert_errors(price_book.PriceBookError, click.ClickException):
        return price_book_file.parse_price_book(scheduler_options.parse_file(file, str), str(file))
