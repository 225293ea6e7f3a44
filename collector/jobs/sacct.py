"""Job lists of Slurm: `sacct -P` with a header, or `sacct --json`; GPUs are counted, not named.

TRES: slurm.conf(5), AccountingStorageTRES. sacct prints local times without a zone; with
SLURM_TIME_FORMAT=%s it prints seconds since the epoch, which are unambiguous, as are the times in
its JSON.
"""

from __future__ import annotations

import re
from datetime import tzinfo
from fractions import Fraction

import msgspec

from collector.jobs.job import (
    LATEST_SECONDS,
    NS_PER_SECOND,
    RAISED,
    BadLines,
    Job,
    JobList,
    JobListError,
    Unplaced,
    excess,
    future,
    job_list,
    without_repetitions,
)
from collector.metering.units import FOREVER_NS
from railscope.slurm.sacct import AccountingError, Record, parse_sacct, parse_sacct_json

NOT_NAMED = "sacct does not tell which GPUs"

_GPU = "gpu"
_MIG = re.compile(r"gpu:.*[0-9]g\.[0-9]+gb")
_UNFINISHED = frozenset({
    "", "PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "STOPPED", "SIGNALING",
    "STAGE_OUT", "RESIZING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT",
})  # fmt: skip
"""States of a job that is not over (Slurm: job state codes); a job in any other state has an end."""
_SHARD = "shard"
_SHARES = (_SHARD, "mps")


def read_sacct(
    text: str, zone: tzinfo | None = None, bad: BadLines = RAISED, shards_per_gpu: int = 0
) -> JobList:
    """The jobs of a list; steps are left out, as their resources are included in their job.

    `zone` is that of the node on which sacct ran, for times without a zone. Shards are shares of a
    GPU if `shards_per_gpu`, the number of shards per GPU, is set. Raises JobListError.
    """
    is_json = text.lstrip().startswith("{")
    what = "job" if is_json else "line"

    def rejected(error: AccountingError) -> None:
        bad.add(JobListError(error.place, error.field, error.reason, what))

    try:
        if is_json:
            records = parse_sacct_json(text, rejected)
        else:
            records = parse_sacct(text, zone, rejected=rejected)
    except AccountingError as error:
        raise JobListError(error.place, error.field, error.reason, what) from error
    told: list[tuple[int, Job]] = []
    without_gpus = never_started = 0
    for record in records:
        try:
            unplaced = _unplaced(record, shards_per_gpu)
            if record.job.start_seconds is None:
                never_started += 1
            elif not unplaced:
                without_gpus += 1
            else:
                told.append((record.place, _job(record, unplaced, bad.now_ns)))
        except AccountingError as error:
            rejected(error)
    found = job_list(without_repetitions(told, what, bad), without_gpus, never_started)
    return msgspec.structs.replace(found, rejected=tuple(bad.found))


def _job(record: Record, unplaced: tuple[Unplaced, ...], now_ns: int) -> Job:
    place, job = record.place, record.job
    start_ns = _instant_ns(place, "Start", job.start_seconds, now_ns)
    end_ns = FOREVER_NS
    if job.end_seconds is None and job.state not in _UNFINISHED:
        raise AccountingError(place, "End", f"is unknown, but State is {job.state}")
    if job.end_seconds is not None:
        end_ns = _instant_ns(place, "End", job.end_seconds, now_ns)
    if end_ns < start_ns:
        raise AccountingError(
            place, "End", f"{job.end_seconds} is before Start, {job.start_seconds}"
        )
    for field, value in (("Account", job.account), ("User", job.user)):
        if not value or not value.isprintable():
            raise AccountingError(
                place, field, f"{value!r} cannot be printed" if value else "is empty"
            )
    return Job(start_ns, str(job.id), job.account, job.user, end_ns, unplaced=unplaced)


def _instant_ns(place: int, field: str, seconds: int | None, now_ns: int) -> int:
    if seconds is None or not 0 <= seconds < LATEST_SECONDS:
        raise AccountingError(place, field, f"{seconds} is not from 1970 to 2105")
    instant_ns = seconds * NS_PER_SECOND
    if reason := future(instant_ns, now_ns):
        raise AccountingError(place, field, reason)
    return instant_ns


def _unplaced(record: Record, shards_per_gpu: int) -> tuple[Unplaced, ...]:
    """GPUs of a job by model, with their nodes. Parts of unknown size are reported with count 0."""
    tres = record.job.gres_counts
    typed = {name: count for name, count in tres.items() if name.startswith(f"{_GPU}:")}
    instances = {name: count for name, count in typed.items() if _MIG.fullmatch(name)}
    gpus = tres.get(_GPU, sum(typed.values())) - sum(instances.values())
    if gpus < 0:
        reason = f"has more MIG instances than gres/{_GPU}={tres[_GPU]}"
        raise AccountingError(record.place, "AllocTRES", reason)
    shares = {name: count for name, count in tres.items() if name.partition(":")[0] in _SHARES}
    models = {
        name.removeprefix("gpu:"): count for name, count in typed.items() if name not in instances
    }
    found: list[Unplaced] = []
    for model, count in sorted(models.items() if sum(models.values()) == gpus else [("", gpus)]):
        if count:
            found.append(Unplaced(record.node_list, count, NOT_NAMED, model))
    if shards_per_gpu:
        found += _shards(record.node_list, shares.pop(_SHARD, 0), shards_per_gpu)
    if reason := excess(sum(one.gpus for one in found), len(record.job.nodes)):
        raise AccountingError(record.place, "AllocTRES", reason)
    found += [
        Unplaced(record.node_list, 0, f"gres/{name}={count} is a part of a GPU, of unknown size")
        for name, count in sorted((instances | shares).items())
        if count
    ]
    return tuple(found)


def _shards(where: str, count: int, per_gpu: int) -> list[Unplaced]:
    """Shards as whole GPUs and a share of one more."""
    whole, rest = divmod(count, per_gpu)
    found = [Unplaced(where, whole, NOT_NAMED)] if whole else []
    if rest:
        found.append(Unplaced(where, 1, NOT_NAMED, share=Fraction(rest, per_gpu)))
    return found
