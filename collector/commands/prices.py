"""`railscope bill prices`: check and publish price books."""

from __future__ import annotations

from pathlib import Path

import click

from collector.billing import administration
from collector.billing.closed import ClosingError
from collector.billing.price_file import parse
from collector.billing.prices import PriceBook, PriceBookError, check_appended
from collector.commands.opening import Place, deciding_command, ledger_command
from collector.metering.instants import spelled

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class _Prices(click.Group):
    """Command group in which `prices FILE` means `prices check FILE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert `check` if the first argument is not a command."""
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["check", *args]
        return super().parse_args(ctx, args)


@click.group("prices", cls=_Prices)
def prices() -> None:
    """Check a price book (`prices FILE`), publish it, or print the current one as a file."""


@prices.command("check")
@click.argument("file", type=_FILE)
@click.option(
    "--before", type=_FILE, help="Previously published price book; its past must be unchanged."
)
def check(file: Path, before: Path | None) -> None:
    """Check a price book (TOML) and print it. Exit status 1: it is invalid."""
    book = parse_file(file)
    if before is not None:
        try:
            check_appended(parse_file(before), book)
        except PriceBookError as error:
            message = f"{file}: {error}"
            raise click.ClickException(message) from error
    _print(book)


@prices.command("publish")
@click.argument("file", type=_FILE)
@deciding_command
def publish(place: Place, file: Path) -> None:
    """Publish the price book in FILE, used from now on. Versions are consecutive and never removed."""
    text = _text(file)
    with place.books() as books:
        book, added = administration.publish(books, text, str(file), place.by)
    click.echo(f"version {book.version} is {'published' if added else 'published already'}")


@prices.command("show")
@click.option(
    "--version", type=click.IntRange(min=1), help="Version to print. Default: the newest."
)
@click.option(
    "--format", "form", type=click.Choice(["toml", "text"]), default="toml", show_default=True,
    help="toml: the file as published, to edit and publish again; text: one line per price.",
)  # fmt: skip
@ledger_command
def show(place: Place, version: int | None, form: str) -> None:
    """Print the current price book, or an earlier version, as a file that can be published again."""
    with place.books() as books:
        published = books.store.book(version)
    if published is None:
        which = f"version {version}" if version else "a price book"
        message = f"{which} is not published"
        raise ClosingError(message)
    if form == "text":
        _print(published.book)
    else:
        click.echo(published.text, nl=not published.text.endswith("\n"))


def parse_file(file: Path) -> PriceBook:
    """Parse the price book in a file. Raises ClickException."""
    try:
        return parse(_text(file), str(file))
    except PriceBookError as error:
        raise click.ClickException(str(error)) from error


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"{file}: {error}"
        raise click.ClickException(message) from error


def _print(book: PriceBook) -> None:
    click.echo(f"version {book.version}, published {spelled(book.published_ns)}, {book.currency}")
    for price in book.prices:
        until = f", to {spelled(price.to_ns)}"
        click.echo(f"  {price}{until}: {price.nano:,} nano-{book.currency} per {price.unit.label}")
