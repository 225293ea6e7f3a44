"""The collector's metrics for long-term stores: Prometheus remote write 1.0, text import of VictoriaMetrics, and OTLP.

Samples are those of the collector's metrics endpoint, with the timestamp of the views. A request contains one sample per
series, all of one timestamp: nothing is out of order within it, and a request that is repeated is accepted again.

The messages of remote write are encoded here: there are four, none has an optional field that is used, and labels are
encoded once per series, not once per sample. Snappy is that of PyArrow, which exports use as well.
"""

from __future__ import annotations

import asyncio
import gzip
import re
import socket
import ssl
import struct
import time
from base64 import b64encode
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from importlib import import_module
from typing import Any, ClassVar, Protocol

import aiohttp
import structlog

from railscope import __version__, exposition, http_responses, settings, tls_contexts
from railscope.catalog import collector as catalog
from railscope.catalog.declare import Metric
from railscope.service import run_in_thread
from railscope.untrusted_text import printable
from railscope_collector.config import CollectorSettings, RemoteWriteSettings
from railscope_collector.fleet.fleet import RecentEvents
from railscope_collector.fleet.view_cells import ViewCell, label_names
from railscope_collector.sinks import MAX_PROBLEM_LENGTH, SinkError, otlp_format
from railscope_collector.sinks.otlp_events import OtlpEventQueue, OtlpEventsFormat
from railscope_collector.sinks.otlp_format import LOGS, METRICS, OtlpMetricsFormat
from railscope_collector.sinks.queued_writer import QueuedBatch, QueuedWriter
from railscope_collector.state.collector_state import CollectorState

log = structlog.get_logger(__name__)

SAMPLES_PER_WRITE = 10_000
TIMEOUT_SECONDS = 30.0
MAX_RESPONSE_BYTES = 1 << 20
STALE_MARKER = struct.pack("<Q", 0x7FF0_0000_0000_0002)
"""The NaN by which Prometheus ends a series (model/value/value.go)."""
MAX_PROBLEM_BYTES = 1000
CHECK = replace(catalog.NODE_UP, name="railscope_check", help="Sample of a check of the settings.")
MILLISECOND_NS = 1_000_000
_LABEL = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OWN_HEADERS = {
    "authorization", "connection", "content-encoding", "content-length", "content-type", "host",
    "transfer-encoding", "user-agent", "x-prometheus-remote-write-version",
}  # fmt: skip

_GRPC = "grpc"
Send = Callable[[bytes], Awaitable[int]]
"""Writes one request, and returns the number of its samples or events that were rejected. Raises SinkError."""
Sample = tuple[Any, float | None]
"""Series as its format encodes it, and its value; None if it has ended."""


class RequestFormat(Protocol):
    """Properties of requests, and their successful responses."""

    headers: ClassVar[dict[str, str]]
    repeated_statuses: ClassVar[Collection[int]]
    """Statuses after which a request may succeed later."""

    def rejected_samples(self, body: bytes) -> tuple[int, str]:
        """Return the number of rejected samples or events in a successful response, and the reason."""


class SampleFormat(RequestFormat, Protocol):
    """One format of requests with samples."""

    has_stale_markers: ClassVar[bool]

    def encode_series(self, metric: Metric, labels: Iterable[tuple[str, str]]) -> Any:
        """Encode name and labels; labels are sorted and have values."""

    def encode_samples(self, samples: Sequence[Sample], timestamp_ms: int) -> bytes:
        """Return the body of a request."""


class WholeRequests:
    """Part of the formats whose requests are accepted or rejected as a whole."""

    repeated_statuses: ClassVar[Collection[int]] = (HTTPStatus.TOO_MANY_REQUESTS, *range(500, 600))

    def rejected_samples(self, _: bytes) -> tuple[int, str]:
        """Return zero."""
        return 0, ""


class WriteRequestFormat(WholeRequests):
    """`prometheus.WriteRequest` in protobuf, compressed with Snappy. Raises SettingsError without PyArrow."""

    headers: ClassVar = {
        "Content-Type": "application/x-protobuf",
        "Content-Encoding": "snappy",
        "X-Prometheus-Remote-Write-Version": "0.1.0",
    }
    has_stale_markers: ClassVar = True

    def __init__(self) -> None:
        try:
            self._snappy = import_module("pyarrow").Codec("snappy")
        except ImportError as error:
            message = (
                "missing PyArrow, which remote_write.format remote_write requires;"
                " fix: pip install 'railscope[remote-write]'"
            )
            raise settings.SettingsError(message) from error

    def encode_series(self, metric: Metric, labels: Iterable[tuple[str, str]]) -> bytes:
        """Return the labels of a TimeSeries: field 1 each, with name and value as fields 1 and 2."""
        sorted_labels = sorted([("__name__", metric.name), *labels])
        return b"".join(
            _field(b"\x0a", _field(b"\x0a", label.encode()) + _field(b"\x12", value.encode()))
            for label, value in sorted_labels
        )

    def encode_samples(self, samples: Sequence[Sample], timestamp_ms: int) -> bytes:
        """Return series as field 1 each, with one sample as field 2: value as field 1, timestamp as field 2."""
        timestamp = b"\x10" + _varint(timestamp_ms % (1 << 64))
        head = b"\x12" + _varint(9 + len(timestamp)) + b"\x09"
        message = b"".join(
            _field(b"\x0a", series + head + _double(value) + timestamp) for series, value in samples
        )
        return bytes(self._snappy.compress(message, asbytes=True))


class ImportTextFormat(WholeRequests):
    """Lines of the metrics endpoint with timestamps, for `/api/v1/import/prometheus` of VictoriaMetrics.

    The shortest decimal form of a number is exact, and lines cost less than the JSON of `/api/v1/import`.
    """

    headers: ClassVar = {"Content-Type": "text/plain", "Content-Encoding": "gzip"}
    has_stale_markers: ClassVar = False

    def encode_series(self, metric: Metric, labels: Iterable[tuple[str, str]]) -> bytes:
        """Return name and labels of a line."""
        return exposition.labelled(metric.name, labels).encode()

    def encode_samples(self, samples: Sequence[Sample], timestamp_ms: int) -> bytes:
        """Return compressed lines."""
        end = b" %d\n" % timestamp_ms
        lines = (series + repr(value).encode() + end for series, value in samples)
        return gzip.compress(b"".join(lines), compresslevel=1, mtime=0)


FORMATS: dict[str, Callable[[], SampleFormat]] = {
    "remote_write": WriteRequestFormat,
    "victoriametrics": ImportTextFormat,
    "otlp": OtlpMetricsFormat,
}


def _double(value: float | None) -> bytes:
    """Return a value in 8 bytes, or the marker of a series that has ended."""
    return STALE_MARKER if value is None else struct.pack("<d", value)


def _field(tag: bytes, content: bytes) -> bytes:
    """Encode a field with a length."""
    return tag + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    if value < 0x80:  # noqa: PLR2004 - seven bits in each byte
        return bytes((value,))
    encoded = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - as above
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


@dataclass(slots=True)
class SampleEncoder:
    """Encodes the cells of one period after another; series that have ended get a stale marker."""

    format: SampleFormat
    labels: dict[str, str]
    """Labels of all series that do not have them."""
    max_samples: int = SAMPLES_PER_WRITE
    _series: dict[tuple[str, tuple[str, ...]], Any] = field(default_factory=dict)
    """Encoded series of the last period."""

    def encode(self, timestamp_ns: int, cells: Iterable[ViewCell]) -> list[QueuedBatch]:
        """Return requests with one sample of each cell; zeros of sparse metrics are omitted."""
        series: dict[tuple[str, tuple[str, ...]], Any] = {}
        samples: list[Sample] = []
        for cell in cells:
            key = cell.metric.name, cell.labels
            if key in series or (cell.metric.sparse and not cell.value):
                continue
            encoded = series[key] = self._series.get(key) or self._encode_series(cell)
            samples.append((encoded, cell.value))
        if self.format.has_stale_markers:
            ended = (encoded for key, encoded in self._series.items() if key not in series)
            samples += [(encoded, None) for encoded in ended]
        self._series = series
        return list(self._batches(samples, timestamp_ns // MILLISECOND_NS))

    def _encode_series(self, cell: ViewCell) -> Any:
        labels = self.labels | dict(zip(label_names(cell.metric), cell.labels, strict=True))
        present = sorted((name, value) for name, value in labels.items() if value)
        return self.format.encode_series(cell.metric, present)

    def _batches(self, samples: Sequence[Sample], timestamp_ms: int) -> Iterator[QueuedBatch]:
        for start in range(0, len(samples), self.max_samples):
            part = samples[start : start + self.max_samples]
            yield QueuedBatch(self.format.encode_samples(part, timestamp_ms), len(part))


@dataclass(slots=True)
class RemoteWriteSink:
    """Writes the collector's metrics periodically, as long as it runs. Raises SettingsError for invalid settings."""

    settings: RemoteWriteSettings
    cells: Callable[[], tuple[int, Iterable[ViewCell]]] = lambda: (0, ())
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
        cls, configured: CollectorSettings, core: CollectorState | None = None
    ) -> RemoteWriteSink:
        """Return a sink whose series have host name and port as `instance`, as in a scrape of the listen address."""
        port = configured.listen.rpartition(":")[2]
        instance = f"{socket.gethostname()}:{port}"
        return cls(configured.remote_write, instance=instance, core=core)

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
                timestamp_ns, cells = self.cells()
                if timestamp_ns != last_ns:
                    self.writer.add(await run_in_thread(encoder.encode, timestamp_ns, cells))
                last_ns = timestamp_ns

    def own_cells(self) -> list[ViewCell]:
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
                message = f"cannot write to remote_write.events_url {events.url}: {error}"
                raise settings.SettingsError(message) from error
        accepted = f"{events.url} accepts events" if events else ""
        if not configured.url:
            return accepted or "off: no remote_write.url"
        encoder = self._encoder()
        series = encoder.format.encode_series(CHECK, sorted(encoder.labels.items()))
        body = encoder.format.encode_samples(((series, 1.0),), time.time_ns() // MILLISECOND_NS)
        try:
            async with self._connected(encoder.format, configured.url) as send:
                is_rejected = bool(await send(body))
        except SinkError as error:
            message = f"cannot write to remote_write.url {self.settings.url}: {error}"
            raise settings.SettingsError(message) from error
        if is_rejected:
            message = (
                f"remote_write.url {self.settings.url} rejects samples; the log has its reason"
            )
            raise settings.SettingsError(message)
        return ", ".join(filter(None, (f"{configured.url} accepts samples", accepted)))

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
                "sink_samples_rejected", sink=name, url=url, problem=problem, entries=rejected
            )
        return rejected

    async def _send(
        self, session: aiohttp.ClientSession, sample_format: RequestFormat, url: str, body: bytes
    ) -> int:
        """Write one request, and return the number of its samples or events that were rejected. Raises SinkError with the server's reason."""
        response = None
        try:
            async with session.post(
                url, data=body, ssl=self._tls, allow_redirects=False
            ) as response:
                text = await http_responses.read_body(response, MAX_RESPONSE_BYTES)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            problem = printable(str(error)) or type(error).__name__
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
