"""Readers of job lists: detection of the format, and lists of Slurm.

Slurm: `sacct -D -P` with a header, or `sacct -D --json`; GPUs are counted, not named. Without `-D`,
sacct leaves out earlier runs of a requeued job. TRES: slurm.conf(5), AccountingStorageTRES. sacct prints local times without a zone; with
SLURM_TIME_FORMAT=%s it prints seconds since the epoch, which are unambiguous, as are the times in
its JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import tzinfo
from fractions import Fraction

from railscope.slurm import resources
from railscope.slurm.job_record import SlurmJob
from railscope.slurm.sacct import AccountedJob, AccountingError, parse_sacct, parse_sacct_json
from railscope.timestamps import FOREVER_NS, SECOND_NS
from railscope_collector.jobs import bad_lines, clustercockpit, job_list, json_documents, kubernetes

SACCT_UNNAMED = "sacct does not list the GPUs"

_GPU = "gpu"
_UNFINISHED = frozenset({
    "", "PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "STOPPED", "SIGNALING",
    "STAGE_OUT", "RESIZING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT",
})  # fmt: skip
"""States of a job that is not over (Slurm: job state codes); a job in any other state has an end."""
_SHARD = "shard"
_SHARES = (_SHARD, "mps")


def read_sacct(
    text: str,
    zone: tzinfo | None = None,
    bad: bad_lines.BadLines = bad_lines.RAISE_BAD_LINES,
    shards_per_gpu: int = 0,
) -> job_list.JobList:
    """The jobs of a list; steps are left out, as their resources are included in their job.

    `zone` is that of the node on which sacct ran, for times without a zone. Shards are shares of a
    GPU if `shards_per_gpu`, the number of shards per GPU, is set. Raises JobListError.
    """
    is_json = text.lstrip().startswith("{")
    builder = job_list.JobListBuilder(bad, "job" if is_json else "line")

    def rejected(error: AccountingError) -> bad_lines.JobListError:
        return bad_lines.JobListError(error.place, error.field, error.reason, builder.noun)

    def add_rejected(error: AccountingError) -> None:
        bad.add(rejected(error))

    try:
        if is_json:
            records = parse_sacct_json(text, add_rejected)
        else:
            records = parse_sacct(text, zone, rejected=add_rejected)
    except AccountingError as error:
        raise rejected(error) from error
    for record in records:
        with builder.line(record.place):
            unplaced = _unnamed_gpus(record, shards_per_gpu)
            if record.job.start_seconds is None:
                builder.never_started += 1
            elif not unplaced:
                builder.without_gpus += 1
            else:
                builder.add(_sacct_job(record.job, unplaced, bad), cluster=record.cluster)
    return builder.build()


def _sacct_job(
    job: SlurmJob, unplaced: tuple[job_list.UnnamedGpus, ...], bad: bad_lines.BadLines
) -> job_list.ListedJob:
    start_ns = _timestamp_ns("Start", job.start_seconds, bad)
    end_ns = FOREVER_NS
    if job.end_seconds is None and job.state not in _UNFINISHED:
        bad_lines.reject("End", f"unknown: expected a time, as State is {job.state}")
    if job.end_seconds is not None:
        end_ns = _timestamp_ns("End", job.end_seconds, bad)
    if end_ns < start_ns:
        bad_lines.reject("End", f"{job.end_seconds}: expected at least Start, {job.start_seconds}")
    for field, value in (("Account", job.account), ("User", job.user)):
        if not value or not value.isprintable():
            reason = f"{value!r}: expected printable characters" if value else "expected a value"
            bad_lines.reject(field, reason)
    return job_list.ListedJob(
        start_ns, str(job.id), job.account, job.user, end_ns, unplaced=unplaced
    )


def _timestamp_ns(field: str, seconds: int | None, bad: bad_lines.BadLines) -> int:
    if seconds is None or not 0 <= seconds < job_list.LATEST_SECONDS:
        bad_lines.reject(field, f"{seconds}: expected a time from 1970 to 2105")
    bad.check_past(field, seconds * SECOND_NS)
    return seconds * SECOND_NS


def _unnamed_gpus(record: AccountedJob, shards_per_gpu: int) -> tuple[job_list.UnnamedGpus, ...]:
    """GPUs of a job by model, with their nodes. Parts of unknown size are reported with count 0."""
    tres = record.job.gres_counts
    typed = {name: count for name, count in tres.items() if name.startswith(f"{_GPU}:")}
    instances = {name: count for name, count in typed.items() if resources.mig_profile(name)}
    # MIG instances are counted as GPUs too (gres.conf(5)), and are no whole GPUs.
    gpus = tres.get(_GPU, sum(typed.values())) - sum(instances.values())
    if gpus < 0:
        bad_lines.reject("AllocTRES", f"more MIG instances than gres/{_GPU}={tres[_GPU]}")
    shares = {name: count for name, count in tres.items() if name.partition(":")[0] in _SHARES}
    models = {
        name.removeprefix("gpu:"): count for name, count in typed.items() if name not in instances
    }
    unnamed: list[job_list.UnnamedGpus] = []
    # By model only if the models account for all GPUs: else it is not known which GPUs the rest are.
    for model, count in sorted(models.items() if sum(models.values()) == gpus else [("", gpus)]):
        if count:
            unnamed.append(job_list.UnnamedGpus(record.node_list, count, SACCT_UNNAMED, model))
    if shards_per_gpu:
        unnamed += _shards(record.node_list, shares.pop(_SHARD, 0), shards_per_gpu)
    count = sum(request.gpus for request in unnamed)
    job_list.check_gpu_count("AllocTRES", count, len(record.job.nodes))
    unnamed += [
        job_list.UnnamedGpus(
            record.node_list, 0, f"gres/{name}={count} is a part of a GPU, of unknown size"
        )
        for name, count in sorted((instances | shares).items())
        if count
    ]
    return tuple(unnamed)


def _shards(node: str, count: int, per_gpu: int) -> list[job_list.UnnamedGpus]:
    """Shards as whole GPUs and a share of one more."""
    whole, rest = divmod(count, per_gpu)
    gpus = [job_list.UnnamedGpus(node, whole, SACCT_UNNAMED)] if whole else []
    if rest:
        gpus.append(job_list.UnnamedGpus(node, 1, SACCT_UNNAMED, share=Fraction(rest, per_gpu)))
    return gpus


FORMATS: Mapping[str, Callable[[str, tzinfo | None, bad_lines.BadLines, int], job_list.JobList]] = {
    "clustercockpit": lambda text, _zone, bad, _shards: clustercockpit.read_clustercockpit(
        text.split("\n"), bad
    ),
    "sacct": read_sacct,
    "kubernetes": lambda text, _zone, bad, _shards: kubernetes.read_kubernetes(text, bad),
}
_KUBERNETES = frozenset({"items", "object", "apiVersion", "metadata"})
_CLUSTERCOCKPIT = frozenset({"job_id", "jobId"})


def detect_format(text: str) -> str:
    """Detect the format of a text: JSON by the fields of its first object, else text of sacct.

    Raises JobListError for JSON of no known format.
    """
    start = text.lstrip()
    if not start.startswith(("{", "[")):
        return "sacct"
    bad = bad_lines.BadLines(collect=True)
    _, first = next(json_documents.parse(start, bad), (0, None))
    if first is None and bad.errors:
        raise bad_lines.JobListError(1, "", bad.errors[0].reason)
    members = frozenset(first) if isinstance(first, dict) else frozenset()
    jobs = first.get("jobs") if isinstance(first, dict) else first
    listed = jobs[0] if isinstance(jobs, list) and jobs and isinstance(jobs[0], dict) else {}
    if (members | frozenset(listed)) & _CLUSTERCOCKPIT and "job_id" not in listed:
        return "clustercockpit"
    if "jobs" in members:
        return "sacct"
    if members & _KUBERNETES:
        return "kubernetes"
    if "job_id" in listed:
        return "clustercockpit"
    raise bad_lines.JobListError(
        1,
        "",
        f"unknown format: expected one of {', '.join(FORMATS)}; fix: specify it with --format",
    )


def read_jobs(  # noqa: PLR0913 - each is an option of the import
    text: str,
    form: str | None = None,
    zone: tzinfo | None = None,
    *,
    strict: bool = True,
    shards_per_gpu: int = 0,
    now_ns: int = FOREVER_NS,
) -> job_list.JobList:
    """The jobs of a list; without a format, it is detected. Raises JobListError.

    A line with a start or end after `now_ns` is bad. Unless `strict`, bad lines are skipped and
    returned in the list, but at least one line must be valid.
    """
    if not text.strip():
        raise bad_lines.JobListError(1, "", "empty file: expected at least one job")
    jobs = FORMATS[form or detect_format(text)](
        text, zone, bad_lines.BadLines(collect=not strict, now_ns=now_ns), shards_per_gpu
    )
    read = len(jobs.jobs) + len(jobs.unended) + jobs.without_gpus + jobs.never_started
    # A text without a single valid line is of another format, not a list with bad lines.
    if jobs.rejected and not read:
        raise jobs.rejected[0]
    return jobs
