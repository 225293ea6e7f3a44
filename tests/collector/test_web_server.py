"""The collector's web server against clients that hold connections."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from running_collector import RunningCollector, run_collector, settings_in
from support.framing import FRAMINGS, SMUGGLED

from railscope.server_connections import ServerConnections
from railscope_collector.config import IngestLimits
from railscope_collector.http.json_compression import accepts_gzip
from railscope_collector.http.web_server import WebServer

PATIENCE_SECONDS = 60
GET = b"GET /-/healthy HTTP/1.1\r\nHost: a\r\n"


async def respond(one: RunningCollector, request: bytes) -> bytes:
    port = int(one.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    async with asyncio.timeout(PATIENCE_SECONDS):
        answer = await reader.read()
    writer.transport.abort()
    return answer


async def test_slow_headers_delay_no_request_and_are_closed(tmp_path: Path):
    settings = settings_in(
        tmp_path, limits=IngestLimits(connections=64, connections_per_address=32)
    )
    async with run_collector(settings) as running:
        port = int(running.url.rpartition(":")[2])
        held = []
        for _ in range(300):
            held.append(await asyncio.open_connection("127.0.0.1", port))
            held[-1][1].write(GET)
        assert (await running.get("/-/healthy"))[0] == 200
        assert len(running.collector.connections) <= 32
        closed = running.collector.connections.closed["evicted"]
        assert closed >= 268
        text = (await running.get("/metrics"))[1]
        assert 'railscope_collector_closed_connections_total{reason="evicted"}' in text
        assert "railscope_collector_connections " in text
        for _, writer in held:
            writer.transport.abort()


async def test_a_connection_without_a_request_ends(tmp_path: Path):
    def hasty(one: RunningCollector) -> None:
        one.collector.connections.header_seconds = 0.2

    async with run_collector(settings_in(tmp_path), hasty) as running:
        assert await respond(running, GET) == b""
        assert running.collector.connections.closed["timeout"] == 1


async def test_a_response_is_no_wait_for_a_request():
    """It may take longer than the limit between two requests, and is not cut for another client."""
    size = 32 << 20
    application = web.Application()

    async def export(request: web.Request) -> web.Response:
        return web.Response(body=bytes(size) if request.path == "/export" else b"done")

    application.router.add_get("/{path:.*}", export)
    connections = ServerConnections.within_descriptors(1, 1)
    server = WebServer(application, connections)
    _, port = await server.start("127.0.0.1:0", None)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(PATIENCE_SECONDS):
        writer.write(b"GET /export HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        other, closed = await asyncio.open_connection("127.0.0.1", port)
        assert await other.read() == b"", "rejected, as the limit is reached"
        closed.close()
        assert len(await reader.readexactly(size)) == size
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await reader.readuntil(b"done")).startswith(b"HTTP/1.1 200 ")
        other, next_writer = await asyncio.open_connection("127.0.0.1", port)
        next_writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert (await other.read()).endswith(b"done"), "the other connection waits for a request"
    counted = {reason: count for reason, count in connections.closed.items() if count}
    assert counted == {"busy": 1, "evicted": 1}
    next_writer.close()
    writer.close()
    await server.close()


async def test_a_body_that_does_not_come_is_given_up(tmp_path: Path):
    settings = settings_in(tmp_path, limits=IngestLimits(body_timeout_seconds=0.2))
    head = b"POST /v1/frames HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer token-n1\r\n"
    async with run_collector(settings) as running:
        answer = await respond(
            running, head + b"Content-Length: 1000\r\nConnection: close\r\n\r\nabc"
        )
        assert answer.startswith(b"HTTP/1.1 408"), answer
        assert running.collector.core.counts.rejected == {"timeout": 1}


async def test_answers_name_no_software_and_a_length_in_two_ways_is_rejected(tmp_path: Path):
    async with run_collector(settings_in(tmp_path)) as running:
        for path in (b"/-/healthy", b"/nowhere", b"/metrics"):
            answer = await respond(
                running, GET.replace(b"/-/healthy", path) + b"Connection: close\r\n\r\n"
            )
            assert b"aiohttp" not in answer
            assert b"\r\nserver:" not in answer.lower()
        both = b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        answer = await respond(running, b"POST /v1/frames HTTP/1.1\r\nHost: a\r\n" + both)
        assert b" 400 Bad Request\r\n" in answer, answer
        assert b"aiohttp" not in answer, answer


@pytest.mark.parametrize("framing", FRAMINGS.values(), ids=FRAMINGS)
async def test_an_ambiguous_length_is_rejected_with_all_that_follows(
    tmp_path: Path, framing: bytes
):
    async with run_collector(settings_in(tmp_path)) as running:
        request = b"POST /v1/frames HTTP/1.1\r\nHost: a\r\n" + framing + SMUGGLED
        answer = await respond(running, request)
        assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 ")), answer
        assert answer.count(b"HTTP/1.") == 1


@pytest.mark.parametrize(
    ("offered", "is_accepted"),
    [
        ("gzip", True), ("br, GZIP;q=0.5", True), ("gzip; q=1.000", True),
        ("", False), ("gzip;q=0", False), ("gzip;q=0.000", False), ("identity, gzip; q=0.0", False), ("xgzip", False),
        ("gzip;q=x", False),
    ],
)  # fmt: skip
def test_a_coding_with_a_weight_of_zero_is_not_accepted(offered: str, is_accepted: bool):  # noqa: FBT001 - a case
    request = make_mocked_request("GET", "/metrics", headers={"Accept-Encoding": offered})
    assert accepts_gzip(request) is is_accepted
