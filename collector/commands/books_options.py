"""Options of commands that read a scheduler's accounting records or its accounts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from collector.files import tenants_file
from collector.files.tenants_file import Tenants
from collector.files.watched import FileError
from collector.jobs.books import BooksError, SchedulerBooks, as_text
from collector.ledger.store import Ledger
from collector.metering.instants import SECOND_NS, Period

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

tenants_option = click.option(
    "--tenants", "tenants_path", type=_FILE,
    help="Tenant of each account and namespace (CSV: tenant,source,owner,from,to).",
)  # fmt: skip
timezone_option = click.option(
    "--timezone", help="Time zone of sacct times that specify none, such as Europe/Berlin."
)


@dataclass(frozen=True, slots=True)
class GivenBooks:
    """The scheduler records that a command was given, if any, and the tolerance of their times."""

    books: SchedulerBooks
    tolerance_ns: int

    def compare(self, ledger: Ledger, period: Period) -> tuple[bool, Iterator[str]]:
        """Compare with the ledger: true if a period agrees, and the report. Raises LedgerError."""
        found = self.books.against(ledger, period, self.tolerance_ns)
        return found.agrees, as_text(found)


def books_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add options for files of scheduler records; `given` is a GivenBooks or None."""

    @click.option(
        "--slurm",
        type=_FILE,
        multiple=True,
        help="Compare with the output of `sacct -P` or `sacct --json`.",
    )
    @click.option(
        "--kubernetes",
        type=_FILE,
        multiple=True,
        help="Compare with the output of `kubectl get pods -o json`.",
    )
    @click.option(
        "--tolerance", type=click.FloatRange(min=0), default=15.0, show_default=True,
        help="Seconds by which the start or end of a claim may differ.",
    )  # fmt: skip
    @timezone_option
    @tenants_option
    @wraps(command)
    def wrapped(
        slurm: tuple[Path, ...], kubernetes: tuple[Path, ...], tolerance: float,
        timezone: str | None, tenants_path: Path | None, **rest: Any,
    ) -> None:  # fmt: skip
        given = None
        if slurm or kubernetes:
            files = {"slurm": slurm, "kubernetes": kubernetes}
            try:
                books = SchedulerBooks.read(files, zone_of(timezone), tenants_in(tenants_path))
            except BooksError as error:
                raise click.ClickException(str(error)) from error
            given = GivenBooks(books, round(tolerance * SECOND_NS))
        command(given=given, **rest)

    return wrapped


def zone_of(name: str | None) -> ZoneInfo | None:
    """The time zone of a name. Raises BadParameter."""
    try:
        return ZoneInfo(name) if name else None
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        message = f"{name!r} is no time zone that this machine knows"
        raise click.BadParameter(message, param_hint="--timezone") from error


def tenants_in(path: Path | None) -> Tenants:
    """Account assignments of a file, empty without one. Raises ClickException."""
    if path is None:
        return Tenants()
    try:
        return tenants_file.parse(path.read_text(encoding="utf-8"))
    except (FileError, OSError, UnicodeDecodeError) as error:
        message = f"{path}: {error}"
        raise click.ClickException(message) from error
