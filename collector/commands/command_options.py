"""Options of billing commands: ledger, seller, actor, period, and a scheduler's accounting records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from collector import clock
from collector.audit import ledger_watch
from collector.billing import (
    billing_audit_records,
    focus_rows,
    invoices,
    period_closing,
    period_completeness,
    price_book,
    rating,
)
from collector.config import PREFIX, CollectorSettings
from collector.evidence import evidence_store
from collector.files import tenancy_files
from collector.files.tenancy_files import TenantMappings
from collector.files.watched_file import FileError
from collector.jobs import JobsError, scheduler_records
from collector.ledger.database import Database, LedgerError, ledger_url
from collector.ledger.ledger_store import Ledger
from collector.metering.units import Period, PeriodError, parse_period
from collector.tables import metadata
from railscope import service, settings
from railscope.settings import SettingsError
from railscope.timestamps import SECOND_NS

ContentT = TypeVar("ContentT")

_OPTIONAL_FILE = click.Path(dir_okay=False, path_type=Path)
_FAILURES = (
    invoices.ClosingError,
    invoices.InvoiceError,
    LedgerError,
    rating.MissingPriceError,
    PeriodError,
    price_book.PriceBookError,
    focus_rows.SellerFileError,
    SettingsError,
)


@dataclass(frozen=True, slots=True)
class CommandContext:
    """Context of a command: the ledger, settings file and actor of its options."""

    ledger: str | None = None
    config: Path | None = None
    name: str | None = None

    @property
    def by(self) -> period_closing.BillingActor:
        """The actor of the command and the current time."""
        return period_closing.BillingActor(
            billing_audit_records.operator_actor(self.name or ""), time.time_ns()
        )

    @contextmanager
    def books(
        self, *, make: bool = False, any_copy: bool = False
    ) -> Iterator[period_closing.BillingBooks]:
        """The billing tables of the selected ledger. Raises LedgerError, SettingsError.

        Writing transactions fail on an older copy of the database, unless `any_copy`.
        """
        ledger = Ledger.open(self._url(), metadata, make=make)
        try:
            if not any_copy:
                # The state directory belongs to the ledger of the settings only.
                directory = self._state_directory() if self.ledger is None else None
                ledger_watch.compare_writes(ledger.database, directory)
            yield period_closing.BillingBooks.of(ledger, evidence_in(ledger.database))
        finally:
            ledger.close()

    def seller(self, tenants: Iterable[str]) -> focus_rows.Seller:
        """The seller; without a seller file, each of the tenants pays for itself.

        Raises SettingsError, SellerFileError.
        """
        file = self._settings.billing.seller_file
        if not file:
            accounts = {name: focus_rows.PayerAccount(name) for name in tenants}
            return focus_rows.Seller("GPU cluster", "GPU cluster", accounts)
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            message = f"cannot read billing.seller_file {file}: {error}"
            raise SettingsError(message) from error
        return focus_rows.parse_seller(text, file)

    @property
    def seller_name(self) -> str:
        """Name of the invoice issuer for statements; empty without a seller file."""
        return self.seller(()).invoice_issuer if self._settings.billing.seller_file else ""

    @property
    def audit_directory(self) -> Path | None:
        """Directory of the collector's audit log; None without one here, or with `--ledger`.

        Raises SettingsError.
        """
        directory = self._state_directory() / "audit"
        return directory if self.ledger is None and (directory / "checkpoint").exists() else None

    @property
    def _settings(self) -> CollectorSettings:
        installed = None if self.ledger else settings.default_file("collector")
        return settings.load(CollectorSettings, file=self.config or installed, prefix=PREFIX)

    def _url(self) -> str:
        if self.ledger:
            return self.ledger
        return ledger_url(self._settings.ledger, self._state_directory())

    def refuse_suspect_clock(self) -> None:
        """Raise ClosingError while the clock of this node's collector is suspect."""
        file = self._state_directory() / clock.FILE
        try:
            state = clock.read(file.parent)
        except clock.ClockFileError as error:
            message = (
                f"{file}: {error}; fix: restore the file, or run `railscope collector accept-loss`"
            )
            raise invoices.ClosingError(message) from error
        if state is not None and state.hold:
            message = (
                f"the collector's clock is suspect: {state.hold}; fix: correct the clock, or run"
                " `railscope collector accept-clock`"
            )
            raise invoices.ClosingError(message)

    def _state_directory(self) -> Path:
        return service.state_directory(self._settings)


def evidence_in(database: Database) -> period_completeness.UsageEvidence | None:
    """The evidence in the same database; None if it never contained any."""
    kept = period_completeness.DatabaseEvidence(evidence_store.EvidenceStore(database))
    return None if kept.empty else kept


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
        try:
            command(CommandContext(ledger, config, name), **rest)
        except _FAILURES as error:
            raise click.ClickException(str(error)) from error

    return wrapped


def deciding_command(command: Callable[..., None]) -> Callable[..., None]:
    """As `ledger_command`, with `--as` for the actor to be recorded."""
    option = click.option(
        "--as", "name", help="Name recorded as the actor. Default: the system user."
    )
    return option(ledger_command(command))


def period_argument(name: str = "period", *, required: bool = True) -> Callable[..., Any]:
    """Argument PERIOD: a month or a range of days."""
    return click.argument(name, callback=read_period, required=required)


def read_period(_: click.Context, __: click.Parameter, text: str | None) -> Period | None:
    """Parse the text of a period. Raises BadParameter."""
    try:
        return None if text is None else parse_period(text)
    except PeriodError as error:
        raise click.BadParameter(str(error)) from error


INPUT_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

tenants_option = click.option(
    "--tenants",
    "tenants_path",
    type=INPUT_FILE,
    help="Tenant of each account and namespace (CSV: tenant,source,owner,from,to).",
)
timezone_option = click.option(
    "--timezone", help="Time zone of sacct times that specify none, such as Europe/Berlin."
)


@dataclass(frozen=True, slots=True)
class SchedulerBooksOptions:
    """The scheduler records that a command was given, if any, and the tolerance of their times."""

    books: scheduler_records.SchedulerRecords
    tolerance_ns: int

    def compare(self, ledger: Ledger, period: Period) -> tuple[bool, Iterator[str]]:
        """Compare with the ledger: true if a period agrees, and the report. Raises LedgerError."""
        found = self.books.against(ledger, period, self.tolerance_ns)
        return found.agrees, scheduler_records.comparison_text(found)


def books_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add options for files of scheduler records; `given` is a GivenBooks or None."""

    @click.option(
        "--slurm",
        type=INPUT_FILE,
        multiple=True,
        help="Compare with the output of `sacct -P` or `sacct --json`.",
    )
    @click.option(
        "--kubernetes",
        type=INPUT_FILE,
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
                books = scheduler_records.SchedulerRecords.read(
                    files, zone_of(timezone), tenants_in(tenants_path)
                )
            except scheduler_records.SchedulerRecordsError as error:
                raise click.ClickException(str(error)) from error
            given = SchedulerBooksOptions(books, round(tolerance * SECOND_NS))
        command(given=given, **rest)

    return wrapped


def zone_of(name: str | None) -> ZoneInfo | None:
    """The time zone of a name. Raises BadParameter."""
    try:
        return ZoneInfo(name) if name else None
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        message = f"unknown time zone {name!r}: expected one that is installed on this machine"
        raise click.BadParameter(message, param_hint="--timezone") from error


def tenants_in(path: Path | None) -> TenantMappings:
    """Account assignments of a file, empty without one. Raises ClickException."""
    return TenantMappings() if path is None else parse_file(path, tenancy_files.parse_tenants)


def parse_file(path: Path, parse: Callable[[str], ContentT]) -> ContentT:
    """Return the content of a text file. Raises ClickException."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (FileError, JobsError, OSError, UnicodeDecodeError) as error:
        message = f"{path}: {error}"
        raise click.ClickException(message) from error
