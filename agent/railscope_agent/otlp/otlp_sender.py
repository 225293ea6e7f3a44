"""Requests of one OTLP signal: sent in order, repeated by the rules of the specification, bounded, counted.

Repeated are requests that were not answered, or answered by a status that the specification of the protocol (HTTP or gRPC)
lists; every other failure is final, and so is a partial success. A request may arrive twice, if its response was lost.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import structlog
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as responses

from railscope.timestamps import SECOND_NS
from railscope.untrusted_text import printable
from railscope_agent.host import Clock
from railscope_agent.otlp.otlp_target import OtlpTarget
from railscope_agent.sampling.shipping_stats import OtlpStats

log = structlog.get_logger(__name__)

MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 30.0
MAX_RETRY_AFTER_SECONDS = 300.0
"""Longest wait that a receiver may request."""
MAX_PROBLEM_LENGTH = 200


class OtlpResult(NamedTuple):
    """Final result of a request: its problem if it was rejected, else its rejected entries with the receiver's message."""

    problem: str = ""
    rejected: int = 0
    message: str = ""


class RetryLaterError(Exception):
    """A request that is repeated, after a wait if the receiver has requested one."""

    def __init__(self, problem: str, seconds: float = 0.0) -> None:
        super().__init__(problem[:MAX_PROBLEM_LENGTH])
        self.seconds = min(max(seconds, 0.0), MAX_RETRY_AFTER_SECONDS)


class OtlpTransport(Protocol):
    """Connection to a receiver by one of the protocols."""

    async def send(self, body: bytes) -> OtlpResult:
        """Return the result of a request. Raises RetryLaterError without a final one."""

    async def close(self) -> None:
        """Close the connection; the next request opens another one."""


class OtlpRequest(NamedTuple):
    """Body of a request, number of its points or log records, and the time at which it was queued."""

    body: bytes
    size: int
    queued_boot_ns: int


def _spread() -> float:
    """Return a factor that keeps agents from retrying at the same time."""
    return random.uniform(0.8, 1.2)  # noqa: S311 - no secret


@dataclass(slots=True)
class OtlpSender:
    """Sends the requests of a signal one after another, the oldest first, as long as it runs."""

    target: OtlpTarget
    transport: OtlpTransport
    stats: OtlpStats
    clock: Clock
    max_waiting_bytes: int
    spread: Callable[[], float] = _spread
    is_failing: bool = False
    """True if the last request was not answered, or is to be repeated."""
    _requests: deque[OtlpRequest] = field(default_factory=deque)
    _filled: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, body: bytes, size: int) -> None:
        """Queue a request; above the limit, drop the oldest ones, except the one that is being sent."""
        self._requests.append(OtlpRequest(body, size, self.clock.now().boot_ns))
        self.stats.waiting_bytes += len(body)
        while self.stats.waiting_bytes > self.max_waiting_bytes and len(self._requests) > 2:  # noqa: PLR2004 - as above
            # The first one is being sent, and the last one has the newest readings.
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
                # It stays in the queue while it is sent: if the sender is cancelled, `send_rest` sends it
                # once more.
                await self._deliver(self._requests[0])
                self._remove_first()
        finally:
            await self.transport.close()

    async def send_rest(self) -> None:
        """Send what waits once, at the end, unless the receiver is unavailable."""
        with suppress(RetryLaterError):
            while self._requests and not self.is_failing:
                await self._attempt(self._requests[0])
                self._remove_first()
        await self.transport.close()

    async def probe(self, empty_body: bytes) -> str:
        """Send an empty request; return the problem, empty if it was accepted."""
        try:
            result = await self.transport.send(empty_body)
        except RetryLaterError as error:
            return str(error)
        finally:
            await self.transport.close()
        return result.problem

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
            except RetryLaterError as error:
                problem = str(error)
                # One line per problem: a receiver that is down would otherwise fill the log.
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
        """Send a request once, and count its result. Raises RetryLaterError."""
        result = await self.transport.send(request.body)
        if result.problem:
            self.stats.dropped["rejected"] += request.size
            self._warn("otlp_request_rejected", request.size, result.problem)
            return
        # A receiver may count differently; the counts of sent entries must not decrease.
        rejected = min(result.rejected, request.size)
        self.stats.sent += request.size - rejected
        self.stats.dropped["partial_success"] += rejected
        if rejected or result.message:
            self._warn("otlp_partial_success", rejected, result.message)

    def _warn(self, event: str, size: int, problem: str) -> None:
        url, text = self.target.shown_url, problem[:MAX_PROBLEM_LENGTH]
        log.warning(event, url=url, signal=self.target.signal, entries=size, problem=text)


def decode_success(body: bytes) -> OtlpResult:
    """Return the partial success of a response: those of metrics and logs have the same fields."""
    try:
        partial = responses.ExportMetricsServiceResponse.FromString(body).partial_success
    except DecodeError:
        # The status was a success: the entries have arrived, and sending them again would duplicate them.
        return OtlpResult(message="the response cannot be decoded")
    return OtlpResult("", max(partial.rejected_data_points, 0), printable(partial.error_message))


def status_message(body: bytes) -> str:
    """Return the message of a google.rpc.Status. Raises DecodeError.

    It is in the same field as that of a partial success, whose type is at hand.
    """
    return printable(responses.ExportMetricsPartialSuccess.FromString(body).error_message)
