"""The agent inside its budget: measures what it costs, and has the governor and the memory follow.

Periods change what reading costs, but not what is resident: too much memory is answered by giving
back what can be done without, and where that is not enough, by saying so.
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
"""A collection of garbage takes tens of milliseconds: that must not become the dear part."""


def governor_of(
    budget: Budget, sources: Iterable[Source], settled_after: int = SETTLED_AFTER
) -> Governor:
    """A governor of these sources at their configured periods."""
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
    """Gives memory back when more is resident than the budget says; 0 bounds nothing."""

    budget_bytes: int
    resident_bytes: Callable[[], int]
    give_back: Callable[[], None]
    state: int = WITHIN
    _look_from_ns: int = 0
    _give_back_from_ns: int = 0

    def look(self, at_ns: int) -> None:
        """Look at what is resident, now and then."""
        if not self.budget_bytes or at_ns < self._look_from_ns:
            return
        self._look_from_ns = at_ns + LOOK_NS
        try:
            resident = self._lowered(at_ns)
        except OSError as error:  # the agent's own source fails of it as well, and tells
            log.debug("memory_not_measured", problem=str(error))
            return
        state = AT_LIMIT if resident > self.budget_bytes else WITHIN
        if state != self.state:
            self.state = state
            tell = log.warning if state == AT_LIMIT else log.info
            event = "memory_over_budget" if state == AT_LIMIT else "memory_within_budget"
            tell(event, resident_bytes=resident, budget_bytes=self.budget_bytes)

    def _lowered(self, at_ns: int) -> int:
        """What is resident, after giving back what can be if it is too much."""
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
    """Keeps one agent inside its budget."""

    budget: Budget
    sources: Iterable[Source]
    meter: Meter = field(default_factory=ProcessMeter)
    give_back: Callable[[], None] = lambda: None
    """Drops what the agent can make again; what that frees is returned to the system after it."""
    governor: Governor = field(init=False)
    memory: MemoryKeeper = field(init=False)

    def __post_init__(self) -> None:
        """Begin at the configured periods."""
        self.governor = governor_of(self.budget, self.sources)
        self.memory = MemoryKeeper(
            self.budget.memory_bytes, self.meter.resident_bytes, self._give_back
        )

    def took(self, name: str, spent: Spent, at_ns: int) -> None:
        """A source was read."""
        self.governor.took(name, spent, at_ns)

    def absent(self, name: str) -> None:
        """A source is not on this machine."""
        self.governor.absent(name)

    def look(self, at_ns: int) -> None:
        """Decide anew: after reads, never more often than they come."""
        self.governor.decide(self.meter.process_cpu_ns(), at_ns)
        self.memory.look(at_ns)

    def stretch(self, name: str) -> tuple[int, str]:
        """By how much the period of a source is to be multiplied, and why that was changed."""
        load = self.governor.loads[name]
        return load.stretch, load.why

    def in_words(self) -> str:
        """How the budget of the processor is kept."""
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
    """A share in words."""
    return f"{ratio * 100:.2g} %" if ratio < 1 else f"{ratio * 100:.0f} %"
