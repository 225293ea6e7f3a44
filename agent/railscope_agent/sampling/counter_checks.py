"""Checks of counters whose increase is limited.

A reading to which a counter cannot have grown, or that is less without a reset, is an error: devices and drivers
return such ones now and then, and invoices would retain them. A reset is confirmed by the reading after it: one reading
that is too low would count as a reset, and the next one as the increase since.
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
        # Readings that contradict each other too are noise, not a new counter: the time starts again.
        is_confirmed = (
            self.other is not None
            and value >= self.other[0]
            and self._can_follow(reading, self.other)
        )
        self.other_since_ns = self.other_since_ns if is_confirmed else boot_ns
        before, self.other = self.plausible, reading
        if before is None or (value >= before[0] and self._can_follow(reading, before)):
            return self._accept(reading)
        # One reading that is too low is an error; only if the next one continues it, the counter was reset.
        if is_confirmed and self._can_follow(reading, before):
            # Of several falls in a row the first counts.
            if not self.before_fall or boot_ns - self.before_fall[1] > _LONGEST_DELAY_NS:
                self.before_fall = before
            return self._accept(reading)
        last = self.before_fall
        if last and value >= last[0] and self._can_follow(reading, last):
            self.before_fall = None
            return self._accept(reading)
        # The counter was replaced, for example by a new board: its readings are consistent among themselves.
        return boot_ns - self.other_since_ns >= _LONGEST_DELAY_NS and self._accept(reading)

    def miss(self, reason: int, boot_ns: int) -> None:
        """Expect that the counter starts at zero if it could not be read: its device may have been reset."""
        if reason != Absent.NOT_DUE.value:
            self.other = 0, boot_ns

    def _accept(self, reading: tuple[int, int]) -> bool:
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
            if into.reasons[column] != PRESENT or not isinstance(value, int):
                counter.miss(into.reasons[column], boot_ns)
            elif not counter.accepts(value, boot_ns):
                into.put(column, Absent.ERROR)
