"""Checks of counters whose increase is limited.

A reading to which a counter cannot have grown, or that is less without a reset, is an error: devices and drivers
return such ones now and then, and invoices would retain them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from railscope.catalog.declare import Metric, MetricKind
from railscope.frame import Column
from railscope.reading import PRESENT, Absent
from railscope.timestamps import SECOND_NS
from railscope_agent.sampling.row_builder import RowBuilder

_LONGEST_DELAY_SECONDS = 30
"""Longest time before a read at which a driver may have read a counter; a reading that stays for it is accepted."""
_LONGEST_DELAY_NS = _LONGEST_DELAY_SECONDS * SECOND_NS


@dataclass(slots=True)
class _CheckedCounter:
    """Last plausible reading of a counter, and the last implausible one with the time of the first of these."""

    metric: Metric
    certain: int = field(init=False)
    """Increase that is plausible between any two reads."""
    plausible: tuple[int, int] | None = None
    before_fall: tuple[int, int] | None = None
    """Last reading before the counter fell: it continues there if the fall was an error, such as a truncated file."""
    other: tuple[int, int] | None = None
    other_since_ns: int = 0

    def __post_init__(self) -> None:
        _, per_second = self.metric.valid or (0, 0)
        self.certain = int(per_second * _LONGEST_DELAY_SECONDS / self.metric.scale)

    def accepts(self, value: int, boot_ns: int) -> bool:
        """True unless the reading contradicts the one before; what stays for `_LONGEST_DELAY_NS` has changed."""
        reading = value, boot_ns
        # Usual case, without the arithmetic below.
        if self.plausible and 0 <= value - self.plausible[0] <= self.certain:
            self.plausible, self.other = reading, None
            return True
        # A value that the quantity cannot have is rejected for that, and not remembered.
        if not self.metric.accepts(value):
            return True
        if self.plausible is None or self._can_follow(reading, self.plausible):
            # Of several falls in a row the first counts.
            is_first = not self.before_fall or boot_ns - self.before_fall[1] > _LONGEST_DELAY_NS
            if self.plausible and value < self.plausible[0] and is_first:
                self.before_fall = self.plausible
            self.plausible, self.other = reading, None
            return True
        last = self.before_fall
        if last and value >= last[0] and self._can_follow(reading, last):
            self.plausible, self.before_fall, self.other = reading, None, None
            return True
        # Readings that contradict each other too are noise, not a new counter: the time starts again.
        if self.other is None or not self._can_follow(reading, self.other):
            self.other_since_ns = boot_ns
        self.other = reading
        if boot_ns - self.other_since_ns < _LONGEST_DELAY_NS:
            return False
        # The counter was replaced, for example by a new board: its readings are consistent among themselves.
        self.plausible, self.other = reading, None
        return True

    def _can_follow(self, reading: tuple[int, int], before: tuple[int, int]) -> bool:
        passed_ns = reading[1] - before[1] + _LONGEST_DELAY_NS
        return self.metric.can_follow(reading[0], before[0], Fraction(passed_ns, SECOND_NS))


def _is_limited(metric: Metric) -> bool:
    return metric.kind is MetricKind.COUNTER and metric.valid is not None


class CounterChecks:
    """Checks of the counters of one source, from probe to probe."""

    def __init__(self) -> None:
        self._counters: dict[tuple[Metric, tuple[str, ...]], _CheckedCounter] = {}
        self._columns: list[tuple[int, _CheckedCounter]] = []

    def find_columns(self, columns: Sequence[Column], known: Iterable[Column]) -> None:
        """Find the counters with a limit among the columns; `known` has those that cannot be read now as well."""
        before = self._counters
        self._counters = {
            (metric, entity.key): before.get((metric, entity.key)) or _CheckedCounter(metric)
            for metric, entity in known
            if _is_limited(metric)
        }
        self._columns = [
            (position, self._counters[metric, entity.key])
            for position, (metric, entity) in enumerate(columns)
            if _is_limited(metric)
        ]

    def read(self, boot_ns: int, into: RowBuilder) -> None:
        """Make implausible readings absent."""
        for column, counter in self._columns:
            value = into.values[column]
            # A defective source may return what is no number.
            is_number = into.reasons[column] == PRESENT and isinstance(value, int)
            if is_number and not counter.accepts(value, boot_ns):
                into.put(column, Absent.ERROR)
