"""Narrow counters carried on to 64 bits, so that a wrap is no reset to those who read them.

A counter of 32 bits that went past its end and one that was set back both fall. Which it was is
told by how far it would have had to go, and by the others of its set:

- It would have to go half its range or more to get from the last value to this one: a reset.
- A 64-bit counter of the same set fell as well: a reset, for those do not wrap.
- All counters of the set were gone in between: a reset, for the device was.
- Two or more fell, and they are most of those that had counted anything: a reset, which sets the
  whole set back (a driver that is loaded again), while wraps do not come together.
- Otherwise: a wrap.

In doubt it is a reset, so that growth that may not have been is never counted. What this cannot
see: a counter that went on by half its range or more between two readings, and the reset of a set
in which nothing but one counter, in its upper half, had counted at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import gt, itemgetter

from railscope.reading import PRESENT, Absent

Carried = Mapping[str, tuple[int, int]]
"""By name: the last value read, and what is added to it for the wraps so far."""


class Unwrap:
    """The narrow counters of one set: columns of a row that are read together.

    `narrow` gives the columns by names that stay the same over probes, `wide` the columns of 64-bit
    counters of the same set. `before` is what an earlier one knew, by the same names.
    """

    def __init__(
        self,
        narrow: Mapping[str, int],
        wide: Sequence[int] = (),
        before: Carried | None = None,
        bits: int = 32,
    ) -> None:
        self._range = 1 << bits
        self._names = tuple(narrow)
        self._columns = tuple(narrow.values())
        self._wide = tuple(wide)
        self._pick, self._pick_wide = picker(self._columns), picker(self._wide)
        known = [(before or {}).get(name, (0, 0)) for name in self._names]
        self._last: Sequence[int] = [last for last, _ in known]
        self._added = [added for _, added in known]
        self._last_wide: Sequence[int] = [0] * len(wide)

    @property
    def carried(self) -> Carried:
        """What the next one has to know."""
        pairs = zip(self._last, self._added, strict=True)
        return dict(zip(self._names, pairs, strict=True))

    @property
    def wraps(self) -> int:
        """How many wraps the present values hold."""
        return sum(self._added) // self._range

    def carry_on(self, values: list[int], reasons: bytearray) -> None:
        """Put the number of 64 bits in the place of each narrow one of a row just read.

        Columns without a value stay as they are, and so does what is known of them.
        """
        now, wide = self._pick(values), self._pick_wide(values)
        if any(map(gt, self._last, now)):
            self._fell(now, wide, reasons)
        else:
            self._last = now
        self._last_wide = wide
        if any(self._added):
            for column, added in zip(self._columns, self._added, strict=True):
                if added and reasons[column] == PRESENT:
                    values[column] += added

    def _fell(self, now: Sequence[int], wide: Sequence[int], reasons: bytearray) -> None:
        present = [i for i, column in enumerate(self._columns) if reasons[column] == PRESENT]
        ahead = {i: now[i] - self._last[i] + self._range for i in present if now[i] < self._last[i]}
        counted = sum(self._last[i] > 0 for i in present)
        together = len(ahead) > 1 and 2 * len(ahead) > counted
        half = self._range >> 1
        kept = list(self._last)
        if (
            self._gone(reasons)
            or not all(0 <= distance < half for distance in ahead.values())
            or (ahead and (together or self._wide_fell(wide, reasons)))
        ):
            kept = [0] * len(kept)
            self._added = [0] * len(kept)
        else:
            for i in ahead:
                self._added[i] += self._range
        for i in present:
            kept[i] = now[i]
        self._last = kept

    def _gone(self, reasons: bytearray) -> bool:
        return all(reasons[column] == Absent.GONE.value for column in self._columns)

    def _wide_fell(self, wide: Sequence[int], reasons: bytearray) -> bool:
        pairs = zip(self._wide, self._last_wide, wide, strict=True)
        return any(after < before and reasons[column] == PRESENT for column, before, after in pairs)


def picker(columns: Iterable[int]) -> Callable[[Sequence[int]], Sequence[int]]:
    """What picks columns of a row, at the speed of C."""
    wanted = tuple(columns)
    if len(wanted) > 1:
        return itemgetter(*wanted)
    return lambda row: [row[column] for column in wanted]
