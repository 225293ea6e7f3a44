"""Frames of a switch: readings, polled or pushed, with the identity and the clocks of the collector that receives them.

A run is a period in which one collector reads. A restart of the switch begins another boot of that run, so that no rate
is computed from counters before and after it. It is recognized by the uptime, which continues with the time that has
passed between two polls unless the switch has restarted; the uptime may wrap meanwhile.
"""

from __future__ import annotations

import time
from array import array
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from railscope import __version__, batch_encoding, service, wire
from railscope.catalog.declare import Metric, MetricKind
from railscope.counter_unwrap import CounterUnwrapper
from railscope.frame import Column, Frame, FrameOrigin, NodeTimestamp, Schema
from railscope.reading import Absent, Reading, to_stored
from railscope.shapes import schema_parts
from railscope.timestamps import SECOND_NS
from railscope_collector.fleet.fleet import SWITCH_PREFIX
from railscope_collector.switches.switch_reading import StreamReadings, SwitchReading

_TOLERANCE_NS, _TOLERANCE_SHARE = 10 * SECOND_NS, 100
"""Largest deviation of the uptime from the time that has passed without a restart: this, and one part in so many."""
_NARROW_BITS, _WIDE_BITS = 32, 64
EntityKey: TypeAlias = tuple[str, ...]
Unwrappers: TypeAlias = Mapping[EntityKey, CounterUnwrapper]
"""Narrow counters by port: those of a port are cleared together, those of other ports continue."""


def has_restarted(before_ns: int, uptime_ns: int, elapsed_ns: int, range_ns: int = 1 << 63) -> bool:
    """True unless the uptime has continued for the time between two polls; it begins again at its range."""
    half = range_ns >> 1
    deviation_ns = (uptime_ns - before_ns - elapsed_ns + half) % range_ns - half
    return abs(deviation_ns) > _TOLERANCE_NS + elapsed_ns // _TOLERANCE_SHARE


@dataclass(slots=True)
class _SwitchStream:
    """Schema of a stream as of its last frame, its narrow counters, and its sequence."""

    schema: Schema | None = None
    unwrappers: Unwrappers = field(default_factory=dict)
    sequence: int = 0


@dataclass(slots=True)
class SwitchFrames:
    """Makes the frames of one switch in one run."""

    switch: str
    run: str
    has_narrow_counters: bool = True
    """False if all counters have 64 bits, also those that have 32 by SNMP."""
    boots: int = 1
    _streams: dict[str, _SwitchStream] = field(default_factory=lambda: defaultdict(_SwitchStream))
    _uptime: tuple[int, int] | None = None
    """Uptime of the switch at the last poll, and time of the collector's boot clock."""

    @property
    def boot_id(self) -> str:
        """Identity of the present boot of the switch."""
        return f"{self.run}-{self.boots}"

    def frames(self, reading: SwitchReading, timestamp: NodeTimestamp) -> list[Frame]:
        """Return one frame for each stream of a reading."""
        uptime_ns, boot_ns = reading.uptime_ns, timestamp.boot_ns
        if uptime_ns is not None:
            before_ns, at_ns = self._uptime or (uptime_ns, boot_ns)
            if has_restarted(before_ns, uptime_ns, boot_ns - at_ns, reading.uptime_range_ns):
                self.boots += 1
                # Counters begin again with the boot: a fall is no wrap.
                for stream in self._streams.values():
                    stream.schema, stream.unwrappers = None, {}
            self._uptime = uptime_ns, boot_ns
        origin = FrameOrigin(SWITCH_PREFIX + self.switch, self.run, self.boot_id)
        streams = reading.streams.items()
        return [self._frame(name, part, origin, timestamp) for name, part in streams]

    def _frame(
        self, name: str, part: StreamReadings, origin: FrameOrigin, timestamp: NodeTimestamp
    ) -> Frame:
        columns = [column for column, _ in part]
        order = Schema.ordered(columns)
        schema = Schema(name, tuple(columns[i] for i in order))
        stream = self._streams[name]
        if stream.schema == schema:
            # The same object for all frames of a schema: its hash is computed once.
            schema = stream.schema
        else:
            stream.schema = schema
            stream.unwrappers = self._unwrappers(schema.columns, stream.unwrappers)
        stream.sequence += 1
        values, reasons = self._encode([part[i] for i in order], stream.unwrappers)
        return Frame(origin, schema, stream.sequence, timestamp, values, reasons)

    def _encode(
        self, readings: Sequence[tuple[Column, Reading]], unwrappers: Unwrappers
    ) -> tuple[array[int], bytes]:
        """Return stored values and reasons; a number that the quantity cannot have, or beyond its bits, is an error."""
        values, reasons = [0] * len(readings), bytearray(len(readings))
        for position, ((metric, _), reading) in enumerate(readings):
            if isinstance(reading, Absent):
                reasons[position] = reading.value
            elif metric.accepts(reading) and reading < 1 << self._bits(metric):
                values[position] = reading
            else:
                reasons[position] = Absent.ERROR.value
        for unwrapper in unwrappers.values():
            unwrapper.extend_values(values, reasons)
        return array("q", map(to_stored, values)), bytes(reasons) if any(reasons) else b""

    def _bits(self, metric: Metric) -> int:
        return metric.wraps_at_bits if self.has_narrow_counters else _WIDE_BITS

    def _unwrappers(self, columns: Sequence[Column], before: Unwrappers) -> Unwrappers:
        """Return the unwrappers of those entities that have narrow counters; known ones continue."""
        narrow: dict[EntityKey, dict[str, int]] = defaultdict(dict)
        wide: dict[EntityKey, list[int]] = defaultdict(list)
        for position, (metric, entity) in enumerate(columns):
            if metric.kind is MetricKind.COUNTER and self._bits(metric) == _NARROW_BITS:
                narrow[entity.key][metric.name] = position
            elif metric.kind is MetricKind.COUNTER:
                wide[entity.key].append(position)
        return {
            key: CounterUnwrapper(counters, wide[key], before[key].state if key in before else None)
            for key, counters in narrow.items()
        }


# Storage -----------------------------------------------------------------------------------------


def pack_frames(
    frames: Sequence[Frame], sent: NodeTimestamp, *, with_schemas: bool
) -> tuple[bytes, wire.SentAt]:
    """Return the body of an envelope with frames of one reading, and the clocks at its sending."""
    origin = frames[0].origin
    parts = [schema_parts(frame.schema) for frame in frames] if with_schemas else []
    sealed = wire.envelope(
        origin,
        [batch_encoding.encode_batch([frame]) for frame in frames],
        wire.SentParts([each.shape for each in parts], [each.names for each in parts]),
        agent_version=__version__,
    )
    return wire.pack(sealed), wire.SentAt.from_timestamp(sent, origin.boot_id)


Submit = Callable[[str, bytes, wire.SentAt], Awaitable[str]]
"""Stores an envelope of a switch; returns the reason if it is rejected."""
UNKNOWN_SCHEMA = "unknown_schema"


async def reject_envelope(_switch: str, _body: bytes, _sent: wire.SentAt) -> str:
    """Return the reason why nothing is stored before the collector has started."""
    return "the collector has not started"


def timestamp_now(wall_ns: Callable[[], int]) -> NodeTimestamp:
    """Return the present time by both clocks."""
    return NodeTimestamp(wall_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME))


async def store_reading(
    frames: SwitchFrames,
    reading: SwitchReading,
    timestamp: NodeTimestamp,
    submit: Submit,
    wall_ns: Callable[[], int],
) -> str:
    """Store a reading, with the shapes and names of its frames if they are unknown; return the reason if it is rejected."""
    made = await service.run_in_thread(frames.frames, reading, timestamp)
    problem = UNKNOWN_SCHEMA
    for with_schemas in (False, True):
        if problem == UNKNOWN_SCHEMA:
            pack = partial(pack_frames, made, with_schemas=with_schemas)
            body, sent = await service.run_in_thread(pack, timestamp_now(wall_ns))
            problem = await submit(made[0].origin.node, body, sent)
    return problem
