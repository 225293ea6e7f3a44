"""Generated parts of pages about the diagnosis: classes of incidents, signals, and the JSON Schema of an incident."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import cast

import numpy as np
import runbook_pages
import yaml

from railscope.timestamps import SECOND_NS
from railscope_collector.detector_thresholds import AdviceThresholds
from railscope_collector.diagnosis import (
    late_marks,
    switch_evidence,
    switch_fabric,
    switch_faults,
)
from railscope_collector.diagnosis.explanation import EDGES
from railscope_collector.diagnosis.findings import SLOT_NS, SLOTS_PER_MINUTE
from railscope_collector.diagnosis.incident_classes import CLASSES, IncidentClass
from railscope_collector.diagnosis.incident_report import incident_schema
from railscope_collector.diagnosis.node_detectors import NODE_CLASSES
from railscope_collector.diagnosis.quantities import QUANTITIES
from railscope_collector.diagnosis.settings_advice import MIN_MAJORITY
from railscope_collector.diagnosis.signals import SIGNALS, Signal, WindowSums
from railscope_collector.diagnosis.slot_sums import Floats, SlotSums

Table = Callable[[Iterable[str], Iterable[Iterable[str]]], list[str]]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


_THRESHOLDS = AdviceThresholds()
_ROOT = Path(__file__).resolve().parent.parent
_RUNBOOK = "alerts/runbooks/RailscopeIncident.md"
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"(.*)"')
_SCOPES = {
    "cause": "the cause",
    "port": "the ports that a network incident affects: of its nodes on its rails",
    "rail": "the rails that a network incident affects",
    "client": "the clients of the storage",
    "job": "the jobs that an incident of a GPU, a node, storage or the job itself affects",
}

_SYMPTOMS = """\
While the diagnosis runs, [alertmanager.yml](../deploy/alertmanager.yml) inhibits these alerts by the incident that explains them, and until
15 minutes after its end. If the last evaluation is older than 2 minutes, nothing is inhibited. Alerts on the
audit log, billing and the collector are never inhibited by an incident.

- An alert on a failed or lost device is explained only by an incident with the same device as its cause.
- On other nodes, an incident explains effects only: received pause, retransmission, unequal rails, slow jobs.
- The severity of the incident decides. An incident that is a warning becomes critical when its GPU has failed.
"""


_SWITCH_EVIDENCE = f"""\
Where a running collector [reads switches](switches.md), the diagnosis uses them. A switch whose last sample is older than three periods and 30 seconds is
unknown: it confirms and contradicts nothing.

- **Both ends of a link.** Pauses that a NIC counts as sent are the basis of {_listed(switch_evidence.PAUSING_CLASSES)}. Pauses that it counts as
  received are the basis of {_listed(switch_evidence.PAUSED_CLASSES)}. The counter of the switch port over two periods of its samples and 50 seconds is evidence
  too, of all priorities together. If both ends agree, the confidence
  is the highest of the class. If one end counts more than {switch_fabric.DIFFERENT:.0f} times as much, it is the lowest.
- **Queues.** The cause of {_listed(switch_evidence.LOCALISED)} is a leaf, or one of several. Marks, drops, pauses and occupancy of its queues are compared with the queues of
  the same number at ports of the same role. If exactly one exceeds {switch_evidence.FACTOR:.0f} times the median of at least {switch_evidence.MIN_PEERS - 1} others and {switch_evidence.RISE:.0f} times its own past, the cause is its leaf,
  with `port_switch`, `port` and `queue`. An `incast_receiver` is confirmed in the same way.
- **PFC watchdog.** A storm that it detects is evidence of `pfc_storm`, and so is the end of a storm where a switch counts only ends. The NIC at the port must count
  pauses as well, unless its counters are not known.
- **Errors of a link.** The errors that a switch port counts are evidence of `link_transmit_errors` of its NIC, which cannot count them itself.
- **Ports without a known NIC.** Faults that no host counts: `switch_link_errors` (at least {switch_faults.MIN_ERRORS:g} errors per second, and {switch_faults.FACTOR:.0f} times the median of other such ports),
  `switch_link_down`, and `leaf_loss` (a lossless queue drops at least {switch_faults.MIN_ERRORS:g} packets per second). The cause is the leaf of the switch, or the leaf at the other end.
"""


_ADVICE = f"""\
Advice is an incident about a state that lasts and costs, of severity `info`; `headroom_low` is a warning. All devices that it concerns are victims.

- `config_drift`: settings and versions of NICs with the same role, driver and board, of GPUs with the same model, and of nodes. A value is drift if at least {MIN_MAJORITY} peers and {100 * _THRESHOLDS.majority:.0f} % of
  them agree on another one. Settings that differ by rail on most nodes are a design; a change on several nodes within {_THRESHOLDS.rollout_seconds / 60:.0f} minutes is a rollout. Frames contain no
  PCIe settings; FEC, autonegotiation, MIG and compute modes are not compared. PFC priorities, DSCP maps and MTU are also compared with what the switch port of the NIC announces
  (LLDP, DCBX of IEEE 802.1Q); switches that send no such frames are not compared.
- `cabling_fault`: the leaf of a NIC is the leaf of another rail, compared with the other nodes of its pod ([Switches](switches.md#links-and-cabling-faults)).
- `ecn_late`: a switch pauses senders before it marks packets: its ECN threshold is too high. For this, {100 * late_marks.MIN_LATE_NICS:.0f} % of the NICs of a leaf are paused {late_marks.PAUSED_PER_MARKED:.0f} times as much as packets are marked.
  They are also paused {late_marks.LATE_FACTOR:.0f} times as much as on other rails, or for {100 * late_marks.CERTAIN_LATE_PAUSED:.0f} % of the time. A switch shows it itself: a leaf sends at least {switch_faults.MIN_PAUSES:.0f} pause frames of a priority
  per second for {switch_fabric.WINDOW_SLOTS * SLOT_NS // SECOND_NS} seconds and marks fewer packets. Or deep queues mark less than {100 * switch_faults.MARKS_PER_DEEP:.0f} % of the packets that their depth implies. Without any marks it is `ecn_inactive`.
- `headroom_low`: the headroom of a priority group is nearly full. Its watermark, or the share in use, is above {100 * switch_faults.MIN_HEADROOM_SHARE:.0f} % of the buffer profile;
  a peak of that share counts if it rose in the last {switch_fabric.KEPT_SLOTS // SLOTS_PER_MINUTE} minutes. Or a priority group dropped packets although its port pauses the sender.
"""


def sections(table: Table) -> dict[str, list[str]]:
    """Return the generated sections of the page about the diagnosis, by their headings."""
    classes = [
        (
            f"`{kind.name}`",
            kind.text,
            str(kind.severity),
            f"{kind.min_evaluations} of {kind.of_evaluations}",
            kind.action,
        )
        for kind in CLASSES.values()
    ]
    signals = [
        (f"`{signal.name}`", str(signal.device), signal.unit, signal.text, _origin(signal))
        for of_device in SIGNALS.values()
        for signal in of_device.values()
    ]
    return {
        "Classes of incidents": [
            "`persistence`: evaluations that must agree, of the last ones, 10 seconds apart. Of several devices of one node, these classes become",
            f"one incident of the node: {_listed(NODE_CLASSES)}.",
            "",
            *table(
                ("class", "meaning", "severity", "persistence", "action"),
                classes,
            ),
        ],
        "Symptoms": [
            *_SYMPTOMS.splitlines(),
            "",
            *table(("class", "alerts", "same labels", "of"), _symptoms()),
        ],
        "Switches": _SWITCH_EVIDENCE.splitlines(),
        "Advice": _ADVICE.splitlines(),
        "Explanations": [
            "While a finding of a class on the right may explain it, a finding of the class on the left waits. Both concern the same device, node, rail or job. A larger unit explains its parts.",
            "",
            *table(
                ("class", "may be explained by"),
                (
                    (f"`{name}`", explained_by)
                    for name in CLASSES
                    if (explained_by := _explained_by(name))
                ),
            ),
        ],
        "Signals": [
            "Each signal is computed from the sums of these metrics of the agents, of the first ones that a device reports. [Metrics](metrics/README.md) states where",
            "the agents read them.",
            "",
            *table(("signal", "device", "unit", "meaning", "metrics"), signals),
        ],
    }


class _RecordedSums:
    """Sums of one device that record the quantities of which a formula takes them."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def has_readings(self, name: str) -> bool:
        self.names.append(name)
        return True

    def rate(self, name: str, *_: int) -> Floats:
        self.names.append(name)
        return np.ones(1)

    total = last = latest = rate


def _origin(signal: Signal) -> str:
    """Return the metrics from which a signal is computed."""
    sums = _RecordedSums()
    signal.formula(WindowSums(cast("SlotSums", sums), 0, 1))
    return ", ".join(
        f"`{metric}`" for metric in dict.fromkeys(QUANTITIES[name].metric for name in sums.names)
    )


def _inhibitions() -> Iterator[tuple[dict[str, str], dict[str, str], list[str]]]:
    """Yield the rules by which incidents inhibit alerts: matchers of both, and the labels that are equal."""
    text = (_ROOT / "deploy/alertmanager.yml").read_text()
    for rule in yaml.load(text, yaml.CSafeLoader)["inhibit_rules"]:
        source, target = (
            {
                label: value
                for label, how, value in map(_parsed, rule[name])
                if not how.startswith("!")
            }
            for name in ("source_matchers", "target_matchers")
        )
        if source.get("alertname") == "RailscopeIncidentReach":
            yield source, target, rule["equal"]


def _parsed(matcher: str) -> tuple[str, str, str]:
    found = _MATCHER.fullmatch(matcher)
    if found is None:
        message = f'invalid matcher {matcher}: expected LABEL="VALUE"'
        raise ValueError(message)
    return found[1], found[2], found[3]


def _symptoms() -> Iterator[tuple[str, ...]]:
    for source, target, equal in _inhibitions():
        shown = dict(target)
        alerts = ", ".join(f"`{name}`" for name in shown.pop("alertname").split("|"))
        limits = "".join(f", {label} `{value}`" for label, value in shown.items())
        whole = ", the whole node" if source.get("kind") == "node" else ""
        yield (
            ", ".join(f"`{name}`" for name in source.get("class", "").split("|") if name),
            alerts + limits,
            # Every rule compares the cluster.
            ", ".join(label for label in equal if label != "cluster"),
            _SCOPES[source["scope"]] + whole,
        )


def runbook() -> str:
    """Return the runbook of incidents, with a section for each class."""
    head = (_ROOT / _RUNBOOK).read_text().partition("\n### ")[0].rstrip("\n")
    lines = [head, ""]
    for kind in CLASSES.values():
        lines += [f"### {kind.name}", "", f"**{kind.title}.** {kind.text}", "", *_action(kind), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _action(kind: IncidentClass) -> Iterator[str]:
    yield f"Action: {kind.action}."
    if lines := list(runbook_pages.commands(kind.name)):
        yield from ("", "```sh", *lines, "```")
    explained = {
        name
        for source, target, _ in _inhibitions()
        if re.fullmatch(source.get("class", ""), kind.name)
        for name in target["alertname"].split("|")
    }
    if explained:
        yield ""
        yield f"Its symptoms: {', '.join(f'`{name}`' for name in sorted(explained))}."


def _explained_by(name: str) -> str:
    found = sorted({each for classes in EDGES.get(name, {}).values() for each in classes})
    return ", ".join(found)


def schema() -> str:
    """Return the JSON Schema of an incident."""
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(dialect | incident_schema(), indent=1) + "\n"
