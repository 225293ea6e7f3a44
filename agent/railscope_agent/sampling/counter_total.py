"""Sum of counters of devices that come and go."""

from __future__ import annotations

from collections.abc import Mapping

from railscope.reading import PRESENT, Absent, Reading
from railscope_agent.sampling.row_builder import RowBuilder


class CounterTotal:
    """Sum of counters that may appear, disappear and be reset; it never decreases while the agent runs.

    It starts with the sum of the first read. A counter that appears later counts from then on, and one
    without a value keeps its part of the sum.
    """

    def __init__(self) -> None:
        self._last: dict[str | tuple[str, ...], int] = {}
        self._total: int | None = None

    @property
    def has_started(self) -> bool:
        """True after the first read with a value."""
        return self._total is not None

    def update(self, row: RowBuilder, columns: Mapping[str | tuple[str, ...], int]) -> Reading:
        """Return the sum after a read; if none of the columns has a value, the reason of the first.

        Without columns, the counters that were read before cannot be found: an error.

        `columns` are the counters' columns by a key that lasts from probe to probe.
        """
        present = {
            key: row.values[column]
            for key, column in columns.items()
            if row.reasons[column] == PRESENT
        }
        if not columns:
            # A zero here would look like a reset of the sum to everything that computes rates.
            return Absent.ERROR
        if not present:
            return Absent(row.reasons[next(iter(columns.values()))])
        # The counts from before the start are included once, as those of any single counter would be.
        if self._total is None:
            self._total = sum(present.values())
        elif present != self._last:
            for key, value in present.items():
                # The value at which a counter appears is not an increase: it may have counted for days
                # elsewhere.
                last = self._last.get(key, value)
                # A counter below its last value was reset to zero, so all of its value is new.
                self._total += value - last if value >= last else value
        # Counters without a value now keep their last one: they continue from it when they return.
        self._last |= present
        return self._total
