"""The agent exports its metrics and events by OTLP: series, retries, settings and the check."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.cases import capture_of
from support.clock import NS, START, ManualClock
from support.metric_samples import exported_samples
from support.otlp_decoding import DecodedMetrics
from support.otlp_grpc_server import GrpcAnswer, otlp_grpc_server
from support.otlp_server import CUT, ScriptedAnswer, otlp_server, partial_success

from railscope.exposition import EVERYTHING, TextFormat
from railscope.settings import SettingsError
from railscope_agent.commands.capture_walk import find_read_offsets
from railscope_agent.commands.check import check
from railscope_agent.config import AgentSettings, MetricsSettings, OtlpSettings
from railscope_agent.host.live_clock import LiveClock
from railscope_agent.host.recorded_clock import RecordedClock
from railscope_agent.host.recorded_host import RecordedHost
from railscope_agent.otlp.metric_messages import MetricMessages
from railscope_agent.otlp.otlp_exporter import GrpcTransport
from railscope_agent.otlp.otlp_http import HttpTransport
from railscope_agent.otlp.otlp_sender import OtlpSender, RetryLaterError
from railscope_agent.otlp.otlp_target import LOGS, METRICS, otlp_targets
from railscope_agent.sampling.shipping_stats import OtlpStats
from railscope_agent.service import Agent

FULL = MetricsSettings(detail="full")


class SkippingClock(ManualClock):
    """A clock that advances when a task sleeps, and records for how long."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    async def sleep_until(self, boot_ns: int) -> None:
        self.waits.append((boot_ns - self.now().boot_ns) / NS)
        self.advance(self.waits[-1])
        await asyncio.sleep(0)


async def test_an_agent_exports_what_it_serves(tmp_path: Path) -> None:
    host = RecordedHost(capture_of("lost-gpu"), LiveClock(), lambda: 0)
    async with otlp_server() as server:
        settings = AgentSettings(
            listen="127.0.0.1:0", state_directory=str(tmp_path), metrics=FULL,
            otlp=OtlpSettings(period_seconds=1, resource_attributes={"k8s.cluster.name": "a"}),
        )  # fmt: skip
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": server.url}
        agent = Agent(settings, host, "n1", environment=environment)
        task = asyncio.create_task(agent.run())
        await server.received_until(lambda: len(server.metrics.samples) >= 500 and server.records)
        task.cancel()
        await asyncio.wait({task})
    resource = server.metrics.resources[0]
    assert (resource["service.instance.id"], resource["k8s.cluster.name"]) == ("n1", "a")
    assert any(name == "railscope_gpu_info" for name, _ in server.metrics.samples)
    assert {record.event_name.partition(".")[0] for record in server.records} == {"railscope"}


@pytest.mark.parametrize("names", ["railscope", "both"])
async def test_an_export_has_the_series_and_values_of_the_metrics_endpoint(names: str) -> None:
    """At each read of a capture, also where series begin, change and end."""
    capture = capture_of("thermal-throttling")
    clock = RecordedClock(capture.about)
    settings = AgentSettings(metrics=FULL, read_timeout_seconds=60)
    node = Agent(settings, RecordedHost(capture, clock, lambda: clock.offset_ns), "n1")
    messages, decoded = MetricMessages({}, 0, EVERYTHING, names), DecodedMetrics()
    for offset_ns in [*find_read_offsets(capture)][:8]:
        clock.go_to(offset_ns)
        await node.once()
        for body, _ in messages.build(node.endpoint.fresh_frames(), clock.now().wall_ns):
            decoded.add(body)
        own = {key: value for key, value in decoded.samples.items() if key[0][:3] != "hw_"}
        assert own == exported_samples(node.endpoint.text(TextFormat.PROMETHEUS))
    hardware = {key[0] for key in decoded.samples if key[0].startswith("hw_")}
    assert ("hw_energy_joules_total" in hardware) is (names == "both")


@pytest.mark.parametrize(
    ("answers", "waits", "stats"),
    [
        ([ScriptedAnswer(429), ScriptedAnswer(502)], [1, 2], OtlpStats(1, 2)),
        ([CUT], [1], OtlpStats(1, 1)),
        ([ScriptedAnswer(503, (("Retry-After", "7"),))], [7], OtlpStats(1, 1)),
        ([ScriptedAnswer(504, (("Retry-After", "1000000"),))], [300], OtlpStats(1, 1)),
        ([ScriptedAnswer(503)] * 7, [1, 2, 4, 8, 16, 30, 30], OtlpStats(1, 7)),
        ([ScriptedAnswer(400)], [], "rejected"),
        ([ScriptedAnswer(500)], [], "rejected"),
        ([partial_success(1, "too old")], [], "partial_success"),
    ],
)
async def test_a_request_that_may_succeed_later_is_repeated(
    answers: list[ScriptedAnswer], waits: list[float], stats: OtlpStats | str
) -> None:
    clock, found = SkippingClock(), OtlpStats()
    async with otlp_server() as server:
        server.script.extend(answers)
        target = otlp_targets(OtlpSettings(endpoint=server.url, compression="none"), {})[METRICS]
        transport = HttpTransport(target, lambda: clock.now().wall_ns / NS)
        sender = OtlpSender(target, transport, found, clock, 1 << 20, spread=lambda: 1.0)
        sender.add(b"", 1)
        task = asyncio.create_task(sender.run())
        await server.received(len(answers) + (not isinstance(stats, str)))
        async with asyncio.timeout(60):
            while found.waiting_bytes or not (found.sent or any(found.dropped.values())):  # noqa: ASYNC110
                await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
    assert clock.waits == waits
    if isinstance(stats, str):
        assert found.dropped[stats] == 1
    else:
        assert (found.sent, found.retries) == (stats.sent, stats.retries)


def test_the_oldest_requests_are_dropped_above_the_limit() -> None:
    target = otlp_targets(OtlpSettings(endpoint="http://h:1", compression="none"), {})[METRICS]
    stats = OtlpStats()
    sender = OtlpSender(target, HttpTransport(target, lambda: 0), stats, ManualClock(), 30)
    for _ in range(5):
        sender.add(b"x" * 10, 1)
    assert (stats.dropped["overflow"], stats.waiting_bytes) == (2, 30)
    assert stats.oldest_boot_ns == START.boot_ns


@pytest.mark.parametrize("code", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "INVALID_ARGUMENT", "OK"])
async def test_statuses_of_grpc_are_repeated_as_the_specification_states(code: str) -> None:
    async with otlp_grpc_server() as server:
        if code != "OK":
            server.script.append(GrpcAnswer(grpc.StatusCode[code], "bad\npoint"))
        settings = OtlpSettings(endpoint=f"http://127.0.0.1:{server.port}", protocol="grpc")
        transport = GrpcTransport(otlp_targets(settings, {})[METRICS])
        try:
            result: Any = await transport.send(b"")
        except RetryLaterError:
            result = None
        finally:
            await transport.close()
    problem = {"OK": "", "INVALID_ARGUMENT": "gRPC status INVALID_ARGUMENT bad\\npoint"}.get(code)
    assert (result and result.problem) == problem


async def test_the_check_sends_an_empty_request_of_each_signal(tmp_path: Path) -> None:
    host = RecordedHost(capture_of("t4"), LiveClock(), lambda: 0)
    lines: list[str] = []

    async def read(_: Agent) -> None:
        """Read nothing."""

    async with otlp_server() as server:
        server.script.append(ScriptedAnswer(401, (), b"no token"))
        otlp = OtlpSettings(endpoint=server.url)
        agent = Agent(AgentSettings(state_directory=str(tmp_path), otlp=otlp), host, "n1")
        assert not await check(agent, lines.append, read)
        encodings = {request.headers.get("content-encoding") for request in server.requests}
        assert encodings == {"gzip"}
        assert "0" not in [request.headers["content-length"] for request in server.requests]
    assert [line for line in lines if "OTLP" in line] == [
        f"BROKEN  OTLP: {server.url}/v1/metrics does not accept metrics: status 401 no token",
        f"ok      OTLP: {server.url}/v1/logs accepts logs",
    ]


def test_settings_of_the_agent_take_precedence_over_variables() -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://env:4318/"}
    environment["OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"] = "http://env/m"
    for endpoint, urls in (
        ("", {METRICS: "http://env/m", LOGS: "http://env:4318/v1/logs"}),
        ("http://own", {METRICS: "http://own/v1/metrics", LOGS: "http://own/v1/logs"}),
    ):
        found = otlp_targets(OtlpSettings(endpoint=endpoint), environment)
        assert {signal: target.url for signal, target in found.items()} == urls
    assert otlp_targets(OtlpSettings(), {"OTEL_EXPORTER_OTLP_HEADERS": "a=b"}) == {}


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4317"}, "invalid OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://me:hunter2@h"}, "without user and password"),
        ({"OTEL_EXPORTER_OTLP_LOGS_PROTOCOL": "http/json"}, "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL"),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "hunter2"}, "expected NAME=VALUE"),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "Host=hunter2"}, "invalid header 'Host'"),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "10s"}, "expected milliseconds"),
        ({"OTEL_EXPORTER_OTLP_COMPRESSION": "zstd"}, "expected gzip or none"),
        ({"OTEL_EXPORTER_OTLP_CERTIFICATE": "/absent"}, "OTEL_EXPORTER_OTLP_CERTIFICATE /absent"),
    ],
)
def test_an_invalid_variable_is_an_error_that_names_it_and_no_secret(
    environment: Mapping[str, str], problem: str
) -> None:
    with pytest.raises(SettingsError, match=problem) as raised:
        otlp_targets(OtlpSettings(), {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://h"} | environment)
    assert "hunter2" not in str(raised.value)
