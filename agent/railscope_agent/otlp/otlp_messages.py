"""Requests of OTLP with the metrics and events of a node.

Metrics: each metric of a schema is serialized as a `ScopeMetrics` without its scope. Protobuf merges messages that are concatenated,
so that a request has only the metrics of sources that were read since the last one.

Events are log records. The record of an event that concerns a process has neither the process nor the kernel's message about
it: these may identify a tenant's program, and a receiver does not restrict access as the collector does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.logs.v1 import logs_pb2
from opentelemetry.proto.metrics.v1 import metrics_pb2

from railscope import otlp_points
from railscope.catalog import INFO, declare, entities
from railscope.catalog.declare import MetricKind
from railscope.exposition import EVERYTHING, MetricSelection
from railscope.frame import Event, Frame, Schema
from railscope.otlp_points import (
    AnyMetric,
    CounterHistory,
    CounterStarts,
    InfoMetric,
    NumberMetric,
    SeriesKey,
    TextfileMetric,
    add_metric,
    attributes,
    resource_message,
    scope_message,
    set_number,
)
from railscope.textfile_series import TextfileTemplate
from railscope_agent.otlp import hardware_names

MAX_BODY_BYTES = 4 << 20
"""Size before compression above which an export is divided into several requests."""
LogRecord = logs_pb2.LogRecord
RECORDS_PER_REQUEST = 500


class MessageBatch(NamedTuple):
    """Serialized message, and the number of its points or log records."""

    body: bytes
    size: int


_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@lru_cache(maxsize=8192)
def textfile_key(type_: str, help_: str, series: str) -> SeriesKey:
    """Return the identity of a series of a textfile.

    A counter whose name does not end in `_total` would be renamed by the translation to Prometheus: it is a gauge, as
    are the samples of histograms and summaries, each under its own name.
    """
    name, _, labels = series.partition("{")
    is_counter = type_ == "counter" and name.endswith("_total")
    kind = MetricKind.COUNTER if is_counter else MetricKind.GAUGE
    pairs = (
        (label, re.sub(r"\\.", lambda match: _ESCAPES.get(match[0], match[0]), text))
        for label, text in _LABEL.findall(labels)
    )
    return SeriesKey(TextfileMetric(name, kind, help_), tuple(pairs))


class TextfileMetrics:
    """Points of the series of textfiles of a schema."""

    def __init__(self, schema: Schema, starts: CounterStarts) -> None:
        self._template, self._starts = TextfileTemplate(schema), starts
        self._scope, self._points = metrics_pb2.ScopeMetrics(), list[Any]()
        self._values: list[float] = []
        self.keys: list[SeriesKey] = []
        """Series that have a point."""

    def update(self, frame: Frame) -> bytes:
        """Set the points to the values of a frame; return the serialized metrics, empty without points."""
        samples = list(self._template.samples(frame))
        keys = [textfile_key(each.type, each.help, each.series) for each in samples]
        values = [float(each.value) for each in samples]
        read_ns = frame.timestamp.wall_ns
        if keys != self.keys:
            self.end()
            self._add_points(keys, values, frame)
        for key, point, sample, value, last in zip(
            keys, self._points, samples, values, self._values, strict=True
        ):
            point.time_unix_nano = read_ns
            if key.metric.kind is MetricKind.COUNTER:
                start_ns = read_ns if value < last else point.start_time_unix_nano
                point.start_time_unix_nano = min(start_ns, read_ns)
            is_integer = sample.value.removeprefix("-").isdecimal()
            set_number(point, int(sample.value) if is_integer else value)
        self._values = values
        return self._scope.SerializeToString() if keys else b""

    def end(self) -> None:
        """Remove all points, and store the histories of their counters."""
        for key, point, value in zip(self.keys, self._points, self._values, strict=True):
            if key.metric.kind is MetricKind.COUNTER:
                self._starts.save(key, CounterHistory(point.start_time_unix_nano, value))
        self._scope.Clear()
        self.keys, self._points, self._values = [], [], []

    def _add_points(self, keys: list[SeriesKey], values: list[float], frame: Frame) -> None:
        containers: dict[AnyMetric, Any] = {}
        for key, value in zip(keys, values, strict=True):
            container = containers.get(key.metric)
            if container is None:
                container = containers[key.metric] = add_metric(self._scope, key.metric)
            point = container.add(attributes=attributes(key.labels))
            if key.metric.kind is MetricKind.COUNTER:
                point.start_time_unix_nano = self._starts.start_ns(key, value, frame, 0)
            self._points.append(point)
        self.keys, self._values = keys, values


@dataclass(slots=True)
class SourceMetrics:
    """Metrics of one source, in its present schema."""

    schema: Schema
    metrics: list[NumberMetric | TextfileMetrics]
    infos: list[InfoMetric] = field(default_factory=list)
    frame: Frame | None = None
    """Last exported frame; None if the source has ended."""

    @classmethod
    def create(
        cls,
        schema: Schema,
        selection: MetricSelection,
        starts: CounterStarts,
        names: str = "railscope",
    ) -> SourceMetrics:
        """Return the selected metrics of a schema, without points."""
        metrics: list[NumberMetric] = []
        textfiles: list[TextfileMetrics] = []
        first = 0
        for metric, members in schema.groups:
            if metric.kind is declare.MetricKind.INFO or not selection.contains(
                metric, schema.stream
            ):
                pass
            elif metric.about is entities.TEXTFILE_SERIES:
                textfiles = [TextfileMetrics(schema, starts)]
            else:
                described = [schema.entities[member] for member in members]
                named = (metric, first, described, starts)
                found = [] if names == "railscope" else hardware_names.hardware_points(*named)
                is_replaced = found and all(points.is_complete for points in found)
                if names != "hardware" or not is_replaced:
                    metrics.append(otlp_points.create_metric(*named))
                metrics += found
            first += len(members)
        return cls(schema, [*metrics, *textfiles])

    def update(self, frame: Frame, ended: dict[SeriesKey, int]) -> Iterator[MessageBatch]:
        """Yield each serialized metric of a frame; add series without a point to those that have ended."""
        self.frame = frame
        for metric in self.metrics:
            before = metric.keys
            if content := metric.update(frame):
                yield MessageBatch(content, len(metric.keys))
            if metric.keys is not before:
                ended |= dict.fromkeys(before, frame.timestamp.wall_ns)
        for info in self.infos:
            yield MessageBatch(info.update(frame), len(info.keys))

    @property
    def keys(self) -> set[SeriesKey]:
        """Series that have a point."""
        keys = {key for metric in self.metrics for key in metric.keys}
        return keys.union(*(info.keys for info in self.infos))

    def end(self) -> None:
        """Remove all points."""
        for metric in self.metrics:
            metric.end()
        self.frame, self.infos = None, []


class MetricMessages:
    """Requests with the metrics of a node, one after the other."""

    def __init__(
        self,
        resource: Mapping[str, str],
        agent_start_ns: int,
        selection: MetricSelection = EVERYTHING,
        names: str = "railscope",
    ) -> None:
        self._selection, self._names = selection, names
        self._starts = CounterStarts(agent_start_ns)
        self._sources: dict[str, SourceMetrics] = {}
        self._schemas: list[Schema] = []
        schema_url = "" if names == "railscope" else hardware_names.SCHEMA_URL
        self._envelope = otlp_points.RequestEnvelope(resource, schema_url)

    def build(self, frames: Iterable[Frame], now_ns: int) -> list[MessageBatch]:
        """Return requests with the readings since the last call, and the end of series that have none any more.

        `frames` are the latest ones of all sources, in the order of the metrics endpoint. Series of a source without
        a frame end at `now_ns`.
        """
        current = {frame.schema.stream: frame for frame in frames}
        ended: dict[SeriesKey, int] = {}
        for stream, source in self._sources.items():
            if source.frame and stream not in current:
                ended |= dict.fromkeys(source.keys, now_ns)
                source.end()
        for stream, frame in current.items():
            former = self._sources.get(stream)
            if former is None or former.schema != frame.schema:
                if former:
                    ended |= dict.fromkeys(former.keys, frame.timestamp.wall_ns)
                    former.end()
                self._sources[stream] = SourceMetrics.create(
                    frame.schema, self._selection, self._starts, self._names
                )
            else:
                former.schema = frame.schema  # an identical one makes the next comparison fast
        schemas = [frame.schema for frame in current.values()]
        if schemas != self._schemas:
            ended |= self._place_infos(schemas, now_ns)
            self._schemas = schemas
        metrics = [
            metric
            for stream, frame in current.items()
            if frame is not self._sources[stream].frame
            for metric in self._sources[stream].update(frame, ended)
        ]
        if ended:
            metrics += self._ended_metrics(ended)
        return list(self._requests(metrics))

    def _place_infos(self, schemas: Sequence[Schema], now_ns: int) -> dict[SeriesKey, int]:
        """Assign the facts of each entity to the last source that has them; return the former series."""
        facts: dict[SeriesKey, tuple[str, SeriesKey]] = {}
        for schema in schemas:
            for entity in schema.entities:
                metric = INFO.get(entity.kind.name)
                if metric and entity.facts and self._selection.contains(metric, schema.stream):
                    labels = tuple(zip(entity.kind.labels, entity.key, strict=True))
                    more = tuple((name, entity.facts.get(name, "")) for name in entity.kind.facts)
                    series = SeriesKey(metric, (*labels, *more))
                    facts[SeriesKey(metric, labels)] = schema.stream, series
        former = {
            key for source in self._sources.values() for info in source.infos for key in info.keys
        }
        placed: dict[str, dict[Any, list[SeriesKey]]] = {}
        for stream, series in facts.values():
            placed.setdefault(stream, {}).setdefault(series.metric, []).append(series)
        for stream, source in self._sources.items():
            by_metric = placed.get(stream, {})
            source.infos = [InfoMetric(metric, keys) for metric, keys in by_metric.items()]
        return dict.fromkeys(former, now_ns)

    def _ended_metrics(self, ended: Mapping[SeriesKey, int]) -> Iterator[MessageBatch]:
        """Yield metrics with one point without a value for each series that no source has any more."""
        present = set[SeriesKey]().union(*(source.keys for source in self._sources.values()))
        by_metric: dict[Any, list[tuple[SeriesKey, int]]] = {}
        for key, time_ns in ended.items():
            if key not in present:
                by_metric.setdefault(key.metric, []).append((key, time_ns))
        for metric, keys in by_metric.items():
            labels, times_ns = zip(*((key.labels, time_ns) for key, time_ns in keys), strict=True)
            points = otlp_points.MetricPoints(metric, labels)
            yield MessageBatch(points.end(times_ns), len(keys))

    def _requests(self, metrics: Iterable[MessageBatch]) -> Iterator[MessageBatch]:
        """Yield requests with serialized metrics, each within the bound."""
        contents, length, size = list[bytes](), 0, 0
        for content, points in metrics:
            if size and length + len(content) > MAX_BODY_BYTES:
                yield MessageBatch(self._envelope.request(contents), size)
                contents, length, size = [], 0, 0
            contents.append(content)
            length += len(content)
            size += points
        if size:
            yield MessageBatch(self._envelope.request(contents), size)


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
        part = records[start : start + RECORDS_PER_REQUEST]
        scope = logs_pb2.ScopeLogs(scope=scope_message(), log_records=part)
        of_node = logs_pb2.ResourceLogs(resource=resource_message(resource), scope_logs=[scope])
        request = logs_service_pb2.ExportLogsServiceRequest(resource_logs=[of_node])
        yield MessageBatch(request.SerializeToString(), len(part))
