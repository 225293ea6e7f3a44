"""What is known of one GPU at the moment its health is judged.

Facts are readings, what counters have grown by, and Xids. Each is a value or the reason why there
is none; who asks for a number that is not there is told so by `Untold`. What is too old to be a
fact is for those to decide who collect them.
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
"""What of the GPU a reading is about: () for the GPU itself, ("3", "crc") for an error of link 3."""
Value = TypeVar("Value")


class Untold(Exception):  # noqa: N818 - no error: an answer that cannot be given
    """Something cannot be told, for a reason."""

    def __init__(self, reason: Absent) -> None:
        super().__init__(reason.word)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Change:
    """What a counter has grown by, in its stored unit: over a window, and at the end of it.

    `recent` is the growth over the last minute, or a little more; over less where the counter has
    not been followed for as long.
    """

    increase: int
    over_ns: int
    recent: int
    recent_ns: int

    def share(self) -> Fraction:
        """Growth in nanoseconds as a share of the time. Raises Untold within the first minute."""
        if self.over_ns < MINUTE_NS:
            raise Untold(Absent.NOT_DUE)
        return Fraction(self.increase, self.over_ns)

    def rate(self, per_ns: int) -> Fraction:
        """Growth of late for so much time. Raises Untold within the first minute."""
        if self.recent_ns < MINUTE_NS:
            raise Untold(Absent.NOT_DUE)
        return Fraction(self.recent * per_ns, self.recent_ns)


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything a verdict on one GPU is made of."""

    readings: Mapping[Metric, Mapping[Part, Reading]] = field(default_factory=dict)
    changes: Mapping[Metric, Mapping[Part, Change]] = field(default_factory=dict)
    """Of counters that were read at least twice."""
    xids: tuple[JudgedXid, ...] = ()
    """Those that matter, since the last reset of the GPU and the last load of its driver."""
    silent: Mapping[str, Absent] = field(default_factory=dict)
    """Sources that say nothing of this GPU now, and why."""
    device_state: Reading = Absent.UNSUPPORTED
    """Who has the GPU on the PCI bus, by the states of railscope_gpu_device_state."""

    def reading(self, metric: Metric, *part: str) -> Reading:
        """A reading; what its source has no column for is not supported."""
        return self.readings.get(metric, {}).get(part, Absent.UNSUPPORTED)

    def number(self, metric: Metric, *part: str) -> int:
        """A reading that has a value. Raises Untold where there is none."""
        reading = self.reading(metric, *part)
        if isinstance(reading, Absent):
            raise Untold(reading)
        return reading

    def parts(self, metric: Metric) -> Mapping[Part, Reading]:
        """All readings of a metric."""
        return self.readings.get(metric, {})

    def change(self, metric: Metric, *part: str) -> Change | Absent:
        """What a counter has grown by; not due where it has been read only once."""
        reading = self.reading(metric, *part)
        if isinstance(reading, Absent):
            return reading
        return self.changes.get(metric, {}).get(part, Absent.NOT_DUE)


def any_of(values: Iterable[Value | Absent], test: Callable[[Value], bool]) -> bool:
    """Whether a test holds for any of the values.

    What is not supported has no say. Raises Untold where none holds and one cannot be told, or
    where none is supported.
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
    """Never true. Raises Untold as `any_of` does: for a sum that what cannot be told may change."""
    return any_of(values, lambda _: False)


def present(value: Value | Absent) -> Value:
    """The value. Raises Untold where there is none."""
    if isinstance(value, Absent):
        raise Untold(value)
    return value
