"""The OTLP receiver over real gRPC: our own exporter, senders that are unknown or too fast, and hostile messages."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from running_collector import RunningCollector, logged_envelopes, run_collector
from support import cumulus_pushes as cumulus
from support.cumulus_pushes import priority
from test_otlp_receiver import SERIES, TABLE, settings_with

from railscope import otlp_metrics
from railscope_collector.switches import otlp_receiver


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
