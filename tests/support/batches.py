"""Batches made of plain rows of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from railscope.wire import Batch


def batch_of(
    rows: Sequence[Sequence[int]],
    *,
    boot_ns: Sequence[int],
    stream: str = "test",
    schema: bytes = b"",
    reasons: Sequence[Sequence[int]] = (),
) -> Batch:
    """Return a batch of these rows; `reasons` are codes of each row, or empty if all were read."""
    table = np.array(rows, np.int64)
    steps = np.diff(table, axis=0)
    changed = steps.any(axis=0)
    return Batch(
        stream,
        schema,
        b"",
        1,
        tuple(boot_ns),
        tuple(boot_ns),
        table[0].tobytes(),
        np.packbits(changed, bitorder="little").tobytes(),
        np.ascontiguousarray(steps[:, changed].T).tobytes(),
        np.array(reasons, np.uint8).tobytes(),
    )
