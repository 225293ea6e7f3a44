"""Receiver of gRPC dial-out: H3C switches open connections to it and push their telemetry.

A switch is identified by its address, or by the verified certificate of its connection, never by what it states about
itself. Dial-out acknowledges nothing: what cannot be stored is counted and lost.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib import import_module

import structlog

from railscope import extras, listen_address, log_output, otlp_receiving, tls_contexts
from railscope.catalog import switches as catalog
from railscope.frame import NodeTimestamp
from railscope.otlp_metrics import OtlpRejectedError
from railscope.settings import SettingsError, read_named_file
from railscope_collector import config
from railscope_collector.fleet.view_cells import ViewCell
from railscope_collector.switches import (
    comware_dialout,
    switch_frames,
    switch_pushes,
    switch_settings,
)
from railscope_collector.switches.push_receiver import (
    MAX_CONNECTIONS,
    PushingSwitch,
    PushReceiver,
)

log = structlog.get_logger(__name__)

Unpack = Callable[[bytes], comware_dialout.DialoutMessage]
STORED, NOT_STORED, INCOMPLETE = "stored", "not_stored", "incomplete"


def check_library() -> None:
    """Raise SettingsError if a library of the receiver is missing."""
    for module, library in (("grpc.aio", "grpcio"), ("google.protobuf", "protobuf")):
        with extras.importing("switches", "dialout_receiver", library):
            import_module(module)


@dataclass(slots=True)
class DialoutReceiver(PushReceiver):
    """Receives the pushes of all configured switches by dial-out."""

    settings: config.DialoutReceiverSettings = field(default_factory=config.DialoutReceiverSettings)
    by_certificate: Mapping[str, PushingSwitch] = field(default_factory=dict)
    """Switches that a name in their certificate identifies."""
    port: int = 0
    """Port of the listener, once `is_listening` is set."""
    is_listening: asyncio.Event = field(default_factory=asyncio.Event)
    messages: Counter[str] = field(default_factory=Counter)
    """Messages and rejected calls by result."""
    log_limit: log_output.LogRateLimit = field(default_factory=log_output.LogRateLimit)

    @classmethod
    def from_settings(
        cls,
        settings: config.CollectorSettings,
        wall_ns: Callable[[], int],
        may_receive: Callable[[], bool],
        submit: switch_frames.Submit = switch_frames.reject_envelope,
    ) -> DialoutReceiver:
        """Return the receiver for the switches in the settings. Blocking; raises SettingsError."""
        receiver, run = settings.dialout_receiver, secrets.token_hex(8)
        pushing = [
            switch
            for switch in switch_settings.read_switches(settings.switches)
            if switch.push_protocol == "dialout"
        ]
        if pushing and not receiver.listen:
            message = (
                f"switch [{pushing[0].name}] has protocol dialout: expected dialout_receiver.listen"
            )
            raise SettingsError(message)
        if receiver.listen:
            listen_address.split_address(receiver.listen)
            check_library()
            tls_contexts.server_tls(receiver.certificate_file, receiver.key_file)
        if receiver.client_ca_file:
            read_named_file("dialout_receiver.client_ca_file", receiver.client_ca_file)
            if not receiver.certificate_file:
                message = "dialout_receiver.client_ca_file without certificate_file: expected both"
                raise SettingsError(message)
        for switch in pushing:
            if switch.certificate_name and not receiver.client_ca_file:
                message = f"switch [{switch.name}] has server_name: expected dialout_receiver.client_ca_file"
                raise SettingsError(message)
        switches = [PushingSwitch.from_settings(switch, run) for switch in pushing]
        return cls(
            {switch_settings.canonical_address(each.settings.host): each for each in switches},
            wall_ns,
            may_receive,
            receiver.messages_per_second,
            "dialout_table_not_stored",
            submit=submit,
            settings=receiver,
            by_certificate={
                each.settings.certificate_name: each
                for each in switches
                if each.settings.certificate_name
            },
        )

    async def run(self) -> None:
        """Receive until cancelled; a listener that cannot start is started again later."""
        self.started_ns = self.wall_ns()
        if self.settings.listen:
            await otlp_receiving.keep_listening(self._serve)

    async def _serve(self) -> None:
        """Serve until cancelled. Raises SettingsError and OSError."""
        from railscope_collector.switches import dialout_grpc  # noqa: PLC0415 - loads the extra switches

        async with dialout_grpc.serve_dialout(self, MAX_CONNECTIONS) as self.port:
            self.is_listening.set()
            address = self.settings.listen.rpartition(":")[0]
            log.info("dialout_receiver_started", address=f"{address}:{self.port}")
            await asyncio.get_running_loop().create_future()

    def identify(self, peer: str, names: Collection[str]) -> PushingSwitch:
        """Return the switch that opened a call. Raises OtlpRejectedError if it is unknown, or no call is accepted."""
        known = [self.by_certificate[name] for name in sorted(names) if name in self.by_certificate]
        switch = known[0] if known else self.find_switch(peer)
        if switch.settings.certificate_name and not known:
            message = f"{peer} has no certificate of {switch.settings.certificate_name}: expected its server_name"
            raise OtlpRejectedError(message, HTTPStatus.FORBIDDEN, "unknown_sender")
        self.check_receiving()
        return switch

    async def receive(
        self,
        switch: PushingSwitch,
        parts: comware_dialout.TextParts,
        body: bytes,
        unpack: Unpack,
    ) -> None:
        """Store a message of a switch, or count why it is not stored."""
        try:
            self.count_request(switch)
            message = unpack(body)
            text = parts.join(message)
            if text is None:
                self.messages[INCOMPLETE] += 1
                return

            def decode(now: NodeTimestamp) -> switch_pushes.DecodedPush:
                name = switch.settings.name
                values = comware_dialout.decode_rows(name, message, text, now.boot_ns)
                return switch.pushes.accept(values, now)

            is_small = len(text) <= otlp_receiving.MAX_LOOP_BYTES
            push = await self.store(switch, decode, is_small=is_small)
            self.messages[STORED if push.reading.streams else NOT_STORED] += 1
        except OtlpRejectedError as error:
            self.count_rejection(error, switch.settings.name)

    def count_rejection(self, error: OtlpRejectedError, sender: str) -> None:
        """Count and log a rejected call or message."""
        self.messages[error.reason] += 1
        repetitions = self.log_limit.count_repetitions(error.reason, sender)
        if repetitions is not None:
            log.warning(
                "dialout_message_rejected",
                sender=sender,
                reason=error.reason,
                problem=str(error),
                repetitions=repetitions,
                advice="docs/switches.md",
            )

    def cells(self) -> Iterator[ViewCell]:
        """Yield the state of the receiver, and of each switch that pushes to it."""
        results = dict.fromkeys((*catalog.DIALOUT_RESULTS, *self.messages))
        for result in results if self.settings.listen else ():
            yield ViewCell(catalog.DIALOUT_MESSAGES, (result,), self.messages[result])
        yield from self.switch_cells()
