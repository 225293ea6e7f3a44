"""Commands of `railscope collector archive`: list, verify, restore and recompute archived usage evidence."""

from __future__ import annotations

import sys
import time

import click

from railscope import log_output, timestamps
from railscope_collector import archive_stores
from railscope_collector.commands import command_options
from railscope_collector.evidence import evidence_archive
from railscope_collector.finalization import archived_days
from railscope_collector.finalization.evidence_retention import EvidenceRetention
from railscope_collector.jobs import job_report
from railscope_collector.ledger import ledger_store
from railscope_collector.metering.units import Period

_node_option = click.option("--node", default="", help="Only files with evidence of this node.")


@click.group("archive")
def archive_group() -> None:
    """Archive of usage evidence: list its files, verify them, restore evidence to the database."""


def _files(
    archive: evidence_archive.EvidenceArchive, period: Period | None, node: str
) -> list[evidence_archive.EvidenceFile]:
    """Return the files of a period, or of all time."""
    end_ns = period.end_ns if period else timestamps.FOREVER_NS
    return archive.files(
        period.start_ns // timestamps.DAY_NS if period else 0, end_ns // timestamps.DAY_NS, node
    )


@archive_group.command("list")
@command_options.period_argument(required=False)
@_node_option
@command_options.ledger_command
def list_command(place: command_options.CommandContext, period: Period | None, node: str) -> None:
    """List the files of PERIOD, or all: day, pod, kind, nodes, facts, size, and what is not in the database."""
    rows = [("day", "pod", "kind", "nodes", "facts", "bytes", "deleted from", "file")]
    with place.archive() as archive:
        for file in _files(archive, period, node):
            deleted = len(archive.deleted_nodes(file))
            row = (
                evidence_archive.format_day(file.day),
                file.pod,
                file.kind,
                f"{len(file.nodes):,}",
                f"{file.facts:,}",
                f"{file.size_bytes:,}",
                job_report.format_count(deleted, "node") if deleted else "",
                f"{file.location}/{file.name}",
            )
            rows.append(row)
    for line in job_report.format_table(rows, {3, 4, 5}) if len(rows) > 1 else ["no file"]:
        click.echo(line)


@archive_group.command("verify")
@command_options.period_argument(required=False)
@_node_option
@command_options.ledger_command
def verify_command(place: command_options.CommandContext, period: Period | None, node: str) -> None:
    """Read the files of PERIOD, or all, and compare them with the database's records.

    Exit status 1: a file is missing or was changed.
    """
    files = problems = 0
    with place.archive() as archive:
        for file in _files(archive, period, node):
            files += 1
            try:
                archive.read(file)
            except archive_stores.ArchiveError as error:
                problems += 1
                click.echo(f"BROKEN {error}")
    click.echo(f"{job_report.format_count(files, 'file')} compared, {problems:,} broken")
    sys.exit(1 if problems else 0)


@archive_group.command("restore")
@command_options.period_argument()
@_node_option
@command_options.deciding_command
def restore_command(place: command_options.CommandContext, period: Period, node: str) -> None:
    """Insert archived evidence of PERIOD that was deleted from the database, for 30 days.

    With it, `railscope bill reconcile` computes the days again. A changed file is rejected as a whole.
    """
    files = 0
    with place.archive() as archive:
        for file in _files(archive, period, node):
            if archive.deleted_nodes(file):
                files += 1
                count = archive.restore(file, time.time_ns())
                click.echo(f"restored {file.name}: {job_report.format_count(count, 'fact')}")
    if not files:
        click.echo("nothing to restore: the database has all evidence of these files")


@archive_group.command("recompute")
@command_options.period_argument()
@_node_option
@command_options.ledger_command
def recompute_command(place: command_options.CommandContext, period: Period, node: str) -> None:
    """Compute the ledger days of PERIOD again from the archive alone, and compare them with the ledger.

    Evidence and claims of the database are not read. Exit status 1: a day differs, or cannot be computed.
    """
    has_problem = False
    with place.archive() as archive:
        ledger = ledger_store.Ledger(archive.database)
        days = range(period.start_ns // timestamps.DAY_NS, period.end_ns // timestamps.DAY_NS)
        for day in days:
            found = archived_days.recompute_day(archive, ledger, day, node)
            name = evidence_archive.format_day(day)
            equal = job_report.format_count(found.equal, "GPU-day")
            click.echo(f"{name}: {equal} equal, {len(found.problems):,} problems")
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
        archive.store.probe()
        retention = EvidenceRetention(place.settings, lambda: archive.database)
        try:
            for line in retention.steps():
                click.echo(line)
        finally:
            retention.close()
    if retention.idle_reason:
        click.echo(f"nothing is done: {retention.idle_reason}")
    click.echo(f"{retention.archived:,} facts archived, {retention.deleted:,} deleted")
