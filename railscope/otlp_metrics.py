"""Requests of OTLP metrics, decoded within bounds: protobuf, plain or compressed by gzip.

A sender may be broken or hostile. Sizes are checked before and after decompression, and the number of points before any
is converted. Unknown fields are ignored, as the specification requires; integers are exact. Responses are written without
protobuf, which is loaded with the first request.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from railscope import RailscopeError
from railscope.untrusted_text import printable

PROTOBUF = "application/x-protobuf"
METRICS_PATH = "/v1/metrics"
MAX_BODY_BYTES, MAX_UNPACKED_BYTES = 4 << 20, 16 << 20
MAX_POINTS = 50_000
"""Points of a request: a switch with 512 ports has about 40 per port in one request."""
MAX_GROUPS = 50_000
"""Resources, scopes and metrics of a request, which may be empty: two bytes each."""
MAX_PROTOBUF_BYTES = 8 << 20
MAX_ATTRIBUTES, MAX_TEXT = 32, 255
"""Attributes of a resource or a point, and characters of a name, a key or a value."""
RETRY_SECONDS = 5
"""Time after which a sender is to repeat a request that was not accepted for the time being."""
NUMBER_KINDS = frozenset({"gauge", "sum"})
"""Kinds of metrics whose points have a number."""
INCREMENTS = "delta"
"""Result of points that are increments: a lost or repeated one would falsify every later total."""
_EXPECTED_TOTALS = "expected cumulative temporality; fix: configure it at the exporter"
_TOTALS = (0, 2)
"""Temporalities of totals: a point of another one is an increment. Senders that state none send totals."""
_SCALARS = frozenset({"string_value", "bool_value", "int_value", "double_value"})
"""Kinds of values of an attribute that are kept; the text of another one is empty."""
# FLAG_NO_RECORDED_VALUE of the protocol (opentelemetry-proto, metrics.proto).
_NO_VALUE_FLAG = 1
# For zlib: a window of 15 bits, and 16 for the header of gzip.
_GZIP_BITS = 31
# Codes of google.rpc.Code.
_INVALID_ARGUMENT, _RESOURCE_EXHAUSTED, _UNAVAILABLE = 3, 8, 14
_CODES = {
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: _RESOURCE_EXHAUSTED, HTTPStatus.TOO_MANY_REQUESTS: _RESOURCE_EXHAUSTED,
    HTTPStatus.SERVICE_UNAVAILABLE: _UNAVAILABLE,
}  # fmt: skip


class OtlpRejectedError(RailscopeError):
    """A request that is not accepted: the problem, the status of the response, and the reason for the counter."""

    def __init__(self, problem: object, status: HTTPStatus, reason: str) -> None:
        super().__init__(str(problem)[:MAX_TEXT])
        self.status, self.reason = status, reason


class MetricPoint(NamedTuple):
    """One data point."""

    name: str
    kind: str
    attributes: Mapping[str, str]
    timestamp_ns: int
    """Time that the sender states; 0 if it states none."""
    value: float | None
    """An integer as an integer; None for a histogram, a summary, or a point that states that there is no value."""


class ResourcePoints(NamedTuple):
    """Data points of one resource."""

    attributes: Mapping[str, str]
    points: Sequence[MetricPoint]


class MetricsRequest(NamedTuple):
    """A decoded request."""

    resources: Sequence[ResourcePoints]
    excessive: int = 0
    """Points that were left out, because they have too many attributes, or too long names, keys or values."""
    increments: int = 0
    """Points that were left out, because they are no totals (delta temporality)."""


def check_size(count: int, limit: int, unit: str) -> None:
    """Raise OtlpRejectedError for a request with too many bytes or parts."""
    if count > limit:
        message = f"request too large: expected at most {limit} {unit}"
        raise OtlpRejectedError(message, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "size")


def unpack_body(body: bytes, encoding: str, max_bytes: int = MAX_UNPACKED_BYTES) -> bytes:
    """Return a body without its content encoding. Raises OtlpRejectedError."""
    if encoding in {"", "identity"}:
        return body
    if encoding != "gzip":
        message = f"content encoding {printable(encoding[:40])!r}: expected gzip or none"
        raise OtlpRejectedError(message, HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "media_type")
    unpacker = zlib.decompressobj(_GZIP_BITS)
    try:
        # One byte more than the bound, which shows that there is more.
        unpacked = unpacker.decompress(body, max_bytes + 1)
    except zlib.error as error:
        message = f"invalid gzip: {error}"
        raise OtlpRejectedError(message, HTTPStatus.BAD_REQUEST, "format") from error
    check_size(len(unpacked), max_bytes, "bytes after decompression")
    if not unpacker.eof or unpacker.unused_data:
        message = "invalid gzip: expected one complete member"
        raise OtlpRejectedError(message, HTTPStatus.BAD_REQUEST, "format")
    return unpacked


def decode_metrics(body: bytes, media_type: str, max_points: int = MAX_POINTS) -> MetricsRequest:
    """Decode an ExportMetricsServiceRequest. Raises OtlpRejectedError."""
    if media_type != PROTOBUF:
        message = f"content type {printable(media_type[:80])!r}: expected {PROTOBUF}"
        raise OtlpRejectedError(message, HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "media_type")
    check_size(len(body), MAX_PROTOBUF_BYTES, "bytes after decompression")
    return _Decoder(max_points).decode(_parse(body))


def _parse(body: bytes) -> Any:
    from google.protobuf import message  # noqa: PLC0415 - an extra, loaded where it is needed
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2  # noqa: PLC0415 - as above

    try:
        return metrics_service_pb2.ExportMetricsServiceRequest.FromString(body).resource_metrics
    except message.DecodeError as error:
        text = f"invalid protobuf: {error}"
        raise OtlpRejectedError(text, HTTPStatus.BAD_REQUEST, "format") from error


class _MetricPoints(NamedTuple):
    """Points of one metric, which are not converted yet."""

    name: str
    kind: str
    points: Any


class _Decoder:
    """Converts the messages of a request."""

    def __init__(self, max_points: int) -> None:
        self._max_points = max_points
        self._groups = self._points = self._excessive = self._increments = 0

    def decode(self, resources: Any) -> MetricsRequest:
        """Return the points of a request. Raises OtlpRejectedError."""
        self._count_groups(resources, "resources")
        found = [(each.resource, list(self._metrics(each))) for each in resources]
        converted = [
            ResourcePoints(
                self._attributes(resource.attributes) or {},
                [point for metric in metrics for point in self._converted(metric)],
            )
            for resource, metrics in found
        ]
        return MetricsRequest(converted, self._excessive, self._increments)

    def _count_groups(self, groups: Any, unit: str) -> None:
        """Raise OtlpRejectedError for too many groups, before there is an object in Python for each."""
        self._groups += len(groups)
        check_size(self._groups, MAX_GROUPS, unit)

    def _metrics(self, resource: Any) -> Iterator[_MetricPoints]:
        """Yield the metrics of a resource that are totals. Raises OtlpRejectedError for too many points."""
        self._count_groups(resource.scope_metrics, "resources and scopes")
        for scope in resource.scope_metrics:
            self._count_groups(scope.metrics, "resources, scopes and metrics")
            for metric in scope.metrics:
                if kind := metric.WhichOneof("data"):
                    data = getattr(metric, kind)
                    self._points += len(data.data_points)
                    check_size(self._points, self._max_points, "points")
                    temporality = getattr(data, "aggregation_temporality", None)
                    if kind == "gauge" or temporality in _TOTALS:
                        yield _MetricPoints(metric.name, kind, data.data_points)
                    else:
                        self._increments += len(data.data_points)

    def _converted(self, metric: _MetricPoints) -> Iterator[MetricPoint]:
        has_number = metric.kind in NUMBER_KINDS
        for point in metric.points:
            attributes = self._attributes(point.attributes)
            if attributes is None or len(metric.name) > MAX_TEXT:
                self._excessive += 1
                continue
            has_value = has_number and not point.flags & _NO_VALUE_FLAG
            field = point.WhichOneof("value") if has_value else None
            value = getattr(point, field) if field else None
            yield MetricPoint(metric.name, metric.kind, attributes, point.time_unix_nano, value)

    @staticmethod
    def _attributes(attributes: Any) -> dict[str, str] | None:
        """Return attributes as texts; None if they exceed the bounds."""
        if len(attributes) > MAX_ATTRIBUTES:
            return None
        found = {each.key: _text(each.value) for each in attributes}
        is_long = any(len(key) > MAX_TEXT or len(value) > MAX_TEXT for key, value in found.items())
        return None if is_long else found


def _text(value: Any) -> str:
    name = value.WhichOneof("value")
    return str(getattr(value, name)) if name in _SCALARS else ""


# Responses -----------------------------------------------------------------------------------------


def rejection_text(points: Mapping[str, int]) -> str:
    """Return the number of rejected points by reason, as the message of a partial success; empty without any."""
    counts = ", ".join(f"{count} {reason}" for reason, count in points.items() if count)
    remedy = f": {_EXPECTED_TOTALS}" if points.get(INCREMENTS) else ""
    return f"points not stored: {counts}{remedy}" if counts else ""


def success_body(rejected: int = 0, problem: str = "") -> bytes:
    """Return an ExportMetricsServiceResponse; with rejected points, it is a partial success."""
    if not rejected:
        return b""
    return _text_field(1, b"\x08" + _varint(rejected) + _text_field(2, problem.encode()))


def problem_body(status: HTTPStatus, problem: str) -> bytes:
    """Return a google.rpc.Status."""
    code = _CODES.get(status, _INVALID_ARGUMENT)
    return b"\x08" + _varint(code) + _text_field(2, problem.encode())


def _text_field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits per byte
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])
