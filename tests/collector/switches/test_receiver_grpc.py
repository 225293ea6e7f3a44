"""The OTLP receiver over real gRPC: our own exporter, senders that are unknown or too fast, and hostile messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given, strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from running_collector import RunningCollector, logged_envelopes, run_collector
from support import certificates, cumulus_pushes as cumulus
from support.cumulus_pushes import priority
from test_otlp_receiver import SERIES, TABLE, settings_with, wait_for_failure

from railscope import otlp_metrics, server_connections
from railscope.otlp_receiving import MAX_WAITING
from railscope_collector.switches import grpc_listener, otlp_receiver


@asynccontextmanager
async def receiving(
    directory: Path, table: str = TABLE, **more: Any
) -> AsyncIterator[tuple[RunningCollector, otlp_receiver.OtlpReceiver]]:
    settings = settings_with(directory, table, listen="", grpc_listen="127.0.0.1:0", **more)
    async with run_collector(settings) as one:
        receiver = one.collector.switches.receiver
        await receiver.is_listening_grpc.wait()
        yield one, receiver


async def export(
    receiver: otlp_receiver.OtlpReceiver,
    body: bytes,
    compression: grpc.Compression = grpc.Compression.NoCompression,
) -> bytes:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{receiver.grpc_port}") as channel:
        call: Any = channel.unary_unary(otlp_metrics.METRICS_METHOD)
        return bytes(await call(body, compression=compression, timeout=30))


def value(count: float = 42, **more: Any) -> list[cumulus.Pushed]:
    return [priority("sp_rx_pause", count, timestamp_ns=time.time_ns(), **more)]


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
async def test_pushed_metrics_are_in_frame_log_and_metrics(tmp_path, compression):
    async with receiving(tmp_path) as (one, receiver):
        assert await export(receiver, cumulus.protobuf_body(value()), compression) == b""
        assert logged_envelopes(tmp_path) == 1
        _, text = await one.get("/metrics")
        assert f"{SERIES} 42\n" in text
        response = await export(receiver, cumulus.protobuf_body(value(0.5)))
        partial = ExportMetricsServiceResponse.FromString(response).partial_success
        assert (partial.rejected_data_points, partial.error_message) == (
            1,
            "points not stored: 1 invalid",
        )


async def rejection(
    receiver: otlp_receiver.OtlpReceiver, body: bytes, *more: Any
) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await export(receiver, body, *more)
    return failed.value


async def test_unknown_sender_is_rejected(tmp_path):
    table = TABLE.replace("127.0.0.1", "192.0.2.8")
    async with receiving(tmp_path, table) as (_, receiver):
        error = await rejection(receiver, cumulus.protobuf_body(value()))
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "unknown sender 127.0.0.1" in str(error.details())
        assert receiver.requests == {"unknown_sender": 1}


def requested_seconds(error: grpc.aio.AioRpcError) -> int:
    details = dict(error.trailing_metadata() or ())["grpc-status-details-bin"]
    info = error_details_pb2.RetryInfo()
    (detail,) = status_pb2.Status.FromString(bytes(details)).details
    assert detail.Unpack(info)
    return int(info.retry_delay.seconds)


async def test_sender_that_is_too_fast_is_to_wait(tmp_path):
    async with receiving(tmp_path, requests_per_second=0.1) as (_, receiver):
        await export(receiver, cumulus.protobuf_body(value()))
        error = await rejection(receiver, cumulus.protobuf_body(value()))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert requested_seconds(error) == 5


async def test_what_cannot_be_stored_is_to_be_repeated(tmp_path):
    async with receiving(tmp_path) as (one, receiver):
        one.collector.core.is_draining = True
        error = await rejection(receiver, cumulus.protobuf_body(value()))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert requested_seconds(error) == 5
        one.collector.core.is_draining = False
        assert await export(receiver, cumulus.protobuf_body(value())) == b""


async def test_garbage_is_final_and_a_zip_bomb_is_not_unpacked(tmp_path):
    async with receiving(tmp_path) as (_, receiver):
        error = await rejection(receiver, b"garbage")
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        error = await rejection(receiver, bytes(64 << 20), grpc.Compression.Gzip)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await export(receiver, cumulus.protobuf_body(value())) == b""


async def ended(tasks: set[asyncio.Task[Any]], count: int) -> set[asyncio.Task[Any]]:
    """Return the tasks that have ended, once there are so many."""
    async with asyncio.timeout(30):
        while len(done := {task for task in tasks if task.done()}) < count:
            await asyncio.wait(tasks - done, return_when=asyncio.FIRST_COMPLETED)
    return done


async def test_calls_of_one_sender_without_a_message_are_bounded(tmp_path):
    async def silent() -> AsyncIterator[bytes]:
        await asyncio.get_running_loop().create_future()
        yield b""

    async with receiving(tmp_path) as (_, receiver):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{receiver.grpc_port}") as channel:
            call: Any = channel.stream_unary(otlp_metrics.METRICS_METHOD)
            calls = {asyncio.ensure_future(call(silent()).code()) for _ in range(MAX_WAITING + 3)}
            assert {each.result() for each in await ended(calls, 3)} == {
                grpc.StatusCode.UNAVAILABLE
            }
            assert receiver.requests == {"busy": 3}
        await ended(calls, len(calls))
        assert await export(receiver, cumulus.protobuf_body(value())) == b""


async def test_connections_are_bounded_and_end_without_a_handshake(tmp_path, monkeypatch):
    monkeypatch.setattr(otlp_receiver, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(server_connections, "HANDSHAKE_SECONDS", 3.0)
    async with receiving(tmp_path) as (_, receiver):
        opened = [await asyncio.open_connection("127.0.0.1", receiver.grpc_port) for _ in range(10)]
        reads = {asyncio.ensure_future(reader.read()) for reader, _ in opened}
        assert len(await ended(reads, 7)) == 7
        await ended(reads, 10)
        assert await export(receiver, cumulus.protobuf_body(value())) == b""
        for _, writer in opened:
            writer.close()


async def test_tls_with_the_certificate_of_the_settings(tmp_path):
    certificate, key = certificates.self_signed(tmp_path / "tls")
    more = {"certificate_file": str(certificate), "key_file": str(key)}
    async with receiving(tmp_path, **more) as (_, receiver):
        credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
        address = f"127.0.0.1:{receiver.grpc_port}"
        async with grpc.aio.secure_channel(address, credentials) as channel:
            call: Any = channel.unary_unary(otlp_metrics.METRICS_METHOD)
            assert await call(cumulus.protobuf_body(value()), timeout=30) == b""


async def test_address_in_use_is_reported_and_the_collector_runs(tmp_path, capsys):
    blocker = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    port = blocker.sockets[0].getsockname()[1]
    settings = settings_with(tmp_path, listen="", grpc_listen=f"127.0.0.1:{port}")
    async with run_collector(settings) as one:
        await wait_for_failure(capsys)
        assert (await one.get("/metrics"))[0] == 200
    blocker.close()


@given(st.ip_addresses(), st.integers(1, 65_535))
def test_addresses_of_peers(address, port):
    text = f"ipv4:{address}:{port}" if address.version == 4 else f"ipv6:%5B{address}%5D:{port}"
    assert grpc_listener.peer_address(text) == str(address)
