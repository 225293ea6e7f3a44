"""OTLP requests with the events of a node, as log records.

The record of an event that concerns a process has neither the process nor the kernel's message about
it: these may identify a tenant's program, and a receiver does not restrict access as the collector does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.logs.v1 import logs_pb2

from railscope.catalog import declare
from railscope.frame import Event, Frame
from railscope.otlp_points import (
    attributes,
    resource_message,
    scope_message,
)
from railscope_agent.otlp.metric_messages import MessageBatch

LogRecord = logs_pb2.LogRecord
RECORDS_PER_REQUEST = 500


def event_record(event: Event, observed_ns: int) -> LogRecord:
    """Return the log record of an event: labels and facts as attributes, the message as body."""
    about, event_class = event.entity, event.event_class
    facts = event_class.disclosed_facts(event.facts)
    record = LogRecord(
        time_unix_nano=event.wall_ns,
        observed_time_unix_nano=observed_ns,
        severity_number=logs_pb2.SeverityNumber.ValueType(
            declare.SEVERITY_NUMBERS[event_class.severity]
        ),
        severity_text=event_class.severity,
        event_name=f"railscope.{event_class.name}",
        attributes=attributes((*zip(about.kind.labels, about.key, strict=True), *facts.items())),
    )
    record.body.string_value = facts.get("message", event_class.help)
    return record


def frame_records(frame: Frame) -> list[LogRecord]:
    """Return the log records of the events of a frame."""
    return [event_record(event, frame.timestamp.wall_ns) for event in frame.events]


def event_requests(
    resource: Mapping[str, str], records: Sequence[LogRecord]
) -> Iterator[MessageBatch]:
    """Yield requests with log records."""
    for start in range(0, len(records), RECORDS_PER_REQUEST):
        batch = records[start : start + RECORDS_PER_REQUEST]
        scope = logs_pb2.ScopeLogs(scope=scope_message(), log_records=batch)
        of_node = logs_pb2.ResourceLogs(resource=resource_message(resource), scope_logs=[scope])
        request = logs_service_pb2.ExportLogsServiceRequest(resource_logs=[of_node])
        yield MessageBatch(request.SerializeToString(), len(batch))
