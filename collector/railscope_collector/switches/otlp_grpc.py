"""OTLP receiver over gRPC: the metrics service, with the same checks as over HTTP.

The sender is checked before its message is read, which is why the method is declared as one that receives a stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from railscope import listen_address, otlp_metrics, otlp_receiving, server_connections, service
from railscope.settings import SettingsError
from railscope_collector import config
from railscope_collector.switches import switch_settings

if TYPE_CHECKING:
    from railscope_collector.switches.otlp_receiver import OtlpReceiver

MAX_CALLS = switch_settings.MAX_SWITCHES
"""Calls of all senders: an exporter does not repeat one that is rejected because of this limit."""
_DETAILS = "grpc-status-details-bin"
_CODES = {
    HTTPStatus.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    HTTPStatus.TOO_MANY_REQUESTS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    HTTPStatus.SERVICE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
}
"""Codes by status; others are INVALID_ARGUMENT. With RetryInfo, RESOURCE_EXHAUSTED is repeated as well."""
_OPTIONS = (
    ("grpc.max_receive_message_length", otlp_metrics.MAX_PROTOBUF_BYTES),
    ("grpc.max_concurrent_streams", 8),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.so_reuseport", 0),  # an address in use is an error, not a shared one
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.max_connection_idle_ms", 300_000),
)


@asynccontextmanager
async def grpc_listener(receiver: OtlpReceiver, max_connections: int) -> AsyncIterator[int]:
    """Serve on the configured address; the value is the port. Raises SettingsError."""
    settings = receiver.settings
    listen_address.split_address(settings.grpc_listen)
    # Anyone may open connections: they must not take the file descriptors of the collector.
    connections = server_connections.ServerConnections.within_descriptors(max_connections, 1)
    handshake_seconds = server_connections.HANDSHAKE_SECONDS
    limits = (
        ("grpc.max_allowed_incoming_connections", connections.max_connections),
        ("grpc.server_handshake_timeout_ms", round(handshake_seconds * 1000)),
    )
    server = grpc.aio.server(maximum_concurrent_rpcs=MAX_CALLS, options=(*_OPTIONS, *limits))
    name, _, method = otlp_metrics.METRICS_METHOD.strip("/").partition("/")
    handler: grpc.RpcMethodHandler[bytes, bytes]
    handler = grpc.stream_unary_rpc_method_handler(_Export(receiver).handle)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(name, {method: handler}),)
    )
    credentials = await service.run_in_thread(_credentials, settings)
    try:
        port = (
            server.add_secure_port(settings.grpc_listen, credentials)
            if credentials
            else server.add_insecure_port(settings.grpc_listen)
        )
    except RuntimeError as error:
        message = f"cannot listen on {settings.grpc_listen}: {error}"
        raise SettingsError(message) from error
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


def _credentials(settings: config.OtlpReceiverSettings) -> grpc.ServerCredentials | None:
    """Return the certificate; None without TLS. Blocking; raises OSError."""
    if not settings.certificate_file:
        return None
    certificate, key = settings.certificate_file, settings.key_file or settings.certificate_file
    return grpc.ssl_server_credentials([(Path(key).read_bytes(), Path(certificate).read_bytes())])


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


def peer_address(peer: str) -> str:
    """Return the address of a peer as gRPC states it, such as ipv4:192.0.2.8:4317 or ipv6:%5B::1%5D:4317."""
    return unquote(peer.partition(":")[2].rpartition(":")[0]).strip("[]")


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
