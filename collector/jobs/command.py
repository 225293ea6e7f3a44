"""`railscope bill import-jobs`: the GPU time of tenants, from a scheduler's job list alone."""

from __future__ import annotations

import json
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from collector.jobs.clustercockpit import read_clustercockpit
from collector.jobs.job import JobList, JobListError
from collector.jobs.meter import meter
from collector.jobs.report import as_document, as_text
from collector.jobs.sacct import read_sacct


@click.command("import-jobs")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--format", "form", type=click.Choice(["clustercockpit", "sacct"]), default="clustercockpit",
    show_default=True, help="Whose list it is: JSON lines of ClusterCockpit, or `sacct -P`.",
)  # fmt: skip
@click.option(
    "--timezone", help="Zone of sacct's times where they name none, as Europe/Berlin.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="For a program; nanoseconds are text.")
def import_jobs(file: Path, form: str, timezone: str | None, *, as_json: bool) -> None:
    """Print the GPU time of every tenant in a scheduler's job list, exactly.

    Of two jobs on one GPU the earlier ends where the later begins; both are named. GPUs that the
    list does not name are listed with the reason and are in no total. Exit status 1: the file is no
    such list.
    """
    jobs = _read(file, form, _zone(timezone))
    metered = meter(jobs.jobs)
    if not metered.balances:
        message = (
            f"{metered.held_ns} ns held and {metered.free_ns} ns free are not "
            f"{metered.capacity_ns} ns: do not bill this, it is an error of Railscope"
        )
        raise click.ClickException(message)
    if as_json:
        click.echo(json.dumps(as_document(jobs, metered), indent=2))
        return
    for line in as_text(jobs, metered):
        click.echo(line)


def _zone(name: str | None) -> ZoneInfo | None:
    try:
        return ZoneInfo(name) if name else None
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        message = f"{name!r} is no time zone that this machine knows"
        raise click.BadParameter(message, param_hint="--timezone") from error


def _read(file: Path, form: str, zone: ZoneInfo | None) -> JobList:
    try:
        text = _text(file)
        return read_sacct(text, zone) if form == "sacct" else read_clustercockpit(text.split("\n"))
    except (JobListError, OSError, UnicodeDecodeError) as error:
        message = f"{file}: {error}"
        raise click.ClickException(message) from error


def _text(file: Path) -> str:
    text = file.read_text(encoding="utf-8")
    if not text.strip():
        raise JobListError(1, "", "the file is empty")
    return text
