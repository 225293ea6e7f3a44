"""OTLP requests with the metrics of a node.

Each metric of a schema is serialized as a `ScopeMetrics` without its scope. Protobuf merges messages that are concatenated,
so that a request has only the metrics of sources that were read since the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from railscope import otlp_points
from railscope.catalog import INFO, declare, entities
from railscope.exposition import EVERYTHING, MetricSelection
from railscope.frame import Frame, Schema
from railscope.otlp_points import (
    CounterStarts,
    InfoMetric,
    NumberMetric,
    SeriesKey,
)
from railscope_agent.otlp import hardware_names
from railscope_agent.otlp.textfile_metrics import TextfileMetrics

MAX_BODY_BYTES = 4 << 20
"""Size before compression above which an export is divided into several requests."""


class MessageBatch(NamedTuple):
    """Serialized message, and the number of its points or log records."""

    body: bytes
    size: int


@dataclass(slots=True)
class SourceMetrics:
    """Metrics of one source, in its present schema."""

    schema: Schema
    metrics: list[NumberMetric | TextfileMetrics]
    infos: list[InfoMetric] = field(default_factory=list)
    frame: Frame | None = None
    """Last exported frame; None if the source has ended."""

    @classmethod
    def create(
        cls,
        schema: Schema,
        selection: MetricSelection,
        starts: CounterStarts,
        names: str = "railscope",
    ) -> SourceMetrics:
        """Return the selected metrics of a schema, without points."""
        metrics: list[NumberMetric] = []
        textfiles: list[TextfileMetrics] = []
        first = 0
        for metric, members in schema.groups:
            if metric.kind is declare.MetricKind.INFO or not selection.contains(
                metric, schema.stream
            ):
                pass
            elif metric.about is entities.TEXTFILE_SERIES:
                textfiles = [TextfileMetrics(schema, starts)]
            else:
                described = [schema.entities[member] for member in members]
                named = (metric, first, described, starts)
                found = [] if names == "railscope" else hardware_names.hardware_points(*named)
                # A metric whose convention covers only some entities is exported under its own name as well:
                # none may be lost.
                is_replaced = found and all(points.is_complete for points in found)
                if names != "hardware" or not is_replaced:
                    metrics.append(otlp_points.create_metric(*named))
                metrics += found
            first += len(members)
        return cls(schema, [*metrics, *textfiles])

    def update(self, frame: Frame, ended: dict[SeriesKey, int]) -> Iterator[MessageBatch]:
        """Yield each serialized metric of a frame; add series without a point to those that have ended."""
        self.frame = frame
        for metric in self.metrics:
            before = metric.keys
            if content := metric.update(frame):
                yield MessageBatch(content, len(metric.keys))
            # A new list of keys is created only when series appear or end; comparing the lists themselves
            # would cost each export.
            if metric.keys is not before:
                ended |= dict.fromkeys(before, frame.timestamp.wall_ns)
        for info in self.infos:
            yield MessageBatch(info.update(frame), len(info.keys))

    @property
    def keys(self) -> set[SeriesKey]:
        """Series that have a point."""
        keys = {key for metric in self.metrics for key in metric.keys}
        return keys.union(*(info.keys for info in self.infos))

    def end(self) -> None:
        """Remove all points."""
        for metric in self.metrics:
            metric.end()
        self.frame, self.infos = None, []


class MetricMessages:
    """Requests with the metrics of a node, one after the other."""

    def __init__(
        self,
        resource: Mapping[str, str],
        agent_start_ns: int,
        selection: MetricSelection = EVERYTHING,
        names: str = "railscope",
    ) -> None:
        self._selection, self._names = selection, names
        self._starts = CounterStarts(agent_start_ns)
        self._sources: dict[str, SourceMetrics] = {}
        self._schemas: list[Schema] = []
        schema_url = "" if names == "railscope" else hardware_names.SCHEMA_URL
        self._envelope = otlp_points.RequestEnvelope(resource, schema_url)

    def build(self, frames: Iterable[Frame], now_ns: int) -> list[MessageBatch]:
        """Return requests with the readings since the last call, and the end of series that have none any more.

        `frames` are the latest ones of all sources, in the order of the metrics endpoint. Series of a source without
        a frame end at `now_ns`.
        """
        current = {frame.schema.stream: frame for frame in frames}
        ended: dict[SeriesKey, int] = {}
        for stream, source in self._sources.items():
            if source.frame and stream not in current:
                ended |= dict.fromkeys(source.keys, now_ns)
                source.end()
        for stream, frame in current.items():
            former = self._sources.get(stream)
            if former is None or former.schema != frame.schema:
                if former:
                    # Series that the new schema has too are removed from this list before it is sent.
                    ended |= dict.fromkeys(former.keys, frame.timestamp.wall_ns)
                    former.end()
                self._sources[stream] = SourceMetrics.create(
                    frame.schema, self._selection, self._starts, self._names
                )
            else:
                former.schema = frame.schema  # an identical one makes the next comparison fast
        schemas = [frame.schema for frame in current.values()]
        if schemas != self._schemas:
            ended |= self._place_infos(schemas, now_ns)
            self._schemas = schemas
        metrics = [
            metric
            for stream, frame in current.items()
            # A source that was not read since the last export would only repeat its points.
            if frame is not self._sources[stream].frame
            for metric in self._sources[stream].update(frame, ended)
        ]
        if ended:
            metrics += self._ended_metrics(ended)
        return list(self._requests(metrics))

    def _place_infos(self, schemas: Sequence[Schema], now_ns: int) -> dict[SeriesKey, int]:
        """Assign the facts of each entity to the last source that has them; return the former series."""
        facts: dict[SeriesKey, tuple[str, SeriesKey]] = {}
        for schema in schemas:
            for entity in schema.entities:
                metric = INFO.get(entity.kind.name)
                if metric and entity.facts and self._selection.contains(metric, schema.stream):
                    labels = tuple(zip(entity.kind.labels, entity.key, strict=True))
                    more = tuple((name, entity.facts.get(name, "")) for name in entity.kind.facts)
                    series = SeriesKey(metric, (*labels, *more))
                    # By entity: two sources with facts of one entity must not result in two info series.
                    facts[SeriesKey(metric, labels)] = schema.stream, series
        former = {
            key for source in self._sources.values() for info in source.infos for key in info.keys
        }
        placed: dict[str, dict[Any, list[SeriesKey]]] = {}
        for stream, series in facts.values():
            placed.setdefault(stream, {}).setdefault(series.metric, []).append(series)
        for stream, source in self._sources.items():
            by_metric = placed.get(stream, {})
            source.infos = [InfoMetric(metric, keys) for metric, keys in by_metric.items()]
        return dict.fromkeys(former, now_ns)

    def _ended_metrics(self, ended: Mapping[SeriesKey, int]) -> Iterator[MessageBatch]:
        """Yield metrics with one point without a value for each series that no source has any more."""
        present = set[SeriesKey]().union(*(source.keys for source in self._sources.values()))
        by_metric: dict[Any, list[tuple[SeriesKey, int]]] = {}
        for key, time_ns in ended.items():
            # A series may have moved to another source or schema.
            if key not in present:
                by_metric.setdefault(key.metric, []).append((key, time_ns))
        for metric, keys in by_metric.items():
            labels, times_ns = zip(*((key.labels, time_ns) for key, time_ns in keys), strict=True)
            points = otlp_points.MetricPoints(metric, labels)
            yield MessageBatch(points.end(times_ns), len(keys))

    def _requests(self, metrics: Iterable[MessageBatch]) -> Iterator[MessageBatch]:
        """Yield requests with serialized metrics, each within the bound."""
        contents, length, size = list[bytes](), 0, 0
        for content, points in metrics:
            if size and length + len(content) > MAX_BODY_BYTES:
                yield MessageBatch(self._envelope.request(contents), size)
                contents, length, size = [], 0, 0
            contents.append(content)
            length += len(content)
            size += points
        if size:
            yield MessageBatch(self._envelope.request(contents), size)
