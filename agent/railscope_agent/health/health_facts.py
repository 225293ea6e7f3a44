"""Facts that health rules test.

Facts are readings, increases of counters, and Xids about one GPU or NIC at the time of its verdict. Each
is a value or an absence reason; reading an absent number raises `AbsentFact`. The code that
collects facts decides which are stale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple, TypeVar

from railscope.catalog import declare
from railscope.reading import Absent, Reading
from railscope.timestamps import SECOND_NS
from railscope_agent.streams.xid_matcher import ActionableXid

MINUTE_NS = 60 * SECOND_NS
HOUR_NS = 60 * MINUTE_NS
SHORTEST_RATE_NS = 4 * SECOND_NS
"""Shortest time that a rate may be measured over."""
_NONE = Fraction(0)

DevicePart = tuple[str, ...]
"""Part of the device of a reading: () for the device itself, ("3", "crc") for an error of link 3."""
FactValue = TypeVar("FactValue")


class AbsentFact(Exception):  # noqa: N818 - not an error: an absent fact
    """A fact is absent, for a reason."""

    def __init__(self, reason: Absent) -> None:
        super().__init__(reason)
        self.reason = reason


class CounterIncrease(NamedTuple):
    """Increase of a counter in its stored unit: over a window, at the end of it, and over an hour.

    `recent` is the increase over the last minute, `hour` that over the last hour, or a little more; over less if
    the counter has not been followed for as long.
    """

    increase: int
    over_ns: int
    recent: int
    recent_ns: int
    hour: int = 0
    hour_ns: int = 0

    def share(self) -> Fraction:
        """Return the increase in nanoseconds as a share of the time. Raises AbsentFact in the first minute."""
        if self.over_ns < MINUTE_NS:
            raise AbsentFact(Absent.NOT_DUE)
        return Fraction(self.increase, self.over_ns)

    def per_hour(self) -> Fraction:
        """Return the increase per hour, over the last hour. Raises AbsentFact in the first minute."""
        if self.hour_ns < MINUTE_NS:
            raise AbsentFact(Absent.NOT_DUE)
        return Fraction(self.hour * HOUR_NS, self.hour_ns)

    def rate(self, per_ns: int, at_least_ns: int = MINUTE_NS) -> Fraction:
        """Return the recent increase per period. Raises AbsentFact until it is known for `at_least_ns`."""
        # A rate over a shorter time would be dominated by single events.
        if self.recent_ns < at_least_ns:
            raise AbsentFact(Absent.NOT_DUE)
        return Fraction(self.recent * per_ns, self.recent_ns) if self.recent else _NONE


@dataclass(frozen=True, slots=True)
class HealthFacts:
    """All facts for the verdict on one GPU or NIC."""

    readings: Mapping[declare.Metric, Mapping[DevicePart, Reading]] = field(default_factory=dict)
    changes: Mapping[declare.Metric, Mapping[DevicePart, CounterIncrease]] = field(
        default_factory=dict
    )
    """Increases of counters that were read at least twice."""
    xids: tuple[ActionableXid, ...] = ()
    """Relevant Xids since the last reset of the GPU and the last load of its driver."""
    absent_sources: Mapping[str, Absent] = field(default_factory=dict)
    """Sources without current readings of this GPU, with the reasons."""
    needs_reset: bool = False
    """True if NVML answers a call about the GPU, or about a part of it, that the GPU must be reset."""
    init_failure: str = ""
    """Line of the kernel log in which the driver failed to start the GPU, if it has not answered since."""
    peer_links: int = 0
    """Most active NVLinks of another GPU of the same model on the node with links to NVSwitches; 0 without one."""
    has_fabric_peer: bool = False
    """True if another GPU of the same model on the node has joined its NVLink fabric."""
    device_state: Reading = Absent.UNSUPPORTED
    """State of the GPU on the PCI bus, as in railscope_gpu_device_state."""
    has_switches: bool = False
    """True if the node has NVSwitches on its PCI bus."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Identity of the device, such as model, driver and role."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the device that are not numbers."""
    peers: tuple[HealthFacts, ...] = ()
    """Facts about the devices of the node that it is compared with; they have no peers."""

    def reading(self, metric: declare.Metric, *part: str) -> Reading:
        """Return a reading; without a column it is unsupported."""
        return self.readings.get(metric, {}).get(part, Absent.UNSUPPORTED)

    def number(self, metric: declare.Metric, *part: str) -> int:
        """Return the value of a reading. Raises AbsentFact if it is absent."""
        reading = self.reading(metric, *part)
        if isinstance(reading, Absent):
            raise AbsentFact(reading)
        return reading

    def parts(self, metric: declare.Metric) -> Mapping[DevicePart, Reading]:
        """Return all readings of a metric."""
        return self.readings.get(metric, {})

    def change(self, metric: declare.Metric, *part: str) -> CounterIncrease | Absent:
        """Return the increase of a counter; not due if it has been read only once."""
        reading = self.reading(metric, *part)
        if isinstance(reading, Absent):
            return reading
        return self.changes.get(metric, {}).get(part, Absent.NOT_DUE)


def any_holds(values: Iterable[FactValue | Absent], test: Callable[[FactValue], bool]) -> bool:
    """True if a test holds for any of the values.

    Unsupported values are ignored. Raises AbsentFact if no test holds and a value is absent, or if none is
    supported.
    """
    has_result, open_ = False, Absent.UNSUPPORTED
    for value in values:
        try:
            if test(require_value(value)):
                return True
            has_result = True
        except AbsentFact as absent:
            # The first reason other than unsupported: that one can end, and has to be reported.
            open_ = absent.reason if open_ is Absent.UNSUPPORTED else open_
    if has_result and open_ is Absent.UNSUPPORTED:
        return False
    raise AbsentFact(open_)


def require_all(values: Iterable[FactValue | Absent]) -> bool:
    """Return False. Raises AbsentFact as `any_holds` does: for a sum that an absent value may change."""
    return any_holds(values, lambda _: False)


def require_value(value: FactValue | Absent) -> FactValue:
    """Return the value. Raises AbsentFact if it is absent."""
    if isinstance(value, Absent):
        raise AbsentFact(value)
    return value
