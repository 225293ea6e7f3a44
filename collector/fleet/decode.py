"""Batches as numpy arrays. The counterpart without numpy is railscope.batch.decode_rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from railscope.wire import BYTES_PER_VALUE, MAX_EVENT_NUMBER, Batch, WireError, WireEvent

Integers: TypeAlias = npt.NDArray[np.int64]
Codes: TypeAlias = npt.NDArray[np.uint8]
Positions: TypeAlias = npt.NDArray[np.intp]


def check(batch: Batch, columns: int, max_rows: int) -> int:
    """Return the number of columns that change.

    Raises WireError if the parts of a batch contradict each other.
    """
    rows = batch.rows
    changed = int.from_bytes(batch.changed, "little")
    count = changed.bit_count()
    fits = (
        0 < rows <= max_rows
        and len(batch.boot_ns) == rows
        and batch.first_sequence > 0
        and batch.first_sequence + rows < 1 << 63
        and len(batch.base) == columns * BYTES_PER_VALUE
        and len(batch.changed) == (columns + 7) // 8
        and changed >> columns == 0
        and len(batch.steps) == count * (rows - 1) * BYTES_PER_VALUE
        and len(batch.reasons) in (0, columns, columns * rows)
        and _are_instants(batch.wall_ns)
        and _are_instants(batch.boot_ns)
        and (batch.uncertainty_ns or 0) >= 0
        and all(_fits(event, rows) for event in batch.events)
    )
    if not fits:
        message = f"batch of stream {batch.stream!r}: its parts do not fit {columns} columns"
        raise WireError(message)
    return count


def _are_instants(ns: Sequence[int]) -> bool:
    return min(ns) >= 0 and max(ns) < 1 << 63


def _fits(event: WireEvent, rows: int) -> bool:
    return (
        0 <= event.row < rows
        and 0 <= event.number <= MAX_EVENT_NUMBER
        and _are_instants((event.wall_ns, event.boot_ns))
    )


def changed_columns(batch: Batch, columns: int) -> npt.NDArray[np.intp]:
    """Return the positions of the columns that change within the batch."""
    bits = np.unpackbits(np.frombuffer(batch.changed, np.uint8), count=columns, bitorder="little")
    return np.flatnonzero(bits)


def first_rows(batches: Sequence[Batch], columns: int) -> Integers:
    """Return the values of the first row of each batch, shape (batches, columns)."""
    bases = b"".join([batch.base for batch in batches])
    return np.frombuffer(bases, "<i8").reshape(len(batches), columns)


def last_rows(batches: Sequence[Batch], first: Integers) -> Integers:
    """Return the values of the last row of each batch, without computing those between."""
    last = first.copy()
    # einsum adds along short rows twice as fast as sum, and wraps around in the same way.
    sums = [
        np.einsum("ij->i", np.frombuffer(batch.steps, "<i8").reshape(-1, batch.rows - 1))
        for batch in batches
        if batch.steps
    ]
    if sums:
        bits = b"".join(
            [batch.changed if batch.steps else bytes(len(batch.changed)) for batch in batches]
        )
        changed = np.unpackbits(
            np.frombuffer(bits, np.uint8).reshape(len(batches), -1),
            axis=1, count=first.shape[1], bitorder="little",
        )  # fmt: skip
        last.reshape(-1)[np.flatnonzero(changed)] += np.concatenate(sums)
    return last


def rows_at(batch: Batch, rows: Sequence[int], columns: Positions, width: int) -> Integers:
    """Return the values of some rows and columns, shape (rows, columns); the batch has `width` columns."""
    first = np.frombuffer(batch.base, "<i8").take(columns)
    found = np.tile(first, (len(rows), 1))
    if batch.steps and any(rows):
        changed = changed_columns(batch, width)
        place = changed.searchsorted(columns)
        place[place == len(changed)] = 0
        touched = np.flatnonzero(changed[place] == columns)
        steps = np.frombuffer(batch.steps, "<i8").reshape(-1, batch.rows - 1)[place[touched]]
        # Each step is added once, however many rows there are.
        total = np.zeros(len(touched), np.int64)
        before = 0
        for number in sorted(range(len(rows)), key=rows.__getitem__):
            total += steps[:, before : rows[number]].sum(axis=1, dtype=np.int64)
            found[number, touched] += total
            before = rows[number]
    return found


def reasons(batch: Batch, columns: int) -> Codes:
    """Return reason codes of all rows, shape (rows, columns)."""
    if not batch.reasons:
        return np.zeros((batch.rows, columns), np.uint8)
    codes = np.frombuffer(batch.reasons, np.uint8)
    return np.broadcast_to(codes.reshape(-1, columns), (batch.rows, columns))


def codes_of_last_rows(batches: Sequence[Batch], columns: int) -> Codes | None:
    """Return reason codes of the last row of each batch; None if no value is absent in any batch."""
    if not any([batch.reasons for batch in batches]):  # noqa: C419 - a list is faster here
        return None
    return np.array([reasons_of(batch, batch.rows - 1, columns) for batch in batches])


def reasons_of(batch: Batch, row: int, columns: int) -> Codes:
    """Return the reason codes of one row."""
    if not batch.reasons:
        return np.zeros(columns, np.uint8)
    codes = np.frombuffer(batch.reasons, np.uint8)
    return codes if len(codes) == columns else codes[row * columns : (row + 1) * columns]
