"""`railscope bill import-jobs` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.shared import capture_path

from railscope.cli import root as railscope
from railscope_collector.jobs.job_report import format_hours

S = 1_000_000_000
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


def test_a_person_reads_tenants_conflicts_and_what_is_not_placed(jobs):
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
        "conflicts: 1",
        f"  n1/{GPU}: 1970-01-01T01:00:00Z to 1970-01-01T01:01:00Z: 0:01:00 GPU-hours moved 1@0 -> 2@3600",
        "not placed on a GPU: 1",
        '  job 3 of third on n1: 1 GPU, 0:00:09: "": expected a PCI address',
        "TENANT, NOT PLACED  GPU-HOURS  GPU-NANOSECONDS",
        "third                 0:00:09       9000000000",
        "jobs without GPUs: 1; that never started: 0",
        "jobs that had not ended: 0",
    ]


def test_a_program_reads_the_same(jobs):
    reported = json.loads(run(jobs, "--json").stdout)
    assert reported["tenants"] == [
        {"tenant": "first", "held_ns": str(7140 * S), "gpu_hours": "1:59:00"},
        {"tenant": "second", "held_ns": str(60 * S), "gpu_hours": "0:01:00"},
    ]
    assert reported["conflicts"] == [
        {
            "gpu": f"n1/{GPU}", "start_ns": str(3600 * S), "end_ns": str(3660 * S),
            "earlier": "1@0", "later": "2@3600", "moved_ns": str(60 * S),
        }
    ]  # fmt: skip
    assert reported["not_placed"] == [
        {
            "job": "3", "tenant": "third", "node": "n1", "gpus": 1, "held_ns": str(9 * S),
            "reason": '"": expected a PCI address',
        }
    ]  # fmt: skip
    assert (
        int(reported["held_ns"]) + int(reported["free_ns"])
        == int(reported["capacity_ns"])
        == 7200 * S
    )
    assert reported["balances"] is True
    assert reported["without_gpus"] == 1


def test_a_list_of_sacct_takes_the_zone_of_its_times(tmp_path):
    found = tmp_path / "jobs.txt"
    found.write_text(
        "JobIDRaw|Account|User|Start|End|AllocTRES|NodeList\n"
        "7|a|u|2024-01-01T00:00:00|2024-01-01T01:00:00|gres/gpu=16,node=2|n[1-2]\n"
    )
    refused = run(found, "--format", "sacct")
    assert refused.exit_code == 1
    assert refused.stderr == (
        f"Error: cannot read {found}: line 2: Start: invalid time 2024-01-01T00:00:00: expected a time zone; fix: name that of the cluster by --timezone, such as --timezone Europe/Berlin\n"
    )
    reported = run(found, "--format", "sacct", "--timezone", "Europe/Berlin")
    line = "  job 7 of a on n[1-2]: 16 GPUs, 16:00:00: sacct does not list the GPUs"
    assert line in reported.stdout.splitlines()
    assert run(found, "--timezone", "Europe/Nowhere").exit_code == 2


@pytest.mark.parametrize("form", ["clustercockpit", "sacct"])
@pytest.mark.parametrize("content", [b"", b"\n", b"hello\n", b"\xff\xfe\x00", b"[1]", b"{}"])
def test_a_file_that_is_not_a_job_list_is_one_clear_line(tmp_path, form, content):
    found = tmp_path / "file"
    found.write_bytes(content)
    outcome = run(found, "--format", form)
    assert outcome.exit_code == 1
    assert outcome.stdout == ""
    (line,) = outcome.stderr.splitlines()
    assert line.startswith(f"Error: cannot read {found}: ")


@pytest.mark.parametrize("content", ['{"a": 1}', "[]", "{"])
def test_json_of_another_kind_requires_the_format(tmp_path, content):
    found = tmp_path / "file"
    found.write_text(content)
    outcome = run(found)
    assert outcome.exit_code == 1
    assert outcome.stderr.startswith(f"Error: cannot read {found}: line 1: ")


def test_pods_are_distinguished_from_jobs(tmp_path):
    found = tmp_path / "pods.json"
    found.write_text('{"kind": "List", "items": []}')
    assert run(found).stdout.startswith("TENANT")
    assert run(found, "--format", "clustercockpit").exit_code == 1


def test_a_ledger_is_written_once_and_never_loses_another_list(jobs, tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    assert run(jobs, "--ledger", url, "--sku", "h100").stdout.splitlines()[-1] == (
        "ledger: 1 GPU-day written, 0 unchanged"
    )
    again = json.loads(run(jobs, "--ledger", url, "--sku", "h100", "--json").stdout)
    assert again["ledger"] == {"added": 0, "unchanged": 1}
    other = tmp_path / "other.jsonl"
    other.write_text(job(9, 0, 60, "fourth", GPU))
    refused = run(other, "--ledger", url, "--sku", "h100")
    assert refused.exit_code == 1
    assert "the ledger has another one of slurm 1970-01-01..1970-01-01" in refused.stderr
    assert run(other, "--ledger", url, "--sku", "h100", "--replace").exit_code == 0


def test_a_ledger_that_cannot_be_opened_is_one_clear_line(jobs):
    outcome = run(jobs, "--ledger", "sqlite:////nowhere/at/all.sqlite")
    assert outcome.exit_code == 1
    assert len(outcome.stderr.splitlines()) == 1


def test_the_list_of_a_real_cluster_adds_up():
    reported = json.loads(
        run(capture_path("jobs/clustercockpit-alex-60pct.jsonl"), "--json").stdout
    )
    held = sum(int(tenant["held_ns"]) for tenant in reported["tenants"])
    assert held == int(reported["held_ns"])
    assert held + int(reported["free_ns"]) == int(reported["capacity_ns"])
    (part,) = reported["not_placed"]
    assert part["reason"] == '"": expected a PCI address'


@pytest.mark.parametrize(
    ("gpu_ns", "shown"),
    [
        (0, "0:00:00"),
        (3661 * S, "1:01:01"),
        (1, "0:00:00.000000001"),
        (10**6 * 3600 * S, "1000000:00:00"),
    ],
)
def test_hours_are_exact(gpu_ns, shown):
    assert format_hours(gpu_ns) == shown
