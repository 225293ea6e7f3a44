"""Governor of the periods at which sources are read.

The governor receives the cost of every read and sets a factor (1, 2, 4, ...) for the period of each
source, so that all reads and the other work of the agent take no more of a core than the budget
allows. It is pure arithmetic: no clock, no input, no output. Times are those of the boot clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace

from railscope.catalog.agent import GOVERNOR_STATES
from railscope.timestamps import SECOND_NS
from railscope_agent.sampling.cost_trend import CostTrend
from railscope_agent.sampling.meter import ReadCost

WITHIN, STRETCHING, AT_LIMIT = GOVERNOR_STATES

# A power of two, as all factors: each longer period is a multiple of the shorter ones, on the same grid.
MAX_PERIOD_FACTOR = 64
THREAD_SHARE = 0.25
"""Maximum share of its time that a thread may spend in reads; the other sources wait as long."""
RELAXED_SHARE = 0.8
"""Periods grow when the budget is exceeded, and shrink if they would fit into this share of it."""
SOURCES_SHARE = 0.25
"""Share of the budget that is reserved for reading, however expensive the rest is."""
HOLD_NS = 60 * SECOND_NS
"""Minimum time before a period factor is reduced."""
# Reads with short periods would otherwise repeat the decision many times per second.
DECIDE_NS = 1 * SECOND_NS
WINDOW_NS = 10 * SECOND_NS
"""Window for measuring the rest (metrics endpoint, shipping, event loop): process use without reads."""
# One minute: long enough that a scrape or a push of the agent does not count as a change.
WINDOWS_OF_USE = 6
# Interval of probes as in source_reader, until a second probe shows the actual one.
REPROBE_NS = 60 * SECOND_NS
CPU, BLOCKING, FITS = "processor time", "blocks its thread", "within budget"


@dataclass(frozen=True, slots=True)
class GovernedSource:
    """A source as the governor sees it: its configured period, and its longest allowed period."""

    name: str
    family: str
    period_ns: int
    longest_ns: int

    @property
    def max_period_factor(self) -> int:
        """Greatest period factor that the longest period allows."""
        period_factor = 1
        while (
            period_factor < MAX_PERIOD_FACTOR
            and self.period_ns * period_factor * 2 <= self.longest_ns
        ):
            period_factor *= 2
        return period_factor


@dataclass(slots=True)
class _CostTrends:
    """Cost of reads and probes, in processor time or in elapsed time."""

    read: CostTrend
    probe: CostTrend

    def share(self, period_ns: int, probes_every_ns: int) -> float:
        """Return the share of a core, or of a thread's time, at a period."""
        # A probe is part of a read: it is never more frequent than the reads.
        probes_every_ns = max(probes_every_ns, period_ns)
        return self.read.estimate / period_ns + self.probe.estimate / probes_every_ns


class GovernedLoad:
    """A governed source: its cost and its period factor."""

    def __init__(self, source: GovernedSource) -> None:
        self.source = source
        self.max_period_factor = source.max_period_factor
        self.period_factor = 1
        self.why = ""
        self.changed_ns = 0
        self.forget()

    def forget(self) -> None:
        """Reset the cost: the source has no devices on this node, or none any more."""
        self._cpu = _CostTrends(CostTrend(), CostTrend())
        self._wall = _CostTrends(CostTrend(), CostTrend())
        self._probed_ns: int | None = None
        self._probes_every_ns = REPROBE_NS

    @property
    def is_measured(self) -> bool:
        """True if it has a cost: that of a source without devices is zero at every period."""
        return self._cpu.read.count > 0

    def record_cost(self, cost: ReadCost, at_ns: int) -> None:
        """Record the cost of a read."""
        self._cpu.read.add(cost.read.cpu_ns, at_ns)
        self._wall.read.add(cost.read.wall_ns, at_ns)
        if cost.probe is None:
            return
        # The interval is measured: a source with failing devices probes far more often than planned.
        if self._probed_ns is not None:
            self._probes_every_ns = min(max(at_ns - self._probed_ns, 1), REPROBE_NS)
        self._probed_ns = at_ns
        self._cpu.probe.add(cost.probe.cpu_ns, at_ns)
        self._wall.probe.add(cost.probe.wall_ns, at_ns)

    def set(self, period_factor: int, reason: str, at_ns: int) -> None:
        """Set the period factor and its reason."""
        self.period_factor, self.why, self.changed_ns = period_factor, reason, at_ns

    def cpu_share(self, period_factor: int) -> float:
        """Return the share of a core that it would take at a period factor."""
        return self._cpu.share(self.source.period_ns * period_factor, self._probes_every_ns)

    def wall_share(self, period_factor: int) -> float:
        """Return the share of its thread's time that it would take at a period factor."""
        return self._wall.share(self.source.period_ns * period_factor, self._probes_every_ns)


Share = Callable[[GovernedLoad, int], float]
_RequiredFactors = dict[str, tuple[int, str]]


class PeriodFactorFitter:
    """Lengthens the periods of loads until their shares fit into an allowance, the most expensive first.

    A smaller allowance continues the same sequence: no period is lengthened less for it.
    """

    def __init__(self, loads: Sequence[GovernedLoad], share: Share) -> None:
        self._loads = loads
        self._share = share
        self._period_factors: dict[str, int] = {}
        shares = [share(load, 1) for load in loads]
        self._total = sum(shares)
        self._source_count = max(sum(share > 0 for share in shares), 1)
        self._most_expensive = [
            # The index breaks ties, so that equal costs always result in the same periods. heapq has the
            # smallest first, so shares are negative.
            (-share, index)
            for index, share in enumerate(shares)
            if loads[index].max_period_factor > 1
        ]
        heapify(self._most_expensive)

    def fit(self, allowance: float) -> dict[str, int]:
        """Return the period factors above 1, for loads above their fair share and up to their limits."""
        fair = allowance / self._source_count
        while self._total > allowance and self._most_expensive:
            share, index = -self._most_expensive[0][0], self._most_expensive[0][1]
            # Loads below the fair share keep their periods even if the budget is exceeded: slowing them would
            # gain little.
            if share <= fair:
                break
            load = self._loads[index]
            period_factor = 2 * self._period_factors.get(load.source.name, 1)
            self._period_factors[load.source.name] = period_factor
            lower = self._share(load, period_factor)
            self._total += lower - share
            if period_factor < load.max_period_factor:
                # The same load can be the most expensive one again, and is then lengthened once more.
                heapreplace(self._most_expensive, (-lower, index))
            else:
                heappop(self._most_expensive)
        return dict(self._period_factors)


@dataclass(slots=True)
class _ProcessorUse:
    """Processor use of the process: reads separately from the rest."""

    other: CostTrend = field(default_factory=CostTrend)
    reads_ns: int = 0
    _marks: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=WINDOWS_OF_USE + 1))

    @property
    def use(self) -> float | None:
        """Share of a core over the last minute; None before the end of the first window."""
        if len(self._marks) < 2:  # noqa: PLR2004 - two ends of a time span
            return None
        (began_ns, used_then), (ended_ns, used_now) = self._marks[0], self._marks[-1]
        return (used_now - used_then) / (ended_ns - began_ns)

    def record_total(self, process_clock: Callable[[], int], at_ns: int) -> None:
        """Record the total of the process, once per window."""
        if self._marks and at_ns - self._marks[-1][0] < WINDOW_NS:
            return
        process_cpu_ns = process_clock()
        if self._marks:
            began_ns, used_then = self._marks[-1]
            # A read is recorded when it ends: one that began in the window before can exceed the use of this
            # one.
            rest_ns = max(process_cpu_ns - used_then - self.reads_ns, 0)
            self.other.add(rest_ns / (at_ns - began_ns), at_ns)
        self._marks.append((at_ns, process_cpu_ns))
        self.reads_ns = 0


class Governor:
    """Sets the period factor of every source. A `cpu_ratio` of 0 sets no bound; use is still measured.

    The period of the most expensive source is lengthened first and restored last, and also that of a source
    that blocks its thread without using the processor, because the other sources of that thread wait.
    A source within its fair share keeps its period, even if the expensive one is at its longest period.
    Such a budget cannot be met, and the state reports that.
    """

    def __init__(self, cpu_ratio: float, sources: Iterable[GovernedSource]) -> None:
        self.cpu_ratio = cpu_ratio
        self.state = WITHIN
        self.loads: Mapping[str, GovernedLoad] = {
            source.name: GovernedLoad(source) for source in sources
        }
        families = dict.fromkeys(load.source.family for load in self.loads.values())
        self._threads = [
            [load for load in self.loads.values() if load.source.family == family]
            for family in families
        ]
        self._account = _ProcessorUse()
        self._decide_from_ns = 0

    @property
    def use(self) -> float | None:
        """Share of a core that the process used over the last minute; None at the start."""
        return self._account.use

    @property
    def other_use(self) -> float:
        """Share of a core used by everything except reads, which no period changes."""
        return self._account.other.estimate

    @property
    def expected_use(self) -> float:
        """Expected share of a core at the present periods."""
        return self.other_use + sum(
            load.cpu_share(load.period_factor) for load in self.loads.values()
        )

    def record_read(self, name: str, cost: ReadCost, at_ns: int) -> None:
        """Record a read of a source."""
        self._account.reads_ns += cost.total.cpu_ns
        self.loads[name].record_cost(cost, at_ns)

    def record_absence(self, name: str) -> None:
        """Record that a source has no devices here: the cost of its probes belongs to the rest."""
        self.loads[name].forget()

    def decide(self, process_clock: Callable[[], int], at_ns: int) -> None:
        """Set all period factors, given the clock of the process's processor time."""
        # Before the return without a budget: the use is reported in any case.
        self._account.record_total(process_clock, at_ns)
        if not self.cpu_ratio or at_ns < self._decide_from_ns:
            return
        self._decide_from_ns = at_ns + DECIDE_NS
        needed, relaxed = self._required_factors()
        for name, load in self.loads.items():
            (minimum, reason), (maximum, _) = needed[name], relaxed[name]
            # A lengthening is immediate, since the budget is exceeded now; a shortening waits, so that
            # periods do not oscillate.
            if load.period_factor < minimum:
                load.set(minimum, reason, at_ns)
            elif load.period_factor > maximum and at_ns - load.changed_ns >= HOLD_NS:
                load.set(maximum, FITS, at_ns)
        self.state = self._grade_state()

    def _required_factors(self) -> tuple[_RequiredFactors, _RequiredFactors]:
        """Return the period factors required by the budget, and those required by its relaxed share."""
        reserved = SOURCES_SHARE * self.cpu_ratio
        measured = [load for load in self.loads.values() if load.is_measured]
        whole = PeriodFactorFitter(measured, GovernedLoad.cpu_share)
        needed = dict.fromkeys(self.loads, (1, FITS))
        relaxed = needed.copy()
        for period_factors, share in ((needed, 1.0), (relaxed, RELAXED_SHARE)):
            # Without the reserve, a client that scrapes without pause would leave no time for any source.
            allowance = max(share * self.cpu_ratio - self.other_use, share * reserved)
            for name, period_factor in whole.fit(allowance).items():
                period_factors[name] = (period_factor, CPU)
        for thread in self._threads:
            measured = [load for load in thread if load.is_measured]
            waits = PeriodFactorFitter(measured, GovernedLoad.wall_share)
            # Each thread has its own bound: sources of one driver wait for each other even if no processor
            # time is used.
            for period_factors, share in ((needed, 1.0), (relaxed, RELAXED_SHARE)):
                for name, period_factor in waits.fit(share * THREAD_SHARE).items():
                    if period_factor > period_factors[name][0]:
                        period_factors[name] = (period_factor, BLOCKING)
        return needed, relaxed

    def _grade_state(self) -> int:
        # Expected and not measured: the use of the last minute still contains the reads at the former
        # periods.
        if self.expected_use > self.cpu_ratio:
            return AT_LIMIT
        is_lengthened = any(load.period_factor > 1 for load in self.loads.values())
        return STRETCHING if is_lengthened else WITHIN
