"""OTLP receiver over HTTP: checks of a request before its body is read, its response, and counts by result.

The program that receives identifies each sender by its socket, and stores the metrics.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

import structlog

from railscope import http_server, log_output, otlp_metrics, settings
from railscope.otlp_metrics import OtlpRejectedError

log = structlog.get_logger(__name__)

MAX_LOOP_BYTES = 8 << 10
"""Larger bodies, and compressed ones, are decoded in a thread: 64 ports of a switch take tens of milliseconds."""
MAX_WAITING = 4
"""Requests of a sender that wait."""
RATE_WINDOW_SECONDS = 10.0
STORED = "stored"
_LISTEN_RETRY_SECONDS = 5.0
_RETRIED = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}
_INVALID = {HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "size", HTTPStatus.REQUEST_TIMEOUT: "timeout"}
"""Reasons of requests that are not valid as requests of HTTP; others are of the format."""
_ENCODINGS = (otlp_metrics.PROTOBUF, otlp_metrics.JSON)


@dataclass(slots=True)
class SenderLimit:
    """Limit of the requests of one sender: one at a time, some that wait, and a rate."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    unread: int = 0
    """Requests whose body is awaited."""
    waiting: int = 0
    allowance: float = 0.0
    # The first request finds the full allowance.
    counted_at: float = float("-inf")

    def count_request(self, now_seconds: float, rate: float) -> None:
        """Count a request. Raises OtlpRejectedError for one above the rate per second."""
        passed = now_seconds - self.counted_at
        self.allowance = min(rate * RATE_WINDOW_SECONDS, self.allowance + passed * rate)
        self.counted_at = now_seconds
        if self.allowance < 1:
            message = f"too many requests: expected at most {rate:g} per second"
            raise OtlpRejectedError(message, HTTPStatus.TOO_MANY_REQUESTS, "rate")
        self.allowance -= 1

    def charge(self, requests: float) -> None:
        """Count a request as several, if its decoding took as much of the processor as they may."""
        self.allowance -= max(requests - 1, 0)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Await the body of a request. Raises OtlpRejectedError if too many are awaited."""
        _check_waiting(self.unread)
        self.unread += 1
        try:
            yield
        finally:
            self.unread -= 1

    @asynccontextmanager
    async def turn(self, turns: asyncio.Semaphore) -> AsyncIterator[None]:
        """Wait for the earlier requests of the sender, and for one of the turns of all senders.

        Raises OtlpRejectedError if too many requests wait.
        """
        _check_waiting(self.waiting)
        self.waiting += 1
        try:
            async with self.lock, turns:
                yield
        finally:
            self.waiting -= 1


def _check_waiting(count: int) -> None:
    if count >= MAX_WAITING:
        message = f"too many requests at a time: expected at most {MAX_WAITING}"
        raise OtlpRejectedError(message, HTTPStatus.SERVICE_UNAVAILABLE, "busy")


@dataclass(slots=True)
class OtlpEndpoint:
    """Endpoint of OTLP metrics; both functions of its program raise OtlpRejectedError."""

    check_sender: Callable[[http_server.HttpServerRequest], Awaitable[None]]
    """Checks the sender of a request, whose body is not read before."""
    receive: Callable[[http_server.HttpServerRequest, str, str], Awaitable[tuple[int, str]]]
    """Stores a request by media type and encoding; returns the number of points that were not stored, and why."""
    advice: str
    """Documentation about rejected requests."""
    body_seconds: float = http_server.BODY_SECONDS
    requests: Counter[str] = field(default_factory=Counter)
    """Requests by result."""
    log_limit: log_output.LogRateLimit = field(default_factory=log_output.LogRateLimit)

    async def serve(
        self,
        listen: str,
        tls: ssl.SSLContext | None,
        max_connections: int,
        on_listening: Callable[[str, int], None],
    ) -> None:
        """Serve until cancelled. Raises SettingsError if the address cannot be used."""
        checks = http_server.RequestChecks(self.check_head, self.body_seconds, self._count_invalid)
        server = http_server.HttpServer(
            self.respond, otlp_metrics.MAX_BODY_BYTES, checks, max_connections
        )
        try:
            host, port = await server.start(listen, tls)
            on_listening(host, port)
            log.info("otlp_receiver_started", address=f"{host}:{port}", protocol="http")
            await asyncio.get_running_loop().create_future()
        finally:
            await server.close()

    async def check_head(
        self, request: http_server.HttpServerRequest
    ) -> http_server.HttpServerResponse | None:
        """Return the response to a request whose body is not to be read."""
        try:
            _check_route(request)
            await self.check_sender(request)
            length = request.headers.get("content-length", "0")
            otlp_metrics.check_size(int(length), otlp_metrics.MAX_BODY_BYTES, "bytes")
        except OtlpRejectedError as error:
            return self._rejection(error, request)
        return None

    async def respond(
        self, request: http_server.HttpServerRequest
    ) -> http_server.HttpServerResponse:
        """Return the response to a request with its body."""
        media_type = _media_type(request)
        encoding = request.headers.get("content-encoding", "").strip().lower()
        try:
            rejected, problem = await self.receive(request, media_type, encoding)
        except OtlpRejectedError as error:
            return self._rejection(error, request)
        self.requests[STORED] += 1
        body = otlp_metrics.success_body(media_type, rejected, problem)
        return http_server.HttpServerResponse(body, media_type)

    def _rejection(
        self, error: OtlpRejectedError, request: http_server.HttpServerRequest
    ) -> http_server.HttpServerResponse:
        self.count_rejection(error, request.peer)
        media_type = _media_type(request)
        media_type = media_type if media_type in _ENCODINGS else otlp_metrics.PROTOBUF
        body = otlp_metrics.problem_body(media_type, error.status, str(error))
        headers = (
            {"Retry-After": str(otlp_metrics.RETRY_SECONDS)} if error.status in _RETRIED else {}
        )
        return http_server.HttpServerResponse(body, media_type, error.status, headers)

    def _count_invalid(self, status: HTTPStatus, problem: str, peer: str) -> None:
        reason = _INVALID.get(status, "format")
        self.count_rejection(OtlpRejectedError(problem, status, reason), peer)

    def count_rejection(self, error: OtlpRejectedError, sender: str) -> None:
        """Count and log a rejected request."""
        self.requests[error.reason] += 1
        repetitions = self.log_limit.count_repetitions(error.reason, sender)
        if repetitions is not None:
            log.warning(
                "otlp_request_rejected",
                sender=sender,
                reason=error.reason,
                problem=str(error),
                repetitions=repetitions,
                advice=self.advice,
            )


async def keep_listening(serve: Callable[[], Awaitable[None]]) -> None:
    """Serve until cancelled; a listener that cannot start is started again later."""
    problem = ""
    while True:
        try:
            await serve()
        except (settings.SettingsError, OSError) as error:
            if str(error) != problem:
                log.error("otlp_receiver_failed", problem=str(error))
            problem = str(error)
        await asyncio.sleep(_LISTEN_RETRY_SECONDS)


def _media_type(request: http_server.HttpServerRequest) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _check_route(request: http_server.HttpServerRequest) -> None:
    """Raise OtlpRejectedError unless this is a request of OTLP."""
    if request.path != otlp_metrics.METRICS_PATH:
        message = f"unknown path: expected {otlp_metrics.METRICS_PATH}"
        raise OtlpRejectedError(message, HTTPStatus.NOT_FOUND, "path")
    if request.method != "POST":
        message = "invalid method: expected POST"
        raise OtlpRejectedError(message, HTTPStatus.METHOD_NOT_ALLOWED, "path")
