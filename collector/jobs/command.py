"""`railscope bill import-jobs`: the GPU time of tenants, from a scheduler's job list alone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click
import msgspec

from collector.jobs.job import JobList, JobListError
from collector.jobs.ledger import Imported, JobLedgerError, Terms, days, with_stand_ins, write
from collector.jobs.meter import meter
from collector.jobs.reading import FORMATS, read_jobs
from collector.jobs.report import as_document, as_text
from collector.ledger.database import LedgerError
from collector.ledger.store import Ledger
from collector.ledger.tiling import DayTiling


@click.command("import-jobs")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--format", "form", type=click.Choice(sorted(FORMATS)),
    help="Whose list it is: JSON lines of ClusterCockpit, `sacct -P` or `sacct --json`, or "
    "`kubectl get pods -o json`. Seen from the file if not given.",
)  # fmt: skip
@click.option(
    "--timezone", help="Zone of sacct's times where they name none, as Europe/Berlin.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="For a program; nanoseconds are text.")
@click.option("--ledger", "url", help="Write the GPUs' days to the ledger in this database.")
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
    file: Path, form: str | None, timezone: str | None, url: str | None, sku: str, *,
    as_json: bool, stand_ins: bool, as_observed: bool, replace: bool,
) -> None:  # fmt: skip
    """Print the GPU time of every tenant in a scheduler's job list, exactly.

    Of two jobs on one GPU the earlier ends where the later begins; both are named. GPUs that the
    list does not name are listed with the reason and are in no total. Exit status 1: the file is no
    such list, or the ledger cannot take it.
    """
    jobs = _read(file, form or "", _zone(timezone))
    if stand_ins:
        jobs = msgspec.structs.replace(jobs, jobs=tuple(with_stand_ins(jobs.jobs)))
    metered = meter(jobs.jobs)
    if not metered.balances:
        message = (
            f"{metered.held_ns} ns held and {metered.free_ns} ns free are not "
            f"{metered.capacity_ns} ns: do not bill this, it is an error of Railscope"
        )
        raise click.ClickException(message)
    written = None
    if url is not None:
        tilings = days(jobs.jobs, Terms(sku, time.time_ns(), as_observed))
        written = _write(url, tilings, replace=replace)
    if as_json:
        document = as_document(jobs, metered)
        if written:
            document["ledger"] = written._asdict()
        click.echo(json.dumps(document, indent=2))
        return
    for line in as_text(jobs, metered):
        click.echo(line)
    if written:
        click.echo(f"ledger: {written.added} GPU-days written, {written.unchanged} were there")


def _write(url: str, tilings: Iterable[DayTiling], *, replace: bool) -> Imported:
    try:
        ledger = Ledger.open(url)
        try:
            return write(ledger, tilings, replace=replace)
        finally:
            ledger.close()
    except (JobLedgerError, LedgerError) as error:
        raise click.ClickException(str(error)) from error


def _zone(name: str | None) -> ZoneInfo | None:
    try:
        return ZoneInfo(name) if name else None
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        message = f"{name!r} is no time zone that this machine knows"
        raise click.BadParameter(message, param_hint="--timezone") from error


def _read(file: Path, form: str, zone: ZoneInfo | None) -> JobList:
    try:
        return read_jobs(file.read_text(encoding="utf-8"), form, zone)
    except (JobListError, OSError, UnicodeDecodeError) as error:
        message = f"{file}: {error}"
        raise click.ClickException(message) from error
