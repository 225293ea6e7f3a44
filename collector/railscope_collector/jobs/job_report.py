"""The metered time of jobs as text and JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

from railscope.timestamps import SECOND_NS
from railscope_collector.jobs.job_list import JobList
from railscope_collector.jobs.job_metering import MeteredJobs

_SECONDS = 60
_HOUR = _SECONDS * _SECONDS


def format_hours(gpu_ns: int | Fraction) -> str:
    """GPU time as hours, minutes and seconds, with nanoseconds if not zero."""
    seconds, rest_ns = divmod(int(gpu_ns), SECOND_NS)
    shown = f"{seconds // _HOUR}:{seconds // _SECONDS % _SECONDS:02}:{seconds % _SECONDS:02}"
    return f"{shown}.{rest_ns:09}" if rest_ns else shown


def report_document(jobs: JobList, metered: MeteredJobs) -> dict[str, Any]:
    """The report for JSON; nanoseconds are strings, as they may exceed the precision of a double."""
    return {
        "jobs": len(jobs.jobs),
        "gpus": metered.gpus,
        "capacity_ns": str(metered.capacity_ns),
        "held_ns": str(metered.held_ns),
        "free_ns": str(metered.free_ns),
        "balances": metered.balances,
        "tenants": [
            {"tenant": tenant, "held_ns": str(held_ns), "gpu_hours": format_hours(held_ns)}
            for tenant, held_ns in metered.tenants.items()
        ],
        "not_placed": [
            {
                "job": job.id,
                "tenant": job.tenant,
                "node": part.node,
                "gpus": part.gpus,
                "held_ns": str(part.capacity * job.duration_ns),
                "reason": part.reason,
            }
            for job in jobs.jobs
            for part in job.unplaced
        ],
        "without_gpus": jobs.without_gpus,
        "never_started": jobs.never_started,
        "running": list(jobs.running),
        "rejected": [
            {"item": line.noun, "number": line.place, "field": line.field, "reason": line.reason}
            for line in jobs.rejected
        ],
    }


def report_text(jobs: JobList, metered: MeteredJobs) -> Iterator[str]:
    """The report as lines of text."""
    totals = {
        "held by tenants": metered.held_ns,
        "free": metered.free_ns,
        "capacity x time": Fraction(metered.capacity_ns),
    }
    yield from _time_table("TENANT", [*metered.tenants.items(), *totals.items()])
    description = f"{format_count(len(jobs.jobs), 'job')} on {format_count(metered.gpus, 'GPU')}"
    yield f"{description}; held and free add up to capacity x time"
    parts = [(job, part) for job in jobs.jobs for part in job.unplaced]
    yield f"not placed on a GPU: {len(parts)}"
    for job, part in parts:
        held_hours = format_hours(part.capacity * job.duration_ns)
        place = part.node or "some node"
        of = f"{part.share} of " if part.share != 1 else ""
        description = f"{of}{format_count(part.gpus, 'GPU')}, {held_hours}: {part.reason}"
        yield f"  job {job.id} of {job.tenant} on {place}: {description}"
    if metered.unplaced_ns:
        yield from _time_table("TENANT, NOT PLACED", metered.unplaced_ns.items())
    yield f"jobs without GPUs: {jobs.without_gpus}; that never started: {jobs.never_started}"
    yield f"jobs that had not ended: {len(jobs.running)} {' '.join(jobs.running)}".rstrip()
    if jobs.rejected:
        yield f"NOT COMPLETE, not imported: {format_count(len(jobs.rejected), 'line')}"
        yield from (f"  {line}" for line in jobs.rejected)


def _time_table(title: str, times: Iterable[tuple[str, Fraction]]) -> list[str]:
    rows = [(name, format_hours(time), str(time)) for name, time in times]
    return format_table([(title, "GPU-HOURS", "GPU-NANOSECONDS"), *rows], (1, 2))


def format_table(rows: Sequence[Sequence[str]], right: Collection[int]) -> list[str]:
    """Rows in columns as wide as their widest cell; empty columns are left out."""
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    used = [index for index in range(len(sizes)) if any(row[index] for row in rows[1:])]
    return [
        "  ".join(
            row[index].rjust(sizes[index]) if index in right else row[index].ljust(sizes[index])
            for index in used
        ).rstrip()
        for row in rows
    ]


def format_count(count: int, noun: str) -> str:
    """A count with its noun, in plural unless it is 1."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
