"""Sending by OTLP: retries, final errors, partial success and the bound of what waits."""

from __future__ import annotations

import asyncio
import ssl
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from email.utils import formatdate
from itertools import pairwise
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from structlog.testing import capture_logs
from support.certificates import self_signed, server_context
from support.clock import NS, START, ManualClock
from support.otlp_server import (
    CUT,
    PROTOBUF,
    SILENT,
    OtlpServer,
    ScriptedAnswer,
    otlp_server,
    partial_success,
)
from support.reading import ORIGIN

from railscope.catalog import agent as catalog, entities
from railscope.frame import Entity, Frame, Schema
from railscope_agent.config import OtlpSettings
from railscope_agent.otlp.metric_messages import MetricMessages
from railscope_agent.otlp.otlp_http import HttpTransport
from railscope_agent.otlp.otlp_sender import OtlpSender
from railscope_agent.otlp.otlp_target import METRICS, otlp_targets
from railscope_agent.sampling.shipping_stats import OtlpStats

SECRET = "hunter2"  # noqa: S105 - no secret


class SkippingClock(ManualClock):
    """A clock that advances when a task sleeps, and records for how long."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    async def sleep_until(self, boot_ns: int) -> None:
        self.waits.append((boot_ns - self.now().boot_ns) / NS)
        self.advance(self.waits[-1])
        await asyncio.sleep(0)


def body(value: int = 1) -> bytes:
    """A request with one point."""
    schema = Schema("agent", ((catalog.AGENT_MEMORY, Entity(entities.NODE)),))
    read = Frame(ORIGIN, schema, 1, START, array("q", [value]))
    ((content, _),) = MetricMessages({"host.name": "n1"}, 0).build([read], 0)
    return content


class Sending:
    """A sender of metrics without compression, its clock and its counts."""

    def __init__(self, settings: OtlpSettings, max_waiting_bytes: int = 1 << 20) -> None:
        self.clock, self.stats = SkippingClock(), OtlpStats()
        target = otlp_targets(settings, {})[METRICS]
        transport = HttpTransport(target, lambda: self.clock.now().wall_ns / NS)
        self.sender = OtlpSender(
            target, transport, self.stats, self.clock, max_waiting_bytes, spread=lambda: 1.0
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[OtlpSender]:
        """Send as long as the block runs."""
        task = asyncio.create_task(self.sender.run())
        try:
            yield self.sender
        finally:
            task.cancel()
            await asyncio.wait({task})


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks run until a condition holds."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - counts have no event
            await asyncio.sleep(0)


async def sent(
    server: OtlpServer, *script: ScriptedAnswer, bodies: int = 1, timeout_seconds: float = 30.0
) -> Sending:
    """Send requests until all are answered for the last time."""
    server.script.extend(script)
    sending = Sending(
        OtlpSettings(endpoint=server.url, compression="none", timeout_seconds=timeout_seconds)
    )
    async with sending.running() as sender:
        for number in range(bodies):
            sender.add(body(number), 1)
        final = sum(each.status not in {None, 429, 502, 503, 504} for each in script)
        await server.received(len(script) + max(bodies - final, 0))
        await until(lambda: not sending.stats.waiting_bytes)
    return sending


@pytest.mark.parametrize(
    "answer",
    [*(ScriptedAnswer(status) for status in (429, 502, 503, 504)), CUT],
    ids=lambda answer: str(answer.status),
)
async def test_a_request_that_may_succeed_later_is_repeated(answer: ScriptedAnswer) -> None:
    async with otlp_server() as server:
        sending = await sent(server, answer, answer)
        assert len(server.requests) == 3
        assert len(server.metrics.samples) == 1
    assert sending.stats == OtlpStats(sent=1, retries=2)
    assert sending.clock.waits == [1, 2]


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 413, 500, 501, 505])
async def test_every_other_error_is_final(status: int) -> None:
    async with otlp_server() as server:
        sending = await sent(server, ScriptedAnswer(status), bodies=2)
        assert len(server.requests) == 2
    assert (sending.stats.sent, sending.stats.dropped["rejected"]) == (1, 1)
    assert sending.clock.waits == []


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("retry_after", "seconds"),
    [
        ("7", 7),
        (formatdate(START.wall_ns / NS + 9, usegmt=True), 9),
        (formatdate(START.wall_ns / NS - 9, usegmt=True), 1),
        ("1000000", 300),
        ("soon", 1),
        ("0", 1),
    ],
)
async def test_the_receiver_may_request_a_wait(
    status: int, retry_after: str, seconds: float
) -> None:
    async with otlp_server() as server:
        sending = await sent(server, ScriptedAnswer(status, (("Retry-After", retry_after),)))
    assert sending.clock.waits == [seconds]


async def test_waits_grow_up_to_a_bound() -> None:
    async with otlp_server() as server:
        sending = await sent(server, *[ScriptedAnswer(503)] * 7)
    assert sending.clock.waits == [1, 2, 4, 8, 16, 30, 30]


async def test_a_response_that_does_not_come_is_not_awaited_forever() -> None:
    async with otlp_server() as server:
        sending = await sent(server, SILENT, timeout_seconds=0.2)
        assert len(server.requests) == 2
    assert sending.stats == OtlpStats(sent=1, retries=1)


async def test_a_receiver_that_cannot_be_reached_is_reported_once() -> None:
    async with otlp_server() as server:
        url = server.url
    sending = Sending(OtlpSettings(endpoint=url))
    with capture_logs() as logs:
        async with sending.running() as sender:
            sender.add(b"x", 1)
            await until(lambda: sending.stats.retries >= 5)
    assert [(line["event"], line["url"]) for line in logs] == [
        ("otlp_export_failed", f"{url}/v1/metrics")
    ]


async def test_a_partial_success_is_final_and_counted() -> None:
    async with otlp_server() as server:
        with capture_logs() as logs:
            sending = await sent(
                server, partial_success(1, "too old"), partial_success(0, "slow"), bodies=3
            )
        assert len(server.requests) == 3
    assert (sending.stats.sent, sending.stats.retries) == (2, 0)
    assert sending.stats.dropped["partial_success"] == 1
    assert [(line["event"], line["entries"], line["problem"]) for line in logs] == [
        ("otlp_partial_success", 1, "too old"),
        ("otlp_partial_success", 0, "slow"),
    ]


async def test_the_message_of_an_error_is_logged() -> None:
    status = metrics_service_pb2.ExportMetricsPartialSuccess(error_message="bad\npoint")
    binary = ScriptedAnswer(400, (("Content-Type", PROTOBUF),), status.SerializeToString())
    async with otlp_server() as server:
        with capture_logs() as logs:
            await sent(server, binary, ScriptedAnswer(400, (), b"plain \x1b[31m text"), bodies=2)
    assert [line["problem"] for line in logs] == [
        "status 400 bad\\npoint",
        "status 400 plain \\x1b[31m text",
    ]


@pytest.mark.parametrize("content_type", [PROTOBUF, "application/json"])
async def test_a_successful_response_of_another_format_is_a_success(content_type: str) -> None:
    odd = ScriptedAnswer(200, (("Content-Type", content_type),), b"\xff\xff\xff")
    async with otlp_server() as server:
        sending = await sent(server, odd)
    assert sending.stats.sent == 1


async def test_the_oldest_requests_are_dropped_above_the_limit() -> None:
    async with otlp_server() as server:
        server.script.append(SILENT)
        content = body()
        settings = OtlpSettings(endpoint=server.url, compression="none", timeout_seconds=60)
        sending = Sending(settings, 3 * len(content))
        async with sending.running() as sender:
            sender.add(content, 1)
            await server.received(1)
            sending.clock.advance(10)
            for number in range(2, 6):
                sender.add(body(number), 1)
            assert sending.stats.dropped["overflow"] == 2
            assert sending.stats.waiting_bytes == 3 * len(content)
            assert sending.stats.oldest_boot_ns == START.boot_ns
            server.close()  # cut the connection: the request is repeated, then the others are sent
            await server.received(4)
        values = [point.as_int for point in server.metrics.points.values()]
        assert values == [5]


async def test_a_connection_is_verified_and_presents_a_certificate(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path / "server")
    client, client_key = self_signed(tmp_path / "client")
    tls = server_context(certificate, key)
    tls.load_verify_locations(client)
    tls.verify_mode = ssl.CERT_REQUIRED
    async with otlp_server(tls) as server:
        trusting = Sending(
            OtlpSettings(
                endpoint=server.url, compression="none", ca_file=str(certificate),
                certificate_file=str(client), key_file=str(client_key),
            )
        )  # fmt: skip
        async with trusting.running() as sender:
            sender.add(body(), 1)
            await server.received(1)
        other = Sending(OtlpSettings(endpoint=server.url, ca_file=str(client)))
        with capture_logs() as logs:
            async with other.running() as sender:
                sender.add(body(), 1)
                await until(lambda: other.stats.retries > 0)
        assert "fix: set otlp.ca_file" in logs[0]["problem"]


async def test_a_query_of_the_url_is_sent_and_not_logged(tmp_path: Path) -> None:
    headers = tmp_path / "headers"
    headers.write_text(f"Authorization=Bearer%20{SECRET}\n")
    async with otlp_server() as server:
        server.script.append(ScriptedAnswer(400))
        url = f"{server.url}/my/metrics?key={SECRET}"
        sending = Sending(
            OtlpSettings(metrics_endpoint=url, compression="none", headers_file=str(headers))
        )
        with capture_logs() as logs:
            async with sending.running() as sender:
                sender.add(body(), 1)
                (request,) = await server.received(1)
                await until(lambda: not sending.stats.waiting_bytes)
    assert request.target == f"/my/metrics?key={SECRET}"
    assert request.headers["authorization"] == f"Bearer {SECRET}"
    assert logs
    assert SECRET not in str(logs)


def test_retries_of_agents_are_spread() -> None:
    target = otlp_targets(OtlpSettings(endpoint="http://h:1"), {})[METRICS]
    transport = HttpTransport(target, lambda: 0)
    sender = OtlpSender(target, transport, OtlpStats(), ManualClock(), 1)
    drawn = sorted({sender.spread() for _ in range(100)})
    assert 0.8 <= drawn[0] < drawn[-1] <= 1.2
    assert all(low < high for low, high in pairwise(drawn))
