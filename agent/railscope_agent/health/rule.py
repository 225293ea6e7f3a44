"""A rule about the health of a device: a fault, with the resulting state and the required actions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TypeAlias

from railscope.catalog import declare, gpu_health as h
from railscope.catalog.xids import ACTION_ORDER
from railscope.reading import Absent
from railscope_agent.health.health_facts import AbsentFact, CounterIncrease, HealthFacts, any_holds

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
        # Before the test: readings of a stale source may still be there.
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
