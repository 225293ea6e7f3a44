"""Narrow counters extended to 64 bits: a wrap must not appear as a reset.

A counter of 32 bits decreases both when it wraps and when it is reset: `CounterUnwrapper`
distinguishes the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import gt, itemgetter

from railscope.reading import PRESENT, Absent

CounterStates = Mapping[str, tuple[int, int]]
"""State by counter name: the last value read, and the amount added to it for the wraps so far."""
_RANGE = 1 << 32


class CounterUnwrapper:
    """Narrow counters of one set: columns of a row that are read together.

    `narrow` maps names that are stable across probes to columns, `wide` lists the columns of 64-bit
    counters of the same set. `before` is the state of an earlier instance, by the same names.

    A decrease is a wrap or a reset, depending on the distance to the new value and on the other counters:

    - It would have to advance by half its range or more from the last value to this one: a reset.
    - A 64-bit counter of the same set decreased as well: a reset, because those do not wrap.
    - All counters of the set were gone in between: a reset of the device.
    - Two or more decreased, and they are most of those with a non-zero value: a reset, which sets the
      whole set back (a driver that is loaded again), while wraps do not coincide.
    - Otherwise: a wrap.

    In doubt it is a reset, so that growth that may not have happened is never counted. Not detected: a
    counter that advances by half its range or more between two readings, and the reset of a set in
    which only one counter, in its upper half, was non-zero.
    """

    def __init__(
        self,
        narrow: Mapping[str, int],
        wide: Sequence[int] = (),
        before: CounterStates | None = None,
    ) -> None:
        self._names = tuple(narrow)
        self._columns = tuple(narrow.values())
        self._wide = tuple(wide)
        self._pick, self._pick_wide = column_picker(self._columns), column_picker(self._wide)
        previous = [(before or {}).get(name, (0, 0)) for name in self._names]
        self._last: Sequence[int] = [last for last, _ in previous]
        self._added = [added for _, added in previous]
        # In the first row, no 64-bit counter counts as decreased.
        self._last_wide: Sequence[int] = [0] * len(wide)

    @property
    def state(self) -> CounterStates:
        """State for the next instance."""
        pairs = zip(self._last, self._added, strict=True)
        return dict(zip(self._names, pairs, strict=True))

    @property
    def wraps(self) -> int:
        """Number of wraps in the present values."""
        return sum(self._added) // _RANGE

    def extend_values(self, values: list[int], reasons: bytearray) -> None:
        """Replace each narrow value of a row just read by its 64-bit value.

        Columns without a value and their state are unchanged.
        """
        now, wide = self._pick(values), self._pick_wide(values)
        if any(map(gt, self._last, now)):
            self._process_decrease(now, wide, reasons)
        else:
            self._last = now
        self._last_wide = wide
        if any(self._added):
            for column, added in zip(self._columns, self._added, strict=True):
                if added and reasons[column] == PRESENT:
                    values[column] += added

    def _process_decrease(
        self, now: Sequence[int], wide: Sequence[int], reasons: bytearray
    ) -> None:
        present = [i for i, column in enumerate(self._columns) if reasons[column] == PRESENT]
        ahead = {i: now[i] - self._last[i] + _RANGE for i in present if now[i] < self._last[i]}
        counted = sum(self._last[i] > 0 for i in present)
        together = len(ahead) > 1 and 2 * len(ahead) > counted
        half = _RANGE >> 1
        last_values = list(self._last)
        if (
            all(reasons[column] == Absent.GONE.value for column in self._columns)
            or not all(0 <= distance < half for distance in ahead.values())
            or (ahead and (together or self._wide_decreased(wide, reasons)))
        ):
            last_values = [0] * len(last_values)
            self._added = [0] * len(last_values)
        else:
            for i in ahead:
                self._added[i] += _RANGE
        for i in present:
            last_values[i] = now[i]
        self._last = last_values

    def _wide_decreased(self, wide: Sequence[int], reasons: bytearray) -> bool:
        pairs = zip(self._wide, self._last_wide, wide, strict=True)
        return any(after < before and reasons[column] == PRESENT for column, before, after in pairs)


def column_picker(columns: Iterable[int]) -> Callable[[Sequence[int]], Sequence[int]]:
    """Return a function that picks columns of a row, implemented in C."""
    picked = tuple(columns)
    if len(picked) > 1:
        return itemgetter(*picked)
    return lambda row: [row[column] for column in picked]
