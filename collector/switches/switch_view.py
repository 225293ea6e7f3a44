"""Current readings of switches, from the fleet: cells of the metrics endpoint.

Readings are taken from the fleet on the event loop, as they change there; everything that follows may run in a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from collector.fleet.fleet import SWITCH_PREFIX
from collector.fleet.schema_columns import columns_of
from collector.fleet.view_cells import ViewCell
from collector.state.collector_state import CollectorState
from railscope.catalog import INFO, METRICS
from railscope.catalog.declare import Metric, MetricKind
from railscope.reading import PRESENT, REASONS, Absent, Reading, from_stored
from railscope.wire import WireEntity, WireSchema


class StreamSnapshot(NamedTuple):
    """Last frame of one stream of a switch."""

    schema: WireSchema
    values: list[int]
    codes: list[int]
    timestamp_ns: int

    def readings(self) -> Iterator[tuple[Metric, WireEntity, Reading]]:
        """Yield all readings of metrics in the catalog; counters are exact."""
        for column, group, member in columns_of(self.schema):
            metric = METRICS.get(group.metric)
            if metric is None:
                continue
            reading: Reading = REASONS.get(self.codes[column], Absent.ERROR)
            if self.codes[column] == PRESENT:
                is_counter = metric.kind is MetricKind.COUNTER
                reading = from_stored(self.values[column], counter=is_counter)
            yield metric, self.schema.entities[member], reading


SwitchSnapshot = Mapping[str, StreamSnapshot]
"""Last frames of a switch, by stream."""


def take_snapshot(core: CollectorState, switch: str) -> SwitchSnapshot:
    """Return the last frames of a switch; none if it has never reported."""
    node = core.fleet.switches.get(SWITCH_PREFIX + switch)
    return {
        stream: StreamSnapshot(
            core.schemas.read(row.schema),
            row.block.values_of(row.index).tolist(),
            row.block.reasons_of(row.index).tolist(),
            row.timestamp_ns,
        )
        for stream, row in (node.rows.items() if node else ())
    }


def reading_cells(snapshots: Iterable[SwitchSnapshot]) -> Iterator[ViewCell]:
    """Yield the readings of switches that have a value, and their facts."""
    for snapshot in snapshots:
        for stream in snapshot.values():
            for metric, entity, reading in stream.readings():
                if not isinstance(reading, Absent):
                    yield ViewCell(metric, entity.key, in_units(metric, reading))
            for entity in stream.schema.entities:
                info = INFO.get(entity.kind)
                if info and entity.facts:
                    facts = tuple(entity.facts.get(name, "") for name in info.about.facts)
                    yield ViewCell(info, (*entity.key, *facts), 1)


def in_units(metric: Metric, value: int) -> int | float:
    """Return a stored value in base units; an integer stays exact."""
    numerator, denominator = metric.scale.as_integer_ratio()
    return value * numerator if denominator == 1 else value * numerator / denominator
