"""OTLP points of the series of textfiles, whose metrics are not in the catalog."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from opentelemetry.proto.metrics.v1 import metrics_pb2

from railscope.catalog.declare import MetricKind
from railscope.frame import Frame, Schema
from railscope.otlp_points import (
    AnyMetric,
    CounterHistory,
    CounterStarts,
    SeriesKey,
    TextfileMetric,
    add_metric,
    attributes,
    set_number,
)
from railscope.textfile_series import TextfileTemplate

_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@lru_cache(maxsize=8192)
def textfile_key(type_: str, help_: str, series: str) -> SeriesKey:
    """Return the identity of a series of a textfile.

    A counter whose name does not end in `_total` would be renamed by the translation to Prometheus: it is a gauge, as
    are the samples of histograms and summaries, each under its own name.
    """
    name, _, labels = series.partition("{")
    is_counter = type_ == "counter" and name.endswith("_total")
    kind = MetricKind.COUNTER if is_counter else MetricKind.GAUGE
    pairs = (
        (label, re.sub(r"\\.", lambda match: _ESCAPES.get(match[0], match[0]), text))
        for label, text in _LABEL.findall(labels)
    )
    return SeriesKey(TextfileMetric(name, kind, help_), tuple(pairs))


class TextfileMetrics:
    """Points of the series of textfiles of a schema."""

    def __init__(self, schema: Schema, starts: CounterStarts) -> None:
        self._template, self._starts = TextfileTemplate(schema), starts
        self._scope, self._points = metrics_pb2.ScopeMetrics(), list[Any]()
        self._values: list[float] = []
        self.keys: list[SeriesKey] = []
        """Series that have a point."""

    def update(self, frame: Frame) -> bytes:
        """Set the points to the values of a frame; return the serialized metrics, empty without points."""
        samples = list(self._template.samples(frame))
        keys = [textfile_key(each.type, each.help, each.series) for each in samples]
        values = [float(each.value) for each in samples]
        read_ns = frame.timestamp.wall_ns
        if keys != self.keys:
            # The starts of the counters are stored first: the new points continue those that remain.
            self.end()
            self._add_points(keys, values, frame)
        for key, point, sample, value, last in zip(
            keys, self._points, samples, values, self._values, strict=True
        ):
            point.time_unix_nano = read_ns
            if key.metric.kind is MetricKind.COUNTER:
                # A counter that decreased was reset.
                start_ns = read_ns if value < last else point.start_time_unix_nano
                point.start_time_unix_nano = min(start_ns, read_ns)
            # As an integer where the file has one: a large counter is not exact as a float.
            is_integer = sample.value.removeprefix("-").isdecimal()
            set_number(point, int(sample.value) if is_integer else value)
        self._values = values
        return self._scope.SerializeToString() if keys else b""

    def end(self) -> None:
        """Remove all points, and store the histories of their counters."""
        for key, point, value in zip(self.keys, self._points, self._values, strict=True):
            if key.metric.kind is MetricKind.COUNTER:
                self._starts.save(key, CounterHistory(point.start_time_unix_nano, value))
        self._scope.Clear()
        self.keys, self._points, self._values = [], [], []

    def _add_points(self, keys: list[SeriesKey], values: list[float], frame: Frame) -> None:
        containers: dict[AnyMetric, Any] = {}
        for key, value in zip(keys, values, strict=True):
            container = containers.get(key.metric)
            if container is None:
                container = containers[key.metric] = add_metric(self._scope, key.metric)
            point = container.add(attributes=attributes(key.labels))
            if key.metric.kind is MetricKind.COUNTER:
                point.start_time_unix_nano = self._starts.start_ns(key, value, frame, 0)
            self._points.append(point)
        self.keys, self._values = keys, values
