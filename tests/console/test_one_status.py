"""The status: decided once, from what a reader may see, and the same on every surface."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from console_site import incident_at
from support.command_line import run
from support.scripted_server import by_path, scripted_server
from test_console_pages import NOW_NS, Fleet, fleet, models_of, page_of

from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import SECOND_NS
from railscope_collector.access.credentials import ANYONE
from railscope_collector.console.fleet_pages import FleetPages
from railscope_collector.http.gpus_api import GpusQuery
from railscope_collector.http.read_api import ViewApi
from railscope_collector.workloads.job_roster import JobGpu, JobHolding, JobKey, RunningJob
from railscope_collector.workloads.job_view import RunningJobs

NODES = ["a", "b", "c", "d"]


def claimed(directory: Path, *incidents: Any) -> ViewApi:
    """Four nodes with a job on all GPUs; the last node is stale."""
    found = fleet(directory, NODES, [*incidents], stale=1).pages.api
    key = JobKey("vision", "slurm", "7")
    gpus = tuple(
        JobGpu(f"GPU-{node}-{rail}", rail, JobHolding(key, node, GPU_CAPACITY, NOW_NS), is_alone=True)
        for node in NODES
        for rail in range(8)
    )  # fmt: skip
    running = RunningJobs(NOW_NS, (RunningJob(key, 0, gpus),), fresh_nodes=frozenset("abc"))
    shown = replace(found.views(), jobs=running)
    return replace(found, views=lambda: shown)


async def test_every_surface_has_the_same_word_and_sums_while_a_node_is_stale(
    tmp_path: Path,
) -> None:
    view_api = claimed(tmp_path)
    status = view_api.status(ANYONE)
    content = msgspec.to_builtins(status)
    assert content["gpus"] == {"claimed": 24, "unclaimed": 0, "idle": 0, "unknown": 8}
    assert content["nodes"] == {"healthy": 3, "degraded": 0, "unknown": 1, "failed": 0}
    page, model = await page_of(Fleet(FleetPages(view_api), models_of(view_api)), "overview")
    assert msgspec.to_builtins(model.resource) == content
    with scripted_server(by_path({"/api/v1/status": content})) as server:
        terminal = run("status", "--collector", server.url)
    for text in (page, terminal.stdout):
        assert "DEGRADED" in text
        for sums in ("4 nodes: 3 healthy, 1 unknown", "32 GPUs: 24 claimed, 8 unknown"):
            assert sums in text
    assert terminal.exit_code == 1
    assert "<b>24 of 32</b> GPUs claimed" in page
    assert "8 unknown</a>" in page
    for text in (page, terminal.stdout):
        assert "egraded: stale: d" in text


def test_no_state_is_known_while_the_views_are_stale(tmp_path: Path) -> None:
    found = claimed(tmp_path, incident_at("a", 0, severity="critical"))
    late = replace(found, wall_ns=lambda: NOW_NS + 120 * SECOND_NS)
    reason = "the views are stale: computed 2 min ago"
    rows = late.nodes.rows()
    assert {(row.state, row.reason, row.rails) for row in rows} == {("unknown", reason, "UUUUUUUU")}
    listed = late.gpus.select(ANYONE, GpusQuery())
    assert listed.problem == reason
    assert {gpu.state for gpu in listed.rows} == {"unknown"}
    assert late.jobs_api.states(ANYONE).problem == reason
    assert found.nodes.rows()[0].state == "failed"
