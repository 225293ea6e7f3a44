"""Pages about the diagnosis: classes of incidents, signals, and the JSON Schema of an incident."""

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
    switch_advice,
    switch_evidence,
    switch_links,
    switch_queues,
)
from railscope_collector.diagnosis.incident_classes import CLASSES, IncidentClass
from railscope_collector.diagnosis.incident_report import incident_schema
from railscope_collector.diagnosis.network_advice import BLOCK_MINUTES, BLOCKS
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

_INTRODUCTION = """\
A collector finds the cause, the victims and the evidence of each fault in the frames of its nodes. `railscope diagnose --captures
DIRECTORY` does the same for recorded nodes, and `railscope diagnose --frame-log STATE_DIRECTORY --from TIME --to TIME` for a range of a collector's frame log. Each subdirectory of
DIRECTORY is the capture of one node (`railscope agent record`). Switches are read from LLDP, or else from the cabling file of `--config`, jobs and tenants from the
claims of the nodes.

```console
$ railscope diagnose --captures captures
warning: slow_receiver: NIC ens4f0np0 of gpu-node-2 (mlx5_5, 0000:5e:00.0, rail 3, leaf-4 Ethernet1/2)
  A NIC accepts data more slowly than it arrives, and pauses its switch port.
```

## Method

1. Counters and gauges of all nodes become sums in slots of 10 seconds on the collector's clock. Every rate is a quotient of
   two sums; a slot without a reading is unknown, never zero.
2. Every 10 seconds, detectors compare the signals of the last 30 seconds with those of the peers (NICs below the same leaf,
   GPUs of the same job or model) and with the device's own past. Reports of the hardware, such as an Xid, need no comparison.
   The past of a device is at most 30 minutes of its present job. While a fault affects a device, its past stays that of the
   time before the fault. The new state of a job that only differs from its own past, as in `dataloader_stall`, becomes its usual
   one after 30 minutes.
3. A finding becomes an incident if it persists, as the table of classes states. A symptom waits while another finding may explain
   it: a finding of a class in the table about the same device, node, rail or job. What is lost on the link of a node or in a
   leaf explains only what happens on its rail to its own jobs.
4. {NODE_CLASSES} of three or more devices of a node, or of all of its GPUs or NICs, are one incident of the node.
   A device that had an incident before keeps it. Heat of half of the GPUs of a node, or more, is an incident of the node, and that
   of several such nodes, or a slowdown by hardware, one of the rack; it explains earlier incidents of its GPUs.
5. An incident ends after 90 seconds without its finding. One that returns within 10 minutes is the same incident. An incident
   that the hardware reported also lasts as long as the device shows its symptom: an uncorrectable memory error until the
   GPU no longer waits for the remapping of a row. A link that is down is reported until it is up. While none of the nodes of the cause
   sends samples, for an hour at most, the incident stays open: the state of the cause is unknown. NICs of a node without a job, of which all are down or gone, are
   `info` while other nodes have jobs, and the rails had no traffic in the minute before: maintenance; those that are back within two minutes are not lost. `node_down` and `agent_partition` are conclusions from the same silence: if the job
   goes on after all, or stops, the later one ends and explains the other.
6. A fault that outlasts the incident that explained it is an incident of its own again.

A node that the collector does not receive from is judged by the other nodes of its jobs. It is `node_down` if they exchange no data over
their NICs while their GPUs are busy, for longer than in any pause of the job before, or with missed acknowledgements; and `agent_partition` if
they exchange data after the last frame of the node. Until 90 seconds after that frame (`max_restart_seconds`) the severity is `info`, as its agent
may be restarting; in captures, it is a warning if the node went on sampling, and `info` if its capture has no samples from then on.
Otherwise it has no incident, and the alert `RailscopeNodeStale` pages: a
node whose jobs have no other node, whose jobs exchange nothing over NICs, or whose job ended with it. Ports of switches are not
used for it.

GPUs without a claim are in no job ([how jobs are known](jobs.md)). These classes compare the ranks of a job, and are not reported for such GPUs:
`gpu_straggler`, `host_late`, `storage_bound`, `dataloader_stall`, `nccl_hang`, `job_slowdown`, `uplink_congested`, `node_down` and
`agent_partition`. Faults that a device, its link or its leaf shows are found without jobs. A job has all NICs of its nodes that are on a
rail; on a node that it shares with another job, those on the rails of its GPUs. A fault of one GPU or NIC of such a node affects the
job that holds it.

The speed of a job is the data that it exchanges per second, relative to its past, over NICs or over NVLink, whichever changed
less: each step exchanges the same amount over both, on all nodes. If the nodes change differently, each node works independently, as in a
rollout, and their waits show no fault. `speed` of a job in an incident is the median of the last five minutes, without the first 40 seconds: a
checkpoint in this time does not change it. `lost_gpu_seconds` is the sum over the slow jobs of GPUs, times 1 - `speed`, times the seconds since the onset. A job whose GPUs
work more than before, as with longer sequences, is not slow. Storage explains the waits of a job only if the slow operations of one of its nodes
take 1% of the time or more, and if they became slow before the job waited. While a rank still works, and the
others wait for it, `nccl_hang` has the severity `info` for six minutes: the job may be evaluating its model. Input of steps that are longer than about ten seconds is judged
over two to four minutes, of which each third must have waits: one evaluation then suffices. If
several incidents reach a slow job, those on its own devices, its leaf or its storage, or that pause its NICs, are its cause rather than
those on its rail, and the one with the highest confidence is charged with the loss: one that only shares its rail, after two minutes
without an incident of its own.

[`[diagnosis.thresholds]`](configuration.md#diagnosisthresholdsnetwork) changes what the detectors compare with, in the collector and in
`railscope diagnose --config FILE`. The defaults are those that `python -m bench.diagnosis` measures.

## In the collector

The collector evaluates the last frames every 10 seconds (`[diagnosis] enabled`), with the jobs and tenants of its
[account](jobs.md). Incidents are shown by:

- `GET /api/v1/incidents`, newest first, at most 200; `?state=open` or `closed`, `?class=`, `?severity=` select.
  `GET /api/v1/incidents/ID` adds the curves of the evidence: the cause, and the median of all devices of its kind, every 10
  seconds from 5 minutes before the incident opened, each of one slot whatever the window of the evidence. A tenant reads the incidents that touch its jobs, without the jobs, victims and
  losses of other tenants, and without the names of a cause on a node of which no such job is, its evidence and its curves. What shows the work or the ranks of a job is evidence for its tenant only; the curves of a job have no median of
  all devices then, and `detail` is empty unless it is about that job alone.
- [Metrics](metrics/incidents.md): open incidents with their causes, what they touch, and the GPU-seconds lost by class and tenant.
- A webhook (`[diagnosis] webhook_url`), in the form that Alertmanager sends: one notification when an incident of at least
  `webhook_min_severity` opens, one when it ends or another one explains it, and again one if it outlasts that one. What the receiver does not accept is sent again, after up to 5 minutes; the most severe incidents are sent first.
  The annotation `runbook_url` and the links to the incident and the collector begin with `cluster.advertised_url`; without it, `runbook_url` is a path. Use it
  where no Prometheus evaluates the [alerts](alerts.md).
- The alert `RailscopeIncident`; [symptoms](#symptoms) of an incident are not sent.
- Events and [audit records](audit.md): each change of an incident.

Incidents, baselines and the longest pauses of running jobs are in `diagnosis` of the state directory. Beyond 1,000 incidents, closed ones are dropped: of the nodes
with the most, the oldest first. After a restart they continue, with
the same identity; one whose finding does not return within 90 seconds is closed at the time it was last found. The windows
of the detectors fill again within a minute.

The queue of frames is bounded for each node (8 MiB) and for all (256 MiB); what exceeds it is not diagnosed, and counted in
`railscope_diagnosis_dropped_envelopes_total`. A node may have 64 findings at a time.

The sums of the last six minutes are in memory, those of all but the newest 80 seconds compressed: about 3 KiB per NIC and 1.5 KiB
per GPU of a healthy cluster. A quantity that no device reports uses no memory. The whole diagnosis takes about 100 KiB per node with 8 GPUs and
10 NICs. `python -m bench.diagnosis` measures its cost.

## Output

`--format json` prints one line for each incident, in its last state; [incident.schema.json](incident.schema.json) describes
the fields. The exit status is 0 with and without incidents. `detected` is the end of the evaluation that first concluded class and cause; data
that was recorded later does not change it. The onset is the end of the first slot that shows the fault,
which may have begun up to `onset_uncertainty_seconds` before. `runbook` is a path, in the console and on the site that the alert rules link to.

A file `arrivals.csv` beside the captures (columns `node,sent,received`: nanoseconds of the node's clock and of the
collector's) contains the arrivals of all nodes, from which the offsets of the clocks and missing nodes are computed. Without it,
clocks are not corrected, and a node is unknown from the end of its capture on. A line is ignored with a warning if its times are more than a day
from the captures, or its offset more than a day from the other offsets of its node; so is an invalid capture. A line that is not a name
and two integers ends the command with exit status 2.
"""

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
  leaf is reported if {_THRESHOLDS.min_late_nics:.0%} of its NICs are paused {_THRESHOLDS.paused_per_marked:.0f} times as much as the packets of any receiver of the rail are marked, and {_THRESHOLDS.late_factor:.0f} times
  as much as on other rails, or for {_THRESHOLDS.certain_late_paused:.0%} of the time. If marks became rare below one leaf at its usual load when the pauses began, only receivers below it count. A receiver without an agent may be the reason instead if it receives from most NICs of the leaf. Without any marks it is `ecn_inactive`, or a site without ECN. The gain is the
  share of paused time beyond that of other rails: an upper bound.
  [Switches](#switches) show this themselves: over {switch_advice.MARKS_NS // SECOND_NS} seconds, a leaf sends at least {switch_advice.MIN_PAUSES:.0f} pause frames of a priority per second, and its queues
  of this priority mark fewer packets. Or a queue has, in {switch_advice.MIN_DEEP_SHARE:.0%} of at least {switch_advice.MIN_DEEP_SAMPLES} samples, more than its port sends in
  {switch_advice.DEEP_SECONDS * 1e6:.0f} µs (at the recommended thresholds, every packet is marked from there on), and marks less than {switch_advice.MARKS_PER_DEEP:.0%} of what this share implies. Depth, marks, packets and pauses
  are those of the same switch and poll; marks that are not counted are unknown, not 0. The gain is the median share of time in which the leaf pauses its NICs: an upper bound.
- `pause_counts_differ`: the two ends of a link count different numbers of pause frames, beyond what the times of their samples explain ([Switches](#switches)); one item of advice for each
  switch, with both counts. The detector of pauses relies on these counters: a receiver that seems slow may be none, or one may be missed. The gain is unknown.
- `headroom_low`: the watermark of the headroom of a priority group is above {switch_advice.MIN_HEADROOM_SHARE:.0%} of the size in its buffer profile, or a priority group dropped packets
  although its port pauses the sender. A size that is not known gives no advice. A watermark lasts until the switch clears it. The gain is unknown: a full headroom loses packets.
- `rail_imbalance`: rails that carry more than {_THRESHOLDS.max_rail_ratio} or less than {_THRESHOLDS.min_rail_ratio} of the median rail of a job, on {_THRESHOLDS.agreeing_nodes:.0%} of its nodes, in
  {BLOCKS} consecutive blocks of {BLOCK_MINUTES} minutes. The gain is the time that the busiest rail needs at line rate, less that of the mean rail: an upper
  bound. Unequal uplinks of a leaf do not show in the counters of hosts.
- `placement_oversubscribed`: a job that would fit into one pod crosses pods, and its NICs are paused, or their packets marked, {_THRESHOLDS.placed_factor:.0f} times as much as those
  of jobs in one pod, in the same blocks. Without a job in one pod to compare with, there is no advice: marks may be those of its own
  receivers. The gain is the difference in paused time: a lower bound, as hosts do not see what rate control costs.

## Recordings of real hardware

Public recordings, diagnosed by the same command; tests repeat it where the recordings are beside the repository.

| recording | reported | reason |
|---|---|---|
| an hour at the 200 Gb/s ports of three servers of a cluster of 2,024 GPUs: two train, one is idle | nothing | Bursts and a gap of four minutes are usual. The switch recorded bytes and packets alone: without pause, marks and losses, congestion at this moment cannot be excluded either. |
| counters of two servers before and after an RDMA connection was broken, two methods, three trials each | nothing | Each trial loses a handful of packets of one idle connection; the links stay up, and no NIC pauses or retransmits much. |
| retransmissions of a connection whose peer is unreachable, by the microsecond, five trials | nothing | Six adaptive retransmissions and five or six timeouts in four seconds, then the connection ends. The error of the connection is an event of its program, which host counters do not show as a rate. |
| kernel log with Xid 48, 63 and 94 | `ecc_uncorrectable` of one GPU | The driver reports uncorrectable errors; the remapped row (63) is their consequence. The GPU is known from the log alone. |
| kernel log with 629 Xid 13 and 7 Xid 43 | nothing | Programs cause both: illegal accesses, and contexts that end after them. |
| log with six losses of the carrier of an InfiniBand link | nothing | They are messages of a network manager, not of the kernel. The counter of downs of a running agent reports the flaps. |
| logs with errors of peer memory, a crash in NCCL, and NVSwitch | nothing | No error of a GPU; NVSwitch errors name no GPU. |
| Xid 79, 94, 145 and 149, as other projects quote them | `gpu_lost`, `ecc_uncorrectable`, `nvlink_errors` twice | Classes of these errors. Xid 13, 32 (programs) and 154 (announces a recovery) raise no incident. |

Hosts do not see the queue of a switch, errors of what a NIC sends, drops that neither end counts, nor bursts that are shorter
than a sample. They cannot distinguish a leaf switch from its uplinks, and a rank that never entered a collective from those that
wait for it, unless it is idle, or a [flight recorder or NCCL's RAS subsystem](collectives.md#over-all-nodes-of-a-job) names it. An incident states such a limit in `limits`.

A service with less load has the readings of a training job whose input is late. Jobs on one node, and jobs that exchange little and
were not busy all the time, may be services: their `dataloader_stall` is advice (`info`). With steps of more
than 20 seconds, late input is reported from the third gap on: two gaps may be checkpoints. A slow GPU
in steps of more than a minute is not found by its activity, as the others wait in few of the slots. Marks or pauses of uplinks that slow down no job are
`uplink_congested` of severity `info`, until a job that uses them is slower.
"""


def page() -> str:
    """Describe the diagnosis."""
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
    lines = [
        "# Diagnosis",
        "",
        "Generated by `python docs/generate.py`; change its sources instead.",
        "",
        *_INTRODUCTION.replace("{NODE_CLASSES}", _listed(NODE_CLASSES)).splitlines(),
        "",
        "## Classes of incidents",
        "",
        "`persistence`: evaluations that must agree, of the last ones, 10 seconds apart.",
        "",
        *_table(
            ("class", "meaning", "severity", "persistence", "may be explained by", "action"),
            classes,
        ),
        "## Symptoms",
        "",
        *_SYMPTOMS.splitlines(),
        "",
        *_table(("class", "alerts", "same labels", "of"), _symptoms()),
        "## Switches",
        "",
        *_SWITCH_EVIDENCE.splitlines(),
        "",
        "## Advice",
        "",
        *_ADVICE.splitlines(),
        "",
        "## Signals",
        "",
        "Each signal is computed from the sums of these metrics of the agents, of the first ones that a device reports. [Metrics](metrics/README.md) states where",
        "the agents read them.",
        "",
        *_table(("signal", "device", "unit", "meaning", "metrics"), signals),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


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
        lines += [f"### {kind.name}", "", kind.text, "", *_action(kind), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _action(kind: IncidentClass) -> Iterator[str]:
    yield f"Action: {kind.action}."
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
