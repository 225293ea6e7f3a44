"""Resource budget of the agent: measures its cost and drives the governor and the memory bound.

Periods change the cost of reading, but not the resident memory: above the memory bound, the agent releases
caches, and reports if that is not enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import structlog

from agent.config import Budget
from agent.sampling.governor import AT_LIMIT, NS, WITHIN, Governed, Governor
from agent.sampling.meter import Meter, ProcessMeter, Spent
from agent.sampling.source import Source, longest_period_seconds
from agent.sampling.trend import SETTLED_AFTER
from railscope.catalog.agent import GOVERNOR_STATES

log = structlog.get_logger(__name__)

LOOK_NS = 10 * NS
GIVE_BACK_EVERY_NS = 600 * NS
"""Minimum interval of releases: a garbage collection takes tens of milliseconds."""


def governor_of(
    budget: Budget, sources: Iterable[Source], settled_after: int = SETTLED_AFTER
) -> Governor:
    """Return a governor of these sources at their configured periods."""
    governed = [
        Governed(
            source.name,
            source.family,
            round(source.period_seconds * NS),
            round(longest_period_seconds(source) * NS),
        )
        for source in sources
    ]
    return Governor(budget.cpu_ratio, governed, settled_after)


@dataclass(slots=True)
class MemoryKeeper:
    """Releases memory when the resident memory exceeds the budget; a budget of 0 is no bound."""

    budget_bytes: int
    resident_bytes: Callable[[], int]
    give_back: Callable[[], None]
    state: int = WITHIN
    _look_from_ns: int = 0
    _give_back_from_ns: int = 0

    def look(self, at_ns: int) -> None:
        """Check the resident memory periodically."""
        if not self.budget_bytes or at_ns < self._look_from_ns:
            return
        self._look_from_ns = at_ns + LOOK_NS
        try:
            resident = self._lowered(at_ns)
        except OSError as error:  # the agent's own source fails as well, and reports it
            log.debug("memory_not_measured", problem=str(error))
            return
        state = AT_LIMIT if resident > self.budget_bytes else WITHIN
        if state != self.state:
            self.state = state
            tell = log.warning if state == AT_LIMIT else log.info
            event = "memory_over_budget" if state == AT_LIMIT else "memory_within_budget"
            tell(event, resident_bytes=resident, budget_bytes=self.budget_bytes)

    def _lowered(self, at_ns: int) -> int:
        """Return the resident memory, after a release if it is too much."""
        before = self.resident_bytes()
        if before <= self.budget_bytes or at_ns < self._give_back_from_ns:
            return before
        self._give_back_from_ns = at_ns + GIVE_BACK_EVERY_NS
        self.give_back()
        after = self.resident_bytes()
        log.info("memory_given_back", before_bytes=before, resident_bytes=after)
        return after


@dataclass(slots=True)
class Keeper:
    """Keeps one agent within its budget."""

    budget: Budget
    sources: Iterable[Source]
    meter: Meter = field(default_factory=ProcessMeter)
    give_back: Callable[[], None] = lambda: None
    """Drops caches that the agent can rebuild; the freed memory is returned to the system afterwards."""
    governor: Governor = field(init=False)
    memory: MemoryKeeper = field(init=False)

    def __post_init__(self) -> None:
        """Start at the configured periods."""
        self.governor = governor_of(self.budget, self.sources)
        self.memory = MemoryKeeper(
            self.budget.memory_bytes, self.meter.resident_bytes, self._give_back
        )

    def took(self, name: str, spent: Spent, at_ns: int) -> None:
        """Record a read of a source."""
        self.governor.took(name, spent, at_ns)

    def absent(self, name: str) -> None:
        """Record that a source has no devices on this node."""
        self.governor.absent(name)

    def look(self, at_ns: int) -> None:
        """Decide again; called after reads."""
        self.governor.decide(self.meter.process_cpu_ns(), at_ns)
        self.memory.look(at_ns)

    def stretch(self, name: str) -> tuple[int, str]:
        """Return the stretch of a source's period, and the reason for its last change."""
        load = self.governor.loads[name]
        return load.stretch, load.why

    def in_words(self) -> str:
        """Describe the use of the processor budget."""
        use, bound = self.governor.use, self.budget.cpu_ratio
        used = "not measured yet" if use is None else f"{percent(use)} of a core"
        if not bound:
            return f"{used}, no bound"
        state = GOVERNOR_STATES[self.governor.state].replace("_", " ")
        return f"{used}, budget {percent(bound)}: {state}"

    def _give_back(self) -> None:
        self.give_back()
        self.meter.give_back()


def percent(ratio: float) -> str:
    """Format a ratio as percent."""
    return f"{ratio * 100:.2g} %" if ratio < 1 else f"{ratio * 100:.0f} %"
