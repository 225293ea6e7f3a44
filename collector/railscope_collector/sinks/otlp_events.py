"""Events that the collector has received, and its incidents, as log records of OTLP.

The records are those of the agents' own export, with the node as an attribute: facts that identify a tenant's process are left out,
because a receiver does not restrict access as the collector does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from railscope import __version__
from railscope.catalog import EVENTS, KINDS, collector as catalog
from railscope.catalog.declare import SEVERITY_NUMBERS
from railscope.untrusted_text import printable
from railscope_collector.fleet.recent_events import RecentEvents, SeenEvent
from railscope_collector.fleet.view_cells import ViewCell
from railscope_collector.sinks import otlp_format
from railscope_collector.sinks.queued_writer import QueuedBatch, QueuedWriter

PERIOD_SECONDS = 1.0
"""Time for which events are collected into one request."""
RECORDS_PER_REQUEST = 500
MAX_WAITING = 10_000
_INCIDENT = "incident"
_SEVERITIES = {"info": "info", "warning": "warning", "critical": "error"}
"""Severity of a record by that of an incident."""


def is_exported(node_event: SeenEvent) -> bool:
    """True for an event that a node sent to this collector, and for an incident: another one exports the others."""
    return node_event.position is not None or node_event.event.entity.kind == _INCIDENT


class OtlpEventsFormat:
    """`ExportLogsServiceRequest` in protobuf, compressed. Raises SettingsError without its extra."""

    headers: ClassVar = otlp_format.OtlpMetricsFormat.headers
    repeated_statuses: ClassVar[Collection[int]] = otlp_format.OtlpMetricsFormat.repeated_statuses

    def __init__(self, resource: Mapping[str, str], *, is_compressed: bool = True) -> None:
        setting = "remote_write.events_url"
        self._service = otlp_format.import_messages("collector.logs.v1.logs_service_pb2", setting)
        self._resource, self._is_compressed = resource, is_compressed

    def encode(self, events: Iterable[SeenEvent], now_ns: int) -> bytes:
        """Return the body of a request; events without a time of receipt were recorded by the collector now."""
        request = self._service.ExportLogsServiceRequest()
        logs = request.resource_logs.add()
        otlp_format.add_resource(logs, self._resource)
        scope = logs.scope_logs.add()
        scope.scope.name, scope.scope.version = "railscope", __version__
        for node_event in events:
            record, event = scope.log_records.add(), node_event.event
            severity, body, attributes = _content(node_event)
            record.time_unix_nano = event.wall_ns
            record.observed_time_unix_nano = (
                node_event.position.received_ns if node_event.position else now_ns
            )
            record.event_name = f"railscope.{event.name}"
            record.severity_text, record.severity_number = severity, SEVERITY_NUMBERS[severity]
            record.body.string_value = body
            for name, text in attributes.items():
                record.attributes.add(key=name).value.string_value = text
        return otlp_format.serialize(request, is_compressed=self._is_compressed)

    def rejected_samples(self, body: bytes) -> tuple[int, str]:
        """Return the number of rejected records in a successful response, and its message."""
        try:
            partial = self._service.ExportLogsServiceResponse.FromString(body).partial_success
        except otlp_format.decode_error():
            return 0, "the response cannot be decoded"
        return max(partial.rejected_log_records, 0), printable(partial.error_message)


def _content(node_event: SeenEvent) -> tuple[str, str, dict[str, str]]:
    """Return severity, body and attributes of a record; of a class that is not known, its labels only."""
    event, kind = node_event.event, KINDS.get(node_event.event.entity.kind)
    names = kind.labels if kind else (event.entity.kind,)
    attributes = {"node": node_event.node} | dict(zip(names, event.entity.key, strict=False))
    if event.entity.kind == _INCIDENT:
        facts = {name: text for name, text in event.facts.items() if text}
        severity = _SEVERITIES.get(facts.get("severity", ""), "warning")
        body = f"{facts.get('change', '')} {facts.get('class', '')}".strip()
    elif event_class := EVENTS.get(event.name):
        facts, severity = event_class.disclosed_facts(event.facts), event_class.severity
        body = facts.get("message", event_class.help)
    else:
        facts, severity, body = {}, "info", event.name
    return severity, body, {name: text for name, text in (attributes | facts).items() if text}


@dataclass(slots=True)
class OtlpEventQueue:
    """Exports new events until cancelled, the oldest first."""

    url: str
    format: OtlpEventsFormat
    events: Callable[[], RecentEvents]
    wall_ns: Callable[[], int]
    writer: QueuedWriter = field(init=False)
    _next: int = 0
    """Number of the next event."""

    def __post_init__(self) -> None:
        """Create the queue."""
        self.writer = QueuedWriter("otlp_events", self.url, MAX_WAITING)

    async def run(self, send: Callable[[bytes], Awaitable[int]]) -> None:
        """Export the events from now on."""
        # Events from before the start were exported by the run that received them.
        self._next = self.events().end
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.writer.run(send))
            while True:
                await asyncio.sleep(PERIOD_SECONDS)
                self.add_new()

    def add_new(self) -> None:
        """Queue the events since the last call; those that are not in memory any more have overflowed."""
        recent = self.events()
        found, begin = recent.since(self._next), self._next
        self._next = recent.end
        self.writer.overflowed += self._next - begin - len(found)
        exported, now_ns = list(filter(is_exported, found)), self.wall_ns()
        for start in range(0, len(exported), RECORDS_PER_REQUEST):
            part = exported[start : start + RECORDS_PER_REQUEST]
            self.writer.add([QueuedBatch(self.format.encode(part, now_ns), len(part))])

    def cells(self) -> list[ViewCell]:
        """Return the metrics of the export."""
        writer = self.writer
        return [
            ViewCell(catalog.EXPORTED_EVENTS, (), writer.written),
            ViewCell(catalog.WAITING_EVENTS, (), writer.waiting),
            ViewCell(catalog.DROPPED_EVENTS, ("rejected",), writer.rejected),
            ViewCell(catalog.DROPPED_EVENTS, ("overflow",), writer.overflowed),
        ]
