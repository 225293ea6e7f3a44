"""Client of OTLP over gRPC: one unary call for each request, with status and RetryInfo of the response.

The codes that are repeated are those of the specification: RESOURCE_EXHAUSTED only if the receiver requests a wait. gRPC
takes 10 MiB: a program loads this module only if its settings select the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from railscope import RailscopeError, __version__
from railscope.timestamps import SECOND_NS
from railscope.untrusted_text import printable

METRICS, LOGS = "metrics", "logs"
METHODS = {
    METRICS: "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    LOGS: "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
}
ClientPem = tuple[bytes | None, bytes | None, bytes | None]
"""CA certificates, key and certificate (PEM)."""
_REPEATED = {
    grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.ABORTED, grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DATA_LOSS,
}  # fmt: skip
_PORTS = {"http": 80, "https": 443}
_DETAILS, _UNTRUSTED = "grpc-status-details-bin", "CERTIFICATE_VERIFY_FAILED:"
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # a proxy of the environment is not for the site's metrics
    ("grpc.enable_retries", 0),  # the sender repeats, and counts it
    ("grpc.max_receive_message_length", 4 << 20),
    # Its default, two minutes, would delay the next attempt of the sender.
    ("grpc.max_reconnect_backoff_ms", 30_000),
)


class OtlpCallError(RailscopeError):
    """A request without success: whether it may be repeated, after a wait if the receiver has requested one."""

    def __init__(self, problem: str, *, is_repeated: bool, wait_seconds: float = 0.0) -> None:
        super().__init__(problem)
        self.is_repeated, self.wait_seconds = is_repeated, wait_seconds


@dataclass(slots=True)
class OtlpCalls:
    """Connection to the receiver of one signal, which connects with the first call."""

    signal: str
    url: str
    pem: ClientPem | None
    """None: the connection is not encrypted."""
    headers: Mapping[str, str]
    timeout_seconds: float
    program: str
    """Name of the program in the user agent."""
    section: str
    """Section of the program's settings."""
    is_compressed: bool = True
    _channel: grpc.aio.Channel | None = None

    async def send(self, body: bytes) -> bytes:
        """Return the response to a request. Raises OtlpCallError."""
        export: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        export = self._connect().unary_unary(METHODS[self.signal])
        try:
            return await export(
                body,
                timeout=self.timeout_seconds,
                metadata=tuple((name.lower(), text) for name, text in self.headers.items()),
                compression=grpc.Compression.Gzip if self.is_compressed else None,
            )
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from error

    async def close(self) -> None:
        """Close the connection."""
        channel, self._channel = self._channel, None
        if channel:
            await channel.close()

    def _connect(self) -> grpc.aio.Channel:
        if self._channel is None:
            parts = urlsplit(self.url)
            host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
            address = f"{host}:{parts.port or _PORTS[parts.scheme]}"
            options = (*_OPTIONS, ("grpc.primary_user_agent", f"{self.program}/{__version__}"))
            self._channel = (
                grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(*self.pem), options)
                if self.pem
                else grpc.aio.insecure_channel(address, options)
            )
        return self._channel

    def _failure(self, error: grpc.aio.AioRpcError) -> OtlpCallError:
        code, details = error.code(), printable(error.details() or "")
        problem = f"gRPC status {code.name} {details}".strip()
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            problem = f"no response within {self.timeout_seconds:g} s"
        elif _UNTRUSTED in details:
            reason = details.rpartition(_UNTRUSTED)[2].strip()
            problem = f"untrusted certificate: {reason}; fix: set {self.section}.ca_file"
        wait = _requested_wait(error)
        is_exhausted = code is grpc.StatusCode.RESOURCE_EXHAUSTED and wait is not None
        is_repeated = code in _REPEATED or is_exhausted
        return OtlpCallError(problem, is_repeated=is_repeated, wait_seconds=wait or 0.0)


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
