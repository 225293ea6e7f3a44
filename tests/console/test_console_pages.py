"""Content of pages: bounds at any number of nodes, hostile names, twins, entity tags, static files, cache."""

from __future__ import annotations

import asyncio
import hashlib
import html
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from console_site import TOKENS, browser, console, count_elements, incident_at
from makers import FrameSender, gpu_schema

from railscope.catalog import EVENTS, agent, collector as catalog, derived_metric, entities, rollups
from railscope.catalog.declare import Metric
from railscope.catalog.event_titles import title_of
from railscope.catalog.gpu_health import GPU_HEALTH
from railscope.claim_terms import GPU_CAPACITY
from railscope.frame import Entity, Schema
from railscope.settings import SettingsError
from railscope.timestamps import SECOND_NS, format_timestamp
from railscope.wire import WireEntity, WireEvent
from railscope_collector.access.credentials import ANYONE, Credential, Role
from railscope_collector.config import DiagnosisSettings
from railscope_collector.console import (
    PageProblemError,
    incident_pages,
    page_rendering,
    search_page,
)
from railscope_collector.console.console_server import page_models
from railscope_collector.console.fleet_pages import FleetPages
from railscope_collector.console.page_cache import PageCache, RenderedContent
from railscope_collector.console.page_table import (
    PAGES_BY_NAME,
    PageContent,
    PageModels,
    PageRequest,
    check_grafana_url,
    page_path,
    parse_query,
)
from railscope_collector.console.rail_grid import make_grid
from railscope_collector.diagnosis import entity_states
from railscope_collector.diagnosis.diagnosis_curves import (
    CurvePoint,
    EvidenceCurve,
)
from railscope_collector.diagnosis.incident_classes import CLASSES
from railscope_collector.diagnosis.incident_table import (
    IncidentTable,
    ReportedIncident,
    incident_facts,
)
from railscope_collector.fleet.recent_events import SeenEvent
from railscope_collector.fleet.schemas import StoredSchemas
from railscope_collector.fleet.view_cells import View, ViewCell
from railscope_collector.http.event_list import EventWriter
from railscope_collector.http.read_api import ViewApi
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.view_refresh import CollectorViews
from railscope_collector.views.cluster_load import ClusterLoad, extend_load
from railscope_collector.views.fresh_rows import Floats
from railscope_collector.views.gpu_list import LISTED_METRICS, ListedReadings
from railscope_collector.workloads.job_roster import JobGpu, JobHolding, JobKey, RunningJob
from railscope_collector.workloads.job_view import RunningJobs

MAX_BYTES, MAX_ELEMENTS = 600_000, 6_000
HOSTILE = "<img src=x onerror=alert(1)>\"'&{{7*7}}"
NOW_NS = 1_790_000_000 * SECOND_NS
STALE = "stale since 2026-09-21 14:13:18 UTC"
TITLE = "Slow receiver: NIC eth0 of a"


@dataclass
class Fleet:
    """Models of pages of a state that does not change."""

    pages: FleetPages
    models: PageModels


class HealthyGpus(ListedReadings):
    """Readings of GPUs whose agents report that they are healthy."""

    def by_gpu(self, places: Sequence[tuple[str, int]]) -> Floats:
        values = np.full((len(LISTED_METRICS), len(places)), np.nan)
        values[0] = 1
        return values


def fleet(
    directory: Path,
    nodes: list[str],
    incidents: list[ReportedIncident],
    stale: int = 0,
    diagnosed_ns: int = NOW_NS,
) -> Fleet:
    """Pages of nodes with eight GPUs each; the last `stale` ones are stale."""
    core = CollectorState(StoredSchemas(directory))
    core.gpus_by_node = {name: {rail: f"GPU-{name}-{rail}" for rail in range(8)} for name in nodes}
    fresh = len(nodes) - stale
    cells = [ViewCell(catalog.NODE_UP, (name,), n < fresh) for n, name in enumerate(nodes)]
    cells += [ViewCell(catalog.NODE_AGE, (name,), 1.5) for name in nodes]
    gpus = HealthyGpus(dict(core.gpus_by_node))
    views = CollectorViews(NOW_NS, node=View("node", NOW_NS, tuple(cells)), gpus=gpus)
    table = IncidentTable(diagnosed_ns, tuple(incidents))
    own_metrics: Any = SimpleNamespace(unknown_reason="")
    api = ViewApi(core, own_metrics, lambda: views, lambda: table, wall_ns=lambda: NOW_NS)
    return Fleet(FleetPages(api), page_models(api))


class ShownPage:
    """The resource of a page, and what the page shows beside it, as attributes."""

    def __init__(self, resource: msgspec.Struct, shown: Mapping[str, Any]) -> None:
        self.resource = resource
        self.shown = shown

    def __getattr__(self, name: str) -> Any:
        return self.shown[name] if name in self.shown else getattr(self.resource, name)


async def page_of(
    site: Fleet, name: str, /, reader: Credential = ANYONE, **values: Any
) -> tuple[str, Any]:
    page = PAGES_BY_NAME[name]
    parts = {key: values.pop(key) for key in re.findall(r"{(\w+)}", page.path)}
    asked = PageRequest(page, reader, parts, parse_query(page, values))
    model = await site.models[name](asked)
    content = model if isinstance(model, PageContent) else PageContent(model)
    template = "moment" if isinstance(model, incident_pages.MomentModel) else name
    model, shown = content
    text = page_rendering.render(f"{template}.html", model=model, request=asked, **shown)
    return text, ShownPage(model, shown)


@pytest.mark.parametrize("count", [1_000, 4_000])
async def test_pages_are_bounded_whatever_the_size_of_the_fleet(tmp_path: Path, count: int) -> None:
    nodes = [f"gpu-node-{number:05}.cluster.example" for number in range(count)]
    incidents = [
        incident_at(node, number % 8, number=str(number), victims=nodes[:200])
        for number, node in enumerate(nodes[::3])
    ]
    pages = fleet(tmp_path, nodes, incidents, stale=count // 3)
    for name in ("overview", "nodes", "incidents"):
        text, model = await page_of(pages, name)
        assert len(text.encode()) < MAX_BYTES, name
        assert count_elements(text).nodes < MAX_ELEMENTS, name
        # A document of the API lists 200 victims of each incident.
        size = len(msgspec.json.encode(model.resource))
        assert size < MAX_BYTES * (10 if name == "incidents" else 1)


async def test_a_search_has_a_bounded_number_of_hits_of_each_kind(tmp_path: Path) -> None:
    nodes = [f"n{number:03}" for number in range(search_page.MAX_HITS + 5)]
    incidents = [
        incident_at(node, 0, number=str(number)) for number, node in enumerate([*nodes, *nodes])
    ]
    pages = fleet(tmp_path, nodes, incidents)
    _, model = await page_of(pages, "search", q="n0")
    kinds = Counter(hit.kind for hit in model.hits)
    assert kinds["node"] == kinds["incident"] == search_page.MAX_HITS


async def test_lists_are_sorted_by_links(tmp_path: Path) -> None:
    nodes = ["a", "b", "c"]
    found = [
        incident_at("b", 3, victims=["c"], lost_gpu_time_seconds=5),
        incident_at("c", 4, number="I2", victim_count=9, lost_gpu_time_seconds=None),
    ]
    pages = fleet(tmp_path, nodes, found)
    for name, sort, field, expected in (
        ("nodes", "", "node", ["c", "b", "a"]),
        ("nodes", "node", "node", ["a", "b", "c"]),
        ("incidents", "victim_count", "victim_count", [9, 1]),
        ("incidents", "lost_gpu_time_seconds", "lost_gpu_time_seconds", [5, None]),
    ):
        text, model = await page_of(pages, name, sort=sort)
        assert [getattr(row, field) for row in model.rows] == expected, sort
        assert (f"/{name}" if sort else "/nodes?sort=node") in count_elements(text).links
    _, model = await page_of(pages, "rails", sort="degraded")
    assert [rail.rail for rail in model.rails[:3]] == [3, 4, 0]
    text, _ = await page_of(pages, "nodes", sort="node", state="healthy", limit="1")
    links = count_elements(text).links
    assert "/nodes?state=healthy&sort=gpus" in links, "the order keeps the filter"


async def test_a_node_has_a_bounded_number_of_rails() -> None:
    gpus = {rail: f"GPU-{rail}" for rail in range(entity_states.MAX_RAILS + 9)}
    facts = {"n1": entity_states.NodeFacts(gpus, dict.fromkeys(gpus, "healthy"))}
    (row,) = entity_states.node_rows(facts, IncidentTable(NOW_NS), NOW_NS)
    assert (row.gpus, row.rails) == (len(gpus), "." * entity_states.MAX_RAILS)


async def test_a_checkered_grid_is_bounded(tmp_path: Path) -> None:
    nodes = [f"n{number:05}" for number in range(4_000)]
    rows = [
        msgspec.structs.replace(row, rails=".F" * 4 if number % 2 else "F." * 4)
        for number, row in enumerate(fleet(tmp_path, nodes, []).pages.api.node_rows())
    ]
    grid = make_grid(rows)
    assert sum(len(path) for _, path in grid.paths()) + len(grid.separators()) < 500_000
    assert len(grid.paths()) == 2
    assert grid.caption == "4,000 nodes by 8 rails, worst first: 16,000 failed, 16,000 healthy"


async def test_states_follow_from_incidents_and_from_the_age_of_data(tmp_path: Path) -> None:
    nodes = ["a", "b", "c", "d", "e"]
    found = [
        incident_at("b", 3, victims=["c"], severity="critical"),
        incident_at("d", 3, number="I2"),
        incident_at("e", 3, number="I3", severity="critical"),
    ]
    pages = fleet(tmp_path, nodes, found, stale=1)
    _, model = await page_of(pages, "overview")
    assert [(row.node, row.state, row.rails, row.reason) for row in model.nodes.rows] == [
        ("b", "failed", "...F....", "cause of slow_receiver: NIC eth3 of b"),
        ("e", "unknown", "UUUUUUUU", STALE + "; cause of slow_receiver: NIC eth3 of e"),
        ("d", "degraded", "...D....", "cause of slow_receiver: NIC eth3 of d"),
    ]
    rows = pages.pages.api.node_rows()
    assert [row.node for row in rows] == ["b", "e", "d", "c", "a"]
    victim = "affected by slow_receiver: NIC eth3 of b"
    assert (rows[3].state, rows[3].rails, rows[3].reason) == ("healthy", "...v....", victim)
    states = {"failed": 1, "unknown": 1, "degraded": 1, "healthy": 2}
    assert (model.nodes.found, model.nodes.states, model.nodes.gpus) == (5, states, 40)
    assert (
        model.summary
        == "FAILED: 5 nodes: 2 healthy, 1 degraded, 1 unknown, 1 failed; 40 GPUs: 40 unknown; "
        "3 open incidents: 2 critical, 1 warning"
    )
    text, model = await page_of(pages, "nodes", state="unknown")
    assert [row.node for row in model.rows] == ["e"]
    assert STALE in text


def rows_of(
    incidents: list[ReportedIncident],
    *,
    reporting: bool = True,
    diagnosed_ns: int = NOW_NS,
    failed: Mapping[str, str] | None = None,
) -> tuple[str, str, str]:
    """State, reason and rails of a node with two GPUs."""
    gpus, failed = {0: "GPU-a", 1: "GPU-b"}, failed or {}
    verdicts = {rail: "failed" if uuid in failed else "healthy" for rail, uuid in gpus.items()}
    names = {rail: failed.get(uuid, "") for rail, uuid in gpus.items()}
    facts = entity_states.NodeFacts(gpus, verdicts, names, reporting, 1.5)
    table = IncidentTable(diagnosed_ns, tuple(incidents))
    (row,) = entity_states.node_rows({"n1": facts}, table, NOW_NS)
    return row.state, row.reason, row.rails


def test_a_failed_gpu_fails_its_node_until_the_node_is_stale() -> None:
    failed = {"GPU-b": "GPU 1"}
    assert rows_of([], failed=failed) == ("failed", "GPU 1 failed", ".F")
    assert rows_of([], failed=failed, diagnosed_ns=0)[::2] == ("failed", "UF")
    assert rows_of([], failed=failed, reporting=False) == ("unknown", STALE, "UU")
    incident = incident_at("n1", 0)
    reason = "GPU 1 failed; cause of slow_receiver: NIC eth0 of n1"
    assert rows_of([incident], failed=failed) == ("failed", reason, "DF")


def test_states_of_an_old_evaluation_are_unknown() -> None:
    incident = incident_at("n1", 0, severity="critical")
    assert rows_of([incident], diagnosed_ns=NOW_NS - 180 * SECOND_NS)[0] == "failed"
    state, reason, rails = rows_of([incident], diagnosed_ns=NOW_NS - 181 * SECOND_NS)
    assert (state, rails) == ("unknown", "UU")
    assert reason.startswith("not diagnosed since 2026-09-21 14:10:19 UTC")
    assert rows_of([incident], diagnosed_ns=0)[:2] == ("unknown", entity_states.NOT_DIAGNOSED)


async def test_the_verdict_of_an_agent_on_a_gpu_reaches_the_states(tmp_path: Path) -> None:
    async with console(tmp_path) as running, browser(running.url) as reader:
        sender = FrameSender()
        gpus = [entity for _, entity in gpu_schema("n1").columns[:2]]
        health = Schema("gpu_verdict", tuple((GPU_HEALTH, gpu) for gpu in gpus))
        body = sender.body(sender.frames(health, [[1, 3]], at=0), schemas=True)
        token = {"Authorization": f"Bearer {TOKENS[Role.OPERATOR]}"}
        node_token = {"Authorization": f"Bearer {TOKENS[Role.NODE]}"}
        assert (await running.post(body, at=2, headers=node_token))[0] == 200
        await running.collector.refresher.refresh()
        answer = await reader.get("/api/v1/nodes", **token)
        (row,) = msgspec.json.decode(answer.text)["rows"]
        assert (row["state"], row["since_ns"], row["incidents"]) == ("failed", None, [])
        assert row["reason"] == f"GPU GPU-n1-1 failed; {entity_states.NOT_DIAGNOSED}"


async def test_a_rail_has_the_incidents_of_its_gpus(tmp_path: Path) -> None:
    cause = {"kind": "gpu", "node": "a", "index": 0, "uuid": "GPU-a-4", "pci_address": ""}
    site = fleet(tmp_path, ["a"], [incident_at("a", 0, cause=cause, title="Memory error")])
    for rail in range(8):
        text, _ = await page_of(site, "rail", rail=str(rail))
        assert ("Memory error" in text) == (rail == 4)


@pytest.mark.parametrize(
    "cells", list(permutations([("pfc", "0", 0.0), ("pfc", "3", 0.4), ("global", "", 0.1)]))
)
def test_the_pause_of_a_rail_is_the_largest_of_all_priorities(
    tmp_path: Path, cells: Sequence[tuple[str, str, float]]
) -> None:
    api = fleet(tmp_path, ["a"], []).pages.api
    found = []
    for kind, priority, value in cells:
        derived = rollups()[f"railscope_rail_max_nic_transmit_{kind}_pause_ratio"]
        metric = derived_metric(derived.source, derived.scope, derived.rollup)
        found.append(ViewCell(metric, tuple(filter(None, ("0", priority))), value))
    views = replace(api.views(), rail=replace(api.views().rail, cells=tuple(found)))
    (rail, *_) = replace(api, views=lambda: views).rail_list().rails
    assert (rail.max_pausing_ratio, rail.max_paused_ratio) == (0.4, None)


async def test_roll_ups_of_a_rail_are_in_words(tmp_path: Path) -> None:
    api = fleet(tmp_path, ["a"], []).pages.api
    derived = rollups()["railscope_rail_max_nic_transmit_pfc_pause_ratio"]
    metric = derived_metric(derived.source, derived.scope, derived.rollup)
    cells = (ViewCell(metric, ("0", "3"), 0.4),)
    views = replace(api.views(), rail=replace(api.views().rail, cells=cells))
    api = replace(api, views=lambda: views)
    text, _ = await page_of(Fleet(FleetPages(api), page_models(api)), "rail", rail="0")
    words = "Highest: Time in which this port paused the switch."
    assert f'title="{derived.metric.name}">{words}</th><td>3 </td>' in text


@pytest.mark.parametrize(
    ("workloads", "figure"),
    [
        (["7", "8"], "<b>1</b> of 2 running jobs affected</p>"),
        (["8"], "<b>0</b> of 1 running job affected, and 1 job that ended</p>"),
    ],
)
async def test_a_touched_job_that_ended_is_not_running(
    tmp_path: Path, workloads: list[str], figure: str
) -> None:
    jobs = tuple(RunningJob(JobKey("vision", "slurm", name), 0, ()) for name in workloads)
    api = fleet(tmp_path, ["a", "b"], [incident_at("a", 0, victims=["b"])]).pages.api
    views = replace(api.views(), jobs=RunningJobs(NOW_NS, jobs))
    api = replace(api, views=lambda: views)
    text, _ = await page_of(Fleet(FleetPages(api), page_models(api)), "overview")
    assert figure in text


@pytest.mark.parametrize(
    ("diagnosed_ns", "found", "states"),
    [
        (NOW_NS, [], {"7": "healthy", "8": "unknown: 1 of its GPUs are on stale nodes"}),
        (NOW_NS, [{}], {"7": f"degraded: affected by {TITLE}", "8": "unknown: 1 of its GPUs are on stale nodes"}),
        (NOW_NS, [{"severity": "critical", "number": "I2"}, {}], {"7": f"degraded: affected by {TITLE} and 1 more", "8": "unknown"}),
        (NOW_NS, [{"severity": "info"}, {"ended": "2026-09-21T14:13:19Z"}], {"7": "healthy", "8": "unknown"}),
        (NOW_NS - 181 * SECOND_NS, [{}], dict.fromkeys("78", "unknown: not diagnosed since 2026-09-21 14:10:19 UTC")),
        (0, [], dict.fromkeys("78", f"unknown: {entity_states.NOT_DIAGNOSED}")),
    ],
)  # fmt: skip
async def test_console_api_and_terminal_have_the_same_states_of_jobs(
    tmp_path: Path, diagnosed_ns: int, found: list[dict[str, Any]], states: dict[str, str]
) -> None:
    keys = [JobKey("vision", "slurm", name) for name in states]
    places = [
        JobGpu(f"GPU-{node}-0", 0, JobHolding(key, node, GPU_CAPACITY, NOW_NS), is_alone=False)
        for key, node in zip(keys, "ab", strict=True)
    ]
    jobs = tuple(RunningJob(key, 0, (place,)) for key, place in zip(keys, places, strict=True))
    nodes = {"vision": frozenset("ac")}
    incidents = [
        replace(incident_at("a", 0, victims=["c"], title=TITLE, **each), tenant_nodes=nodes)
        for each in found
    ]
    api = fleet(tmp_path, ["a", "b", "c"], incidents, diagnosed_ns=diagnosed_ns).pages.api
    running = RunningJobs(NOW_NS, jobs, numbers=1, fresh_nodes=frozenset("ac"))
    views = replace(api.views(), jobs=running)
    site = Fleet(FleetPages(api), page_models(replace(api, views=lambda: views)))
    own = Credential("board", Role.TENANT, "vision")
    rows = [
        api.jobs_api.row(running, job, replace(api, views=lambda: views).jobs_api.states(ANYONE))
        for job in jobs
    ]
    terminal = msgspec.to_builtins(rows)
    for reader in (ANYONE, own):
        _, model = await page_of(site, "jobs", reader)
        shown = {row.workload: (row.state, row.reason) for row in model.rows}
        assert shown == {row["workload"]: (row["state"], row["reason"]) for row in terminal}
    for name, expected in states.items():
        state, reason = shown[name]
        assert f"{state}: {reason}".startswith(expected)
        text, _ = await page_of(site, "job", tenant="vision", source="slurm", workload=name)
        assert (f"is unknown: {reason}." in html.unescape(text)) == (state == "unknown")


async def test_a_job_has_the_events_about_its_ranks_and_those_of_no_other(tmp_path: Path) -> None:
    def rank_event(node: str, workload: str, rank: str, name: str = "collective_late") -> SeenEvent:
        entity = WireEntity("collective_rank", (workload, "1000", "0", rank))
        facts = {"collective": "all_reduce", "sequence": "417", "shapes": "[8]", "gpu_index": "2"}
        facts |= {"waiting_ranks": "0-1 3", "stack": HOSTILE}
        facts |= {"source": "slurm", "workload": workload, "tenant": "vision"}
        return SeenEvent(node, "boot", WireEvent(name, 0, entity, NOW_NS, NOW_NS, facts))

    key = JobKey("vision", "slurm", "7")
    holding = JobHolding(key, "a", GPU_CAPACITY, NOW_NS)
    job = RunningJob(key, 0, (JobGpu("GPU-a-0", 0, holding, is_alone=False),))
    api = fleet(tmp_path, ["a", "b"], []).pages.api
    for event in (
        rank_event("a", "7", "2"), rank_event("b", "7", "3"), rank_event("a", "8", "4"), rank_event("a", "7", "5", "xid"),
    ):  # fmt: skip
        api.core.events.add(event)
    views = replace(api.views(), jobs=RunningJobs(NOW_NS, (job,)))
    api = replace(api, views=lambda: views)
    own = Credential("board", Role.TENANT, "vision")
    text, model = await page_of(
        Fleet(FleetPages(api), page_models(api)), "job", own, tenant="vision", source="slurm", workload="7"
    )  # fmt: skip
    assert [(row.node, row.area, row.devices) for row in model.events] == [("a", "job", "rank 2")]
    shown = "collective all_reduce, sequence 417, waiting ranks 0-1 3, GPU index 2, stack "
    assert f"Collective late: {shown}{HOSTILE}" in html.unescape(text)
    assert "<img" not in text


async def test_the_overview_states_since_when_incidents_are_not_known(tmp_path: Path) -> None:
    found = fleet(tmp_path, ["n1"], [incident_at("n1", 0)], diagnosed_ns=NOW_NS - 600 * SECOND_NS)
    text, model = await page_of(found, "overview")
    assert model.nodes.states["unknown"] == 1
    assert model.summary == "UNKNOWN: 1 node: 1 unknown; 8 GPUs: 8 unknown"
    assert text.count("not diagnosed since 2026-09-21 14:03:20 UTC") == 4


async def test_incidents_link_to_the_section_of_their_class_in_the_runbook(tmp_path: Path) -> None:
    pages = fleet(tmp_path, ["n1"], [incident_at("n1", 0)])
    url = "/runbooks/RailscopeIncident#slow_receiver"
    for name, parts in (("overview", {}), ("incident", {"incident": "I1"})):
        text, _ = await page_of(pages, name, **parts)
        assert f'href="{url}"' in text, name
    _, model = await page_of(pages, "incidents")
    assert [row.runbook for row in model.rows] == [url]
    anchors = {block.anchor for block in incident_pages.read_runbook("RailscopeIncident").blocks}
    assert set(CLASSES) <= anchors
    with pytest.raises(PageProblemError, match="unknown runbook"):
        await page_of(pages, "runbook", runbook="../../LICENSE")


@pytest.mark.parametrize("name", page_rendering.RUNBOOK_FILES)
def test_every_runbook_is_rendered_whole(name: str) -> None:
    model = incident_pages.read_runbook(name)
    rendered = page_rendering.render("runbook.html", model=model)
    assert count_elements(rendered).nodes < MAX_ELEMENTS
    source = (Path(__file__).parents[2] / "alerts" / "runbooks" / f"{name}.md").read_text()
    without_marks = re.sub(r"(?m)^```.*|\]\([^)]*\)|^\d+\. ", "", source)
    shown = html.unescape(re.sub(r"<[^>]*>", "", rendered))
    assert re.sub(r"[\W_]+", "", shown) == "Runbook" + re.sub(r"[\W_]+", "", without_marks)


def test_markdown_of_a_document_stays_text() -> None:
    blocks = page_rendering.parse_markdown(
        f"# {HOSTILE}\n\nsee [x](javascript:alert(1)), `{HOSTILE}` and [y](Known.md)\n- a\n  b\n- c",
        {"Known": "/runbooks/Known"},
    )
    text = page_rendering.render(
        "runbook.html", model=incident_pages.RunbookModel("x", tuple(blocks))
    )
    assert "<img" not in text
    assert re.findall(r'href="([^"]*)"', text) == ["/runbooks/Known"]
    assert "<li>a b</li>" in text


AT_NS = NOW_NS - 600 * SECOND_NS
AT = str(AT_NS // 1_000_000)


def past_incidents() -> list[ReportedIncident]:
    """Open now and then; ended since; begun since; ended before."""
    times = {
        "I1": (AT_NS - SECOND_NS, None),
        "I2": (AT_NS - SECOND_NS, AT_NS + SECOND_NS),
        "I3": (AT_NS + SECOND_NS, None),
        "I4": (AT_NS - 2 * SECOND_NS, AT_NS),
    }
    return [
        replace(
            incident_at(
                "n1", 3, number=number, victims=["n2"], ended=end_ns and format_timestamp(end_ns)
            ),
            onset_ns=onset_ns,
        )
        for number, (onset_ns, end_ns) in times.items()
    ]


JOB = {"tenant": "vision", "source": "slurm", "workload": "7"}


@pytest.mark.parametrize(
    ("name", "parts", "found"),
    [
        ("overview", {}, 2),
        ("node", {"node": "n1"}, 2),
        ("node", {"node": "n2"}, 2),
        ("rail", {"rail": "3"}, 2),
        ("rail", {"rail": "2"}, 0),
        ("job", JOB, 2),
        ("job", JOB | {"workload": "8"}, 0),
        ("incidents", {}, 2),
    ],
)
async def test_a_url_with_a_time_shows_what_is_stored_of_it(
    tmp_path: Path, name: str, parts: dict[str, str], found: int
) -> None:
    pages = fleet(tmp_path, ["n1", "n2"], past_incidents())
    text, model = await page_of(pages, name, at=AT, **parts)
    rows = model.rows if name == "incidents" else model.incidents
    assert {row.id for row in rows} == ({"I1", "I2"} if found else set())
    assert model.found == found
    assert format_timestamp(AT_NS, "seconds")[:10] in text
    if name != "incidents":
        assert "states of nodes, readings, ages of data" in text
    with pytest.raises(PageProblemError, match="expected a time such as"):
        await page_of(pages, name, at="x", **parts)


@pytest.mark.parametrize(
    ("name", "parts"), [("rail", {"rail": "8"}), ("rail", {"rail": "03"}), ("node", {"node": "n3"})]
)
async def test_a_device_that_is_not_known_has_no_past(
    tmp_path: Path, name: str, parts: dict[str, str]
) -> None:
    pages = fleet(tmp_path, ["n1", "n2"], past_incidents())
    with pytest.raises(PageProblemError, match=f"unknown {name}"):
        await page_of(pages, name, at=AT, **parts)


async def test_a_page_of_the_past_links_to_curves_that_may_be_stored(tmp_path: Path) -> None:
    pages = fleet(tmp_path, ["n1"], past_incidents())
    curves = re.escape(f'/history?at={AT}">Curves around this time')
    for name, parts in (("rail", {"rail": "3"}), ("job", JOB)):
        text, _ = await page_of(pages, name, at=AT, **parts)
        assert re.search(curves, text)
        text, _ = await page_of(pages, name, at=str(AT_NS // 1_000_000 - 3_600_000), **parts)
        assert "/history" not in text
        assert "curves of rails and jobs cover the last hour" in text


async def test_a_page_of_the_past_is_not_refreshed(tmp_path: Path) -> None:
    async with (
        console(tmp_path, allow_anonymous_read=True) as running,
        browser(running.url) as reader,
    ):
        now = await reader.get("/")
        (link,) = set(re.findall(r'href="(/\?at=\d+)"', now.text))
        past = await reader.get(link)
        assert (past.status, "data-fragment" in past.text) == (200, False)
        assert f"/api/v1/pages{link}" in count_elements(past.text).links
        twin = msgspec.json.decode((await reader.get(f"/api/v1/pages{link}")).text)
        assert (twin["incidents"], twin["found"]) == ([], 0)


@pytest.mark.parametrize(
    "query",
    [
        "at=4102444800000",
        "at=2100-01-01T00:00:00.000Z",
        "at=1790000000000&from=now-6h&to=now",
    ],
)
async def test_a_time_after_the_present_is_the_present(tmp_path: Path, query: str) -> None:
    async with (
        console(tmp_path, allow_anonymous_read=True) as running,
        browser(running.url) as reader,
    ):
        for path in ("/", "/incidents", "/nodes/n1", "/rails/0"):
            answer = await reader.get(f"{path}?{query}")
            assert answer.status == 200, answer.text
            fragment = html.unescape(re.findall(r'data-fragment="([^"]*)"', answer.text)[0])
            assert "fragment=1" in fragment
            assert "at=" not in fragment
            assert "What is not known" not in answer.text
        curves = await reader.get(f"/nodes/n1/gpus/0?{query.partition('&')[0]}")
        assert ('data-seconds="10"' in curves.text) == ("now" not in query)


async def test_advice_and_closed_incidents_change_no_state() -> None:
    advice = incident_at("a", 1, severity="info")
    closed = incident_at("a", 1, ended="2026-01-01T00:00:00Z")
    assert entity_states.marks_of([advice, closed], {}) == {}


async def test_a_node_that_never_reported_has_no_age_and_a_reason() -> None:
    facts = {"n1": entity_states.NodeFacts({}, is_fresh=False)}
    (row,) = entity_states.node_rows(facts, IncidentTable(NOW_NS), NOW_NS)
    assert (row.state, row.age_seconds, row.since_ns) == ("unknown", None, None)
    assert row.reason == "no frames since the collector started"


async def test_hostile_names_stay_text(tmp_path: Path) -> None:
    pages = fleet(tmp_path, [HOSTILE], [incident_at(HOSTILE, 0, victims=[HOSTILE])])
    for name, query in (("overview", {}), ("nodes", {"name": "img"})):
        text, _ = await page_of(pages, name, **query)
        assert "<img" not in text
        assert "&lt;img src=x onerror=alert(1)&gt;" in text
        assert "{{7*7}}" in text
        count_elements(text)
    assert page_path("nodes", name=HOSTILE) == (
        "/nodes?name=%3Cimg%20src%3Dx%20onerror%3Dalert%281%29%3E%22%27%26%7B%7B7%2A7%7D%7D"
    )


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({"offset": "-1"}, "invalid offset '-1': expected a number from 0 to 10000000"),
        ({"limit": "x"}, "invalid limit 'x': expected a number from 1 to 1000000"),
        (
            {"state": "good"},
            "invalid state 'good': expected one of degraded, failed, healthy, unknown",
        ),
        ({"name": "n" * 101}, f"invalid name '{'n' * 40}': expected at most 100 characters"),
    ],
)
def test_an_invalid_query_states_what_is_expected(query: dict[str, str], text: str) -> None:
    with pytest.raises(PageProblemError) as problem:
        parse_query(PAGES_BY_NAME["nodes"], query)
    assert (problem.value.text, problem.value.status) == (text, 400)


async def test_twins_tags_and_static_files(tmp_path: Path) -> None:
    still = {"view_refresh_seconds": 3600.0, "diagnosis": DiagnosisSettings(enabled=False)}
    async with console(tmp_path, **still) as running, browser(running.url) as reader:
        await reader.sign_in(TOKENS[Role.OPERATOR])
        page = await reader.get("/nodes?state=unknown")
        assert (
            '<link rel="alternate" type="application/json" href="/api/v1/pages/nodes?state=unknown">'
            in page.text
        )
        twin = await reader.get("/api/v1/pages/nodes?state=unknown")
        rows = msgspec.json.decode(twin.text)["rows"]
        assert [row["node"] for row in rows] == ["n1"]
        assert (
            twin.text == (await reader.get("/nodes?state=unknown", Accept="application/json")).text
        )
        for path in ("/nodes?state=healthy", "/nodes?fragment=1", "/api/v1/pages/nodes"):
            tag = (await reader.get(path)).headers["ETag"]
            again = await reader.get(path, If_None_Match=tag)
            assert (again.status, again.text) == (304, "")
            assert (await reader.get(path, If_None_Match='"other"')).status == 200
        fragment = await reader.get("/nodes?fragment=1")
        assert "<html" not in fragment.text
        assert "data-live" in fragment.text
        bad = await reader.get("/nodes?limit=0")
        assert (bad.status, "expected a number" in bad.text) == (400, True)
        bad = await reader.get("/api/v1/pages/nodes?limit=0", Accept="*/*")
        assert (bad.status, "expected a number" in msgspec.json.decode(bad.text)["error"]) == (
            400,
            True,
        )
        for url in re.findall(r'"(/static/[^"]+)"', page.text):
            file = await reader.get(url)
            assert file.status == 200
            assert file.headers["Cache-Control"] == "public, max-age=31536000, immutable"
            assert hashlib.sha256(file.text.encode()).hexdigest().startswith(url.split("/")[2])
            assert (await reader.get(url.replace("/static/", "/static/0"))).status == 404


@pytest.mark.parametrize(
    ("name", "parts", "url"),
    [
        ("overview", {}, "https://g/x/d/railscope-cluster?from=now-1h&to=now"),
        ("node", {"node": "a&b"}, "https://g/x/d/railscope-node?from=now-1h&to=now&var-node=a%26b"),
        ("api", {}, ""),
    ],
)
def test_pages_link_to_dashboards(name: str, parts: dict[str, str], url: str) -> None:
    base = check_grafana_url("https://g/x/")
    asked = PageRequest(PAGES_BY_NAME[name], ANYONE, parts, None, base)
    assert asked.dashboard() == url
    assert PageRequest(PAGES_BY_NAME[name], ANYONE, parts).dashboard() == ""


def test_every_dashboard_of_a_page_exists_with_its_variables() -> None:
    directory = Path(__file__).parents[2] / "dashboards" / "generated"
    variables_by_uid = {}
    for path in directory.glob("*.json"):
        dashboard = msgspec.json.decode(path.read_bytes())
        variables_by_uid[dashboard["uid"]] = {
            each["name"] for each in dashboard["templating"]["list"]
        }
    for page in PAGES_BY_NAME.values():
        parts = dict.fromkeys(re.findall(r"{(\w+)}", page.path), "x")
        link = PageRequest(page, ANYONE, parts, None, "http://g").dashboard(1, 2)
        if link:
            uid, _, query = link.removeprefix("http://g/d/").partition("?")
            assert set(re.findall(r"var-(\w+)=", query)) <= variables_by_uid[uid]


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "grafana.example", "https://", "http://g/?x=1"]
)
def test_an_invalid_url_of_grafana_is_rejected(url: str) -> None:
    with pytest.raises(SettingsError, match=r"invalid console\.grafana_url"):
        check_grafana_url(url)


async def test_large_answers_are_compressed_for_clients_that_accept_it(tmp_path: Path) -> None:
    still = {"view_refresh_seconds": 3600.0, "diagnosis": DiagnosisSettings(enabled=False)}
    async with console(tmp_path, **still) as running, browser(running.url) as reader:
        await reader.sign_in(TOKENS[Role.AUDITOR])
        large = ("/", "/?fragment=1", "/api/v1/pages/railscope")
        for path in (*large, "/api/v1/cluster", "/api/v1/pages/incidents"):
            plain = await reader.get(path, Accept_Encoding="identity, gzip;q=0")
            assert "Content-Encoding" not in plain.headers
            assert int(plain.headers["Content-Length"]) == len(plain.text.encode())
            sent = await reader.get(path, Accept_Encoding="deflate, gzip")
            assert (sent.headers.get("Content-Encoding") == "gzip") == (path in large), path
            if path in large:
                assert int(sent.headers["Content-Length"]) < len(plain.text) / 2
            # A record of the audit log may be written between the two.
            has_same_tag = sent.headers.get("ETag") == plain.headers.get("ETag")
            assert has_same_tag or sent.text != plain.text
            assert sent.text[:20] == plain.text[:20]


async def test_a_page_is_made_once_for_concurrent_requests() -> None:
    cache, made = PageCache(), []
    release = asyncio.Event()

    async def make() -> RenderedContent:
        made.append(1)
        await release.wait()
        return RenderedContent.from_body("text")

    waiting = [asyncio.ensure_future(cache.get("key", make)) for _ in range(10)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    release.set()
    found = await asyncio.gather(*waiting[1:])
    assert {content.body for content in found} == {"text"}
    assert len(made) == 1

    async def fail() -> RenderedContent:
        raise PageProblemError(HTTPStatus.NOT_FOUND, "nothing")

    for _ in range(2):
        with pytest.raises(PageProblemError):
            await cache.get("other", fail)
    assert (await cache.get("other", make)).body == "text"


def curved(node: str) -> ReportedIncident:
    """An incident with a curve that begins with an unknown value."""
    points = [
        CurvePoint(NOW_NS + n * 10 * SECOND_NS, float("nan") if n < 3 else n / 10, 0.1)
        for n in range(60)
    ]
    evidence = {
        "signal": "pause", "device": f"{node} eth1", "value": 0.9, "threshold": 0.5,
        "comparison": "at least", "window_seconds": 30.0,
    }  # fmt: skip
    incident = incident_at(
        node, 1, victims=[f"{HOSTILE}{n}" for n in range(300)], evidence=[evidence]
    )
    return replace(incident, curves=(EvidenceCurve("pause", "ratio", points).document(),))


async def test_an_incident_has_evidence_with_curves_victims_and_a_timeline(tmp_path: Path) -> None:
    running = fleet(tmp_path, [HOSTILE], [curved(HOSTILE)])
    text, model = await page_of(running, "incident", incident="I1")
    counted = count_elements(text)
    assert (len(text) < MAX_BYTES, counted.nodes < MAX_ELEMENTS) == (True, True)
    assert "<img" not in text
    assert text.count("<polyline") == 2
    assert f"{HOSTILE} eth1: pause: 0.9 (at least: 0.5)" in html.unescape(text)
    assert [point.value for point in model.curves[0].points[:4]] == [None, None, None, 0.3]
    assert model.figures[0].figure.curves[0].values[:4] == [None, None, None, 0.3]
    assert model.figures[0].figure.captions[0].startswith("Cause: last 590 %")
    assert len(model.devices) == 100
    assert "300 NICs; the first 100 are listed" in text
    text, model = await page_of(running, "incidents", severity="warning")
    assert [row.id for row in model.rows] == ["I1"]
    with pytest.raises(PageProblemError, match="unknown incident 'x'"):
        await page_of(running, "incident", incident="x")


async def test_a_tenant_sees_incidents_of_its_jobs_and_no_other_events(tmp_path: Path) -> None:
    nodes = {"vision": frozenset({"n1"})}
    running = fleet(tmp_path, ["n1", "n2"], [replace(curved("n2"), tenant_nodes=nodes)])
    own = Credential("board", Role.TENANT, "vision")
    _, model = await page_of(running, "incident", own, incident="I1")
    assert model.devices == []
    assert [(each.tenant, each.workload) for each in model.jobs] == [("vision", "7")]
    _, model = await page_of(running, "overview", own)
    assert (model.nodes, model.grid, model.data, model.events) == (None, None, None, ())
    assert [row.id for row in model.status.open_incidents] == ["I1"]
    other = Credential("board", Role.TENANT, "speech")
    _, model = await page_of(running, "incidents", other)
    assert (model.rows, model.counts) == ((), {})
    with pytest.raises(PageProblemError, match="unknown incident 'I1'"):
        await page_of(running, "incident", other, incident="I1")
    _, model = await page_of(running, "jobs", own)
    assert (model.suppressed, model.problem != "") == (0, True)


async def test_a_tenant_reads_no_node_of_another_tenant_on_the_page_of_an_incident(
    tmp_path: Path,
) -> None:
    nodes = {"vision": frozenset({"n1"})}
    found = replace(curved("secret"), tenant_nodes=nodes)
    running = fleet(tmp_path, ["n1", "secret"], [found])
    facts = {"change": "opened", **incident_facts(found.document)}
    opened = WireEvent("incident_opened", 0, WireEntity("incident", ("I1",)), NOW_NS, NOW_NS, facts)
    running.pages.api.core.events.add(SeenEvent("secret", "", opened))
    text, model = await page_of(
        running, "incident", Credential("board", Role.TENANT, "vision"), incident="I1"
    )
    assert [(row.name, row.node, row.devices) for row in model.timeline] == [
        ("incident_opened", "", "")
    ]
    assert ("secret" in text, "NIC of another node (rail 1)" in text) == (False, True)
    _, whole = await page_of(running, "incident", incident="I1")
    assert [(row.node, row.devices) for row in whole.timeline] == [("secret", "eth1")]


async def test_a_node_has_its_rails_with_readings_or_the_reasons_for_none(tmp_path: Path) -> None:
    disabled = DiagnosisSettings(enabled=False)
    async with console(tmp_path, diagnosis=disabled) as running, browser(running.url) as reader:
        await reader.sign_in(TOKENS[Role.OPERATOR])
        twin = msgspec.json.decode((await reader.get("/api/v1/pages/nodes/n1")).text)
        assert [(gpu["rail"], gpu["state"], gpu["gpu"]) for gpu in twin["gpus"]] == [
            (0, "unknown", "GPU-n1-0"),
            (1, "unknown", "GPU-n1-1"),
        ]
        gpu = twin["gpus"][1]
        readings = gpu["utilization_ratio"], gpu["power_watts"], gpu["transmit_bytes_per_second"]
        assert readings == (0.6, 2.0, None)
        page = await reader.get("/nodes/n1")
        assert '<span class="quiet">not reported</span>' in page.text
        assert "the agent has no verdict on the GPU" in page.text
        rails = msgspec.json.decode((await reader.get("/api/v1/rails")).text)["rails"]
        assert [(row["rail"], row["unknown"]) for row in rails] == [(0, 1), (1, 1)]
        page = await reader.get("/rails/1")
        assert 'href="/nodes/n1"' in page.text
        missing = await reader.get("/rails/9")
        assert (missing.status, "unknown rail" in missing.text) == (404, True)


async def test_railscope_itself_has_cost_ages_and_gaps(tmp_path: Path) -> None:
    async with console(tmp_path) as running, browser(running.url) as reader:
        await reader.sign_in(TOKENS[Role.OPERATOR])
        twin = msgspec.json.decode((await reader.get("/api/v1/pages/railscope")).text)
        assert [name for name, _ in twin["oldest"]] == ["n1"]
        assert (twin["missing"], twin["missing_frames"], twin["governor"]) == ([], 0, [])
        assert twin["max_agent_cpu_ratio"] is None, "the node has not reported it"
        values = {each["metric"]: each["value"] for each in twin["values"]}
        assert values["railscope_collector_received_envelopes_total"] == 1
        assert "No frame is missing" in (await reader.get("/railscope")).text


async def test_the_costs_of_simulated_agents_are_not_shown_as_costs(tmp_path: Path) -> None:
    """An agent of a capture or a simulated node reports the memory of its replay, in the frames with its costs."""
    costs = {agent.AGENT_CPU_USE: 20_000, agent.AGENT_MEMORY: 50 * 10**6}
    sender = FrameSender("n1", "run-2")
    async with console(tmp_path) as running, browser(running.url) as reader:
        await reader.sign_in(TOKENS[Role.OPERATOR])

        async def shown(row: dict[Metric, int], at: int) -> tuple[float | None, int, str]:
            columns = [(metric, Entity(entities.NODE)) for metric in row]
            ordered = tuple(columns[i] for i in Schema.ordered(columns))
            schema = Schema("agent", ordered)
            frames = sender.frames(schema, [[row[metric] for metric, _ in ordered]], at=at)
            headers = {"Authorization": f"Bearer {TOKENS[Role.NODE]}"}
            body = sender.body(frames, schemas=True)
            status, reply = await running.post(body, at=at, headers=headers)
            assert status == 200, reply
            await running.collector.refresher.refresh()
            twin = msgspec.json.decode((await reader.get("/api/v1/pages/railscope")).text)
            text = (await reader.get("/railscope")).text
            return twin["max_agent_cpu_ratio"], twin["simulated_agents"], text

        cpu_ratio, simulated, text = await shown({**costs, agent.REPLAY_MEMORY: 10**6}, 2)
        assert (cpu_ratio, simulated) == (None, 1)
        assert "simulated: costs not comparable" in text
        assert "Left out: 1 simulated agent." in text
        assert "costliest" not in text
        cpu_ratio, simulated, text = await shown(costs, 3)
        assert (cpu_ratio, simulated) == (0.02, 0)
        assert "<b>2 %</b> of a core, the costliest agent" in text
        assert "simulated" not in text


@pytest.mark.parametrize(("stale", "state", "rails"), [(0, "degraded", "D"), (1, "unknown", "U")])
async def test_a_node_is_unknown_only_without_fresh_data(
    tmp_path: Path, stale: int, state: str, rails: str
) -> None:
    cause = {"kind": "node", "node": "n1"}
    partition = incident_at("n1", 0, cause=cause, **{"class": "agent_partition"})
    _, model = await page_of(fleet(tmp_path, ["n1"], [partition], stale), "overview")
    (row,) = model.nodes.rows
    assert (row.state, row.rails) == (state, rails * 8)
    assert (model.data.stale_count, model.data.stale_nodes) == (stale, ("n1",) * stale)


def test_events_of_several_devices_at_once_are_one_row() -> None:
    def event(name: str, index: str, second: int) -> SeenEvent:
        entity = WireEntity("claim", (index, "c"))
        at_ns = second * SECOND_NS
        facts = {"source": "slurm", "workload": "7", "tenant": "vision"}
        return SeenEvent("n1", "boot", WireEvent(name, 0, entity, at_ns, at_ns, facts))

    events = [event("claim_start", str(n % 3), 10) for n in range(6)]
    events += [event("claim_end", "0", 11), event("claim_start", "0", 5)]
    writer = EventWriter({}, lambda _, entity: {"kind": "gpu", "index": entity.key[0]})
    rows = writer.newest(events, 10)
    assert [(row.name, row.devices, row.timestamp_ns) for row in rows] == [
        ("claim_end", "GPU 0", 11 * SECOND_NS),
        ("claim_start", "GPU 0 to 2", 10 * SECOND_NS),
    ]
    assert rows[0].text == "7 of vision (slurm)"
    assert rows[1].text == "7 of vision (slurm), up to 2 times within 5.0 s"
    assert [row.name for row in writer.newest(events, 1)] == ["claim_end"]


def test_a_repeated_event_is_one_row_until_another_thing_happens_to_its_device() -> None:
    def event(second: int, index: str, after: str) -> SeenEvent:
        at_ns = second * SECOND_NS
        hot = ", temperature_margin" if second == 50 else ""
        facts = {"before": "degraded", "after": after, "reasons": f"thermal_software{hot}"}
        wire = WireEvent("gpu_health", 0, WireEntity("gpu", (index,)), at_ns, at_ns, facts)
        return SeenEvent("n1", "boot", wire)

    events = [event(10 * n, "0", "degraded") for n in range(1, 11)]
    events += [event(55, "1", "degraded"), event(5, "0", "failed"), event(1, "0", "degraded")]
    writer = EventWriter({}, lambda _, entity: {"kind": "gpu", "index": entity.key[0]})
    rows = [(row.devices, row.text) for row in writer.newest(events, 10)]
    heat, limit = "slowed down by heat (driver)", "temperature at its limit"
    repeated = f"degraded ({heat}, {limit}), 10 times within 1 min 30 s"
    assert rows == [
        ("GPU 0", repeated),
        ("GPU 1", f"degraded ({heat})"),
        ("GPU 0", f"degraded → failed ({heat})"),
        ("GPU 0", f"degraded ({heat})"),
    ]
    (row,) = writer.newest(events, 1)
    assert (row.timestamp_ns, row.text) == (100 * SECOND_NS, repeated)


@pytest.mark.parametrize(
    ("name", "entity", "facts", "text", "severity"),
    [
        ("gpu_health", ("gpu", "G"), {"before": "healthy", "after": "failed", "reasons": "xid_fatal, new_rule"},
         "GPU health: healthy → failed (fatal Xid, new_rule)", "error"),
        ("gpu_health", ("gpu", "G"), {"before": "degraded", "after": "degraded", "reasons": "xid_action, gpu_lost (timeout), pcie_width (timeout)"},
         "GPU health: degraded (Xid that requires an action; not read in time: GPU lost, fewer PCIe lanes than expected)", "error"),
        ("claim_start", ("claim", "0", "c"), {"source": "slurm", "workload": "7", "owner": "nlp"},
         "Job started: 7 of language (slurm)", "info"),
        ("source_state", ("source", "gpu_verdict"), {"before": "ok", "after": "failed", "problem": "no answer"},
         "Source state: ok → failed (no answer)", "warning"),
        ("gpu_health", ("gpu", "G"), {"before": "failed", "after": "healthy", "reasons": ""},
         "GPU health: failed → healthy", "info"),
        ("claim_start", ("claim", "0", "c"), {"source": "command", "tenant": "vision", "start_ns": "1"},
         "Job started: unnamed of vision (command)", "info"),
        ("gpu_event", ("gpu_event", "0000:9d:00.0", "single_bit_ecc_error"), {"data": "4"},
         "Driver event: single bit ECC error (data 4)", "warning"),
        ("link_change", ("link_change", "eth0", "up"), {"message": "mlx5_core 0000:18:00.0 eth0: Link up"},
         "Link: up", "info"),
        ("link_change", ("link_change", "eth0", "up"), {"message": "ice 0000:18:00.0 eth0: NIC Link is up 100 Gbps Full Duplex, FEC: RS"},
         "Link: up (100 Gbps Full Duplex, FEC: RS)", "info"),
        ("xid", ("xid", "0000:18:00.0", "48"), {"name": "GPU_ECC_DBE", "meaning": "Memory had an uncorrectable error."},
         "Xid: 48 GPU_ECC_DBE: Memory had an uncorrectable error.", "error"),
        ("link_change", ("link_change", "eth0", "down"), {}, "Link: down", "warning"),
        ("pcie_error", ("pcie", "0000:18:00.0"), {"message": "bad"}, "PCIe error: bad", "info"),
        ("link_change", ("link_change", "eth0", "up"), {"message": "bnxt_en 0000:18:00.0 eth0: NIC Link is Up, 100000 Mbps full duplex"},
         "Link: up (100000 Mbps full duplex)", "info"),
    ],
)  # fmt: skip
def test_an_event_is_a_line_of_words(
    name: str, entity: tuple[str, ...], facts: dict[str, str], text: str, severity: str
) -> None:
    event = WireEvent(name, 0, WireEntity(entity[0], entity[1:]), SECOND_NS, SECOND_NS, facts)
    writer = EventWriter(
        {}, lambda *_: None, lambda _, owner, __: {"nlp": "language"}.get(owner, "")
    )
    (row,) = writer.newest([SeenEvent("n1", "boot", event)], 1)
    assert (f"{title_of(row.name)}: {row.text}", row.severity) == (text, severity)
    if entity[0] in {"gpu_event", "link_change"}:
        assert row.devices == entity[1]
    if entity[0] == "source":
        assert row.devices == "source GPU verdict"


GPU_CAUSE = {"kind": "gpu", "node": "a", "index": 3, "uuid": "GPU-a-3", "pci_address": ""}


@pytest.mark.parametrize("length", range(4))
@pytest.mark.parametrize("name", EVENTS)
def test_an_event_with_a_key_of_any_length_is_a_row(name: str, length: int) -> None:
    """Agents choose the keys of their events."""
    entity = WireEntity(EVENTS[name].about.name, ("k",) * length)
    event = WireEvent(name, 0, entity, SECOND_NS, SECOND_NS, {"message": "m"})
    writer = EventWriter({}, lambda *_: None)
    (row,) = writer.newest([SeenEvent("n1", "boot", event)] * 2, 1)
    assert row.name == name


def test_a_row_of_events_is_bounded_and_of_one_communicator() -> None:
    def event(second: int, entity: WireEntity, facts: dict[str, str]) -> SeenEvent:
        at_ns = second * SECOND_NS
        return SeenEvent("n1", "boot", WireEvent("x", 0, entity, at_ns, at_ns, facts))

    writer = EventWriter({}, lambda *_: None)
    ranks = [
        event(n, WireEntity("nccl_rank", (name, "3")), {"a": "b"})
        for n, name in [(1, "t"), (2, "p"), (3, "t")]
    ]
    assert [row.text for row in writer.newest(ranks, 10)] == ["a b, 2 times within 2.0 s", "a b"]
    stays = {"before": "degraded", "after": "degraded"}
    reasons = [
        event(n, WireEntity("gpu", ("G",)), {**stays, "reasons": f"{n}" * 900}) for n in range(20)
    ]
    (row,) = writer.newest(reasons, 10)
    assert len(row.text) < 300


@pytest.mark.parametrize(
    ("cause", "links"),
    [
        (GPU_CAUSE, {f"/nodes/a/gpus/3?at={1_000}", "/nodes/a/gpus/3"}),
        (None, {"/nodes/a#rail-2", "/rails/2"}),
        ({"kind": "node", "node": "a", "interfaces": []}, {f"/nodes/a/history?at={1_000}"}),
    ],
)
async def test_an_incident_links_to_its_device(
    tmp_path: Path, cause: dict[str, Any] | None, links: set[str]
) -> None:
    onset = {"onset": "1970-01-01T00:00:01Z"}
    found = incident_at("a", 2, **onset, **({"cause": cause} if cause else {}))
    for name, parts in (("incident", {"incident": "I1"}), ("overview", {})):
        text, _ = await page_of(fleet(tmp_path, ["a"], [found]), name, **parts)
        assert links <= set(count_elements(text).links), name


async def test_an_incident_shows_its_worst_evidence_and_that_it_recovers(tmp_path: Path) -> None:
    evidence = {
        "signal": "write_stall", "device": "a eth2", "value": 0.2, "threshold": 0.1, "comparison": "limit",
        "window_seconds": 30.0, "worst_value": 0.6, "worst_at": "1970-01-01T00:00:05Z",
    }  # fmt: skip
    found = incident_at("a", 2, evidence=[evidence], last_evidence="1970-01-01T00:00:10Z")
    recovering = replace(found, recovering_slots=4)
    for name, parts in (("incident", {"incident": "I1"}), ("overview", {})):
        text, _ = await page_of(fleet(tmp_path, ["a"], [recovering]), name, **parts)
        assert "20 % of the time (limit: 10 %); worst: 60 % <time" in text, name
        assert ("Last evidence" in text) == (name == "incident")
    assert "recovering: no evidence for 40 s" in text


async def test_a_loss_that_is_not_known_is_no_zero(tmp_path: Path) -> None:
    found = incident_at("a", 0, victims=["b"], lost_gpu_time_seconds=None)
    for name, parts in (("incident", {"incident": "I1"}), ("overview", {}), ("incidents", {})):
        text, _ = await page_of(fleet(tmp_path, ["a", "b"], [found]), name, **parts)
        assert "not known" in text
        assert "0.0 s" not in text


async def test_an_empty_collector_states_what_to_do(tmp_path: Path) -> None:
    text, _ = await page_of(fleet(tmp_path, [], []), "overview")
    assert "Unknown: no node has ever reported" in text
    assert "systemctl enable --now railscope-agent" in text
    assert "all healthy" not in text


async def test_the_overview_has_incidents_first_and_what_runs(tmp_path: Path) -> None:
    text, model = await page_of(fleet(tmp_path, ["a", "b"], [incident_at("a", 0)]), "overview")
    assert text.index('id="open"') < text.index('id="load"') < text.index('id="state"')
    assert model.status.gpus == {"claimed": 0, "unclaimed": 0, "idle": 0, "unknown": 16}
    assert (model.load.power_watts, model.load.max_pause_ratio) == (None, None)
    assert "<b>not known</b> GPUs claimed" in text, "claims cannot be determined"
    text, _ = await page_of(fleet(tmp_path, ["a"], []), "overview")
    assert text.index('id="load"') < text.index('id="state"') < text.index('id="open"')


async def test_the_overview_has_a_curve_of_15_minutes_of_each_value(tmp_path: Path) -> None:
    api = fleet(tmp_path, ["a"], []).pages.api
    views = replace(api.views(), load=loads(), jobs=RunningJobs(NOW_NS))
    api = replace(api, views=lambda: views)
    text, model = await page_of(Fleet(FleetPages(api), page_models(api)), "overview")
    assert model.load.transmit_bytes_per_second == pytest.approx(30.0)
    assert model.load.max_pause_ratio == 0.0, "that of the newest roll-ups, of the last minute"
    assert model.load.gpu_hours_today == 59
    assert "<b>59</b> GPU-hours today (UTC)" in text
    assert "<b>0 of 8</b> GPUs claimed" in text
    assert text.count('class="spark"') == len(model.load.curves) == 7
    shown = {name: curve.values for name, curve in model.load.curves.items()}
    assert max(each for each in shown["max_pause_ratio"] if each is not None) == 0.9
    assert shown["power_watts"][:2] == [None, 1000.0], "a value that is not known is a gap"


def loads() -> tuple[ClusterLoad, ...]:
    """Loads of ten minutes: a large pause eight minutes ago, a smaller one two minutes ago, and no power at first."""
    points: tuple[ClusterLoad, ...] = ()
    for step in range(60):
        pause = {12: 0.9, 48: 0.4}.get(step, 0.0)
        power = 1000.0 if step else None
        at_ns = NOW_NS - (59 - step) * 10 * SECOND_NS
        points = extend_load(points, ClusterLoad(at_ns, 4, 0.5, power, 30.0, pause, 2, float(step)))
    return points


def test_a_time_is_relative_with_the_exact_one_as_its_title() -> None:
    at_ns = NOW_NS - 250 * SECOND_NS
    shown = page_rendering.time_element(at_ns, NOW_NS)
    assert shown == (
        '<time datetime="2026-09-21T14:09:10Z" title="2026-09-21 14:09:10 UTC">4 min ago</time>'
    )
    assert ">2026-09-21 14:09:10<" in page_rendering.time_element(at_ns)
