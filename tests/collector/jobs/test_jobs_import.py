"""`railscope bill import-jobs` with a period and a ledger: report and ledger agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.job_lists import GPU_1, GPU_2, held_time, tenant_hours
from support.shared import capture_path

from railscope.cli import root as railscope
from railscope_collector.ledger.ledger_store import Ledger
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
    found = {one.day.gpu: one.day.sku for one in ledger.revisions(ledger.newest(0, 30_000))}
    assert found == {f"n1/{GPU_1}": "a40", f"n1/{GPU_2}": "a100", f"n2/{GPU_1}": "h100"}
    inventory.write_text("node,gpu,model\nn1,,a40\nn1,,a100\n")
    refused = place.run(json.dumps(jobs_), *OCTOBER, *arguments)
    assert refused.exit_code == 1
    assert "line 3: 'a100' of n1: expected 'a40'" in refused.output


@pytest.mark.thorough
@pytest.mark.parametrize("order", [(1, 0, 1)])
def test_a_real_cluster_in_two_periods_equals_its_list(place, order):
    text = capture_path("jobs/clustercockpit-alex-60pct.jsonl").read_text()
    halves = ("2023-02-01..2023-02-14", "2023-02-15..2023-02-28")
    for number in order:
        arguments = ("--period", halves[number], "--as-of", "2024-01-01", "--placeholder-gpus")
        assert place.run(text, *arguments).exit_code == 0
    ledger = Ledger.open(place.url, metadata)
    found = held_time(ledger)
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
