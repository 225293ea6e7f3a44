"""Pushes of a switch: values by OTLP or of a protocol of a manufacturer, and the readings that they become.

A push may have a part of the columns that the switch has sent before; the others have the reason "not due". A column
that has not been sent for an hour ends, a neighbour after five minutes: a cable may have been moved. Values have the time at which they arrived; the switch's own time orders them,
so that a repeated request, or one that was overtaken, changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from railscope import otlp_metrics
from railscope.catalog import switches as catalog
from railscope.catalog.declare import MetricKind
from railscope.frame import Column, Entity, NodeTimestamp
from railscope.reading import Absent, Reading
from railscope.timestamps import HOUR_NS, SECOND_NS
from railscope_collector.switches import cumulus_metrics as cumulus, switch_frames, switch_reading
from railscope_collector.switches.cumulus_metrics import PointResult

MAX_COLUMNS = 20_000
"""Columns of one stream, as of a schema."""
MAX_UNMAPPED = 500
"""Names of metrics without use that are counted by name, for each switch; others are counted as one."""
OTHER_NAMES = "(others)"
REJECTED = (PointResult.INVALID, PointResult.INEXACT, PointResult.DELTA, PointResult.LIMIT)
"""Results that are reported to the sender: an old point was stored before, and an unmapped one is dropped on purpose."""
MAX_OFFSET_NS = 60 * SECOND_NS
FORGOTTEN_NS = HOUR_NS
_NEIGHBOUR_FORGOTTEN_NS = 300 * SECOND_NS
_REPLACED_NS = 300 * SECOND_NS
"""A column that was not accepted for this time is accepted with any time: the clock of the switch was set back."""
ColumnKey = tuple[str, tuple[str, ...]]


class PushedColumn(NamedTuple):
    """Last accepted value of a column, with the sender's time and time of arrival."""

    name: str
    """Name of the pushed metric."""
    column: Column
    stream: str
    value: Reading
    timestamp_ns: int
    boot_ns: int
    parts: int = 1
    """Values of one time whose sum is the value of the column."""


class PushedValues(NamedTuple):
    """Values of one request as its protocol states them, with the counts of those that are not values."""

    columns: Sequence[PushedColumn]
    results: Counter[PointResult]
    unmapped: Counter[str]
    newest_ns: int
    """Newest time of the sender; 0 without one."""
    names: frozenset[str] = frozenset()
    """Names that the sender states of itself."""


class DecodedPush(NamedTuple):
    """Readings of one request, which `SwitchPushes.keep` adds to what is known once they are stored."""

    reading: switch_reading.SwitchReading
    columns: dict[ColumnKey, PushedColumn]
    results: Counter[PointResult]
    unmapped: Counter[str]
    offset_ns: int | None
    """Newest time of the sender, relative to the collector's; None without one."""
    has_reset: bool
    has_other_name: bool

    @property
    def rejected(self) -> dict[str, int]:
        """Number of points that were not stored, by reason."""
        return {name.value: self.results[name] for name in REJECTED}


@dataclass(slots=True)
class SwitchPushes:
    """State of one switch that pushes: its columns, and counts of its points."""

    name: str
    frames: switch_frames.SwitchFrames
    columns: dict[ColumnKey, PushedColumn] = field(default_factory=dict)
    results: Counter[PointResult] = field(default_factory=Counter)
    unmapped: Counter[str] = field(default_factory=Counter)
    resets: int = 0
    name_mismatches: int = 0
    offset_ns: int | None = None
    last_ns: int = 0
    """Time of the last push with readings that were stored."""

    def decode(self, request: otlp_metrics.MetricsRequest, now: NodeTimestamp) -> DecodedPush:
        """Return the readings of a request by OTLP; nothing is changed."""
        return self.accept(_otlp_values(self.name, request, now), now)

    def accept(self, values: PushedValues, now: NodeTimestamp) -> DecodedPush:
        """Return the readings of values that are new; nothing is changed."""
        results = Counter(values.results)
        found: dict[ColumnKey, list[PushedColumn]] = {}
        widths = Counter(pushed.stream for pushed in self.columns.values())
        for pushed in values.columns:
            key = pushed.column[0].name, pushed.column[1].key
            before = self.columns.get(key)
            if before and _is_old(pushed, before, now):
                results[PointResult.OLD] += 1
                continue
            if key not in found and before is None:
                # A switch invents ports and queues at no cost: without the bound it would fill the memory.
                if widths[pushed.stream] >= MAX_COLUMNS:
                    results[PointResult.LIMIT] += 1
                    continue
                widths[pushed.stream] += 1
            if before and before.column == pushed.column:
                # An identical one makes comparisons of schemas fast.
                found.setdefault(key, []).append(pushed._replace(column=before.column))
            else:
                found.setdefault(key, []).append(pushed)
        columns = self._merge(found, results)
        offset_ns = values.newest_ns - now.wall_ns if values.newest_ns else None
        return DecodedPush(
            self._reading(columns, offset_ns, now),
            columns,
            results,
            values.unmapped,
            offset_ns,
            has_reset=any(map(self._has_fallen, columns.items())),
            has_other_name=bool(values.names - {self.name}),
        )

    def _merge(
        self, found: dict[ColumnKey, list[PushedColumn]], results: Counter[PointResult]
    ) -> dict[ColumnKey, PushedColumn]:
        """Return one value for each column: the newest, or the sum of the parts of one time."""
        merged = {}
        for key, pushed in found.items():
            newest_ns = max(each.timestamp_ns for each in pushed)
            # Parts of one time only: a sum of values of different times is no value of the counter.
            newest = [each for each in pushed if each.timestamp_ns == newest_ns]
            parts = newest[0].parts
            results[PointResult.OLD] += len(pushed) - len(newest)
            if parts == 1:
                merged[key] = newest[-1]
            else:
                values = [each.value for each in newest if isinstance(each.value, int)]
                names = {each.name for each in newest}
                is_complete = len(names) == len(values) == len(newest) == parts
                merged[key] = newest[0]._replace(value=sum(values) if is_complete else Absent.ERROR)
            results[PointResult.STORED] += len(newest)
        return merged

    def _reading(
        self, columns: dict[ColumnKey, PushedColumn], offset_ns: int | None, now: NodeTimestamp
    ) -> switch_reading.SwitchReading:
        """Return the readings of the streams of which a push has columns."""
        streams_of_push = {pushed.stream for pushed in columns.values()}
        streams: dict[str, switch_reading.StreamReadings] = {
            stream: [] for stream in streams_of_push
        }
        for key, pushed in (self.columns | columns).items():
            if pushed.stream in streams_of_push and _is_kept(pushed, now):
                # The former value is not repeated: it would look as if the switch had sent it again.
                value = pushed.value if key in columns else Absent.NOT_DUE
                streams[pushed.stream].append((pushed.column, value))
        if streams_of_push:
            offset = Absent.UNSUPPORTED if offset_ns is None else offset_ns
            switch = Entity(catalog.CLOCK_OFFSET.about, (self.name,))
            streams[switch_reading.SWITCH] = [((catalog.CLOCK_OFFSET, switch), offset)]
        return switch_reading.SwitchReading(streams)

    def _has_fallen(self, item: tuple[ColumnKey, PushedColumn]) -> bool:
        key, pushed = item
        before = self.columns.get(key)
        if before is None or pushed.column[0].kind is not MetricKind.COUNTER:
            return False
        values = pushed.value, before.value
        return isinstance(values[0], int) and isinstance(values[1], int) and values[0] < values[1]

    def keep(self, push: DecodedPush, now: NodeTimestamp) -> list[str]:
        """Add a push that was stored to what is known; return names of metrics without use that are new."""
        added = []
        self.columns.update(push.columns)
        self.columns = {
            key: pushed for key, pushed in self.columns.items() if _is_kept(pushed, now)
        }
        self.results += push.results
        for name, count in push.unmapped.items():
            if name not in self.unmapped and len(self.unmapped) < MAX_UNMAPPED:
                added.append(name)
            is_counted = name in self.unmapped or name in added
            self.unmapped[name if is_counted else OTHER_NAMES] += count
        self.resets += push.has_reset
        self.name_mismatches += push.has_other_name
        if push.columns:
            self.offset_ns, self.last_ns = push.offset_ns, now.wall_ns
        return added


def _otlp_values(
    switch: str, request: otlp_metrics.MetricsRequest, now: NodeTimestamp
) -> PushedValues:
    """Return the values of a request by OTLP."""
    unmapped = Counter[str]()
    results = Counter({
        PointResult.LIMIT: request.excessive,
        PointResult.INVALID: request.invalid,
        PointResult.DELTA: request.increments,
    })  # fmt: skip
    columns: list[PushedColumn] = []
    newest_ns = 0
    for point in (each for resource in request.resources for each in resource.points):
        metric = cumulus.METRICS.get(point.name)
        if metric is None or point.kind not in otlp_metrics.NUMBER_KINDS:
            results[PointResult.UNMAPPED] += 1
            unmapped[point.name] += 1
            continue
        newest_ns = max(newest_ns, point.timestamp_ns)
        column = cumulus.find_column(switch, metric, point.attributes)
        value = cumulus.read_value(metric, point) if column else PointResult.INVALID
        if column is None or isinstance(value, PointResult):
            results[value if isinstance(value, PointResult) else PointResult.INVALID] += 1
            continue
        stream, parts = cumulus.KINDS[metric.about].stream, cumulus.PARTS[metric]
        times = point.timestamp_ns, now.boot_ns
        columns.append(PushedColumn(point.name, column, stream, value, *times, parts))
    names = {each.attributes.get(cumulus.HOST_NAME, "") for each in request.resources} - {""}
    return PushedValues(columns, results, unmapped, newest_ns, frozenset(names))


def _is_old(pushed: PushedColumn, before: PushedColumn, now: NodeTimestamp) -> bool:
    """True if a value is not newer than the one before; 0: the sender states no time."""
    is_replaced = now.boot_ns >= before.boot_ns + _REPLACED_NS
    return 0 < pushed.timestamp_ns <= before.timestamp_ns and not is_replaced


def _is_kept(pushed: PushedColumn, now: NodeTimestamp) -> bool:
    """True if a column was sent recently."""
    is_neighbour = pushed.stream == switch_reading.NEIGHBOURS
    limit_ns = _NEIGHBOUR_FORGOTTEN_NS if is_neighbour else FORGOTTEN_NS
    return now.boot_ns - pushed.boot_ns < limit_ns
