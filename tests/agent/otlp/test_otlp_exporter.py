"""The agent exports its metrics and events by OTLP."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from opentelemetry.proto.logs.v1 import logs_pb2
from structlog.testing import capture_logs
from support.cases import capture_of
from support.clock import NS, START, ManualClock
from support.machine import FakeHost
from support.otlp_server import ScriptedAnswer, otlp_server
from support.reading import ORIGIN, numbers, read_once

from railscope import __version__, extras
from railscope.catalog import EVENTS, agent as catalog, entities
from railscope.catalog.declare import SEVERITY_NUMBERS, MetricDetail
from railscope.exposition import EVERYTHING, MetricSelection
from railscope.frame import Entity, Event, Frame, NodeTimestamp, Schema
from railscope.settings import SettingsError
from railscope_agent.commands.check import check
from railscope_agent.config import AgentSettings, MetricsSettings, OtlpSettings
from railscope_agent.host.live_clock import LiveClock
from railscope_agent.host.recorded_host import RecordedHost
from railscope_agent.otlp import event_messages, otlp_exporter
from railscope_agent.otlp.otlp_exporter import OtlpExporter
from railscope_agent.otlp.otlp_target import LOGS, METRICS, otlp_targets
from railscope_agent.sampling.shipping_stats import OtlpStats, ShippingStats
from railscope_agent.service import Agent
from railscope_agent.sources.agent_metrics import SelfMetricsSource

XID = EVENTS["xid"]


@asynccontextmanager
async def exporting(
    frames: list[Frame], settings: OtlpSettings
) -> AsyncIterator[tuple[OtlpExporter, ManualClock]]:
    """Run an exporter of frames."""
    clock, stats = ManualClock(), {METRICS: OtlpStats(), LOGS: OtlpStats()}
    exporter = OtlpExporter(
        settings,
        otlp_targets(settings, {}),
        {"host.name": "n1"},
        lambda: frames,
        clock,
        stats,
        EVERYTHING,
    )
    task = asyncio.create_task(exporter.run())
    try:
        await clock.asleep(1)
        yield exporter, clock
    finally:
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()


def memory_frame(second: int, *events: Event) -> Frame:
    """A frame of one gauge."""
    schema = Schema("agent", ((catalog.AGENT_MEMORY, Entity(entities.NODE)),))
    at = NodeTimestamp(START.wall_ns + second * NS, START.boot_ns + second * NS)
    return Frame(ORIGIN, schema, second + 1, at, array("q", [second]), events=events)


@pytest.mark.parametrize(("period_seconds", "first_seconds"), [(1, 1), (10, 5), (3600, 5)])
async def test_the_first_export_is_soon_and_the_others_are_after_the_reads(
    period_seconds: float, first_seconds: float
) -> None:
    async with otlp_server() as server:
        settings = OtlpSettings(endpoint=server.url, period_seconds=period_seconds)
        frames = [memory_frame(0)]
        async with exporting(frames, settings) as (_, clock):
            clock.advance(first_seconds)
            await server.received(1)
            frames[0] = memory_frame(1)
            await clock.asleep(1)
            now_ns, period_ns = clock.now().boot_ns, round(period_seconds * NS)
            clock.advance((period_ns - now_ns % period_ns) / NS + 0.5)
            await server.received(2)
        assert list(server.metrics.samples.values()) == [1]


async def test_the_last_readings_and_events_are_sent_at_the_end() -> None:
    async with otlp_server() as server:
        frames = [memory_frame(0)]
        event = Event(XID, Entity(entities.XID, ("0000:01:00.0", "79")), START.wall_ns, 0)
        async with exporting(frames, OtlpSettings(endpoint=server.url)) as (exporter, _):
            exporter.record_events(memory_frame(0, event))
        assert len(server.metrics.samples) == len(server.records) == 1


async def test_events_are_sent_together_soon_after_they_are_read() -> None:
    link = EVENTS["link_change"]
    about = Entity(entities.LINK_CHANGE, ("eth0", "down"))
    event = Event(link, about, START.wall_ns - NS, 0, {"message": "eth0: Link is Down"})
    async with otlp_server() as server:
        settings = OtlpSettings(endpoint=server.url, period_seconds=3600)
        async with exporting([], settings) as (exporter, clock):
            exporter.record_events(memory_frame(1, event, event))
            exporter.record_events(memory_frame(2, event))
            await clock.asleep(2)
            clock.advance(1)
            (request,) = await server.received(1)
    assert (request.target, request.size) == ("/v1/logs", 3)
    record = server.records[0]
    assert record.event_name == "railscope.link_change"
    assert (record.severity_number, record.severity_text) == (
        logs_pb2.SEVERITY_NUMBER_WARN,
        "warning",
    )
    assert record.time_unix_nano == START.wall_ns - NS
    assert record.observed_time_unix_nano == START.wall_ns + NS
    assert record.body.string_value == "eth0: Link is Down"
    assert {each.key: each.value.string_value for each in record.attributes} == {
        "interface": "eth0",
        "state": "down",
        "message": "eth0: Link is Down",
    }


def test_every_event_has_a_severity() -> None:
    numbers = {logs_pb2.SeverityNumber.Name(number) for number in SEVERITY_NUMBERS.values()}
    assert numbers == {"SEVERITY_NUMBER_INFO", "SEVERITY_NUMBER_WARN", "SEVERITY_NUMBER_ERROR"}
    assert {event_class.severity for event_class in EVENTS.values()} <= SEVERITY_NUMBERS.keys()


@pytest.mark.parametrize("name", ["xid", "out_of_memory", "claim_start", "unclaimed_use_start"])
def test_an_event_about_a_process_does_not_identify_it(name: str) -> None:
    event_class = EVENTS[name]
    facts = dict.fromkeys(event_class.facts, "secret") | {"tenant": "a", "meaning": "b"}
    about = Entity(event_class.about, tuple("k" for _ in event_class.about.labels))
    record = event_messages.event_record(Event(event_class, about, 1, 1, facts), 2)
    sent = {each.key for each in record.attributes}
    assert sent.isdisjoint({"process", "process_name", "pids"})
    assert sent >= {"tenant", "meaning"}
    if "process" in event_class.facts:
        assert "message" not in sent
    assert record.body.string_value == event_class.help


def test_many_events_are_divided_into_requests() -> None:
    event = Event(XID, Entity(entities.XID, ("0000:01:00.0", "79")), 1, 1)
    records = [event_messages.event_record(event, 2)] * 1001
    sizes = [batch.size for batch in event_messages.event_requests({}, records)]
    assert sizes == [500, 500, 1]


def test_the_resource_is_the_node_by_the_conventions() -> None:
    host = FakeHost()
    settings = OtlpSettings(resource_attributes={"k8s.cluster.name": "a", "host.name": "mine"})
    base = {
        "service.name": "railscope-agent",
        "service.instance.id": "n1",
        "service.version": __version__,
    }
    attributes = otlp_exporter.resource_attributes("n1", host, OtlpSettings(), {})
    assert attributes == base | {"host.name": "n1"}
    host.files = {"/proc/sys/kernel/hostname": "gpu1\n", "/etc/machine-id": "abc\n"}
    assert otlp_exporter.resource_attributes("n1", host, OtlpSettings(), {}) == base | {
        "host.name": "gpu1",
        "host.id": "abc",
    }
    texts = "k8s.node.name=gpu%2D1, k8s.cluster.name=b,"
    environment = {"OTEL_RESOURCE_ATTRIBUTES": texts}
    assert otlp_exporter.resource_attributes("n1", host, settings, environment) == base | {
        "host.name": "mine",
        "host.id": "abc",
        "k8s.node.name": "gpu-1",
        "k8s.cluster.name": "a",
    }
    for malformed in ("k8s.node.name=a,b", "=a", "a=%0A"):
        environment = {"OTEL_RESOURCE_ATTRIBUTES": malformed}
        found = otlp_exporter.resource_attributes("n1", host, OtlpSettings(), environment)
        assert "k8s.node.name" not in found
        assert found["host.name"] == "gpu1"


def test_the_detail_is_that_of_the_metrics_endpoint_unless_it_is_set() -> None:
    configured = MetricSelection(
        MetricDetail.BASIC, (("host", None), ("gpu", MetricDetail.STANDARD))
    )
    assert otlp_exporter.metric_selection(OtlpSettings(), configured) is configured
    full = otlp_exporter.metric_selection(OtlpSettings(detail="full"), configured)
    assert full == MetricSelection(MetricDetail.FULL, (("host", None),))


async def test_an_agent_exports_what_it_serves(tmp_path: Path) -> None:
    clock = LiveClock()
    host = RecordedHost(capture_of("lost-gpu"), clock, lambda: 0)
    async with otlp_server() as server:
        settings = AgentSettings(
            listen="127.0.0.1:0",
            state_directory=str(tmp_path),
            metrics=MetricsSettings(detail="full"),
            otlp=OtlpSettings(period_seconds=1),
        )
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": server.url}
        agent = Agent(settings, host, "n1", environment=environment)
        task = asyncio.create_task(agent.run())
        metrics = server.metrics
        await server.received_until(lambda: len(metrics.samples) >= 500 and bool(server.records))
        own = [key for key in server.metrics.samples if "otlp" in key[0]]
        task.cancel()
        await asyncio.wait({task})
    assert {dict(key[1]).get("signal", "") for key in own} == {"", METRICS, LOGS}
    assert server.metrics.resources[0]["service.instance.id"] == "n1"
    assert any(name == "railscope_gpu_info" for name, _ in server.metrics.samples)
    assert agent.stats.otlp[METRICS].sent >= 500


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
        assert [request.size for request in server.requests] == [0, 0]
    found = [line for line in lines if "OTLP" in line]
    assert found == [
        f"BROKEN  OTLP: {server.url}/v1/metrics does not accept metrics: status 401 no token",
        f"ok      OTLP: {server.url}/v1/logs accepts logs",
    ]


async def test_invalid_settings_are_an_error_at_the_start_and_in_the_check(tmp_path: Path) -> None:
    host = RecordedHost(capture_of("t4"), LiveClock(), lambda: 0)
    settings = AgentSettings(
        state_directory=str(tmp_path), listen="127.0.0.1:0", otlp=OtlpSettings(endpoint="h:4318")
    )
    agent = Agent(settings, host, "n1")
    with pytest.raises(SettingsError, match=r"invalid otlp\.endpoint"):
        await agent.run()
    lines: list[str] = []
    await check(agent, lines.append)
    assert any("BROKEN  OTLP: invalid otlp.endpoint" in line for line in lines)


def test_the_exporters_own_metrics_are_those_of_each_signal() -> None:
    stats = OtlpStats(sent=7, retries=2, waiting_bytes=5, oldest_boot_ns=START.boot_ns - 3 * NS)
    stats.dropped["overflow"] = 4
    shipping = ShippingStats(otlp={METRICS: stats, LOGS: OtlpStats()})
    source = SelfMetricsSource(dict, shipping, list)
    found = numbers(read_once(source, FakeHost()).frame)
    assert {key: value for key, value in found.items() if "otlp" in key[0] and value} == {
        ("railscope_agent_otlp_sent_points_total", (METRICS,)): 7,
        ("railscope_agent_otlp_retries_total", (METRICS,)): 2,
        ("railscope_agent_otlp_waiting_size_bytes", (METRICS,)): 5,
        ("railscope_agent_otlp_oldest_age_seconds", (METRICS,)): 3,
        ("railscope_agent_otlp_dropped_points_total", (METRICS, "overflow")): 4,
    }
    assert ("railscope_agent_otlp_oldest_age_seconds", (LOGS,)) not in found
    assert ("railscope_agent_otlp_sent_points_total", (LOGS,)) in found
    without = numbers(read_once(SelfMetricsSource(dict, ShippingStats(), list), FakeHost()).frame)
    assert not any("otlp" in name for name, _ in without)


@pytest.mark.parametrize(("endpoint", "loaded"), [("", "False"), ("http://127.0.0.1:9", "True")])
def test_an_agent_without_an_endpoint_does_not_load_protobuf(
    endpoint: str, loaded: str, tmp_path: Path
) -> None:
    script = (
        "import sys\n"
        "from railscope_agent.config import AgentSettings, OtlpSettings\n"
        "from railscope_agent.host.live_host import LiveHost\n"
        "from railscope_agent.service import Agent\n"
        f"settings = AgentSettings(node='n1', otlp=OtlpSettings(endpoint={endpoint!r}))\n"
        f"Agent(settings, LiveHost({str(tmp_path)!r}), environment={{}}).make_exporter()\n"
        "print('google.protobuf' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == loaded


def test_a_missing_extra_is_named_with_its_installation(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "sys.modules['opentelemetry'] = None  # as without the extra\n"
        "from railscope_agent.config import AgentSettings, OtlpSettings\n"
        "from railscope_agent.host.live_host import LiveHost\n"
        "from railscope_agent.service import Agent\n"
        "settings = AgentSettings(node='n1', otlp=OtlpSettings(endpoint='http://127.0.0.1:9'))\n"
        f"Agent(settings, LiveHost({str(tmp_path)!r}), environment={{}}).make_exporter()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert "SettingsError: missing opentelemetry-proto" in done.stderr
    assert f"fix: {extras.install_command('otlp')}" in done.stderr


async def test_variables_with_a_problem_disable_the_export_and_not_the_agent(
    tmp_path: Path,
) -> None:
    host = RecordedHost(capture_of("t4"), LiveClock(), lambda: 0)
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:1",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json",
    }
    settings = AgentSettings(state_directory=str(tmp_path), listen="127.0.0.1:0")
    agent = Agent(settings, host, "n1", environment=environment)
    listening = asyncio.Event()
    agent.on_listening = lambda *_: listening.set()
    with capture_logs() as logs:
        task = asyncio.create_task(agent.run())
        await asyncio.wait_for(listening.wait(), 60)
        task.cancel()
        await asyncio.wait({task})
    (problem,) = (line["problem"] for line in logs if line["event"] == "otlp_export_disabled")
    assert "invalid OTEL_EXPORTER_OTLP_PROTOCOL 'http/json'" in problem
    assert not agent.stats.otlp
    await agent.once()
    own = agent.sampler.statuses["agent"].frame
    assert own
    assert [value for metric, _, value in own.readings() if metric is catalog.OTLP_STATE] == [1]
    lines: list[str] = []
    await check(agent, lines.append)
    assert any("BROKEN  OTLP: invalid OTEL_EXPORTER_OTLP_PROTOCOL" in line for line in lines)
