"""The collector's metrics as requests of OTLP, for receivers of OpenTelemetry.

Names and labels are those of the metrics endpoint. Labels that all series share describe the resource: the translation to
Prometheus makes `job` and `instance` of service name and instance again.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any, ClassVar
from urllib.parse import urlsplit

from collector.config import RemoteWriteSettings
from collector.sinks import MAX_PROBLEM_LENGTH, SinkError
from railscope import __version__, server_connections, settings
from railscope.catalog.declare import Metric, MetricKind
from railscope.service import run_in_thread
from railscope.untrusted_text import printable

METRICS, LOGS = "metrics", "logs"
Call = Callable[[bytes], Awaitable[bytes]]
"""Sends one request, and returns the response. Raises SinkError."""
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


def serialize(request: Any, *, is_compressed: bool) -> bytes:
    """Return the body of a request; gRPC compresses it itself."""
    body: bytes = request.SerializeToString()
    return gzip.compress(body, compresslevel=1, mtime=0) if is_compressed else body


def add_resource(message: Any, labels: Mapping[str, str]) -> None:
    """Add the labels that all series share to a message, as attributes of its resource."""
    for name, text in labels.items():
        attribute = message.resource.attributes.add(key=RESOURCE_NAMES.get(name, name))
        attribute.value.string_value = text


def check_grpc(configured: RemoteWriteSettings) -> None:
    """Raise SettingsError if OTLP over gRPC is not possible with the settings."""
    if configured.url and configured.format != "otlp":
        message = "invalid remote_write.otlp_protocol 'grpc': expected format otlp with it"
        raise settings.SettingsError(message)
    for name in ("url", "events_url"):
        url = getattr(configured, name)
        if urlsplit(url).path.strip("/"):
            message = f"invalid remote_write.{name} {url!r}: expected a URL without a path for gRPC, such as http://HOST:4317"
            raise settings.SettingsError(message)
    try:
        import_module("railscope.otlp_calls")
    except ImportError as error:
        message = "missing grpcio, which remote_write.otlp_protocol grpc requires; fix: pip install 'railscope[otlp-grpc]'"
        raise settings.SettingsError(message) from error


@asynccontextmanager
async def grpc_connection(
    configured: RemoteWriteSettings,
    signal: str,
    url: str,
    headers: Mapping[str, str],
    timeout_seconds: float,
) -> AsyncIterator[Call]:
    """Yield the function that sends a request to a receiver over gRPC; it connects with the first one."""
    from railscope import otlp_calls  # noqa: PLC0415 - loads the extra otlp-grpc

    metadata = {name: text for name, text in headers.items() if name.lower() != "user-agent"}
    pem = None
    if url.startswith("https:"):
        pem = await run_in_thread(server_connections.client_pem, configured.ca_file, "", "")
    names = "railscope-collector", "remote_write"
    calls = otlp_calls.OtlpCalls(signal, url, pem, metadata, timeout_seconds, *names)

    async def call(body: bytes) -> bytes:
        try:
            return await calls.send(body)
        except otlp_calls.OtlpCallError as error:
            is_final = not error.is_repeated
            problem = str(error)[:MAX_PROBLEM_LENGTH]
            raise SinkError(
                problem, is_rejected=is_final, retry_seconds=error.wait_seconds
            ) from error

    try:
        yield call
    finally:
        await calls.close()


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
        self.is_compressed = True
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
        return serialize(request, is_compressed=self.is_compressed)

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
