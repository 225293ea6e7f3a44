"""Frames of a switch: readings of polls, with the identity and the clocks of the collector that polls.

A run is a period in which one collector polls. A restart of the switch begins another boot of that run, so that no rate
is computed from counters before and after it. It is recognized by the uptime, which continues with the time that has
passed between two polls unless the switch has restarted; the uptime may wrap meanwhile.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from railscope import __version__, batch_encoding, counter_unwrap, service, wire
from railscope.catalog.declare import Metric, MetricKind
from railscope.frame import Column, Frame, FrameOrigin, NodeTimestamp, Schema
from railscope.reading import Absent, Reading, to_stored
from railscope.timestamps import SECOND_NS
from railscope_collector.fleet.fleet import SWITCH_PREFIX
from railscope_collector.switches.switch_reading import StreamReadings, SwitchReading

_TOLERANCE_NS, _TOLERANCE_SHARE = 10 * SECOND_NS, 100
"""Largest deviation of the uptime from the time that has passed without a restart: this, and one part in so many."""
_NARROW_BITS = 32
EntityKey: TypeAlias = tuple[str, ...]


def has_restarted(before_ns: int, uptime_ns: int, elapsed_ns: int, range_ns: int = 1 << 63) -> bool:
    """True unless the uptime has continued for the time between two polls; it begins again at its range."""
    half = range_ns >> 1
    deviation_ns = (uptime_ns - before_ns - elapsed_ns + half) % range_ns - half
    return abs(deviation_ns) > _TOLERANCE_NS + elapsed_ns // _TOLERANCE_SHARE


@dataclass(slots=True)
class _SwitchStream:
    """Schema of a stream as of its last frame, its sequence, and the narrow counters in it by port.

    The counters of a port are cleared together, those of other ports continue.
    """

    schema: Schema
    unwrappers: Mapping[EntityKey, counter_unwrap.CounterUnwrapper]
    sequence: int = 0


@dataclass(slots=True)
class SwitchFrames:
    """Makes the frames of one switch in one run."""

    switch: str
    run: str
    has_narrow_counters: bool = True
    """False if all counters have 64 bits, also those that have 32 by SNMP."""
    boots: int = 1
    _streams: dict[str, _SwitchStream] = field(default_factory=dict)
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
            if self._uptime:
                before_ns, at_ns = self._uptime
                elapsed_ns = boot_ns - at_ns
                if has_restarted(before_ns, uptime_ns, elapsed_ns, reading.uptime_range_ns):
                    self.boots += 1
                    # Counters begin again with the boot: a fall is no wrap.
                    for stream in self._streams.values():
                        stream.unwrappers = self._unwrappers(stream.schema.columns, {})
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
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = _SwitchStream(
                schema, self._unwrappers(schema.columns, {})
            )
        elif stream.schema != schema:
            stream.schema = schema
            stream.unwrappers = self._unwrappers(schema.columns, stream.unwrappers)
        stream.sequence += 1
        values, reasons = self._encode([part[i] for i in order], stream.unwrappers.values())
        # The same object for all frames of a schema: its hash is computed once.
        return Frame(origin, stream.schema, stream.sequence, timestamp, values, reasons)

    def _encode(
        self,
        readings: Sequence[tuple[Column, Reading]],
        unwrappers: Iterable[counter_unwrap.CounterUnwrapper],
    ) -> tuple[array[int], bytes]:
        """Return stored values and reasons; a number that the quantity cannot have, or beyond its bits, is an error."""
        values, reasons = [0] * len(readings), bytearray(len(readings))
        for position, ((metric, _), reading) in enumerate(readings):
            if isinstance(reading, Absent):
                reasons[position] = reading.value
            elif self._fits(metric, reading):
                values[position] = reading
            else:
                reasons[position] = Absent.ERROR.value
        for unwrapper in unwrappers:
            unwrapper.extend_values(values, reasons)
        return array("q", map(to_stored, values)), bytes(reasons) if any(reasons) else b""

    def _fits(self, metric: Metric, value: int) -> bool:
        bits = metric.wraps_at_bits if self.has_narrow_counters else 64
        return metric.accepts(value) and value < 1 << bits

    def _unwrappers(
        self,
        columns: Sequence[Column],
        before: Mapping[EntityKey, counter_unwrap.CounterUnwrapper],
    ) -> dict[EntityKey, counter_unwrap.CounterUnwrapper]:
        """Return the unwrappers of those entities that have narrow counters; known ones continue."""
        narrow: dict[EntityKey, dict[str, int]] = defaultdict(dict)
        wide: dict[EntityKey, list[int]] = defaultdict(list)
        for position, (metric, entity) in enumerate(columns):
            if metric.kind is MetricKind.COUNTER:
                if self.has_narrow_counters and metric.wraps_at_bits == _NARROW_BITS:
                    narrow[entity.key][metric.name] = position
                else:
                    wide[entity.key].append(position)
        return {
            key: counter_unwrap.CounterUnwrapper(
                counters, wide[key], before[key].state if key in before else None
            )
            for key, counters in narrow.items()
        }


def pack_frames(
    frames: Sequence[Frame], sent: NodeTimestamp, *, with_schemas: bool
) -> tuple[bytes, wire.SentAt]:
    """Return the body of an envelope with frames of one poll, and the clocks at its sending."""
    origin = frames[0].origin
    sealed = wire.envelope(
        origin,
        [batch_encoding.encode_batch([frame]) for frame in frames],
        [wire.to_wire_schema(frame.schema) for frame in frames] if with_schemas else [],
        agent_version=__version__,
    )
    return wire.pack(sealed), wire.SentAt.from_timestamp(sent, origin.boot_id)


Submit = Callable[[str, bytes, wire.SentAt], Awaitable[str]]
"""Stores an envelope of a switch; returns the reason if it is rejected."""
UNKNOWN_SCHEMA = "unknown_schema"


async def reject_envelope(_switch: str, _body: bytes, _sent: wire.SentAt) -> str:
    """Return the reason why nothing is stored before the collector has started."""
    return "the collector has not started"


async def submit_frames(
    submit: Submit, frames: Sequence[Frame], now: Callable[[], NodeTimestamp]
) -> str:
    """Store frames, with their schemas if these are unknown; return the reason if they are rejected."""
    problem = UNKNOWN_SCHEMA
    for with_schemas in (False, True):
        if problem == UNKNOWN_SCHEMA:
            pack = partial(pack_frames, frames, with_schemas=with_schemas)
            body, sent = await service.run_in_thread(pack, now())
            problem = await submit(frames[0].origin.node, body, sent)
    return problem
