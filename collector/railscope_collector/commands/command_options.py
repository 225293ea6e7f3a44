"""Options of billing commands: ledger, settings file, seller, actor and period."""

from __future__ import annotations

import getpass
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any
from unicodedata import normalize

import click

from railscope import convert_errors, settings
from railscope.audit.record import RecordActor
from railscope_collector import archive_stores, clock, tables
from railscope_collector.audit import ledger_watch
from railscope_collector.billing import (
    BillingError,
    closing_record,
    period_closing,
)
from railscope_collector.config import PREFIX, CollectorSettings
from railscope_collector.evidence import archive_files, day_archive, fact_store
from railscope_collector.evidence.usage_facts import UsageFacts
from railscope_collector.files import seller_file
from railscope_collector.ledger import ledger_store, record_draft
from railscope_collector.ledger.database import UnusableLedgerError
from railscope_collector.ledger.database_location import ledger_url
from railscope_collector.metering.units import Period, PeriodError, parse_period

_OPTIONAL_FILE = click.Path(dir_okay=False, path_type=Path)
_FAILURES = (
    BillingError, UnusableLedgerError, PeriodError, settings.SettingsError, archive_stores.ArchiveError,
)  # fmt: skip


def operator_now(name: str) -> record_draft.TimedActor:
    """The actor of a command, now: the given name or, without one, the operating system user."""
    actor = RecordActor("operator", normalize("NFC", name or getpass.getuser()), "command line")
    return record_draft.TimedActor(actor, time.time_ns())


@dataclass(frozen=True, slots=True)
class CommandContext:
    """Context of a command: the ledger, settings file and actor of its options."""

    ledger: str | None = None
    config: Path | None = None
    name: str | None = None

    @property
    def timed_actor(self) -> record_draft.TimedActor:
        """The actor of the command and the current time."""
        return operator_now(self.name or "")

    @contextmanager
    def books(self, *, any_copy: bool = False) -> Iterator[period_closing.BillingBooks]:
        """The billing tables of the selected ledger. Raises UnusableLedgerError, SettingsError.

        Writing transactions fail on an older copy of the database, unless `any_copy`.
        """
        url = self.ledger or ledger_url(self.settings.ledger, self._state_directory())
        # Not created: a mistake in the URL must not appear as an empty ledger.
        ledger = ledger_store.Ledger.open(url, tables.metadata, make=False)
        try:
            if not any_copy:
                directory = None if self.ledger else self._state_directory()
                ledger_watch.compare_before_writes(ledger.database, directory)
            yield period_closing.BillingBooks.for_ledger(
                ledger, UsageFacts.of_database(ledger.database)
            )
        finally:
            ledger.close()

    @contextmanager
    def archive(self) -> Iterator[day_archive.DayArchive]:
        """The archive of the evidence in the selected ledger. Raises UnusableLedgerError, SettingsError."""
        chosen = self.settings.archive
        pattern = archive_files.compile_pod_pattern(chosen.pod_pattern)
        store = archive_stores.open_archive_store(chosen)
        if store is None:
            message = "no archive: expected archive.url in the collector's settings"
            raise archive_stores.ArchiveError(message)
        with self.books() as books:
            yield day_archive.DayArchive(
                fact_store.FactStore(books.ledger.database), store, pattern
            )

    def seller(self, tenants: Iterable[str]) -> seller_file.Seller:
        """The seller; without a seller file, each of the tenants pays for itself.

        Raises SettingsError.
        """
        return seller_file.find_seller(self.settings.billing.seller_file, tenants)

    @property
    def seller_name(self) -> str:
        """Name of the invoice issuer for statements; empty without a seller file."""
        return self.seller(()).provider if self.settings.billing.seller_file else ""

    @property
    def settings(self) -> CollectorSettings:
        """The settings of the collector. Raises SettingsError."""
        installed = None if self.ledger else settings.default_file("collector")
        return settings.load(CollectorSettings, file=self.config or installed, prefix=PREFIX)

    def reject_suspect_clock(self) -> None:
        """Raise ClosingError while the clock of this node's collector is suspect."""
        file = self._state_directory() / clock.FILE
        try:
            state = clock.read_state(file.parent)
        except clock.ClockFileError as error:
            message = f"{error}; fix: restart the collector, which begins a new one"
            raise closing_record.ClosingError(message) from error
        if state is not None and state.hold_reason:
            message = (
                f"the collector's clock is suspect: {state.hold_reason}; fix: correct the clock, or run"
                " `railscope collector accept-clock`"
            )
            raise closing_record.ClosingError(message)

    def _state_directory(self) -> Path:
        return settings.state_directory(self.settings)


def ledger_command(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--ledger` and `--config` to a command and pass it a `CommandContext`; errors print one line."""

    @click.option(
        "--ledger",
        metavar="URL",
        help="Ledger database: sqlite:////PATH or postgresql://HOST/DATABASE.",
    )
    @click.option(
        "--config",
        type=_OPTIONAL_FILE,
        help="Settings file of the collector, which specifies the ledger. Default without --ledger: "
        f"{settings.CONFIGURATION}/collector.toml, if it exists.",
    )
    @wraps(command)
    def wrapped(
        ledger: str | None, config: Path | None, name: str | None = None, **rest: Any
    ) -> None:
        with convert_errors(_FAILURES, click.ClickException):
            command(CommandContext(ledger, config, name), **rest)

    return wrapped


def deciding_command(command: Callable[..., None]) -> Callable[..., None]:
    """As `ledger_command`, with `--as` for the actor to be recorded."""
    option = click.option(
        "--as", "name", help="Name recorded as the actor. Default: the system user."
    )
    return option(ledger_command(command))


def read_period(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> Period | None:
    """Parse the period of an option or argument. Raises BadParameter."""
    with convert_errors(PeriodError, click.BadParameter):
        return None if text is None else parse_period(text)


def period_argument(*, required: bool = True) -> Callable[[Any], Callable[..., None]]:
    """Argument PERIOD: a month or a range of days."""
    return click.argument("period", callback=read_period, required=required)
