"""`railscope bill import-jobs`: the GPU time of tenants, from a scheduler's job list alone."""

from __future__ import annotations

import json
import time
from datetime import tzinfo
from pathlib import Path

import click

from collector.billing.instants import DAY_NS, Period
from collector.billing.periods import PeriodError, parse
from collector.jobs.books_options import tenants_in, tenants_option, timezone_option, zone_of
from collector.jobs.job import JobList, JobListError
from collector.jobs.ledger import (
    Imported,
    JobLedgerError,
    Terms,
    days,
    days_of_period,
    listed_gpus,
    listed_with_stand_ins,
    write,
)
from collector.jobs.meter import meter
from collector.jobs.reading import FORMATS, format_of, read_jobs
from collector.jobs.report import as_document, as_text, counted
from collector.jobs.tenants import SOURCES, listed_with_tenants
from collector.ledger.database import LedgerError
from collector.ledger.store import Ledger


def period_of(_context: click.Context, _option: click.Parameter, text: str | None) -> Period | None:
    """A period by its name. Raises BadParameter."""
    try:
        return parse(text) if text is not None else None
    except PeriodError as error:
        raise click.BadParameter(str(error)) from error


@click.command("import-jobs")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--format", "form", type=click.Choice(sorted(FORMATS)),
    help="Whose list it is: JSON lines of ClusterCockpit, `sacct -P` or `sacct --json`, or "
    "`kubectl get pods -o json`. Seen from the file if not given.",
)  # fmt: skip
@timezone_option
@tenants_option
@click.option("--json", "as_json", is_flag=True, help="For a program; nanoseconds are text.")
@click.option("--ledger", "url", help="Write the GPUs' days to the ledger in this database.")
@click.option(
    "--period", callback=period_of, metavar="PERIOD",
    help="Write the days of this period, as 2026-10: the list has all jobs of it, and GPUs and jobs "
    "that have not ended are there until its end.",
)  # fmt: skip
@click.option("--sku", default="", help="Model of the GPUs as prices name it; with --ledger.")
@click.option(
    "--stand-ins", is_flag=True,
    help="Give GPUs that the list only counts a number in the place of a name.",
)  # fmt: skip
@click.option(
    "--as-observed", is_flag=True,
    help="Take the scheduler's word as if an agent had seen it; else rating asks for a decision.",
)  # fmt: skip
@click.option(
    "--replace", is_flag=True, help="Write days anew of which the ledger knows something else.",
)  # fmt: skip
def import_jobs(  # noqa: PLR0913 - each is an option
    *, file: Path, form: str | None, timezone: str | None, tenants_path: Path | None,
    url: str | None, period: Period | None, sku: str, as_json: bool, stand_ins: bool, as_observed: bool, replace: bool,
) -> None:  # fmt: skip
    """Print the GPU time of every tenant in a scheduler's job list, exactly.

    Of two jobs on one GPU the earlier ends where the later begins; both are named. GPUs that the
    list does not name are listed with the reason and are in no total. Exit status 1: the file is no
    such list, or the ledger cannot take it.
    """
    if period is not None and url is None:
        message = "--period says what of a ledger is written: give --ledger, too"
        raise click.UsageError(message)
    form, jobs = _read(file, form, zone_of(timezone))
    if tenants_path is not None:
        jobs = listed_with_tenants(jobs, SOURCES[form], tenants_in(tenants_path))
    if stand_ins:
        jobs = listed_with_stand_ins(jobs)
    metered = meter(jobs.jobs)
    if not metered.balances:
        message = (
            f"{metered.held_ns} ns held and {metered.free_ns} ns free are not "
            f"{metered.capacity_ns} ns: do not bill this, it is an error of Railscope"
        )
        raise click.ClickException(message)
    written = None
    if url is not None:
        terms = Terms(sku, time.time_ns(), as_observed)
        written = _write(url, jobs, period, terms, replace=replace)
    if as_json:
        document = as_document(jobs, metered)
        if written:
            document["ledger"] = written._asdict()
        click.echo(json.dumps(document, indent=2))
        return
    for line in as_text(jobs, metered):
        click.echo(line)
    if written:
        days_written = counted(written.added, "GPU-day")
        click.echo(f"ledger: {days_written} written, {written.unchanged} were there")


def _write(
    url: str, jobs: JobList, period: Period | None, terms: Terms, *, replace: bool
) -> Imported:
    try:
        ledger = Ledger.open(url)
        try:
            if period is None:
                return write(ledger, days(jobs.jobs, terms), replace=replace)
            others = listed_gpus(ledger, period.start_ns // DAY_NS)
            tilings = days_of_period(jobs, period, terms, others)
            return write(ledger, tilings, replace=replace)
        finally:
            ledger.close()
    except (JobLedgerError, LedgerError) as error:
        raise click.ClickException(str(error)) from error


def _read(file: Path, form: str | None, zone: tzinfo | None) -> tuple[str, JobList]:
    """The format that the list is in, and its jobs."""
    try:
        text = file.read_text(encoding="utf-8")
        form = form or format_of(text)
        return form, read_jobs(text, form, zone)
    except (JobListError, OSError, UnicodeDecodeError) as error:
        message = f"{file}: {error}"
        raise click.ClickException(message) from error
