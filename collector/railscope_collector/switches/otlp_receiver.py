"""OTLP receiver: switches push their metrics to it by HTTP, and their readings are stored as those of polls are.

A sender is identified by its address, never by what it states about itself. The body of any other one is not read. A
request is acknowledged when its frames are in the frame log; if they cannot be stored, the sender is to repeat it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib import import_module

import structlog

from railscope import (
    extras,
    http_server,
    listen_address,
    log_output,
    otlp_metrics,
    service,
    tls_contexts,
)
from railscope.catalog import switches as catalog
from railscope.otlp_metrics import OtlpRejectedError
from railscope.settings import SettingsError
from railscope.timestamps import SECOND_NS
from railscope_collector.config import CollectorSettings, OtlpReceiverSettings
from railscope_collector.fleet.fleet import SWITCH_PREFIX
from railscope_collector.fleet.view_cells import ViewCell
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.switches import (
    switch_frames,
    switch_pushes,
    switch_settings,
    switch_view,
)

log = structlog.get_logger(__name__)

MAX_CONNECTIONS = 1024
"""Several for each of the switches that the file may have."""
MAX_WAITING = 4
"""Requests of a sender that wait."""
MAX_DECODED = 2
"""Requests that are decoded concurrently, as each takes many times its size meanwhile."""
MAX_SHARE = 0.25
"""Largest share of a core for the pushes of a switch: one of 512 ports takes a quarter of a second."""
MAX_LOOP_BYTES = 8 << 10
"""Larger bodies, and compressed ones, are decoded in a thread: 64 ports of a switch take tens of milliseconds."""
RATE_WINDOW_SECONDS = 10.0
STORED = "stored"
_MISSED_PERIODS = 3
_LISTEN_RETRY_SECONDS = 5.0
_RETRIED = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}
_INVALID = {HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "size", HTTPStatus.REQUEST_TIMEOUT: "timeout"}
"""Reasons of requests that are not valid as requests of HTTP; others are of the format."""


@dataclass(slots=True)
class SenderLimit:
    """Limit of the requests of one sender: one at a time, some that wait, and a rate."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
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

    @asynccontextmanager
    async def turn(self, turns: asyncio.Semaphore) -> AsyncIterator[None]:
        """Wait for the earlier requests of the sender, and for one of the turns of all senders.

        Raises OtlpRejectedError if too many requests wait.
        """
        if self.waiting >= MAX_WAITING:
            message = f"too many requests at a time: expected at most {MAX_WAITING}"
            raise OtlpRejectedError(message, HTTPStatus.SERVICE_UNAVAILABLE, "busy")
        self.waiting += 1
        try:
            async with self.lock, turns:
                yield
        finally:
            self.waiting -= 1


@dataclass(slots=True)
class PushingSwitch:
    """A switch that pushes, and the limit of its requests."""

    settings: switch_settings.ConfiguredSwitch
    pushes: switch_pushes.SwitchPushes
    limit: SenderLimit = field(default_factory=SenderLimit)

    def is_recent(self, timestamp_ns: int, now_ns: int) -> bool:
        """True if a push of this time may still be the last one."""
        return now_ns - timestamp_ns <= _MISSED_PERIODS * self.settings.period_seconds * SECOND_NS

    def cells(self, started_ns: int, now_ns: int) -> Iterator[ViewCell]:
        """Yield the state of the switch; before its first push only once it is late."""
        pushes, key = self.pushes, (self.settings.name,)
        if pushes.last_ns or not self.is_recent(started_ns, now_ns):
            yield ViewCell(catalog.UP, key, int(self.is_recent(pushes.last_ns, now_ns)))
        if pushes.last_ns:
            yield ViewCell(catalog.LAST_POLL, key, pushes.last_ns / SECOND_NS)
            yield ViewCell(catalog.COUNTER_RESETS, key, pushes.resets)
            yield ViewCell(catalog.NAME_MISMATCHES, key, pushes.name_mismatches)
        if pushes.offset_ns is not None:
            is_off = abs(pushes.offset_ns) > switch_pushes.MAX_OFFSET_NS
            yield ViewCell(catalog.CLOCK_OFF, key, int(is_off))
        for result, count in pushes.results.items():
            yield ViewCell(catalog.PUSHED_POINTS, (*key, result.value), count)

    def snapshot(self, core: CollectorState, now_ns: int) -> switch_view.SwitchSnapshot:
        """Return the last frames of the streams that are still pushed."""
        node = core.fleet.switches.get(SWITCH_PREFIX + self.settings.name)
        streams = switch_view.take_snapshot(node).items()
        return {name: each for name, each in streams if self.is_recent(each.timestamp_ns, now_ns)}


@dataclass(slots=True)
class OtlpReceiver:
    """Receives the pushes of all configured switches."""

    switches: Mapping[str, PushingSwitch]
    """By address."""
    wall_ns: Callable[[], int]
    may_receive: Callable[[], bool] = lambda: True
    """True if this collector receives, and not another one."""
    submit: switch_frames.Submit = switch_frames.reject_envelope
    settings: OtlpReceiverSettings = field(default_factory=OtlpReceiverSettings)
    started_ns: int = 0
    port: int = 0
    """Port of the listener, once `is_listening` is set."""
    is_listening: asyncio.Event = field(default_factory=asyncio.Event)
    requests: Counter[str] = field(default_factory=Counter)
    """Requests by result."""
    log_limit: log_output.LogRateLimit = field(default_factory=log_output.LogRateLimit)
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_DECODED))

    @classmethod
    def from_settings(
        cls,
        settings: CollectorSettings,
        wall_ns: Callable[[], int],
        may_receive: Callable[[], bool],
        submit: switch_frames.Submit = switch_frames.reject_envelope,
    ) -> OtlpReceiver:
        """Return the receiver for the switches in the settings. Blocking; raises SettingsError."""
        receiver, run, switches = settings.otlp_receiver, secrets.token_hex(8), {}
        for switch in switch_settings.read_switches(settings.switches):
            if switch.protocol == "otlp":
                if not receiver.listen:
                    message = (
                        f"switch [{switch.name}] has protocol otlp: expected otlp_receiver.listen"
                    )
                    raise SettingsError(message)
                # All of its counters have 64 bits.
                frames = switch_frames.SwitchFrames(switch.name, run, has_narrow_counters=False)
                pushes = switch_pushes.SwitchPushes(switch.name, frames)
                switches[switch.host] = PushingSwitch(switch, pushes)
        if receiver.listen:
            listen_address.split_address(receiver.listen)
            with extras.importing("otlp", "otlp_receiver", "opentelemetry-proto"):
                import_module("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
            tls_contexts.server_tls(receiver.certificate_file, receiver.key_file)
        return cls(switches, wall_ns, may_receive, submit, receiver)

    async def run(self) -> None:
        """Receive until cancelled; a listener that cannot start is started again later."""
        self.started_ns, problem = self.wall_ns(), ""
        while self.settings.listen:
            try:
                await self._serve()
            except (SettingsError, OSError) as error:
                if str(error) != problem:
                    log.error("otlp_receiver_failed", problem=str(error))
                problem = str(error)
            await asyncio.sleep(_LISTEN_RETRY_SECONDS)

    async def _serve(self) -> None:
        """Serve until cancelled. Raises SettingsError and OSError."""
        tls = tls_contexts.server_tls(self.settings.certificate_file, self.settings.key_file)
        checks = http_server.RequestChecks(self._check_head, on_invalid=self._count_invalid)
        limit = otlp_metrics.MAX_BODY_BYTES
        server = http_server.HttpServer(self._respond, limit, checks, MAX_CONNECTIONS)
        try:
            host, self.port = await server.start(self.settings.listen, tls)
            self.is_listening.set()
            log.info("otlp_receiver_started", address=f"{host}:{self.port}")
            await asyncio.get_running_loop().create_future()
        finally:
            await server.close()

    async def _check_head(
        self, request: http_server.HttpServerRequest
    ) -> http_server.HttpServerResponse | None:
        """Return the response to a request whose body is not to be read."""
        try:
            self._admit(request)
        except OtlpRejectedError as error:
            return self._rejection(error, request)
        return None

    def _admit(self, request: http_server.HttpServerRequest) -> None:
        """Raise OtlpRejectedError for a request whose head shows that it is not accepted; count any other one."""
        if request.path != otlp_metrics.METRICS_PATH:
            message = f"unknown path: expected {otlp_metrics.METRICS_PATH}"
            raise OtlpRejectedError(message, HTTPStatus.NOT_FOUND, "path")
        if request.method != "POST":
            message = "invalid method: expected POST"
            raise OtlpRejectedError(message, HTTPStatus.METHOD_NOT_ALLOWED, "path")
        switch = self._find_switch(request.peer)
        if not self.may_receive():
            message = "another collector receives"
            raise OtlpRejectedError(message, HTTPStatus.SERVICE_UNAVAILABLE, "storage")
        switch.limit.count_request(time.monotonic(), self.settings.requests_per_second)
        length = int(request.headers.get("content-length", "0"))
        otlp_metrics.check_size(length, otlp_metrics.MAX_BODY_BYTES, "bytes")

    def _find_switch(self, peer: str) -> PushingSwitch:
        switch = self.switches.get(switch_settings.canonical_address(peer))
        if switch is None:
            message = f"unknown sender {peer}: expected the address of a switch in switches.file with protocol otlp"
            raise OtlpRejectedError(message, HTTPStatus.FORBIDDEN, "unknown_sender")
        return switch

    async def _respond(
        self, request: http_server.HttpServerRequest
    ) -> http_server.HttpServerResponse:
        """Store the metrics of a request; return the response."""
        try:
            switch = self._find_switch(request.peer)
            async with switch.limit.turn(self._turns):
                rejected = await self._store(switch, request)
        except OtlpRejectedError as error:
            return self._rejection(error, request)
        self.requests[STORED] += 1
        problem = otlp_metrics.rejection_text(rejected)
        body = otlp_metrics.success_body(sum(rejected.values()), problem)
        return http_server.HttpServerResponse(body, otlp_metrics.PROTOBUF)

    async def _store(
        self, switch: PushingSwitch, request: http_server.HttpServerRequest
    ) -> Mapping[str, int]:
        """Store the metrics of a request; return the number of points that were not stored, by reason.

        Raises OtlpRejectedError if none was stored.
        """
        now, pushes = switch_frames.timestamp_now(self.wall_ns), switch.pushes
        encoding = request.headers.get("content-encoding", "").strip().lower()

        def decode() -> switch_pushes.DecodedPush:
            # Of this thread: a switch is not charged for the time of others.
            began_seconds = time.thread_time()
            try:
                body = otlp_metrics.unpack_body(request.body, encoding)
                decoded = otlp_metrics.decode_metrics(body, _media_type(request))
                return pushes.decode(decoded, now)
            finally:
                spent_seconds = time.thread_time() - began_seconds
                requests = spent_seconds * self.settings.requests_per_second / MAX_SHARE
                switch.limit.allowance -= max(requests - 1, 0)

        is_small = len(request.body) <= MAX_LOOP_BYTES and not encoding
        push = decode() if is_small else await service.run_in_thread(decode)
        if push.reading.streams:
            problem = await switch_frames.store_reading(
                pushes.frames, push.reading, now, self.submit, self.wall_ns
            )
            if problem:
                message = f"not stored: {problem}"
                raise OtlpRejectedError(message, HTTPStatus.SERVICE_UNAVAILABLE, "storage")
        # Only once it is stored: the sender repeats a push that is not.
        for name in pushes.keep(push, now):
            log.info("otlp_metric_not_stored", switch=pushes.name, metric=name)
        return push.rejected

    def _rejection(
        self, error: OtlpRejectedError, request: http_server.HttpServerRequest
    ) -> http_server.HttpServerResponse:
        self._count_rejection(error, request.peer)
        body = otlp_metrics.problem_body(error.status, str(error))
        retry = {"Retry-After": str(otlp_metrics.RETRY_SECONDS)}
        headers = retry if error.status in _RETRIED else {}
        return http_server.HttpServerResponse(body, otlp_metrics.PROTOBUF, error.status, headers)

    def _count_invalid(self, status: HTTPStatus, problem: str, peer: str) -> None:
        reason = _INVALID.get(status, "format")
        self._count_rejection(OtlpRejectedError(problem, status, reason), peer)

    def _count_rejection(self, error: OtlpRejectedError, sender: str) -> None:
        self.requests[error.reason] += 1
        repetitions = self.log_limit.count_repetitions(error.reason, sender)
        if repetitions is not None:
            log.warning(
                "otlp_request_rejected",
                sender=sender,
                reason=error.reason,
                problem=str(error),
                repetitions=repetitions,
                advice="docs/switches.md",
            )

    def cells(self) -> Iterator[ViewCell]:
        """Yield the state of the receiver, and of each switch that pushes to it."""
        results = dict.fromkeys((*catalog.OTLP_REQUEST_RESULTS, *self.requests))
        for result in results if self.settings.listen else ():
            yield ViewCell(catalog.OTLP_REQUESTS, (result,), self.requests[result])
        for switch in self.switches.values() if self.may_receive() else ():
            yield from switch.cells(self.started_ns, self.wall_ns())

    def problems(self) -> dict[str, str]:
        """Return the reason why each switch is not read; empty for one that is read."""
        switches, now_ns = self.switches.values(), self.wall_ns()
        late = f"no push for {_MISSED_PERIODS} periods"
        return {
            each.settings.name: ("" if each.is_recent(each.pushes.last_ns, now_ns) else late)
            if self.may_receive()
            else switch_view.ELSEWHERE
            for each in switches
        }

    def snapshots(self, core: CollectorState) -> dict[str, switch_view.SwitchSnapshot]:
        """Return the readings that are still pushed, of all switches."""
        now_ns, switches = self.wall_ns(), self.switches.values() if self.may_receive() else ()
        return {each.settings.name: each.snapshot(core, now_ns) for each in switches}


def _media_type(request: http_server.HttpServerRequest) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
