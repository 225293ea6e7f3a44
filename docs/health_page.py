"""The document about the verdict on the health of GPUs: its states, rules and actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agent.health import RULES
from agent.health.gather import SOURCES
from agent.health.lifetime import SETTLED_NS
from agent.health.rule import HARDNESS, Asked, Rule
from agent.health.window import WINDOW_NS
from railscope.catalog import gpu_health as h

Table = Callable[[Iterable[str], Iterable[Iterable[str]]], list[str]]
_SECOND_NS = 10**9

INTRODUCTION = f"""\
The agent judges every GPU from what its other sources have read last: `{h.GPU_HEALTH.name}` is the
state, `{h.GPU_HEALTH_REASON.name}` says of each rule below whether its fault is there (1) or not (0),
`{h.GPU_ACTION.name}` what to do. A change is an event, `{h.GPU_HEALTH_EVENT.name}`. The agent itself
resets nothing.

- `failed`: any fault of this state is there. The GPU is not to be used.
- `unknown`: nothing has failed, but something the verdict needs cannot be told, for another reason
  than that GPU or driver do not have it. Unknown is never healthy.
- `degraded`: the GPU can be used, but should be seen to.
- `healthy`: all that is needed can be told, and no fault is there.

A fault that cannot be told has no reason sample. Readings that are too old for the page are no facts
here either. Counters are compared over {WINDOW_NS // _SECOND_NS // 60} minutes, rates are those of the last minute; what a counter had
before it fell back to zero is forgotten. Right after the start of the agent counters have no past:
what compares them is left open and the verdict does not wait for it.

An Xid counts until the GPU is reset or the driver loaded, which is seen by the energy counter falling
back or by the kernel log, or until the driver says, {SETTLED_NS // _SECOND_NS} seconds later or more, that nothing is needed to
recover (field 230 or Xid 154). What single Xids ask for: [Xids and SXids](xids.md).

The recommended action is the hardest of all faults, from mildest to hardest: {", ".join(HARDNESS[1:])}.
`inspect` is for a person: look at slot, cooling, power, cables, fabric manager, driver.

Sources: {", ".join(f"`{name}`" for name in SOURCES)}.
"""


def lines(made: str, table: Table) -> list[str]:
    """Return the lines of the document."""
    head = (
        "reason",
        "state",
        "when",
        "action",
        "NVIDIA's word",
        "threshold of",
        "needed",
        "told from",
    )
    return [
        "# Health of GPUs",
        "",
        made,
        "",
        *INTRODUCTION.splitlines(),
        "",
        "## Rules",
        "",
        *table(head, map(_row, RULES)),
    ]  # fmt: skip


def _row(rule: Rule) -> tuple[str, ...]:
    """Return the table row of a rule; its action may depend on the reported value."""
    asks = rule.asks if isinstance(rule.asks, Asked) else None
    return (
        f"`{rule.reason}`",
        h.GPU_HEALTH.states[rule.state],
        rule.when,
        ", ".join(asks.actions) if asks else "as told",
        ", ".join(asks.nvidia) if asks else "as told",
        rule.origin,
        "yes" if rule.needed else "no",
        ", ".join(f"`{metric.name}`" for metric in rule.metrics),
    )
