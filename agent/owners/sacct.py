"""Jobs as Slurm's accounting tells them: `sacct --parsable2 --allocations`.

The first line names the columns. Ask for
`--format=JobIDRaw,JobID,User,UID,Account,State,Start,End,NodeList,AllocTRES`, and not for names and
comments: a user may write the separator into them. Source: SchedMD/slurm:src/sacct/print.c.
"""

from __future__ import annotations

from datetime import tzinfo

from agent.owners import FormatError
from agent.owners.gres import parse_tres
from agent.owners.hostlist import expand
from agent.owners.slurm_job import Job, job_number, seconds, times, told

_NEEDED = ("User", "Account", "State", "Start", "End", "NodeList")


def parse_sacct(text: str, zone: tzinfo, separator: str = "|") -> tuple[Job, ...]:
    """The jobs, without their steps; `zone` is the time zone that sacct ran in.

    Raises FormatError.
    """
    header, *lines = text.split("\n")
    names = header.rstrip("\r").split(separator)
    missing = [name for name in _NEEDED if name not in names]
    if missing or not {"JobIDRaw", "JobID"} & set(names):
        message = f"the columns {header[:200]!r} lack {', '.join(missing) or 'JobIDRaw'}"
        raise FormatError(message)
    jobs: list[Job] = []
    for number, line in enumerate(lines, start=2):
        if not line:
            continue
        values = line.rstrip("\r").split(separator)
        if len(values) != len(names):
            message = f"line {number} has {len(values)} columns and not {len(names)}"
            raise FormatError(message)
        row = dict(zip(names, values, strict=True))
        if "." not in row.get("JobIDRaw", row.get("JobID", "")):
            jobs.append(_job(row, zone))
    return tuple(jobs)


def _job(row: dict[str, str], zone: tzinfo) -> Job:
    state, _, _by_whom = row["State"].partition(" ")
    start, end = (seconds(row[name], zone) for name in ("Start", "End"))
    when = times(state, start, end)
    array = row.get("JobID", "")
    return Job(
        id=job_number(row.get("JobIDRaw", array)),
        user=row["User"],
        user_id=job_number(row["UID"]) if row.get("UID") else None,
        account=row["Account"],
        state=state,
        start_seconds=when.start_seconds,
        end_seconds=when.end_seconds,
        planned_end_seconds=when.planned_end_seconds,
        nodes=expand(told(row["NodeList"])),
        gres_counts=parse_tres(row.get("AllocTRES", "")),
        array=array if "_" in array else "",
        sluid=row.get("SLUID", ""),
    )
