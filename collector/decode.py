"""Batches as numpy arrays. The plain counterpart, without numpy, is railscope.batch.decode_rows."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from railscope.wire import BYTES_PER_VALUE, MOST_EVENT_NUMBER, Batch, WireError

Integers: TypeAlias = npt.NDArray[np.int64]
Codes: TypeAlias = npt.NDArray[np.uint8]


def check(batch: Batch, columns: int, most_rows: int) -> int:
    """How many columns change; raises WireError where the parts of a batch contradict each other."""
    rows = batch.rows
    changed = int.from_bytes(batch.changed, "little")
    count = changed.bit_count()
    fits = (
        0 < rows <= most_rows
        and len(batch.boot_ns) == rows
        and batch.first_sequence > 0
        and batch.first_sequence + rows < 1 << 63
        and len(batch.base) == columns * BYTES_PER_VALUE
        and len(batch.changed) == (columns + 7) // 8
        and changed >> columns == 0
        and len(batch.steps) == count * (rows - 1) * BYTES_PER_VALUE
        and len(batch.reasons) in (0, columns, columns * rows)
        and all(0 <= event.row < rows for event in batch.events)
        and all(0 <= event.number <= MOST_EVENT_NUMBER for event in batch.events)
        and all(0 <= ns < 1 << 63 for ns in (*batch.wall_ns, *batch.boot_ns))
        and all(
            0 <= ns < 1 << 63 for event in batch.events for ns in (event.wall_ns, event.boot_ns)
        )
    )
    if not fits:
        message = f"batch of stream {batch.stream!r}: its parts do not fit {columns} columns"
        raise WireError(message)
    return count


def changed_columns(batch: Batch, columns: int) -> npt.NDArray[np.intp]:
    """Positions of the columns that change within the batch."""
    bits = np.unpackbits(np.frombuffer(batch.changed, np.uint8), count=columns, bitorder="little")
    return np.flatnonzero(bits)


def first_row(batch: Batch) -> Integers:
    """The values of the first row."""
    return np.frombuffer(batch.base, "<i8")


def last_row(batch: Batch, columns: int) -> Integers:
    """The values of the last row, without making those between."""
    last = first_row(batch).copy()
    if batch.steps:
        steps = np.frombuffer(batch.steps, "<i8").reshape(-1, batch.rows - 1)
        # einsum adds along short rows twice as fast as sum does, and wraps around alike.
        last[changed_columns(batch, columns)] += np.einsum("ij->i", steps)
    return last


def all_rows(batch: Batch, columns: int) -> Integers:
    """The values of all rows, shape (rows, columns)."""
    rows = np.tile(first_row(batch), (batch.rows, 1))
    if batch.steps:
        steps = np.frombuffer(batch.steps, "<i8").reshape(-1, batch.rows - 1)
        rows[1:, changed_columns(batch, columns)] += steps.cumsum(axis=1, dtype=np.int64).T
    return rows


def reasons(batch: Batch, columns: int) -> Codes:
    """Reason codes of all rows, shape (rows, columns)."""
    if not batch.reasons:
        return np.zeros((batch.rows, columns), np.uint8)
    codes = np.frombuffer(batch.reasons, np.uint8)
    return np.broadcast_to(codes.reshape(-1, columns), (batch.rows, columns))


def reasons_of(batch: Batch, row: int, columns: int) -> Codes:
    """Reason codes of one row."""
    if not batch.reasons:
        return np.zeros(columns, np.uint8)
    codes = np.frombuffer(batch.reasons, np.uint8)
    return codes if len(codes) == columns else codes[row * columns : (row + 1) * columns]
