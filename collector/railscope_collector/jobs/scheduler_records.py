"""R3: comparison of a ledger with the accounting records of schedulers, from files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from fractions import Fraction
from pathlib import Path

import msgspec

from railscope.timestamps import DAY_NS, FOREVER_NS, SECOND_NS, format_timestamp
from railscope_collector.files.tenants_file import TenantMappings
from railscope_collector.jobs import (
    JobsError,
    account_tenants,
    imported_lists,
    job_list_reader,
    job_reconciliation,
    job_report,
)
from railscope_collector.jobs.bad_lines import JobListError
from railscope_collector.jobs.job_list import ListedJob
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.metering import units
from railscope_collector.metering.metered_day import DayPart

_FORMATS = {"slurm": "sacct", "kubernetes": "kubernetes"}
_NAMING = frozenset({"file", "command"})
"""Sources whose workload may name that of another source, such as `slurm:123`."""
_MAX_SHOWN = 50


class SchedulerRecordsError(JobsError):
    """A file of scheduler records cannot be read; the message contains file and reason."""


@dataclass(frozen=True, slots=True)
class SchedulerRecords:
    """The ended jobs of schedulers, and those that have not ended in any of the files."""

    schedulers: frozenset[str]
    sources: frozenset[str]
    """Sources of job lists in the ledger that are compared."""
    jobs: tuple[ListedJob, ...]
    unended: tuple[ListedJob, ...]
    tenant_names: frozenset[str]
    """Tenants of the tenants file. An account without a row never gets one of these names."""
    rejected: tuple[str, ...] = ()
    """Lines that are not valid jobs: file, line and reason."""

    @classmethod
    def read(
        cls,
        files: Mapping[str, Sequence[Path]],
        zone: tzinfo | None = None,
        tenants: TenantMappings | None = None,
        *,
        source: str | None = None,
        now_ns: int = FOREVER_NS,
    ) -> SchedulerRecords:
        """Read files by scheduler, `slurm` or `kubernetes`. Raises SchedulerRecordsError.

        `source` is that of the same list in an import. Without it, a file has the source of an import without one.
        A line is valid if it would be imported. Of a file at least one line is valid.
        """
        tenants = tenants or TenantMappings()
        rejected: list[str] = []
        sources: set[str] = set()
        jobs: set[ListedJob] = set()
        unended: set[ListedJob] = set()
        for scheduler, paths in files.items():
            for path in paths:
                try:
                    text = path.read_text(encoding="utf-8")
                    job_list = job_list_reader.read_jobs(
                        text, _FORMATS[scheduler], zone, strict=False, now_ns=now_ns
                    )
                except (JobListError, OSError, UnicodeDecodeError) as error:
                    message = f"cannot read the scheduler's records {path}: {error}"
                    raise SchedulerRecordsError(message) from error
                sources.add(
                    source or account_tenants.default_source(_FORMATS[scheduler], job_list.cluster)
                )
                rejected += [f"{path}: {line}" for line in job_list.rejected]
                jobs.update(account_tenants.map_tenants(job_list.jobs, scheduler, tenants))
                unended.update(account_tenants.map_tenants(job_list.unended, scheduler, tenants))
        schedulers = frozenset(scheduler for scheduler, paths in files.items() if paths)
        names = account_tenants.tenant_names(tenants)
        # Of successive snapshots, a later one has the end of a run that an earlier one has as running.
        ended = {job.run for job in jobs}
        running = sorted(job for job in unended if job.run not in ended)
        return cls(
            schedulers,
            frozenset(sources),
            tuple(sorted(jobs)),
            tuple(running),
            names,
            tuple(rejected),
        )

    def compare_with(
        self, ledger: Ledger, period: units.Period, tolerance_ns: int
    ) -> job_reconciliation.JobComparison:
        """Compare the ledger with these schedulers' jobs in a period. Raises UnusableLedgerError."""
        times = (
            # With tenants as named in the scheduler records.
            msgspec.structs.replace(
                time,
                part=msgspec.structs.replace(
                    time.part,
                    tenant=account_tenants.account_name(time.part.tenant, self.tenant_names),
                ),
            )
            for time in _by_gpu(ledger, period)
            if self._contains(time.part)
        )
        compared = job_reconciliation.compare_jobs(
            times, self.jobs, tolerance_ns, period, self.unended
        )
        others = {
            listed.source
            for listed in imported_lists.newest_lists(ledger.database)
            if listed.period.overlaps(period) and listed.source not in self.sources
        }
        return replace(compared, rejected=self.rejected, other_sources=tuple(sorted(others)))

    def _contains(self, part: DayPart) -> bool:
        """True if a claim was made from these records, or from a job list of the same source."""
        # The claim of a job list is its source, job and start; that of an agent begins with its provider and a slash.
        source, _, start = part.claim.rpartition(f"/{part.workload}@")
        if source and start.isdecimal():
            return source in self.sources
        provider = part.claim.partition("/")[0]
        if provider in _NAMING:
            provider = part.workload.partition(":")[0]
        return provider in self.schedulers


def _by_gpu(ledger: Ledger, period: units.Period) -> Iterator[job_reconciliation.LedgerTime]:
    """The times of claims in the ledger of a period, day by day, to limit memory on a large cluster."""
    newest = ledger.newest(period.start_ns // DAY_NS, -(-period.end_ns // DAY_NS))
    for revision in ledger.revisions(newest):
        yield from job_reconciliation.times_of_day(revision.day)


# Text ----------------------------------------------------------------------------


def comparison_text(comparison: job_reconciliation.JobComparison) -> Iterator[str]:
    """Lines of text: tenants, and the jobs that differ."""
    jobs, tenants = (
        job_report.format_count(comparison.jobs, "job"),
        job_report.format_count(len(comparison.tenants), "tenant"),
    )
    yield f"R3: {jobs} of the scheduler's records, {tenants}"
    for check in comparison.tenants:
        verdict = "" if check.agrees else ", MORE THAN CLOCKS EXPLAIN"
        yield (
            f"  {check.tenant or '(none)'}: ledger {_hours(check.found)}, scheduler "
            f"{_hours(check.expected)}, difference {_hours(check.difference)} of "
            f"{_hours(Fraction(check.allowed))} allowed{verdict}"
        )
    yield f"jobs that differ: {len(comparison.differences):,}"
    for difference in comparison.differences[:_MAX_SHOWN]:
        yield f"  {_format_difference(difference)}"
    if len(comparison.differences) > _MAX_SHOWN:
        yield f"  and {len(comparison.differences) - _MAX_SHOWN:,} more"
    if comparison.in_parts:
        yield f"compared by times only, as the size of their parts of GPUs is not stated: {', '.join(comparison.in_parts)}"
    if comparison.unended:
        yield f"not compared, as they have not ended: {', '.join(comparison.unended)}"
    if comparison.other_sources:
        yield (
            f"not compared, lists of other sources in the ledger: {', '.join(comparison.other_sources)};"
            " fix: name the source of the records with --source"
        )
    if comparison.rejected:
        yield f"NOT COMPLETE, not compared: {job_report.format_count(len(comparison.rejected), 'line')}"
        yield from (f"  {line}" for line in comparison.rejected)


def _format_difference(diff: job_reconciliation.JobDifference) -> str:
    run, kinds = diff.run, "; ".join(diff.kinds)
    tenant = run.job.tenant if run.job else ""
    tenants = sorted({claim_time.tenant for claim_time in run.claim_times})
    owner = tenant
    if tenant not in tenants:
        owner = f"{tenant or '-'} / {', '.join(tenants) or 'no tenant'}"
    gpus = (
        f"{job_report.format_count(len(run.ledger_gpus), 'GPU')} in the ledger, {run.gpus} in"
        " the scheduler's records"
    )
    off = ""
    if diff.start_off_ns or diff.end_off_ns:
        shown = (f"{ns / SECOND_NS:+.0f} s" for ns in (diff.start_off_ns, diff.end_off_ns))
        off = f", start and end in the ledger {' and '.join(shown)}"
    span = (format_timestamp(ns, "seconds") for ns in (run.start_ns, run.end_ns))
    return (
        f"job {diff.job} of {owner}, {' to '.join(span)}: {kinds};"
        f" {gpus}{off}; {_hours(diff.difference)} GPU-hours more in the ledger"
    )


def _hours(gpu_ns: Fraction) -> str:
    sign = "-" if gpu_ns < 0 else ""
    return sign + job_report.format_hours(int(abs(gpu_ns)))
