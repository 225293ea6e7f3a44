"""Detectors of stale nodes, of faults of whole nodes, and of wrong clocks."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple

import numpy as np

from railscope.timestamps import SECOND_NS
from railscope_collector.detector_thresholds import NodeThresholds
from railscope_collector.diagnosis import findings, job_steps, storage_detectors
from railscope_collector.diagnosis.leaf_detectors import MIN_TIMEOUTS
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.diagnosis.slot_sums import mean_known

ACTIVE_SLOTS = 12
"""Slots before the last receipt of a node in which its job must have exchanged data, to show by its end that it waits."""

RECENT_SLOTS, RECENT_SECONDS = 2, 2 * 60 / findings.SLOTS_PER_MINUTE
"""Window of what a job does now."""

PROGRESS_SLOTS = 4
"""Slots after the end of a node in which its job may appear to make progress: two windows."""
SLOTS_PER_SECOND = findings.SLOTS_PER_MINUTE / 60

LOST_SECONDS = 86_400.0
"""Age of the last receipt from which on a node counts as removed, and its clock as unknown."""

_MAX_OFFSETS = 5


class DatedOffset(NamedTuple):
    """Difference of a node's clock from the collector's, positive if it is ahead, with the time of its receipt."""

    received_ns: int
    seconds: float


@dataclass(slots=True)
class NodeContact:
    """Receipts of a node: the last one, their usual distance, and the offsets of its clock."""

    last_received_ns: int = 0
    period_seconds: float = 5.0
    offsets: deque[DatedOffset] = field(default_factory=lambda: deque(maxlen=_MAX_OFFSETS))
    count: int = 0
    has_lost_job: bool = False
    """True if its job was idle since the node is down: that it works again shows nothing, as it may have other nodes now."""

    def add(self, received_ns: int, offset_ns: int | None) -> None:
        """Add a receipt; `offset_ns` is the node's clock minus the collector's, None if it is unknown."""
        if self.count:
            step = (received_ns - self.last_received_ns) / SECOND_NS
            change = min(step, 10 * self.period_seconds) - self.period_seconds
            self.period_seconds += change / min(self.count, 8)  # the mean of the first ones
        self.count += 1
        self.has_lost_job = False
        self.last_received_ns = max(self.last_received_ns, received_ns)
        if offset_ns is not None:
            self.offsets.append(DatedOffset(received_ns, offset_ns / SECOND_NS))

    @property
    def offset_seconds(self) -> float:
        """Offset of the clock: the median of the last receipts, and as behind only what no delay explains.

        A delay of a receipt makes a clock appear behind: the second highest offset has the least delay, except one.
        """
        seconds = [offset.seconds for offset in self.offsets]
        offset = median(seconds if len(seconds) == _MAX_OFFSETS else seconds[-3:])
        return max(offset, min(sorted(seconds)[-2], 0.0))

    @property
    def delay_seconds(self) -> float:
        """Variation of the delay of the last receipts, of five except the extreme ones: an offset of that size may be a delay."""
        ordered = sorted(offset.seconds for offset in self.offsets)
        margin = int(len(ordered) == _MAX_OFFSETS)
        return ordered[-1 - margin] - ordered[margin]

    def wrong_since_ns(self, usual_seconds: float, max_error_seconds: float) -> int:
        """Return the time of the first of the last receipts that all differ from the usual offset; 0 if the last one does not."""
        since_ns = 0
        for offset in reversed(self.offsets):
            if abs(offset.seconds - usual_seconds) <= max_error_seconds:
                break
            since_ns = offset.received_ns
        return since_ns

    def age_seconds(self, now_ns: int) -> float:
        """Return the time since the last receipt."""
        return (now_ns - self.last_received_ns) / SECOND_NS

    def is_stale(self, now_ns: int, thresholds: NodeThresholds) -> bool:
        """True if more receipts are missing than may be."""
        limit = max(
            thresholds.max_missed_receipts * self.period_seconds, thresholds.min_stale_seconds
        )
        return self.count > 1 and self.age_seconds(now_ns) > limit

    def is_lost(self, now_ns: int) -> bool:
        """True if the node has not reported for a day."""
        return self.age_seconds(now_ns) > LOST_SECONDS


MAX_STALE_NODES = 0.5
"""Share of the nodes that may be stale at once, if they are several: of more, none is reported."""


def stale_nodes(
    view: findings.DiagnosisView,
    contacts: Mapping[str, NodeContact],
    sample_slots: Mapping[str, AbstractSet[int]] | None = None,
    *,
    has_receipts: bool,
) -> Iterator[findings.Finding]:
    """Yield nodes without receipts: down if their jobs wait for them, separated if their jobs continue.

    The evidence is what the other nodes of a job report. The node is down if they exchange no data while their GPUs are busy, for
    longer than in any pause before, or with missed acknowledgements; or if one of them misses acknowledgements on its rails since
    then. It is separated if they work and exchange data after its last receipt. Otherwise a node that
    was down stays down, and any other is unknown, with the alert on the node only: it has no job on other nodes too, or the nodes
    of the job exchange nothing over their NICs.

    `has_receipts` means that receipts are recorded apart from samples: without them a node that stops reporting is
    unknown. `sample_slots` are the slots with samples of each node that has a capture, whether or not the collector
    received them: of an agent that is separated there are some, and of a capture that has ended there are none.
    """
    thresholds = view.thresholds.nodes
    now_ns = view.timestamp_ns
    stale = [name for name, contact in contacts.items() if contact.is_stale(now_ns, thresholds)]
    if len(stale) > max(1, MAX_STALE_NODES * len(contacts)):
        return
    stopped = {name: _stopped_jobs(view, name, contacts[name]) for name in stale}
    for name in stale:
        contact = contacts[name]
        period_ns = round(contact.period_seconds * SECOND_NS)
        period_slots = math.ceil(contact.period_seconds * SLOTS_PER_SECOND)
        evidence = findings.FindingEvidence(
            "receipt_age_seconds",
            contact.age_seconds(now_ns),
            thresholds.max_missed_receipts * contact.period_seconds,
            "limit",
            name,
            slots=0,
        )
        cause = findings.Cause("node", name=name)
        # The first receipt that is missing was due one period after the last.
        onset_ns = contact.last_received_ns + period_ns
        may_be_cause = (
            state for state in stopped[name] if not _stopped_by_other(view, state, name)
        )
        stale_slot = _stale_slot(view, contact)
        is_down = any(_hangs(view, state, stale_slot) for state in may_be_cause)
        is_down = is_down or _is_unreachable(view, name, stale_slot)
        was_down = ("node_down", cause) in view.open_faults
        contact.has_lost_job |= was_down and _is_idle(view, name)
        goes_on = has_receipts and not stopped[name] and _goes_on(view, name, contact)
        # Its job may end meanwhile: a node that was down is down until it reports, or its job shows that it works.
        if is_down or (was_down and not goes_on):
            yield findings.Finding(
                "node_down", cause, (evidence,), onset_ns=onset_ns, onset_slots=period_slots
            )
        elif goes_on:
            may_restart = contact.age_seconds(now_ns) <= thresholds.max_restart_seconds
            if sample_slots is not None:
                first = max(
                    math.floor(_stale_slot(view, contact)) + 2, view.signals.slot - ACTIVE_SLOTS
                )
                recent = range(first, view.signals.slot + 1)
                may_restart |= sample_slots.get(name, frozenset()).isdisjoint(recent)
            severity = "info" if may_restart else ""
            yield findings.Finding(
                "agent_partition",
                cause,
                (evidence,),
                severity=severity,
                onset_ns=onset_ns,
                onset_slots=period_slots,
            )


MIN_UNREACHABLE = 0.7
"""Share of a node's NICs that miss acknowledgements if another node is down: all that exchange with it. A bad link or leaf affects one rail."""


def _is_unreachable(view: findings.DiagnosisView, name: str, stale_slot: float) -> bool:
    """True if, since a node is stale, another node of its job misses acknowledgements on its rails, as none did before.

    The traffic of a job that stops need not: its NICs may carry what others send. Connections to a dead node fail within two
    minutes, and miss nothing from then on.
    """
    age_slots = view.signals.slot - math.floor(stale_slot)
    if not 0 < age_slots <= ACTIVE_SLOTS:
        return False
    windows = ((1, 0), (findings.SLOTS_PER_MINUTE, age_slots))
    tables = (view.signals.table(DeviceKind.NIC, *window) for window in windows)
    now, before = (findings.above(each["ack_timeouts"], MIN_TIMEOUTS) for each in tables)
    exchanges = findings.above(view.base(DeviceKind.NIC, "send"), findings.MIN_EXCHANGE)
    for state in _shared_jobs(view, name):
        nics = state.job.nics[exchanges[state.job.nics]]
        nodes = view.groups.nic_node[nics]
        count, missing, missing_before = (
            np.bincount(nodes, weights) for weights in (None, now[nics], before[nics])
        )
        misses = (count > 1) & (missing >= MIN_UNREACHABLE * count) & (missing_before == 0)
        if misses.any() and not _stopped_by_other(view, state, name):
            return True
    return False


STALLED_SPEED, MIN_WAITING_USE = 0.1, 0.7
"""Exchange relative to the past below which a job makes no progress, and utilization above which its ranks wait for others: those of a
job that has ended are idle.
"""


def _stale_slot(view: findings.DiagnosisView, contact: NodeContact) -> float:
    """Return the slot of the last receipt of a node."""
    return view.signals.slot - contact.age_seconds(view.timestamp_ns) * SLOTS_PER_SECOND


def _shared_jobs(view: findings.DiagnosisView, name: str) -> Iterator[findings.JobState]:
    """Yield the jobs of a node that other nodes have too."""
    for state in view.states.values():
        if name in state.job.nodes and len(state.job.nodes) > 1:
            yield state


def _stopped_jobs(
    view: findings.DiagnosisView, name: str, contact: NodeContact
) -> list[findings.JobState]:
    """Return the jobs that make no progress since a node stopped."""
    stale_slot = _stale_slot(view, contact)
    # A period after its last receipt it may still have worked, and readings of the others show that a period later.
    last_slot = stale_slot + PROGRESS_SLOTS + 2 * contact.period_seconds * SLOTS_PER_SECOND
    states = _shared_jobs(view, name)
    return [state for state in states if _has_stopped(state, stale_slot, last_slot)]


def _is_idle(view: findings.DiagnosisView, name: str) -> bool:
    """True if all jobs of a node are idle on their other nodes."""
    uses = [state.utilization_now for state in _shared_jobs(view, name)]
    return bool(uses) and all(use < job_steps.MIN_INPUT for use in uses)


def _goes_on(view: findings.DiagnosisView, name: str, contact: NodeContact) -> bool:
    return not contact.has_lost_job and any(
        _works(view, state, contact) for state in _shared_jobs(view, name)
    )


def _has_stopped(state: findings.JobState, stale_slot: float, last_slot: float) -> bool:
    """True if a job makes no progress since a node stopped; one without a past if it stopped to exchange data then.

    It may appear to make progress until before the last slot.
    """
    is_idle = np.isnan(state.exchange_now) and state.exchange < findings.MIN_EXCHANGE
    was_active = state.history.exchange_slot >= max(stale_slot - ACTIVE_SLOTS, 0)
    is_waiting = is_idle and was_active and state.utilization_now > MIN_WAITING_USE
    has_stopped = is_waiting or state.exchange_now < STALLED_SPEED
    return bool(has_stopped and state.history.progress_slot < last_slot)


def _hangs(view: findings.DiagnosisView, state: findings.JobState, stale_slot: float) -> bool:
    """True if the stop of a job is none of its checkpoints: it lasts longer, or its NICs miss acknowledgements.

    Idle GPUs show nothing: it is a checkpoint, or the job and its node have ended. Neither does a job that had stopped
    well before the node, for a minute and for longer than ever: it hangs for another reason. Ranks that exchange data within their nodes evaluate.
    """
    moved = max(job_steps.exchange_changes(view, state.job, RECENT_SLOTS), default=0.0)
    is_waiting = state.utilization_now > MIN_WAITING_USE
    if not is_waiting or moved >= STALLED_SPEED:
        return False
    if storage_detectors.stores(view, state.job):
        return False
    history, longest = state.history, state.history.longest_pause_slots
    if history.progress_slot >= 0:
        stopped_slot, earlier_slots = history.progress_slot, max(longest, findings.SLOTS_PER_MINUTE)
    else:
        stopped_slot, earlier_slots = history.exchange_slot, ACTIVE_SLOTS
    is_longer = history.pause_slots > longest and stopped_slot >= stale_slot - earlier_slots
    return is_longer or _misses_acknowledgements(view, state)


def _misses_acknowledgements(view: findings.DiagnosisView, state: findings.JobState) -> bool:
    timeouts = view.signals.table(DeviceKind.NIC, 1)["ack_timeouts"][state.job.nics]
    return bool(findings.above(timeouts, MIN_TIMEOUTS).any())


STOPPING_CLASSES = frozenset({"gpu_lost", "gpu_unresponsive", "nic_lost", "link_down", "node_down"})


def _stopped_by_other(view: findings.DiagnosisView, state: findings.JobState, name: str) -> bool:
    """True if a job stopped with a fault of another of its nodes: that the node is stale too shows nothing."""
    for (incident_class, cause), fault in view.open_faults.items():
        node = _node_of(view, cause) if incident_class in STOPPING_CLASSES else name
        if node != name and node in state.job.nodes:
            slot = view.signals.slot - (view.timestamp_ns - fault.onset_ns) // findings.SLOT_NS
            if state.history.progress_slot <= slot + PROGRESS_SLOTS:
                return True
    return False


def _node_of(view: findings.DiagnosisView, cause: findings.Cause) -> str:
    """Return the node of a device; the name of another cause."""
    if cause.kind == "gpu":
        return view.devices.gpus[cause.position].node
    return view.devices.nics[cause.position].node if cause.kind == "nic" else cause.name


WORKING_SPEED = 0.3
"""Exchange relative to the past, above which a job works while its window may contain the last moments of a stale node."""


def _works(view: findings.DiagnosisView, state: findings.JobState, contact: NodeContact) -> bool:
    """True if a job goes on without a node: its other nodes exchange data, and their GPUs work.

    The node may have worked for a period after its last receipt: until the window is after that, traffic may be from before.
    """
    if job_steps.does_no_work(state):
        return False
    age_seconds = contact.age_seconds(view.timestamp_ns)
    is_later = age_seconds > RECENT_SECONDS + contact.period_seconds
    if not np.isnan(state.exchange_now):
        return bool(state.exchange_now > (STALLED_SPEED if is_later else WORKING_SPEED))
    sent = view.signals.table(DeviceKind.NIC, RECENT_SLOTS)["send"][state.job.nics]
    return bool(is_later and mean_known(sent) > findings.MIN_EXCHANGE)


NODE_CLASSES = frozenset({
    "gpu_lost", "gpu_straggler", "gpu_unresponsive", "link_down", "link_flap", "link_speed_low", "nic_lost", "transceiver_degraded",
})  # fmt: skip
"""Classes of single devices that are one fault if several devices of a node have them."""
MIN_NODE_DEVICES = 3


def merge_into_nodes(
    view: findings.DiagnosisView, found: Iterable[findings.Finding]
) -> Iterator[findings.Finding]:
    """Replace findings of several devices of a node by one of the node: of three, of all, or while the node has an incident.

    A device with an incident of its own keeps it: what follows is a fault of the others.
    """
    nodes = view.devices.nodes
    of_node: dict[tuple[str, str], list[findings.Finding]] = defaultdict(list)
    for finding in found:
        cause = finding.cause
        is_open = (finding.incident_class, cause) in view.open_faults
        is_single = cause.kind in {"nic", "gpu"} and finding.severity != "info" and not is_open
        if finding.incident_class in NODE_CLASSES and is_single:
            devices = view.devices.nics if cause.kind == "nic" else view.devices.gpus
            of_node[finding.incident_class, devices[cause.position].node].append(finding)
        else:
            yield finding
    for (name, node), members in of_node.items():
        cause, count = findings.Cause("node", name=node), len({each.cause for each in members})
        # Of NICs, those on rails: ports of other networks end on other switches.
        is_gpu = members[0].cause.kind == "gpu"
        of_kind = nodes[node].gpus.values() if is_gpu else _rails(view, node)
        is_whole = count >= MIN_NODE_DEVICES or 1 < count == len(of_kind)
        if is_whole or (name, cause) in view.open_faults:
            finding = _of_whole_node(cause, members)
            is_drained = _is_drained(view, node, finding)
            yield replace(finding, severity="info") if is_drained else finding
        else:
            yield from members


_DRAINED_CLASSES = frozenset({"link_down", "nic_lost"})


def _is_drained(view: findings.DiagnosisView, node: str, finding: findings.Finding) -> bool:
    """True if a node whose rails are all down, or gone, has no job while others have one, and sent nothing when they were last up.

    Then it is in maintenance. The traffic of a job that had ended before is no reason against it.
    """
    if finding.incident_class not in _DRAINED_CLASSES:
        return False
    rails = _rails(view, node)
    jobs = [*view.jobs, *(each.job for each in view.ended_jobs)]
    slots = view.signals.slots(DeviceKind.NIC, 2 * findings.SLOTS_PER_MINUTE)
    were_up = findings.above(slots["link_up"][:, rails], 0.0).any(axis=1)
    sent = slots["send"][were_up][-view.signals.window :, rails]
    has_sent = findings.above(sent, findings.MIN_EXCHANGE).any()
    has_job = any(node in job.nodes for job in jobs)
    return bool(jobs) and not has_job and not has_sent and set(finding.parts) >= set(rails)


def _rails(view: findings.DiagnosisView, node: str) -> list[int]:
    nics = view.devices.nodes[node].nics.values()
    return [position for position in nics if view.devices.nics[position].rail]


def _of_whole_node(cause: findings.Cause, members: Sequence[findings.Finding]) -> findings.Finding:
    strongest = max(members, key=lambda each: each.strength)
    severities = {each.severity for each in members}
    return replace(
        strongest,
        cause=cause,
        evidence=tuple(each.evidence[0] for each in members[:MAX_NODE_EVIDENCE]),
        severity="critical" if "critical" in severities else "",
        onset_ns=min((each.onset_ns for each in members if each.onset_ns), default=0),
        parts=tuple(sorted({each.cause.position for each in members})),
    )


MAX_NODE_EVIDENCE = 8
DELAY_FACTOR = 3.0
"""A wrong clock differs by this many times the variation of the delays in addition: few receipts show a part of them only."""


def wrong_clocks(
    view: findings.DiagnosisView, contacts: Mapping[str, NodeContact]
) -> Iterator[findings.Finding]:
    """Yield nodes with a clock that differs from those of the others; one receipt alone proves nothing.

    A busy host, network or collector delays some receipts more than others: its clocks do not differ. A delay makes a
    clock appear behind: delays of a node itself do not explain that its clock is ahead of the others.
    """
    thresholds = view.thresholds.nodes
    recent = {
        name: contact
        for name, contact in contacts.items()
        if len(contact.offsets) >= 3  # noqa: PLR2004 - the median of three ignores one
        and not contact.is_stale(view.timestamp_ns, thresholds)
    }
    if not recent:
        return
    offsets = {name: contact.offset_seconds for name, contact in recent.items()}
    usual = median(offsets.values()) if len(offsets) > 2 else 0.0  # noqa: PLR2004 - a majority
    usual_delay = median(contact.delay_seconds for contact in recent.values())
    limit = thresholds.max_clock_offset_seconds
    for name, offset in offsets.items():
        contact, error = recent[name], abs(offset - usual)
        own_delay = contact.delay_seconds if offset < usual else 0.0
        if error > limit + DELAY_FACTOR * max(own_delay, usual_delay):
            slots = math.ceil(_MAX_OFFSETS * contact.period_seconds * SLOTS_PER_SECOND)
            evidence = findings.FindingEvidence(
                "clock_offset", offset, limit, "other nodes", name, slots=slots
            )
            severity = "critical" if error > thresholds.critical_clock_offset_seconds else ""
            yield findings.Finding(
                "clock_skew",
                findings.Cause("node", name=name),
                (evidence,),
                severity=severity,
                detail=view.devices.nodes[name].name,
                onset_ns=contact.wrong_since_ns(usual, limit),
            )
