"""Job lists of any scheduler: whose they are is seen from what they begin with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import tzinfo

from collector.jobs.clustercockpit import read_clustercockpit
from collector.jobs.job import JobList, JobListError
from collector.jobs.kubernetes import read_kubernetes
from collector.jobs.sacct import read_sacct

FORMATS: Mapping[str, Callable[[str, tzinfo | None], JobList]] = {
    "clustercockpit": lambda text, _: read_clustercockpit(text.split("\n")),
    "sacct": read_sacct,
    "kubernetes": lambda text, _: read_kubernetes(text),
}
_KUBERNETES = frozenset({"items", "object", "apiVersion", "metadata"})


def format_of(text: str) -> str:
    """Whose list a text is: JSON by the members of its first object, all else is sacct's text.

    Raises JobListError for JSON that is of none.
    """
    start = text.lstrip()
    if not start.startswith(("{", "[")):
        return "sacct"
    try:
        first, _ = json.JSONDecoder().raw_decode(start)
    except (ValueError, RecursionError) as error:
        raise JobListError(1, "", f"no JSON: {error}") from error
    members = frozenset(first) if isinstance(first, dict) else frozenset()
    if "jobs" in members:
        return "sacct"
    if members & _KUBERNETES:
        return "kubernetes"
    if "job_id" in members:
        return "clustercockpit"
    raise JobListError(1, "", f"is of none of {', '.join(FORMATS)}: say which with --format")


def read_jobs(text: str, form: str | None = None, zone: tzinfo | None = None) -> JobList:
    """The jobs of a list; without a format it is seen from the text. Raises JobListError."""
    if not text.strip():
        raise JobListError(1, "", "the file is empty")
    return FORMATS[form or format_of(text)](text, zone)
