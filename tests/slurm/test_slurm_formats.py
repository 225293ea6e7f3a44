"""Output of Slurm: lists, resources, and jobs as sacct prints them, in text and in JSON.

    nodes TEXT, tres TEXT   a list of nodes, counts over all nodes
    sacct OLD => NEW        jobs of an accounting, with replacements separated by ` && `
    sacct_json {KEY: VALUE} the same in JSON, with other values

A job: its number, user, account, state, start and end in seconds from the start, nodes; counts.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable
from datetime import UTC, timedelta, timezone
from typing import Any

from hypothesis import given, strategies as st
from support.stories import Story

from railscope.slurm import SlurmFormatError
from railscope.slurm.job_record import SlurmJob
from railscope.slurm.node_lists import expand_nodes
from railscope.slurm.resources import parse_tres
from railscope.slurm.sacct import parse_sacct, parse_sacct_json

EAST = timezone(timedelta(hours=2))
START, END = 1_767_225_600, 1_767_232_800  # 2026-01-01 00:00 and 02:00 UTC
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
    return lines


COMMANDS: dict[str, Callable[[str], list[str]]] = {
    "nodes": lambda text: [" ".join(expand_nodes(text)) or "-"],
    "tres": lambda text: [str(parse_tres(text))],
    "sacct": lambda text: job_lines(each.job for each in parse_sacct(replaced(SACCT, text), EAST)),
    "sacct_json": lambda text: job_lines(each.job for each in parse_sacct_json(other(SACCT_JSON, text))),
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
def test_nodes_come_back(racks, width):
    ranges = {name: ",".join(f"{value:0{width}d}" for value in values) for name, values in racks}
    listed = ",".join(f"{name}[{ranged}]" for name, ranged in ranges.items())
    names = [f"{name}{value:0{width}d}" for name, values in dict(racks).items() for value in values]
    assert expand_nodes(listed) == tuple(names)


LINES = st.lists(st.sampled_from(SACCT.split("\n")) | st.text()).map("\n".join)  # fmt: skip
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
    for command in ("nodes", "tres"):
        run(f"{command} {text}")
    with contextlib.suppress(SlurmFormatError):
        list(parse_sacct(text, UTC))


@given(st.dictionaries(st.sampled_from(sorted(SACCT_JSON)), ANYTHING))
def test_any_json_is_read_or_rejected(others):
    with contextlib.suppress(SlurmFormatError):
        list(parse_sacct_json(json.dumps({"jobs": [{**SACCT_JSON, **others}]})))
