"""Events and incidents of the collector as log records of OTLP: from a node to a receiver, and what a receiver rejects."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from makers import START_BOOT_NS, START_WALL_NS, FrameSender, gpu_schema
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.logs.v1 import logs_pb2
from running_collector import RunningCollector, run_collector, settings_in
from support.otlp_grpc_server import GrpcAnswer, otlp_grpc_server
from support.otlp_server import PROTOBUF, OtlpServer, ScriptedAnswer, otlp_server

from railscope.catalog import EVENTS, entities
from railscope.frame import Entity, Event
from railscope.settings import SettingsError
from railscope.wire import WireEntity, WireEvent
from railscope_collector.config import RemoteWriteSettings
from railscope_collector.fleet.recent_events import (
    MAX_EVENTS,
    EventPosition,
    RecentEvents,
    SeenEvent,
)
from railscope_collector.sinks import SinkError
from railscope_collector.sinks.otlp_events import OtlpEventQueue, OtlpEventsFormat
from railscope_collector.sinks.remote_write import RemoteWriteSink

POSITION = EventPosition("run", "kernel", 1, 0, 7)


def attributes_of(record: logs_pb2.LogRecord) -> dict[str, str]:
    return {each.key: each.value.string_value for each in record.attributes}


@asynccontextmanager
async def exporting(
    directory: Path, server: OtlpServer, **more: Any
) -> AsyncIterator[RunningCollector]:
    written = RemoteWriteSettings(events_url=f"{server.url}/v1/logs", **more)
    async with run_collector(settings_in(directory, remote_write=written)) as one:
        yield one


def xid(sender: FrameSender, at: int, number: str = "79") -> bytes:
    facts = {"message": "NVRM: Xid: pid=7", "process": "7", "process_name": "x", "meaning": "lost"}
    about = Entity(entities.XID, ("0000:01:00.0", number))
    event = Event(EVENTS["xid"], about, START_WALL_NS + at, START_BOOT_NS + at, facts)
    frames = sender.frames(gpu_schema("n1"), [[50, 60, 1000, 2000, 10, 20]], at=at)
    return sender.body([replace(frame, events=(event,)) for frame in frames], schemas=True)


async def test_an_event_of_a_node_is_exported_once_without_its_process(tmp_path: Path):
    sender = FrameSender()
    async with otlp_server() as server, exporting(tmp_path, server) as one:
        await one.post(xid(sender, 1), at=1)
        await server.received_until(lambda: len(server.records) == 1)
        await one.post(xid(replace(sender, run="run-2", sequences={}), 1), at=2)
        await one.post(xid(sender, 3, "48"), at=3)
        await server.received_until(lambda: len(server.records) == 2)
        _, text = await one.get("/metrics")
    first, second = server.records
    assert attributes_of(first) == {
        "node": "n1", "pci_address": "0000:01:00.0", "xid": "79", "meaning": "lost"
    }  # fmt: skip
    assert attributes_of(second)["xid"] == "48"
    assert (first.event_name, first.severity_number) == ("railscope.xid", 17)
    assert first.body.string_value == EVENTS["xid"].help
    assert first.time_unix_nano == START_WALL_NS + 1
    assert first.observed_time_unix_nano > 0
    assert server.requests[0].target == "/v1/logs"
    assert "railscope_collector_otlp_sent_events_total 2\n" in text
    assert "railscope_collector_otlp_waiting_events 0\n" in text


async def test_events_from_before_a_restart_are_not_exported_again(tmp_path: Path):
    sender = FrameSender()
    async with otlp_server() as server:
        async with exporting(tmp_path, server) as one:
            await one.post(xid(sender, 1), at=1)
            await server.received_until(lambda: len(server.records) == 1)
        async with exporting(tmp_path, server) as one:
            await one.post(xid(sender, 2, "48"), at=2)
            await server.received_until(lambda: len(server.records) == 2)
    assert [attributes_of(record)["xid"] for record in server.records] == ["79", "48"]


def incident(change: str = "opened") -> SeenEvent:
    facts = {
        "change": change,
        "class": "gpu_lost",
        "severity": "critical",
        "node": "n1",
        "rail": "",
    }
    entity = WireEntity("incident", ("i-1",))
    return SeenEvent("n1", "", WireEvent(f"incident_{change}", 0, entity, 5, 5, facts))


def decoded(body: bytes) -> list[logs_pb2.LogRecord]:
    request = logs_service_pb2.ExportLogsServiceRequest.FromString(gzip.decompress(body))
    (logs,) = request.resource_logs
    named = {each.key: each.value.string_value for each in logs.resource.attributes}
    assert named == {"service.name": "railscope-collector", "site": "x"}
    return list(logs.scope_logs[0].log_records)


def queue(recent: RecentEvents) -> OtlpEventQueue:
    resource = {"job": "railscope-collector", "site": "x"}
    return OtlpEventQueue("http://h", OtlpEventsFormat(resource), lambda: recent, lambda: 9)


def waiting(export: OtlpEventQueue) -> list[logs_pb2.LogRecord]:
    return [record for batch in export.writer._batches for record in decoded(batch.body)]  # noqa: SLF001 - without a server


def test_an_incident_has_its_class_and_severity():
    recent = RecentEvents()
    export = queue(recent)
    recent.add(incident())
    export.add_new()
    export.add_new()
    (record,) = waiting(export)
    assert record.event_name == "railscope.incident_opened"
    assert (record.severity_text, record.body.string_value) == ("error", "opened gpu_lost")
    assert (record.time_unix_nano, record.observed_time_unix_nano) == (5, 9)
    assert attributes_of(record)["incident"] == "i-1"
    assert "rail" not in attributes_of(record)


def test_events_of_other_collectors_and_facts_of_unknown_classes_are_not_exported():
    recent = RecentEvents()
    export = queue(recent)
    unknown = WireEvent("later", 0, WireEntity("thing", ("a",)), 1, 1, {"process": "secret"})
    recent.add(SeenEvent("n1", "boot", unknown, POSITION))
    recent.add(SeenEvent("n2", "boot", unknown))
    export.add_new()
    (record,) = waiting(export)
    assert attributes_of(record) == {"node": "n1", "thing": "a"}
    assert (record.event_name, record.severity_number) == ("railscope.later", 9)


def test_events_that_are_dropped_before_they_are_exported_are_counted():
    recent = RecentEvents()
    export = queue(recent)
    for number in range(MAX_EVENTS + 5):
        event = WireEvent("xid", 0, WireEntity("xid", ("a", str(number))), number, number)
        recent.add(SeenEvent(f"n{number % 100}", "boot", event, POSITION))
    export.add_new()
    assert (export.writer.waiting, export.writer.overflowed) == (MAX_EVENTS, 5)
    assert {cell.labels: cell.value for cell in export.cells()}["overflow",] == 5


def partial_success(rejected: int) -> ScriptedAnswer:
    response = logs_service_pb2.ExportLogsServiceResponse()
    response.partial_success.rejected_log_records = rejected
    return ScriptedAnswer(200, (("Content-Type", PROTOBUF),), response.SerializeToString())


@pytest.mark.parametrize(
    ("answer", "sent", "rejected"),
    [
        (partial_success(1), 0, 1),
        (ScriptedAnswer(400, (), b"bad"), 0, 1),
        (ScriptedAnswer(503, (("Retry-After", "0"),), b""), 1, 0),
    ],
    ids=["partial success", "final", "repeated"],
)
async def test_a_receiver_may_reject_events_or_have_them_repeated(
    tmp_path: Path, answer: ScriptedAnswer, sent: int, rejected: int
):
    async with otlp_server() as server, exporting(tmp_path, server) as one:
        server.script.append(answer)
        one.collector.core.add_event(incident())
        export = one.collector.remote_write.events
        assert export
        await server.received(2 if sent else 1)
        async with asyncio.timeout(60):
            while not export.writer.written + export.writer.rejected:  # noqa: ASYNC110 - a counter without an event
                await asyncio.sleep(0.02)
    assert (export.writer.written, export.writer.rejected) == (sent, rejected)


async def test_a_check_sends_a_request_without_events():
    async with otlp_server() as server:
        settings = RemoteWriteSettings(events_url=f"{server.url}/v1/logs")
        message = await RemoteWriteSink(settings).probe()
        server.script.append(ScriptedAnswer(403, (), b"no"))
        with pytest.raises(SettingsError, match=r"remote_write\.events_url .*: 403 no"):
            await RemoteWriteSink(settings).probe()
    assert message == f"{server.url}/v1/logs accepts events"
    assert (len(server.requests), server.records) == (2, [])
    with pytest.raises(SettingsError, match="events_url"):
        RemoteWriteSink(RemoteWriteSettings(events_url="ftp://h"))


async def test_metrics_and_events_are_exported_over_grpc(tmp_path: Path):
    async with otlp_grpc_server() as server:
        url = f"http://127.0.0.1:{server.port}"
        written = RemoteWriteSettings(
            url=url, format="otlp", events_url=url, otlp_protocol="grpc", period_seconds=0.1
        )
        headers = {"X-Scope-OrgID": "railscope"}
        written = msgspec.structs.replace(written, headers=headers)
        async with run_collector(settings_in(tmp_path, remote_write=written)) as one:
            await one.post(xid(FrameSender(), 1), at=1)
            async with asyncio.timeout(20):
                while not (server.records and server.metrics.samples):
                    await server.received(len(server.metadata) + 1)
    assert server.records == 1
    assert {call["x-scope-orgid"] for call in server.metadata} == {"railscope"}
    assert all(
        str(call["user-agent"]).startswith("railscope-collector/") for call in server.metadata
    )


@pytest.mark.parametrize(
    ("code", "is_rejected", "seconds"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, True, 0),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, False, 7),
    ],
)
async def test_status_of_grpc_rejects_or_repeats_a_request(
    code, *, is_rejected: bool, seconds: float
):
    async with otlp_grpc_server() as server:
        server.script.append(GrpcAnswer(code, "no", wait_seconds=seconds or None))
        url = f"http://127.0.0.1:{server.port}"
        sink = RemoteWriteSink(RemoteWriteSettings(events_url=url, otlp_protocol="grpc"))
        assert sink.events
        async with sink._connected(sink.events.format, url) as send:  # noqa: SLF001 - the queue's function
            with pytest.raises(SinkError, match=code.name) as raised:
                await send(b"")
            assert (raised.value.is_rejected, raised.value.retry_seconds) == (is_rejected, seconds)
            assert await send(b"") == 0


@pytest.mark.parametrize(
    ("chosen", "problem"),
    [
        ({"url": "http://h:4317"}, "expected format otlp"),
        ({"events_url": "http://h:4318/v1/logs"}, "expected a URL without a path"),
    ],
)
def test_settings_that_grpc_does_not_permit_are_errors(chosen: dict[str, str], problem: str):
    with pytest.raises(SettingsError, match=problem):
        RemoteWriteSink(RemoteWriteSettings(otlp_protocol="grpc", **chosen))
