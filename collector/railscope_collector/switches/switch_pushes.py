"""Pushes of a switch by OTLP, and the readings that they become: those of a poll that reads a part of the switch.

A push may have a part of the columns that the switch has sent before; the others have the reason "not due". A column
that has not been sent for an hour ends, a neighbour after five minutes: a cable may have been moved. Values have the time
at which they arrived; the switch's own time orders them, so that a repeated request, or one that was overtaken, changes
nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
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
_FORGOTTEN_NS, _NEIGHBOUR_FORGOTTEN_NS = HOUR_NS, 300 * SECOND_NS
_REPLACED_NS = 300 * SECOND_NS
"""A column that was not accepted for this time is accepted with any time: the clock of the switch was set back."""
ColumnKey = tuple[str, tuple[str, ...]]


class PushedColumn(NamedTuple):
    """Last accepted value of a column, with the sender's time and time of arrival."""

    name: str
    """Name of the pushed metric."""
    column: Column
    value: Reading
    timestamp_ns: int
    """Time of the sender; 0 if it states none."""
    boot_ns: int

    @property
    def stream(self) -> str:
        """Stream that has the column."""
        return cumulus.KINDS[self.column[0].about].stream

    def is_old(self, before: PushedColumn) -> bool:
        """True if the value is not newer than the one before."""
        is_replaced = self.boot_ns >= before.boot_ns + _REPLACED_NS
        return 0 < self.timestamp_ns <= before.timestamp_ns and not is_replaced

    def is_kept(self, now: NodeTimestamp) -> bool:
        """True if the column was sent recently."""
        is_neighbour = self.stream == switch_reading.NEIGHBOURS
        limit_ns = _NEIGHBOUR_FORGOTTEN_NS if is_neighbour else _FORGOTTEN_NS
        return now.boot_ns - self.boot_ns < limit_ns

    def has_fallen(self, before: PushedColumn | None) -> bool:
        """True for a counter below the one before."""
        if before is None or self.column[0].kind is not MetricKind.COUNTER:
            return False
        values = self.value, before.value
        return isinstance(values[0], int) and isinstance(values[1], int) and values[0] < values[1]


class DecodedPush(NamedTuple):
    """Readings of one request, which `SwitchPushes.keep` adds to what is known once they are stored."""

    reading: switch_reading.SwitchReading
    columns: Mapping[ColumnKey, PushedColumn]
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
        """Return the readings of a request; nothing is changed."""
        results = Counter(
            {PointResult.LIMIT: request.excessive, PointResult.DELTA: request.increments}
        )
        unmapped, newest_ns = Counter[str](), 0
        found: dict[ColumnKey, list[PushedColumn]] = defaultdict(list)
        widths = Counter(pushed.stream for pushed in self.columns.values())
        for point in (each for resource in request.resources for each in resource.points):
            result = self._accept(point, now, found, widths)
            results[result] += 1
            if result is PointResult.UNMAPPED:
                unmapped[point.name] += 1
            else:
                newest_ns = max(newest_ns, point.timestamp_ns)
        columns = {key: _merge(pushed, results) for key, pushed in found.items()}
        offset_ns = newest_ns - now.wall_ns if newest_ns else None
        names = {each.attributes.get(cumulus.HOST_NAME, "") for each in request.resources}
        return DecodedPush(
            self._reading(columns, offset_ns, now),
            columns,
            results,
            unmapped,
            offset_ns,
            has_reset=any(each.has_fallen(self.columns.get(key)) for key, each in columns.items()),
            has_other_name=bool(names - {"", self.name}),
        )

    def _accept(
        self,
        point: otlp_metrics.MetricPoint,
        now: NodeTimestamp,
        found: dict[ColumnKey, list[PushedColumn]],
        widths: Counter[str],
    ) -> PointResult:
        """Add the value of a point to those of its column, if it is new."""
        value = cumulus.read_point(self.name, point)
        if isinstance(value, PointResult):
            return value
        column, reading = value
        pushed = PushedColumn(point.name, column, reading, point.timestamp_ns, now.boot_ns)
        key = column[0].name, column[1].key
        before = self.columns.get(key)
        if before and pushed.is_old(before):
            return PointResult.OLD
        if before is None and key not in found:
            # A switch invents ports and queues at no cost: without the bound it would fill the memory.
            if widths[pushed.stream] >= MAX_COLUMNS:
                return PointResult.LIMIT
            widths[pushed.stream] += 1
        if before and before.column == column:
            # An identical one makes comparisons of schemas fast.
            pushed = pushed._replace(column=before.column)
        found[key].append(pushed)
        return PointResult.STORED

    def _reading(
        self,
        columns: Mapping[ColumnKey, PushedColumn],
        offset_ns: int | None,
        now: NodeTimestamp,
    ) -> switch_reading.SwitchReading:
        """Return the readings of the streams of which a push has columns."""
        streams: dict[str, switch_reading.StreamReadings] = {
            pushed.stream: [] for pushed in columns.values()
        }
        for key, pushed in {**self.columns, **columns}.items():
            if pushed.stream in streams and pushed.is_kept(now):
                # The former value is not repeated: it would look as if the switch had sent it again.
                value = pushed.value if key in columns else Absent.NOT_DUE
                streams[pushed.stream].append((pushed.column, value))
        if streams:
            offset = Absent.UNSUPPORTED if offset_ns is None else offset_ns
            switch = Entity(catalog.CLOCK_OFFSET.about, (self.name,))
            streams[switch_reading.SWITCH] = [((catalog.CLOCK_OFFSET, switch), offset)]
        return switch_reading.SwitchReading(streams)

    def keep(self, push: DecodedPush, now: NodeTimestamp) -> list[str]:
        """Add a push that was stored to what is known; return names of metrics without use that are new."""
        known = {**self.columns, **push.columns}
        self.columns = {key: pushed for key, pushed in known.items() if pushed.is_kept(now)}
        self.results += push.results
        added = [name for name in push.unmapped if name not in self.unmapped]
        added = added[: max(MAX_UNMAPPED - len(self.unmapped), 0)]
        for name, count in push.unmapped.items():
            is_counted = name in self.unmapped or name in added
            self.unmapped[name if is_counted else OTHER_NAMES] += count
        self.resets += push.has_reset
        self.name_mismatches += push.has_other_name
        if push.columns:
            self.offset_ns, self.last_ns = push.offset_ns, now.wall_ns
        return added


def _merge(pushed: Sequence[PushedColumn], results: Counter[PointResult]) -> PushedColumn:
    """Return one value for a column: the newest, or the sum of the parts of one time."""
    newest_ns = max(each.timestamp_ns for each in pushed)
    # Parts of one time only: a sum of values of different times is no value of the counter.
    newest = [each for each in pushed if each.timestamp_ns == newest_ns]
    overtaken = len(pushed) - len(newest)
    results.update({PointResult.OLD: overtaken, PointResult.STORED: -overtaken})
    parts = cumulus.PARTS[newest[0].column[0]]
    if parts == 1:
        return newest[-1]
    values = [each.value for each in newest if isinstance(each.value, int)]
    names = {each.name for each in newest}
    is_complete = len(names) == len(values) == len(newest) == parts
    return newest[0]._replace(value=sum(values) if is_complete else Absent.ERROR)
