"""A governor over simulated sources: the test sets the cost of each read, time is simulated."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from railscope_agent.sampling.governor import GovernedSource, Governor
from railscope_agent.sampling.meter import ReadCost, ThreadCost

NS = 1_000_000_000
MS = 1_000_000
PROBE_EVERY_NS = 60 * NS


@dataclass
class SimulatedSource:
    """A source with the cost of its reads: processor and elapsed milliseconds, as functions of time."""

    name: str
    period_seconds: float = 1.0
    cpu_ms: float = 1.0
    wall_ms: float | None = None
    probe_cpu_ms: float = 0.0
    family: str = ""
    longest_seconds: float = 120.0
    noise: Callable[[], float] = lambda: 1.0

    @property
    def governed(self) -> GovernedSource:
        longest = max(self.longest_seconds, self.period_seconds)
        family = self.family or self.name
        return GovernedSource(
            self.name, family, round(self.period_seconds * NS), round(longest * NS)
        )

    def spent(self, *, probed: bool) -> ReadCost:
        factor = self.noise()
        wall_ms = self.cpu_ms if self.wall_ms is None else self.wall_ms
        read = ThreadCost(round(self.cpu_ms * factor * MS), round(wall_ms * factor * MS))
        probe = ThreadCost(round(self.probe_cpu_ms * MS), round(self.probe_cpu_ms * MS))
        return ReadCost(read, probe if probed else None)


@dataclass
class GovernedSources:
    """Reads every source on its grid, at the governor's period factors."""

    sources: list[SimulatedSource]
    cpu_ratio: float = 0.01
    rest_ratio: float = 0.0
    governor: Governor = field(init=False)
    now_ns: int = 0
    changes: list[tuple[int, str, int]] = field(default_factory=list)
    """Timestamps, sources and their period factors."""

    def __post_init__(self) -> None:
        self.governor = Governor(self.cpu_ratio, [source.governed for source in self.sources])
        self._due = [(0, place) for place in range(len(self.sources))]
        self._probed_ns = dict.fromkeys((source.name for source in self.sources), -PROBE_EVERY_NS)
        self._reads_cpu_ns = 0
        self._rest_cpu_ns = 0.0

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end_ns = self.now_ns + round(seconds * NS)
        while self._due[0][0] <= end_ns:
            due_ns, place = heapq.heappop(self._due)
            self._rest_cpu_ns += self.rest_ratio * (due_ns - self.now_ns)
            self.now_ns = due_ns
            source = self.sources[place]
            self._read(source)
            period_ns = source.governed.period_ns * self.period_factor(source.name)
            heapq.heappush(self._due, ((due_ns // period_ns + 1) * period_ns, place))

    def period_factor(self, name: str) -> int:
        """Return the period factor of a source."""
        return self.governor.loads[name].period_factor

    @property
    def lengthened_periods(self) -> dict[str, int]:
        """Return the period factors of all sources with a lengthened period."""
        found = {source.name: self.period_factor(source.name) for source in self.sources}
        return {name: period_factor for name, period_factor in found.items() if period_factor > 1}

    def share(self, source: SimulatedSource) -> float:
        """Return the share of a core that a source really uses at its present period."""
        period_ns = source.governed.period_ns * self.period_factor(source.name)
        probe_ns = source.probe_cpu_ms * MS
        return source.cpu_ms * MS / period_ns + probe_ns / max(period_ns, PROBE_EVERY_NS)

    @property
    def shares(self) -> float:
        """Return the share of all sources."""
        return sum(self.share(source) for source in self.sources)

    def _read(self, source: SimulatedSource) -> None:
        probed = self.now_ns - self._probed_ns[source.name] >= PROBE_EVERY_NS
        if probed:
            self._probed_ns[source.name] = self.now_ns
        spent = source.spent(probed=probed)
        self._reads_cpu_ns += spent.total.cpu_ns
        before = self.lengthened_periods
        self.governor.record_read(source.name, spent, self.now_ns)
        self.governor.decide(lambda: self._reads_cpu_ns + round(self._rest_cpu_ns), self.now_ns)
        for name, period_factor in {**dict.fromkeys(before, 1), **self.lengthened_periods}.items():
            if period_factor != before.get(name, 1):
                self.changes.append((self.now_ns, name, period_factor))
