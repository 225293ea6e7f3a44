"""Verdict on the health of a device, a pure function of the facts, and its text for people.

A table of rules by subject: fault, severity, action. `RULES` is that of GPUs, which a running agent evaluates; those
of NICs and settings are in `railscope_agent.health.fact_collector`. A fact that proves a failure takes precedence. Without
one, a device is unknown while a required fact is unavailable; unknown never counts as healthy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from railscope.catalog import gpu_health as h
from railscope.reading import Absent, Reading
from railscope_agent.health import driver_rules, hardware_rules, link_rules
from railscope_agent.health.health_facts import HealthFacts
from railscope_agent.health.rule import (
    ACTIONS_BY_SEVERITY,
    DEGRADED,
    FAILED,
    HEALTHY,
    UNKNOWN,
    HealthRule,
    RuleResult,
)
from railscope_agent.sampling.probe_result import ProbeFinding, ProbeVerdict, format_count

RULES: tuple[HealthRule, ...] = (
    *driver_rules.DRIVER_RULES,
    *hardware_rules.MEMORY_RULES,
    *link_rules.LINK_RULES,
    *hardware_rules.SLOT_RULES,
)
_ACTIONS = {name: code for code, name in h.GPU_ACTION.states.items()}


@dataclass(frozen=True, slots=True)
class HealthVerdict:
    """State of a device, with reasons and actions."""

    state: int
    results: Mapping[str, RuleResult]
    """Result of each rule by its reason."""
    reasons: tuple[str, ...]
    """Reasons of the active rules, in the order of the rules."""
    actions: tuple[str, ...]
    """Required actions, from mildest to hardest."""
    nvidia: tuple[str, ...]
    """NVIDIA's names of the actions."""
    missing: Mapping[str, Absent]
    """Facts that are needed and absent, by the reason of their rule."""

    @property
    def action(self) -> Reading:
        """Hardest action as a state of railscope_gpu_recommended_action.

        `none` is recommended only for a healthy GPU: for an unknown one that would be a guess.
        """
        if self.actions:
            return _ACTIONS[self.actions[-1]]
        if self.state == HEALTHY:
            return _ACTIONS["none"]
        return next(iter(self.missing.values()), Absent.UNSUPPORTED)


def judge(facts: HealthFacts, rules: Sequence[HealthRule] = RULES) -> HealthVerdict:
    """Return the verdict on one device."""
    answers = {rule.reason: rule.evaluate(facts) for rule in rules}
    active = [rule for rule in rules if answers[rule.reason] is True]
    missing = {
        rule.reason: answer
        for rule in rules
        if isinstance(answer := answers[rule.reason], Absent)
        and rule.prevents_healthy(facts, answer)
    }
    # A device without any available fact is unknown, as no fault could be detected either.
    has_result = any(
        isinstance(answers[rule.reason], bool) for rule in rules if rule.is_needed and rule.metrics
    )
    actions = [rule.required_actions(facts) for rule in active]
    required = {action for each in actions for action in each.actions}
    return HealthVerdict(
        _state({rule.state for rule in active}, has_state=has_result and not missing),
        answers,
        tuple(rule.reason for rule in active),
        tuple(action for action in ACTIONS_BY_SEVERITY if action in required),
        tuple(dict.fromkeys(nvidia_action for each in actions for nvidia_action in each.nvidia)),
        missing,
    )


def _state(states: set[int], *, has_state: bool) -> int:
    # First: a proven failure stays one, whatever else cannot be read.
    if FAILED in states:
        return FAILED
    if not has_state or UNKNOWN in states:
        return UNKNOWN
    return DEGRADED if DEGRADED in states else HEALTHY


MAX_ABSENT_FACTS = 3
_XID_PREFIX = "Xid "


def format_verdict(
    facts: HealthFacts, verdict: HealthVerdict, rules: Sequence[HealthRule] = RULES
) -> str:
    """Format the verdict on a device that is not healthy, based on these facts.

    `failed: gpu_lost (NVML reports ...); actions: drain, reboot (NVIDIA: RESTART_BM)`
    """
    reasons = [
        f"{rule.reason} ({rule.description(facts)})"
        for rule in rules
        if rule.reason in verdict.reasons
    ]
    parts = [", ".join(reasons)] if reasons else []
    if verdict.state == UNKNOWN and verdict.missing:
        parts.append(f"cannot be judged: {_format_absent_facts(verdict.missing)}")
    if verdict.actions:
        parts.append(f"actions: {', '.join(verdict.actions)}{_format_nvidia_actions(verdict)}")
    return f"{h.GPU_HEALTH.states[verdict.state]}: {'; '.join(parts)}"


def health_findings(
    subject: str,
    kind: str,
    facts: Mapping[str, HealthFacts],
    rules: Sequence[HealthRule] = RULES,
) -> list[ProbeFinding]:
    """Return the number of devices in each state, and for each unhealthy one the reasons and the action.

    The remedy is that of the first reason: tables of rules have causes before their consequences.
    If a device is unknown, the finding about the cause, if any, is one of its source.
    """
    verdicts = {name: judge(of_device, rules) for name, of_device in facts.items()}
    number = Counter(verdict.state for verdict in verdicts.values())
    states = [f"{number[s]} {name}" for s, name in h.GPU_HEALTH.states.items() if number[s]]
    detail = f"{format_count(len(facts), kind)} by {len(rules)} rules: {', '.join(states)}"
    return [ProbeFinding.supported(subject, detail)] + [
        ProbeFinding(
            kind,
            ProbeVerdict.ABSENT if verdict.state == UNKNOWN else ProbeVerdict.BROKEN,
            format_verdict(facts[name], verdict, rules),
            next((rule.remedy for rule in rules if rule.reason in verdict.reasons), ""),
            name,
        )
        for name, verdict in verdicts.items()
        if verdict.state != HEALTHY and (verdict.reasons or verdict.missing)
    ]


def _format_absent_facts(missing: Mapping[str, Absent]) -> str:
    first = [f"{reason} ({why.label})" for reason, why in list(missing.items())[:MAX_ABSENT_FACTS]]
    more = len(missing) - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")


def _format_nvidia_actions(verdict: HealthVerdict) -> str:
    """Return NVIDIA's terms, each once; Xid numbers are in the reasons already."""
    actions = dict.fromkeys(action.rpartition(": ")[2] for action in verdict.nvidia)
    other_actions = [action for action in actions if not action.startswith(_XID_PREFIX)]
    return f" (NVIDIA: {', '.join(other_actions)})" if other_actions else ""
