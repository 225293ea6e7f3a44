"""`railscope bill opening`, `void`, `adjust`, `credit` and `accept-copy`: decisions about bills."""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction

import click

from collector.billing import administration
from collector.billing.charges import Charge
from collector.billing.closing import Books
from collector.billing.corrections import adjustment, credit
from collector.billing.rounding import decimal, exponent_of
from collector.commands.opening import Place, deciding_command, period_argument
from collector.commands.period import closed_lines
from collector.metering.instants import Period, from_datetime
from collector.metering.periods import name_of
from railscope.numeric_text import NumberError, parse_decimal

_REASON = click.option(
    "--reason", required=True, help="Reason; recorded, and printed on the statement."
)


def _amount(_context: click.Context, _parameter: click.Parameter, text: str) -> Fraction:
    try:
        return parse_decimal(text)
    except NumberError as error:
        raise click.BadParameter(str(error)) from error


_ARBITRARY = {"ignore_unknown_options": True}  # for negative amounts, which look like options


_FORCE = click.option(
    "--force", is_flag=True,
    help="Allow a negative amount or a credit that is dated in the future or exceeds the invoiced amount.",
)  # fmt: skip


@click.command("opening")
@click.argument("day", metavar="DAY", type=click.DateTime(["%Y-%m-%d"]))
@_REASON
@deciding_command
def opening_command(place: Place, day: datetime, reason: str) -> None:
    """Bill nothing before DAY (such as 2026-10-01, UTC): earlier time is on no invoice.

    Without an opening date no period can be closed while earlier days have billable or undecided
    time.
    """
    with place.books() as books:
        opening_ns = from_datetime(day.replace(tzinfo=UTC))
        administration.set_opening(books, opening_ns, reason, place.by)
    click.echo(f"opening date: {day:%Y-%m-%d}; nothing before it is billed")


@click.command("void")
@click.argument("invoice")
@_REASON
@click.option("--replace", is_flag=True, help="Issue a replacement invoice now.")
@deciding_command
def void_command(place: Place, invoice: str, reason: str, *, replace: bool) -> None:
    """Void INVOICE. Its content is unchanged; the next closing bills its charges again."""
    with place.books() as books:
        if replace:
            for line in closed_lines(administration.replace(books, invoice, reason, place.by)):
                click.echo(line)
        else:
            found = administration.void(books, invoice, reason, place.by)
            click.echo(f"{found.invoice_id} of {found.tenant} is void")


@click.command("adjust", context_settings=_ARBITRARY)
@click.argument("tenant")
@period_argument()
@click.argument("amount", callback=_amount)
@_REASON
@_FORCE
@deciding_command
def adjust_command(  # noqa: PLR0913 - each is an option
    place: Place, tenant: str, period: Period, amount: Fraction, reason: str, *, force: bool
) -> None:
    """Bill TENANT an AMOUNT of either sign for PERIOD, by decision, with the next closing."""
    with place.books() as books:
        _record(books, adjustment(tenant, amount, period, reason), period, place, force=force)


@click.command("credit", context_settings=_ARBITRARY)
@click.argument("tenant")
@period_argument()
@click.argument("amount", callback=_amount)
@_REASON
@_FORCE
@deciding_command
def credit_command(  # noqa: PLR0913 - each is an option
    place: Place, tenant: str, period: Period, amount: Fraction, reason: str, *, force: bool
) -> None:
    """Credit TENANT an AMOUNT for PERIOD, with the next closing."""
    if amount <= 0:
        message = "a credit is above zero; `adjust` takes either sign"
        raise click.ClickException(message)
    with place.books() as books:
        _record(books, credit(tenant, amount, period, reason), period, place, force=force)


def _record(books: Books, charge: Charge, period: Period, place: Place, *, force: bool) -> None:
    added, currency = administration.record(books, charge, place.by, force=force)
    shown = decimal(charge.amount, exponent_of(currency))
    done = "recorded, for the next closing" if added else "was recorded already"
    what = f"{charge.kind} of {shown} {currency} for {charge.tenant}, {name_of(period)}"
    click.echo(f"{what}: {done}")


@click.command("accept-copy")
@_REASON
@click.confirmation_option(
    prompt="What the newest database had beyond this one is lost, and recorded as lost. Go on?"
)
@deciding_command
def accept_copy_command(place: Place, reason: str) -> None:
    """Accept an older copy of the ledger's database, because the newest is lost.

    The copy gets a new identity, which is recorded permanently. `railscope audit verify --ledger`
    then reports the lost rows as findings to explain.
    """
    with place.books(any_copy=True) as books:
        identity = administration.accept_copy(books, reason, place.by)
    click.echo(f"accepted: the ledger goes on as {identity}")
