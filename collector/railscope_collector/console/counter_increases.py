"""Increases of counters over one interval, from the frames of a node or switch in the frame log; integers throughout."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np

from railscope import envelopes, reading, wire
from railscope.timestamps import SECOND_NS
from railscope_collector.console.curves import TimeRange
from railscope_collector.console.node_history import (
    MAX_BYTES,
    MAX_LATE_NS,
    MAX_RECORDS,
    NodeHistory,
)
from railscope_collector.fleet import schema_columns, sheets

CounterKey: TypeAlias = tuple[str, tuple[str, ...]]
"""Metric, and key of the entity."""
TOLERANCE_NS = 15 * SECOND_NS
"""Time between a bound of an interval and the reading that counts for it, at most."""
NOT_READ = "no reading of it is stored"
NO_START, NO_END = "no reading at the start", "no reading at the end"
FELL = "the counter fell: it was cleared, or its device restarted"


class CounterSample(NamedTuple):
    """Value of a counter at one time, on the collector's clock."""

    timestamp_ns: int
    value: int


@dataclass(frozen=True, slots=True)
class StoredCounters:
    """Readings of counters in order of time."""

    readings: Mapping[CounterKey, Sequence[CounterSample]] = field(default_factory=dict)

    def increase(self, key: CounterKey, interval: TimeRange) -> int | str:
        """Return the increase of a counter between the readings nearest to both ends, or the reason for its absence."""
        found = self.readings.get(key)
        if not found:
            return NOT_READ
        first, last = _nearest(found, interval.from_ns), _nearest(found, interval.to_ns)
        if abs(found[first].timestamp_ns - interval.from_ns) > TOLERANCE_NS:
            return NO_START
        if abs(found[last].timestamp_ns - interval.to_ns) > TOLERANCE_NS or first == last:
            return NO_END
        values = [each.value for each in found[first : last + 1]]
        if any(after < before for before, after in itertools.pairwise(values)):
            return FELL
        return values[-1] - values[0]

    def interval(self, metrics: Collection[str]) -> TimeRange | None:
        """Return the times of the first and the last reading of these metrics; None if they are the same."""
        times = [
            each.timestamp_ns
            for (metric, _), found in self.readings.items()
            if metric in metrics
            for each in (found[0], found[-1])
        ]
        bounds = TimeRange(min(times), max(times)) if times else TimeRange(0, 0)
        return bounds if bounds.from_ns < bounds.to_ns else None


def _nearest(found: Sequence[CounterSample], timestamp_ns: int) -> int:
    after = bisect_left(found, timestamp_ns, key=lambda each: each.timestamp_ns)
    return min(
        (place for place in (after - 1, after) if 0 <= place < len(found)),
        key=lambda place: abs(found[place].timestamp_ns - timestamp_ns),
    )


def read_counters(
    history: NodeHistory,
    node: str,
    metrics: Collection[str],
    period: TimeRange,
    selects: Callable[[tuple[str, ...]], bool],
) -> StoredCounters:
    """Return the readings of counters of a node in a period: of entities with selected keys. Blocking; raises OSError."""
    found = history.records.find(node, period.from_ns, period.to_ns + MAX_LATE_NS, MAX_RECORDS)
    columns: dict[bytes, _CounterColumns] = {}
    readings: dict[CounterKey, dict[int, int]] = defaultdict(dict)
    for record in found.records:
        envelope = envelopes.open_body(record.body, MAX_BYTES).decode_envelope()
        # By the clock since the boot, which is never set, unless the node was restarted before the frames were sent.
        is_same_boot = envelope.boot_id == record.sent.boot_id != ""
        sent_ns = record.sent.boot_ns if is_same_boot else record.sent.wall_ns
        for batch in envelope.batches:
            if batch.schema not in columns:
                columns[batch.schema] = _CounterColumns.find(
                    history, batch.schema, metrics, selects
                )
            clocks_ns = batch.boot_ns if is_same_boot else batch.wall_ns
            times_ns = [record.received_wall_ns - max(sent_ns - clock, 0) for clock in clocks_ns]
            for key, row, value in columns[batch.schema].values(batch):
                readings[key][times_ns[row]] = value
    within = {
        key: [
            CounterSample(*each)
            for each in sorted(values.items())
            if period.from_ns <= each[0] <= period.to_ns
        ]
        for key, values in readings.items()
    }
    return StoredCounters({key: found for key, found in within.items() if found})


class _CounterColumns(NamedTuple):
    """The columns of a schema with these counters."""

    width: int
    positions: sheets.Integers
    keys: Sequence[CounterKey]

    @classmethod
    def find(
        cls,
        history: NodeHistory,
        digest: bytes,
        metrics: Collection[str],
        selects: Callable[[tuple[str, ...]], bool],
    ) -> _CounterColumns:
        try:
            schema = history.find_schema(digest)
        except OSError:  # no longer stored: its frames have no reading of any counter
            return cls(0, np.zeros(0, np.int64), ())
        found = [
            (column, (group.metric, schema.entities[member].key))
            for column, group, member in schema_columns.columns_of(schema)
            if group.metric in metrics and selects(schema.entities[member].key)
        ]
        width = sum(len(group.entities) for group in schema.groups)
        positions = np.array([column for column, _ in found], np.int64)
        return cls(width, positions, [key for _, key in found])

    def values(self, batch: wire.Batch) -> list[tuple[CounterKey, int, int]]:
        """Return key, row and value of each present reading of a batch."""
        if not self.keys:
            return []
        rows = sheets.rows_at(batch, range(batch.rows), self.positions, self.width).tolist()
        codes = sheets.reasons(batch, self.width)[:, self.positions]
        codes = np.broadcast_to(codes, (batch.rows, len(self.keys))).tolist()
        return [
            (key, row, reading.from_stored(values[column], counter=True))
            for row, values in enumerate(rows)
            for column, key in enumerate(self.keys)
            if codes[row][column] == reading.PRESENT
        ]
