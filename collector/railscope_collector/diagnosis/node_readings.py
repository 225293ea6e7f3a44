"""Readings of nodes: batches of frames become sums of quantities, by device and slot.

The columns of a schema that quantities use are determined once. Counters contribute their increases between two
readings that are at most MAX_STEP_SECONDS apart on the node's boot clock; a decrease is a reset, and
contributes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from railscope.reading import PRESENT
from railscope.timestamps import SECOND_NS
from railscope.wire import Batch, WireEntity, WireEvent, WireSchema
from railscope_collector.diagnosis import stream_columns
from railscope_collector.diagnosis.devices import MAX_FACT, ClusterDevices
from railscope_collector.diagnosis.quantities import DeviceKind, QuantityKind
from railscope_collector.diagnosis.slot_sums import REPLACED_KINDS, Floats, Positions
from railscope_collector.diagnosis.step_period import TrafficTraces
from railscope_collector.fleet.fleet import SWITCH_PREFIX
from railscope_collector.fleet.sheets import Codes, Integers, first_rows, read_delays_ns

MAX_STEP_SECONDS, MAX_SWITCH_STEP_SECONDS = 60.0, 200.0
MAX_STREAMS_PER_NODE = 256
MAX_WAITING = 32
"""Batches that are added together; more need more memory, and save no time."""

_Flags: TypeAlias = NDArray[np.bool_]

Clock = Callable[[int], int]
"""Converts a time of a node's wall clock to the collector's clock."""

FindSchema = Callable[[bytes], WireSchema]
"""Returns a schema by its hash. Called when the schema of a source changes."""

FaultHandler = Callable[[str, Exception], None]
"""Receives a failure with the name of the part that failed, so that the others continue."""


def raise_fault(_part: str, fault: Exception) -> None:
    """Raise the failure of a part: nothing continues."""
    raise fault


class NodeEvent(NamedTuple):
    """An event of a node, at a time of the collector's clock, and the time of the sample that read it, if it is later."""

    timestamp_ns: int
    node: str
    event: WireEvent
    read_ns: int = 0

    @property
    def known_ns(self) -> int:
        """Return the time from which on the event is known."""
        return max(self.timestamp_ns, self.read_ns)


@dataclass(slots=True)
class _Stream:
    """A stream of a node: its pattern, the devices of its segments, and the counters of its last row."""

    schema: bytes = b""
    names: int = -1
    """Names of the node's devices when the segments were determined; with more, more columns may be of use."""
    template: stream_columns.StreamTemplate = stream_columns.NO_TEMPLATE
    firsts: tuple[int, ...] = ()
    """Position of the first device of each part."""
    run: str = ""
    boot_ns: int = 0
    values: Integers | None = None
    present: _Flags | None = None
    delays_ns: Integers | None = None
    """Time from that of the row to the reads of the devices; None if none was read late."""
    is_waiting: bool = False


class _NewBatch(NamedTuple):
    """A batch with the times of its rows since the first slot, in nanoseconds."""

    node: str
    stream: _Stream
    run: str
    batch: Batch
    times_ns: Sequence[int]


class ReadingsCollector:
    """Adds the frames of all nodes to the sums of their devices.

    Batches of one pattern and equal length wait for each other: the same few vector operations add several.
    """

    def __init__(
        self,
        devices: ClusterDevices,
        traces: TrafficTraces,
        first_ns: int,
        slot_ns: int,
        on_fault: FaultHandler,
    ) -> None:
        self.devices = devices
        self._on_fault = on_fault
        self.sample_slots: dict[str, set[int]] = defaultdict(set)
        self.last_slots: dict[str, int] = {}
        """Slot of the newest sample of each node."""
        self.traces = traces
        self._traced = devices.sums[DeviceKind.NIC].index["rdma_sent_bytes"]
        self._first_ns, self._slot_ns = first_ns, slot_ns
        self._streams: dict[str, dict[str, _Stream]] = defaultdict(dict)
        """Streams of each node by name, with their schemas, whose devices are known."""
        self._templates = stream_columns.StreamTemplates()
        self._waiting: dict[tuple[int, int, int], list[_NewBatch]] = defaultdict(list)

    def slot_of(self, timestamp_ns: int) -> int:
        """Return the slot that contains a time of the collector's clock."""
        return (timestamp_ns - self._first_ns) // self._slot_ns

    def add(
        self, node_name: str, run: str, batch: Batch, find_schema: FindSchema, clock: Clock
    ) -> Iterator[NodeEvent]:
        """Add a batch whose devices are known, at the latest with the next `flush`; yield its events."""
        node, stream = self.devices.sender(node_name), self._streams[node_name].get(batch.stream)
        if stream is None or stream.schema != batch.schema:
            return
        if stream.is_waiting:
            self.flush()
        if stream.names != node.names:
            found = self._templates.find(self.devices, node, find_schema(batch.schema))
            stream = _Stream(batch.schema, node.names, *found)
            self._streams[node_name][batch.stream] = stream
        first_ns, slot_ns = self._first_ns, self._slot_ns
        times_ns = [clock(wall_ns) - first_ns for wall_ns in batch.wall_ns]
        slots = [time_ns // slot_ns for time_ns in times_ns]
        self.sample_slots[node_name].update(slots)
        self.last_slots[node_name] = max([*slots, self.last_slots.get(node_name, -1)])
        pattern = stream.template.pattern
        if pattern.parts:
            group = self._waiting[id(pattern), len(times_ns), len(batch.reasons) // pattern.width]
            group.append(_NewBatch(node_name, stream, run, batch, times_ns))
            stream.is_waiting = True
            if len(group) >= MAX_WAITING:
                taken = group.copy()
                group.clear()
                self._add_batches(taken)
        for event in batch.events:
            event_ns = clock(event.wall_ns)
            rows_ns = (first_ns + time_ns for time_ns in times_ns)
            read_ns = min((each for each in rows_ns if each >= event_ns), default=event_ns)
            yield NodeEvent(event_ns, node_name, event, read_ns)

    def add_devices(
        self, node_name: str, batch: Batch, find_schema: FindSchema
    ) -> Sequence[WireEntity]:
        """Add the devices that the schema of a batch states, and return its entities; none if it was known."""
        node, streams = self.devices.sender(node_name), self._streams[node_name]
        stream = streams.get(batch.stream)
        if stream is None and len(streams) >= MAX_STREAMS_PER_NODE:
            node.has_ignored_devices = True
            return ()
        if stream is not None and stream.schema == batch.schema:
            return ()
        entities = tuple(map(_with_shared_texts, find_schema(batch.schema).entities))
        self.devices.add_entities(node, entities)
        if stream is not None and stream.is_waiting:
            self.flush()
        streams[batch.stream] = _Stream(batch.schema)
        return entities

    def flush(self) -> None:
        """Add the batches that wait for others."""
        waiting, self._waiting = self._waiting, defaultdict(list)
        for group in waiting.values():
            if group:
                self._add_batches(group)

    def _add_batches(self, group: Sequence[_NewBatch]) -> None:
        """Add batches of one pattern, equal length and equal length of reasons."""
        for new in group:
            new.stream.is_waiting = False
        try:
            readings = _GroupReadings.from_batches(group)
        except Exception as fault:  # noqa: BLE001 - one node must not end the diagnosis of the others
            if len(group) == 1:
                self._on_fault(f"frames of {group[0].node}", fault)
                return
            for new in group:
                self._add_batches([new])
            return
        for number, part in enumerate(group[0].stream.template.pattern.parts):
            streams = [new.stream for new in group]
            devices = np.stack(
                [each.firsts[number] + each.template.distances[number] for each in streams]
            )
            sink = self.devices.sums[part.device]
            values, valid, weights = readings.rows_of(part)
            slots = readings.times_ns // self._slot_ns
            for slot, sums, of_slot in _by_slot(part.kind, slots, values, valid, weights):
                sink.add(part.quantities, slot, devices, sums, of_slot)
            if part.kind is QuantityKind.COUNTER and part.device is DeviceKind.NIC:
                traced = part.quantities == self._traced
                if traced.any():
                    self.traces.add(
                        readings.times_ns // SECOND_NS,
                        readings.seconds,
                        devices[:, traced],
                        values[:, traced],
                        valid[:, traced],
                    )
        readings.store_last(group)


@dataclass(slots=True)
class _GroupReadings:
    """The readings of batches: all arrays begin with the axis of batches, and end with that of rows.

    `steps` are the increases of the counters, `values` the values of the other columns; `codes` are the absence
    reasons, with one row if they are those of all rows, or None if no value is absent.
    """

    pattern: stream_columns.ColumnPattern
    times_ns: Integers
    seconds: Floats
    """Time from row to row."""
    counted_seconds: Floats
    """Time over which the counters advanced, by column if devices were read late, else with one column for all."""
    steps: Integers
    valid_steps: _Flags
    values: Integers
    codes: Codes | None
    last: Integers
    """The counters of the last rows."""
    last_delays_ns: Integers | None

    @classmethod
    def from_batches(cls, group: Sequence[_NewBatch]) -> _GroupReadings:
        """Decode batches."""
        pattern, batches = group[0].stream.template.pattern, [new.batch for new in group]
        columns, counters, rows = pattern.columns, pattern.counters, batches[0].rows
        first = first_rows(batches, pattern.width).take(columns, axis=1)
        steps = np.zeros((len(group), len(columns), rows), np.int64)
        if rows > 1:
            bits = np.frombuffer(b"".join([each.changed for each in batches]), np.uint8)
            bits = np.unpackbits(
                bits.reshape(len(group), -1), axis=1, count=pattern.width, bitorder="little"
            )
            numbers = np.cumsum(bits, dtype=np.intp).reshape(bits.shape).take(columns, axis=1)
            has_steps = bits.take(columns, axis=1) > 0
            of_columns = np.frombuffer(b"".join([each.steps for each in batches]), "<i8")
            steps[has_steps, 1:] = of_columns.reshape(-1, rows - 1)[numbers[has_steps] - 1]
        values = first[:, counters:, None] + np.cumsum(steps[:, counters:], axis=2)
        steps = steps[:, :counters]
        last = first[:, :counters] + steps.sum(axis=2)
        codes = _codes(batches, pattern)
        boot_ns = np.array([each.boot_ns for each in batches], np.int64)
        delays_ns = _delays(group, pattern)
        valid = np.ones(steps.shape, np.bool_)
        before_ns = boot_ns[:, 0].copy()
        for number, new in enumerate(group):
            stream = new.stream
            if stream.run == new.run and stream.values is not None:
                steps[number, :, 0] = first[number, :counters] - stream.values
                before_ns[number] = stream.boot_ns
                if stream.present is not None:
                    valid[number, :, 0] = stream.present
            else:
                valid[number, :, 0] = False
        if codes is not None:
            present = codes[:, :counters] == PRESENT
            valid &= present
            valid[:, :, 1:] &= present[:, :, : rows - 1]
        seconds = np.diff(boot_ns, axis=1, prepend=before_ns[:, None]) / SECOND_NS
        counted_seconds = seconds[:, None]
        if delays_ns is not None:
            counted_seconds = counted_seconds + np.diff(delays_ns, axis=2) / SECOND_NS
        longest = np.array([_max_step_seconds(each.node) for each in group])[:, None, None]
        valid &= (counted_seconds > 0) & (counted_seconds <= longest)
        valid &= steps >= 0
        times_ns = np.array([new.times_ns for new in group], np.int64)
        last_delays_ns = None if delays_ns is None else delays_ns[:, :, -1]
        return cls(
            pattern,
            times_ns,
            seconds,
            counted_seconds,
            steps,
            valid,
            values,
            codes,
            last,
            last_delays_ns,
        )

    def rows_of(self, part: stream_columns.ColumnSegments) -> tuple[Floats, _Flags, Floats]:
        """Return the values of segments by row, which of them are valid, and the weights of rows."""
        span, counters = part.span, self.pattern.counters
        weights = np.ones((1, 1, 1))
        codes = None if self.codes is None else self.codes[:, span]
        valid = np.ones((1, 1, 1), np.bool_) if codes is None else codes == PRESENT
        values: Integers | Codes
        if part.kind is QuantityKind.COUNTER:
            values, valid, weights = (
                self.steps[:, span],
                self.valid_steps[:, span],
                self.counted_seconds,
            )
            if weights.shape[1] > 1:
                weights = weights[:, span][:, part.starts]
        else:
            values = self.values[:, span.start - counters : span.stop - counters]
            if part.kind is QuantityKind.ABSENCE:
                valid = ~valid
                values = np.zeros_like(values) if codes is None else values * 0 + codes
        scaled = np.where(valid, values * self.pattern.scales[span, None], 0.0)
        valid = np.broadcast_to(valid, scaled.shape)
        if len(part.starts) < span.stop - span.start:
            scaled = part.combine.reduceat(scaled, part.starts, axis=1)
            valid = np.logical_or.reduceat(valid, part.starts, axis=1)
        return scaled, valid, weights

    def store_last(self, group: Sequence[_NewBatch]) -> None:
        """Keep the last rows, from which the counters of the next batches continue."""
        counters = self.pattern.counters
        for number, (new, last) in enumerate(zip(group, self.last, strict=True)):
            stream = new.stream
            stream.run, stream.boot_ns = new.run, new.batch.boot_ns[-1]
            if stream.values is None:
                stream.values = last.copy()
            else:
                stream.values[:] = last
            codes = None if self.codes is None else self.codes[number, :counters, -1]
            stream.present = None if codes is None else codes == PRESENT
            delays_ns = self.last_delays_ns
            stream.delays_ns = None if delays_ns is None else delays_ns[number].copy()


def _max_step_seconds(name: str) -> float:
    return MAX_SWITCH_STEP_SECONDS if name.startswith(SWITCH_PREFIX) else MAX_STEP_SECONDS


def _by_slot(
    kind: QuantityKind, slots: Integers, values: Floats, valid: _Flags, weights: Floats
) -> Iterator[tuple[Positions, Floats, Floats]]:
    """Yield the slot of each batch, and its sums and weights in it, shape (batches, segments)."""
    first = slots.min(axis=1)
    distances = slots - first[:, None]
    ranks = np.arange(1, slots.shape[1] + 1)
    for distance in np.unique(distances).tolist():
        in_slot = distances == distance
        if kind in REPLACED_KINDS:
            # The last row of the slot that is valid.
            newest = np.where(valid & in_slot[:, None], ranks, 0).max(axis=2)
            sums = np.take_along_axis(values, np.maximum(newest - 1, 0)[:, :, None], axis=2)
            yield first + distance, sums[:, :, 0], (newest > 0).astype(np.float64)
        else:
            yield (
                first + distance,
                np.einsum("bsr,br->bs", values, in_slot.astype(np.float64)),
                np.einsum(
                    "bsr,bsr->bs", valid, np.broadcast_to(weights * in_slot[:, None], valid.shape)
                ),
            )


@lru_cache(maxsize=4096)
def _first_of_equal(text: str) -> str:
    return text


def _shared(text: str) -> str:
    """Return the first of equal texts, unless it is long: most are the same on all nodes, which keep them."""
    return _first_of_equal(text) if len(text) <= MAX_FACT else text


def _with_shared_texts(entity: WireEntity) -> WireEntity:
    if not entity.facts:
        return entity
    key = tuple(map(_shared, entity.key))
    facts = {name: _shared(text) for name, text in entity.facts.items()}
    return WireEntity(entity.kind, key, facts)


def _delays(group: Sequence[_NewBatch], pattern: stream_columns.ColumnPattern) -> Integers | None:
    """Return the delays of the reads of counters, first those of the rows before; None if there are none."""
    if not any(new.batch.read_delays or new.stream.delays_ns is not None for new in group):
        return None
    counters = pattern.columns[: pattern.counters]
    found = np.zeros((len(group), len(counters), group[0].batch.rows + 1), np.int64)
    for number, new in enumerate(group):
        if new.stream.delays_ns is not None:
            found[number, :, 0] = new.stream.delays_ns
        found[number, :, 1:] = read_delays_ns(new.batch, pattern.width)[:, counters].T
    return found


def _codes(batches: Sequence[Batch], pattern: stream_columns.ColumnPattern) -> Codes | None:
    """Return the absence reasons of batches with equally many, shape (batches, columns, rows or 1)."""
    if not batches[0].reasons:
        return None
    codes = np.frombuffer(b"".join([each.reasons for each in batches]), np.uint8)
    codes = codes.reshape(len(batches), -1, pattern.width).take(pattern.columns, axis=2)
    return codes.transpose(0, 2, 1)
