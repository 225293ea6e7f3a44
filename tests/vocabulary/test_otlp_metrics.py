"""OTLP requests: points are decoded exactly, and no body exceeds the bounds."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from http import HTTPStatus
from typing import Any

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
from railscope.otlp_metrics import PROTOBUF, OtlpRejectedError, decode_metrics, unpack_body


def request_of(
    points: list[dict[str, Any]], name: str = "m", kind: str = "gauge"
) -> dict[str, Any]:
    metric = {"name": name, kind: {"dataPoints": points}}
    return {"resourceMetrics": [{"resource": {}, "scopeMetrics": [{"metrics": [metric]}]}]}


def encode(document: dict[str, Any]) -> bytes:
    return json_format.ParseDict(document, ExportMetricsServiceRequest()).SerializeToString()


def decode(document: dict[str, Any]) -> list[otlp_metrics.MetricPoint]:
    decoded = decode_metrics(encode(document), PROTOBUF)
    return [point for resource in decoded.resources for point in resource.points]


def outcome(body: bytes) -> HTTPStatus:
    try:
        decode_metrics(body, PROTOBUF)
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


@given(
    number=NUMBERS,
    timestamp_ns=st.integers(0, (1 << 64) - 1),
    attributes=st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=5),
)
def test_numbers_times_and_attributes_are_exact(number, timestamp_ns, attributes):
    field, value, written = number
    pairs = [{"key": key, "value": {"stringValue": text}} for key, text in attributes.items()]
    point = {"attributes": pairs, "timeUnixNano": str(timestamp_ns), field: written}
    (found,) = decode(request_of([point]))
    assert found == ("m", "gauge", attributes, timestamp_ns, value)
    assert type(found.value) is type(value)


@given(data=st.data())
def test_any_truncation_or_change_is_decoded_or_rejected(data):
    values = [pushes.priority("sp_rx_pause", 42), pushes.Pushed("oper_state", 1)]
    body = bytearray(pushes.body(values))
    end = data.draw(st.integers(0, len(body)))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] = data.draw(st.integers(0, 255))
    assert outcome(bytes(body[:end])) in {HTTPStatus.OK, HTTPStatus.BAD_REQUEST}


CUMULATIVE, DELTA = 2, 1


@pytest.mark.parametrize("kind", ["sum", "histogram", "exponentialHistogram"])
def test_increments_are_no_totals(kind):
    """A temporality of 0, which is not specified, counts as cumulative."""
    metrics = [
        {
            "name": str(temporality),
            kind: {"dataPoints": [{}, {}], "aggregationTemporality": temporality},
        }
        for temporality in (0, DELTA, CUMULATIVE)
    ]
    document = {"resourceMetrics": [{"scopeMetrics": [{"metrics": metrics}]}]}
    decoded = decode_metrics(encode(document), PROTOBUF)
    assert [point.name for point in decoded.resources[0].points] == ["0", "0", "2", "2"]
    assert (decoded.increments, decoded.excessive) == (2, 0)


def test_points_are_bounded_per_request():
    body = encode(request_of([{"asInt": "1"}] * 11))
    with pytest.raises(OtlpRejectedError, match="at most 10 points") as rejected:
        decode_metrics(body, PROTOBUF, max_points=10)
    assert rejected.value.status is HTTPStatus.REQUEST_ENTITY_TOO_LARGE


def test_points_with_too_many_or_too_long_attributes_are_left_out():
    many = [{"key": f"k{n}", "value": {"stringValue": ""}} for n in range(33)]
    long = [{"key": "k", "value": {"stringValue": "x" * 256}}]
    points = [
        {"asInt": "1", "attributes": many},
        {"asInt": "2", "attributes": long},
        {"asInt": "3"},
    ]
    decoded = decode_metrics(encode(request_of(points)), PROTOBUF)
    assert [point.value for point in decoded.resources[0].points] == [3]
    assert decoded.excessive == 2
    named = decode_metrics(encode(request_of([{"asInt": "1"}], name="n" * 256)), PROTOBUF)
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
    written = otlp_metrics.success_body(rejected, problem)
    assert ExportMetricsServiceResponse.FromString(written) == expected
    for code, status in ((3, HTTPStatus.BAD_REQUEST), (14, HTTPStatus.SERVICE_UNAVAILABLE)):
        found = Status.FromString(otlp_metrics.problem_body(status, problem))
        assert (found.code, found.message) == (code, problem)


def test_sample_of_cumulus():
    text = capture_path("switch/otlp/cumulus-interface-derived.json").read_text()
    decoded = decode_metrics(encode(json.loads(text)), PROTOBUF)
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
