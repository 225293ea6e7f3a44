"""Job lists of any scheduler, with detection of the format."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import tzinfo
from typing import Any

from collector.jobs.alibaba import read_alibaba
from collector.jobs.clustercockpit import read_clustercockpit
from collector.jobs.job import BadLines, JobList, JobListError
from collector.jobs.kubernetes import read_kubernetes
from collector.jobs.sacct import read_sacct
from collector.metering.units import FOREVER_NS

FORMATS: Mapping[str, Callable[[str, tzinfo | None, BadLines, int], JobList]] = {
    "clustercockpit": lambda text, _zone, bad, _shards: read_clustercockpit(text.split("\n"), bad),
    "sacct": read_sacct,
    "kubernetes": lambda text, _zone, bad, _shards: read_kubernetes(text, bad),
    "alibaba": lambda text, _zone, bad, _shards: read_alibaba(text, bad),
}
_KUBERNETES = frozenset({"items", "object", "apiVersion", "metadata"})
_CLUSTERCOCKPIT = frozenset({"job_id", "jobId"})


def format_of(text: str) -> str:
    """Detect the format of a text: JSON by the fields of its first object, else CSV or sacct text.

    Raises JobListError for JSON of no known format.
    """
    start = text.lstrip()
    if not start.startswith(("{", "[")):
        return "alibaba" if "gpu_milli" in start.partition("\n")[0].split(",") else "sacct"
    first = _first(start)
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
    raise JobListError(1, "", f"is of none of {', '.join(FORMATS)}: say which with --format")


def _first(text: str) -> Any:
    """The first JSON value of a text; a bad line before it is skipped. Raises JobListError."""
    try:
        return json.JSONDecoder().raw_decode(text)[0]
    except (ValueError, RecursionError) as error:
        following = text.find("\n{")
        if following < 0:
            raise JobListError(1, "", f"no JSON: {error}") from error
        try:
            return json.JSONDecoder().raw_decode(text, following + 1)[0]
        except (ValueError, RecursionError):
            raise JobListError(1, "", f"no JSON: {error}") from error


def read_jobs(  # noqa: PLR0913 - each is an option of the import
    text: str,
    form: str | None = None,
    zone: tzinfo | None = None,
    *,
    strict: bool = True,
    shards_per_gpu: int = 0,
    now_ns: int = FOREVER_NS,
) -> JobList:
    """The jobs of a list; without a format, it is detected. Raises JobListError.

    A line with a start or end after `now_ns` is bad. Unless `strict`, bad lines are skipped and
    returned in the list, but at least one line must be valid.
    """
    if not text.strip():
        raise JobListError(1, "", "the file is empty")
    found = FORMATS[form or format_of(text)](
        text, zone, BadLines(collect=not strict, now_ns=now_ns), shards_per_gpu
    )
    read = len(found.jobs) + len(found.unended) + found.without_gpus + found.never_started
    if found.rejected and not read:
        raise found.rejected[0]
    return found
