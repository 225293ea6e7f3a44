"""Increases of counters over one interval, from the frames of a node or switch in the frame log; integers throughout."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from railscope import reading, wire
from railscope.timestamps import SECOND_NS
from railscope_collector.console.curves import TimeRange
from railscope_collector.console.stored_frames import StoredFrames
from railscope_collector.fleet import schema_columns

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
    frames: StoredFrames,
    node: str,
    metrics: Collection[str],
    period: TimeRange,
    selects: Callable[[tuple[str, ...]], bool],
) -> StoredCounters:
    """Return the readings of counters of a node in a period: of entities with selected keys. Blocking; raises OSError."""

    def choose(schema: wire.WireSchema) -> Iterator[tuple[int, CounterKey]]:
        for column, group, member in schema_columns.columns_of(schema):
            key = schema.entities[member].key
            if group.metric in metrics and selects(key):
                yield column, (group.metric, key)

    readings: dict[CounterKey, dict[int, int]] = defaultdict(dict)
    for batch in frames.read(node, period, choose).batches:
        rows = zip(
            batch.times_ns.tolist(), batch.values.tolist(), batch.codes.tolist(), strict=True
        )
        for timestamp_ns, values, codes in rows:
            for key, value, code in zip(batch.columns, values, codes, strict=True):
                if code == reading.PRESENT:
                    readings[key][timestamp_ns] = reading.from_stored(value, counter=True)
    within = {
        key: [
            CounterSample(*each)
            for each in sorted(values.items())
            if period.from_ns <= each[0] <= period.to_ns
        ]
        for key, values in readings.items()
    }
    return StoredCounters({key: found for key, found in within.items() if found})
