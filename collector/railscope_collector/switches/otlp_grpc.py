"""OTLP receiver over gRPC: the metrics service, with the same checks as over HTTP.

The sender is checked before its message is read, which is why the method is declared as one that receives a stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from railscope import otlp_metrics, otlp_receiving, server_connections, service
from railscope_collector.switches.grpc_listener import (
    grpc_listener,
    peer_address,
    server_credentials,
)

if TYPE_CHECKING:
    from railscope_collector.switches.otlp_receiver import OtlpReceiver

_DETAILS = "grpc-status-details-bin"
_CODES = {
    HTTPStatus.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    HTTPStatus.TOO_MANY_REQUESTS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    HTTPStatus.SERVICE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
}
"""Codes by status; others are INVALID_ARGUMENT. With RetryInfo, RESOURCE_EXHAUSTED is repeated as well."""


@asynccontextmanager
async def serve_metrics(receiver: OtlpReceiver, max_connections: int) -> AsyncIterator[int]:
    """Serve on the configured address; the value is the port. Raises SettingsError."""
    settings = receiver.settings
    name, _, method = otlp_metrics.METRICS_METHOD.strip("/").partition("/")
    handler: grpc.RpcMethodHandler[bytes, bytes]
    handler = grpc.stream_unary_rpc_method_handler(_Export(receiver).handle)
    handlers = (grpc.method_handlers_generic_handler(name, {method: handler}),)
    credentials = await service.run_in_thread(
        server_credentials, settings.certificate_file, settings.key_file
    )
    async with grpc_listener(
        settings.grpc_listen,
        handlers,
        credentials,
        otlp_metrics.MAX_PROTOBUF_BYTES,
        max_connections,
    ) as port:
        yield port


class _Export:
    """The method that receives metrics."""

    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    async def handle(
        self, _messages: Any, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> bytes:
        """Return the response to a call, or abort it."""
        peer = peer_address(context.peer())
        try:
            limit = self._receiver.check_sender(peer)
            with limit.reading():
                body = await self._read(context)
            rejected, problem = await self._receiver.receive(peer, body, otlp_metrics.PROTOBUF)
        except otlp_metrics.OtlpRejectedError as error:
            self._receiver.endpoint.count_rejection(error, peer)
            code = _CODES.get(error.status, grpc.StatusCode.INVALID_ARGUMENT)
            await context.abort(code, str(error), _retry_details(code, str(error)))
        self._receiver.requests[otlp_receiving.STORED] += 1
        return otlp_metrics.success_body(otlp_metrics.PROTOBUF, rejected, problem)

    async def _read(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        """Return the message of a call. Raises OtlpRejectedError."""
        try:
            async with asyncio.timeout(server_connections.HEADER_SECONDS):
                body: object = await context.read()
        except TimeoutError as error:
            message = f"no message within {server_connections.HEADER_SECONDS:g} s"
            raise otlp_metrics.OtlpRejectedError(
                message, HTTPStatus.REQUEST_TIMEOUT, "format"
            ) from error
        if not isinstance(body, bytes):
            message = "no message: expected one"
            raise otlp_metrics.OtlpRejectedError(message, HTTPStatus.BAD_REQUEST, "format")
        return body


def _retry_details(code: grpc.StatusCode, problem: str) -> tuple[tuple[str, bytes], ...]:
    """Return the details of a status: for one that is to be repeated, the time to wait."""
    if code not in {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE}:
        return ()
    detail = any_pb2.Any()
    delay = duration_pb2.Duration(seconds=otlp_metrics.RETRY_SECONDS)
    detail.Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    number: int = code.value[0]
    status = status_pb2.Status(code=number, message=problem, details=[detail])
    return ((_DETAILS, status.SerializeToString()),)
