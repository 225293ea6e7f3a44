"""A verdict as one line for people: faults, absent facts, actions."""

from __future__ import annotations

from collections.abc import Mapping

from agent.health import RULES, GpuVerdict
from agent.health.rule import UNKNOWN, GpuHealthFacts
from railscope.catalog import gpu_health as h
from railscope.reading import Absent

MAX_ABSENT_FACTS = 3
_XID_PREFIX = "Xid "


def format_verdict(facts: GpuHealthFacts, verdict: GpuVerdict) -> str:
    """Format the verdict on a GPU that is not healthy, based on these facts.

    `failed: gpu_lost (NVML calls ...); do: drain, reboot (NVIDIA: RESTART_BM)`
    """
    reasons = [
        f"{rule.reason} ({rule.said(facts)})" for rule in RULES if rule.reason in verdict.reasons
    ]
    parts = [", ".join(reasons)] if reasons else []
    if verdict.state == UNKNOWN and verdict.missing:
        parts.append(f"cannot be judged: {_format_absent_facts(verdict.missing)}")
    if verdict.actions:
        parts.append(f"actions: {', '.join(verdict.actions)}{_format_nvidia_actions(verdict)}")
    return f"{h.GPU_HEALTH.states[verdict.state]}: {'; '.join(parts)}"


def _format_absent_facts(missing: Mapping[str, Absent]) -> str:
    first = [f"{reason} ({why.word})" for reason, why in list(missing.items())[:MAX_ABSENT_FACTS]]
    more = len(missing) - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")


def _format_nvidia_actions(verdict: GpuVerdict) -> str:
    """Return NVIDIA's terms, each once; Xid numbers are in the reasons already."""
    actions = dict.fromkeys(action.rpartition(": ")[2] for action in verdict.nvidia)
    other_actions = [action for action in actions if not action.startswith(_XID_PREFIX)]
    return f" (NVIDIA: {', '.join(other_actions)})" if other_actions else ""
