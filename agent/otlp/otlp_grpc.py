"""OTLP over gRPC: one unary call for each request, with status, RetryInfo and partial success of the response.

The codes that are repeated are those of the specification: RESOURCE_EXHAUSTED only if the receiver requests a wait.
"""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import urlsplit

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from agent.otlp import otlp_sender
from agent.otlp.otlp_target import LOGS, METRICS, OtlpTarget
from railscope import __version__, server_connections
from railscope.timestamps import SECOND_NS
from railscope.untrusted_text import printable

METHODS = {
    METRICS: "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    LOGS: "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
}
_REPEATED = {
    grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.ABORTED, grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DATA_LOSS,
}  # fmt: skip
_PORTS = {"http": 80, "https": 443}
_DETAILS, _UNTRUSTED = "grpc-status-details-bin", "CERTIFICATE_VERIFY_FAILED:"
_OPTIONS = (
    (
        "grpc.enable_http_proxy",
        0,
    ),  # as over HTTP: a proxy of the environment is not for the node's metrics
    ("grpc.enable_retries", 0),  # the sender repeats, and counts it
    ("grpc.max_receive_message_length", 4 << 20),
    (
        "grpc.max_reconnect_backoff_ms",
        30_000,
    ),  # its default, two minutes, would delay the next attempt of the sender
    ("grpc.primary_user_agent", f"railscope-agent/{__version__}"),
)


class GrpcTransport:
    """Connection to the receiver of one signal, which connects with the first call."""

    def __init__(self, target: OtlpTarget) -> None:
        """Read the certificates. Raises OSError."""
        parts = urlsplit(target.url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        self._address = f"{host}:{parts.port or _PORTS[parts.scheme]}"
        files = target.tls_files
        pem = server_connections.client_pem(*files) if files else None
        self._credentials = grpc.ssl_channel_credentials(*pem) if pem else None
        self._method, self._timeout_seconds = METHODS[target.signal], target.timeout_seconds
        self._metadata = tuple((name.lower(), value) for name, value in target.headers.items())
        self._compression = grpc.Compression.Gzip if target.is_compressed else None
        self._channel: grpc.aio.Channel | None = None

    async def send(self, body: bytes) -> otlp_sender.OtlpResult:
        """Return the result of a request. Raises RetryLaterError without a final one."""
        export: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        export = self._connect().unary_unary(self._method)
        try:
            response = await export(
                body,
                timeout=self._timeout_seconds,
                metadata=self._metadata,
                compression=self._compression,
            )
        except grpc.aio.AioRpcError as error:
            return self._failure(error)
        return otlp_sender.decode_success(response)

    async def close(self) -> None:
        """Close the connection."""
        channel, self._channel = self._channel, None
        if channel:
            await channel.close()

    def _connect(self) -> grpc.aio.Channel:
        if self._channel is None:
            self._channel = (
                grpc.aio.secure_channel(self._address, self._credentials, _OPTIONS)
                if self._credentials
                else grpc.aio.insecure_channel(self._address, _OPTIONS)
            )
        return self._channel

    def _failure(self, error: grpc.aio.AioRpcError) -> otlp_sender.OtlpResult:
        code, details = error.code(), printable(error.details() or "")
        problem = f"gRPC status {code.name} {details}".strip()
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            problem = f"no response within {self._timeout_seconds:g} s"
        elif _UNTRUSTED in details:
            reason = details.rpartition(_UNTRUSTED)[2].strip()
            problem = f"untrusted certificate: {reason}; fix: set otlp.ca_file"
        wait = _requested_wait(error)
        is_exhausted = code is grpc.StatusCode.RESOURCE_EXHAUSTED and wait is not None
        if code in _REPEATED or is_exhausted:
            raise otlp_sender.RetryLaterError(problem, wait or 0.0)
        return otlp_sender.OtlpResult(problem=problem)


def _requested_wait(error: grpc.aio.AioRpcError) -> float | None:
    """Return the seconds of the RetryInfo in the details of a status, None without one."""
    found = [value for name, value in error.trailing_metadata() or () if name == _DETAILS]
    info = error_details_pb2.RetryInfo()
    with suppress(DecodeError):
        for value in found:
            for detail in status_pb2.Status.FromString(value).details:
                if detail.Unpack(info):
                    return float(info.retry_delay.seconds + info.retry_delay.nanos / SECOND_NS)
    return None
