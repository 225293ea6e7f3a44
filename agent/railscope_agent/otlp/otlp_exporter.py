"""Exporter of OTLP: metrics periodically, events soon after they are read."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from railscope import __version__, extras, service, tls_contexts
from railscope.catalog.declare import MetricDetail
from railscope.exposition import MetricSelection
from railscope.frame import Frame
from railscope.settings import SettingsError
from railscope.timestamps import SECOND_NS
from railscope_agent.config import OtlpSettings
from railscope_agent.host import Clock, Host
from railscope_agent.otlp import (
    event_messages,
    metric_messages,
    otlp_http,
    otlp_sender,
    otlp_target,
)
from railscope_agent.otlp.otlp_target import GRPC, LOGS, METRICS, OtlpTarget
from railscope_agent.sampling.shipping_stats import OtlpStats

FIRST_SECONDS = 5.0
"""Wait for the first export, if the period is longer."""
READ_SECONDS = 0.5
"""Delay of an export after the sources' reads, whose periods are on the same grid."""
EVENT_SECONDS = 1.0
"""Time for which events are collected into one request."""
END_SECONDS = 1.0
GZIP_LEVEL = 1
COMPRESSED_AT_ONCE_BYTES = 512 << 10
"""Largest body that is compressed on the event loop: a thread costs as much as 60 KiB."""
_NODE_NAME, _MACHINE_ID = "/proc/sys/kernel/hostname", "/etc/machine-id"


def resource_attributes(
    node: str, host: Host, settings: OtlpSettings, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the attributes of the node and of the agent, by the conventions."""
    named = {"host.name": _NODE_NAME, "host.id": _MACHINE_ID}
    found = {"host.name": node}
    for name, file in named.items():
        with suppress(OSError):  # a copied tree or a capture may not contain it
            found[name] = host.read(file).decode(errors="replace").strip()
    return {
        "service.name": "railscope-agent",
        "service.instance.id": node,
        "service.version": __version__,
        **{name: text for name, text in found.items() if text},
        # Later entries take precedence: settings over the environment, and both over what the agent finds.
        **otlp_target.environment_attributes(environment),
        **settings.resource_attributes,
    }


def metric_selection(settings: OtlpSettings, configured: MetricSelection) -> MetricSelection:
    """Return the selection of the metrics endpoint, with the detail of the export in place of its own."""
    if settings.detail == "metrics":
        return configured
    off = tuple(group for group in configured.group_details if group[1] is None)
    return replace(configured, detail=MetricDetail(settings.detail), group_details=off)


def _compress(body: bytes) -> bytes:
    return gzip.compress(body, GZIP_LEVEL)


class GrpcTransport:
    """Connection to the receiver of one signal over gRPC."""

    def __init__(self, target: OtlpTarget) -> None:
        """Read the certificates. Raises OSError, and ImportError without its packages."""
        from railscope.otlp_calls import OtlpCalls  # noqa: PLC0415 - gRPC takes 10 MiB

        pem = tls_contexts.client_pem(*target.tls_files) if target.tls_files else None
        self._calls = OtlpCalls(
            target.signal,
            target.url,
            pem,
            target.headers,
            target.timeout_seconds,
            "railscope-agent",
            "otlp",
            target.is_compressed,
        )

    async def send(self, body: bytes) -> otlp_sender.OtlpResult:
        """Return the result of a request. Raises RetryLaterError without a final one."""
        from railscope.otlp_calls import OtlpCallError  # noqa: PLC0415 - as above

        try:
            response = await self._calls.send(body)
        except OtlpCallError as error:
            if error.is_repeated:
                raise otlp_sender.RetryLaterError(str(error), error.wait_seconds) from error
            return otlp_sender.OtlpResult(problem=str(error))
        return otlp_sender.decode_success(response)

    async def close(self) -> None:
        """Close the connection."""
        await self._calls.close()


def _transport(target: OtlpTarget, clock: Clock) -> otlp_sender.OtlpTransport:
    """Return the connection to a target. Raises SettingsError if the package of its protocol is missing."""
    if target.protocol != GRPC:
        return otlp_http.HttpTransport(target, lambda: clock.now().wall_ns / SECOND_NS)
    try:
        return GrpcTransport(target)
    except ImportError as error:
        message = (
            f"missing grpcio, which the export by OTLP over gRPC requires; fix: {extras.install_command('otlp-grpc')}, or set"
            " otlp.protocol to http/protobuf and the endpoint to the port for HTTP"
        )
        raise SettingsError(message) from error


@dataclass(slots=True)
class OtlpExporter:
    """Exports the metrics and events of one node to the targets, until cancelled."""

    settings: OtlpSettings
    targets: Mapping[str, OtlpTarget]
    resource: Mapping[str, str]
    frames: Callable[[], Iterable[Frame]]
    """Returns the frames of the metrics endpoint."""
    clock: Clock
    stats: Mapping[str, OtlpStats]
    selection: MetricSelection
    _messages: metric_messages.MetricMessages = field(init=False)
    _senders: dict[str, otlp_sender.OtlpSender] = field(init=False)
    _records: list[event_messages.LogRecord] = field(default_factory=list)
    _has_records: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Create a sender for each target."""
        self._messages = metric_messages.MetricMessages(
            self.resource, self.clock.now().wall_ns, self.selection, self.settings.names
        )
        self._senders = {
            signal: otlp_sender.OtlpSender(
                target,
                _transport(target, self.clock),
                self.stats[signal],
                self.clock,
                self.settings.max_waiting_bytes,
            )
            for signal, target in self.targets.items()
        }

    def record_events(self, frame: Frame) -> None:
        """Take the events of a frame."""
        if frame.events and LOGS in self._senders:
            self._records += event_messages.frame_records(frame)
            self._has_records.set()

    async def probe(self) -> dict[str, str]:
        """Send an empty request of each signal; return the problem by signal, empty if it was accepted."""
        return {
            signal: await sender.probe(
                _compress(b"") if sender.target.has_compressed_bodies else b""
            )
            for signal, sender in self._senders.items()
        }

    async def run(self) -> None:
        """Export until cancelled, and then once more, for a short time."""
        try:
            async with asyncio.TaskGroup() as group:
                for sender in self._senders.values():
                    group.create_task(sender.run())
                if METRICS in self._senders:
                    group.create_task(self._export_periodically())
                if LOGS in self._senders:
                    group.create_task(self._export_events())
        finally:
            with suppress(TimeoutError):
                # A receiver that hangs must not delay the end of the agent.
                async with asyncio.timeout(END_SECONDS):
                    await self._export_rest()

    async def _export_rest(self) -> None:
        if METRICS in self._senders:
            await self.export_metrics()
        if LOGS in self._senders:
            await self._queue_events()
        for sender in self._senders.values():
            await sender.send_rest()

    async def _export_periodically(self) -> None:
        period_ns = round(self.settings.period_seconds * SECOND_NS)
        delay_ns = min(round(READ_SECONDS * SECOND_NS), period_ns // 2)
        due_ns = self.clock.now().boot_ns + min(period_ns, round(FIRST_SECONDS * SECOND_NS))
        while True:
            await self.clock.sleep_until(due_ns)
            await self.export_metrics()
            # On the grid of the reads: each export has readings that are only `READ_SECONDS` old.
            passed = (self.clock.now().boot_ns - delay_ns) // period_ns
            due_ns = (passed + 1) * period_ns + delay_ns

    async def export_metrics(self) -> None:
        """Queue the readings since the last call."""
        batches = self._messages.build(self.frames(), self.clock.now().wall_ns)
        await self._queue(self._senders[METRICS], batches)

    async def _export_events(self) -> None:
        while True:
            await self._has_records.wait()
            now_ns = self.clock.now().boot_ns
            # Many events of one fault, such as Xids of all GPUs, share a request.
            await self.clock.sleep_until(now_ns + round(EVENT_SECONDS * SECOND_NS))
            await self._queue_events()

    async def _queue_events(self) -> None:
        records, self._records = self._records, []
        self._has_records.clear()
        await self._queue(
            self._senders[LOGS], event_messages.event_requests(self.resource, records)
        )

    @staticmethod
    async def _queue(
        sender: otlp_sender.OtlpSender, batches: Iterable[metric_messages.MessageBatch]
    ) -> None:
        for body, size in batches:
            sent = body
            if sender.target.has_compressed_bodies and len(body) > COMPRESSED_AT_ONCE_BYTES:
                sent = await service.run_in_thread(_compress, body)
            elif sender.target.has_compressed_bodies:
                sent = _compress(body)
            sender.add(sent, size)
