"""Options of billing commands: ledger, seller, actor, period, and a scheduler's accounting records."""

from __future__ import annotations

import getpass
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar
from unicodedata import normalize
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from railscope import convert_errors, service, settings, timestamps
from railscope.audit.record import RecordActor
from railscope_collector import archive_stores, clock, tables
from railscope_collector.audit import ledger_watch
from railscope_collector.billing import BillingError, invoices, period_closing, period_completeness
from railscope_collector.config import PREFIX, CollectorSettings
from railscope_collector.evidence import archive_files, evidence_archive, evidence_store
from railscope_collector.files import seller_file, tenancy_files, watched_file
from railscope_collector.jobs import JobsError, job_reconciliation, scheduler_records
from railscope_collector.ledger import audit_outbox, ledger_store
from railscope_collector.ledger.database import Database, UnusableLedgerError, ledger_url
from railscope_collector.metering.units import Period, PeriodError, parse_period

ContentT = TypeVar("ContentT")
_OPTIONAL_FILE = click.Path(dir_okay=False, path_type=Path)
_FAILURES = (
    BillingError, UnusableLedgerError, PeriodError, settings.SettingsError, archive_stores.ArchiveError,
)  # fmt: skip


def operator_now(name: str) -> audit_outbox.TimedActor:
    """The actor of a command, now: the given name or, without one, the operating system user."""
    actor = RecordActor("operator", normalize("NFC", name or getpass.getuser()), "command line")
    return audit_outbox.TimedActor(actor, time.time_ns())


@dataclass(frozen=True, slots=True)
class CommandContext:
    """Context of a command: the ledger, settings file and actor of its options."""

    ledger: str | None = None
    config: Path | None = None
    name: str | None = None

    @property
    def timed_actor(self) -> audit_outbox.TimedActor:
        """The actor of the command and the current time."""
        return operator_now(self.name or "")

    @contextmanager
    def books(self, *, any_copy: bool = False) -> Iterator[period_closing.BillingBooks]:
        """The billing tables of the selected ledger. Raises UnusableLedgerError, SettingsError.

        Writing transactions fail on an older copy of the database, unless `any_copy`.
        """
        url = self.ledger or ledger_url(self.settings.ledger, self._state_directory())
        ledger = ledger_store.Ledger.open(url, tables.metadata, make=False)
        try:
            if not any_copy:
                directory = None if self.ledger else self._state_directory()
                ledger_watch.compare_before_writes(ledger.database, directory)
            yield period_closing.BillingBooks.for_ledger(ledger, read_evidence(ledger.database))
        finally:
            ledger.close()

    @contextmanager
    def archive(self) -> Iterator[evidence_archive.EvidenceArchive]:
        """The archive of the evidence in the selected ledger. Raises UnusableLedgerError, SettingsError."""
        chosen = self.settings.archive
        pattern = archive_files.compile_pod_pattern(chosen.pod_pattern)
        with self.books() as books:
            yield evidence_archive.EvidenceArchive(
                books.ledger.database,
                archive_stores.open_archive_store(chosen),
                pattern,
                self.timed_actor.actor,
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
    def audit_directory(self) -> Path | None:
        """Directory of the collector's audit log; None without one here, or with `--ledger`.

        Raises SettingsError.
        """
        directory = self._state_directory() / "audit"
        return directory if self.ledger is None and (directory / "checkpoint").exists() else None

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
            message = f"{error}; fix: restore the file, or run `railscope collector accept-loss`"
            raise invoices.ClosingError(message) from error
        if state is not None and state.hold_reason:
            message = (
                f"the collector's clock is suspect: {state.hold_reason}; fix: correct the clock, or run"
                " `railscope collector accept-clock`"
            )
            raise invoices.ClosingError(message)

    def _state_directory(self) -> Path:
        return service.state_directory(self.settings)


def read_evidence(database: Database) -> period_completeness.UsageEvidence | None:
    """The evidence in the same database; None if it never contained any."""
    stored = period_completeness.DatabaseEvidence(evidence_store.EvidenceStore(database))
    return None if stored.empty else stored


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


LedgerComparison = Callable[[ledger_store.Ledger, Period], job_reconciliation.JobComparison]


def books_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add options for files of scheduler records; `compare` is a `LedgerComparison`, None without files."""

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
        "--tolerance",
        type=click.FloatRange(min=0),
        default=15.0,
        show_default=True,
        help="Seconds by which the start or end of a claim may differ.",
    )
    @timezone_option
    @tenants_option
    @wraps(command)
    def wrapped(
        slurm: tuple[Path, ...],
        kubernetes: tuple[Path, ...],
        tolerance: float,
        timezone: str | None,
        tenants_path: Path | None,
        **rest: Any,
    ) -> None:
        compare: LedgerComparison | None = None
        if slurm or kubernetes:
            files = {"slurm": slurm, "kubernetes": kubernetes}
            with convert_errors(scheduler_records.SchedulerRecordsError, click.ClickException):
                records = scheduler_records.SchedulerRecords.read(
                    files, find_time_zone(timezone), read_tenants(tenants_path)
                )
            compare = partial(
                records.compare_with, tolerance_ns=round(tolerance * timestamps.SECOND_NS)
            )
        command(compare=compare, **rest)

    return wrapped


def find_time_zone(name: str | None) -> ZoneInfo | None:
    """The time zone of a name. Raises BadParameter."""
    try:
        return ZoneInfo(name) if name else None
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        message = f"unknown time zone {name!r}: expected one that is installed on this machine"
        raise click.BadParameter(message, param_hint="--timezone") from error


def read_tenants(path: Path | None) -> tenancy_files.TenantMappings:
    """Account assignments of a file, empty without one. Raises ClickException."""
    return (
        tenancy_files.TenantMappings()
        if path is None
        else parse_file(path, tenancy_files.parse_tenants)
    )


def parse_file(path: Path, parse: Callable[[str], ContentT]) -> ContentT:
    """The parsed text of a file. Raises ClickException that names the file."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (watched_file.FileError, JobsError, OSError, UnicodeDecodeError) as error:
        message = f"cannot read {path}: {error}"
        raise click.ClickException(message) from error
