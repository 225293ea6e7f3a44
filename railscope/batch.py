"""Encoding of frames as column-major batches, and decoding. Without numpy, which agents lack."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain, compress, groupby, pairwise
from operator import sub

from railscope.envelope_reader import within_bounds
from railscope.frame import Event, Frame
from railscope.reading import SIGNED_LIMIT, UNSIGNED_RANGE
from railscope.wire import (
    BYTES_PER_VALUE,
    Batch,
    WireError,
    WireEvent,
    schema_identity,
    to_wire_entity,
)  # fmt: skip


def encode_batches(frames: Iterable[Frame]) -> list[Batch]:
    """Encode frames of one run as batches, split at changes of stream or schema and at sequence gaps."""
    batches = []
    keyed = [((id(f.schema), f.sequence - i), f) for i, f in enumerate(frames)]
    for _, run in groupby(keyed, key=lambda pair: pair[0]):
        batches.append(encode_batch([frame for _, frame in run]))
    return batches


def encode_batch(frames: Sequence[Frame]) -> Batch:
    """Encode consecutive frames of one schema as one batch."""
    first = frames[0]
    rows = [frame.values for frame in frames]
    moved = 0
    for before, after in pairwise(rows):
        moved |= _as_number(before) ^ _as_number(after)
    touched = array("q", moved.to_bytes(len(rows[0]) * BYTES_PER_VALUE, "little"))
    columns = [list(compress(row, touched)) for row in rows]
    steps = [list(map(sub, after, before)) for before, after in pairwise(columns)]
    return Batch(
        stream=first.schema.stream,
        schema=schema_identity(first.schema),
        first_sequence=first.sequence,
        wall_ns=tuple(frame.instant.wall_ns for frame in frames),
        boot_ns=tuple(frame.instant.boot_ns for frame in frames),
        base=rows[0].tobytes(),
        changed=_bits(touched),
        steps=_step_bytes(list(chain.from_iterable(zip(*steps, strict=True)))),
        reasons=_encode_reasons(frames),
        uncertainty_ns=_largest_uncertainty(frames),
        events=tuple(
            _encode_event(row, event) for row, frame in enumerate(frames) for event in frame.events
        ),
    )


def decode_rows(batch: Batch, columns: int) -> list[array[int]]:
    """Return the values of every row: the inverse of `encode_batch`, without numpy.

    Raises WireError if the fields of the batch are inconsistent.
    """
    changed = check_shape(batch, columns)
    rows = [array("q", batch.base)]
    steps = array("q", batch.steps)
    later = batch.rows - 1
    for row in range(later):
        values = array("q", rows[-1])
        for position, column in enumerate(changed):
            values[column] = _fold(values[column] + steps[position * later + row])
        rows.append(values)
    return rows


def check_shape(batch: Batch, columns: int) -> list[int]:
    """Return the positions of the changed columns; raises WireError for inconsistent sizes."""
    bits = int.from_bytes(batch.changed, "little")
    changed = [i for i in range(columns) if bits >> i & 1] if bits else []
    rows = batch.rows
    allowed_reasons = (0, columns, columns * rows)
    fits = (
        rows > 0
        and len(batch.boot_ns) == rows
        and batch.first_sequence > 0
        and len(batch.base) == columns * BYTES_PER_VALUE
        and len(batch.changed) == (columns + 7) // 8
        and bits >> columns == 0
        and len(batch.steps) == len(changed) * (rows - 1) * BYTES_PER_VALUE
        and len(batch.reasons) in allowed_reasons
    )
    if not fits:
        message = f"batch of stream {batch.stream!r}: its parts do not fit {columns} columns"
        raise WireError(message)
    return changed


def reasons_of_row(batch: Batch, row: int, columns: int) -> bytes:
    """Return the reason codes of one row; empty where every column has a value."""
    if len(batch.reasons) <= columns:
        return batch.reasons
    return batch.reasons[row * columns : (row + 1) * columns]


def _as_number(values: array[int]) -> int:
    return int.from_bytes(values.tobytes(), "little")


def _bits(flags: Sequence[int]) -> bytes:
    number = int("".join(["1" if flag else "0" for flag in reversed(flags)]) or "0", 2)
    return number.to_bytes((len(flags) + 7) // 8, "little")


def _fold(value: int) -> int:
    return (value + SIGNED_LIMIT) % UNSIGNED_RANGE - SIGNED_LIMIT


def _step_bytes(steps: list[int]) -> bytes:
    try:
        return array("q", steps).tobytes()
    except OverflowError:
        return array("q", [_fold(step) for step in steps]).tobytes()


def _encode_reasons(frames: Sequence[Frame]) -> bytes:
    distinct = {frame.reasons for frame in frames}
    if len(distinct) == 1:
        return frames[0].reasons
    columns = len(frames[0].values)
    return b"".join([frame.reasons or bytes(columns) for frame in frames])


def _largest_uncertainty(frames: Sequence[Frame]) -> int | None:
    """The largest uncertainty of the rows; None if the uncertainty of any row is unknown."""
    widest = 0
    for frame in frames:
        if frame.instant.uncertainty_ns is None:
            return None
        widest = max(widest, frame.instant.uncertainty_ns)
    return widest


def _encode_event(row: int, event: Event) -> WireEvent:
    entity = to_wire_entity(event.entity)
    return within_bounds(WireEvent(
        event.event_class.name, row, entity, event.wall_ns, event.boot_ns, event.facts,
        event.number,
    ))  # fmt: skip
