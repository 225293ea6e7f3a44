"""GPUs in sacct: their number and time, and never their names."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st
from support.shared import capture_path

from railscope.slurm.sacct import COLUMNS
from railscope_collector.jobs.bad_lines import JobListError
from railscope_collector.jobs.job_list import JobList, ListedJob, UnnamedGpus
from railscope_collector.jobs.job_list_reader import SACCT_UNNAMED, read_sacct
from railscope_collector.jobs.job_metering import meter_jobs

S = 1_000_000_000
BERLIN = ZoneInfo("Europe/Berlin")
HEADER = "|".join((*COLUMNS, "State"))
ROW = {
    "JobIDRaw": "7", "User": "u", "Account": "a", "Start": "100", "End": "120",
    "NodeList": "n1", "AllocTRES": "billing=34,cpu=1,gres/gpu=2,node=1", "State": "COMPLETED",
}  # fmt: skip


def row(**fields: str) -> str:
    return "|".join((ROW | fields).values())


def read(*rows: str, zone: ZoneInfo | None = None) -> JobList:
    return read_sacct("\n".join([HEADER, *rows, ""]), zone)


def test_a_job_has_gpus_that_cannot_be_placed():
    jobs = read(row())
    assert jobs == JobList(
        (
            ListedJob(
                100 * S, "7", "a", "u", 120 * S, unplaced=(UnnamedGpus("n1", 2, SACCT_UNNAMED),)
            ),
        )
    )
    metered = meter_jobs(jobs.jobs)
    assert (metered.gpus, metered.capacity_ns, metered.tenants) == (0, 0, {})
    assert metered.unplaced_ns == {"a": 40 * S}


def test_json_has_the_same_jobs():
    job = {
        "job_id": 7, "user": "u", "account": "a", "nodes": "n1", "state": {"current": ["COMPLETED"]},
        "time": {"start": 100, "end": 120},
        "tres": {"allocated": [{"type": "gres", "name": "gpu", "count": 2}]},
    }  # fmt: skip
    assert read_sacct(json.dumps({"jobs": [job]})) == read(row())
    with pytest.raises(JobListError, match=r"^job 1: End: 99: expected at least Start, 100$"):
        read_sacct(json.dumps({"jobs": [job | {"time": {"start": 100, "end": 99}}]}))
    clusters = [job | {"cluster": name} for name in ("alpha", "beta")]
    assert read_sacct(json.dumps({"jobs": clusters[:1]})) == read(row())
    with pytest.raises(JobListError, match=r"^job 2: cluster: 'beta': expected 'alpha'"):
        read_sacct(json.dumps({"jobs": clusters}))


def test_a_text_of_several_clusters_is_rejected():
    lines = [f"{HEADER}|Cluster", *(f"{row()}|{name}" for name in ("alpha", "beta"))]
    assert read_sacct("\n".join(lines[:2])) == read(row())
    with pytest.raises(JobListError, match=r"^line 3: cluster: 'beta': expected 'alpha'"):
        read_sacct("\n".join(lines))


def test_each_run_of_a_requeued_job_has_gpu_time():
    jobs = read(
        row(State="NODE_FAIL"),
        row(State="REQUEUED", Start="130", End="150"),
        row(State="PENDING", Start="Unknown", End="Unknown", NodeList="None assigned"),
    )
    assert [(job.start_ns, job.end_ns) for job in jobs.jobs] == [
        (100 * S, 120 * S),
        (130 * S, 150 * S),
    ]
    assert jobs.never_started == 1


def test_steps_and_jobs_without_gpus_have_no_gpu_time():
    jobs = read(
        row(),
        row(JobIDRaw="7.batch", Account=""),
        row(JobIDRaw="7.0"),
        row(JobIDRaw="8", AllocTRES="cpu=4,mem=10G,node=1"),
        row(JobIDRaw="9", Start="Unknown", End="Unknown", AllocTRES="", NodeList="None assigned"),
        row(JobIDRaw="10", Start="None", AllocTRES="", State="CANCELLED by 1000"),
        row(JobIDRaw="11", End="Unknown", State="RUNNING"),
    )
    assert [job.id for job in jobs.jobs] == ["7"]
    assert (jobs.without_gpus, jobs.never_started, jobs.running) == (1, 2, ("11",))


@pytest.mark.parametrize("text", ["", "Unknown", "None", "NONE", "N/A", "(null)"])
def test_an_unknown_time_of_slurm_is_not_a_time(text):
    assert read(row(Start=text)).never_started == 1
    assert read(row(End=text, State="RUNNING")).running == ("7",)


@pytest.mark.parametrize(
    ("tres", "parts"),
    [
        ("gres/gpu=8,gres/gpu:a100=8", [(8, SACCT_UNNAMED)]),
        ("gres/gpu:a100=3,gres/gpu:h100=1", [(3, SACCT_UNNAMED), (1, SACCT_UNNAMED)]),
        (
            "gres/gpu=3,gres/gpu:a100=1,gres/gpu:a100_1g.10gb=2",
            [
                (1, SACCT_UNNAMED),
                (0, "gres/gpu:a100_1g.10gb=2 is a part of a GPU, of unknown size"),
            ],
        ),
        ("gres/shard=4", [(0, "gres/shard=4 is a part of a GPU, of unknown size")]),
        ("gres/gpu=0,gres/shard=0", []),
        ("gres/gpumem=40G,gres/gpuutil=7,license/x=1", []),
    ],
)
def test_gpus_are_counted_and_parts_of_gpus_only_reported(tres, parts):
    jobs = read(row(AllocTRES=tres))
    found = [(part.gpus, part.reason) for job in jobs.jobs for part in job.unplaced]
    assert found == parts
    assert jobs.without_gpus == (not parts)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2024-09-25T01:54:11", datetime(2024, 9, 24, 23, 54, 11, tzinfo=UTC)),
        ("2024-12-25T01:54:11", datetime(2024, 12, 25, 0, 54, 11, tzinfo=UTC)),
        ("2024-09-25T01:54:11Z", datetime(2024, 9, 25, 1, 54, 11, tzinfo=UTC)),
        ("2024-09-25T01:54:11+0530", datetime(2024, 9, 24, 20, 24, 11, tzinfo=UTC)),
        ("1727222051", datetime(2024, 9, 24, 23, 54, 11, tzinfo=UTC)),
    ],
)
def test_times_are_instants(text, instant):
    (job,) = read(row(Start=text, End="4000000000"), zone=BERLIN).jobs
    assert job.start_ns == int(instant.timestamp()) * S


WRONG = [
    ({"JobIDRaw": "x"}, "JobIDRaw: invalid job ID 'x': expected 1 to 10 digits"),
    ({"JobIDRaw": "7_3"}, "JobIDRaw: invalid job ID '7_3': expected 1 to 10 digits"),
    ({"Account": ""}, "Account: expected a value"),
    ({"User": "\x1b[1m"}, "User: '\\x1b[1m': expected printable characters"),
    ({"Start": "yesterday"}, "Start: invalid time 'yesterday': expected Slurm's format"),
    ({"End": "99999999999"}, "End: 99999999999: expected a time from 1970 to 2105"),
    ({"Start": "1969-12-31T00:00:00Z"}, "expected a time from 1970 to 2105"),
    ({"End": "99"}, "End: 99: expected at least Start, 100"),
    ({"Start": "2024-10-27T02:30:00"}, "ambiguous or nonexistent time 2024-10-27T02:30:00: expected a time with an offset"),
    ({"Start": "2024-03-31T02:30:00"}, "ambiguous or nonexistent time 2024-03-31T02:30:00: expected a time with an offset"),
    ({"AllocTRES": "gres/gpu"}, "AllocTRES: invalid generic resource 'gres/gpu': expected Slurm's notation"),
    ({"AllocTRES": "gres/gpu=two"}, "AllocTRES: invalid generic resource 'two': expected Slurm's notation"),
    ({"AllocTRES": "gres/gpu=-2"}, "AllocTRES: invalid generic resource '-2': expected Slurm's notation"),
    ({"AllocTRES": "gres/gpu=1,gres/gpu=1"}, "AllocTRES: duplicate gres/gpu: expected it once"),
    ({"AllocTRES": "gres/gpu=1,gres/gpu:1g.5gb=2"}, "more MIG instances than gres/gpu=1"),
    ({"User": "a|b"}, "invalid line of 9 columns: expected 8"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "reason"), WRONG)
def test_a_wrong_field_is_named_with_its_line(fields, reason):
    with pytest.raises(JobListError) as caught:
        read(row(JobIDRaw="1"), row(**fields), zone=BERLIN)
    assert str(caught.value).startswith("line 3: ")
    assert str(caught.value).endswith(reason)


def test_a_time_without_a_zone_is_not_guessed():
    with pytest.raises(
        JobListError,
        match=r"^line 2: Start: .*: expected a time zone; fix: .* --timezone Europe/Berlin$",
    ):
        read(row(Start="2024-09-25T01:54:11"))


@pytest.mark.parametrize("field", COLUMNS)
def test_a_header_without_a_field_is_rejected(field):
    with pytest.raises(
        JobListError,
        match=rf"^line 1: {field.removesuffix('Raw')}: missing in the header: expected the columns JobIDRaw,",
    ):
        read_sacct(HEADER.replace(field, "Comment"))


def test_output_of_another_command_is_not_a_list():
    lines = capture_path("jobs/slurm/sample-squeue-output.txt").read_text()
    with pytest.raises(
        JobListError, match=r"^line 1: JobID: missing in the header: expected the columns JobIDRaw,"
    ):
        read_sacct(lines)


def test_the_resources_that_slurm_printed_are_counted():
    """The AllocTRES and NodeList of real jobs, as scontrol prints them."""
    rows, expected = [], []
    for name in ("all_gpus", "multi_node"):
        text = capture_path(f"jobs/slurm/scontrol_out_{name}.txt").read_text()
        reported = dict(part.split("=", 1) for part in text.split() if "=" in part)
        times = {
            "Start": reported["StartTime"],
            "End": reported["EndTime"],
            "User": reported["UserId"],
        }
        names = {"JobIDRaw": reported["JobId"], "Account": reported["Account"]}
        tres = {key: reported[key] for key in ("AllocTRES", "NodeList")}
        rows.append(row(**names, **times, **tres))
        expected.append((reported["NodeList"], int(reported["AllocTRES"].rpartition("=")[2])))
    jobs = read(*rows, zone=ZoneInfo("UTC")).jobs
    assert [(part.node, part.gpus) for job in jobs for part in job.unplaced] == expected
    assert meter_jobs(jobs).unplaced_ns == {"test_account": (8 * 12 + 64 * 7 * 24) * 3600 * S}


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**31 - 1),
            st.integers(0, 2**31 - 1),
            st.integers(0, 9),
            st.sampled_from("abc"),
        )
    )
)
def test_gpu_time_that_is_not_placed_is_count_times_duration(jobs):
    expected: Counter[str] = Counter()
    rows = []
    for number, (start, seconds, gpus, account) in enumerate(jobs):
        rows.append(
            row(
                JobIDRaw=str(number),
                Account=account,
                Start=str(start),
                End=str(start + seconds),
                AllocTRES=f"cpu=1,gres/gpu={gpus}",
            )
        )
        if gpus:
            expected[account] += gpus * seconds * S
    found = read(*rows)
    assert meter_jobs(found.jobs).unplaced_ns == expected
    assert len(found.jobs) + found.without_gpus == len(jobs)
