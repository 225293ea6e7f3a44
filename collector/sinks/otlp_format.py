"""The collector's metrics as requests of OTLP over HTTP, for receivers of OpenTelemetry.

Names and labels are those of the metrics endpoint. Labels that all series share describe the resource: the translation to
Prometheus makes `job` and `instance` of service name and instance again.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar

from railscope import __version__, settings
from railscope.catalog.declare import Metric, MetricKind
from railscope.untrusted_text import printable

RESOURCE_NAMES = {"job": "service.name", "instance": "service.instance.id"}
_MILLISECOND_NS = 1_000_000
_MESSAGES = "opentelemetry.proto"


def import_messages(name: str, setting: str) -> Any:
    """Return a module of messages, which takes 5 MiB. Raises SettingsError without its extra."""
    try:
        return import_module(f"{_MESSAGES}.{name}")
    except ImportError as error:
        message = (
            f"missing opentelemetry-proto, which {setting} requires;"
            " fix: pip install 'railscope[otlp]'"
        )
        raise settings.SettingsError(message) from error


def decode_error() -> type[Exception]:
    """Return the error of a message that cannot be decoded."""
    error: type[Exception] = import_module("google.protobuf.message").DecodeError
    return error


def add_resource(message: Any, labels: Mapping[str, str]) -> None:
    """Add the labels that all series share to a message, as attributes of its resource."""
    for name, text in labels.items():
        attribute = message.resource.attributes.add(key=RESOURCE_NAMES.get(name, name))
        attribute.value.string_value = text


class OtlpMetricsFormat:
    """`ExportMetricsServiceRequest` in protobuf, compressed. Raises SettingsError without its extra.

    Starts of counters are unknown and left out; a counter that falls has been reset.
    """

    headers: ClassVar = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
    has_stale_markers: ClassVar = True
    repeated_statuses: ClassVar[Collection[int]] = (429, 502, 503, 504)
    """Of the specification of the protocol."""

    def __init__(self, stale_marker: bytes) -> None:
        setting = "remote_write.format otlp"
        self._service = import_messages("collector.metrics.v1.metrics_service_pb2", setting)
        self._metrics_pb = import_messages("metrics.v1.metrics_pb2", setting)
        self.resource: Mapping[str, str] = {}
        self._stale_marker = stale_marker
        self._metrics: dict[str, Metric] = {}

    def encode_series(self, metric: Metric, labels: Iterable[tuple[str, str]]) -> bytes:
        """Return the name of the metric, and a point with the labels."""
        self._metrics[metric.name] = metric
        point = self._metrics_pb.NumberDataPoint()
        for name, value in labels:
            point.attributes.add(key=name).value.string_value = value
        encoded: bytes = metric.name.encode() + b"\0" + point.SerializeToString()
        return encoded

    def encode_samples(self, samples: Sequence[tuple[bytes, bytes]], timestamp_ms: int) -> bytes:
        """Return the body of a request; a series that has ended gets a point without a value."""
        request = self._service.ExportMetricsServiceRequest()
        resource = request.resource_metrics.add()
        add_resource(resource, self.resource)
        scope = resource.scope_metrics.add()
        scope.scope.name, scope.scope.version = "railscope", __version__
        points: dict[str, Any] = {}
        for series, value in samples:
            encoded_name, _, labels = series.partition(b"\0")
            name = encoded_name.decode()
            if name not in points:
                points[name] = self._add_metric(scope, self._metrics[name])
            point = points[name].add()
            point.ParseFromString(labels)
            point.time_unix_nano = timestamp_ms * _MILLISECOND_NS
            if value == self._stale_marker:
                point.flags = self._metrics_pb.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
            else:
                (point.as_double,) = struct.unpack("<d", value)
        return gzip.compress(request.SerializeToString(), compresslevel=1, mtime=0)

    def _add_metric(self, scope: Any, metric: Metric) -> Any:
        message = scope.metrics.add(
            name=metric.name, description=metric.help, unit=metric.unit.ucum
        )
        if metric.kind is not MetricKind.COUNTER:
            return message.gauge.data_points
        message.sum.is_monotonic = True
        message.sum.aggregation_temporality = self._metrics_pb.AGGREGATION_TEMPORALITY_CUMULATIVE
        return message.sum.data_points

    def rejected_samples(self, body: bytes) -> tuple[int, str]:
        """Return the number of rejected points in a successful response, and its message."""
        try:
            partial = self._service.ExportMetricsServiceResponse.FromString(body).partial_success
        except decode_error():
            return 0, "the response cannot be decoded"
        return max(partial.rejected_data_points, 0), printable(partial.error_message)
