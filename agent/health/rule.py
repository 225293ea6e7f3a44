"""A rule about the health of a GPU, and the types that rules consist of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from agent.health.facts import Change, Facts, Untold, any_of
from railscope.catalog import gpu_health as h
from railscope.catalog.declare import Metric
from railscope.catalog.xids import ACTION_ORDER
from railscope.reading import Absent

UNKNOWN, HEALTHY, DEGRADED, FAILED = h.GPU_HEALTH.states
LOAD, HEALTH, NVLINK = "gpu", "gpu_health", "nvlink"
"""Sources that are needed to call a GPU healthy."""
NVLINK_SIGNAL, SETTINGS, KERNEL_LOG = "nvlink_signal", "gpu_settings", "kernel"
PATHS = "gpu_pcie"

INSPECT = "inspect"
_RESTARTS = ACTION_ORDER.index("restart_app") + 1
HARDNESS = (*ACTION_ORDER[:_RESTARTS], INSPECT, *ACTION_ORDER[_RESTARTS:])
"""All actions, from mildest to hardest; inspecting a GPU does not interrupt any job."""
_IGNORE = ACTION_ORDER[0]

Answer: TypeAlias = bool | Absent
"""True if the fault of a rule is present, or the reason for which that is unknown."""
Tell: TypeAlias = Callable[[Facts], bool]


@dataclass(frozen=True, slots=True)
class Asked:
    """Required actions: ours, and NVIDIA's if it has any."""

    actions: tuple[str, ...]
    nvidia: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A fault of a GPU, with the resulting state and the required actions."""

    reason: str
    state: int
    when: str
    """Threshold in words."""
    origin: str
    """Origin of the threshold."""
    tell: Tell
    """Function that returns True if the fault is present. Raises Untold if that is unknown."""
    asks: Asked | Callable[[Facts], Asked]
    sources: tuple[str, ...] = (HEALTH,)
    metrics: tuple[Metric, ...] = ()
    """Metrics that the rule evaluates."""
    needed: bool = True
    """True if a GPU is healthy only if this rule can be evaluated."""
    says: Callable[[Facts], str] | None = None
    """Describes the fault for people; by default `when`."""
    over_time: bool = False
    """True if it compares readings: the first one is not sufficient, but the verdict does not wait."""

    def answer(self, facts: Facts) -> Answer:
        """Return True if the fault is present; a reason if a source of the rule has no current readings."""
        for source in self.sources:
            if source in facts.silent:
                return facts.silent[source]
        try:
            return self.tell(facts)
        except Untold as untold:
            return untold.reason

    def asked(self, facts: Facts) -> Asked:
        """Return the actions for the fault, from mildest to hardest; a present fault is never ignored."""
        asked = self.asks if isinstance(self.asks, Asked) else self.asks(facts)
        beyond = (action for action in HARDNESS if action in asked.actions and action != _IGNORE)
        return Asked(tuple(beyond) or (INSPECT,), asked.nvidia)

    def said(self, facts: Facts) -> str:
        """Describe the fault."""
        return self.says(facts) if self.says else self.when

    def holds_up(self, facts: Facts, answer: Answer) -> bool:
        """True if this answer prevents the GPU from being called healthy or degraded."""
        if not self.needed or isinstance(answer, bool) or answer is Absent.UNSUPPORTED:
            return False
        return not (answer is Absent.NOT_DUE and self.over_time and self._is_first(facts))

    def _is_first(self, facts: Facts) -> bool:
        """True if all readings of the rule are present, and only earlier ones are missing."""
        readings = (reading for m in self.metrics for reading in facts.parts(m).values())
        return facts.silent.keys().isdisjoint(self.sources) and Absent.NOT_DUE not in readings


def flag(metric: Metric, *part: str) -> Tell:
    """Return a test of one reading: it is not 0."""
    return lambda facts: facts.number(metric, *part) != 0


def any_part(metric: Metric) -> Tell:
    """Return a test of all readings of a metric: one of them is not 0."""
    return lambda facts: any_of(facts.parts(metric).values(), bool)


def is_state(metric: Metric, state: str) -> Tell:
    """Return a test of one reading: it is this state."""
    (code,) = (code for code, name in metric.states.items() if name == state)
    return lambda facts: facts.number(metric) == code


def grown(change: Change) -> bool:
    """True if a counter has increased."""
    return change.increase > 0
