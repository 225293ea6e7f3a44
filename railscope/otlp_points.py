"""Points of one metric as messages of OTLP that are kept between exports, and the requests that contain them.

An export replaces times and numbers: to build all objects for it would cost several times as much. Series, labels and
values are those of the metrics endpoint (railscope/exposition.py). Each metric is serialized as a `ScopeMetrics` without its
scope: protobuf merges messages that are concatenated.

It loads protobuf: a program imports this module only if its settings select OTLP.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.resource.v1 import resource_pb2

from railscope import __version__, reading
from railscope.catalog import declare
from railscope.catalog.declare import MetricKind, MetricUnit
from railscope.frame import Entity, Frame

# Bounds the memory for series that do not return.
MAX_HISTORIES = 10_000
_LARGE = 1 << 32
"""Smallest number whose product with a scale may exceed 64 bits."""
SCOPE = "railscope"
NO_RECORDED_VALUE = metrics_pb2.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
CUMULATIVE = metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE

Labels = tuple[tuple[str, str], ...]


class TextfileMetric(NamedTuple):
    """Metric of a textfile, by the name of its samples."""

    name: str
    kind: MetricKind
    help: str
    resets: str = ""
    unit: MetricUnit = MetricUnit.NONE


class HardwareMetric(NamedTuple):
    """Metric of the conventions for hardware."""

    name: str
    kind: MetricKind
    help: str
    resets: str
    unit: MetricUnit
    is_updowncounter: bool


AnyMetric = declare.Metric | TextfileMetric | HardwareMetric


class SeriesKey(NamedTuple):
    """Identity of a series: its metric and all labels."""

    metric: AnyMetric
    labels: Labels


class CounterHistory(NamedTuple):
    """Start of a counter in nanoseconds of the wall clock, and its last value."""

    start_ns: int
    value: float


@dataclass(slots=True)
class CounterStarts:
    """Starts of counters: those that are known, and those of series that have ended or changed their schema."""

    agent_ns: int
    """Start of the agent on the wall clock."""
    histories: dict[SeriesKey, CounterHistory] = field(default_factory=dict)

    def start_ns(self, key: SeriesKey, value: float, frame: Frame, zero_ns: int) -> int:
        """Return the start of a counter whose series begins, or begins again; `zero_ns` is its last read as zero.

        An unknown start is the time of the first point, as the specification of metrics requires.
        """
        read_ns, boot_ns = frame.timestamp.wall_ns, frame.timestamp.boot_ns
        earlier = self.histories.pop(key, None)
        starts = {declare.AGENT_START: self.agent_ns, declare.BOOT_START: read_ns - boot_ns}
        start_ns = starts.get(key.metric.resets, zero_ns or read_ns)
        if earlier:
            start_ns = earlier.start_ns if value >= earlier.value else read_ns
        # No point begins after its time, also if the clock was set back.
        return min(start_ns, read_ns)

    def save(self, key: SeriesKey, history: CounterHistory) -> None:
        """Store the history of a series whose points are removed; the oldest ones are dropped."""
        self.histories[key] = history
        while len(self.histories) > MAX_HISTORIES:
            del self.histories[next(iter(self.histories))]


def attributes(labels: Iterable[tuple[str, str]]) -> list[common_pb2.KeyValue]:
    """Return labels as attributes."""
    return [
        common_pb2.KeyValue(key=name, value=common_pb2.AnyValue(string_value=text))
        for name, text in labels
    ]


def resource_message(resource: Mapping[str, str]) -> resource_pb2.Resource:
    """Return the resource with its attributes."""
    return resource_pb2.Resource(attributes=attributes(resource.items()))


def scope_message() -> common_pb2.InstrumentationScope:
    """Return the scope of all signals."""
    return common_pb2.InstrumentationScope(name=SCOPE, version=__version__)


class RequestEnvelope:
    """Serialized resource and scope of requests with metrics."""

    def __init__(self, resource: Mapping[str, str], schema_url: str = "") -> None:
        of_resource = metrics_pb2.ResourceMetrics(resource=resource_message(resource))
        self._resource = of_resource.SerializeToString()
        scope = metrics_pb2.ScopeMetrics(scope=scope_message(), schema_url=schema_url)
        self._scope = scope.SerializeToString()

    def request(self, metrics: Iterable[bytes]) -> bytes:
        """Return a request with serialized metrics; they are copied once."""
        contents = self._scope, *metrics
        length = sum(map(len, contents))
        of_scope = _embedded_head(metrics_pb2.ResourceMetrics.SCOPE_METRICS_FIELD_NUMBER, length)
        number = metrics_service_pb2.ExportMetricsServiceRequest.RESOURCE_METRICS_FIELD_NUMBER
        of_resource = _embedded_head(number, len(self._resource) + len(of_scope) + length)
        return b"".join((of_resource, self._resource, of_scope, *contents))


def _embedded_head(number: int, length: int) -> bytes:
    """Return the head of a field that contains a serialized message: tag, and length in groups of seven bits."""
    head = bytearray(((number << 3) | 2,))
    while length > 0x7F:  # noqa: PLR2004 - seven bits in each byte
        head.append((length & 0x7F) | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head)


def add_metric(scope: metrics_pb2.ScopeMetrics, metric: AnyMetric) -> Any:
    """Add a metric to a scope; return its points, which are of the type of its kind."""
    message = scope.metrics.add(name=metric.name, description=metric.help, unit=metric.unit.ucum)
    is_counter = metric.kind is MetricKind.COUNTER
    if is_counter or (isinstance(metric, HardwareMetric) and metric.is_updowncounter):
        message.sum.is_monotonic = is_counter
        message.sum.aggregation_temporality = CUMULATIVE
        return message.sum.data_points
    if metric.kind is MetricKind.HISTOGRAM:
        message.histogram.aggregation_temporality = CUMULATIVE
        return message.histogram.data_points
    if metric.kind is MetricKind.INFO:
        message.metadata.extend(attributes((("prometheus.type", "info"),)))
    return message.gauge.data_points


def set_number(point: Any, value: float) -> None:
    """Set the value of a point: an integer if it is one of 64 bits."""
    if isinstance(value, int) and -reading.SIGNED_LIMIT <= value < reading.SIGNED_LIMIT:
        point.as_int = value
    else:
        point.as_double = float(value)


class NumberMetric:
    """Points of a counter or a gauge of a schema, one for each present column from `first` on."""

    has_fixed_labels = True

    def __init__(
        self, metric: declare.Metric, first: int, entities: Sequence[Entity], starts: CounterStarts
    ) -> None:
        self.metric = metric
        self.keys: list[SeriesKey] = []
        """Series that have a point."""
        self._first, self._end, self._starts = first, first + len(entities), starts
        self._columns = [
            SeriesKey(metric, tuple(zip(entity.kind.labels, entity.key, strict=True)))
            for entity in entities
        ]
        self._scale = metric.scale.as_integer_ratio()
        self._is_cumulative = metric.kind in {MetricKind.COUNTER, MetricKind.HISTOGRAM}
        self._values, self._codes, self._read_ns = array("q"), b"", 0
        self._scope = metrics_pb2.ScopeMetrics()
        self._container = add_metric(self._scope, metric)
        self._points: list[Any] = []
        self._positions: list[int] = []

    def update(self, frame: Frame) -> bytes:
        """Set the points to the readings of a frame; return the serialized metric, empty without points."""
        values = frame.values[self._first : self._end]
        codes = bytes(frame.reasons[self._first : self._end]) if frame.reasons else b""
        read_ns = frame.timestamp.wall_ns
        if values != self._values or codes != self._codes:
            self._set_values(values, codes, frame)
            self._values, self._codes = values, codes
        else:
            for point in self._points:
                point.time_unix_nano = read_ns
        if self._is_cumulative and read_ns < self._read_ns:  # the clock was set back
            for point in self._points:
                point.start_time_unix_nano = min(point.start_time_unix_nano, read_ns)
        self._read_ns = read_ns
        return self._scope.SerializeToString() if self._points else b""

    def end(self) -> None:
        """Remove all points, and store the histories of their counters."""
        if self._is_cumulative:
            for key, point, position in zip(self.keys, self._points, self._positions, strict=True):
                count = self._count(self._values, position)
                self._starts.save(key, CounterHistory(point.start_time_unix_nano, count))
        del self._container[:]
        self.keys, self._points, self._positions = [], [], []
        self._values, self._codes = array("q"), b""

    def _set_values(self, values: array[int], codes: bytes, frame: Frame) -> None:
        before, codes_before = self._values, self._codes
        # A zero of a sparse metric has no point: it ends, or begins.
        has_moved = self.metric.sparse and (0 in values or 0 in before)
        if not before or codes != codes_before or has_moved or not self.has_fixed_labels:
            positions = self._present(values, codes)
            keys = [self._key(values, position) for position in positions]
            if keys != self.keys:
                was_zero = [
                    not value and not any(codes_before[position : position + 1])
                    for position, value in enumerate(before)
                ] or [False] * len(values)
                zero_ns = [self._read_ns if is_zero else 0 for is_zero in was_zero]
                self.end()
                self.keys, self._positions = keys, positions
                for key, position in zip(keys, positions, strict=True):
                    point = self._container.add(
                        attributes=attributes(key.labels), time_unix_nano=frame.timestamp.wall_ns
                    )
                    if self._is_cumulative:
                        count = self._count(values, position)
                        point.start_time_unix_nano = self._starts.start_ns(
                            key, count, frame, zero_ns[position]
                        )
                    self._set_point(point, values, position)
                    self._points.append(point)
                return
        self._set_changed(values, before, frame.timestamp.wall_ns)

    def _set_changed(self, values: array[int], before: array[int], read_ns: int) -> None:
        """Set numbers and times; those of a metric without special cases are set here, without a call for each."""
        present, former = values, before
        if len(self._positions) != len(values):
            present = array("q", (values[position] for position in self._positions))
            former = array("q", (before[position] for position in self._positions))
        if self._is_special(present, former):
            for point, position in zip(self._points, self._positions, strict=True):
                count, last = self._count(values, position), self._count(before, position)
                if self._is_cumulative and count < last:
                    point.start_time_unix_nano = read_ns
                self._set_point(point, values, position)
                point.time_unix_nano = read_ns
            return
        numerator, denominator = self._scale
        if denominator != 1:
            for point, value in zip(self._points, present, strict=True):
                point.as_double = value * numerator / denominator
                point.time_unix_nano = read_ns
            return
        numbers = present if numerator == 1 else [value * numerator for value in present]
        for point, value in zip(self._points, numbers, strict=True):
            point.as_int = value
            point.time_unix_nano = read_ns

    def _is_special(self, present: array[int], former: array[int]) -> bool:
        """True if a counter fell or is beyond signed 64 bits, or a product may be."""
        if self._is_cumulative:
            for value, last in zip(present, former, strict=True):
                if not 0 <= last <= value:
                    return True
        return self._scale[0] != 1 and any(abs(value) >= _LARGE for value in present)

    def _present(self, values: array[int], codes: bytes) -> list[int]:
        """Return the positions that have a point."""
        is_sparse = self.metric.sparse
        return [
            position
            for position, value in enumerate(values)
            if (not codes or codes[position] == reading.PRESENT) and (value or not is_sparse)
        ]

    def _key(self, values: array[int], position: int) -> SeriesKey:  # noqa: ARG002 - states need it
        return self._columns[position]

    def _count(self, values: array[int], position: int) -> int:
        return reading.from_stored(values[position], counter=self._is_cumulative)

    def _set_point(self, point: Any, values: array[int], position: int) -> None:
        """Set the value of a point in base units."""
        numerator, denominator = self._scale
        value = self._count(values, position) * numerator
        set_number(point, value if denominator == 1 else value / denominator)


class StateMetric(NumberMetric):
    """Points of a state: 1 for the present one, whose name is a label."""

    has_fixed_labels = False

    def _key(self, values: array[int], position: int) -> SeriesKey:
        value = values[position]
        name = str(self.metric.states.get(value, value))
        return SeriesKey(self.metric, (*self._columns[position].labels, ("state", name)))

    def _set_point(self, point: Any, values: array[int], position: int) -> None:  # noqa: ARG002 - always 1
        point.as_int = 1


class HistogramMetric(NumberMetric):
    """Points of a histogram; the position of one is that of its bucket without a bound."""

    has_fixed_labels = False

    def __init__(
        self, metric: declare.Metric, first: int, entities: Sequence[Entity], starts: CounterStarts
    ) -> None:
        super().__init__(metric, first, entities, starts)
        self._bounds = [float(bound) for bound in metric.bounds]
        groups: dict[tuple[str, ...], dict[str, int]] = {}
        for position, entity in enumerate(entities):
            groups.setdefault(entity.key[:-1], {})[entity.key[-1]] = position
        self._parts = {
            group[declare.NO_BOUND]: ([group[le] for le in metric.buckets], group[declare.SUM])
            for group in groups.values()
        }
        """Positions of the buckets and of the sum."""

    def _present(self, values: array[int], codes: bytes) -> list[int]:
        """Return the positions of the histograms that are complete, and whose buckets are cumulative."""
        return [
            position
            for position, (buckets, total) in self._parts.items()
            if not any(codes[each] for each in (*buckets, total) if codes)
            and all(count >= 0 for count in self._counts(values, buckets))
        ]

    def _key(self, values: array[int], position: int) -> SeriesKey:  # noqa: ARG002 - of the parent
        return SeriesKey(self.metric, self._columns[position].labels[:-1])

    def _counts(self, values: array[int], buckets: Sequence[int]) -> list[int]:
        """Return the counts of the buckets alone: those of the columns are cumulative."""
        cumulative = [0, *(self._count(values, position) for position in buckets)]
        return [count - lower for lower, count in pairwise(cumulative)]

    def _set_changed(self, values: array[int], before: array[int], read_ns: int) -> None:
        for point, position in zip(self._points, self._positions, strict=True):
            if self._count(values, position) < self._count(before, position):
                point.start_time_unix_nano = read_ns
            self._set_point(point, values, position)
            point.time_unix_nano = read_ns

    def _set_point(self, point: Any, values: array[int], position: int) -> None:
        buckets, total = self._parts[position]
        numerator, denominator = self._scale
        point.count = self._count(values, position)
        point.sum = self._count(values, total) * numerator / denominator
        point.bucket_counts[:] = self._counts(values, buckets)
        point.explicit_bounds[:] = self._bounds


_CLASSES = {MetricKind.STATE: StateMetric, MetricKind.HISTOGRAM: HistogramMetric}


def create_metric(
    metric: declare.Metric, first: int, entities: Sequence[Entity], starts: CounterStarts
) -> NumberMetric:
    """Return the points of a metric of the columns from `first` on, by its kind."""
    return _CLASSES.get(metric.kind, NumberMetric)(metric, first, entities, starts)


class MetricPoints:
    """Points of series whose labels and times do not depend on their values."""

    def __init__(self, metric: AnyMetric, series: Iterable[Labels]) -> None:
        self._scope = metrics_pb2.ScopeMetrics()
        container = add_metric(self._scope, metric)
        self._points = [container.add(attributes=attributes(labels)) for labels in series]

    def set_numbers(self, numbers: Iterable[float], time_ns: int) -> bytes:
        """Set numbers and time of the points; return the serialized metric."""
        for point, number in zip(self._points, numbers, strict=True):
            point.as_double = number
            point.time_unix_nano = time_ns
        return self._scope.SerializeToString()

    def end(self, times_ns: Iterable[int]) -> bytes:
        """Set times and no value, which ends the series; return the serialized metric."""
        for point, time_ns in zip(self._points, times_ns, strict=True):
            point.time_unix_nano, point.flags = time_ns, NO_RECORDED_VALUE
        return self._scope.SerializeToString()


class InfoMetric(MetricPoints):
    """Points of the facts of a source's entities: always 1."""

    def __init__(self, metric: declare.Metric, keys: Sequence[SeriesKey]) -> None:
        super().__init__(metric, [key.labels for key in keys])
        self.keys = keys
        for point in self._points:
            point.as_int = 1

    def update(self, frame: Frame) -> bytes:
        """Set the time of the points; return the serialized metric."""
        for point in self._points:
            point.time_unix_nano = frame.timestamp.wall_ns
        return self._scope.SerializeToString()
