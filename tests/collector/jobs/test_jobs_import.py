"""`railscope bill import-jobs` with a period and a ledger: report and ledger agree."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.job_lists import GPU_1, GPU_2, HOUR, S, tenant_hours
from support.shared import capture_path

from railscope.claim_terms import GPU_CAPACITY
from railscope.cli import root as railscope
from railscope.timestamps import DAY_NS, FOREVER_NS, format_timestamp
from railscope_collector.jobs import imported_lists
from railscope_collector.jobs.job_list_reader import read_jobs
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.metering.units import Period, Tiling, period_name
from railscope_collector.tables import metadata


def clustercockpit(
    number: int, start: int, node: str, gpu: str, **more: object
) -> dict[str, object]:
    """A job in the JSON of ClusterCockpit; `start` in hours after the start of October."""
    return {
        "jobId": number,
        "cluster": "alex",
        "subCluster": "main",
        "project": "p",
        "user": "u",
        "startTime": 1_790_812_800 + start * 3600,
        "duration": 3600,
        "jobState": "completed",
        "numAcc": 1,
        "shared": "none",
        "resources": [{"hostname": node, "hwthreads": [0], "accelerators": [gpu]}],
    } | more


class ImportDirectory:
    """A directory with a job list and a ledger."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"sqlite:///{directory / 'ledger.sqlite'}"

    def run(self, text: str, *arguments: str) -> Result:
        file = self.directory / "jobs"
        file.write_text(text)
        return CliRunner().invoke(
            railscope, ["bill", "import-jobs", str(file), "--ledger", self.url, *arguments]
        )

    def held(self) -> dict[str, int]:
        ledger = Ledger.open(self.url, metadata)
        found = tenant_hours(ledger)
        ledger.close()
        return found


@pytest.fixture
def place(tmp_path: Path) -> ImportDirectory:
    return ImportDirectory(tmp_path)


OCTOBER = ("--period", "2026-10", "--as-of", "2026-11-01T00:00:00Z")


@pytest.mark.parametrize("form", ["lines", "array", "documents", "api"])
def test_clustercockpit_json_is_read_in_all_its_forms(place, form):
    jobs_ = [clustercockpit(1, 0, "n1", GPU_1), clustercockpit(2, 5, "n1", GPU_1)]
    text = {
        "lines": "\n".join(map(json.dumps, jobs_)),
        "array": json.dumps(jobs_, indent=1),
        "documents": "\n".join(json.dumps(one, indent=2) for one in jobs_),
        "api": json.dumps({"items": 50, "page": 1, "jobs": jobs_}),
    }[form]
    found = place.run(text, *OCTOBER)
    assert found.exit_code == 0, found.output
    assert place.held() == {"p": 2}
    (one,) = imported_lists.newest_lists(Ledger.open(place.url, metadata).database)
    assert one.source == "slurm:alex"


def test_a_bad_line_is_named_and_the_rest_is_imported(place):
    lines = [
        json.dumps(clustercockpit(1, 0, "n1", GPU_1)),
        json.dumps(clustercockpit(2, 5, "n1", GPU_1, startTime="soon")),
        '{"jobId": 3, "startTime"',
        json.dumps(clustercockpit(4, 9, "n1", GPU_1)),
    ]
    text = "\n".join(lines)
    strict = place.run(text, *OCTOBER, "--strict")
    assert strict.exit_code == 1
    assert 'line 2: startTime: "soon": expected a whole number' in strict.output
    assert not Path(place.url.removeprefix("sqlite:///")).exists()
    found = place.run(text, *OCTOBER)
    assert found.exit_code == 0, found.output
    assert "NOT COMPLETE, not imported: 2 lines" in found.output
    assert '  line 2: startTime: "soon": expected a whole number of at least 0' in found.output
    assert "  line 3: invalid JSON" in found.output
    assert place.held() == {"p": 2}
    (one,) = imported_lists.newest_lists(Ledger.open(place.url, metadata).database)
    assert one.rejected_count == 2


def test_a_job_in_a_final_state_has_an_end(place):
    final = clustercockpit(1, 0, "n1", GPU_1)
    del final["duration"]
    text = "\n".join(map(json.dumps, [final, clustercockpit(2, 5, "n1", GPU_1)]))
    found = place.run(text, *OCTOBER)
    assert "line 1: duration: missing field" in found.output
    assert place.held() == {"p": 1}
    header = "JobIDRaw|User|Account|State|Start|End|NodeList|AllocTRES"
    rows = [
        "1|u|a|COMPLETED|1790812800|Unknown|n1|gres/gpu=1",
        "2|u|a|RUNNING|1790812800|Unknown|n1|gres/gpu=1",
    ]
    counted_ = place.run(
        "\n".join([header, *rows]), *OCTOBER, "--placeholder-gpus", "--source", "x"
    )
    assert "line 2: End: unknown: expected a time, as State is COMPLETED" in counted_.output
    assert place.held() == {"p": 1, "a": 31 * 24}


@pytest.mark.parametrize(
    ("as_of", "hours_"), [("2026-10-01T10:00:00Z", 10), ("2026-12-24", 31 * 24)]
)
def test_unfinished_jobs_last_as_long_in_the_report_as_in_the_ledger(place, as_of, hours_):
    running = clustercockpit(1, 0, "n1", GPU_1, jobState="running", duration=17)
    text = json.dumps(running)
    found = place.run(text, "--period", "2026-10", "--as-of", as_of, "--json")
    document = json.loads(found.stdout)
    assert document["running"] == ["1"]
    assert document["tenants"][0]["gpu_hours"] == f"{hours_}:00:00"
    assert int(document["capacity_ns"]) == 31 * DAY_NS
    assert place.held() == {"p": hours_}


def days_of(place: ImportDirectory) -> tuple[int, int]:
    """First and last day with entries in a ledger."""
    ledger = Ledger.open(place.url, metadata)
    found = [day for _, day in contents_until(ledger, 1 << 20)]
    ledger.close()
    return min(found), max(found)


def contents_until(ledger: Ledger, day: int) -> list[tuple[str, int]]:
    newest = ledger.newest(0, day)
    return [
        (one.tiling.gpu, one.tiling.day) for one in ledger.revisions(newest) if one.tiling.entries
    ]


def month_of(day: int) -> tuple[Period, str]:
    """The days from ten before a day to ten after it, as a period and its name."""
    span = Period((day - 10) * DAY_NS, (day + 10) * DAY_NS)
    return span, period_name(span)


def test_no_line_of_a_list_lies_in_the_future(place):
    today = time.time_ns() // DAY_NS
    span, period = month_of(today)
    now = today * DAY_NS // S
    jobs_ = [
        clustercockpit(1, 0, "n1", GPU_1, startTime=now - 86_400),
        clustercockpit(2, 0, "n1", GPU_2, startTime=now + 5 * 86_400),
        clustercockpit(3, 0, "n1", GPU_2, startTime=now - 86_400, duration=5 * 86_400),
        clustercockpit(4, 0, "n2", GPU_2, startTime=now - 86_400, jobState="running"),
    ]
    text = "\n".join(map(json.dumps, jobs_))
    as_of = format_timestamp(span.end_ns)
    found = place.run(text, "--period", period, "--as-of", as_of)
    assert found.exit_code == 0, found.output
    assert "NOT COMPLETE, not imported: 2 lines" in found.output
    assert "  line 2: startTime: " in found.output
    assert "  line 3: duration: end: " in found.output
    assert "expected a time not after now, " in found.output
    last_day = days_of(place)[1]
    assert today <= last_day <= time.time_ns() // DAY_NS
    held_ = place.held()["p"]
    assert 1 + 24 <= held_ <= 1 + 24 + (time.time_ns() - today * DAY_NS) // HOUR + 1


SACCT = "JobIDRaw|User|Account|State|Start|End|NodeList|AllocTRES\n"
RAN = "COMPLETED|1790812800|1790816400"


def sacct_json(count: int) -> str:
    one = {
        "job_id": 1, "account": "a", "user": "u", "nodes": "n1",
        "time": {"start": 1_790_812_800, "end": 1_790_816_400}, "state": {"current": ["COMPLETED"]},
        "tres": {"allocated": [{"type": "gres", "name": "gpu", "count": count}]},
    }  # fmt: skip
    return json.dumps({"jobs": [one]})


def pod(count: int) -> str:
    state = {"terminated": {"finishedAt": "2026-10-01T01:00:00Z"}}
    return json.dumps(
        {
            "kind": "Pod",
            "metadata": {"name": "a", "namespace": "x", "uid": "1"},
            "spec": {
                "nodeName": "n1",
                "containers": [
                    {"name": "c", "resources": {"limits": {"nvidia.com/gpu": str(count)}}}
                ],
            },
            "status": {
                "phase": "Succeeded",
                "startTime": "2026-10-01T00:00:00Z",
                "containerStatuses": [{"name": "c", "state": state}],
            },
        }
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{SACCT}1|u|a|{RAN}|n1|gres/gpu=1025", "line 2: AllocTRES: 1025 GPUs on 1 node: "),
        (f"{SACCT}1|u|a|{RAN}|n[1-2]|gres/gpu=2049", "line 2: AllocTRES: 2049 GPUs on 2 nodes: "),
        (f"{SACCT}1|u|a|{RAN}|n[1-999]|gres/gpu=65537", "nodes: expected at most 65536"),
        (f"{SACCT}1|u|a|{RAN}|n1|gres/shard=10000", "AllocTRES: 2500 GPUs"),
        (f"{SACCT}1|u|a|{RAN}||gres/gpu={10**15}", "on 1 node: expected at most 1024"),
        (sacct_json(1025), "job 1: AllocTRES: 1025 GPUs on 1 node: "),
        (pod(1025), "pod 1 'x/a': spec.containers: 1025 GPUs on 1 node: "),
        (json.dumps(clustercockpit(1, 0, "n1", GPU_1, numAcc=1025)), "line 1: numAcc: 1025 GPUs"),
        ("name,num_gpu,gpu_milli,pod_phase,deletion_time,scheduled_time\na,1025,1000,Succeeded,9,1\n",
         "line 2: num_gpu: '1025': expected a whole number below 1025"),
    ],
)  # fmt: skip
def test_a_job_has_no_more_gpus_than_its_nodes_can_have(place, text, message):
    found = place.run(text, *OCTOBER, "--placeholder-gpus", "--shards-per-gpu", "4")
    assert found.exit_code == 1
    assert message in found.output


def test_as_many_gpus_as_nodes_can_have_are_read():
    (found,) = read_jobs(f"{SACCT}1|u|a|{RAN}|n[1-64]|gres/gpu=65536").jobs
    assert [one.gpus for one in found.unplaced] == [65_536]


def test_the_report_of_a_period_is_what_the_ledger_has_of_it(place):
    over = clustercockpit(1, -5, "n1", GPU_1, duration=8 * 3600)
    found = place.run(json.dumps(over), *OCTOBER, "--json")
    assert json.loads(found.stdout)["tenants"][0]["gpu_hours"] == "3:00:00"
    assert place.held() == {"p": 3}


def test_of_two_jobs_from_before_a_period_the_later_one_holds_in_the_report_too(place):
    """Not the one with the larger number: both would begin with the period."""
    jobs_ = [
        clustercockpit(9, -48, "n1", GPU_1, duration=100 * 3600, project="earlier"),
        clustercockpit(1, -24, "n1", GPU_1, duration=34 * 3600, project="later"),
    ]
    found = place.run("\n".join(map(json.dumps, jobs_)), *OCTOBER, "--json")
    document = json.loads(found.stdout)
    hours_ = {each["tenant"]: each["gpu_hours"] for each in document["tenants"]}
    assert hours_ == {"earlier": "42:00:00", "later": "10:00:00"}
    assert place.held() == {"earlier": 42, "later": 10}


def renamed_account(place: ImportDirectory, change: str) -> tuple[str, str]:
    """Options for a file of tenants in which an account changes its tenant at a time in October."""
    rows = f"old,slurm,p,2026-01-01T00:00:00Z,{change}\nnew,slurm,p,{change},\n"
    file = place.directory / "tenants.csv"
    file.write_text(f"tenant,source,owner,from,to\n{rows}")
    return "--tenants", str(file)


def test_another_tenant_of_an_account_moves_no_time_between_jobs(place):
    """The later job holds the GPU while it lasts, although the account of the earlier one changes its tenant."""
    jobs_ = [
        clustercockpit(1, 0, "n1", GPU_1, duration=10 * 3600),
        clustercockpit(2, 2, "n1", GPU_1, duration=6 * 3600, project="q"),
    ]
    tenants = renamed_account(place, "2026-10-01T05:00:00Z")
    found = place.run("\n".join(map(json.dumps, jobs_)), *OCTOBER, *tenants, "--json")
    document = json.loads(found.stdout)
    hours_ = {each["tenant"]: each["gpu_hours"] for each in document["tenants"]}
    assert hours_ == {"old": "2:00:00", "q": "6:00:00", "new": "2:00:00"}
    assert place.held() == {"old": 2, "q": 6, "new": 2}


@pytest.mark.parametrize(
    ("change", "hours_"),
    [
        ("2026-10-01T04:00:00Z", {"old": 4, "new": 6}),
        ("2026-10-01T10:00:00Z", {"old": 10}),
        ("2026-10-20T00:00:00Z", {"old": 10}),
    ],
)
def test_another_tenant_of_an_account_makes_no_running_job_longer(place, change, hours_):
    running = clustercockpit(1, 0, "n1", GPU_1, jobState="running")
    as_of = ("--period", "2026-10", "--as-of", "2026-10-01T10:00:00Z")
    found = place.run(json.dumps(running), *as_of, *renamed_account(place, change), "--json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["running"] == ["1"]
    assert place.held() == hours_


def test_an_unchanged_list_is_stored_once_per_day(place):
    """Its days are covered after their ends, so that a later time of the same day states nothing new."""
    text = json.dumps(clustercockpit(1, 0, "n1", GPU_1, startTime=1_704_067_200))
    numbers = []
    for as_of in ("01T10:00:00Z", "01T11:00:00Z", "01T09:00:00Z", "02T00:00:00Z", "02T23:59:59Z"):
        found = place.run(text, "--period", "2024-01", "--as-of", f"2024-01-{as_of}")
        assert found.exit_code == 0, found.output
        (newest,) = imported_lists.newest_lists(Ledger.open(place.url, metadata).database)
        numbers.append(newest.number)
    assert numbers == [1, 1, 1, 2, 2]


def test_models_of_a_cluster_are_read_from_an_inventory(place):
    inventory = place.directory / "models.csv"
    inventory.write_text(f"node,gpu,model\nn1,,a40\nn1,{GPU_2},a100\n")
    jobs_ = [
        clustercockpit(1, 0, "n1", GPU_1),
        clustercockpit(2, 0, "n1", GPU_2),
        clustercockpit(3, 0, "n2", GPU_1),
    ]
    arguments = ("--inventory", str(inventory), "--sku", "h100")
    assert place.run(json.dumps(jobs_), *OCTOBER, *arguments).exit_code == 0
    ledger = Ledger.open(place.url, metadata)
    found = {one.tiling.gpu: one.tiling.sku for one in ledger.revisions(ledger.newest(0, 30_000))}
    assert found == {f"n1/{GPU_1}": "a40", f"n1/{GPU_2}": "a100", f"n2/{GPU_1}": "h100"}
    inventory.write_text("node,gpu,model\nn1,,a40\nn1,,a100\n")
    refused = place.run(json.dumps(jobs_), *OCTOBER, *arguments)
    assert refused.exit_code == 1
    assert "line 3: 'a100' of n1: expected 'a40'" in refused.output


def test_slurm_names_models_of_gpus_it_counts(place):
    header = "JobIDRaw|User|Account|State|Start|End|NodeList|AllocTRES"
    row = "1|u|a|COMPLETED|1790812800|1790816400|n1|gres/gpu=3,gres/gpu:a40=1,gres/gpu:a100=2"
    assert place.run(f"{header}\n{row}\n", *OCTOBER, "--placeholder-gpus").exit_code == 0
    ledger = Ledger.open(place.url, metadata)
    found = Counter(one.tiling.sku for one in ledger.revisions(ledger.newest(0, 30_000)))
    assert found == {"a40": 31, "a100": 62}


def test_a_list_of_another_cluster_replaces_none_unasked(place):
    lists = {
        name: json.dumps([clustercockpit(job, job, "n1", GPU_1, cluster=name, project=name)])
        for name, job in (("alpha", 1), ("beta", 2))
    }
    source = (*OCTOBER, "--source", "slurm")
    assert place.run(lists["alpha"], *source).exit_code == 0
    refused = place.run(lists["beta"], *source)
    assert refused.exit_code == 1
    assert (
        "has none of the jobs of the list of slurm 2026-10 that it would replace" in refused.output
    )
    assert place.run(lists["beta"], *OCTOBER).exit_code == 0, "its source is slurm:beta"
    assert place.held() == {"alpha": 1, "beta": 1}
    # Without its only job no list has a job in common with it; a list that has it is a later one.
    later = [clustercockpit(job, job, "n1", GPU_1, project="alpha") for job in (1, 3)]
    assert place.run(json.dumps(later), *source).exit_code == 0
    assert place.run(lists["beta"], *source, "--replace").exit_code == 0


def test_a_later_list_has_the_same_jobs_for_other_tenants(place):
    text = json.dumps(clustercockpit(1, 0, "n1", GPU_1))
    assert place.run(text, *OCTOBER).exit_code == 0
    for change in ("2026-10-01T00:10:00Z", "2026-10-01T00:20:00Z"):
        again = place.run(text, *OCTOBER, *renamed_account(place, change))
        assert again.exit_code == 0, again.output


@pytest.mark.parametrize("order", [(0, 1), (1, 0, 1)])
def test_a_real_cluster_in_two_periods_equals_its_list(place, order):
    text = capture_path("jobs/clustercockpit-alex-60pct.jsonl").read_text()
    halves = ("2023-02-01..2023-02-14", "2023-02-15..2023-02-28")
    for number in order:
        arguments = ("--period", halves[number], "--as-of", "2024-01-01", "--placeholder-gpus")
        assert place.run(text, *arguments).exit_code == 0
    ledger = Ledger.open(place.url, metadata)
    totals = ledger.totals(0, FOREVER_NS).items()
    found = {
        of.tenant: quantity // GPU_CAPACITY
        for of, quantity in totals
        if of.tiling is Tiling.COMPUTE and of.tenant
    }
    ledger.close()
    whole = place.run(
        text,
        "--period",
        "2023-02",
        "--as-of",
        "2024-01-01",
        "--source",
        "x",
        "--placeholder-gpus",
        "--json",
    )
    reported = {
        read["tenant"]: int(read["held_ns"]) for read in json.loads(whole.stdout)["tenants"]
    }
    assert found == {tenant: held_ns for tenant, held_ns in reported.items() if held_ns}
