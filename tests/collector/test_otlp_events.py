"""Events and incidents of the collector as log records of OTLP: from a node to a receiver, and what a receiver rejects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from makers import START_BOOT_NS, START_WALL_NS, FrameSender, gpu_schema
from opentelemetry.proto.logs.v1 import logs_pb2
from running_collector import RunningCollector, run_collector, settings_in
from support.otlp_server import OtlpServer, otlp_server

from railscope.catalog import EVENTS, entities
from railscope.frame import Entity, Event
from railscope_collector.config import RemoteWriteSettings


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
