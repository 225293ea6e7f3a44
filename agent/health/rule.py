"""What a rule about the health of a GPU is, and the words that rules are made of."""

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
"""Sources without which no GPU is said to be healthy."""
NVLINK_SIGNAL, SETTINGS, KERNEL_LOG = "nvlink_signal", "gpu_settings", "kernel"
PATHS = "gpu_pcie"

INSPECT = "inspect"
_RESTARTS = ACTION_ORDER.index("restart_app") + 1
HARDNESS = (*ACTION_ORDER[:_RESTARTS], INSPECT, *ACTION_ORDER[_RESTARTS:])
"""Every action, from mildest to hardest; to inspect a GPU takes nothing away from anyone yet."""
_IGNORE = ACTION_ORDER[0]

Answer: TypeAlias = bool | Absent
"""Whether a rule's fault is there, or why that cannot be told."""
Tell: TypeAlias = Callable[[Facts], bool]


@dataclass(frozen=True, slots=True)
class Asked:
    """What to do: our words, and NVIDIA's where it has any."""

    actions: tuple[str, ...]
    nvidia: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A fact that speaks against a GPU, what state it leads to and what to do about it."""

    reason: str
    state: int
    when: str
    """The threshold in words."""
    origin: str
    """Whose threshold it is."""
    tell: Tell
    """Whether the fault is there. Raises Untold where that cannot be told."""
    asks: Asked | Callable[[Facts], Asked]
    sources: tuple[str, ...] = (HEALTH,)
    metrics: tuple[Metric, ...] = ()
    """What it is told from."""
    needed: bool = True
    """Whether a GPU is healthy only where this can be told."""
    says: Callable[[Facts], str] | None = None
    """What was found, for a person; without it `when` says enough."""
    over_time: bool = False
    """Whether it compares readings: the first one leaves it open, and the verdict does not wait."""

    def answer(self, facts: Facts) -> Answer:
        """Whether the fault is there; cannot be told where a source of the rule is silent."""
        for source in self.sources:
            if source in facts.silent:
                return facts.silent[source]
        try:
            return self.tell(facts)
        except Untold as untold:
            return untold.reason

    def asked(self, facts: Facts) -> Asked:
        """What to do about the fault, from mildest to hardest; one that is there is not ignored."""
        asked = self.asks if isinstance(self.asks, Asked) else self.asks(facts)
        beyond = (action for action in HARDNESS if action in asked.actions and action != _IGNORE)
        return Asked(tuple(beyond) or (INSPECT,), asked.nvidia)

    def said(self, facts: Facts) -> str:
        """The fault in words."""
        return self.says(facts) if self.says else self.when

    def holds_up(self, facts: Facts, answer: Answer) -> bool:
        """Whether this answer keeps the GPU from being called healthy or degraded."""
        if not self.needed or isinstance(answer, bool) or answer is Absent.UNSUPPORTED:
            return False
        return not (answer is Absent.NOT_DUE and self.over_time and self._is_first(facts))

    def _is_first(self, facts: Facts) -> bool:
        """Whether all is read that the rule is told from, and only the past is missing."""
        readings = (reading for m in self.metrics for reading in facts.parts(m).values())
        return facts.silent.keys().isdisjoint(self.sources) and Absent.NOT_DUE not in readings


def flag(metric: Metric, *part: str) -> Tell:
    """Told from one reading: it is not 0."""
    return lambda facts: facts.number(metric, *part) != 0


def any_part(metric: Metric) -> Tell:
    """Told from all readings of a metric: one of them is not 0."""
    return lambda facts: any_of(facts.parts(metric).values(), bool)


def is_state(metric: Metric, state: str) -> Tell:
    """Told from one reading: it is this state."""
    (code,) = (code for code, name in metric.states.items() if name == state)
    return lambda facts: facts.number(metric) == code


def grown(change: Change) -> bool:
    """Whether a counter has grown."""
    return change.increase > 0
