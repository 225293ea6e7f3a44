"""Reports of metered jobs, as text and JSON. Times are exact and computed with integers only."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from collector.jobs.job import NS_PER_SECOND, JobList
from collector.jobs.meter import MeteredJobs
from collector.metering.units import GPU_CAPACITY

_SECONDS = 60
_HOUR = _SECONDS * _SECONDS


def hours(gpu_ns: int | Fraction) -> str:
    """GPU time as hours, minutes and seconds, with nanoseconds if not zero."""
    seconds, rest_ns = divmod(int(gpu_ns), NS_PER_SECOND)
    shown = f"{seconds // _HOUR}:{seconds // _SECONDS % _SECONDS:02}:{seconds % _SECONDS:02}"
    return f"{shown}.{rest_ns:09}" if rest_ns else shown


def as_document(jobs: JobList, metered: MeteredJobs) -> dict[str, Any]:
    """The report for JSON; nanoseconds are strings, as they may exceed the precision of a double."""
    return {
        "jobs": len(jobs.jobs),
        "gpus": metered.gpus,
        "capacity_ns": str(metered.capacity_ns),
        "held_ns": str(metered.held_ns),
        "free_ns": str(metered.free_ns),
        "balances": metered.balances,
        "tenants": [
            {"tenant": tenant, "held_ns": str(held), "gpu_hours": hours(held)}
            for tenant, held in metered.tenants.items()
        ],
        "conflicts": [
            {
                "gpu": str(clash.gpu),
                "start_ns": str(clash.conflict.start_ns),
                "end_ns": str(clash.conflict.end_ns),
                "earlier": clash.conflict.claim,
                "later": clash.conflict.other,
                "moved_ns": str(Fraction(clash.conflict.quantity) / GPU_CAPACITY),
            }
            for clash in metered.clashes
        ],
        "not_placed": [
            {
                "job": job.id,
                "tenant": job.tenant,
                "where": part.where,
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
            {"what": one.what, "number": one.place, "field": one.field, "reason": one.reason}
            for one in jobs.rejected
        ],
    }


def as_text(jobs: JobList, metered: MeteredJobs) -> Iterator[str]:
    """The report as lines of text."""
    rows = [("TENANT", "GPU-HOURS", "GPU-NANOSECONDS")]
    rows += [(tenant, hours(held), str(held)) for tenant, held in metered.tenants.items()]
    rows += [
        (name, hours(total), str(total))
        for name, total in (
            ("held by tenants", metered.held_ns),
            ("free", metered.free_ns),
            ("capacity x time", metered.capacity_ns),
        )
    ]
    yield from _table(rows)
    what = f"{counted(len(jobs.jobs), 'job')} on {counted(metered.gpus, 'GPU')}"
    yield f"{what}; held and free add up to capacity x time"
    yield f"conflicts: {len(metered.clashes)}"
    for gpu, conflict in metered.clashes:
        between = f"{_instant(conflict.start_ns)} to {_instant(conflict.end_ns)}"
        moved = hours(Fraction(conflict.quantity) / GPU_CAPACITY)
        yield f"  {gpu}: {between}: {moved} GPU-hours moved {conflict.claim} -> {conflict.other}"
    parts = [(job, part) for job in jobs.jobs for part in job.unplaced]
    yield f"not placed on a GPU: {len(parts)}"
    for job, part in parts:
        held = hours(part.capacity * job.duration_ns)
        place = part.where or "some node"
        of = f"{part.share} of " if part.share != 1 else ""
        what = f"{of}{counted(part.gpus, 'GPU')}, {held}: {part.reason}"
        yield f"  job {job.id} of {job.tenant} on {place}: {what}"
    if metered.unplaced_ns:
        rows = [("TENANT, NOT PLACED", "GPU-HOURS", "GPU-NANOSECONDS")]
        rows += [(name, hours(held), str(held)) for name, held in metered.unplaced_ns.items()]
        yield from _table(rows)
    yield f"jobs without GPUs: {jobs.without_gpus}; that never started: {jobs.never_started}"
    yield f"jobs that had not ended: {len(jobs.running)} {' '.join(jobs.running)}".rstrip()
    if jobs.rejected:
        yield f"NOT COMPLETE, not imported: {counted(len(jobs.rejected), 'line')}"
        yield from (f"  {one}" for one in jobs.rejected)


def _table(rows: list[tuple[str, str, str]]) -> Iterator[str]:
    wide = [max(len(row[column]) for row in rows) for column in range(3)]
    for name, time, count in rows:
        yield f"{name:<{wide[0]}}  {time:>{wide[1]}}  {count:>{wide[2]}}"


def counted(count: int, noun: str) -> str:
    """A count with its noun, in plural unless it is 1."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _instant(instant_ns: int) -> str:
    seconds, rest_ns = divmod(instant_ns, NS_PER_SECOND)
    shown = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{shown}.{rest_ns:09}Z" if rest_ns else f"{shown}Z"
