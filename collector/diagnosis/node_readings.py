"""Readings of nodes: batches of frames become sums of quantities, by device and slot.

The columns of a schema that quantities use are determined once. Counters contribute their increases between two
readings that are at most MAX_STEP_SECONDS apart on the node's boot clock; a decrease is a reset, and
contributes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collector.diagnosis.devices import NO_POSITION, ClusterDevices, ClusterNode
from collector.diagnosis.quantities import QUANTITIES, DeviceKind, Quantity, QuantityKind
from collector.diagnosis.slot_sums import Floats, Positions
from collector.diagnosis.step_period import TrafficTraces
from collector.fleet.sheets import Integers, rows_at
from railscope.catalog import KINDS
from railscope.reading import PRESENT
from railscope.timestamps import SECOND_NS
from railscope.wire import Batch, WireEntity, WireEvent, WireSchema, part_of_key

MAX_STEP_SECONDS = 60.0

_BY_METRIC: dict[str, list[Quantity]] = defaultdict(list)
for _quantity in QUANTITIES.values():
    _BY_METRIC[_quantity.metric].append(_quantity)

Clock = Callable[[int], int]
"""Converts a time of a node's wall clock to the collector's clock."""

FindSchema = Callable[[bytes], WireSchema]
"""Returns a schema by its hash. Called when the schema of a source changes."""


class NodeEvent(NamedTuple):
    """An event of a node, at a time of the collector's clock."""

    timestamp_ns: int
    node: str
    event: WireEvent


@dataclass(frozen=True, slots=True, eq=False)
class _Segments:
    """Columns of quantities of one kind of device, in order; each segment is one quantity of one device.

    `columns` and `scales` have the shape (columns,), the rest the shape (segments,).
    """

    device: DeviceKind
    kind: QuantityKind
    columns: Positions
    scales: Floats
    starts: Positions
    quantities: Positions
    devices: Positions


@dataclass(slots=True)
class _Stream:
    """A stream of a node: the columns of its schema, and its last row."""

    schema: bytes
    segments: tuple[_Segments, ...]
    width: int
    names: int
    """Names of the node's devices when the segments were determined; with more, more columns may be of use."""
    run: str = ""
    boot_ns: int = 0
    values: Integers | None = None
    present: np.ndarray[tuple[int], np.dtype[np.bool_]] | None = None


class ReadingsCollector:
    """Adds the frames of all nodes to the sums of their devices."""

    def __init__(self, devices: ClusterDevices, first_ns: int, slot_ns: int) -> None:
        self.devices = devices
        self._first_ns, self._slot_ns = first_ns, slot_ns
        self._streams: dict[tuple[str, str], _Stream] = {}
        sums = devices.sums[DeviceKind.NIC]
        self.traces = TrafficTraces(sums.slots * slot_ns // SECOND_NS)
        self._traced = sums.index["rdma_sent_bytes"]
        self.sample_slots: dict[str, set[int]] = defaultdict(set)

    def slot_of(self, timestamp_ns: int) -> int:
        """Return the slot that contains a time of the collector's clock."""
        return (timestamp_ns - self._first_ns) // self._slot_ns

    def add(
        self, node_name: str, run: str, batch: Batch, find_schema: FindSchema, clock: Clock
    ) -> Iterator[NodeEvent]:
        """Add a batch; yield its events."""
        node = self.devices.node(node_name)
        key = (node_name, batch.stream)
        stream = self._streams.get(key)
        is_changed = stream is None or stream.schema != batch.schema
        if stream is None or is_changed or stream.names != node.names:
            schema = find_schema(batch.schema)
            if is_changed:
                self.devices.add_entities(node, schema.entities)
            segments = tuple(_segments(self.devices, node, schema))
            width = sum(len(group.entities) for group in schema.groups)
            stream = self._streams[key] = _Stream(batch.schema, segments, width, node.names)
        times_ns = [clock(wall_ns) for wall_ns in batch.wall_ns]
        slots = np.array([self.slot_of(each) for each in times_ns], np.intp)
        self.sample_slots[node_name].update(slots.tolist())
        times = np.array([(each - self._first_ns) // SECOND_NS for each in times_ns], np.intp)
        self._add_rows(stream, run, batch, slots, times)
        for event in batch.events:
            yield NodeEvent(clock(event.wall_ns), node_name, event)

    def _add_rows(
        self, stream: _Stream, run: str, batch: Batch, slots: Positions, times: Positions
    ) -> None:
        if not stream.segments:
            return
        columns = np.concatenate([each.columns for each in stream.segments])
        values = rows_at(batch, range(batch.rows), columns, stream.width)
        reasons = _reasons(batch, stream.width, columns)
        present = reasons == PRESENT
        boot_ns = np.array(batch.boot_ns, np.int64)
        if stream.run == run and stream.values is not None and stream.present is not None:
            before = stream.values[None], stream.present[None], stream.boot_ns
        else:
            before = values[:1], np.zeros_like(present[:1]), boot_ns[0]
        seconds = np.diff(boot_ns, prepend=before[2]) / SECOND_NS
        steps = np.diff(values, axis=0, prepend=before[0])
        both = present & np.concatenate([before[1], present[:-1]])
        both &= (steps >= 0) & ((seconds > 0) & (seconds <= MAX_STEP_SECONDS))[:, None]
        offset, ones = 0, np.ones(batch.rows)
        for part in stream.segments:
            span = slice(offset, offset + len(part.columns))
            offset += len(part.columns)
            if part.kind is QuantityKind.COUNTER:
                sums, has = self._add_part(part, slots, steps[:, span], both[:, span], seconds)
                if part.device is DeviceKind.NIC:
                    traced = part.quantities == self._traced
                    if traced.any():
                        devices = part.devices[traced]
                        self.traces.add(times, seconds, devices, sums[:, traced], has[:, traced])
            elif part.kind is QuantityKind.ABSENCE:
                absent = reasons[:, span].astype(np.int64)
                self._add_part(part, slots, absent, absent != PRESENT, ones)
            else:
                self._add_part(part, slots, values[:, span], present[:, span], ones)
        stream.run, stream.boot_ns = run, int(boot_ns[-1])
        stream.values, stream.present = values[-1], present[-1]

    def _add_part(
        self,
        part: _Segments,
        slots: Positions,
        values: Integers,
        valid: np.ndarray[tuple[int, int], np.dtype[np.bool_]],
        weights: Floats,
    ) -> tuple[Floats, NDArray[np.bool_]]:
        """Add the columns of one kind to the sums; return the sums by row, and which are known."""
        scaled = np.where(valid, values * part.scales, 0.0)
        sums = np.add.reduceat(scaled, part.starts, axis=1)
        has = np.logical_or.reduceat(valid, part.starts, axis=1)
        sink = self.devices.sums[part.device]
        sink.add(part.quantities, slots, part.devices, sums, has * weights[:, None])
        return sums, has


def _reasons(
    batch: Batch, width: int, columns: Positions
) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """Return the codes of the reasons, shape (rows, columns)."""
    if not batch.reasons:
        return np.full((batch.rows, len(columns)), PRESENT, np.uint8)
    reasons = np.frombuffer(batch.reasons, np.uint8).reshape(-1, width)[:, columns]
    return np.repeat(reasons, batch.rows, axis=0) if len(reasons) < batch.rows else reasons


def _segments(
    devices: ClusterDevices, node: ClusterNode, schema: WireSchema
) -> Iterator[_Segments]:
    """Yield the columns of a schema that quantities use, by kind of device and of quantity."""
    found: dict[tuple[DeviceKind, QuantityKind], list[tuple[int, int, int, float]]]
    found = defaultdict(list)
    start = 0
    for group in schema.groups:
        scale = group.scale[0] / group.scale[1]
        for quantity in _BY_METRIC.get(group.metric, ()):
            index = devices.sums[quantity.device].index[quantity.name]
            for column, entity in enumerate((schema.entities[m] for m in group.entities), start):
                if not quantity.selects(_part(entity)):
                    continue
                position = devices.position(node, quantity.device, entity)
                if position != NO_POSITION:
                    key = quantity.device, quantity.kind
                    is_code = quantity.kind is QuantityKind.ABSENCE
                    found[key].append((index, position, column, 1.0 if is_code else scale))
        start += len(group.entities)
    for (device, kind), rows in found.items():
        yield _make_segments(device, kind, sorted(rows))


def _part(entity: WireEntity) -> Sequence[str]:
    """Return the part of its device that an entity is."""
    kind = KINDS.get(entity.kind)
    return part_of_key(entity) if kind else ()


def _make_segments(
    device: DeviceKind, kind: QuantityKind, rows: Iterable[tuple[int, int, int, float]]
) -> _Segments:
    quantities, positions, columns, scales = map(np.array, zip(*rows, strict=True))
    changes = (np.diff(quantities) != 0) | (np.diff(positions) != 0)
    starts = np.flatnonzero(np.concatenate([[True], changes]))
    return _Segments(device, kind, columns, scales, starts, quantities[starts], positions[starts])
