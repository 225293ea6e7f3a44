"""The document about the verdicts on the health of GPUs and NICs: states, rules and actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from railscope.catalog import gpu_health as h
from railscope_agent.commands.capture_walk import MAX_READS
from railscope_agent.health import RULES
from railscope_agent.health.counter_window import WINDOW_NS
from railscope_agent.health.gpu_facts import SOURCES
from railscope_agent.health.gpu_lifetime import SETTLED_NS
from railscope_agent.health.health_facts import SHORTEST_RATE_NS
from railscope_agent.health.nic_signals import MIN_PEERS
from railscope_agent.health.node_facts import NIC_RULES
from railscope_agent.health.rule import ACTIONS_BY_SEVERITY, HealthRule, RequiredActions
from railscope_agent.health.setting_rules import GPU_SETTING_RULES

Table = Callable[[Iterable[str], Iterable[Iterable[str]]], list[str]]
_SECOND_NS = 10**9

INTRODUCTION = f"""\
A running agent derives a health state for every GPU from the latest readings of its sources. `railscope agent check` judges
GPUs, NICs and their settings by the rules below: it prints each device that is not healthy with the reasons and their values,
and its exit status is 1 if one is degraded or has failed. Neither resets anything. [Health for schedulers](schedulers.md) describes `railscope health`, which answers
from the readings of the running agent, and what may drain a node.

Metrics of a running agent:

- `{h.GPU_HEALTH.name}` is the state.
- `{h.GPU_HEALTH_REASON.name}` is 1 for each rule below with a detected fault, 0 without one, and absent if the rule
  cannot be evaluated.
- `{h.GPU_ACTION.name}` is the recommended action.
- A change of the state is an event, `{h.GPU_HEALTH_EVENT.name}`.

| state | meaning |
|---|---|
| `failed` | at least one fault of this state is present; do not use the device |
| `unknown` | no rule reports `failed`, but a required reading is absent although device and driver support it |
| `degraded` | the device is usable and needs attention |
| `healthy` | all required readings are present and no fault is detected |

A GPU exists if NVML counts it, if NVIDIA's driver owns it, or if its probe failed: it has a state and a reason, whatever NVML
answers. Errors of a single poll leave its state as it was.

Readings that are too old for the metrics endpoint are not used. Counters are compared over {WINDOW_NS // _SECOND_NS // 60} minutes;
rates are those of the last minute. A counter that falls to at most half of its value has been reset; one that falls less has
not grown. After a start of the agent, rules that
compare counters have no result until there are two readings; the state does not wait for them.

An Xid counts until the GPU is reset or the driver is loaded again (the energy counter falls, or the kernel log reports
it), or until the driver reports, at least {SETTLED_NS // _SECOND_NS} seconds later, that no recovery is needed (field 230 or Xid 154).
[Xids and SXids](xids.md) lists the action for each number. A line by which the driver declares a GPU lost, or to be reset, without
an Xid counts as Xid 79 or 154. An SXid that is fatal for the whole fabric is a fault of every GPU of the node.
A line that names no GPU, and any other fatal SXid, degrades every GPU of the node; the only GPU of
a node has failed. A failure to start a GPU counts until a reading of the GPU succeeds. A number that the tables lack is at least a
warning.

The recommended action is the most severe action of all faults, in this order: {", ".join(ACTIONS_BY_SEVERITY[1:])}.
`inspect` requires an operator: check slot, cooling, power, cables, fabric manager and driver.

Sources: {", ".join(f"`{name}`" for name in SOURCES)}.
"""

NICS = f"""\
`railscope agent check` reads the node twice, by default 10 seconds apart, or a capture at up to {MAX_READS} moments: only the
increase of a counter in between counts. Rates cover at least {SHORTEST_RATE_NS // _SECOND_NS} seconds and the last
minute; counts, such as link downs, cover up to {WINDOW_NS // _SECOND_NS // 60} minutes.

The peers of a NIC are the NICs of the node with the same role, model and PCI function. A comparison needs
{MIN_PEERS} peers with the reading. NICs for management, bridges to NVSwitches and virtual functions are not judged. `check` also reports
a NIC without a driver, if 3 NICs of its model have one and are in use, and lists NICs without a carrier and without evidence of a use.

The rules are in the order of cause and effect: the remedy that `check` prints is that of the first reason. Diagnosis names
[causes across nodes](diagnosis.md).
"""

GPU_SETTINGS = f"""\
The peers of a GPU are those of its model. A setting differs if at least {MIN_PEERS} peers have one value, and more than twice as
many as have that of the device. The same applies to the settings of NICs.
"""


_Column = tuple[str, Callable[[HealthRule], str]]


def _name(rule: HealthRule) -> str:
    return f"`{rule.reason}`"


def _actions(rule: HealthRule) -> str:
    """Return the actions; they may depend on the reported value."""
    required = rule.actions
    return ", ".join(required.actions) if isinstance(required, RequiredActions) else "as reported"


def _nvidia_codes(rule: HealthRule) -> str:
    required = rule.actions
    return ", ".join(required.nvidia) if isinstance(required, RequiredActions) else "as reported"


def _runbook(rule: HealthRule) -> str:
    return f"[{rule.alert}](../alerts/runbooks/{rule.alert}.md)" if rule.alert else ""


def _readings(rule: HealthRule) -> str:
    return ", ".join(f"`{name}`" for name in dict.fromkeys(each.name for each in rule.metrics))


_FIRST: tuple[_Column, ...] = (
    ("reason", _name),
    ("state", lambda rule: h.GPU_HEALTH.states[rule.state]),
    ("condition", lambda rule: rule.condition),
    ("action", _actions),
)
_LAST: tuple[_Column, ...] = (
    ("origin of the threshold", lambda rule: rule.origin),
    ("required", lambda rule: "yes" if rule.is_needed else "no"),
    ("readings", _readings),
)
_GPU_COLUMNS = (*_FIRST, ("NVIDIA code", _nvidia_codes), *_LAST)
_NIC_COLUMNS = (
    *_FIRST, ("remedy", lambda rule: rule.remedy), ("runbook", _runbook), *_LAST,
)  # fmt: skip


def lines(made: str, table: Table) -> list[str]:
    """Return the lines of the document."""

    def rules(columns: Sequence[_Column], rows: Iterable[HealthRule]) -> list[str]:
        head = [name for name, _ in columns]
        return table(head, ([cell(row) for _, cell in columns] for row in rows))

    return [
        "# Health of GPUs and NICs",
        "",
        made,
        "",
        *INTRODUCTION.splitlines(),
        "",
        "## GPUs",
        "",
        *rules(_GPU_COLUMNS, RULES),
        "## NICs",
        "",
        *NICS.splitlines(),
        "",
        *rules(_NIC_COLUMNS, NIC_RULES),
        "## Settings of GPUs",
        "",
        *GPU_SETTINGS.splitlines(),
        "",
        *rules(_NIC_COLUMNS, GPU_SETTING_RULES),
    ]
