"""`railscope bill import-jobs`: GPU time of tenants from a scheduler's job list."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path

import click
import msgspec

from railscope.timestamps import DAY_NS, TimestampError, parse_timestamp
from railscope_collector.audit.ledger_watch import compare_before_writes
from railscope_collector.commands import command_options, scheduler_options
from railscope_collector.jobs import (
    account_tenants,
    gpu_models,
    imported_lists,
    job_list,
    job_list_import,
    job_list_reader,
    job_metering,
    job_report,
    placeholder_gpus,
)
from railscope_collector.ledger import database, ledger_store, record_draft
from railscope_collector.metering.units import Period
from railscope_collector.tables import metadata


def parse_utc_time(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> int | None:
    """Parse a time as RFC 3339; UTC without an offset. Raises BadParameter."""
    try:
        return None if text is None else parse_timestamp(text, UTC)
    except TimestampError as error:
        raise click.BadParameter(str(error)) from error


@dataclass(frozen=True, slots=True)
class _ImportOptions:
    """Parameters of an import."""

    url: str | None
    source: str | None
    period: Period | None
    as_of_ns: int | None
    models: gpu_models.GpuModels
    placeholders: bool
    as_observed: bool
    replace: bool


@click.command("import-jobs")
@click.argument("file", type=scheduler_options.INPUT_FILE)
@click.option(
    "--format",
    "form",
    type=click.Choice(sorted(job_list_reader.FORMATS)),
    help="Format of the list: ClusterCockpit JSON, `sacct -D -P` or `sacct -D --json`, or `kubectl get "
    "pods -o json`. Default: detected from the file.",
)
@scheduler_options.timezone_option
@scheduler_options.tenants_option
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON for programs; nanoseconds are strings."
)
@click.option("--ledger", "url", help="Write the GPU-days to the ledger in this database.")
@click.option(
    "--period",
    callback=command_options.read_period,
    metavar="PERIOD",
    help="Period of which the list contains all jobs, such as 2026-10. With --ledger, the list "
    "replaces the earlier list of the same source and period. Default: the whole days that "
    "its jobs cover.",
)
@click.option(
    "--source",
    help="Name of the scheduler and cluster, of which a ledger has one list per period. Default: the "
    "scheduler, with the cluster that a list of ClusterCockpit names.",
)
@click.option(
    "--as-of",
    "as_of_ns",
    callback=parse_utc_time,
    metavar="TIME",
    help="Time at which the list was made: jobs that have not ended are counted up to it, at most "
    "up to the end of the period or to now. Default: now.",
)
@click.option(
    "--sku",
    default="",
    help="GPU model, as named in the price book, for GPUs whose model is not specified elsewhere.",
)
@click.option(
    "--inventory",
    "inventory_path",
    type=scheduler_options.INPUT_FILE,
    help="GPU models by node and GPU (CSV: node,gpu,model).",
)
@click.option(
    "--placeholder-gpus",
    "placeholders",
    is_flag=True,
    help="Number the GPUs that the list counts but does not name.",
)
@click.option(
    "--treat-as-observed",
    "as_observed",
    is_flag=True,
    help="Treat the list as if an agent had observed the usage. Without it, rating requires a decision.",
)
@click.option(
    "--shards-per-gpu",
    type=click.IntRange(min=1),
    help="Shards per GPU as configured in Slurm; the shards of a job are a share of the GPU.",
)
@click.option("--strict", is_flag=True, help="Import nothing if a line of the list is invalid.")
@click.option(
    "--replace",
    is_flag=True,
    help="Replace a list of the same source and days by another one: without --period, or by one "
    "with none of its jobs.",
)
@click.option("--as", "name", help="Name recorded as the actor. Default: the system user.")
def import_jobs(  # noqa: PLR0913 - each is an option
    *,
    file: Path,
    form: str | None,
    timezone: str | None,
    tenants_path: Path | None,
    url: str | None,
    period: Period | None,
    source: str | None,
    as_of_ns: int | None,
    sku: str,
    inventory_path: Path | None,
    as_json: bool,
    placeholders: bool,
    as_observed: bool,
    strict: bool,
    shards_per_gpu: int | None,
    replace: bool,
    name: str | None,
) -> None:
    """Print the GPU time of every tenant in a scheduler's job list, exactly.

    Of two jobs on one GPU the later holds it while it lasts, then the earlier one holds it again;
    the time that moved is listed. GPUs that the list does not name are listed with the reason and
    are in no total. A bad line is reported and skipped. Exit status 1: the file is not a valid
    list, or the ledger cannot accept it.
    """
    by = command_options.operator_now(name or "")
    if as_of_ns is not None:
        as_of_ns = min(as_of_ns, by.now_ns)
    models = gpu_models.GpuModels(default=sku)
    if inventory_path is not None:
        models = scheduler_options.parse_file(
            inventory_path, lambda text: gpu_models.parse_models(text, sku)
        )
    order = _ImportOptions(
        url, source, period, as_of_ns, models, placeholders, as_observed, replace
    )
    zone = scheduler_options.find_time_zone(timezone)

    def read(text: str) -> tuple[str, job_list.JobList]:
        syntax = form or job_list_reader.detect_format(text)
        return syntax, job_list_reader.read_jobs(
            text, syntax, zone, strict=strict, shards_per_gpu=shards_per_gpu or 0, now_ns=by.now_ns
        )

    form, jobs = scheduler_options.parse_file(file, read)
    jobs = account_tenants.map_list_tenants(
        jobs, account_tenants.CLAIM_PROVIDERS[form], scheduler_options.read_tenants(tenants_path)
    )
    try:
        jobs, imported = _import(jobs, form, order, by)
    except (imported_lists.JobLedgerError, database.UnusableLedgerError) as error:
        raise click.ClickException(str(error)) from error
    metered = job_metering.meter_jobs(jobs.jobs, period)
    shown = jobs if period is None else job_list.clip_jobs(jobs, period.start_ns, period.end_ns)
    if not metered.balances:
        message = (
            f"{metered.held_ns} ns held and {metered.free_ns} ns free: expected a sum of "
            f"{metered.capacity_ns} ns: this is a defect of Railscope; do not bill this list"
        )
        raise click.ClickException(message)
    if as_json:
        document = job_report.report_document(shown, metered)
        if imported:
            document["ledger"] = imported._asdict()
        click.echo(json.dumps(document, indent=2))
        return
    for line in job_report.report_text(shown, metered):
        click.echo(line)
    if imported:
        days_written = job_report.format_count(imported.added, "GPU-day")
        click.echo(f"ledger: {days_written} written, {imported.unchanged} unchanged")


def _import(
    jobs: job_list.JobList, form: str, order: _ImportOptions, by: record_draft.TimedActor
) -> tuple[job_list.JobList, job_list_import.ImportCounts | None]:
    """The jobs of the period, and the result of the import. Raises JobLedgerError, UnusableLedgerError."""
    period = order.period
    source = order.source or account_tenants.default_source(form, jobs.cluster)
    if period is None and order.url is not None:
        period = _covered_days(jobs, order.as_of_ns)
    as_of_ns = order.as_of_ns or by.now_ns
    if period is not None:
        as_of_ns = min(period.end_ns, order.as_of_ns or by.now_ns)
        jobs = job_list.jobs_within(
            job_list.end_running_jobs(jobs, as_of_ns), period.start_ns, period.end_ns
        )
    elif order.as_of_ns is not None:
        jobs = job_list.end_running_jobs(jobs, order.as_of_ns)
    placed = (
        placeholder_gpus.number_placeholders(jobs.jobs, source, order.models)
        if order.placeholders
        else placeholder_gpus.PlaceholderGpus([], {})
    )
    if order.placeholders:
        jobs = msgspec.structs.replace(jobs, jobs=tuple(placed.jobs))
    imported = None
    if order.url is not None and period is not None:
        rejected = [str(line) for line in jobs.rejected]
        listed = imported_lists.NewList(
            source,
            period,
            as_of_ns,
            order.as_observed,
            job_list_import.place_jobs(jobs, order.models, placed.models),
            rejected,
        )
        ledger = ledger_store.Ledger.open(order.url, metadata)
        try:
            compare_before_writes(ledger.database, None)
            if not order.replace:
                job_list_import.check_replaced_list(
                    ledger, listed, corrects=order.period is not None
                )
            imported = job_list_import.import_list(ledger, listed, by)
        finally:
            ledger.close()
    return jobs, imported


def _covered_days(jobs: job_list.JobList, as_of_ns: int | None) -> Period | None:
    """The whole days from the first job of a list to its last; None without jobs."""
    all_jobs = (*jobs.jobs, *jobs.unended)
    if not all_jobs:
        return None
    ends = [job.end_ns for job in jobs.jobs] + [job.start_ns + 1 for job in jobs.unended]
    last_ns = max([*ends, as_of_ns or 0])
    start_day = min(job.start_ns for job in all_jobs) // DAY_NS
    return Period(start_day * DAY_NS, max(-(-last_ns // DAY_NS), start_day + 1) * DAY_NS)
