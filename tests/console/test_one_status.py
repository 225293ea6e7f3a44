"""The status: decided once, from what a reader may see, and the same on every surface."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from console_site import incident_at
from support.command_line import run
from support.scripted_server import by_path, scripted_server
from test_console_pages import NOW_NS, Fleet, fleet, page_of
from test_demo_table import NOTES, views

from railscope import api
from railscope.api.status import Status
from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import SECOND_NS
from railscope_collector.access.credentials import ANYONE, Credential, Role
from railscope_collector.console.console_server import page_models
from railscope_collector.console.fleet_pages import FleetPages
from railscope_collector.http.gpus_api import GpusQuery
from railscope_collector.http.read_api import ViewApi
from railscope_collector.http.status_api import VisibleFacts, make_status
from railscope_collector.inventory.inventory_view import NEVER_REPORTED
from railscope_collector.workloads.job_roster import JobGpu, JobHolding, JobKey, RunningJob
from railscope_collector.workloads.job_view import RunningJobs
from railscope_simulator.demo.report import status_lines

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
    page, model = await page_of(Fleet(FleetPages(view_api), page_models(view_api)), "overview")
    assert msgspec.to_builtins(model.status) == content
    with scripted_server(by_path({"/api/v1/status": content})) as server:
        terminal = run("status", "--collector", server.url)
    demo = "\n".join(status_lines(views() | {"status": content}, (), NOTES))
    for text in (page, terminal.stdout, demo):
        assert "DEGRADED" in text
        for sums in ("4 nodes: 3 healthy, 1 unknown", "32 GPUs: 24 claimed, 8 unknown"):
            assert sums in text
    assert terminal.exit_code == 1
    assert "<b>24 of 32</b> GPUs claimed" in page
    assert "8 unknown</a>" in page
    for text in (page, terminal.stdout):
        assert "egraded: stale: d" in text


def test_a_tenant_has_a_status_of_its_own_gpus(tmp_path: Path) -> None:
    found = claimed(tmp_path).status(Credential("board", Role.TENANT, "vision"))
    assert (found.status, found.jobs, found.nodes) == ("degraded", 1, None)
    assert [reason.text for reason in found.reasons] == [
        "8 of 32 GPUs of your jobs are on stale nodes"
    ]
    assert "tenant" in found.absent["nodes"]
    other = claimed(tmp_path).status(Credential("board", Role.TENANT, "language"))
    assert (other.status, other.jobs, sum((other.gpus or {}).values())) == ("healthy", 0, 0)


def test_the_incidents_of_a_tenant_are_those_that_no_other_one_explains(tmp_path: Path) -> None:
    incidents = [incident_at("a", 0, number="i1"), incident_at("b", 0, number="i2", explained_by="i1")]  # fmt: skip
    touched = {"vision": frozenset({"a", "b"})}
    shown = claimed(tmp_path, *(replace(each, tenant_nodes=touched) for each in incidents))
    (tenant,) = shown.tenant_list(None, slice(None)).tenants
    assert (tenant.tenant, tenant.incidents) == ("vision", 1)


def test_no_state_is_known_while_the_views_are_stale(tmp_path: Path) -> None:
    found = claimed(tmp_path, incident_at("a", 0, severity="critical"))
    late = replace(found, wall_ns=lambda: NOW_NS + 120 * SECOND_NS)
    reason = "the views are stale: computed 2 min ago"
    rows = late.node_rows()
    assert {(row.state, row.reason, row.rails) for row in rows} == {("unknown", reason, "UUUUUUUU")}
    listed = late.gpus.select(late.gpus.newest(), late.incidents(), ANYONE, GpusQuery())
    assert listed.problem == reason
    assert {gpu.state for gpu in listed.rows} == {"unknown"}
    assert late.jobs_api.states(ANYONE).problem == reason
    assert found.node_rows()[0].state == "failed"


HEALTHY = api.Node("n1", 8, "healthy", reporting=1.0)
STALE = api.Node("n2", 8, "unknown", "stale since 2026-11-22T19:00:00Z", reporting=0.0)
FAILED = api.Node("n3", 8, "failed", "GPU 3 failed", reporting=1.0)
WORN = api.Node("n4", 8, "degraded", "GPU 2: retired memory", reporting=1.0)
NEVER = api.Node("n9", state="unknown", reason=NEVER_REPORTED, reporting=0.0)
USE = {"claimed": 8, "unclaimed": 0, "idle": 0, "unknown": 0}


def status_of(
    nodes: tuple[api.Node, ...] | None = (HEALTHY,),
    incident: dict[str, Any] | None = None,
    age: float = 0.0,
    diagnosis_age: float = 0.0,
    **facts: Any,
) -> Status:
    """The status of a healthy cluster with changes; an incident is given by its changes."""
    gpus_ns, diagnosis_ns = (NOW_NS - round(each * SECOND_NS) for each in (age, diagnosis_age))
    rows = () if incident is None else (incident_at("n1", 0, **incident).document,)
    given = {
        "gpus": api.GpuList(gpus_ns, (), 8, use=USE),
        "incidents": api.IncidentList(diagnosis_ns, rows),
        "jobs": 1,
    }
    return make_status(VisibleFacts(NOW_NS, nodes, **(given | facts)))


@pytest.mark.parametrize(
    ("facts", "status", "text"),
    [
        ({}, "healthy", ""),
        ({"incident": {"severity": "critical"}}, "failed", "slow_receiver"),
        ({"incident": {"severity": "warning"}}, "degraded", "slow_receiver"),
        ({"incident": {"severity": "unheard"}}, "degraded", "slow_receiver"),
        ({"incident": {"severity": "info"}}, "healthy", ""),
        ({"incident": {"severity": "critical", "explained_by": "other"}}, "healthy", ""),
        ({"nodes": (HEALTHY, STALE)}, "degraded", "stale: n2"),
        ({"nodes": (STALE,)}, "unknown", "no node reports"),
        ({"nodes": (STALE,), "incident": {"severity": "critical"}}, "failed", "no node reports"),
        ({"nodes": (FAILED, HEALTHY)}, "failed", "n3: GPU 3 failed"),
        ({"nodes": (HEALTHY, WORN)}, "degraded", "n4: GPU 2: retired memory"),
        ({"nodes": (HEALTHY, NEVER)}, "degraded", "never reported: n9"),
        ({"nodes": ()}, "unknown", "no node has ever reported"),
        ({"age": 600}, "unknown", "nodes, gpus, jobs: the views are stale: computed 10 min ago"),
        ({"gpus": api.GpuList(0, (), 0)}, "unknown", "have not been computed"),
        ({"diagnosis_age": 600}, "unknown", "incidents: not diagnosed since"),
        ({"incidents": api.IncidentList(0, ())}, "unknown", "nothing has been diagnosed yet"),
        ({"jobs": None}, "unknown", "jobs: the claims of GPUs cannot be determined"),
        ({"not_ready": "read-only"}, "degraded", "the collector is not ready: read-only"),
    ],
)  # fmt: skip
def test_the_status_is_the_worst_of_its_reasons(
    facts: dict[str, Any], status: str, text: str
) -> None:
    found = status_of(**facts)
    assert found.status == status
    assert any(text in reason.text for reason in found.reasons) if text else not found.reasons
    assert all(getattr(found, name) is None for name in found.absent)


def test_all_open_incidents_are_counted(tmp_path: Path) -> None:
    many = [incident_at("a", 0, number=str(number), severity="critical") for number in range(300)]
    found = claimed(tmp_path, *many).status(ANYONE)
    assert (found.incidents, len(found.open_incidents)) == (
        {"critical": 300, "warning": 0, "info": 0},
        10,
    )


def test_the_titles_of_many_incidents_are_bounded() -> None:
    rows = tuple(
        incident_at("n1", 0, number=str(number), severity="critical").document
        for number in range(30)
    )
    found = status_of(incidents=api.IncidentList(NOW_NS, rows))
    assert found.incidents == {"critical": 30, "warning": 0, "info": 0}
    assert len(found.open_incidents) == 10
    assert found.reasons[-1].text == "20 more open incidents"
