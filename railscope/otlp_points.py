"""Points of one metric as messages of OTLP that are kept between exports, and the requests that contain them.

An export replaces times and numbers: to build all objects for it would cost several times as much. Series, labels and
values are those of the metrics endpoint (railscope/exposition.py). Each metric is serialized as a `ScopeMetrics` without its
scope: protobuf merges messages that are concatenated.

It loads protobuf: a program imports this module only if its settings select OTLP.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.resource.v1 import resource_pb2

from railscope import __version__
from railscope.catalog import declare
from railscope.catalog.declare import MetricKind

SCOPE = "railscope"
NO_RECORDED_VALUE = metrics_pb2.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
CUMULATIVE = metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE

Labels = tuple[tuple[str, str], ...]


def attributes(labels: Iterable[tuple[str, str]]) -> list[common_pb2.KeyValue]:
    """Return labels as attributes."""
    return [
        common_pb2.KeyValue(key=name, value=common_pb2.AnyValue(string_value=text))
        for name, text in labels
    ]


def resource_message(resource: Mapping[str, str]) -> resource_pb2.Resource:
    """Return the resource with its attributes."""
    return resource_pb2.Resource(attributes=attributes(resource.items()))


def scope_message() -> common_pb2.InstrumentationScope:
    """Return the scope of all signals."""
    return common_pb2.InstrumentationScope(name=SCOPE, version=__version__)


class RequestEnvelope:
    """Serialized resource and scope of requests with metrics."""

    def __init__(self, resource: Mapping[str, str]) -> None:
        of_resource = metrics_pb2.ResourceMetrics(resource=resource_message(resource))
        self._resource = of_resource.SerializeToString()
        scope = metrics_pb2.ScopeMetrics(scope=scope_message())
        self._scope = scope.SerializeToString()

    def request(self, metrics: Iterable[bytes]) -> bytes:
        """Return a request with serialized metrics; they are copied once."""
        contents = self._scope, *metrics
        length = sum(map(len, contents))
        of_scope = _embedded_head(metrics_pb2.ResourceMetrics.SCOPE_METRICS_FIELD_NUMBER, length)
        number = metrics_service_pb2.ExportMetricsServiceRequest.RESOURCE_METRICS_FIELD_NUMBER
        of_resource = _embedded_head(number, len(self._resource) + len(of_scope) + length)
        return b"".join((of_resource, self._resource, of_scope, *contents))


def _embedded_head(number: int, length: int) -> bytes:
    """Return the head of a field that contains a serialized message: tag, and length in groups of seven bits."""
    head = bytearray(((number << 3) | 2,))
    while length > 0x7F:  # noqa: PLR2004 - seven bits in each byte
        head.append((length & 0x7F) | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head)


def add_metric(scope: metrics_pb2.ScopeMetrics, metric: declare.Metric) -> Any:
    """Add a metric to a scope; return its points, which are of the type of its kind."""
    message = scope.metrics.add(name=metric.name, description=metric.help, unit=metric.unit.ucum)
    if metric.kind is MetricKind.COUNTER:
        message.sum.is_monotonic = True
        message.sum.aggregation_temporality = CUMULATIVE
        return message.sum.data_points
    if metric.kind is MetricKind.HISTOGRAM:
        message.histogram.aggregation_temporality = CUMULATIVE
        return message.histogram.data_points
    if metric.kind is MetricKind.INFO:
        message.metadata.extend(attributes((("prometheus.type", "info"),)))
    return message.gauge.data_points


class MetricPoints:
    """Points of series whose labels and times do not depend on their values."""

    def __init__(self, metric: declare.Metric, series: Iterable[Labels]) -> None:
        self._scope = metrics_pb2.ScopeMetrics()
        container = add_metric(self._scope, metric)
        self._points = [container.add(attributes=attributes(labels)) for labels in series]

    def set_numbers(self, numbers: Iterable[float], time_ns: int) -> bytes:
        """Set numbers and time of the points; return the serialized metric."""
        for point, number in zip(self._points, numbers, strict=True):
            point.as_double = number
            point.time_unix_nano = time_ns
        return self._scope.SerializeToString()

    def end(self, times_ns: Iterable[int]) -> bytes:
        """Set times and no value, which ends the series; return the serialized metric."""
        for point, time_ns in zip(self._points, times_ns, strict=True):
            point.time_unix_nano, point.flags = time_ns, NO_RECORDED_VALUE
        return self._scope.SerializeToString()
