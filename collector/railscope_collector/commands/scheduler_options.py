"""Options of commands for files of a scheduler's accounting records, and for the tenants in them."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import click

from railscope import convert_errors, timestamps
from railscope_collector.files import tenants_file, watched_file
from railscope_collector.jobs import JobsError, job_reconciliation, scheduler_records
from railscope_collector.ledger import ledger_store
from railscope_collector.metering.units import Period

ContentT = TypeVar("ContentT")


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
        help="Compare with the output of `sacct -D -P` or `sacct -D --json`.",
    )
    @click.option(
        "--kubernetes",
        type=INPUT_FILE,
        multiple=True,
        help="Compare with the output of `kubectl get pods -o json`.",
    )
    @click.option(
        "--source",
        help="Source of these lists in the ledger, as in `railscope bill import-jobs`. Default: the scheduler.",
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
    def wrapped(  # noqa: PLR0913, PLR0917 - its options
        slurm: tuple[Path, ...],
        kubernetes: tuple[Path, ...],
        source: str | None,
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
                    files,
                    find_time_zone(timezone),
                    read_tenants(tenants_path),
                    source=source,
                    now_ns=time.time_ns(),
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
        near = difflib.get_close_matches(str(name), available_timezones(), n=1)
        expected = near[0] if near else "a name of the IANA database, such as Europe/Berlin"
        message = f"unknown time zone {name!r}: expected one of this machine: {expected}"
        raise click.BadParameter(message, param_hint="--timezone") from error


def read_tenants(path: Path | None) -> tenants_file.TenantMappings:
    """Account assignments of a file, empty without one. Raises ClickException."""
    return (
        tenants_file.TenantMappings()
        if path is None
        else parse_file(path, tenants_file.parse_tenants)
    )


def parse_file(path: Path, parse: Callable[[str], ContentT]) -> ContentT:
    """The parsed text of a file. Raises ClickException that names the file."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (watched_file.FileError, JobsError, OSError, UnicodeDecodeError) as error:
        message = f"cannot read {path}: {error}"
        raise click.ClickException(message) from error
