"""Commands of `railscope collector archive`: list, verify and recompute archived days, and archive what is due."""

from __future__ import annotations

import sys

import click

from railscope import log_output, timestamps
from railscope_collector import archive_stores
from railscope_collector.commands import command_options
from railscope_collector.evidence import day_archive, file_versions
from railscope_collector.evidence.day_archive import format_day
from railscope_collector.finalization.day_retention import DayRetention
from railscope_collector.jobs import job_report
from railscope_collector.metering.units import Period


@click.group("archive")
def archive_group() -> None:
    """Archive of the facts of days: list its files, verify them, compute days again from them."""


def _files(archive: day_archive.DayArchive, period: Period | None) -> list[day_archive.DayFile]:
    """Return the files of a period, or of all time."""
    return archive.files(_days(period))


def _days(period: Period | None) -> range:
    end_ns = period.end_ns if period else timestamps.FOREVER_NS
    return range(period.start_ns // timestamps.DAY_NS if period else 0, end_ns // timestamps.DAY_NS)


@archive_group.command("list")
@command_options.period_argument(required=False)
@command_options.ledger_command
def list_command(place: command_options.CommandContext, period: Period | None) -> None:
    """List the files of PERIOD, or all: day, pod, GPU-days, size, and if the day can no longer change."""
    rows = [("day", "pod", "GPU-days", "bytes", "final", "file")]
    with place.archive() as archive:
        for file in _files(archive, period):
            row = (
                format_day(file.day),
                file.pod,
                f"{file.gpus:,}",
                f"{file.size_bytes:,}",
                "yes" if file.is_final else "",
                f"{file.location}/{file.name}",
            )
            rows.append(row)
    for line in job_report.format_table(rows, {2, 3}) if len(rows) > 1 else ["no file"]:
        click.echo(line)


@archive_group.command("verify")
@command_options.period_argument(required=False)
@command_options.ledger_command
def verify_command(place: command_options.CommandContext, period: Period | None) -> None:
    """Read the files of PERIOD, or all, and compare them with the database's records.

    Exit status 1: a file is missing or was changed.
    """
    files = problems = 0
    with place.archive() as archive:
        for file in _files(archive, period):
            files += 1
            try:
                archive.read(file)
            except archive_stores.ArchiveError as error:
                problems += 1
                click.echo(f"BROKEN {error}")
    click.echo(f"{job_report.format_count(files, 'file')} compared, {problems:,} broken")
    sys.exit(1 if problems else 0)


@archive_group.command("recompute")
@command_options.period_argument()
@click.option("--node", default="", help="Only GPUs of this node.")
@command_options.ledger_command
def recompute_command(place: command_options.CommandContext, period: Period, node: str) -> None:
    """Compute the ledger days of PERIOD again from the archive alone, and compare them with the ledger.

    Facts of the database are not read. Exit status 1: a day differs, or cannot be computed.
    """
    has_problem = False
    with place.archive() as archive:
        files = file_versions.FileStore(archive.database).read_all()
        for day in _days(period):
            found = archive.recompute_day(day, files, node)
            equal = job_report.format_count(found.equal, "GPU-day")
            former = f", {found.former:,} of release 0.3 not compared" if found.former else ""
            click.echo(
                f"{format_day(day)}: {equal} equal, {len(found.problems):,} problems{former}"
            )
            for problem in found.problems:
                has_problem = True
                click.echo(f"DIFFERS {problem}")
    sys.exit(1 if has_problem else 0)


@archive_group.command("run")
@command_options.ledger_command
def run_command(place: command_options.CommandContext) -> None:
    """Archive and delete what is due now, as a running collector does every `archive.period_seconds`."""
    log_output.configure_logs("warning")
    with place.archive() as archive:
        retention = DayRetention(place.settings, lambda: archive.store)
        try:
            for line in retention.steps():
                click.echo(line)
        finally:
            retention.close()
    if retention.idle_reason:
        click.echo(f"nothing is done: {retention.idle_reason}")
    click.echo(f"{retention.archived:,} files written, {retention.deleted:,} facts deleted")
