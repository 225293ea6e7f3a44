"""Requests of OTLP metrics, decoded within bounds: protobuf or JSON, plain or compressed by gzip.

A sender may be broken or hostile. Sizes are checked before and after decompression, and the number of points before any
is converted. A part of a JSON body that is not valid is left out and counted, with what it contains. Unknown fields are
ignored, as the specification requires; integers are exact. Responses are written without protobuf, which is loaded with the
first request in that encoding.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from railscope import RailscopeError
from railscope.untrusted_text import DECODING_ERRORS, printable

PROTOBUF, JSON = "application/x-protobuf", "application/json"
METRICS_PATH = "/v1/metrics"
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
INCREMENTS = "delta"
"""Result of points that are increments: a lost or repeated one would falsify every later total."""
_CUMULATIVE = "expected cumulative temporality; fix: configure it at the exporter"
_KINDS = ("gauge", "sum", "histogram", "exponential_histogram", "summary")
_TOTALS = (None, 0, 2, "AGGREGATION_TEMPORALITY_UNSPECIFIED", "AGGREGATION_TEMPORALITY_CUMULATIVE")
"""Temporalities of totals: a point of another one is an increment. Senders that state none send totals."""
# FLAG_NO_RECORDED_VALUE of the protocol (opentelemetry-proto, metrics.proto).
_NO_VALUE_FLAG = 1
_SIGNED, _UNSIGNED = range(-(1 << 63), 1 << 63), range(1 << 64)
_MAX_DIGITS = 20
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
    invalid: int = 0
    """Points, or groups of points, that were left out, because a value in them is of another form."""
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
    if media_type == PROTOBUF:
        return _Decoder(_ProtobufFields(), max_points).decode(_parse_protobuf(body))
    if media_type == JSON:
        resources = _parse_json(body, JSON_PARTS * max_points)
        return _Decoder(_JsonFields(), max_points).decode(resources)
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
    # Counted in the bytes: decoding takes many times their size in memory.
    check_size(body.count(b"{") + body.count(b"["), max_parts, "objects and arrays")
    try:
        return msgspec.json.decode(body, type=_JsonRequest).resource_metrics or ()
    except DECODING_ERRORS as error:
        text = f"invalid JSON: {error}"
        raise OtlpRejectedError(text, HTTPStatus.BAD_REQUEST, "format") from error


# The messages in JSON: names and nesting are those of protobuf, and lists are decoded member by member


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
    data_points: list[msgspec.Raw] | None = None
    aggregation_temporality: int | str | None = None


class _JsonMetric(msgspec.Struct, rename="camel"):
    name: str | None = None
    gauge: _JsonPoints | None = None
    sum: _JsonPoints | None = None
    histogram: _JsonPoints | None = None
    exponential_histogram: _JsonPoints | None = None
    summary: _JsonPoints | None = None


class _JsonScope(msgspec.Struct):
    metrics: list[msgspec.Raw] | None = None


class _JsonResource(msgspec.Struct):
    attributes: list[_JsonAttribute] | None = None


class _JsonResourceMetrics(msgspec.Struct, rename="camel"):
    resource: msgspec.Raw = msgspec.Raw(b"{}")
    scope_metrics: list[msgspec.Raw] | None = None


class _JsonRequest(msgspec.Struct, rename="camel"):
    resource_metrics: list[msgspec.Raw] | None = None


_JSON_DECODERS = {
    name: msgspec.json.Decoder(shape)
    for name, shape in {
        "resource_metrics": _JsonResourceMetrics, "resource": _JsonResource, "scope": _JsonScope,
        "metric": _JsonMetric, "point": _JsonPoint,
    }.items()
}  # fmt: skip


class _ProtobufFields:
    """Access to what protobuf and JSON represent differently: members of lists, and the alternatives of a message."""

    invalid = 0
    """Members of lists that are not valid."""

    @staticmethod
    def members(_: str, messages: Any) -> Iterable[Any]:
        return messages or ()

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
    """As of protobuf; a number of the wrong form raises ValueError."""

    def __init__(self) -> None:
        self.invalid = 0

    def members(self, name: str, messages: Any) -> Iterable[Any]:
        decode = _JSON_DECODERS[name].decode
        for message in messages or ():
            try:
                yield decode(message)
            except DECODING_ERRORS:
                self.invalid += 1

    @staticmethod
    def kind(metric: _JsonMetric) -> str:
        return next((kind for kind in _KINDS if getattr(metric, kind) is not None), "")

    @staticmethod
    def number(point: _JsonPoint) -> float | None:
        if point.as_int is not None:
            return _integer(point.as_int, _SIGNED)
        return None if point.as_double is None else float(point.as_double)

    @staticmethod
    def text(value: _JsonValue | None) -> str:
        fields = [] if value is None else [getattr(value, name) for name in _SCALARS]
        return next((str(field) for field in fields if field is not None), "")

    @staticmethod
    def timestamp(point: _JsonPoint) -> int:
        return _integer(point.time_unix_nano or 0, _UNSIGNED)


_SCALARS = _JsonValue.__struct_fields__


def _integer(value: int | str, valid: range) -> int:
    """Return an integer that JSON has as a number or a text. Raises ValueError."""
    digits = str(value).removeprefix("-")
    is_decimal = digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS
    if not is_decimal or int(value) not in valid:
        message = f"number of more than 64 bits: {value}"
        raise ValueError(message)
    return int(value)


class _MetricPoints(NamedTuple):
    """Points of one metric, which are not converted yet."""

    name: str
    kind: str
    points: Any


class _Decoder:
    """Converts the messages of a request, which have the same names in both encodings."""

    def __init__(self, fields: _ProtobufFields | _JsonFields, max_points: int) -> None:
        self._fields, self._max_points = fields, max_points
        self._groups = self._points = self._excessive = self._increments = 0

    def decode(self, resources: Any) -> MetricsRequest:
        """Return the points of a request. Raises OtlpRejectedError."""
        self._count_groups(resources, "resources")
        found = [
            (resource, list(self._metrics(resource)))
            for resource in self._fields.members("resource_metrics", resources)
        ]
        converted = [
            ResourcePoints(
                self._resource_attributes(resource),
                [point for metric in metrics for point in self._converted(metric)],
            )
            for resource, metrics in found
        ]
        return MetricsRequest(converted, self._excessive, self._fields.invalid, self._increments)

    def _count_groups(self, groups: Any, unit: str) -> None:
        """Raise OtlpRejectedError for too many groups, before there is an object in Python for each."""
        self._groups += len(groups or ())
        check_size(self._groups, MAX_GROUPS, unit)

    def _metrics(self, resource: Any) -> Iterator[_MetricPoints]:
        """Yield the metrics of a resource that are totals. Raises OtlpRejectedError for too many points."""
        members, count = self._fields.members, self._count_groups
        count(resource.scope_metrics, "resources and scopes")
        for scope in members("scope", resource.scope_metrics):
            count(scope.metrics, "resources, scopes and metrics")
            for metric in members("metric", scope.metrics):
                if kind := self._fields.kind(metric):
                    data = getattr(metric, kind)
                    points = data.data_points or ()
                    self._points += len(points)
                    check_size(self._points, self._max_points, "points")
                    temporality = getattr(data, "aggregation_temporality", None)
                    if kind == "gauge" or temporality in _TOTALS:
                        yield _MetricPoints(metric.name or "", kind, points)
                    else:
                        self._increments += len(points)

    def _converted(self, metric: _MetricPoints) -> Iterator[MetricPoint]:
        number, timestamp = self._fields.number, self._fields.timestamp
        has_number = metric.kind in NUMBER_KINDS
        for point in self._fields.members("point", metric.points):
            attributes = self._attributes(point.attributes or ())
            if attributes is None or len(metric.name) > MAX_TEXT:
                self._excessive += 1
                continue
            has_value = has_number and not (point.flags or 0) & _NO_VALUE_FLAG
            try:
                value = number(point) if has_value else None
                timestamp_ns = timestamp(point)
            except (ValueError, OverflowError):
                self._fields.invalid += 1
                continue
            yield MetricPoint(metric.name, metric.kind, attributes, timestamp_ns, value)

    def _attributes(self, attributes: Any) -> dict[str, str] | None:
        """Return attributes as texts; None if they exceed the bounds."""
        if len(attributes) > MAX_ATTRIBUTES:
            return None
        text = self._fields.text
        found = {each.key or "": text(each.value) for each in attributes}
        is_long = any(len(key) > MAX_TEXT or len(value) > MAX_TEXT for key, value in found.items())
        return None if is_long else found

    def _resource_attributes(self, each: Any) -> dict[str, str]:
        resource = next(iter(self._fields.members("resource", [each.resource])), None)
        return (self._attributes(resource.attributes or ()) or {}) if resource else {}


# Responses -----------------------------------------------------------------------------------------


def rejection_text(points: Mapping[str, int]) -> str:
    """Return the number of rejected points by reason, as the message of a partial success; empty without any."""
    counts = ", ".join(f"{count} {reason}" for reason, count in points.items() if count)
    remedy = f": {_CUMULATIVE}" if points.get(INCREMENTS) else ""
    return f"points not stored: {counts}{remedy}" if counts else ""


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
