"""Counters and gauges of switches, and the pauses that NICs at the other end count, over the last minutes.

A counter is known at the times of its samples only: an increase belongs to the time between two of them. Only what has
changed is kept. A counter that falls, is absent for a sample or belongs to another run or boot is unknown before.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from railscope.catalog import METRICS, entities, nic, switches as catalog
from railscope.catalog.declare import MetricKind
from railscope.reading import PRESENT, Absent
from railscope.timestamps import SECOND_NS
from railscope.wire import Batch, WireEntity, WireSchema
from railscope_collector.diagnosis.node_readings import MAX_STREAMS_PER_NODE, Clock, FindSchema
from railscope_collector.diagnosis.slot_sums import Floats, Positions
from railscope_collector.fleet.shape_columns import columns_of
from railscope_collector.fleet.sheets import Codes, Integers

KEPT_NS = 360 * SECOND_NS
MAX_KEPT_STEPS = 200_000
"""Increases of one track; with more, the oldest are dropped."""
MAX_SWITCHES = 256
HOST_DISTANCE_NS = 4 * SECOND_NS
"""Distance of two samples of a NIC: more of them make no comparison more exact than the switch's own period."""
_MAX_STEP = 1 << 53
"""Increase beyond which a counter is invalid."""
_NEVER = 1 << 62

SWITCH_QUANTITIES: Mapping[str, str] = {
    catalog.PFC_RECEIVED.name: "pauses_received",
    catalog.PFC_SENT.name: "pauses_sent",
    catalog.ALL_PFC_RECEIVED.name: "all_pauses_received",
    catalog.ALL_PFC_SENT.name: "all_pauses_sent",
    catalog.QUEUE_PACKETS.name: "packets",
    catalog.QUEUE_MARKED_PACKETS.name: "marks",
    catalog.QUEUE_DROPPED_PACKETS.name: "drops",
    catalog.QUEUE_WRED_DROPPED_PACKETS.name: "wred_drops",
    catalog.QUEUE_NO_BUFFER_DROPPED.name: "buffer_drops",
    catalog.QUEUE_OCCUPANCY.name: "occupancy",
    catalog.QUEUE_WATERMARK.name: "watermark",
    catalog.WATCHDOG_DETECTED.name: "watchdog_storms",
    catalog.WATCHDOG_RESTORED.name: "watchdog_restored",
    catalog.GROUP_HEADROOM_WATERMARK.name: "headroom",
    catalog.GROUP_HEADROOM.name: "headroom_size",
    catalog.GROUP_HEADROOM_PEAK.name: "headroom_peak",
    catalog.GROUP_HEADROOM_USED.name: "headroom_share",
    catalog.GROUP_DROPPED.name: "group_drops",
    catalog.SPEED.name: "speed",
    catalog.PORT_UP.name: "up",
    catalog.PORT_ENABLED.name: "enabled",
    catalog.RECEIVED_ERRORS.name: "errors",
    catalog.FCS_ERRORS.name: "fcs_errors",
    catalog.SYMBOL_ERRORS.name: "symbol_errors",
    catalog.FEC_UNCORRECTABLE.name: "uncorrectable_frames",
    catalog.UNCORRECTED_SYMBOLS.name: "uncorrectable_symbols",
}
"""Metrics of switches that are used, and their names here."""
_IS_NUMBERED: Mapping[str, bool] = {
    quantity: METRICS[name].about is not entities.SWITCH_PORT
    for name, quantity in SWITCH_QUANTITIES.items()
}
"""If a quantity is one of whole ports (false), or of their priorities, queues or groups (true)."""
HOST_QUANTITIES: Mapping[str, str] = {
    nic.PFC_SENT.name: "pauses_sent",
    nic.PFC_RECEIVED.name: "pauses_received",
}
_GAUGES = frozenset(name for name, metric in METRICS.items() if metric.kind is MetricKind.GAUGE)


class PartLabel(NamedTuple):
    """A quantity of a switch port or NIC, by its priority, queue or priority group; an empty number is the whole port."""

    quantity: str
    port: str
    number: str = ""


class SwitchQueue(NamedTuple):
    """A queue of a switch port, or the whole port."""

    switch: str
    port: str
    queue: str = ""

    @property
    def place(self) -> str:
        """Switch, port and queue in words."""
        return f"{self.switch} {self.port}" + (f" queue {self.queue}" if self.queue else "")


class SampleSteps(NamedTuple):
    """Increases of counters between two samples, and values of gauges at the second one, without those that are 0."""

    from_ns: int
    to_ns: int
    positions: Positions
    amounts: Floats


@dataclass(frozen=True, slots=True, eq=False)
class UsedColumns:
    """The columns of a schema that have a label, and their labels."""

    width: int
    columns: Positions
    labels: tuple[PartLabel, ...]
    is_gauge: np.ndarray[tuple[int], np.dtype[np.bool_]]
    scales: Floats

    @classmethod
    def from_schema(
        cls,
        schema: WireSchema,
        quantities: Mapping[str, str],
        key_of: Callable[[WireEntity], Sequence[str]],
    ) -> UsedColumns:
        """Find the columns of these metrics; `key_of` returns port and number of an entity."""
        found = {}
        for column, group, member in columns_of(schema):
            key = key_of(schema.entities[member]) if group.metric in quantities else ()
            if key:
                label = PartLabel(quantities[group.metric], *key[:2])
                found[label] = column, group.metric in _GAUGES, group.scale[0] / group.scale[1]
        columns, gauges, scales = zip(*found.values(), strict=True) if found else ((), (), ())
        return cls(
            schema.width,
            np.array(columns, np.intp),
            tuple(found),
            np.array(gauges, np.bool_),
            np.array(scales, np.float64),
        )

    def last_row(self, batch: Batch) -> tuple[Integers, Codes, Positions]:
        """Return values and absence reasons of the last row, and the columns that fell within the batch."""
        values = np.frombuffer(batch.base, "<i8")[self.columns].copy()
        fallen = np.zeros(0, np.intp)
        if batch.steps:
            bits = np.frombuffer(batch.changed, np.uint8)
            bits = np.unpackbits(bits, count=self.width, bitorder="little")
            changed = np.flatnonzero(bits[self.columns])
            rows = np.cumsum(bits, dtype=np.intp)[self.columns[changed]] - 1
            steps = np.frombuffer(batch.steps, "<i8").reshape(-1, batch.rows - 1)[rows]
            values[changed] += steps.sum(axis=1)
            fallen = changed[(steps < 0).any(axis=1)]
        codes = np.full(len(self.columns), PRESENT, np.uint8)
        if batch.reasons:
            codes = np.frombuffer(batch.reasons, np.uint8)[-self.width :][self.columns]
        return values, codes, fallen


class CounterTrack:
    """Samples of one stream: the last values, and the increases of the last minutes."""

    def __init__(self, columns: UsedColumns) -> None:
        count = len(columns.labels)
        self.columns = columns
        self.index = {label: position for position, label in enumerate(columns.labels)}
        self._positions: dict[str, Positions] = {}
        self.since_ns = np.full(count, _NEVER, np.int64)
        """Time since which each column is known without interruption."""
        self.last_ns = np.zeros(count, np.int64)
        """Time of the last sample of each column."""
        self.risen_ns = np.full(count, -_NEVER, np.int64)
        """Time at which each column was last above its sample before, if that was not older than the kept time."""
        self.samples: deque[tuple[int, int]] = deque()
        """Times of two successive samples each, the newest last."""
        self.uncertainty_ns = 0
        self._values = np.zeros(count, np.int64)
        self._codes = np.full(count, Absent.NOT_DUE.value, np.uint8)
        """Last reason of each column that was due, or that it was present; not due before its first sample."""
        self._steps: deque[SampleSteps] = deque()
        self._step_count = 0
        self._run = ""
        self._newest_ns = 0

    @property
    def newest_ns(self) -> int:
        """Time of the last sample; 0 without one."""
        return self._newest_ns

    def positions_of(self, quantity: str) -> Positions:
        """Return the columns of a quantity."""
        if quantity not in self._positions:
            found = [n for n, each in enumerate(self.columns.labels) if each.quantity == quantity]
            self._positions[quantity] = np.array(found, np.intp)
        return self._positions[quantity]

    def is_fresh(self, now_ns: int) -> bool:
        """True if a sample is expected no earlier than now: the last one is not older than three periods and 30 seconds."""
        period_ns = self.samples[-1][1] - self.samples[-1][0] if self.samples else 0
        return bool(self._newest_ns) and now_ns - self._newest_ns <= 3 * period_ns + 30 * SECOND_NS

    def add(self, run: str, timestamp_ns: int, batch: Batch) -> None:
        """Add the last row of a batch; one that is not newer than the last is ignored."""
        if timestamp_ns <= self._newest_ns:
            return
        values, codes, fallen = self.columns.last_row(batch)
        is_gauge = self.columns.is_gauge
        if run != self._run:
            self._run, self.since_ns[:] = run, _NEVER
        present = codes == PRESENT
        follows = present & (self.since_ns < _NEVER)
        follows[fallen] &= is_gauge[fallen]
        steps = values - self._values
        follows &= is_gauge | ((steps >= 0) & (steps < _MAX_STEP))
        amounts = np.where(is_gauge, values, np.where(follows, steps, 0)) * self.columns.scales
        used = np.flatnonzero(present & (amounts > 0))
        from_ns = np.where(is_gauge, timestamp_ns, self.last_ns)[used]
        for start_ns in np.unique(from_ns).tolist():
            of_start = used[from_ns == start_ns]
            self._steps.append(
                SampleSteps(start_ns, timestamp_ns, of_start, amounts[of_start].astype(np.float64))
            )
            self._step_count += len(of_start)
        self.since_ns[present & ~follows] = timestamp_ns
        self.since_ns[~present & (codes != Absent.NOT_DUE.value)] = _NEVER
        is_recent = self.last_ns >= max(timestamp_ns - KEPT_NS, 1)
        self.risen_ns[present & is_recent & (steps > 0)] = timestamp_ns
        self.last_ns[present], self._values[present] = timestamp_ns, values[present]
        is_due = codes != Absent.NOT_DUE.value
        self._codes[is_due] = codes[is_due]
        if self._newest_ns:
            self.samples.append((self._newest_ns, timestamp_ns))
        self._newest_ns = timestamp_ns
        self.uncertainty_ns = batch.uncertainty_ns or 0
        self._forget()

    def _forget(self) -> None:
        """Drop what is older than the kept time, but not the last interval, and what exceeds the bound."""
        from_ns = self._newest_ns - KEPT_NS
        while len(self.samples) > 1 and self.samples[0][1] < from_ns:
            self.samples.popleft()
        oldest_ns = min(from_ns, self.samples[0][0]) if self.samples else from_ns
        while self._steps and (
            self._steps[0].to_ns <= oldest_ns or self._step_count > MAX_KEPT_STEPS
        ):
            dropped = self._steps.popleft()
            self._step_count -= len(dropped.positions)
            self.since_ns = np.maximum(self.since_ns, dropped.to_ns)

    def within(self, from_ns: int, to_ns: int) -> tuple[Floats, float]:
        """Return the increases, or the highest values, of all columns in samples within a time, and its seconds."""
        found = np.zeros(len(self.columns.labels))
        for steps in self._steps:
            if steps.from_ns >= from_ns and steps.to_ns <= to_ns:
                at = steps.positions
                is_gauge = self.columns.is_gauge[at]
                found[at] = np.where(
                    is_gauge, np.maximum(found[at], steps.amounts), found[at] + steps.amounts
                )
        spans = [span for span in self.samples if span[0] >= from_ns and span[1] <= to_ns]
        seconds = sum(end - start for start, end in spans) / SECOND_NS
        is_known = (self.since_ns <= from_ns) | self.columns.is_gauge
        if spans:
            is_known |= self.since_ns <= spans[0][0]
        return np.where(is_known, found, np.nan), seconds

    def bounds(
        self, position: int, starts_ns: tuple[int, int], ends_ns: tuple[int, int]
    ) -> tuple[float, float] | None:
        """Return the least and the greatest increase of a counter between two times, each known within a range.

        None if the counter is not known over all of this time.
        """
        if self.since_ns[position] > starts_ns[0] or self.last_ns[position] < ends_ns[1]:
            return None
        low = high = 0.0
        for steps in self._steps:
            if steps.to_ns > starts_ns[0] and steps.from_ns < ends_ns[1]:
                amount = float(steps.amounts[steps.positions == position].sum())
                high += amount
                if steps.from_ns >= starts_ns[1] and steps.to_ns <= ends_ns[0]:
                    low += amount
        return low, high

    def latest(self, position: int) -> float:
        """Return the newest value of a gauge; infinite if it is unknown."""
        if self.since_ns[position] == _NEVER:
            return np.inf
        return float(self._values[position] * self.columns.scales[position])

    def has_risen(self, position: int) -> bool:
        """True if a sample of the kept time is above the one before it."""
        return bool(self.risen_ns[position] > self._newest_ns - KEPT_NS)

    def is_unsupported(self, position: int) -> bool:
        """True if the switch states that it does not have a quantity."""
        return bool(self._codes[position] == Absent.UNSUPPORTED.value)

    def is_present(self, position: int) -> bool:
        """True if the last reading of a column is a value."""
        return bool(self._codes[position] == PRESENT)

    def values_of(self, position: int, from_ns: int) -> list[float]:
        """Return the values of a gauge, or the increases of a counter, in the samples since a time."""
        found: dict[int, float] = defaultdict(float)
        for steps in self._steps:
            if steps.to_ns > from_ns:
                found[steps.to_ns] += float(steps.amounts[steps.positions == position].sum())
        return [found[to_ns] for _, to_ns in self.samples if to_ns > from_ns]

    def recent(
        self, now_ns: int, span_ns: int, positions: Positions
    ) -> Iterator[tuple[int, float]]:
        """Yield what has increased in the samples of the last `span_ns`, of these columns."""
        found: dict[int, float] = defaultdict(float)
        for steps in self._steps:
            if now_ns - span_ns < steps.to_ns <= now_ns:
                used = np.isin(steps.positions, positions)
                pairs = zip(
                    steps.positions[used].tolist(), steps.amounts[used].tolist(), strict=True
                )
                for position, amount in pairs:
                    found[position] += amount
        yield from found.items()

    def increasing(self, from_ns: int) -> Positions:
        """Return the columns that have increased, or have a value, since a time."""
        found = [steps.positions for steps in self._steps if steps.to_ns > from_ns]
        return np.unique(np.concatenate(found)) if found else np.zeros(0, np.intp)


@dataclass(slots=True)
class TrackedSender:
    """A switch or node, and the tracks of its streams; None for a stream without columns of use."""

    streams: dict[str, tuple[bytes, CounterTrack | None]] = field(default_factory=dict)
    neighbours: dict[str, str] = field(default_factory=dict)
    """Name of the device that each port of a switch received LLDP from."""
    system_name: str = ""
    """Name under which a switch itself announces."""

    def tracks(self) -> Iterator[CounterTrack]:
        """Yield the tracks."""
        return (track for _, track in self.streams.values() if track is not None)

    def find(self, label: PartLabel) -> tuple[CounterTrack, int] | None:
        """Return the track of a label and its position there."""
        for track in self.tracks():
            position = track.index.get(label)
            if position is not None:
                return track, position
        return None

    def lacks(self, *quantities: str, port: str = "") -> bool:
        """True if a switch provides none of these quantities, of a port or of any.

        It states so, or it reports other facts of the same ports and queues and has no column for these. A switch that has
        not reported such facts either, as after a failure, shows nothing.
        """
        wanted, others = list[bool](), set[bool]()
        for track in self.tracks():
            for position, label in enumerate(track.columns.labels):
                if port not in {"", label.port}:
                    continue
                if label.quantity in quantities:
                    wanted.append(track.is_unsupported(position))
                elif track.is_present(position):
                    others.add(bool(label.number))
        if wanted:
            return all(wanted)
        return others >= {_IS_NUMBERED[each] for each in quantities}

    def latest(self, label: PartLabel) -> float:
        """Return the newest value of a gauge; infinite if it is unknown."""
        found = self.find(label)
        return found[0].latest(found[1]) if found else np.inf

    def columns(self, stream: str, schema: WireSchema, digest: bytes, used: UsedColumns) -> None:
        """Begin a stream, or continue it with another schema: with equal labels its counters go on."""
        _, before = self.streams.get(stream, (b"", None))
        if before is not None and before.columns.labels == used.labels:
            before.columns = used
            self.streams[stream] = digest, before
        else:
            self.streams[stream] = digest, CounterTrack(used) if used.labels else None
        found = [each for each in schema.entities if each.kind == "switch_neighbour"]
        if found:
            names = {each.key[-1]: each.facts.get("system_name", "") for each in found}
            self.neighbours = {port: name for port, name in names.items() if name}
        for entity in schema.entities:
            if entity.kind == "switch" and entity.facts:
                self.system_name = entity.facts.get("system_name", "")


@dataclass(slots=True)
class SenderReadings:
    """Tracks of several switches or nodes, of these metrics."""

    quantities: Mapping[str, str]
    key_of: Callable[[WireEntity], Sequence[str]]
    min_distance_ns: int = 0
    max_senders: int = MAX_SWITCHES
    senders: dict[str, TrackedSender] = field(default_factory=dict)

    def add(
        self, name: str, run: str, batches: Iterable[Batch], find_schema: FindSchema, clock: Clock
    ) -> None:
        """Add batches of a sender."""
        if name not in self.senders and len(self.senders) >= self.max_senders:
            return
        sender = self.senders.setdefault(name, TrackedSender())
        for batch in batches:
            stream = sender.streams.get(batch.stream)
            if stream is None and len(sender.streams) >= MAX_STREAMS_PER_NODE:
                continue
            if stream is None or stream[0] != batch.schema:
                schema = find_schema(batch.schema)
                used = UsedColumns.from_schema(schema, self.quantities, self.key_of)
                sender.columns(batch.stream, schema, batch.schema, used)
            track = sender.streams[batch.stream][1]
            if track is not None:
                timestamp_ns = clock(batch.wall_ns[-1])
                if timestamp_ns - track.newest_ns >= self.min_distance_ns:
                    track.add(run, timestamp_ns, batch)

    def increasing(self, from_ns: int) -> Iterator[tuple[str, PartLabel]]:
        """Yield what has increased, or has a value, since a time, with its sender."""
        for name, sender in self.senders.items():
            for track in sender.tracks():
                for position in track.increasing(from_ns).tolist():
                    yield name, track.columns.labels[position]


def switch_key(entity: WireEntity) -> Sequence[str]:
    """Return port and number of an entity of a switch."""
    return entity.key[1:3] if len(entity.key) > 1 else ()


def host_key(entity: WireEntity) -> Sequence[str]:
    """Return interface and priority of an entity of a node."""
    return entity.key[:2]
