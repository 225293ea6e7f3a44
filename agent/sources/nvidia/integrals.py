"""Counters that the agent makes itself: the integrals over time of what the driver only samples.

A sample speaks of the time since the one before it, where that is at most `LONGEST_SAMPLE_NS` ago on
the clock of the same boot. Time that no sample speaks of is not counted: the counter stands still. So
what two readings of a counter differ by is what was seen between them, and never more than that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agent.host import Host
from agent.sampling.source import Columns, Table
from railscope.catalog.declare import Metric
from railscope.reading import PRESENT, REASONS, Absent

NS_PER_SECOND = 1_000_000_000
LONGEST_SAMPLE_NS = 30 * NS_PER_SECOND
"""As far apart as samples may be for metering to call the time between them observed."""

MAX_MEMORY_BYTES = 1 << 50
"""More memory than any GPU has; a reading beyond is an error of the driver."""


@dataclass(frozen=True, slots=True)
class Integrated:
    """A gauge, the counter of its integral over time, and the most that a sample can be.

    What is below 0 or above `most` is no sample but an error: a bill is made of the counter, and it
    would keep the error for ever.
    """

    gauge: Metric
    counter: Metric
    most: int


class Integral:
    """The sum of samples times the time each speaks of; nothing is rounded until it is told."""

    def __init__(self, numerator: int, denominator: int) -> None:
        """A step of the sum, a sample's step times a nanosecond, is this fraction of what is told."""
        self._numerator, self._denominator = numerator, denominator
        self._sum = 0
        self._boot_id = ""
        self._last_ns: int | None = None

    @classmethod
    def of(cls, integrated: Integrated) -> Integral:
        """From the steps that the gauge comes in to those that the counter is told in."""
        step = integrated.gauge.scale / (integrated.counter.scale * NS_PER_SECOND)
        return cls(step.numerator, step.denominator)

    def take(self, sample: int, boot_id: str, boot_ns: int) -> int:
        """Count a sample, and tell the integral up to it."""
        if self._last_ns is not None and boot_id == self._boot_id:
            passed_ns = boot_ns - self._last_ns
            if 0 < passed_ns <= LONGEST_SAMPLE_NS:
                self._sum += sample * passed_ns
        self._boot_id, self._last_ns = boot_id, boot_ns
        return self._sum * self._numerator // self._denominator


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a gauge stands in the table, and where its integral."""

    gauge: int
    counter: int
    most: int
    integral: Integral


class Integrals:
    """The integrals of one source, kept for as long as the agent runs.

    A source whose samples are further apart than `LONGEST_SAMPLE_NS` has none: they would stand still
    while the GPU works.
    """

    def __init__(self, wanted: Iterable[Integrated], period_seconds: float) -> None:
        bearable = period_seconds * NS_PER_SECOND <= LONGEST_SAMPLE_NS
        self._wanted = {one.gauge: one for one in wanted} if bearable else {}
        self._kept: dict[tuple[str, tuple[str, ...]], Integral] = {}
        self._places: list[_Place] = []

    def place(self, columns: Columns) -> None:
        """Add a column for the integral of each gauge that has one."""
        self._places = []
        for position, (metric, entity) in enumerate(list(columns.columns)):
            if one := self._wanted.get(metric):
                integral = self._kept.setdefault((metric.name, entity.key), Integral.of(one))
                counter = columns.add(one.counter, entity)
                self._places.append(_Place(position, counter, one.most, integral))

    def read(self, host: Host, into: Table) -> None:
        """Count what the gauges tell now. Where one tells nothing, neither does its integral."""
        if not self._places:
            return
        boot_id, boot_ns = host.boot_id, host.clock.now().boot_ns
        for place in self._places:
            sample, reason = into.values[place.gauge], into.reasons[place.gauge]
            if reason != PRESENT:
                into.put_none(place.counter, 1, REASONS[reason])
            elif 0 <= sample <= place.most:
                into.put(place.counter, place.integral.take(sample, boot_id, boot_ns))
            else:
                into.put(place.counter, Absent.ERROR)
