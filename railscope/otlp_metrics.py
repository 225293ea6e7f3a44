"""Requests of OTLP metrics, decoded within bounds: protobuf or JSON, plain or compressed by gzip.

A sender may be broken or hostile. Sizes are checked before and after decompression, and the number of points before any
is converted. Unknown fields are ignored, as the specification requires; integers are exact. Responses are written
without protobuf, which is loaded with the first request in that encoding.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from railscope import RailscopeError
from railscope.untrusted_text import printable

PROTOBUF, JSON = "application/x-protobuf", "application/json"
METRICS_PATH = "/v1/metrics"
METRICS_METHOD = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
MAX_BODY_BYTES, MAX_UNPACKED_BYTES = 4 << 20, 16 << 20
MAX_POINTS = 50_000
"""Points of a request: a switch with 512 ports has about 40 per port in one request."""
MAX_GROUPS = 50_000
"""Resources, scopes and metrics of a request, which may be empty: two bytes each."""
MAX_PROTOBUF_BYTES = 8 << 20
JSON_PARTS = 20
"""Objects and arrays of a JSON body per point of the bound: a point has about ten; each takes some 100 bytes of memory."""
MAX_ATTRIBUTES, MAX_TEXT = 32, 255
"""Attributes of a resource or a point, and characters of a name, a key or a value."""
RETRY_SECONDS = 5
"""Time after which a sender is to repeat a request that was not accepted for the time being."""
NUMBER_KINDS = frozenset({"gauge", "sum"})
"""Kinds of metrics whose points have a number."""
_KINDS = ("gauge", "sum", "histogram", "exponential_histogram", "summary")
_NO_VALUE_FLAG = 1
_SIGNED, _UNSIGNED = range(-(1 << 63), 1 << 63), range(1 << 64)
_MAX_DIGITS = 20
_GZIP_BITS = 31
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
    if media_type == PROTOBUF:
        return _Decoder(_ProtobufFields, max_points).decode(_parse_protobuf(body))
    if media_type == JSON:
        return _Decoder(_JsonFields, max_points).decode(_parse_json(body, JSON_PARTS * max_points))
    message = f"content type {printable(media_type[:80])!r}: expected {PROTOBUF} or {JSON}"
    raise OtlpRejectedError(message, HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "media_type")


def _parse_protobuf(body: bytes) -> Any:
    check_size(len(body), MAX_PROTOBUF_BYTES, "bytes after decompression")
    try:
        from google.protobuf import message  # noqa: PLC0415 - an extra, loaded where it is needed
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2  # noqa: PLC0415 - as above
    except ImportError as error:
        text = f"content type {PROTOBUF}: missing {error.name}: expected {JSON}"
        raise OtlpRejectedError(text, HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "media_type") from error

    try:
        return metrics_service_pb2.ExportMetricsServiceRequest.FromString(body).resource_metrics
    except message.DecodeError as error:
        text = f"invalid protobuf: {error}"
        raise OtlpRejectedError(text, HTTPStatus.BAD_REQUEST, "format") from error


def _parse_json(body: bytes, max_parts: int) -> Any:
    check_size(body.count(b"{") + body.count(b"["), max_parts, "objects and arrays")
    try:
        return msgspec.json.decode(body, type=_JsonRequest).resource_metrics or ()
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        text = f"invalid JSON: {error}"
        raise OtlpRejectedError(text, HTTPStatus.BAD_REQUEST, "format") from error


# The messages in JSON: names and nesting are those of protobuf --------------------------------------


class _JsonValue(msgspec.Struct, rename="camel"):
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | str | None = None
    double_value: float | str | None = None


class _JsonAttribute(msgspec.Struct):
    key: str | None = None
    value: _JsonValue | None = None


class _JsonPoint(msgspec.Struct, rename="camel"):
    attributes: list[_JsonAttribute] | None = None
    time_unix_nano: int | str | None = None
    as_double: float | str | None = None
    as_int: int | str | None = None
    flags: int | None = None


class _JsonPoints(msgspec.Struct, rename="camel"):
    data_points: list[_JsonPoint] | None = None


class _JsonMetric(msgspec.Struct, rename="camel"):
    name: str | None = None
    gauge: _JsonPoints | None = None
    sum: _JsonPoints | None = None
    histogram: _JsonPoints | None = None
    exponential_histogram: _JsonPoints | None = None
    summary: _JsonPoints | None = None


class _JsonScope(msgspec.Struct):
    metrics: list[_JsonMetric] | None = None


class _JsonResource(msgspec.Struct):
    attributes: list[_JsonAttribute] | None = None


class _JsonResourceMetrics(msgspec.Struct, rename="camel"):
    resource: _JsonResource | None = None
    scope_metrics: list[_JsonScope] | None = None


class _JsonRequest(msgspec.Struct, rename="camel"):
    resource_metrics: list[_JsonResourceMetrics] | None = None


class _ProtobufFields:
    """Access to what protobuf and JSON represent differently: the alternatives of a message."""

    @staticmethod
    def kind(metric: Any) -> str:
        return str(metric.WhichOneof("data") or "")

    @staticmethod
    def number(point: Any) -> float | None:
        name = point.WhichOneof("value")
        value: float | None = getattr(point, name) if name else None
        return value

    @staticmethod
    def text(value: Any) -> str:
        name = value.WhichOneof("value") or ""
        return str(getattr(value, name)) if name in _SCALARS else ""

    @staticmethod
    def timestamp(point: Any) -> int:
        return int(point.time_unix_nano)


class _JsonFields:
    """As of protobuf; a value of the wrong form raises OtlpRejectedError."""

    @staticmethod
    def kind(metric: _JsonMetric) -> str:
        return next((kind for kind in _KINDS if getattr(metric, kind) is not None), "")

    @staticmethod
    def number(point: _JsonPoint) -> float | None:
        if point.as_int is not None:
            return _integer(point.as_int, _SIGNED)
        return None if point.as_double is None else _double(point.as_double)

    @staticmethod
    def text(value: _JsonValue | None) -> str:
        fields = [] if value is None else [getattr(value, name) for name in _SCALARS]
        return next((str(field) for field in fields if field is not None), "")

    @staticmethod
    def timestamp(point: _JsonPoint) -> int:
        return _integer(point.time_unix_nano or 0, _UNSIGNED)


_SCALARS = _JsonValue.__struct_fields__


def _integer(value: int | str, valid: range) -> int:
    """Return an integer that JSON has as a number or a text. Raises OtlpRejectedError."""
    if isinstance(value, str):
        digits = value.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS):
            raise _invalid_number(value)
        value = int(value)
    if value not in valid:
        raise _invalid_number(value)
    return value


def _double(value: float | str) -> float:
    try:
        return float(value)
    except (ValueError, OverflowError) as error:
        raise _invalid_number(value) from error


def _invalid_number(value: object) -> OtlpRejectedError:
    message = f"invalid number {printable(str(value)[:40])!r}: expected one of 64 bits"
    return OtlpRejectedError(message, HTTPStatus.BAD_REQUEST, "format")


class _Decoder:
    """Converts the messages of a request, which have the same names in both encodings."""

    def __init__(self, fields: type[_ProtobufFields | _JsonFields], max_points: int) -> None:
        self._fields, self._max_points = fields, max_points
        self._excessive = 0

    def decode(self, resources: Any) -> MetricsRequest:
        """Return the points of a request. Raises OtlpRejectedError."""
        self._check_groups(resources)
        count = sum(len(points) for each in resources for _, _, points in self._metrics(each))
        check_size(count, self._max_points, "points")
        found = [
            ResourcePoints(self._resource_attributes(each), list(self._points(each)))
            for each in resources
        ]
        return MetricsRequest(found, self._excessive)

    @staticmethod
    def _check_groups(resources: Any) -> None:
        """Raise OtlpRejectedError for too many groups, before there is an object in Python for each."""
        count = len(resources)
        check_size(count, MAX_GROUPS, "resources")
        for resource in resources:
            scopes = resource.scope_metrics or ()
            count += len(scopes)
            check_size(count, MAX_GROUPS, "resources and scopes")
            for scope in scopes:
                count += len(scope.metrics or ())
                check_size(count, MAX_GROUPS, "resources, scopes and metrics")

    def _metrics(self, resource: Any) -> Iterator[tuple[str, str, Any]]:
        """Yield name, kind and points of each metric."""
        for scope in resource.scope_metrics or ():
            for metric in scope.metrics or ():
                if kind := self._fields.kind(metric):
                    yield metric.name or "", kind, getattr(metric, kind).data_points or ()

    def _points(self, resource: Any) -> Iterator[MetricPoint]:
        number, timestamp = self._fields.number, self._fields.timestamp
        for name, kind, points in self._metrics(resource):
            has_number = kind in NUMBER_KINDS
            for point in points:
                attributes = self._attributes(point.attributes or ())
                if attributes is None or len(name) > MAX_TEXT:
                    self._excessive += 1
                    continue
                has_value = has_number and not (point.flags or 0) & _NO_VALUE_FLAG
                value = number(point) if has_value else None
                yield MetricPoint(name, kind, attributes, timestamp(point), value)

    def _attributes(self, attributes: Any) -> dict[str, str] | None:
        """Return attributes as texts; None if they exceed the bounds."""
        if len(attributes) > MAX_ATTRIBUTES:
            return None
        text = self._fields.text
        found = {each.key or "": text(each.value) for each in attributes}
        is_long = any(len(key) > MAX_TEXT or len(value) > MAX_TEXT for key, value in found.items())
        return None if is_long else found

    def _resource_attributes(self, each: Any) -> dict[str, str]:
        resource = each.resource
        return (self._attributes(resource.attributes or ()) or {}) if resource else {}


# Responses -----------------------------------------------------------------------------------------


def success_body(media_type: str, rejected: int = 0, problem: str = "") -> bytes:
    """Return an ExportMetricsServiceResponse; with rejected points, it is a partial success."""
    if media_type == JSON:
        partial = {"rejectedDataPoints": str(rejected), "errorMessage": problem}
        return msgspec.json.encode({"partialSuccess": partial} if rejected else {})
    if not rejected:
        return b""
    return _text_field(1, b"\x08" + _varint(rejected) + _text_field(2, problem.encode()))


def problem_body(media_type: str, status: HTTPStatus, problem: str) -> bytes:
    """Return a google.rpc.Status."""
    code = _CODES.get(status, _INVALID_ARGUMENT)
    if media_type == JSON:
        return msgspec.json.encode({"code": code, "message": problem})
    return b"\x08" + _varint(code) + _text_field(2, problem.encode())


def _text_field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits per byte
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])
