"""Exit statuses of `railscope status` with a collector."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from makers import FrameSender, gpu_schema
from running_collector import run_collector, settings_in
from support.command_line import run
from support.incidents import NIC, incident

from railscope.service import run_in_thread
from railscope.timestamps import SECOND_NS
from railscope_collector.config import DiagnosisSettings
from railscope_collector.diagnosis.incident_table import IncidentTable, ReportedIncident

KEYS = (
    "status", "exit_status", "reasons", "server", "program", "observed", "age_seconds", "nodes", "gpus", "jobs",
    "incidents", "open_incidents", "absent",
)  # fmt: skip
WARNING, CRITICAL = (
    incident("I1", cause=NIC, severity=severity) for severity in ("warning", "critical")
)


@pytest.mark.parametrize(
    ("found", "diagnosed_seconds", "reporting", "status"),
    [
        ([], 0, True, "healthy"),
        ([WARNING], 0, True, "degraded"),
        ([WARNING, CRITICAL], 0, True, "failed"),
        ([], 0, False, "unknown"),
        ([], 181, True, "unknown"),
        ([], None, True, "unknown"),
        ([CRITICAL], 181, True, "failed"),
    ],
)
async def test_the_exit_status_is_that_of_the_cluster(
    tmp_path: Path,
    found: list[ReportedIncident],
    diagnosed_seconds: int | None,
    reporting: bool,  # noqa: FBT001 - a parameter of the test
    status: str,
) -> None:
    token, sender = tmp_path / "token", FrameSender()
    token.write_text("token-reader")
    token.chmod(0o600)
    disabled = DiagnosisSettings(enabled=False)
    async with run_collector(settings_in(tmp_path, diagnosis=disabled)) as running:
        frames = sender.frames(gpu_schema("n1"), [[50, 60, 1000, 2000, 10, 20]], at=0)
        if reporting:
            assert (await running.post(sender.body(frames, schemas=True), at=2))[0] == 200
        while not running.collector.refresher.views.jobs.timestamp_ns:
            await running.collector.refresher.refresh()
            await asyncio.sleep(0.01)  # the ledger is read meanwhile
        if diagnosed_seconds is not None:
            diagnosed_ns = time.time_ns() - diagnosed_seconds * SECOND_NS
            running.collector.diagnosis.table = IncidentTable(diagnosed_ns, tuple(found))
        options = ("--collector", running.url, "--token-file", str(token))
        printed = await run_in_thread(run, "status", "--json", *options)
        screen = await run_in_thread(run, "status", *options)
    content = json.loads(printed.stdout)
    assert (content["status"], tuple(content)) == (status, KEYS), content["reasons"]
    number = ("healthy", "degraded", "failed", "unknown").index(status)
    assert printed.exit_code == screen.exit_code == content["exit_status"] == number
    assert screen.stdout.startswith(status.upper())
    documented = (Path(__file__).parents[2] / "docs" / "console.md").read_text()
    for key in (*KEYS, *(content["nodes"] or ()), *(content["gpus"] or ())):
        assert f"`{key}`" in documented
