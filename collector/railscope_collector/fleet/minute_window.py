"""Readings of the last minute: what every table, tile and value of traffic, pause and busy time shows.

Traffic comes in phases of a step, so a value of one moment is often zero. A counter of a NIC or an RDMA port, and the
utilization of a GPU, is shown as the mean of the last minute. Of the time that a NIC pauses or is paused, it is the largest
share in any of the window's slots: one pause of many seconds must not vanish in a mean.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from railscope.timestamps import SECOND_NS

SLOTS = 6
SLOT_NS = 10 * SECOND_NS
"""More than a step of most jobs, and two envelopes of an agent with the default settings."""
WINDOW_NS = SLOTS * SLOT_NS
MAX_STEP_SECONDS = WINDOW_NS / SECOND_NS
"""An increase over a longer time, such as one without a collector, is not of the last minute."""
_MIN_SLOT_SECONDS = SLOT_NS / SECOND_NS / 2
"""A slot of which less is known has no share of its own."""

Floats: TypeAlias = npt.NDArray[np.float64]
Positions: TypeAlias = npt.NDArray[np.intp]


class MinuteWindow:
    """Amounts of the windowed columns of rows, by slot of the boot clock of their nodes."""

    def __init__(self, rows: int, largest: npt.NDArray[np.bool_]) -> None:
        self._largest = largest
        # Zeros take no memory until they are written.
        self._amounts = np.zeros((rows, SLOTS, len(largest)), np.float32)
        self._seconds = np.zeros((rows, SLOTS), np.float32)
        self._slots = np.zeros((rows, SLOTS), np.int64)

    def begin(self, row: int) -> None:
        """Forget the readings of a row."""
        self._seconds[row], self._slots[row] = 0, -SLOTS

    def add(
        self, rows: Positions, boot_ns: npt.NDArray[np.int64], seconds: Floats, rates: Floats
    ) -> Floats:
        """Add rates over a time up to one of each row, NaN for none; return what is shown of them.

        A slot with an unknown part is unknown as a whole. Without any known slot, the newest rate is shown.
        """
        known = np.flatnonzero((seconds > 0) & (seconds <= MAX_STEP_SECONDS))
        slots = boot_ns // SLOT_NS
        chosen, cells = rows[known], (slots % SLOTS)[known]
        is_new = self._slots[chosen, cells] != slots[known]
        self._amounts[chosen[is_new], cells[is_new]] = 0
        self._seconds[chosen[is_new], cells[is_new]] = 0
        self._slots[chosen, cells] = slots[known]
        self._amounts[chosen, cells] += rates[known] * seconds[known, np.newaxis]
        self._seconds[chosen, cells] += seconds[known]
        return self._shown(rows, slots, rates)

    def _shown(self, rows: Positions, slots: npt.NDArray[np.int64], rates: Floats) -> Floats:
        ages = slots[:, np.newaxis] - self._slots[rows]
        is_recent = (ages >= 0) & (ages < SLOTS)
        amounts = self._amounts[rows].astype(np.float64)
        seconds = np.where(is_recent, self._seconds[rows], 0.0)[:, :, np.newaxis]
        seconds = np.where(np.isnan(amounts), 0.0, seconds)
        amounts = np.where(seconds > 0, amounts, 0.0)
        total = seconds.sum(axis=1)
        shown = np.divide(amounts.sum(axis=1), total, out=rates.copy(), where=total > 0)
        of_slots = np.divide(
            amounts,
            seconds,
            out=np.full(seconds.shape, -np.inf),
            where=seconds >= _MIN_SLOT_SECONDS,
        ).max(axis=1)
        shown = np.where(self._largest & np.isfinite(of_slots), of_slots, shown)
        return np.where(np.isnan(rates), np.nan, shown)
