"""The collector's web server against clients that hold connections."""

from __future__ import annotations

import asyncio
from pathlib import Path

from running_collector import RunningCollector, run_collector, settings_in
from support.framing import FRAMINGS, SMUGGLED

from railscope_collector.config import IngestLimits

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


async def test_an_ambiguous_length_is_rejected_with_all_that_follows(tmp_path: Path):
    async with run_collector(settings_in(tmp_path)) as running:
        for framing in FRAMINGS.values():
            request = b"POST /v1/frames HTTP/1.1\r\nHost: a\r\n" + framing + SMUGGLED
            answer = await respond(running, request)
            assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 ")), answer
            assert answer.count(b"HTTP/1.") == 1
