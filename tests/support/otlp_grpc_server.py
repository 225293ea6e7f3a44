"""An OTLP receiver over gRPC that decodes requests by the official messages and answers by a script."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from support.otlp_decoding import DecodedMetrics

from railscope.otlp_calls import LOGS, METHODS, METRICS


@dataclass(frozen=True)
class GrpcAnswer:
    """Answer to one call: a status, with the wait of a RetryInfo, or a response."""

    code: grpc.StatusCode = grpc.StatusCode.OK
    message: str = ""
    wait_seconds: float | None = None
    body: bytes = b""
    is_silent: bool = False
    raw_details: bytes = b""

    def details(self) -> tuple[tuple[str, bytes], ...]:
        """Return the trailing metadata."""
        if self.raw_details:
            return (("grpc-status-details-bin", self.raw_details),)
        if self.wait_seconds is None:
            return ()
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(round(self.wait_seconds * 1e9))
        detail = any_pb2.Any()
        detail.Pack(error_details_pb2.RetryInfo(retry_delay=delay))
        return (
            ("grpc-status-details-bin", status_pb2.Status(details=[detail]).SerializeToString()),
        )


@dataclass
class OtlpGrpcServer:
    """The receiver's address, its script, and what it has received."""

    port: int = 0
    script: deque[GrpcAnswer] = field(default_factory=deque)
    metrics: DecodedMetrics = field(default_factory=DecodedMetrics)
    records: int = 0
    metadata: list[dict[str, str | bytes]] = field(default_factory=list)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def received(self, count: int) -> None:
        """Wait until a number of calls has been answered."""
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(lambda: len(self.metadata) >= count)

    async def export_metrics(self, body: bytes, context: Any) -> bytes:
        """Answer a call of the metrics service."""
        answer = await self._next(context)
        if answer.code is grpc.StatusCode.OK:
            self.metrics.add(body)
        return answer.body

    async def export_logs(self, body: bytes, context: Any) -> bytes:
        """Answer a call of the logs service."""
        request = logs_service_pb2.ExportLogsServiceRequest.FromString(body)
        answer = await self._next(context)
        for node in request.resource_logs:
            self.records += sum(len(scope.log_records) for scope in node.scope_logs)
        return answer.body

    async def _next(self, context: Any) -> GrpcAnswer:
        answer = self.script.popleft() if self.script else GrpcAnswer()
        async with self._changed:
            self.metadata.append(dict(context.invocation_metadata()))
            self._changed.notify_all()
        if answer.is_silent:
            await self._ended.wait()
        if answer.code is not grpc.StatusCode.OK:
            await context.abort(answer.code, answer.message, answer.details())
        return answer

    def end(self) -> None:
        """Release calls without an answer."""
        self._ended.set()


@asynccontextmanager
async def otlp_grpc_server(
    credentials: grpc.ServerCredentials | None = None, port: int = 0
) -> AsyncIterator[OtlpGrpcServer]:
    """Serve on a port of loopback, a free one by default."""
    receiver, server = OtlpGrpcServer(), grpc.aio.server()
    answers = {METRICS: receiver.export_metrics, LOGS: receiver.export_logs}
    for signal, method in METHODS.items():
        service, _, name = method.strip("/").partition("/")
        handler = grpc.unary_unary_rpc_method_handler(answers[signal])
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {name: handler}),)
        )
    receiver.port = (
        server.add_secure_port(f"127.0.0.1:{port}", credentials)
        if credentials
        else server.add_insecure_port(f"127.0.0.1:{port}")
    )
    await server.start()
    try:
        yield receiver
    finally:
        receiver.end()
        await server.stop(None)
