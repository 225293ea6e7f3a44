"""Jobs in the output of `scontrol show job -d`, as text and as JSON.

Use JSON on a live cluster: its times are Unix seconds, and names and comments, which users write, are
unambiguous. As text they may contain lines that resemble fields, and only repeated fields are detected.
Source: SchedMD/slurm:src/api/job_info.c, src/plugins/data_parser.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import tzinfo
from typing import Any

from railscope.slurm import SlurmFormatError, job_record, node_lists, resources

_RECORD = re.compile(r"^JobId=", re.MULTILINE)
_PAIR = re.compile(r"(?:^|\s)([A-Za-z_/:]+)=(\S*)")
_USER = re.compile(r"(.*)\([0-9]{1,10}\)")
_FIELDS_OF_LINE = {
    "UserId": "UserId",
    "Priority": "Account",
    "JobState": "JobState",
    "StartTime": "StartTime EndTime",
    "NodeList": "NodeList",
    "AllocTRES": "AllocTRES",
    "TRES": "TRES",
}
"""First key of each line that is parsed, and the keys to read from it."""
_NO_JOBS = ("No jobs in the system",)


def parse_text(text: str, zone: tzinfo) -> tuple[job_record.SlurmJob, ...]:
    """Parse the jobs of `scontrol show job -d`; `zone` is the time zone of the cluster.

    Allocations are printed only with -d, and only for jobs with nodes. Raises SlurmFormatError.
    """
    before, *records = _RECORD.split(text)
    if before.strip() not in {"", *_NO_JOBS}:
        message = f"invalid job list: {before.strip()[:200]!r}: expected the beginning of a job"
        raise SlurmFormatError(message)
    return tuple(_job(f"JobId={record}", zone) for record in records)


def _job(record: str, zone: tzinfo) -> job_record.SlurmJob:
    first, *lines = record.split("\n")
    # Up to the name, in which users may write what resembles fields.
    head = dict(_PAIR.findall(first.partition(" JobName=")[0]))
    fields = _fields(lines)
    try:
        user = _USER.fullmatch(fields["UserId"])
        start, end = (job_record.seconds(fields[name], zone) for name in ("StartTime", "EndTime"))
        state, account = fields["JobState"], fields["Account"]
    except KeyError as error:
        message = f"incomplete job {head['JobId'][:20]!r}: expected {error.args[0]}"
        raise SlurmFormatError(message) from error
    start, end = job_record.times(state, start, end)
    return job_record.SlurmJob(
        id=job_record.job_number(head["JobId"]),
        user=user[1] if user else fields["UserId"],
        account=job_record.value_or_empty(account),
        state=state,
        start_seconds=start,
        end_seconds=end,
        nodes=node_lists.expand_nodes(fields.get("NodeList", "")),
        allocations=_allocations(lines),
        gres_counts=resources.parse_tres(fields.get("AllocTRES", fields.get("TRES", ""))),
    )


def _fields(lines: list[str]) -> dict[str, str]:
    """Return the fields to read. Raises SlurmFormatError for a repeated key: job names may contain newlines."""
    fields: dict[str, str] = {}
    for line in lines:
        pairs: list[tuple[str, str]] = _PAIR.findall(line)
        if not pairs or not line.lstrip().startswith(f"{pairs[0][0]}="):
            continue
        keys = _FIELDS_OF_LINE.get(pairs[0][0], "").split()
        for key, value in pairs:
            if key not in keys:
                continue
            if key in fields:
                message = f"duplicate field: {key}: expected it once; fix: read this job as JSON"
                raise SlurmFormatError(message)
            fields[key] = value
    return fields


def _allocations(lines: list[str]) -> tuple[job_record.NodeAllocation, ...] | None:
    """Return the allocation on each node, from the lines that begin with `Nodes=`."""
    allocations: list[job_record.NodeAllocation] = []
    sets = [line.strip() for line in lines if line.lstrip().startswith("Nodes=")]
    for line in sets:
        fields = dict(_PAIR.findall(line))
        gres = resources.parse_gres(fields.get("GRES", ""))
        allocations += [
            job_record.NodeAllocation(node, gres)
            for node in node_lists.expand_nodes(fields["Nodes"])
        ]
    return tuple(allocations) if sets else None


def parse_json(text: str | bytes) -> tuple[job_record.SlurmJob, ...]:
    """Parse the jobs of `scontrol show job --json` or `squeue --json`. Raises SlurmFormatError.

    Slurm 22.05 to 23.02 wrote plain numbers and one state; later versions write numbers with a `set`
    flag, and lists of states of which the first is the base state.
    """
    try:
        jobs = json.loads(text)["jobs"]
        return tuple(map(_job_of, jobs))
    except SlurmFormatError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        message = f"invalid JSON of Slurm: {type(error).__name__} {error}"
        raise SlurmFormatError(message) from error


def _job_of(job: Mapping[str, Any]) -> job_record.SlurmJob:
    states = job["job_state"]
    state = job_record.json_text(states if isinstance(states, str) else states[0])
    is_completing = not isinstance(states, str) and "COMPLETING" in states
    # Slurm writes 0 for a time that is not set.
    start, end = (job_record.json_number(job[name]) or None for name in ("start_time", "end_time"))
    start, end = job_record.times("COMPLETING" if is_completing else state, start, end)
    number = job_record.json_number(job["job_id"])
    if number is None:
        message = "missing job ID: expected an integer"
        raise SlurmFormatError(message)
    return job_record.SlurmJob(
        id=number,
        user=job_record.json_text(job.get("user_name")),
        account=job_record.json_text(job.get("account")),
        state=state,
        start_seconds=start,
        end_seconds=end,
        nodes=node_lists.expand_nodes(job_record.json_text(job.get("nodes"))),
        allocations=_allocations_of(job),
        gres_counts=resources.parse_tres(job_record.json_text(job.get("tres_alloc_str"))),
    )


def _allocations_of(job: Mapping[str, Any]) -> tuple[job_record.NodeAllocation, ...] | None:
    """Return the allocations, from one text per node in the order of the nodes."""
    details = job.get("gres_detail") or []
    if not details:
        return None
    nodes = (job.get("job_resources") or {}).get("nodes")
    listed = nodes.get("list") if isinstance(nodes, Mapping) else nodes
    names = node_lists.expand_nodes(job_record.json_text(listed or job.get("nodes")))
    if len(names) != len(details):
        message = (
            f"incomplete resources of job {job['job_id']}: {len(details)} lists: expected {len(names)},"
            " one per node"
        )
        raise SlurmFormatError(message)
    return tuple(
        job_record.NodeAllocation(node, resources.parse_gres(job_record.json_text(detail)))
        for node, detail in zip(names, details, strict=True)
    )
