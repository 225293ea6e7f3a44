"""Views as line protocol: the lines, and their handling if a server rejects them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from structlog.testing import capture_logs
from support.waiting import wait_until

from railscope.catalog import collector as catalog
from railscope_collector.config import InfluxSettings
from railscope_collector.fleet.view_cells import View, ViewCell
from railscope_collector.sinks.influx import InfluxSink, format_lines
from railscope_collector.view_refresh import CollectorViews


def up(name: str, value: float = 1.0) -> ViewCell:
    return ViewCell(catalog.NODE_UP, (name,), value)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("n1", "n1"),
        ("a,b=c d", r"a\,b\=c\ d"),
        ("a\nb\rc", r"a\ b\ c"),
        (r"a\b", r"a\b"),
        (r"a\,b", r"a\\\,b"),
        ("a\\", "a\\\\\\ "),
    ],
)
def test_a_tag_is_escaped(value: str, written: str):
    line = format_lines(View("node", 7, (up(value),)))[0]
    assert line == f"{catalog.NODE_UP.name},node={written} value=1.0 7"


@dataclass
class InfluxServer:
    """Server with prepared responses, then 204; keeps the accepted lines."""

    answers: list[web.Response]
    url: str = ""
    taken: list[str] = field(default_factory=list)

    async def write(self, request: web.Request) -> web.Response:
        text = await request.text()
        if self.answers:
            return self.answers.pop(0)
        self.taken += text.splitlines()
        return web.Response(status=204)


@contextlib.asynccontextmanager
async def serving(*answers: web.Response) -> AsyncIterator[InfluxServer]:
    server = InfluxServer(list(answers))
    application = web.Application(client_max_size=1 << 26)
    application.router.add_post("/api/v2/write", server.write)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = site.name.replace(":0", f":{runner.addresses[0][1]}")
    try:
        yield server
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def writing(server: InfluxServer, cells: int) -> AsyncIterator[InfluxSink]:
    """A sink that writes one view of some cells, once."""
    full = CollectorViews(node=View("node", 7, tuple(up(f"n{i}") for i in range(cells))))
    views = iter([full])

    async def next_views() -> CollectorViews:
        return next(views, CollectorViews())

    settings = InfluxSettings(url=server.url, period_seconds=0.1)
    sink = InfluxSink(settings, next_views)
    task = asyncio.create_task(sink.run())
    try:
        yield sink
    finally:
        task.cancel()
        await asyncio.wait({task})


async def counted(sink: InfluxSink, lines_: int) -> None:
    await wait_until(
        lambda: sink.writer.written + sink.writer.dropped >= lines_,
        "the lines are written or dropped",
    )


@pytest.mark.parametrize(
    ("status", "key", "problem", "dropped"),
    [
        (422, "message", "failure writing points: partial write: points beyond retention policy dropped=2", 2),
        (400, "error", "partial write: points beyond retention policy dropped=2", 2),
        (400, "error", "partial write: unable to parse 'up,a=b value': missing field value dropped=0", 1),
        (400, "error", "partial write: unable to parse 'up': missing fields\nunable to parse 'x': missing fields dropped=0", 2),
        (400, "error", "partial write: " + "\n".join(["unable to parse 'up': missing fields"] * 9) + " dropped=0", 5),
        (400, "error", "partial write: database is busy dropped=0", 5),
        (400, "error", "unable to parse 'up': missing fields", 5),
    ],
)  # fmt: skip
async def test_lines_beside_dropped_ones_were_written(
    status: int, key: str, problem: str, dropped: int
):
    """InfluxDB writes the points that it can. Of those that it cannot parse, it states no number."""
    answer = web.json_response({key: problem}, status=status)
    with capture_logs() as logs:
        async with serving(answer) as server, writing(server, 5) as sink:
            await counted(sink, 5)
    assert (sink.writer.written, sink.writer.dropped) == (5 - dropped, dropped)
    warned = [line for line in logs if line["event"].endswith("_rejected")]
    stated = f"{status} {problem.splitlines()[0]}"
    assert [(line["entries"], line["problem"]) for line in warned] == [(dropped, stated)]


@pytest.mark.parametrize("status", [401, 503])
async def test_lines_wait_for_a_server_that_may_take_them_later(status: int):
    with capture_logs() as logs:
        async with (
            serving(
                web.Response(status=status, text="not now"), web.Response(status=status)
            ) as server,
            writing(server, 3) as sink,
        ):
            await counted(sink, 3)
    assert (sink.writer.dropped, sink.writer.written, len(server.taken)) == (0, 3, 3)
    events = [line["event"] for line in logs if line["event"].startswith("sink")]
    assert events[0] == "sink_connection_failed"
    assert events[-1] == "sink_connected"
    assert logs[0]["problem"] == f"{status} not now"
