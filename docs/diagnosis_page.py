"""Generated parts of pages about the diagnosis: classes of incidents, signals, and the JSON Schema of an incident."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import numpy as np
import yaml

from railscope.timestamps import SECOND_NS
from railscope_collector.detector_thresholds import AdviceThresholds
from railscope_collector.diagnosis import (
    network_advice,
    switch_advice,
    switch_evidence,
    switch_links,
    switch_queues,
)
from railscope_collector.diagnosis.incident_classes import CLASSES, IncidentClass
from railscope_collector.diagnosis.incident_commands import general_commands
from railscope_collector.diagnosis.incident_report import incident_schema
from railscope_collector.diagnosis.node_detectors import NODE_CLASSES
from railscope_collector.diagnosis.quantities import QUANTITIES
from railscope_collector.diagnosis.ranking import EDGES
from railscope_collector.diagnosis.settings_advice import MIN_MAJORITY
from railscope_collector.diagnosis.signals import SIGNALS, Signal, WindowSums
from railscope_collector.diagnosis.slot_sums import Floats, SlotSums


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


_THRESHOLDS = AdviceThresholds()
_ROOT = Path(__file__).resolve().parent.parent
_RUNBOOK = "alerts/runbooks/RailscopeIncident.md"
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"(.*)"')
_SCOPES = {
    "cause": "the cause",
    "port": "the ports that a network incident touches: of its nodes on its rails",
    "rail": "the rails that a network incident touches",
    "client": "the clients of the storage",
    "job": "the jobs that an incident of a GPU, a node, storage or the job itself touches",
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
Where the collector [reads switches](switches.md), the diagnosis of a running collector uses them; without them, and in
`railscope diagnose`, only the readings of hosts count. A switch whose last sample is older than three periods and 30 seconds is unknown: it
confirms, contradicts and localises nothing.

- **Both ends of a link.** The classes {_listed(switch_evidence.PAUSING_CLASSES)} rest on pauses that a NIC counts as sent, the classes
  {_listed(switch_evidence.PAUSED_CLASSES)} on those that it counts as received. Evidence `switch_pauses_received` or `switch_pauses_sent` is the
  increase of the counter of the same priority at the switch port, over {switch_evidence.COMPARED_NS // SECOND_NS} to {switch_evidence.MAX_COMPARED_NS // SECOND_NS} seconds; the threshold is the greatest one of the NIC in
  the same time, as their samples are at other times, a counter of a switch may be {switch_evidence.COUNTER_AGE_NS // SECOND_NS} seconds old when it is read, and the clock of a
  node is uncertain. If both agree within these bounds, the confidence is that of the strongest evidence of the class; if one end counts more than
  {switch_evidence.DIFFERENT:.0f} times as much, it is the lowest of the class. Between the two (some devices also count the ends of pauses), after a reset, and
  for a link that is new, neither is concluded.
- **Queues.** The cause of {_listed(switch_queues.LOCALISED)} is a leaf, or one of several. Its queues, and those of spines toward it, are compared with the queues of
  the same number at ports of the same role, from the first finding on: marks, drops, pauses received per second, and occupancy. If exactly
  one exceeds {switch_queues.FACTOR:.0f} times the median of at least {switch_queues.MIN_PEERS - 1} others and {switch_queues.RISE:.0f} times its own past, the cause is its leaf, with `port_switch`, `port` and
  `queue`; otherwise the alternatives stay. A queue that the next switch pauses is explained by the queue of that switch, and a queue of a spine toward a leaf counts as one with
  that of the leaf toward this spine. A quantity counts if all of the leaves report it. The role of a port is "host" if
  a NIC is linked to it, and "uplink" if it receives LLDP from a device without an agent. The queue of a priority has its number.
- An `incast_receiver` is confirmed if the queue toward it stands out in the same way.
- **PFC watchdog.** A storm that it detects is evidence `watchdog_storms` of `pfc_storm`: of the NIC at the port, if the node itself or the cabling
  file states the link and the NIC counts pauses as well; of the port, if the NIC is not known or its counters are not; for a port of a spine,
  the cause is the leaf at the other end of its link. If the NIC
  counts no pauses, there is no storm: a switch alone makes no NIC and no node the cause of an incident.
- **Ports without a known NIC.** Faults that no host counts; the cause is the leaf of the switch, or the one at the other end of the link, with the port.
  `switch_link_errors`: at least {switch_links.MIN_ERRORS:g} errors per second (packets with errors or a wrong checksum, symbol errors, frames that FEC could not correct), in
  several samples of {switch_links.WINDOW_NS // SECOND_NS} seconds, and {switch_links.FACTOR:.0f} times the median of the other such ports. Packets that the neighbour received corrupted at
  its other ports count as forwarded: cut-through switches forward them. `switch_link_down`: the port of a leaf is down that faced a switch that is read while it was up, unless the port
  is disabled at one of its ends. If all links of a switch are down, that is one incident. `leaf_loss`: a queue drops at least {switch_links.MIN_ERRORS:g} packets per second of a priority
  of which the switch counts pauses. Links between switches without NICs have no leaf, and raise no incident.
"""


_ADVICE = f"""\
Advice is an incident about a state that lasts and costs, of severity `info`; `headroom_low` is a warning. `gain` states what following it should gain, as a share of the time of
the affected jobs and as GPU-seconds per hour, and how this was derived. All devices that it concerns are victims. Advice can explain symptoms only, and the baselines include its devices.

- `config_drift`: NICs with the same role, driver and board, GPUs with the same model and part number, and nodes are compared by their settings
  and versions, NICs and nodes only with those of nodes with the same GPU models. A value is drift if at least {MIN_MAJORITY} peers and {_THRESHOLDS.majority:.0%} of them agree on another one. Settings that
  differ by rail on most nodes are a design; a setting that changed on several nodes within {_THRESHOLDS.rollout_seconds / 60:.0f} minutes is a
  rollout; NICs without a link are left out, as drivers report other settings then. One item of advice names all devices that deviate in the
  same settings. Frames contain no PCIe settings (relaxed ordering, maximum read request size), and ring sizes only as a part
  of the hash of all settings: a hash that deviates alone is reported as other settings. FEC, autonegotiation, MIG and compute modes are not compared, as cables
  and jobs determine them. The gain is the share of time in which pause stops the NIC, or the deficit of the GPU's clock, relative to peers: an upper bound.
- `switch_settings_mismatch`: switch ports announce their settings in LLDP frames (DCBX of IEEE 802.1Q). PFC priorities that differ, DSCPs that NIC and switch map to
  different priorities, and an MTU beyond the largest frame of the port are reported, as one item of advice for all NICs with the same two
  values. A largest frame that contradicts most NICs is regarded as a wrong announcement. Settings of switches that send no such frames, or whose frames the firmware consumes, and thresholds of queues are not detected. The gain is that of `config_drift`.
- `cabling_fault`: the switches announce themselves to the servers by LLDP. A NIC whose leaf is that of another rail, compared with the other
  nodes of its pod, is reported as in [Switches](switches.md#links-and-cabling-faults), while its link is up. Several NICs of a node are one item
  of advice. Servers that receive no LLDP are not compared. The gain is unknown.
- `ecn_late`: while a switch pauses a sender, its queue is longer than the PFC threshold. With a lower ECN threshold it would mark all packets
  that leave this queue, so the receiver would see at least the share of marked packets that senders see as share of paused time. A
  leaf is reported if {network_advice.MIN_LATE_NICS:.0%} of its NICs are paused {network_advice.PAUSED_PER_MARKED:.0f} times as much as the packets of any receiver of the rail are marked, and {network_advice.LATE_FACTOR:.0f} times
  as much as on other rails, or for {network_advice.CERTAIN_LATE_PAUSED:.0%} of the time. If marks became rare below one leaf at its usual load when the pauses began, only receivers below it count. A receiver without an agent may be the reason instead if it receives from most NICs of the leaf. Without any marks it is `ecn_inactive`, or a site without ECN. The gain is the
  share of paused time beyond that of other rails: an upper bound.
  [Switches](#switches) show this themselves: over {switch_advice.MARKS_NS // SECOND_NS} seconds, a leaf sends at least {switch_advice.MIN_PAUSES:.0f} pause frames of a priority per second, and its queues
  of this priority mark fewer packets. Or a queue has, in {switch_advice.MIN_DEEP_SHARE:.0%} of at least {switch_advice.MIN_DEEP_SAMPLES} samples, more than its port sends in
  {switch_advice.DEEP_SECONDS * 1e6:.0f} µs (at the recommended thresholds, every packet is marked from there on), and marks less than {switch_advice.MARKS_PER_DEEP:.0%} of what this share implies. Depth, marks, packets and pauses
  are those of the same switch and poll; marks that are not counted are unknown, not 0. The gain is the median share of time in which the leaf pauses its NICs: an upper bound.
- `pause_counts_differ`: the two ends of a link count different numbers of pause frames, beyond what the times of their samples explain ([Switches](#switches)); one item of advice for each
  switch, with both counts. The detector of pauses relies on these counters: a receiver that seems slow may be none, or one may be missed. The gain is unknown.
- `headroom_low`: the watermark of the headroom of a priority group is above {switch_advice.MIN_HEADROOM_SHARE:.0%} of the size in its buffer profile, or a priority group dropped packets
  although its port pauses the sender. A size that is not known gives no advice. A watermark lasts until the switch clears it. The gain is unknown: a full headroom loses packets.
- `rail_imbalance`: rails that carry more than {network_advice.MAX_RAIL_RATIO} or less than {network_advice.MIN_RAIL_RATIO} of the median rail of a job, on {network_advice.AGREEING_NODES:.0%} of its nodes, in
  {network_advice.BLOCKS} consecutive blocks of {network_advice.BLOCK_MINUTES} minutes. The gain is the time that the busiest rail needs at line rate, less that of the mean rail: an upper
  bound. Unequal uplinks of a leaf do not show in the counters of hosts.
- `placement_oversubscribed`: a job that would fit into one pod crosses pods, and its NICs are paused, or their packets marked, {network_advice.PLACED_FACTOR:.0f} times as much as those
  of jobs in one pod, in the same blocks. Without a job in one pod to compare with, there is no advice: marks may be those of its own
  receivers. The gain is the difference in paused time: a lower bound, as hosts do not see what rate control costs.
"""


def sections() -> dict[str, list[str]]:
    """Return the generated sections of the page about the diagnosis, by their headings."""
    classes = [
        (
            f"`{kind.name}`",
            kind.text,
            str(kind.severity),
            f"{kind.min_evaluations} of {kind.of_evaluations}",
            _explained_by(kind.name),
            kind.action,
        )
        for kind in CLASSES.values()
    ]
    signals = [
        (f"`{signal.name}`", str(signal.device), signal.unit, signal.text, _origin(signal))
        for table in SIGNALS.values()
        for signal in table.values()
    ]
    return {
        "Classes of incidents": [
            "`persistence`: evaluations that must agree, of the last ones, 10 seconds apart. Of several devices of one node, these classes become",
            f"one incident of the node: {_listed(NODE_CLASSES)}.",
            "",
            *_table(
                ("class", "meaning", "severity", "persistence", "may be explained by", "action"),
                classes,
            ),
        ],
        "Symptoms": [
            *_SYMPTOMS.splitlines(),
            "",
            *_table(("class", "alerts", "same labels", "of"), _symptoms()),
        ],
        "Switches": _SWITCH_EVIDENCE.splitlines(),
        "Advice": _ADVICE.splitlines(),
        "Signals": [
            "Each signal is computed from the sums of these metrics of the agents, of the first ones that a device reports. [Metrics](metrics/README.md) states where",
            "the agents read them.",
            "",
            *_table(("signal", "device", "unit", "meaning", "metrics"), signals),
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
            (alerts + limits).replace("|", "\\|"),
            ", ".join(equal),
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
    if commands := general_commands(kind.name):
        yield from ("", "```sh", *commands, "```")
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


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return [lines[0], "|---" * len(head) + "|", *lines[1:], ""]


def schema() -> str:
    """Return the JSON Schema of an incident."""
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(dialect | incident_schema(), indent=1) + "\n"
