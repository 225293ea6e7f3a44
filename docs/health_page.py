"""The document about the verdicts on the health of GPUs and NICs: states, rules and actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from runbook_pages import DIRECTORY, link

from railscope.catalog import gpu_health as h
from railscope_agent.commands.read_once import MAX_READS
from railscope_agent.health import RULES
from railscope_agent.health.counter_window import WINDOW_NS
from railscope_agent.health.fact_collector import NIC_RULES
from railscope_agent.health.gpu_facts import SOURCES
from railscope_agent.health.gpu_lifetime import SETTLED_NS
from railscope_agent.health.health_facts import SHORTEST_RATE_NS
from railscope_agent.health.nic_signals import MIN_PEERS
from railscope_agent.health.rule import ACTIONS_BY_SEVERITY, HealthRule, RequiredActions
from railscope_agent.health.setting_rules import GPU_SETTING_RULES

Table = Callable[[Iterable[str], Iterable[Iterable[str]]], list[str]]
_SECOND_NS = 10**9

INTRODUCTION = f"""\
Read which rules decide on the health of GPUs and NICs, and the action that each recommends.

```sh
railscope agent check     # GPUs, NICs and settings by the rules below; exit status 1 if one is degraded or has failed
railscope health          # from the readings of the running agent, as schedulers read it
```

[Health for schedulers](integrations.md#health-for-schedulers) describes `railscope health`, and what may drain a node. Neither command resets anything. The metrics of a running agent are
`{h.GPU_HEALTH.name}` (state), `{h.GPU_HEALTH_REASON.name}` (1 for each rule with a fault, absent if it cannot be evaluated) and
`{h.GPU_ACTION.name}`. A change is an event, `{h.GPU_HEALTH_EVENT.name}`.

| state | meaning |
|---|---|
| `failed` | at least one fault of this state is present; do not use the device |
| `unknown` | no rule reports `failed`, but a required reading is absent although device and driver support it |
| `degraded` | the device is usable and needs attention |
| `healthy` | all required readings are present and no fault is detected |

Counters are compared over {WINDOW_NS // _SECOND_NS // 60} minutes; rates cover the last minute. Errors of a single poll leave the state as it was.

An Xid counts until one of these:

- the GPU is reset or the driver is loaded again;
- the driver reports, at least {SETTLED_NS // _SECOND_NS} seconds later, that no recovery is needed (field 230 or Xid 154). The report does not include NVSwitches: an SXid still counts.

[Xids and SXids](xids.md) lists the action for each number. A fatal SXid of the whole fabric is a fault of every GPU of the node. A line that names no GPU degrades
every GPU of the node, unless a GPU is named for the same fault. A number that the tables lack is at least a warning.

The recommended action is the most severe action of all faults, in this order: {", ".join(ACTIONS_BY_SEVERITY[1:])}.
`inspect` requires an operator: check slot, cooling, power, cables, fabric manager and driver.

Sources: {", ".join(f"`{name}`" for name in SOURCES)}.
"""

NICS = f"""\
`railscope agent check` reads the node twice, by default 10 seconds apart, or a capture at up to {MAX_READS} moments. Rates cover at least
{SHORTEST_RATE_NS // _SECOND_NS} seconds and the last minute; counts, such as link downs, cover up to {WINDOW_NS // _SECOND_NS // 60} minutes.

The peers of a NIC are the NICs of the node with the same role, model and PCI function. A comparison needs {MIN_PEERS} peers with the reading. NICs for
management, bridges to NVSwitches and virtual functions are not judged. `check` prints the remedy of the first reason.
[Diagnosis](diagnosis.md) finds causes across nodes.
"""

GPU_SETTINGS = f"""\
The peers of a GPU are the GPUs of its model. A setting differs if at least {MIN_PEERS} peers have one other value, and more than twice as
many as have the value of the device. The same applies to the settings of NICs.
"""


_Column = tuple[str, Callable[[HealthRule], str]]


def _name(rule: HealthRule) -> str:
    return f"`{rule.reason}`"


def _name_in_words(rule: HealthRule) -> str:
    return f"`{rule.reason}`: {h.REASONS[rule.reason]}"


def _actions(rule: HealthRule) -> str:
    """Return the actions; they may depend on the reported value."""
    required = rule.actions
    return ", ".join(required.actions) if isinstance(required, RequiredActions) else "as reported"


def _nvidia_codes(rule: HealthRule) -> str:
    required = rule.actions
    return ", ".join(required.nvidia) if isinstance(required, RequiredActions) else "as reported"


def _runbook(rule: HealthRule) -> str:
    return f"[{rule.alert}](../{DIRECTORY}/{link(rule.alert)})" if rule.alert else ""


def _readings(rule: HealthRule) -> str:
    return ", ".join(f"`{name}`" for name in dict.fromkeys(each.name for each in rule.metrics))


_FIRST: tuple[_Column, ...] = (
    ("state", lambda rule: h.GPU_HEALTH.states[rule.state]),
    ("condition", lambda rule: rule.condition),
    ("action", _actions),
)
_LAST: tuple[_Column, ...] = (
    ("origin of the threshold", lambda rule: rule.origin),
    ("required", lambda rule: "yes" if rule.is_needed else "no"),
    ("readings", _readings),
)
_GPU_COLUMNS = (("reason", _name_in_words), *_FIRST, ("NVIDIA code", _nvidia_codes), *_LAST)
_NIC_COLUMNS = (
    ("reason", _name), *_FIRST, ("remedy", lambda rule: rule.remedy), ("runbook", _runbook), *_LAST,
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
