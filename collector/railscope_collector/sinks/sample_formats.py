"""Formats of requests with samples, and the encoder of cells in them.

A request contains one sample per series, all of one timestamp: nothing is out of order within it, and
a request that is repeated is accepted again.

The messages of remote write are encoded here: there are four, none has an optional field that is used, and labels are
encoded once per series, not once per sample. Snappy is that of PyArrow, which exports use as well.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib import import_module
from typing import Any, ClassVar, Protocol

from railscope import exposition, extras
from railscope.catalog.declare import Metric
from railscope_collector.fleet.view_cells import ViewCell, label_names
from railscope_collector.sinks.otlp_format import OtlpMetricsFormat
from railscope_collector.sinks.queued_writer import QueuedBatch

SAMPLES_PER_WRITE = 10_000
STALE_MARKER = struct.pack("<Q", 0x7FF0_0000_0000_0002)
"""The NaN by which Prometheus ends a series (model/value/value.go)."""
MILLISECOND_NS = 1_000_000
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
        with extras.importing("remote-write", "remote_write.format remote_write", "PyArrow"):
            self._snappy = import_module("pyarrow").Codec("snappy")

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
