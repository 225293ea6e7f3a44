"""OTLP receiver: switches push their metrics to it, over HTTP or gRPC.

A sender is identified by its address, never by what it states about itself. The body of any other one is not read. A
request is acknowledged when its frames are in the frame log; if they cannot be stored, the sender is to repeat it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib import import_module

import structlog

from railscope import (
    extras,
    http_server,
    listen_address,
    otlp_metrics,
    otlp_receiving,
    service,
    tls_contexts,
)
from railscope.catalog import switches as catalog
from railscope.frame import NodeTimestamp
from railscope.otlp_metrics import OtlpRejectedError
from railscope.settings import SettingsError
from railscope.timestamps import SECOND_NS
from railscope_collector import config
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
MAX_DECODED = 2
"""Requests that are decoded concurrently, as each takes many times its size meanwhile."""
MAX_SHARE = 0.25
"""Largest share of a core for the pushes of a switch: one of 512 ports takes a quarter of a second."""
_MISSED_PERIODS = 3


def check_libraries(*, has_grpc: bool) -> None:
    """Raise SettingsError if libraries of the receiver are missing."""
    extra = "otlp-grpc" if has_grpc else "otlp"
    names = (
        "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2",
        "grpc.aio",
        "google.rpc.error_details_pb2",
    )
    try:
        for name in names if has_grpc else names[:1]:
            import_module(name)
    except ImportError as error:
        message = f"missing {error.name}, which otlp_receiver requires; fix: {extras.install_command(extra)}"
        raise SettingsError(message) from error


@dataclass(slots=True)
class PushingSwitch:
    """A switch that pushes, and the limit of its requests."""

    settings: switch_settings.ConfiguredSwitch
    pushes: switch_pushes.SwitchPushes
    limit: otlp_receiving.SenderLimit = field(default_factory=otlp_receiving.SenderLimit)

    def is_recent(self, timestamp_ns: int, now_ns: int) -> bool:
        """True if a push of this time may still be the last one."""
        return now_ns - timestamp_ns <= _MISSED_PERIODS * self.settings.period_seconds * SECOND_NS

    def take_snapshot(self, core: CollectorState, now_ns: int) -> switch_view.SwitchSnapshot:
        """Return the last frames of the streams that are still pushed."""
        node = core.fleet.switches.get(SWITCH_PREFIX + self.settings.name)
        streams = switch_view.take_snapshot(core, node)
        return {
            name: stream
            for name, stream in streams.items()
            if self.is_recent(stream.timestamp_ns, now_ns)
        }


@dataclass(slots=True)
class OtlpReceiver:
    """Receives the pushes of all configured switches."""

    settings: config.OtlpReceiverSettings
    switches: Mapping[str, PushingSwitch]
    """By address."""
    wall_ns: Callable[[], int]
    may_receive: Callable[[], bool] = lambda: True
    """True if this collector receives, and not another one."""
    submit: switch_frames.Submit = switch_frames.reject_envelope
    monotonic: Callable[[], float] = time.monotonic
    port: int = 0
    """Port of the HTTP listener, once `is_listening` is set."""
    is_listening: asyncio.Event = field(default_factory=asyncio.Event)
    grpc_port: int = 0
    """As above, for gRPC."""
    is_listening_grpc: asyncio.Event = field(default_factory=asyncio.Event)
    endpoint: otlp_receiving.OtlpEndpoint = field(init=False)
    _started_ns: int = 0
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_DECODED))

    def __post_init__(self) -> None:
        """Create the endpoint."""
        self.endpoint = otlp_receiving.OtlpEndpoint(
            self._check_http, self._receive_http, "docs/switches.md"
        )

    @property
    def requests(self) -> Counter[str]:
        """Requests by result."""
        return self.endpoint.requests

    @classmethod
    def from_settings(
        cls,
        settings: config.CollectorSettings,
        wall_ns: Callable[[], int],
        may_receive: Callable[[], bool],
    ) -> OtlpReceiver:
        """Return the receiver for the switches in the settings. Blocking; raises SettingsError."""
        receiver, run = settings.otlp_receiver, secrets.token_hex(8)
        configured = switch_settings.read_switches(settings.switches)
        pushing = [switch for switch in configured if switch.pushes]
        if pushing and not (receiver.listen or receiver.grpc_listen):
            name = pushing[0].name
            message = (
                f"switch [{name}] has protocol otlp: expected otlp_receiver.listen or grpc_listen"
            )
            raise SettingsError(message)
        for listen in filter(None, (receiver.listen, receiver.grpc_listen)):
            listen_address.split_address(listen)
            check_libraries(has_grpc=bool(receiver.grpc_listen))
            tls_contexts.server_tls(receiver.certificate_file, receiver.key_file)
        switches = {
            switch_settings.canonical_address(switch.host): PushingSwitch(
                switch,
                switch_pushes.SwitchPushes(
                    switch.name,
                    switch_frames.SwitchFrames(switch.name, run, has_narrow_counters=False),
                ),
            )
            for switch in pushing
        }
        return cls(receiver, switches, wall_ns, may_receive)

    async def run(self) -> None:
        """Receive until cancelled; a listener that cannot start is started again later."""
        self._started_ns = self.wall_ns()
        async with asyncio.TaskGroup() as group:
            if self.settings.listen:
                group.create_task(otlp_receiving.keep_listening(self._serve_http))
            if self.settings.grpc_listen:
                group.create_task(otlp_receiving.keep_listening(self._serve_grpc))

    async def _serve_http(self) -> None:
        """Serve until cancelled. Raises SettingsError."""
        tls = tls_contexts.server_tls(self.settings.certificate_file, self.settings.key_file)
        await self.endpoint.serve(self.settings.listen, tls, MAX_CONNECTIONS, self._note_listening)

    def _note_listening(self, _host: str, port: int) -> None:
        self.port = port
        self.is_listening.set()

    async def _serve_grpc(self) -> None:
        """Serve until cancelled. Raises SettingsError and OSError."""
        from railscope_collector.switches import otlp_grpc  # noqa: PLC0415 - loads the extra otlp-grpc

        async with otlp_grpc.grpc_listener(self, MAX_CONNECTIONS) as self.grpc_port:
            self.is_listening_grpc.set()
            address = self.settings.grpc_listen.rpartition(":")[0]
            log.info(
                "otlp_receiver_started", address=f"{address}:{self.grpc_port}", protocol="grpc"
            )
            await asyncio.get_running_loop().create_future()

    async def _check_http(self, request: http_server.HttpServerRequest) -> None:
        self.check_sender(request.peer)

    async def _receive_http(
        self, request: http_server.HttpServerRequest, media_type: str, encoding: str
    ) -> tuple[int, str]:
        return await self.receive(request.peer, request.body, media_type, encoding)

    def check_sender(self, peer: str) -> otlp_receiving.SenderLimit:
        """Return the limit of a sender.

        Raises OtlpRejectedError for an unknown sender, one that sends too often, or if no request is accepted.
        """
        switch = self._find_switch(peer)
        if not self.may_receive():
            message = "another collector receives"
            raise OtlpRejectedError(message, HTTPStatus.SERVICE_UNAVAILABLE, "storage")
        switch.limit.count_request(self.monotonic(), self.settings.requests_per_second)
        return switch.limit

    def _find_switch(self, peer: str) -> PushingSwitch:
        switch = self.switches.get(switch_settings.canonical_address(peer))
        if switch is None:
            message = f"unknown sender {peer}: expected the address of a switch in switches.file with protocol otlp"
            raise OtlpRejectedError(message, HTTPStatus.FORBIDDEN, "unknown_sender")
        return switch

    async def receive(
        self, peer: str, body: bytes, media_type: str, encoding: str = ""
    ) -> tuple[int, str]:
        """Store the metrics of a request; return the number of points that were not, and why.

        Raises OtlpRejectedError if none was stored.
        """
        switch = self._find_switch(peer)
        async with switch.limit.turn(self._turns):
            push = await self._store(switch, body, media_type, encoding)
        return sum(push.rejected.values()), otlp_metrics.rejection_text(push.rejected)

    async def _store(
        self, switch: PushingSwitch, body: bytes, media_type: str, encoding: str
    ) -> switch_pushes.DecodedPush:
        now, pushes = self._now(), switch.pushes

        def decode() -> switch_pushes.DecodedPush:
            # Of this thread: a switch is not charged for the time of others.
            began_seconds = time.thread_time()
            try:
                unpacked = otlp_metrics.unpack_body(body, encoding)
                return pushes.decode(otlp_metrics.decode_metrics(unpacked, media_type), now)
            finally:
                spent_seconds = time.thread_time() - began_seconds
                rate = self.settings.requests_per_second
                switch.limit.charge(spent_seconds * rate / MAX_SHARE)

        is_small = len(body) <= otlp_receiving.MAX_LOOP_BYTES and not encoding
        push = decode() if is_small else await service.run_in_thread(decode)
        if push.reading.streams:
            frames = await service.run_in_thread(pushes.frames.frames, push.reading, now)
            problem = await switch_frames.submit_frames(self.submit, frames, self._now)
            if problem:
                message = f"not stored: {problem}"
                raise OtlpRejectedError(message, HTTPStatus.SERVICE_UNAVAILABLE, "storage")
        # Only once it is stored: the sender repeats a push that is not.
        for name in pushes.keep(push, now):
            log.info("otlp_metric_not_stored", switch=pushes.name, metric=name)
        return push

    def _now(self) -> NodeTimestamp:
        return NodeTimestamp(self.wall_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME))

    # Metrics -------------------------------------------------------------------------------------

    def cells(self) -> Iterator[ViewCell]:
        """Yield the state of the receiver, and of each switch that pushes to it."""
        is_on = self.settings.listen or self.settings.grpc_listen
        for result in (
            dict.fromkeys((*catalog.OTLP_REQUEST_RESULTS, *self.requests)) if is_on else ()
        ):
            yield ViewCell(catalog.OTLP_REQUESTS, (result,), self.requests[result])
        now_ns = self.wall_ns()
        for switch in self.switches.values() if self.may_receive() else ():
            pushes, key = switch.pushes, (switch.settings.name,)
            is_awaited = not pushes.last_ns and switch.is_recent(self._started_ns, now_ns)
            if not is_awaited:
                is_up = switch.is_recent(pushes.last_ns, now_ns)
                yield ViewCell(catalog.UP, key, int(is_up))
            if pushes.last_ns:
                yield ViewCell(catalog.LAST_POLL, key, pushes.last_ns / SECOND_NS)
                yield ViewCell(catalog.COUNTER_RESETS, key, pushes.resets)
                yield ViewCell(catalog.NAME_MISMATCHES, key, pushes.name_mismatches)
            if pushes.offset_ns is not None:
                is_off = abs(pushes.offset_ns) > switch_pushes.MAX_OFFSET_NS
                yield ViewCell(catalog.CLOCK_OFF, key, int(is_off))
            for result, count in pushes.results.items():
                yield ViewCell(catalog.PUSHED_POINTS, (*key, result.value), count)

    def problems(self) -> dict[str, str]:
        """Return the reason why each switch is not read; empty for one that is read."""
        now_ns, receives = self.wall_ns(), self.may_receive()
        return {
            each.settings.name: switch_view.ELSEWHERE
            if not receives
            else ""
            if each.is_recent(each.pushes.last_ns, now_ns)
            else f"no push for {_MISSED_PERIODS} periods"
            for each in self.switches.values()
        }

    def snapshots(self, core: CollectorState) -> dict[str, switch_view.SwitchSnapshot]:
        """Return the readings that are still pushed, of all switches."""
        now_ns, switches = self.wall_ns(), self.switches.values() if self.may_receive() else ()
        return {each.settings.name: each.take_snapshot(core, now_ns) for each in switches}
