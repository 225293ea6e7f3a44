"""Requests of one OTLP signal: sent in order, repeated by the rules of the specification, bounded, counted.

Repeated are requests that were answered with 429, 502, 503 or 504, or not at all; every other failure is final, and so is
a partial success. A request may arrive twice, if its response was lost.
"""

from __future__ import annotations

import asyncio
import gzip
import random
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

import structlog
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as responses

from agent.host import Clock
from agent.otlp.otlp_target import OtlpTarget
from agent.sampling.status import OtlpStats
from agent.shipping.collector_client import HttpClient, HttpResponse
from railscope import http_responses
from railscope.timestamps import SECOND_NS
from railscope.untrusted_text import printable

log = structlog.get_logger(__name__)

MAX_RESPONSE_BYTES = 4 << 20
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 30.0
MAX_RETRY_AFTER_SECONDS = 300.0
"""Longest wait that a receiver may request."""
MAX_PROBLEM_LENGTH = 200
_PROTOBUF = "application/x-protobuf"
_REPEATED = {
    HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT,
}  # fmt: skip


class OtlpRequest(NamedTuple):
    """Body of a request, number of its points or log records, and the time at which it was queued."""

    body: bytes
    size: int
    queued_boot_ns: int


class _RetryLaterError(Exception):
    """A request that is repeated, after a wait if the receiver has requested one."""

    def __init__(self, problem: str, seconds: float = 0.0) -> None:
        super().__init__(problem[:MAX_PROBLEM_LENGTH])
        self.seconds = seconds


def _spread() -> float:
    """Return a factor that keeps agents from retrying at the same time."""
    return random.uniform(0.8, 1.2)  # noqa: S311 - no secret


@dataclass(slots=True)
class OtlpSender:
    """Sends the requests of a signal one after another, the oldest first, as long as it runs."""

    target: OtlpTarget
    stats: OtlpStats
    clock: Clock
    max_waiting_bytes: int
    spread: Callable[[], float] = _spread
    is_failing: bool = False
    """True if the last request was not answered, or is to be repeated."""
    _requests: deque[OtlpRequest] = field(default_factory=deque)
    _filled: asyncio.Event = field(default_factory=asyncio.Event)
    _http: HttpClient = field(init=False)

    def __post_init__(self) -> None:
        """Create the client; it connects with the first request."""
        target = self.target
        self._http = HttpClient(target.url, target.tls, target.timeout_seconds, MAX_RESPONSE_BYTES)

    def add(self, body: bytes, size: int) -> None:
        """Queue a request; above the limit, drop the oldest ones, except the one that is being sent."""
        self._requests.append(OtlpRequest(body, size, self.clock.now().boot_ns))
        self.stats.waiting_bytes += len(body)
        while self.stats.waiting_bytes > self.max_waiting_bytes and len(self._requests) > 2:  # noqa: PLR2004 - as above
            dropped = self._requests[1]
            del self._requests[1]
            self.stats.waiting_bytes -= len(dropped.body)
            self.stats.dropped["overflow"] += dropped.size
        self._note_oldest()
        self._filled.set()

    async def run(self) -> None:
        """Send until cancelled."""
        try:
            while True:
                await self._filled.wait()
                await self._deliver(self._requests[0])
                self._remove_first()
        finally:
            await self._http.close()

    async def send_rest(self) -> None:
        """Send what waits once, at the end, unless the receiver is unavailable."""
        with suppress(_RetryLaterError):
            while self._requests and not self.is_failing:
                await self._attempt(self._requests[0])
                self._remove_first()
        await self._http.close()

    async def probe(self) -> str:
        """Send an empty request; return the problem, empty if it was accepted."""
        try:
            response = await self._post(gzip.compress(b"") if self.target.is_compressed else b"")
        except _RetryLaterError as error:
            return str(error)
        finally:
            await self._http.close()
        return "" if _is_success(response) else _problem(response)

    def _remove_first(self) -> None:
        sent = self._requests.popleft()
        self.stats.waiting_bytes -= len(sent.body)
        self._note_oldest()
        if not self._requests:
            self._filled.clear()

    def _note_oldest(self) -> None:
        self.stats.oldest_boot_ns = self._requests[0].queued_boot_ns if self._requests else None

    async def _deliver(self, request: OtlpRequest) -> None:
        """Send a request until the receiver accepts or rejects it, each time after a longer wait."""
        last_problem, seconds = "", MIN_RETRY_SECONDS
        while True:
            try:
                await self._attempt(request)
            except _RetryLaterError as error:
                problem = str(error)
                if problem != last_problem:
                    log.warning("otlp_export_failed", url=self.target.shown_url, problem=problem)
                last_problem, self.is_failing = problem, True
                self.stats.retries += 1
                wait = error.seconds or seconds * self.spread()
                await self.clock.sleep_until(self.clock.now().boot_ns + round(wait * SECOND_NS))
                seconds = min(2 * seconds, MAX_RETRY_SECONDS)
            else:
                break
        self.is_failing = False
        if last_problem:
            log.info("otlp_export_recovered", url=self.target.shown_url)

    async def _attempt(self, request: OtlpRequest) -> None:
        """Send a request once, and count its result. Raises _RetryLaterError."""
        self._count(request, await self._post(request.body))

    async def _post(self, body: bytes) -> HttpResponse:
        """Return the response to a request. Raises _RetryLaterError without one."""
        parts = urlsplit(self.target.url)
        target = parts._replace(scheme="", netloc="", path=parts.path or "/", fragment="").geturl()
        try:
            return await self._http.post(body, self.target.headers, target)
        except ssl.SSLCertVerificationError as error:
            problem = f"untrusted certificate: {error.verify_message}; fix: set otlp.ca_file"
            raise _RetryLaterError(problem) from error
        except TimeoutError as error:
            problem = f"no response within {self.target.timeout_seconds:g} s"
            raise _RetryLaterError(problem) from error
        except OSError as error:
            raise _RetryLaterError(error.strerror or str(error) or type(error).__name__) from error

    def _count(self, request: OtlpRequest, response: HttpResponse) -> None:
        if _is_success(response):
            rejected, message = _partial_success(response)
            rejected = min(rejected, request.size)
            self.stats.sent += request.size - rejected
            self.stats.dropped["partial_success"] += rejected
            if rejected or message:
                self._warn("otlp_partial_success", rejected, message)
            return
        problem = _problem(response)
        if response.status in _REPEATED:
            wall_seconds = self.clock.now().wall_ns / SECOND_NS
            wait = http_responses.retry_after_seconds(
                response.headers.get("retry-after", ""), wall_seconds
            )
            raise _RetryLaterError(problem, min(max(wait, 0.0), MAX_RETRY_AFTER_SECONDS))
        self.stats.dropped["rejected"] += request.size
        self._warn("otlp_request_rejected", request.size, problem)

    def _warn(self, event: str, size: int, problem: str) -> None:
        url, text = self.target.shown_url, problem[:MAX_PROBLEM_LENGTH]
        log.warning(event, url=url, signal=self.target.signal, entries=size, problem=text)


def _is_success(response: HttpResponse) -> bool:
    return HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES


def _problem(response: HttpResponse) -> str:
    return f"status {response.status} {_error_message(response)}".strip()


def _partial_success(response: HttpResponse) -> tuple[int, str]:
    """Return the number of rejected entries, and the message; a response of another format has none.

    Those of metrics and logs have the same fields.
    """
    if not response.headers.get("content-type", "").startswith(_PROTOBUF):
        return 0, ""
    try:
        partial = responses.ExportMetricsServiceResponse.FromString(response.body).partial_success
    except DecodeError:
        return 0, "the response cannot be decoded"
    return max(partial.rejected_data_points, 0), printable(partial.error_message)


def _error_message(response: HttpResponse) -> str:
    """Return the message of an error: that of a google.rpc.Status, or the text of the body.

    A status has its message in the same field as a partial success, whose type is at hand.
    """
    if response.headers.get("content-type", "").startswith(_PROTOBUF):
        with suppress(DecodeError):
            status = responses.ExportMetricsPartialSuccess.FromString(response.body)
            return printable(status.error_message)
    return printable(" ".join(response.body[:1000].decode(errors="replace").split()))
