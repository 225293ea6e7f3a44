"""Facts about one GPU at the time of its verdict.

Facts are readings, increases of counters, and Xids. Each is a value or an absence reason; reading an absent
number raises `Untold`. The code that collects facts decides which are stale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeVar

from agent.streams.xid_book import JudgedXid
from railscope.catalog.declare import Metric
from railscope.reading import Absent, Reading

SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS

Part = tuple[str, ...]
"""Part of the GPU of a reading: () for the GPU itself, ("3", "crc") for an error of link 3."""
Value = TypeVar("Value")


class Untold(Exception):  # noqa: N818 - not an error: an absent fact
    """A fact is absent, for a reason."""

    def __init__(self, reason: Absent) -> None:
        super().__init__(reason.word)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Change:
    """Increase of a counter in its stored unit: over a window, and at the end of it.

    `recent` is the increase over the last minute, or a little more; over less if the counter has not been
    followed for as long.
    """

    increase: int
    over_ns: int
    recent: int
    recent_ns: int

    def share(self) -> Fraction:
        """Return the increase in nanoseconds as a share of the time. Raises Untold in the first minute."""
        if self.over_ns < MINUTE_NS:
            raise Untold(Absent.NOT_DUE)
        return Fraction(self.increase, self.over_ns)

    def rate(self, per_ns: int) -> Fraction:
        """Return the recent increase per period. Raises Untold in the first minute."""
        if self.recent_ns < MINUTE_NS:
            raise Untold(Absent.NOT_DUE)
        return Fraction(self.recent * per_ns, self.recent_ns)


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts for the verdict on one GPU."""

    readings: Mapping[Metric, Mapping[Part, Reading]] = field(default_factory=dict)
    changes: Mapping[Metric, Mapping[Part, Change]] = field(default_factory=dict)
    """Of counters that were read at least twice."""
    xids: tuple[JudgedXid, ...] = ()
    """Relevant Xids since the last reset of the GPU and the last load of its driver."""
    silent: Mapping[str, Absent] = field(default_factory=dict)
    """Sources without current readings of this GPU, with the reasons."""
    device_state: Reading = Absent.UNSUPPORTED
    """State of the GPU on the PCI bus, as in railscope_gpu_device_state."""

    def reading(self, metric: Metric, *part: str) -> Reading:
        """Return a reading; without a column it is unsupported."""
        return self.readings.get(metric, {}).get(part, Absent.UNSUPPORTED)

    def number(self, metric: Metric, *part: str) -> int:
        """Return the value of a reading. Raises Untold if it is absent."""
        reading = self.reading(metric, *part)
        if isinstance(reading, Absent):
            raise Untold(reading)
        return reading

    def parts(self, metric: Metric) -> Mapping[Part, Reading]:
        """Return all readings of a metric."""
        return self.readings.get(metric, {})

    def change(self, metric: Metric, *part: str) -> Change | Absent:
        """Return the increase of a counter; not due if it has been read only once."""
        reading = self.reading(metric, *part)
        if isinstance(reading, Absent):
            return reading
        return self.changes.get(metric, {}).get(part, Absent.NOT_DUE)


def any_of(values: Iterable[Value | Absent], test: Callable[[Value], bool]) -> bool:
    """True if a test holds for any of the values.

    Unsupported values are ignored. Raises Untold if no test holds and a value is absent, or if none is
    supported.
    """
    told, open_ = False, Absent.UNSUPPORTED
    for value in values:
        try:
            if test(present(value)):
                return True
            told = True
        except Untold as untold:
            open_ = untold.reason if open_ is Absent.UNSUPPORTED else open_
    if told and open_ is Absent.UNSUPPORTED:
        return False
    raise Untold(open_)


def untold(values: Iterable[Value | Absent]) -> bool:
    """Return False. Raises Untold as `any_of` does: for a sum that an absent value may change."""
    return any_of(values, lambda _: False)


def present(value: Value | Absent) -> Value:
    """Return the value. Raises Untold if it is absent."""
    if isinstance(value, Absent):
        raise Untold(value)
    return value
