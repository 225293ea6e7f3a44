"""Pages with curves: the period of a URL, what is not stored, bounds, and the figures in a browser."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
import pytest_asyncio
from aiohttp import web
from console_site import TOKENS, browser as reading, console, count_elements
from makers import FrameSender, gpu_schema, rdma_schema
from running_collector import RunningCollector
from support.browser import visiting

from railscope.catalog.entities import CPU_MODE
from railscope.catalog.host import CPU_TIME
from railscope.frame import Entity, Schema
from railscope.timestamps import HOUR_NS, SECOND_NS, format_timestamp
from railscope_collector.access.credentials import ANYONE, Credential, Role
from railscope_collector.console import PageProblemError, page_rendering
from railscope_collector.console.curves import HistoryCurve, TimeRange
from railscope_collector.console.group_curves import (
    BEFORE_JOB,
    MAX_NODES,
    GroupDevices,
    GroupKey,
    GroupMembers,
    GroupNode,
    find_members,
    read_nodes,
)
from railscope_collector.console.history_pages import (
    AFTER_NS,
    BEFORE_NS,
    NO_SERVER,
    SERVER_FAILED,
    SHARED_GPUS,
    USUAL_PERIOD_NS,
    GpuPageModel,
    GroupPageModel,
    HistoryPages,
    ServerHistory,
    shown_period,
)
from railscope_collector.console.history_server import SOURCE, CurveQuery
from railscope_collector.console.node_history import TOO_MANY
from railscope_collector.console.page_table import (
    PAGES_BY_NAME,
    HistoryQuery,
    PageContent,
    PageRequest,
    parse_query,
)
from railscope_collector.console.stored_frames import MAX_RECORDS, StoredFrames
from railscope_collector.fleet.fleet import FleetNode
from railscope_collector.fleet.schemas import StoredSchemas
from railscope_collector.http.read_pool import MAX_READS_PER_REQUESTER, ReadPool
from railscope_collector.state.collector_state import CollectorState

if TYPE_CHECKING:
    from playwright.async_api import Browser

NOW_NS = 1_790_000_005 * SECOND_NS
PRESENT_NS = 1_790_000_000 * SECOND_NS
MAX_NS = 6 * HOUR_NS
SECONDS = 300


def milliseconds(timestamp_ns: int) -> str:
    return str(timestamp_ns // 1_000_000)


def period(**query: str) -> tuple[int, int, bool]:
    asked = parse_query(PAGES_BY_NAME["gpu"], {name.rstrip("_"): v for name, v in query.items()})
    assert isinstance(asked, HistoryQuery)
    found = shown_period(asked, NOW_NS, MAX_NS)
    return found.from_ns, found.to_ns, found.is_live


def test_without_times_the_last_minutes_are_shown() -> None:
    assert period() == (PRESENT_NS - USUAL_PERIOD_NS, PRESENT_NS, True)


def test_times_and_moments_choose_a_period() -> None:
    at_ns = PRESENT_NS - HOUR_NS
    expected = (at_ns - BEFORE_NS, at_ns + AFTER_NS, False)
    assert period(at=milliseconds(at_ns)) == expected
    assert period(at=format_timestamp(at_ns)) == expected
    assert period(from_=milliseconds(at_ns), to=milliseconds(at_ns + 10**11)) == (
        at_ns,
        at_ns + 10**11,
        False,
    )
    assert period(from_=milliseconds(at_ns)) == (at_ns, PRESENT_NS, False)
    assert period(to=milliseconds(at_ns)) == (at_ns - USUAL_PERIOD_NS, at_ns, False)
    assert period(from_=milliseconds(at_ns), to="1799999999999")[1] == PRESENT_NS


@pytest.mark.parametrize(("query", "problem"), [
    ({"at": "yesterday"}, "invalid at 'yesterday': expected a time"),
    ({"at": "1790000000000' or 1=1"}, "invalid at"),
    ({"at": "9" * 40}, "invalid at"),
    ({"at": "9" * 41}, "expected at most 40 characters"),
    ({"at": "١٢٣"}, "invalid at"),
    ({"at": "-1"}, "invalid at"),
    ({"at": "NaN"}, "invalid at"),
    ({"from": "0", "to": "10"}, "invalid from '0'"),
    ({"from": "1789999990000", "to": "1789999980000"}, "from before to"),
    ({"from": "1789900000000", "to": "1789999980000"}, "10 seconds to 6 hours"),
    ({"from": "1990000000000"}, "expected one that has begun"),
    ({"at": "1789999990000", "to": "1789999990000"}, "expected either at, or from and to"),
    ({"width": "99"}, "expected a number from 100 to 1000"),
    ({"width": "1e9"}, "expected a number from 100 to 1000"),
])  # fmt: skip
def test_hostile_periods_are_rejected_with_a_clear_error(
    query: dict[str, str], problem: str
) -> None:
    with pytest.raises(PageProblemError) as raised:
        period(**query)
    assert problem in raised.value.text
    assert raised.value.status is HTTPStatus.BAD_REQUEST


async def fill(running: RunningCollector) -> None:
    """Send five minutes of a GPU and its NIC: a burst of one second, and a minute without frames."""
    sender = FrameSender()
    sent = {"Authorization": f"Bearer {TOKENS[Role.NODE]}"}
    for start in range(10, SECONDS, 50):
        seconds = [second for second in range(start, start + 50) if not 160 <= second < 210]
        if not seconds:
            continue
        gpus = [
            [50, 99 if n == 123 else 60, 400_000, 500_000 + n, 1000 * n, 2000 * n] for n in seconds
        ]
        ports = [[10**9 * n, 2 * 10**9 * n, 0, n] for n in seconds]
        frames = [
            *sender.frames(gpu_schema("n1"), gpus, at=seconds[0]),
            *sender.frames(rdma_schema(), ports, at=seconds[0]),
        ]
        status, reply = await running.post(
            sender.body(frames, schemas=True), at=SECONDS, headers=sent
        )
        assert status == 200, reply
    await running.collector.refresher.refresh()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningCollector]:
    directory: Path = tmp_path_factory.mktemp("site")
    async with console(directory, allow_anonymous_read=True) as running:
        await fill(running)
        yield running


def whole(*, twin: bool = True) -> str:
    """The page over the last ten minutes up to the present."""
    prefix = "/api/v1/pages" if twin else ""
    return f"{prefix}/nodes/n1/gpus/1?from={milliseconds(time.time_ns() - 600 * SECOND_NS)}"


def curve(document: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [
        each for figure in document["figures"] for each in figure["curves"] if each["name"] == name
    ]
    return dict(found)


@pytest.mark.asyncio(loop_scope="session")
async def test_the_twin_has_the_curves_of_the_gpu_and_of_the_nic_on_its_rail(
    site: RunningCollector,
) -> None:
    async with reading(site.url) as client:
        answer = await client.get(whole())
        assert answer.status == 200, answer.text
        document = msgspec.json.decode(answer.text)
    history = document["history"]
    assert (document["gpu"]["gpu"], document["gpu"]["rail"]) == ("GPU-n1-1", 1)
    assert document["gpu"]["state"] == "unknown"
    assert [nic["device"] for nic in document["nics"]] == ["mlx5_1"]
    assert history["source"] == "the frame log of the collector"
    assert history["problem"].startswith("stored since ")
    utilization = curve(history, "utilization")
    known = [value for value in utilization["values"] if value is not None]
    assert max(known) == 0.99, "a burst of one second is visible"
    assert "this collector received no frame" in {gap["reason"] for gap in utilization["gaps"]}
    assert None in utilization["values"]
    sent = [value for value in curve(history, "nic_sent")["values"] if value is not None]
    assert sent == pytest.approx([2e9] * len(sent))
    assert curve(history, "temperature")["values"] == []


@pytest.mark.asyncio(loop_scope="session")
async def test_the_page_is_complete_without_scripts_and_bounded(site: RunningCollector) -> None:
    async with reading(site.url) as client:
        answer = await client.get(whole(twin=False))
        assert answer.status == 200, answer.text
        unknown = [
            (await client.get(path)).status
            for path in ("/nodes/n2/gpus/0", "/nodes/n1/gpus/7", "/nodes/n1/gpus/0?at=x")
        ]
    found = count_elements(answer.text)
    assert found.nodes < 6_000
    assert len(answer.text.encode()) < 600_000
    assert "style" not in found.attributes
    assert "<polyline" in answer.text
    assert "Utilization: last 60 %" in answer.text
    assert "maximum 99 %" in answer.text
    assert unknown == [404, 404, 400]


async def test_a_node_has_curves_of_its_gpus_and_of_the_nics_of_each_rail(tmp_path: Path) -> None:
    async with console(tmp_path) as running, reading(running.url) as reader:
        node_token = {"Authorization": f"Bearer {TOKENS[Role.NODE]}"}
        sender, ports = FrameSender(run="run-2"), rdma_schema()
        cpu = [Entity(CPU_MODE, (mode,)) for mode in ("user", "system", "idle")]
        host = Schema("cpu", tuple((CPU_TIME, mode) for mode in cpu))
        frames = [
            *sender.frames(gpu_schema("n1"), [[50, 60, 1000, 2000, 10, 20]] * 50, at=240),
            *sender.frames(ports, [[9 * n, n, 0, 0] for n in range(50)], at=240),
            *sender.frames(host, [[n * 300, n * 100, n * 900] for n in range(50)], at=240),
        ]
        body = sender.body(frames, schemas=True)
        status, reply = await running.post(body, at=SECONDS, headers=node_token)
        assert status == 200, reply
        await reader.sign_in(TOKENS[Role.OPERATOR])
        from_ = milliseconds(time.time_ns() - 600 * SECOND_NS)
        twin = await reader.get(f"/api/v1/pages/nodes/n1/history?from={from_}")
        assert twin.status == 200, twin.text
        found = {
            curve["name"]: [value for value in curve["values"] if value is not None]
            for figure in msgspec.json.decode(twin.text)["history"]["figures"]
            for curve in figure["curves"]
        }
        gpus = {name: found[name][-1] for name in ("gpu_min", "gpu_mean", "gpu_max")}
        assert gpus == {"gpu_min": 0.5, "gpu_mean": 0.55, "gpu_max": 0.6}
        assert found["cpu_busy"][-1] == pytest.approx(4)
        assert (found["nic_sent_0"][-1], found["nic_sent_1"][-1]) == (9, 1)
        page = await reader.get("/nodes/n1/history")
        assert count_elements(page.text).nodes < 6_000
        assert (await reader.get("/nodes/x/history")).status == 404


@pytest.mark.asyncio(loop_scope="session")
async def test_without_a_server_a_rail_or_job_has_a_curve_of_each_node(
    site: RunningCollector,
) -> None:
    """From the frame log; what a node does not report is stated."""
    show = HistoryPages.from_api(site.collector.api, ReadPool())
    show = replace(show, find_members=of_first_node)
    for name, parts in GROUP_PARTS.items():
        page = PAGES_BY_NAME[name]
        asked = PageRequest(page, ANYONE, parts, parse_query(page, {}))
        model = await show.models()[name](asked)
        assert isinstance(model, GroupPageModel)
        text = page_rendering.render(f"{name}.html", model=model, request=asked)
        assert count_elements(text).nodes < 6_000
        assert "<polyline" in text
        assert model.history.source == "the frame log of the collector, 1 of 1 nodes"
        labels = {curve.label for figure in model.history.figures for curve in figure.curves}
        assert labels == {"n1"}
        utilization = next(each for each in model.history.figures if each.name == "group_gpu_mean")
        assert "maximum 99 %" in utilization.captions[0]
        for query in ({"from": milliseconds(time.time_ns() - 2 * HOUR_NS)}, {"at": "x"}):
            asked = PageRequest(page, ANYONE, parts, parse_query(page, query))
            with pytest.raises(PageProblemError):
                await show.models()[name](asked)


@pytest.mark.asyncio(loop_scope="session")
async def test_curves_of_a_job_begin_with_it(site: RunningCollector) -> None:
    """Its GPUs were those of others before."""
    show = HistoryPages.from_api(site.collector.api, ReadPool())
    begin_ns = time.time_ns() - 60 * SECOND_NS
    devices = GroupDevices(frozenset({"GPU-n1-1"}), frozenset({"1"}), begin_ns)
    model = await replace(show, find_members=lambda _: {"n1": devices}).models()["job_history"](
        job_request(ANYONE)
    )
    assert isinstance(model, GroupPageModel)
    found = [curve for figure in model.history.figures for curve in figure.curves]
    assert found
    assert all(curve.gaps[0].reason == BEFORE_JOB for curve in found)
    assert all(time_ns >= begin_ns // 1_000_000 for curve in found for time_ns in curve.times_ms)
    later = devices._replace(since_ns=time.time_ns() + HOUR_NS)
    model = await replace(show, find_members=lambda _: {"n1": later}).models()["job_history"](
        job_request(ANYONE)
    )
    assert isinstance(model, GroupPageModel)
    assert not model.history.figures


@pytest.mark.asyncio(loop_scope="session")
async def test_a_job_that_shares_its_gpus_has_no_curves_of_devices(site: RunningCollector) -> None:
    show = HistoryPages.from_api(site.collector.api, ReadPool())
    show = replace(show, find_members=lambda _: {"n1": GroupDevices(frozenset(), frozenset())})
    model = await show.models()["job_history"](job_request(ANYONE))
    assert isinstance(model, GroupPageModel)
    assert (model.history.problem, model.history.figures) == (SHARED_GPUS, ())


@pytest.mark.parametrize(
    ("count", "source"), [(MAX_NODES, "8 of 8 nodes"), (MAX_NODES + 1, "8 of 9 nodes")]
)
async def test_a_page_reads_few_nodes_of_a_rail(tmp_path: Path, count: int, source: str) -> None:
    names = [f"n{number}" for number in range(count)]
    devices = GroupDevices(frozenset(), frozenset({"1"}))
    pages = pages_of_groups(tmp_path, None, lambda _: dict.fromkeys(names, devices))
    pages.core.fleet.nodes.update({name: FleetNode(name) for name in names})
    page = PAGES_BY_NAME["rail_history"]
    asked = PageRequest(page, ANYONE, GROUP_PARTS["rail_history"], parse_query(page, {}))
    model = await pages.models()["rail_history"](asked)
    assert isinstance(model, GroupPageModel)
    assert model.history.source.endswith(source)
    assert not model.history.problem


@pytest.mark.asyncio(loop_scope="session")
async def test_nodes_share_the_envelopes_of_a_page(site: RunningCollector) -> None:
    """Those beyond the bound are missing, and the curve states it."""
    frames = HistoryPages.from_api(site.collector.api, ReadPool()).frames
    now_ns = time.time_ns()
    period = TimeRange(now_ns - 600 * SECOND_NS, now_ns)
    member = GroupNode("n1", {"gpu": frozenset({("gpu", "GPU-n1-1")})}, 0)
    _, whole_curves = read_nodes(frames, [member], period)
    assert any(np.isfinite(curve.values).any() for curve in whole_curves.values())
    # So many nodes that none has an envelope left.
    _, found = read_nodes(frames, [member] * (MAX_RECORDS + 1), period)
    assert {curve.gaps[-1].reason for curve in found.values()} == {TOO_MANY}


@pytest.mark.asyncio(loop_scope="session")
async def test_a_tenant_reads_no_devices_of_the_frame_log(site: RunningCollector) -> None:
    """Other tenants may have held or shared the GPUs of its job before."""
    show = HistoryPages.from_api(site.collector.api, ReadPool())
    show = replace(show, find_members=of_first_node)
    model = await show.models()["job_history"](job_request(RED))
    assert isinstance(model, GroupPageModel)
    assert (model.history.problem, model.history.figures) == (NO_SERVER, ())


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("rail", ["00", "9" * 5000, "-1", "\u0661"])
async def test_a_number_that_is_no_rail_has_no_nodes(site: RunningCollector, rail: str) -> None:
    assert find_members(site.collector.api, "1")
    assert not find_members(site.collector.api, rail)


GROUP_PARTS = {
    "rail_history": {"rail": "1"},
    "job_history": {"tenant": "red", "source": "slurm", "workload": "17"},
}


def of_first_node(_: GroupKey) -> GroupMembers:
    return {"n1": GroupDevices(frozenset({"GPU-n1-1"}), frozenset({"1"}))}


@pytest.mark.parametrize("name", GROUP_PARTS)
async def test_a_rail_or_job_that_does_not_exist_has_no_page(tmp_path: Path, name: str) -> None:
    pages, page = pages_of_groups(tmp_path, None), PAGES_BY_NAME[name]
    unknown = PageRequest(
        page, ANYONE, dict.fromkeys(GROUP_PARTS[name], "x"), parse_query(page, {})
    )
    with pytest.raises(PageProblemError, match="no history of 'x'"):
        await pages.models()[name](unknown)


class ServerOfTest:
    """A server with one value of each curve, which records the queries."""

    def __init__(self, value: float) -> None:
        self.texts: list[str] = []
        self._value = value

    async def read(
        self, queries: Sequence[CurveQuery], shown: TimeRange
    ) -> dict[str, HistoryCurve]:
        self.texts += [query.text for query in queries]
        times, values = np.array([shown.from_ns]), np.array([self._value])
        return {query.name: HistoryCurve(*query[:3], times, values, ()) for query in queries}


@pytest.mark.parametrize(("name", "parts", "labels"), [
    ("rail_history", {"rail": "3"}, 'rail="3"}'),
    ("job_history", {"tenant": "red", "source": "slurm", "workload": 'a"b'}, 'tenant="red",source="slurm",workload="a\\"b"}'),
])  # fmt: skip
@pytest.mark.parametrize("value", [5.0, np.nan])
async def test_curves_are_those_of_the_server(
    tmp_path: Path, name: str, parts: dict[str, str], labels: str, value: float
) -> None:
    server = ServerOfTest(value)
    pages = pages_of_groups(tmp_path, server.read)
    page = PAGES_BY_NAME[name]
    week = {"from": milliseconds(NOW_NS - 7 * 24 * HOUR_NS), "to": milliseconds(NOW_NS)}
    asked = PageRequest(page, ANYONE, parts, parse_query(page, week))
    if np.isnan(value):
        with pytest.raises(PageProblemError, match="no history of"):
            await pages.models()[name](asked)
    else:
        model = await pages.models()[name](asked)
        assert isinstance(model, GroupPageModel)
        assert model.history.source == SOURCE
        assert "6 hours" in page_rendering.render(f"{name}.html", model=model, request=asked)
        traffic = next(each for each in model.history.figures if each.name == "traffic")
        assert 5.0 in traffic.curves[0].values
    assert server.texts
    assert all(text.count(labels) == text.count("{") for text in server.texts)


RED = Credential("red", Role.TENANT, "red")
JOB_PARTS = {"tenant": "red", "source": "slurm", "workload": "17"}


def pages_of_groups(
    directory: Path,
    server: ServerHistory | None,
    find_members: Callable[[GroupKey], GroupMembers] = lambda _: {},
) -> HistoryPages:
    core = CollectorState(StoredSchemas(directory))
    frames = StoredFrames.from_directory(directory, core.schemas.read)
    return HistoryPages(core, frames, ReadPool(), lambda: NOW_NS, find_members, server=server)


def job_request(credential: Credential, **query: str) -> PageRequest:
    page = PAGES_BY_NAME["job_history"]
    return PageRequest(page, credential, JOB_PARTS, parse_query(page, query))


async def test_a_server_that_fails_has_an_address_for_operators_only(tmp_path: Path) -> None:
    async def fail(_: Sequence[CurveQuery], __: TimeRange) -> dict[str, HistoryCurve]:
        raise PageProblemError(HTTPStatus.BAD_GATEWAY, "cannot connect to host 10.0.0.9")

    show = pages_of_groups(tmp_path, fail).models()["job_history"]
    for credential, text in ((ANYONE, "10.0.0.9"), (RED, SERVER_FAILED)):
        with pytest.raises(PageProblemError) as raised:
            await show(job_request(credential, at=milliseconds(NOW_NS - 24 * HOUR_NS)))
        assert raised.value.status is HTTPStatus.BAD_GATEWAY
        assert text in raised.value.text


async def test_a_slow_server_has_few_requests_of_one_tenant(tmp_path: Path) -> None:
    release, begun = asyncio.Event(), list[int]()

    async def wait(_: Sequence[CurveQuery], __: TimeRange) -> dict[str, HistoryCurve]:
        begun.append(1)
        await release.wait()
        return {}

    show = pages_of_groups(tmp_path, wait).models()["job_history"]
    asked = [asyncio.ensure_future(show(job_request(RED))) for _ in range(20)]
    await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    release.set()
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert len(begun) == MAX_READS_PER_REQUESTER
    rejected = [each for each in found if isinstance(each, web.HTTPTooManyRequests)]
    assert len(rejected) == 20 - MAX_READS_PER_REQUESTER


@pytest.mark.asyncio(loop_scope="session")
async def test_curves_of_a_node_are_those_of_the_server_and_if_it_fails_of_the_frame_log(
    site: RunningCollector,
) -> None:
    async def fail(_: Sequence[CurveQuery], __: TimeRange) -> dict[str, HistoryCurve]:
        raise PageProblemError(HTTPStatus.BAD_GATEWAY, "cannot connect to host 10.0.0.9")

    page = PAGES_BY_NAME["gpu"]
    asked = PageRequest(page, ANYONE, {"node": "n1", "index": "1"}, parse_query(page, {}))
    for server, source, problem in (
        (ServerOfTest(5.0).read, SOURCE, ""),
        (fail, "the frame log of the collector", "cannot connect to host 10.0.0.9"),
    ):
        own = HistoryPages.from_api(site.collector.api, ReadPool())
        content = await replace(own, server=server).models()["gpu"](asked)
        assert isinstance(content, PageContent)
        assert isinstance(content.resource, GpuPageModel)
        history = content.resource.history
        assert (history.source, history.problem) == (source, problem)
        values = [value for figure in history.figures for value in figure.curves[0].values]
        assert ({*values} == {5.0}) is (source == SOURCE)


@pytest.mark.asyncio(loop_scope="session")
async def test_other_roles_do_not_see_the_gpus_of_a_node(tmp_path: Path) -> None:
    async with console(tmp_path) as running:
        statuses = {}
        for role in (Role.OPERATOR, Role.AUDITOR, Role.FINANCE, Role.TENANT, Role.NODE):
            status, _ = await running.get("/api/v1/pages/nodes/n1/gpus/1", TOKENS[role])
            statuses[role] = status
        status, _ = await running.get("/api/v1/pages/nodes/n1/gpus/1", "unknown")
    assert statuses == {
        Role.OPERATOR: 200, Role.AUDITOR: 200, Role.FINANCE: 403, Role.TENANT: 403, Role.NODE: 403,
    }  # fmt: skip
    assert status == 401


_LEGENDS_AND_HEADS = """() => [...document.querySelectorAll('figure.curves')].map(figure =>
    ['.words', 'thead th:nth-child(2)'].map(each => figure.querySelector(each).textContent.split(':')[0]))"""


@pytest.mark.asyncio(loop_scope="session")
async def test_the_figures_are_drawn_with_one_cursor_in_both_themes(
    chromium: Browser, site: RunningCollector
) -> None:
    async with visiting(chromium, site.url) as visitor:
        visited = await visitor.visit(whole(twin=False))
        assert "maximum 99 %" in visited.text_without_scripts
        page = visitor.page
        await page.goto(site.url + whole(twin=False))
        drawn = "() => document.querySelectorAll('.plot canvas').length"
        await page.wait_for_function("() => document.querySelector('.figures').dataset.drawn")
        charts = await page.evaluate(drawn)
        assert charts == await page.locator("figure.curves").count() > 5
        assert await page.evaluate("() => document.querySelectorAll('.plot svg').length") == 0
        names = await page.evaluate(_LEGENDS_AND_HEADS)
        assert [legend for legend, _ in names] == [head for _, head in names]
        box = await page.locator("figure.curves .u-over").first.bounding_box()
        assert box is not None
        await page.mouse.move(box["x"] + box["width"] / 3, box["y"] + 20)
        texts = await page.locator(".words").all_inner_texts()
        at_cursor = [text for text in texts if re.fullmatch(r".+: .+ at \d\d:\d\d:\d\d", text)]
        assert len(at_cursor) > 3, texts
        assert [text for text in at_cursor if re.search(r"^Power: \d+ W at", text)], texts
        before = await page.evaluate("() => document.querySelector('.plot canvas').width")
        await page.set_viewport_size({"width": 700, "height": 800})
        await page.wait_for_function(
            "(before) => document.querySelector('.plot canvas').width !== before", arg=before
        )
        for theme, drawings in (("dark", 2), ("light", 3)):
            await page.emulate_media(color_scheme=theme)
            await page.wait_for_function(
                "(count) => Number(document.querySelector('.figures').dataset.drawn) >= count",
                arg=drawings,
            )
        assert visitor.problems == []
        assert await page.evaluate("() => window.policyViolations") == []


_RECORD_LABELS = """
    window.labels = [];
    const draw = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, x, ...more) {
        const width = this.measureText(text).width;
        window.labels.push([text, this.textAlign === 'right' ? x - width : x]);
        return draw.call(this, text, x, ...more);
    };
"""
_TABLES = """() => [...document.querySelectorAll('figure.curves details')].map(
    each => [...each.querySelectorAll('th, td')].map(cell => cell.textContent))"""


@pytest.mark.asyncio(loop_scope="session")
async def test_tables_and_axes_show_the_same_data_with_scripts(
    chromium: Browser, site: RunningCollector
) -> None:
    # Not the present, which moves between the two requests.
    path = f"{whole(twin=False)}&to={milliseconds(time.time_ns() - 20 * SECOND_NS)}"
    async with visiting(chromium, site.url) as visitor:
        await visitor.plain.goto(site.url + path)
        plain = await visitor.plain.evaluate(_TABLES)
        await visitor.page.add_init_script(_RECORD_LABELS)
        await visitor.page.goto(site.url + path)
        await visitor.page.wait_for_function(
            "() => document.querySelector('.figures').dataset.drawn"
        )
        assert await visitor.page.evaluate(_TABLES) == plain
        assert sum(len(cells) for cells in plain) > 100
        labels = await visitor.page.evaluate("() => window.labels")
        clocks = [text for text, _ in labels if re.fullmatch(r"\d\d:\d\d(:\d\d)?", text)]
        assert len(clocks) > 10
        assert not [text for text, _ in labels if re.search(r"[ap]m\b|/", text)]
        assert min(left for _, left in labels) >= 0, "no label begins left of its figure"
