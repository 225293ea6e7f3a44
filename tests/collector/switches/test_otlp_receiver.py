"""The OTLP receiver over real HTTP: the official exporter, other senders, and hostile ones."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
from opentelemetry.sdk.resources import Resource
from running_collector import RunningCollector, logged_envelopes, run_collector, settings_in
from support import cumulus_pushes as cumulus
from support.cumulus_pushes import priority

from railscope import extras
from railscope.catalog import switches as catalog
from railscope.otlp_metrics import JSON, PROTOBUF
from railscope.settings import SettingsError
from railscope_collector.config import (
    CollectorSettings,
    IngestLimits,
    OtlpReceiverSettings,
    SwitchesSettings,
)
from railscope_collector.service import Collector
from railscope_collector.switches import otlp_receiver, push_receiver

TABLE = '[leaf-08]\naddress = "127.0.0.1"\nprotocol = "otlp"\nperiod_seconds = 5\n'


def settings_with(directory: Path, table: str = TABLE, **more: Any) -> CollectorSettings:
    file = directory / "switches.toml"
    file.write_text(table)
    given = {"listen": "127.0.0.1:0"} | more
    return settings_in(
        directory,
        limits=IngestLimits(),
        switches=SwitchesSettings(file=str(file)),
        otlp_receiver=OtlpReceiverSettings(**given),
    )


@asynccontextmanager
async def receiving(
    directory: Path, **more: Any
) -> AsyncIterator[tuple[RunningCollector, otlp_receiver.OtlpReceiver]]:
    async with run_collector(settings_with(directory, **more)) as one:
        receiver = one.collector.switches.receiver
        await receiver.is_listening.wait()
        yield one, receiver


async def post(
    receiver: otlp_receiver.OtlpReceiver,
    body: bytes,
    media_type: str = PROTOBUF,
    sender: str = "127.0.0.1",
    path: str = "/v1/metrics",
    **headers: str,
) -> tuple[int, bytes, dict[str, str]]:
    connector = aiohttp.TCPConnector(local_addr=(sender, 0))
    given = {"Content-Type": media_type} | {
        name.replace("_", "-"): text for name, text in headers.items()
    }
    url = f"http://127.0.0.1:{receiver.port}{path}"
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(url, data=io.BytesIO(body), headers=given) as response,
    ):
        return response.status, await response.read(), dict(response.headers)


def value(count: float = 42, **more: Any) -> list[cumulus.Pushed]:
    return [priority("sp_rx_pause", count, timestamp_ns=time.time_ns(), **more)]


SERIES = 'railscope_switch_port_receive_pfc_pause_frames_total{switch="leaf-08",port="swp1",priority="3"}'


@pytest.mark.parametrize("media_type", [PROTOBUF, JSON])
async def test_pushed_metrics_are_in_frame_log_and_metrics(tmp_path, media_type):
    encode = cumulus.json_body if media_type == JSON else cumulus.protobuf_body
    async with receiving(tmp_path) as (one, receiver):
        status, body, headers = await post(receiver, encode(value()), media_type)
        assert (status, headers["Content-Type"]) == (200, media_type)
        assert body == (b"{}" if media_type == JSON else b"")
        assert logged_envelopes(tmp_path) == 1
        packed = gzip.compress(encode(value(43)))
        assert (await post(receiver, packed, media_type, Content_Encoding="gzip"))[0] == 200
        _, text = await one.get("/metrics")
        assert f"{SERIES} 43\n" in text
        assert 'railscope_switch_up{switch="leaf-08"} 1\n' in text
        assert 'railscope_switch_clock_is_off{switch="leaf-08"} 0\n' in text
        assert 'railscope_switch_pushed_points_total{switch="leaf-08",result="stored"} 2\n' in text
        assert 'railscope_collector_otlp_requests_total{result="stored"} 2\n' in text
        assert set(one.collector.core.fleet.switches) == {"switch/leaf-08"}
        assert not one.collector.core.fleet.nodes


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
async def test_official_exporter(tmp_path, compression):
    reader = InMemoryMetricReader()
    provider = MeterProvider(
        [reader], Resource({"net.host.name": "leaf-08"}), shutdown_on_exit=False
    )
    gauge = provider.get_meter("cumulus").create_gauge("nvswitch_interface_sp_rx_pause")
    gauge.set(42.0, {"interface": "swp1", "sp": "3"})
    async with receiving(tmp_path) as (one, receiver):
        exporter = OTLPMetricExporter(
            f"http://127.0.0.1:{receiver.port}/v1/metrics", compression=compression
        )
        try:
            data = reader.get_metrics_data()
            result = await asyncio.to_thread(exporter.export, data)  # noqa: TID251 - a client
        finally:
            exporter.shutdown()
            provider.shutdown()
        assert result is MetricExportResult.SUCCESS
        _, text = await one.get("/metrics")
        assert f"{SERIES} 42\n" in text


async def test_errors_and_discards_have_64_bits_and_a_fall_is_a_reset(tmp_path):
    name = 'railscope_switch_port_receive_errors_total{switch="leaf-08",port="swp1"}'
    async with receiving(tmp_path) as (one, receiver):
        for count in (5_000_000_000, 3_000_000_000, 7):
            pushed = cumulus.Pushed("if_in_errors", count, timestamp_ns=time.time_ns())
            await post(receiver, cumulus.protobuf_body([pushed]))
            _, text = await one.get("/metrics")
            assert f"{name} {count}\n" in text
        assert 'railscope_switch_pushed_resets_total{switch="leaf-08"} 2\n' in text


async def test_pushed_neighbours_are_those_of_the_ports(tmp_path):
    async with receiving(tmp_path) as (one, receiver):
        neighbour = cumulus.neighbour("swp1", system_name="gpu-0001", port_id="02:aa:00:00:00:01")
        pushed = [
            each._replace(timestamp_ns=time.time_ns())
            for each in (neighbour, cumulus.Pushed("oper_state", 1))
        ]
        await post(receiver, cumulus.protobuf_body(pushed))
        (port,) = (await one.json("/api/v1/switches/leaf-08"))["ports"]
        assert port["neighbour"]["system_name"] == "gpu-0001"
        assert port["neighbour"]["neighbour_port"] == "02:aa:00:00:00:01"
        _, text = await one.get("/metrics")
        assert 'railscope_switch_neighbour_known{switch="leaf-08",port="swp1"} 1\n' in text


async def test_unknown_sender_is_rejected_before_its_body_is_read(tmp_path):
    async with receiving(tmp_path) as (_, receiver):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", receiver.port, local_addr=("127.0.0.2", 0)
        )
        writer.write(b"POST /v1/metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"unknown sender 127.0.0.2" in answer
        assert receiver.requests == {"unknown_sender": 1}
        assert logged_envelopes(tmp_path) == 0


@pytest.mark.parametrize(
    ("body", "headers", "status", "result"),
    [
        (b"garbage", {}, 400, "format"),
        (cumulus.protobuf_body(value())[:-3], {}, 400, "format"),
        (b"{}", {"media_type": "text/plain"}, 415, "media_type"),
        (b"[" * 100_000, {"media_type": JSON}, 400, "format"),
        (b"garbage", {"Content_Encoding": "gzip"}, 400, "format"),
        (b"", {"Content_Encoding": "br"}, 415, "media_type"),
        (lambda: gzip.compress(bytes(64 << 20)), {"Content_Encoding": "gzip"}, 413, "size"),
        (bytes(5 << 20), {}, 413, "size"),
        (b"", {"path": "/v1/logs"}, 404, "path"),
    ],
    ids=[
        "garbage",
        "truncated",
        "plain text",
        "deep",
        "no gzip",
        "another encoding",
        "zip bomb",
        "too long",
        "path",
    ],
)
async def test_hostile_bodies_are_rejected_and_the_next_request_is_accepted(
    tmp_path, body, headers, status, result
):
    """Every worker collects the cases, and one of them compresses the large body."""
    content = body() if callable(body) else body
    async with receiving(tmp_path) as (_, receiver):
        found, _, _ = await post(receiver, content, **headers)
        assert found == status
        assert receiver.requests == {result: 1}
        assert (await post(receiver, cumulus.protobuf_body(value())))[0] == 200


async def test_sender_of_an_invalid_request_is_logged(tmp_path, capsys):
    async with receiving(tmp_path) as (_, receiver):
        reader, writer = await asyncio.open_connection("127.0.0.1", receiver.port)
        writer.write(b"POST /v1/metrics HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()
        assert "reason=format repetitions=0 sender=127.0.0.1" in capsys.readouterr().out


async def test_problem_is_a_status_in_the_encoding_of_the_request(tmp_path):
    async with receiving(tmp_path) as (_, receiver):
        _, body, headers = await post(receiver, b"{", f"{JSON}; charset=utf-8")
        assert headers["Content-Type"] == JSON
        problem = msgspec.json.decode(body)
        assert problem["code"] == 3
        assert "invalid JSON" in problem["message"]


async def test_points_that_are_not_stored_are_a_partial_success(tmp_path):
    values = [*value(), *value(0.5, number=4), cumulus.Pushed("unknown", 1)]
    async with receiving(tmp_path) as (_, receiver):
        status, body, _ = await post(receiver, cumulus.protobuf_body(values))
        partial = ExportMetricsServiceResponse.FromString(body).partial_success
        assert status == 200
        assert (partial.rejected_data_points, partial.error_message) == (
            1,
            "points not stored: 1 invalid",
        )


DELTA_TEXT = (
    "points not stored: 1 delta: expected cumulative temporality; fix: configure it at the exporter"
)


async def test_increments_are_refused_and_the_totals_beside_them_are_stored(tmp_path):
    document = cumulus.document([*value(), *value(5, number=4)])
    metrics = document["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
    for metric, temporality in zip(metrics, (2, 1), strict=True):
        metric["sum"] = metric.pop("gauge") | {"aggregationTemporality": temporality}
    async with receiving(tmp_path) as (one, receiver):
        body = json.dumps(document).encode()
        status, answer, _ = await post(receiver, body, JSON)
        assert status == 200
        assert json.loads(answer)["partialSuccess"] == {
            "rejectedDataPoints": "1", "errorMessage": DELTA_TEXT,
        }  # fmt: skip
        _, text = await one.get("/metrics")
        assert f"{SERIES} 42\n" in text
        assert 'railscope_switch_pushed_points_total{switch="leaf-08",result="delta"} 1\n' in text


async def test_rate_is_limited_with_the_time_to_wait(tmp_path):
    async with receiving(tmp_path, requests_per_second=0.1) as (_, receiver):
        assert (await post(receiver, cumulus.protobuf_body(value())))[0] == 200
        status, _, headers = await post(receiver, cumulus.protobuf_body(value()))
        assert (status, headers["Retry-After"]) == (429, "5")
        assert receiver.requests == {"stored": 1, "rate": 1}


async def test_requests_that_take_long_to_decode_count_as_several(tmp_path, monkeypatch):
    monkeypatch.setattr(push_receiver, "MAX_SHARE", 1e-6)
    async with receiving(tmp_path) as (_, receiver):
        assert (await post(receiver, cumulus.protobuf_body(value())))[0] == 200
        assert (await post(receiver, cumulus.protobuf_body(value())))[0] == 429


async def test_requests_of_a_switch_that_wait_are_bounded(tmp_path):
    async with receiving(tmp_path) as (_, receiver):
        switch = receiver.switches["127.0.0.1"]
        await switch.limit.lock.acquire()
        async with asyncio.TaskGroup() as group:
            body = cumulus.protobuf_body(value())
            posts = [group.create_task(post(receiver, body)) for _ in range(5)]
            done, _ = await asyncio.wait(posts, return_when=asyncio.FIRST_COMPLETED)
            switch.limit.lock.release()
        (rejected,) = done
        assert rejected.result()[0] == 503
        assert [each.result()[0] for each in posts if each is not rejected] == [200] * 4
        assert receiver.requests == {"busy": 1, "stored": 4}


async def test_what_cannot_be_stored_is_not_acknowledged_and_stored_when_repeated(tmp_path):
    body = cumulus.protobuf_body(value())
    async with receiving(tmp_path) as (one, receiver):
        one.collector.core.is_draining = True
        status, _, headers = await post(receiver, body)
        assert (status, headers["Retry-After"]) == (503, "5")
        assert logged_envelopes(tmp_path) == 0
        one.collector.core.is_draining = False
        assert (await post(receiver, body))[0] == 200
        _, text = await one.get("/metrics")
        assert f"{SERIES} 42\n" in text
        assert 'result="old"' not in text


async def test_collector_that_is_not_the_head_stores_nothing(tmp_path):
    async with receiving(tmp_path) as (one, receiver):
        receiver.may_receive = lambda: False
        assert (await post(receiver, cumulus.protobuf_body(value())))[0] == 503
        _, text = await one.get("/metrics")
        assert "railscope_switch_up" not in text


async def test_slow_sender_does_not_delay_others(tmp_path):
    async with receiving(tmp_path) as (_, receiver):
        _, writer = await asyncio.open_connection("127.0.0.1", receiver.port)
        writer.write(b"POST /v1/metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n1")
        assert (await post(receiver, cumulus.protobuf_body(value())))[0] == 200
        writer.close()


async def test_switch_that_stops_pushing_is_down_and_its_readings_are_absent(tmp_path):
    async with receiving(tmp_path) as (one, receiver):
        _, text = await one.get("/metrics")
        assert "railscope_switch_up" not in text, "it may still begin"
        for result in catalog.OTLP_REQUEST_RESULTS:
            assert f'railscope_collector_otlp_requests_total{{result="{result}"}} 0\n' in text
        await post(receiver, cumulus.protobuf_body(value()))
        now_ns = time.time_ns() + 16_000_000_000
        receiver.wall_ns = lambda: now_ns
        _, text = await one.get("/metrics")
        assert 'railscope_switch_up{switch="leaf-08"} 0\n' in text
        assert SERIES not in text


async def test_kind_of_readings_that_is_not_pushed_any_more_is_absent(tmp_path):
    async with receiving(tmp_path, requests_per_second=1000) as (one, receiver):
        switch = receiver.switches["127.0.0.1"]
        switch.settings = msgspec.structs.replace(switch.settings, period_seconds=1.0)
        await post(receiver, cumulus.protobuf_body(value()))
        text = SERIES
        async with asyncio.timeout(20):
            while SERIES in text:
                state = cumulus.Pushed("oper_state", 1, timestamp_ns=time.time_ns())
                assert (await post(receiver, cumulus.protobuf_body([state])))[0] == 200
                await asyncio.sleep(0.05)  # a collector accepts 50 envelopes per second of a switch
                _, text = await one.get("/metrics")
                assert 'railscope_switch_port_up{switch="leaf-08",port="swp1"} 1\n' in text
        assert 'railscope_switch_up{switch="leaf-08"} 1\n' in text


async def test_switch_that_pushes_only_metrics_without_use_is_down(tmp_path):
    async with receiving(tmp_path) as (one, receiver):
        assert (await post(receiver, cumulus.protobuf_body([cumulus.Pushed("later", 1)])))[0] == 200
        now_ns = time.time_ns() + 16_000_000_000
        receiver.wall_ns = lambda: now_ns
        _, text = await one.get("/metrics")
        assert 'railscope_switch_up{switch="leaf-08"} 0\n' in text


async def test_switch_that_never_pushed_is_down_after_three_periods(tmp_path):
    async with receiving(tmp_path) as (one, receiver):
        now_ns = time.time_ns() + 16_000_000_000
        receiver.wall_ns = lambda: now_ns
        _, text = await one.get("/metrics")
        assert 'railscope_switch_up{switch="leaf-08"} 0\n' in text


async def wait_for_failure(capsys: pytest.CaptureFixture[str]) -> None:
    output = ""
    async with asyncio.timeout(10):
        while "otlp_receiver_failed" not in output:
            output += capsys.readouterr().out
            await asyncio.sleep(0.01)


async def test_address_in_use_is_reported_and_the_collector_runs(tmp_path, capsys):
    blocker = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    port = blocker.sockets[0].getsockname()[1]
    settings = settings_with(tmp_path, listen=f"127.0.0.1:{port}")
    async with run_collector(settings) as one:
        await wait_for_failure(capsys)
        assert (await one.get("/metrics"))[0] == 200
    blocker.close()


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (TABLE.replace("127.0.0.1", "leaf-08.example"), "expected the IP address"),
        (
            TABLE + 'credential_file = "x"\n',
            "credential_file: expected none with protocol = 'otlp'",
        ),
        (TABLE + 'tables = "sonic"\n', "tables: expected with protocol = 'snmp' only"),
        (
            TABLE + TABLE.replace("08", "09").replace("127.0.0.1", "::ffff:127.0.0.1"),
            r"also that of \[leaf-08\]",
        ),
    ],
)
def test_invalid_switches_are_errors(tmp_path, table, problem):
    with pytest.raises(SettingsError, match=problem):
        Collector(settings_with(tmp_path, table))


def test_switch_without_a_listener_is_an_error(tmp_path):
    with pytest.raises(SettingsError, match=r"expected otlp_receiver\.listen"):
        Collector(settings_with(tmp_path, listen=""))


async def start_collector(directory: Path, before: str, after: str, listen: str) -> tuple[int, str]:
    """Create a collector in a new process; return the exit status and the error."""
    settings = msgspec.json.encode(settings_with(directory, "", listen=listen)).decode()
    code = (
        "import msgspec, sys\n"
        f"{before}\n"
        "from railscope_collector.config import CollectorSettings\n"
        "from railscope_collector.service import Collector\n"
        f"Collector(msgspec.json.decode({settings!r}, type=CollectorSettings))\n"
        f"{after}\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-c", code, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    return process.returncode or 0, errors.decode()


async def test_collector_without_the_receiver_loads_no_protobuf(tmp_path):
    check = "assert not {'google.protobuf', 'opentelemetry', 'grpc'} & set(sys.modules)"
    assert await start_collector(tmp_path, "", check, "") == (0, "")


async def test_missing_library_is_named_with_its_extra(tmp_path):
    hidden = "sys.modules['opentelemetry'] = None"
    status, errors = await start_collector(tmp_path, hidden, "", "127.0.0.1:0")
    assert status == 1
    assert "missing opentelemetry-proto, which otlp_receiver requires" in errors
    assert extras.install_command("otlp") in errors


@pytest.mark.parametrize(
    ("check", "module", "library"),
    [
        ("dialout_receiver.check_library()", "grpc", "grpcio"),
        ("dialout_receiver.check_library()", "google.protobuf", "protobuf"),
        ("otlp_receiver.check_libraries(has_grpc=True)", "grpc", "grpcio"),
        ("otlp_receiver.check_libraries(has_grpc=True)", "google.rpc", "googleapis-common-protos"),
    ],
)
def test_a_missing_library_is_named_as_its_package(check: str, module: str, library: str):
    """A module is not what can be installed."""
    code = (
        "import sys; from railscope_collector.switches import dialout_receiver, otlp_receiver\n"
        f"sys.modules[{module!r}] = None\n"
        f"{check}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"missing {library}, which " in done.stderr
