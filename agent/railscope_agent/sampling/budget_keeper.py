"""Keeper of the agent's budget: measures the cost of the agent, and drives the governor and the memory bound.

Periods change the cost of reading, but not the resident memory: above the memory bound, the agent releases
caches, and reports if that is not enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import structlog

from railscope.timestamps import SECOND_NS
from railscope_agent.config import BudgetSettings
from railscope_agent.sampling.governor import AT_LIMIT, WITHIN, GovernedLoad, Governor
from railscope_agent.sampling.meter import ProcessMeter
from railscope_agent.sampling.source import Source

log = structlog.get_logger(__name__)

MEMORY_POLL_NS = 10 * SECOND_NS
RELEASE_EVERY_NS = 600 * SECOND_NS
"""Minimum interval of releases: a garbage collection takes tens of milliseconds."""


def create_governor(budget: BudgetSettings, sources: Iterable[Source]) -> Governor:
    """Return a governor of these sources at their configured periods."""
    return Governor.of(
        budget.cpu_ratio,
        (
            GovernedLoad(
                source.name,
                source.lane,
                round(source.period_seconds * SECOND_NS),
                round(max(source.longest_period_seconds, source.period_seconds) * SECOND_NS),
            )
            for source in sources
        ),
    )


@dataclass(slots=True)
class MemoryKeeper:
    """Releases memory when the resident memory exceeds the budget; a budget of 0 sets no bound."""

    budget_bytes: int
    resident_bytes: Callable[[], int]
    release_memory: Callable[[], None]
    state: int = WITHIN
    _check_from_ns: int = 0
    _release_from_ns: int = 0

    def update(self, at_ns: int) -> None:
        """Check the resident memory periodically."""
        # Called after every read: memory changes slowly, and measuring it is a system call.
        if not self.budget_bytes or at_ns < self._check_from_ns:
            return
        self._check_from_ns = at_ns + MEMORY_POLL_NS
        try:
            resident = self._release_excess(at_ns)
        except OSError as error:  # the agent's own source fails as well, and reports it
            log.debug("memory_measurement_failed", problem=str(error))
            return
        state = AT_LIMIT if resident > self.budget_bytes else WITHIN
        if state != self.state:
            self.state = state
            report = log.warning if state == AT_LIMIT else log.info
            event = "memory_budget_exceeded" if state == AT_LIMIT else "memory_budget_restored"
            report(event, resident_bytes=resident, budget_bytes=self.budget_bytes)

    def _release_excess(self, at_ns: int) -> int:
        """Return the resident memory, after a release if it is too much."""
        before = self.resident_bytes()
        # Memory that could not be released once is in use: another attempt soon would only cost processor
        # time.
        if before <= self.budget_bytes or at_ns < self._release_from_ns:
            return before
        self._release_from_ns = at_ns + RELEASE_EVERY_NS
        self.release_memory()
        after = self.resident_bytes()
        log.info("memory_released", resident_before_bytes=before, resident_bytes=after)
        return after


@dataclass(slots=True)
class BudgetKeeper:
    """Keeps one agent within its budget."""

    budget: BudgetSettings
    sources: Iterable[Source]
    meter: ProcessMeter = field(default_factory=ProcessMeter)
    drop_caches: Callable[[], None] = lambda: None
    """Drops caches that the agent can rebuild; the freed memory is returned to the system afterwards."""
    governor: Governor = field(init=False)
    memory: MemoryKeeper = field(init=False)

    def __post_init__(self) -> None:
        """Start at the configured periods."""
        self.governor = create_governor(self.budget, self.sources)
        self.memory = MemoryKeeper(
            self.budget.memory_bytes, self.meter.resident_bytes, self._release_memory
        )

    def update(self, at_ns: int) -> None:
        """Decide again; called after reads."""
        self.governor.decide(self.meter.process_cpu_ns, at_ns)
        self.memory.update(at_ns)

    def period_factor(self, name: str) -> tuple[int, str]:
        """Return the period factor of a source, and the reason for its last change."""
        load = self.governor.loads[name]
        return load.period_factor, load.why

    def _release_memory(self) -> None:
        # First: memory that caches still refer to cannot be returned to the system.
        self.drop_caches()
        self.meter.release_memory()
