"""Common options of billing commands: ledger, seller, actor, period."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from collector import clock
from collector.audit import known_head
from collector.billing import seller_file
from collector.billing.closed import ClosingError
from collector.billing.closing import Books, By
from collector.billing.completeness import EvidenceStore
from collector.billing.focus import Account, Seller
from collector.billing.invoice import InvoiceError
from collector.billing.kept import KeptEvidence
from collector.billing.prices import PriceBookError
from collector.billing.rating import MissingPriceError
from collector.billing.records import operator
from collector.billing.seller_file import SellerFileError
from collector.config import PREFIX, CollectorSettings
from collector.evidence import store as evidence_store
from collector.ledger.database import Database, LedgerError
from collector.ledger.location import ledger_url
from collector.ledger.store import Ledger
from collector.metering.periods import PeriodError, parse
from collector.tables import metadata
from railscope import settings, systemd
from railscope.settings import SettingsError

_FILE = click.Path(dir_okay=False, path_type=Path)
_FAILURES = (
    ClosingError,
    InvoiceError,
    LedgerError,
    MissingPriceError,
    PeriodError,
    PriceBookError,
    SellerFileError,
    SettingsError,
)


@dataclass(frozen=True, slots=True)
class Place:
    """Context of a command: the ledger, settings file and actor of its options."""

    ledger: str | None = None
    config: Path | None = None
    name: str | None = None

    @property
    def by(self) -> By:
        """The actor of the command and the current time."""
        return By(operator(self.name or ""), time.time_ns())

    @contextmanager
    def books(self, *, make: bool = False, any_copy: bool = False) -> Iterator[Books]:
        """The billing tables of the selected ledger. Raises LedgerError, SettingsError.

        Writing transactions fail on an older copy of the database, unless `any_copy`.
        """
        ledger = Ledger.open(self._url(), metadata, make=make)
        try:
            if not any_copy:
                known_head.compare_writes(ledger.database, self._configured_directory())
            yield Books.of(ledger, evidence_in(ledger.database))
        finally:
            ledger.close()

    def seller(self, tenants: Iterable[str]) -> Seller:
        """The seller; without a seller file, each of the tenants pays for itself.

        Raises SettingsError, SellerFileError.
        """
        file = self._settings.billing.seller_file
        if not file:
            return Seller("GPU cluster", "GPU cluster", {name: Account(name) for name in tenants})
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            message = f"billing.seller_file {file} cannot be read: {error}"
            raise SettingsError(message) from error
        return seller_file.parse(text, file)

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
                f"{file}: {error}; fix: put the file back, or run `railscope collector accept-loss`"
            )
            raise ClosingError(message) from error
        if state is not None and state.hold:
            message = (
                f"the collector's clock is suspect: {state.hold}; fix: set the clock right, or "
                "run `railscope collector accept-clock`"
            )
            raise ClosingError(message)

    def _configured_directory(self) -> Path | None:
        """State directory of the collector that the ledger belongs to; None for another ledger."""
        if self.ledger is None:
            return self._state_directory()
        return None

    def _state_directory(self) -> Path:
        current = self._settings.state_directory
        return systemd.state_directory(current, CollectorSettings().state_directory)


def evidence_in(database: Database) -> EvidenceStore | None:
    """The evidence in the same database; None if it never contained any."""
    kept = KeptEvidence(evidence_store.EvidenceStore(database))
    return None if kept.empty else kept


def ledger_command(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--ledger` and `--config` to a command and pass it a `Place`; errors print one line."""

    @click.option(
        "--ledger",
        metavar="URL",
        help="Ledger database: sqlite:////PATH or postgresql://HOST/DATABASE.",
    )
    @click.option(
        "--config", type=_FILE,
        help="Settings file of the collector, which specifies the ledger. Default without --ledger: "
        f"{settings.CONFIGURATION}/collector.toml, if it exists.",
    )  # fmt: skip
    @wraps(command)
    def wrapped(
        ledger: str | None, config: Path | None, name: str | None = None, **rest: Any
    ) -> None:
        try:
            command(Place(ledger, config, name), **rest)
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

    def read(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Any:
        try:
            return None if text is None else parse(text)
        except PeriodError as error:
            raise click.BadParameter(str(error)) from error

    return click.argument(name, callback=read, required=required)
