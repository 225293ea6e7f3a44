"""OTLP requests: both encodings decode to the same points, exactly, and no body exceeds the bounds."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from http import HTTPStatus
from typing import Any

import msgspec
import pytest
from google.protobuf import json_format
from google.rpc.status_pb2 import Status
from hypothesis import given, strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from support import cumulus_pushes as pushes
from support.shared import capture_path

from railscope import otlp_metrics
from railscope.otlp_metrics import JSON, PROTOBUF, OtlpRejectedError, decode_metrics, unpack_body

MEDIA_TYPES = pytest.mark.parametrize("media_type", [PROTOBUF, JSON])


def request_of(
    points: list[dict[str, Any]], name: str = "m", kind: str = "gauge"
) -> dict[str, Any]:
    metric = {"name": name, kind: {"dataPoints": points}}
    return {"resourceMetrics": [{"resource": {}, "scopeMetrics": [{"metrics": [metric]}]}]}


def encode(document: dict[str, Any], media_type: str) -> bytes:
    if media_type == JSON:
        return json.dumps(document).encode()
    return json_format.ParseDict(document, ExportMetricsServiceRequest()).SerializeToString()


def decode(document: dict[str, Any], media_type: str) -> list[otlp_metrics.MetricPoint]:
    decoded = decode_metrics(encode(document, media_type), media_type)
    return [point for resource in decoded.resources for point in resource.points]


def outcome(body: bytes, media_type: str) -> HTTPStatus:
    try:
        decode_metrics(body, media_type)
    except OtlpRejectedError as error:
        return error.status
    return HTTPStatus.OK


NUMBERS = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1).map(lambda value: ("asInt", value, str(value))),
    st.floats(allow_nan=False).map(
        lambda value: (
            "asDouble",
            value,
            value if abs(value) != float("inf") else "Infinity" if value > 0 else "-Infinity",
        )
    ),
)


@MEDIA_TYPES
@given(
    number=NUMBERS,
    timestamp_ns=st.integers(0, (1 << 64) - 1),
    attributes=st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=5),
)
def test_numbers_times_and_attributes_are_exact(media_type, number, timestamp_ns, attributes):
    field, value, written = number
    pairs = [{"key": key, "value": {"stringValue": text}} for key, text in attributes.items()]
    point = {"attributes": pairs, "timeUnixNano": str(timestamp_ns), field: written}
    (found,) = decode(request_of([point]), media_type)
    assert found == ("m", "gauge", attributes, timestamp_ns, value)
    assert type(found.value) is type(value)


@MEDIA_TYPES
@given(data=st.data())
def test_any_truncation_or_change_is_decoded_or_rejected(media_type, data):
    values = [pushes.priority("sp_rx_pause", 42), pushes.Pushed("oper_state", 1)]
    body = bytearray(encode(pushes.document(values), media_type))
    end = data.draw(st.integers(0, len(body)))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] = data.draw(st.integers(0, 255))
    assert outcome(bytes(body[:end]), media_type) in {HTTPStatus.OK, HTTPStatus.BAD_REQUEST}


@pytest.mark.parametrize(
    "value",
    ['"1x"', '"99999999999999999999999"', "18446744073709551616", '"-"', "1e400", "[]", '"\u0661"'],
)
def test_invalid_numbers_lose_their_point_only(value):
    body = json.dumps(request_of([{"asInt": 0}, {"asInt": 1}])).replace(
        '"asInt": 0', f'"asInt": {value}'
    )
    decoded = decode_metrics(body.encode(), JSON)
    assert [point.value for point in decoded.resources[0].points] == [1]
    assert decoded.invalid == 1


DAMAGE = [
    None,
    7,
    "x",
    [],
    {"dataPoints": 1, "metrics": "x", "scopeMetrics": {}, "attributes": 0, "name": []},
]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("depth", range(4))
def test_a_damaged_member_of_a_list_loses_itself_only(damage, depth):
    """Points, metrics, scopes and resources; null is no member of a list."""
    document = request_of([{"asInt": "1"}, {"asInt": "2"}])
    (resource,) = document["resourceMetrics"]
    (scope,) = resource["scopeMetrics"]
    (metric,) = scope["metrics"]
    lists = (
        document["resourceMetrics"],
        resource["scopeMetrics"],
        scope["metrics"],
        metric["gauge"]["dataPoints"],
    )
    lists[depth].insert(0, damage)
    decoded = decode_metrics(json.dumps(document).encode(), JSON)
    assert [point.value for each in decoded.resources for point in each.points] == [1, 2]
    assert decoded.invalid == 1


CUMULATIVE, DELTA = 2, 1


@MEDIA_TYPES
@pytest.mark.parametrize("kind", ["sum", "histogram", "exponentialHistogram"])
def test_increments_are_no_totals(media_type, kind):
    """A temporality of 0, which is not specified, counts as cumulative."""
    metrics = [
        {
            "name": str(temporality),
            kind: {"dataPoints": [{}, {}], "aggregationTemporality": temporality},
        }
        for temporality in (0, DELTA, CUMULATIVE)
    ]
    document = {"resourceMetrics": [{"scopeMetrics": [{"metrics": metrics}]}]}
    decoded = decode_metrics(encode(document, media_type), media_type)
    assert [point.name for point in decoded.resources[0].points] == ["0", "0", "2", "2"]
    assert (decoded.increments, decoded.invalid, decoded.excessive) == (2, 0, 0)


@pytest.mark.parametrize("part", ["[", '{"a":', '{"resourceMetrics":[', '{"later":['])
def test_deep_json_is_rejected(part):
    with pytest.raises(OtlpRejectedError) as rejected:
        decode_metrics(part.encode() * 100_000, JSON)
    assert rejected.value.reason == "format"


@MEDIA_TYPES
def test_points_are_bounded_per_request(media_type):
    body = encode(request_of([{"asInt": "1"}] * 11), media_type)
    with pytest.raises(OtlpRejectedError, match="at most 10 points") as rejected:
        decode_metrics(body, media_type, max_points=10)
    assert rejected.value.status is HTTPStatus.REQUEST_ENTITY_TOO_LARGE


@MEDIA_TYPES
def test_points_with_too_many_or_too_long_attributes_are_left_out(media_type):
    many = [{"key": f"k{n}", "value": {"stringValue": ""}} for n in range(33)]
    long = [{"key": "k", "value": {"stringValue": "x" * 256}}]
    points = [
        {"asInt": "1", "attributes": many},
        {"asInt": "2", "attributes": long},
        {"asInt": "3"},
    ]
    decoded = decode_metrics(encode(request_of(points), media_type), media_type)
    assert [point.value for point in decoded.resources[0].points] == [3]
    assert decoded.excessive == 2
    named = decode_metrics(
        encode(request_of([{"asInt": "1"}], name="n" * 256), media_type), media_type
    )
    assert named.excessive == 1


def test_zip_bomb_takes_no_more_memory_than_the_bound():
    bomb = gzip.compress(bytes(256 << 20), 9)
    tracemalloc.start()
    try:
        with pytest.raises(OtlpRejectedError, match="after decompression") as rejected:
            unpack_body(bomb, "gzip", 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert rejected.value.status is HTTPStatus.REQUEST_ENTITY_TOO_LARGE


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (b"garbage", "gzip", 400),
        (gzip.compress(b"content")[:-4], "gzip", 400),
        (gzip.compress(b"content") + b"more", "gzip", 400),
        (b"", "gzip", 400),
        (zlib.compress(b"content"), "deflate", 415),
    ],
    ids=["garbage", "truncated", "more follows", "empty", "another encoding"],
)
def test_invalid_compression_is_rejected(body, encoding, status):
    with pytest.raises(OtlpRejectedError) as rejected:
        unpack_body(body, encoding)
    assert rejected.value.status == status


@given(rejected=st.integers(0, 1 << 40), problem=st.text(max_size=300))
def test_responses_are_those_of_the_official_messages(rejected, problem):
    expected = ExportMetricsServiceResponse()
    if rejected:
        expected.partial_success.rejected_data_points = rejected
        expected.partial_success.error_message = problem
    written = otlp_metrics.success_body(PROTOBUF, rejected, problem)
    assert ExportMetricsServiceResponse.FromString(written) == expected
    in_json = otlp_metrics.success_body(JSON, rejected, problem)
    assert json_format.Parse(in_json, ExportMetricsServiceResponse()) == expected
    status = Status.FromString(otlp_metrics.problem_body(PROTOBUF, HTTPStatus.BAD_REQUEST, problem))
    assert (status.code, status.message) == (3, problem)
    in_json = otlp_metrics.problem_body(JSON, HTTPStatus.SERVICE_UNAVAILABLE, problem)
    assert msgspec.json.decode(in_json) == {"code": 14, "message": problem}


@MEDIA_TYPES
def test_sample_of_cumulus(media_type):
    text = capture_path("switch/otlp/cumulus-interface-derived.json").read_text()
    decoded = decode_metrics(encode(json.loads(text), media_type), media_type)
    (resource,) = decoded.resources
    assert resource.attributes == {"net.host.name": "leaf-07"}
    assert [
        (point.name.rpartition("interface_")[2], point.kind, point.value)
        for point in resource.points
    ] == [
        ("oper_state", "gauge", 1.0),
        ("sp_rx_pause", "gauge", 42.0),
        ("sp_rx_pause_duration", "gauge", 120_000.0),
        ("tc_tx_ecn_marked_tc", "gauge", 1007.0),
        ("egress_buffer", "histogram", None),
    ]
