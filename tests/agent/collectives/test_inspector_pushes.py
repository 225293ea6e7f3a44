"""Pushes of NCCL Inspector by OTLP: the same series as of its files, senders by their sockets, and hostile senders."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
from support.inspector_logs import (
    InspectorDirectory,
    collective,
    gpu_uuid,
    send,
    straggling,
    whole_lines,
)
from support.inspector_pushes import (
    PushedNode,
    call_points,
    push_body,
    receiving_node,
    report_points,
)
from support.textfiles import page_of

from railscope import otlp_metrics
from railscope.catalog import collectives as c
from railscope.otlp_metrics import MetricPoint, MetricsRequest, ResourcePoints
from railscope.settings import SettingsError
from railscope_agent.collective_settings import CollectiveSettings
from railscope_agent.collectives import inspector_metrics
from railscope_agent.collectives.inspector import MAX_BANDWIDTH_GBS
from railscope_agent.config import AgentSettings
from railscope_agent.endpoint.inspector_receiver import InspectorReceiver
from railscope_agent.host.live_host import LiveHost
from railscope_agent.host.tcp_sockets import TcpSocketCalls
from railscope_agent.service import Agent
from railscope_agent.sources import inspector_pushes
from railscope_agent.sources.inspector_pushes import MAX_REPORTS, decode_push


async def test_pushed_reports_have_the_series_of_the_metrics_file() -> None:
    labels = (
        f'gpu="{gpu_uuid(0)}",job_directory="",user="{os.geteuid()}",communicator_name="DP Group 0",'
        'ranks="4",nodes="1",collective="AllReduce",message_size="4-5MB",algorithm="Ring_ll"'
    )
    wanted = {
        f"railscope_nccl_reported_bus_bandwidth_bytes_per_second{{{labels}}} 678263000000",
        f"railscope_nccl_reported_call_seconds{{{labels}}} 0.00949847",
    }
    async with receiving_node() as node:
        points = report_points(bandwidth=678.263, time=9498.47)
        assert await node.post(push_body(points)) == (200, b"{}")
        page = page_of(node.read_metrics())
        assert wanted <= set(page.splitlines())
        assert node.counts(c.INSPECTOR_REQUESTS) == {"stored": 1}
        assert node.counts(c.INSPECTOR_POINTS) == {"stored": 2}
        node.clock.advance(301)
        assert "_reported_bus" not in page_of(node.read_metrics())


async def test_pushed_calls_have_the_totals_of_the_logs_without_ranks(tmp_path: Path) -> None:
    calls = [*straggling(0, 6), collective(1, 1 << 30, 9000, "AllGather"), send(1, 4096, 90, 1)]
    logs = InspectorDirectory(tmp_path)
    logs.append(0, whole_lines(0, calls))
    logs.close()
    async with receiving_node() as node:
        body = push_body([point for call in calls for point in call_points(call)])
        assert await node.post(body) == (200, b"{}")
        node.read()
        totals = {" ".join(entity.key[2:]): list(n) for entity, n in node.totals.readings.items()}
        assert totals == {name: n for name, n in logs.totals.items() if not name.endswith(" 0")}
        assert len(totals) == 3
        assert node.counts(c.INSPECTOR_LINES) == {"read": len(calls)}
        assert node.counts(c.INSPECTOR_POINTS) == {"stored": 3 * len(calls)}


async def test_a_sender_is_found_by_its_socket_and_not_by_its_attributes() -> None:
    async with receiving_node() as node:
        node.places.processes.clear()
        node.add_process(1, gpus=[1], workload="60937")
        status, body = await node.post(push_body(report_points(bandwidth=1)))
        assert status == 403
        assert b"unknown sender" in body
        node.add_process(os.getpid(), gpus=[3], workload="team-a/run-7", source="kubernetes")
        assert (await node.post(push_body(report_points(bandwidth=1))))[0] == 200
        page = page_of(node.read_metrics())
        assert f'{{gpu="{gpu_uuid(3)}",job_directory="run-7",user="{os.geteuid()}",' in page
        assert "60937" not in page


def nested(depth: int) -> bytes:
    """Return a body with an attribute of nested arrays."""
    value = '{"arrayValue":{"values":[' * depth + '{"intValue":"1"}' + "]}}" * depth
    attribute = f'{{"key":"a","value":{value}}}'
    return f'{{"resourceMetrics":[{{"resource":{{"attributes":[{attribute}]}}}}]}}'.encode()


@pytest.mark.parametrize(
    ("body", "headers", "status", "result"),
    [
        (lambda: gzip.compress(bytes(64 << 20)), {"Content_Encoding": "gzip"}, 413, "size"),
        (bytes(5 << 20), {}, 413, "size"),
        (nested(20_000), {}, 400, "format"),
        (b"{}", {"Content_Encoding": "br"}, 415, "media_type"),
        (b"{}", {"Content_Type": "text/plain"}, 415, "media_type"),
        (b"{", {}, 400, "format"),
        (b"{}", {"path": "/v1/logs"}, 404, "path"),
        (lambda: gzip.compress(push_body([("a", {"b": str(number)}, 1) for number in range(20_000)])), {"Content_Encoding": "gzip"}, 413, "size"),
    ],
    ids=["zip bomb", "too long", "deep", "encoding", "media type", "no JSON", "path", "points"],
)  # fmt: skip
async def test_hostile_pushes_are_rejected_and_counted_and_the_next_one_is_accepted(
    body: bytes | Callable[[], bytes], headers: dict[str, str], status: int, result: str
) -> None:
    """Every worker collects the cases, and one of them compresses a large body."""
    content = body() if callable(body) else body
    async with receiving_node() as node:
        assert (await node.post(content, **headers))[0] == status
        assert node.counts(c.INSPECTOR_REQUESTS) == {result: 1}
        assert (await node.post(push_body(report_points(bandwidth=1))))[0] == 200


async def test_too_many_attributes_and_combinations_are_a_partial_success() -> None:
    name, attributes, _ = report_points(bandwidth=1)[0]
    wide = attributes | {f"a{number}": "" for number in range(40)}
    many = [(name, attributes | {"comm_name": str(number)}, 1.0) for number in range(600)]
    async with receiving_node() as node:
        status, body = await node.post(push_body([*many, (name, wide, 1.0), (name, {}, -1.0)]))
        assert status == 200
        partial = json.loads(body)["partialSuccess"]
        assert partial["rejectedDataPoints"] == "90"
        assert partial["errorMessage"] == "points not stored: 1 invalid, 89 limit"
        assert node.counts(c.INSPECTOR_POINTS) == {"stored": 512, "invalid": 1, "limit": 89}


@pytest.mark.parametrize(
    ("length", "content", "status", "result"),
    [
        ("Content-Length: 10", b"1", b"408", "timeout"),
        ("Transfer-Encoding: chunked", b"500001\r\n" + bytes(5 << 20), b"413", "size"),
        ("Transfer-Encoding: chunked", b"no length\r\n", b"400", "format"),
    ],
)
async def test_a_slow_or_endless_body_gets_a_status_and_is_counted(
    length: str, content: bytes, status: bytes, result: str
) -> None:
    node = PushedNode()
    node.receiver.endpoint.body_seconds = 0.2 if result == "timeout" else 60
    async with receiving_node(node):
        reader, writer = await asyncio.open_connection(*node.receiver.address)
        writer.write(f"POST /v1/metrics HTTP/1.1\r\nHost: a\r\n{length}\r\n\r\n".encode() + content)
        line = await asyncio.wait_for(reader.readline(), 60)
        writer.close()
        assert line.split()[1] == status
        assert node.counts(c.INSPECTOR_REQUESTS) == {result: 1}


async def test_a_process_that_pushes_too_often_is_limited() -> None:
    async with receiving_node() as node:
        body = push_body(report_points(bandwidth=1))
        statuses = Counter([(await node.post(body))[0] for _ in range(25)])
        assert statuses == {200: 20, 429: 5}
        assert node.counts(c.INSPECTOR_REQUESTS) == {"stored": 20, "rate": 5}


async def test_the_official_exporter_is_answered_in_protobuf() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    gauge = provider.get_meter("nccl-inspector").create_gauge("nccl_bus_bandwidth_gbs")
    (_, attributes, _), *_ = report_points(bandwidth=3)
    gauge.set(3.0, attributes)
    async with receiving_node() as node:
        host, port = node.receiver.address
        exporter = OTLPMetricExporter(f"http://{host}:{port}/v1/metrics")
        data = reader.get_metrics_data()
        result = await asyncio.to_thread(exporter.export, data)  # noqa: TID251 - a client
        exporter.shutdown()
        provider.shutdown()
        assert result is MetricExportResult.SUCCESS
        assert "per_second" in page_of(node.read_metrics())


NAMES = st.sampled_from([*inspector_pushes._CALL_VALUES, *inspector_metrics.METRIC_NAMES, "other"])  # noqa: SLF001 - all names
TEXTS = st.text(max_size=8) | st.sampled_from(["1", "AllReduce", "4-5MB", "0x1f"])
KEYS = st.sampled_from(
    ["comm_id", "comm_name", "nranks", "n_nodes", "collective", "p2p_operation", "message_size", "coll_sn",
     "coll_msg_size_bytes", "p2p_sn", "p2p_msg_size_bytes", "p2p_peer", "x"]
)  # fmt: skip
POINTS = st.builds(
    MetricPoint,
    NAMES,
    st.sampled_from(["gauge", "sum"]),
    st.dictionaries(KEYS, TEXTS),
    st.integers(0, 1 << 63),
    st.none() | st.floats() | st.integers(-(1 << 63), (1 << 63) - 1),
)


@given(st.lists(POINTS, max_size=60), st.integers(0, 9))
def test_any_points_are_counted_once_and_stay_within_the_bounds(
    points: list[MetricPoint], excessive: int
) -> None:
    push = decode_push(MetricsRequest([ResourcePoints({}, points)], excessive, 3, 2))
    assert push.points.total() == len(points) + excessive + 3 + 2
    assert push.points["delta"] == 2
    assert min(push.points.values(), default=0) >= 0
    assert len(push.metrics.reports) <= MAX_REPORTS
    for report in push.metrics.reports:
        assert (report.bus_bytes_per_second or 0) <= MAX_BANDWIDTH_GBS * 10**9
    for _, call in push.calls:
        assert 0 <= call.bus_bytes < 1 << 63
        assert not call.is_compared


@given(st.binary(max_size=200), st.sampled_from([otlp_metrics.JSON, otlp_metrics.PROTOBUF]))
def test_any_body_is_decoded_or_rejected(body: bytes, media_type: str) -> None:
    with suppress(otlp_metrics.OtlpRejectedError):
        decode_push(otlp_metrics.decode_metrics(body, media_type))


@pytest.mark.parametrize("address", ["127.0.0.1", "::ffff:127.0.0.1"])
def test_a_process_with_an_ipv4_connection_is_known_whichever_family_its_socket_has(
    address: str,
) -> None:
    calls = TcpSocketCalls(LiveHost(Path("/")))
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(family) as client:
        client.connect((address, server.getsockname()[1]))
        accepted, peer = server.accept()
        with accepted:
            ends = (*peer[:2], *accepted.getsockname()[:2])
            assert calls.call("owners", *ends, 1, os.getpid()) == [os.geteuid(), os.getpid()]


def test_an_agent_receives_on_loopback_only(tmp_path: Path) -> None:
    def agent(listen: str) -> Agent:
        collectives = CollectiveSettings(nccl_inspector_listen=listen)
        settings = AgentSettings(
            node="n1", state_directory=str(tmp_path), listen="127.0.0.1:0", collectives=collectives
        )
        return Agent(settings, LiveHost(tmp_path))

    with pytest.raises(SettingsError, match=r"nccl_inspector_listen '0\.0\.0\.0:4318': expected"):
        agent("0.0.0.0:4318")
    assert agent("").receiver is None
    assert isinstance(agent("127.0.0.1:0").receiver, InspectorReceiver)
