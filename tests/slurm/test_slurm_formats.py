"""Output of Slurm: lists, resources, and jobs as scontrol and sacct print them, in text and in JSON.

    nodes TEXT, gres TEXT, tres TEXT   a list of nodes, resources of a job on a node, counts over all nodes
    text OLD => NEW                    jobs of a text of scontrol; several replacements are separated by ` && `
    json {KEY: VALUE}                  a job of scontrol in JSON, with other values
    sacct OLD => NEW                   jobs of an accounting; sacct_json {KEY: VALUE} the same in JSON
    capture NAME                       jobs of a text of scontrol of a real cluster

A job: its number, user, account, state, start and end in seconds from the start, nodes; resources by node; counts.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable
from datetime import UTC, timedelta, timezone
from typing import Any

from hypothesis import given, strategies as st
from support.shared import capture_path
from support.stories import Story

from railscope.slurm import SlurmFormatError
from railscope.slurm.job_record import SlurmJob
from railscope.slurm.node_lists import expand_nodes, expand_numbers
from railscope.slurm.resources import Gres, parse_gres, parse_tres
from railscope.slurm.sacct import parse_sacct, parse_sacct_json
from railscope.slurm.scontrol import parse_json, parse_text

EAST = timezone(timedelta(hours=2))
START, END = 1_767_225_600, 1_767_232_800  # 2026-01-01 00:00 and 02:00 UTC
TEXT = """\
JobId=3385 ArrayJobId=3380 ArrayTaskId=5 JobName=train
   UserId=anna(1000) GroupId=lab(1000) MCS_label=N/A
   Priority=100 Nice=0 Account=physics QOS=normal WCKey=*
   JobState=RUNNING Reason=None Dependency=(null)
   RunTime=00:10:00 TimeLimit=02:00:00 TimeMin=N/A
   StartTime=2026-01-01T02:00:00 EndTime=2026-01-01T04:00:00 Deadline=N/A
   NodeList=n[01-02]
   BatchHost=n01
   AllocTRES=cpu=64,mem=512G,node=2,billing=64,gres/gpu=5,gres/gpu:h100=5
   JOB_GRES=gpu:h100:5,shard:2
     Nodes=n01 CPU_IDs=0-31 Mem=0 GRES=gpu:h100:4(IDX:0-3)
     Nodes=n02 CPU_IDs=0-31 Mem=0 GRES=gpu:h100:1(IDX:6),shard:2(2/8,0/8)
   MinCPUsNode=1 MinMemoryNode=512G MinTmpDiskNode=0
   Command=/home/anna/train.sh --lr=1 Account=x
   Comment=Account=chemistry NodeList=n09
"""
SACCT = """\
JobIDRaw|JobID|User|UID|Account|State|Start|End|NodeList|AllocTRES
3385|3380_5|anna|1000|physics|COMPLETED|2026-01-01T02:00:00|2026-01-01T04:00:00|n[01-02]|billing=64,cpu=64,gres/gpu:h100=5,gres/gpu=5,mem=512G,node=2
3385.batch|3380_5.batch|||physics|COMPLETED|2026-01-01T02:00:00|2026-01-01T04:00:00|n01|cpu=32
3386|3386|bob|1001|physics|CANCELLED by 1001|2026-01-01T02:00:00|2026-01-01T02:00:00|None assigned|
3387|3387|bob|1001|physics|RUNNING|1767225600|Unknown|n03|gres/gpu=1
3388|3388_[5-8%2]|bob|1001|physics|PENDING|Unknown|Unknown|None assigned|
"""


def number(value: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": value}


JSON = {
    "job_id": 3385, "array_job_id": number(3380), "array_task_id": number(5), "user_name": "anna", "user_id": 1000,
    "account": "physics", "job_state": ["RUNNING"], "start_time": number(START), "end_time": number(END), "nodes": "n[01-02]",
    "job_resources": {"nodes": {"count": 2, "list": "n[01-02]", "whole": False}},
    "gres_detail": ["gpu:h100:4(IDX:0-3)", "gpu:h100:1(IDX:6),shard:2(2/8,0/8)"],
    "tres_alloc_str": "cpu=64,mem=512G,node=2,billing=64,gres/gpu=5,gres/gpu:h100=5",
}  # fmt: skip
"""As Slurm 24.05 and later write it."""
COUNTS = [{"type": "cpu", "name": "", "count": 64}] + [
    {"type": "gres", "name": name, "count": 5} for name in ("gpu", "gpu:h100")
]
SACCT_JSON = {
    "job_id": 3385, "array": {"job_id": 3380, "task_id": number(5)}, "user": "anna", "account": "physics",
    "state": {"current": ["COMPLETED"], "reason": "None"}, "nodes": "n[01-02]",
    "time": {"elapsed": 7200, "start": START, "end": END}, "tres": {"allocated": COUNTS, "requested": []},
}  # fmt: skip


def replaced(text: str, changes: str) -> str:
    for change in filter(None, changes.split(" && ")):
        old, _, new = change.partition(" =>")
        text = text.replace(old.replace("\\n", "\n"), new.removeprefix(" ").replace("\\n", "\n"))
    return text


def other(job: dict[str, Any], text: str) -> str:
    """Return the JSON of a job with other values, or another JSON."""
    return (
        json.dumps({"jobs": [{**job, **json.loads(text)}]})
        if text.startswith('{"') or text == "{}"
        else text
    )


def gres_words(held: Iterable[Gres]) -> str:
    found = []
    for each in held:
        name = ":".join(filter(None, (each.name, each.type, str(each.count))))
        places = "" if each.indices is None else f"({','.join(map(str, each.indices))})"
        shares = "".join(f" {share.allocated}/{share.total}" for share in each.shares or ())
        found.append(f"{name}{places}{shares}")
    return "; ".join(found)


def job_lines(jobs: Iterable[SlurmJob]) -> list[str]:
    lines = []
    for job in jobs:
        times = [
            "-" if each is None else each - START for each in (job.start_seconds, job.end_seconds)
        ]
        nodes = ",".join(job.nodes) or "-"
        lines.append(
            f"{job.id} {job.user} {job.account} {job.state} {times[0]} {times[1]} {nodes} {job.gres_counts}"
        )
        lines += [f"at {each.node}: {gres_words(each.gres)}" for each in job.allocations or ()]
    return lines


COMMANDS: dict[str, Callable[[str], list[str]]] = {
    "nodes": lambda text: [" ".join(expand_nodes(text)) or "-"],
    "gres": lambda text: [gres_words(parse_gres(text)) or "-"],
    "tres": lambda text: [str(parse_tres(text))],
    "text": lambda text: job_lines(parse_text(replaced(TEXT, text), EAST)),
    "json": lambda text: job_lines(parse_json(other(JSON, text))),
    "sacct": lambda text: job_lines(each.job for each in parse_sacct(replaced(SACCT, text), EAST)),
    "sacct_json": lambda text: job_lines(each.job for each in parse_sacct_json(other(SACCT_JSON, text))),
    "capture": lambda text: job_lines(parse_text(capture_path(f"jobs/slurm/{text}").read_text(), UTC)),
}  # fmt: skip


def run(line: str) -> list[str]:
    """Run a command; see the top of this module."""
    word, _, text = line.partition(" ")
    try:
        return COMMANDS[word](text)
    except SlurmFormatError as problem:
        return [f"! {problem}"]


def test_story(story: Story) -> None:
    story.play(run)


NAMES = st.from_regex("[a-z][a-z-]{0,5}", fullmatch=True)
VALUES = st.lists(st.integers(0, 2000), min_size=1, max_size=40)


@given(st.lists(st.tuples(NAMES, VALUES), min_size=1), st.integers(1, 6))
def test_nodes_and_indices_come_back(racks, width):
    ranges = {name: ",".join(f"{value:0{width}d}" for value in values) for name, values in racks}
    listed = ",".join(f"{name}[{ranged}]" for name, ranged in ranges.items())
    names = [f"{name}{value:0{width}d}" for name, values in dict(racks).items() for value in values]
    assert expand_nodes(listed) == tuple(names)
    name, values = racks[-1]
    assert expand_numbers(ranges[name]) == tuple(values)
    (held,) = parse_gres(f"gpu:{name}:{len(values)}(IDX:{ranges[name]})")
    assert (held.type, held.count, held.indices) == (name, len(values), tuple(values))


LINES = st.lists(st.sampled_from([*TEXT.split("\n"), *SACCT.split("\n"), "JobId=1 JobName=a"]) | st.text()).map("\n".join)  # fmt: skip
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["set", "number", "nodes", "list", "start", "current", "allocated"]), inner)
    ),
    max_leaves=6,
)  # fmt: skip


@given(LINES | st.text("gpu:,()IDXCNTS0-9/=K.[]n\n"))
def test_any_text_is_read_or_rejected(text):
    for command in ("nodes", "gres", "tres"):
        run(f"{command} {text}")
    for parse in (
        lambda: parse_text(text, UTC),
        lambda: list(parse_sacct(text, UTC)),
        lambda: parse_json(text),
    ):
        with contextlib.suppress(SlurmFormatError):
            parse()


@given(st.dictionaries(st.sampled_from(sorted({*JSON, *SACCT_JSON})), ANYTHING))
def test_any_json_is_read_or_rejected(others):
    for parse, job in ((parse_json, JSON), (parse_sacct_json, SACCT_JSON)):
        with contextlib.suppress(SlurmFormatError):
            list(parse(json.dumps({"jobs": [{**job, **others}]})))
