"""A rule about the health of a device, and the facts that rules test.

Facts are readings, increases of counters, and Xids about one GPU or NIC at the time of its verdict. Each
is a value or an absence reason; reading an absent number raises `AbsentFact`. The code that
collects facts decides which are stale.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from fractions import Fraction
from itertools import compress
from operator import ne
from typing import Generic, TypeAlias, TypeVar

from railscope.catalog import declare, gpu_health as h
from railscope.catalog.xids import ACTION_ORDER
from railscope.reading import Absent, Reading
from railscope.timestamps import SECOND_NS
from railscope_agent.streams.kernel_log import ActionableXid

MINUTE_NS = 60 * SECOND_NS
SHORTEST_RATE_NS = 4 * SECOND_NS
"""Shortest time that a rate may be measured over."""

DevicePart = tuple[str, ...]
"""Part of the device of a reading: () for the device itself, ("3", "crc") for an error of link 3."""
FactValue = TypeVar("FactValue")


class AbsentFact(Exception):  # noqa: N818 - not an error: an absent fact
    """A fact is absent, for a reason."""

    def __init__(self, reason: Absent) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class CounterIncrease:
    """Increase of a counter in its stored unit: over a window, and at the end of it.

    `recent` is the increase over the last minute, or a little more; over less if the counter has not been
    followed for as long.
    """

    increase: int
    over_ns: int
    recent: int
    recent_ns: int

    def share(self) -> Fraction:
        """Return the increase in nanoseconds as a share of the time. Raises AbsentFact in the first minute."""
        if self.over_ns < MINUTE_NS:
            raise AbsentFact(Absent.NOT_DUE)
        return Fraction(self.increase, self.over_ns)

    def rate(self, per_ns: int, at_least_ns: int = MINUTE_NS) -> Fraction:
        """Return the recent increase per period. Raises AbsentFact until it is known for `at_least_ns`."""
        if self.recent_ns < at_least_ns:
            raise AbsentFact(Absent.NOT_DUE)
        return Fraction(self.recent * per_ns, self.recent_ns)


WINDOW_NS = 10 * MINUTE_NS
STEP_NS = MINUTE_NS // 2
CounterKeyT = TypeVar("CounterKeyT", bound=Hashable)


@dataclass(slots=True)
class _WindowMark:
    """Sums of all counters at one time."""

    boot_ns: int
    totals: array[int]


class CounterWindow(Generic[CounterKeyT]):
    """Increase of counters by key; totals are unsigned 64-bit integers, as counters are.

    Increases are summed as readings arrive, and every half minute the sums are stored as one array, so
    memory is bounded. The sums before a counter decreased are no longer valid and are dropped. A counter that
    falls to at most half of its value was reset and has grown since; one that falls less was corrected by
    device or driver, and has not: growth that may not have happened is never counted.

    Each list has one entry per counter: its last value, the time since which it is followed, the time of
    its last value, and its increase since it is followed. Most counters stand still most of the time.
    """

    def __init__(self) -> None:
        self._places: dict[CounterKeyT, int] = {}
        self._last: list[int | None] = []
        self._since_ns: list[int] = []
        self._seen_ns: list[int] = []
        self._totals = array("Q")
        self._marks: deque[_WindowMark] = deque()
        self._recent: _WindowMark | None = None
        """The newest mark that is at least a minute old, else the first."""

    def set_keys(self, keys: Sequence[CounterKeyT]) -> None:
        """Follow exactly these counters; those that were followed before keep their sums."""
        values = [self._places.get(key) for key in keys]
        self._places = {key: place for place, key in enumerate(keys)}
        self._last = [None if place is None else self._last[place] for place in values]
        self._since_ns = [0 if place is None else self._since_ns[place] for place in values]
        self._seen_ns = [0 if place is None else self._seen_ns[place] for place in values]
        self._totals = _picked_totals(self._totals, values)
        self._marks = deque(
            _WindowMark(mark.boot_ns, _picked_totals(mark.totals, values)) for mark in self._marks
        )
        self._recent = None

    def add(self, boot_ns: int, values: Sequence[Reading]) -> None:
        """Process the readings of one time, in the order of the keys; a counter without one is unchanged."""
        last = self._last
        for place in compress(range(len(last)), map(ne, values, last)):
            value = values[place]
            if not isinstance(value, Absent):
                self._add_change(boot_ns, place, value)
        if Absent not in set(map(type, values)):
            self._seen_ns = [boot_ns] * len(last)
        else:
            pairs = zip(values, self._seen_ns, strict=True)
            self._seen_ns = [
                last_seen_ns if isinstance(v, Absent) else boot_ns for v, last_seen_ns in pairs
            ]
        if not self._marks or boot_ns - self._marks[-1].boot_ns >= STEP_NS:
            self._marks.append(_WindowMark(boot_ns, self._totals[:]))
        while len(self._marks) > 1 and boot_ns - self._marks[1].boot_ns >= WINDOW_NS:
            self._marks.popleft()
        minute_ago = boot_ns - MINUTE_NS
        older = (mark for mark in reversed(self._marks) if mark.boot_ns <= minute_ago)
        self._recent = next(older, self._marks[0])

    def _add_change(self, boot_ns: int, place: int, value: int) -> None:
        last = self._last[place]
        self._last[place] = value
        if last is None:
            self._since_ns[place] = boot_ns
        elif value >= last:
            self._totals[place] += value - last
        else:
            is_reset = value <= last // 2
            self._since_ns[place] = self._seen_ns[place]
            self._totals[place] = value if is_reset else 0
            for mark in self._marks:
                mark.totals[place] = 0

    def change(self, key: CounterKeyT) -> CounterIncrease | None:
        """Return the increase of a counter; None if it has been read at most once."""
        place = self._places.get(key)
        return None if place is None else self.change_of_place(place)

    def change_of_place(self, place: int) -> CounterIncrease | None:
        """Return the increase of the counter at a position of the keys."""
        if self._recent is None or self._seen_ns[place] <= self._since_ns[place]:
            return None
        return CounterIncrease(
            *self._growth(place, self._marks[0]), *self._growth(place, self._recent)
        )

    def stand_still(self, places: slice) -> bool:
        """True if none of these counters has increased, and all are followed for the same time."""
        totals, since_ns, seen_ns = (
            self._totals[places],
            self._since_ns[places],
            self._seen_ns[places],
        )
        return totals == self._marks[0].totals[places] and since_ns.count(
            since_ns[0]
        ) == seen_ns.count(seen_ns[0]) == len(totals)

    def _growth(self, place: int, mark: _WindowMark) -> tuple[int, int]:
        """Return the increase since a mark, and the nanoseconds that it covers."""
        since_ns = max(mark.boot_ns, self._since_ns[place])
        return self._totals[place] - mark.totals[place], self._seen_ns[place] - since_ns


def _picked_totals(totals: array[int], places: Iterable[int | None]) -> array[int]:
    return array("Q", [0 if place is None else totals[place] for place in places])


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
    device_state: Reading = Absent.UNSUPPORTED
    """State of the GPU on the PCI bus, as in railscope_gpu_device_state."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Identity of the device, such as model, driver and role."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the device that are not numbers."""
    peers: tuple[HealthFacts, ...] = ()
    """Facts about the devices of the node that it is compared with; they have no peers."""

    def has_same_state(self, other: HealthFacts) -> bool:
        """True if all facts except readings and increases are equal, for a device without peers."""
        return (self.xids, self.absent_sources, self.device_state) == (
            other.xids,
            other.absent_sources,
            other.device_state,
        )

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


UNKNOWN, HEALTHY, DEGRADED, FAILED = h.GPU_HEALTH.states
LOAD, HEALTH, NVLINK = "gpu", "gpu_health", "nvlink"
"""Sources that are needed to call a GPU healthy."""
NVLINK_SIGNAL, SETTINGS, KERNEL_LOG = "nvlink_signal", "gpu_settings", "kernel"
PATHS = "gpu_pcie"

INSPECT = "inspect"
_RESTARTS = ACTION_ORDER.index("restart_app") + 1
ACTIONS_BY_SEVERITY = (*ACTION_ORDER[:_RESTARTS], INSPECT, *ACTION_ORDER[_RESTARTS:])
"""All actions, from mildest to hardest; inspecting a GPU does not interrupt any job."""
_IGNORE = ACTION_ORDER[0]

RuleResult: TypeAlias = bool | Absent
"""True if the fault of a rule is present, or the reason for which that is unknown."""
FaultTest: TypeAlias = Callable[[HealthFacts], bool]


@dataclass(frozen=True, slots=True)
class RequiredActions:
    """Required actions: ours, and NVIDIA's if it has any."""

    actions: tuple[str, ...]
    nvidia: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HealthRule:
    """A fault of a device, with the resulting state and the required actions."""

    reason: str
    state: int
    test: FaultTest
    """Function that returns True if the fault is present. Raises AbsentFact if that is unknown."""
    condition: str
    """Text of the threshold."""
    origin: str
    """Origin of the threshold."""
    _: KW_ONLY
    actions: RequiredActions | Callable[[HealthFacts], RequiredActions] = RequiredActions(
        (INSPECT,)
    )
    sources: tuple[str, ...] = (HEALTH,)
    metrics: tuple[declare.Metric, ...] = ()
    """Metrics that the rule evaluates."""
    is_needed: bool = True
    """True if a device is healthy only if this rule can be evaluated."""
    describe: Callable[[HealthFacts], str] | None = None
    """Describes the fault for people; by default `condition`."""
    remedy: str = ""
    """Advice for people that is more exact than the actions."""
    alert: str = ""
    """Alert whose runbook is about the same fault."""
    compares_readings: bool = False
    """True if it compares readings: the first one is not sufficient, but the verdict does not wait."""

    def evaluate(self, facts: HealthFacts) -> RuleResult:
        """Return True if the fault is present; a reason if a source of the rule has no current readings."""
        for source in self.sources:
            if source in facts.absent_sources:
                return facts.absent_sources[source]
        try:
            return self.test(facts)
        except AbsentFact as absent:
            return absent.reason

    def required_actions(self, facts: HealthFacts) -> RequiredActions:
        """Return the actions for the fault, from mildest to hardest; a present fault is never ignored."""
        required = (
            self.actions if isinstance(self.actions, RequiredActions) else self.actions(facts)
        )
        names = set(required.actions) - {_IGNORE}
        actions = tuple(name for name in ACTIONS_BY_SEVERITY if name in names)
        return RequiredActions(actions or (INSPECT,), required.nvidia)

    def description(self, facts: HealthFacts) -> str:
        """Describe the fault."""
        return self.describe(facts) if self.describe else self.condition

    def prevents_healthy(self, facts: HealthFacts, answer: RuleResult) -> bool:
        """True if this answer prevents the device from being called healthy or degraded."""
        if not self.is_needed or isinstance(answer, bool) or answer is Absent.UNSUPPORTED:
            return False
        return not (answer is Absent.NOT_DUE and self.compares_readings and self._is_first(facts))

    def _is_first(self, facts: HealthFacts) -> bool:
        """True if all readings of the rule are present, and only earlier ones are missing."""
        readings = (reading for m in self.metrics for reading in facts.parts(m).values())
        return (
            facts.absent_sources.keys().isdisjoint(self.sources) and Absent.NOT_DUE not in readings
        )


def nonzero(metric: declare.Metric, *part: str) -> FaultTest:
    """Return a test of one reading: it is not 0."""
    return lambda facts: facts.number(metric, *part) != 0


def any_nonzero(metric: declare.Metric) -> FaultTest:
    """Return a test of all readings of a metric: one of them is not 0."""
    return lambda facts: any_holds(facts.parts(metric).values(), bool)


def in_state(metric: declare.Metric, state: str) -> FaultTest:
    """Return a test of one reading: it is this state."""
    (code,) = (code for code, name in metric.states.items() if name == state)
    return lambda facts: facts.number(metric) == code


def has_increased(change: CounterIncrease) -> bool:
    """True if a counter has increased."""
    return change.increase > 0
