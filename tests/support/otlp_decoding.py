"""Decoding of OTLP by the official messages, and the specification's translation to Prometheus.

The translation is that of "Prometheus and OpenMetrics Compatibility", sections "OTLP Metric points to Prometheus" and
"Metric Metadata"; it does not use the catalog.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2
from support.metric_samples import Sample

_UNITS = {
    "d": "days", "h": "hours", "min": "minutes", "s": "seconds", "ms": "milliseconds", "us": "microseconds",
    "ns": "nanoseconds", "By": "bytes", "KiBy": "kibibytes", "MiBy": "mebibytes", "GiBy": "gibibytes",
    "TiBy": "tibibytes", "KBy": "kilobytes", "MBy": "megabytes", "GBy": "gigabytes", "TBy": "terabytes",
    "m": "meters", "V": "volts", "A": "amperes", "J": "joules", "W": "watts", "g": "grams", "Cel": "celsius",
    "Hz": "hertz", "%": "percent",
}  # fmt: skip
_PER = {"s": "second", "m": "minute", "min": "minute", "h": "hour", "d": "day"}


def prometheus_name(message: metrics_pb2.Metric) -> str:
    """Return the name of a metric in Prometheus, without the suffixes of a histogram's samples."""
    is_counter = message.WhichOneof("data") == "sum" and message.sum.is_monotonic
    name = re.sub(r"[^a-zA-Z0-9_:]", "_", message.name)
    if is_counter:
        name = name.removesuffix("_total")
    unit = re.sub(r"\{[^}]*\}", "", message.unit)
    if unit == "1":
        unit = "ratio" if message.WhichOneof("data") == "gauge" else ""
    else:
        main, _, per = unit.partition("/")
        parts = [_UNITS.get(main, main), f"per_{_PER.get(per, per)}" if per else ""]
        unit = "_".join(filter(None, parts))
    if unit and not name.endswith(f"_{unit}"):
        name = f"{name}_{unit}"
    return f"{name}_total" if is_counter else name


def labels_of(attributes: Iterator[KeyValue] | Any) -> frozenset[tuple[str, str]]:
    """Return attributes as labels; all values are texts."""
    found = [(each.key, each.value.string_value) for each in attributes]
    assert len(dict(found)) == len(found)
    assert all(each.value.WhichOneof("value") == "string_value" for each in attributes)
    return frozenset(found)


@dataclass
class DecodedMetrics:
    """Samples of all requests so far by name and labels, as a scrape of the metrics endpoint would have them."""

    samples: dict[Sample, float] = field(default_factory=dict)
    points: dict[Sample, Any] = field(default_factory=dict)
    """Last point of each series, by its name and labels."""
    ended: list[Sample] = field(default_factory=list)
    """Series that had a point without a value, in order."""
    messages: dict[str, metrics_pb2.Metric] = field(default_factory=dict)
    resources: list[dict[str, str]] = field(default_factory=list)

    def add(self, body: bytes) -> int:
        """Decode one request; return the number of its points."""
        request = ExportMetricsServiceRequest.FromString(body)
        if not request.resource_metrics:
            return 0  # an empty request, as of a check
        (of_node,) = request.resource_metrics
        (scope,) = of_node.scope_metrics
        assert scope.scope.name == "railscope"
        self.resources.append(dict(labels_of(of_node.resource.attributes)))
        count = 0
        seen: set[tuple[Sample, int]] = set()
        for message in scope.metrics:
            self.messages[message.name] = message
            name = prometheus_name(message)
            points = getattr(message, str(message.WhichOneof("data"))).data_points
            assert points, f"{name} has no points"
            for point in points:
                key = name, labels_of(point.attributes)
                assert (key, point.time_unix_nano) not in seen, f"{key} comes twice"
                seen.add((key, point.time_unix_nano))
                self._add_point(key, point)
                count += 1
        return count

    def _add_point(self, key: Sample, point: Any) -> None:
        name, labels = key
        values = (
            _histogram(name, labels, point)
            if isinstance(point, metrics_pb2.HistogramDataPoint)
            else {key: _value(point)}
        )
        if point.flags & metrics_pb2.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK:
            assert key in self.points, f"{key} ends before it has a value"
            assert isinstance(point, metrics_pb2.HistogramDataPoint) or not point.WhichOneof(
                "value"
            )
            self.ended.append(key)
            last = self.points.pop(key)
            gone = _histogram(name, labels, last) if last.DESCRIPTOR.name[0] == "H" else [key]
            for sample in gone:
                del self.samples[sample]
            return
        self.points[key] = point
        self.samples |= values


def _value(point: metrics_pb2.NumberDataPoint) -> float:
    return point.as_int if point.WhichOneof("value") == "as_int" else point.as_double


def _histogram(
    name: str, labels: frozenset[tuple[str, str]], point: metrics_pb2.HistogramDataPoint
) -> dict[Sample, float]:
    samples: dict[Sample, float] = {
        (f"{name}_sum", labels): point.sum,
        (f"{name}_count", labels): point.count,
    }
    total = 0
    bounds = [*map(repr, point.explicit_bounds), "+Inf"]
    for bound, count in zip(bounds, point.bucket_counts or [0] * len(bounds), strict=True):
        total += count
        samples[f"{name}_bucket", labels | {("le", bound)}] = total
    return samples
