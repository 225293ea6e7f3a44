"""Job lists as text: lines of a list, and the jobs that are read from it, or what is wrong with them.

    sacct FIELD=VALUE ...      a line of sacct; a missing field is that of a usual job: 7 of account a, from 100 to 120 s, 2 GPUs on n1
    cockpit FIELD=JSON ...     a job of ClusterCockpit; project p, on two nodes
    pod NAME FIELD=JSON ...    a pod in namespace research, of 2 hours on n1: gpus, limits, annotations, or a field of its status or spec
    node LABEL=VALUE ...       labels of node n1
    text LINE                  a line as it stands
    read FORMAT option=...     prints jobs with their GPUs, and how many are not read as jobs; `zone`, `shards`, `collect` (of wrong lines)

Times are seconds, and of pods minutes after 2026.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any
from zoneinfo import ZoneInfo

from support.stories import Story

from railscope.slurm.sacct import COLUMNS
from railscope.timestamps import FOREVER_NS
from railscope_collector.jobs.bad_lines import JobListError
from railscope_collector.jobs.job_list import JobList
from railscope_collector.jobs.job_list_reader import read_jobs, read_sacct
from railscope_collector.jobs.job_metering import meter_jobs

S = 1_000_000_000
NEW_YEAR = 1_767_225_600
START, END = "2026-01-01T00:00:00Z", "2026-01-01T02:00:00Z"
SACCT = {
    "JobIDRaw": "7", "User": "u", "Account": "a", "Start": "100", "End": "120",
    "NodeList": "n1", "AllocTRES": "billing=34,cpu=1,gres/gpu=2,node=1", "State": "COMPLETED",
}  # fmt: skip
COCKPIT: dict[str, Any] = {
    "job_id": 7, "start_time": 100, "duration": 20, "project": "p", "hpc_user": "u", "num_acc": 2, "job_state": "completed",
    "resources": [
        {"hostname": "n1", "accelerators": ["00000000:C1:00.0"]}, {"hostname": "n2", "accelerators": ["0000:c1:00.0"]},
    ],
}  # fmt: skip


def second(time_ns: int) -> str:
    seconds = time_ns // S
    return (
        ""
        if time_ns == FOREVER_NS
        else str(seconds)
        if seconds < NEW_YEAR
        else f"{(seconds - NEW_YEAR) // 60} min"
    )


def printed(found: JobList) -> list[str]:
    """Jobs, their GPUs, and the counts of what has none."""
    lines = list[str]()
    for job in (*found.jobs, *found.unended):
        gpus = [f"{gpu}" for gpu in job.gpus]
        for part in job.unplaced:
            share = f" x {part.share}" if part.share != 1 else ""
            model = f" {part.model}" if part.model else ""
            gpus.append(f"{part.gpus}{share}{model} on {part.node} ({part.reason})")
        lines.append(
            f"{job.id} of {job.tenant}, {second(job.start_ns)}-{second(job.end_ns)}: {'; '.join(gpus)}"
        )
    counts = {
        "without GPUs": found.without_gpus,
        "never started": found.never_started,
        "rejected": len(found.rejected),
    }
    lines += [f"{number} {name}" for name, number in counts.items() if number]
    lines += [f"  {each}" for each in found.rejected]
    return lines


@dataclass
class Played:
    """The lines of a list."""

    lines: list[str] = field(default_factory=list)
    columns: tuple[str, ...] = (*COLUMNS, "State")

    def run(self, command: str) -> list[str]:
        name, _, rest = command.partition(" ")
        fields = dict(
            word.split("=", 1) for word in re.split(r" (?=[\w./-]+=)", " " + rest) if "=" in word
        )
        return (
            getattr(self, name)(rest, {key.strip(): value for key, value in fields.items()}) or []
        )

    def text(self, line: str, _: dict[str, str]) -> None:
        self.lines.append(line)

    def sacct(self, _: str, fields: dict[str, str]) -> None:
        if not self.lines:
            extra = [key for key in fields if key not in SACCT]
            self.lines.append("|".join([*self.columns, *extra]))
        self.lines.append("|".join((SACCT | fields).values()))

    def cockpit(self, _: str, fields: dict[str, str]) -> None:
        given = COCKPIT | {key: json.loads(value) for key, value in fields.items()}
        self.lines.append(
            json.dumps({key: value for key, value in given.items() if value != "missing"})
        )

    def pod(self, rest: str, fields: dict[str, str]) -> None:
        name, given = (
            rest.split(maxsplit=1)[0],
            {key: json.loads(value) for key, value in fields.items()},
        )
        limits = given.pop("limits", None) or {"nvidia.com/gpu": str(given.pop("gpus", 2))}
        kind = given.pop("type", "")
        one: dict[str, Any] = {
            "kind": "Pod",
            "metadata": {
                "uid": f"uid of {name}",
                "name": name,
                "namespace": "research",
                "annotations": given.pop("annotations", {}),
            },
            "spec": {
                "nodeName": "n1",
                "containers": [{"name": "c", "resources": {"limits": limits}}],
            },
            "status": {
                "phase": "Succeeded",
                "startTime": START,
                "containerStatuses": [{"state": {"terminated": {"finishedAt": END}}}],
            },
        }
        for key, value in given.items():
            part = next(part for part, keys in {
                "metadata": {"uid", "deletionTimestamp", "labels", "namespace"}, "spec": {"initContainers", "containers", "nodeName"}, "status": {key},
            }.items() if key in keys)  # fmt: skip
            one[part][key] = value
        self.lines.append(json.dumps({"type": kind, "object": one} if kind else one))

    def node(self, _: str, fields: dict[str, str]) -> None:
        self.lines.append(
            json.dumps({"kind": "Node", "metadata": {"uid": "n", "name": "n1", "labels": fields}})
        )

    def read(self, rest: str, fields: dict[str, str]) -> list[str]:
        text, self.lines = "\n".join([*self.lines, ""]), []
        form, zone = (
            rest.split(maxsplit=1)[0],
            ZoneInfo(fields["zone"]) if "zone" in fields else None,
        )
        try:
            if form == "sacct" and "shards" not in fields:
                found = read_sacct(text, zone)
            else:
                shards = {"shards_per_gpu": int(fields["shards"])} if "shards" in fields else {}
                found = read_jobs(
                    text, *[form] * (form != "any"), strict="collect" not in fields, **shards
                )
        except JobListError as error:
            return [str(error)]
        assert meter_jobs(found.jobs).balances
        return printed(found)


def test_job_list(story: Story) -> None:
    story.play(Played().run)
