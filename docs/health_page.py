"""The document about the verdict on the health of GPUs: its states, rules and actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agent.health import RULES
from agent.health.gpu_facts import SETTLED_NS, SOURCES
from agent.health.rule import ACTIONS_BY_SEVERITY, WINDOW_NS, HealthRule, RequiredActions
from railscope.catalog import gpu_health as h

Table = Callable[[Iterable[str], Iterable[Iterable[str]]], list[str]]
_SECOND_NS = 10**9

INTRODUCTION = f"""\
The agent derives a health state for every GPU from the latest readings of its sources. It resets nothing itself.

- `{h.GPU_HEALTH.name}` is the state.
- `{h.GPU_HEALTH_REASON.name}` is 1 for each rule below with a detected fault, 0 without one, and absent if the rule
  cannot be evaluated.
- `{h.GPU_ACTION.name}` is the recommended action.
- A change of the state is an event, `{h.GPU_HEALTH_EVENT.name}`.

| state | meaning |
|---|---|
| `failed` | at least one fault of this state is present; do not use the GPU |
| `unknown` | no rule reports `failed`, but a required reading is absent although GPU and driver support it |
| `degraded` | the GPU is usable and needs attention |
| `healthy` | all required readings are present and no fault is detected |

Readings that are too old for the metrics endpoint are not used. Counters are compared over {WINDOW_NS // _SECOND_NS // 60} minutes;
rates are those of the last minute. A counter that falls to zero has been reset. After a start of the agent, rules that
compare counters have no result until there are two readings; the state does not wait for them.

An Xid counts until the GPU is reset or the driver is loaded again (the energy counter falls, or the kernel log reports
it), or until the driver reports, at least {SETTLED_NS // _SECOND_NS} seconds later, that no recovery is needed (field 230 or Xid 154).
[Xids and SXids](xids.md) lists the action for each number.

The recommended action is the most severe action of all faults, in this order: {", ".join(ACTIONS_BY_SEVERITY[1:])}.
`inspect` requires an operator: check slot, cooling, power, cables, fabric manager and driver.

Sources: {", ".join(f"`{name}`" for name in SOURCES)}.
"""


def lines(made: str, table: Table) -> list[str]:
    """Return the lines of the document."""
    head = (
        "reason",
        "state",
        "condition",
        "action",
        "NVIDIA code",
        "origin of the threshold",
        "required",
        "readings",
    )
    return [
        "# GPU health",
        "",
        made,
        "",
        *INTRODUCTION.splitlines(),
        "",
        "## Rules",
        "",
        *table(head, map(_row, RULES)),
    ]


def _row(rule: HealthRule) -> tuple[str, ...]:
    """Return the table row of a rule; its action may depend on the reported value."""
    required = rule.actions if isinstance(rule.actions, RequiredActions) else None
    return (
        f"`{rule.reason}`",
        h.GPU_HEALTH.states[rule.state],
        rule.condition,
        ", ".join(required.actions) if required else "as reported",
        ", ".join(required.nvidia) if required else "as reported",
        rule.origin,
        "yes" if rule.is_needed else "no",
        ", ".join(f"`{metric.name}`" for metric in rule.metrics),
    )
