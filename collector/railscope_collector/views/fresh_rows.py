"""Fresh rows of a block of the fleet, with the columns that roll up, cell by cell.

Rows that are not fresh do not count, and neither do readings without a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from railscope.reading import PRESENT
from railscope_collector.fleet import sheets

Floats: TypeAlias = npt.NDArray[np.float64]
REDUCERS = ((np.add, 0.0), (np.add, 0.0), (np.maximum, -np.inf), (np.minimum, np.inf))
"""Function and empty value of each column."""
_COUNTS = 1
"""Position of the counts among the columns."""


@dataclass(frozen=True, slots=True)
class FreshRows:
    """The columns that roll up of fresh rows of a block, cell by cell, shape (rows, columns)."""

    block: sheets.SheetBlock
    rows: npt.NDArray[np.intp]
    values: Floats
    present: npt.NDArray[np.bool_] | None
    """None if no value is absent."""

    def amounts(self) -> Iterator[tuple[np.ufunc, Floats]]:
        """Yield the amounts of each column, with its function."""
        for number, (reducer, empty) in enumerate(REDUCERS):
            amount = self.values if number != _COUNTS else np.ones(self.values.shape)
            yield reducer, amount if self.present is None else np.where(self.present, amount, empty)


def find_fresh_rows(block: sheets.SheetBlock, rows: npt.NDArray[np.intp]) -> FreshRows | None:
    """Return the columns of rows of a block that roll up; None without rows or columns."""
    layout = block.layout
    if not len(rows) or not len(layout.order):
        return None
    # A slice is not copied.
    chosen: npt.NDArray[np.intp] | slice
    chosen = slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] + 1 == len(rows) else rows
    # Exact integers end here: views are for display, and their readers use doubles.
    values = block.values_at(chosen, layout.order).astype(np.float64)
    reasons = block.reasons
    present = None
    if reasons is not None:
        present = reasons[chosen].take(layout.order, axis=1) == PRESENT
    if len(layout.rated):
        rates = block.rates[chosen].take(layout.rates, axis=1)
        values[:, layout.rated] = rates
        is_known = ~np.isnan(rates)
        if not is_known.all():
            present = np.ones(values.shape, np.bool_) if present is None else present
            present[:, layout.rated] &= is_known
    # None is the fast case for all that follows.
    if present is not None and present.all():
        present = None
    return FreshRows(block, rows, values, present)
