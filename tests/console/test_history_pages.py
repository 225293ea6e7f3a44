"""Pages with curves: the period of a URL, what is not stored, bounds, and the figures in a browser."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
import pytest_asyncio
from console_site import TOKENS, browser as reading, console
from makers import FrameSender, gpu_schema, rdma_schema
from running_collector import RunningCollector
from support.browser import visiting

from railscope_collector.access.credentials import ANYONE, Role
from railscope_collector.console.curves import HistoryCurve, TimeRange
from railscope_collector.console.history_pages import (
    GpuPageModel,
    HistoryPages,
)
from railscope_collector.console.history_server import SOURCE, CurveQuery
from railscope_collector.console.page_table import (
    PAGES_BY_NAME,
    PageContent,
    PageRequest,
    parse_query,
)
from railscope_collector.http import ResourceError
from railscope_collector.http.read_pool import ReadPool

if TYPE_CHECKING:
    from playwright.async_api import Browser

SECONDS = 300


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


def whole() -> str:
    """The page over the last ten minutes up to the present."""
    return f"/nodes/n1/gpus/1?from={time.time_ns() // 1_000_000 - 600_000}"


def curve(document: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [
        each for figure in document["figures"] for each in figure["curves"] if each["name"] == name
    ]
    return dict(found)


@pytest.mark.asyncio(loop_scope="session")
async def test_the_document_has_the_curves_of_the_gpu_and_of_the_nic_on_its_rail(
    site: RunningCollector,
) -> None:
    async with reading(site.url) as client:
        answer = await client.get(whole(), Accept="application/json")
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


@pytest.mark.asyncio(loop_scope="session")
async def test_curves_of_a_node_are_those_of_the_server_and_if_it_fails_of_the_frame_log(
    site: RunningCollector,
) -> None:
    async def fail(_: Sequence[CurveQuery], __: TimeRange) -> dict[str, HistoryCurve]:
        raise ResourceError(HTTPStatus.BAD_GATEWAY, "cannot connect to host 10.0.0.9")

    page = PAGES_BY_NAME["gpu"]
    asked = PageRequest(ANYONE, {"node": "n1", "index": "1"}, parse_query(page, ()), page=page)
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


_LEGENDS_AND_HEADS = """() => [...document.querySelectorAll('figure.curves')].map(figure =>
    ['.words', 'thead th:nth-child(2)'].map(each => figure.querySelector(each).textContent.split(':')[0]))"""


@pytest.mark.asyncio(loop_scope="session")
async def test_the_figures_are_drawn_with_one_cursor_in_both_themes(
    chromium: Browser, site: RunningCollector
) -> None:
    async with visiting(chromium, site.url) as visitor:
        visited = await visitor.visit(whole())
        assert "maximum 99 %" in visited.text_without_scripts
        page = visitor.page
        await page.goto(site.url + whole())
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
