"""`railscope bill import-jobs` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.shared import capture_path

from railscope.cli import root as railscope

GPU = "00000000:01:00.0"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(railscope, ["bill", "import-jobs", *map(str, arguments)])


def job(number: int, start: int, seconds: int, project: str, *named: str) -> str:
    return json.dumps(
        {
            "job_id": number,
            "start_time": start,
            "duration": seconds,
            "project": project,
            "hpc_user": "u",
            "resources": [{"hostname": "n1", "accelerators": named}],
        }
    )


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    found = tmp_path / "jobs.jsonl"
    found.write_text(
        "\n".join(
            (
                job(1, 0, 7200, "first", GPU),
                job(2, 3600, 60, "second", GPU),
                job(3, 0, 9, "third", ""),
                job(4, 0, 9, "third"),
            )
        )
    )
    return found


def test_a_person_reads_tenants_and_what_is_not_placed(jobs):
    outcome = run(jobs)
    assert outcome.exit_code == 0
    assert outcome.stdout.splitlines() == [
        "TENANT           GPU-HOURS  GPU-NANOSECONDS",
        "first              1:59:00    7140000000000",
        "second             0:01:00      60000000000",
        "held by tenants    2:00:00    7200000000000",
        "free               0:00:00                0",
        "capacity x time    2:00:00    7200000000000",
        "3 jobs on 1 GPU; held and free add up to capacity x time",
        "not placed on a GPU: 1",
        '  job 3 of third on n1: 1 GPU, 0:00:09: "": expected a PCI address',
        "TENANT, NOT PLACED  GPU-HOURS  GPU-NANOSECONDS",
        "third                 0:00:09       9000000000",
        "jobs without GPUs: 1; that never started: 0",
        "jobs that had not ended: 0",
    ]


def test_the_list_of_a_real_cluster_adds_up():
    reported = json.loads(
        run(capture_path("jobs/clustercockpit-alex-60pct.jsonl"), "--json").stdout
    )
    held = sum(int(tenant["held_ns"]) for tenant in reported["tenants"])
    assert held == int(reported["held_ns"])
    assert held + int(reported["free_ns"]) == int(reported["capacity_ns"])
    (part,) = reported["not_placed"]
    assert part["reason"] == '"": expected a PCI address'
