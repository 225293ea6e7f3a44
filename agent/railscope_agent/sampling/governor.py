"""Governor: while the agent uses more of a core than its budget, the most expensive source is read half as often.

It decides at the end of each window of `WINDOW_NS`, over the time since the last change, at most two minutes. If the mean is beyond
the budget, and two windows were (one may be a garbage collection, or a scrape of everything), the period of the source that used
the most is doubled. After a minute below `RELAXED_SHARE` of the budget the longest period is halved. Sources of a lane that is busy for most of the time with calls
that wait are treated alike, by elapsed time: the others of the lane wait as long. It is pure arithmetic: no clock, no I/O.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from railscope.catalog.agent import GOVERNOR_STATES
from railscope.timestamps import SECOND_NS
from railscope_agent.sampling.meter import ReadCost

WITHIN, STRETCHING, AT_LIMIT = GOVERNOR_STATES
# A power of two, as all factors: each longer period is a multiple of the shorter ones, on the same grid.
MAX_PERIOD_FACTOR = 64
WINDOW_NS = 10 * SECOND_NS
WINDOWS, CALM_WINDOWS = 13, 6
"""Two minutes: the longest period is in it, and one minute."""
RELAXED_SHARE = 0.8
LANE_SHARE = 0.5
"""Maximum share of its time that a lane may spend in reads."""
SOURCES_SHARE = 0.25
"""Share of the budget that reads may always use: a client that scrapes without pause must not stop them."""
CPU, BLOCKING, FITS = "processor time", "blocks its thread", "within budget"


@dataclass(slots=True)
class GovernedLoad:
    """A source: its place, its longest allowed period, its factor, and its cost in the present window."""

    name: str
    lane: str
    period_ns: int
    longest_ns: int
    period_factor: int = 1
    why: str = ""
    cpu_ns: int = 0
    wall_ns: int = 0

    @property
    def can_grow(self) -> bool:
        """True if the longest period allows to double the present one."""
        doubled = 2 * self.period_factor
        return doubled <= MAX_PERIOD_FACTOR and self.period_ns * doubled <= self.longest_ns


@dataclass(frozen=True, slots=True)
class _Window:
    """What one window took, in nanoseconds: all of the process, and each source."""

    passed: int
    used: int
    cpu: Mapping[str, int]
    wall: Mapping[str, int]


@dataclass(slots=True)
class Governor:
    """Sets the period factor of every source. A `cpu_ratio` of 0 sets no bound; use is still measured."""

    cpu_ratio: float
    loads: Mapping[str, GovernedLoad]
    state: int = WITHIN
    _marks: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=CALM_WINDOWS + 1))
    """Times and processor times at the ends of the windows of the last minute."""
    _windows: deque[_Window] = field(default_factory=lambda: deque(maxlen=WINDOWS))
    """Windows since the last change."""

    @classmethod
    def of(cls, cpu_ratio: float, loads: Iterable[GovernedLoad]) -> Governor:
        """Return a governor of these sources."""
        return cls(cpu_ratio, {load.name: load for load in loads})

    @property
    def use(self) -> float | None:
        """Share of a core that the process used over the last minute; None at the start."""
        if len(self._marks) < 2:  # noqa: PLR2004 - two ends of a time span
            return None
        (began_ns, used_then), (ended_ns, used_now) = self._marks[0], self._marks[-1]
        return (used_now - used_then) / (ended_ns - began_ns)

    def record_read(self, name: str, cost: ReadCost) -> None:
        """Record a read of a source."""
        load = self.loads[name]
        load.cpu_ns += cost.total.cpu_ns
        load.wall_ns += cost.total.wall_ns

    def decide(self, process_clock: Callable[[], int], at_ns: int) -> None:
        """Close a window that has ended, given the clock of the process's processor time."""
        if self._marks and at_ns - self._marks[-1][0] < WINDOW_NS:
            return
        before, now = self._marks[-1] if self._marks else None, (at_ns, process_clock())
        self._marks.append(now)
        if before and self.cpu_ratio:
            loads = self.loads.values()
            cpu, wall = (
                {load.name: getattr(load, kind) for load in loads} for kind in ("cpu_ns", "wall_ns")
            )
            self._windows.append(_Window(now[0] - before[0], now[1] - before[1], cpu, wall))
            self._close()
        for load in self.loads.values():
            load.cpu_ns = load.wall_ns = 0

    def _close(self) -> None:
        loads, windows = self.loads.values(), self._windows
        passed_ns = sum(window.passed for window in windows)
        cpu, wall = Counter[str](), Counter[str]()
        for window in windows:
            cpu.update(window.cpu)
            wall.update(window.wall)
        busy = Counter[str]()
        for load in loads:
            busy[load.lane] += wall[load.name]
        lane, busy_ns = max(busy.items(), key=lambda each: each[1], default=("", 0))
        used_ns, budget_ns = sum(window.used for window in windows), self.cpu_ratio * passed_ns
        is_over = used_ns > budget_ns and cpu.total() > SOURCES_SHARE * budget_ns
        is_over &= sum(window.used > self.cpu_ratio * window.passed for window in windows) > 1
        is_blocked = len(windows) > 1 and busy_ns > LANE_SHARE * passed_ns
        growing = [load for load in loads if load.can_grow and (is_over or load.lane == lane)]
        grown = [load for load in loads if load.period_factor > 1]
        self.state = STRETCHING if grown else WITHIN
        cost = cpu if is_over else wall
        costliest = max(growing, key=lambda load: cost[load.name], default=None)
        fair_ns = (budget_ns if is_over else passed_ns) / max(len(self.loads), 1)
        if (is_over or is_blocked) and costliest and cost[costliest.name] > fair_ns / 2:
            self._set(costliest, 2 * costliest.period_factor, CPU if is_over else BLOCKING)
        elif is_over:
            self.state = AT_LIMIT
        elif (
            grown
            and len(windows) >= CALM_WINDOWS
            and used_ns <= RELAXED_SHARE * budget_ns
            and not is_blocked
        ):
            longest = max(grown, key=lambda load: load.period_factor)
            self._set(longest, longest.period_factor // 2, FITS)

    def _set(self, load: GovernedLoad, period_factor: int, why: str) -> None:
        load.period_factor, load.why = period_factor, why
        self._windows.clear()
        self.state = (
            STRETCHING if any(each.period_factor > 1 for each in self.loads.values()) else WITHIN
        )
