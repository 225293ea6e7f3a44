"""The collector's metrics for long-term stores: Prometheus remote write 1.0, text import of VictoriaMetrics, and OTLP.

Samples are those of the collector's metrics endpoint, with the timestamp of the views.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus

import aiohttp
import structlog

from railscope import __version__, http_responses, settings, tls_contexts
from railscope.catalog import collector as catalog
from railscope.service import run_in_thread
from railscope.untrusted_text import printable
from railscope_collector.config import CollectorSettings, RemoteWriteSettings
from railscope_collector.fleet.recent_events import RecentEvents
from railscope_collector.fleet.view_cells import ViewCell
from railscope_collector.sinks import MAX_PROBLEM_LENGTH, SinkError, otlp_format, request_problem
from railscope_collector.sinks.otlp_events import OtlpEventQueue, OtlpEventsFormat
from railscope_collector.sinks.otlp_format import LOGS, METRICS, OtlpMetricsFormat
from railscope_collector.sinks.queued_writer import QueuedWriter
from railscope_collector.sinks.sample_formats import (
    FORMATS,
    MILLISECOND_NS,
    SAMPLES_PER_WRITE,
    RequestFormat,
    SampleEncoder,
)
from railscope_collector.state.collector_state import CollectorState

log = structlog.get_logger(__name__)
TIMEOUT_SECONDS = 30.0
MAX_RESPONSE_BYTES = 1 << 20
MAX_PROBLEM_BYTES = 1000
CHECK = replace(catalog.NODE_UP, name="railscope_check", help="Sample of a check of the settings.")
_LABEL = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OWN_HEADERS = {
    "authorization", "connection", "content-encoding", "content-length", "content-type", "host",
    "transfer-encoding", "user-agent", "x-prometheus-remote-write-version",
}  # fmt: skip

_GRPC = "grpc"
Send = Callable[[bytes], Awaitable[int]]
"""Writes one request, and returns the number of its samples or events that were rejected. Raises SinkError."""


CellsSource = Callable[[], tuple[int, Iterable[ViewCell]]]


def no_cells() -> tuple[int, Iterable[ViewCell]]:
    """Return no cells of no time."""
    return 0, ()


@dataclass(slots=True)
class RemoteWriteSink:
    """Writes the collector's metrics periodically, as long as it runs. Raises SettingsError for invalid settings."""

    settings: RemoteWriteSettings
    views: CellsSource = no_cells
    """Returns the timestamp of the views in nanoseconds, 0 before there are any, and all cells."""
    instance: str = ""
    """Label of all series, as in a scrape of this collector."""
    timeout_seconds: float = TIMEOUT_SECONDS
    core: CollectorState | None = None
    """State with the events."""
    writer: QueuedWriter = field(init=False)
    events: OtlpEventQueue | None = None
    """Export of the events; None without remote_write.events_url."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of each request."""
    _tls: ssl.SSLContext | bool = True

    @classmethod
    def from_settings(
        cls,
        configured: CollectorSettings,
        core: CollectorState | None = None,
        cells: CellsSource = no_cells,
    ) -> RemoteWriteSink:
        """Return a sink whose series have host name and port as `instance`, as in a scrape of the listen address."""
        port = configured.listen.rpartition(":")[2]
        instance = f"{socket.gethostname()}:{port}"
        return cls(configured.remote_write, cells, instance, core=core)

    def __post_init__(self) -> None:
        """Check the settings, and read the files that they name."""
        configured = self.settings
        limit = configured.max_buffered_samples
        self.writer = QueuedWriter("remote_write", configured.url, limit)
        for setting in ("url", "events_url"):
            if url := getattr(configured, setting):
                settings.check_http_url(f"remote_write.{setting}", url)
                self.headers = _headers(configured)
                ca_file = configured.ca_file
                self._tls = tls_contexts.client_tls("remote_write.ca_file", ca_file)
        if configured.otlp_protocol == _GRPC:
            otlp_format.check_grpc(configured)
        if configured.url:
            self._encoder()
        if url := configured.events_url:
            events = self.core.events if self.core else RecentEvents()
            is_compressed = configured.otlp_protocol != _GRPC
            encoder = OtlpEventsFormat(self._labels(), is_compressed=is_compressed)
            self.events = OtlpEventQueue(url, encoder, lambda: events, time.time_ns)

    async def run(self) -> None:
        """Write until cancelled; return immediately if no server is configured."""
        async with asyncio.TaskGroup() as tasks:
            if self.settings.url:
                tasks.create_task(self._write_samples())
            if self.events:
                tasks.create_task(self._write_events(self.events))

    async def _write_events(self, events: OtlpEventQueue) -> None:
        async with self._connected(events.format, events.url) as send:
            await events.run(send)

    async def _write_samples(self) -> None:
        encoder, last_ns, url = self._encoder(), 0, self.settings.url
        async with self._connected(encoder.format, url) as send, asyncio.TaskGroup() as tasks:
            tasks.create_task(self.writer.run(send))
            while True:
                await asyncio.sleep(self.settings.period_seconds)
                timestamp_ns, cells = self.views()
                # Views that were not refreshed have been written with this timestamp: a store would reject them as
                # duplicates.
                if timestamp_ns != last_ns:
                    self.writer.add(await run_in_thread(encoder.encode, timestamp_ns, cells))
                last_ns = timestamp_ns

    def cells(self) -> list[ViewCell]:
        """Return the metrics of the sink itself."""
        writer = self.writer
        return [
            ViewCell(catalog.REMOTE_WRITTEN, (), writer.written),
            ViewCell(catalog.REMOTE_WAITING, (), writer.waiting),
            ViewCell(catalog.REMOTE_DROPPED, ("rejected",), writer.rejected),
            ViewCell(catalog.REMOTE_DROPPED, ("overflow",), writer.overflowed),
            *(self.events.cells() if self.events else ()),
        ]

    async def probe(self) -> str:
        """Write one sample of `railscope_check`, and no event; return a message. Raises SettingsError."""
        configured = self.settings
        if events := self.events:
            try:
                async with self._connected(events.format, events.url) as send:
                    await send(events.format.encode((), time.time_ns()))
            except SinkError as error:
                message = f"cannot write to remote_write.events_url {settings.shown_url(events.url)}: {error}"
                raise settings.SettingsError(message) from error
        accepted = f"{settings.shown_url(events.url)} accepts events" if events else ""
        if not configured.url:
            return accepted or "off: no remote_write.url"
        encoder = self._encoder()
        series = encoder.format.encode_series(CHECK, sorted(encoder.labels.items()))
        body = encoder.format.encode_samples(((series, 1.0),), time.time_ns() // MILLISECOND_NS)
        try:
            async with self._connected(encoder.format, configured.url) as send:
                is_rejected = bool(await send(body))
        except SinkError as error:
            message = (
                f"cannot write to remote_write.url {settings.shown_url(self.settings.url)}: {error}"
            )
            raise settings.SettingsError(message) from error
        if is_rejected:
            message = f"remote_write.url {settings.shown_url(self.settings.url)} rejects samples; the log has its reason"
            raise settings.SettingsError(message)
        shown = settings.shown_url(configured.url)
        return ", ".join(filter(None, (f"{shown} accepts samples", accepted)))

    def _labels(self) -> dict[str, str]:
        """Return the labels of all series. Raises SettingsError."""
        labels = {"job": "railscope-collector", "instance": self.instance} | self.settings.labels
        for name in labels:
            if not _LABEL.fullmatch(name):
                message = (
                    f"invalid label {name!r} in remote_write.labels: expected letters, digits and _"
                )
                raise settings.SettingsError(message)
        return {name: value for name, value in labels.items() if value}

    def _encoder(self) -> SampleEncoder:
        labels = self._labels()
        largest = min(SAMPLES_PER_WRITE, self.settings.max_buffered_samples)
        sample_format = FORMATS[self.settings.format]()
        if isinstance(sample_format, OtlpMetricsFormat):
            sample_format.set_resource(labels)
            labels = {}
            sample_format.is_compressed = self.settings.otlp_protocol != _GRPC
        return SampleEncoder(sample_format, labels, largest)

    @asynccontextmanager
    async def _connected(self, request_format: RequestFormat, url: str) -> AsyncIterator[Send]:
        """Yield the function that writes to a server; it connects with the first request."""
        if self.settings.otlp_protocol == _GRPC:
            signal = LOGS if isinstance(request_format, OtlpEventsFormat) else METRICS
            target = signal, url, self.headers, self.timeout_seconds
            async with otlp_format.grpc_connection(self.settings, *target) as call:
                yield partial(self._call, call, request_format, url)
            return
        timeout = aiohttp.ClientTimeout(total=self.timeout_seconds)
        # A response is read as it is sent: what cannot be decompressed must not hide its status.
        headers = {"Accept-Encoding": "identity"} | request_format.headers | self.headers
        async with aiohttp.ClientSession(
            headers=headers, timeout=timeout, auto_decompress=False
        ) as session:
            yield partial(self._send, session, request_format, url)

    async def _call(
        self, call: otlp_format.Call, request_format: RequestFormat, url: str, body: bytes
    ) -> int:
        """Write one request over gRPC, as `_send` does over HTTP."""
        return self._count_rejected(request_format, url, await call(body))

    def _count_rejected(self, request_format: RequestFormat, url: str, response: bytes) -> int:
        rejected, message = request_format.rejected_samples(response)
        if rejected or message:
            problem = message[:MAX_PROBLEM_LENGTH]
            name = self.writer.name
            log.warning(
                "sink_samples_rejected",
                sink=name,
                url=settings.shown_url(url),
                problem=problem,
                entries=rejected,
            )
        return rejected

    async def _send(
        self, session: aiohttp.ClientSession, sample_format: RequestFormat, url: str, body: bytes
    ) -> int:
        """Write one request, and return the number of its samples or events that were rejected. Raises SinkError with the server's reason."""
        response = None
        try:
            async with session.post(
                # Without redirects: credentials must not be sent to another host.
                url,
                data=body,
                ssl=self._tls,
                allow_redirects=False,
            ) as response:
                text = await http_responses.read_body(response, MAX_RESPONSE_BYTES)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            problem = request_problem(error)
            if response is None or response.status < HTTPStatus.BAD_REQUEST:
                raise SinkError(problem) from error
            text = problem.encode()  # the status is final, however its body ends
        if HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            return self._count_rejected(sample_format, url, text)
        words = text[:MAX_PROBLEM_BYTES].decode(errors="replace").split()
        raise SinkError(
            f"{response.status} {printable(' '.join(words)) or response.reason or ''}".strip(),
            is_rejected=response.status >= HTTPStatus.BAD_REQUEST
            and response.status not in sample_format.repeated_statuses,
            retry_seconds=http_responses.retry_after_seconds(
                response.headers.get("Retry-After", ""), time.time()
            ),
        )


def _headers(configured: RemoteWriteSettings) -> dict[str, str]:
    """Return the headers of the settings, and those of the credential. Raises SettingsError."""
    headers = {"User-Agent": f"railscope-collector/{__version__}"}
    for name, value in configured.headers.items():
        if not _HEADER.fullmatch(name) or name.lower() in _OWN_HEADERS or not value.isprintable():
            message = (
                f"invalid header {name!r} in remote_write.headers: expected a name other than those that"
                " the collector sets, and a value on one line"
            )
            raise settings.SettingsError(message)
        headers[name] = value
    if configured.token_file and configured.user:
        message = "invalid remote_write.token_file: expected either it, or user and password_file"
        raise settings.SettingsError(message)
    if configured.token_file:
        token = settings.read_named_file("remote_write.token_file", configured.token_file, "ascii")
        headers["Authorization"] = f"Bearer {token}"
    elif configured.user:
        password = settings.read_named_file("remote_write.password_file", configured.password_file)
        credential = b64encode(f"{configured.user}:{password}".encode()).decode()
        headers["Authorization"] = f"Basic {credential}"
    return headers
