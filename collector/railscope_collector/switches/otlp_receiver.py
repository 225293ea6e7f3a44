"""OTLP receiver: switches push their metrics to it, over HTTP or gRPC.

A sender is identified by its address, never by what it states about itself. The body of any other one is not read. A
request is acknowledged when its frames are in the frame log; if they cannot be stored, the sender is to repeat it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module

import structlog

from railscope import (
    extras,
    http_server,
    listen_address,
    otlp_metrics,
    otlp_receiving,
    tls_contexts,
)
from railscope.catalog import switches as catalog
from railscope.frame import NodeTimestamp
from railscope.settings import SettingsError
from railscope_collector import config
from railscope_collector.fleet.view_cells import ViewCell
from railscope_collector.switches import switch_frames, switch_pushes, switch_settings
from railscope_collector.switches.push_receiver import (
    MAX_CONNECTIONS,
    PushingSwitch,
    PushReceiver,
)

log = structlog.get_logger(__name__)


def check_libraries(*, has_grpc: bool) -> None:
    """Raise SettingsError if libraries of the receiver are missing."""
    libraries = (
        ("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2", "opentelemetry-proto"),
        ("grpc.aio", "grpcio"),
        ("google.rpc.error_details_pb2", "googleapis-common-protos"),
    )
    for module, library in libraries if has_grpc else libraries[:1]:
        with extras.importing("otlp-grpc" if has_grpc else "otlp", "otlp_receiver", library):
            import_module(module)


@dataclass(slots=True)
class OtlpReceiver(PushReceiver):
    """Receives the pushes of all configured switches by OTLP."""

    settings: config.OtlpReceiverSettings = field(default_factory=config.OtlpReceiverSettings)
    port: int = 0
    """Port of the HTTP listener, once `is_listening` is set."""
    is_listening: asyncio.Event = field(default_factory=asyncio.Event)
    grpc_port: int = 0
    """As above, for gRPC."""
    is_listening_grpc: asyncio.Event = field(default_factory=asyncio.Event)
    endpoint: otlp_receiving.OtlpEndpoint = field(init=False)

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
        submit: switch_frames.Submit = switch_frames.reject_envelope,
    ) -> OtlpReceiver:
        """Return the receiver for the switches in the settings. Blocking; raises SettingsError."""
        receiver, run = settings.otlp_receiver, secrets.token_hex(8)
        configured = switch_settings.read_switches(settings.switches)
        pushing = [switch for switch in configured if switch.push_protocol == "otlp"]
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
            switch_settings.canonical_address(switch.host): PushingSwitch.from_settings(switch, run)
            for switch in pushing
        }
        return cls(
            switches,
            wall_ns,
            may_receive,
            receiver.requests_per_second,
            submit=submit,
            settings=receiver,
        )

    async def run(self) -> None:
        """Receive until cancelled; a listener that cannot start is started again later."""
        self.started_ns = self.wall_ns()
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

        async with otlp_grpc.serve_metrics(self, MAX_CONNECTIONS) as self.grpc_port:
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
        switch = self.find_switch(peer)
        self.check_receiving()
        self.count_request(switch)
        return switch.limit

    async def receive(
        self, peer: str, body: bytes, media_type: str, encoding: str = ""
    ) -> tuple[int, str]:
        """Store the metrics of a request; return the number of points that were not, and why.

        Raises OtlpRejectedError if none was stored.
        """
        switch = self.find_switch(peer)

        def decode(now: NodeTimestamp) -> switch_pushes.DecodedPush:
            unpacked = otlp_metrics.unpack_body(body, encoding)
            return switch.pushes.decode(otlp_metrics.decode_metrics(unpacked, media_type), now)

        is_small = len(body) <= otlp_receiving.MAX_LOOP_BYTES and not encoding
        push = await self.store(switch, decode, is_small=is_small)
        return sum(push.rejected.values()), otlp_metrics.rejection_text(push.rejected)

    def cells(self) -> Iterator[ViewCell]:
        """Yield the state of the receiver, and of each switch that pushes to it."""
        is_on = self.settings.listen or self.settings.grpc_listen
        for result in (
            dict.fromkeys((*catalog.OTLP_REQUEST_RESULTS, *self.requests)) if is_on else ()
        ):
            yield ViewCell(catalog.OTLP_REQUESTS, (result,), self.requests[result])
        yield from self.switch_cells()
