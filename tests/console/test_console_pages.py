"""Content of pages: bounds at any number of nodes, hostile names, JSON, entity tags, static files, cache."""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from console_site import TOKENS, browser, console, count_elements, incident_at
from support.schemas import schemas_in

from railscope.catalog import EVENTS, collector as catalog
from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import SECOND_NS
from railscope.wire import WireEntity, WireEvent
from railscope_collector.access.credentials import ANYONE, Credential, Role
from railscope_collector.config import DiagnosisSettings
from railscope_collector.console import (
    page_rendering,
)
from railscope_collector.console.console_server import page_models
from railscope_collector.console.fleet_pages import FleetPages
from railscope_collector.console.page_table import (
    PAGES_BY_NAME,
    PageContent,
    PageModels,
    PageRequest,
    parse_query,
)
from railscope_collector.diagnosis.diagnosis_curves import (
    CurvePoint,
    EvidenceCurve,
)
from railscope_collector.diagnosis.incident_table import (
    IncidentTable,
    ReportedIncident,
    incident_facts,
)
from railscope_collector.fleet.recent_events import SeenEvent
from railscope_collector.fleet.view_cells import View, ViewCell
from railscope_collector.http import ResourceError
from railscope_collector.http.event_list import EventWriter
from railscope_collector.http.read_api import ViewApi
from railscope_collector.http.resources import CollectorApis
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.view_refresh import CollectorViews
from railscope_collector.views.fresh_rows import Floats
from railscope_collector.views.gpu_list import LISTED_METRICS, ListedReadings
from railscope_collector.workloads.job_roster import JobGpu, JobHolding, JobKey, RunningJob
from railscope_collector.workloads.job_view import RunningJobs

MAX_BYTES, MAX_ELEMENTS = 600_000, 6_000
HOSTILE = "<img src=x onerror=alert(1)>\"'&{{7*7}}"
NOW_NS = 1_790_000_000 * SECOND_NS


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
    core = CollectorState(schemas_in(directory))
    core.gpus_by_node = {name: {rail: f"GPU-{name}-{rail}" for rail in range(8)} for name in nodes}
    fresh = len(nodes) - stale
    cells = [ViewCell(catalog.NODE_UP, (name,), n < fresh) for n, name in enumerate(nodes)]
    cells += [ViewCell(catalog.NODE_AGE, (name,), 1.5) for name in nodes]
    gpus = HealthyGpus(dict(core.gpus_by_node))
    views = CollectorViews(NOW_NS, node=View("node", NOW_NS, tuple(cells)), gpus=gpus)
    table = IncidentTable(diagnosed_ns, tuple(incidents))
    own_metrics: Any = SimpleNamespace(unknown_reason="")
    api = ViewApi(core, own_metrics, lambda: views, lambda: table, wall_ns=lambda: NOW_NS)
    return Fleet(FleetPages(api), models_of(api))


def models_of(api: ViewApi) -> PageModels:
    """Models of the pages about the cluster, without billing, audit log and stored frames."""
    rest: Any = None
    return page_models(CollectorApis(api, rest, rest, rest))


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
    asked = PageRequest(reader, parts, parse_query(page, values.items()), page=page)
    model = await site.models[name](asked)
    content = model if isinstance(model, PageContent) else PageContent(model)
    model, shown = content
    text = page_rendering.render(f"{name}.html", model=model, request=asked, **shown)
    return text, ShownPage(model, shown)


@pytest.mark.parametrize("count", [1_000, pytest.param(4_000, marks=pytest.mark.thorough)])
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
        Fleet(FleetPages(api), models_of(api)), "job", own, tenant="vision", source="slurm", workload="7"
    )  # fmt: skip
    assert [(row.node, row.area, row.devices) for row in model.events] == [("a", "job", "rank 2")]
    shown = "collective all_reduce, sequence 417, waiting ranks 0-1 3, GPU index 2, stack "
    assert f"Collective late: {shown}{HOSTILE}" in html.unescape(text)
    assert "<img" not in text


def test_markdown_of_a_document_stays_text() -> None:
    text = page_rendering.render_markdown(
        f"# {HOSTILE}\n\nsee [x](javascript:alert(1)), `{HOSTILE}`, ![i](i.png) and [y](Known.md#a)\n"
        "- a\n  b\n- `Known`, [`Known`](Known.md), <http://x>",
        {"Known": "/runbooks/Known"},
    )
    assert "<img" not in text
    assert re.findall(r'href="([^"]*)"', text) == [
        "/runbooks/Known#a",
        "/runbooks/Known",
        "/runbooks/Known",
    ]
    assert "<li>a\nb</li>" in text


async def test_json_tags_and_static_files(tmp_path: Path) -> None:
    still = {"view_refresh_seconds": 3600.0, "diagnosis": DiagnosisSettings(enabled=False)}
    async with console(tmp_path, **still) as running, browser(running.url) as reader:
        await reader.sign_in(TOKENS[Role.OPERATOR])
        page = await reader.get("/nodes?state=unknown")
        found = await reader.get("/nodes?state=unknown", Accept="application/json")
        rows = msgspec.json.decode(found.text)["rows"]
        assert [row["node"] for row in rows] == ["n1"]
        for path in ("/nodes?state=healthy", "/nodes?fragment=1", "/nodes"):
            tag = (await reader.get(path)).headers["ETag"]
            again = await reader.get(path, If_None_Match=tag)
            assert (again.status, again.text) == (304, "")
            assert (await reader.get(path, If_None_Match='"other"')).status == 200
        fragment = await reader.get("/nodes?fragment=1")
        assert "<html" not in fragment.text
        assert "data-live" in fragment.text
        bad = await reader.get("/nodes?limit=0")
        assert (bad.status, "expected a number" in bad.text) == (400, True)
        bad = await reader.get("/nodes?limit=0", Accept="application/json")
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
    with pytest.raises(ResourceError, match="unknown incident 'x'"):
        await page_of(running, "incident", incident="x")


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


def test_an_event_with_a_key_of_any_length_is_a_row() -> None:
    """Agents choose the keys of their events."""
    for name, length in product(EVENTS, range(4)):
        check_row(name, length)


def check_row(name: str, length: int) -> None:
    entity = WireEntity(EVENTS[name].about.name, ("k",) * length)
    event = WireEvent(name, 0, entity, SECOND_NS, SECOND_NS, {"message": "m"})
    writer = EventWriter({}, lambda *_: None)
    (row,) = writer.newest([SeenEvent("n1", "boot", event)] * 2, 1)
    assert row.name == name
