"""Jobs as scontrol and sacct print them."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st

from railscope.slurm import SlurmFormatError
from railscope.slurm.job_record import NodeAllocation, SlurmJob, seconds
from railscope.slurm.resources import Gres, ShardShare
from railscope.slurm.sacct import parse_sacct
from railscope.slurm.scontrol import parse_json, parse_text

EAST = timezone(timedelta(hours=2))
START, END = 1_767_225_600, 1_767_232_800  # 2026-01-01 00:00 and 02:00 UTC
GPUS = Gres("gpu", "h100", 4, (0, 1, 2, 3))
SHARDS = Gres("shard", "", 2, None, (ShardShare(2, 8), ShardShare(0, 8)))
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
JOB = SlurmJob(
    id=3385,
    user="anna",
    account="physics",
    state="RUNNING",
    start_seconds=START,
    end_seconds=None,
    nodes=("n01", "n02"),
    allocations=(
        NodeAllocation("n01", (GPUS,)),
        NodeAllocation("n02", (Gres("gpu", "h100", 1, (6,)), SHARDS)),
    ),
    gres_counts={"gpu": 5, "gpu:h100": 5},
)


def one(text: str) -> SlurmJob:
    (job,) = parse_text(text, EAST)
    return job


def test_a_job_that_runs():
    assert one(TEXT) == JOB


def test_a_planned_start_is_replaced_by_the_actual_one():
    ended = one(TEXT.replace("RUNNING", "COMPLETED"))
    assert (ended.start_seconds, ended.end_seconds) == (START, END)
    waits = one(TEXT.replace("RUNNING", "PENDING"))
    assert (waits.start_seconds, waits.end_seconds) == (None, None)
    unlimited = TEXT.replace("EndTime=2026-01-01T04:00:00", "EndTime=Unknown")
    assert one(unlimited) == one(TEXT)


def test_without_details_it_is_not_known_what_is_held_where():
    lines = [line for line in TEXT.split("\n") if "Nodes=" not in line]
    assert one("\n".join(lines)).allocations is None


def test_the_name_of_a_job_cannot_be_its_account():
    named = TEXT.replace("JobName=train", "JobName=x UserId=root(0) ArrayTaskId=9 Account=y")
    assert one(named) == JOB


def test_a_name_of_several_lines_is_not_accepted():
    forged = TEXT.replace("JobName=train", "JobName=x\n   UserId=root(0)")
    with pytest.raises(SlurmFormatError, match="duplicate field: UserId"):
        parse_text(forged, EAST)


def test_many_jobs_and_none():
    assert [job.id for job in parse_text(f"{TEXT}\n{TEXT.replace('3385', '3386')}", EAST)] == [
        3385,
        3386,
    ]
    assert parse_text("", EAST) == parse_text("No jobs in the system\n", EAST) == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("slurm_load_jobs error: Invalid job id specified\n", "expected the beginning of a job"),
        ("JobId=7 JobName=a\n   UserId=b(1)", "incomplete job '7': expected StartTime"),
        (TEXT.replace("3385", "x"), "invalid job ID 'x': expected 1 to 10 digits"),
        (TEXT.replace("2026-01-01T02", "2026-13-01T02"), "invalid time '2026-13-01T02:00:00'"),
        (TEXT.replace("(IDX:0-3)", "(IDX:3-0)"), "expected a list"),
    ],
)
def test_input_that_is_not_a_job(text, problem):
    with pytest.raises(SlurmFormatError, match=problem):
        parse_text(text, EAST)


def test_an_hour_that_comes_twice_is_the_first():
    assert seconds("2026-10-25T02:30:00", ZoneInfo("Europe/Berlin")) == 1_792_888_200


def in_new_json(**others: Any) -> dict[str, Any]:
    """A job as Slurm 24.05 and later write it."""

    def number(value: int) -> dict[str, Any]:
        return {"set": True, "infinite": False, "number": value}

    return {
        "job_id": 3385,
        "array_job_id": number(3380),
        "array_task_id": number(5),
        "user_name": "anna",
        "user_id": 1000,
        "account": "physics",
        "job_state": ["RUNNING"],
        "start_time": number(START),
        "end_time": number(END),
        "nodes": "n[01-02]",
        "job_resources": {"nodes": {"count": 2, "list": "n[01-02]", "whole": False}},
        "gres_detail": ["gpu:h100:4(IDX:0-3)", "gpu:h100:1(IDX:6),shard:2(2/8,0/8)"],
        "tres_alloc_str": "cpu=64,mem=512G,node=2,billing=64,gres/gpu=5,gres/gpu:h100=5",
        **others,
    }


def in_old_json() -> dict[str, Any]:
    """The same as Slurm 22.05 writes it."""
    return in_new_json(
        job_state="RUNNING",
        array_job_id=3380,
        array_task_id=5,
        start_time=START,
        end_time=END,
        job_resources={"nodes": "n[01-02]", "allocated_hosts": 2, "allocated_nodes": {}},
    )


def of_json(*jobs: dict[str, Any]) -> tuple[SlurmJob, ...]:
    return parse_json(json.dumps({"meta": {}, "jobs": jobs, "errors": []}))


def test_json_has_the_content_of_the_text():
    assert of_json(in_new_json(), in_old_json()) == (JOB, JOB)


def test_a_job_that_completes_still_holds_its_devices_and_has_its_end():
    (job,) = of_json(in_new_json(job_state=["FAILED", "COMPLETING"]))
    assert (job.state, job.end_seconds) == ("FAILED", END)


def test_a_job_that_waits():
    (job,) = of_json(
        in_new_json(
            job_state=["PENDING"],
            nodes="",
            job_resources=None,
            gres_detail=[],
            tres_alloc_str="",
            array_job_id={"set": True, "infinite": False, "number": 0},
            array_task_id={"set": False, "infinite": False, "number": 0},
            end_time={"set": True, "infinite": False, "number": 0},
        )
    )
    assert (job.nodes, job.allocations, job.start_seconds) == ((), None, None)


def test_devices_are_of_the_nodes_that_are_still_held():
    held = {"nodes": {"list": "n[05-06]"}}
    (job,) = of_json(in_new_json(job_resources=held))
    assert [allocation.node for allocation in job.allocations or ()] == ["n05", "n06"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "invalid JSON of Slurm"),
        ("[]", "invalid JSON of Slurm"),
        ("{}", "KeyError 'jobs'"),
        ('{"jobs": [{"job_id": 1}]}', "KeyError 'job_state'"),
        (json.dumps({"jobs": [in_new_json(job_id="1")]}), "'1': expected a number"),
        (json.dumps({"jobs": [in_new_json(job_id=None)]}), "missing job ID"),
        (json.dumps({"jobs": [in_new_json(job_state=[])]}), "IndexError"),
        (json.dumps({"jobs": [in_new_json(nodes=[])]}), r"\[\]: expected a string"),
        (
            json.dumps({"jobs": [in_new_json(gres_detail=["gpu:1"])]}),
            "1 lists: expected 2",
        ),
    ],
)
def test_json_that_is_not_of_slurm(text, problem):
    with pytest.raises(SlurmFormatError, match=problem):
        parse_json(text)


SACCT = """\
JobIDRaw|JobID|User|UID|Account|State|Start|End|NodeList|AllocTRES
3385|3380_5|anna|1000|physics|COMPLETED|2026-01-01T02:00:00|2026-01-01T04:00:00|n[01-02]|billing=64,cpu=64,gres/gpu:h100=5,gres/gpu=5,mem=512G,node=2
3385.batch|3380_5.batch|||physics|COMPLETED|2026-01-01T02:00:00|2026-01-01T04:00:00|n01|cpu=32
3386|3386|bob|1001|physics|CANCELLED by 1001|2026-01-01T02:00:00|2026-01-01T02:00:00|None assigned|
3387|3387|bob|1001|physics|RUNNING|1767225600|Unknown|n03|gres/gpu=1
3388|3388_[5-8%2]|bob|1001|physics|PENDING|Unknown|Unknown|None assigned|
"""


def test_accounting():
    first, cancelled, running, pending = (record.job for record in parse_sacct(SACCT, EAST))
    assert (first.id, first.user) == (3385, "anna")
    assert (first.start_seconds, first.end_seconds) == (START, END)
    assert (first.nodes, first.gres_counts) == (("n01", "n02"), {"gpu": 5, "gpu:h100": 5})
    assert first.allocations is None
    assert (cancelled.state, cancelled.nodes) == ("CANCELLED", ())
    assert (running.start_seconds, running.end_seconds) == (START, None)
    assert pending.start_seconds is None


def test_accounting_of_which_each_line_ends_in_a_separator():
    assert parse_sacct(SACCT.replace("\n", "|\n"), EAST) == parse_sacct(SACCT, EAST)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "1: JobID: missing in the header"),
        (SACCT.replace("JobIDRaw|JobID|", "", 1), "1: JobID: missing in the header"),
        (SACCT.replace("|UID", "", 1), "2: invalid line of 10 columns: expected 9"),
        (SACCT.replace("anna", "an|na"), "2: invalid line of 11 columns: expected 10"),
        (SACCT.replace("3386", "x"), "invalid job ID 'x': expected 1 to 10 digits"),
    ],
)
def test_input_that_is_not_accounting(text, problem):
    with pytest.raises(SlurmFormatError, match=problem):
        parse_sacct(text, UTC)


LINES = st.sampled_from([*TEXT.split("\n"), *SACCT.split("\n"), "JobId=1 JobName=a"]) | st.text()


@given(st.lists(LINES).map("\n".join))
def test_any_text_is_jobs_or_is_none(text):
    for parse in (parse_text, parse_sacct):
        with contextlib.suppress(SlurmFormatError):
            parse(text, UTC)
    with contextlib.suppress(SlurmFormatError):
        parse_json(text)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["set", "number", "nodes", "list"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(in_new_json())), ANYTHING))
def test_any_json_is_jobs_or_is_none(others):
    with contextlib.suppress(SlurmFormatError):
        of_json(in_new_json(**others))


@given(ANYTHING)
def test_any_other_json_is_none(anything):
    with contextlib.suppress(SlurmFormatError):
        parse_json(json.dumps({"jobs": anything}))
