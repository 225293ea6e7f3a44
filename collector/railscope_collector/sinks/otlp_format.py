"""The collector's metrics as requests of OTLP, for receivers of OpenTelemetry.

Names and labels are those of the metrics endpoint. Labels that all series share describe the resource: the translation to
Prometheus makes `job` and `instance` of service name and instance again.
"""

from __future__ import annotations

import gzip
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
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

from railscope import extras, settings, tls_contexts
from railscope.catalog.declare import Metric
from railscope.service import run_in_thread
from railscope.untrusted_text import printable
from railscope_collector.config import RemoteWriteSettings
from railscope_collector.sinks import MAX_PROBLEM_LENGTH, SinkError

METRICS, LOGS = "metrics", "logs"
Call = Callable[[bytes], Awaitable[bytes]]
"""Sends one request, and returns the response. Raises SinkError."""
RESOURCE_NAMES = {"job": "service.name", "instance": "service.instance.id"}
_MILLISECOND_NS = 1_000_000
_MESSAGES = "opentelemetry.proto"


def import_messages(name: str, setting: str) -> Any:
    """Return a module of messages, which takes 5 MiB. Raises SettingsError without its extra."""
    with extras.importing("otlp", setting, "opentelemetry-proto"):
        return import_module(f"{_MESSAGES}.{name}")


def decode_error() -> type[Exception]:
    """Return the error of a message that cannot be decoded."""
    error: type[Exception] = import_module("google.protobuf.message").DecodeError
    return error


def serialize(request: Any, *, is_compressed: bool) -> bytes:
    """Return the body of a request; gRPC compresses it itself."""
    body: bytes = request.SerializeToString()
    # Level 1 costs a fraction of the time of level 9, and metrics compress well with any.
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
            shown = settings.shown_url(url)
            message = f"invalid remote_write.{name} {shown!r}: expected a URL without a path for gRPC, such as http://HOST:4317"
            raise settings.SettingsError(message)
    with extras.importing("otlp-grpc", "remote_write.otlp_protocol grpc", "grpcio"):
        import_module("railscope.otlp_calls")


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

    # gRPC sets its own user agent, and rejects another one in the metadata.
    metadata = {name: text for name, text in headers.items() if name.lower() != "user-agent"}
    pem = None
    if urlsplit(url).scheme == "https":
        pem = await run_in_thread(tls_contexts.client_pem, configured.ca_file, "", "")
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


OtlpLabels = tuple[tuple[str, str], ...]


class OtlpSeries(NamedTuple):
    """Identity of a series: its metric and its labels."""

    name: str
    metric: Metric
    labels: OtlpLabels


class _KeptPoints(NamedTuple):
    """Series of one metric in a request, and their messages."""

    series: list[OtlpSeries]
    points: Any


class OtlpMetricsFormat:
    """`ExportMetricsServiceRequest` in protobuf, compressed. Raises SettingsError without its extra.

    Starts of counters are unknown and left out; a counter that falls has been reset. The messages of metrics with the same series as
    in the requests of the last timestamp are kept.
    """

    headers: ClassVar = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
    has_stale_markers: ClassVar = True
    repeated_statuses: ClassVar[Collection[int]] = (429, 502, 503, 504)
    """Of the specification of the protocol."""

    def __init__(self) -> None:
        setting = "remote_write.format otlp"
        self._service = import_messages("collector.metrics.v1.metrics_service_pb2", setting)
        self._points: Any = import_module("railscope.otlp_points")
        self.is_compressed = True
        self.set_resource({})
        self._timestamp_ms = 0
        self._before: dict[tuple[str, OtlpLabels], _KeptPoints] = {}
        self.kept_points: dict[tuple[str, OtlpLabels], _KeptPoints] = {}
        """Messages of the present timestamp, by name and labels of their first series."""

    def set_resource(self, labels: Mapping[str, str]) -> None:
        """Set the labels that all series share."""
        resource = {RESOURCE_NAMES.get(name, name): text for name, text in labels.items()}
        self._envelope = self._points.RequestEnvelope(resource)

    def encode_series(self, metric: Metric, labels: Iterable[tuple[str, str]]) -> OtlpSeries:
        """Return the identity of a series."""
        return OtlpSeries(metric.name, metric, tuple(labels))

    def encode_samples(
        self, samples: Sequence[tuple[OtlpSeries, float | None]], timestamp_ms: int
    ) -> bytes:
        """Return the body of a request; a series that has ended gets a point without a value."""
        if timestamp_ms != self._timestamp_ms:
            self._timestamp_ms, self._before, self.kept_points = timestamp_ms, self.kept_points, {}
        time_ns = timestamp_ms * _MILLISECOND_NS
        present: dict[str, tuple[list[OtlpSeries], list[float]]] = {}
        ended: dict[str, list[OtlpSeries]] = {}
        for series, value in samples:
            if value is None:
                ended.setdefault(series.name, []).append(series)
                continue
            if series.name not in present:
                present[series.name] = [], []
            of_metric, numbers = present[series.name]
            of_metric.append(series)
            numbers.append(value)
        contents = [self._keep(*each, time_ns) for each in present.values()]
        for of_metric in ended.values():
            points = self._new_points(of_metric)
            contents.append(points.end([time_ns] * len(of_metric)))
        body: bytes = self._envelope.request(contents)
        return gzip.compress(body, compresslevel=1, mtime=0) if self.is_compressed else body

    def _keep(self, series: list[OtlpSeries], numbers: list[float], time_ns: int) -> bytes:
        """Return the serialized metric of series, and keep its messages."""
        key = series[0].name, series[0].labels
        former = self._before.pop(key, None)
        is_same = former is not None and former.series == series
        points = former.points if former and is_same else self._new_points(series)
        self.kept_points[key] = _KeptPoints(series, points)
        content: bytes = points.set_numbers(numbers, time_ns)
        return content

    def _new_points(self, series: Sequence[OtlpSeries]) -> Any:
        return self._points.MetricPoints(series[0].metric, [each.labels for each in series])

    def rejected_samples(self, body: bytes) -> tuple[int, str]:
        """Return the number of rejected points in a successful response, and its message."""
        try:
            partial = self._service.ExportMetricsServiceResponse.FromString(body).partial_success
        except decode_error():
            return 0, "the response cannot be decoded"
        return max(partial.rejected_data_points, 0), printable(partial.error_message)
