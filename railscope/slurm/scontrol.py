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

from railscope.slurm import SlurmFormatError, notation

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


def parse_text(text: str, zone: tzinfo) -> tuple[notation.SlurmJob, ...]:
    """Parse the jobs of `scontrol show job -d`; `zone` is the time zone of the cluster.

    Allocations are printed only with -d, and only for jobs with nodes. Raises SlurmFormatError.
    """
    before, *records = _RECORD.split(text)
    if before.strip() not in {"", *_NO_JOBS}:
        message = f"invalid job list: {before.strip()[:200]!r}: expected the beginning of a job"
        raise SlurmFormatError(message)
    return tuple(_job(f"JobId={record}", zone) for record in records)


def _job(record: str, zone: tzinfo) -> notation.SlurmJob:
    first, *lines = record.split("\n")
    head = dict(_PAIR.findall(first.partition(" JobName=")[0]))
    fields = _fields(lines)
    try:
        user = _USER.fullmatch(fields["UserId"])
        start, end = (notation.seconds(fields[name], zone) for name in ("StartTime", "EndTime"))
        state, account = fields["JobState"], fields["Account"]
    except KeyError as error:
        message = f"incomplete job {head['JobId'][:20]!r}: expected {error.args[0]}"
        raise SlurmFormatError(message) from error
    start, end = notation.times(state, start, end)
    return notation.SlurmJob(
        id=notation.job_number(head["JobId"]),
        user=user[1] if user else fields["UserId"],
        account=notation.value_or_empty(account),
        state=state,
        start_seconds=start,
        end_seconds=end,
        nodes=notation.expand_nodes(fields.get("NodeList", "")),
        allocations=_allocations(lines),
        gres_counts=notation.parse_tres(fields.get("AllocTRES", fields.get("TRES", ""))),
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


def _allocations(lines: list[str]) -> tuple[notation.NodeAllocation, ...] | None:
    """Return the allocation on each node, from the lines that begin with `Nodes=`."""
    allocations: list[notation.NodeAllocation] = []
    sets = [line.strip() for line in lines if line.lstrip().startswith("Nodes=")]
    for line in sets:
        fields = dict(_PAIR.findall(line))
        gres = notation.parse_gres(fields.get("GRES", ""))
        allocations += [
            notation.NodeAllocation(node, gres) for node in notation.expand_nodes(fields["Nodes"])
        ]
    return tuple(allocations) if sets else None


def parse_json(text: str | bytes) -> tuple[notation.SlurmJob, ...]:
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


def _job_of(job: Mapping[str, Any]) -> notation.SlurmJob:
    states = job["job_state"]
    state = notation.json_text(states if isinstance(states, str) else states[0])
    is_completing = not isinstance(states, str) and "COMPLETING" in states
    start, end = (notation.json_number(job[name]) or None for name in ("start_time", "end_time"))
    start, end = notation.times("COMPLETING" if is_completing else state, start, end)
    number = notation.json_number(job["job_id"])
    if number is None:
        message = "missing job ID: expected an integer"
        raise SlurmFormatError(message)
    return notation.SlurmJob(
        id=number,
        user=notation.json_text(job.get("user_name")),
        account=notation.json_text(job.get("account")),
        state=state,
        start_seconds=start,
        end_seconds=end,
        nodes=notation.expand_nodes(notation.json_text(job.get("nodes"))),
        allocations=_allocations_of(job),
        gres_counts=notation.parse_tres(notation.json_text(job.get("tres_alloc_str"))),
    )


def _allocations_of(job: Mapping[str, Any]) -> tuple[notation.NodeAllocation, ...] | None:
    """Return the allocations, from one text per node in the order of the nodes."""
    details = job.get("gres_detail") or []
    if not details:
        return None
    nodes = (job.get("job_resources") or {}).get("nodes")
    listed = nodes.get("list") if isinstance(nodes, Mapping) else nodes
    names = notation.expand_nodes(notation.json_text(listed or job.get("nodes")))
    if len(names) != len(details):
        message = (
            f"incomplete resources of job {job['job_id']}: {len(details)} lists: expected {len(names)},"
            " one per node"
        )
        raise SlurmFormatError(message)
    return tuple(
        notation.NodeAllocation(node, notation.parse_gres(notation.json_text(detail)))
        for node, detail in zip(names, details, strict=True)
    )
