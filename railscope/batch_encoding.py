"""Encoding of frames as column-major batches. Without numpy, which agents lack."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, compress, groupby, pairwise
from operator import itemgetter, sub

from railscope import reading, shapes, wire
from railscope.envelopes import within_bounds
from railscope.frame import Event, Frame

_RESERVED_REASON = reading.Absent.UNSUPPORTED.value
_DIGITS = b"0".ljust(256, b"1")


def encode_batches(frames: Iterable[Frame]) -> list[wire.Batch]:
    """Encode frames of one run as batches, split at changes of stream or schema and at sequence gaps."""
    batches = []
    # A sequence less its position is constant within a run without a gap.
    keyed = [((id(f.schema), f.sequence - i), f) for i, f in enumerate(frames)]
    for _, run in groupby(keyed, key=lambda pair: pair[0]):
        batches.append(encode_batch([frame for _, frame in run]))
    return batches


def encode_batch(frames: Sequence[Frame]) -> wire.Batch:
    """Encode consecutive frames of one schema as one batch."""
    parts = shapes.schema_parts(frames[0].schema)
    if parts.columns is not None:
        frames = [_with_reserve(frame, parts.columns) for frame in frames]
    first = frames[0]
    rows = [frame.values for frame in frames]
    moved = 0
    # Rows as whole numbers: an XOR in C in place of a loop over thousands of columns.
    for before, after in pairwise(rows):
        moved |= _as_number(before) ^ _as_number(after)
    flags = _nonzero(moved, len(rows[0])) if moved else b""
    changed = list(compress(range(len(flags)), flags))
    pick = itemgetter(*changed) if len(changed) > 1 else lambda row: [row[i] for i in changed]
    columns = [pick(row) for row in rows]
    steps = [list(map(sub, after, before)) for before, after in pairwise(columns)]
    return wire.Batch(
        stream=first.schema.stream,
        shape=parts.shape_hash,
        names=parts.names_hash,
        first_sequence=first.sequence,
        wall_ns=tuple(frame.timestamp.wall_ns for frame in frames),
        boot_ns=tuple(frame.timestamp.boot_ns for frame in frames),
        base=rows[0].tobytes(),
        changed=_bits(flags, len(rows[0])),
        steps=_step_bytes(list(chain.from_iterable(zip(*steps, strict=True)))),
        reasons=_encode_reasons(frames),
        uncertainty_ns=_largest_uncertainty(frames),
        events=tuple(
            _encode_event(row, event) for row, frame in enumerate(frames) for event in frame.events
        ),
        read_delays=_encode_delays(frames),
    )


def _with_reserve(frame: Frame, columns: Sequence[int]) -> Frame:
    """Return a frame with the columns of its shape; those in reserve have no value."""
    # The last item is that of all columns in reserve, whose number is -1.
    pick = itemgetter(*columns)
    reasons = (frame.reasons or bytes(len(frame.values))) + bytes([_RESERVED_REASON])
    delays = array("I", frame.read_delays)
    return replace(
        frame,
        values=array("q", pick([*frame.values, 0])),
        reasons=bytes(pick(reasons)),
        read_delays=array("I", pick([*delays, 0])).tobytes() if delays else b"",
    )


def _as_number(values: array[int]) -> int:
    return int.from_bytes(values.tobytes(), "little")


def _nonzero(number: int, count: int) -> bytes:
    """Return one byte for each value of a row, as one number: zero if the value is."""
    row = number.to_bytes(count * wire.BYTES_PER_VALUE, "little")
    flags = 0
    # ORs the bytes of each value together, for all values at once.
    for byte in range(wire.BYTES_PER_VALUE):
        flags |= int.from_bytes(row[byte :: wire.BYTES_PER_VALUE], "little")
    return flags.to_bytes(count, "little")


def _bits(flags: bytes, count: int) -> bytes:
    number = int(flags[::-1].translate(_DIGITS) or b"0", 2)
    return number.to_bytes((count + 7) // 8, "little")


def _step_bytes(steps: list[int]) -> bytes:
    try:
        return array("q", steps).tobytes()
    except OverflowError:
        # Steps are modulo 2^64: a counter that wraps exceeds 63 bits.
        low, size = reading.SIGNED_LIMIT, reading.UNSIGNED_RANGE
        return array("q", [(step + low) % size - low for step in steps]).tobytes()


def _encode_reasons(frames: Sequence[Frame]) -> bytes:
    distinct = {frame.reasons for frame in frames}
    if len(distinct) == 1:
        return frames[0].reasons
    columns = len(frames[0].values)
    return b"".join([frame.reasons or bytes(columns) for frame in frames])


def _encode_delays(frames: Sequence[Frame]) -> bytes:
    if not any(frame.read_delays for frame in frames):
        return b""
    none = bytes(len(frames[0].values) * wire.BYTES_PER_DELAY)
    return b"".join([frame.read_delays or none for frame in frames])


def _largest_uncertainty(frames: Sequence[Frame]) -> int | None:
    """The largest uncertainty of the rows; None if the uncertainty of any row is unknown."""
    widest = 0
    for frame in frames:
        if frame.timestamp.uncertainty_ns is None:
            return None
        widest = max(widest, frame.timestamp.uncertainty_ns)
    return widest


def _encode_event(row: int, event: Event) -> wire.WireEvent:
    entity = wire.to_wire_entity(event.entity)
    return within_bounds(
        wire.WireEvent(
            event.event_class.name,
            row,
            entity,
            event.wall_ns,
            event.boot_ns,
            event.facts,
            event.number,
        )
    )
