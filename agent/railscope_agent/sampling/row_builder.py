"""One row of a source under construction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import compress, repeat
from operator import is_not
from typing import cast

from railscope.frame import Event
from railscope.reading import PRESENT, Absent, Reading


class RowBuilder:
    """One row under construction: a stored integer and a reason code for each column."""

    def __init__(self, columns: int, check: Callable[[RowBuilder], None] | None = None) -> None:
        self._check = check
        self.values = [0] * columns
        self.reasons = bytearray(columns)
        self.events: list[Event] = []
        self.needs_probe = False
        """Set by a source that found something without a column in the last probe."""
        self.is_intermediate = False
        """Set by a source that only sampled: a later read returns the readings."""

    def check_counters(self) -> None:
        """Make implausible counters absent, once; a source calls this before it adds up counters."""
        check, self._check = self._check, None
        if check:
            check(self)

    def put(self, column: int, reading: Reading) -> None:
        """Set one column."""
        if isinstance(reading, Absent):
            self.values[column] = 0
            self.reasons[column] = reading.value
        else:
            self.values[column] = reading
            self.reasons[column] = PRESENT

    def put_each(self, columns: Iterable[int], reading: Reading) -> None:
        """Set several columns to the same reading."""
        for column in columns:
            self.put(column, reading)

    def put_readings(self, start: int, readings: Iterable[Reading]) -> None:
        """Set consecutive columns."""
        row = list(readings)
        # All are stored in bulk and the few absent ones corrected: nearly every reading has a value.
        self.put_all(start, cast("list[int]", row))
        for position in compress(range(len(row)), map(is_not, map(type, row), repeat(int))):
            self.put(start + position, row[position])

    def put_all(self, start: int, readings: Sequence[int]) -> None:
        """Set consecutive columns that all have a value. Raises IndexError if there are not as many."""
        # A slice assignment would lengthen the row silently, and shift the columns behind it.
        if start + len(readings) > len(self.values):
            message = f"readings from column {start}: {len(readings)}: expected at most {len(self.values) - start}"
            raise IndexError(message)
        self.values[start : start + len(readings)] = readings
        self.reasons[start : start + len(readings)] = bytes(len(readings))

    def put_none(self, start: int, count: int, reason: Absent) -> None:
        """Set consecutive columns to no value, all for one reason."""
        self.values[start : start + count] = [0] * count
        self.reasons[start : start + count] = bytes([reason.value]) * count
